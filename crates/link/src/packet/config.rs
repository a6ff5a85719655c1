//! What can be chosen about a packet link.

use wire_edge::ETHERTYPE_DEFAULT;

/// Settings of a packet link; the default suits hosts on one Ethernet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PacketConfig {
    /// Name of the interface. Loopback is one, too; a VLAN or bridge interface as well.
    pub interface: String,
    /// What marks the frames among all others on the network, 0x0600 to 0xffff but for 0x8100; the
    /// peers must have the same.
    pub ethertype: u16,
    /// Which endpoint of the host this is, unique on the interface; 0 takes a free one.
    pub port: u16,
    /// The VLAN whose tag frames get and must have, 1 to 4094. An interface of the host that is
    /// itself in a VLAN needs none.
    pub vlan: Option<u16>,
    /// Upper bound of the frame size in bytes, whatever the interface carries.
    pub frame_bytes_max: u16,
    /// Memory of the ring that the kernel receives to, in bytes.
    ///
    /// The default of 4 MiB holds 3 ms of a 10 Gb/s link in full frames, about what a busy host may
    /// keep a process from running.
    pub receive_ring_bytes: u32,
    /// Frames that may wait below the socket until the device takes them, in bytes.
    ///
    /// The default of 1 MiB lets sixteen batches of full frames wait.
    pub send_buffer_bytes: u32,
    /// Goes past the queueing discipline of the interface, which saves it time and ignores a rate
    /// limit that the host's administrator has set there.
    pub qdisc_bypass: bool,
}

delivery::setters!(PacketConfig {
    interface: String,
    ethertype: u16,
    port: u16,
    vlan: Option<u16>,
    frame_bytes_max: u16,
    receive_ring_bytes: u32,
    send_buffer_bytes: u32,
    qdisc_bypass: bool,
});

impl PacketConfig {
    /// Returns the defaults for the interface called `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            ethertype: ETHERTYPE_DEFAULT,
            port: 0,
            vlan: None,
            frame_bytes_max: FRAME_BYTES_MAX,
            receive_ring_bytes: 4 << 20,
            send_buffer_bytes: 1 << 20,
            qdisc_bypass: false,
        }
    }
}

/// Largest frame a packet link uses, in bytes: no jumbo Ethernet carries more.
const FRAME_BYTES_MAX: u16 = 9216 - wire_edge::ENVELOPE_BYTES as u16;

//! Settings of a packet link.

use wire_edge::ETHERTYPE_DEFAULT;

/// Settings of a packet link. The defaults suit hosts on one Ethernet.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PacketConfig {
    /// Name of the interface. It may be a loopback, VLAN or bridge interface.
    pub interface: String,
    /// The `EtherType` that distinguishes edge frames from all other frames on the network: 0x0600
    /// to 0xffff except 0x8100. All peers must use the same value.
    pub ethertype: u16,
    /// The port that distinguishes endpoints on the interface. 0 chooses a free port.
    pub port: u16,
    /// The VLAN, 1 to 4094. Sent frames get its tag, and received frames must have it. If the
    /// interface itself is in a VLAN, no value is needed here.
    pub vlan: Option<u16>,
    /// Upper bound of the frame size in bytes. If the interface carries less, frames are smaller.
    pub frame_bytes_max: u16,
    /// Size of the kernel's receive ring in bytes.
    ///
    /// The default of 4 MiB holds 3 ms of full frames at 10 Gb/s. On a busy host, a process may
    /// have to wait for a processor for about this long.
    pub receive_ring_bytes: u32,
    /// Bytes of frames that may wait in the kernel until the device sends them.
    ///
    /// The default of 1 MiB holds sixteen batches of full frames.
    pub send_buffer_bytes: u32,
    /// If true, the link bypasses the queueing discipline of the interface. This saves processor
    /// time, but ignores a rate limit that the administrator configured there.
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

/// Largest frame of a packet link, in bytes. No jumbo Ethernet carries larger frames.
const FRAME_BYTES_MAX: u16 = 9216 - wire_edge::ENVELOPE_BYTES as u16;

//! Settings of an `AF_XDP` link.

use std::fmt;

/// Settings of an `AF_XDP` link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct XdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// The interface's queue. The link receives frames from the receive queue with this number, and
    /// sends frames on the transmit queue with this number.
    ///
    /// Frames of this link that the interface puts on another queue are lost. Most interfaces put
    /// frames that are not IP on queue 0.
    pub queue: u32,
    /// Port of the endpoint on this interface; 0 chooses a free port.
    pub port: u16,
    /// The `EtherType` that distinguishes our frames from all other frames. Both ends must use the
    /// same value.
    pub ethertype: u16,
    /// The VLAN, 1 to 4094, or none. Both ends must use the same value. If the interface removes
    /// the tags of received frames, disable this: `ethtool -K INTERFACE rxvlan off`.
    pub vlan: Option<u16>,
    /// The only mode that the link may use. If `None`, the link uses the best mode that works.
    pub mode: Option<XdpMode>,
    /// Maximum number of frames that wait to be received, a power of two from 64 to 32768.
    ///
    /// The default of 2048 holds 2.5 ms of full 1500-byte frames at 10 Gb/s.
    pub receive_frames: u32,
    /// Maximum number of frames that wait to be sent, a power of two from 64 to 32768.
    ///
    /// The default of 512 frames is sixteen full batches.
    pub transmit_frames: u32,
    /// If true, polls of the link make the network card's driver process the queue (busy polling),
    /// so that the queue needs no interrupts. Set this only for a queue without other traffic. With
    /// this option, a poll that finds no frame makes a system call.
    pub busy_poll: bool,
    /// Upper bound of the frame size in bytes; the interface may carry less.
    pub frame_bytes_max: u16,
}

delivery::setters!(XdpConfig {
    interface: String,
    queue: u32,
    port: u16,
    ethertype: u16,
    vlan: Option<u16>,
    mode: Option<XdpMode>,
    receive_frames: u32,
    transmit_frames: u32,
    busy_poll: bool,
    frame_bytes_max: u16,
});

impl XdpConfig {
    /// Returns the defaults for `interface`.
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            queue: 0,
            port: 0,
            ethertype: wire_edge::ETHERTYPE_DEFAULT,
            vlan: None,
            mode: None,
            receive_frames: 2048,
            transmit_frames: 512,
            busy_poll: false,
            frame_bytes_max: FRAME_BYTES_MAX,
        }
    }
}

/// The way in which frames reach the process from the driver.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum XdpMode {
    /// The XDP program runs in the network stack, and the kernel copies the frames. Works with any
    /// driver.
    Generic,
    /// The XDP program runs in the driver, and the kernel copies the frames.
    Native,
    /// The XDP program runs in the driver, and the network card receives frames into the memory of
    /// the process.
    ZeroCopy,
}

impl XdpMode {
    /// All modes.
    pub const ALL: [Self; 3] = [Self::Generic, Self::Native, Self::ZeroCopy];
}

impl fmt::Display for XdpMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Generic => "generic",
            Self::Native => "native",
            Self::ZeroCopy => "zero-copy",
        })
    }
}

/// Largest frame in bytes. No jumbo Ethernet carries larger frames.
pub(super) const FRAME_BYTES_MAX: u16 = 9200;
/// Minimum number of entries of a ring: two full batches.
pub(super) const RING_FRAMES_MIN: u32 = 64;
/// Maximum number of entries of a ring. With full frames, these take 128 MiB.
pub(super) const RING_FRAMES_MAX: u32 = 32_768;

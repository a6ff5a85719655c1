//! What can be chosen about an `AF_XDP` link.

use std::fmt;

/// Settings of an `AF_XDP` link.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct XdpConfig {
    /// Name of the interface.
    pub interface: String,
    /// The interface's receive queue to take frames from, and transmit queue to put them on.
    ///
    /// Frames of ours that the interface puts on another queue are lost; most put what is not IP on
    /// queue 0.
    pub queue: u32,
    /// Port of the endpoint on this interface; 0 takes a free one.
    pub port: u16,
    /// What marks our frames among all others; the same at both ends.
    pub ethertype: u16,
    /// The VLAN, 1 to 4094, or none; the same at both ends. Where an interface takes the tags off
    /// received frames, it must stop: `ethtool -K INTERFACE rxvlan off`.
    pub vlan: Option<u16>,
    /// The one way to move frames that will do; by default the best that works.
    pub mode: Option<XdpMode>,
    /// Most frames that may wait to be received, a power of two from 64 to 32768.
    ///
    /// The default of 2048 holds 2.5 ms of a 10 Gb/s link in full frames of 1500 bytes.
    pub receive_frames: u32,
    /// Most frames that may wait to be sent, a power of two from 64 to 32768.
    ///
    /// The default of 512 is eight full batches.
    pub transmit_frames: u32,
    /// Whether polling for frames drives the interface's queue, so that no interrupt has to; best
    /// for a queue that serves nothing else. A poll that finds nothing becomes a system call.
    pub busy_poll: bool,
    /// Upper bound of the frame size in bytes, whatever the interface carries.
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
    /// Returns the defaults on `interface`.
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

/// How frames come from the driver to the process.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum XdpMode {
    /// The network stack sorts them out and copies them: for any driver.
    Generic,
    /// The driver sorts them out, the kernel copies them.
    Native,
    /// The driver sorts them out and receives into the memory of the process.
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

/// Largest frame in bytes: no jumbo Ethernet carries more.
pub(super) const FRAME_BYTES_MAX: u16 = 9200;
/// Fewest entries of a ring: one full batch.
pub(super) const RING_FRAMES_MIN: u32 = 64;
/// Most entries of a ring, for 128 MiB of full frames.
pub(super) const RING_FRAMES_MAX: u32 = 32_768;

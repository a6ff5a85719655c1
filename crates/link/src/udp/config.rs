//! What can be chosen about a UDP link.

use delivery::SettingError;

use super::receive::MESSAGES_MAX;
use crate::check_frame_bytes;

/// Settings of a UDP link; the default suits hosts on one Ethernet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UdpConfig {
    /// Receive buffer to ask the kernel for, in bytes of full frames.
    ///
    /// The default of 4 MiB holds 3 ms of a 10 Gb/s link, about what a busy host may keep a process
    /// from running.
    pub receive_buffer_bytes: u32,
    /// Send buffer to ask the kernel for, in bytes of full frames.
    ///
    /// The default of 1 MiB lets sixteen segmented messages wait in a device's queue.
    pub send_buffer_bytes: u32,
    /// Upper bound of the frame size in bytes, whatever the interface carries.
    pub frame_bytes_max: u16,
    /// Messages that one system call may receive, 1 to 16. One message may be many frames.
    pub receive_messages: u8,
    /// Which capabilities of the kernel may be used.
    pub features: UdpFeatures,
}

delivery::setters!(UdpConfig {
    receive_buffer_bytes: u32,
    send_buffer_bytes: u32,
    frame_bytes_max: u16,
    receive_messages: u8,
    features: UdpFeatures,
});

impl UdpConfig {
    /// Refuses what no link works with.
    pub(super) fn check(&self) -> Result<(), SettingError> {
        check_frame_bytes(self.frame_bytes_max)?;
        let messages = 1..=MESSAGES_MAX as u8;
        SettingError::unless_within("receive_messages", &self.receive_messages, &messages)
    }
}

impl Default for UdpConfig {
    fn default() -> Self {
        Self {
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 1 << 20,
            frame_bytes_max: FRAME_BYTES_MAX,
            receive_messages: 16,
            features: UdpFeatures::ALL,
        }
    }
}

/// Largest frame a UDP link uses, in bytes: no jumbo Ethernet carries more (9216 with IP and UDP
/// headers), and on loopback seven of them fill one segmented message of 64 KiB.
pub(super) const FRAME_BYTES_MAX: u16 = 9200;

/// Capabilities of the kernel that a UDP link makes use of, and can do without.
///
/// Given in [`UdpConfig`] they are what may be used; from `UdpLink::features` they are what is in
/// use, after the link found out what works.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct UdpFeatures {
    /// Many equal-sized frames in one message (`UDP_SEGMENT`). Else one message per frame.
    pub segmentation: bool,
    /// Many received frames in one message (`UDP_GRO`). Else one message per frame.
    pub coalescing: bool,
    /// Many messages in one system call (`sendmmsg`, `recvmmsg`). Else one system call per message.
    pub batching: bool,
    /// The kernel's reception times (`SO_TIMESTAMPNS`). Else the time of the turn.
    pub timestamps: bool,
    /// Congestion marks (`IP_TOS`, `IP_RECVTOS`). Else frames are sent as not capable of it.
    pub congestion_marks: bool,
    /// ICMP errors (`IP_RECVERR`). Else no [`LinkEvent::Refused`](delivery::LinkEvent::Refused).
    pub error_queue: bool,
    /// Buffers beyond the system's limit (`SO_RCVBUFFORCE`, for the superuser). Else within it.
    pub forced_buffers: bool,
    /// The kernel's count of dropped frames (`SO_RXQ_OVFL`). Else drops go unnoticed.
    pub drop_count: bool,
    /// A second socket, connected to the peer that most frames are exchanged with, for a link that
    /// is bound to one address. Else all peers are served by the one unconnected socket.
    pub connected_peer: bool,
}

delivery::setters!(UdpFeatures {
    segmentation: bool,
    coalescing: bool,
    batching: bool,
    timestamps: bool,
    congestion_marks: bool,
    error_queue: bool,
    forced_buffers: bool,
    drop_count: bool,
    connected_peer: bool,
});

impl UdpFeatures {
    /// Everything.
    pub const ALL: Self = Self {
        segmentation: true,
        coalescing: true,
        batching: true,
        timestamps: true,
        congestion_marks: true,
        error_queue: true,
        forced_buffers: true,
        drop_count: true,
        connected_peer: true,
    };

    /// Nothing but sockets as they were in 1983.
    pub const NONE: Self = Self {
        segmentation: false,
        coalescing: false,
        batching: false,
        timestamps: false,
        congestion_marks: false,
        error_queue: false,
        forced_buffers: false,
        drop_count: false,
        connected_peer: false,
    };
}

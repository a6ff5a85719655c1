//! Settings of a UDP link.

use delivery::SettingError;

use super::receive::MESSAGES_MAX;
use crate::check_frame_bytes;

/// Settings of a UDP link. The defaults suit hosts on one Ethernet.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct UdpConfig {
    /// Size of the receive buffer to request from the kernel, in bytes of full frames.
    ///
    /// The default of 4 MiB holds 3 ms at 10 Gb/s. On a busy host, a process may have to wait for a
    /// processor for about this long.
    pub receive_buffer_bytes: u32,
    /// Size of the send buffer to request from the kernel, in bytes of full frames.
    ///
    /// The default of 1 MiB holds sixteen segmented messages in a device's queue.
    pub send_buffer_bytes: u32,
    /// Upper bound of the frame size in bytes; the interface may carry less.
    pub frame_bytes_max: u16,
    /// Maximum number of messages that one system call receives, 1 to 16. One message may contain
    /// many frames.
    pub receive_messages: u8,
    /// Capabilities of the kernel that the link may use.
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
    /// Checks that a link can work with these settings.
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

/// Largest frame of a UDP link, in bytes. No jumbo Ethernet carries larger frames, because its
/// packets have at most about 9216 bytes with IP and UDP headers. On loopback, seven such frames
/// fill one segmented message of 64 KiB.
pub(super) const FRAME_BYTES_MAX: u16 = 9200;

/// Optional capabilities of the kernel for a UDP link.
///
/// In [`UdpConfig`], these are the capabilities that the link may use. `UdpLink::features` returns
/// the capabilities in use, after the link has found out which of them work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct UdpFeatures {
    /// Send many equal-sized frames in one message (`UDP_SEGMENT`). If off, each message has one
    /// frame.
    pub segmentation: bool,
    /// Receive many frames in one message (`UDP_GRO`). If off, each message has one frame.
    pub coalescing: bool,
    /// Pass many messages in one system call (`sendmmsg`, `recvmmsg`). If off, each system call
    /// passes one message.
    pub batching: bool,
    /// Use the kernel's receive times (`SO_TIMESTAMPNS`). If off, a frame gets the time of the
    /// turn.
    pub timestamps: bool,
    /// Use ECN congestion marks (`IP_TOS`, `IP_RECVTOS`). If off, frames are sent as not
    /// ECN-capable.
    pub congestion_marks: bool,
    /// Use ICMP errors (`IP_RECVERR`). If off, the link never reports
    /// [`LinkEvent::Refused`](delivery::LinkEvent::Refused).
    pub error_queue: bool,
    /// Request buffers beyond the system's limit (`SO_RCVBUFFORCE`, for the superuser). If off,
    /// buffers stay within the limit.
    pub forced_buffers: bool,
    /// Use the kernel's count of dropped frames (`SO_RXQ_OVFL`). If off, drops are not counted.
    pub drop_count: bool,
    /// Use a second socket, connected to the peer with the most frames, if the link is bound to one
    /// address. If off, the unconnected socket serves all peers.
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
    /// All capabilities.
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

    /// No optional capability: the link uses only the functions that sockets had in 1983.
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

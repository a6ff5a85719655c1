//! Links: the only code that does packet I/O.
//!
//! A [`Link`] carries frames to peers and guarantees neither delivery nor order nor the absence of
//! duplicates. The engine calls a link once per batch of frames, never once per frame. Calls
//! through `dyn Link` therefore cost almost nothing.
//!
//! * [`UdpLink`] sends UDP datagrams with segmentation offload directly from registered memory. It
//!   receives coalesced datagrams with the kernel's timestamps and congestion marks.
//! * [`PacketLink`] sends and receives raw Ethernet frames through a packet socket. It sends many
//!   frames with one system call, and receives from memory that it shares with the kernel.
//! * [`XdpLink`] exchanges raw Ethernet frames with a driver's queue through rings in memory that
//!   it shares with the kernel, with few system calls or none.
//! * [`ShmLink`] exchanges frames with other processes of the host through shared memory.
//! * [`Capture`] writes the frames of any link to a pcapng file. [`CaptureOutput`] writes the
//!   frames of several links to one file.
//! * [`tcp`] has no frames: its TCP connections carry the byte stream of a protocol.
//! * [`Delay`] delays the frames of any link.
//! * [`Fault`] loses, duplicates, reorders and corrupts frames of any link, with random choices
//!   from a seed.
#![deny(unsafe_op_in_unsafe_fn)]
#![expect(
    clippy::disallowed_methods,
    reason = "drivers may read the clock: a capture wants the time of day"
)]

mod capture;
mod clock;
mod credentials;
mod delay;
mod ethernet;
mod ethtool;
mod events;
mod fault;
mod fault_shares;
pub mod host;
mod interface;
mod netlink;
pub mod packet;
mod payload;
mod pcapng;
mod random;
mod refusal;
mod room;
pub mod shared_files;
mod shm;
mod signals;
mod slots;
mod stream_faults;
pub mod tcp;
mod threads;
mod udp;
mod wait;
mod wrapper;
mod xdp;
pub mod yardstick;

use std::io;
use std::os::fd::BorrowedFd;

use delivery::{Instant, LinkCaps, LinkEvent, RxFrame, SettingError, TxBatch};

pub use capture::{
    Capture, CaptureClock, CaptureFile, CaptureOutput, CaptureStatistics, CapturedConnection,
    CapturedFrame, TcpCapture,
};
pub use credentials::is_trusted;
pub use delay::Delay;
pub use ethernet::{EthernetHeader, Station, fuzz_ethernet_frame};
pub use fault::{Cut, Fault, FaultConfig, FaultStatistics};
pub use fault_shares::{FaultShares, FaultSharesError};
pub use interface::Interface;
pub use packet::{PacketConfig, PacketError, PacketLink};
pub use pcapng::Direction;
pub use room::make_room;
pub use shm::{ShmError, ShmLink, fuzz_shm_messages, fuzz_shm_ring};
pub use signals::{HeldSignals, blocked_signals};
pub use slots::{ClaimedSlot, SlotError, Slots};
pub use stream_faults::{StreamFaultShares, StreamFaults};
pub use threads::start_thread;
pub use udp::{
    AuxiliarySocket, GROUP_PORT, PayloadUnmapped, UdpConfig, UdpError, UdpFeatures, UdpLink,
    give_way,
};
pub use xdp::{XdpConfig, XdpError, XdpLink, XdpMode};

/// Smallest value, in bytes, that the edge protocol permits for the maximum frame size of a link.
const FRAME_BYTES_MIN: u16 = 256;

/// Checks that a maximum frame size is at least [`FRAME_BYTES_MIN`].
fn check_frame_bytes(frame_bytes_max: u16) -> Result<(), SettingError> {
    let wanted = FRAME_BYTES_MIN..=u16::MAX;
    SettingError::unless_within("frame_bytes_max", &frame_bytes_max, &wanted)
}

/// A path that carries frames to peers. It guarantees neither delivery nor order nor the absence of
/// duplicates.
///
/// No method blocks.
pub trait Link: Send {
    /// Returns the current capabilities of the link. The link reports changes as
    /// [`LinkEvent::Changed`].
    fn caps(&self) -> LinkCaps;

    /// Passes waiting frames to `on_frame`, at most about `limit`, and returns their number.
    ///
    /// If the kernel coalesced several frames into a message, the link passes all frames of that
    /// message. The number may therefore exceed `limit` by the frames of one message. When frame
    /// sizes change abruptly, the number may exceed `limit` by the frames of a few messages. `now`
    /// is the engine's time of this turn; [`RxFrame::received_at`] is never later. A return value
    /// below `limit` means that no more frames waited.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize>;

    /// Sends frames from the start of the batch, in order. Returns the number of frames sent; 0 if
    /// the driver is full.
    ///
    /// If the host cannot send a frame to this peer (too big, no route), the frame counts as sent,
    /// and is lost. The link does not read payload memory after the call returns, with one
    /// exception. A peer on the same host may read a large buffer of this library until the peer
    /// acknowledges the frame. Therefore the owner of a buffer must not change the buffer before
    /// the operation completes.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] with [`PayloadUnmapped`] inside if payload memory
    /// cannot be read. The link has then sent all frames before the frame that [`PayloadUnmapped`]
    /// names. Any other error means that the link has failed.
    fn send(&mut self, batch: &TxBatch) -> io::Result<usize>;

    /// Returns the number of frames that may have left the host although the last [`Link::send`]
    /// did not count them as sent. The reason: when the kernel reports that an interface has no
    /// room (`ENOBUFS`), the interface may have accepted some of the frames.
    fn doubtful(&self) -> usize {
        0
    }

    /// Returns the next event, if any. After [`Link::receive`] and [`Link::send`], call this until
    /// it returns `None`.
    fn poll_event(&mut self) -> Option<LinkEvent>;

    /// Returns the descriptors of the link. When frames wait, at least one descriptor is readable.
    /// When there is room to transmit, the first descriptor is writable. If all entries are `None`,
    /// the caller must poll the link. [`LinkEvent::Descriptors`] reports that the descriptors have
    /// changed.
    fn wait_fds(&self) -> WaitFds<'_>;

    /// Prepares the link for a thread that is about to sleep until one of [`Link::wait_fds`] is
    /// ready. Returns false if frames already wait. If the peers of a link must wake this end
    /// explicitly, the link requests wake-ups in this call. Peers therefore pay for wake-ups only
    /// while a thread sleeps.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Returns the counters since the link was created.
    fn statistics(&self) -> LinkStatistics;

    /// Returns the `EtherType` and VLAN of the link's frames, if it is a link on raw Ethernet.
    fn ethernet_header(&self) -> Option<EthernetHeader> {
        None
    }
}

/// The callback for each received frame.
pub type OnFrame<'a> = &'a mut dyn FnMut(RxFrame<'_>);

/// The descriptors to wait for on a link: at most two.
pub type WaitFds<'a> = [Option<BorrowedFd<'a>>; 2];

/// Counters of one link since it was created.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// System calls to receive frames, including those that found none.
    pub receive_calls: u64,
    /// Messages received. Each contains one frame, or several coalesced frames.
    pub receive_messages: u64,
    /// Frames received.
    pub receive_frames: u64,
    /// Bytes of received frames.
    pub receive_bytes: u64,
    /// Messages dropped because they did not fit the buffer or had no usable source address.
    pub receive_discarded: u64,
    /// Frames dropped by the kernel because the receive buffer was full.
    pub receive_kernel_drops: u64,
    /// System calls to send frames, including those that failed.
    pub send_calls: u64,
    /// Messages sent. Each contains one or more frames.
    pub send_messages: u64,
    /// Frames sent.
    pub send_frames: u64,
    /// Bytes of sent frames.
    pub send_bytes: u64,
    /// Received Ethernet frames that passed the kernel's filter, but were for other stations or
    /// ports, or of another protocol.
    pub receive_not_ours: u64,
    /// Received Ethernet frames shorter than their headers or the length in their envelope, or
    /// longer than the driver's slots.
    pub receive_truncated: u64,
    /// Received Ethernet frames with our `EtherType` but no known envelope.
    pub receive_foreign: u64,
    /// Received Ethernet frames of another VLAN.
    pub receive_wrong_vlan: u64,
    /// Received Ethernet frames whose checksum is wrong.
    pub receive_checksum_errors: u64,
    /// Received Ethernet frames from our own address that we did not send: another station uses the
    /// address, or the network has a loop.
    pub receive_own_station: u64,
    /// Number of times that the kernel had no room to send more.
    pub send_full: u64,
    /// Frames dropped because they exceed what the host can send to the peer.
    pub send_too_big: u64,
    /// Frames dropped because the host has no route to the peer.
    pub send_unreachable: u64,
    /// Number of times that the driver opened a socket connected to the peer with the most frames.
    pub connected: u64,
    /// Error reports read from the socket's error queue.
    pub errors_reported: u64,
    /// Events dropped because the caller did not poll them.
    pub events_dropped: u64,
    /// Number of capabilities that failed at run time and are no longer used.
    pub fallbacks: u32,
}

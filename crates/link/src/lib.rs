//! Links: the only code that does packet I/O.
//!
//! A [`Link`] carries frames to peers with no promise about loss, order or duplication. The engine
//! calls it once per batch of frames, never once per frame, so that unlike links can live in one
//! endpoint behind `dyn Link` without the call being felt.
//!
//! * [`UdpLink`] sends with segmentation offload straight from registered memory and receives
//!   coalesced datagrams with the kernel's timestamps and congestion marks.
//! * [`PacketLink`] speaks raw Ethernet through a packet socket: it sends many frames with one system
//!   call and receives from memory that it shares with the kernel.
//! * [`XdpLink`] takes frames of raw Ethernet from a driver's queue and puts them there, through rings
//!   in memory that it shares with the kernel, with few system calls or none.
//! * [`ShmLink`] shares memory with other processes of the host.
//! * [`Capture`] writes what passes through any link to a pcapng file, [`CaptureOutput`] that of several links.
//! * [`Delay`] makes any link longer.
//! * [`Fault`] loses, duplicates, reorders and corrupts what arrives on any link, from a seed.
#![deny(unsafe_op_in_unsafe_fn)]
#![expect(
    clippy::disallowed_methods,
    reason = "drivers may read the clock: a capture wants the time of day"
)]

mod capture;
mod clock;
mod delay;
mod ethernet;
mod events;
mod fault;
mod fault_shares;
pub mod host;
mod interface;
pub mod packet;
mod payload;
mod pcapng;
mod refusal;
mod room;
pub mod shared_files;
mod shm;
mod signals;
mod slots;
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
    Capture, CaptureClock, CaptureFile, CaptureOutput, CaptureStatistics, CapturedFrame,
};
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
pub use threads::start_thread;
pub use udp::{
    DoorSocket, GROUP_PORT, PayloadUnmapped, UdpConfig, UdpError, UdpFeatures, UdpLink, give_way,
};
pub use xdp::{XdpConfig, XdpError, XdpLink, XdpMode};

/// Shortest frame that the edge protocol can do with, in bytes.
const FRAME_BYTES_MIN: u16 = 256;

/// Refuses an upper bound of frames below what any endpoint can do with.
fn check_frame_bytes(frame_bytes_max: u16) -> Result<(), SettingError> {
    let wanted = FRAME_BYTES_MIN..=u16::MAX;
    SettingError::unless_within("frame_bytes_max", &frame_bytes_max, &wanted)
}

/// A path that carries frames to peers, with no promise about loss, order or duplication.
///
/// No method blocks.
pub trait Link: Send {
    /// Returns what the link can do now; a change is announced as [`LinkEvent::Changed`].
    fn caps(&self) -> LinkCaps;

    /// Passes waiting frames to `on_frame`, at most about `limit`, and returns how many.
    ///
    /// A message that the kernel coalesced from many frames is never split, so the count may exceed
    /// `limit` by what one message holds, or a few when their sizes change abruptly. `now` is the
    /// engine's time of this turn; [`RxFrame::received_at`] is never later. A return value below
    /// `limit` means that nothing waited any more.
    ///
    /// # Errors
    /// The error of the system call that failed.
    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize>;

    /// Sends a prefix of the batch, in order, and returns its length; 0 when the driver is full.
    ///
    /// A frame that the host cannot send to this peer (too big, no route) counts as sent: the link
    /// lost it. Payload memory is not read after return, except that a peer on the same host may read
    /// that of large buffers of this library until it acknowledges the frame: their owner does not
    /// change it before the operation completes.
    ///
    /// # Errors
    /// Kind [`io::ErrorKind::InvalidInput`] with [`PayloadUnmapped`] inside when payload memory
    /// cannot be read; frames before the one it names were sent. Other errors mean that the link
    /// itself has failed.
    fn send(&mut self, batch: &TxBatch) -> io::Result<usize>;

    /// Returns how many frames behind those that the last [`Link::send`] took may have left the host all the same: the
    /// kernel reports that an interface has no room (`ENOBUFS`) also when the interface got a part of what was sent.
    fn doubtful(&self) -> usize {
        0
    }

    /// Returns the next change of state, if any. Call after [`Link::receive`] and [`Link::send`] until it returns
    /// `None`.
    fn poll_event(&mut self) -> Option<LinkEvent>;

    /// Returns the descriptors of the link. One of them is readable when frames wait; there are none if the link
    /// must be polled. The first is writable when there is room to transmit. [`LinkEvent::Descriptors`] reports
    /// that they have changed.
    fn wait_fds(&self) -> WaitFds<'_>;

    /// Prepares the link for a thread that is about to sleep until one of [`Link::wait_fds`] is ready; returns
    /// false if frames wait already. A link whose descriptors do not become readable for frames by themselves
    /// arranges for it here: until a thread sleeps, no peer pays for waking it.
    fn prepare_sleep(&mut self) -> bool {
        true
    }

    /// Returns the counters since the link was made.
    fn statistics(&self) -> LinkStatistics;

    /// Returns what Ethernet says about each frame, for a link on raw Ethernet.
    fn ethernet_header(&self) -> Option<EthernetHeader> {
        None
    }
}

/// What is called with each received frame.
pub type OnFrame<'a> = &'a mut dyn FnMut(RxFrame<'_>);

/// What to wait on for a link: a descriptor, and perhaps a second.
pub type WaitFds<'a> = [Option<BorrowedFd<'a>>; 2];

/// Counters of one link since it was made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// System calls that asked for frames, including those that found none.
    pub receive_calls: u64,
    /// Messages received, each one or more coalesced frames.
    pub receive_messages: u64,
    /// Frames received.
    pub receive_frames: u64,
    /// Bytes of received frames.
    pub receive_bytes: u64,
    /// Messages dropped because they did not fit the buffer or came from no usable address.
    pub receive_discarded: u64,
    /// Frames the kernel dropped because the receive buffer was full.
    pub receive_kernel_drops: u64,
    /// System calls that sent frames, including those that failed.
    pub send_calls: u64,
    /// Messages sent, each one or more frames.
    pub send_messages: u64,
    /// Frames sent.
    pub send_frames: u64,
    /// Bytes of sent frames.
    pub send_bytes: u64,
    /// Received Ethernet frames for other stations or ports, or of another protocol, that the
    /// kernel's filter has let through.
    pub receive_not_ours: u64,
    /// Received Ethernet frames shorter than their headers or than their envelope says, or longer
    /// than the driver's slots.
    pub receive_truncated: u64,
    /// Received Ethernet frames with our `EtherType` and no envelope that we know.
    pub receive_foreign: u64,
    /// Received Ethernet frames of another VLAN than ours.
    pub receive_wrong_vlan: u64,
    /// Received Ethernet frames whose checksum is wrong.
    pub receive_checksum_errors: u64,
    /// Received Ethernet frames from our own address: another station has it, too, or the network
    /// has a loop.
    pub receive_own_station: u64,
    /// Times the kernel had no room for more.
    pub send_full: u64,
    /// Frames dropped because they exceed what the host can send to the peer.
    pub send_too_big: u64,
    /// Frames dropped because the host has no way to the peer.
    pub send_unreachable: u64,
    /// Sockets connected to the peer that most frames were exchanged with.
    pub connected: u64,
    /// Reports read from the socket's error queue.
    pub errors_reported: u64,
    /// Events dropped because they were not polled.
    pub events_dropped: u64,
    /// Capabilities found missing at run time and done without since then.
    pub fallbacks: u32,
}

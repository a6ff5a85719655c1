//! One moved connection: what goes between its rings and the link group.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use delivery::Instant;
use mem::Buffer;
use runtime::Readiness as DescriptorReadiness;
use thiserror::Error;

use crate::group::Bell;
use crate::wire::Seal;

/// What a stream is made of, when it begins to move.
pub(crate) struct StreamParts {
    /// What the program writes waits here until the peer has it.
    pub(crate) send: RingPart,
    /// Here the peer writes.
    pub(crate) receive: RingPart,
    /// What the peer writes into the TCP connection when its bytes come by the ring.
    pub(crate) expected: Seal,
    pub(crate) bell: Bell,
}

/// A ring's place in memory.
#[derive(Clone, Debug)]
pub(crate) struct RingPart {
    pub(crate) memory: Arc<Buffer>,
    /// Offset in `memory`, in bytes.
    pub(crate) offset: u64,
    /// Bytes of the ring.
    pub(crate) bytes: u32,
}

/// What a stream has for the group to post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Out {
    /// Bytes to write to the peer's ring: they wrap around in neither ring.
    Data {
        /// Offset in the send ring.
        at: u32,
        /// Bytes, at least one.
        length: u32,
        /// Offset in the peer's ring.
        to: u32,
    },
    /// So much was consumed in all.
    Credit(u64),
    /// No more than so many bytes come in all.
    End(u64),
    /// The connection is reset.
    Reset,
}

/// The peer's data is not what a peer may send.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Misbehaved {
    /// Bytes not where they follow, or more than there is room for.
    #[error("{length} bytes at {at} of the ring, which do not follow or have no room")]
    Data {
        /// Offset in the ring.
        at: u32,
        /// Bytes.
        length: u32,
    },
    /// More credit than was sent, or less than before.
    #[error("credit for {0} bytes, which is more than was sent or less than before")]
    Credit(u64),
    /// An end elsewhere than after the last byte, or a second one.
    #[error("an end after {0} bytes, which is not where the data ends")]
    End(u64),
    /// TCP bytes behind the seal.
    #[error("bytes behind the seal in the TCP connection")]
    BehindSeal,
}

/// A descriptor of a stream that is watched for it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StreamDescriptor {
    /// The TCP socket.
    Tcp,
    /// The library's end of the program's socket pair.
    End,
}

/// One moved connection, or one about to move. What is called `on_*`, and `next`, is called inside the engine.
#[derive(Debug)]
pub(crate) struct Stream {}

impl Stream {
    /// One that expects its seal from now on, on this TCP socket; it sends nothing by the group before
    /// [`Stream::open`].
    pub(crate) fn new(parts: StreamParts, tcp: OwnedFd) -> Self {
        let _ = (parts.send, parts.receive, parts.expected, parts.bell, tcp);
        Self {}
    }

    /// The peer's ring has so many bytes, and this side's seal is in the TCP connection: bytes go by the group.
    pub(crate) fn open(&self, peer_ring: u32) {
        let _ = peer_ring;
    }

    /// What to post next, if anything. What was given is under way until it is acknowledged or was not posted.
    pub(crate) fn next(&self, now: Instant) -> Option<Out> {
        let _ = now;
        None
    }

    /// The engine had no room for what [`Stream::next`] gave: it comes again.
    pub(crate) fn not_posted(&self, out: Out) {
        let _ = out;
    }

    /// The oldest data under way, so many bytes, is placed at the peer.
    pub(crate) fn on_acknowledged(&self, length: u32) {
        let _ = length;
    }

    /// The peer's process has the end.
    pub(crate) fn on_end_acknowledged(&self) {}

    /// The peer has written to the ring here.
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Misbehaved> {
        let _ = (at, length);
        Ok(())
    }

    /// The peer has consumed so much in all.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<(), Misbehaved> {
        let _ = consumed;
        Ok(())
    }

    /// The peer sends no more than this in all.
    pub(crate) fn on_end(&self, bytes: u64) -> Result<(), Misbehaved> {
        let _ = bytes;
        Ok(())
    }

    /// The peer has reset the connection.
    pub(crate) fn on_reset(&self) {}

    /// The group is lost, or the peer misbehaved: nothing comes or goes any more.
    pub(crate) fn on_lost(&self) {}

    /// A descriptor that is [watched](Bell::watch) for the stream is ready.
    pub(crate) fn on_descriptor(&self, which: StreamDescriptor, ready: DescriptorReadiness) {
        let _ = (which, ready);
    }

    /// When [`Stream::on_due`] is wanted; asked after each call inside the engine.
    pub(crate) fn due(&self) -> Instant {
        Instant::NEVER
    }

    /// The time of [`Stream::due`] has come.
    pub(crate) fn on_due(&self, now: Instant) {
        let _ = now;
    }

    /// Both ends were exchanged, or it was reset, and nothing is under way: the group takes its rings back.
    pub(crate) fn is_over(&self) -> bool {
        false
    }
}

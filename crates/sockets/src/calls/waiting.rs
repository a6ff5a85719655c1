//! Waiting within calls of the program.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use runtime::Mark;

use crate::transport::held::HeldStreams;
use crate::transport::non_blocking::is_non_blocking;

/// The reason for which a wait has ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waited {
    /// The condition holds.
    Ready,
    /// One of the program's descriptors is ready. Its `revents` has the events.
    Others,
    /// The limit has passed.
    TimedOut,
}

/// Lets calls of the program wait. Implemented by the endpoint of the process.
pub(crate) trait Waits: Send + Sync {
    /// Makes progress, unless another thread is driving the engine.
    fn drive(&self);

    /// Waits until `ready` returns true, one of `others` is ready, or `limit` has passed (`None`:
    /// without a limit). Every event that may change the result of `ready` must raise `mark`.
    fn wait_beside(
        &self,
        mark: &Arc<Mark>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno>;

    /// Cleans up after a connection that was left to TCP.
    fn on_left(&self, token: u64);

    /// Handles the first bytes that have gone over an accepted connection.
    fn on_first_bytes(&self, token: u64);

    /// Raises a mark from outside the engine.
    fn raise(&self, mark: &Mark);

    /// Returns the streams of the process that hold bytes back for more to come.
    fn held(&self) -> &HeldStreams;
}

/// Decides whether a call may wait. Reads the mode of the program's descriptor once per call, when
/// the call is about to wait.
#[derive(Debug)]
pub(crate) struct Blocking {
    may_wait: Option<bool>,
}

impl Blocking {
    /// Creates the decision for a call. With `dont_wait` the program has asked the call not to
    /// wait.
    pub(crate) const fn new(dont_wait: bool) -> Self {
        Self { may_wait: if dont_wait { Some(false) } else { None } }
    }

    pub(crate) fn may_wait(&mut self, fd: BorrowedFd<'_>) -> bool {
        *self.may_wait.get_or_insert_with(|| !is_non_blocking(fd))
    }
}

/// The direction for which a call waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiting {
    ToReceive,
    ToSend,
}

impl Waiting {
    /// Returns how long the call may wait, as set by `SO_RCVTIMEO` or `SO_SNDTIMEO` on the TCP
    /// socket; `None` without a limit.
    pub(crate) fn limit(self, tcp: BorrowedFd<'_>) -> Option<Duration> {
        let time = match self {
            Self::ToReceive => getsockopt(&tcp, sockopt::ReceiveTimeout),
            Self::ToSend => getsockopt(&tcp, sockopt::SendTimeout),
        };
        let time = time.ok()?;
        let seconds = u64::try_from(time.tv_sec()).ok()?;
        let limit = Duration::from_secs(seconds) + Duration::from_micros(time.tv_usec() as u64);
        (!limit.is_zero()).then_some(limit)
    }

    /// Returns the entry for `poll` that waits for this direction.
    pub(crate) fn entry(self, fd: BorrowedFd<'_>) -> libc::pollfd {
        let events = match self {
            Self::ToReceive => libc::POLLIN,
            Self::ToSend => libc::POLLOUT,
        };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    }
}

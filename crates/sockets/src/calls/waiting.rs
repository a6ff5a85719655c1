//! Lets a thread wait within a call of the program.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use runtime::Mark;

use crate::transport::held::HeldStreams;
use crate::transport::non_blocking::is_non_blocking;

/// The reason why a wait ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waited {
    /// The condition of the caller holds.
    Ready,
    /// One of the program's descriptors is ready. The field `revents` of its entry has the events.
    Others,
    /// The limit has passed.
    TimedOut,
}

/// Lets calls of the program wait. The endpoint of the process implements this trait.
pub(crate) trait Waits: Send + Sync {
    /// Drives the engine once. Does nothing if another thread is driving it.
    fn drive(&self);

    /// Waits until `ready` returns true, one of `others` is ready, or `limit` has passed (`None`:
    /// without a limit). The code that changes the result of `ready` must raise `mark` afterwards.
    fn wait_beside(
        &self,
        mark: &Arc<Mark>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno>;

    /// Cleans up after a connection that was left to TCP.
    fn on_left(&self, token: u64);

    /// Handles the first bytes of an accepted connection.
    fn on_first_bytes(&self, token: u64);

    /// Raises a mark. The caller must not hold the lock of the engine.
    fn raise(&self, mark: &Mark);

    /// Returns the streams of the process that hold bytes back until more follow.
    fn held(&self) -> &HeldStreams;
}

/// Decides whether a call may wait. Queries `O_NONBLOCK` of the program's descriptor at most once
/// per call, and only if the call would wait.
#[derive(Debug)]
pub(crate) struct Blocking {
    may_wait: Option<bool>,
}

impl Blocking {
    /// Creates the decision for one call. If `dont_wait` is true, the call must not wait.
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
    /// Returns how long the call may wait: `SO_RCVTIMEO` or `SO_SNDTIMEO` of the TCP socket. `None`
    /// means no limit.
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

    /// Returns the entry of `poll` that waits for this direction.
    pub(crate) fn entry(self, fd: BorrowedFd<'_>) -> libc::pollfd {
        let events = match self {
            Self::ToReceive => libc::POLLIN,
            Self::ToSend => libc::POLLOUT,
        };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    }
}

//! How calls of programs wait.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use runtime::Mark;

use crate::transport::held::HeldStreams;
use crate::transport::non_blocking::is_non_blocking;

/// Why a wait beside descriptors of the program is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waited {
    /// What was waited for has come.
    Ready,
    /// One of the program's descriptors is ready, as its `revents` says.
    Others,
    /// The time is over.
    TimedOut,
}

/// What calls of the program wait with: the endpoint of the process.
pub(crate) trait Waits: Send + Sync {
    /// Makes progress, unless another thread is at it.
    fn drive(&self);

    /// Waits until `ready` says so, one of `others` is ready, or `limit` has passed (`None`: never). What makes
    /// `ready` worth asking raises `mark`.
    fn wait_beside(
        &self,
        mark: &Arc<Mark>,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno>;

    /// A connection was left to TCP, by whomever: what was begun for it ends.
    fn on_left(&self, token: u64);

    /// The first bytes have gone over a connection that was accepted.
    fn on_first_bytes(&self, token: u64);

    /// Raises a mark from outside of the engine.
    fn raise(&self, mark: &Mark);

    /// The streams of the process that hold bytes back for more to come.
    fn held(&self) -> &HeldStreams;
}

/// Whether a call may wait, asked of the program's descriptor when it is about to, and once a call.
#[derive(Debug)]
pub(crate) struct Blocking {
    may_wait: Option<bool>,
}

impl Blocking {
    /// That of a call that was told not to wait, or was not.
    pub(crate) const fn new(dont_wait: bool) -> Self {
        Self { may_wait: if dont_wait { Some(false) } else { None } }
    }

    pub(crate) fn may_wait(&mut self, fd: BorrowedFd<'_>) -> bool {
        *self.may_wait.get_or_insert_with(|| !is_non_blocking(fd))
    }
}

/// For which direction a call waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Waiting {
    ToReceive,
    ToSend,
}

impl Waiting {
    /// How long it may wait, as `SO_RCVTIMEO` and `SO_SNDTIMEO` of the TCP socket say; `None` is for ever.
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

    /// The entry for `poll` that waits for this of a descriptor.
    pub(crate) fn entry(self, fd: BorrowedFd<'_>) -> libc::pollfd {
        let events = match self {
            Self::ToReceive => libc::POLLIN,
            Self::ToSend => libc::POLLOUT,
        };
        libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }
    }
}

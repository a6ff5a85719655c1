//! How calls of programs wait.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt};
use runtime::{Mark, Readiness};

use crate::bell::Bell;
use crate::held::Held;
use crate::stream::StreamDescriptor;

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
    fn held(&self) -> &Held;
}

/// What a stream asks of its link group.
pub(crate) trait Ringing: Send + Sync {
    /// There is something to post. Called outside of the engine and of locks that are taken inside it.
    fn ring(&self);
    /// The same inside the engine, or under such a lock.
    fn mark(&self);
    /// Has the stream told when a descriptor of it is ready.
    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()>;
    /// Has it told no more.
    fn unwatch(&self, fd: BorrowedFd<'_>);
}

impl Ringing for Bell {
    #[inline]
    fn ring(&self) {
        Self::ring(self);
    }

    fn mark(&self) {
        Self::mark(self);
    }

    fn watch(
        &self,
        which: StreamDescriptor,
        fd: BorrowedFd<'_>,
        ready: Readiness,
    ) -> io::Result<()> {
        Self::watch(self, which, fd, ready)
    }

    fn unwatch(&self, fd: BorrowedFd<'_>) {
        Self::unwatch(self, fd);
    }
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

/// Whether `O_NONBLOCK` is set.
pub(crate) fn is_non_blocking(fd: BorrowedFd<'_>) -> bool {
    fcntl(fd, FcntlArg::F_GETFL)
        .is_ok_and(|flags| OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK))
}

/// Sets `O_NONBLOCK`, or clears it.
pub(crate) fn set_non_blocking(fd: BorrowedFd<'_>, is_set: bool) {
    let Ok(flags) = fcntl(fd, FcntlArg::F_GETFL) else { return };
    let mut flags = OFlag::from_bits_retain(flags);
    flags.set(OFlag::O_NONBLOCK, is_set);
    // The kernel refuses no such flag of a socket.
    let _set = fcntl(fd, FcntlArg::F_SETFL(flags));
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

/// Locks, whether or not a thread has panicked under it: what is under such locks is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

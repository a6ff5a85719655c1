//! Calls on connections on trial: connections that use TCP until a move to the edge pays. The
//! kernel handles these calls, and this library counts their bytes.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use libc::c_int;
use sockets::{Direction, Reason};

use crate::socket::Socket;

/// One call on a connection on trial. While this value exists, the connection does not begin to
/// move to the edge.
#[derive(Debug)]
pub(crate) struct Counted {
    socket: Arc<Socket>,
    fd: c_int,
    direction: Option<Direction>,
    bytes: u64,
}

impl Counted {
    /// Counts a call that begins. Returns `None` if the trial of the connection has ended.
    #[inline]
    pub(crate) fn enter(socket: &Arc<Socket>, fd: c_int) -> Option<Self> {
        let socket = socket.trial.enter().then(|| Arc::clone(socket))?;
        Some(Self { socket, fd, direction: None, bytes: 0 })
    }

    /// Keeps this value until the kernel has handled the call, which happens after this library's
    /// function has returned. `direction` is the direction in which the kernel transfers bytes of
    /// the stream, or `None`.
    #[inline]
    pub(crate) fn pend(mut self, direction: Option<Direction>) {
        self.direction = direction;
        let mut pending = take();
        pending.add(self);
        pending.pend();
    }

    /// Leaves the connection to TCP.
    pub(crate) fn stay(self, reason: Reason) {
        self.socket.stay(reason);
    }

    #[inline]
    fn end(mut self, result: isize) {
        match (u64::try_from(result), self.direction) {
            // The peer has ended its direction of the stream. So the peer can no longer send a
            // switch marker, and the connection cannot move.
            (Ok(0), Some(Direction::Received)) => self.socket.stay(Reason::Short),
            (Ok(bytes), _) => self.bytes = bytes,
            (Err(_), _) => {}
        }
    }
}

impl Drop for Counted {
    #[inline]
    fn drop(&mut self) {
        let may_begin = || self.socket.may_begin();
        if self.socket.trial.leave(self.direction, self.bytes, may_begin) {
            self.socket.begin(self.fd);
        }
    }
}

/// The connections on trial that one call of the program uses.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    first: Option<Counted>,
    others: Vec<Counted>,
}

impl Counting {
    /// A value without connections.
    pub(crate) const NOTHING: Self = Self { first: None, others: Vec::new() };

    pub(crate) fn add(&mut self, counted: Counted) {
        match self.first {
            None => self.first = Some(counted),
            Some(_) => self.others.push(counted),
        }
    }

    /// Keeps this value until the kernel has handled the call.
    pub(crate) fn pend(self) {
        PENDING.with(|pending| {
            drop(ManuallyDrop::into_inner(pending.replace(ManuallyDrop::new(self))));
        });
    }

    /// Ends the call. `result` is the result of the kernel: a number of bytes, or a negative
    /// number.
    #[inline]
    pub(crate) fn end(self, result: isize) {
        if let Some(first) = self.first {
            first.end(result);
        }
    }
}

/// Returns and clears the pending call of the calling thread.
#[inline]
pub(crate) fn take() -> Counting {
    PENDING.with(|pending| {
        ManuallyDrop::into_inner(pending.replace(ManuallyDrop::new(Counting::NOTHING)))
    })
}

thread_local! {
    /// The call of this thread that the kernel handles now. Without such a call, the value is
    /// empty. The value is never dropped, because a thread may use it until the thread has ended.
    static PENDING: Cell<ManuallyDrop<Counting>> =
        const { Cell::new(ManuallyDrop::new(Counting::NOTHING)) };
}

/// A result type of C functions that return a number of bytes.
pub(crate) trait Amount {
    /// Returns the number of bytes. A negative number means failure.
    fn amount(&self) -> isize;
}

impl Amount for isize {
    #[inline]
    fn amount(&self) -> isize {
        *self
    }
}

impl Amount for c_int {
    #[inline]
    fn amount(&self) -> isize {
        *self as isize
    }
}

impl Amount for () {
    #[inline]
    fn amount(&self) -> isize {
        0
    }
}

impl<T> Amount for *mut T {
    #[inline]
    fn amount(&self) -> isize {
        0
    }
}

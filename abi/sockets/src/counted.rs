//! Calls on connections that are on trial. The kernel handles the calls, and this library counts
//! the bytes.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use libc::c_int;
use sockets::{Direction, Reason};

use crate::socket::Socket;

/// A call on a connection on trial. The connection cannot begin to move before this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    socket: Arc<Socket>,
    fd: c_int,
    direction: Option<Direction>,
    bytes: u64,
}

impl Counted {
    /// Counts a call. Returns `None` if the connection is not on trial.
    #[inline]
    pub(crate) fn enter(socket: &Arc<Socket>, fd: c_int) -> Option<Self> {
        let socket = socket.trial.enter().then(|| Arc::clone(socket))?;
        Some(Self { socket, fd, direction: None, bytes: 0 })
    }

    /// Defers the end of the call until the kernel has handled it, after this library has returned.
    /// The kernel transfers bytes in `direction`, or none.
    #[inline]
    pub(crate) fn pend(mut self, direction: Option<Direction>) {
        self.direction = direction;
        let mut pending = take();
        pending.add(self);
        pending.pend();
    }

    /// Keeps the connection on TCP permanently.
    pub(crate) fn stay(self, reason: Reason) {
        self.socket.stay(reason);
    }

    #[inline]
    fn end(mut self, result: isize) {
        match (u64::try_from(result), self.direction) {
            // The peer has ended its direction, so a switch marker cannot follow.
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

/// The connections on trial that one call uses.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    first: Option<Counted>,
    others: Vec<Counted>,
}

impl Counting {
    /// No connection.
    pub(crate) const NOTHING: Self = Self { first: None, others: Vec::new() };

    pub(crate) fn add(&mut self, counted: Counted) {
        match self.first {
            None => self.first = Some(counted),
            Some(_) => self.others.push(counted),
        }
    }

    /// Defers the end of the call until the kernel has handled it.
    pub(crate) fn pend(self) {
        PENDING.with(|pending| {
            drop(ManuallyDrop::into_inner(pending.replace(ManuallyDrop::new(self))));
        });
    }

    /// Ends the call, which the kernel has handled with this result.
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
    /// Never dropped, because it may be used until the thread has ended. Empty between calls.
    static PENDING: Cell<ManuallyDrop<Counting>> =
        const { Cell::new(ManuallyDrop::new(Counting::NOTHING)) };
}

/// A result type of the C library that is a number of bytes.
pub(crate) trait Amount {
    /// Returns the number of bytes; negative for a failure.
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

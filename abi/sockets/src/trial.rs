//! Connections of the program that stay on TCP until a move pays. The kernel answers their calls, and what it says is
//! counted.
//!
//! A connection begins to move when a call has come back and no other is in the kernel: that one could take the peer's
//! switch marker for bytes, or sleep on a descriptor that has another in its place by then.

#![expect(clippy::disallowed_methods, reason = "how long a connection has lasted")]

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use libc::c_int;
use sockets::{Direction, Reason, Trial};

use crate::socket::Socket;

/// The trial of one connection, for all threads.
#[derive(Debug)]
pub(crate) struct OnTrial {
    word: AtomicU64,
    since: Instant,
}

impl OnTrial {
    /// It begins.
    pub(crate) fn begin() -> Self {
        Self::of(Trial::default(), Instant::now())
    }

    /// There is none: the connection moves at its first use, or another process has it.
    pub(crate) fn none() -> Self {
        Self::of(Trial::OVER, Instant::now())
    }

    /// That of the same connection in a forked child.
    pub(crate) fn of_child(&self) -> Self {
        Self::of(self.trial().of_child(), self.since)
    }

    fn of(trial: Trial, since: Instant) -> Self {
        Self { word: AtomicU64::new(trial.word()), since }
    }

    #[inline]
    fn trial(&self) -> Trial {
        Trial::of_word(self.word.load(Ordering::SeqCst))
    }

    /// Whether the program has sent or received anything.
    pub(crate) fn has_bytes(&self) -> bool {
        self.trial().has_bytes()
    }

    /// Ends it. False if it was over.
    pub(crate) fn end(&self) -> bool {
        let before = self.word.fetch_or(Trial::OVER.word(), Ordering::SeqCst);
        !Trial::of_word(before).is_over()
    }

    #[inline]
    fn enter(&self) -> bool {
        let entered = |word| Trial::of_word(word).with_call().map(Trial::word);
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, entered).is_ok()
    }

    /// A call is back. True if the connection is to move now, which it does not unless `may_begin`.
    #[inline]
    fn leave(
        &self,
        direction: Option<Direction>,
        bytes: u64,
        may_begin: impl Fn() -> bool,
    ) -> bool {
        let lasted_ns = || u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let left = |trial: Trial| {
            let back = trial.without_call(direction, bytes);
            back.begun(lasted_ns).filter(|_| may_begin()).unwrap_or(back)
        };
        let mut before = self.trial();
        loop {
            let after = left(before);
            let (from, to) = (before.word(), after.word());
            match self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return after.is_over() && !before.is_over(),
                Err(now) => before = Trial::of_word(now),
            }
        }
    }
}

/// A call on a connection on trial, which cannot begin to move before this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    socket: Arc<Socket>,
    fd: c_int,
    direction: Option<Direction>,
    bytes: u64,
}

impl Counted {
    /// `None` if the connection is not on trial.
    #[inline]
    pub(crate) fn enter(socket: &Arc<Socket>, fd: c_int) -> Option<Self> {
        let socket = socket.trial.enter().then(|| Arc::clone(socket))?;
        Some(Self { socket, fd, direction: None, bytes: 0 })
    }

    /// The kernel is to answer the call when this library has left it, and moves bytes in a direction, if in any.
    #[inline]
    pub(crate) fn pend(mut self, direction: Option<Direction>) {
        self.direction = direction;
        let mut pending = take();
        pending.add(self);
        pending.pend();
    }

    /// The connection stays on TCP for good.
    pub(crate) fn stay(self, reason: Reason) {
        self.socket.stay(reason);
    }

    #[inline]
    fn end(mut self, result: isize) {
        match (u64::try_from(result), self.direction) {
            // The peer has ended its direction: a switch marker cannot follow.
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

/// Connections on trial that one call is made on.
#[derive(Debug, Default)]
pub(crate) struct Counting {
    first: Option<Counted>,
    others: Vec<Counted>,
}

impl Counting {
    /// None.
    pub(crate) const NOTHING: Self = Self { first: None, others: Vec::new() };

    pub(crate) fn add(&mut self, counted: Counted) {
        match self.first {
            None => self.first = Some(counted),
            Some(_) => self.others.push(counted),
        }
    }

    /// The kernel is to answer the call when this library has left it.
    pub(crate) fn pend(self) {
        PENDING.with(|pending| {
            drop(ManuallyDrop::into_inner(pending.replace(ManuallyDrop::new(self))));
        });
    }

    /// The kernel has answered.
    #[inline]
    pub(crate) fn end(self, result: isize) {
        if let Some(first) = self.first {
            first.end(result);
        }
    }
}

/// What the calling thread is about to ask the kernel for.
#[inline]
pub(crate) fn take() -> Counting {
    PENDING.with(|pending| {
        ManuallyDrop::into_inner(pending.replace(ManuallyDrop::new(Counting::NOTHING)))
    })
}

thread_local! {
    /// Never dropped, as it is used until a thread has ended. Nothing is left in it between calls.
    static PENDING: Cell<ManuallyDrop<Counting>> =
        const { Cell::new(ManuallyDrop::new(Counting::NOTHING)) };
}

/// Results of functions of the C library, as numbers of bytes.
pub(crate) trait Amount {
    /// Bytes, or a negative number for a failure.
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

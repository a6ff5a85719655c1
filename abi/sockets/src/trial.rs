//! Connections on trial: they use TCP, and move to the edge when they have lasted so long that a
//! move pays. Until then, the kernel handles their calls, and this library counts the bytes.
//!
//! A connection begins to move when a call has returned and none of its other calls is in the
//! kernel. A call in the kernel could return the peer's switch marker as bytes, or sleep on a
//! descriptor that was replaced.

#![expect(clippy::disallowed_methods, reason = "how long a connection has lasted")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use sockets::{Direction, Trial};

/// The trial of one connection: its time on TCP until a move pays. All threads use the same value.
#[derive(Debug)]
pub(crate) struct OnTrial {
    word: AtomicU64,
    since: Instant,
}

impl OnTrial {
    /// Begins a trial.
    pub(crate) fn begin() -> Self {
        Self::of(Trial::default(), Instant::now())
    }

    /// Returns a trial that has ended, for a connection that moves at its first use or belongs to
    /// another process.
    pub(crate) fn none() -> Self {
        Self::of(Trial::ENDED, Instant::now())
    }

    /// Returns the trial of the same connection in a forked child.
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

    /// Returns true if the connection has carried bytes.
    pub(crate) fn has_bytes(&self) -> bool {
        self.trial().has_bytes()
    }

    /// Ends the trial. Returns false if the trial had already ended.
    pub(crate) fn end(&self) -> bool {
        let before = self.word.fetch_or(Trial::ENDED.word(), Ordering::SeqCst);
        !Trial::of_word(before).has_ended()
    }

    #[inline]
    pub(crate) fn enter(&self) -> bool {
        let entered = |word| Trial::of_word(word).with_call().map(Trial::word);
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, entered).is_ok()
    }

    /// Handles the return of a call. Ends the trial and returns true if the connection must begin
    /// to move now. If `may_begin` returns false, the trial continues.
    #[inline]
    pub(crate) fn leave(
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
                Ok(_) => return after.has_ended() && !before.has_ended(),
                Err(now) => before = Trial::of_word(now),
            }
        }
    }
}

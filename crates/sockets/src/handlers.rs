//! Signal handlers, which must run between the program's calls on connections, and never within
//! one.
//!
//! A handler may do all that POSIX allows: read, write, close, end the process, or jump elsewhere.
//! Within a call the thread holds locks of this library. A handler that ran there could wait for
//! those locks, or leave them locked. Therefore a signal that arrives during a call is deferred,
//! and delivered when the thread leaves the call. A call that waits returns at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
}

/// Enters a call on the calling thread. Calls may nest.
#[inline]
pub fn enter() {
    INSIDE.with(|inside| inside.set(inside.get() + 1));
}

/// Leaves a call on the calling thread. Returns the signals to unblock now: bit `n` is signal `n`.
#[inline]
#[must_use]
pub fn leave() -> u64 {
    let depth = INSIDE.with(|inside| {
        inside.set(inside.get() - 1);
        inside.get()
    });
    if depth > 0 || DEFERRED.get() == 0 { 0 } else { DEFERRED.replace(0) }
}

/// Returns whether the calling thread is within a call.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// Records that a signal is deferred until the thread leaves its call. Called in a handler.
pub fn defer(signal: u32) {
    DEFERRED.set(DEFERRED.get() | 1 << signal);
}

/// Returns whether a signal is deferred until the thread leaves its call.
pub fn is_deferred(signal: u32) -> bool {
    DEFERRED.get() >> signal & 1 == 1
}

/// Returns whether the thread should leave its call, because a signal is deferred.
#[inline]
pub(crate) fn are_wanted() -> bool {
    DEFERRED.get() != 0
}

/// Records that the program has handlers that may have to be deferred.
pub fn note_any() {
    ARE_ANY.store(true, Ordering::Relaxed);
}

/// Prepares the calling thread to sleep within a call. Returns `None` if it must leave the call at
/// once, because a signal is deferred.
///
/// A signal that is deferred after this check and before the sleep is blocked, and would not end
/// the sleep. Therefore the thread must sleep with the signal mask that it had at this check.
pub fn before_sleep() -> Option<Sleeping> {
    if !ARE_ANY.load(Ordering::Relaxed) {
        return Some(Sleeping(None));
    }
    let mask = link::blocked_signals().ok();
    (!are_wanted()).then_some(Sleeping(mask))
}

/// The signal mask for a sleep; returned by [`before_sleep`].
#[derive(Clone, Copy, Debug)]
pub struct Sleeping(Option<libc::sigset_t>);

impl Sleeping {
    /// Returns the signal mask for the sleep; `None` to keep the current mask.
    pub const fn blocked(&self) -> Option<&libc::sigset_t> {
        self.0.as_ref()
    }
}

static ARE_ANY: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_signals_are_let_in_when_the_outermost_call_ends() {
        assert!(!is_inside());
        enter();
        enter();
        assert!(is_inside() && !are_wanted());
        defer(14);
        assert!(are_wanted());
        assert_eq!(leave(), 0);
        assert!(is_inside());
        assert_eq!(leave(), 1 << 14);
        assert!(!is_inside() && !are_wanted());
        enter();
        assert_eq!(leave(), 0);
    }
}

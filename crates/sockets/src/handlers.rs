//! Handlers of signals, which run between calls of the program on connections and never in the midst of one.
//!
//! A handler may do all that POSIX allows: read, write, close, end the process, or jump to elsewhere. In the midst of a call
//! the thread holds locks of this library, which such a handler would want as well, or leave behind. So a signal that comes
//! then stays pending, and is let in when the thread has left the call. One that waits leaves it at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread begins a call, perhaps inside of another one.
#[inline]
pub fn enter() {
    INSIDE.with(|inside| inside.set(inside.get() + 1));
}

/// The calling thread ends a call. The signals to be let in now: bit `n` is signal `n`.
#[inline]
#[must_use]
pub fn leave() -> u64 {
    let depth = INSIDE.with(|inside| {
        inside.set(inside.get() - 1);
        inside.get()
    });
    if depth > 0 || DEFERRED.get() == 0 { 0 } else { DEFERRED.replace(0) }
}

/// Whether the calling thread is inside of a call.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// Notes that a signal is pending until the thread has left its call. In a handler.
pub fn defer(signal: u32) {
    DEFERRED.set(DEFERRED.get() | 1 << signal);
}

/// Whether a signal is pending until the thread has left its call.
pub fn is_deferred(signal: u32) -> bool {
    DEFERRED.get() >> signal & 1 == 1
}

/// Whether the thread is to leave its call, as a signal is pending for which a handler is to run.
#[inline]
pub(crate) fn are_wanted() -> bool {
    DEFERRED.get() != 0
}

/// There are handlers that are deferred.
pub fn note_any() {
    ARE_ANY.store(true, Ordering::Relaxed);
}

/// How the calling thread is to sleep inside of a call, or `None` if it is to leave the call at once, for a handler to run.
///
/// A signal that is deferred between a look and the sleep is pending, and would end no sleep. So the thread has those
/// blocked while it sleeps that it had when it looked.
pub fn before_sleep() -> Option<Sleeping> {
    if !ARE_ANY.load(Ordering::Relaxed) {
        return Some(Sleeping(None));
    }
    let mask = link::blocked_signals().ok();
    (!are_wanted()).then_some(Sleeping(mask))
}

/// See [`before_sleep`].
#[derive(Clone, Copy, Debug)]
pub struct Sleeping(Option<libc::sigset_t>);

impl Sleeping {
    /// What is blocked while the thread sleeps, if it is not what is blocked anyway.
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

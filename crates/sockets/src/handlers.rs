//! Defers signal handlers of the program: a handler runs between calls on connections, and never
//! within one.
//!
//! A handler may do all that POSIX allows: read, write, close, end the process, or jump elsewhere.
//! Within a call, the thread holds locks of this library. A handler that ran there could wait for
//! those locks forever, or leave them locked. Therefore the library defers a signal that arrives
//! during a call, and delivers it when the thread leaves the call. If the thread waits in the call,
//! the call returns at once.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

thread_local! {
    static INSIDE: Cell<u32> = const { Cell::new(0) };
    static DEFERRED: Cell<u64> = const { Cell::new(0) };
}

/// Records that the calling thread has entered a call of this library. Calls may nest.
#[inline]
pub fn enter() {
    INSIDE.with(|inside| inside.set(inside.get() + 1));
}

/// Records that the calling thread has left a call of this library. Returns the signals that the
/// caller must unblock now: bit `n` stands for signal `n`.
#[inline]
#[must_use]
pub fn leave() -> u64 {
    let depth = INSIDE.with(|inside| {
        inside.set(inside.get() - 1);
        inside.get()
    });
    if depth > 0 || DEFERRED.get() == 0 { 0 } else { DEFERRED.replace(0) }
}

/// Returns true if the calling thread is within a call.
#[inline]
pub fn is_inside() -> bool {
    INSIDE.get() > 0
}

/// Records that a signal is deferred until the thread leaves its call. The handler of the library
/// calls this.
pub fn defer(signal: u32) {
    DEFERRED.set(DEFERRED.get() | 1 << signal);
}

/// Returns true if the signal is deferred until the thread leaves its call.
pub fn is_deferred(signal: u32) -> bool {
    DEFERRED.get() >> signal & 1 == 1
}

/// Returns true if the thread should leave its call, because a signal is deferred.
#[inline]
pub(crate) fn are_wanted() -> bool {
    DEFERRED.get() != 0
}

/// Records that the program has installed a handler that the library may have to defer.
pub fn note_any() {
    ARE_ANY.store(true, Ordering::Relaxed);
}

/// Prepares the calling thread to sleep within a call. Returns `None` if a signal is deferred; the
/// thread must then leave the call at once.
///
/// If a signal is deferred after this check and before the sleep, the handler blocks the signal, so
/// the signal would not end the sleep. Therefore the thread must sleep with the signal mask that it
/// had at this check.
pub fn before_sleep() -> Option<Sleeping> {
    if !ARE_ANY.load(Ordering::Relaxed) {
        return Some(Sleeping(None));
    }
    let mask = link::blocked_signals().ok();
    (!are_wanted()).then_some(Sleeping(mask))
}

/// The signal mask for a sleep. [`before_sleep`] returns it.
#[derive(Clone, Copy, Debug)]
pub struct Sleeping(Option<libc::sigset_t>);

impl Sleeping {
    /// Returns the signal mask for the sleep. `None` means that the current mask is right.
    pub const fn blocked(&self) -> Option<&libc::sigset_t> {
        self.0.as_ref()
    }
}

static ARE_ANY: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_signals_are_delivered_when_the_outermost_call_ends() {
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

//! The effects of signals on calls: restarted calls, and `SIGPIPE`.

use std::cell::Cell;

use libc::c_int;
use nix::errno::Errno;

/// Makes a call. If a signal interrupts the call (`EINTR`), decides whether the call must be
/// repeated after the signal handler has run. The kernel repeats calls for handlers with the flag
/// `SA_RESTART`. The library does not know which handler will run, so it repeats the call only if
/// all handlers have this flag. The handler runs after the thread has left the call. After that,
/// [`is_restarted`] returns the decision.
pub(crate) fn restarted<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let result = call();
    if matches!(result, Err(Errno::EINTR)) {
        IS_RESTARTED.set(all_restart());
    }
    result
}

/// Returns true if the last call of this thread must be repeated. Returns true only once for each
/// such call.
#[inline]
pub(crate) fn is_restarted() -> bool {
    IS_RESTARTED.get() && IS_RESTARTED.replace(false)
}

thread_local! {
    static IS_RESTARTED: Cell<bool> = const { Cell::new(false) };
}

/// Raises `SIGPIPE`, because the peer of the stream has stopped reading.
pub(crate) fn raise_broken_pipe() {
    // SAFETY: takes no pointers.
    unsafe { libc::raise(libc::SIGPIPE) };
}

/// Returns true if all handlers of the program were installed with `SA_RESTART`.
fn all_restart() -> bool {
    (1..=libc::SIGRTMAX())
        .all(|signal| handler(signal).is_none_or(|flags| flags & libc::SA_RESTART != 0))
}

/// Returns the flags of the program's handler for the signal. Returns `None` if the program does
/// not handle the signal.
fn handler(signal: c_int) -> Option<c_int> {
    let mut found = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call changes no action. It writes `found`, for which all zero is a valid value.
    let found = unsafe {
        libc::sigaction(signal, std::ptr::null(), found.as_mut_ptr());
        found.assume_init()
    };
    let is_handled = !matches!(found.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
    is_handled.then_some(found.sa_flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_interrupted_calls_are_restarted() {
        let mut calls = 0;
        let result = restarted(|| {
            calls += 1;
            if calls == 1 { Err::<(), _>(Errno::EAGAIN) } else { Ok(()) }
        });
        assert_eq!((result, calls), (Err(Errno::EAGAIN), 1));
    }
}

//! Handles signals while a thread of the program waits: a signal ends the wait, like it ends
//! `read`.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::threads::{set_mask, signals_from_outside};

/// Defers signals to the calling thread while this value exists.
///
/// Without this value, a signal that arrives between the thread's last check and its sleep would
/// not end the sleep. Therefore the thread blocks signals before the check, and
/// [`HeldSignals::wait_for`] unblocks them.
#[derive(Debug)]
pub struct HeldSignals {
    before: libc::sigset_t,
    /// A signal mask belongs to a thread, so this value must stay on its thread.
    _of_this_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// Blocks the signals of the calling thread.
    ///
    /// # Errors
    /// Returns the error of the system call that failed. On a working system, no call fails.
    pub fn hold() -> io::Result<Self> {
        let before = set_mask(libc::SIG_BLOCK, &signals_from_outside())?;
        Ok(Self { before, _of_this_thread: PhantomData })
    }

    /// Returns the signals that the calling thread had blocked before [`HeldSignals::hold`].
    pub const fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// Sleeps until the descriptor is readable. Signal handlers can run during the sleep.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::Interrupted`] if a handler has run since [`HeldSignals::hold`], and
    /// the program has any handler without `SA_RESTART`. The kernel does not report which handler
    /// has run, so a handler with `SA_RESTART` may cause the error, too.
    pub fn wait_for(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut wanted =
            libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: `wanted` and `before` outlive the call. A null timeout means no limit.
            let ready = unsafe {
                libc::ppoll(&raw mut wanted, 1, std::ptr::null(), &raw const self.before)
            };
            if ready > 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if ready < 0 && (error.kind() != io::ErrorKind::Interrupted || any_interrupts()) {
                return Err(error);
            }
        }
    }
}

/// Returns the signals that the calling thread has blocked.
///
/// # Errors
/// Returns the error of the system call that failed. On a working system, no call fails.
pub fn blocked_signals() -> io::Result<libc::sigset_t> {
    let none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: zeroed memory is a valid, empty signal set.
    set_mask(libc::SIG_BLOCK, unsafe { none.assume_init_ref() })
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // The same call succeeded in `hold`, so it does not fail here.
        let _ = set_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Returns whether the program has a handler that interrupts system calls.
fn any_interrupts() -> bool {
    let outside = signals_from_outside();
    (1..=LAST_SIGNAL).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the calls read the signal set and write the action of a signal to `action`. A
        // zeroed action is valid too.
        let (is_outside, action) = unsafe {
            let is_outside = libc::sigismember(&raw const outside, signal) == 1;
            let _no_such_signal = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            (is_outside, action.assume_init())
        };
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        is_outside && is_handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// Highest signal number of Linux.
const LAST_SIGNAL: libc::c_int = 64;

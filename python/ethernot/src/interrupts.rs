//! Ctrl-C during calls that cannot be abandoned.

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// While this value exists, Ctrl-C ends the process, if the main thread has created the value.
///
/// Python handles signals on the main thread, between two instructions of a program. While the main
/// thread waits in a call of the shared memory, Python's handler would only note the signal.
pub(crate) struct Interruptible {
    /// The action for SIGINT to which the process returns.
    former: Option<libc::sigaction>,
}

impl Interruptible {
    /// Begins to let Ctrl-C end the process. Does nothing on other threads than the main thread, and
    /// if the process ignores SIGINT. Costs two system calls.
    pub(crate) fn begin() -> Self {
        // SAFETY: these functions have no conditions.
        let is_main = unsafe { libc::getpid() == libc::gettid() };
        let mut former = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: `former` has room for an action, and null changes nothing.
        let is_known =
            is_main && unsafe { libc::sigaction(libc::SIGINT, null(), former.as_mut_ptr()) } == 0;
        if !is_known {
            return Self { former: None };
        }
        // SAFETY: the call has filled it.
        let former = unsafe { former.assume_init() };
        if former.sa_sigaction == libc::SIG_IGN {
            return Self { former: None };
        }
        let mut action = former;
        action.sa_sigaction = libc::SIG_DFL;
        // SAFETY: the action is the present one with another handler, the kernel's.
        unsafe { libc::sigaction(libc::SIGINT, &raw const action, null_mut()) };
        Self { former: Some(former) }
    }
}

impl Drop for Interruptible {
    fn drop(&mut self) {
        if let Some(former) = &self.former {
            // SAFETY: the kernel has returned this action.
            unsafe { libc::sigaction(libc::SIGINT, former, null_mut()) };
        }
    }
}

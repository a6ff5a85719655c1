//! Signals while a thread of the program waits: one that comes ends the wait, as it ends `read`.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use crate::threads::{set_mask, signals_from_outside};

/// Defers signals to the calling thread, for as long as this lives.
///
/// Nothing would notice a signal that came between a look at what is waited for and going to sleep. So it is blocked
/// before the look, and [`HeldSignals::wait_for`] lets it in.
#[derive(Debug)]
pub struct HeldSignals {
    before: libc::sigset_t,
    /// Threads have masks of their own.
    _of_this_thread: PhantomData<*const ()>,
}

impl HeldSignals {
    /// Puts them off.
    ///
    /// # Errors
    /// None on a system that is sound.
    pub fn hold() -> io::Result<Self> {
        let before = set_mask(libc::SIG_BLOCK, &signals_from_outside())?;
        Ok(Self { before, _of_this_thread: PhantomData })
    }

    /// Returns the signals that the calling thread has blocked otherwise.
    pub const fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// Sleeps until the descriptor is readable. Handlers run meanwhile.
    ///
    /// # Errors
    /// [`io::ErrorKind::Interrupted`] if one has run, now or since signals were deferred, and the program has handlers
    /// that interrupt calls (those without `SA_RESTART`): the kernel does not report which of its handlers has run.
    pub fn wait_for(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let mut wanted =
            libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        loop {
            // SAFETY: both live until the end of the call; there is no limit.
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
/// None on a system that is sound.
pub fn blocked_signals() -> io::Result<libc::sigset_t> {
    let none = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: all zero is a set without signals.
    set_mask(libc::SIG_BLOCK, unsafe { none.assume_init_ref() })
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // It has worked before.
        let _ = set_mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Whether the program has handlers after which calls are not to go on.
fn any_interrupts() -> bool {
    let outside = signals_from_outside();
    (1..=LAST_SIGNAL).any(|signal| {
        let mut action = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: asks for the action of a signal, and writes it to where there is room; a zeroed one is valid.
        let (is_outside, action) = unsafe {
            let is_outside = libc::sigismember(&raw const outside, signal) == 1;
            let _no_such_signal = libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
            (is_outside, action.assume_init())
        };
        let is_handled = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        is_outside && is_handled && action.sa_flags & libc::SA_RESTART == 0
    })
}

/// The last of Linux.
const LAST_SIGNAL: libc::c_int = 64;

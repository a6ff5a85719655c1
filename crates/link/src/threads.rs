//! Threads beside those of the program: they leave its signals to it.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Starts a thread on which no handler of the program runs, whatever signals the process gets.
///
/// Programs count on being interrupted where they wait, and handlers on the stack and the thread-local
/// state of a thread of the program. Signals that a thread brings on itself are not held back: a handler of
/// ours serves some of them, and the kernel ends a process that blocks one.
pub fn start_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let others = signals_from_outside();
    // The new thread inherits the mask, so that it never is without one.
    let before = set_mask(libc::SIG_BLOCK, &others)?;
    let started = Builder::new().name(name.into()).spawn(work);
    set_mask(libc::SIG_SETMASK, &before)?;
    started
}

/// Those that nobody brings on himself.
pub(crate) fn signals_from_outside() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call fills the set, the others take away from it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in OF_ITS_OWN {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Changes what the calling thread blocks; returns what it blocked before.
pub(crate) fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets live until the end of the call.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: the call succeeded and has filled it.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// What a thread's own instructions bring on.
const OF_ITS_OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

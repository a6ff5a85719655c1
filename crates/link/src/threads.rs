//! Threads of this library. The kernel never delivers signals of the program to them.

use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread on which no signal handler of the program runs.
///
/// Programs expect signals to interrupt their own waiting threads. Their handlers expect the stack
/// and the thread-local state of a thread of the program. Therefore the thread blocks signals,
/// except those that its own instructions cause, such as `SIGSEGV`. This library handles some of
/// these signals. If an instruction of a thread caused a signal that the thread blocks, the kernel
/// would kill the process.
///
/// This function waits until the thread runs its own code. The reason: when a new thread starts, it
/// maps and unmaps memory for its allocations. Libraries that track unmapping (libfabric, UCX)
/// overwrite the code of `munmap` when the program initialises them. If a thread is inside `munmap`
/// at that moment, it returns from the kernel into overwritten code and crashes.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn start_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let others = signals_from_outside();
    let (begins, begun) = mpsc::sync_channel(1);
    let work = move || {
        // The starting thread may have stopped waiting, so ignore an error.
        let _not_awaited = begins.send(());
        work();
    };
    // The new thread inherits the mask, so no signal reaches it before its first instruction.
    let before = set_mask(libc::SIG_BLOCK, &others)?;
    let started = Builder::new().name(name.into()).spawn(work);
    set_mask(libc::SIG_SETMASK, &before)?;
    let started = started?;
    let _late = begun.recv_timeout(BEGINNING_MAX);
    Ok(started)
}

/// Returns the set of signals that a thread does not cause itself.
pub(crate) fn signals_from_outside() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, and the others remove signals from it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in OF_ITS_OWN {
            libc::sigdelset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Changes the signal mask of the calling thread; returns the previous mask.
pub(crate) fn set_mask(how: libc::c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets outlive the call.
    match unsafe { libc::pthread_sigmask(how, set, before.as_mut_ptr()) } {
        // SAFETY: the call succeeded and has initialised the set.
        0 => Ok(unsafe { before.assume_init() }),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Longest time to wait until a new thread runs. Without a limit, the wait could be a deadlock,
/// because the starting thread may own locks of the loader that the new thread needs.
const BEGINNING_MAX: Duration = Duration::from_secs(1);

/// Signals that a thread's own instructions cause.
const OF_ITS_OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::os::unix::thread::JoinHandleExt as _;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_started_thread_has_begun_when_start_returns() {
        for number in 0..100 {
            let name = format!("begun-{number}");
            let (end, ends) = mpsc::channel::<()>();
            let thread = start_thread(&name, move || {
                let _ended = ends.recv();
            })
            .expect("a thread");
            // A thread sets its name after its first allocation and before its work. The list of
            // all threads is no help: it may lack a thread while others end.
            let mut known = [0_u8; 16];
            // SAFETY: the thread has not been joined, and the name has at most 16 bytes.
            let found = unsafe {
                let (handle, place) = (thread.as_pthread_t(), known.as_mut_ptr().cast());
                libc::pthread_getname_np(handle, place, known.len())
            };
            drop(end);
            thread.join().expect("it does not panic");
            let known = CStr::from_bytes_until_nul(&known).expect("it ends");
            assert_eq!((found, known.to_str()), (0, Ok(name.as_str())));
        }
    }
}

//! Threads beside those of the program: they leave its signals to it.

use std::io;
use std::mem::MaybeUninit;
use std::sync::mpsc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Starts a thread on which no handler of the program runs, whatever signals the process gets.
///
/// Programs count on being interrupted where they wait, and handlers on the stack and the thread-local
/// state of a thread of the program. Signals that a thread brings on itself are not held back: a handler of
/// ours serves some of them, and the kernel ends a process that blocks one.
///
/// It has begun when this returns. A new thread maps and unmaps memory for what it allocates, and libraries that want to
/// know what is unmapped (libfabric, UCX) write over the code of `munmap` when their user comes to it: a thread that
/// comes back from the kernel into code that has changed meanwhile crashes.
///
/// # Errors
/// The error of the system call that failed.
pub fn start_thread(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let others = signals_from_outside();
    let (begins, begun) = mpsc::sync_channel(1);
    let work = move || {
        // Who started it may have waited long enough.
        let _not_awaited = begins.send(());
        work();
    };
    // The new thread inherits the mask, so that it never is without one.
    let before = set_mask(libc::SIG_BLOCK, &others)?;
    let started = Builder::new().name(name.into()).spawn(work);
    set_mask(libc::SIG_SETMASK, &before)?;
    let started = started?;
    let _late = begun.recv_timeout(BEGINNING_MAX);
    Ok(started)
}

/// Signals that a thread does not raise itself.
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

/// Who starts a thread waits no longer for it to begin: it may have locks of the loader, which a new thread may need.
const BEGINNING_MAX: Duration = Duration::from_secs(1);

/// What a thread's own instructions bring on.
const OF_ITS_OWN: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_has_begun_when_it_is_there() {
        for number in 0..100 {
            let name = format!("begun-{number}");
            let (end, ends) = mpsc::channel::<()>();
            let thread = start_thread(&name, move || {
                let _ended = ends.recv();
            })
            .expect("a thread");
            // It takes its name after its first allocation, and before its work.
            let tasks = fs::read_dir("/proc/self/task").expect("this process");
            let names = tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")));
            let has_name = names.flatten().any(|known| known.trim() == name);
            drop(end);
            thread.join().expect("it does not panic");
            assert!(has_name, "{name}");
        }
    }
}

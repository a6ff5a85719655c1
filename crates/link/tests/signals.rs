//! A signal ends a wait, like it ends `read`. This file has a single test, because signal handlers
//! belong to the whole process.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use link::HeldSignals;

static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// Makes the descriptor readable when the process handles the signal.
extern "C" fn handle(_signal: libc::c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes are read from `one`, and handlers may call `write`.
    unsafe { libc::write(DESCRIPTOR.load(Ordering::SeqCst), (&raw const one).cast(), 8) };
}

/// Installs the handler for `SIGUSR2`. `flags` determine whether interrupted calls continue.
fn handle_signal(flags: libc::c_int) {
    // SAFETY: a zeroed action is valid, and the handler calls only functions that handlers may
    // call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// Returns the result of a wait. A signal arrives after signals were blocked and before the wait.
fn waits() -> Result<(), ErrorKind> {
    // SAFETY: the call takes only numbers and returns a new descriptor without another owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
    DESCRIPTOR.store(descriptor.as_raw_fd(), Ordering::SeqCst);
    let held = HeldSignals::hold().expect("a mask");
    // SAFETY: the thread signals itself.
    unsafe { libc::raise(libc::SIGUSR2) };
    held.wait_for(descriptor.as_fd()).map_err(|error| error.kind())
}

#[test]
fn a_signal_ends_a_wait_unless_its_handler_restarts_calls() {
    handle_signal(0);
    assert_eq!(waits(), Err(ErrorKind::Interrupted));
    handle_signal(libc::SA_RESTART);
    assert_eq!(waits(), Ok(()));
}

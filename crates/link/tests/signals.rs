//! A signal ends a wait as it ends `read`. Signals are those of the process, so this is one test.

use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use link::HeldSignals;

static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);

/// What is waited for comes when the handler runs.
extern "C" fn handle(_signal: libc::c_int) {
    let one = 1_u64;
    // SAFETY: eight bytes are read from `one`; the call is one that handlers may make.
    unsafe { libc::write(DESCRIPTOR.load(Ordering::SeqCst), (&raw const one).cast(), 8) };
}

/// Has signal `SIGUSR2` handled, and calls that it interrupts go on or not.
fn handle_signal(flags: libc::c_int) {
    // SAFETY: a zeroed action is valid, and the handler does only what handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()), 0);
    }
}

/// How a wait ends before which the signal came, when signals were deferred already.
fn waits() -> Result<(), ErrorKind> {
    // SAFETY: a call with numbers gives a descriptor that nothing else has.
    let descriptor = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
    DESCRIPTOR.store(descriptor.as_raw_fd(), Ordering::SeqCst);
    let held = HeldSignals::hold().expect("a mask");
    // SAFETY: the thread signals itself.
    unsafe { libc::raise(libc::SIGUSR2) };
    held.wait_for(descriptor.as_fd()).map_err(|error| error.kind())
}

#[test]
fn a_signal_ends_a_wait_unless_its_handler_lets_calls_go_on() {
    handle_signal(0);
    assert_eq!(waits(), Err(ErrorKind::Interrupted));
    handle_signal(libc::SA_RESTART);
    assert_eq!(waits(), Ok(()));
}

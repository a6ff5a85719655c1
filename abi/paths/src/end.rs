//! Intercepts `_exit`, of which no library is notified otherwise.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

use crate::next::call_next;

/// Registers a function to call before the process ends by `_exit`. `libibverbs.so.1` uses it to
/// send what programs posted last, which an adapter would send without help of the process.
///
/// # Safety
/// The function is never unloaded, and may be called in a signal handler.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ethernot_set_before_end(call: extern "C" fn()) {
    BEFORE_END.store(call as *mut c_void, Ordering::Release);
}

fn before_end() {
    let call = BEFORE_END.load(Ordering::Acquire);
    if !call.is_null() {
        // SAFETY: only functions of this type are stored.
        let call = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(call) };
        call();
    }
}

/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    before_end();
    call_next!(_exit(status: c_int) -> (), else ());
    end(status)
}

/// # Safety
/// The arguments must be as the manual page requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    before_end();
    call_next!(_Exit(status: c_int) -> (), else ());
    end(status)
}

/// Ends the process if the C library has no such function.
fn end(status: c_int) -> ! {
    loop {
        // SAFETY: the call takes a number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

static BEFORE_END: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

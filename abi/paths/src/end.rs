//! Intercepts `_exit`, because a library gets no other notification when a process ends this way.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

use crate::next::call_next;

/// Registers a function that this library calls before the process ends by `_exit`.
/// `libibverbs.so.1` registers a function that sends the work that the program posted last. A
/// hardware adapter would send this work even after the process has ended.
///
/// # Safety
/// `call` must never be unloaded. It must be safe to call in a signal handler.
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
/// The arguments must be those that the manual page of `_exit` requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    before_end();
    call_next!(_exit(status: c_int) -> (), else ());
    end(status)
}

/// # Safety
/// The arguments must be those that the manual page of `_Exit` requires.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    before_end();
    call_next!(_Exit(status: c_int) -> (), else ());
    end(status)
}

/// Ends the process by a system call. Called if the C library does not have `_exit` or `_Exit`.
fn end(status: c_int) -> ! {
    loop {
        // SAFETY: the call takes a number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

static BEFORE_END: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

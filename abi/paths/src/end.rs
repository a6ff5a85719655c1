//! The end of the process by `_exit`, which no library hears of otherwise.

use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

use crate::next::call_next;

/// Has a function called before the process ends by `_exit`. `libibverbs.so.1` sends what programs have posted last then, which
/// an adapter would have sent by itself.
///
/// # Safety
/// The function stays where it is, and may be called in a signal handler.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ethernot_set_before_end(call: extern "C" fn()) {
    BEFORE_END.store(call as *mut c_void, Ordering::Release);
}

fn before_end() {
    let call = BEFORE_END.load(Ordering::Acquire);
    if !call.is_null() {
        // SAFETY: what was stored is such a function.
        let call = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(call) };
        call();
    }
}

/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn _exit(status: c_int) -> ! {
    before_end();
    call_next!(_exit(status: c_int) -> (), else ());
    end(status)
}

/// # Safety
/// As the manual page says.
#[unsafe(no_mangle)]
unsafe extern "C" fn _Exit(status: c_int) -> ! {
    before_end();
    call_next!(_Exit(status: c_int) -> (), else ());
    end(status)
}

/// What is left where there is no C library that ends the process.
fn end(status: c_int) -> ! {
    loop {
        // SAFETY: it takes a number and does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

static BEFORE_END: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

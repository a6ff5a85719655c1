//! Sends pending work before the process ends with `_exit`. The preloaded library
//! `libethernot_paths.so` intercepts `_exit`, and calls a function that this module registers.

use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;
use std::sync::Once;

use verbs_edge::send_before_end;

/// Registers a function that sends pending work before the process ends. Has no effect if
/// `libethernot_paths.so` is not loaded.
pub(crate) fn announce() {
    static ANNOUNCED: Once = Once::new();
    ANNOUNCED.call_once(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, SET_BEFORE_END.as_ptr()) };
        if found.is_null() {
            return;
        }
        // SAFETY: the function with this name has this type.
        let set = unsafe { std::mem::transmute::<*mut c_void, SetBeforeEnd>(found) };
        // SAFETY: `before_end` is in this library, which is never unloaded. A signal handler may
        // call the function, because it only tries a lock and waits, at most 20 ms.
        unsafe { set(before_end) };
    });
}

extern "C" fn before_end() {
    // A panic must not change how the process ends, so catch it.
    let _reported = catch_unwind(send_before_end);
}

type SetBeforeEnd = unsafe extern "C" fn(extern "C" fn());

const SET_BEFORE_END: &CStr = c"ethernot_set_before_end";

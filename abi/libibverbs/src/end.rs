//! The end of the process by `_exit`: `libethernot_paths.so`, which comes before the C library, reports it.

use std::ffi::{CStr, c_void};
use std::panic::catch_unwind;
use std::sync::Once;

use verbs_edge::send_before_end;

/// Has work that was posted last sent before the process ends, if the library is there that hears of the end.
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
        // SAFETY: the function is part of this library, which is not unloaded, and only waits.
        unsafe { set(before_end) };
    });
}

extern "C" fn before_end() {
    // A panic must not end the process in another way than the program has asked for.
    let _reported = catch_unwind(send_before_end);
}

type SetBeforeEnd = unsafe extern "C" fn(extern "C" fn());

const SET_BEFORE_END: &CStr = c"ethernot_set_before_end";

//! Functions that stand before those of the C library with the same name.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// A function of the C library, which is looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// The one with this name, which ends with a zero.
    pub(crate) const fn named(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, found: AtomicPtr::new(std::ptr::null_mut()) },
            Err(_) => panic!("the name ends with its only zero"),
        }
    }

    /// Its address; null if there is none.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // Names that new programs no longer get are only found by their version.
            // SAFETY: both names end with a zero.
            found = unsafe {
                libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), FIRST_VERSION.as_ptr())
            };
        }
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The first version of the C library's names on this architecture.
const FIRST_VERSION: &CStr =
    if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

/// Calls the next function with this name; without one, the result is a failure with `ENOSYS`.
macro_rules! call_next {
    ($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty, else $failed:expr) => {{
        static NEXT: $crate::next::Next =
            $crate::next::Next::named(concat!(stringify!($symbol), "\0"));
        let address = NEXT.address();
        if address.is_null() {
            $crate::standing::fail(libc::ENOSYS, $failed)
        } else {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: this is the function of the C library with that name, which has this type.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: the caller keeps what the function asks for.
            unsafe { function($($argument),*) }
        }
    }};
}

/// Defines functions for the loader to put before those of the C library with the same name: if the path `at` is one of
/// ours, the result is that of `by`, unless it is `None`; else that of the C library.
macro_rules! interpose {
    ($($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty,
        else $failed:expr, at $path:ident, by $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($argument: $kind),*) -> $result {
                // SAFETY: a path ends with a zero, as the function of this name demands.
                if unsafe { $crate::standing::may_be_ours($path) } {
                    // SAFETY: arguments are as the function of this name demands.
                    if let Some(answer) = unsafe { $answer } {
                        return answer;
                    }
                }
                $crate::next::call_next!($symbol($($argument: $kind),*) -> $result, else $failed)
            }
        )*
    };
}

pub(crate) use {call_next, interpose};

//! Macros that define functions with names of the C library. The loader finds these functions
//! before the C library's.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

/// A function of the C library. Its address is looked up at the first use.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Creates an entry for the function `name`. `name` must end with a zero byte.
    pub(crate) const fn named(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, found: AtomicPtr::new(std::ptr::null_mut()) },
            Err(_) => panic!("the name ends with its only zero"),
        }
    }

    /// Returns the address of the function, or null if the C library does not have it.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Acquire);
        if !known.is_null() {
            return known;
        }
        // SAFETY: the name ends with a zero byte.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // The C library keeps some symbols only for old programs. `dlsym` does not find such a
            // symbol without its version.
            // SAFETY: both names end with a zero byte.
            found = unsafe {
                libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), FIRST_VERSION.as_ptr())
            };
        }
        self.found.store(found, Ordering::Release);
        found
    }
}

/// The first symbol version of the C library on this architecture.
const FIRST_VERSION: &CStr =
    if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };

/// Calls the C library's function with this name. If there is none, the call fails with `ENOSYS`.
macro_rules! call_next {
    ($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty, else $failed:expr) => {{
        static NEXT: $crate::next::Next =
            $crate::next::Next::named(concat!(stringify!($symbol), "\0"));
        let address = NEXT.address();
        if address.is_null() {
            $crate::standing::fail(libc::ENOSYS, $failed)
        } else {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: this is the C library's function with this name, which has this type.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: the caller of the macro passes the arguments that the function requires.
            unsafe { function($($argument),*) }
        }
    }};
}

/// Defines functions that the loader finds before the C library's. If the path `at` leads to a
/// virtual file, each function returns the result of the expression after `by`. If that result is
/// `None`, the function calls the C library with the path of the walk. For every other path, the
/// function calls the C library with the path that the program has passed.
macro_rules! interpose {
    ($($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty,
        else $failed:expr, at ($folder:expr, $path:ident), by |$walk:ident| $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($argument: $kind),*) -> $result {
                // SAFETY: the path ends with a zero byte, as the function of this name requires.
                if unsafe { $crate::walk::is_candidate($folder, $path) } {
                    return $crate::walk::walking(|$walk| {
                        // SAFETY: the caller passes the arguments that the function of this name
                        // requires.
                        if let Some(answer) = unsafe { $answer } {
                            return answer;
                        }
                        let $path = $walk.c_path();
                        $crate::next::call_next!(
                            $symbol($($argument: $kind),*) -> $result, else $failed)
                    });
                }
                $crate::next::call_next!($symbol($($argument: $kind),*) -> $result, else $failed)
            }
        )*
    };
}

/// Defines functions that take a descriptor. For a virtual folder, each function returns the result
/// of the expression after `by`. For other descriptors, the function calls the C library.
macro_rules! interpose_descriptor {
    ($($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty,
        else $failed:expr, at $descriptor:ident, by |$walk:ident| $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($($argument: $kind),*) -> $result {
                if $crate::descriptors::is_ours($descriptor) {
                    // SAFETY: the caller passes the arguments that the function of this name
                    // requires.
                    let answered = $crate::walk::walking(|$walk| unsafe { $answer });
                    if let Some(answer) = answered {
                        return answer;
                    }
                }
                $crate::next::call_next!($symbol($($argument: $kind),*) -> $result, else $failed)
            }
        )*
    };
}

pub(crate) use {call_next, interpose, interpose_descriptor};

//! Macros that interpose functions of the C library, and call the functions of the C library with
//! the same names.

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{c_int, c_void};

/// A function of the C library, whose address is looked up once.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// Creates an entry for a name. The name must end with a zero byte.
    pub(crate) const fn named(name: &'static str) -> Self {
        match CStr::from_bytes_with_nul(name.as_bytes()) {
            Ok(name) => Self { name, found: AtomicPtr::new(std::ptr::null_mut()) },
            Err(_) => panic!("the name ends with its only zero"),
        }
    }

    /// Returns the address of the function, or null if the C library does not have it.
    #[inline]
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero byte.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// Sets `errno` and returns `value`.
#[cold]
pub(crate) fn fail<T>(number: c_int, value: T) -> T {
    set_errno(number);
    value
}

/// Returns the `errno` of the calling thread.
#[inline]
pub(crate) fn errno() -> c_int {
    // SAFETY: the address belongs to this thread's `errno`.
    unsafe { *libc::__errno_location() }
}

#[inline]
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the address belongs to this thread's `errno`.
    unsafe { *libc::__errno_location() = number };
}

/// Returns true if `answer` is the value with which a call reports a failure.
pub(crate) fn is_failure<T: PartialEq>(answer: Option<&T>, failed: &T) -> bool {
    answer == Some(failed)
}

/// Calls the next function with this name in the order of loaded libraries, usually the function of
/// the C library. If there is none, the call fails with `ENOSYS`.
macro_rules! call_next {
    ($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty, else $failed:expr) => {{
        static NEXT: $crate::next::Next =
            $crate::next::Next::named(concat!(stringify!($symbol), "\0"));
        let address = NEXT.address();
        if address.is_null() {
            $crate::next::fail(libc::ENOSYS, $failed)
        } else {
            type Function = unsafe extern "C" fn($($kind),*) -> $result;
            // SAFETY: the address belongs to the C library's function with this name, which has
            // this type.
            let function = unsafe { std::mem::transmute::<*mut libc::c_void, Function>(address) };
            // SAFETY: the caller of the macro passes the arguments that the function requires.
            unsafe { function($($argument),*) }
        }
    }};
}

/// Defines functions that interpose the C functions with the same names. If the condition holds, a
/// function evaluates the expression after `by`. If this returns a value, the value is the result
/// of the call. In all other cases, the function calls the C library. Calls by this library itself
/// always go to the C library.
///
/// `cargo xtask libraries` binds the names. Programs call `ethernot_sockets_NAME`, and this library
/// calls `ethernot_inside_NAME`.
macro_rules! interpose {
    ($($symbol:ident ($($argument:ident: $kind:ty),*) -> $result:ty,
        else $failed:expr, if $condition:expr, by $answer:expr;)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program($($argument: $kind),*) -> $result {
                    let mut counting = $crate::counted::Counting::NOTHING;
                    loop {
                        if !$condition {
                            break;
                        }
                        let before = $crate::next::errno();
                        let inside = $crate::handling::Inside::enter();
                        // SAFETY: the program passes the arguments that the function of this name
                        // requires.
                        let answer = unsafe { $answer };
                        let has_failed = $crate::next::is_failure(answer.as_ref(), &$failed);
                        // Restore `errno` after success, because a successful call must not change
                        // it.
                        let error = if has_failed { $crate::next::errno() } else { before };
                        let is_restarted = $crate::signals::is_restarted();
                        if answer.is_none() {
                            counting = $crate::counted::take();
                        }
                        drop(inside);
                        $crate::next::set_errno(error);
                        if is_restarted {
                            continue;
                        }
                        if let Some(answer) = answer {
                            return answer;
                        }
                        break;
                    }
                    let result = $crate::next::call_next!(
                        $symbol($($argument: $kind),*) -> $result, else $failed
                    );
                    counting.end($crate::counted::Amount::amount(&result));
                    result
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($($argument: $kind),*) -> $result {
                    $crate::next::call_next!($symbol($($argument: $kind),*) -> $result, else $failed)
                }
            };
        )*
    };
}

pub(crate) use {call_next, interpose};

//! Functions without an effect. They exist only because the dynamic linker must find the symbols
//! that programs refer to. Several symbols share one function (`names.txt`). The functions ignore
//! their arguments.

use std::ffi::{c_int, c_void};

use crate::failure::set_errno;

/// Defines three functions that fail. The first returns an error number, the second returns -1, and
/// the third returns null.
macro_rules! failing {
    ($number:expr, $code:ident $code_name:literal, $minus:ident $minus_name:literal, $null:ident $null_name:literal) => {
        /// Sets `errno` and returns the error number.
        #[unsafe(export_name = $code_name)]
        pub(crate) extern "C" fn $code() -> c_int {
            set_errno($number);
            $number
        }

        /// Sets `errno` and returns -1.
        #[unsafe(export_name = $minus_name)]
        pub(crate) extern "C" fn $minus() -> isize {
            set_errno($number);
            -1
        }

        /// Sets `errno` and returns null.
        #[unsafe(export_name = $null_name)]
        pub(crate) extern "C" fn $null() -> *mut c_void {
            set_errno($number);
            std::ptr::null_mut()
        }
    };
}

failing!(libc::ENOSYS, fails "ethernot_fails", minus_one "ethernot_minus_one", null "ethernot_null");
failing!(
    libc::EOPNOTSUPP,
    unsupported "ethernot_unsupported",
    unsupported_minus_one "ethernot_unsupported_minus_one",
    unsupported_null "ethernot_unsupported_null"
);

/// Does nothing. Used for symbols whose functions return nothing.
#[unsafe(export_name = "ethernot_nothing")]
pub(crate) extern "C" fn nothing() {}

/// Returns 0, which stands for success or for no result.
#[unsafe(export_name = "ethernot_zero")]
pub(crate) extern "C" fn zero() -> usize {
    0
}

/// Implements `ibv_is_fork_initialized`. Returns `IBV_FORK_UNNEEDED`: the library pins no memory,
/// so a program need not prepare for a fork.
#[unsafe(export_name = "ethernot_ibv_is_fork_initialized")]
pub(crate) extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}

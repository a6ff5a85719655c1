//! Converts results to the return values of C functions.

use libc::{c_int, ssize_t};
use nix::errno::Errno;

use crate::next::fail;

/// Returns the number of bytes in `result`. On an error, sets `errno` and returns -1.
pub(crate) fn counted(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(count) => ssize_t::try_from(count).unwrap_or(ssize_t::MAX),
        Err(error) => fail(error as c_int, -1),
    }
}

/// Returns 0 on success. On an error, sets `errno` and returns -1.
pub(crate) fn done(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(error as c_int, -1),
    }
}

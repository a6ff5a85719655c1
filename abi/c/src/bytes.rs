//! Values that programs pass by pointer.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use crate::failure::Failure;

/// Returns the bytes that a program passes. Returns an empty slice if `length` is 0.
///
/// # Safety
/// `start` must be null, or point to `length` bytes that do not change during the call.
pub(crate) unsafe fn given<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    match (start.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::null("the address of bytes")),
        // SAFETY: the caller meets the requirements of this function.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) }),
    }
}

/// Returns the string that a program passes.
///
/// # Safety
/// `text` must be null or end with a zero byte.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller meets the requirements of this function.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    let not_text =
        |_| Failure::new(crate::failure::Result::Invalid, format!("{what} is not UTF-8"));
    text.map_err(not_text)
}

/// Writes `value`, an output of a call of the C interface, to `place`.
///
/// # Safety
/// `place` must be null, or point to room for `value`.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::null("the place for what the call returns"));
    }
    // SAFETY: the caller meets the requirements of this function.
    unsafe { place.write(value) };
    Ok(())
}

/// Checks that the pointer for an output is not null. A call checks this before it has any effect.
pub(crate) fn has_place<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::null("the place for what the call returns"));
    }
    Ok(())
}

/// Copies at most `capacity` bytes to the program's buffer. Writes the full number of bytes to
/// `length`.
///
/// # Safety
/// `to` must be null, or point to room for `capacity` bytes. `length` must be null, or point to
/// room for a number.
pub(crate) unsafe fn hand_out(bytes: &[u8], to: *mut c_void, capacity: usize, length: *mut usize) {
    let count = bytes.len().min(capacity);
    if !to.is_null() {
        // SAFETY: the buffer has room for `capacity` bytes and belongs to the program.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), count) };
    }
    if !length.is_null() {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { length.write(bytes.len()) };
    }
}

/// Converts a timeout in milliseconds. A negative timeout means no limit.
pub(crate) fn limit(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

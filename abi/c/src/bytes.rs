//! What programs pass by pointer.

use std::ffi::{CStr, c_char, c_void};
use std::time::Duration;

use crate::failure::Failure;

/// Bytes that a program passes; none if there are none.
///
/// # Safety
/// `start` is null or points to so many bytes that do not change during the call.
pub(crate) unsafe fn given<'a>(start: *const c_void, length: usize) -> Result<&'a [u8], Failure> {
    match (start.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Failure::null("the address of bytes")),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(start.cast(), length) }),
    }
}

/// Text that a program passes.
///
/// # Safety
/// `text` is null or ends with a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::null(what));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    let not_text =
        |_| Failure::new(crate::failure::Result::Invalid, format!("{what} is not UTF-8"));
    text.map_err(not_text)
}

/// Writes what a call returns.
///
/// # Safety
/// `place` is null or points to room for it.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::null("the place for what the call returns"));
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(value) };
    Ok(())
}

/// That there is a place for what a call returns: to be asked before anything is done.
pub(crate) fn has_place<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() {
        return Err(Failure::null("the place for what the call returns"));
    }
    Ok(())
}

/// Copies bytes to where the program wants them: as many as fit. `length` gets how many there are.
///
/// # Safety
/// `to` is null or points to room for `capacity` bytes, `length` is null or to a number.
pub(crate) unsafe fn hand_out(bytes: &[u8], to: *mut c_void, capacity: usize, length: *mut usize) {
    let count = bytes.len().min(capacity);
    if !to.is_null() {
        // SAFETY: there is room for `capacity` bytes, and they are the program's.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), count) };
    }
    if !length.is_null() {
        // SAFETY: the caller's promise.
        unsafe { length.write(bytes.len()) };
    }
}

/// A limit in milliseconds; negative numbers are none.
pub(crate) fn limit(timeout_ms: i64) -> Option<Duration> {
    u64::try_from(timeout_ms).ok().map(Duration::from_millis)
}

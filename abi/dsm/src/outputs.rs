//! Outputs of calls.

use crate::failure::Failure;

/// Checks that the pointer for an output is not null. A call checks this before it has any effect.
pub(crate) fn has_place<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() { Err(Failure::null("the place for what the call returns")) } else { Ok(()) }
}

/// Writes `value`, an output of a call, to `place`.
///
/// # Safety
/// `place` must point to room for `value`. The caller must hold no lock of this library, because
/// `place` may be in the shared memory.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) {
    // SAFETY: the caller of this function upholds both conditions.
    unsafe { place.write(value) };
}

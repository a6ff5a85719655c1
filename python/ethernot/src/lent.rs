//! Registers the bytes of arrays and other Python objects without copying them.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ethernot::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Returns the bytes of an object that supports the buffer protocol and has contiguous memory.
/// While the buffer exists, the object does not move or resize these bytes. Raises the object's
/// exception if `writable` is true but the bytes are read-only.
pub(crate) fn buffer_of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Arc<Buffer>> {
    release(std::ptr::null_mut());
    let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
    let flags = ffi::PyBUF_SIMPLE | if writable { ffi::PyBUF_WRITABLE } else { 0 };
    // SAFETY: the object is alive. If the call succeeds, the call has filled the view.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = NonNull::from(Box::leak(view)).cast::<ffi::Py_buffer>();
    let lent = Lent(view);
    // SAFETY: the view is filled, and nothing changes the view until it is released.
    let ffi::Py_buffer { buf, len, readonly, .. } = unsafe { view.as_ref() };
    let Some(start) = NonNull::new(buf.cast::<u8>()) else {
        return Err(PyBufferError::new_err("the object has no bytes; pass one that has some"));
    };
    let (len, is_writable) = (len.unsigned_abs(), *readonly == 0);
    // SAFETY: until the view is released, the object does not free or move these bytes. If they are
    // not read-only, they are writable. Python and its extensions access them as foreign memory.
    Ok(unsafe { Buffer::from_owner(start, len, lent, is_writable) })
}

/// A filled view of an object. Dropping it releases the view.
struct Lent(NonNull<ffi::Py_buffer>);

// SAFETY: the only use of the view is its release, by a thread that holds the interpreter lock.
unsafe impl Send for Lent {}
// SAFETY: the only use of the view is its release, by a thread that holds the interpreter lock.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // A thread of the engine may drop this value. This thread must not wait for the interpreter
        // lock, because a thread that holds the interpreter lock may wait for the engine.
        let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(Self(self.0));
        // SAFETY: this call is valid with and without the interpreter lock. If the interpreter's
        // queue of calls is full, this call has no effect. Then the next view that is dropped
        // requests the release.
        unsafe { ffi::Py_AddPendingCall(Some(release), std::ptr::null_mut()) };
    }
}

/// Releases the views in [`ENDED`]. The interpreter and [`buffer_of`] call it with the interpreter
/// lock held.
extern "C" fn release(_: *mut c_void) -> c_int {
    // Take the list first. Releasing a view runs code of the object, and this code may drop other
    // views.
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    for lent in ended {
        let view = lent.0.as_ptr();
        std::mem::forget(lent);
        // SAFETY: `buffer_of` has filled the view in a box, and the view is released only here. The
        // caller holds the interpreter lock.
        unsafe {
            ffi::PyBuffer_Release(view);
            drop(Box::from_raw(view));
        }
    }
    0
}

/// Views that are no longer used, but not released yet.
static ENDED: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

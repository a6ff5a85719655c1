//! Arrays and other objects of Python whose bytes are registered where they are.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ethernot::Buffer;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The bytes of an object that has the buffer protocol, in one piece. The object keeps them, unchanged in size, as long as
/// the buffer is held. Fails as the object does if they must be `writable` and are not.
pub(crate) fn buffer_of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Arc<Buffer>> {
    release(std::ptr::null_mut());
    let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::uninit());
    let flags = ffi::PyBUF_SIMPLE | if writable { ffi::PyBUF_WRITABLE } else { 0 };
    // SAFETY: the object is alive, and the view is filled if this succeeds.
    if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), flags) } != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let view = NonNull::from(Box::leak(view)).cast::<ffi::Py_buffer>();
    let lent = Lent(view);
    // SAFETY: it is filled, and nothing changes it until it is released.
    let ffi::Py_buffer { buf, len, readonly, .. } = unsafe { view.as_ref() };
    let Some(start) = NonNull::new(buf.cast::<u8>()) else {
        return Err(PyBufferError::new_err("the object has no bytes; pass one that has some"));
    };
    let (len, is_writable) = (len.unsigned_abs(), *readonly == 0);
    // SAFETY: until the view is released the object keeps these bytes, writable if they are not read-only. Python and its
    // extensions read and write them as foreign memory.
    Ok(unsafe { Buffer::from_owner(start, len, lent, is_writable) })
}

/// A filled view of an object, which is released with it.
struct Lent(NonNull<ffi::Py_buffer>);

// SAFETY: the view is used only to be released, which happens with the lock of the interpreter.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // A thread of the engine may be here, which must not wait for the lock of the interpreter: a thread that has the lock
        // may wait for the engine.
        let mut ended = ENDED.lock().unwrap_or_else(PoisonError::into_inner);
        ended.push(Self(self.0));
        // SAFETY: the function may be called at any time with the lock of the interpreter. If too many calls are pending, the
        // next view that ends asks again.
        unsafe { ffi::Py_AddPendingCall(Some(release), std::ptr::null_mut()) };
    }
}

/// Releases what has ended. The interpreter, and [`buffer_of`], call it with the lock of the interpreter.
extern "C" fn release(_: *mut c_void) -> c_int {
    // Releasing runs code of the object, which may end other views.
    let ended = std::mem::take(&mut *ENDED.lock().unwrap_or_else(PoisonError::into_inner));
    for lent in ended {
        let view = lent.0.as_ptr();
        std::mem::forget(lent);
        // SAFETY: `buffer_of` has filled the view in a box, and it is released once. The caller has the lock of the interpreter.
        unsafe {
            ffi::PyBuffer_Release(view);
            drop(Box::from_raw(view));
        }
    }
    0
}

/// Views that nothing uses any more.
static ENDED: Mutex<Vec<Lent>> = Mutex::new(Vec::new());

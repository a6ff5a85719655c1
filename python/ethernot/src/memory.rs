//! Registered memory. Python programs read and write it through the buffer protocol.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ethernot::{Buffer, MemoryRegion, RemoteKey, RemoteRegion};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{named, raised};

/// Registered memory of this process.
///
/// A view of the memory keeps the memory allocated. After `release`, peers can no longer access the
/// memory, even if views still exist.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Memory {
    buffer: Arc<Buffer>,
    /// `None` after the memory was released.
    region: Mutex<Option<Arc<MemoryRegion>>>,
}

impl Memory {
    pub(crate) fn new(buffer: Arc<Buffer>, region: MemoryRegion) -> Self {
        Self { buffer, region: Mutex::new(Some(Arc::new(region))) }
    }

    pub(crate) fn region(&self, python: Python<'_>) -> PyResult<Arc<MemoryRegion>> {
        let region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = || named(python, "ClosedError", "the memory was released".into());
        region.clone().ok_or_else(gone)
    }
}

#[pymethods]
impl Memory {
    fn __len__(&self) -> usize {
        self.buffer.len() as usize
    }

    /// Returns the description of the memory for peers.
    #[getter]
    fn remote(&self, python: Python<'_>) -> PyResult<RemoteMemory> {
        Ok(RemoteMemory { inner: self.region(python)?.remote() })
    }

    /// Deregisters the memory, so that peers can no longer access it. Pending operations that use
    /// it continue.
    fn release(&self, python: Python<'_>) {
        let taken = self.region.lock().unwrap_or_else(PoisonError::into_inner).take();
        python.detach(|| drop(taken));
    }

    /// Loads a 64-bit number atomically. The offset must be a multiple of 8.
    fn load(&self, python: Python<'_>, offset: u64) -> PyResult<u64> {
        self.check_word(python, offset)?;
        Ok(self.buffer.load_u64(offset))
    }

    /// Stores a 64-bit number atomically. The offset must be a multiple of 8.
    fn store(&self, python: Python<'_>, offset: u64, value: u64) -> PyResult<()> {
        self.check_word(python, offset)?;
        if !self.buffer.is_writable() {
            let text = "the memory is of an object that must not change; register one that may";
            return Err(named(python, "InvalidError", text.into()));
        }
        self.buffer.store_u64(offset, value);
        Ok(())
    }

    /// # Safety `view` is null, or points to a view that Python passes so that this function fills
    /// it.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        let buffer = &slf.get().buffer;
        let (start, length) =
            (buffer.as_ptr().cast::<c_void>(), buffer.len().cast_signed() as ffi::Py_ssize_t);
        let is_read_only = c_int::from(!buffer.is_writable());
        // SAFETY: Python passes the view so that this function fills it. The view holds a reference
        // to this object, so the memory stays allocated. Python accesses the memory as foreign
        // bytes, for which every value is valid.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, is_read_only, flags)
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

impl Memory {
    fn check_word(&self, python: Python<'_>, offset: u64) -> PyResult<()> {
        let is_inside = offset.checked_add(8).is_some_and(|end| end <= self.buffer.len());
        let address = self.buffer.address().wrapping_add(offset);
        if is_inside && address.is_multiple_of(8) {
            return Ok(());
        }
        let text = format!(
            "there is no word at {offset} of {} bytes; it begins at an address that is a multiple of 8",
            self.buffer.len()
        );
        Err(named(python, "InvalidError", text))
    }
}

/// Memory of a peer: its address, its length and its key.
#[pyclass(frozen, eq, hash, module = "ethernot._native")]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct RemoteMemory {
    pub(crate) inner: RemoteRegion,
}

impl std::hash::Hash for RemoteMemory {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.inner.to_bytes().hash(state);
    }
}

#[pymethods]
impl RemoteMemory {
    #[new]
    fn new(key: u32, address: u64, length: u64) -> Self {
        Self { inner: RemoteRegion { key: RemoteKey(key), address, len: length } }
    }

    #[staticmethod]
    fn from_bytes(python: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let inner = RemoteRegion::from_bytes(data).map_err(|error| raised(python, error))?;
        Ok(Self { inner })
    }

    fn __bytes__<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(python, &self.inner.to_bytes())
    }

    fn __len__(&self) -> usize {
        self.inner.len as usize
    }

    #[getter]
    fn key(&self) -> u32 {
        self.inner.key.0
    }

    #[getter]
    fn address(&self) -> u64 {
        self.inner.address
    }

    fn __repr__(&self) -> String {
        let RemoteRegion { key, address, len } = self.inner;
        format!("RemoteMemory(key={:#x}, address={address:#x}, length={len})", key.0)
    }
}

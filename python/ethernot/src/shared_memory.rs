//! Shared memory over Ethernet. Python programs use it through the module `ethernot.dsm`.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use dsm::{Dsm, Error, Method, Options};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::named;
use crate::interrupts::Interruptible;

/// This process's part in the shared memory.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct DsmRank {
    /// `None` after the rank has left. Locked only to copy or take the reference.
    dsm: RwLock<Option<Arc<Dsm>>>,
}

impl DsmRank {
    fn dsm(&self, python: Python<'_>) -> PyResult<Arc<Dsm>> {
        let dsm = self.dsm.read().unwrap_or_else(PoisonError::into_inner).clone();
        dsm.ok_or_else(|| left(python))
    }

    /// Makes a call that may wait for other ranks. Other threads of Python run meanwhile. Ctrl-C
    /// ends the process, because a rank cannot abandon a call.
    fn wait(
        &self,
        python: Python<'_>,
        call: impl FnOnce(&Dsm) -> Result<(), Error> + Send,
    ) -> PyResult<()> {
        let dsm = self.dsm(python)?;
        let interruptible = Interruptible::begin();
        python.check_signals()?;
        let done = python.detach(|| call(&dsm));
        drop(interruptible);
        done.map_err(|error| raised(python, &error))
    }
}

#[pymethods]
impl DsmRank {
    /// Joins the other ranks.
    #[new]
    #[pyo3(signature = (rank, ranks, meet, region_bytes, threads, method, limit))]
    #[expect(clippy::too_many_arguments, reason = "the module `dsm` gives them names and defaults")]
    fn new(
        python: Python<'_>,
        rank: Option<usize>,
        ranks: Option<usize>,
        meet: Option<String>,
        region_bytes: u64,
        threads: usize,
        method: Option<&str>,
        limit: f64,
    ) -> PyResult<Self> {
        let invalid = |text: String| named(python, "InvalidError", text);
        let mut options = Options::new().region_bytes(region_bytes).threads(threads);
        options = match (rank, ranks) {
            (Some(rank), Some(ranks)) => options.rank(rank, ranks),
            (None, None) => options,
            _ => return Err(invalid("rank and ranks belong together; give both, or none".into())),
        };
        if let Some(meet) = meet {
            options = options.meet(meet);
        }
        options = match method {
            None => options,
            Some("asynchronous") => options.method(Method::Asynchronous),
            Some("synchronous") => options.method(Method::Synchronous),
            Some("mprotect") => options.method(Method::Protection),
            Some(other) => {
                let text = format!(
                    "method {other:?} is unknown; use asynchronous, synchronous or mprotect"
                );
                return Err(invalid(text));
            }
        };
        let limit = Duration::try_from_secs_f64(limit)
            .map_err(|_| invalid(format!("a limit of {limit} s; give a number of seconds")))?;
        let interruptible = Interruptible::begin();
        let joined = python.detach(|| Dsm::join(options.limit(limit)));
        drop(interruptible);
        let dsm = joined.map_err(|error| raised(python, &error))?;
        Ok(Self { dsm: RwLock::new(Some(Arc::new(dsm))) })
    }

    #[getter]
    fn rank(&self, python: Python<'_>) -> PyResult<usize> {
        Ok(self.dsm(python)?.rank())
    }

    #[getter]
    fn size(&self, python: Python<'_>) -> PyResult<usize> {
        Ok(self.dsm(python)?.size())
    }

    #[getter]
    fn method(&self, python: Python<'_>) -> PyResult<&'static str> {
        Ok(match self.dsm(python)?.method() {
            Method::Asynchronous => "asynchronous",
            Method::Synchronous => "synchronous",
            Method::Protection => "mprotect",
        })
    }

    /// Returns what this rank has done, by name.
    fn counters<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let found = self.dsm(python)?.counters();
        let all = PyDict::new(python);
        let counters = [
            ("faults", found.faults),
            ("fetches", found.fetches),
            ("prefetches", found.prefetches),
            ("patches", found.patches),
            ("invalidations", found.invalidations),
            ("handovers", found.handovers),
        ];
        for (name, count) in counters {
            all.set_item(name, count)?;
        }
        Ok(all)
    }

    /// Allocates bytes and returns the address of the first one.
    fn alloc(&self, python: Python<'_>, bytes: usize) -> PyResult<usize> {
        let dsm = self.dsm(python)?;
        let allocated = dsm.alloc::<u8>(bytes).map_err(|error| raised(python, &error))?;
        Ok(allocated.as_ptr().expose_provenance())
    }

    fn prefetch(&self, python: Python<'_>, address: usize, bytes: usize) -> PyResult<()> {
        let dsm = self.dsm(python)?;
        let begun = python.detach(|| dsm.prefetch_range(address..address.saturating_add(bytes)));
        begun.map_err(|error| raised(python, &error))
    }

    /// Checks that accesses to the memory reach the library, unless the rank has left.
    fn check_accesses(&self, python: Python<'_>) -> PyResult<()> {
        let dsm = self.dsm.read().unwrap_or_else(PoisonError::into_inner).clone();
        let checked = dsm.map_or(Ok(()), |dsm| dsm.check_accesses());
        checked.map_err(|error| raised(python, &error))
    }

    fn barrier(&self, python: Python<'_>) -> PyResult<()> {
        self.wait(python, Dsm::barrier)
    }

    fn lock(&self, python: Python<'_>, lock: u64) -> PyResult<()> {
        self.wait(python, |dsm| dsm.lock(lock))
    }

    fn unlock(&self, python: Python<'_>, lock: u64) -> PyResult<()> {
        self.wait(python, |dsm| dsm.unlock(lock))
    }

    /// Waits until all ranks have come here, and leaves.
    fn finalize(&self, python: Python<'_>) -> PyResult<()> {
        let mut place = self.dsm.write().unwrap_or_else(PoisonError::into_inner);
        let dsm = place.take().ok_or_else(|| left(python))?;
        let dsm = Arc::try_unwrap(dsm).map_err(|dsm| {
            *place = Some(dsm);
            let text = "another thread is inside of a call; join the threads of the program first";
            named(python, "InvalidError", text.into())
        })?;
        drop(place);
        let interruptible = Interruptible::begin();
        let done = python.detach(|| dsm.finalize());
        drop(interruptible);
        done.map_err(|error| raised(python, &error))
    }

    /// Leaves without waiting for the other ranks, which then end.
    fn abandon(&self, python: Python<'_>) {
        let dsm = self.dsm.write().unwrap_or_else(PoisonError::into_inner).take();
        python.detach(|| drop(dsm));
    }
}

/// Elements in shared memory, in C order.
///
/// The memory stays mapped until the process ends, so views of it never dangle.
#[pyclass(frozen, subclass, module = "ethernot._native")]
pub(crate) struct DsmArray {
    start: usize,
    bytes: usize,
    item_bytes: ffi::Py_ssize_t,
    format: CString,
    shape: Box<[ffi::Py_ssize_t]>,
    strides: Box<[ffi::Py_ssize_t]>,
    axes: c_int,
}

#[pymethods]
impl DsmArray {
    /// Creates an array over memory that `DsmRank.alloc` returned. `format` is that of an element
    /// of `item_bytes` bytes.
    #[new]
    #[expect(clippy::needless_pass_by_value, reason = "Python's list becomes a vector")]
    fn new(
        python: Python<'_>,
        rank: &DsmRank,
        start: usize,
        shape: Vec<usize>,
        format: &str,
        item_bytes: usize,
    ) -> PyResult<Self> {
        let invalid = |text: String| named(python, "InvalidError", text);
        let count = shape.iter().try_fold(1_usize, |product, axis| product.checked_mul(*axis));
        let bytes = count.and_then(|count| count.checked_mul(item_bytes));
        let region = rank.dsm(python)?.region();
        let is_inside = |bytes: usize| {
            (region.start <= start && start.checked_add(bytes)? <= region.end).then_some(bytes)
        };
        let bytes = bytes.and_then(is_inside).ok_or_else(|| {
            invalid(format!(
                "an array of shape {shape:?} at {start:#x} is not in the shared region"
            ))
        })?;
        let format = CString::new(format)
            .map_err(|_| invalid("a format with a zero byte; use one of `struct`".into()))?;
        let axes = c_int::try_from(shape.len()).map_err(|_| invalid("too many axes".into()))?;
        // The numbers are lengths of memory that is mapped, so they fit.
        let shape: Box<[_]> = shape.iter().map(|axis| axis.cast_signed()).collect();
        let item_bytes = item_bytes.cast_signed();
        let mut strides = vec![item_bytes; shape.len()].into_boxed_slice();
        for axis in (1..shape.len()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
        }
        Ok(Self { start, bytes, item_bytes, format, shape, strides, axes })
    }

    #[getter]
    fn address(&self) -> usize {
        self.start
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn itemsize(&self) -> isize {
        self.item_bytes
    }

    #[getter]
    fn format(&self) -> String {
        self.format.to_string_lossy().into_owned()
    }

    #[getter]
    fn shape<'py>(&self, python: Python<'py>) -> PyResult<Bound<'py, pyo3::types::PyTuple>> {
        pyo3::types::PyTuple::new(python, &self.shape)
    }

    /// # Safety
    /// `view` is null, or points to a view that Python passes so that this function fills it.
    unsafe fn __getbuffer__(
        slf: &Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let wants = |flag: c_int| flags & flag == flag;
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no view to fill"));
        }
        if wants(ffi::PyBUF_F_CONTIGUOUS) && this.shape.len() > 1 {
            return Err(PyBufferError::new_err("shared arrays are in C order"));
        }
        let if_wanted = |flag: c_int, numbers: &[ffi::Py_ssize_t]| {
            if wants(flag) { numbers.as_ptr().cast_mut() } else { std::ptr::null_mut() }
        };
        let format = if wants(ffi::PyBUF_FORMAT) {
            this.format.as_ptr().cast_mut()
        } else {
            std::ptr::null_mut()
        };
        let start: *mut c_void = std::ptr::with_exposed_provenance_mut(this.start);
        // SAFETY: Python passes the view so that this function fills it. The view holds a reference
        // to this object, which owns shape, strides and format and never changes them. The memory
        // stays mapped until the process ends; a page that is absent is fetched when Python accesses
        // it, as foreign bytes, for which every value is valid.
        unsafe {
            (*view).obj = slf.clone().into_any().into_ptr();
            (*view).buf = start;
            (*view).len = this.bytes.cast_signed();
            (*view).itemsize = this.item_bytes;
            (*view).readonly = 0;
            (*view).ndim = this.axes;
            (*view).format = format;
            (*view).shape = if_wanted(ffi::PyBUF_ND, &this.shape);
            (*view).strides = if_wanted(ffi::PyBUF_STRIDES, &this.strides);
            (*view).suboffsets = std::ptr::null_mut();
            (*view).internal = std::ptr::null_mut();
        }
        Ok(())
    }
}

fn left(python: Python<'_>) -> PyErr {
    let text = "the rank has left the shared memory; call `finalize` at the end of the program";
    named(python, "ClosedError", text.into())
}

/// Returns the exception for an error.
fn raised(python: Python<'_>, error: &Error) -> PyErr {
    let name = match error {
        Error::Joined => "InUseError",
        Error::Missing { .. } => "TimedOutError",
        Error::Refused { .. } => "RefusedError",
        Error::Network { .. } => "OperationError",
        Error::View(_) | Error::Thread(_) => "SystemRefusedError",
        Error::Failed(_) => "ClosedError",
        _ => "InvalidError",
    };
    named(python, name, error.to_string())
}

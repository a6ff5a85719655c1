//! Pending operations and receives, and completions.

use ethernot::{CompletionKind, Error, OperationHandle, OperationStatus, ReceiveHandle};
use pyo3::prelude::*;

use crate::errors::{named, raised};
use crate::waiting::patiently;

/// One pending operation.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Operation {
    inner: OperationHandle,
}

impl Operation {
    pub(crate) fn new(inner: OperationHandle) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Operation {
    /// Waits until the operation is complete. Returns the previous value of the word for an atomic,
    /// and 0 for other operations.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        match self.result(python)? {
            Some(value) => Ok(value),
            None => patiently(python, timeout, |limit| self.inner.wait(limit)),
        }
    }

    /// Returns the result, or `None` while the operation is pending. This call does not make
    /// progress.
    fn result(&self, python: Python<'_>) -> PyResult<Option<u64>> {
        match self.inner.status() {
            OperationStatus::Done { value } => Ok(Some(value)),
            OperationStatus::Pending { .. } => Ok(None),
            OperationStatus::Failed(error) => Err(raised(python, Error::Operation(error.into()))),
        }
    }

    /// Spins for at most `us` microseconds, without the interpreter lock. Returns the result, or
    /// `None` if the operation is still pending.
    fn result_within(&self, python: Python<'_>, us: u64) -> PyResult<Option<u64>> {
        let limit = std::time::Duration::from_micros(us);
        // Ignore the outcome here, because `result` returns it.
        let _outcome = python.detach(|| self.inner.wait(Some(limit)));
        self.result(python)
    }

    #[getter]
    fn is_done(&self) -> bool {
        self.inner.is_done()
    }
}

/// A posted receive.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Receive {
    inner: ReceiveHandle,
}

impl Receive {
    pub(crate) fn new(inner: ReceiveHandle) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Receive {
    /// Waits for the message. Returns its length in bytes, and its immediate or `None`.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<(usize, Option<u32>)> {
        let received = patiently(python, timeout, |limit| self.inner.wait(limit))?;
        Ok((received.len(), received.immediate()))
    }

    fn result(&self, python: Python<'_>) -> PyResult<Option<(usize, Option<u32>)>> {
        if self.inner.is_done() { self.wait(python, Some(0.0)).map(Some) } else { Ok(None) }
    }

    fn result_within(&self, python: Python<'_>, us: u64) -> PyResult<Option<(usize, Option<u32>)>> {
        let limit = std::time::Duration::from_micros(us);
        // Ignore the outcome here, because `result` returns it.
        let _outcome = python.detach(|| self.inner.wait(Some(limit)).map(drop));
        self.result(python)
    }

    #[getter]
    fn is_done(&self) -> bool {
        self.inner.is_done()
    }
}

/// A completion of an operation or a receive.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Completion {
    inner: ethernot::Completion,
}

impl Completion {
    pub(crate) fn new(inner: ethernot::Completion) -> Self {
        Self { inner }
    }
}

#[pymethods]
impl Completion {
    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.kind {
            CompletionKind::Write => "write",
            CompletionKind::Read => "read",
            CompletionKind::FetchAdd => "fetch_add",
            CompletionKind::CompareSwap => "compare_swap",
            CompletionKind::Patch => "patch",
            CompletionKind::Swap => "swap",
            CompletionKind::Send => "send",
            CompletionKind::Receive => "receive",
            CompletionKind::Notification => "notification",
            _ => "other",
        }
    }

    #[getter]
    fn context(&self) -> u64 {
        self.inner.context
    }

    #[getter]
    fn bytes(&self) -> u32 {
        self.inner.bytes
    }

    #[getter]
    fn immediate(&self) -> Option<u32> {
        self.inner.immediate
    }

    #[getter]
    fn value(&self) -> u64 {
        self.inner.value
    }

    /// Raises the error of the completion, if it has one.
    fn check(&self, python: Python<'_>) -> PyResult<()> {
        let failed =
            |error: ethernot::OperationError| named(python, "OperationError", error.to_string());
        self.inner.result.map_err(failed)
    }
}

//! Listeners, requests and connections.

use std::sync::{Mutex, PoisonError};

use ethernot::{
    ConnectOptions, ConnectionRequest, OperationHandle, OperationOptions, Order, PostError,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::attempt::{Attempt, Pending};
use crate::errors::{named, raised};
use crate::memory::{Memory, RemoteMemory};
use crate::operation::{Completion, Operation, Receive};
use crate::waiting::{limit_of, patiently};

/// Creates the options of a connection. If `completions` is `None`, uses the default number of
/// completions.
pub(crate) fn options_of(private_data: Vec<u8>, completions: Option<usize>) -> ConnectOptions {
    let mut options = ConnectOptions::new().private_data(private_data);
    options.completions = completions.unwrap_or(options.completions);
    options
}

/// Receives the requests of peers for connections to one service.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Listener {
    inner: Mutex<Option<std::sync::Arc<ethernot::Listener>>>,
}

impl Listener {
    pub(crate) fn new(listener: ethernot::Listener) -> Self {
        Self { inner: Mutex::new(Some(std::sync::Arc::new(listener))) }
    }
}

#[pymethods]
impl Listener {
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let closed = || named(python, "ClosedError", "the listener is closed".into());
        let listener = inner.ok_or_else(closed)?;
        let request = patiently(python, timeout, |limit| listener.accept(limit))?;
        Ok(Request { inner: Mutex::new(Some(request)) })
    }

    fn close(&self, python: Python<'_>) {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        python.detach(|| drop(taken));
    }
}

/// A connection request of a peer.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Request {
    /// `None` after the request was accepted or rejected.
    inner: Mutex<Option<ConnectionRequest>>,
}

impl Request {
    fn take(&self, python: Python<'_>) -> PyResult<ConnectionRequest> {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| named(python, "InvalidError", "the request is answered already".into()))
    }
}

#[pymethods]
impl Request {
    #[getter]
    fn private_data<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        PyBytes::new(python, inner.as_ref().map_or(&[], |request| request.private_data()))
    }

    #[pyo3(signature = (private_data=vec![], timeout=None, completions=None))]
    fn accept(
        &self,
        python: Python<'_>,
        private_data: Vec<u8>,
        timeout: Option<f64>,
        completions: Option<usize>,
    ) -> PyResult<Connection> {
        self.start_accept(python, private_data, timeout, completions)?.finish(python)
    }

    /// Accepts the request. Returns an attempt that waits for the peer's confirmation.
    #[pyo3(signature = (private_data=vec![], timeout=None, completions=None))]
    fn start_accept(
        &self,
        python: Python<'_>,
        private_data: Vec<u8>,
        timeout: Option<f64>,
        completions: Option<usize>,
    ) -> PyResult<Attempt> {
        let options = options_of(private_data, completions);
        let limit = limit_of(python, timeout)?;
        let request = self.take(python)?;
        Attempt::start(python, limit, || request.start_accept(options).map(Pending::Accepting))
    }

    #[pyo3(signature = (private_data=None))]
    fn reject(&self, python: Python<'_>, private_data: Option<&[u8]>) -> PyResult<()> {
        let request = self.take(python)?;
        let rejected = python.detach(|| request.reject(private_data.unwrap_or_default()));
        rejected.map_err(|error| raised(python, error))
    }
}

/// A connection to a peer.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Connection {
    inner: ethernot::Connection,
}

impl Connection {
    pub(crate) fn new(inner: ethernot::Connection) -> Self {
        Self { inner }
    }

    fn started(
        python: Python<'_>,
        posted: Result<OperationHandle, PostError>,
    ) -> PyResult<Operation> {
        posted.map(Operation::new).map_err(|error| raised(python, error))
    }
}

/// The options of an operation, without its memory ranges.
#[derive(FromPyObject)]
#[expect(clippy::struct_excessive_bools, reason = "each is a matter of its own")]
pub(crate) struct Extra {
    fence_before: bool,
    fence_after: bool,
    strict: bool,
    signalled: bool,
    notify: bool,
    immediate: Option<u32>,
    context: u64,
    more: bool,
}

fn extra_of(extra: Option<Extra>) -> OperationOptions {
    let Some(extra) = extra else { return OperationOptions::NONE };
    OperationOptions::NONE
        .fence_before(extra.fence_before)
        .fence_after(extra.fence_after)
        .order(if extra.strict { Order::Strict } else { Order::Relaxed })
        .signalled(extra.signalled)
        .notify(extra.notify)
        .immediate(extra.immediate)
        .context(extra.context)
        .more(extra.more)
}

#[pymethods]
impl Connection {
    #[pyo3(signature = (memory, offset, remote, remote_offset, length, extra=None))]
    #[expect(clippy::too_many_arguments, reason = "two places, as in any remote operation")]
    fn write(
        &self,
        python: Python<'_>,
        memory: &Memory,
        offset: u64,
        remote: &RemoteMemory,
        remote_offset: u64,
        length: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let (region, remote) = (memory.region(python)?, &remote.inner);
        let extra = extra_of(extra);
        let posted = self.inner.write(&region, offset, remote, remote_offset, length, extra);
        Self::started(python, posted)
    }

    #[pyo3(signature = (data, remote, remote_offset, extra=None))]
    fn write_bytes(
        &self,
        python: Python<'_>,
        data: &[u8],
        remote: &RemoteMemory,
        remote_offset: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let extra = extra_of(extra);
        Self::started(python, self.inner.write_bytes(data, &remote.inner, remote_offset, extra))
    }

    #[pyo3(signature = (memory, offset, remote, remote_offset, length, extra=None))]
    #[expect(clippy::too_many_arguments, reason = "two places, as in any remote operation")]
    fn read(
        &self,
        python: Python<'_>,
        memory: &Memory,
        offset: u64,
        remote: &RemoteMemory,
        remote_offset: u64,
        length: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let (region, remote) = (memory.region(python)?, &remote.inner);
        let extra = extra_of(extra);
        let posted = self.inner.read(&region, offset, remote, remote_offset, length, extra);
        Self::started(python, posted)
    }

    #[pyo3(signature = (remote, remote_offset, operand, extra=None))]
    fn fetch_add(
        &self,
        python: Python<'_>,
        remote: &RemoteMemory,
        remote_offset: u64,
        operand: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let extra = extra_of(extra);
        Self::started(python, self.inner.fetch_add(&remote.inner, remote_offset, operand, extra))
    }

    #[pyo3(signature = (remote, remote_offset, compare, swap, extra=None))]
    fn compare_swap(
        &self,
        python: Python<'_>,
        remote: &RemoteMemory,
        remote_offset: u64,
        compare: u64,
        swap: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let (remote, extra) = (&remote.inner, extra_of(extra));
        let posted = self.inner.compare_swap(remote, remote_offset, compare, swap, extra);
        Self::started(python, posted)
    }

    #[pyo3(signature = (memory, offset, length, extra=None))]
    fn send(
        &self,
        python: Python<'_>,
        memory: &Memory,
        offset: u64,
        length: u64,
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        let region = memory.region(python)?;
        Self::started(python, self.inner.send(&region, offset, length, extra_of(extra)))
    }

    #[pyo3(signature = (data, extra=None))]
    fn send_bytes(
        &self,
        python: Python<'_>,
        data: &[u8],
        extra: Option<Extra>,
    ) -> PyResult<Operation> {
        Self::started(python, self.inner.send_bytes(data, extra_of(extra)))
    }

    fn receive(
        &self,
        python: Python<'_>,
        memory: &Memory,
        offset: u64,
        length: u32,
    ) -> PyResult<Receive> {
        let posted = self.inner.receive(&*memory.region(python)?, offset, length);
        posted.map(Receive::new).map_err(|error| raised(python, error))
    }

    fn poll(&self, python: Python<'_>) -> PyResult<Option<Completion>> {
        let found = self.inner.poll().map_err(|error| raised(python, error))?;
        Ok(found.map(Completion::new))
    }

    #[pyo3(signature = (timeout=None))]
    fn wait_completion(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<Completion> {
        let found = patiently(python, timeout, |limit| self.inner.wait_completion(limit))?;
        Ok(Completion::new(found))
    }

    #[getter]
    fn peer_data<'py>(&self, python: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(python, &self.inner.peer_data())
    }

    /// Returns the reason why the connection has ended, if it has.
    #[getter]
    fn closed(&self) -> Option<String> {
        self.inner.closed().map(|reason| reason.to_string())
    }

    #[pyo3(signature = (timeout=None))]
    fn wait_closed(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<String> {
        let (reason, _data) = patiently(python, timeout, |limit| self.inner.wait_closed(limit))?;
        Ok(reason.to_string())
    }

    #[pyo3(signature = (private_data=None))]
    fn close(&self, python: Python<'_>, private_data: Option<&[u8]>) -> PyResult<()> {
        let closed = python.detach(|| self.inner.close(private_data.unwrap_or_default()));
        closed.map_err(|error| raised(python, error))
    }
}

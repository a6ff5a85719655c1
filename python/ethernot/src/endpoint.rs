//! Endpoints: their links, memory and connections.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ethernot::{Buffer, Error, Polling, Rights};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;

use crate::attempt::Attempt;
use crate::connection::{Connection, Listener, options_of};
use crate::errors::{named, raised};
use crate::lent::buffer_of;
use crate::memory::Memory;
use crate::waiting::{limit_of, patiently};

/// One end of remote memory access: the links, memory and connections of a process.
#[pyclass(frozen, subclass, weakref, module = "ethernot._native")]
pub(crate) struct Endpoint {
    /// `None` after the endpoint was closed.
    inner: Mutex<Option<ethernot::Endpoint>>,
}

impl Endpoint {
    pub(crate) fn get(&self, python: Python<'_>) -> PyResult<ethernot::Endpoint> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || named(python, "ClosedError", "the endpoint is closed; make another".into());
        inner.clone().ok_or_else(closed)
    }
}

#[pymethods]
impl Endpoint {
    #[new]
    #[pyo3(signature = (address=None, *, links=None, port=0, waiting=None, progress_processor=None))]
    fn new(
        python: Python<'_>,
        address: Option<&str>,
        links: Option<&str>,
        port: u16,
        waiting: Option<&Bound<'_, PyAny>>,
        progress_processor: Option<usize>,
    ) -> PyResult<Self> {
        let mut builder = ethernot::Endpoint::builder().port(port);
        if let Some(address) = address {
            builder = builder.bind(address);
        }
        if let Some(links) = links {
            builder = builder.links(links);
        }
        if let Some(waiting) = waiting {
            builder = builder.polling(polling_of(python, waiting)?);
        }
        if let Some(processor) = progress_processor {
            builder = builder.progress_processor(processor);
        }
        let made = python.detach(|| builder.build()).map_err(|error| raised(python, error))?;
        Ok(Self { inner: Mutex::new(Some(made)) })
    }

    /// Returns, for each link, the address at which peers can reach the link by UDP.
    fn addresses(&self, python: Python<'_>) -> PyResult<Vec<String>> {
        let endpoint = self.get(python)?;
        let addresses = python.detach(|| endpoint.local_addresses());
        let addresses = addresses.map_err(|error| raised(python, error))?;
        Ok(addresses.iter().map(ToString::to_string).collect())
    }

    fn allocate(&self, python: Python<'_>, length: u64, rights: u8) -> PyResult<Memory> {
        let endpoint = self.get(python)?;
        let rights = rights_of(python, rights)?;
        if length > isize::MAX as u64 / 2 {
            return Err(named(python, "InvalidError", format!("{length} bytes are too many")));
        }
        let buffer = Buffer::new(length);
        let region = endpoint.register(Arc::clone(&buffer), rights);
        Ok(Memory::new(buffer, region.map_err(|error| raised(python, error))?))
    }

    /// Registers the bytes of an object without copying them.
    fn register(&self, object: &Bound<'_, PyAny>, rights: u8) -> PyResult<Memory> {
        let python = object.py();
        let endpoint = self.get(python)?;
        let rights = rights_of(python, rights)?;
        let changing = Rights::LOCAL_WRITE | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let buffer = buffer_of(object, rights.intersects(changing))?;
        let region = endpoint.register(Arc::clone(&buffer), rights);
        Ok(Memory::new(buffer, region.map_err(|error| raised(python, error))?))
    }

    fn listen(&self, python: Python<'_>, service: u32) -> PyResult<Listener> {
        let endpoint = self.get(python)?;
        let listener = python.detach(|| endpoint.listen(service));
        Ok(Listener::new(listener.map_err(|error| raised(python, error))?))
    }

    #[pyo3(signature = (peer, service=0, private_data=vec![], timeout=None, completions=None))]
    fn connect(
        &self,
        python: Python<'_>,
        peer: &str,
        service: u32,
        private_data: Vec<u8>,
        timeout: Option<f64>,
        completions: Option<usize>,
    ) -> PyResult<Connection> {
        let attempt =
            self.start_connect(python, peer, service, private_data, timeout, completions)?;
        attempt.finish(python)
    }

    /// Requests a connection. Returns an attempt that waits for the answer.
    #[pyo3(signature = (peer, service=0, private_data=vec![], timeout=None, completions=None))]
    fn start_connect(
        &self,
        python: Python<'_>,
        peer: &str,
        service: u32,
        private_data: Vec<u8>,
        timeout: Option<f64>,
        completions: Option<usize>,
    ) -> PyResult<Attempt> {
        let endpoint = self.get(python)?;
        let limit = limit_of(python, timeout)?;
        let options = options_of(private_data, completions).service(service).limit(limit);
        Attempt::connect(python, limit, || endpoint.start_connect(peer, options))
    }

    fn drive(&self, python: Python<'_>) -> PyResult<()> {
        self.get(python)?.drive().map(drop).map_err(|error| raised(python, error))
    }

    /// Returns the file descriptor. It is readable if an event has occurred since `arm`.
    fn fileno(&self, python: Python<'_>) -> PyResult<RawFd> {
        Ok(self.get(python)?.as_raw_fd())
    }

    fn arm(&self, python: Python<'_>) -> PyResult<bool> {
        self.get(python)?.arm().map_err(|error| raised(python, error))
    }

    fn drain(&self, python: Python<'_>) -> PyResult<()> {
        self.get(python)?.drain().map_err(|error| raised(python, error))
    }

    #[pyo3(signature = (timeout=None))]
    fn shutdown(&self, python: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let endpoint = self.get(python)?;
        // Wait for the operations first. `shutdown` also waits for them, but [`patiently`] calls it
        // with short limits. At the end of the first limit, `shutdown` would close the connections.
        match patiently(python, timeout, |limit| endpoint.flush(limit).map_err(Error::from)) {
            Err(error) if !error.is_instance_of::<PyTimeoutError>(python) => return Err(error),
            Err(_) | Ok(()) => {}
        }
        patiently(python, timeout, |limit| endpoint.shutdown(limit).map_err(Error::from))
    }

    fn close(&self, python: Python<'_>) {
        let taken = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        python.detach(|| drop(taken));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

fn rights_of(python: Python<'_>, bits: u8) -> PyResult<Rights> {
    let unknown = || named(python, "InvalidError", format!("rights {bits:#x} are unknown"));
    Rights::from_bits(bits).ok_or_else(unknown)
}

/// Parses a polling policy: its name, or the seconds to spin.
fn polling_of(python: Python<'_>, waiting: &Bound<'_, PyAny>) -> PyResult<Polling> {
    if let Ok(name) = waiting.extract::<String>() {
        return match name.as_str() {
            "adaptive" => Ok(Polling::ADAPTIVE),
            "sleep" => Ok(Polling::NEVER),
            "spin" => Ok(Polling::ALWAYS),
            _ => {
                let text = format!("waiting {name:?} is none of adaptive, sleep, spin and seconds");
                Err(named(python, "InvalidError", text))
            }
        };
    }
    let seconds: f64 = waiting.extract()?;
    Ok(Polling::for_at_most(limit_of(python, Some(seconds))?.unwrap_or(Duration::ZERO)))
}

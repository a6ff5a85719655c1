//! Connections that were requested or accepted, but are not established yet.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ethernot::{
    AcceptError, Accepting, ConnectError, ConnectOptions, Connecting, Error, ErrorKind,
};
use pyo3::prelude::*;

use crate::connection::Connection;
use crate::errors::raised;
use crate::waiting::SLICE;

/// A connection that is not established yet. Dropping it cancels the attempt.
#[pyclass(frozen, module = "ethernot._native")]
pub(crate) struct Attempt {
    inner: Mutex<Pending>,
    began: Instant,
    limit: Option<Duration>,
}

/// The object of the Rust API that waits for the connection.
pub(crate) enum Pending {
    Connecting(Connecting),
    Accepting(Accepting),
}

impl Pending {
    fn wait_for(&mut self, limit: Duration) -> Result<ethernot::Connection, Error> {
        match self {
            Self::Connecting(connecting) => connecting.wait_for(limit).map_err(Error::from),
            Self::Accepting(accepting) => accepting.wait_for(limit).map_err(Error::from),
        }
    }
}

impl Attempt {
    /// Starts an attempt by calling `start`. The time limit starts at this call.
    #[expect(clippy::disallowed_methods, reason = "slices of a limit are counted")]
    pub(crate) fn start<E: Into<Error> + Send>(
        python: Python<'_>,
        limit: Option<Duration>,
        start: impl FnOnce() -> Result<Pending, E> + Send,
    ) -> PyResult<Self> {
        let began = Instant::now();
        let pending = python.detach(start).map_err(|error| raised(python, error))?;
        Ok(Self { inner: Mutex::new(pending), began, limit })
    }

    /// Starts an attempt like [`Attempt::start`]. If no limit is given, uses the default limit of
    /// [`ConnectOptions`].
    pub(crate) fn connect(
        python: Python<'_>,
        limit: Option<Duration>,
        start: impl FnOnce() -> Result<Connecting, ConnectError> + Send,
    ) -> PyResult<Self> {
        let limit = limit.unwrap_or(ConnectOptions::LIMIT);
        Self::start(python, Some(limit), || start().map(Pending::Connecting))
    }

    /// Waits for the connection in several short waits, so that Ctrl-C can interrupt the wait.
    pub(crate) fn finish(&self, python: Python<'_>) -> PyResult<Connection> {
        loop {
            let left = self.left_of_limit();
            let slice = left.unwrap_or(SLICE).min(SLICE);
            match python.detach(|| self.wait_for(slice)) {
                Err(error) if is_late(&error) && left.is_none_or(|left| left > slice) => {
                    python.check_signals()?;
                }
                outcome => return self.outcome_to_python(python, outcome),
            }
        }
    }

    fn wait_for(&self, limit: Duration) -> Result<ethernot::Connection, Error> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).wait_for(limit)
    }

    #[expect(clippy::disallowed_methods, reason = "slices of a limit are counted")]
    fn left_of_limit(&self) -> Option<Duration> {
        self.limit.map(|limit| limit.saturating_sub(self.began.elapsed()))
    }

    /// Converts the outcome for Python. If the limit has expired, the error contains the whole
    /// limit, and not the limit of the last short wait.
    fn outcome_to_python(
        &self,
        python: Python<'_>,
        outcome: Result<ethernot::Connection, Error>,
    ) -> PyResult<Connection> {
        let whole = self.limit.unwrap_or(Duration::MAX);
        outcome.map(Connection::new).map_err(|error| match error {
            Error::Connect(ConnectError::TimedOut { peer, .. }) => {
                raised(python, ConnectError::TimedOut { peer, limit: whole })
            }
            Error::Accept(AcceptError::TimedOut { .. }) => {
                raised(python, AcceptError::TimedOut { limit: whole })
            }
            error => raised(python, error),
        })
    }
}

/// Returns whether `peer` is an address. Otherwise it is a name that must be resolved, and
/// resolving may block.
#[pyfunction]
pub(crate) fn is_address(peer: &str) -> bool {
    peer.parse::<SocketAddr>().is_ok()
}

fn is_late(error: &Error) -> bool {
    error.kind() == ErrorKind::TimedOut
}

#[pymethods]
impl Attempt {
    /// Returns the connection, or `None` while it is not established. Raises `TimedOutError` after
    /// the limit has expired.
    fn result(&self, python: Python<'_>) -> PyResult<Option<Connection>> {
        match self.wait_for(Duration::ZERO) {
            Err(error) if is_late(&error) && self.left_of_limit() != Some(Duration::ZERO) => {
                Ok(None)
            }
            outcome => self.outcome_to_python(python, outcome).map(Some),
        }
    }

    /// Returns the seconds until the limit expires, or `None` if there is no limit.
    fn left(&self) -> Option<f64> {
        self.left_of_limit().map(|left| left.as_secs_f64())
    }
}

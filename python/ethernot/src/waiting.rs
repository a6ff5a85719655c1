//! Waits that signals can interrupt. During a wait, other Python threads can run.

use std::time::{Duration, Instant};

use ethernot::{Error, ErrorKind};
use pyo3::prelude::*;

use crate::errors::{named, raised};

/// Waits for at most `timeout` seconds (`None`: without a limit). Calls `wait` repeatedly with
/// short limits, so that Ctrl-C can interrupt the wait.
#[expect(clippy::disallowed_methods, reason = "slices of a limit are counted")]
pub(crate) fn patiently<R: Send, E: Into<Error> + Send>(
    python: Python<'_>,
    timeout: Option<f64>,
    wait: impl Fn(Option<Duration>) -> Result<R, E> + Sync,
) -> PyResult<R> {
    let limit = limit_of(python, timeout)?;
    let began = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
        let slice = left.unwrap_or(SLICE).min(SLICE);
        let error: Error = match python.detach(|| wait(Some(slice))) {
            Ok(result) => return Ok(result),
            Err(error) => error.into(),
        };
        let has_ended =
            error.kind() != ErrorKind::TimedOut || left.is_some_and(|left| left <= slice);
        if has_ended {
            return Err(match (error.kind(), timeout) {
                (ErrorKind::TimedOut, Some(timeout)) => named(
                    python,
                    "TimedOutError",
                    format!("nothing has come within {timeout} s; wait again"),
                ),
                _ => raised(python, error),
            });
        }
        python.check_signals()?;
    }
}

/// Parses a limit in seconds. Raises `InvalidError` if the number is negative or too large.
pub(crate) fn limit_of(python: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Duration>> {
    let limit = timeout.map(Duration::try_from_secs_f64).transpose();
    limit.map_err(|_| {
        let text = format!("a timeout of {} s makes no sense", timeout.unwrap_or_default());
        named(python, "InvalidError", text)
    })
}

/// Limit of one short wait. A signal is handled after at most this time.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

//! Errors of the simulator as exceptions.

use std::fmt::Display;

use interconnect::configuration::ConfigurationError as Cause;
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

pyo3::create_exception!(
    ethernot_sim,
    ConfigurationError,
    PyValueError,
    "What was asked for cannot be; the text names file, key and remedy."
);
pyo3::create_exception!(
    ethernot_sim,
    SimulationError,
    PyRuntimeError,
    "A run stopped before its end: deadlock, lost packets, an endless or waiting workload."
);

/// An error of what the user gave.
pub(crate) fn wrong(error: &impl Display) -> PyErr {
    ConfigurationError::new_err(error.to_string())
}

pub(crate) fn configuration_error(error: &Cause) -> PyErr {
    wrong(error)
}

/// An error of a run: the run's own, or of what it was asked to be.
pub(crate) fn run_error(error: &Cause) -> PyErr {
    match error {
        Cause::Stuck(_) | Cause::Lossy { .. } => SimulationError::new_err(error.to_string()),
        other => wrong(other),
    }
}

//! The errors of the simulator as Python exceptions.

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

/// Returns the exception for an error in the user's input.
pub(crate) fn wrong(error: &impl Display) -> PyErr {
    ConfigurationError::new_err(error.to_string())
}

pub(crate) fn configuration_error(error: &Cause) -> PyErr {
    wrong(error)
}

/// Returns the exception for a failed run. If the user's input is the cause, it is the exception
/// for wrong input.
pub(crate) fn run_error(error: &Cause) -> PyErr {
    match error {
        Cause::Stuck(_) | Cause::Lossy { .. } => SimulationError::new_err(error.to_string()),
        other => wrong(other),
    }
}

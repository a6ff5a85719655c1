//! The errors of the Rust API as Python exceptions. Each kind of error has its own exception, with
//! the same text.

use ethernot::{Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::{PyConnectionError, PyException, PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

create_exception!(ethernot, EthernotError, PyException, "What all errors of this package are.");

/// Creates the exceptions. Each exception is a subclass of this package's base exception. If Python
/// has an exception of the same kind, it is also a subclass of that one. For example,
/// `except TimeoutError` also catches `TimedOutError`.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let python = module.py();
    let base = python.get_type::<EthernotError>();
    module.add("EthernotError", &base)?;
    let builtin = [
        (
            "InvalidError",
            python.get_type::<PyValueError>(),
            "Impossible, or makes no sense: ask for something else.",
        ),
        (
            "TimedOutError",
            python.get_type::<PyTimeoutError>(),
            "The limit has passed, and what was waited for goes on.",
        ),
        (
            "BusyError",
            python.get_type::<PyException>(),
            "No room at the moment: finish something, and try again.",
        ),
        (
            "ClosedError",
            python.get_type::<PyConnectionError>(),
            "The connection or the endpoint has ended.",
        ),
        (
            "RefusedError",
            python.get_type::<PyConnectionError>(),
            "The peer is there and refused the connection.",
        ),
        (
            "UnreachableError",
            python.get_type::<PyConnectionError>(),
            "No route leads to the peer, or no process answers there.",
        ),
        ("InUseError", python.get_type::<PyOSError>(), "It is in use already."),
        (
            "OperationError",
            python.get_type::<PyException>(),
            "An operation failed: the text says why.",
        ),
        (
            "SystemRefusedError",
            python.get_type::<PyOSError>(),
            "The operating system refused something.",
        ),
        (
            "ForkedError",
            python.get_type::<PyException>(),
            "In a forked child, which makes endpoints of its own.",
        ),
    ];
    let make = python.import("types")?.getattr("new_class")?;
    for (name, builtin, doc) in builtin {
        let is_plain = builtin.is(python.get_type::<PyException>());
        let bases = if is_plain { vec![base.clone()] } else { vec![base.clone(), builtin] };
        let class = make.call1((name, pyo3::types::PyTuple::new(python, bases)?))?;
        class.setattr("__module__", "ethernot")?;
        class.setattr("__doc__", doc)?;
        module.add(name, class)?;
    }
    Ok(())
}

/// Returns the exception for an error.
pub(crate) fn raised(python: Python<'_>, error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let name = match error.kind() {
        ErrorKind::TimedOut => "TimedOutError",
        ErrorKind::Busy => "BusyError",
        ErrorKind::Closed => "ClosedError",
        ErrorKind::Refused => "RefusedError",
        ErrorKind::Unreachable => "UnreachableError",
        ErrorKind::InUse => "InUseError",
        ErrorKind::Failed => "OperationError",
        ErrorKind::System => "SystemRefusedError",
        ErrorKind::Forked => "ForkedError",
        _ => "InvalidError",
    };
    named(python, name, error.to_string())
}

/// Creates the exception of this package that is called `name`.
pub(crate) fn named(python: Python<'_>, name: &str, text: String) -> PyErr {
    let class = python.import("ethernot._native").and_then(|module| module.getattr(name));
    match class.and_then(|class| class.call1((text,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(other) => other,
    }
}

//! How a run ends before its end: by a signal such as Control-C, or as another thread wants it.

#![expect(clippy::disallowed_methods, reason = "signals are looked for by the clock of the host")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Stops runs that were given it, on whatever threads they are, within some milliseconds.
#[pyclass(frozen, module = "ethernot_sim._native")]
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_wanted: AtomicBool,
}

#[pymethods]
impl Stop {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Stops them, with a `SimulationError`.
    fn stop(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }
}

/// Looks now and then whether a run is to go on.
pub(crate) struct Watching<'a> {
    stop: Option<&'a Stop>,
    /// When signals were looked for last.
    looked: Instant,
    /// What a handler of a signal raised.
    signalled: Option<PyErr>,
}

impl<'a> Watching<'a> {
    pub(crate) fn new(stop: Option<&'a Stop>) -> Self {
        Self { stop, looked: Instant::now(), signalled: None }
    }

    /// Called every few thousand events.
    pub(crate) fn look(&mut self) -> ControlFlow<()> {
        if self.stop.is_some_and(|stop| stop.is_wanted.load(Ordering::Relaxed)) {
            return ControlFlow::Break(());
        }
        if self.looked.elapsed() < SIGNALS_INTERVAL {
            return ControlFlow::Continue(());
        }
        // Python runs handlers on its main thread only; on others this does nothing.
        self.signalled = Python::attach(signals).err();
        self.looked = Instant::now();
        match self.signalled {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// What a handler of a signal raised, if one did.
    pub(crate) fn signalled(self) -> Option<PyErr> {
        self.signalled
    }
}

/// Runs the handlers of signals that came.
fn signals(python: Python<'_>) -> PyResult<()> {
    python.check_signals()
}

/// Soon for a person, and seldom for a thread that has to wait for the interpreter each time.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(50);

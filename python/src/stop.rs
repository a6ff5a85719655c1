//! Ends a run early. The reason is a signal, such as Control-C, or a request of another thread.

#![expect(clippy::disallowed_methods, reason = "signals are looked for by the clock of the host")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Stops all runs that got this object, on any thread, within some milliseconds.
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

    /// Stops these runs. They raise `SimulationError`.
    fn stop(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }
}

/// Checks regularly whether a run should continue.
pub(crate) struct Watching<'a> {
    stop: Option<&'a Stop>,
    /// Time of the last check for signals.
    looked: Instant,
    /// The exception that a signal handler raised, if one did.
    signalled: Option<PyErr>,
}

impl<'a> Watching<'a> {
    pub(crate) fn new(stop: Option<&'a Stop>) -> Self {
        Self { stop, looked: Instant::now(), signalled: None }
    }

    /// Returns whether the run should continue. The simulator calls this every few thousand events.
    pub(crate) fn look(&mut self) -> ControlFlow<()> {
        if self.stop.is_some_and(|stop| stop.is_wanted.load(Ordering::Relaxed)) {
            return ControlFlow::Break(());
        }
        if self.looked.elapsed() < SIGNALS_INTERVAL {
            return ControlFlow::Continue(());
        }
        // Python runs signal handlers only on its main thread. On other threads this call has no
        // effect.
        self.signalled = Python::attach(signals).err();
        self.looked = Instant::now();
        match self.signalled {
            Some(_) => ControlFlow::Break(()),
            None => ControlFlow::Continue(()),
        }
    }

    /// Returns the exception that a signal handler raised, if one did.
    pub(crate) fn signalled(self) -> Option<PyErr> {
        self.signalled
    }
}

/// Runs the handlers of pending signals.
fn signals(python: Python<'_>) -> PyResult<()> {
    python.check_signals()
}

/// Interval between checks for signals. A user does not notice it, but it is long enough that a
/// thread rarely waits for the interpreter lock.
const SIGNALS_INTERVAL: Duration = Duration::from_millis(50);

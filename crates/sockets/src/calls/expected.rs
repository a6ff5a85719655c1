//! Counts connections that expect a switch marker. The kernel counts the marker as bytes for the
//! program, so the library may have to correct what the kernel reports about their descriptors.

use std::sync::atomic::{AtomicU64, Ordering};

/// Detects whether the kernel may have counted a switch marker during a query.
#[derive(Clone, Copy, Debug)]
pub struct Hiding {
    /// Number of connections of the process that had stopped expecting a marker before the query
    /// began.
    decided: u64,
}

/// Counts a connection as expecting a switch marker, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Expects(());

impl Hiding {
    /// Begins to observe. Call this before querying the kernel.
    pub fn begin() -> Self {
        Self { decided: DECIDED.load(Ordering::SeqCst) }
    }

    /// Returns true if any connection of the process has expected a switch marker at some time
    /// after [`Hiding::begin`].
    pub fn was_possible(self) -> bool {
        BEGUN.load(Ordering::SeqCst) != self.decided
    }
}

impl Expects {
    pub(crate) fn new() -> Self {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for Expects {
    fn drop(&mut self) {
        DECIDED.fetch_add(1, Ordering::SeqCst);
    }
}

/// `BEGUN` counts the connections of the process that have begun to expect a switch marker.
/// `DECIDED` counts those that have stopped.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static DECIDED: AtomicU64 = AtomicU64::new(0);

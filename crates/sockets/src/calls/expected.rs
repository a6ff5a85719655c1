//! Connections that expect a switch marker. The kernel counts the marker as bytes for the program,
//! so its reports on the descriptors of such connections may have to be corrected.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shows whether the kernel may have counted a switch marker while it answered a query.
#[derive(Clone, Copy, Debug)]
pub struct Hiding {
    /// Number of connections of the process that had stopped expecting a marker when the query
    /// began.
    decided: u64,
}

/// Counts a connection as expecting a switch marker, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Expects(());

impl Hiding {
    /// Begins the observation. Must be called before the kernel is queried.
    pub fn begin() -> Self {
        Self { decided: DECIDED.load(Ordering::SeqCst) }
    }

    /// Returns whether any connection of the process has expected a switch marker since
    /// [`Hiding::begin`].
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

/// Number of connections of the process that have begun to expect a switch marker (`BEGUN`), and
/// that have stopped (`DECIDED`).
static BEGUN: AtomicU64 = AtomicU64::new(0);
static DECIDED: AtomicU64 = AtomicU64::new(0);

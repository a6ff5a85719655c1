//! Connections that expect a switch marker. The kernel counts the marker as bytes for the program, so what it reports
//! of their descriptors may have to be corrected.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shows whether the kernel may have counted switch markers while it answered a query.
#[derive(Clone, Copy, Debug)]
pub struct Hiding {
    /// Connections of the process that were decided when the query began.
    decided: u64,
}

/// Counts a connection as one that expects a switch marker, until it is dropped.
#[derive(Debug)]
pub(crate) struct Expects(());

impl Hiding {
    /// Begins an expectation; to be called before the kernel is queried.
    pub fn begin() -> Self {
        Self { decided: DECIDED.load(Ordering::SeqCst) }
    }

    /// Returns whether any connection of the process has expected a switch marker since.
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

/// Connections of the process that have begun to expect a switch marker, and how many of them have stopped.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static DECIDED: AtomicU64 = AtomicU64::new(0);

//! Connections that expect a switch marker: what the kernel says of their descriptors may have to be set right.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether the kernel may have counted switch markers, in an answer that is asked of it between two calls of this.
#[derive(Clone, Copy, Debug)]
pub struct Hiding {
    /// So many connections of the process were decided before.
    decided: u64,
}

/// Counts a connection as one that expects a switch marker, while it is there.
#[derive(Debug)]
pub(crate) struct Expects(());

impl Hiding {
    /// To be called before the kernel is asked.
    pub fn begin() -> Self {
        Self { decided: DECIDED.load(Ordering::SeqCst) }
    }

    /// Whether any connection of the process expected a switch marker at any time since.
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

/// Connections of the process that have expected a switch marker, and those of them that do no more.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static DECIDED: AtomicU64 = AtomicU64::new(0);

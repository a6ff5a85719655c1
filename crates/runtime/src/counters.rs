//! Counters of the runtime.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a runtime since it was started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct RuntimeCounters {
    /// Turns of the engine.
    pub turns: u64,
    /// Turns in which a frame arrived, a timer ran or a thread posted work.
    pub turns_with_work: u64,
    /// Polls and other calls of the application that made progress. The paper on `MultiEdge` counts
    /// these as polls.
    pub polls: u64,
    /// Wake-ups of threads that slept on the links. The paper on `MultiEdge` counts these as
    /// interrupts.
    pub wakeups: u64,
    /// Nanoseconds inside turns with work: the CPU time of the protocol, including system calls.
    pub protocol_ns: u64,
    /// Operations handed over to another thread, because that thread was inside the engine.
    pub handed_over: u64,
    /// Pieces of work that the engine took from sources (queues in which work of the application
    /// waits).
    pub pulled: u64,
    /// Number of times that the engine asked a source again for work that had waited for room.
    pub asked_again: u64,
    /// Operations that another thread had handed over, and for which the engine had no room at
    /// first.
    pub held_back: u64,
    /// Operations that the engine refused after they were handed over, so that they completed with
    /// an error.
    pub refused_late: u64,
    /// Links taken out of use because their driver failed.
    pub links_failed: u64,
}

/// Counters that threads outside of the engine increment.
#[derive(Debug, Default)]
pub(crate) struct OutsideCounters {
    wakeups: AtomicU64,
    handed_over: AtomicU64,
}

impl OutsideCounters {
    pub(crate) fn count_wakeup(&self) {
        self.wakeups.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_handed_over(&self) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, counters: &mut RuntimeCounters) {
        counters.wakeups = self.wakeups.load(Ordering::Relaxed);
        counters.handed_over = self.handed_over.load(Ordering::Relaxed);
    }
}

//! What the runtime counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a runtime since it was started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct RuntimeCounters {
    /// Turns of the engine.
    pub turns: u64,
    /// Turns in which something arrived, fell due or was posted.
    pub turns_with_work: u64,
    /// Times the application looked for progress (`MultiEdge`'s polls).
    pub polls: u64,
    /// Times a thread that slept on the links woke up (`MultiEdge`'s interrupts).
    pub wakeups: u64,
    /// Nanoseconds inside turns with work: the CPU time of the protocol, system calls included.
    pub protocol_ns: u64,
    /// Operations handed to another thread because it was inside the engine.
    pub handed_over: u64,
    /// Pieces of work taken from sources.
    pub pulled: u64,
    /// Times that sources were asked again for work that had to wait.
    pub asked_again: u64,
    /// Operations handed over that had to wait for room in a queue.
    pub held_back: u64,
    /// Operations handed over that turned out to be impossible, and were completed as failed.
    pub refused_late: u64,
    /// Links taken out of use because their driver failed.
    pub links_failed: u64,
}

/// Counters that threads outside of the engine add to.
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

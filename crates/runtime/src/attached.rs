//! A link in use.

use delivery::Instant;
use link::Link;

use crate::counters::RuntimeCounters;

pub(crate) struct Attached {
    pub(crate) driver: Box<dyn Link>,
    /// The link uses shared memory: receiving needs no system call.
    pub(crate) shares_memory: bool,
    /// When frames were last asked for, and when the link last delivered some.
    pub(crate) asked_at: Instant,
    pub(crate) brought_at: Instant,
    /// When events were last asked for.
    pub(crate) news_at: Instant,
    /// The driver has failed; the link is neither read nor written any more.
    pub(crate) has_failed: bool,
}

impl Attached {
    /// Whether this turn may skip the link. While frames arrive over shared memory, other links
    /// that have been silent are not read in every turn: that would cost more than the rest of the
    /// turn.
    #[inline]
    pub(crate) const fn may_be_skipped(&self, now: Instant) -> bool {
        !self.shares_memory
            && now.since_ns(self.asked_at) < ASK_SILENT_NS
            && now.since_ns(self.brought_at) >= SILENT_NS
    }

    /// Whether the link has no descriptor that becomes readable when frames wait.
    pub(crate) fn must_be_polled(&self) -> bool {
        self.driver.wait_fds().iter().all(Option::is_none)
    }

    #[cold]
    pub(crate) fn fail(&mut self, counters: &mut RuntimeCounters) {
        self.has_failed = true;
        counters.links_failed += 1;
    }
}

/// Interval in nanoseconds at which silent links are read while shared memory is busy, and at which
/// other descriptors are polled. A poll takes 0.4 µs, 2 % of this.
pub(crate) const ASK_SILENT_NS: u64 = 20_000;

/// A link that has delivered no frame for this long is silent, in nanoseconds.
const SILENT_NS: u64 = 1_000_000;

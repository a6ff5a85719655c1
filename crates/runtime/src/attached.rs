//! A link that is attached to the driver.

use delivery::Instant;
use link::Link;

use crate::counters::RuntimeCounters;

pub(crate) struct Attached {
    pub(crate) driver: Box<dyn Link>,
    /// True if the link uses shared memory. Receiving then needs no system call.
    pub(crate) shares_memory: bool,
    /// `asked_at`: time of the last read of the link. `brought_at`: time at which the link last
    /// delivered frames.
    pub(crate) asked_at: Instant,
    pub(crate) brought_at: Instant,
    /// Time at which the runtime last polled the link for events.
    pub(crate) news_at: Instant,
    /// True if the driver has failed. The runtime then reads and writes the link no more.
    pub(crate) has_failed: bool,
}

impl Attached {
    /// Returns whether a turn may skip this link while frames arrive over shared memory. A turn may
    /// skip a silent link, because reading it would cost more than the rest of the turn.
    #[inline]
    pub(crate) const fn may_be_skipped(&self, now: Instant) -> bool {
        !self.shares_memory
            && now.since_ns(self.asked_at) < ASK_SILENT_NS
            && now.since_ns(self.brought_at) >= SILENT_NS
    }

    /// Returns whether the link has no descriptor that becomes readable when frames wait.
    pub(crate) fn must_be_polled(&self) -> bool {
        self.driver.wait_fds().iter().all(Option::is_none)
    }

    #[cold]
    pub(crate) fn fail(&mut self, counters: &mut RuntimeCounters) {
        self.has_failed = true;
        counters.links_failed += 1;
    }
}

/// Interval in nanoseconds at which the runtime polls descriptors that belong to no link. While
/// frames arrive over shared memory, the runtime reads silent links at the same interval. A poll
/// takes 0.4 µs, 2 % of this interval.
pub(crate) const ASK_SILENT_NS: u64 = 20_000;

/// Nanoseconds without a frame after which a link counts as silent.
const SILENT_NS: u64 = 1_000_000;

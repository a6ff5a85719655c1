//! A link that is in use.

use delivery::Instant;
use link::Link;

use crate::counters::RuntimeCounters;

/// A link in use.
pub(crate) struct Attached {
    pub(crate) driver: Box<dyn Link>,
    /// Looking for frames costs it no system call.
    pub(crate) shares_memory: bool,
    /// When it was last asked for frames, and when it last had some.
    pub(crate) asked_at: Instant,
    pub(crate) brought_at: Instant,
    /// When it was last asked for news.
    pub(crate) news_at: Instant,
    /// Its driver has failed; it is neither read nor written any more.
    pub(crate) has_failed: bool,
}

impl Attached {
    /// While frames come over shared memory, another link that has been silent is not asked at every
    /// turn: that would cost more than all the rest.
    #[inline]
    pub(crate) const fn may_be_skipped(&self, now: Instant) -> bool {
        !self.shares_memory
            && now.since_ns(self.asked_at) < ASK_SILENT_NS
            && now.since_ns(self.brought_at) >= SILENT_NS
    }

    /// Whether no descriptor becomes readable when frames wait.
    pub(crate) fn must_be_polled(&self) -> bool {
        self.driver.wait_fds().iter().all(Option::is_none)
    }

    #[cold]
    pub(crate) fn fail(&mut self, counters: &mut RuntimeCounters) {
        self.has_failed = true;
        counters.links_failed += 1;
    }
}

/// How often a silent link is asked while shared memory is busy, and descriptors that are no links: 0.4 µs
/// for a look are 2 % then.
pub(crate) const ASK_SILENT_NS: u64 = 20_000;

/// A link that has brought nothing for this long is silent.
const SILENT_NS: u64 = 1_000_000;

//! Schedules the repetition of a handshake frame, of a Close, or of a question for a report of
//! deliveries and credits, until an answer arrives.

use delivery::Instant;

/// The time of the next transmission, and the number of transmissions since the last answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    at: Instant,
    count: u8,
}

// A compressed connection repeats nothing.
delivery::pack_fields!(Retry { count } at = Instant::NEVER);

impl Retry {
    /// The state without a scheduled transmission.
    pub(crate) const NONE: Self = Self { at: Instant::NEVER, count: 0 };

    /// Schedules the first transmission at this time.
    pub(crate) const fn begin(&mut self, at: Instant) {
        *self = Self { at, count: 0 };
    }

    /// Counts a transmission, and schedules the next one.
    pub(crate) fn again(&mut self, at: Instant) {
        debug_assert!(at != Instant::NEVER, "a repetition has a time");
        *self = Self { at, count: self.count.saturating_add(1) };
    }

    /// Changes the time of the next transmission. Does not change the count.
    pub(crate) const fn set(&mut self, at: Instant) {
        self.at = at;
    }

    /// Defers the next transmission to this time, if it is scheduled for an earlier time.
    pub(crate) fn defer(&mut self, until: Instant) {
        self.at = self.at.max(until);
    }

    /// Suspends the repetition until another call schedules a transmission. Does not change the
    /// count.
    pub(crate) const fn pause(&mut self) {
        self.at = Instant::NEVER;
    }

    /// Ends the repetition.
    pub(crate) const fn end(&mut self) {
        *self = Self::NONE;
    }

    /// Returns the time of the next transmission.
    pub(crate) const fn at(&self) -> Instant {
        self.at
    }

    /// Returns whether the next transmission is due.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.at <= now
    }

    /// Returns whether no transmission is scheduled.
    pub(crate) fn is_paused(&self) -> bool {
        self.at == Instant::NEVER
    }

    /// Returns the number of transmissions since the last answer.
    pub(crate) const fn count(&self) -> u8 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_counted_until_the_retry_ends() {
        let mut retry = Retry::NONE;
        assert!(retry.is_paused() && !retry.is_due(Instant(1 << 60)));
        retry.begin(Instant(5));
        assert!(retry.is_due(Instant(5)) && !retry.is_due(Instant(4)));
        for _ in 0..300 {
            retry.again(Instant(9));
        }
        assert_eq!((retry.at(), retry.count()), (Instant(9), 255));
        retry.defer(Instant(7));
        assert_eq!(retry.at(), Instant(9), "deferring never makes it earlier");
        retry.pause();
        assert_eq!((retry.is_paused(), retry.count()), (true, 255));
        retry.end();
        assert_eq!(retry.count(), 0);
    }
}

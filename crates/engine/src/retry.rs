//! What is repeated while no answer comes: a handshake frame, a Close, a question for news.

use delivery::Instant;

/// When it is said again, and how often it was said since the last sign of success.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry {
    at: Instant,
    count: u8,
}

// Nothing is said again by a connection that rests.
delivery::pack_fields!(Retry { count } at = Instant::NEVER);

impl Retry {
    /// There is nothing to say.
    pub(crate) const NONE: Self = Self { at: Instant::NEVER, count: 0 };

    /// It is to be said at that time, for the first time.
    pub(crate) const fn begin(&mut self, at: Instant) {
        *self = Self { at, count: 0 };
    }

    /// It was said, and is said again at that time.
    pub(crate) fn again(&mut self, at: Instant) {
        debug_assert!(at != Instant::NEVER, "what is never said again has ended");
        *self = Self { at, count: self.count.saturating_add(1) };
    }

    /// Somebody else's turn, or a reason to wait, sets another time; how often it was said stays.
    pub(crate) const fn set(&mut self, at: Instant) {
        self.at = at;
    }

    /// It is not said before that time.
    pub(crate) fn defer(&mut self, until: Instant) {
        self.at = self.at.max(until);
    }

    /// It waits for something else than a time; how often it was said stays.
    pub(crate) const fn pause(&mut self) {
        self.at = Instant::NEVER;
    }

    /// It need not be said any more.
    pub(crate) const fn end(&mut self) {
        *self = Self::NONE;
    }

    /// When it is said again.
    pub(crate) const fn at(&self) -> Instant {
        self.at
    }

    /// Whether it is time.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.at <= now
    }

    /// Whether it waits for no time.
    pub(crate) fn is_paused(&self) -> bool {
        self.at == Instant::NEVER
    }

    /// How often it was said.
    pub(crate) const fn count(&self) -> u8 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_again_and_again_is_counted_until_it_ends() {
        let mut retry = Retry::NONE;
        assert!(retry.is_paused() && !retry.is_due(Instant(1 << 60)));
        retry.begin(Instant(5));
        assert!(retry.is_due(Instant(5)) && !retry.is_due(Instant(4)));
        for _ in 0..300 {
            retry.again(Instant(9));
        }
        assert_eq!((retry.at(), retry.count()), (Instant(9), 255));
        retry.defer(Instant(7));
        assert_eq!(retry.at(), Instant(9), "never sooner by that");
        retry.pause();
        assert_eq!((retry.is_paused(), retry.count()), (true, 255));
        retry.end();
        assert_eq!(retry.count(), 0);
    }
}

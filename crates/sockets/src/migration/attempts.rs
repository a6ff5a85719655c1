//! The schedule of attempts to write a switch marker, and the time at which they end.

use delivery::Instant;

/// The schedule of attempts to write one switch marker. An event that may make room triggers a
/// further attempt. The scheduled attempts cover causes without an event.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Attempts {
    begun: Instant,
    wait_ns: u64,
}

impl Attempts {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { begun: now, wait_ns: FIRST_WAIT_NS }
    }

    /// Returns the time of the next attempt after one has failed. The intervals grow.
    pub(crate) fn again(&mut self, now: Instant) -> Instant {
        let again = now.after_ns(self.wait_ns);
        self.wait_ns = (2 * self.wait_ns).min(LAST_WAIT_NS);
        again
    }

    //= sockets-protocol.md: join.3
    /// Returns whether the accepting side should give up, because the peer will soon stop waiting.
    pub(crate) fn have_ended(&self, now: Instant) -> bool {
        now >= self.begun.after_ns(MARKER_WITHIN_NS)
    }
}

/// The interval after the first attempt, in nanoseconds. Within that time a call of the program
/// returns, and the peer's switch marker follows its message.
pub(crate) const FIRST_WAIT_NS: u64 = 100_000;

/// The longest interval, in nanoseconds. Attempts at this rate cost almost nothing, and the delay
/// does not matter to programs.
const LAST_WAIT_NS: u64 = 250_000_000;

/// The time for which a switch marker may wait for room in TCP, in nanoseconds: half of the time
/// for which the peer waits for an answer.
const MARKER_WITHIN_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    //= sockets-protocol.md: join.3, join.5
    #[test]
    fn attempts_become_rare_and_end_before_the_peer_gives_up() {
        let mut now = Instant(7);
        let mut attempts = Attempts::new(now);
        let mut count = 0;
        while !attempts.have_ended(now) {
            let again = attempts.again(now);
            assert!(again > now);
            (now, count) = (again, count + 1);
        }
        assert!(count < 40, "{count}");
        assert!(now < Instant(7).after_ns(crate::migration::machine::ANSWER_WITHIN_NS));
    }
}

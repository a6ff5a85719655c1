//! The schedule for attempts to write a switch marker, and the time after which the attempts stop.

use delivery::Instant;

/// The schedule for attempts to write one switch marker. An event that may make room in TCP also
/// triggers an attempt. The scheduled attempts cover changes that cause no event.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Attempts {
    begun: Instant,
    wait_ns: u64,
}

impl Attempts {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { begun: now, wait_ns: FIRST_WAIT_NS }
    }

    /// Returns the time of the next attempt after a failed one. The interval doubles up to a
    /// maximum.
    pub(crate) fn again(&mut self, now: Instant) -> Instant {
        let again = now.after_ns(self.wait_ns);
        self.wait_ns = (2 * self.wait_ns).min(LAST_WAIT_NS);
        again
    }

    //= sockets-protocol.md: join.3
    /// Returns true if the accepting side must give up, because the peer will soon stop waiting.
    pub(crate) fn have_ended(&self, now: Instant) -> bool {
        now >= self.begun.after_ns(MARKER_WITHIN_NS)
    }
}

/// The interval after the first attempt, in nanoseconds. Two causes make the first attempt fail,
/// and both usually end within this time: a call of the program has not returned yet, or the peer's
/// message has overtaken the peer's switch marker.
pub(crate) const FIRST_WAIT_NS: u64 = 100_000;

/// The longest interval, in nanoseconds. Attempts at this interval cost almost nothing, and
/// programs do not notice the delay.
const LAST_WAIT_NS: u64 = 250_000_000;

/// The time for which the accepting side waits for room in TCP for a switch marker, in nanoseconds:
/// half of the time for which the peer waits for an answer.
const MARKER_WITHIN_NS: u64 = 5_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    //= sockets-protocol.md: join.3, join.5
    #[test]
    fn attempts_back_off_and_end_before_the_peer_times_out() {
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

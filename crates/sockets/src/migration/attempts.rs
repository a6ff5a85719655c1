//! When it is tried again to write a switch marker that cannot be written yet, and for how long.

use delivery::Instant;

/// Times of attempts to write one switch marker. An event that may make writing possible brings an attempt of its own;
/// these are for causes without an event.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct Attempts {
    begun: Instant,
    wait_ns: u64,
}

impl Attempts {
    pub(crate) const fn new(now: Instant) -> Self {
        Self { begun: now, wait_ns: FIRST_WAIT_NS }
    }

    /// It has come to nothing: when to try again, each time later.
    pub(crate) fn again(&mut self, now: Instant) -> Instant {
        let again = now.after_ns(self.wait_ns);
        self.wait_ns = (2 * self.wait_ns).min(LAST_WAIT_NS);
        again
    }

    //= sockets-protocol.md: join.3
    /// Whether the side that accepted gives it up: the peer does not wait for much longer.
    pub(crate) fn have_ended(&self, now: Instant) -> bool {
        now >= self.begun.after_ns(MARKER_WITHIN_NS)
    }
}

/// The wait after the first attempt, in nanoseconds: a call of the program has returned then, or the switch marker of the
/// peer has come behind its message.
pub(crate) const FIRST_WAIT_NS: u64 = 100_000;

/// The longest wait, in nanoseconds: what it costs is nothing then, and a program that was overlooked does not notice.
const LAST_WAIT_NS: u64 = 250_000_000;

/// For how long a switch marker may wait for room in TCP, in nanoseconds: half of the time in which the peer wants an
/// answer.
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

//! How long a message waits for a receive.

use delivery::Instant;

/// A message of the peer that waits for a receive.
///
/// RFC 5041 (section 7.1) ends a stream whose peer sends a message without a receive. But a program
/// that always posts its receives in time by its own clock may be descheduled between two messages,
/// and a peer on a faster host does not know that. So the message waits for a while. The stream reads
/// nothing meanwhile, and TCP makes the peer wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWait {
    until: Instant,
    look_at: Instant,
}

impl ReceiveWait {
    /// Begins to wait.
    pub(crate) const fn begin(now: Instant) -> Self {
        Self { until: now.after_ns(WAIT_NS), look_at: now.after_ns(LOOK_NS) }
    }

    /// Takes note that there still is no receive. Returns whether the message goes on waiting.
    pub(crate) fn goes_on(&mut self, now: Instant) -> bool {
        self.look_at = now.after_ns(LOOK_NS);
        now < self.until
    }

    /// Returns when to look for a receive.
    pub(crate) fn due(&self) -> Instant {
        self.look_at.min(self.until)
    }
}

/// Longest wait for a receive, in nanoseconds. A program on a busy host may not run for several
/// hundred milliseconds, and a program that never posts the receive learns of it soon enough.
const WAIT_NS: u64 = 1_000_000_000;

/// Time between two looks for a receive of a shared queue, in nanoseconds. A program that posts to
/// the queue does not know which streams wait for it.
const LOOK_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_looks_every_millisecond_and_ends_after_a_second() {
        let mut wait = ReceiveWait::begin(Instant(5));
        let mut looks = 0;
        let ended = loop {
            let due = wait.due();
            looks += 1;
            if !wait.goes_on(due) {
                break due;
            }
        };
        assert_eq!((ended, looks), (Instant(5 + WAIT_NS), 1000));
    }
}

//! The limit on answers to Discover requests.

use delivery::Instant;

/// Limits how often a link answers Discover requests.
#[derive(Debug)]
pub(crate) struct AnswerLimit {
    since: Instant,
    answers: u32,
}

impl AnswerLimit {
    pub(crate) const fn new() -> Self {
        Self { since: Instant(0), answers: 0 }
    }

    //= protocol.md: envelope.6
    /// Returns whether the limit permits another answer. If it does, counts the answer.
    pub(crate) fn permits(&mut self, now: Instant) -> bool {
        if now.since_ns(self.since) >= ANSWERS_NS {
            *self = Self { since: now, answers: 0 };
        }
        self.answers += 1;
        self.answers <= ANSWERS_MAX
    }
}

/// Period in which a link sends at most [`ANSWERS_MAX`] answers, in nanoseconds.
const ANSWERS_NS: u64 = 100_000_000;

/// Maximum number of answers in [`ANSWERS_NS`], equivalent to 320 per second. This is enough if all
/// hosts of a cluster start at the same time, and it is a negligible load for any network.
const ANSWERS_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    //= protocol.md: envelope.6
    #[test]
    fn answers_are_rate_limited() {
        let mut limit = AnswerLimit::new();
        let start = Instant(5 * ANSWERS_NS);
        let permitted = (0..100).filter(|_| limit.permits(start)).count();
        assert_eq!(permitted, ANSWERS_MAX as usize);
        assert!(limit.permits(start.after_ns(ANSWERS_NS)));
    }
}

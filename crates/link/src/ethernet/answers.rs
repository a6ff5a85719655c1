//! Answers to those who ask who is here.

use delivery::Instant;

/// How often a link answers those who ask for it.
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
    /// Whether one more answer is permitted, which is then counted.
    pub(crate) fn permits(&mut self, now: Instant) -> bool {
        if now.since_ns(self.since) >= ANSWERS_NS {
            *self = Self { since: now, answers: 0 };
        }
        self.answers += 1;
        self.answers <= ANSWERS_MAX
    }
}

/// Time that [`ANSWERS_MAX`] is for.
const ANSWERS_NS: u64 = 100_000_000;

/// Answers in [`ANSWERS_NS`]: 320 a second, for a cluster whose hosts all start at once, and a
/// negligible part of any network.
const ANSWERS_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    //= protocol.md: envelope.6
    #[test]
    fn answers_are_limited_for_a_time() {
        let mut limit = AnswerLimit::new();
        let start = Instant(5 * ANSWERS_NS);
        let permitted = (0..100).filter(|_| limit.permits(start)).count();
        assert_eq!(permitted, ANSWERS_MAX as usize);
        assert!(limit.permits(start.after_ns(ANSWERS_NS)));
    }
}

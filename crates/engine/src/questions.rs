//! How often peers are asked for news, over all connections of an endpoint.

use delivery::{Instant, RateLimiter};

/// Bounds what connections that wait for their peers send meanwhile. Each asks again and again, in case what the peer
/// said was lost; thousands that wait would leave no time for those that work.
#[derive(Debug)]
pub(crate) struct Questions {
    news: RateLimiter,
    receives: RateLimiter,
}

impl Questions {
    /// Nothing was asked yet.
    pub(crate) fn new() -> Self {
        Self {
            news: RateLimiter::new(NEWS_PER_S, NEWS_AT_ONCE),
            receives: RateLimiter::new(TRIES_PER_S, TRIES_AT_ONCE),
        }
    }

    //= protocol.md: news.3
    /// Whether a connection may ask for news now; if not, it may try again at the time returned.
    pub(crate) fn may_ask(&mut self, now: Instant) -> Result<(), Instant> {
        if self.news.allow(now) { Ok(()) } else { Err(now.after_ns(CROWDED_NS)) }
    }

    //= protocol.md: news.3
    /// Whether a connection may retransmit now what its peer had no receive for; if not, it may try again at the time
    /// returned.
    pub(crate) fn may_try(&mut self, now: Instant) -> Result<(), Instant> {
        if self.receives.allow(now) { Ok(()) } else { Err(now.after_ns(CROWDED_NS)) }
    }
}

/// Questions for news a second: at 10 µs for a question and its answer at both ends, 2 % of a processor.
const NEWS_PER_S: u32 = 2000;

/// Questions for news at once: connections whose operations all wait for the same peer process.
const NEWS_AT_ONCE: u32 = 256;

/// Messages without a receive that are retransmitted a second, without a word of the peer: 16 frames each.
const TRIES_PER_S: u32 = 500;

/// The same at once.
const TRIES_AT_ONCE: u32 = 64;

/// Pause of a connection that may not ask now.
const CROWDED_NS: u64 = 320_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    //= protocol.md: news.3
    #[test]
    fn a_few_that_wait_ask_as_often_as_they_like_and_thousands_in_turn() {
        // Connections that wait, each asking every 20 ms: of how many questions in 10 s how many are asked.
        for (connections, all_are_asked) in [(1, true), (30, true), (4000, false)] {
            let mut questions = Questions::new();
            let mut due = vec![Instant(0); connections];
            let (mut asked, mut postponed) = (vec![0; connections], 0);
            for now in (0..10_000).map(|ms| Instant(ms * 1_000_000)) {
                for (due, asked) in due.iter_mut().zip(&mut asked) {
                    if *due > now {
                        continue;
                    }
                    *due = match questions.may_ask(now) {
                        Ok(()) => {
                            *asked += 1;
                            now.after_ns(20_000_000)
                        }
                        Err(until) => {
                            postponed += 1;
                            until
                        }
                    };
                }
            }
            let sum: u32 = asked.iter().sum();
            assert_eq!(postponed == 0, all_are_asked, "{connections}");
            assert!(sum <= 10 * NEWS_PER_S + NEWS_AT_ONCE, "{connections}: {sum}");
        }
    }
}

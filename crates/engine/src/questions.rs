//! Limits how often the connections of an endpoint ask their peers for news. News are reports of
//! deliveries and credits.

use delivery::{Instant, RateLimiter};

/// Rate limits for the questions of connections that wait for reports of their peers.
///
/// Each waiting connection repeats its question, because the answer may be lost. Without a limit,
/// the questions of thousands of waiting connections would leave no time for active connections.
#[derive(Debug)]
pub(crate) struct Questions {
    news: RateLimiter,
    receives: RateLimiter,
}

impl Questions {
    /// Creates the limits with their full allowance.
    pub(crate) fn new() -> Self {
        Self {
            news: RateLimiter::new(NEWS_PER_S, NEWS_AT_ONCE),
            receives: RateLimiter::new(TRIES_PER_S, TRIES_AT_ONCE),
        }
    }

    //= protocol.md: news.3
    /// Returns whether a connection may now ask its peer for a report of deliveries and credits. If
    /// the limit is exhausted, returns the time of the next attempt as the error.
    pub(crate) fn may_ask(&mut self, now: Instant) -> Result<(), Instant> {
        if self.news.allow(now) { Ok(()) } else { Err(now.after_ns(CROWDED_NS)) }
    }

    //= protocol.md: news.3
    /// Returns whether a connection may now retransmit a message for which its peer had no receive.
    /// If the limit is exhausted, returns the time of the next attempt as the error.
    pub(crate) fn may_try(&mut self, now: Instant) -> Result<(), Instant> {
        if self.receives.allow(now) { Ok(()) } else { Err(now.after_ns(CROWDED_NS)) }
    }
}

/// Maximum number of questions that the endpoint sends per second. A question asks a peer for a
/// report of deliveries and credits. A question and its answer together take 10 µs of processor
/// time at each end, so 2000 questions take 2 % of a processor.
const NEWS_PER_S: u32 = 2000;

/// Maximum number of questions for reports of deliveries and credits in one burst. A burst occurs
/// if many connections wait for the same peer process.
const NEWS_AT_ONCE: u32 = 256;

/// Maximum number of messages per second that the endpoint retransmits without a Ready, after the
/// peer had no receive for them. Each message takes up to 16 frames.
const TRIES_PER_S: u32 = 500;

/// Maximum number of messages that the endpoint retransmits in one burst without a Ready.
const TRIES_AT_ONCE: u32 = 64;

/// How long a connection waits before its next attempt if a limit is exhausted, in nanoseconds.
const CROWDED_NS: u64 = 320_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    //= protocol.md: news.3
    #[test]
    fn few_waiting_connections_ask_freely_and_thousands_take_turns() {
        // Each case has a number of connections that wait, and each connection asks every 20 ms.
        // The second value says whether the limits allow all their questions for 10 s.
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

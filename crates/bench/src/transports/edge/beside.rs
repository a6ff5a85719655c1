//! Times small writes on one connection, while another connection of the same two endpoints carries
//! a stream.

use std::sync::Arc;
use std::time::Duration;

use ethernot::{Completion, Connection, Endpoint, OperationFlags, Order, RemoteRegion, WaitError};

use super::{END_OF_PHASE, Half, WORD_BYTES, other, unless_timed_out};
use crate::transport::{Latencies, PHASE_TIME_MAX, TransportError, Waiting};
use crate::transports::idle_limit::IdleLimit;
use testbed::clock::{self, Stopwatch};

impl Half {
    /// Streams `count` messages, and regularly writes a word on connection `small`. Records the
    /// time of each small write from its post to its completion.
    pub(super) fn stream_beside(
        &self,
        endpoint: &Endpoint,
        small: &Connection,
        count: u64,
        latencies: &mut Latencies,
    ) -> Result<(), TransportError> {
        let (connection, remote) = self.parts()?;
        let mut operation = self.operation(remote, self.order);
        let small_remote = RemoteRegion::from_bytes(&small.peer_data()).map_err(other)?;
        let mut word = self.operation(small_remote, Order::Relaxed);
        word.length = WORD_BYTES as u32;
        word.context = SMALL;
        word.flags = OperationFlags { signalled: true, ..word.flags };
        let group = (self.in_flight / 8).max(1);
        let (mut posted, mut done) = (0, 0);
        let mut pauses = Pauses(0);
        let mut due_ns = clock::monotonic_ns() + pauses.next_ns();
        let mut timed: Option<Stopwatch> = None;
        let mut idle_limit = IdleLimit::new(ATTEMPT);
        while done < count || timed.is_some() {
            while posted < count && posted - done < self.in_flight {
                posted += 1;
                let last = posted == count;
                operation.flags.signalled = last || posted % group == 0;
                operation.context = posted;
                operation.immediate = last.then_some(END_OF_PHASE);
                connection.post_later(&operation).map_err(other)?;
            }
            let now_ns = clock::monotonic_ns();
            if timed.is_none() && now_ns >= due_ns && done < count {
                timed = Some(Stopwatch::start());
                small.post(&word).map_err(other)?;
            }
            let until_due = Duration::from_nanos(due_ns.saturating_sub(now_ns));
            let limit = if timed.is_some() { PHASE_TIME_MAX } else { until_due };
            let Some(completion) = self.completion_within(endpoint, limit)? else {
                idle_limit.on_idle()?;
                continue;
            };
            idle_limit.on_progress();
            completion.result.map_err(other)?;
            if completion.context != SMALL {
                done = completion.context;
            } else if let Some(timed) = timed.take() {
                latencies.record_ns(timed.elapsed_ns());
                due_ns = clock::monotonic_ns() + pauses.next_ns();
            }
        }
        Ok(())
    }

    /// Returns the next completion, or `None` if there is none. A thread that polls tests the queue
    /// once. A thread that blocks waits at most `limit`.
    fn completion_within(
        &self,
        endpoint: &Endpoint,
        limit: Duration,
    ) -> Result<Option<Completion>, TransportError> {
        match self.waiting {
            Waiting::Poll => endpoint.poll(&self.queue).map_err(other),
            Waiting::Mixed | Waiting::Interrupt => {
                match endpoint.wait_completion(&Arc::clone(&self.queue), Some(limit)) {
                    Ok(completion) => Ok(Some(completion)),
                    Err(WaitError::TimedOut { .. }) if limit < PHASE_TIME_MAX => Ok(None),
                    Err(error) => Err(unless_timed_out(error, ATTEMPT)),
                }
            }
        }
    }
}

/// The pauses between small writes. They vary around [`PAUSE_NS`], so that the writes do not
/// synchronise with the stream.
struct Pauses(u64);

impl Pauses {
    fn next_ns(&mut self) -> u64 {
        self.0 += 1;
        // Multiples of the golden ratio spread the pauses evenly over the range.
        let spread = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        PAUSE_NS / 2 + ((PAUSE_NS * spread) >> 32)
    }
}

const ATTEMPT: &str = "write a word beside a stream over edge";

/// Context of the small writes. The stream uses contexts from 1 upwards.
const SMALL: u64 = u64::MAX;

/// Mean pause: 1 ms. At this rate, the small writes use less than a thousandth of a link of 1 Gb/s,
/// and half a second contains 500 of them.
const PAUSE_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_differ_and_stay_within_their_range() {
        let mut pauses = Pauses(0);
        let mut all: Vec<u64> = (0..100).map(|_| pauses.next_ns()).collect();
        assert!(all.iter().all(|ns| (PAUSE_NS / 2..PAUSE_NS * 3 / 2).contains(ns)), "{all:?}");
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 100);
    }
}

//! When a stream ends that its own side has ended.

use delivery::Instant;
use iwarp::Stream;

/// A stream that this side ends.
///
/// After a disconnection, the stream first carries out the sends that were posted before. It ends
/// without them if the peer takes nothing for [`LEAVING_NS`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaving {
    /// Number of the queue pair's first send that the stream does not take any more. 0 if it takes
    /// none.
    pub(crate) first_untaken: u64,
    /// Whether the queue pair is still to be notified of the end. Otherwise the program has ended
    /// the queue pair itself.
    pub(crate) notifies: bool,
    until: Instant,
    /// What the stream had moved when the time was set.
    moved: u64,
}

impl Leaving {
    /// Begins an orderly end, before which the stream carries out the sends with numbers below
    /// `first_untaken`.
    pub(crate) const fn after_sends(first_untaken: u64, now: Instant) -> Self {
        Self { first_untaken, notifies: true, until: now.after_ns(LEAVING_NS), moved: 0 }
    }

    /// Begins an end at once. Only the rest of an FPDU is still written.
    pub(crate) const fn at_once(now: Instant) -> Self {
        Self { first_untaken: 0, notifies: false, until: now.after_ns(LEAVING_NS), moved: 0 }
    }

    /// Returns the time at which the stream ends unless the peer takes something before.
    pub(crate) const fn until(&self) -> Instant {
        self.until
    }

    /// Returns whether the peer has taken nothing for too long. While a read is outstanding, bytes
    /// of the peer count as well, because the answer to the read is among them.
    pub(crate) fn is_late(&mut self, stream: &Stream, now: Instant) -> bool {
        let counters = stream.counters();
        let received = if stream.awaits_answers() { counters.bytes_received } else { 0 };
        let moved = counters.bytes_sent.wrapping_add(received);
        if std::mem::replace(&mut self.moved, moved) != moved {
            self.until = now.after_ns(LEAVING_NS);
        }
        self.until <= now
    }
}

/// Time in which the peer of an ending stream must take something, in nanoseconds. Programs wait
/// for the end, and a peer that is only slow takes something in this time.
const LEAVING_NS: u64 = 2_000_000_000;

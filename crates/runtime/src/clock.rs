//! The only clock of an endpoint.

use std::time::Instant as MonotonicTime;

use delivery::Instant;

/// The host's monotonic clock (`CLOCK_MONOTONIC`) as the engine counts it: nanoseconds since the
/// runtime was started, plus one so that 0 is in the past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: MonotonicTime,
}

impl Clock {
    /// A clock that begins now.
    pub(crate) fn start() -> Self {
        Self { origin: MonotonicTime::now() }
    }

    /// The time now.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant(self.origin.elapsed().as_nanos() as u64 + 1)
    }
}

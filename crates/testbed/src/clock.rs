//! The clock of measurements: the only module that reads a clock or sleeps, here and in crates that
//! measure.

#![expect(
    clippy::disallowed_methods,
    reason = "measuring is reading the clock; it is read only here"
)]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A start time on the monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[inline]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the nanoseconds since the start.
    #[inline]
    pub fn elapsed_ns(self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }

    /// Returns the seconds since the start.
    #[inline]
    pub fn elapsed_seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }

    /// Returns whether at least `limit` has passed since the start.
    #[inline]
    pub fn has_passed(self, limit: Duration) -> bool {
        self.0.elapsed() >= limit
    }
}

/// Returns the time in nanoseconds on the monotonic clock, which all processes of a host share.
pub fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

/// Sleeps until [`monotonic_ns`] reaches `at_ns`.
pub fn sleep_until(at_ns: u64) {
    let left_ns = at_ns.saturating_sub(monotonic_ns());
    std::thread::sleep(Duration::from_nanos(left_ns));
}

/// Returns the seconds since 1970-01-01 00:00 UTC.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

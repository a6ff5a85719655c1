//! Points in time of the engine: nanoseconds since a start that the caller chooses.

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// A point on the engine's clock, in nanoseconds. The clock is virtual in the simulator, and
/// monotonic elsewhere.
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Instant(pub u64);

impl Instant {
    /// A time that is later than all times that occur.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the nanoseconds since `earlier`, or 0 if `earlier` is later.
    pub const fn since_ns(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time that is `ns` nanoseconds later, at most [`Instant::NEVER`].
    #[must_use]
    pub const fn after_ns(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        self.after_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Sub for Instant {
    type Output = Duration;

    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.since_ns(earlier))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09} s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

//! Conversion of the kernel's receive times to the engine's clock.

use delivery::Instant;

/// Converts the kernel's wall-clock times to the engine's clock.
///
/// The engine's clock is monotonic, and the driver does not know its origin. The driver sees only
/// the `now` of each turn, which the runtime read some time before. The conversion therefore has
/// two steps:
///
/// * Wall clock to `CLOCK_MONOTONIC`: the kernel slews and steps the wall clock, so the driver
///   reads the wall clock every [`REFRESH_NS`], between two readings of `CLOCK_MONOTONIC`. If these
///   two readings lie far apart, the kernel descheduled the thread between them. The driver
///   discards such readings, because with them frames would seem to have arrived too early.
/// * `CLOCK_MONOTONIC` to the engine's clock: the driver subtracts the smallest difference between
///   `CLOCK_MONOTONIC` and `now` that it has seen. Each difference is a constant plus the age of
///   `now`. The age is never negative, so the smallest difference is the best estimate of the
///   constant.
#[derive(Debug)]
pub(crate) struct ReceiveClock {
    refreshed_at: Option<Instant>,
    /// Wall clock minus `CLOCK_MONOTONIC`, in nanoseconds.
    wall_ahead_ns: i64,
    /// Upper bound of `CLOCK_MONOTONIC` minus the engine's clock, in nanoseconds.
    monotonic_ahead_ns: i64,
}

impl ReceiveClock {
    pub(crate) const fn new() -> Self {
        Self { refreshed_at: None, wall_ahead_ns: 0, monotonic_ahead_ns: i64::MAX }
    }

    /// Reads the clocks if the last reading is too old. The link calls this function once in each
    /// turn in which it received frames.
    pub(crate) fn refresh(&mut self, now: Instant) {
        if self.refreshed_at.is_some_and(|at| now.since_ns(at) < REFRESH_NS) {
            return;
        }
        let before_ns = read_ns(libc::CLOCK_MONOTONIC);
        let wall_ns = read_ns(libc::CLOCK_REALTIME);
        let after_ns = read_ns(libc::CLOCK_MONOTONIC);
        self.observe(now, before_ns, wall_ns, after_ns);
    }

    /// Converts `wall_ns` to the engine's clock, limited to `now`. If the result is implausible,
    /// for example after a step of the wall clock, returns `now`.
    pub(crate) fn instant(&mut self, wall_ns: u64, now: Instant) -> Instant {
        let ahead_ns = self.wall_ahead_ns.saturating_add(self.monotonic_ahead_ns);
        let engine_ns = wall_ns.cast_signed().saturating_sub(ahead_ns);
        let Ok(engine_ns) = u64::try_from(engine_ns) else { return now };
        if engine_ns > now.0.saturating_add(AHEAD_MAX_NS) {
            self.refreshed_at = None;
            return now;
        }
        if engine_ns.saturating_add(AGE_MAX_NS) < now.0 {
            return now;
        }
        Instant(engine_ns.min(now.0))
    }

    /// Records that the wall clock read `wall_ns` between two readings of `CLOCK_MONOTONIC`. If
    /// these two readings are too far apart, the next turn reads the clocks again. Until then, the
    /// three values are used only if there were none before.
    fn observe(&mut self, now: Instant, before_ns: i64, wall_ns: i64, after_ns: i64) {
        let is_exact = after_ns - before_ns <= READING_NS_MAX;
        if is_exact {
            self.refreshed_at = Some(now);
        } else if self.monotonic_ahead_ns < i64::MAX {
            return;
        }
        self.wall_ahead_ns = wall_ns - before_ns;
        let ahead_ns = before_ns.wrapping_sub(now.0.cast_signed());
        self.monotonic_ahead_ns = self.monotonic_ahead_ns.min(ahead_ns);
    }
}

/// Time for which a reading of the clocks is used, in nanoseconds. A wall clock that is slewed at
/// the usual limit of 500 ppm drifts half a microsecond in this time.
const REFRESH_NS: u64 = 1_000_000;

/// Longest time between the two readings of `CLOCK_MONOTONIC` around a reading of the wall clock,
/// in nanoseconds. One reading takes about 25 ns, or 300 ns if it needs a system call.
const READING_NS_MAX: i64 = 2_000;

/// If a frame seems to have arrived more than this time after `now`, in nanoseconds, its time is
/// implausible. A frame may arrive a little after `now`, because a turn first reads `now` and then
/// the frames.
const AHEAD_MAX_NS: u64 = 10_000_000;

/// Maximum age of a frame, in nanoseconds. If a frame seems older, its time probably comes from
/// another clock.
const AGE_MAX_NS: u64 = 1_000_000_000;

fn read_ns(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call. Both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_700_000_000_000_000_000;

    fn clock() -> ReceiveClock {
        let mut clock = ReceiveClock::new();
        // `CLOCK_MONOTONIC` is 5000 ns ahead of the engine's clock; `now` is 300 ns old.
        clock.observe(Instant(2_000_000_000), 2_000_005_300, WALL, 2_000_005_350);
        clock
    }

    #[test]
    fn estimate_is_refined_by_a_fresher_now() {
        let mut clock = clock();
        let now = Instant(2_000_001_000);
        assert_eq!(clock.instant(WALL as u64, now), Instant(2_000_000_000));
        clock.observe(Instant(2_001_000_000), 2_001_005_000, WALL + 999_700, 2_001_005_050);
        assert_eq!(clock.instant(WALL as u64, now), Instant(2_000_000_300));
    }

    #[test]
    fn the_reception_time_is_never_after_now() {
        assert_eq!(
            clock().instant(WALL as u64 + 400, Instant(2_000_000_000)),
            Instant(2_000_000_000)
        );
    }

    #[test]
    fn a_stepped_wall_clock_yields_the_current_time() {
        let now = Instant(2_000_000_000);
        for wall in [0, WALL as u64 - 3_600_000_000_000, WALL as u64 + 3_600_000_000_000, u64::MAX]
        {
            assert_eq!(clock().instant(wall, now), now, "{wall}");
        }
    }

    #[test]
    fn slewed_wall_clock_is_followed() {
        let mut clock = clock();
        clock.observe(Instant(2_001_000_000), 2_001_005_300, WALL + 1_000_500, 2_001_005_350);
        let at = clock.instant(WALL as u64 + 1_000_500, Instant(2_001_000_900));
        assert_eq!(at, Instant(2_001_000_000));
    }
    #[test]
    fn a_pause_between_the_readings_shifts_no_frame() {
        let mut clock = clock();
        let (now, late) = (Instant(2_001_000_000), 1_900_000);
        clock.observe(now, 2_001_005_300, WALL + 1_000_000 + late, 2_001_005_350 + late);
        assert_eq!(clock.instant(WALL as u64 + 1_000_000, now), now);
        assert_eq!(clock.refreshed_at, Some(Instant(2_000_000_000)), "the next turn reads again");
    }
}

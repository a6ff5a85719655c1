//! The kernel's reception times on the engine's clock.

use delivery::Instant;

/// Converts wall-clock times of the kernel to the engine's clock.
///
/// The engine's clock is monotonic with an origin the driver does not know; it is seen only through
/// the `now` of each turn, which was read some time before. The conversion therefore has two steps:
///
/// * wall clock to `CLOCK_MONOTONIC`: the one is read between two readings of the other, every
///   [`REFRESH_NS`], because the wall clock is slewed and stepped. Readings that lie far apart are not
///   used: the thread lost its processor in between, and frames would seem to have come that much
///   earlier than they did;
/// * `CLOCK_MONOTONIC` to the engine's clock: the least difference seen, because the difference is a
///   constant plus the age of `now`, which is never negative.
#[derive(Debug)]
pub(crate) struct ReceiveClock {
    refreshed_at: Option<Instant>,
    /// Wall clock minus `CLOCK_MONOTONIC`, in nanoseconds.
    wall_ahead_ns: i64,
    /// `CLOCK_MONOTONIC` minus the engine's clock, in nanoseconds; never below the truth.
    monotonic_ahead_ns: i64,
}

impl ReceiveClock {
    pub(crate) const fn new() -> Self {
        Self { refreshed_at: None, wall_ahead_ns: 0, monotonic_ahead_ns: i64::MAX }
    }

    /// Reads the clocks if the last reading is too old. Call once per turn that received something.
    pub(crate) fn refresh(&mut self, now: Instant) {
        if self.refreshed_at.is_some_and(|at| now.since_ns(at) < REFRESH_NS) {
            return;
        }
        let before_ns = read_ns(libc::CLOCK_MONOTONIC);
        let wall_ns = read_ns(libc::CLOCK_REALTIME);
        let after_ns = read_ns(libc::CLOCK_MONOTONIC);
        self.observe(now, before_ns, wall_ns, after_ns);
    }

    /// When the engine's clock showed the time `wall_ns`, at most `now`; `now` if that makes no
    /// sense, as after a step of the wall clock.
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

    /// Takes in that the wall clock showed `wall_ns` between two readings of `CLOCK_MONOTONIC`. Nothing
    /// changes if they are too far apart, unless nothing was known: then the next turn reads again.
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

/// How long a reading of the clocks serves: a wall clock slewed by the usual most, 500 ppm, is then
/// wrong by half a microsecond.
const REFRESH_NS: u64 = 1_000_000;

/// Longest time that three readings of clocks take, in nanoseconds: one takes about 25, a clock that
/// needs a system call 300.
const READING_NS_MAX: i64 = 2_000;

/// A frame may arrive this much after `now` was read and still be handled in the same turn.
const AHEAD_MAX_NS: u64 = 10_000_000;

/// A frame that has waited longer was more likely stamped by another clock.
const AGE_MAX_NS: u64 = 1_000_000_000;

fn read_ns(clock: libc::clockid_t) -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call. The clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

#[cfg(test)]
mod tests {
    use super::*;

    const WALL: i64 = 1_700_000_000_000_000_000;

    fn clock() -> ReceiveClock {
        let mut clock = ReceiveClock::new();
        // Monotonic runs 5000 ahead of the engine; `now` is 300 old.
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
    fn reception_is_never_after_now() {
        assert_eq!(
            clock().instant(WALL as u64 + 400, Instant(2_000_000_000)),
            Instant(2_000_000_000)
        );
    }

    #[test]
    fn stepped_wall_clock_gives_now() {
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

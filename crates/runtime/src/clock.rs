//! The clock of an endpoint. No other module reads the time.

use std::time::Instant as MonotonicTime;

use delivery::Instant;

/// The host's monotonic clock (`CLOCK_MONOTONIC`) in the units of the engine: nanoseconds since the
/// start of the runtime, plus 1. Because of the added nanosecond, the clock never returns 0, so
/// time 0 is always in the past.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: MonotonicTime,
}

impl Clock {
    /// Starts a clock at the current time.
    pub(crate) fn start() -> Self {
        Self { origin: MonotonicTime::now() }
    }

    /// Returns the current time.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        // An `u64` holds 2^64 ns, which are 584 years.
        Instant(self.origin.elapsed().as_nanos() as u64 + 1)
    }
}

/// The clock for the thread inside the engine. It reads the kernel's clock only once in
/// [`LOOK_NS`], and counts the processor's ticks between two readings.
///
/// Reading the kernel's clock costs 25 to 30 ns, a fifth of a small operation over shared memory.
/// Reading the ticks costs a third of that. This clock uses ticks only if the kernel also uses them
/// for its clock. The kernel does so while the ticks are steady and equal on all processors.
///
/// This clock measures the rate of the ticks against the kernel's clock. So the two clocks drift
/// apart only if the rate changes between two readings. If a reading shows that this clock is ahead
/// of the kernel's clock, this clock stands still until the kernel's clock has caught up. Its time
/// therefore never goes backwards.
#[derive(Debug)]
pub(crate) struct TurnClock {
    /// `None` if the processor's ticks cannot be used to measure time.
    ticks: Option<Ticks>,
}

#[derive(Debug)]
struct Ticks {
    /// The first reading, at the start of the interval over which the rate is measured.
    first: Look,
    latest: Look,
    /// Nanoseconds per tick, times 2^32; 0 if unknown.
    rate: u64,
    /// Number of ticks since the latest reading after which this clock reads the kernel's clock
    /// again.
    believed: u64,
    /// The time that the clock last returned.
    last_returned: Instant,
}

/// Values of the kernel's clock and of the processor's tick counter, read together.
#[derive(Clone, Copy, Debug)]
struct Look {
    ticks: u64,
    now: Instant,
}

impl TurnClock {
    pub(crate) fn start(clock: &Clock) -> Self {
        let ticks = are_ticks_time().then(|| {
            let first = Look { ticks: read_ticks(), now: clock.now() };
            Ticks { first, latest: first, rate: 0, believed: 0, last_returned: first.now }
        });
        Self { ticks }
    }

    /// Returns the current time.
    #[inline]
    pub(crate) fn now(&mut self, clock: &Clock) -> Instant {
        match &mut self.ticks {
            Some(ticks) => ticks.now(read_ticks(), clock),
            None => clock.now(),
        }
    }
}

impl Ticks {
    #[inline]
    fn now(&mut self, ticks: u64, clock: &Clock) -> Instant {
        // If the ticks went backwards, the difference wraps to a large number. This clock then
        // reads the kernel's clock.
        let passed = ticks.wrapping_sub(self.latest.ticks);
        let now = if passed < self.believed {
            self.latest.now.after_ns(passed.wrapping_mul(self.rate) >> 32)
        } else {
            let now = clock.now();
            self.look(Look { ticks, now }, read_ticks().wrapping_sub(ticks));
            now
        };
        self.last_returned = self.last_returned.max(now);
        self.last_returned
    }

    /// Sets this clock by a reading of the kernel's clock. The ticks were read before and after
    /// that reading; `apart` is the difference of the two values.
    #[cold]
    fn look(&mut self, look: Look, apart: u64) {
        let passed_ns = look.now.since_ns(self.first.now);
        let passed = look.ticks.wrapping_sub(self.first.ticks);
        self.believed = 0;
        if apart > APART_MAX {
            // The kernel descheduled the thread during the readings, so they do not belong to one
            // moment.
            return;
        }
        self.latest = look;
        if passed > TICKS_MAX {
            // The measured rate is implausible, so do not use the ticks until a new measurement.
            self.rate = 0;
            self.first = look;
        } else if passed_ns >= MEASURED_NS_MAX {
            self.first = look;
        } else if passed_ns >= MEASURED_NS_MIN && passed > 0 {
            let rate = (u128::from(passed_ns) << 32) / u128::from(passed);
            self.rate = u64::try_from(rate).unwrap_or(0);
        }
        if RATES.contains(&self.rate) {
            self.believed = (LOOK_NS << 32) / self.rate;
        }
    }
}

/// Returns whether the kernel uses the processor's ticks for its own clock.
fn are_ticks_time() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_ticks() -> u64 {
    // SAFETY: every 64-bit x86 processor has the instruction. If a process is forbidden to use it,
    // the kernel's own clock in user space does not work either.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
const fn read_ticks() -> u64 {
    0
}

/// Interval in nanoseconds between readings of the kernel's clock. If the kernel slews its clock by
/// 500 ppm, the usual maximum, this clock deviates by at most half a microsecond. The readings take
/// 0.005 % of the time.
const LOOK_NS: u64 = 1_000_000;

/// Shortest time in nanoseconds over which the rate of ticks is measured. The two clocks are
/// usually read at most 100 ns apart, which is 10 ppm of this time.
const MEASURED_NS_MIN: u64 = 10_000_000;

/// Longest time in nanoseconds over which the rate of ticks is measured. The limit lets this clock
/// follow a changing rate.
const MEASURED_NS_MAX: u64 = 10_000_000_000;

/// More ticks than any processor counts in [`MEASURED_NS_MAX`].
const TICKS_MAX: u64 = 1 << 40;

/// Maximum number of ticks that a reading of both clocks may take: a few microseconds.
const APART_MAX: u64 = 1 << 14;

/// Plausible values of [`Ticks::rate`]: from 16 ticks per nanosecond to one tick in 4 ns.
const RATES: std::ops::RangeInclusive<u64> = 1 << 28..=1 << 34;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_turn_clock_follows_the_kernel_clock() {
        let clock = Clock::start();
        let mut turns = TurnClock::start(&clock);
        let mut last_returned = Instant(0);
        while clock.now().0 < 3 * MEASURED_NS_MIN {
            let before = clock.now();
            let now = turns.now(&clock);
            assert!(now >= last_returned, "{now:?} after {last_returned:?}");
            // The thread may lose its processor between the two readings, so the test bounds the
            // difference in one direction only.
            assert!(now.0 + TOLERATED_NS >= before.0, "{now:?} at {before:?}");
            last_returned = now;
        }
        assert!(clock.now().0 + TOLERATED_NS >= last_returned.0, "it does not run ahead");
    }

    proptest! {
        /// Ticks may stop, jump and go backwards, but time never goes backwards.
        #[test]
        fn time_never_goes_backwards_whatever_the_tick_counter_does(
            ticks in prop::collection::vec(any::<u64>(), 1..50),
            steady in prop::collection::vec(1_000..100_000_000_u64, 1..50),
        ) {
            let clock = Clock::start();
            let first = Look { ticks: 0, now: clock.now() };
            let mut turns = Ticks { first, latest: first, rate: 0, believed: 0, last_returned: first.now };
            let mut last_returned = Instant(0);
            let mut at = 0_u64;
            for step in steady {
                at += step;
                turns.look(Look { ticks: at * 3, now: first.now.after_ns(at) }, 100);
                let rate_of_three = (1 << 32) / 3;
                prop_assert!(turns.rate == 0 || turns.rate.abs_diff(rate_of_three) <= 1);
            }
            for ticks in ticks {
                let now = turns.now(ticks, &clock);
                prop_assert!(now >= last_returned);
                last_returned = now;
            }
        }
    }

    /// Tolerated error of a reading, in nanoseconds. The clocks may differ by the duration of twice
    /// [`APART_MAX`] ticks. That duration exceeds the tolerance only on the slowest processors.
    const TOLERATED_NS: u64 = 20_000;
}

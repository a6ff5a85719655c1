//! The clock of an endpoint: the one place where time is read.

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

/// The same clock for the one thread that makes turns: between two looks at the kernel's clock, up to
/// [`LOOK_NS`] apart, it counts the ticks of the processor.
///
/// Asking the kernel costs 25 to 30 ns, which was a fifth of what a small operation over shared
/// memory takes; ticks cost a third of that. They are only used where the kernel itself keeps time
/// by them, which it does as long as they are steady and the same on all processors; their rate is
/// measured against the kernel's clock, and both never drift apart by more than the rate changes
/// within one look. Time does not go backwards when a look finds this clock ahead.
#[derive(Debug)]
pub(crate) struct TurnClock {
    /// None where ticks do not give the time.
    ticks: Option<Ticks>,
}

#[derive(Debug)]
struct Ticks {
    /// The first look, from which the rate is measured.
    first: Look,
    latest: Look,
    /// Nanoseconds for a tick, times 2^32; 0 while it is unknown.
    rate: u64,
    /// Ticks that give the time before the next look.
    believed: u64,
    /// The time last returned.
    last_returned: Instant,
}

/// What both clocks showed at the same time.
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

    /// The time now.
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
        // Ticks that went backwards are very many.
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

    /// Sets this clock by the kernel's, after which ticks were read again, `apart` later.
    #[cold]
    fn look(&mut self, look: Look, apart: u64) {
        let passed_ns = look.now.since_ns(self.first.now);
        let passed = look.ticks.wrapping_sub(self.first.ticks);
        self.believed = 0;
        if apart > APART_MAX {
            // The thread lost its processor between the two: they do not belong together.
            return;
        }
        self.latest = look;
        if passed > TICKS_MAX {
            // They do not give the time, at least not since then.
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

/// Whether the kernel keeps time by the processor's ticks.
fn are_ticks_time() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    cfg!(target_arch = "x86_64")
        && std::fs::read_to_string(SOURCE).is_ok_and(|source| source.trim() == "tsc")
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn read_ticks() -> u64 {
    // SAFETY: every processor with the 64-bit instruction set has the instruction; where a process is
    // forbidden to use it, the kernel's own clock in user space would not work either.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
const fn read_ticks() -> u64 {
    0
}

/// How long ticks are believed without a look, in nanoseconds: a clock slewed by the most that is
/// usual, 500 ppm, is followed to half a microsecond, and a look costs 0.005 % of the time.
const LOOK_NS: u64 = 1_000_000;

/// Least time over which the rate of ticks is measured: looks are usually 100 ns apart from the ticks
/// that go with them at worst, 10 ppm of this.
const MEASURED_NS_MIN: u64 = 10_000_000;

/// Most time over which it is measured, so that a rate that changes is followed.
const MEASURED_NS_MAX: u64 = 10_000_000_000;

/// More ticks than there can be in [`MEASURED_NS_MAX`].
const TICKS_MAX: u64 = 1 << 40;

/// Ticks that a look takes at most, some microseconds.
const APART_MAX: u64 = 1 << 14;

/// Rates of processors: nanoseconds for a tick, times 2^32, from 16 ticks in one to one in 4.
const RATES: std::ops::RangeInclusive<u64> = 1 << 28..=1 << 34;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_clock_of_turns_keeps_to_the_kernels() {
        let clock = Clock::start();
        let mut turns = TurnClock::start(&clock);
        let mut last_returned = Instant(0);
        while clock.now().0 < 3 * MEASURED_NS_MIN {
            let before = clock.now();
            let now = turns.now(&clock);
            assert!(now >= last_returned, "{now:?} after {last_returned:?}");
            // A thread may lose its processor between the two: only this side has a bound.
            assert!(now.0 + TOLERATED_NS >= before.0, "{now:?} at {before:?}");
            last_returned = now;
        }
        assert!(clock.now().0 + TOLERATED_NS >= last_returned.0, "it does not run ahead");
    }

    proptest! {
        /// Ticks that stop, jump and go backwards: time goes on, and is right at each look.
        #[test]
        fn whatever_the_ticks_do_time_does_not_go_backwards(
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

    /// Looks are wrong by less than [`APART_MAX`] ticks of the slowest processors, twice.
    const TOLERATED_NS: u64 = 20_000;
}

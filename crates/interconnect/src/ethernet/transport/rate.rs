//! Rates of connections with DCQCN: Zhu and others, "Congestion control for large-scale RDMA
//! deployments", SIGCOMM 2015, sections 3.1 and 3.3.
//!
//! The timers of the paper need no events. They are evaluated when a frame leaves or a notification
//! arrives, for the time since the last evaluation.

/// Parameters of DCQCN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DcqcnConfiguration {
    /// g: weight of a notification in the estimate α, and of a timer period without one, in 10^-9.
    pub gain_ppb: u32,
    /// N: minimum time between two notifications of a connection, in picoseconds.
    pub notification_ps: u64,
    /// K: time without a notification after which α decreases, in picoseconds, 1 or more.
    pub alpha_ps: u64,
    /// T: time between two increases by the timer, in picoseconds, 1 or more.
    pub timer_ps: u64,
    /// B: bytes between two increases by the counter, 1 or more.
    pub counter_bytes: u64,
    /// F: number of increases by either the timer or the counter until fast recovery ends.
    pub recovery_steps: u32,
    /// Additive increase of the target rate, in bits per second.
    pub additive_bps: u64,
    /// First hyper increase of the target rate, in bits per second. The second is twice as large,
    /// and so on.
    pub hyper_bps: u64,
    /// Minimum rate, in bits per second, 1 or more.
    pub min_bps: u64,
}

/// The rate limiter of a connection (the reaction point).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Rate {
    /// Rate of the host's cable, in bits per second.
    line_bps: u64,
    /// Rate at which frames are sent, in bits per second.
    current_bps: u64,
    /// Rate towards which `current_bps` rises, in bits per second.
    target_bps: u64,
    /// Estimate of congestion, α, in 1/2^30.
    alpha: u64,
    /// Whether a notification has ever arrived. Timers and counter start with the first.
    is_limited: bool,
    /// When the timers of α and of increases last expired or were set, in picoseconds.
    alpha_since_ps: u64,
    timer_since_ps: u64,
    /// Bytes sent since the last increase by the counter.
    counted_bytes: u64,
    /// Number of increases since the last notification, by the timer and by the counter.
    by_timer: u32,
    by_counter: u32,
    /// When the next frame may leave, in picoseconds.
    next_ps: u64,
}

/// Kind of a rate increase.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Increase {
    /// Increases the rate half of the way to the target.
    FastRecovery,
    /// Also increases the target by the additive step.
    Additive,
    /// Also increases the target by this many hyper steps.
    Hyper(u32),
}

impl Rate {
    /// Returns the rate of a new connection: the full rate of the cable.
    pub(super) const fn new(line_bps: u64) -> Self {
        Self {
            line_bps,
            current_bps: line_bps,
            target_bps: line_bps,
            alpha: ONE,
            is_limited: false,
            alpha_since_ps: 0,
            timer_since_ps: 0,
            counted_bytes: 0,
            by_timer: 0,
            by_counter: 0,
            next_ps: 0,
        }
    }

    /// Returns the current rate, in bits per second.
    pub(super) const fn bps(&self) -> u64 {
        self.current_bps
    }

    /// Returns when the next frame may leave, in picoseconds.
    pub(super) const fn next_ps(&self) -> u64 {
        self.next_ps
    }

    /// Updates the rate for a sent frame of `bytes` bytes on the wire, gap included.
    pub(super) fn on_sent(&mut self, configuration: &DcqcnConfiguration, bytes: u32, now_ps: u64) {
        self.advance(configuration, now_ps);
        if self.is_limited {
            self.counted_bytes += u64::from(bytes);
            while self.counted_bytes >= configuration.counter_bytes.max(1) {
                self.counted_bytes -= configuration.counter_bytes.max(1);
                self.by_counter = self.by_counter.saturating_add(1);
                self.increase(configuration);
            }
        }
        // At the full rate of the cable, the port itself delays frames.
        self.next_ps = now_ps;
        if self.current_bps < self.line_bps {
            self.next_ps += u64::from(bytes) * 8_000_000_000_000 / self.current_bps.max(1);
        }
    }

    /// Handles a notification: the current rate becomes the target, and decreases by α/2.
    pub(super) fn on_notified(&mut self, configuration: &DcqcnConfiguration, now_ps: u64) {
        self.advance(configuration, now_ps);
        self.target_bps = self.current_bps;
        let less = u128::from(self.current_bps) * u128::from(self.alpha) / u128::from(2 * ONE);
        let least_bps = configuration.min_bps.clamp(1, self.line_bps);
        self.current_bps = (self.current_bps - less as u64).max(least_bps);
        self.alpha += share(ONE - self.alpha, configuration.gain_ppb);
        self.is_limited = true;
        (self.alpha_since_ps, self.timer_since_ps) = (now_ps, now_ps);
        (self.counted_bytes, self.by_timer, self.by_counter) = (0, 0, 0);
    }

    /// Evaluates the timers up to now.
    fn advance(&mut self, configuration: &DcqcnConfiguration, now_ps: u64) {
        if !self.is_limited {
            return;
        }
        for _ in 0..periods(&mut self.alpha_since_ps, configuration.alpha_ps, now_ps) {
            let less = share(self.alpha, configuration.gain_ppb);
            self.alpha -= less;
            if less == 0 {
                break;
            }
        }
        let increases = periods(&mut self.timer_since_ps, configuration.timer_ps, now_ps);
        for done in 0..increases {
            if self.current_bps == self.line_bps && self.target_bps == self.line_bps {
                let left = u32::try_from(increases - done).unwrap_or(u32::MAX);
                self.by_timer = self.by_timer.saturating_add(left);
                break;
            }
            self.by_timer = self.by_timer.saturating_add(1);
            self.increase(configuration);
        }
    }

    /// Increases the rate after an expiry of the timer or the counter.
    fn increase(&mut self, configuration: &DcqcnConfiguration) {
        let more_bps = match self.stage(configuration.recovery_steps) {
            Increase::FastRecovery => 0,
            Increase::Additive => configuration.additive_bps,
            Increase::Hyper(steps) => configuration.hyper_bps.saturating_mul(steps.into()),
        };
        self.target_bps = self.target_bps.saturating_add(more_bps).min(self.line_bps);
        // Rounded up, so that the rate reaches the target.
        self.current_bps += (self.target_bps - self.current_bps).div_ceil(2);
    }

    /// Returns the kind of the next increase, by figure 7 of the paper.
    const fn stage(&self, recovery_steps: u32) -> Increase {
        let (fewer, more) = if self.by_timer < self.by_counter {
            (self.by_timer, self.by_counter)
        } else {
            (self.by_counter, self.by_timer)
        };
        if more < recovery_steps {
            Increase::FastRecovery
        } else if fewer > recovery_steps {
            Increase::Hyper(fewer - recovery_steps)
        } else {
            Increase::Additive
        }
    }
}

/// Returns how many times a timer has expired, and restarts it at the last expiry.
const fn periods(since_ps: &mut u64, period_ps: u64, now_ps: u64) -> u64 {
    let period_ps = if period_ps == 0 { 1 } else { period_ps };
    let count = now_ps.saturating_sub(*since_ps) / period_ps;
    *since_ps += count * period_ps;
    count
}

/// Returns `ppb` billionths of a number.
const fn share(of: u64, ppb: u32) -> u64 {
    (of as u128 * ppb as u128 / 1_000_000_000) as u64
}

/// The estimate α = 1.
const ONE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    const GBPS: u64 = 1_000_000_000;
    const US: u64 = 1_000_000;
    /// The gain is a sixteenth, so that values can be computed by hand.
    const CONFIGURATION: DcqcnConfiguration = DcqcnConfiguration {
        gain_ppb: 62_500_000,
        notification_ps: 50 * US,
        alpha_ps: 55 * US,
        timer_ps: 100 * US,
        counter_bytes: 1_000_000,
        recovery_steps: 2,
        additive_bps: 2 * GBPS,
        hyper_bps: 4 * GBPS,
        min_bps: GBPS / 10,
    };

    enum Step {
        /// A notification arrives.
        Notified,
        /// A frame of this many bytes leaves.
        Sent(u32),
    }

    /// Columns: time in µs, event, then rate and target in Mb/s, and α in 1/256.
    #[test]
    fn the_machine_does_what_the_paper_says() {
        use Step::{Notified, Sent};
        let steps = [
            // Before the first notification nothing is counted, and frames leave at the full rate.
            (0, Sent(5_000_000), 40_000, 40_000, 256.0),
            // α is 1, so the rate halves; α stays (1 − g) 1 + g = 1.
            (10, Notified, 20_000, 40_000, 256.0),
            // 55 µs later, α is 15/16: 20 (1 − 15/32) = 10.625. Then α is (15/16)² + 1/16.
            (65, Notified, 10_625, 20_000, 241.0),
            // The timer expires at 165: fast recovery, to the mean of rate and target. α decreases
            // at 120 and 175, to 15/16 each time.
            (176, Sent(0), 15_312, 20_000, 211.816),
            // The counter expires: fast recovery again, which ends at the second step of either.
            (177, Sent(1_000_000), 17_656, 20_000, 211.816),
            // The counter expires a second time: additive increase, (17.656 + 22) / 2.
            (178, Sent(1_000_000), 19_828, 22_000, 211.816),
            // The timer expires a second and third time at 265 and 365: targets of 24 and 26.
            (366, Sent(0), 23_957, 26_000, 174.531),
            // The counter expires a third time. Timer and counter have 3 each, so the target rises
            // by a hyper increase of 1 × 4.
            (366, Sent(1_000_000), 26_978, 30_000, 174.531),
            // The timer expires a fourth time at 465. The counter has 3, so the hyper increase is 4
            // again.
            (466, Sent(0), 30_489, 34_000, 153.397),
            // The counter expires a fourth time. Both are 2 above F, so the hyper increase is 8,
            // limited by the cable.
            (466, Sent(1_000_000), 35_244, 40_000, 153.397),
            // The rate is 35.244 (1 − 0.5992/2).
            (467, Notified, 24_685, 35_244, 159.809),
        ];
        let mut rate = Rate::new(40 * GBPS);
        for (time, step, current, target, alpha) in steps {
            match step {
                Notified => rate.on_notified(&CONFIGURATION, time * US),
                Sent(bytes) => rate.on_sent(&CONFIGURATION, bytes, time * US),
            }
            let found = (rate.current_bps / 1_000_000, rate.target_bps / 1_000_000);
            assert_eq!(found, (current, target), "at {time} us: {rate:?}");
            let found = rate.alpha as f64 / (ONE / 256) as f64;
            assert!((found - alpha).abs() < 0.01, "at {time} us: {found}, not {alpha}");
        }
    }

    #[test]
    fn frames_are_apart_as_the_rate_says_and_not_at_that_of_the_line() {
        let mut rate = Rate::new(10 * GBPS);
        rate.on_sent(&CONFIGURATION, 1_000, 7);
        assert_eq!(rate.next_ps(), 7);
        rate.on_notified(&CONFIGURATION, 8);
        rate.on_sent(&CONFIGURATION, 1_000, 9);
        // 8000 bits at 5 Gb/s take 1.6 µs.
        assert_eq!(rate.next_ps(), 9 + 1_600_000);
    }

    #[test]
    fn the_rate_stays_between_its_bounds() {
        let mut rate = Rate::new(10 * GBPS);
        for _ in 0..100 {
            rate.on_notified(&CONFIGURATION, 0);
        }
        assert_eq!(rate.bps(), CONFIGURATION.min_bps);
        rate.on_sent(&CONFIGURATION, 1_000, 1_000_000 * US);
        assert_eq!((rate.bps(), rate.target_bps), (10 * GBPS, 10 * GBPS));
        assert!(rate.alpha < 16, "{rate:?}");
        let slow = DcqcnConfiguration { min_bps: 100 * GBPS, ..CONFIGURATION };
        rate.on_notified(&slow, 1_000_000 * US);
        assert_eq!(rate.bps(), 10 * GBPS);
    }
}

//! Rates of connections with DCQCN: Zhu and others, "Congestion control for large-scale RDMA
//! deployments", SIGCOMM 2015, sections 3.1 and 3.3.
//!
//! The paper's timers need no events in this model. The rate is updated when a frame leaves or a
//! notification arrives. The update covers the whole time since the last update.

/// Parameters of DCQCN.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DcqcnConfiguration {
    /// g, in 10^-9: weight in the estimate α. Each notification, and each timer period without a
    /// notification, has this weight.
    pub gain_ppb: u32,
    /// N: minimum time between two notifications of a connection, in picoseconds.
    pub notification_ps: u64,
    /// K: time without a notification after which α decreases, in picoseconds, 1 or more.
    pub alpha_ps: u64,
    /// T: time between two increases by the timer, in picoseconds, 1 or more.
    pub timer_ps: u64,
    /// B: number of bytes between two increases by the counter, 1 or more.
    pub counter_bytes: u64,
    /// F: number of increases by the timer or by the counter after which fast recovery ends.
    pub recovery_steps: u32,
    /// Additive increase of the target rate, in bits per second.
    pub additive_bps: u64,
    /// First hyper increase of the target rate, in bits per second. The second increase is twice as
    /// large, the third three times, and so on.
    pub hyper_bps: u64,
    /// Minimum rate, in bits per second, 1 or more.
    pub min_bps: u64,
}

/// The rate limiter of a connection (called the reaction point in the paper).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Rate {
    /// Rate of the host's cable, in bits per second.
    line_bps: u64,
    /// Rate at which the connection sends frames, in bits per second.
    current_bps: u64,
    /// Target rate, which `current_bps` approaches, in bits per second.
    target_bps: u64,
    /// Congestion estimate α, in units of 1/2^30.
    alpha: u64,
    /// Whether a notification has arrived. The timers and the counter start with the first
    /// notification.
    is_limited: bool,
    /// Times when the timer of α and the timer of increases last expired or started, in
    /// picoseconds.
    alpha_since_ps: u64,
    timer_since_ps: u64,
    /// Number of bytes sent since the last increase by the counter.
    counted_bytes: u64,
    /// Numbers of increases since the last notification: by the timer, and by the counter.
    by_timer: u32,
    by_counter: u32,
    /// Earliest time of the next frame, in picoseconds.
    next_ps: u64,
}

/// Kind of a rate increase.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Increase {
    /// The rate rises half of the way to the target.
    FastRecovery,
    /// The target rises by the additive step; then the rate rises half of the way.
    Additive,
    /// The target rises by a number of hyper steps, which this variant contains. Then the rate
    /// rises half of the way.
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

    /// Returns the earliest time of the next frame, in picoseconds.
    pub(super) const fn next_ps(&self) -> u64 {
        self.next_ps
    }

    /// Updates the rate after a frame was sent. The frame has `bytes` bytes on the wire, including
    /// the gap.
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
        // At the full rate, the port alone spaces the frames.
        self.next_ps = now_ps;
        if self.current_bps < self.line_bps {
            self.next_ps += u64::from(bytes) * 8_000_000_000_000 / self.current_bps.max(1);
        }
    }

    /// Handles a notification. The target becomes the current rate. Then the current rate decreases
    /// by α/2 of its value.
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

    /// Updates α and the rate for all timer expiries up to now.
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

    /// Increases the rate because the timer or the counter has expired.
    fn increase(&mut self, configuration: &DcqcnConfiguration) {
        let more_bps = match self.stage(configuration.recovery_steps) {
            Increase::FastRecovery => 0,
            Increase::Additive => configuration.additive_bps,
            Increase::Hyper(steps) => configuration.hyper_bps.saturating_mul(steps.into()),
        };
        self.target_bps = self.target_bps.saturating_add(more_bps).min(self.line_bps);
        // Rounding up lets the rate reach the target.
        self.current_bps += (self.target_bps - self.current_bps).div_ceil(2);
    }

    /// Returns the kind of the next increase, according to figure 7 of the paper.
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

/// Returns how often a timer has expired, and restarts the timer at the last expiry.
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

/// The estimate α = 1 in the unit of `alpha`.
const ONE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    const GBPS: u64 = 1_000_000_000;
    const US: u64 = 1_000_000;
    /// The gain is 1/16, so that the expected values can be computed by hand.
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
        /// A frame leaves. Contains its length in bytes.
        Sent(u32),
    }

    /// Columns: time in µs; event; rate and target in Mb/s after the event; α in 1/256. The
    /// comments give rates in Gb/s.
    #[test]
    fn the_rate_machine_follows_the_paper() {
        use Step::{Notified, Sent};
        let steps = [
            // Before the first notification, timers and counter do not run, and frames leave at
            // full rate.
            (0, Sent(5_000_000), 40_000, 40_000, 256.0),
            // α is 1, so the rate halves. α becomes (1 − g) 1 + g = 1.
            (10, Notified, 20_000, 40_000, 256.0),
            // After 55 µs, α is 15/16. The rate becomes 20 (1 − 15/32) = 10.625, and α becomes
            // (15/16)² + 1/16.
            (65, Notified, 10_625, 20_000, 241.0),
            // At 165 µs the timer expires. Fast recovery: the rate becomes the mean of rate and
            // target. At 120 and 175 µs, α decreases to 15/16 of its value.
            (176, Sent(0), 15_312, 20_000, 211.816),
            // The counter expires: fast recovery again. Fast recovery ends when the timer or the
            // counter expires a second time.
            (177, Sent(1_000_000), 17_656, 20_000, 211.816),
            // The counter expires a second time: additive increase to (17.656 + 22) / 2.
            (178, Sent(1_000_000), 19_828, 22_000, 211.816),
            // The timer expires for the second time at 265 µs, and for the third time at 365 µs.
            // The targets are 24 and 26.
            (366, Sent(0), 23_957, 26_000, 174.531),
            // The counter expires a third time. Both timer and counter have expired 3 times, which
            // is 1 more than F. The target therefore rises by one hyper step of 4.
            (366, Sent(1_000_000), 26_978, 30_000, 174.531),
            // At 465 µs the timer expires a fourth time. The counter has expired only 3 times, and
            // the smaller number counts. The target therefore rises by one hyper step again.
            (466, Sent(0), 30_489, 34_000, 153.397),
            // The counter expires a fourth time. Both numbers are now 2 above F. The target
            // therefore rises by two hyper steps, but at most to the rate of the cable.
            (466, Sent(1_000_000), 35_244, 40_000, 153.397),
            // The rate becomes 35.244 (1 − 0.5992/2).
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
    fn frames_are_paced_at_the_rate_and_not_at_line_rate() {
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

//! Round-trip time of one link.

use crate::Instant;

/// How long a smallest round-trip time is believed, in nanoseconds. A route change is noticed
/// after at most this time; a queue of the sender's own making must drain once within it.
const MIN_LIFETIME_NS: u64 = 10_000_000_000;

/// Smallest sample that is believed, in nanoseconds: less than one cache miss between two threads.
const SAMPLE_NS_MIN: u64 = 100;

/// Smoothed round-trip time, its variation (RFC 6298) and its recent minimum, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    smoothed_ns: u64,
    variation_ns: u64,
    /// Minimum of the current and of the previous half of [`MIN_LIFETIME_NS`].
    min_ns: [u64; 2],
    half_started: Instant,
    sampled: bool,
}

impl RttEstimator {
    pub(crate) const fn new(initial_ns: u64, now: Instant) -> Self {
        Self {
            smoothed_ns: initial_ns,
            variation_ns: initial_ns / 2,
            min_ns: [u64::MAX; 2],
            half_started: now,
            sampled: false,
        }
    }

    /// Takes in that a packet was acknowledged `elapsed_ns` after it was sent, of which the peer
    /// spent `delay_ns` waiting. Returns the sample.
    pub(crate) fn on_sample(&mut self, now: Instant, elapsed_ns: u64, delay_ns: u64) -> u64 {
        // A delay longer than the whole is a lie or a clock that jumped.
        let sample = if delay_ns < elapsed_ns { elapsed_ns - delay_ns } else { elapsed_ns };
        let sample = sample.max(SAMPLE_NS_MIN);
        if now.since_ns(self.half_started) >= MIN_LIFETIME_NS / 2 {
            self.min_ns = [u64::MAX, self.min_ns[0]];
            self.half_started = now;
        }
        self.min_ns[0] = self.min_ns[0].min(sample);
        if self.sampled {
            let error = self.smoothed_ns.abs_diff(sample);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + error / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + sample / 8;
        } else {
            self.smoothed_ns = sample;
            self.variation_ns = sample / 2;
            self.sampled = true;
        }
        sample
    }

    pub(crate) const fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    pub(crate) const fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// The recent minimum; before the first sample the initial guess.
    pub(crate) fn min_ns(&self) -> u64 {
        if self.sampled { self.min_ns[0].min(self.min_ns[1]) } else { self.smoothed_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_guess() {
        let mut rtt = RttEstimator::new(1_000_000, Instant(0));
        assert_eq!(rtt.min_ns(), 1_000_000);
        rtt.on_sample(Instant(1), 30_000, 10_000);
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns(), rtt.min_ns()), (20_000, 10_000, 20_000));
    }

    #[test]
    fn impossible_delay_is_not_subtracted() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 30_000), 30_000);
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 4_000_000), 30_000);
    }

    #[test]
    fn minimum_follows_a_longer_route() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        rtt.on_sample(Instant(0), 10_000, 0);
        let mut now = Instant(0);
        for _ in 0..12 {
            now = now.after_ns(1_000_000_000);
            rtt.on_sample(now, 50_000, 0);
        }
        assert_eq!(rtt.min_ns(), 50_000);
    }
}

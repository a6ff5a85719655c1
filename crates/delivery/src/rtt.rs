//! Round-trip times of one link: smoothed, smallest, and the part of them that hosts take.

use crate::Instant;

/// How long a minimum is believed without being seen again, in multiples of itself and in
/// nanoseconds. After that the sender must let its queue drain for about two round trips to see it,
/// which at 500 round trips costs less than 0.4 % of the link.
const MIN_LIFETIME_ROUND_TRIPS: u64 = 500;
const MIN_LIFETIME_NS: (u64, u64) = (1_000_000_000, 10_000_000_000);

/// A new sender measures after 1/2^3 of that time, then after 1/2^2, …: when it began, the queues
/// of others were part of all it saw.
const EARLY_MEASUREMENTS: u32 = 3;

/// Time between two measurements, in nanoseconds, if others cause the second.
const JOIN_INTERVAL_NS: u64 = 1_000_000_000;

/// Most by which one such measurement raises the minimum: 1/2^2. The queue may belong to others,
/// and senders that took each other's queues for the length of the route would fill every buffer.
const RAISE_SHIFT: u32 = 2;

/// A sample this close to the minimum confirms it: 1/2^5 of it.
const CONFIRMS_SHIFT: u32 = 5;

/// Samples before a link counts as known. The first are of a time in which hosts set up links and probe
/// them: some are a hundred times what the same link shows a millisecond later.
const KNOWN_SAMPLES: u8 = 8;

/// Smoothed round-trip time, its variation (RFC 6298) and its minimum, in nanoseconds, all without
/// what the two hosts add; and what they add.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: u64,
    /// When the minimum was last seen.
    min_seen_at: Instant,
    /// Smallest sample since [`RttEstimator::start_again`].
    new_min_ns: u64,
    /// Measurements so far, at most [`EARLY_MEASUREMENTS`], and when the last one ended.
    measurements: u32,
    measured_at: Instant,
    /// Recent maximum of what acknowledgements waited at the peer and frames in this host.
    host_ns: u64,
    /// Samples so far, at most [`KNOWN_SAMPLES`].
    samples: u8,
}

crate::pack_fields!(RttEstimator {
    smoothed_ns,
    variation_ns,
    min_ns,
    min_seen_at,
    new_min_ns,
    measurements,
    measured_at,
    host_ns,
    samples,
});

impl RttEstimator {
    pub(crate) const fn new(initial_ns: u64, now: Instant) -> Self {
        Self {
            smoothed_ns: initial_ns,
            variation_ns: initial_ns / 2,
            min_ns: u64::MAX,
            min_seen_at: now,
            new_min_ns: u64::MAX,
            measurements: 0,
            measured_at: now,
            host_ns: 0,
            samples: 0,
        }
    }

    /// Takes in that a packet was acknowledged `elapsed_ns` after it was sent, of which the peer
    /// spent `delay_ns` waiting, and that the acknowledgement then waited `waited_ns` to be looked
    /// at. Returns the sample.
    pub(crate) fn on_sample(
        &mut self,
        now: Instant,
        elapsed_ns: u64,
        delay_ns: u64,
        waited_ns: u64,
    ) -> u64 {
        // A delay longer than the whole is a lie or a clock that jumped.
        let delay_ns = if delay_ns < elapsed_ns { delay_ns } else { 0 };
        let sample = (elapsed_ns - delay_ns).max(1);
        self.host_ns = self.host_ns.max(delay_ns.saturating_add(waited_ns));
        self.new_min_ns = self.new_min_ns.min(sample);
        if self.samples == 0 || sample <= self.min_ns + (self.min_ns >> CONFIRMS_SHIFT) {
            self.min_ns = self.min_ns.min(sample);
            self.min_seen_at = now;
        }
        if self.samples > 0 {
            let error = self.smoothed_ns.abs_diff(sample);
            self.variation_ns = self.variation_ns - self.variation_ns / 4 + error / 4;
            self.smoothed_ns = self.smoothed_ns - self.smoothed_ns / 8 + sample / 8;
        } else {
            self.smoothed_ns = sample;
            self.variation_ns = sample / 2;
        }
        self.samples = (self.samples + 1).min(KNOWN_SAMPLES);
        sample
    }

    /// A round trip ended: what was longest in the hosts is believed a little less.
    pub(crate) fn on_round(&mut self) {
        self.host_ns -= self.host_ns / 8;
    }

    /// Whether the minimum was not seen for so long that it is to be measured again.
    pub(crate) fn min_is_old(&self, now: Instant) -> bool {
        let (least, most) = MIN_LIFETIME_NS;
        let lifetime_ns = self.min_ns.saturating_mul(MIN_LIFETIME_ROUND_TRIPS).clamp(least, most)
            >> (EARLY_MEASUREMENTS - self.measurements);
        self.samples > 0 && now.since_ns(self.min_seen_at) > lifetime_ns
    }

    /// Whether the next sample, `sample_ns`, shows that others drain a queue that is still there:
    /// all must do it together to see the length of the route.
    pub(crate) fn others_drain(&self, now: Instant, sample_ns: u64) -> bool {
        self.samples > 0
            && sample_ns < self.smoothed_ns - self.smoothed_ns / 4
            && sample_ns > self.min_ns + self.min_ns / 4
            && now.since_ns(self.measured_at) > JOIN_INTERVAL_NS
    }

    /// From now on the queue is drained: a new minimum is to be found.
    pub(crate) fn start_again(&mut self) {
        self.new_min_ns = u64::MAX;
    }

    /// The queue was drained: the smallest sample since [`RttEstimator::start_again`] is the
    /// minimum, or a quarter more than the old one if that is less.
    pub(crate) fn finish_again(&mut self, now: Instant) {
        if self.new_min_ns < u64::MAX {
            let most = self.min_ns.saturating_add(self.min_ns >> RAISE_SHIFT);
            self.min_ns = self.new_min_ns.min(most);
        }
        self.min_seen_at = now;
        self.measured_at = now;
        self.measurements = (self.measurements + 1).min(EARLY_MEASUREMENTS);
    }

    pub(crate) const fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    pub(crate) const fn variation_ns(&self) -> u64 {
        self.variation_ns
    }

    /// What the hosts add to the round trip: a window must cover it although it is no queue.
    pub(crate) const fn host_ns(&self) -> u64 {
        self.host_ns
    }

    /// Whether there were enough samples to believe that a link is as long as its minimum.
    pub(crate) const fn is_known(&self) -> bool {
        self.samples == KNOWN_SAMPLES
    }

    /// The recent minimum; before the first sample the initial guess.
    pub(crate) const fn min_ns(&self) -> u64 {
        if self.samples > 0 { self.min_ns } else { self.smoothed_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_sample_replaces_the_guess() {
        let mut rtt = RttEstimator::new(1_000_000, Instant(0));
        assert_eq!(rtt.min_ns(), 1_000_000);
        rtt.on_sample(Instant(1), 30_000, 10_000, 0);
        assert_eq!((rtt.smoothed_ns(), rtt.variation_ns(), rtt.min_ns()), (20_000, 10_000, 20_000));
    }

    #[test]
    fn impossible_delay_is_not_subtracted() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 30_000, 0), 30_000);
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 4_000_000, 0), 30_000);
    }

    #[test]
    fn minimum_follows_a_longer_route_in_steps() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        rtt.on_sample(Instant(0), 10_000, 0, 0);
        let mut now = Instant(0);
        for expected in [12_500, 15_625, 16_000] {
            while !rtt.min_is_old(now) {
                now = now.after_ns(10_000_000);
            }
            rtt.start_again();
            rtt.on_sample(now, 16_000, 0, 0);
            rtt.finish_again(now);
            assert_eq!(rtt.min_ns(), expected);
        }
    }

    #[test]
    fn a_minimum_that_is_seen_again_stays_young() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        rtt.on_sample(Instant(0), 10_000, 0, 0);
        rtt.on_sample(Instant(100_000_000), 10_100, 0, 0);
        assert!(!rtt.min_is_old(Instant(200_000_000)));
        assert!(rtt.min_is_old(Instant(230_000_000)));
        assert_eq!(rtt.min_ns(), 10_000);
    }

    #[test]
    fn time_spent_in_hosts_is_kept_apart() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 10_000, 200_000), 20_000);
        assert_eq!(rtt.host_ns(), 210_000);
    }
}

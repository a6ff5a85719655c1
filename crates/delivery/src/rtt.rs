//! Estimates the round-trip time of one link: the smoothed value, the minimum, and the time that
//! the hosts add.

use crate::time::Instant;

/// Time for which a minimum stays valid without a sample that confirms it, in round trips.
/// `MIN_LIFETIME_NS` bounds this time from below and above, in nanoseconds. After that time, the
/// sender must drain its queue for about two round trips to measure the minimum again. Once in 500
/// round trips, this costs less than 0.4 % of the link's capacity.
const MIN_LIFETIME_ROUND_TRIPS: u64 = 500;
const MIN_LIFETIME_NS: (u64, u64) = (1_000_000_000, 10_000_000_000);

/// A new sender measures the minimum again after 1/2^3 of the time for which a minimum stays valid,
/// then after 1/2^2 of it, and so on. The reason: all first samples of a sender may include queues
/// of other senders.
const EARLY_MEASUREMENTS: u32 = 3;

/// Shortest time between two measurements of the minimum, in nanoseconds, if the sender makes the
/// second one only because other senders drain their queues.
const JOIN_INTERVAL_NS: u64 = 1_000_000_000;

/// One measurement raises the minimum by at most 1/2^2 of the minimum, because the measurement may
/// include queues of other senders. If senders mistook each other's queues for propagation delay,
/// they would fill every buffer.
const RAISE_SHIFT: u32 = 2;

/// A sample confirms the minimum if it exceeds the minimum by at most 1/2^5 of the minimum.
const CONFIRMS_SHIFT: u32 = 5;

/// Number of samples after which the round trip of a link counts as known. The hosts take the first
/// samples while they set up and probe the link. Some of these samples are a hundred times as long
/// as samples a millisecond later.
const KNOWN_SAMPLES: u8 = 8;

/// Smoothed round-trip time, its variation (RFC 6298) and its minimum, all without the time that
/// the two hosts add. `host_ns` is the time of the hosts. All values are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RttEstimator {
    smoothed_ns: u64,
    variation_ns: u64,
    min_ns: u64,
    /// Time at which a sample last confirmed the minimum.
    min_seen_at: Instant,
    /// Smallest sample since [`RttEstimator::start_again`].
    new_min_ns: u64,
    /// Number of measurements of the minimum so far, at most [`EARLY_MEASUREMENTS`]. `measured_at`
    /// is the end of the last measurement.
    measurements: u32,
    measured_at: Instant,
    /// Recent maximum of the time that acknowledgements waited at the peer and in this host, in
    /// nanoseconds.
    host_ns: u64,
    /// Number of samples so far, at most [`KNOWN_SAMPLES`].
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

    /// Records that a packet was acknowledged `elapsed_ns` after it was sent. The peer delayed the
    /// acknowledgement by `delay_ns`. After its arrival, the acknowledgement waited `waited_ns` in
    /// this host. Returns the sample, in nanoseconds.
    pub(crate) fn on_sample(
        &mut self,
        now: Instant,
        elapsed_ns: u64,
        delay_ns: u64,
        waited_ns: u64,
    ) -> u64 {
        // If the delay is longer than the elapsed time, the peer reported a wrong delay, or a clock
        // jumped.
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

    /// Ends a round trip. Reduces the recent maximum of the time in hosts by an eighth.
    pub(crate) fn on_round(&mut self) {
        self.host_ns -= self.host_ns / 8;
    }

    /// Returns whether the minimum must be measured again, because no sample has confirmed it for a
    /// long time.
    pub(crate) fn min_is_old(&self, now: Instant) -> bool {
        let (least, most) = MIN_LIFETIME_NS;
        let lifetime_ns = self.min_ns.saturating_mul(MIN_LIFETIME_ROUND_TRIPS).clamp(least, most)
            >> (EARLY_MEASUREMENTS - self.measurements);
        self.samples > 0 && now.since_ns(self.min_seen_at) > lifetime_ns
    }

    /// Returns whether the next sample, `sample_ns`, shows that other senders are draining a queue
    /// that is not empty yet. In that case this sender must also drain its queue, because the
    /// propagation delay can be measured only while all senders drain at the same time.
    pub(crate) fn others_drain(&self, now: Instant, sample_ns: u64) -> bool {
        self.samples > 0
            && sample_ns < self.smoothed_ns - self.smoothed_ns / 4
            && sample_ns > self.min_ns + self.min_ns / 4
            && now.since_ns(self.measured_at) > JOIN_INTERVAL_NS
    }

    /// Starts the search for a new minimum. Call this when the queue is drained.
    pub(crate) fn start_again(&mut self) {
        self.new_min_ns = u64::MAX;
    }

    /// Ends the search. The smallest sample since [`RttEstimator::start_again`] becomes the
    /// minimum. The minimum rises by at most a quarter.
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

    /// Returns the time that the hosts add to the round trip, in nanoseconds. The congestion window
    /// must also cover this time, although no queue on the link causes it.
    pub(crate) const fn host_ns(&self) -> u64 {
        self.host_ns
    }

    /// Returns whether enough samples were taken to trust the minimum.
    pub(crate) const fn is_known(&self) -> bool {
        self.samples == KNOWN_SAMPLES
    }

    /// Returns the recent minimum, in nanoseconds. Before the first sample, returns the initial
    /// guess.
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
    fn a_confirmed_minimum_does_not_age() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        rtt.on_sample(Instant(0), 10_000, 0, 0);
        rtt.on_sample(Instant(100_000_000), 10_100, 0, 0);
        assert!(!rtt.min_is_old(Instant(200_000_000)));
        assert!(rtt.min_is_old(Instant(230_000_000)));
        assert_eq!(rtt.min_ns(), 10_000);
    }

    #[test]
    fn time_spent_in_hosts_is_excluded_from_the_round_trip() {
        let mut rtt = RttEstimator::new(1, Instant(0));
        assert_eq!(rtt.on_sample(Instant(0), 30_000, 10_000, 200_000), 20_000);
        assert_eq!(rtt.host_ns(), 210_000);
    }
}

//! Measures the delivery rate of one link, packet by packet.
//!
//! When a packet is sent, its record stores how many bytes the link had delivered until then, and
//! the time of the last delivery. When the packet is acknowledged, the estimator computes how many
//! bytes were delivered since that time (draft-cheng-iccrg-delivery-rate-estimation). The estimate
//! is the largest of these samples in the last rounds.

use crate::time::Instant;

/// Number of rounds in each half of the maximum filter. The estimate is therefore the largest
/// sample of the last 5 to 10 round trips.
const HALF_ROUNDS: u32 = 5;

/// Time over which the steady rate is averaged, in nanoseconds. If a full token bucket on the path
/// lets 250 µs of data pass at once, the average is 6 % too high.
const STEADY_NS: u64 = 4_000_000;

/// Shortest wait of a frame, in nanoseconds, that shows that the link is busy. The wait must also
/// be longer than half of the smallest round trip. The hosts may have caused a shorter wait.
const TRAIN_WAIT_NS: u64 = 20_000;

/// If no frame of a train waited, the estimator raises the rate by 1/2^4 of the rate. (A train is
/// the frames of a message that is sent while all links are empty.)
const TRAIN_RAISE_SHIFT: u32 = 4;

/// The state of the estimator when a packet was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendStamp {
    /// Number of bytes that the link had delivered before the packet was sent, modulo 2^32. The
    /// value is unambiguous, because fewer than 2^32 bytes are in flight.
    delivered: u32,
    /// Nanoseconds from the last delivery to the sending of the packet, at most 4.3 s.
    since_delivered_ns: u32,
    /// Nanoseconds from the sending of the newest delivered packet to the sending of this packet,
    /// at most 2.1 s. The top bit is set if the amount of data of the application, and not the
    /// window, limited the bytes in flight.
    since_first_sent_ns: u32,
}

/// The newest packet that an acknowledgement covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Newest {
    pub(crate) stamp: SendStamp,
    pub(crate) sent_at: Instant,
    /// Whether the window and not the application limited the bytes in flight. This is true if the
    /// bytes in flight filled the window before this acknowledgement arrived, even if the scheduler
    /// alternated between links.
    pub(crate) window_limited: bool,
}

/// Top bit of [`SendStamp::since_first_sent_ns`].
const LIMITED: u32 = 1 << 31;

/// Measures the delivery rate of one link. The documentation of the module describes the method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateEstimator {
    /// Total number of acknowledged bytes.
    delivered: u64,
    delivered_at: Instant,
    /// Time at which the newest acknowledged packet was sent.
    first_sent_at: Instant,
    /// Packets count as limited by the application until `delivered` reaches this value.
    limited_until: u64,
    limited: bool,
    /// The current round ends when a packet is acknowledged that was sent after `delivered` had
    /// reached this value.
    round_ends: u64,
    round: u32,
    /// Number of rounds with a sample. Only such rounds count for the age of a maximum.
    sampled_rounds: u32,
    sampled: bool,
    /// Whether there is any sample for which the window and not the application was the limit.
    unlimited: bool,
    half_started: u32,
    /// Time of the acknowledgement at which the average began; the default time if no average has
    /// begun.
    average_began: Instant,
    average_bytes: u64,
    /// Whether the application limited any packet that was acknowledged since the average began.
    average_limited: bool,
    /// Long-term rate in bytes per second, or the rate that the last train has shown; 0 if unknown.
    /// A train shows a rate only if its frames waited on the link.
    steady: u64,
    /// Time at which the first frame of the train was sent; [`Instant::NEVER`] if there is no
    /// train. `train_from` is the value of `delivered` at that time.
    train_began: Instant,
    train_from: u64,
    /// Time at which a short train (the frames of one message) last showed the rate; the default
    /// time if `steady` is an average over a long time.
    trained_at: Instant,
    /// Whether the link recently delivered everything that was sent, and the window had room for
    /// more. Such a link may be faster than any measured rate.
    untried: bool,
    /// Largest sample in the current and in the previous half of the maximum filter; 0 if there is
    /// none.
    max: [u64; 2],
}

crate::pack_fields!(RateEstimator {
    delivered,
    delivered_at,
    first_sent_at,
    limited_until,
    limited,
    round_ends,
    round,
    sampled_rounds,
    sampled,
    unlimited,
    half_started,
    average_began,
    average_bytes,
    average_limited,
    steady,
    train_began,
    train_from,
    trained_at,
    untried,
    max,
});

impl RateEstimator {
    pub(crate) const fn new(now: Instant) -> Self {
        Self {
            delivered: 0,
            delivered_at: now,
            first_sent_at: now,
            limited_until: 0,
            limited: false,
            round_ends: 0,
            round: 0,
            sampled_rounds: 0,
            sampled: false,
            unlimited: false,
            half_started: 0,
            average_began: Instant(0),
            average_bytes: 0,
            average_limited: false,
            steady: 0,
            train_began: Instant::NEVER,
            train_from: 0,
            trained_at: Instant(0),
            untried: false,
            max: [0; 2],
        }
    }

    /// Records that a packet is sent while `in_flight_bytes` are in flight. A probe counts as
    /// limited by the application, because its sample does not show the rate of a full link.
    pub(crate) fn on_sent(
        &mut self,
        now: Instant,
        in_flight_bytes: u32,
        is_probe: bool,
    ) -> SendStamp {
        if in_flight_bytes == 0 {
            self.delivered_at = now;
            self.first_sent_at = now;
            self.average_began = Instant::default();
        }
        let limited = is_probe || self.limited || self.delivered < self.limited_until;
        SendStamp {
            delivered: self.delivered as u32,
            since_delivered_ns: saturate(now.since_ns(self.delivered_at)),
            since_first_sent_ns: saturate(now.since_ns(self.first_sent_at)).min(LIMITED - 1)
                | if limited { LIMITED } else { 0 },
        }
    }

    /// Records whether the application has no data to send, while the window is open.
    pub(crate) fn set_limited(&mut self, limited: bool, in_flight_bytes: u32) {
        self.limited = limited;
        if limited {
            self.limited_until = self.delivered + u64::from(in_flight_bytes);
        }
    }

    /// Records that `bytes` were acknowledged. `now` is the time at which the acknowledgement would
    /// have arrived without delays in the hosts. Returns whether a round ended: the newest
    /// acknowledged packet was sent after the end of the previous round.
    pub(crate) fn on_acked(
        &mut self,
        now: Instant,
        bytes: u32,
        newest: Newest,
        rtt_min_ns: u64,
        frame_bytes: u32,
    ) -> bool {
        let Newest { stamp: newest, sent_at: newest_sent_at, window_limited } = newest;
        self.delivered += u64::from(bytes);
        let since = (self.delivered as u32).wrapping_sub(newest.delivered);
        let round_started = self.delivered - u64::from(since) >= self.round_ends;
        if round_started {
            self.round_ends = self.delivered;
            self.round = self.round.wrapping_add(1);
            self.sampled_rounds += u32::from(core::mem::take(&mut self.sampled));
        }
        let acked_ns = now.since_ns(newest_sent_at) + u64::from(newest.since_delivered_ns);
        let sent_ns = u64::from(newest.since_first_sent_ns & !LIMITED);
        self.average(now, bytes, newest.since_first_sent_ns & LIMITED != 0);
        self.delivered_at = self.delivered_at.max(now);
        self.first_sent_at = newest_sent_at;
        let interval_ns = acked_ns.max(sent_ns);
        // Ignore an interval that is shorter than the smallest round trip, because coalesced
        // acknowledgements would give a rate that is far too high.
        if interval_ns == 0 || interval_ns < rtt_min_ns {
            return round_started;
        }
        let sample = u64::from(since) * 1_000_000_000 / interval_ns;
        let limited = newest.since_first_sent_ns & LIMITED != 0 && !window_limited;
        // If the application sends little, a sample can only raise the maximum. A sample of less
        // than a full frame shows nothing about the rate.
        if limited && (sample <= self.max() || since < frame_bytes) {
            return round_started;
        }
        self.unlimited |= !limited;
        self.take_sample(sample);
        round_started
    }

    /// Returns the largest sample of the last rounds, in bytes per second; `None` if there is no
    /// sample.
    pub(crate) fn bytes_per_second(&self) -> Option<u64> {
        let max = self.max();
        (max > 0).then_some(max)
    }

    /// Returns the long-term rate of the link, in bytes per second. If this rate is unknown,
    /// returns the larger of two values: `nominal`, the speed that the link reports, and the
    /// largest sample. If `nominal` is also unknown, returns the largest sample, or `None` if there
    /// is none.
    ///
    /// The largest sample alone may be wrong. If the application sends little, the sample is too
    /// low. If the path has a token bucket, or acknowledgements are coalesced, the sample is far
    /// too high.
    pub(crate) fn steady(&self, nominal: Option<u64>) -> Option<u64> {
        match (self.steady, nominal) {
            (0, Some(nominal)) => Some(nominal.max(self.max())),
            (0, None) => self.bytes_per_second(),
            (steady, _) => Some(steady),
        }
    }

    /// Returns the time at which a short train (the frames of one message) last showed the rate.
    /// Returns the default time if the rate is an average over a long time.
    pub(crate) const fn trained_at(&self) -> Instant {
        self.trained_at
    }

    /// Starts a train: the frames of one message, by which the sender measures the rate. The caller
    /// must have no packet in flight on any link of the connection, and must be about to send
    /// frames.
    pub(crate) const fn begin_train(&mut self, now: Instant) {
        self.train_began = now;
        self.train_from = self.delivered;
    }

    /// Ends the train, because the peer sends data. Acknowledgements may now wait behind that data,
    /// so their times do not show the rate.
    #[inline]
    pub(crate) const fn end_train(&mut self) {
        self.train_began = Instant::NEVER;
    }

    /// Learns from a train when all its frames have been delivered. The last frame was sent at
    /// `sent_at`. According to the acknowledgement of that frame, the frame then waited `waited_ns`
    /// on the link.
    ///
    /// With short messages the link is empty after each message, so the estimator never takes an
    /// average. If the path has a token bucket, the largest sample is then the speed of the
    /// interface and not the rate of the path. But if the frames of a train wait longer than it
    /// took to send them, they have kept the link busy. The rate of the train is then the rate that
    /// the next message will get. If a token bucket is refilled between two messages, this rate is
    /// higher than the long-term rate. This is intended, because short messages do pass at that
    /// rate.
    pub(crate) fn on_train(
        &mut self,
        now: Instant,
        sent_at: Instant,
        waited_ns: u64,
        rtt_min_ns: u64,
        frame_bytes: u32,
    ) {
        if sent_at < self.train_began {
            return;
        }
        let bytes = self.delivered.saturating_sub(self.train_from);
        let sending_ns = sent_at.since_ns(self.train_began);
        if sending_ns > STEADY_NS || bytes < u64::from(frame_bytes) {
            return;
        }
        let noise_ns = TRAIN_WAIT_NS + rtt_min_ns / 2;
        let rate_in = |ns: u64| bytes.saturating_mul(1_000_000_000) / ns.max(1);
        if waited_ns > noise_ns && waited_ns >= sending_ns {
            let shown = rate_in(sending_ns + waited_ns);
            self.steady = match self.steady {
                0 => shown,
                known if shown < known => u64::midpoint(known, shown),
                known => known + ((shown - known) >> TRAIN_RAISE_SHIFT),
            };
        } else if self.steady > 0 && rate_in(sending_ns + noise_ns) > self.steady {
            self.steady += self.steady >> TRAIN_RAISE_SHIFT;
        } else if self.trained_at == Instant::default() {
            return;
        }
        self.trained_at = now;
    }

    /// Returns whether the link recently delivered everything that was sent, and the window had
    /// room for more. Such a link may be faster than any measured rate.
    pub(crate) const fn is_untried(&self) -> bool {
        self.untried
    }

    /// Adds acknowledged bytes to the average. If the application was the limit, the average can
    /// raise the steady rate, but not lower it.
    fn average(&mut self, now: Instant, bytes: u32, limited: bool) {
        if self.average_began == Instant::default() {
            self.average_began = now;
            self.average_bytes = 0;
            self.average_limited = false;
            return;
        }
        self.average_bytes += u64::from(bytes);
        self.average_limited |= limited;
        let passed_ns = now.since_ns(self.average_began);
        if passed_ns < STEADY_NS {
            return;
        }
        let average = u128::from(self.average_bytes) * 1_000_000_000 / u128::from(passed_ns);
        let average = u64::try_from(average).unwrap_or(u64::MAX);
        self.untried = self.average_limited && average >= self.steady - self.steady / 4;
        // Until now, the rate is unknown, or it comes from a short train or from averages that the
        // application limited. Such averages are no better than a short train.
        let is_from_few = self.trained_at != Instant::default() || self.steady == 0;
        self.steady = match (self.average_limited, self.steady) {
            (true, known) => known.max(average),
            (false, known) if known == 0 || is_from_few => average,
            (false, known) => u64::midpoint(known, average),
        };
        if !self.average_limited {
            self.trained_at = Instant::default();
        } else if is_from_few {
            // The rate still counts as measured from few frames. Renew its time, so that it stays
            // valid until the next average while the application sends a long stream.
            self.trained_at = now;
        }
        self.average_began = now;
        self.average_bytes = 0;
        self.average_limited = false;
    }

    /// Discards all samples.
    pub(crate) const fn restart(&mut self) {
        self.unlimited = false;
        self.untried = false;
        self.steady = 0;
        self.trained_at = Instant(0);
        self.average_began = Instant(0);
        self.max = [0; 2];
    }

    /// Returns whether the application limited every sample. In this case the link may be much
    /// faster than the estimate.
    pub(crate) const fn is_lower_bound(&self) -> bool {
        !self.unlimited
    }

    /// Returns the number of the current round.
    pub(crate) const fn round(&self) -> u32 {
        self.round
    }

    fn max(&self) -> u64 {
        self.max[0].max(self.max[1])
    }

    fn take_sample(&mut self, sample: u64) {
        self.sampled = true;
        if self.sampled_rounds.wrapping_sub(self.half_started) >= HALF_ROUNDS {
            self.half_started = self.sampled_rounds;
            self.max = [0, self.max[0]];
        }
        self.max[0] = self.max[0].max(sample);
    }
}

/// Returns the number of bytes that pass in `ns` nanoseconds at `rate` bytes per second.
pub(crate) fn bytes_in(rate: u64, ns: u64) -> u64 {
    // 64 bits are enough for results up to 18 GB. On every real link, the product of rate and round
    // trip is smaller.
    match rate.checked_mul(ns) {
        Some(product) => product / 1_000_000_000,
        None => (u128::from(rate) * u128::from(ns) / 1_000_000_000).try_into().unwrap_or(u64::MAX),
    }
}

fn saturate(ns: u64) -> u32 {
    u32::try_from(ns).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(stamp: SendStamp, sent_at: Instant) -> Newest {
        Newest { stamp, sent_at, window_limited: false }
    }

    /// Sends and acknowledges `rounds` windows of `bytes` bytes, each with a round trip of
    /// `rtt_ns`.
    fn run(rate: &mut RateEstimator, now: &mut Instant, rounds: u32, bytes: u32, rtt_ns: u64) {
        for _ in 0..rounds {
            let stamp = rate.on_sent(*now, 0, false);
            let sent_at = *now;
            *now = now.after_ns(rtt_ns);
            rate.on_acked(*now, bytes, newest(stamp, sent_at), rtt_ns, 1_500);
        }
    }

    #[test]
    fn bytes_per_duration_are_exact_beyond_64_bits() {
        assert_eq!(bytes_in(125_000_000, 100_000), 12_500);
        assert_eq!(bytes_in(1_000_000, 100_000_000_000_000), 100_000_000_000);
        assert_eq!(bytes_in(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn rate_is_bytes_per_round_trip() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        run(&mut rate, &mut now, 1, 12_500, 100_000);
        assert_eq!(rate.bytes_per_second(), Some(125_000_000));
    }

    #[test]
    fn a_full_window_shows_the_capacity_even_if_links_took_turns() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        for window_limited in [false, true] {
            rate.set_limited(true, 0);
            let stamp = rate.on_sent(now, 0, false);
            let sent_at = now;
            now = now.after_ns(100_000);
            let newest = Newest { stamp, sent_at, window_limited };
            rate.on_acked(now, 12_500, newest, 10_000, 1_500);
            assert_eq!(rate.bytes_per_second(), Some(125_000_000));
            assert_eq!(rate.is_lower_bound(), !window_limited);
        }
    }

    #[test]
    fn a_step_down_is_followed_within_ten_rounds() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        run(&mut rate, &mut now, 20, 12_500, 100_000);
        run(&mut rate, &mut now, 11, 1_250, 100_000);
        assert_eq!(rate.bytes_per_second(), Some(12_500_000));
    }

    /// Sends a train of `bytes` bytes. Its last frame waits for `waited_ns`.
    fn train(rate: &mut RateEstimator, now: &mut Instant, bytes: u32, waited_ns: u64) {
        let sent_at = *now;
        rate.begin_train(sent_at);
        let stamp = rate.on_sent(sent_at, 0, false);
        *now = now.after_ns(10_000 + waited_ns);
        rate.on_acked(*now, bytes, newest(stamp, sent_at), 10_000, 1_500);
        rate.on_train(*now, sent_at, waited_ns, 10_000, 1_500);
    }

    #[test]
    fn queued_short_messages_show_the_capacity_of_a_link() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        let nominal = Some(1_250_000_000);
        assert_eq!(rate.steady(nominal), nominal);
        train(&mut rate, &mut now, 1_500, 1_000);
        assert_eq!(rate.steady(nominal), nominal, "it passed at once");
        train(&mut rate, &mut now, 1_500, 120_000);
        assert_eq!(rate.steady(nominal), Some(12_500_000));
        train(&mut rate, &mut now, 1_500, 240_000);
        assert_eq!(rate.steady(nominal), Some(9_375_000), "half way");
        train(&mut rate, &mut now, 1_500, 1_000);
        assert_eq!(rate.steady(nominal), Some(9_375_000 + 9_375_000 / 16));
    }

    #[test]
    fn a_rate_from_short_messages_lasts_while_frames_flow() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        train(&mut rate, &mut now, 1_500, 120_000);
        rate.on_sent(now, 0, false);
        rate.set_limited(true, 1_500);
        for _ in 0..1000 {
            let sent_at = now;
            let next = rate.on_sent(sent_at, 1_500, false);
            now = now.after_ns(120_000);
            rate.on_acked(now, 1_500, newest(next, sent_at), 10_000, 1_500);
        }
        let steady = rate.steady(None).unwrap();
        assert!((12_000_000..=14_000_000).contains(&steady), "{steady}");
        assert!(now.since_ns(rate.trained_at()) <= 2 * STEADY_NS, "it would begin to be forgotten");
    }

    #[test]
    fn delays_behind_peer_data_and_of_small_frames_give_no_rate() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        train(&mut rate, &mut now, 100, 120_000);
        assert_eq!(rate.steady(Some(1_250_000_000)), Some(1_250_000_000));
        let stamp = rate.on_sent(now, 0, false);
        let sent_at = now;
        rate.begin_train(sent_at);
        rate.end_train();
        now = now.after_ns(130_000);
        rate.on_acked(now, 1_500, newest(stamp, sent_at), 10_000, 1_500);
        rate.on_train(now, sent_at, 120_000, 10_000, 1_500);
        assert_eq!(rate.steady(Some(1_250_000_000)), Some(1_250_000_000));
    }

    #[test]
    fn a_limited_application_only_raises_the_rate() {
        let (mut rate, mut now) = (RateEstimator::new(Instant(0)), Instant(5));
        run(&mut rate, &mut now, 3, 12_500, 100_000);
        rate.set_limited(true, 0);
        run(&mut rate, &mut now, 100, 100, 100_000);
        assert_eq!(rate.bytes_per_second(), Some(125_000_000));
        run(&mut rate, &mut now, 1, 25_000, 100_000);
        assert_eq!(rate.bytes_per_second(), Some(250_000_000));
    }
}

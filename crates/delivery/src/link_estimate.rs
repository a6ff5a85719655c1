//! Estimates the rate, delay and queue of a link. The scheduler uses only these values to choose
//! between links (sender.md, 8). Rates are in bytes per second, times in nanoseconds.

use crate::congestion::HOST_NS_MAX;
use crate::rate::RateEstimator;
use crate::rtt::RttEstimator;
use crate::time::Instant;

/// The estimate that one end has of one link.
///
/// Most values change only when a new packet is acknowledged. There are two exceptions. `idle_at`
/// also moves with each frame that is sent on the link, because otherwise all frames of a turn
/// would go to one link. `alike` depends on all links of the connection, and on which of them are
/// usable.
#[derive(Clone, Copy, Debug)]
pub struct LinkEstimate {
    /// Speed that the link reports; 0 if unknown.
    nominal: u64,
    /// Long-term rate of the link. If that rate is unknown, the larger of two values: the speed
    /// that the link reports and the largest recent sample. 0 if none of the three is known.
    carried: u64,
    /// If `carried` was measured from only a few frames: the time of that measurement. From this
    /// time on, `carried` counts as twice as large after each further [`TRAIN_LIFETIME_NS`]. If
    /// this is the default time, `carried` keeps its value.
    fades_from: Instant,
    /// Rate of the fastest link of the connection, if this link counts as equally fast; otherwise
    /// 0.
    alike: u64,
    /// Smallest round-trip time, in nanoseconds.
    delay_ns: u64,
    /// Smoothed round-trip time minus twice the smallest round-trip time, in nanoseconds; 0 if that
    /// is negative.
    wait_ns: u64,
    /// Time at which the link will have carried all frames that were passed to it.
    idle_at: Instant,
    /// Whether `delay_ns` comes from enough samples.
    is_delay_known: bool,
    /// Whether the samples so far show no rate, because the first frames may have been late and the
    /// application had little to send.
    is_vague: bool,
    /// Whether the link recently delivered everything that was sent, and the window had room for
    /// more.
    is_untried: bool,
}

crate::pack_fields!(LinkEstimate {
    nominal,
    carried,
    fades_from,
    alike,
    idle_at,
    is_vague,
    is_untried,
} delay_ns = 0, wait_ns = 0, is_delay_known = false);

impl LinkEstimate {
    /// Creates the estimate of an idle link whose reported speed is `nominal`.
    pub(crate) fn new(
        nominal: Option<u64>,
        rate: &RateEstimator,
        rtt: &RttEstimator,
        now: Instant,
    ) -> Self {
        let mut estimate = Self {
            nominal: nominal.unwrap_or(0),
            carried: 0,
            fades_from: Instant::default(),
            alike: 0,
            delay_ns: 0,
            wait_ns: 0,
            idle_at: now,
            is_delay_known: false,
            is_vague: true,
            is_untried: false,
        };
        estimate.update(rate, rtt);
        estimate
    }

    /// Updates the estimate after an acknowledgement of a new packet, or after measurements were
    /// discarded.
    pub(crate) fn update(&mut self, rate: &RateEstimator, rtt: &RttEstimator) {
        self.carried = rate.steady(self.nominal()).unwrap_or(0);
        self.fades_from = rate.trained_at();
        self.take_round_trips(rtt);
        self.is_vague = !rtt.is_known() && rate.is_lower_bound();
        self.is_untried = rate.is_untried();
    }

    /// Updates the values that depend only on round-trip times. These values change only when the
    /// peer acknowledges packets.
    pub(crate) fn take_round_trips(&mut self, rtt: &RttEstimator) {
        self.delay_ns = rtt.min_ns();
        self.wait_ns = rtt.smoothed_ns().saturating_sub(rtt.min_ns().saturating_mul(2));
        self.is_delay_known = rtt.is_known();
    }

    /// Sets the long-term rate of the fastest link of the connection, in bytes per second. A link
    /// with at least half of that rate counts as equally fast. The measured rate depends on the
    /// amount of data that the link was given, and may be wrong by a factor of 2. An error of this
    /// size must not decide how much data the link gets.
    pub const fn compare_with(&mut self, fastest: u64) {
        self.alike = if self.carried >= fastest / MISTAKEN_TIMES { fastest } else { 0 };
    }

    /// Returns the long-term rate of the link, in bytes per second, or `None` if it is unknown.
    /// This rate does not grow with time, unlike that of [`Self::worth_trying`].
    pub fn carried(&self) -> Option<u64> {
        (self.carried > 0).then_some(self.carried)
    }

    /// Returns the rate to assume for the link in a choice among several links, in bytes per
    /// second, for frames of `frame_bytes` bytes. Returns `None` if no rate is known. There are
    /// three cases:
    ///
    /// * Normally, this is the measured rate.
    /// * While the link delivers everything that it is given and has no queue, this is twice the
    ///   measured rate. Otherwise a link that seems slow would get little data, and would continue
    ///   to seem slow.
    /// * If the only measurement comes from a few frames that may have been late, this is the speed
    ///   that the link itself reports.
    pub fn worth_trying(&self, now: Instant, frame_bytes: u32) -> Option<u64> {
        if self.is_vague {
            return self.nominal();
        }
        let rate = self.carried_by_now(now)?.max(self.alike);
        let is_tried = !self.is_untried || self.has_queue(frame_bytes);
        Some(if is_tried { rate } else { rate.saturating_mul(2) })
    }

    /// Returns the speed that the link reports, in bytes per second; `None` if it is unknown.
    pub(crate) fn nominal(&self) -> Option<u64> {
        (self.nominal > 0).then_some(self.nominal)
    }

    /// Returns the rate that the link carries, in bytes per second; `None` if it is unknown. A rate
    /// that was measured from only a few frames grows with time, up to the speed that the link
    /// reports.
    fn carried_by_now(&self, now: Instant) -> Option<u64> {
        let carried = self.carried()?;
        if self.fades_from == Instant::default() {
            return Some(carried);
        }
        let doublings = now.since_ns(self.fades_from) / TRAIN_LIFETIME_NS;
        let doubled = u32::try_from(doublings).ok().and_then(|by| 1_u64.checked_shl(by));
        let most = self.nominal().unwrap_or(u64::MAX).max(carried);
        Some(carried.saturating_mul(doubled.unwrap_or(u64::MAX)).min(most))
    }

    /// Returns the smallest round-trip time, in nanoseconds. Before the first sample, returns the
    /// initial guess.
    pub const fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    /// Returns the time that a frame takes to the peer without queueing, in nanoseconds.
    /// `shortest_ns` is the smallest round trip of all links. The peer returns all acknowledgements
    /// over the shortest link, so an acknowledgement takes half of `shortest_ns`, whichever link
    /// carried the frame. A link with few samples counts as no longer than the shortest link.
    /// Without this, a connection with only short messages would never measure such a link.
    pub fn one_way_ns(&self, shortest_ns: u64) -> u64 {
        let own_ns = if self.is_delay_known { self.delay_ns.max(shortest_ns) } else { shortest_ns };
        own_ns.saturating_sub(shortest_ns / 2)
    }

    /// Returns the time at which the link will have carried all frames that were passed to it, at
    /// least `now`.
    pub fn idle_at(&self, now: Instant) -> Instant {
        self.idle_at.max(now)
    }

    /// Returns whether frames wait on the link so long that a delay in the hosts cannot be the only
    /// cause.
    pub fn has_queue(&self, frame_bytes: u32) -> bool {
        self.waits_beyond(QUEUE_SEEN_NS, frame_bytes)
    }

    /// Returns whether frames wait so long that the link, and not a host, must be the bottleneck.
    pub fn waits_long(&self, frame_bytes: u32) -> bool {
        self.waits_beyond(HOST_NS_MAX, frame_bytes)
    }

    /// Returns whether frames wait on the link for longer than both `hosts_ns`, the time that hosts
    /// may take, and the time that the link needs for [`QUEUE_SEEN_FRAMES`] frames.
    fn waits_beyond(&self, hosts_ns: u64, frame_bytes: u32) -> bool {
        // Make the cheap comparison first. On most links frames do not wait long, and the division
        // in `time_of` takes as long as all other work here.
        self.wait_ns > hosts_ns && self.wait_ns > self.time_of(QUEUE_SEEN_FRAMES * frame_bytes)
    }

    /// Records that a frame is passed to the link. Returns the expected nanoseconds until the link
    /// has sent the frame.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) -> u64 {
        self.idle_at = self.idle_at.max(now).after_ns(self.time_of(bytes));
        self.idle_at.since_ns(now)
    }

    /// Records that the link did not send a frame that was passed to it.
    pub(crate) fn on_taken_back(&mut self, bytes: u32) {
        self.idle_at = Instant(self.idle_at.0.saturating_sub(self.time_of(bytes)));
    }

    /// Records that a frame of `bytes` bytes waited in the queue of the link for `queued_ns`.
    /// [`Self::on_sent`] had predicted `expected_ns` for waiting and sending together. Moves
    /// `idle_at` by half of the difference.
    pub(crate) fn on_waited(&mut self, bytes: u32, queued_ns: u64, expected_ns: u64) {
        let waited_ns = queued_ns.saturating_add(self.time_of(bytes));
        self.idle_at = if waited_ns >= expected_ns {
            self.idle_at.after_ns((waited_ns - expected_ns) / 2)
        } else {
            Instant(self.idle_at.0.saturating_sub((expected_ns - waited_ns) / 2))
        };
    }

    /// Records that at most `bytes` bytes are queued on the link.
    pub(crate) fn bound_queue(&mut self, now: Instant, bytes: u32) {
        self.idle_at = self.idle_at.min(now.after_ns(self.time_of(bytes)));
    }

    /// Records that other links will carry all frames that were passed to this link.
    pub(crate) const fn on_drained(&mut self) {
        self.idle_at = Instant(0);
    }

    /// Returns how long the link takes to send `bytes`, in nanoseconds.
    fn time_of(&self, bytes: u32) -> u64 {
        let rate = self.carried().unwrap_or(u64::MAX).max(self.alike);
        u64::from(bytes) * 1_000_000_000 / rate
    }
}

/// Nanoseconds for which a rate that was measured from a few frames is trusted without
/// confirmation.
const TRAIN_LIFETIME_NS: u64 = 20_000_000;

/// Limits by which a queue on the link is recognised. The round trip minus twice the shortest round
/// trip must exceed both [`QUEUE_SEEN_NS`] and the time that the link needs for `QUEUE_SEEN_FRAMES`
/// frames. The hosts may cause a smaller difference. At 1 Gb/s, four frames pass in
/// [`QUEUE_SEEN_NS`].
const QUEUE_SEEN_FRAMES: u32 = 4;
const QUEUE_SEEN_NS: u64 = 50_000;

/// Factor by which the measured rate of a link may be below the rate of the fastest link of its
/// connection. Within this factor, the link counts as equally fast.
const MISTAKEN_TIMES: u64 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(nominal: Option<u64>) -> LinkEstimate {
        let (rate, rtt) = (RateEstimator::new(NOW), RttEstimator::new(20_000, NOW));
        let estimate = LinkEstimate::new(nominal, &rate, &rtt, NOW);
        LinkEstimate { carried: 12_500_000, is_vague: false, ..estimate }
    }

    #[test]
    fn an_estimate_from_few_frames_fades_with_time() {
        let nominal = Some(1_250_000_000);
        let estimate = LinkEstimate { fades_from: NOW, ..estimate(nominal) };
        let by_now = |ns: u64| estimate.worth_trying(NOW.after_ns(ns), 1_500);
        assert_eq!(by_now(0), Some(12_500_000));
        assert_eq!(by_now(2 * TRAIN_LIFETIME_NS), Some(50_000_000));
        assert_eq!(by_now(1_000_000_000), nominal);
        let seen_in_the_long_run = LinkEstimate { fades_from: Instant::default(), ..estimate };
        let later = seen_in_the_long_run.worth_trying(NOW.after_ns(1_000_000_000), 1_500);
        assert_eq!(later, Some(12_500_000));
    }

    #[test]
    fn an_untried_link_without_a_queue_is_tried_at_twice_its_rate() {
        let untried = LinkEstimate { is_untried: true, ..estimate(None) };
        assert_eq!(untried.worth_trying(NOW, 1_500), Some(25_000_000));
        // Four frames take 480 us.
        let waiting = LinkEstimate { wait_ns: 480_001, ..untried };
        assert_eq!(waiting.worth_trying(NOW, 1_500), Some(12_500_000));
        assert!(waiting.waits_long(1_500));
    }

    #[test]
    fn late_first_frames_give_no_rate() {
        let vague = LinkEstimate { is_vague: true, ..estimate(None) };
        assert_eq!(vague.worth_trying(NOW, 1_500), None);
        let vague = LinkEstimate { is_vague: true, ..estimate(Some(125_000_000)) };
        assert_eq!(vague.worth_trying(NOW, 1_500), Some(125_000_000));
    }

    #[test]
    fn a_barely_measured_link_counts_as_having_the_shortest_delay() {
        let unknown = LinkEstimate { delay_ns: 2_000_000, ..estimate(None) };
        assert_eq!(unknown.one_way_ns(20_000), 10_000);
        let known = LinkEstimate { is_delay_known: true, ..unknown };
        assert_eq!(known.one_way_ns(20_000), 1_990_000);
    }

    #[test]
    fn a_frame_that_waited_longer_than_expected_delays_later_frames_by_half() {
        let mut estimate = estimate(None);
        assert_eq!(estimate.on_sent(NOW, 1_250), 100_000);
        assert_eq!(estimate.on_sent(NOW, 1_250), 200_000);
        estimate.on_waited(1_250, 40_000, 100_000);
        assert_eq!(estimate.idle_at(NOW), NOW.after_ns(220_000));
        estimate.on_taken_back(1_250);
        assert_eq!(estimate.idle_at(NOW), NOW.after_ns(120_000));
        estimate.bound_queue(NOW, 0);
        assert_eq!(estimate.idle_at(NOW), NOW);
    }

    const NOW: Instant = Instant(1_000_000_000);
}

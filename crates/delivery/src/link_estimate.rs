//! How fast a link is, how long it is, and how much waits on it: all that the choice between links knows of
//! that (sender.md, 8). Rates are in bytes per second, times in nanoseconds.

use crate::Instant;
use crate::congestion::HOST_NS_MAX;
use crate::rate::RateEstimator;
use crate::rtt::RttEstimator;

/// What one end believes of one link.
///
/// Rates, delay and the wait that round trips show are computed with each acknowledgement that shows
/// anything new, and do not change in between. Two things must be fresher: when the link is idle, which
/// each frame handed to it moves back, as all frames of a turn would else go to one link; and which links
/// count as equal, as that follows from all of them and from which of them are usable.
#[derive(Clone, Copy, Debug)]
pub struct LinkEstimate {
    /// What the link says of itself; 0 if nothing.
    nominal: u64,
    /// What it was seen to carry in the long run. As long as that is not known, what the link says of itself
    /// or it was seen to carry of late, whichever is more; 0 if neither is known.
    carried: u64,
    /// From when on `carried` doubles each [`TRAIN_LIFETIME_NS`], as few frames have shown it; default if
    /// it does not.
    fades_from: Instant,
    /// Rate of the fastest link of the connection, if this one is taken for as fast; else 0.
    alike: u64,
    /// Smallest round trip.
    delay_ns: u64,
    /// What the smoothed round trip is longer than twice the smallest.
    wait_ns: u64,
    /// When the link will have carried what was handed to it.
    idle_at: Instant,
    /// There were enough samples to believe in `delay_ns`.
    is_delay_known: bool,
    /// The first frames may have been late, and the application was the limit: no rate follows.
    is_vague: bool,
    /// It lately delivered all it was given although more could have been in flight.
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
    /// Of an idle link that says `nominal` of itself.
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

    /// Something new was acknowledged, or what was measured was forgotten.
    pub(crate) fn update(&mut self, rate: &RateEstimator, rtt: &RttEstimator) {
        self.carried = rate.steady(self.nominal()).unwrap_or(0);
        self.fades_from = rate.trained_at();
        self.take_round_trips(rtt);
        self.is_vague = !rtt.is_known() && rate.is_lower_bound();
        self.is_untried = rate.is_untried();
    }

    /// What follows from round trips alone, which change with acknowledgements only.
    pub(crate) fn take_round_trips(&mut self, rtt: &RttEstimator) {
        self.delay_ns = rtt.min_ns();
        self.wait_ns = rtt.smoothed_ns().saturating_sub(rtt.min_ns().saturating_mul(2));
        self.is_delay_known = rtt.is_known();
    }

    /// Sets the long-term rate of the fastest link of the connection, in bytes per second. A link that seems to
    /// carry nearly as much is taken for as fast, because rates that are measured from what a link was given are
    /// wrong by about as much, and what a link is given must not follow from such errors.
    pub const fn compare_with(&mut self, fastest: u64) {
        self.alike = if self.carried >= fastest / MISTAKEN_TIMES { fastest } else { 0 };
    }

    /// Returns the rate that the link carries in the long run, in bytes per second, as far as is known,
    /// independently of the rate that it may carry now.
    pub fn carried(&self) -> Option<u64> {
        (self.carried > 0).then_some(self.carried)
    }

    /// Returns the rate, in bytes per second, at which a link with frames of `frame_bytes` should be tried among
    /// several: the measured one, or more as long as it delivers all that it is given and nothing queues on it.
    /// Without this, a link that is given little because it is believed to be slow would remain so. So would one
    /// whose first frames were late, because the least rate that a few frames have shown is no estimate.
    pub fn worth_trying(&self, now: Instant, frame_bytes: u32) -> Option<u64> {
        if self.is_vague {
            return self.nominal();
        }
        let rate = self.carried_by_now(now)?.max(self.alike);
        let is_tried = !self.is_untried || self.has_queue(frame_bytes);
        Some(if is_tried { rate } else { rate.saturating_mul(2) })
    }

    /// What the link says of itself.
    pub(crate) fn nominal(&self) -> Option<u64> {
        (self.nominal > 0).then_some(self.nominal)
    }

    /// What it carries, slowly more where it was seen long ago and from a few frames only, until it is
    /// what the link says of itself.
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

    /// Returns the smallest round-trip time in nanoseconds; before the first sample the initial guess.
    pub const fn delay_ns(&self) -> u64 {
        self.delay_ns
    }

    /// Returns how long a frame takes to the peer without queueing, in nanoseconds, if `shortest_ns` is the
    /// smallest round trip of all links. Acknowledgements of all links come back the same way, so half of that is
    /// part of each. A link of which little is known counts as no longer than the shortest: short messages alone
    /// would never find out.
    pub fn one_way_ns(&self, shortest_ns: u64) -> u64 {
        let own_ns = if self.is_delay_known { self.delay_ns.max(shortest_ns) } else { shortest_ns };
        own_ns.saturating_sub(shortest_ns / 2)
    }

    /// Returns when the link will have carried what was handed to it; not before `now`.
    pub fn idle_at(&self, now: Instant) -> Instant {
        self.idle_at.max(now)
    }

    /// Whether frames wait on the link for longer than hosts explain.
    pub fn has_queue(&self, frame_bytes: u32) -> bool {
        self.waits_beyond(QUEUE_SEEN_NS, frame_bytes)
    }

    /// Whether they wait so long that no host explains it, and the link is what limits.
    pub fn waits_long(&self, frame_bytes: u32) -> bool {
        self.waits_beyond(HOST_NS_MAX, frame_bytes)
    }

    /// Whether frames wait on the link for longer than `hosts_ns`, which hosts may take, and than some
    /// frames take.
    fn waits_beyond(&self, hosts_ns: u64, frame_bytes: u32) -> bool {
        // In this order: nothing waits for long on most links, and the division takes as long as the rest.
        self.wait_ns > hosts_ns && self.wait_ns > self.time_of(QUEUE_SEEN_FRAMES * frame_bytes)
    }

    /// A frame is handed to the link; returns for how long it will wait and be sent.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) -> u64 {
        self.idle_at = self.idle_at.max(now).after_ns(self.time_of(bytes));
        self.idle_at.since_ns(now)
    }

    /// A frame was not sent after all.
    pub(crate) fn on_taken_back(&mut self, bytes: u32) {
        self.idle_at = Instant(self.idle_at.0.saturating_sub(self.time_of(bytes)));
    }

    /// A frame of `bytes` waited for `queued_ns` on the link, and was expected to wait and be sent within
    /// `expected_ns`: what followed it waits as much longer or shorter, of which half is believed.
    pub(crate) fn on_waited(&mut self, bytes: u32, queued_ns: u64, expected_ns: u64) {
        let waited_ns = queued_ns.saturating_add(self.time_of(bytes));
        self.idle_at = if waited_ns >= expected_ns {
            self.idle_at.after_ns((waited_ns - expected_ns) / 2)
        } else {
            Instant(self.idle_at.0.saturating_sub((expected_ns - waited_ns) / 2))
        };
    }

    /// Not more than `bytes` are on the link.
    pub(crate) fn bound_queue(&mut self, now: Instant, bytes: u32) {
        self.idle_at = self.idle_at.min(now.after_ns(self.time_of(bytes)));
    }

    /// What was handed to the link goes over others.
    pub(crate) const fn on_drained(&mut self) {
        self.idle_at = Instant(0);
    }

    /// How long the link takes to send so many bytes.
    fn time_of(&self, bytes: u32) -> u64 {
        let rate = self.carried().unwrap_or(u64::MAX).max(self.alike);
        u64::from(bytes) * 1_000_000_000 / rate
    }
}

/// How long a rate that few frames have shown is believed without being seen again, in nanoseconds.
const TRAIN_LIFETIME_NS: u64 = 20_000_000;

/// A round trip longer than twice the shortest shows a queue if it is so by this many frames of the link,
/// and by this time, in nanoseconds, which four frames take at 1 Gb/s: hosts take some of it, too.
const QUEUE_SEEN_FRAMES: u32 = 4;
const QUEUE_SEEN_NS: u64 = 50_000;

/// A link that seems to be slower than the fastest of its connection by this factor or less is taken for
/// as fast.
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
    fn what_few_frames_have_shown_is_forgotten_by_and_by() {
        let nominal = Some(1_250_000_000);
        let estimate = LinkEstimate { fades_from: NOW, ..estimate(nominal) };
        let by_now = |ns: u64| estimate.worth_trying(NOW.after_ns(ns), 1_500);
        assert_eq!(by_now(0), Some(12_500_000));
        assert_eq!(by_now(2 * TRAIN_LIFETIME_NS), Some(50_000_000));
        assert_eq!(by_now(1_000_000_000), nominal);
        let seen_in_the_long_run = LinkEstimate { fades_from: Instant::default(), ..estimate };
        let by_then = seen_in_the_long_run.worth_trying(NOW.after_ns(1_000_000_000), 1_500);
        assert_eq!(by_then, Some(12_500_000));
    }

    #[test]
    fn a_link_on_which_nothing_waits_is_tried_with_twice_what_it_was_given() {
        let untried = LinkEstimate { is_untried: true, ..estimate(None) };
        assert_eq!(untried.worth_trying(NOW, 1_500), Some(25_000_000));
        // Four frames take 480 us.
        let waiting = LinkEstimate { wait_ns: 480_001, ..untried };
        assert_eq!(waiting.worth_trying(NOW, 1_500), Some(12_500_000));
        assert!(waiting.waits_long(1_500));
    }

    #[test]
    fn what_late_first_frames_have_shown_is_no_rate() {
        let vague = LinkEstimate { is_vague: true, ..estimate(None) };
        assert_eq!(vague.worth_trying(NOW, 1_500), None);
        let vague = LinkEstimate { is_vague: true, ..estimate(Some(125_000_000)) };
        assert_eq!(vague.worth_trying(NOW, 1_500), Some(125_000_000));
    }

    #[test]
    fn a_link_of_which_little_is_known_counts_as_long_as_the_shortest() {
        let unknown = LinkEstimate { delay_ns: 2_000_000, ..estimate(None) };
        assert_eq!(unknown.one_way_ns(20_000), 10_000);
        let known = LinkEstimate { is_delay_known: true, ..unknown };
        assert_eq!(known.one_way_ns(20_000), 1_990_000);
    }

    #[test]
    fn a_frame_that_waited_longer_than_expected_puts_off_those_behind_it_by_half() {
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

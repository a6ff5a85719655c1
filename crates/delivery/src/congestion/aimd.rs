//! The default algorithm: additive increase, and multiplicative decrease on marks and losses. A
//! lower and an upper bound of the window follow from the measured rate.

use super::{AckSample, CongestionController, LossSample, Undo, WINDOW_FRAMES_MIN};
use crate::rate::bytes_in;
use crate::time::Instant;

/// Percentage of the window that remains after a loss (CUBIC, RFC 9438 §4.6).
const LOSS_LEAVES_PERCENT: u64 = 70;

/// Weight of the last round trip in the smoothed fraction of marked frames: 1/16 (DCTCP, RFC 8257
/// §3.3).
const MARKED_SHARE_SHIFT: u32 = 4;

/// The fixed-point value that means that all frames are marked.
const MARKED_SHARE_ONE: u32 = 1 << 10;

/// Number of round trips after a mark during which the measured rate gives no lower bound of the
/// window.
const MARK_LASTS_ROUNDS: u8 = 8;

/// Number of packets in an epoch. At the end of an epoch, the controller decides whether losses are
/// excessive. At 5 % random loss, 6.4 of 128 packets are lost on average, with a standard deviation
/// of 2.5. The threshold of 16 losses is nearly four deviations above the average.
const LOSS_EPOCH_PACKETS: u32 = 128;

/// Largest fraction of packets that counts as lost at random: one in this number. If a larger
/// fraction is lost, the link is overloaded. The measured rate then gives no lower bound of the
/// window. With such a bound, many senders could each send at their measured rate and keep a short
/// queue overflowing.
const LOSS_EXCESSIVE_ONE_IN: u32 = 8;

/// Number of frames that the window of a slow link allows in addition to twice the bandwidth-delay
/// product. If both hosts pause, the link stays busy while it sends these frames: for 170 µs at 1
/// Gb/s.
const SLACK_FRAMES: u32 = 14;

/// Longest time, in nanoseconds, that the link may need to send the additional frames
/// ([`SLACK_FRAMES`]) of the window. But the window always allows at least the bytes of three
/// bursts. Below 360 Mb/s, the link sends less than three bursts in this time.
const SLACK_NS: u64 = 200_000;

/// Maximum number of bytes that the window allows for the time that frames spend in the hosts. If a
/// queue in a host causes this time, a larger window makes that queue longer, and without this
/// bound the window would grow without limit. In addition, more bytes would not fit into the
/// second-level cache of the receiving processor.
const HOST_BYTES_MAX: u64 = 256 * 1024;

/// Longest time that frames spend in the hosts for which the window allows bytes, in nanoseconds. A
/// longer time means that a host was descheduled, which happens only once in many round trips. If
/// the window allowed bytes for such a time, a slow link would always have a queue that takes this
/// long.
pub(crate) const HOST_NS_MAX: u64 = 300_000;

/// Upper bound of the bandwidth-delay product, in bytes. No window reaches this bound, because the
/// records of one link are not enough for so many bytes in flight.
const WINDOW_BYTES_MAX: u64 = u32::MAX as u64;

/// Number of round trips with the window at its upper bound, the cap, after which the sender tries
/// a larger window.
const CRUISE_ROUNDS: u8 = 32;

/// Congestion control that reacts to congestion marks and losses.
///
/// The window first doubles every round trip, and then grows by one frame per round trip. A
/// congestion mark reduces the window in proportion to the fraction of marked frames (DCTCP), at
/// most once per round trip. A loss reduces the window to 70 %, also at most once per round trip.
///
/// Two bounds follow from the measured rate, the smallest round-trip time of the network and the
/// time that frames spend in the hosts:
/// * A loss does not reduce the window below rate · (1.25 · RTT + hosts) + 2 bursts, because the
///   link has just delivered at this rate (like in TCP Westwood). With this bound, random loss
///   costs hardly any throughput.
/// * The window does not exceed a cap: rate · (2 · RTT + hosts) + 3 bursts, or some frames more if
///   bursts are short. The cap keeps the queue short without a signal from the network.
///
/// The true round trip may be longer than the measured values. In that case the cap would be too
/// low, and would reinforce itself: fewer bytes in flight give a lower rate, and a lower rate gives
/// a lower cap. Therefore, after some round trips at the cap, the sender tries a window that is
/// larger by half. If the rate then rises and the round trip does not become longer, the sender
/// continues with the larger window. A longer round trip would show that the sender only took
/// bandwidth from other senders.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    window: u32,
    /// Size of the window, in bytes, below which the window doubles every round trip.
    threshold: u32,
    frame_bytes: u32,
    /// Number of acknowledged bytes after the window last grew. The window grows by a frame when
    /// this number reaches the window.
    credit: u32,
    undo: Undo,
    /// Lower bound of the window after a loss, in bytes. It follows from the measured rate.
    floor: u32,
    cap: u32,
    /// Smoothed fraction of frames that are marked, in 1/1024.
    marked_share: u32,
    round_packets: u32,
    round_marked: u32,
    /// Number of further round trips for which the last congestion mark counts as recent.
    mark_recent_rounds: u8,
    epoch_packets: u32,
    epoch_lost: u32,
    /// Whether the last epoch had more losses than random loss can explain.
    loss_excessive: bool,
    search: CapSearch,
}

crate::pack_fields!(Aimd {
    window,
    threshold,
    frame_bytes,
    credit,
    undo,
    floor,
    cap,
    marked_share,
    round_packets,
    round_marked,
    mark_recent_rounds,
    epoch_packets,
    epoch_lost,
    loss_excessive,
    search,
});

impl Aimd {
    /// Creates the controller with a window of `initial_frames` frames of `frame_bytes` bytes.
    pub fn new(initial_frames: u32, frame_bytes: u32) -> Self {
        Self {
            window: initial_frames.max(WINDOW_FRAMES_MIN).saturating_mul(frame_bytes),
            threshold: u32::MAX,
            frame_bytes,
            credit: 0,
            undo: Undo::NOTHING,
            floor: 0,
            cap: u32::MAX,
            marked_share: MARKED_SHARE_ONE,
            round_packets: 0,
            round_marked: 0,
            mark_recent_rounds: 0,
            epoch_packets: 0,
            epoch_lost: 0,
            loss_excessive: false,
            search: CapSearch::default(),
        }
    }

    fn window_min(&self) -> u32 {
        WINDOW_FRAMES_MIN * self.frame_bytes
    }

    /// Returns `floor`, the lower bound of the window that follows from the measured rate, in
    /// bytes. Returns 0 if there were recent marks or excessive losses, because these show that the
    /// link does not carry the measured rate.
    fn usable_floor(&self) -> u32 {
        if self.loss_excessive || self.mark_recent_rounds > 0 { 0 } else { self.floor }
    }

    fn count_epoch(&mut self, packets: u32, lost: u32) {
        self.epoch_packets += packets;
        self.epoch_lost += lost;
        if self.epoch_packets >= LOSS_EPOCH_PACKETS {
            self.loss_excessive = self.epoch_lost * LOSS_EXCESSIVE_ONE_IN > self.epoch_packets;
            self.epoch_packets = 0;
            self.epoch_lost = 0;
        }
    }

    fn end_round(&mut self, sample: &AckSample) {
        self.mark_recent_rounds = self.mark_recent_rounds.saturating_sub(1);
        let marked = self.round_marked.min(self.round_packets);
        if let Some(share) = (marked * MARKED_SHARE_ONE).checked_div(self.round_packets) {
            self.marked_share -= self.marked_share >> MARKED_SHARE_SHIFT;
            self.marked_share += share >> MARKED_SHARE_SHIFT;
        }
        if marked > 0 {
            self.mark_recent_rounds = MARK_LASTS_ROUNDS;
            let cut = u64::from(self.window) * u64::from(self.marked_share)
                / u64::from(2 * MARKED_SHARE_ONE);
            self.window = (self.window - cut as u32).max(self.window_min());
            self.threshold = self.window;
            self.search = CapSearch::default();
        }
        self.round_packets = 0;
        self.round_marked = 0;
        let at_cap = self.window >= self.cap.saturating_sub(self.frame_bytes);
        self.search.on_round(sample, at_cap && sample.window_limited, self.window, self.cap);
    }

    fn grow(&mut self, acked_bytes: u32) {
        if self.window < self.threshold.max(self.usable_floor()) {
            self.window = self.window.saturating_add(acked_bytes);
            return;
        }
        self.credit = self.credit.saturating_add(acked_bytes);
        if self.credit >= self.window {
            self.credit = 0;
            self.window = self.window.saturating_add(self.frame_bytes);
        }
    }
}

impl CongestionController for Aimd {
    fn on_ack(&mut self, _now: Instant, sample: &AckSample) {
        self.round_packets += sample.acked_packets;
        self.round_marked += sample.marked_frames;
        self.count_epoch(sample.acked_packets, 0);
        if let Some(rate) = sample.rate {
            let link = bytes_in(rate, sample.rtt_min_ns).min(WINDOW_BYTES_MAX);
            let hosts = bytes_in(rate, sample.host_ns.min(HOST_NS_MAX)).min(HOST_BYTES_MAX);
            let quantum = u64::from(sample.quantum_bytes);
            self.floor = saturate(link + link / 4 + hosts + 2 * quantum);
            if !sample.rate_is_lower_bound {
                let most = u64::from(SLACK_FRAMES * self.frame_bytes);
                let slack = bytes_in(rate, SLACK_NS).min(most).max(3 * quantum);
                self.cap = saturate(2 * link + hosts + slack);
            }
        }
        if let Some(rtt_ns) = sample.rtt_ns {
            self.search.on_ack(rtt_ns);
        }
        if sample.round_started {
            self.end_round(sample);
        }
        // If the window was not full, an acknowledgement does not show whether the link carries
        // more data, so the window does not grow.
        if sample.window_limited {
            self.grow(sample.acked_bytes);
            let cap = self.search.apply(self.cap, &mut self.window);
            self.window = self.window.min(cap).max(self.window_min());
        }
    }

    fn on_loss(&mut self, now: Instant, loss: &LossSample) {
        self.count_epoch(loss.lost_packets, loss.lost_packets);
        if loss.persistent {
            self.threshold = (self.window / 2).max(self.window_min());
            self.window = self.window_min();
            self.undo = Undo::NOTHING;
            self.search = CapSearch::default();
            return;
        }
        if !self.undo.starts(now, loss, self.window) {
            return;
        }
        let reduced = (u64::from(self.window) * LOSS_LEAVES_PERCENT / 100) as u32;
        let reduced = reduced.max(self.usable_floor()).max(self.window_min());
        if reduced < self.window {
            self.window = reduced;
            self.threshold = reduced;
        }
    }

    fn on_spurious_loss(&mut self) {
        if let Some(window) = self.undo.on_spurious_loss() {
            self.window = self.window.max(window);
            self.threshold = self.threshold.max(window);
        }
    }

    fn set_frame_bytes(&mut self, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
        self.window = self.window.max(self.window_min());
    }

    fn window(&self) -> u32 {
        self.window
    }
}

/// The search for a window that is above the computed cap and raises the rate.
#[derive(Clone, Copy, Debug, Default)]
struct CapSearch {
    /// Number of round trips for which the window has been at the cap.
    cruised_rounds: u8,
    /// Number of round trips left in a trial of a larger window; 0 if there is no trial.
    trial_rounds: u8,
    /// Rate before the trial, in bytes per second.
    rate_before: u64,
    /// Current smoothed round-trip time, in nanoseconds. `rtt_before_ns` is the value of `rtt_ns`
    /// before the trial.
    rtt_ns: u64,
    rtt_before_ns: u64,
    /// A window above the computed cap that raised the rate, in bytes; 0 if none was found.
    found: u32,
    /// Window of the trial, in bytes.
    trial: u32,
}

crate::pack_fields!(CapSearch {
    cruised_rounds,
    trial_rounds,
    rate_before,
    rtt_ns,
    rtt_before_ns,
    found,
    trial,
});

impl CapSearch {
    /// Number of round trips of a trial of a larger window. The sender fills the window in the
    /// first round trip, and the peer acknowledges the full window in the next two.
    const TRIAL_ROUNDS: u8 = 3;

    fn on_ack(&mut self, rtt_ns: u64) {
        self.rtt_ns =
            if self.rtt_ns == 0 { rtt_ns } else { self.rtt_ns - self.rtt_ns / 8 + rtt_ns / 8 };
    }

    fn on_round(&mut self, sample: &AckSample, at_cap: bool, window: u32, cap: u32) {
        let rate = sample.rate.unwrap_or(0);
        if self.trial_rounds > 0 {
            self.trial_rounds -= 1;
            if self.trial_rounds > 0 {
                return;
            }
            let faster = rate > self.rate_before + self.rate_before / 8;
            let longer = self.rtt_ns > self.rtt_before_ns + self.rtt_before_ns / 16;
            if faster && !longer {
                // Allow at most twice the cap. With this limit, the window can escape from a cap
                // that is too low, but does not take much bandwidth from other senders.
                self.found = self.trial.min(cap.saturating_mul(2));
            } else {
                self.found -= self.found / 8;
            }
        } else if at_cap {
            self.cruised_rounds += 1;
            if self.cruised_rounds >= CRUISE_ROUNDS {
                self.cruised_rounds = 0;
                self.trial_rounds = Self::TRIAL_ROUNDS;
                self.rate_before = rate;
                self.rtt_before_ns = self.rtt_ns;
                self.trial = window.saturating_add(window / 2);
            }
        }
    }

    /// Returns the upper bound of the window that applies now, in bytes. `cap` is the computed
    /// bound. During a trial of a larger window, also raises `window` to the window of the trial.
    fn apply(&self, cap: u32, window: &mut u32) -> u32 {
        let cap = cap.max(self.found);
        if self.trial_rounds > 1 {
            *window = (*window).max(self.trial);
            return cap.max(self.trial);
        }
        cap
    }
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u32 = 1_000;

    /// Returns a sample of a round trip of 100 µs at 1 GB/s, with 100 kB in flight and bursts of 10
    /// kB.
    fn round(marked_frames: u32) -> AckSample {
        AckSample {
            acked_bytes: 100 * FRAME,
            acked_packets: 100,
            marked_frames,
            window_limited: true,
            round_started: true,
            rtt_ns: Some(100_000),
            rtt_min_ns: 100_000,
            host_ns: 0,
            rate: Some(1_000_000_000),
            rate_is_lower_bound: false,
            quantum_bytes: 10_000,
        }
    }

    fn lost(packets: u32, newest_sent_at: u64, persistent: bool) -> LossSample {
        LossSample {
            lost_bytes: packets * FRAME,
            lost_packets: packets,
            newest_sent_at: Instant(newest_sent_at),
            persistent,
        }
    }

    fn grown() -> Aimd {
        let mut aimd = Aimd::new(16, FRAME);
        for _ in 0..5 {
            aimd.on_ack(Instant(0), &round(0));
        }
        aimd
    }

    #[test]
    fn window_doubles_up_to_the_cap() {
        let mut aimd = Aimd::new(16, FRAME);
        assert_eq!(aimd.window(), 16_000);
        aimd.on_ack(Instant(0), &round(0));
        assert_eq!(aimd.window(), 116_000);
        aimd.on_ack(Instant(0), &round(0));
        assert_eq!(aimd.window(), 216_000);
        aimd.on_ack(Instant(0), &round(0));
        assert_eq!(aimd.window(), 230_000, "2 x 100 kB + 3 x 10 kB");
    }

    #[test]
    fn small_requests_do_not_shrink_the_window() {
        let mut aimd = Aimd::new(16, FRAME);
        let request =
            AckSample { acked_bytes: 100, acked_packets: 1, rate: Some(1_000_000), ..round(0) };
        let limited = AckSample { window_limited: false, rate_is_lower_bound: true, ..request };
        for _ in 0..100 {
            aimd.on_ack(Instant(0), &limited);
        }
        assert_eq!(aimd.window(), 16_000);
        aimd.on_ack(Instant(0), &AckSample { rate_is_lower_bound: true, ..round(0) });
        assert_eq!(aimd.window(), 116_000);
    }

    #[test]
    fn time_spent_in_hosts_raises_the_window_cap() {
        let mut aimd = grown();
        for _ in 0..3 {
            aimd.on_ack(Instant(0), &AckSample { host_ns: 50_000, ..round(0) });
        }
        assert!(aimd.window() > 230_000 && aimd.window() <= 280_000);
    }

    #[test]
    fn a_loss_reduces_once_per_round_trip_and_not_below_the_floor() {
        let mut aimd = grown();
        aimd.on_loss(Instant(100), &lost(1, 50, false));
        assert_eq!(aimd.window(), 161_000);
        aimd.on_loss(Instant(150), &lost(1, 100, false));
        assert_eq!(aimd.window(), 161_000, "sent before the reduction");
        aimd.on_loss(Instant(300), &lost(1, 200, false));
        assert_eq!(aimd.window(), 145_000, "1.25 x 100 kB + 2 x 10 kB");
        aimd.on_loss(Instant(500), &lost(1, 400, false));
        assert_eq!(aimd.window(), 145_000);
    }

    #[test]
    fn excessive_loss_has_no_floor() {
        let mut aimd = grown();
        aimd.on_loss(Instant(1), &lost(100, 0, false));
        for at in 1..20 {
            aimd.on_loss(Instant(100 * at + 50), &lost(30, 100 * at, false));
        }
        assert_eq!(aimd.window(), 2 * FRAME);
    }

    #[test]
    fn spurious_losses_are_undone() {
        let mut aimd = grown();
        aimd.on_loss(Instant(100), &lost(2, 50, false));
        aimd.on_loss(Instant(110), &lost(1, 60, false));
        aimd.on_spurious_loss();
        aimd.on_spurious_loss();
        assert_eq!(aimd.window(), 161_000, "one of three is still lost");
        aimd.on_spurious_loss();
        assert_eq!(aimd.window(), 230_000);
    }

    #[test]
    fn persistent_silence_reduces_the_window_to_two_frames() {
        let mut aimd = grown();
        aimd.on_loss(Instant(100), &lost(0, 100, true));
        assert_eq!(aimd.window(), 2 * FRAME);
    }

    #[test]
    fn few_marks_reduce_the_window_little_and_many_marks_much() {
        let (mut few, mut many) = (grown(), grown());
        for _ in 0..100 {
            few.on_ack(Instant(0), &AckSample { window_limited: false, ..round(0) });
            many.on_ack(Instant(0), &AckSample { window_limited: false, ..round(0) });
        }
        let before = few.window();
        few.on_ack(Instant(0), &round(2));
        many.on_ack(Instant(0), &round(100));
        assert!(few.window() < before && few.window() > before * 99 / 100);
        assert!(many.window() < few.window());
    }

    #[test]
    fn a_larger_window_with_more_throughput_and_the_same_round_trip_is_kept() {
        let mut search = CapSearch::default();
        let (cap, mut window) = (10_000, 10_000);
        let mut sample = round(0);
        for _ in 0..CRUISE_ROUNDS {
            search.on_ack(100_000);
            search.on_round(&sample, true, window, cap);
        }
        assert_eq!(search.apply(cap, &mut window), 15_000);
        assert_eq!(window, 15_000);
        sample.rate = Some(1_400_000_000);
        for _ in 0..CapSearch::TRIAL_ROUNDS {
            search.on_ack(100_000);
            search.on_round(&sample, true, window, cap);
        }
        assert_eq!(search.apply(cap, &mut window), 15_000);
    }

    #[test]
    fn a_larger_window_that_only_lengthens_the_queue_is_abandoned() {
        let mut search = CapSearch::default();
        let (cap, mut window) = (10_000, 10_000);
        let mut sample = round(0);
        for _ in 0..CRUISE_ROUNDS {
            search.on_ack(100_000);
            search.on_round(&sample, true, window, cap);
        }
        search.apply(cap, &mut window);
        sample.rate = Some(1_400_000_000);
        for _ in 0..CapSearch::TRIAL_ROUNDS {
            for _ in 0..20 {
                search.on_ack(150_000);
            }
            search.on_round(&sample, true, window, cap);
        }
        assert_eq!(search.apply(cap, &mut window), 10_000);
    }
}

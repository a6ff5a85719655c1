//! The default algorithm: additive increase, decrease on marks and losses, between two bounds that
//! the measured rate sets.

use super::{AckSample, CongestionController, LossSample, Undo, WINDOW_FRAMES_MIN};
use crate::Instant;

/// What a loss leaves of the window, in percent (CUBIC, RFC 9438 §4.6).
const LOSS_LEAVES_PERCENT: u64 = 70;

/// Weight of the last round trip in the marked share: 1/16 (DCTCP, RFC 8257 §3.3).
const MARKED_SHARE_SHIFT: u32 = 4;

/// The marked share 1 in its fixed-point representation.
const MARKED_SHARE_ONE: u32 = 1 << 10;

/// Round trips after a mark in which the window does not follow the measured rate upwards.
const MARK_LASTS_ROUNDS: u8 = 8;

/// Packets over which the share of losses is judged. At 5 % random loss 3.2 of 64 are lost, with
/// a standard deviation of 1.7; the bound below is five of them away.
const LOSS_EPOCH_PACKETS: u32 = 64;

/// More losses than one in this many packets are not chance but an overloaded link, and then the
/// measured rate is no floor: many senders may keep a short queue overflowing at just their rates.
const LOSS_EXCESSIVE_ONE_IN: u32 = 5;

/// Round trips at the cap after which the sender tries whether a larger window brings more.
const CRUISE_ROUNDS: u8 = 32;

/// Congestion control by marks and losses.
///
/// The window starts by doubling every round trip and then grows by one frame per round trip. A
/// congestion mark reduces it by the marked share (DCTCP), a loss to 70 %, once per round trip.
///
/// Two bounds come from the measured rate, the smallest round-trip time of the network, and the
/// time that frames spend in the hosts:
/// * A loss does not push the window below rate · (1.25 · RTT + hosts) + 2 bursts, as this is what
///   the link was just seen to deliver (TCP Westwood's idea): random loss hardly costs anything.
/// * The window does not exceed rate · (2 · RTT + hosts) + 3 bursts, which keeps the queue short
///   without any signal from the network. Where the round trip is long for reasons that nothing
///   measures, such a cap would feed on itself: less in flight, less rate, a lower cap. So every
///   few round trips at the cap half a window more is tried, and kept if it brought more without
///   a longer round trip; a sender that only took from others would see a longer one.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    window: u32,
    /// Below it the window doubles every round trip.
    threshold: u32,
    frame_bytes: u32,
    /// Acknowledged bytes that have not made the window grow yet.
    credit: u32,
    undo: Undo,
    /// Bounds from the measured rate.
    floor: u32,
    cap: u32,
    /// Smoothed share of marked frames, in 1/1024.
    marked_share: u32,
    round_packets: u32,
    round_marked: u32,
    /// Round trips left in which a mark counts as recent.
    mark_recent_rounds: u8,
    epoch_packets: u32,
    epoch_lost: u32,
    /// Whether the last epoch lost more than chance explains.
    loss_excessive: bool,
    search: CapSearch,
}

impl Aimd {
    /// Starts with `initial_frames` frames of `frame_bytes` bytes.
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

    /// The floor, where the network says nothing that is stronger than the measured rate.
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
            let link = product(rate, sample.rtt_min_ns);
            let hosts = product(rate, sample.host_ns);
            let quantum = u64::from(sample.quantum_bytes);
            self.floor = saturate(link + link / 4 + hosts + 2 * quantum);
            self.cap = saturate(2 * link + hosts + 3 * quantum);
        }
        if let Some(rtt_ns) = sample.rtt_ns {
            self.search.on_ack(rtt_ns);
        }
        if sample.round_started {
            self.end_round(sample);
        }
        if sample.window_limited {
            self.grow(sample.acked_bytes);
        }
        let cap = self.search.apply(self.cap, &mut self.window);
        self.window = self.window.min(cap).max(self.window_min());
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

/// The search for a window above the computed cap that brings more.
#[derive(Clone, Copy, Debug, Default)]
struct CapSearch {
    /// Round trips spent at the cap.
    cruised_rounds: u8,
    /// Round trips left of a trial; 0 if none is under way.
    trial_rounds: u8,
    /// Rate before the trial, in bytes per second.
    rate_before: u64,
    /// Smoothed round-trip time, in nanoseconds, and what it was before the trial.
    rtt_ns: u64,
    rtt_before_ns: u64,
    /// Window that was found to bring more than the computed cap, 0 if none.
    found: u32,
    /// Window of the trial.
    trial: u32,
}

impl CapSearch {
    /// Rounds of a trial: one to fill the larger window, two to see it acknowledged.
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
                // Twice the cap at most: enough to break the feedback, too little to win a race.
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

    /// The cap that holds now; during a trial the window is raised to it.
    fn apply(&self, cap: u32, window: &mut u32) -> u32 {
        let cap = cap.max(self.found);
        if self.trial_rounds > 1 {
            *window = (*window).max(self.trial);
            return cap.max(self.trial);
        }
        cap
    }
}

fn product(rate: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(ns) / 1_000_000_000).unwrap_or(u64::MAX / 16)
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

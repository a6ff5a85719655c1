//! Congestion control that keeps the queueing delay at a target.

use super::{AckSample, CongestionController, LossSample, Undo, WINDOW_FRAMES_MIN};
use crate::time::Instant;

/// Factor for reductions of the window, in percent (Swift, SIGCOMM 2020, β). If the queueing delay
/// exceeds the target, the window shrinks by this factor times the excess divided by the round-trip
/// time.
const BETA_PERCENT: u64 = 80;

/// Largest reduction per round trip, in percent (Swift's `max_mdf`).
const REDUCTION_PERCENT_MAX: u64 = 50;

/// The algorithm of Swift. While the queueing delay is below the target, the window grows by one
/// frame per round trip. While the delay is above the target, the window shrinks once per round
/// trip, in proportion to the excess.
///
/// Needs receive timestamps that are taken close to the wire, because a delay in the receiving host
/// would also shrink the window.
#[derive(Clone, Copy, Debug)]
pub struct Delay {
    window: u32,
    frame_bytes: u32,
    target_ns: u32,
    /// Number of acknowledged bytes after the window last grew. The window grows by a frame when
    /// this number reaches the window.
    credit: u32,
    /// Whether the window was already reduced in this round trip.
    reduced: bool,
    /// Whether the window still doubles every round trip.
    starting: bool,
    undo: Undo,
}

crate::pack_fields!(Delay { window, frame_bytes, target_ns, credit, reduced, starting, undo });

impl Delay {
    /// Creates the controller with a window of `initial_frames` frames and a target of `target_ns`
    /// nanoseconds of queueing delay.
    pub fn new(initial_frames: u32, frame_bytes: u32, target_ns: u32) -> Self {
        Self {
            window: initial_frames.max(WINDOW_FRAMES_MIN).saturating_mul(frame_bytes),
            frame_bytes,
            target_ns,
            credit: 0,
            reduced: false,
            starting: true,
            undo: Undo::NOTHING,
        }
    }

    fn reduce(&mut self, percent: u64) {
        let percent = percent.min(REDUCTION_PERCENT_MAX);
        let window = u64::from(self.window) * (100 - percent) / 100;
        self.window = (window as u32).max(WINDOW_FRAMES_MIN * self.frame_bytes);
        self.starting = false;
    }

    fn grow(&mut self, acked_bytes: u32) {
        if self.starting {
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

impl CongestionController for Delay {
    fn on_ack(&mut self, _now: Instant, sample: &AckSample) {
        if sample.round_started {
            self.reduced = false;
        }
        let Some(rtt_ns) = sample.rtt_ns else { return };
        let queued_ns = rtt_ns.saturating_sub(sample.rtt_min_ns);
        let target_ns = u64::from(self.target_ns);
        if queued_ns <= target_ns && sample.marked_frames == 0 {
            if sample.window_limited {
                self.grow(sample.acked_bytes);
            }
        } else if !self.reduced {
            self.reduced = true;
            let excess_ns = queued_ns.saturating_sub(target_ns);
            self.reduce((BETA_PERCENT * excess_ns / rtt_ns.max(1)).max(1));
        }
    }

    fn on_loss(&mut self, now: Instant, loss: &LossSample) {
        if loss.persistent {
            self.window = WINDOW_FRAMES_MIN * self.frame_bytes;
            self.undo = Undo::NOTHING;
        } else if self.undo.starts(now, loss, self.window) {
            self.reduce(REDUCTION_PERCENT_MAX);
        }
    }

    fn on_spurious_loss(&mut self) {
        if let Some(window) = self.undo.on_spurious_loss() {
            self.window = self.window.max(window);
        }
    }

    fn set_frame_bytes(&mut self, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
        self.window = self.window.max(WINDOW_FRAMES_MIN * frame_bytes);
    }

    fn window(&self) -> u32 {
        self.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acked(rtt_ns: u64, round_started: bool) -> AckSample {
        AckSample {
            acked_bytes: 16_000,
            acked_packets: 16,
            marked_frames: 0,
            window_limited: true,
            round_started,
            rtt_ns: Some(rtt_ns),
            rtt_min_ns: 100_000,
            host_ns: 0,
            rate: None,
            rate_is_lower_bound: true,
            quantum_bytes: 2_000,
        }
    }

    #[test]
    fn window_grows_below_the_target_and_shrinks_above_once_per_round_trip() {
        let mut delay = Delay::new(16, 1_000, 50_000);
        delay.on_ack(Instant(0), &acked(120_000, true));
        assert_eq!(delay.window(), 32_000);
        delay.on_ack(Instant(0), &acked(400_000, true));
        assert_eq!(delay.window(), 32_000 - 32_000 * 50 / 100);
        delay.on_ack(Instant(0), &acked(400_000, false));
        assert_eq!(delay.window(), 16_000);
    }
}

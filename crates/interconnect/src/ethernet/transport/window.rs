//! Windows of connections: the maximum number of frames in flight.

use super::{Congestion, TransportConfiguration, is_before};

/// The window of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// Size, in 1/65536 frames.
    size: u64,
    /// Slow-start threshold. Below this size, the window grows by one frame for each acknowledged
    /// frame.
    threshold: u64,
    /// Estimated fraction of marked frames (α of DCTCP), in 1/2^20.
    alpha: u32,
    /// Number of acknowledgements in the current observation period of `alpha`, and the number of
    /// these that reported a mark.
    observed: u32,
    marked: u32,
    /// The acknowledgement of this frame ends the current observation period.
    observed_until: u32,
    /// The window has already been reduced for losses and marks of frames before this frame.
    answered_until: u32,
    /// Time when a long round trip last reduced the window, in picoseconds.
    decreased_ps: u64,
}

/// Facts from an acknowledgement that affect the window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Number of frames that this acknowledgement is the first to confirm.
    pub(super) newly: u32,
    pub(super) is_marked: bool,
    pub(super) round_trip_ps: u64,
    /// Whether the window was full before the acknowledgement arrived.
    pub(super) was_full: bool,
    /// First frame that is not acknowledged, and first frame that was never sent.
    pub(super) acknowledged: u32,
    pub(super) sent: u32,
    pub(super) now_ps: u64,
}

impl Window {
    pub(super) fn new(configuration: &TransportConfiguration) -> Self {
        let most = u64::from(configuration.window_frames.max(1)) * FRAME;
        let initial = u64::from(configuration.initial_window_frames.max(1)) * FRAME;
        let is_fixed = configuration.congestion.has_fixed_window();
        Self {
            size: if is_fixed { most } else { initial.min(most) },
            threshold: u64::MAX,
            alpha: ALL,
            observed: 0,
            marked: 0,
            observed_until: 0,
            answered_until: 0,
            decreased_ps: 0,
        }
    }

    /// Returns the size in whole frames.
    pub(super) const fn frames(&self) -> u32 {
        (self.size / FRAME) as u32
    }

    /// Returns the size in 1/256 frames.
    pub(super) const fn frames_256ths(&self) -> u64 {
        self.size / (FRAME / 256)
    }

    /// Handles an acknowledgement.
    pub(super) fn on_progress(
        &mut self,
        configuration: &TransportConfiguration,
        progress: &Progress,
    ) {
        match configuration.congestion {
            Congestion::Fixed | Congestion::Dcqcn(_) => return,
            Congestion::Dctcp { gain_ppm } => self.on_mark_or_none(gain_ppm, progress),
            Congestion::Delay { target_ps, scaling_ps, beta_percent, decrease_max_percent } => {
                let target_ps = target_ps + scaled(scaling_ps, self.smallness());
                let late_ps = progress.round_trip_ps.saturating_sub(target_ps);
                if late_ps == 0 {
                    self.threshold = 0;
                    self.grow(progress);
                } else if progress.now_ps - self.decreased_ps >= progress.round_trip_ps {
                    let least = u64::from(100 - decrease_max_percent) * FRAME / 100;
                    let excess = late_ps as u128 * u128::from(beta_percent) * u128::from(FRAME);
                    let excess = excess / 100 / u128::from(progress.round_trip_ps);
                    let share = FRAME.saturating_sub(excess as u64).max(least);
                    self.size = scaled(self.size, share);
                    self.decreased_ps = progress.now_ps;
                }
            }
        }
        self.size = self.size.clamp(FRAME, u64::from(configuration.window_frames.max(1)) * FRAME);
    }

    /// Updates the window of DCTCP. Once per window, updates the estimated fraction of marked
    /// frames. If frames were marked, reduces the window by half of that fraction, at most once per
    /// window (RFC 8257, 3.3).
    fn on_mark_or_none(&mut self, gain_ppm: u32, progress: &Progress) {
        self.observed += 1;
        self.marked += u32::from(progress.is_marked);
        if !is_before(progress.acknowledged, self.observed_until) {
            let seen = u64::from(ALL) * u64::from(self.marked) / u64::from(self.observed);
            let (old, gain) = (u64::from(self.alpha), u64::from(gain_ppm));
            let alpha = (old * (MILLION - gain) + seen * gain + MILLION / 2) / MILLION;
            self.alpha = alpha.min(u64::from(ALL)) as u32;
            (self.observed, self.marked) = (0, 0);
            self.observed_until = progress.sent;
        }
        let is_answered = is_before(progress.acknowledged, self.answered_until);
        if progress.is_marked && !is_answered {
            let less =
                (u128::from(self.size) * u128::from(self.alpha) / u128::from(2 * ALL)) as u64;
            self.shrink_to(self.size - less, progress.sent);
        } else if !progress.is_marked && !is_answered {
            self.grow(progress);
        }
    }

    /// Returns how small the window is, in 1/65536: 1 for one frame, 0 for [`LARGE`] frames or
    /// more. Between these sizes, the value is linear in 1 / √window (Swift, 3.1).
    fn smallness(&self) -> u64 {
        let least = FRAME / LARGE.isqrt();
        let inverse = FRAME * FRAME / (self.size * FRAME).isqrt();
        inverse.saturating_sub(least) * FRAME / (FRAME - least)
    }

    /// Grows the window. Below the threshold, the window grows by one frame for each acknowledged
    /// frame. Above the threshold, it grows by one frame for each acknowledged window. A window
    /// that was not full does not grow.
    fn grow(&mut self, progress: &Progress) {
        if !progress.was_full {
            return;
        }
        let newly = u64::from(progress.newly) * FRAME;
        self.size += if self.size < self.threshold { newly } else { newly * FRAME / self.size };
    }

    /// Handles a loss that the acknowledgement of a later frame has revealed.
    pub(super) fn on_loss(
        &mut self,
        configuration: &TransportConfiguration,
        (acknowledged, sent): (u32, u32),
        now_ps: u64,
    ) {
        if is_before(acknowledged, self.answered_until) {
            return;
        }
        match configuration.congestion {
            Congestion::Fixed | Congestion::Dcqcn(_) => {}
            Congestion::Dctcp { .. } => self.shrink_to(self.size / 2, sent),
            Congestion::Delay { decrease_max_percent, .. } => {
                let share = u64::from(100 - decrease_max_percent) * FRAME / 100;
                self.shrink_to(scaled(self.size, share), sent);
                self.decreased_ps = now_ps;
            }
        }
    }

    /// Handles a retransmission timeout.
    pub(super) fn on_timeout(&mut self, configuration: &TransportConfiguration, sent: u32) {
        if !configuration.congestion.has_fixed_window() {
            self.shrink_to(self.size / 2, sent);
            self.size = FRAME;
        }
    }

    fn shrink_to(&mut self, size: u64, sent: u32) {
        self.size = size.max(FRAME);
        self.threshold = self.size;
        self.answered_until = sent;
    }
}

const fn scaled(size: u64, share: u64) -> u64 {
    (size as u128 * share as u128 / FRAME as u128) as u64
}

/// One frame, in the unit of `size`.
const FRAME: u64 = 1 << 16;
/// The fraction 1, in the unit of `alpha`.
const ALL: u32 = 1 << 20;
/// Window, in frames, at which Swift's addition to the target becomes 0.
const LARGE: u64 = 100;
const MILLION: u64 = 1_000_000;

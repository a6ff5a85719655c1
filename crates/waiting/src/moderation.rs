//! Moderation: receiving a stream of frames at intervals.

use delivery::{ASK_FRAMES_MAX, BATCH_NS, Instant};

use crate::wait_policy::SleepCost;

/// Decides how long a thread that receives a stream may leave further frames unread.
///
/// If a link is slower than the host, a thread that sleeps until the next frame wakes up for each
/// frame, and a thread that spins takes a whole processor. Network adapters moderate their
/// interrupts for the same reason.
///
/// A stream is a run of frames without a pause, none of which completes anything for the application:
/// frames in the middle of a long message, or acknowledgements. The thread leaves frames unread for a
/// quarter of the time that the run has lasted, so that a message is delayed by at most a quarter,
/// and for at most 56 µs.
#[derive(Clone, Debug, Default)]
pub struct Moderation {
    /// When the run began.
    began_at: Instant,
    /// When frames were last found.
    found_at: Instant,
    /// Frames of the run since it began.
    frames: u64,
    /// Notifications to the application so far.
    notified: u64,
    /// No intervals until this time, because timers were too late for them.
    late_until: Instant,
}

impl Moderation {
    /// Records that a look found `frames` frames. `notified`: notifications to the application so
    /// far. A sleep costs `sleep_cost_ns`.
    pub fn on_frames(&mut self, now: Instant, frames: u64, notified: u64, sleep_cost_ns: u64) {
        if notified != self.notified || self.is_pause(now, frames, sleep_cost_ns) {
            (self.began_at, self.frames, self.notified) = (now, 0, notified);
        } else {
            self.frames += frames;
        }
        self.found_at = now;
    }

    /// Whether these frames arrived much more slowly than the earlier frames of the run.
    fn is_pause(&self, now: Instant, frames: u64, sleep_cost_ns: u64) -> bool {
        let gap_ns = now.since_ns(self.found_at);
        // Frames of one stream are found at uneven times, depending on whether the thread slept.
        if gap_ns <= 2 * sleep_cost_ns {
            return false;
        }
        if self.frames == 0 {
            return gap_ns > PAUSE_NS;
        }
        let lasted_ns = self.found_at.since_ns(self.began_at);
        gap_ns.saturating_mul(self.frames)
            > lasted_ns.saturating_mul(frames).saturating_mul(PAUSE_FACTOR)
    }

    /// Records that no frame arrived in an interval: the stream has ended.
    pub fn on_silence(&mut self, now: Instant) {
        (self.began_at, self.found_at, self.frames) = (now, now, 0);
    }

    /// Records that an interval ended now, `late_ns` later than asked. A sleep costs
    /// `sleep_cost_ns`. If the interval ended too late, the thread uses no intervals for a while,
    /// because the clock of the host may have no high resolution.
    pub fn on_interval(&mut self, now: Instant, late_ns: u64, sleep_cost_ns: u64) {
        if late_ns > INTERVAL_NS_MAX + sleep_cost_ns {
            self.late_until = now.after_ns(late_ns.min(LATE_NS_MAX) * LATE_FACTOR);
        }
    }

    /// Returns how long frames may stay unread, in nanoseconds; `None` if the thread should wait
    /// for the next frame, spinning if it `may_spin`. The application last posted or polled at
    /// `active_at`.
    pub fn interval_ns(
        &self,
        now: Instant,
        sleep: SleepCost,
        may_spin: bool,
        active_at: Instant,
    ) -> Option<u64> {
        if self.frames == 0 || now < self.late_until {
            return None;
        }
        let quiet_ns = now.since_ns(self.began_at.max(active_at));
        let lasted_ns = now.since_ns(self.began_at);
        // Time in which `frames` frames arrive at the rate of the run.
        let lasts_ns = |frames| lasted_ns.saturating_mul(frames) / self.frames;
        // More frames arrive until the thread runs.
        let most_ns = lasts_ns(FRAMES_MAX).saturating_sub(sleep.total_ns).min(INTERVAL_NS_MAX);
        // A thread that would sleep until the next frame is delayed by a wake-up as well; a thread
        // that would spin is not.
        let late_ns =
            if may_spin { sleep.total_ns - sleep.spent_ns.min(sleep.total_ns) } else { 0 };
        let interval_ns = (quiet_ns / QUIET_DIVISOR).saturating_sub(late_ns).min(most_ns);
        // A shorter interval would save nothing.
        (interval_ns >= lasts_ns(FRAMES_MIN).max(sleep.spent_ns)).then_some(interval_ns)
    }
}

/// An interval is this part of the time since the application was last notified or active.
const QUIET_DIVISOR: u64 = 4;

/// Longest interval, in nanoseconds: as long as a batch of the sender lasts.
const INTERVAL_NS_MAX: u64 = BATCH_NS;

/// After an interval that ended too late, the thread uses no intervals for this many times the
/// lateness: if all intervals end late, trials take 2 % of the time.
const LATE_FACTOR: u64 = 64;

/// Largest lateness that counts, in nanoseconds: a tick of a clock of 250 Hz.
const LATE_NS_MAX: u64 = 4_000_000;

/// Most frames in an interval: half of those for which a sender asks for one acknowledgement, so
/// that the sender does not wait for the acknowledgement.
const FRAMES_MAX: u64 = ASK_FRAMES_MAX as u64 / 2;

/// Fewest frames expected in an interval: with fewer, a thread saves no wake-up.
const FRAMES_MIN: u64 = 2;

/// A run does not begin with a pause longer than this, in nanoseconds: an interval at each end.
const PAUSE_NS: u64 = 2 * INTERVAL_NS_MAX;

/// A run ends when frames arrive this many times more slowly than before.
const PAUSE_FACTOR: u64 = 4;

#[cfg(test)]
mod tests;

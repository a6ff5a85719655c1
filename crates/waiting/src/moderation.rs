//! Moderation: the thread that receives a stream of frames reads them at intervals.

use delivery::{ASK_FRAMES_MAX, BATCH_NS, Instant};

use crate::wait_policy::SleepCost;

/// Decides how long a thread that receives a stream may leave further frames unread.
///
/// If a link is slower than the host, a thread that sleeps until the next frame wakes up for each
/// frame, and a thread that spins takes a whole processor. Network adapters moderate their
/// interrupts for the same reason.
///
/// A stream is a run of frames without a pause, none of which completes anything for the
/// application. Examples are frames in the middle of a long message, and acknowledgements. The
/// thread leaves frames unread for a quarter of the time that the run has lasted, and for at most
/// 56 µs. So moderation delays a message by at most a quarter.
#[derive(Clone, Debug, Default)]
pub struct Moderation {
    /// When the run began.
    began_at: Instant,
    /// When the thread last found frames.
    found_at: Instant,
    /// Number of frames of the run after its first look.
    frames: u64,
    /// Number of notifications to the application so far.
    notified: u64,
    /// The thread uses no intervals until this time, because timers ended earlier intervals too
    /// late.
    late_until: Instant,
}

impl Moderation {
    /// Records that a look found `frames` frames. `notified` is the number of notifications to the
    /// application so far. A sleep costs `sleep_cost_ns` nanoseconds.
    pub fn on_frames(&mut self, now: Instant, frames: u64, notified: u64, sleep_cost_ns: u64) {
        if notified != self.notified || self.is_pause(now, frames, sleep_cost_ns) {
            (self.began_at, self.frames, self.notified) = (now, 0, notified);
        } else {
            self.frames += frames;
        }
        self.found_at = now;
    }

    /// Returns whether these frames arrived much more slowly than the earlier frames of the run.
    fn is_pause(&self, now: Instant, frames: u64, sleep_cost_ns: u64) -> bool {
        let gap_ns = now.since_ns(self.found_at);
        // The times at which a thread finds the frames of one stream vary, because the thread
        // sometimes sleeps.
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

    /// Records that no frame arrived in an interval, which ends the stream.
    pub fn on_silence(&mut self, now: Instant) {
        (self.began_at, self.found_at, self.frames) = (now, now, 0);
    }

    /// Records that an interval ended now, `late_ns` nanoseconds later than planned. A sleep costs
    /// `sleep_cost_ns` nanoseconds. If the interval ended much too late, the thread uses no
    /// intervals for some time, because the clock of the host may have a low resolution.
    pub fn on_interval(&mut self, now: Instant, late_ns: u64, sleep_cost_ns: u64) {
        if late_ns > INTERVAL_NS_MAX + sleep_cost_ns {
            self.late_until = now.after_ns(late_ns.min(LATE_NS_MAX) * LATE_FACTOR);
        }
    }

    /// Returns how long frames may stay unread, in nanoseconds. Returns `None` if the thread should
    /// wait for the next frame instead; this thread may spin for it if `may_spin` is true. The
    /// application last posted or polled at `active_at`.
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
        // Returns the time in which `frames` frames arrive at the rate of the run.
        let lasts_ns = |frames| lasted_ns.saturating_mul(frames) / self.frames;
        // More frames arrive after the interval, until the thread runs.
        let most_ns = lasts_ns(FRAMES_MAX).saturating_sub(sleep.total_ns).min(INTERVAL_NS_MAX);
        // A thread that would otherwise sleep until the next frame has the latency of a wake-up in
        // any case. For a thread that would otherwise spin, that latency is an extra delay, so its
        // interval is shorter.
        let late_ns =
            if may_spin { sleep.total_ns - sleep.spent_ns.min(sleep.total_ns) } else { 0 };
        let interval_ns = (quiet_ns / QUIET_DIVISOR).saturating_sub(late_ns).min(most_ns);
        // A shorter interval would save nothing.
        (interval_ns >= lasts_ns(FRAMES_MIN).max(sleep.spent_ns)).then_some(interval_ns)
    }
}

/// Quotient of the time since the application was last notified or active, and the interval.
const QUIET_DIVISOR: u64 = 4;

/// Longest interval, in nanoseconds: the time that a batch of the sender takes on the link.
const INTERVAL_NS_MAX: u64 = BATCH_NS;

/// After an interval that ended too late, the thread uses no intervals for this many times the
/// lateness. If all intervals end late, they so take 2 % of the time.
const LATE_FACTOR: u64 = 64;

/// Largest lateness that counts, in nanoseconds: a tick of a clock of 250 Hz.
const LATE_NS_MAX: u64 = 4_000_000;

/// Maximum number of frames in an interval. A sender asks for one acknowledgement for twice as many
/// frames, so it does not have to wait for that acknowledgement.
const FRAMES_MAX: u64 = ASK_FRAMES_MAX as u64 / 2;

/// Minimum number of frames expected in an interval. With fewer frames, the interval saves no
/// wake-up.
const FRAMES_MIN: u64 = 2;

/// If the first two looks of a run are further apart than this, in nanoseconds, there was a pause
/// between them. The value is one interval at each end.
const PAUSE_NS: u64 = 2 * INTERVAL_NS_MAX;

/// A run ends when frames arrive this many times more slowly than before.
const PAUSE_FACTOR: u64 = 4;

#[cfg(test)]
mod tests;

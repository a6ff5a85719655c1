//! Moderation: a thread that receives a stream of frames reads the frames at intervals.

use delivery::{ASK_FRAMES_MAX, BATCH_NS, Instant};

use crate::wait_policy::SleepCost;

/// Decides how long a thread that receives a stream may leave arrived frames unread.
///
/// If a link is slower than the host, a thread that always sleeps until the next frame wakes up for
/// each frame. A thread that spins instead takes a whole processor. So the thread sleeps for an
/// interval, and then reads all frames that arrived in this time. Network adapters moderate their
/// interrupts in the same way.
///
/// A stream is a sequence of frames without a pause, in which no frame completes anything for the
/// application. Examples are frames in the middle of a long message, and acknowledgements. The
/// thread leaves frames unread for a quarter of the time that the stream has lasted, and for at
/// most 56 µs. So moderation delays a message by at most a quarter.
#[derive(Clone, Debug, Default)]
pub struct Moderation {
    /// Time at which the current stream of frames began.
    began_at: Instant,
    /// Time at which the thread last found frames.
    found_at: Instant,
    /// Number of frames of the stream that the thread has read. The frames of the first read of
    /// the stream do not count.
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

    /// Returns whether these frames arrived much more slowly than earlier frames of the stream.
    fn is_pause(&self, now: Instant, frames: u64, sleep_cost_ns: u64) -> bool {
        let gap_ns = now.since_ns(self.found_at);
        // A sleep also makes a gap between two looks. So a gap of about the length of a sleep shows
        // nothing about the rate of the frames.
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

    /// Records that no frame arrived in an interval. The stream has therefore ended.
    pub fn on_silence(&mut self, now: Instant) {
        (self.began_at, self.found_at, self.frames) = (now, now, 0);
    }

    /// Records that an interval ended now, `late_ns` nanoseconds later than planned. A sleep costs
    /// `sleep_cost_ns` nanoseconds. If the interval ended much too late, for example because the
    /// clock of the host has a low resolution, the thread uses no intervals for some time.
    pub fn on_interval(&mut self, now: Instant, late_ns: u64, sleep_cost_ns: u64) {
        if late_ns > INTERVAL_NS_MAX + sleep_cost_ns {
            self.late_until = now.after_ns(late_ns.min(LATE_NS_MAX) * LATE_FACTOR);
        }
    }

    /// Returns how long frames may stay unread, in nanoseconds. Returns `None` if the thread should
    /// wait for the next frame instead. `may_spin` says whether the thread may spin during that
    /// wait. The application last posted or polled at `active_at`.
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
        // The time in which `frames` frames arrive at the rate of the stream.
        let lasts_ns = |frames| lasted_ns.saturating_mul(frames) / self.frames;
        // After the end of the interval, the thread needs some time to wake up. More frames arrive
        // in this time.
        let most_ns = lasts_ns(FRAMES_MAX).saturating_sub(sleep.total_ns).min(INTERVAL_NS_MAX);
        // If the thread would otherwise sleep until the next frame, the frame waits for a wake-up
        // in any case, so the wake-up adds no delay. If the thread would otherwise spin, the
        // wake-up is an extra delay, so the interval is shorter by this delay.
        let late_ns =
            if may_spin { sleep.total_ns - sleep.spent_ns.min(sleep.total_ns) } else { 0 };
        let interval_ns = (quiet_ns / QUIET_DIVISOR).saturating_sub(late_ns).min(most_ns);
        // A shorter interval would save no wake-up, or would save less processor time than its own
        // sleep costs.
        (interval_ns >= lasts_ns(FRAMES_MIN).max(sleep.spent_ns)).then_some(interval_ns)
    }
}

/// An interval is at most this fraction (1/4) of the time since the stream began or the application
/// was last active, whichever is later.
const QUIET_DIVISOR: u64 = 4;

/// Longest interval, in nanoseconds: the time in which a link carries one batch of a sender's
/// frames.
const INTERVAL_NS_MAX: u64 = BATCH_NS;

/// Factor of a pause: if an interval ended too late, the thread uses no intervals for 64 times the
/// delay. So even if all intervals end late, the thread spends only 2 % of the time in intervals.
const LATE_FACTOR: u64 = 64;

/// Longest delay that counts, in nanoseconds: one tick of a clock of 250 Hz. If an interval ended
/// even later, only this part of its delay counts.
const LATE_NS_MAX: u64 = 4_000_000;

/// Maximum number of frames in an interval. A sender asks for an acknowledgement after twice as
/// many frames, so the sender does not have to wait for the acknowledgement.
const FRAMES_MAX: u64 = ASK_FRAMES_MAX as u64 / 2;

/// Minimum number of frames that should arrive in an interval. With fewer frames, the interval
/// would save no wake-up.
const FRAMES_MIN: u64 = 2;

/// If more than this time, in nanoseconds, lies between the first two reads of a stream, the sender
/// paused, and a new stream begins. The time is twice the longest interval, because both ends of
/// the connection may use intervals.
const PAUSE_NS: u64 = 2 * INTERVAL_NS_MAX;

/// A stream ends if its frames arrive at a rate that is lower than before by this factor.
const PAUSE_FACTOR: u64 = 4;

#[cfg(test)]
mod tests;

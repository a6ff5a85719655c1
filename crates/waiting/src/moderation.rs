//! When a thread that takes a stream of frames takes them at intervals.

use delivery::{ASK_FRAMES_MAX, BATCH_NS, Instant};

use crate::wait_policy::SleepCost;

/// Decides for how long a thread that takes a stream may leave further frames unread.
///
/// Where a link is slower than the host, a thread that sleeps until the next frame wakes up for each, and a thread that spins
/// takes a whole processor. Network adapters moderate their interrupts for the same reason. A stream is a run of frames
/// without a pause that bring the application nothing yet: the middle of a long message, or acknowledgements. The
/// thread leaves them unread for a quarter of the time for which the run has lasted already, so that a message becomes later
/// by a quarter at most, and for 56 µs at most.
#[derive(Clone, Debug, Default)]
pub struct Moderation {
    /// When the run began.
    began_at: Instant,
    /// When the last frames were found.
    found_at: Instant,
    /// Frames of the run since it began.
    frames: u64,
    /// Notifications of the application so far.
    notified: u64,
    /// Timers end too late for intervals until then.
    late_until: Instant,
}

impl Moderation {
    /// Records that a look found `frames` frames. The application has been notified `notified` times so far, and a sleep costs
    /// `sleep_cost_ns`.
    pub fn on_frames(&mut self, now: Instant, frames: u64, notified: u64, sleep_cost_ns: u64) {
        if notified != self.notified || self.is_pause(now, frames, sleep_cost_ns) {
            (self.began_at, self.frames, self.notified) = (now, 0, notified);
        } else {
            self.frames += frames;
        }
        self.found_at = now;
    }

    /// Whether the frames found now came much more slowly than those of the run so far.
    fn is_pause(&self, now: Instant, frames: u64, sleep_cost_ns: u64) -> bool {
        let gap_ns = now.since_ns(self.found_at);
        // A thread that slept and one that did not find frames of the same stream at uneven times.
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

    /// Records that no frame came in an interval: the stream has ended.
    pub fn on_silence(&mut self, now: Instant) {
        (self.began_at, self.found_at, self.frames) = (now, now, 0);
    }

    /// Records that an interval ended now, `late_ns` later than asked; a sleep costs `sleep_cost_ns`. If it ended too late, the
    /// thread takes no stream at intervals for a while, because the clock of the host may have no high resolution.
    pub fn on_interval(&mut self, now: Instant, late_ns: u64, sleep_cost_ns: u64) {
        if late_ns > INTERVAL_NS_MAX + sleep_cost_ns {
            self.late_until = now.after_ns(late_ns.min(LATE_NS_MAX) * LATE_FACTOR);
        }
    }

    /// Returns for how long frames may stay unread, in nanoseconds; `None` if the thread should wait for the next
    /// one, spinning if it `may_spin`. The application last posted or polled at `active_at`.
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
        // At the rate of the run.
        let lasts_ns = |frames| lasted_ns.saturating_mul(frames) / self.frames;
        // More come until the thread runs.
        let most_ns = lasts_ns(FRAMES_MAX).saturating_sub(sleep.total_ns).min(INTERVAL_NS_MAX);
        // A thread that sleeps until the next frame is as late as one that sleeps for an interval.
        let late_ns =
            if may_spin { sleep.total_ns - sleep.spent_ns.min(sleep.total_ns) } else { 0 };
        let interval_ns = (quiet_ns / QUIET_DIVISOR).saturating_sub(late_ns).min(most_ns);
        // A shorter one would save nothing.
        (interval_ns >= lasts_ns(FRAMES_MIN).max(sleep.spent_ns)).then_some(interval_ns)
    }
}

/// An interval is this part of the time since the application was last notified or active.
const QUIET_DIVISOR: u64 = 4;

/// Longest interval, in nanoseconds: as long as a batch of the sender lasts.
const INTERVAL_NS_MAX: u64 = BATCH_NS;

/// For how many times the lateness of an interval the thread then tries no other: if all end late, trials take 2 % of the
/// time.
const LATE_FACTOR: u64 = 64;

/// An interval that was later counts as late for this long, in nanoseconds: a tick of a clock of 250 Hz.
const LATE_NS_MAX: u64 = 4_000_000;

/// Most frames in an interval: half of those for which a sender asks for one acknowledgement, so that the sender does not wait
/// for the acknowledgement.
const FRAMES_MAX: u64 = ASK_FRAMES_MAX as u64 / 2;

/// Fewest frames expected in an interval: with fewer, a thread saves no wake-up.
const FRAMES_MIN: u64 = 2;

/// A run does not begin with a pause of so many nanoseconds: an interval, and the interval of the other end.
const PAUSE_NS: u64 = 2 * INTERVAL_NS_MAX;

/// A run ends when frames come so many times more slowly than before.
const PAUSE_FACTOR: u64 = 4;

#[cfg(test)]
mod tests;

//! How much may be in flight, and how much is sent at a time.

use super::{Drain, SendHalf};
use crate::Instant;
use crate::congestion::CongestionController;
use crate::rate::bytes_in;

impl<T: Copy> SendHalf<T> {
    //= protocol.md: flight.1
    /// Returns the congestion window bounded by the peer's buffer, in bytes; one frame always fits.
    pub fn window(&self) -> u32 {
        let window = self.controller.window().min(self.receive_buffer_bytes).max(self.frame_bytes);
        if self.drain == Drain::No { window } else { window.min(self.drained_bytes()) }
    }

    /// Returns how many bytes the congestion window, the peer's buffer and the records still allow.
    ///
    /// Acknowledgements come for many frames at a time. In between the window opens by the clock, at
    /// the measured rate, as if each frame were acknowledged: what is taken for delivered does not
    /// count, for a limited time and number of frames.
    pub fn window_left(&self, now: Instant) -> u32 {
        let room = self.packets.room(self.packets_max as usize) as u32;
        let travelling = self.in_flight_bytes.saturating_sub(self.presumed_bytes(now));
        let left = self.window().saturating_sub(travelling);
        let buffer = self.receive_buffer_bytes.max(self.frame_bytes);
        left.min(buffer.saturating_sub(self.in_flight_bytes))
            .min(room.saturating_mul(self.frame_bytes))
    }

    /// Whether [`window_left`](Self::window_left) is at least `bytes`, which costs next to nothing while
    /// it would be so without anything taken for delivered.
    #[inline]
    pub fn has_room(&self, now: Instant, bytes: u32) -> bool {
        let taken = self.in_flight_bytes.saturating_add(bytes);
        let is_open = taken <= self.window()
            && taken <= self.receive_buffer_bytes.max(self.frame_bytes)
            && self.packets.room(self.packets_max as usize) as u64 * u64::from(self.frame_bytes)
                >= u64::from(bytes);
        is_open || self.window_left(now) >= bytes
    }

    /// Returns when [`window_left`](Self::window_left) will be `bytes` if no acknowledgement comes; `now` if it is
    /// already, [`Instant::NEVER`] if only an acknowledgement can help.
    pub fn opens_at(&self, now: Instant, bytes: u32) -> Instant {
        if self.window_left(now) >= bytes {
            return now;
        }
        let needed = self.in_flight_bytes.saturating_add(bytes).saturating_sub(self.window());
        let (Some(since), Some(rate)) = (self.presumes_since(), self.rate_in_flight()) else {
            return Instant::NEVER;
        };
        let room = self.packets.room(self.packets_max as usize) as u32;
        if needed > self.ahead_bytes()
            || self.in_flight_bytes + bytes > self.receive_buffer_bytes
            || room.saturating_mul(self.frame_bytes) < bytes
        {
            return Instant::NEVER;
        }
        since.after_ns(u64::from(needed) * 1_000_000_000 / clocked(rate) + 1)
    }

    /// The rate by which what is in flight is judged: the largest of late, but where frames wait, and so
    /// the link is what limits, not much more than it carries in the long run.
    pub(super) fn rate_in_flight(&self) -> Option<u64> {
        let largest = self.rate.bytes_per_second()?;
        match self.estimate.carried() {
            Some(steady) if self.estimate.waits_long(self.frame_bytes) => {
                Some(largest.min(steady.saturating_add(steady / 4)))
            }
            _ => Some(largest),
        }
    }

    /// Returns how many bytes to send in one burst.
    pub fn quantum_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().or(self.estimate.nominal()).unwrap_or(0);
        let bytes = bytes_in(rate, QUANTUM_NS);
        let least = (QUANTUM_FRAMES_MIN * self.frame_bytes).min(QUANTUM_BYTES_MAX);
        bytes.clamp(u64::from(least), u64::from(QUANTUM_BYTES_MAX)) as u32
    }

    /// Returns how many bytes to send together once a closed window opens by the clock, at least
    /// [`Self::quantum_bytes`]. If frames queue, the link is the limit; then a batch is what the link carries in
    /// [`BATCH_NS`]. It is at most half of the queue, because the link would run dry if both hosts slept for an
    /// interval.
    pub fn batch_bytes(&self) -> u32 {
        let quantum = self.quantum_bytes();
        let Some(rate) = self.estimate.carried() else { return quantum };
        if !self.estimate.has_queue(self.frame_bytes) {
            return quantum;
        }
        // Bytes in flight on the link and inside the hosts are not queued.
        let round_trip_ns = self.rtt.min_ns().saturating_add(self.rtt.host_ns());
        let queued = u64::from(self.window()).saturating_sub(bytes_in(rate, round_trip_ns));
        let most = (queued / QUEUE_DIVISOR).min(u64::from(QUANTUM_BYTES_MAX));
        let carried = bytes_in(rate, BATCH_NS).min(most);
        quantum.max(carried as u32)
    }

    /// Returns after how many frames to ask the peer for an acknowledgement: half of what may be sent until it is
    /// here, at most [`ASK_FRAMES_MAX`].
    pub fn ask_frames(&self) -> u32 {
        let window = self.window();
        let slack = window.saturating_add(self.ahead_bytes()).saturating_sub(self.pipe_bytes());
        let frames = slack.max(window / 4) / (2 * self.frame_bytes);
        frames.clamp(1, ASK_FRAMES_MAX)
    }

    /// Whether an acknowledgement is to be asked for after so many frames: [`Self::ask_frames`] or more.
    /// For few frames this is found out without the division there.
    #[inline]
    pub fn asks_after(&self, frames: u32) -> bool {
        let (window, more) = (self.window(), (frames + 1) * 2 * self.frame_bytes);
        let is_few = frames < ASK_FRAMES_MAX
            && (4 * more <= window || more <= window.saturating_sub(self.pipe_bytes()));
        !is_few && frames >= self.ask_frames()
    }

    /// What the link itself holds at the measured rate, in bytes.
    fn pipe_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().unwrap_or(0);
        u32::try_from(bytes_in(rate, self.rtt.min_ns())).unwrap_or(u32::MAX)
    }

    /// Bytes in flight that are taken for delivered, though no acknowledgement said so yet.
    pub(super) fn presumed_bytes(&self, now: Instant) -> u32 {
        let (Some(since), Some(rate)) = (self.presumes_since(), self.rate_in_flight()) else {
            return 0;
        };
        bytes_in(clocked(rate), now.since_ns(since)).min(u64::from(self.ahead_bytes())) as u32
    }

    /// From when on frames count as delivered by the clock; `None` if they do not.
    fn presumes_since(&self) -> Option<Instant> {
        if self.probe_count > 0 || self.drain != Drain::No || self.controller.is_fixed() {
            return None;
        }
        let sent_at = self.oldest_sent_at()?;
        Some(self.progress_at.max(sent_at.after_ns(self.rtt.min_ns())))
    }

    /// Most bytes that may be taken for delivered: none where the window is large enough to wait for
    /// acknowledgements.
    fn ahead_bytes(&self) -> u32 {
        let Some(rate) = self.rate_in_flight() else { return 0 };
        if self.drain != Drain::No || self.controller.is_fixed() {
            return 0;
        }
        let pipe = bytes_in(rate, self.rtt.min_ns());
        let wanted = pipe + u64::from((2 * ASK_FRAMES_MAX + 32) * self.frame_bytes);
        let missing = wanted.saturating_sub(u64::from(self.controller.window()));
        let most = u64::from(AHEAD_FRAMES_MAX * self.frame_bytes);
        missing.min(most).min(bytes_in(rate, AHEAD_NS_MAX)) as u32
    }

    /// What is in flight while the queue is drained: half of what the link itself holds.
    pub(super) fn drained_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().unwrap_or(0);
        let half = bytes_in(rate, self.rtt.min_ns()) / 2;
        let least = QUANTUM_FRAMES_MIN * self.frame_bytes;
        u32::try_from(half).unwrap_or(u32::MAX).max(least)
    }
}

/// The rate by which the window opens while no acknowledgement comes: a little more than what was
/// measured, or a rate that was measured too low would remain so.
const fn clocked(rate: u64) -> u64 {
    rate + rate / 8
}

/// Duration of one burst at the measured rate, in nanoseconds: short against the round trips of a
/// LAN, long enough to fill a segmentation offload from 30 Gb/s on; a frame at 1 Gb/s, 13 at 10 Gb/s. It is
/// also what one link among several gets in a turn.
pub const QUANTUM_NS: u64 = 16_000;

/// Duration of one batch on a link that limits, in nanoseconds, and the longest interval for which a thread leaves frames of a
/// stream unread. Added to the lateness of a timer it keeps a write beside the stream below 100 µs of extra latency.
pub const BATCH_NS: u64 = 56_000;

/// A batch is at most this part of the queue.
const QUEUE_DIVISOR: u64 = 2;

/// Largest burst, in bytes: what one `sendmsg` with segmentation offload takes.
const QUANTUM_BYTES_MAX: u32 = 65_536;

/// Smallest burst, in frames.
const QUANTUM_FRAMES_MIN: u32 = 2;

/// Frames for which a sender asks for one acknowledgement, at most: 1.6 % of extra frames.
pub const ASK_FRAMES_MAX: u32 = 64;

/// Frames that may be taken for delivered before their acknowledgement is here: those of two
/// acknowledgements, of which the first may be lost, and what travels meanwhile.
const AHEAD_FRAMES_MAX: u32 = 144;

/// Time for which frames may be taken for delivered, in nanoseconds: 166 frames at 1 Gb/s, 16 at
/// 100 Mb/s.
const AHEAD_NS_MAX: u64 = 2_000_000;

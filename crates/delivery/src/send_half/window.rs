//! Determines how many bytes may be in flight, and how many bytes to send together.

use super::{Drain, SendHalf};
use crate::congestion::CongestionController;
use crate::rate::bytes_in;
use crate::time::Instant;

impl<T: Copy> SendHalf<T> {
    //= protocol.md: flight.1
    /// Returns the congestion window, bounded by the peer's buffer, in bytes. The window is always
    /// large enough for one frame.
    pub fn window(&self) -> u32 {
        let window = self.controller.window().min(self.receive_buffer_bytes).max(self.frame_bytes);
        if self.drain == Drain::No { window } else { window.min(self.drained_bytes()) }
    }

    /// Returns how many more bytes may be sent. The congestion window, the peer's buffer and the
    /// number of records limit this number.
    ///
    /// The peer acknowledges many frames at a time. Between two acknowledgements, the window opens
    /// with time at the measured rate, as if the peer acknowledged each frame. The frames for which
    /// the window has opened in this way are *presumed delivered*. `AHEAD_FRAMES_MAX` and
    /// `AHEAD_NS_MAX` limit their number.
    pub fn window_left(&self, now: Instant) -> u32 {
        let room = self.packets.room(self.packets_max as usize) as u32;
        let travelling = self.in_flight_bytes.saturating_sub(self.presumed_bytes(now));
        let left = self.window().saturating_sub(travelling);
        let buffer = self.receive_buffer_bytes.max(self.frame_bytes);
        left.min(buffer.saturating_sub(self.in_flight_bytes))
            .min(room.saturating_mul(self.frame_bytes))
    }

    /// Returns whether [`window_left`](Self::window_left) is at least `bytes`. This function is
    /// cheaper if the window has room even without counting any frame as presumed delivered.
    #[inline]
    pub fn has_room(&self, now: Instant, bytes: u32) -> bool {
        let taken = self.in_flight_bytes.saturating_add(bytes);
        let is_open = taken <= self.window()
            && taken <= self.receive_buffer_bytes.max(self.frame_bytes)
            && self.packets.room(self.packets_max as usize) as u64 * u64::from(self.frame_bytes)
                >= u64::from(bytes);
        is_open || self.window_left(now) >= bytes
    }

    /// Returns the time at which [`window_left`](Self::window_left) will reach `bytes` if no
    /// acknowledgement arrives. Returns `now` if the window already has this room, and
    /// [`Instant::NEVER`] if only an acknowledgement can open the window.
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

    /// Returns the rate from which the window is computed, in bytes per second: the largest recent
    /// sample, or `None` if there is no sample. If frames wait in a queue, the link is the
    /// bottleneck, and the rate is at most a quarter above the long-term rate.
    pub(super) fn rate_in_flight(&self) -> Option<u64> {
        let largest = self.rate.bytes_per_second()?;
        match self.estimate.carried() {
            Some(steady) if self.estimate.waits_long(self.frame_bytes) => {
                Some(largest.min(steady.saturating_add(steady / 4)))
            }
            _ => Some(largest),
        }
    }

    /// Returns the size of one burst, in bytes.
    pub fn quantum_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().or(self.estimate.nominal()).unwrap_or(0);
        let bytes = bytes_in(rate, QUANTUM_NS);
        let least = (QUANTUM_FRAMES_MIN * self.frame_bytes).min(QUANTUM_BYTES_MAX);
        bytes.clamp(u64::from(least), u64::from(QUANTUM_BYTES_MAX)) as u32
    }

    /// Returns the number of bytes for which to wait while a closed window opens with time, at least
    /// [`Self::quantum_bytes`]. If frames wait in a queue, the link is the bottleneck. In this case
    /// a batch is the data that the link carries in [`BATCH_NS`], but at most half of the queue.
    /// With a larger batch, the link could run out of data while both hosts sleep.
    pub fn awaited_bytes(&self) -> u32 {
        let quantum = self.quantum_bytes();
        let Some(rate) = self.estimate.carried() else { return quantum };
        if !self.estimate.has_queue(self.frame_bytes) {
            return quantum;
        }
        // Subtract the bytes in flight on the link and inside the hosts, because they are not
        // queued.
        let round_trip_ns = self.rtt.min_ns().saturating_add(self.rtt.host_ns());
        let queued = u64::from(self.window()).saturating_sub(bytes_in(rate, round_trip_ns));
        let most = (queued / QUEUE_DIVISOR).min(u64::from(QUANTUM_BYTES_MAX));
        let carried = bytes_in(rate, BATCH_NS).min(most);
        quantum.max(carried as u32)
    }

    /// Returns the largest number of bytes to send in one call of a driver with segmentation
    /// offload: the data that the link carries in [`BATCH_NS`] at the measured rate.
    ///
    /// A host that is short of processor time measures a low rate. With bursts of 16 µs at that
    /// rate, it would also need several times as many calls.
    pub fn offloaded_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().or(self.estimate.nominal()).unwrap_or(0);
        let carried = bytes_in(rate, BATCH_NS).min(u64::from(QUANTUM_BYTES_MAX));
        self.quantum_bytes().max(carried as u32)
    }

    /// Returns the number of frames after which to ask the peer for an acknowledgement: half of the
    /// frames that can be sent before the acknowledgement arrives, but at most [`ASK_FRAMES_MAX`].
    pub fn ask_frames(&self) -> u32 {
        let window = self.window();
        let slack = window.saturating_add(self.ahead_bytes()).saturating_sub(self.pipe_bytes());
        let frames = slack.max(window / 4) / (2 * self.frame_bytes);
        frames.clamp(1, ASK_FRAMES_MAX)
    }

    /// Returns whether `frames` is at least [`Self::ask_frames`], so that the sender should ask for
    /// an acknowledgement. If `frames` is small, this function avoids the division in
    /// [`Self::ask_frames`].
    #[inline]
    pub fn asks_after(&self, frames: u32) -> bool {
        let (window, more) = (self.window(), (frames + 1) * 2 * self.frame_bytes);
        let is_few = frames < ASK_FRAMES_MAX
            && (4 * more <= window || more <= window.saturating_sub(self.pipe_bytes()));
        !is_few && frames >= self.ask_frames()
    }

    /// Returns the bandwidth-delay product of the link at the measured rate, in bytes.
    fn pipe_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().unwrap_or(0);
        u32::try_from(bytes_in(rate, self.rtt.min_ns())).unwrap_or(u32::MAX)
    }

    /// Returns the number of bytes in flight that are presumed delivered, although no
    /// acknowledgement has arrived.
    pub(super) fn presumed_bytes(&self, now: Instant) -> u32 {
        let (Some(since), Some(rate)) = (self.presumes_since(), self.rate_in_flight()) else {
            return 0;
        };
        bytes_in(clocked(rate), now.since_ns(since)).min(u64::from(self.ahead_bytes())) as u32
    }

    /// Returns the time after which frames are presumed delivered. Returns `None` if no frames are
    /// presumed delivered.
    fn presumes_since(&self) -> Option<Instant> {
        if self.probe_count > 0 || self.drain != Drain::No || self.controller.is_fixed() {
            return None;
        }
        let sent_at = self.oldest_sent_at()?;
        Some(self.progress_at.max(sent_at.after_ns(self.rtt.min_ns())))
    }

    /// Returns the largest number of bytes that may be presumed delivered. Returns 0 if the window
    /// is large enough to wait for acknowledgements.
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

    /// Returns the number of bytes that may be in flight while the queue is drained: half of the
    /// bandwidth-delay product.
    pub(super) fn drained_bytes(&self) -> u32 {
        let rate = self.rate_in_flight().unwrap_or(0);
        let half = bytes_in(rate, self.rtt.min_ns()) / 2;
        let least = QUANTUM_FRAMES_MIN * self.frame_bytes;
        u32::try_from(half).unwrap_or(u32::MAX).max(least)
    }
}

/// Returns the rate at which the window opens without acknowledgements. It is a little above the
/// measured rate, because otherwise a rate that was measured too low would never rise.
const fn clocked(rate: u64) -> u64 {
    rate + rate / 8
}

/// Duration of one burst at the measured rate, in nanoseconds: one frame at 1 Gb/s, 13 frames at 10
/// Gb/s. This is short compared with round trips of a LAN. From 30 Gb/s on, such a burst fills the
/// largest batch of segmentation offload. If there are several links, this is also the most that
/// each link sends in one turn.
pub const QUANTUM_NS: u64 = 16_000;

/// Duration of one batch on a link with segmentation offload, in nanoseconds. From 9 Gb/s on, such a
/// batch fills the largest call. This is also the longest interval for which a thread leaves frames
/// of a stream unread. Together with a late timer, such an interval adds less than 100 µs of latency
/// to another write during the stream.
pub const BATCH_NS: u64 = 56_000;

/// Divisor for the limit of a batch: a batch has at most the bytes in the queue of the link divided
/// by this number.
const QUEUE_DIVISOR: u64 = 2;

/// Largest burst, in bytes: the limit of one `sendmsg` with segmentation offload.
const QUANTUM_BYTES_MAX: u32 = 65_536;

/// Smallest burst, in frames.
const QUANTUM_FRAMES_MIN: u32 = 2;

/// Maximum number of frames that the sender sends before it asks for an acknowledgement. One
/// acknowledgement for 64 frames adds 1.6 % more frames.
pub const ASK_FRAMES_MAX: u32 = 64;

/// Maximum number of frames that are presumed delivered before their acknowledgement arrives. It
/// covers the frames of two acknowledgements, because the first acknowledgement may be lost. It
/// also covers the frames in flight until the second acknowledgement arrives.
const AHEAD_FRAMES_MAX: u32 = 144;

/// Limit of the frames that are presumed delivered, as the time in nanoseconds that the link takes
/// to carry them at the measured rate. At 1 Gb/s these are 166 frames, at 100 Mb/s 16 frames.
const AHEAD_NS_MAX: u64 = 2_000_000;

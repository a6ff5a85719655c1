//! The buffer limit of an output whose queue is not stored.

use std::collections::VecDeque;

/// Frames that wait for a link or are being sent on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    /// For each frame, when it will have left, gap included, and its bytes.
    frames: VecDeque<(u64, u32)>,
    bytes: u64,
    bytes_max: u64,
}

impl Backlog {
    /// Returns whether a frame that is ready at `ready_ps` fits, given the frames that have not
    /// left until then.
    pub(super) fn has_room(&mut self, ready_ps: u64, bytes: u32, most: u64) -> bool {
        while let Some(&(left_ps, sent)) = self.frames.front()
            && left_ps < ready_ps
        {
            self.bytes -= u64::from(sent);
            self.frames.pop_front();
        }
        self.bytes + u64::from(bytes) <= most
    }

    /// Adds a frame.
    pub(super) fn add(&mut self, left_ps: u64, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
        self.frames.push_back((left_ps, bytes));
    }

    /// Returns the maximum length of the queue so far, in bytes.
    pub(super) const fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Adds the counters of the same port in another part. Each port counts in one part only.
    pub(super) fn merge(&mut self, part: &Self) {
        self.bytes_max = self.bytes_max.max(part.bytes_max);
    }
}

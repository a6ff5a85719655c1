//! The buffer limit of an output port whose queue is not stored.

use std::collections::VecDeque;

/// The frames that wait for a link, and the frame that the link is sending.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    /// For each frame: the time at which the frame and the gap after it have left, and its length
    /// in bytes.
    frames: VecDeque<(u64, u32)>,
    bytes: u64,
    bytes_max: u64,
}

impl Backlog {
    /// Returns whether a frame that becomes ready at `ready_ps` fits in the buffer. Frames that
    /// have left before that time do not count.
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

    /// Adds the counter that another part of a divided network has for the same port. Only one of
    /// the parts sends frames through this port.
    pub(super) fn merge(&mut self, part: &Self) {
        self.bytes_max = self.bytes_max.max(part.bytes_max);
    }
}

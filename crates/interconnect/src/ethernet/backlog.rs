//! The limit of an output whose queue need not exist: what of it has not left when a frame comes.

use std::collections::VecDeque;

/// Frames that wait for a link or are being sent on it.
#[derive(Clone, Debug, Default)]
pub(super) struct Backlog {
    /// When each will have left, gap included, and its bytes.
    frames: VecDeque<(u64, u32)>,
    bytes: u64,
    bytes_max: u64,
}

impl Backlog {
    /// Whether a frame that is ready at a time has room beside what has not left before.
    pub(super) fn has_room(&mut self, ready_ps: u64, bytes: u32, most: u64) -> bool {
        while let Some(&(left_ps, sent)) = self.frames.front()
            && left_ps < ready_ps
        {
            self.bytes -= u64::from(sent);
            self.frames.pop_front();
        }
        self.bytes + u64::from(bytes) <= most
    }

    /// A frame joins it.
    pub(super) fn add(&mut self, left_ps: u64, bytes: u32) {
        self.bytes += u64::from(bytes);
        self.bytes_max = self.bytes_max.max(self.bytes);
        self.frames.push_back((left_ps, bytes));
    }

    /// The most that it ever was, in bytes.
    pub(super) const fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Takes over what the same port counted in another part; each counts in one part only.
    pub(super) fn merge(&mut self, part: &Self) {
        self.bytes_max = self.bytes_max.max(part.bytes_max);
    }
}

//! The receiving end of a connection.

use std::collections::VecDeque;

use super::{Recovery, is_before};

/// The receiving end of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    /// First frame that is missing.
    pub(super) expected: u32,
    /// Whether each frame from `expected` on has arrived. The first has not.
    beyond: VecDeque<bool>,
    /// When the next notification of congestion may be sent, in picoseconds.
    notifies_ps: u64,
}

/// How a data frame is handled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// The frame was missing.
    New,
    /// The frame had arrived before.
    Duplicate,
    /// The frame is out of order and is discarded.
    Discarded,
}

impl Receiver {
    /// Handles the arrival of a frame.
    pub(super) fn take(&mut self, sequence: u32, recovery: Recovery) -> Verdict {
        if is_before(sequence, self.expected) {
            return Verdict::Duplicate;
        }
        let ahead = sequence.wrapping_sub(self.expected) as usize;
        if ahead == 0 {
            self.advance();
            return Verdict::New;
        }
        if recovery == Recovery::GoBackN {
            return Verdict::Discarded;
        }
        if self.beyond.len() <= ahead {
            self.beyond.resize(ahead + 1, false);
        }
        let was_there = std::mem::replace(&mut self.beyond[ahead], true);
        if was_there { Verdict::Duplicate } else { Verdict::New }
    }

    /// Handles a marked frame. Returns whether a notification is to be sent, with at least
    /// `interval_ps` between two.
    pub(super) const fn notifies(&mut self, interval_ps: u64, now_ps: u64) -> bool {
        let is_time = now_ps >= self.notifies_ps;
        if is_time {
            self.notifies_ps = now_ps + interval_ps;
        }
        is_time
    }

    /// Advances over the expected frame, which has arrived, and later ones that had arrived.
    fn advance(&mut self) {
        loop {
            self.beyond.pop_front();
            self.expected = self.expected.wrapping_add(1);
            if self.beyond.front() != Some(&true) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(recovery: Recovery, sequences: &[u32]) -> (Vec<Verdict>, u32) {
        let mut receiver = Receiver::default();
        let verdicts = sequences.iter().map(|&sequence| receiver.take(sequence, recovery));
        (verdicts.collect(), receiver.expected)
    }

    #[test]
    fn go_back_n_takes_frames_in_order_only() {
        use Verdict::{Discarded, Duplicate, New};
        let taken = taken(Recovery::GoBackN, &[0, 2, 1, 1, 2, 0]);
        assert_eq!(taken, (vec![New, Discarded, New, Duplicate, New, Duplicate], 3));
    }

    #[test]
    fn selective_repeat_keeps_what_came_early() {
        use Verdict::{Duplicate, New};
        let taken = taken(Recovery::SelectiveRepeat, &[0, 3, 1, 3, 2, 1, 5]);
        assert_eq!(taken, (vec![New, New, New, Duplicate, New, Duplicate, New], 4));
    }

    #[test]
    fn notifications_are_an_interval_apart() {
        let mut receiver = Receiver::default();
        let sent = [0, 1, 49, 50, 51, 99, 120, 169, 170].map(|at| receiver.notifies(50, at));
        assert_eq!(sent, [true, false, false, true, false, false, true, false, true]);
    }

    #[test]
    fn sequence_numbers_wrap() {
        let mut receiver = Receiver { expected: u32::MAX, ..Receiver::default() };
        assert_eq!(receiver.take(1, Recovery::SelectiveRepeat), Verdict::New);
        assert_eq!(receiver.take(u32::MAX, Recovery::SelectiveRepeat), Verdict::New);
        assert_eq!(receiver.take(u32::MAX - 1, Recovery::SelectiveRepeat), Verdict::Duplicate);
        assert_eq!(receiver.expected, 0);
        assert_eq!(receiver.take(0, Recovery::SelectiveRepeat), Verdict::New);
        assert_eq!(receiver.expected, 2);
    }
}

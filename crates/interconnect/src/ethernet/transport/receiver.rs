//! The receiving end of a connection.

use std::collections::VecDeque;

use super::{Recovery, is_before};

/// The receiving end of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Receiver {
    /// First frame that is missing.
    pub(super) expected: u32,
    /// For each frame from `expected` on, whether the frame has arrived. The first entry is always
    /// false.
    beyond: VecDeque<bool>,
    /// Earliest time of the next congestion notification, in picoseconds.
    notifies_ps: u64,
}

/// What the receiver does with a data frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Verdict {
    /// Accepts the frame, which was missing.
    New,
    /// Ignores the frame, because it had arrived before.
    Duplicate,
    /// Discards the frame, because it is out of order.
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

    /// Handles a marked frame. Returns whether the receiver must send a notification; two
    /// notifications are at least `interval_ps` apart.
    pub(super) const fn notifies(&mut self, interval_ps: u64, now_ps: u64) -> bool {
        let is_time = now_ps >= self.notifies_ps;
        if is_time {
            self.notifies_ps = now_ps + interval_ps;
        }
        is_time
    }

    /// Advances `expected` beyond the frame that has just arrived, and beyond the following frames
    /// that arrived before.
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
    fn go_back_n_accepts_only_frames_in_order() {
        use Verdict::{Discarded, Duplicate, New};
        let taken = taken(Recovery::GoBackN, &[0, 2, 1, 1, 2, 0]);
        assert_eq!(taken, (vec![New, Discarded, New, Duplicate, New, Duplicate], 3));
    }

    #[test]
    fn selective_repeat_keeps_early_frames() {
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

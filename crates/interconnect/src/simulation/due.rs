//! A priority queue for numbers that callers mostly add in ascending runs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A queue of numbers that returns the smallest number first.
///
/// Requests of successive ranks have ascending numbers, except that the sequence can start in its
/// middle and continue from its beginning. The sequence then consists of two ascending runs. The
/// queue stores two runs in the order of adding, so the smallest number of each run is at its
/// front. Numbers that fit neither run are stored in a heap.
#[derive(Debug, Default)]
pub(super) struct Due {
    runs: [Run; RUNS],
    others: BinaryHeap<Reverse<u128>>,
}

/// Ascending numbers. The first `taken` numbers have been removed. When all numbers have been
/// removed, the list is cleared.
#[derive(Debug, Default)]
struct Run {
    numbers: Vec<u128>,
    taken: usize,
}

impl Due {
    #[inline]
    pub(super) fn push(&mut self, number: u128) {
        for run in &mut self.runs {
            if run.numbers.last().is_none_or(|last| *last <= number) {
                run.numbers.push(number);
                return;
            }
        }
        self.others.push(Reverse(number));
    }

    /// Removes and returns the smallest number, if it is at most `most`.
    #[inline]
    pub(super) fn pop_up_to(&mut self, most: u128) -> Option<u128> {
        let [one, two] = &mut self.runs;
        let (run, least) = match (one.front(), two.front()) {
            (one_least, two_least) if two_least < one_least => (two, two_least),
            (least, _) => (one, least),
        };
        if let Some(&Reverse(other)) = self.others.peek()
            && other < least
        {
            return if other <= most {
                self.others.pop().map(|Reverse(least)| least)
            } else {
                None
            };
        }
        if least > most { None } else { run.take() }
    }
}

impl Run {
    /// Returns the smallest number, or the maximum value if the run is empty.
    #[inline]
    fn front(&self) -> u128 {
        self.numbers.get(self.taken).copied().unwrap_or(u128::MAX)
    }

    #[inline]
    fn take(&mut self) -> Option<u128> {
        let number = *self.numbers.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.numbers.len() {
            self.numbers.clear();
            self.taken = 0;
        }
        Some(number)
    }
}

/// Number of ascending runs that the queue stores. A sequence of ascending numbers that starts in
/// its middle and continues from its beginning consists of two such runs.
const RUNS: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_minimum_is_popped_whatever_the_order_of_pushes(
            steps in prop::collection::vec((any::<bool>(), 0..40_u128), 0..200),
        ) {
            let (mut due, mut model) = (Due::default(), Vec::new());
            for (pushes, number) in steps {
                if pushes {
                    due.push(number);
                    model.push(number);
                    continue;
                }
                model.sort_unstable();
                let is_taken = model.first().is_some_and(|least| *least <= number);
                let expected = is_taken.then(|| model.remove(0));
                prop_assert_eq!(due.pop_up_to(number), expected);
            }
        }
    }

    #[test]
    fn rotated_ascending_pushes_need_no_heap() {
        let mut due = Due::default();
        for number in (700..1_000).chain(0..700) {
            due.push(number);
        }
        assert!(due.others.is_empty());
        let taken: Vec<u128> = std::iter::from_fn(|| due.pop_up_to(u128::MAX)).collect();
        assert_eq!(taken, (0..1_000).collect::<Vec<_>>());
    }
}

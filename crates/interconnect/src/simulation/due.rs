//! Numbers that are taken least first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Numbers of which the least is taken.
///
/// What ranks ask for one after the other comes in ascending runs, be it that a run begins in the middle.
/// Those are kept as they come, and to take the least is a look at their fronts; what fits none of them
/// is in a heap.
#[derive(Debug, Default)]
pub(super) struct Due {
    runs: [Run; RUNS],
    others: BinaryHeap<Reverse<u128>>,
}

/// Ascending numbers, of which the first were taken; none if all were.
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

    /// Takes the least, if it is not above another number.
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
    /// The least; the greatest number there is if there is none.
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

/// A run that begins in the middle is two.
const RUNS: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_least_is_taken_whatever_came_before(
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
    fn what_comes_in_turn_beginning_anywhere_needs_no_heap() {
        let mut due = Due::default();
        for number in (700..1_000).chain(0..700) {
            due.push(number);
        }
        assert!(due.others.is_empty());
        let taken: Vec<u128> = std::iter::from_fn(|| due.pop_up_to(u128::MAX)).collect();
        assert_eq!(taken, (0..1_000).collect::<Vec<_>>());
    }
}

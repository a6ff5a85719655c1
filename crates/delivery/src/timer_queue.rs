//! Deadlines of many timers, earliest first. Small integers identify the timers.

use crate::time::Instant;

/// Deadlines by identifier: an indexed binary heap.
///
/// Each identifier has at most one deadline. Every packet changes a deadline. In a heap without a
/// table of positions, each change would leave a stale entry. In this heap, a table from identifier
/// to heap position lets a deadline move in place. So every change is O(log n), reading the
/// earliest deadline is O(1), and the number of identifiers bounds the memory.
///
/// Identifiers must be dense, because the memory is proportional to the largest identifier. If
/// deadlines are equal, the smaller identifier is returned first, so that a simulated run repeats
/// exactly.
#[derive(Clone, Debug, Default)]
pub struct TimerQueue {
    /// A binary min-heap.
    heap: Vec<TimerEntry>,
    /// For each identifier, its position in `heap`, or [`ABSENT`].
    positions: Vec<u32>,
}

/// An entry of the heap. Entries are compared by deadline, then by identifier.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct TimerEntry {
    deadline: Instant,
    id: u32,
}

impl TimerQueue {
    /// Creates a queue for the identifiers `0..ids`. None of them has a deadline.
    pub fn with_capacity(ids: u32) -> Self {
        let mut queue = Self::default();
        if let Some(last) = ids.checked_sub(1) {
            queue.ensure_capacity(last);
        }
        queue
    }

    /// Makes `id` and all smaller identifiers usable. No other function allocates.
    pub fn ensure_capacity(&mut self, id: u32) {
        let ids = id as usize + 1;
        if ids > self.positions.len() {
            self.positions.resize(ids, ABSENT);
            self.heap.reserve(ids - self.heap.len());
        }
    }

    /// Sets the deadline of `id`. [`Instant::NEVER`] removes the deadline.
    ///
    /// # Panics
    /// Panics if neither [`TimerQueue::with_capacity`] nor [`TimerQueue::ensure_capacity`] covered
    /// `id`.
    pub fn set(&mut self, id: u32, deadline: Instant) {
        assert!((id as usize) < self.positions.len(), "timer {id} beyond the capacity");
        let position = self.positions[id as usize];
        if deadline == Instant::NEVER {
            if position != ABSENT {
                self.remove_at(position as usize);
            }
        } else if position == ABSENT {
            self.heap.push(TimerEntry { deadline, id });
            self.sift_up(self.heap.len() - 1);
        } else {
            let position = position as usize;
            let before = self.heap[position].deadline;
            self.heap[position].deadline = deadline;
            if deadline < before {
                self.sift_up(position);
            } else if deadline > before {
                self.sift_down(position);
            }
        }
    }

    /// Removes and returns the identifier with the earliest deadline. Returns `None` if that
    /// deadline is after `now`.
    ///
    /// Call this until it returns `None`. A returned identifier has no deadline until one is set
    /// again.
    pub fn pop_due(&mut self, now: Instant) -> Option<u32> {
        let first = *self.heap.first()?;
        if first.deadline > now {
            return None;
        }
        self.remove_at(0);
        Some(first.id)
    }

    /// Returns the earliest deadline, or [`Instant::NEVER`] if there is none.
    pub fn next(&self) -> Instant {
        self.heap.first().map_or(Instant::NEVER, |entry| entry.deadline)
    }

    /// Returns the deadline of `id`, or [`Instant::NEVER`] if it has none.
    pub fn deadline(&self, id: u32) -> Instant {
        match self.positions.get(id as usize) {
            Some(&position) if position != ABSENT => self.heap[position as usize].deadline,
            _ => Instant::NEVER,
        }
    }

    /// Returns the number of identifiers with a deadline.
    pub const fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether no identifier has a deadline.
    pub const fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn remove_at(&mut self, position: usize) {
        let removed = self.heap.swap_remove(position);
        self.positions[removed.id as usize] = ABSENT;
        if position < self.heap.len() {
            // The entry that was last in the heap now stands at `position`, and may have to move up
            // or down from there.
            self.sift_down(position);
            self.sift_up(position);
        }
    }

    fn sift_up(&mut self, mut position: usize) {
        let entry = self.heap[position];
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent] <= entry {
                break;
            }
            self.place(position, self.heap[parent]);
            position = parent;
        }
        self.place(position, entry);
    }

    fn sift_down(&mut self, mut position: usize) {
        let entry = self.heap[position];
        loop {
            let left = 2 * position + 1;
            let Some(&left_entry) = self.heap.get(left) else { break };
            let right = self.heap.get(left + 1).filter(|right| **right < left_entry);
            let (child, child_entry) = right.map_or((left, left_entry), |right| (left + 1, *right));
            if entry <= child_entry {
                break;
            }
            self.place(position, child_entry);
            position = child;
        }
        self.place(position, entry);
    }

    fn place(&mut self, position: usize, entry: TimerEntry) {
        self.heap[position] = entry;
        self.positions[entry.id as usize] = position as u32;
    }
}

/// Position of an identifier that is not in the heap. It is larger than all valid positions.
const ABSENT: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn equal_deadlines_expire_in_identifier_order() {
        let mut queue = TimerQueue::with_capacity(8);
        for id in [5, 2, 7, 0, 3] {
            queue.set(id, Instant(10));
        }
        let order: Vec<u32> = core::iter::from_fn(|| queue.pop_due(Instant(10))).collect();
        assert_eq!(order, [0, 2, 3, 5, 7]);
    }

    #[test]
    fn nothing_is_due_before_its_deadline() {
        let mut queue = TimerQueue::with_capacity(1);
        queue.set(0, Instant(10));
        assert_eq!(queue.pop_due(Instant(9)), None);
        assert_eq!(queue.next(), Instant(10));
        assert_eq!(queue.pop_due(Instant(10)), Some(0));
        assert_eq!(queue.next(), Instant::NEVER);
    }

    #[test]
    fn setting_a_timer_to_never_cancels_it() {
        let mut queue = TimerQueue::with_capacity(2);
        queue.set(1, Instant(3));
        queue.set(1, Instant::NEVER);
        queue.set(0, Instant::NEVER);
        assert!(queue.is_empty());
        assert_eq!(queue.pop_due(Instant::NEVER), None);
    }

    #[test]
    fn setting_a_timer_does_not_allocate() {
        let mut queue = TimerQueue::with_capacity(100);
        let before = (queue.heap.as_ptr(), queue.positions.as_ptr());
        for id in (0..100).rev() {
            queue.set(id, Instant(u64::from(id)));
        }
        assert_eq!(before, (queue.heap.as_ptr(), queue.positions.as_ptr()));
    }

    #[test]
    #[should_panic(expected = "timer 4 beyond the capacity")]
    fn an_identifier_beyond_the_capacity_is_a_bug_of_the_caller() {
        TimerQueue::with_capacity(4).set(4, Instant(1));
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(
            steps in prop::collection::vec((0_u32..40, 0_u64..60, 0_u8..5), 1..400),
        ) {
            let mut queue = TimerQueue::with_capacity(0);
            let mut model = BTreeMap::new();
            for (id, time, step) in steps {
                match step {
                    0 => {
                        let first = model.iter().map(|(&id, &at)| (at, id)).min();
                        let due = first.filter(|&(at, _)| at <= Instant(time)).map(|(_, id)| id);
                        if let Some(due) = due {
                            model.remove(&due);
                        }
                        prop_assert_eq!(queue.pop_due(Instant(time)), due);
                    }
                    1 => {
                        queue.ensure_capacity(id);
                        queue.set(id, Instant::NEVER);
                        model.remove(&id);
                    }
                    _ => {
                        queue.ensure_capacity(id);
                        queue.set(id, Instant(time));
                        model.insert(id, Instant(time));
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
                let earliest = model.values().min().copied().unwrap_or(Instant::NEVER);
                prop_assert_eq!(queue.next(), earliest);
                prop_assert_eq!(
                    queue.deadline(id), model.get(&id).copied().unwrap_or(Instant::NEVER)
                );
            }
        }
    }
}

//! The queue of future events.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use delivery::Instant;

/// Future events, ordered by time. Events of the same time are ordered by the sequence in which
/// they were scheduled. Without this second key, a run would depend on the order in which the heap
/// returns equal entries.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<QueuedEvent<E>>,
    scheduled: u64,
    now: Instant,
}

impl<E> EventQueue<E> {
    /// Creates an empty queue at time zero.
    pub const fn new() -> Self {
        Self { heap: BinaryHeap::new(), scheduled: 0, now: Instant(0) }
    }

    /// Returns the virtual time, which is the time of the last event popped.
    pub const fn now(&self) -> Instant {
        self.now
    }

    /// Schedules `event` at `time`. If `time` has passed, the event is due now. If `time` is
    /// [`Instant::NEVER`], drops the event.
    pub fn push(&mut self, time: Instant, event: E) {
        if time == Instant::NEVER {
            return;
        }
        self.heap.push(QueuedEvent { time: time.max(self.now), sequence: self.scheduled, event });
        self.scheduled += 1;
    }

    /// Removes and returns the next event, if it is due at `limit` or earlier. Sets the clock to
    /// its time.
    pub fn pop_until(&mut self, limit: Instant) -> Option<E> {
        if self.heap.peek()?.time > limit {
            return None;
        }
        let entry = self.heap.pop()?;
        self.now = entry.time;
        Some(entry.event)
    }

    /// Returns the time of the next event; `None` if no event is scheduled.
    pub fn next_time(&self) -> Option<Instant> {
        self.heap.peek().map(|entry| entry.time)
    }

    /// Sets the clock to `time`, or to the time of the next event if that is earlier.
    pub fn advance(&mut self, time: Instant) {
        let due = self.next_time().unwrap_or(Instant::NEVER);
        self.now = self.now.max(time.min(due));
    }

    /// Returns the number of scheduled events.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether no event is scheduled.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self::new()
    }
}

#[derive(Debug)]
struct QueuedEvent<E> {
    time: Instant,
    sequence: u64,
    event: E,
}

impl<E> Ord for QueuedEvent<E> {
    /// Compares in reverse, because the heap returns its greatest entry first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.time, other.sequence).cmp(&(self.time, self.sequence))
    }
}

impl<E> PartialOrd for QueuedEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for QueuedEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<E> Eq for QueuedEvent<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_and_then_by_scheduling_order() {
        let mut queue = EventQueue::new();
        for (time, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e')] {
            queue.push(Instant(time), name);
        }
        let mut order = String::new();
        while let Some(name) = queue.pop_until(Instant(100)) {
            order.push(name);
        }
        assert_eq!(order, "bdeac");
        assert_eq!(queue.now(), Instant(5));
    }

    #[test]
    fn clock_never_runs_backwards_and_limit_is_kept() {
        let mut queue = EventQueue::new();
        queue.push(Instant(10), 1);
        assert_eq!(queue.pop_until(Instant(9)), None);
        assert_eq!(queue.pop_until(Instant(10)), Some(1));
        queue.push(Instant(2), 2);
        assert_eq!(queue.pop_until(Instant(10)), Some(2));
        assert_eq!(queue.now(), Instant(10));
        queue.push(Instant(20), 3);
        queue.advance(Instant(30));
        assert_eq!(queue.now(), Instant(20));
    }
}

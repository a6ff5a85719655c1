//! The threads that share one processor.

use super::{Thread, ThreadId};

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) running: Option<ThreadId>,
    /// The waiting threads, in the order in which they entered the queue.
    pub(super) waiting: Vec<ThreadId>,
    /// The thread that ran last. Running it again needs no switch.
    pub(super) ran_last: Option<ThreadId>,
    /// Average virtual runtime of the threads. If the queue is empty, the average before it became
    /// empty.
    pub(super) average_ns: i64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    fn members(&self) -> impl Iterator<Item = ThreadId> + '_ {
        self.running.into_iter().chain(self.waiting.iter().copied())
    }

    pub(super) fn note_average(&mut self, threads: &[Thread]) {
        let sum: i128 = self.members().map(|id| i128::from(threads[id.0].runtime_ns)).sum();
        let count = self.len() as i128;
        if count > 0 {
            // Rounding up makes at least one thread eligible.
            self.average_ns = (sum + count - 1).div_euclid(count) as i64;
        }
    }

    /// Returns the eligible thread with the earliest deadline. If the running thread and another
    /// thread have the same deadline, returns the running thread.
    pub(super) fn pick(&self, threads: &[Thread]) -> Option<ThreadId> {
        let eligible = self.members().filter(|id| threads[id.0].runtime_ns <= self.average_ns);
        eligible.min_by_key(|id| threads[id.0].deadline_ns)
    }
}

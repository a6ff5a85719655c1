//! The threads that share one processor.

use super::{Thread, ThreadId};

#[derive(Clone, Debug, Default)]
pub(super) struct Queue {
    pub(super) running: Option<ThreadId>,
    /// In the order in which they came.
    pub(super) waiting: Vec<ThreadId>,
    /// The thread to which no switch is needed.
    pub(super) ran_last: Option<ThreadId>,
    /// Average virtual runtime of its threads, or what it was when there were some.
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
            // Rounded up, so that one thread at least is eligible.
            self.average_ns = (sum + count - 1).div_euclid(count) as i64;
        }
    }

    /// The eligible thread with the earliest deadline; the running one of equals.
    pub(super) fn pick(&self, threads: &[Thread]) -> Option<ThreadId> {
        let eligible = self.members().filter(|id| threads[id.0].runtime_ns <= self.average_ns);
        eligible.min_by_key(|id| threads[id.0].deadline_ns)
    }
}

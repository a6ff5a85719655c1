//! The threads of a rank that use the memory.

use std::panic::{self, AssertUnwindSafe};
use std::thread;

use crate::core::Core;
use crate::failure::RankFailure;
use crate::handle::Dsm;

impl Dsm {
    /// Returns the number of threads of each rank: [`Options::threads`](crate::Options::threads).
    pub fn threads(&self) -> usize {
        usize::from(self.core().threads)
    }

    /// Runs `run` on as many threads as a rank has, of which the calling thread is one, with the
    /// number of each from 0. Returns their results when all have ended.
    ///
    /// If a thread panics, the rank fails, because the other threads may wait for it.
    ///
    /// # Panics
    /// If the system starts no more threads, or if a thread panics and
    /// [`Options::on_failure`](crate::Options::on_failure) is set.
    pub fn scope<R: Send>(&self, run: impl Fn(usize) -> R + Sync) -> Vec<R> {
        let core = self.core();
        let run = |index| {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(index)));
            outcome.unwrap_or_else(|panic| {
                core.thread_has_panicked(index);
                panic::resume_unwind(panic)
            })
        };
        thread::scope(|scope| {
            let run = &run;
            let spawn = |index| scope.spawn(move || run(index));
            let others: Vec<_> = (1..self.threads()).map(spawn).collect();
            let first = run(0);
            let join = |other: thread::ScopedJoinHandle<'_, R>| {
                other.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
            };
            [first].into_iter().chain(others.into_iter().map(join)).collect()
        })
    }
}

impl Core {
    /// Fails the rank, because a thread has panicked that others may wait for.
    fn thread_has_panicked(&self, index: usize) {
        let mut state = self.lock();
        let place = self.places.get(self.rank).cloned().unwrap_or_default();
        let reason = format!("has failed: its thread {index} panicked");
        state.failure.get_or_insert_with(|| RankFailure::own(self.rank, place, reason));
        self.wake_if_ended(&state);
    }
}

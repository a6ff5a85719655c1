//! The threads of a rank that use the memory. Each has a number while it runs.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use dsm_protocol::ThreadNumber;

use crate::core::Core;
use crate::error::Error;
use crate::failure::RankFailure;
use crate::handle::Dsm;

/// The numbers that no thread has. A process joins once, so there is one set of them.
static FREE: Mutex<Vec<u16>> = Mutex::new(Vec::new());

thread_local! {
    /// The number of this thread.
    static NUMBER: Cell<Option<u16>> = const { Cell::new(None) };
    /// Gives the number back when the thread ends.
    static GIVES_BACK: GivesBack = const { GivesBack };
}

struct GivesBack;

impl Drop for GivesBack {
    fn drop(&mut self) {
        if let Some(number) = NUMBER.take() {
            free().push(number);
        }
    }
}

/// Makes the numbers of `threads` threads available.
pub(crate) fn offer(threads: u16) {
    *free() = (0..threads).rev().collect();
}

/// Returns the number of the calling thread. A thread gets one when it first uses the memory, and
/// keeps it until it ends.
pub(crate) fn own(threads: u16) -> Result<ThreadNumber, Error> {
    if let Some(number) = NUMBER.get() {
        return Ok(ThreadNumber(number));
    }
    let number = free().pop().ok_or(Error::TooManyThreads(threads))?;
    NUMBER.set(Some(number));
    // A thread that ends, and uses the memory once more, keeps the number for ever.
    let _ends = GIVES_BACK.try_with(|_| ());
    Ok(ThreadNumber(number))
}

fn free() -> MutexGuard<'static, Vec<u16>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

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
        drop(state);
        self.progress.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_different_numbers_and_give_them_back() {
        offer(2);
        let numbers = || {
            let both = std::sync::Barrier::new(2);
            let number = || {
                let number = own(2).unwrap();
                assert_eq!(own(2).unwrap(), number);
                both.wait();
                number.0
            };
            thread::scope(|scope| {
                let other = scope.spawn(number);
                let own = scope.spawn(number).join().unwrap();
                let mut numbers = [own, other.join().unwrap()];
                numbers.sort_unstable();
                numbers
            })
        };
        assert_eq!(numbers(), [0, 1]);
        assert_eq!(numbers(), [0, 1]);
        offer(0);
        assert!(matches!(thread::spawn(|| own(2)).join().unwrap(), Err(Error::TooManyThreads(2))));
    }
}

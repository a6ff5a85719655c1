//! Two ways to wake threads. A *mark* is a counter; threads can wait until it increases, like they
//! wait for completions. By a *call*, one thread wakes another thread that sleeps on a descriptor.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter for one condition for which threads [wait](crate::Interest::Mark), for example that a
/// stream has bytes or a ring has room. Code that makes the condition true raises the mark. Each
/// condition has its own mark, so raising a mark wakes only the threads that wait for this
/// condition.
#[derive(Debug)]
pub struct Mark {
    raised: AtomicU64,
}

impl Mark {
    /// Creates a mark that was not raised yet.
    pub fn new() -> Self {
        Self { raised: AtomicU64::new(0) }
    }

    /// Raises the mark: when the calling thread leaves the engine, it wakes the threads that wait
    /// for the mark. Call this inside the engine, from hooks, machines and work sources, in a turn
    /// that does work ([`Posted::count`](crate::Posted::count)). A thread outside of the engine
    /// calls [`Runtime::raise`](crate::Runtime::raise) instead.
    #[inline]
    pub fn raise(&self) {
        // Release: a thread that sees the new count also sees everything that this thread did
        // before.
        self.raised.fetch_add(1, Ordering::Release);
    }

    /// Returns how often the mark was raised.
    pub(crate) fn raised(&self) -> u64 {
        self.raised.load(Ordering::Acquire)
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

/// State of the calls to a thread that sleeps on a descriptor. By a call, another thread wakes this
/// thread: the call raises the descriptor, and is pending until the thread has woken up and
/// answered it. While a call is pending, further calls do not raise the descriptor again. The lock
/// of the list of waiters protects this value.
#[derive(Debug, Default)]
pub(crate) struct Call {
    is_pending: bool,
}

impl Call {
    /// Calls the thread: wakes the thread by `raise`, if no earlier call is pending. The caller
    /// must hold the lock of the list of waiters.
    pub(crate) fn call(&mut self, raise: impl FnOnce()) {
        if !self.is_pending {
            self.is_pending = true;
            raise();
        }
    }

    /// Answers the call, after the thread has woken up. `lower` must make the descriptor
    /// unreadable. `clear` must take the lock, and apply its argument to the `Call`. The thread
    /// must then check for what it waits for.
    ///
    /// This method lowers the descriptor before it clears the call. If another thread calls between
    /// the two steps, the descriptor stays unreadable, but the check that follows sees the cause of
    /// that call. In the opposite order, this method could lower the descriptor after a new call
    /// has raised it. No later call would raise the descriptor again, because the new call would
    /// stay pending.
    pub(crate) fn heed(lower: impl FnOnce(), clear: impl FnOnce(fn(&mut Self))) {
        let done = |call: &mut Self| call.is_pending = false;
        if cfg!(loom_mutation) {
            clear(done);
            lower();
        } else {
            lower();
            clear(done);
        }
    }

    /// Returns whether a call is pending. The descriptor is then still readable.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn repeated_notifications_signal_the_descriptor_once() {
        let (mut call, mut raised) = (Call::default(), 0);
        call.call(|| raised += 1);
        call.call(|| raised += 1);
        assert_eq!(raised, 1);
        Call::heed(|| raised -= 1, |done| done(&mut call));
        assert!(!call.is_pending());
        call.call(|| raised += 1);
        assert_eq!(raised, 1);
    }
}

/// Model: one thread sleeps on a descriptor, and another works and calls it. loom tries every
/// interleaving. To run it:
///
/// ```sh
/// ./x loom
/// ```
///
/// With `--cfg loom_mutation` in RUSTFLAGS, `Call::heed` clears a call before it lowers the
/// descriptor, and the test must fail.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::atomic::{AtomicBool, AtomicUsize};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::cell::ProgressCell;

    /// State of the model. Its methods take the same steps as `Runtime::wait_beside` and a turn.
    struct World {
        cell: ProgressCell<usize>,
        /// Units of work done so far; the thread waits for an increase.
        come: AtomicUsize,
        mark: Mark,
        /// True if the thread is in the list.
        is_listed: AtomicBool,
        /// The count of the mark that the sleeping thread has seen, and the state of the calls
        /// (wake-ups by other threads) to this thread.
        entry: Mutex<(u64, Call)>,
        is_readable: AtomicBool,
    }

    impl World {
        fn work(&self) {
            self.cell.drive(1, |come| {
                *come += 1;
                self.come.store(*come, Ordering::Relaxed);
                self.mark.raise();
                false
            });
            if self.is_listed.load(Ordering::Relaxed) {
                let mut entry = self.entry.lock().expect("no panic");
                let (seen, call) = &mut *entry;
                if self.mark.raised() != *seen {
                    call.call(|| self.is_readable.store(true, Ordering::Relaxed));
                }
            }
        }

        fn heed(&self) {
            let lower = || self.is_readable.store(false, Ordering::Relaxed);
            Call::heed(lower, |done| {
                let mut entry = self.entry.lock().expect("no panic");
                entry.0 = self.mark.raised();
                done(&mut entry.1);
            });
        }
    }

    #[test]
    fn a_sleeping_thread_has_seen_all_work_or_its_descriptor_is_readable() {
        loom::model(|| {
            let world = Arc::new(World {
                cell: ProgressCell::new(0),
                come: AtomicUsize::new(0),
                mark: Mark::new(),
                is_listed: AtomicBool::new(false),
                entry: Mutex::new((0, Call::default())),
                is_readable: AtomicBool::new(false),
            });
            let other = Arc::clone(&world);
            let worker = thread::spawn(move || {
                other.work();
                other.work();
            });
            world.entry.lock().expect("no panic").0 = world.mark.raised();
            world.is_listed.store(true, Ordering::SeqCst);
            world.cell.pass();
            let mut seen = world.come.load(Ordering::Relaxed);
            if world.is_readable.load(Ordering::Relaxed) {
                world.heed();
                seen = world.come.load(Ordering::Relaxed);
            }
            worker.join().expect("no panic");
            let is_called = world.is_readable.load(Ordering::Relaxed);
            assert!(seen == 2 || is_called, "it sleeps, having seen {seen}");
        });
    }
}

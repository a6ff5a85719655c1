//! What threads wait for that is neither a completion nor a status, and how one that sleeps on a descriptor is called.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Raised by the code that brings what a thread [waits](crate::Interest::Mark) for: bytes of a stream, room in a ring.
/// One mark for each thing that can be waited for alone: only those that wait for it are woken.
#[derive(Debug)]
pub struct Mark {
    raised: AtomicU64,
}

impl Mark {
    /// Creates a mark that was never raised.
    pub fn new() -> Self {
        Self { raised: AtomicU64::new(0) }
    }

    /// Wakes threads that wait for it when the calling thread leaves the engine. For hooks, machines and work
    /// sources, in a turn that does something, as a source [says](crate::Posted::count); a thread outside of the
    /// engine calls [`Runtime::raise`](crate::Runtime::raise).
    #[inline]
    pub fn raise(&self) {
        // Release: who sees that it was raised sees what was done before.
        self.raised.fetch_add(1, Ordering::Release);
    }

    /// How often it was raised.
    pub(crate) fn raised(&self) -> u64 {
        self.raised.load(Ordering::Acquire)
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a thread that sleeps on a descriptor was called by it and has not heeded that: it is raised once, however
/// often the thread is called. Kept under a lock.
#[derive(Debug, Default)]
pub(crate) struct Call {
    is_pending: bool,
}

impl Call {
    /// Calls; under the lock.
    pub(crate) fn call(&mut self, raise: impl FnOnce()) {
        if !self.is_pending {
            self.is_pending = true;
            raise();
        }
    }

    /// The thread has woken up: `lower` makes the descriptor readable no more, `clear` comes back with the call that is
    /// kept under the lock. What it waits for must be looked at afterwards.
    ///
    /// The descriptor first: a call between the two is not made again, but is seen by the look. The other way round
    /// the descriptor of a pending call could be lowered, and no further one would raise it.
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

    /// Whether the descriptor is still readable.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_pending
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_called_often_has_its_descriptor_raised_once() {
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

/// Who sleeps on a descriptor against who works and calls, in every interleaving. To run it:
///
/// ```sh
/// ./x loom
/// ```
///
/// With `--cfg loom_mutation` in RUSTFLAGS a call is taken back before its descriptor is lowered, and the test must fail.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::atomic::{AtomicBool, AtomicUsize};
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    use super::*;
    use crate::cell::ProgressCell;

    /// As `Runtime::wait_beside` and the turns of a thread do it.
    struct World {
        cell: ProgressCell<usize>,
        /// What the thread waits for.
        come: AtomicUsize,
        mark: Mark,
        /// It is on the list.
        is_listed: AtomicBool,
        /// What it has seen of the mark, and its call.
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
    fn a_sleeping_thread_has_seen_all_or_finds_its_descriptor_readable() {
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

//! The turn gate: a deregistration waits for all turns that have begun, but does not delay new
//! turns.

use core::cell::Cell;
use core::sync::atomic::Ordering::SeqCst;
#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex};

#[cfg(loom)]
use self::fenced::{AtomicBool, AtomicU64, AtomicUsize};
#[cfg(loom)]
use loom::sync::{Condvar, Mutex};

/// Counts the accesses in progress, so that a deregistration can wait for the accesses that may
/// still see the region. The algorithm is sleepable read-copy-update (SRCU) with two counters.
///
/// An access increments the counter that the current phase selects, and decrements the same counter
/// at its end. A waiter first waits until the other counter is zero, and then changes the phase, so
/// that new accesses use that counter. Then it waits until the first counter is zero. So accesses
/// that begin during the wait cannot delay the waiter, and the waiter never delays an access. A
/// reader-writer lock would not work: a waiting writer would block new readers, and a turn that
/// begins a second access would deadlock.
///
/// The waiter misses no access, for this reason: before [`TurnGate::wait`], the deregistering
/// thread marks the region as dead. All operations on the counters and on the mark are sequentially
/// consistent. An access first increments its counter and then reads the mark. If the waiter reads
/// the counter before the increment, the access sees the mark. If the waiter reads the counter
/// after the increment, it waits for the access.
#[derive(Debug)]
pub(crate) struct TurnGate {
    /// The phase. Its parity selects the counter for new accesses.
    phase: AtomicUsize,
    inside: [Counter; 2],
    /// True if a thread waits. In this case, the access that decrements a counter to zero wakes the
    /// thread.
    waited_for: AtomicBool,
    /// The waiting thread holds this lock, so that only one thread waits at a time.
    waiter: Mutex<()>,
    sleep: Mutex<()>,
    emptied: Condvar,
}

/// A counter on a cache line of its own, because each turn writes the counter twice.
#[derive(Debug)]
#[repr(align(64))]
struct Counter(AtomicU64);

impl TurnGate {
    pub(crate) fn new() -> Self {
        Self {
            phase: AtomicUsize::new(0),
            inside: [Counter(AtomicU64::new(0)), Counter(AtomicU64::new(0))],
            waited_for: AtomicBool::new(false),
            waiter: Mutex::new(()),
            sleep: Mutex::new(()),
            emptied: Condvar::new(),
        }
    }

    /// Begins an access. Pass the result to [`TurnGate::leave`] exactly once.
    #[inline]
    pub(crate) fn enter(&self) -> Phase {
        self.count_in(self.phase.load(SeqCst) & 1)
    }

    /// Increments the counter with index `parity`. The phase may change, even twice, after the
    /// caller has read it and before this increment. Therefore a waiter waits for both counters.
    #[inline]
    fn count_in(&self, parity: usize) -> Phase {
        self.inside[parity].0.fetch_add(1, SeqCst);
        ACCESSES_OF_THREAD.with(|count| count.set(count.get() + 1));
        Phase(parity)
    }

    /// Ends an access.
    #[inline]
    pub(crate) fn leave(&self, phase: &Phase) {
        ACCESSES_OF_THREAD.with(|count| count.set(count.get() - 1));
        let before = self.inside[phase.0].0.fetch_sub(1, SeqCst);
        if before == 1 && self.waited_for.load(SeqCst) {
            self.wake();
        }
    }

    /// Returns when every access that began before the call has ended. The calling thread must not
    /// be inside an access.
    pub(crate) fn wait(&self) {
        let _one_at_a_time = self.waiter.lock().unwrap_or_else(PoisonError::into_inner);
        self.waited_for.store(true, SeqCst);
        let phase = self.phase.load(SeqCst);
        self.wait_until_empty((phase + 1) & 1);
        self.phase.store(phase.wrapping_add(1), SeqCst);
        // With this mutation, the waiter waits for one counter only. The loom model must detect
        // that.
        if !cfg!(loom_mutation) {
            self.wait_until_empty(phase & 1);
        }
        self.waited_for.store(false, SeqCst);
    }

    fn wait_until_empty(&self, parity: usize) {
        let mut sleep = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        while self.inside[parity].0.load(SeqCst) != 0 {
            sleep = self.emptied.wait(sleep).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the waiter. Takes the lock `sleep` first: while this thread holds it, the waiter
    /// either has not read the counter yet, or already sleeps. So the wake-up is not lost.
    #[cold]
    fn wake(&self) {
        drop(self.sleep.lock().unwrap_or_else(PoisonError::into_inner));
        self.emptied.notify_all();
    }

    /// Returns whether the calling thread is inside an access of any gate.
    pub(crate) fn inside_this_thread() -> bool {
        ACCESSES_OF_THREAD.with(|count| count.get() != 0)
    }

    #[cfg(test)]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waited_for.load(SeqCst)
    }
}

/// Index of the counter that counts an access.
#[derive(Debug)]
pub(crate) struct Phase(usize);

thread_local! {
    /// Number of accesses that the thread is inside, in all tables together.
    static ACCESSES_OF_THREAD: Cell<u32> = const { Cell::new(0) };
}

/// Atomic accesses with a sequentially consistent fence before and after them. Loom models
/// sequentially consistent accesses as weaker accesses, but models such fences exactly. Under loom,
/// the gate therefore uses these accesses.
#[cfg(loom)]
mod fenced {
    use loom::sync::atomic::{self, Ordering, fence};

    macro_rules! fenced {
        ($name:ident of $content:ty: $($call:ident($($value:ident: $of:ty)?) -> $result:ty),+) => {
            #[derive(Debug, Default)]
            pub(super) struct $name(atomic::$name);

            impl $name {
                pub(super) fn new(value: $content) -> Self {
                    Self(atomic::$name::new(value))
                }

                $(pub(super) fn $call(&self, $($value: $of,)? order: Ordering) -> $result {
                    fence(Ordering::SeqCst);
                    let result = self.0.$call($($value,)? order);
                    fence(Ordering::SeqCst);
                    result
                })+
            }
        };
    }

    fenced!(AtomicBool of bool: load() -> bool, store(value: bool) -> ());
    fenced!(AtomicUsize of usize: load() -> usize, store(value: usize) -> ());
    fenced!(AtomicU64 of u64: load() -> u64, fetch_add(value: u64) -> u64, fetch_sub(value: u64) -> u64);
}

/// Model: turns and a deregistration, in many interleavings. To run it:
///
/// ```sh
/// ./x loom
/// ```
///
/// With `--cfg loom_mutation` in RUSTFLAGS, the waiter waits for one counter only, and the test
/// must fail.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The data that a turn reads: the mark that the region is dead, and memory that only the
    /// waiter may access after the wait.
    struct Shared {
        gate: TurnGate,
        is_dead: AtomicBool,
        memory: UnsafeCell<u32>,
    }

    /// Runs `threads` threads of `turns` turns each, and one deregistration. If a wake-up is lost,
    /// the model deadlocks, which loom reports.
    fn check(threads: usize, turns: usize, waits_before: usize, preemptions: usize) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(move || {
            let shared = Arc::new(Shared {
                gate: TurnGate::new(),
                is_dead: AtomicBool::new(false),
                memory: UnsafeCell::new(0),
            });
            let threads: Vec<_> = (0..threads)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || (0..turns).for_each(|_| turn(&shared)))
                })
                .collect();
            for _ in 0..waits_before {
                shared.gate.wait();
            }
            shared.is_dead.store(true, SeqCst);
            shared.gate.wait();
            shared.memory.with_mut(|_| ());
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }

    fn turn(shared: &Shared) {
        let phase = shared.gate.enter();
        if !shared.is_dead.load(SeqCst) {
            shared.memory.with(|_| ());
        }
        shared.gate.leave(&phase);
    }

    #[test]
    fn no_thread_accesses_memory_after_the_wait() {
        check(1, 2, 0, 3);
    }

    #[test]
    fn no_thread_accesses_memory_after_the_second_wait() {
        check(1, 2, 1, 3);
    }

    #[test]
    fn the_wait_covers_turns_of_two_threads() {
        check(2, 1, 0, 2);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    #[test]
    fn the_wait_returns_at_once_if_no_thread_is_inside() {
        let gate = TurnGate::new();
        gate.wait();
        let phase = gate.enter();
        gate.leave(&phase);
        gate.wait();
    }

    #[test]
    fn the_wait_outlasts_an_access_whatever_phase_the_access_read() {
        for (waits_before, parity) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
            let gate = Arc::new(TurnGate::new());
            for _ in 0..waits_before {
                gate.wait();
            }
            let ended = Arc::new(AtomicBool::new(false));
            let phase = gate.count_in(parity);
            let waiter = thread::spawn({
                let (gate, ended) = (gate.clone(), ended.clone());
                move || {
                    gate.wait();
                    ended.load(SeqCst)
                }
            });
            while !gate.is_waited_for() && !waiter.is_finished() {
                thread::yield_now();
            }
            ended.store(true, SeqCst);
            gate.leave(&phase);
            assert!(waiter.join().unwrap(), "the wait ended before the access");
        }
    }

    #[test]
    fn new_accesses_do_not_delay_a_wait() {
        let gate = Arc::new(TurnGate::new());
        let first = gate.enter();
        let waiter = thread::spawn({
            let gate = gate.clone();
            move || gate.wait()
        });
        while gate.phase.load(SeqCst) == 0 {
            thread::yield_now();
        }
        let second = gate.enter();
        gate.leave(&first);
        waiter.join().unwrap();
        gate.leave(&second);
    }
}

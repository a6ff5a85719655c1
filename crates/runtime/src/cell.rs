//! The cell, which only one thread at a time can enter. If another thread is inside, the calling
//! thread does not wait. Instead, it makes the thread inside look for work again before leaving.

#[cfg(loom)]
use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

#[cfg(not(loom))]
use self::plain::UnsafeCell;

/// The result of [`ProgressCell::drive`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Drive {
    /// The calling thread worked until there was nothing more to do and no other thread had
    /// announced work.
    Drove,
    /// Another thread is inside. Before that thread leaves, it sees all work that the caller
    /// published before the call.
    HandedOver,
    /// The calling thread has called `work` as often as `rounds` permits, and there is more to do.
    Exhausted,
}

/// Holds content that only one thread at a time may change, and makes sure that a thread does all
/// announced work.
///
/// A thread publishes its work elsewhere (in a lock-free ring, in a socket) and calls
/// [`ProgressCell::drive`]. If no thread is inside, the caller enters and works. Otherwise the
/// caller sets a flag and returns at once, and the thread inside looks for work again before it
/// leaves. So no thread waits for another, and no work is left behind. A mutex with `try_lock`
/// could leave work behind: a thread could publish work after the owner's last look for work and
/// before the owner's unlock.
///
/// The cell has three states: no thread is inside; a thread is inside; a thread is inside and must
/// look again. Entering an empty cell costs one compare-and-swap, and so does leaving it without an
/// announcement.
///
/// A panic inside leaves the cell occupied and [poisoned](Self::is_poisoned), so that no thread
/// ever enters half-changed state.
#[derive(Debug)]
pub struct ProgressCell<T> {
    state: AtomicU8,
    is_poisoned: AtomicBool,
    content: UnsafeCell<T>,
}

// SAFETY: only `Inside` gives access to `content`, and there is at most one `Inside`. The thread
// that moves `state` away from `EMPTY` creates the `Inside`. It is consumed when `state` returns to
// `EMPTY`. `T: Send` permits moving `T` between threads; the cell hands out no shared reference to
// `content`.
unsafe impl<T: Send> Sync for ProgressCell<T> {}

impl<T> ProgressCell<T> {
    /// Creates a cell with no thread inside.
    pub fn new(content: T) -> Self {
        Self {
            state: AtomicU8::new(EMPTY),
            is_poisoned: AtomicBool::new(false),
            content: UnsafeCell::new(content),
        }
    }

    /// Enters if no thread is inside. Otherwise returns `None` and announces nothing: the thread
    /// inside might leave without looking for the caller's work.
    #[inline]
    pub fn try_enter(&self) -> Option<Inside<'_, T>> {
        self.state
            .compare_exchange(EMPTY, OCCUPIED, Ordering::Acquire, Ordering::Relaxed)
            .ok()
            .map(|_| Inside { cell: self })
    }

    /// Enters if no thread is inside. Otherwise makes the thread inside look again before leaving.
    #[inline]
    pub fn enter_or_announce(&self) -> Option<Inside<'_, T>> {
        if let Some(inside) = self.try_enter() {
            return Some(inside);
        }
        // Release publishes the caller's work to the thread that removes the flag. Acquire is
        // needed if the thread inside has just left and this thread enters. In that case the flag
        // is set although no other thread announced work, which only costs this thread a second
        // look.
        match self.state.swap(LOOK_AGAIN, Ordering::AcqRel) {
            EMPTY => Some(Inside { cell: self }),
            _ => None,
        }
    }

    /// Returns whether a thread is inside. That thread may have left when this call returns.
    pub fn is_occupied(&self) -> bool {
        self.state.load(Ordering::Relaxed) != EMPTY
    }

    /// Returns whether a thread has panicked inside, so that no thread can ever enter again.
    pub fn is_poisoned(&self) -> bool {
        self.is_poisoned.load(Ordering::Relaxed)
    }

    /// Orders the calling thread with the threads that leave the cell, in the same way as entering
    /// and leaving would. If a thread leaves after this call, it sees everything that the calling
    /// thread did before the call. If a thread left before this call, the calling thread then sees
    /// everything that the other thread did inside.
    ///
    /// Example: one thread announces that it sleeps, calls this method, and looks for work. Another
    /// thread works, leaves and looks for sleepers. Then at least one of them sees the other,
    /// although the thread that leaves uses no fence.
    #[inline]
    pub fn pass(&self) {
        // All changes of the state are read-modify-write operations. So the thread that makes a
        // change sees everything that other threads did before their earlier changes.
        self.state.fetch_or(0, Ordering::AcqRel);
    }

    /// Announces work. If no other thread is inside, enters and calls `work` repeatedly, at most
    /// `rounds` times. Leaves when two conditions hold: `work` has returned false (nothing more to
    /// do), and no thread has announced work since that call of `work` began.
    #[inline]
    pub fn drive(&self, rounds: u32, work: impl FnMut(&mut T) -> bool) -> Drive {
        match self.enter_or_announce() {
            Some(inside) => inside.drive(rounds, work),
            None => Drive::HandedOver,
        }
    }
}

/// Exclusive access to the content of a [`ProgressCell`]. The owner must end the access by
/// [`Inside::drive`], [`Inside::leave`] or [`Inside::abandon`]. Dropping the value in another way
/// (in a panic) poisons the cell.
#[derive(Debug)]
#[must_use = "the cell stays occupied until it is left"]
pub struct Inside<'a, T> {
    cell: &'a ProgressCell<T>,
}

impl<T> Inside<'_, T> {
    /// Runs `work` on the content.
    #[inline]
    pub fn with<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> R {
        self.cell.content.with_mut(|content| {
            // SAFETY: there is at most one `Inside` of a cell, it is borrowed exclusively, and the
            // reference does not outlive the closure.
            work(unsafe { &mut *content })
        })
    }

    /// Calls `work` like [`ProgressCell::drive`], then leaves.
    #[inline]
    pub fn drive(self, rounds: u32, mut work: impl FnMut(&mut T) -> bool) -> Drive {
        let mut inside = self;
        for _ in 0..rounds {
            if !inside.with(&mut work) {
                match inside.leave() {
                    Ok(()) => return Drive::Drove,
                    Err(again) => inside = again,
                }
            }
        }
        inside.abandon();
        Drive::Exhausted
    }

    /// Leaves if no other thread has announced work. Otherwise the caller must look for that work
    /// and call this method again.
    ///
    /// # Errors
    /// Returns the guard itself if a thread has announced work.
    #[inline]
    pub fn leave(self) -> Result<(), Self> {
        let state = &self.cell.state;
        // Acquire, for `ProgressCell::pass`: this thread must see everything that other threads did
        // before their calls of `pass`.
        if state.compare_exchange(OCCUPIED, EMPTY, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            core::mem::forget(self);
            return Ok(());
        }
        if cfg!(loom_mutation) {
            // This is the mistake that the model must find: the thread leaves without another look.
            state.store(EMPTY, Ordering::Release);
            core::mem::forget(self);
            return Ok(());
        }
        state.swap(OCCUPIED, Ordering::AcqRel);
        Err(self)
    }

    /// Leaves although there may be more to do. The caller must make sure that another thread does
    /// the rest.
    pub fn abandon(self) {
        self.cell.state.swap(EMPTY, Ordering::AcqRel);
        core::mem::forget(self);
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        self.cell.is_poisoned.store(true, Ordering::Relaxed);
    }
}

const EMPTY: u8 = 0;
const OCCUPIED: u8 = 1;
const LOOK_AGAIN: u8 = 2;

#[cfg(not(loom))]
mod plain {
    /// The cell of `core`, with the interface of loom's cell.
    #[derive(Debug)]
    pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) const fn new(content: T) -> Self {
            Self(core::cell::UnsafeCell::new(content))
        }

        #[inline]
        pub(super) fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
            work(self.0.get())
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    #[test]
    fn the_thread_inside_runs_again_for_published_work() {
        let cell = ProgressCell::new(0_u32);
        let mut rounds = 0;
        let outcome = cell.drive(8, |count| {
            *count += 1;
            rounds += 1;
            if rounds == 1 {
                assert_eq!(
                    cell.drive(8, |_| unreachable!("somebody is inside")),
                    Drive::HandedOver
                );
            }
            false
        });
        assert_eq!(outcome, Drive::Drove);
        assert_eq!(rounds, 2, "the announcement was not looked for");
    }

    #[test]
    fn an_exhausted_budget_is_reported_and_leaves_the_cell_empty() {
        let cell = ProgressCell::new(());
        assert_eq!(cell.drive(3, |()| true), Drive::Exhausted);
        assert_eq!(cell.drive(3, |()| false), Drive::Drove);
    }

    #[test]
    fn a_panic_inside_poisons_the_cell() {
        let cell = ProgressCell::new(());
        let inside = cell.try_enter().expect("no thread is inside");
        assert!(!cell.is_poisoned());
        drop(inside);
        assert!(cell.is_poisoned());
        assert_eq!(cell.drive(1, |()| unreachable!("no thread may enter")), Drive::HandedOver);
    }

    #[test]
    fn trying_to_enter_publishes_no_work() {
        let cell = ProgressCell::new(());
        let inside = cell.try_enter().expect("no thread is inside");
        assert!(cell.try_enter().is_none());
        assert!(inside.leave().is_ok());
    }

    #[test]
    fn work_published_by_many_threads_is_all_done() {
        const THREADS: u64 = 4;
        const UNITS: u64 = 20_000;
        let shared = Arc::new((ProgressCell::new(0_u64), AtomicU64::new(0)));
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (cell, published) = &*shared;
                    for _ in 0..UNITS {
                        published.fetch_add(1, Ordering::Relaxed);
                        while cell.drive(4, |done| take(published, done)) == Drive::Exhausted {}
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a driving thread panicked");
        }
        let (cell, published) = &*shared;
        assert_eq!(published.load(Ordering::Relaxed), 0);
        let mut inside = cell.try_enter().expect("everybody has left");
        assert_eq!(inside.with(|done| *done), THREADS * UNITS);
        inside.abandon();
    }

    fn take(published: &AtomicU64, done: &mut u64) -> bool {
        *done += published.swap(0, Ordering::Relaxed);
        false
    }
}

/// Model: two threads publish work and drive, in every interleaving. To run it:
///
/// ```sh
/// ./x loom
/// ```
///
/// With `--cfg loom_mutation` in RUSTFLAGS, a thread leaves without looking again, and the test
/// must fail.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;

    #[test]
    fn no_published_work_is_left_behind() {
        loom::model(|| {
            let shared = Arc::new((ProgressCell::new(0_usize), AtomicUsize::new(0)));
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || publish_and_drive(&shared))
                })
                .collect();
            let outcomes: Vec<_> =
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
            assert!(outcomes.contains(&Drive::Drove), "no thread drove: {outcomes:?}");
            let (cell, published) = &*shared;
            assert_eq!(published.load(Ordering::Relaxed), 0, "left behind: {outcomes:?}");
            cell.drive(1, |done| {
                assert_eq!(*done, 2);
                false
            });
        });
    }

    /// Models a thread that posts. It first tries to enter the cell. If another thread is inside,
    /// it publishes its work and announces the work. No work may be left behind.
    #[test]
    fn work_handed_over_after_a_direct_attempt_is_not_left_behind() {
        loom::model(|| {
            let shared = Arc::new((ProgressCell::new(0_usize), AtomicUsize::new(0)));
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || publish_and_drive(&other));
            let (cell, published) = &*shared;
            if let Some(mut inside) = cell.try_enter() {
                inside.with(|done| *done += 1);
                inside.drive(8, |done| take(published, done));
            } else {
                publish_and_drive(&shared);
            }
            thread.join().expect("no panic");
            assert_eq!(published.load(Ordering::Relaxed), 0, "left behind");
            cell.drive(1, |done| {
                assert_eq!(*done, 2);
                false
            });
        });
    }

    /// Models a thread that goes to sleep while another thread works and leaves the cell. Either
    /// the sleeper sees the work, or the worker sees the sleeper.
    #[test]
    fn a_passing_thread_sees_the_work_of_the_leaving_one_or_is_seen_by_it() {
        loom::model(|| {
            let shared =
                Arc::new((ProgressCell::new(()), AtomicUsize::new(0), AtomicUsize::new(0)));
            let other = Arc::clone(&shared);
            let worker = thread::spawn(move || {
                let (cell, work, sleeps) = &*other;
                cell.drive(1, |()| {
                    work.store(1, Ordering::Relaxed);
                    false
                });
                sleeps.load(Ordering::Relaxed)
            });
            let (cell, work, sleeps) = &*shared;
            sleeps.store(1, Ordering::Relaxed);
            cell.pass();
            let is_seen = work.load(Ordering::Relaxed) == 1;
            let sees = worker.join().expect("no panic") == 1;
            assert!(is_seen || sees, "it sleeps, and no thread wakes it");
        });
    }

    fn publish_and_drive(shared: &(ProgressCell<usize>, AtomicUsize)) -> Drive {
        let (cell, published) = shared;
        published.fetch_add(1, Ordering::Relaxed);
        cell.drive(8, |done| take(published, done))
    }

    fn take(published: &AtomicUsize, done: &mut usize) -> bool {
        *done += published.swap(0, Ordering::Relaxed);
        false
    }
}

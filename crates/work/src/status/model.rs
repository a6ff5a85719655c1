//! Models a waiting task and the thread that finishes the operation, in every interleaving:
//!
//! ```sh
//! ./x loom
//! ```
//!
//! With `--cfg loom_mutation` in RUSTFLAGS, the task does not check again, after it has registered,
//! whether the operation has finished. In that case, the model must fail.

use std::task::Wake;

use loom::sync::Arc;
use loom::thread as modelled;

use super::*;

/// A waker that counts its calls.
#[derive(Debug, Default)]
struct Count(std::sync::atomic::AtomicUsize);

impl Wake for Count {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    fn times(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

#[test]
fn a_waiting_thread_is_woken() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let finishing = Arc::clone(&slot);
        let thread = modelled::spawn(move || {
            if let (_, Some(waker)) = finishing.end(FINISHED) {
                waker.wake();
            }
        });
        let count = std::sync::Arc::new(Count::default());
        let waits = slot.watch(&Waker::from(std::sync::Arc::clone(&count)));
        thread.join().expect("no panic");
        assert!(!waits || count.times() == 1, "a wake-up is lost");
    });
}

#[test]
fn the_last_registered_waker_of_a_task_is_woken() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let finishing = Arc::clone(&slot);
        let thread = modelled::spawn(move || {
            if let (_, Some(waker)) = finishing.end(FINISHED) {
                waker.wake();
            }
        });
        let counts = [(); 2].map(|()| std::sync::Arc::new(Count::default()));
        let mut waits = true;
        for count in &counts {
            waits = waits && slot.watch(&Waker::from(std::sync::Arc::clone(count)));
        }
        thread.join().expect("no panic");
        assert!(!waits || counts[1].times() == 1, "the task that waits now is not woken");
    });
}

/// The thread that finishes the first operation is delayed. Before it continues, the handle is
/// released, a second operation gets the slot, and another task waits for the second operation.
#[test]
fn a_task_of_the_next_operation_in_a_slot_is_woken() {
    loom::model(|| {
        let slot = Arc::new(Slot::new());
        let old = std::sync::Arc::new(Count::default());
        let _waits = slot.watch(&Waker::from(std::sync::Arc::clone(&old)));
        let finishing = Arc::clone(&slot);
        let thread = modelled::spawn(move || {
            let (_, waker) = finishing.end(FINISHED);
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        slot.forget_waker();
        let (before, _) = slot.end(RELEASED);
        if before & FINISHED != 0 {
            // Both threads are done with the first operation, so this thread reuses the slot for
            // the second operation.
            slot.state.store(0, Ordering::Release);
            let new = std::sync::Arc::new(Count::default());
            let waits = slot.watch(&Waker::from(std::sync::Arc::clone(&new)));
            if let (_, Some(waker)) = slot.end(FINISHED) {
                waker.wake();
            }
            thread.join().expect("no panic");
            assert!(!waits || new.times() == 1, "a wake-up is lost");
        } else {
            thread.join().expect("no panic");
        }
    });
}

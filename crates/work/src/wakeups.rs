//! Tasks to wake. A thread collects the tasks while it is inside the engine, and wakes them after
//! it has left the engine.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::task::Waker;

#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

/// Tasks to wake.
///
/// A thread inside the engine may find that a task can continue. The thread must not run the code
/// of an executor inside the engine, because that code may call the engine. So the thread adds the
/// task to this list, and wakes the task after it has left the engine.
#[derive(Debug)]
pub struct Wakeups {
    due: Mutex<VecDeque<Waker>>,
    /// Whether `due` may contain tasks. If this is false, `due` is empty.
    has_any: AtomicBool,
}

impl Wakeups {
    pub(crate) fn new() -> Self {
        let due = Mutex::new(VecDeque::with_capacity(EXPECTED));
        Self { due, has_any: AtomicBool::new(false) }
    }

    /// Adds a task.
    #[cold]
    pub fn add(&self, waker: Waker) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        due.push_back(waker);
        self.has_any.store(true, Ordering::Release);
    }

    /// Returns whether there are tasks to wake. A task that another thread has just added may be
    /// missed, but not a task that the calling thread has added.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Wakes all tasks. The caller must not be inside the engine.
    #[cold]
    pub fn wake(&self) {
        loop {
            let waker = {
                let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
                let waker = due.pop_front();
                self.has_any.store(waker.is_some() && !due.is_empty(), Ordering::Release);
                waker
            };
            let Some(waker) = waker else { return };
            waker.wake();
        }
    }
}

/// Number of tasks for which the list allocates memory when it is created.
const EXPECTED: usize = 64;

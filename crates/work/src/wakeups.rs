//! Tasks that wait for something that has happened, until somebody wakes them.

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

/// Tasks to be woken. Who finds out what they wait for is inside the engine and must not run the code of an
/// executor there, which may call the engine: it adds them here, and wakes them when it has left.
#[derive(Debug)]
pub struct Wakeups {
    due: Mutex<VecDeque<Waker>>,
    /// `due` may not be empty.
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

    /// Whether tasks are to be woken. Who has added one sees it.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.has_any.load(Ordering::Relaxed)
    }

    /// Wakes them, outside of the engine.
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

/// Tasks at a time for which no allocation is needed.
const EXPECTED: usize = 64;

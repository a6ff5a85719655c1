//! What threads know of the thread that drives the endpoint.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The thread that waits in a call and drives the endpoint.
#[derive(Debug, Default)]
pub(crate) struct Driver {
    /// Whether there is one. Changes only under the lock of the machine.
    pub(crate) is_present: AtomicBool,
    /// Whether it sleeps until a completion arrives.
    pub(crate) sleeps: AtomicBool,
    /// Whether another thread has ended a call since this thread began to drive.
    pub(crate) has_news: AtomicBool,
    /// How often a thread began or ceased to drive. Changes only under the lock of the machine.
    pub(crate) changes: AtomicU64,
    /// Whether the progress thread sleeps until this thread ends its wait.
    pub(crate) is_awaited: AtomicBool,
    /// The progress thread.
    pub(crate) successor: OnceLock<Thread>,
}

impl Driver {
    /// Returns whether a thread that waits in a call drives the endpoint.
    pub(crate) fn is_present(&self) -> bool {
        self.is_present.load(Ordering::SeqCst)
    }

    /// Wakes the progress thread if it sleeps until the calling thread ends its wait.
    pub(crate) fn end_wait(&self) {
        if self.is_awaited.swap(false, Ordering::SeqCst)
            && let Some(thread) = self.successor.get()
        {
            thread.unpark();
        }
    }
}

/// A thread's wait in a call.
#[derive(Debug)]
pub(crate) struct Wait {
    began: Instant,
}

impl Wait {
    pub(crate) fn begin() -> Self {
        Self { began: Instant::now() }
    }

    /// Returns for how long the thread has waited.
    pub(crate) fn time(&self) -> Duration {
        self.began.elapsed()
    }
}

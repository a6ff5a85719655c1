//! A lock that a thread holds from one call of the program to a later call.

use std::sync::{Condvar, Mutex, PoisonError};

/// A lock without a guard, because one call acquires it and another call releases it.
#[derive(Default)]
pub(crate) struct CallerTurn {
    is_taken: Mutex<bool>,
    is_free: Condvar,
}

impl CallerTurn {
    /// Acquires the lock. Blocks while another thread holds it.
    pub(crate) fn take(&self) {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_taken = self
            .is_free
            .wait_while(is_taken, |is_taken| *is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        *is_taken = true;
    }

    /// Releases the lock.
    pub(crate) fn give_back(&self) {
        *self.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.is_free.notify_one();
    }
}

//! A lock that is held from one call of the program to a later one.

use std::sync::{Condvar, Mutex, PoisonError};

/// A lock without a guard, as it is acquired in one call and released in another.
#[derive(Default)]
pub(crate) struct CallerTurn {
    is_taken: Mutex<bool>,
    is_free: Condvar,
}

impl CallerTurn {
    /// Acquires the lock; blocks while it is held.
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

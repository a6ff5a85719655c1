//! One thread at a time, from one call of the program to another.

use std::sync::{Condvar, Mutex, PoisonError};

/// Whose turn it is. Unlike a lock's guard it lasts from one call of the program to a later one.
#[derive(Default)]
pub(crate) struct CallerTurn {
    is_taken: Mutex<bool>,
    is_free: Condvar,
}

impl CallerTurn {
    /// Waits until it is free, and takes it.
    pub(crate) fn take(&self) {
        let is_taken = self.is_taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut is_taken = self
            .is_free
            .wait_while(is_taken, |is_taken| *is_taken)
            .unwrap_or_else(PoisonError::into_inner);
        *is_taken = true;
    }

    /// Gives it back.
    pub(crate) fn give_back(&self) {
        *self.is_taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.is_free.notify_one();
    }
}

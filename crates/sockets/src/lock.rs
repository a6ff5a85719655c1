//! Locks of this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a thread has panicked under it: what is under such locks is whole at any time.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

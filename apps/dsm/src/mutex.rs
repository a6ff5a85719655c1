//! A value that threads of all ranks change under a lock.

use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use dsm_protocol::Call;

use crate::core::Core;
use crate::error::Error;

/// A value in shared memory under a lock, made by [`Dsm::mutex`](crate::Dsm::mutex).
/// Copies name the same value.
pub struct DsmMutex<'a, T> {
    core: &'a Core,
    value: *mut T,
}

// SAFETY: the lock excludes accesses at the same time.
unsafe impl<T: Pod + Send> Send for DsmMutex<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Send> Sync for DsmMutex<'_, T> {}

impl<T> Clone for DsmMutex<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DsmMutex<'_, T> {}

impl<T> fmt::Debug for DsmMutex<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DsmMutex").field("value", &self.value).finish_non_exhaustive()
    }
}

impl<'a, T: Pod> DsmMutex<'a, T> {
    /// `value` must be memory of the region that nothing else uses.
    pub(crate) const fn new(core: &'a Core, value: *mut T) -> Self {
        Self { core, value }
    }

    /// Acquires the lock. The guard is the only access to the value, among all ranks.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread holds the lock already, [`Error::Failed`] if a rank has
    /// failed, [`Error::TooManyThreads`].
    pub fn lock(&self) -> Result<DsmMutexGuard<'a, T>, Error> {
        self.core.call(Call::Lock(self.key()))?;
        Ok(self.resume())
    }

    /// Returns the guard of a lock that this thread has acquired again.
    pub(crate) const fn resume(self) -> DsmMutexGuard<'a, T> {
        DsmMutexGuard { mutex: self, thread: PhantomData }
    }

    fn key(&self) -> u64 {
        self.value.addr() as u64
    }
}

/// A lock that is held. Dropping it releases the lock.
#[must_use = "dropping the guard releases the lock"]
pub struct DsmMutexGuard<'a, T: Pod> {
    mutex: DsmMutex<'a, T>,
    /// The thread that acquired the lock must release it.
    thread: PhantomData<*const ()>,
}

impl<'a, T: Pod> DsmMutexGuard<'a, T> {
    /// Returns the mutex and the number of its lock, which the caller releases.
    pub(crate) fn suspend(self) -> (DsmMutex<'a, T>, u64) {
        let mutex = self.mutex;
        mem::forget(self);
        (mutex, mutex.key())
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for DsmMutexGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T: Pod> Deref for DsmMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value is plain data in the region, and the lock excludes other accesses.
        unsafe { &*self.mutex.value }
    }
}

impl<T: Pod> DerefMut for DsmMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.mutex.value }
    }
}

impl<T: Pod> Drop for DsmMutexGuard<'_, T> {
    fn drop(&mut self) {
        // If this fails, a rank has failed, and the next call says so.
        let _failed = self.mutex.core.call(Call::Unlock(self.mutex.key()));
    }
}

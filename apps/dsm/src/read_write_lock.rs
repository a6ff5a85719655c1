//! A value that threads of all ranks read together, and change alone.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use bytemuck::Pod;
use dsm_protocol::Call;

use crate::core::Core;
use crate::error::Error;

/// A value in shared memory under a reader-writer lock, made by
/// [`Dsm::read_write_lock`](crate::Dsm::read_write_lock). Copies name the same value.
///
/// Readers and writers are admitted in the order in which they ask, so neither waits for ever.
pub struct DsmRwLock<'a, T> {
    core: &'a Core,
    value: *mut T,
}

// SAFETY: the lock excludes a write at the time of any other access.
unsafe impl<T: Pod + Send + Sync> Send for DsmRwLock<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Send + Sync> Sync for DsmRwLock<'_, T> {}

impl<T> Clone for DsmRwLock<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DsmRwLock<'_, T> {}

impl<T> fmt::Debug for DsmRwLock<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DsmRwLock").field("value", &self.value).finish_non_exhaustive()
    }
}

impl<'a, T: Pod> DsmRwLock<'a, T> {
    /// `value` must be memory of the region that nothing else uses.
    pub(crate) const fn new(core: &'a Core, value: *mut T) -> Self {
        Self { core, value }
    }

    /// Acquires the lock together with other readers.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread holds the lock already, [`Error::Failed`] if a rank has
    /// failed, [`Error::TooManyThreads`].
    pub fn read(&self) -> Result<DsmReadGuard<'a, T>, Error> {
        self.core.call(Call::ReadLock(self.key()))?;
        Ok(DsmReadGuard { lock: *self, thread: PhantomData })
    }

    /// Acquires the lock alone. The guard is the only access to the value, among all ranks.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn write(&self) -> Result<DsmWriteGuard<'a, T>, Error> {
        self.core.call(Call::WriteLock(self.key()))?;
        Ok(DsmWriteGuard { lock: *self, thread: PhantomData })
    }

    fn key(&self) -> u64 {
        self.value.addr() as u64
    }

    fn release(&self) {
        // If this fails, a rank has failed, and the next call says so.
        let _failed = self.core.call(Call::ReadWriteUnlock(self.key()));
    }
}

/// A reader-writer lock that is held together with other readers. Dropping it releases the lock.
#[must_use = "dropping the guard releases the lock"]
pub struct DsmReadGuard<'a, T: Pod> {
    lock: DsmRwLock<'a, T>,
    /// The thread that acquired the lock must release it.
    thread: PhantomData<*const ()>,
}

/// A reader-writer lock that is held alone. Dropping it releases the lock.
#[must_use = "dropping the guard releases the lock"]
pub struct DsmWriteGuard<'a, T: Pod> {
    lock: DsmRwLock<'a, T>,
    thread: PhantomData<*const ()>,
}

impl<T: Pod> Deref for DsmReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value is plain data in the region, and the lock excludes writes.
        unsafe { &*self.lock.value }
    }
}

impl<T: Pod> Deref for DsmWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value is plain data in the region, and the lock excludes other accesses.
        unsafe { &*self.lock.value }
    }
}

impl<T: Pod> DerefMut for DsmWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value }
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for DsmReadGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T: Pod + fmt::Debug> fmt::Debug for DsmWriteGuard<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(formatter)
    }
}

impl<T: Pod> Drop for DsmReadGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

impl<T: Pod> Drop for DsmWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.release();
    }
}

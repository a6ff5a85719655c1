//! Objects by which threads of all ranks wait for each other: condition variables, semaphores,
//! events.

use std::fmt;

use bytemuck::Pod;
use dsm_protocol::Call;

use crate::core::Core;
use crate::error::Error;
use crate::mutex::DsmMutexGuard;

/// A condition variable, made by [`Dsm::condition`](crate::Dsm::condition). Copies name the same
/// one.
#[derive(Clone, Copy)]
pub struct DsmCondition<'a> {
    core: &'a Core,
    key: u64,
}

/// A semaphore, made by [`Dsm::semaphore`](crate::Dsm::semaphore). It begins at zero. Copies name
/// the same one.
#[derive(Clone, Copy)]
pub struct DsmSemaphore<'a> {
    core: &'a Core,
    key: u64,
}

/// An event, made by [`Dsm::event`](crate::Dsm::event). It begins cleared. Copies name the same one.
#[derive(Clone, Copy)]
pub struct DsmEvent<'a> {
    core: &'a Core,
    key: u64,
}

impl<'a> DsmCondition<'a> {
    pub(crate) const fn new(core: &'a Core, key: u64) -> Self {
        Self { core, key }
    }

    /// Releases the mutex, waits for a signal, and acquires the mutex again. The condition may have
    /// changed again meanwhile, so check it in a loop.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn wait<'b, T: Pod>(
        &self,
        guard: DsmMutexGuard<'b, T>,
    ) -> Result<DsmMutexGuard<'b, T>, Error> {
        let (mutex, lock) = guard.suspend();
        self.core.call(Call::Wait { condition: self.key, lock })?;
        Ok(mutex.resume())
    }

    /// Waits until `is_met` returns true for the value of the mutex.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn wait_until<'b, T: Pod>(
        &self,
        mut guard: DsmMutexGuard<'b, T>,
        is_met: impl Fn(&T) -> bool,
    ) -> Result<DsmMutexGuard<'b, T>, Error> {
        while !is_met(&guard) {
            guard = self.wait(guard)?;
        }
        Ok(guard)
    }

    /// Wakes one thread that waits.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn notify_one(&self) -> Result<(), Error> {
        self.core.call(Call::Signal(self.key)).map(drop)
    }

    /// Wakes all threads that wait.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn notify_all(&self) -> Result<(), Error> {
        self.core.call(Call::Broadcast(self.key)).map(drop)
    }
}

impl<'a> DsmSemaphore<'a> {
    pub(crate) const fn new(core: &'a Core, key: u64) -> Self {
        Self { core, key }
    }

    /// Takes one. Waits until there is one. Then the thread sees what was written before it was
    /// posted.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.core.call(Call::Take(self.key)).map(drop)
    }

    /// Adds `count`, and so lets as many waits end.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn post(&self, count: u32) -> Result<(), Error> {
        self.core.call(Call::Give { semaphore: self.key, count }).map(drop)
    }
}

impl<'a> DsmEvent<'a> {
    pub(crate) const fn new(core: &'a Core, key: u64) -> Self {
        Self { core, key }
    }

    /// Waits until the event is set. Then the thread sees what was written before it was set.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn wait(&self) -> Result<(), Error> {
        self.core.call(Call::Await(self.key)).map(drop)
    }

    /// Sets the event: all waits end, and later ones, too.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn set(&self) -> Result<(), Error> {
        self.core.call(Call::Set(self.key)).map(drop)
    }

    /// Clears the event.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn clear(&self) -> Result<(), Error> {
        self.core.call(Call::Clear(self.key)).map(drop)
    }
}

impl fmt::Debug for DsmCondition<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DsmCondition({:#x})", self.key)
    }
}

impl fmt::Debug for DsmSemaphore<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DsmSemaphore({:#x})", self.key)
    }
}

impl fmt::Debug for DsmEvent<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DsmEvent({:#x})", self.key)
    }
}

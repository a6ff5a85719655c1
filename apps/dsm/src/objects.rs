//! Calls for objects that a number names: locks, semaphores, events, condition variables, barriers.
//!
//! An object needs no memory and no initialisation: its first use creates it, unlocked, at zero or
//! cleared. The number is usually the address of what the object belongs to. The memory at that
//! address is not used. A number names an object of one kind only.

use dsm_protocol::Call;

use crate::error::Error;
use crate::handle::Dsm;

/// Each of these calls fails with [`Error::Misuse`] if the number names an object of another kind or
/// if the thread does not hold what it releases, and with [`Error::Failed`] if a rank has failed.
impl Dsm {
    /// Acquires a lock.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread holds the lock already, [`Error::Failed`] if a rank has
    /// failed.
    pub fn lock(&self, lock: u64) -> Result<(), Error> {
        self.call(Call::Lock(lock))
    }

    /// Releases a lock.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread does not hold the lock, [`Error::Failed`] if a rank has
    /// failed.
    pub fn unlock(&self, lock: u64) -> Result<(), Error> {
        self.call(Call::Unlock(lock))
    }

    /// Acquires a reader-writer lock together with other readers. Waits behind writers that came
    /// before.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread holds the lock already, [`Error::Failed`] if a rank has
    /// failed.
    pub fn read_lock(&self, lock: u64) -> Result<(), Error> {
        self.call(Call::ReadLock(lock))
    }

    /// Acquires a reader-writer lock alone.
    ///
    /// # Errors
    /// Those of [`Self::read_lock`].
    pub fn write_lock(&self, lock: u64) -> Result<(), Error> {
        self.call(Call::WriteLock(lock))
    }

    /// Releases a reader-writer lock, which the thread has acquired in either way.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread does not hold the lock, [`Error::Failed`] if a rank has
    /// failed.
    pub fn read_write_unlock(&self, lock: u64) -> Result<(), Error> {
        self.call(Call::ReadWriteUnlock(lock))
    }

    /// Releases a lock, waits for a signal of a condition variable, and acquires the lock again. No
    /// signal is lost between the first two steps. Signals without a waiter are.
    ///
    /// # Errors
    /// [`Error::Misuse`] if this thread does not hold the lock, [`Error::Failed`] if a rank has
    /// failed.
    pub fn wait(&self, condition: u64, lock: u64) -> Result<(), Error> {
        self.call(Call::Wait { condition, lock })
    }

    /// Wakes one thread that waits at a condition variable. Does not wait for it.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed, or if the number names an object of another kind,
    /// which a later call returns.
    pub fn signal(&self, condition: u64) -> Result<(), Error> {
        self.call(Call::Signal(condition))
    }

    /// Wakes all threads that wait at a condition variable.
    ///
    /// # Errors
    /// Those of [`Self::signal`].
    pub fn broadcast(&self, condition: u64) -> Result<(), Error> {
        self.call(Call::Broadcast(condition))
    }

    /// Takes one from a semaphore. Waits until there is one.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the number names an object of another kind, [`Error::Failed`] if a rank
    /// has failed.
    pub fn take(&self, semaphore: u64) -> Result<(), Error> {
        self.call(Call::Take(semaphore))
    }

    /// Adds to a semaphore. A thread that takes some of it then sees what this thread wrote before.
    ///
    /// # Errors
    /// Those of [`Self::signal`].
    pub fn give(&self, semaphore: u64, count: u32) -> Result<(), Error> {
        self.call(Call::Give { semaphore, count })
    }

    /// Waits until an event is set. Does not clear it.
    ///
    /// # Errors
    /// Those of [`Self::take`].
    pub fn await_event(&self, event: u64) -> Result<(), Error> {
        self.call(Call::Await(event))
    }

    /// Sets an event. A thread that waits for it then sees what this thread wrote before.
    ///
    /// # Errors
    /// Those of [`Self::signal`].
    pub fn set_event(&self, event: u64) -> Result<(), Error> {
        self.call(Call::Set(event))
    }

    /// Clears an event. Threads that wait for it then wait until it is set again.
    ///
    /// # Errors
    /// Those of [`Self::signal`].
    pub fn clear_event(&self, event: u64) -> Result<(), Error> {
        self.call(Call::Clear(event))
    }

    /// Waits until `count` threads are at the barrier that a number names. If `count` is that of all
    /// threads of all ranks, no rank may be at another barrier.
    ///
    /// # Errors
    /// [`Error::Misuse`] if threads wait there with another count, or if there are not so many
    /// threads; [`Error::Failed`] if a rank has failed.
    pub fn barrier_at(&self, barrier: u64, count: u32) -> Result<(), Error> {
        self.call(Call::Barrier { address: barrier, count })
    }

    /// Waits until `count` threads are at the barrier with this name.
    ///
    /// # Errors
    /// Those of [`Self::barrier_at`].
    pub fn barrier_named(&self, name: &str, count: u32) -> Result<(), Error> {
        self.barrier_at(number_of(name), count)
    }

    fn call(&self, call: Call) -> Result<(), Error> {
        self.core().call(call).map(drop)
    }
}

/// Returns the number of a name: FNV-1a, with the highest bit set. So it differs from addresses.
fn number_of(name: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, mix) | 1 << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_that_are_no_addresses() {
        assert_ne!(number_of("a"), number_of("b"));
        assert_eq!(number_of("phase 1"), number_of("phase 1"));
        assert!(["", "a", "phase 1"].iter().all(|name| number_of(name) >> 63 == 1));
    }
}

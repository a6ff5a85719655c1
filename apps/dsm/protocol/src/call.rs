//! The calls of a node's threads.

use crate::identity::{PageNumber, Rank};

/// An atomic operation on 8 bytes. It orders no other accesses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum AtomicOperation {
    /// Adds, wrapping around.
    FetchAdd(u64),
    /// Replaces the value if it is the expected one.
    CompareSwap {
        /// The value to be replaced.
        expected: u64,
        /// The new value.
        desired: u64,
    },
    /// Replaces the value.
    Swap(u64),
}

/// What a thread asks of the node. Objects are named by an address of the program, at which nothing
/// is read or written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Call {
    /// Makes a page readable: the thread has faulted on a read.
    ReadFault(PageNumber),
    /// Makes a page writable: the thread has faulted on a write.
    WriteFault(PageNumber),
    /// Acquires a lock.
    Lock(u64),
    /// Releases a lock. Never blocks.
    Unlock(u64),
    /// Acquires a reader-writer lock together with other readers.
    ReadLock(u64),
    /// Acquires a reader-writer lock alone.
    WriteLock(u64),
    /// Releases a reader-writer lock.
    ReadWriteUnlock(u64),
    /// Waits until `count` threads wait at the barrier. If `count` is the number of all threads of
    /// all nodes, no manager takes part.
    Barrier {
        /// The barrier.
        address: u64,
        /// The number of threads.
        count: u32,
    },
    /// Releases the lock, waits for a signal, and acquires the lock again.
    Wait {
        /// The condition variable.
        condition: u64,
        /// The lock, which the thread holds.
        lock: u64,
    },
    /// Wakes one thread that waits at the condition variable.
    Signal(u64),
    /// Wakes all threads that wait at the condition variable.
    Broadcast(u64),
    /// Takes one from a semaphore; waits until there is one.
    Take(u64),
    /// Adds to a semaphore.
    Give {
        /// The semaphore.
        semaphore: u64,
        /// What is added.
        count: u32,
    },
    /// Waits until an event is set.
    Await(u64),
    /// Sets an event.
    Set(u64),
    /// Clears an event.
    Clear(u64),
    /// Performs an atomic at a byte of the region, a multiple of 8. Returns the former value.
    Atomic {
        /// The first byte, from the beginning of the region.
        address: u64,
        /// What is done.
        operation: AtomicOperation,
    },
    /// Ends the interval: all that was written before is at its homes and published.
    Release,
    /// Applies all that the other nodes have published.
    Acquire,
    /// Begins to fetch pages that are absent. Never blocks.
    Prefetch {
        /// The first page.
        first: PageNumber,
        /// The number of pages.
        count: u32,
    },
    /// Makes pages accessible, and keeps them so: for system calls, which do not fault.
    Pin {
        /// The first page.
        first: PageNumber,
        /// The number of pages.
        count: u32,
        /// Whether the pages become writable.
        is_written: bool,
    },
    /// Ends a pin.
    Unpin {
        /// The first page.
        first: PageNumber,
        /// The number of pages.
        count: u32,
    },
    /// Makes this node the home of the pages that have none: each `step`th of the range. Afterwards
    /// the node knows the homes of all of them.
    Claim {
        /// The first page.
        first: PageNumber,
        /// The number of pages of the range.
        count: u32,
        /// The distance of the pages; 0 counts as 1.
        step: u32,
    },
    /// Moves the home of a page at the next barrier of all threads.
    Migrate {
        /// The page.
        page: PageNumber,
        /// The new home.
        to: Rank,
    },
}

//! Accepted connections that no process has used yet, and that several processes have.
//!
//! After a fork, parent and child have the connections that the parent has accepted. Usually one
//! process closes a connection, and the other process continues with it. A counter in shared memory
//! shows how many processes still have the connection. The connection can move to the edge only if
//! exactly one process has it. If a process ends without closing the connection, the counter stays
//! too high, and the connection stays on TCP.

use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Memory that a process shares with its children. It has one counter for each connection.
#[derive(Debug)]
pub(crate) struct Counters {
    first: NonNull<AtomicU32>,
    count: NonZeroUsize,
}

/// Represents one process in the counter of a connection. The counter counts the process until this
/// value is ended or dropped.
#[derive(Debug)]
pub(crate) struct Share {
    counters: Arc<Counters>,
    index: usize,
    has_ended: AtomicBool,
}

impl Counters {
    /// Allocates `count` counters.
    pub(crate) fn new(count: NonZeroUsize) -> Result<Arc<Self>, Errno> {
        let bytes = count.saturating_mul(COUNTER_BYTES);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses an address for new memory. The memory is zero, which is a
        // valid value for counters.
        let first = unsafe { mmap_anonymous(None, bytes, access, MapFlags::MAP_SHARED) }?;
        Ok(Arc::new(Self { first: first.cast(), count }))
    }

    /// Sets a counter to 1, because only this process has the connection, and returns the value
    /// that represents this process.
    pub(crate) fn share(self: &Arc<Self>, index: usize) -> Share {
        assert!(index < self.count.get(), "counter {index} of {}", self.count);
        let share = Share { counters: Arc::clone(self), index, has_ended: AtomicBool::new(false) };
        share.counter().store(1, Ordering::SeqCst);
        share
    }
}

// SAFETY: the memory contains only atomic counters, which any thread may use.
unsafe impl Send for Counters {}
// SAFETY: the memory contains only atomic counters, which any thread may use.
unsafe impl Sync for Counters {}

impl Drop for Counters {
    fn drop(&mut self) {
        let bytes = self.count.get() * COUNTER_BYTES.get();
        // SAFETY: the memory was mapped with this length, and no share refers to it any more.
        let _unmapped = unsafe { munmap(self.first.cast(), bytes) };
    }
}

impl Share {
    /// Returns true if another process also has the connection.
    pub(crate) fn is_shared(&self) -> bool {
        self.counter().load(Ordering::SeqCst) > 1
    }

    /// Counts a child in advance. Called before the fork.
    pub(crate) fn add(&self) {
        self.counter().fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the value that represents the child, which [`Self::add`] has counted. Called in the
    /// child.
    pub(crate) fn of_child(&self) -> Self {
        let has_ended = AtomicBool::new(false);
        Self { counters: Arc::clone(&self.counters), index: self.index, has_ended }
    }

    /// Removes this process from the count. Further calls have no effect.
    pub(crate) fn end(&self) {
        if !self.has_ended.swap(true, Ordering::SeqCst) {
            self.counter().fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn counter(&self) -> &AtomicU32 {
        // SAFETY: `index` is less than `count`, and `counters` keeps the memory mapped.
        unsafe { self.counters.first.add(self.index).as_ref() }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end();
    }
}

const COUNTER_BYTES: NonZeroUsize = NonZeroUsize::new(size_of::<AtomicU32>()).expect("it has some");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_shared_until_all_others_have_dropped_it() {
        let counters = Counters::new(NonZeroUsize::new(2).expect("two")).expect("memory");
        let [one, other] = [0, 1].map(|index| counters.share(index));
        assert!(!one.is_shared());
        one.add();
        let child = one.of_child();
        child.add();
        let grandchild = child.of_child();
        assert!(one.is_shared() && grandchild.is_shared() && !other.is_shared());
        drop(one);
        assert!(child.is_shared());
        drop(child);
        assert!(!grandchild.is_shared());
    }

    #[test]
    fn the_parent_sees_that_a_child_dropped_a_shared_connection() {
        let counters = Counters::new(NonZeroUsize::MIN).expect("memory");
        let share = counters.share(0);
        share.add();
        assert!(share.is_shared());
        // SAFETY: the child only drops its `Share`, which takes no lock, and ends.
        match unsafe { nix::unistd::fork() }.expect("a process") {
            nix::unistd::ForkResult::Child => {
                drop(share.of_child());
                // SAFETY: ends the process.
                unsafe { libc::_exit(0) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                nix::sys::wait::waitpid(child, None).expect("it ends");
            }
        }
        assert!(!share.is_shared());
    }
}

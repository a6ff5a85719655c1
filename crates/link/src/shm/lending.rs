//! Memory that one of two processes lets the other read, so that large payload is copied only once.
//!
//! The sender says in the ring where payload lies instead of copying it there, and the receiver places
//! it from the sender's own pages. That takes memory that lies in a file, as large buffers of this
//! library do, and the file is passed once, over the Unix socket. All other payload goes through the
//! ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

use mem::{Payload, PayloadSlice};

use super::ring::LentPlace;
use super::socket::{self, Notice};

/// What this process lends to one peer.
#[derive(Debug, Default)]
pub(super) struct Lender {
    /// Numbers of the memory that the peer was given.
    lent: Vec<u64>,
    /// Where payload was found last.
    known: Option<Known>,
    /// [`mem::lendable_changes`] when all this was true.
    changes: u64,
    /// The peer cannot map what it is given.
    is_refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    start: usize,
    len: u64,
    memory: u64,
}

impl Lender {
    /// Where the peer finds this payload; `None` if it must be copied.
    #[inline]
    pub(super) fn place_of(
        &mut self,
        payload: PayloadSlice<'_>,
        socket: BorrowedFd<'_>,
    ) -> Option<LentPlace> {
        if payload.len < LENT_BYTES_MIN || self.is_refused {
            return None;
        }
        self.forget_gone(socket);
        if let Some(Known { start, len, memory }) = self.known {
            let offset = (payload.start as usize).wrapping_sub(start) as u64;
            if offset.checked_add(u64::from(payload.len)).is_some_and(|end| end <= len) {
                return Some(LentPlace { memory, offset });
            }
        }
        self.lend(payload, socket)
    }

    /// Reports memory that is gone to the peer, so that it gives the pages back, too.
    #[inline]
    pub(super) fn forget_gone(&mut self, socket: BorrowedFd<'_>) {
        if self.changes != mem::lendable_changes() {
            self.return_gone(socket);
        }
    }

    /// The peer says that it cannot map what it is given.
    pub(super) const fn on_refused(&mut self) {
        self.is_refused = true;
    }

    #[cold]
    fn return_gone(&mut self, socket: BorrowedFd<'_>) {
        self.changes = mem::lendable_changes();
        self.known = None;
        if self.lent.is_empty() {
            return;
        }
        let there = mem::lendable_numbers();
        // A notice that cannot be sent now is sent after the next change, or when the channel ends.
        self.lent.retain(|number| {
            there.contains(number) || !socket::send_notice(socket, Notice::Gone(*number), None)
        });
    }

    #[cold]
    fn lend(&mut self, payload: PayloadSlice<'_>, socket: BorrowedFd<'_>) -> Option<LentPlace> {
        let (memory, offset) = mem::lendable(payload)?;
        let number = memory.number();
        if !self.lent.contains(&number) {
            let notice = Notice::Lent { memory: number, len: memory.len() };
            let has_room = self.lent.len() < LENT_MAX;
            if !has_room || !socket::send_notice(socket, notice, Some(memory.file())) {
                return None;
            }
            self.lent.push(number);
        }
        let start = (payload.start as usize).wrapping_sub(offset as usize);
        self.known = Some(Known { start, len: memory.len(), memory: number });
        Some(LentPlace { memory: number, offset })
    }
}

/// What one peer lends to this process.
#[derive(Debug, Default)]
pub(super) struct Borrower {
    /// What was used last is in front.
    memories: VecDeque<Borrowed>,
}

impl Borrower {
    /// How many pieces of memory are mapped.
    #[cfg(test)]
    pub(super) fn memories(&self) -> usize {
        self.memories.len()
    }

    /// Maps memory that the peer lends, to be read.
    pub(super) fn borrow(&mut self, memory: u64, len: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        self.give_back(memory);
        let mapped: u64 = self.memories.iter().map(|borrowed| borrowed.len as u64).sum();
        if self.memories.len() >= LENT_MAX || len > BORROWED_BYTES_MAX - mapped {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.memories.push_front(Borrowed::new(memory, len, file)?);
        Ok(())
    }

    /// The peer has no use for it any more.
    pub(super) fn give_back(&mut self, memory: u64) {
        self.memories.retain(|borrowed| borrowed.memory != memory);
    }

    /// Whether `len` bytes of a place are in borrowed memory.
    #[inline]
    pub(super) fn has(&mut self, place: LentPlace, len: usize) -> bool {
        self.find(place, len).is_some()
    }

    /// The `len` bytes of a place; `None` if they are not in borrowed memory. The peer may write them.
    /// Nothing is given back as long as they are in use.
    #[inline]
    pub(super) fn find(&mut self, place: LentPlace, len: usize) -> Option<Payload<'_>> {
        let is_it = |borrowed: &Borrowed| borrowed.memory == place.memory;
        if !self.memories.front().is_some_and(is_it) {
            let at = self.memories.iter().position(is_it)?;
            self.memories.swap(0, at);
        }
        self.memories.front()?.find(place.offset, len)
    }
}

/// Pages of the peer, mapped to be read.
#[derive(Debug)]
struct Borrowed {
    memory: u64,
    start: NonNull<u8>,
    len: usize,
}

impl Borrowed {
    fn new(memory: u64, len: u64, file: BorrowedFd<'_>) -> io::Result<Self> {
        if !socket::is_unshrinkable(file, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (access, file) = (libc::PROT_READ, file.as_fd().as_raw_fd());
        // SAFETY: a new mapping at an address the kernel chooses touches nothing that exists.
        let start = unsafe { libc::mmap(null_mut(), len, access, libc::MAP_SHARED, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { memory, start, len })
    }

    #[inline]
    fn find(&self, offset: u64, len: usize) -> Option<Payload<'_>> {
        let end = offset.checked_add(len as u64)?;
        if end > self.len as u64 {
            return None;
        }
        // SAFETY: all bytes lie in the mapping, as just checked, which stays while the result borrows it. Nothing has a
        // reference to them.
        Some(unsafe { Payload::foreign(self.start.as_ptr().add(offset as usize), len) })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; every user of its bytes borrows it, so there is none now.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: the mapping is only copied from, by the thread that owns it.
unsafe impl Send for Borrowed {}

/// Smallest payload that is lent, in bytes: below, the headers cost more than a second copy.
const LENT_BYTES_MIN: u32 = 4096;

/// Pieces of memory that one of two processes lends to the other at a time, as many as it has.
const LENT_MAX: usize = 64;

/// Bytes that one peer may have this process map, most of which may not exist: with the largest number of
/// peers a fourth of the 2^47 bytes of addresses that a process has.
const BORROWED_BYTES_MAX: u64 = 1 << 39;

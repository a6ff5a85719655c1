//! Memory that one process lends to another process for reading. The receiver copies large payload
//! directly from that memory, so the payload is copied only once.
//!
//! The sender writes the location of a payload into the ring, instead of the payload itself. The
//! receiver places the payload from the sender's own pages. This requires memory that is backed by
//! a file, which large buffers of this library have. The sender passes the file once, over the Unix
//! socket. All other payload goes through the ring.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};

use mem::{Payload, PayloadSlice};

use super::ring::LentPlace;
use super::socket::{self, Notice};

/// Memory that this process lends to one peer.
#[derive(Debug, Default)]
pub(super) struct Lender {
    /// Numbers of the memory files that the peer has received.
    lent: Vec<u64>,
    /// The memory that contained the payload looked up last.
    known: Option<Known>,
    /// Value of [`mem::lendable_changes`] when `lent` and `known` were last updated.
    changes: u64,
    /// True if the peer cannot map the files that it receives.
    is_refused: bool,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    start: usize,
    len: u64,
    memory: u64,
}

impl Lender {
    /// Returns the place at which the peer finds this payload. Returns `None` if the payload must
    /// be copied.
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

    /// Notifies the peer of memory that this process has freed, so that the peer unmaps the memory,
    /// too.
    #[inline]
    pub(super) fn forget_gone(&mut self, socket: BorrowedFd<'_>) {
        if self.changes != mem::lendable_changes() {
            self.return_gone(socket);
        }
    }

    /// Stops lending to a peer that cannot map the files that it receives.
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
        // If the socket cannot send a notice now, keep the memory's number in the list. The next
        // change of lendable memory then sends the notice. If the channel ends before that, the
        // notice is not needed.
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

/// Memory that one peer lends to this process.
#[derive(Debug, Default)]
pub(super) struct Borrower {
    /// The memory that the peer lends. The memory used last is at the front.
    memories: VecDeque<Borrowed>,
}

impl Borrower {
    /// Returns the number of mapped memory files.
    #[cfg(test)]
    pub(super) fn memories(&self) -> usize {
        self.memories.len()
    }

    /// Maps memory that the peer lends, for reading.
    pub(super) fn borrow(&mut self, memory: u64, len: u64, file: BorrowedFd<'_>) -> io::Result<()> {
        self.give_back(memory);
        let mapped: u64 = self.memories.iter().map(|borrowed| borrowed.len as u64).sum();
        if self.memories.len() >= LENT_MAX || len > BORROWED_BYTES_MAX - mapped {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        self.memories.push_front(Borrowed::new(memory, len, file)?);
        Ok(())
    }

    /// Unmaps memory that the peer no longer lends.
    pub(super) fn give_back(&mut self, memory: u64) {
        self.memories.retain(|borrowed| borrowed.memory != memory);
    }

    /// Returns whether `len` bytes at `place` are in borrowed memory.
    #[inline]
    pub(super) fn has(&mut self, place: LentPlace, len: usize) -> bool {
        self.find(place, len).is_some()
    }

    /// Returns the `len` bytes at `place`; `None` if they are not in borrowed memory. The peer may
    /// write them at any time. The memory stays mapped while the result exists.
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

/// Memory of the peer, mapped for reading.
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
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing
        // memory.
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
        // SAFETY: all bytes are inside the mapping, as just checked. The result borrows the
        // mapping, so the mapping stays. No reference to the bytes exists.
        Some(unsafe { Payload::foreign(self.start.as_ptr().add(offset as usize), len) })
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory with this length. Every user of the bytes borrows the
        // mapping, so no user exists now.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

// SAFETY: only the owning thread copies from the mapping.
unsafe impl Send for Borrowed {}

/// Smallest payload that is lent, in bytes. For a smaller payload, the longer headers cost more
/// than a second copy.
const LENT_BYTES_MIN: u32 = 4096;

/// Maximum number of memory files that one process lends to another at a time. A process does not
/// create more memory files than this.
const LENT_MAX: usize = 64;

/// Maximum number of bytes that one peer may make this process map, with or without pages behind
/// them. All `CHANNELS_MAX` peers together can take a fourth of the 2^47 bytes of address space.
const BORROWED_BYTES_MAX: u64 = 1 << 39;

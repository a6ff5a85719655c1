//! Pages of memory that peers and the device access.

use std::ffi::c_void;
use std::ptr;

use verbs::Error;

/// Newly mapped pages, initially zero.
#[derive(Debug)]
pub(super) struct Pages {
    start: *mut c_void,
    len: usize,
}

// SAFETY: plain memory without references to it; the owner synchronises reads and writes.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping, which affects no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::NoRoom("memory for mappings of a socket".into()));
        }
        Ok(Self { start, len })
    }

    /// Returns the address of the byte at index `at`.
    pub(super) fn address(&self, at: usize) -> usize {
        assert!(at < self.len, "byte {at} of {}", self.len);
        self.start.addr() + at
    }

    /// Reads a number that a peer may be writing at the same time, so the result may mix old and
    /// new bytes.
    pub(super) fn number(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "number at {at} of {}", self.len);
        // SAFETY: inside the pages, and aligned because the pages are.
        unsafe { self.start.byte_add(at).cast::<u64>().read_volatile() }
    }

    /// Copies bytes to index `at`.
    ///
    /// # Safety
    /// `from` has `len` readable bytes, and no other thread accesses the destination meanwhile.
    pub(super) unsafe fn fill(&self, at: usize, from: *const u8, len: usize) {
        assert!(at + len <= self.len, "{len} bytes at {at} of {}", self.len);
        // SAFETY: inside the pages, as checked above; the caller guarantees the rest.
        unsafe { ptr::copy_nonoverlapping(from, self.start.cast::<u8>().add(at), len) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by `new`, and no reference to it is left. A failure cannot
        // be handled, so it is ignored.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

//! Pages of memory that peers and the device access.

use std::ffi::c_void;
use std::ptr;

use verbs::Error;

/// Newly mapped pages. All bytes are zero at first.
#[derive(Debug)]
pub(super) struct Pages {
    start: *mut c_void,
    len: usize,
}

// SAFETY: the pages are plain memory, and no reference to this memory exists. The owner
// synchronises reads and writes.
unsafe impl Send for Pages {}
// SAFETY: the pages are plain memory, and no reference to this memory exists. The owner
// synchronises reads and writes.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: this creates an anonymous mapping at a free address, which affects no other
        // memory.
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

    /// Reads a number. The peer may be writing the number at the same time, so the result may
    /// contain old and new bytes.
    pub(super) fn number(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "number at {at} of {}", self.len);
        // SAFETY: the number is inside the pages. It is aligned, because the pages are aligned and
        // the offset is a multiple of 8.
        unsafe { self.start.byte_add(at).cast::<u64>().read_volatile() }
    }

    /// Copies bytes to index `at`.
    ///
    /// # Safety
    /// `from` must have `len` readable bytes. No other thread may access the destination during
    /// this call.
    pub(super) unsafe fn fill(&self, at: usize, from: *const u8, len: usize) {
        assert!(at + len <= self.len, "{len} bytes at {at} of {}", self.len);
        // SAFETY: the check above ensures that the destination is inside the pages. The caller
        // guarantees the source, and that no other thread accesses the destination.
        unsafe { ptr::copy_nonoverlapping(from, self.start.cast::<u8>().add(at), len) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, and no reference to the memory exists. A failure is
        // ignored, because nothing can be done about it.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

//! Memory that peers and the device reach: pages of its own, for as long as this lives.

use std::ffi::c_void;
use std::ptr;

use verbs::Error;

/// Some pages, all zeros at first.
#[derive(Debug)]
pub(super) struct Pages {
    start: *mut c_void,
    len: usize,
}

// SAFETY: it is memory that nothing refers to; who reads and writes it, and when, is the owner's matter.
unsafe impl Send for Pages {}
// SAFETY: the same.
unsafe impl Sync for Pages {}

impl Pages {
    pub(super) fn new(len: usize) -> Result<Self, Error> {
        let (rights, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, of nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, rights, kind, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Error::NoRoom("memory for mappings of a socket".into()));
        }
        Ok(Self { start, len })
    }

    /// The address of a byte.
    pub(super) fn address(&self, at: usize) -> usize {
        assert!(at < self.len, "byte {at} of {}", self.len);
        self.start.addr() + at
    }

    /// A number that a peer may be writing: it may be torn.
    pub(super) fn number(&self, at: usize) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "number at {at} of {}", self.len);
        // SAFETY: inside the pages, and aligned as they are.
        unsafe { self.start.byte_add(at).cast::<u64>().read_volatile() }
    }

    /// Fills a part.
    ///
    /// # Safety
    /// `from` is memory of `len` bytes that may be read, and no thread reads or writes the part meanwhile.
    pub(super) unsafe fn fill(&self, at: usize, from: *const u8, len: usize) {
        assert!(at + len <= self.len, "{len} bytes at {at} of {}", self.len);
        // SAFETY: inside the pages; the rest is as the caller says.
        unsafe { ptr::copy_nonoverlapping(from, self.start.cast::<u8>().add(at), len) };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were mapped so, and no reference to them is left. There is nothing to be done if it fails.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

//! The memory that two processes share, and its layout.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Memory shared with another process.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(super) start: NonNull<u8>,
}

impl Mapping {
    /// Maps the first [`FILE_BYTES`] of a file. The file must have that size and be sealed against
    /// shrinking.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Arc<Self>> {
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing
        // memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_fd().as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Self { start }))
    }

    /// Returns the memory of one direction. `index` modulo 2 selects the direction.
    pub(super) fn direction(self: &Arc<Self>, index: usize) -> Area {
        let offset = (index % 2) * DIRECTION_BYTES;
        // SAFETY: both directions lie within the mapping of `FILE_BYTES`.
        let start = unsafe { self.start.add(offset) };
        Area { start, _mapping: Arc::clone(self) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the memory with this length. Every pointer into the mapping is in an
        // `Area`, which keeps the mapping alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), FILE_BYTES) };
    }
}

// SAFETY: the mapping is accessed only with atomics, and with copies that tolerate concurrent
// writes.
unsafe impl Send for Mapping {}
// SAFETY: the mapping is accessed only with atomics, and with copies that tolerate concurrent
// writes.
unsafe impl Sync for Mapping {}

/// The shared memory of one direction.
#[derive(Debug)]
pub(super) struct Area {
    start: NonNull<u8>,
    _mapping: Arc<Mapping>,
}

// SAFETY: the memory is accessed only with atomics, and with copies that tolerate concurrent
// writes. The area keeps its mapping alive.
unsafe impl Send for Area {}

impl Area {
    /// Returns the total number of bytes that the reader has read.
    pub(super) fn consumed(&self) -> &AtomicU64 {
        // SAFETY: the word is within the control part and aligned to a line. The word is atomic, so
        // other processes may access it.
        unsafe { AtomicU64::from_ptr(self.start.add(CONSUMED_AT).as_ptr().cast()) }
    }

    /// Returns a word that is not 0 while the writer waits for room in the ring.
    pub(super) fn writer_waits(&self) -> &AtomicU32 {
        // SAFETY: the word is within the control part and aligned to a line. The word is atomic, so
        // other processes may access it.
        unsafe { AtomicU32::from_ptr(self.start.add(WRITER_WAITS_AT).as_ptr().cast()) }
    }

    /// Returns a word that is not 0 while the reader sleeps or is about to sleep.
    pub(super) fn reader_sleeps(&self) -> &AtomicU32 {
        // SAFETY: the word is within the control part and aligned to a line. The word is atomic, so
        // other processes may access it.
        unsafe { AtomicU32::from_ptr(self.start.add(READER_SLEEPS_AT).as_ptr().cast()) }
    }

    /// Returns the first header word at a position of the ring.
    #[inline]
    pub(super) fn header(&self, at: usize) -> &AtomicU32 {
        debug_assert!(at.is_multiple_of(LINE_BYTES), "records begin with a line");
        // SAFETY: `at` modulo `RING_BYTES` is within the ring, and a line has room for a header.
        unsafe {
            AtomicU32::from_ptr(self.start.add(CONTROL_BYTES + at % RING_BYTES).as_ptr().cast())
        }
    }

    /// Returns the second header word at a position: bytes of payload, and the bit `LENT`.
    #[inline]
    pub(super) fn second(&self, at: usize) -> &AtomicU32 {
        // SAFETY: `at` modulo `RING_BYTES` is within the ring, and the second word is in the same
        // line as the first.
        unsafe {
            AtomicU32::from_ptr(self.start.add(CONTROL_BYTES + at % RING_BYTES + 4).as_ptr().cast())
        }
    }

    /// Returns a pointer `behind` bytes after the start of the record at `at`. The result must be
    /// within the ring.
    #[inline]
    pub(super) fn place(&self, at: usize, behind: usize) -> *mut u8 {
        debug_assert!(at + behind < RING_BYTES, "records do not wrap");
        // SAFETY: `at + behind` modulo `RING_BYTES` is within the ring.
        unsafe { self.start.add(CONTROL_BYTES + (at + behind) % RING_BYTES).as_ptr() }
    }
}

/// Bytes of the ring of one direction. Three of the largest frames fit. The rings of both
/// directions fit into a second-level cache of 1 MiB.
pub(crate) const RING_BYTES: usize = 256 * 1024;

/// Bytes of shared memory for both directions.
pub(crate) const FILE_BYTES: usize = 2 * DIRECTION_BYTES;

pub(super) const DIRECTION_BYTES: usize = CONTROL_BYTES + RING_BYTES;
/// Bytes of control words before each ring: a page, of which three lines are used.
pub(super) const CONTROL_BYTES: usize = 4096;
const CONSUMED_AT: usize = 0;
const WRITER_WAITS_AT: usize = 128;
const READER_SLEEPS_AT: usize = 256;
pub(super) const LINE_BYTES: usize = 64;

const _: () = assert!(RING_BYTES.is_multiple_of(LINE_BYTES) && CONTROL_BYTES.is_multiple_of(4096));

//! A bare exchange of cache lines through memory shared by two processes.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// One cache line for each direction. One processor writes the line and another polls it. No other
/// exchange of messages through shared memory is cheaper.
///
/// The client sends and polls until a line arrives. The server polls, and sends a line back.
#[derive(Debug)]
pub struct BareShm {
    start: NonNull<u8>,
    /// Offset of the page that this end writes, in bytes. The other end writes the other page.
    out: usize,
    /// Number of messages sent.
    sent: u64,
    /// Number of messages received.
    received: u64,
    /// Keeps the memory open, so that the other end can open it by its path.
    file: File,
}

impl BareShm {
    /// Creates the memory.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn create() -> io::Result<Self> {
        // SAFETY: the name is a literal that ends with 0.
        let file = unsafe { libc::memfd_create(c"ethernot-bare".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(file) });
        file.set_len(2 * PAGE_BYTES as u64)?;
        Self::map(file, 0)
    }

    /// Opens memory that another process of the same user created.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        if file.metadata()?.len() < 2 * PAGE_BYTES as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(file, PAGE_BYTES)
    }

    /// Returns the path by which other processes can open the memory while this value exists.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    fn map(file: File, out: usize) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses does not affect existing
        // memory.
        let start =
            unsafe { libc::mmap(null_mut(), 2 * PAGE_BYTES, access, flags, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, out, sent: 0, received: 0, file })
    }

    /// Sends a line.
    #[inline]
    pub fn send(&mut self) {
        self.sent += 1;
        for index in 1..WORDS {
            self.word(self.out, index).store(self.sent, Ordering::Relaxed);
        }
        self.word(self.out, 0).store(self.sent, Ordering::Release);
    }

    /// Returns whether the next line has arrived. Reads the whole line.
    #[inline]
    pub fn poll(&mut self) -> bool {
        let from = PAGE_BYTES - self.out;
        let next = self.received + 1;
        if self.word(from, 0).load(Ordering::Acquire) != next {
            return false;
        }
        self.received = next;
        (1..WORDS).all(|index| self.word(from, index).load(Ordering::Relaxed) == next)
    }

    /// Returns a word of the line at the start of one of the two pages.
    #[inline]
    fn word(&self, page: usize, index: usize) -> &AtomicU64 {
        // SAFETY: both pages are mapped, and `index % WORDS` is the index of a word in a line. The
        // word is atomic, so other processes may access it.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(page + 8 * (index % WORDS)).cast()) }
    }
}

impl Drop for BareShm {
    fn drop(&mut self) {
        // SAFETY: `map` mapped the memory with this length. No reference outlives a method.
        unsafe { libc::munmap(self.start.as_ptr().cast(), 2 * PAGE_BYTES) };
    }
}

// SAFETY: the mapping is accessed only with atomics.
unsafe impl Send for BareShm {}

/// Number of words in a cache line.
const WORDS: usize = 8;

/// Size of the page of one direction, in bytes. Because each direction has its own page, the
/// processor does not prefetch the line of the other direction.
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_lines_alternate_between_both_ends() {
        let mut server = BareShm::create().expect("memory");
        let mut client = BareShm::open(&server.path()).expect("the same memory");
        for _ in 0..3 {
            assert!(!server.poll());
            client.send();
            assert!(server.poll());
            assert!(!server.poll());
            server.send();
            assert!(client.poll());
        }
    }
}

//! Buffers: memory for registration, which stays allocated while a region or another reference uses
//! it.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::Arc;

use crate::copy;
use crate::error::BufferError;
use crate::home::Home;
use crate::lendable::LendablePages;
use crate::mapped::MappedPages;
use crate::word::{Integer, Word};

/// Memory for registration, shared between its user and the table. It is either new zeroed memory,
/// aligned to pages ([`Buffer::new`]), or existing bytes ([`Buffer::from_vec`],
/// [`Buffer::from_shared`], [`Buffer::from_owner`]).
///
/// The memory stays allocated while any reference to the buffer exists. A registered region has
/// such a reference, so registering a buffer is safe. No Rust reference to the bytes exists,
/// because peers may change them at any time. Methods copy bytes into and out of the buffer.
///
/// # Torn bytes
///
/// [`Buffer::read`], [`Buffer::write`] and peers copy bytes in any order. If two accesses race, the
/// result may be any mixture of old and new bytes; the race has no other effect. An integer is
/// never torn if all threads access it by [`Buffer::word`] and all peers by atomics (64 bits).
///
/// If a peer's write is strict (has the order of a queue pair's writes) or fits in one word, the
/// library stores the last bytes of the write last and with release semantics. These bytes are the
/// widest aligned word of at most 8 bytes at the end of the write. If a thread loads this word with
/// acquire semantics and sees its new value, it sees the whole write.
///
/// # Other processes that see the bytes
///
/// The library can lend buffers of 64 KiB and more over shared memory, which saves one of two
/// copies. It lends a buffer when a write or send of 4 KiB or more goes from the buffer to a
/// process of this host. That process must run as the same user or as root. The process then reads
/// the bytes in place. It can read *all* bytes of the buffer: also bytes that are not sent, and
/// bytes that are written later. It cannot write to the buffer.
///
/// The library lends a buffer only while a region covers the whole buffer. When the last such
/// region is deregistered, the library asks the process to unmap the buffer. A process that ignores
/// this can still read the buffer, because the kernel cannot revoke a file that was passed to
/// another process. To hide data from such processes, keep the data in a buffer that is smaller
/// than 64 KiB or registered only in part. Endpoints without shared-memory links lend no buffer.
///
/// After a `fork`, the child shares the bytes of large buffers with this process, and does not get
/// a copy.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

impl Buffer {
    /// Allocates a buffer of `len` zero bytes.
    ///
    /// # Panics
    /// Panics if `len` exceeds 2^63 − [`Buffer::ALIGNMENT`]. If memory runs out, the process
    /// aborts, like for every allocation.
    pub fn new(len: u64) -> Arc<Self> {
        let layout = Self::layout(len as usize);
        if let Some(pages) = LendablePages::new(len as usize) {
            return Self::at_home(pages.start(), len as usize, Home::Pages(pages));
        }
        if let Some(pages) = MappedPages::new(len as usize) {
            return Self::at_home(pages.start(), len as usize, Home::Mapped { _pages: pages });
        }
        // SAFETY: the layout has a size that is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self::at_home(start, len as usize, Home::Heap(layout))
    }

    pub(crate) fn at_home(start: NonNull<u8>, len: usize, home: Home) -> Arc<Self> {
        Arc::new(Self { start, len, home })
    }

    pub(crate) const fn home(&self) -> &Home {
        &self.home
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a buffer is made for its bytes")]
    pub const fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns a pointer to the first byte.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// Copies bytes from `offset` to `out`. If other code writes the bytes during the copy, the
    /// result may be a mixture of old and new bytes.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if the range exceeds the buffer; in this case `out` is
    /// unchanged.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<(), BufferError> {
        let from = self.at(offset, out.len())?;
        // SAFETY: `at` checked that the source lies in the buffer; `out` is its own memory.
        unsafe { copy::copy(out.as_mut_ptr(), from, out.len()) }
        Ok(())
    }

    /// Copies `bytes` to `offset`. If other threads read the bytes during the copy, these threads
    /// may see a mixture of old and new bytes.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if the range exceeds the buffer, [`BufferError::ReadOnly`]
    /// if the bytes of the buffer must not change. After an error, no byte has been written.
    pub fn try_write(&self, offset: u64, bytes: &[u8]) -> Result<(), BufferError> {
        self.check_writable()?;
        let to = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the destination lies in the buffer, and no reference to the
        // buffer's bytes exists.
        unsafe { copy::copy(to, bytes.as_ptr(), bytes.len()) }
        Ok(())
    }

    /// Copies bytes like [`Buffer::try_read`], for ranges that are known to be valid.
    ///
    /// # Panics
    /// Panics if the range exceeds the buffer.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.try_read(offset, out).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Copies bytes like [`Buffer::try_write`], for ranges that are known to be valid.
    ///
    /// # Panics
    /// Panics if the range exceeds the buffer, or the bytes of the buffer must not change.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.try_write(offset, bytes).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the integer at `offset`, for atomics and volatile accesses.
    ///
    /// # Errors
    /// Returns [`BufferError::Bounds`] if the integer exceeds the buffer, [`BufferError::ReadOnly`]
    /// if the bytes of the buffer must not change. Returns [`BufferError::Misaligned`] if the
    /// integer's address is not a multiple of its length. The start of a [new](Buffer::new) buffer
    /// is aligned for every integer.
    pub fn word<T: Integer>(&self, offset: u64) -> Result<Word<'_, T>, BufferError> {
        self.check_writable()?;
        Word::new(self, offset)
    }

    /// Loads the eight bytes at `offset` as one word, in native order and with acquire semantics.
    /// After the load, the calling thread also sees all bytes that were placed before this word.
    ///
    /// # Panics
    /// Panics if the bytes exceed the buffer or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: u64) -> u64 {
        let word = self.known_word::<u64>(offset);
        if self.home.is_writable() {
            return word.load(Ordering::Acquire);
        }
        // The bytes of a read-only buffer do not change, so a plain copy is enough.
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Stores eight bytes at `offset` as one word, in native order and with release semantics.
    ///
    /// # Panics
    /// Panics if the bytes exceed the buffer or must not change, or `offset` is not a multiple of
    /// 8.
    pub fn store_u64(&self, offset: u64, value: u64) {
        let word = self.word(offset).unwrap_or_else(|error| panic!("{error}"));
        word.store(value, Ordering::Release);
    }

    /// Loads the byte at `offset` with acquire semantics. Meant for a program that polls on the
    /// last byte of a message.
    ///
    /// # Panics
    /// Panics if `offset` is outside the buffer.
    pub fn load_u8(&self, offset: u64) -> u8 {
        let word = self.known_word::<u8>(offset);
        if self.home.is_writable() {
            return word.load(Ordering::Acquire);
        }
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0]
    }

    /// Counts a registration of the whole buffer. While there is a registration, the library may
    /// lend the buffer.
    pub(crate) fn on_registered(&self) {
        if let Some(pages) = self.home.pages() {
            pages.on_registered();
        }
    }

    /// Counts the end of a registration of the whole buffer.
    pub(crate) fn on_deregistered(&self) {
        if let Some(pages) = self.home.pages() {
            pages.on_deregistered();
        }
    }

    /// Alignment of the first byte of a [new](Buffer::new) buffer, in bytes: one page.
    pub const ALIGNMENT: usize = 4096;

    fn known_word<T: Integer>(&self, offset: u64) -> Word<'_, T> {
        Word::new(self, offset).unwrap_or_else(|error| panic!("{error}"))
    }

    const fn check_writable(&self) -> Result<(), BufferError> {
        if self.home.is_writable() { Ok(()) } else { Err(BufferError::ReadOnly) }
    }

    /// Checks that `length` bytes from `offset` lie in the buffer.
    pub(crate) const fn check(&self, offset: u64, length: u64) -> Result<(), BufferError> {
        let limit = self.len();
        match offset.checked_add(length) {
            Some(end) if end <= limit => Ok(()),
            _ => Err(BufferError::Bounds { offset, length, limit }),
        }
    }

    /// Returns the address of `offset`, after a check that the `len` bytes from there are in the
    /// buffer.
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, BufferError> {
        self.check(offset, len as u64)?;
        // SAFETY: `offset` is at most `self.len`, the length of the allocation.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// Returns the layout of a new buffer. An empty buffer gets one byte, so that it has an
    /// address.
    fn layout(len: usize) -> Layout {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGNMENT);
        assert!(layout.is_ok(), "a buffer of {len} bytes cannot exist");
        layout.unwrap_or(Layout::new::<u8>())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: these are the buffer's bytes, and no code uses the buffer after this.
        unsafe { self.home.free(self.start, self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.len, self.start)
    }
}

// SAFETY: the buffer or its owner keeps the bytes. Every access to the bytes is a copy or an
// atomic, which assumes nothing about other threads.
unsafe impl Send for Buffer {}
// SAFETY: the buffer or its owner keeps the bytes. Every access to the bytes is a copy or an
// atomic, which assumes nothing about other threads.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_buffer_is_zeroed_and_page_aligned() {
        for len in [0, 1, 4095, 4096, 10_000] {
            let buffer = Buffer::new(len);
            let mut bytes = vec![1; len as usize];
            buffer.read(0, &mut bytes);
            assert!(bytes.iter().all(|&byte| byte == 0));
            assert_eq!(buffer.address() % Buffer::ALIGNMENT as u64, 0);
        }
    }

    #[test]
    fn words_and_bytes_are_the_same_memory() {
        let buffer = Buffer::new(64);
        buffer.store_u64(8, 0x0102_0304_0506_0708);
        let mut bytes = [0; 8];
        buffer.read(8, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304_0506_0708);
        buffer.write(15, &[9]);
        assert_eq!(buffer.load_u8(15), 9);
    }

    #[test]
    fn copies_beyond_the_buffer_are_typed_errors_and_change_no_memory() {
        let buffer = Buffer::new(16);
        let mut out = [9; 8];
        let leaves = |offset| Err(BufferError::Bounds { offset, length: 8, limit: 16 });
        assert_eq!(buffer.try_read(9, &mut out), leaves(9));
        assert_eq!(buffer.try_write(u64::MAX, &out), leaves(u64::MAX));
        assert_eq!((out, buffer.load_u64(8)), ([9; 8], 0));
        assert_eq!(buffer.try_write(8, &out), Ok(()));
        assert_eq!(buffer.try_read(16, &mut []), Ok(()));
    }

    #[test]
    #[should_panic(expected = "exceed a buffer")]
    fn reading_past_the_end_panics() {
        Buffer::new(16).read(9, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "exceed a buffer")]
    fn an_offset_that_wraps_panics() {
        Buffer::new(16).write(u64::MAX, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "multiple of 8")]
    fn a_misaligned_word_panics() {
        Buffer::new(16).load_u64(4);
    }
}

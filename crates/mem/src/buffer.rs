//! Memory that is registered in one piece and stays as long as anything uses it.

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::sync::Arc;

use crate::home::Home;
use crate::lendable::LendablePages;
use crate::mapped::MappedPages;
use crate::{BufferError, Integer, Word, copy};

/// Memory for registration, shared between its user and the table: page-aligned zeroed memory of its own
/// ([`Buffer::new`]), or bytes that were there before ([`Buffer::from_vec`], [`Buffer::from_shared`],
/// [`Buffer::from_owner`]).
///
/// It stays allocated as long as anything holds it, a registered region included, so registering it
/// is safe. Its bytes are foreign memory like any other: they are copied in and out, and no
/// reference to them exists.
///
/// # What may be torn
///
/// [`Buffer::read`] and [`Buffer::write`] copy bytes, and peers place and read bytes, in any order: what races with
/// them may be torn at any byte, and nothing worse happens. An integer is never torn that is accessed by [`Buffer::word`]
/// on all sides, or by atomics of a peer (64 bits). Of what a peer writes, the last bytes are stored last
/// and with release semantics, as the widest aligned word of at most 8 bytes that ends the write, where the write is
/// strict or ends by itself in one word: who loads that word with acquire semantics and finds it new has all of the write.
///
/// # Who else sees it
///
/// The memory of large buffers, of 64 KiB and more, is read in place by a process of this host and user (or
/// root) that something of 4 KiB or more is written or sent to from it over shared memory: one copy instead
/// of two. That process is given *all* of the buffer to read, not only the bytes that are sent, and what is
/// written to it later, too; it cannot write to it. It is given a buffer only while all of it is registered,
/// not if parts are, and is asked to give it back when it is deregistered everywhere. A process that does not
/// do so goes on seeing it: the kernel takes back neither a file that was passed nor its pages.
/// What such a peer must not see belongs into another buffer, one below 64 KiB or registered in part;
/// endpoints that share no memory lend nothing.
///
/// A child that this process forks has the bytes of large buffers, too, not a copy of its own.
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
    home: Home,
}

impl Buffer {
    /// Allocates `len` zero bytes.
    ///
    /// # Panics
    /// If `len` is beyond 2^63 − [`Buffer::ALIGNMENT`]. Aborts like every allocation when memory
    /// runs out.
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

    /// Copies bytes from `offset` on into `out`. What is written meanwhile may come out torn, byte by byte.
    ///
    /// # Errors
    /// [`BufferError::Bounds`] if the range leaves the buffer; `out` is as it was.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<(), BufferError> {
        let from = self.at(offset, out.len())?;
        // SAFETY: `at` checked that the source lies in the buffer; `out` is its own memory.
        unsafe { copy::copy(out.as_mut_ptr(), from, out.len()) }
        Ok(())
    }

    /// Copies `bytes` to `offset`. Who reads meanwhile may see them torn, byte by byte.
    ///
    /// # Errors
    /// [`BufferError::Bounds`] if the range leaves the buffer, [`BufferError::ReadOnly`] if its bytes must not change;
    /// nothing was written.
    pub fn try_write(&self, offset: u64, bytes: &[u8]) -> Result<(), BufferError> {
        self.check_writable()?;
        let to = self.at(offset, bytes.len())?;
        // SAFETY: `at` checked that the destination lies in the buffer, of which no reference
        // exists.
        unsafe { copy::copy(to, bytes.as_ptr(), bytes.len()) }
        Ok(())
    }

    /// Copies bytes out as [`Buffer::try_read`] does, where the range is known to be right.
    ///
    /// # Panics
    /// If the range leaves the buffer.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.try_read(offset, out).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Copies bytes in as [`Buffer::try_write`] does, where the range is known to be right.
    ///
    /// # Panics
    /// If the range leaves the buffer, or its bytes must not change.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.try_write(offset, bytes).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns the integer at `offset`, for atomics and volatile accesses.
    ///
    /// # Errors
    /// [`BufferError::Bounds`] if it leaves the buffer, [`BufferError::Misaligned`] if its address is not a multiple
    /// of its length (that of a buffer of its own begins at one), [`BufferError::ReadOnly`] if the bytes must not change.
    pub fn word<T: Integer>(&self, offset: u64) -> Result<Word<'_, T>, BufferError> {
        self.check_writable()?;
        Word::new(self, offset)
    }

    /// Loads the eight bytes at `offset` in native order, as one with acquire semantics: what was placed before
    /// them is visible afterwards.
    ///
    /// # Panics
    /// If the bytes leave the buffer or `offset` is not a multiple of 8.
    pub fn load_u64(&self, offset: u64) -> u64 {
        let word = self.known_word::<u64>(offset);
        if self.home.is_writable() {
            return word.load(Ordering::Acquire);
        }
        // Nothing changes these.
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_ne_bytes(bytes)
    }

    /// Stores eight bytes at `offset` in native order, as one and with release semantics.
    ///
    /// # Panics
    /// If the bytes leave the buffer or must not change, or `offset` is not a multiple of 8.
    pub fn store_u64(&self, offset: u64, value: u64) {
        let word = self.word(offset).unwrap_or_else(|error| panic!("{error}"));
        word.store(value, Ordering::Release);
    }

    /// Loads the byte at `offset` with acquire semantics: for a program that polls on the last byte of a message.
    ///
    /// # Panics
    /// If `offset` is outside of the buffer.
    pub fn load_u8(&self, offset: u64) -> u8 {
        let word = self.known_word::<u8>(offset);
        if self.home.is_writable() {
            return word.load(Ordering::Acquire);
        }
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0]
    }

    /// All of it is registered, once more: it may be lent.
    pub(crate) fn on_registered(&self) {
        if let Some(pages) = self.home.pages() {
            pages.on_registered();
        }
    }

    /// A registration of all of it has ended.
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

    /// Whether `length` bytes from `offset` on lie in the buffer.
    pub(crate) const fn check(&self, offset: u64, length: u64) -> Result<(), BufferError> {
        let limit = self.len();
        match offset.checked_add(length) {
            Some(end) if end <= limit => Ok(()),
            _ => Err(BufferError::Bounds { offset, length, limit }),
        }
    }

    /// The address of `offset`, from which `len` bytes lie in the buffer.
    fn at(&self, offset: u64, len: usize) -> Result<*mut u8, BufferError> {
        self.check(offset, len as u64)?;
        // SAFETY: `offset` is at most `self.len`, the length of the allocation.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// Also of an empty buffer one byte is allocated: it has an address then.
    fn layout(len: usize) -> Layout {
        let layout = Layout::from_size_align(len.max(1), Self::ALIGNMENT);
        assert!(layout.is_ok(), "a buffer of {len} bytes cannot exist");
        layout.unwrap_or(Layout::new::<u8>())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: these are the buffer's bytes, and nothing uses them after it.
        unsafe { self.home.free(self.start, self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at {:p})", self.len, self.start)
    }
}

// SAFETY: the buffer or its owner keeps the bytes, and every access to them is a copy or an atomic that makes no
// claim on what other threads do.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_buffer_is_zero_and_page_aligned() {
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
    fn copies_that_leave_the_buffer_are_typed_errors_and_touch_nothing() {
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
    #[should_panic(expected = "leave a buffer")]
    fn reading_past_the_end_panics() {
        Buffer::new(16).read(9, &mut [0; 8]);
    }

    #[test]
    #[should_panic(expected = "leave a buffer")]
    fn an_offset_that_wraps_panics() {
        Buffer::new(16).write(u64::MAX, &[0; 8]);
    }

    #[test]
    #[should_panic(expected = "multiple of 8")]
    fn a_misaligned_word_panics() {
        Buffer::new(16).load_u64(4);
    }
}

//! Describes where the bytes of a buffer are, and frees them.

use core::fmt;
use core::ptr::NonNull;
use std::alloc::{Layout, dealloc};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::lendable::LendablePages;
use crate::mapped::MappedPages;

/// The kind of memory that holds the bytes of a buffer.
pub(crate) enum Home {
    /// The heap. The buffer allocated the bytes.
    Heap(Layout),
    /// Pages that can be lent to other processes.
    Pages(LendablePages),
    /// Pages of this process only.
    Mapped { _pages: MappedPages },
    /// The allocation of a former vector, with its capacity in bytes.
    Vector { capacity: usize },
    /// Memory that an owner keeps alive.
    Owner { _owner: Owner, is_writable: bool },
}

/// Owns a value that keeps memory alive. This is a raw pointer and not a `Box`, because a `Box`
/// would assert that no other pointer to the value exists.
pub(crate) struct Owner(NonNull<dyn Send + Sync>);

impl Owner {
    fn new<T: Send + Sync + 'static>(owner: T) -> (NonNull<T>, Self) {
        let owner = NonNull::from(Box::leak(Box::new(owner)));
        (owner, Self(owner))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box in `new`, and this is the only drop.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Home {
    /// Takes a vector apart into its start, its length and a `Home`. Also gives an empty vector a
    /// start address.
    pub(crate) fn of_vector(bytes: Vec<u8>) -> (NonNull<u8>, usize, Self) {
        let mut bytes = bytes;
        if bytes.capacity() == 0 {
            bytes.reserve_exact(1);
        }
        let mut bytes = ManuallyDrop::new(bytes);
        let (start, len, capacity) = (bytes.as_mut_ptr(), bytes.len(), bytes.capacity());
        let start = NonNull::new(start).unwrap_or(NonNull::dangling());
        (start, len, Self::Vector { capacity })
    }

    /// Returns whether the bytes may change.
    pub(crate) const fn is_writable(&self) -> bool {
        !matches!(self, Self::Owner { is_writable: false, .. })
    }

    /// Returns whether an owner keeps the memory alive. In this case, the memory may be of any
    /// kind, for example a mapped file.
    pub(crate) const fn is_foreign(&self) -> bool {
        matches!(self, Self::Owner { .. })
    }

    /// Returns the pages, if they can be lent to other processes.
    pub(crate) const fn pages(&self) -> Option<&LendablePages> {
        if let Self::Pages(pages) = self { Some(pages) } else { None }
    }

    /// Frees the memory.
    ///
    /// # Safety
    /// The buffer's bytes must be the `len` bytes at `start`, and no code may use them any more.
    /// This must be called only once.
    pub(crate) unsafe fn free(&self, start: NonNull<u8>, len: usize) {
        match *self {
            // SAFETY: the buffer allocated the memory with this layout.
            Self::Heap(layout) => unsafe { dealloc(start.as_ptr(), layout) },
            Self::Vector { capacity } => {
                // SAFETY: these are the parts of the vector that `of_vector` took apart.
                drop(unsafe { Vec::from_raw_parts(start.as_ptr(), len, capacity) });
            }
            Self::Pages(_) | Self::Mapped { .. } | Self::Owner { .. } => {}
        }
    }
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heap(_) => "heap",
            Self::Pages(_) => "pages",
            Self::Mapped { .. } => "mapped",
            Self::Vector { .. } => "vector",
            Self::Owner { is_writable: true, .. } => "owner",
            Self::Owner { is_writable: false, .. } => "owner, read-only",
        })
    }
}

impl Buffer {
    /// Makes a buffer from the bytes of a vector, without a copy. [`Buffer::into_vec`] returns the
    /// vector.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use mem::Buffer;
    ///
    /// let buffer = Buffer::from_vec(vec![7; 1000]);
    /// buffer.write(1, &[8]);
    /// let held = Arc::clone(&buffer);
    /// let buffer = Buffer::into_vec(buffer).expect_err("it is held elsewhere");
    /// drop(held);
    /// let bytes = Buffer::into_vec(buffer).expect("it is made of a vector");
    /// assert_eq!((bytes.len(), &bytes[..3]), (1000, &[7, 8, 7][..]));
    /// ```
    pub fn from_vec(bytes: Vec<u8>) -> Arc<Self> {
        let (start, len, home) = Home::of_vector(bytes);
        Self::at_home(start, len, home)
    }

    /// Returns the vector that was passed to [`Buffer::from_vec`].
    ///
    /// # Errors
    /// Returns the buffer itself if the buffer was not made from a vector, or if there are other
    /// references to it. A registered region has such a reference.
    pub fn into_vec(buffer: Arc<Self>) -> Result<Vec<u8>, Arc<Self>> {
        let Home::Vector { capacity } = *buffer.home() else { return Err(buffer) };
        let buffer = ManuallyDrop::new(Arc::try_unwrap(buffer)?);
        let (start, len) = (buffer.as_ptr(), buffer.len() as usize);
        // SAFETY: these are the parts of the vector that `of_vector` took apart. No other reference
        // to the buffer exists, and its destructor does not run.
        Ok(unsafe { Vec::from_raw_parts(start, len, capacity) })
    }

    /// Makes a read-only buffer from bytes that other code may read at the same time, without a
    /// copy. Examples are a `Bytes`, an `Arc<[u8]>` and a `&'static [u8]`.
    ///
    /// The bytes must not change. So a region of this buffer can grant only
    /// [`Rights::REMOTE_READ`](crate::Rights::REMOTE_READ), and methods of the buffer that write
    /// fail with [`BufferError::ReadOnly`](crate::BufferError::ReadOnly). The thread that drops the
    /// last reference to the buffer also drops the owner of the bytes.
    ///
    /// ```
    /// use mem::{Buffer, BufferError};
    ///
    /// let page: std::sync::Arc<[u8]> = b"<html></html>".to_vec().into();
    /// let buffer = Buffer::from_shared(std::sync::Arc::clone(&page));
    /// assert_eq!(buffer.as_ptr().cast_const(), page.as_ptr());
    /// assert_eq!(buffer.try_write(0, b"!"), Err(BufferError::ReadOnly));
    /// ```
    pub fn from_shared(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Arc<Self> {
        // Box the owner first. The bytes may be inside the owner, and after boxing they do not
        // move.
        let (bytes, owner) = Owner::new(bytes);
        // SAFETY: the owner keeps the value alive, and only shared references to it exist.
        let bytes = unsafe { bytes.as_ref() }.as_ref();
        let (start, len) = (NonNull::from(bytes).cast(), bytes.len());
        Self::at_home(start, len, Home::Owner { _owner: owner, is_writable: false })
    }

    /// Makes a buffer from the `len` bytes at `start`, which `owner` keeps alive. Examples are a
    /// mapped file and an array of another language. The thread that drops the last reference to
    /// the buffer also drops the owner. Each registration checks access to the first and the last
    /// page.
    ///
    /// # Safety
    /// Until `owner` is dropped, the bytes must stay mapped and readable, and writable if
    /// `is_writable` is set. During that time, the program must not use an exclusive reference to
    /// the bytes. If they are writable, it must not use a shared reference either.
    ///
    /// ```
    /// use core::ptr::NonNull;
    /// use mem::Buffer;
    ///
    /// let mut words = vec![0_u64; 512];
    /// let start = NonNull::new(words.as_mut_ptr()).expect("a vector has an address").cast();
    /// // SAFETY: the vector keeps its words where they are, and is used by nothing else.
    /// let buffer = unsafe { Buffer::from_owner(start, 4096, words, true) };
    /// buffer.store_u64(8, 5);
    /// assert_eq!(buffer.load_u64(8), 5);
    /// ```
    pub unsafe fn from_owner(
        start: NonNull<u8>,
        len: usize,
        owner: impl Send + Sync + 'static,
        is_writable: bool,
    ) -> Arc<Self> {
        Self::at_home(start, len, Home::Owner { _owner: Owner::new(owner).1, is_writable })
    }

    /// Returns whether the buffer's bytes may change.
    ///
    /// ```
    /// assert!(!mem::Buffer::from_shared(*b"constant").is_writable());
    /// ```
    pub const fn is_writable(&self) -> bool {
        self.home().is_writable()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::error::{BufferError, RegisterError};
    use crate::rights::Rights;
    use crate::table::{MemoryTable, TableLimits};

    #[test]
    fn a_vector_is_returned_unchanged_without_a_copy() {
        for (len, capacity) in [(0, 0), (0, 8), (1, 1), (1000, 5000)] {
            let mut bytes = Vec::with_capacity(capacity);
            bytes.resize(len, 7);
            let (start, had) = (bytes.as_ptr(), bytes.capacity());
            let buffer = Buffer::from_vec(bytes);
            assert_eq!(buffer.len(), len as u64);
            let bytes = Buffer::into_vec(buffer).expect("it is made of a vector");
            assert_eq!(bytes, vec![7; len]);
            assert!(had == 0 || bytes.as_ptr() == start && bytes.capacity() == had);
        }
        let own = Buffer::into_vec(Buffer::new(10)).expect_err("it is no vector's");
        assert_eq!(own.len(), 10);
    }

    #[test]
    fn a_registered_vector_lives_until_its_region_is_deregistered() {
        let table = MemoryTable::new(TableLimits::default(), [0; 2]);
        let domain = table.allocate_domain();
        let buffer = Buffer::from_vec(vec![1, 2, 3]);
        let region = table.register(domain, Arc::clone(&buffer), Rights::ALL).expect("registered");
        let buffer = Buffer::into_vec(buffer).expect_err("the region holds it");
        table.deregister(region.id).expect("it was there");
        assert_eq!(Buffer::into_vec(buffer).expect("held no more"), [1, 2, 3]);
    }

    #[test]
    fn shared_bytes_are_read_only() {
        let table = MemoryTable::new(TableLimits::default(), [0; 2]);
        let domain = table.allocate_domain();
        // The bytes are inside the owner, and the call moves the owner into a box.
        let buffer = Buffer::from_shared([9_u8; 16]);
        let mut out = [0; 16];
        buffer.read(0, &mut out);
        assert_eq!(out, [9; 16]);
        assert_eq!(buffer.try_write(0, &[1]), Err(BufferError::ReadOnly));
        assert_eq!(buffer.word::<u8>(0).err(), Some(BufferError::ReadOnly));
        assert_eq!(buffer.load_u8(15), 9);
        for rights in [Rights::LOCAL_WRITE, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
            let granted = rights | Rights::REMOTE_READ;
            let refused = RegisterError::ReadOnly { wanted: granted };
            assert_eq!(table.register(domain, Arc::clone(&buffer), granted), Err(refused));
            let part = table.register_part(domain, Arc::clone(&buffer), 0..4, 0, granted);
            assert_eq!(part, Err(refused));
            assert_eq!(table.register_as(domain, Arc::clone(&buffer), 0, granted), Err(refused));
        }
        for rights in [Rights::NONE, Rights::REMOTE_READ] {
            let region = table.register(domain, Arc::clone(&buffer), rights).expect("it is read");
            table.deregister(region.id).expect("it was there");
        }
    }

    #[test]
    fn the_owner_is_dropped_with_the_last_handle_of_the_buffer() {
        struct Mapped(Vec<u8>);
        impl Drop for Mapped {
            fn drop(&mut self) {
                assert_eq!(self.0.len(), 100);
                IS_GONE.store(true, Ordering::Relaxed);
            }
        }
        static IS_GONE: AtomicBool = AtomicBool::new(false);
        let mut bytes = vec![0; 100];
        let start = NonNull::new(bytes.as_mut_ptr()).expect("it has an address");
        // SAFETY: the vector does not move its bytes, and no other code uses it.
        let buffer = unsafe { Buffer::from_owner(start, 100, Mapped(bytes), true) };
        let table = MemoryTable::new(TableLimits::default(), [0; 2]);
        let domain = table.allocate_domain();
        let region = table.register(domain, buffer, Rights::ALL).expect("it is registered");
        assert!(!IS_GONE.load(Ordering::Relaxed));
        table.deregister(region.id).expect("it was there");
        assert!(IS_GONE.load(Ordering::Relaxed));
    }

    #[test]
    fn words_begin_at_atomically_accessible_addresses() {
        let mut words = vec![0_u64; 4];
        let start = words.as_mut_ptr().cast::<u8>().wrapping_add(1);
        let start = NonNull::new(start).expect("it has an address");
        // SAFETY: the vector does not move its words, and no other code uses it.
        let buffer = unsafe { Buffer::from_owner(start, 31, words, true) };
        let misaligned = BufferError::Misaligned { offset: 8, alignment: 8 };
        assert_eq!(buffer.word::<u64>(8).err(), Some(misaligned));
        buffer.store_u64(7, 1);
        assert_eq!(buffer.load_u64(7), 1);
    }
}

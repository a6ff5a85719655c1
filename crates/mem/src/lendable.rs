//! The memory of large buffers: memory files that other processes of this host can map for reading.

use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, PoisonError, RwLock};

use crate::PayloadSlice;

/// Zeroed pages in an unnamed memory file. If another process gets the file, it sees the bytes that
/// this process writes. It cannot write to the file or change the file's length.
#[derive(Debug)]
pub(crate) struct LendablePages {
    start: NonNull<u8>,
    len: usize,
}

impl LendablePages {
    /// Allocates `len` bytes, if the host supports it and the process has fewer than
    /// [`LENDABLE_MAX`] such files.
    pub(crate) fn new(len: usize) -> Option<Self> {
        if cfg!(miri) || len < LENDABLE_BYTES_MIN {
            return None;
        }
        let has_room = |pieces: usize| pieces < LENDABLE_MAX;
        if !has_room(REGISTRY.read().unwrap_or_else(PoisonError::into_inner).len()) {
            return None;
        }
        let (start, file) = map_new(len).ok()?;
        let pages = Self { start, len };
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let memory = LentMemory { number, len: len as u64, file: Arc::new(file) };
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        if has_room(registry.len()) {
            registry.insert(start.as_ptr() as usize, Lendable { memory, registrations: 0 });
            return Some(pages);
        }
        // Other threads have created the last files that [`LENDABLE_MAX`] permits. Release the lock
        // before dropping the pages, because their destructor takes the lock, too.
        drop(registry);
        None
    }

    /// Returns a pointer to the first byte.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Counts a registration of all pages.
    pub(crate) fn on_registered(&self) {
        self.with_entry(|entry| entry.registrations += 1);
    }

    /// Counts the end of a registration of all pages.
    pub(crate) fn on_deregistered(&self) {
        let is_last = self.with_entry(|entry| {
            entry.registrations -= 1;
            entry.registrations == 0
        });
        if is_last == Some(true) {
            CHANGES.fetch_add(1, Ordering::Release);
        }
    }

    fn with_entry<R>(&self, work: impl FnOnce(&mut Lendable) -> R) -> Option<R> {
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        registry.get_mut(&(self.start.as_ptr() as usize)).map(work)
    }
}

impl Drop for LendablePages {
    fn drop(&mut self) {
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        registry.remove(&(self.start.as_ptr() as usize));
        drop(registry);
        CHANGES.fetch_add(1, Ordering::Release);
        // SAFETY: `new` mapped the memory with this length. The owner of the pages uses no pointer
        // to them any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Memory that can be lent, and the number of current registrations that cover all of it. The file
/// exposes the whole memory. Therefore the library lends the memory only while such a registration
/// exists.
#[derive(Debug)]
struct Lendable {
    memory: LentMemory,
    registrations: u32,
}

/// Memory that another process of this host can read through a file.
#[derive(Clone, Debug)]
pub struct LentMemory {
    number: u64,
    len: u64,
    file: Arc<OwnedFd>,
}

impl LentMemory {
    /// Returns a number that identifies this memory. The process never uses a number twice.
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns the file, which another process can map to read the memory.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns the memory that contains a payload, and the payload's offset in that memory. Returns
/// `None` if other processes may not read the memory, because it is not registered completely.
///
/// Takes a lock. Other threads hold the lock for a few instructions, when they make, drop or
/// register a [`Buffer`](crate::Buffer).
pub fn lendable(payload: PayloadSlice<'_>) -> Option<(LentMemory, u64)> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let at = payload.start as usize;
    let (start, Lendable { memory, registrations }) = registry.range(..=at).next_back()?;
    if *registrations == 0 {
        return None;
    }
    let offset = (at - start) as u64;
    let is_inside = offset + u64::from(payload.len) <= memory.len;
    is_inside.then(|| (memory.clone(), offset))
}

/// Returns a number that changes whenever lendable memory is freed or deregistered. After a change,
/// earlier results of [`lendable`] are outdated.
#[inline]
pub fn lendable_changes() -> u64 {
    CHANGES.load(Ordering::Acquire)
}

/// Returns the numbers of all memory that can currently be lent.
pub fn lendable_numbers() -> Vec<u64> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    let registered = registry.values().filter(|entry| entry.registrations > 0);
    registered.map(|entry| entry.memory.number).collect()
}

/// Makes a memory file and maps it. No other mapping of the file can be writable.
fn map_new(len: usize) -> io::Result<(NonNull<u8>, OwnedFd)> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a literal that ends with 0.
    let file = check(unsafe { libc::memfd_create(c"ethernot buffer".as_ptr(), flags) })?;
    // SAFETY: the kernel has just returned this descriptor.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no existing mapping.
    let start =
        unsafe { libc::mmap(null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
    // SAFETY: no memory is passed.
    let sealed = check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) });
    if let Err(error) = sealed {
        // SAFETY: the memory was mapped above with this length, and no code uses it.
        unsafe { libc::munmap(start.as_ptr().cast(), len) };
        return Err(error);
    }
    Ok((start, file))
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Lendable memory, by the address of its first byte.
static REGISTRY: RwLock<BTreeMap<usize, Lendable>> = RwLock::new(BTreeMap::new());
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Restrictions of the memory file. No process can shorten the file, so no reader gets a signal. No
/// other process can write to it.
const SEALS: i32 =
    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Largest number of memory files of a process at a time. Each file takes a descriptor, and a
/// process usually has at most 1024 descriptors.
const LENDABLE_MAX: usize = 64;

/// Shortest memory in bytes that is put into a file. For shorter memory, a second copy costs no
/// more than the page faults of a file.
const LENDABLE_BYTES_MIN: usize = 64 * 1024;

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::buffer::Buffer;
    use crate::rights::Rights;
    use crate::table::{MemoryTable, Region, TableLimits};

    fn table() -> MemoryTable {
        MemoryTable::new(TableLimits::default(), [1, 2])
    }

    fn register(table: &MemoryTable, buffer: &Arc<Buffer>) -> Region {
        table.register(table.allocate_domain(), Arc::clone(buffer), Rights::NONE).unwrap()
    }

    #[test]
    fn memory_can_be_lent_only_while_all_of_it_is_registered() {
        let (one, other) = (table(), table());
        let buffer = Buffer::new(LENDABLE_BYTES_MIN as u64);
        let is_lendable = || {
            let found = lendable(PayloadSlice::at(buffer.as_ptr(), 1));
            let listed = found.as_ref().map(|(memory, _)| memory.number());
            assert!(listed.is_none_or(|number| lendable_numbers().contains(&number)));
            found.is_some()
        };
        assert!(!is_lendable(), "it is not registered");
        let domain = one.allocate_domain();
        let part = Arc::clone(&buffer);
        one.register_part(domain, part, 0..buffer.len() - 1, 0, Rights::NONE).unwrap();
        assert!(!is_lendable(), "the rest of it is nobody's business");
        let first = register(&one, &buffer);
        let second = register(&other, &buffer);
        assert!(is_lendable());
        one.deregister(first.id).unwrap();
        assert!(is_lendable(), "another endpoint has it registered");
        let changes = lendable_changes();
        other.deregister(second.id).unwrap();
        assert!(!is_lendable());
        assert_ne!(lendable_changes(), changes, "peers are told");
        register(&other, &buffer);
        assert!(is_lendable());
        drop(other);
        assert!(!is_lendable());
    }

    #[test]
    fn payload_can_be_lent_from_a_large_buffer_but_not_from_a_dropped_one() {
        let table = table();
        let buffer = Buffer::new(LENDABLE_BYTES_MIN as u64 + 5);
        register(&table, &buffer);
        let at = |offset: usize, len| {
            PayloadSlice::at(buffer.as_ptr().wrapping_add(offset).cast_const(), len)
        };
        let (memory, offset) = lendable(at(7, 100)).unwrap();
        assert_eq!((memory.len(), offset), (buffer.len(), 7));
        assert_eq!(lendable(at(LENDABLE_BYTES_MIN, 5)).unwrap().1, LENDABLE_BYTES_MIN as u64);
        assert!(lendable(at(LENDABLE_BYTES_MIN, 6)).is_none(), "it leaves the buffer");
        let small = Buffer::new(4096);
        assert!(lendable(PayloadSlice::at(small.as_ptr(), 1)).is_none());
        let (changes, number, gone) = (lendable_changes(), memory.number(), at(0, 1));
        drop((buffer, table));
        assert_ne!(lendable_changes(), changes);
        assert!(!lendable_numbers().contains(&number));
        assert!(lendable(gone).is_none_or(|(memory, _)| memory.number() != number));
    }

    #[test]
    fn a_borrower_reads_new_bytes_and_cannot_write() {
        let table = table();
        let buffer = Buffer::new(LENDABLE_BYTES_MIN as u64);
        register(&table, &buffer);
        let (memory, _) = lendable(PayloadSlice::at(buffer.as_ptr(), 1)).unwrap();
        buffer.write(4096, b"written later");
        let mut seen = [0_u8; 13];
        // SAFETY: the kernel writes to a local variable of that length.
        let read = unsafe {
            libc::pread(memory.file().as_raw_fd(), seen.as_mut_ptr().cast(), seen.len(), 4096)
        };
        assert_eq!((read, &seen), (13, b"written later"));
        // SAFETY: the kernel reads one byte of a local variable.
        let wrote = unsafe { libc::pwrite(memory.file().as_raw_fd(), seen.as_ptr().cast(), 1, 0) };
        assert_eq!(wrote, -1, "the file is sealed");
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing mapping.
        let mapped = unsafe {
            let file = memory.file().as_raw_fd();
            libc::mmap(null_mut(), 4096, access, libc::MAP_SHARED, file, 0)
        };
        assert_eq!(mapped, libc::MAP_FAILED);
    }
}

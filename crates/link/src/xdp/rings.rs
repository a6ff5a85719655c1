//! Rings shared with the kernel, and the memory to which their descriptors point.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{off_t, xdp_desc, xdp_ring_offset};

/// Memory that is mapped while the value exists.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps zeroed memory for frames.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        // Make the mapping shared. In a private mapping, the first write to a page after a `fork`
        // would copy the page for this process. The kernel would still use the original page.
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(bytes, flags, -1, 0)
    }

    fn ring(socket: BorrowedFd<'_>, bytes: usize, offset: off_t) -> io::Result<Self> {
        Self::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn map(bytes: usize, flags: i32, file: i32, offset: off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping at an address that the kernel chooses does not affect existing memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start.cast()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        Ok(Self { start, bytes })
    }

    /// Returns the length of the mapping in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the start of the mapping.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Prefetches the first cache lines at `offset`, if they are inside the mapping.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        if self.holds(offset, PREFETCHED_BYTES as u64) {
            for line in (0..PREFETCHED_BYTES).step_by(CACHE_LINE_BYTES) {
                // SAFETY: the address is inside the mapping.
                prefetch_line(unsafe { self.start.as_ptr().add(offset as usize + line) });
            }
        }
    }

    /// Returns whether `bytes` bytes at `offset` are inside the mapping.
    pub(crate) const fn holds(&self, offset: u64, bytes: u64) -> bool {
        match offset.checked_add(bytes) {
            Some(end) => end <= self.bytes as u64,
            None => false,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped with this length. No pointer into the mapping outlives the
        // value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the value owns the mapping, which all threads can access.
unsafe impl Send for Mapping {}

/// Prefetches a cache line. This is only a hint. On processors other than `x86_64`, it has no
/// effect.
#[inline]
fn prefetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no visible effect and does not fault at any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// One of the four rings of a socket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RingKind {
    Fill,
    Completion,
    Receive,
    Transmit,
}

impl RingKind {
    const fn place(self) -> off_t {
        match self {
            Self::Fill => libc::XDP_UMEM_PGOFF_FILL_RING.cast_signed(),
            Self::Completion => libc::XDP_UMEM_PGOFF_COMPLETION_RING.cast_signed(),
            Self::Receive => libc::XDP_PGOFF_RX_RING,
            Self::Transmit => libc::XDP_PGOFF_TX_RING,
        }
    }
}

/// A ring of entries `T`. The kernel is the other end.
#[derive(Debug)]
struct Ring<T> {
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Index, modulo 2^32, of the entry that this process takes or writes next. The kernel may not
    /// know this value yet, because the process publishes it later.
    own: u32,
    /// The kernel's index at the last read.
    other: u32,
    of: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        entries: u32,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        assert!(entries.is_power_of_two());
        let bytes = offsets.desc as usize + entries as usize * size_of::<T>();
        let mapping = Mapping::ring(socket, bytes, kind.place())?;
        let at = |offset: u64| {
            // SAFETY: the kernel returned the offsets of the ring's parts, and the mapping has the
            // size that the kernel requires.
            unsafe { mapping.start.add(offset as usize) }
        };
        Ok(Self {
            producer: at(offsets.producer).cast(),
            consumer: at(offsets.consumer).cast(),
            flags: at(offsets.flags).cast(),
            entries: at(offsets.desc).cast(),
            mask: entries - 1,
            own: 0,
            other: 0,
            of: PhantomData,
            _mapping: mapping,
        })
    }

    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the number of mapped entries.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: the word is inside the mapping, the kernel aligned it, and all accesses are
        // atomic.
        let flags = unsafe { self.flags.as_ref() }.load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring into which this process puts entries.
#[derive(Debug)]
pub(crate) struct ProducerRing<T>(Ring<T>);

impl<T: Copy> ProducerRing<T> {
    /// Maps a ring of a socket. A socket option must have set its size.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        entries: u32,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        Ring::map(socket, kind, entries, offsets).map(Self)
    }

    /// Writes the next entry. The kernel sees it after [`ProducerRing::submit`].
    #[inline]
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: the entry is mapped, and the kernel does not read it before `submit`. The ring
        // has room for every entry that can be in it. So this write does not overwrite an entry
        // that the kernel still has to read.
        unsafe { self.0.entry(self.0.own).write(entry) };
        self.0.own = self.0.own.wrapping_add(1);
    }

    /// Publishes all pushed entries to the kernel.
    #[inline]
    pub(crate) fn submit(&mut self) {
        // SAFETY: the word is inside the mapping, the kernel aligned it, and all accesses are
        // atomic.
        unsafe { self.0.producer.as_ref() }.store(self.0.own, Ordering::Release);
    }

    /// Returns the entry that was pushed with index `index`, modulo 2^32. The result is valid only
    /// if so few entries were pushed after that entry that none has overwritten it.
    #[inline]
    pub(crate) fn pushed(&self, index: u32) -> T {
        // SAFETY: the entry is mapped, and only this process writes to this ring.
        unsafe { self.0.entry(index).read() }
    }

    /// Returns the number of entries that the kernel has not taken yet.
    #[inline]
    pub(crate) fn untaken(&mut self) -> u32 {
        // SAFETY: the word is inside the mapping, the kernel aligned it, and all accesses are
        // atomic.
        self.0.other = unsafe { self.0.consumer.as_ref() }.load(Ordering::Acquire);
        self.0.own.wrapping_sub(self.0.other)
    }

    /// Returns whether the kernel needs a system call to continue.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// A ring from which this process takes entries.
#[derive(Debug)]
pub(crate) struct ConsumerRing<T>(Ring<T>);

impl<T: Copy> ConsumerRing<T> {
    /// Maps a ring of a socket. A socket option must have set its size.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        entries: u32,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        Ring::map(socket, kind, entries, offsets).map(Self)
    }

    /// Returns whether there is an entry to take.
    #[inline]
    pub(crate) fn has_entry(&mut self) -> bool {
        let ring = &mut self.0;
        if ring.own == ring.other {
            // SAFETY: the word is inside the mapping, the kernel aligned it, and all accesses are
            // atomic.
            ring.other = unsafe { ring.producer.as_ref() }.load(Ordering::Acquire);
        }
        ring.own != ring.other
    }

    /// Returns the number of entries taken so far, modulo 2^32.
    #[inline]
    pub(crate) const fn taken(&self) -> u32 {
        self.0.own
    }

    /// Takes the next entry, if any. Its place in the ring stays occupied until
    /// [`ConsumerRing::release`].
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if !self.has_entry() {
            return None;
        }
        let ring = &mut self.0;
        // SAFETY: the entry is mapped, and the kernel wrote it before it advanced its index.
        let entry = unsafe { ring.entry(ring.own).read() };
        ring.own = ring.own.wrapping_add(1);
        Some(entry)
    }

    /// Returns the places of all taken entries to the kernel.
    #[inline]
    pub(crate) fn release(&mut self) {
        // SAFETY: the word is inside the mapping, the kernel aligned it, and all accesses are
        // atomic.
        unsafe { self.0.consumer.as_ref() }.store(self.0.own, Ordering::Release);
    }
}

// SAFETY: a ring owns its mapping, and only one thread at a time has the value.
unsafe impl<T: Send> Send for Ring<T> {}

const _: () = assert!(size_of::<xdp_desc>() == 16);
const CACHE_LINE_BYTES: usize = 64;
/// Bytes to prefetch: a small frame with all its headers.
const PREFETCHED_BYTES: usize = 2 * CACHE_LINE_BYTES;

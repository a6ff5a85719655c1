//! Rings shared with the kernel, and the memory that their descriptors point into.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{off_t, xdp_desc, xdp_ring_offset};

/// Memory mapped for the life of the value.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Fresh memory for frames.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        // Shared, so that a child of the process, which gets copies of private pages, does not make
        // the pages here other ones than the kernel's.
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        Self::map(bytes, flags, -1, 0)
    }

    fn ring(socket: BorrowedFd<'_>, bytes: usize, offset: off_t) -> io::Result<Self> {
        Self::map(bytes, libc::MAP_SHARED | libc::MAP_POPULATE, socket.as_raw_fd(), offset)
    }

    fn map(bytes: usize, flags: i32, file: i32, offset: off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping wherever the kernel finds room touches no other memory.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, flags, file, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start.cast()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        Ok(Self { start, bytes })
    }

    /// Bytes mapped.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the memory begins.
    pub(crate) const fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Has the processor fetch the first cache lines at `offset`, if they lie inside.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        if self.holds(offset, PREFETCHED_BYTES as u64) {
            for line in (0..PREFETCHED_BYTES).step_by(CACHE_LINE_BYTES) {
                // SAFETY: inside the mapping.
                prefetch_line(unsafe { self.start.as_ptr().add(offset as usize + line) });
            }
        }
    }

    /// Whether `bytes` bytes at `offset` lie inside.
    pub(crate) const fn holds(&self, offset: u64, bytes: u64) -> bool {
        match offset.checked_add(bytes) {
            Some(end) => end <= self.bytes as u64,
            None => false,
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more: what points
        // into it lives no longer than the value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: the mapping is owned, and is the same for every thread.
unsafe impl Send for Mapping {}

/// Has the processor fetch a cache line; only a hint, and nothing on others than `x86_64`.
#[inline]
fn prefetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could notice, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Which of the rings of a socket.
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

/// A ring of entries `T`, of which the kernel is the other end.
#[derive(Debug)]
struct Ring<T> {
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    mask: u32,
    /// Our own index, modulo 2^32: behind what we have taken or written, published to the kernel or not.
    own: u32,
    /// The kernel's index when it was last looked at.
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
            // SAFETY: the kernel says where in the mapping, which is as large as it wants it, the
            // parts of a ring are.
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
        // SAFETY: the masked index is below the number of entries mapped.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        // SAFETY: in the mapping, aligned by the kernel, and only ever accessed atomically.
        let flags = unsafe { self.flags.as_ref() }.load(Ordering::Relaxed);
        flags & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that we put entries into.
#[derive(Debug)]
pub(crate) struct ProducerRing<T>(Ring<T>);

impl<T: Copy> ProducerRing<T> {
    /// The ring of a socket, sized before by a socket option.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        entries: u32,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        Ring::map(socket, kind, entries, offsets).map(Self)
    }

    /// Writes the next entry; the kernel sees it after [`ProducerRing::submit`].
    #[inline]
    pub(crate) fn push(&mut self, entry: T) {
        // SAFETY: the entry is mapped, and the kernel does not read it before `submit`. (Rings are made
        // for everything that can be in them, or an entry the kernel has not read would be lost.)
        unsafe { self.0.entry(self.0.own).write(entry) };
        self.0.own = self.0.own.wrapping_add(1);
    }

    /// Gives the kernel all that was pushed.
    #[inline]
    pub(crate) fn submit(&mut self) {
        // SAFETY: in the mapping, aligned by the kernel, and only ever accessed atomically.
        unsafe { self.0.producer.as_ref() }.store(self.0.own, Ordering::Release);
    }

    /// The entry that was pushed as number `index`, modulo 2^32, if fewer entries than the ring has
    /// were pushed since.
    #[inline]
    pub(crate) fn pushed(&self, index: u32) -> T {
        // SAFETY: the entry is mapped, and only this process writes to this ring.
        unsafe { self.0.entry(index).read() }
    }

    /// Entries that the kernel has not taken yet.
    #[inline]
    pub(crate) fn untaken(&mut self) -> u32 {
        // SAFETY: in the mapping, aligned by the kernel, and only ever accessed atomically.
        self.0.other = unsafe { self.0.consumer.as_ref() }.load(Ordering::Acquire);
        self.0.own.wrapping_sub(self.0.other)
    }

    /// Whether the kernel wants a system call before it goes on.
    #[inline]
    pub(crate) fn needs_wakeup(&self) -> bool {
        self.0.needs_wakeup()
    }
}

/// A ring that we take entries from.
#[derive(Debug)]
pub(crate) struct ConsumerRing<T>(Ring<T>);

impl<T: Copy> ConsumerRing<T> {
    /// The ring of a socket, sized before by a socket option.
    pub(crate) fn map(
        socket: BorrowedFd<'_>,
        kind: RingKind,
        entries: u32,
        offsets: &xdp_ring_offset,
    ) -> io::Result<Self> {
        Ring::map(socket, kind, entries, offsets).map(Self)
    }

    /// Whether there is an entry to take.
    #[inline]
    pub(crate) fn has_entry(&mut self) -> bool {
        let ring = &mut self.0;
        if ring.own == ring.other {
            // SAFETY: in the mapping, aligned by the kernel, and only ever accessed atomically.
            ring.other = unsafe { ring.producer.as_ref() }.load(Ordering::Acquire);
        }
        ring.own != ring.other
    }

    /// Entries taken so far, modulo 2^32.
    #[inline]
    pub(crate) const fn taken(&self) -> u32 {
        self.0.own
    }

    /// The next entry, if there is one; it stays in the ring until [`ConsumerRing::release`].
    #[inline]
    pub(crate) fn take(&mut self) -> Option<T> {
        if !self.has_entry() {
            return None;
        }
        let ring = &mut self.0;
        // SAFETY: the entry is mapped, and the kernel wrote it before it moved its index.
        let entry = unsafe { ring.entry(ring.own).read() };
        ring.own = ring.own.wrapping_add(1);
        Some(entry)
    }

    /// Gives the kernel the places of all entries taken.
    #[inline]
    pub(crate) fn release(&mut self) {
        // SAFETY: as in `take`.
        unsafe { self.0.consumer.as_ref() }.store(self.0.own, Ordering::Release);
    }
}

// SAFETY: a ring owns its mapping, and one thread at a time has the value.
unsafe impl<T: Send> Send for Ring<T> {}

const _: () = assert!(size_of::<xdp_desc>() == 16);
const CACHE_LINE_BYTES: usize = 64;
/// A small frame with all its headers.
const PREFETCHED_BYTES: usize = 2 * CACHE_LINE_BYTES;

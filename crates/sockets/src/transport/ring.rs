//! Ring buffers in registered memory.

use std::sync::Arc;

#[cfg(loom)]
use self::tracked::Memory;
use crate::wire::RING_BYTES_MAX;
use mem::Buffer;
#[cfg(not(loom))]
use mem::Buffer as Memory;

/// A ring buffer. Positions count bytes since the beginning of the stream, and do not wrap around.
///
/// `SendHalf` and `ReceiveHalf` document which thread updates each position, and which thread may
/// copy bytes there.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    memory: Arc<Memory>,
    /// Offset of the ring in `memory`, in bytes.
    offset: u64,
    size: RingSize,
}

/// A part of registered memory that holds a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingPart {
    pub(crate) memory: Arc<Buffer>,
    /// Offset of the ring in `memory`, in bytes.
    pub(crate) offset: u64,
    /// Size of the ring in bytes: a power of two from 4 KiB to 1 GiB.
    pub(crate) bytes: u32,
}

/// The size of a ring in bytes: a power of two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RingSize(u32);

impl RingSize {
    /// Returns a ring size. Returns `None` if `bytes` is not a valid size.
    pub(crate) const fn new(bytes: u32) -> Option<Self> {
        if bytes.is_power_of_two() && bytes >= BYTES_MIN && bytes <= RING_BYTES_MAX {
            Some(Self(bytes))
        } else {
            None
        }
    }

    /// Returns the size in bytes.
    #[inline]
    pub(crate) const fn bytes(self) -> u32 {
        self.0
    }

    /// Returns the offset in the ring that corresponds to a position.
    #[inline]
    pub(crate) const fn offset(self, position: u64) -> u32 {
        position as u32 & (self.0 - 1)
    }

    /// Returns the number of bytes from a position to the point at which the ring wraps around.
    #[inline]
    pub(crate) const fn to_the_end(self, position: u64) -> u32 {
        self.0 - self.offset(position)
    }
}

impl Ring {
    /// Creates a ring that begins at `offset` in `memory`.
    ///
    /// # Panics
    /// Panics if the ring does not fit in the memory.
    pub(crate) fn new(memory: Arc<Buffer>, offset: u64, size: RingSize) -> Self {
        let end = offset.checked_add(u64::from(size.bytes()));
        assert!(end.is_some_and(|end| end <= memory.len()), "a ring extends beyond its memory");
        #[cfg(loom)]
        let memory = Arc::new(Memory::of(&memory));
        Self { memory, offset, size }
    }

    #[inline]
    pub(crate) const fn size(&self) -> RingSize {
        self.size
    }

    /// Copies `bytes` into the ring at `position`. `bytes` must not be longer than the ring.
    #[inline]
    pub(crate) fn write(&self, position: u64, bytes: &[u8]) {
        let (first, second) = bytes.split_at(self.first_part(position, bytes.len()));
        self.memory.write(self.offset + u64::from(self.size.offset(position)), first);
        if !second.is_empty() {
            self.memory.write(self.offset, second);
        }
    }

    /// Copies bytes from the ring at `position` into `out`. `out` must not be longer than the ring.
    #[inline]
    pub(crate) fn read(&self, position: u64, out: &mut [u8]) {
        let (first, second) = out.split_at_mut(self.first_part(position, out.len()));
        self.memory.read(self.offset + u64::from(self.size.offset(position)), first);
        if !second.is_empty() {
            self.memory.read(self.offset, second);
        }
    }

    #[inline]
    fn first_part(&self, position: u64, length: usize) -> usize {
        assert!(length <= self.size.bytes() as usize, "{length} bytes do not fit in a ring");
        length.min(self.size.to_the_end(position) as usize)
    }
}

/// The smallest size of a ring, in bytes. With a smaller ring, peers would exchange more credits
/// than bytes. Models use a smaller size, because it gives fewer interleavings.
const BYTES_MIN: u32 = if cfg!(loom) { 4 } else { 4096 };

/// Memory for models. A load may return any value that the memory orderings in `SendHalf` and
/// `ReceiveHalf` allow.
#[cfg(loom)]
mod tracked {
    use loom::sync::atomic::{AtomicU8, Ordering};
    use mem::Buffer;

    #[derive(Debug)]
    pub(super) struct Memory(Box<[AtomicU8]>);

    impl Memory {
        /// Returns zeroed memory with the length of `buffer`.
        pub(super) fn of(buffer: &Buffer) -> Self {
            Self((0..buffer.len()).map(|_| AtomicU8::new(0)).collect())
        }

        pub(super) fn write(&self, offset: u64, bytes: &[u8]) {
            for (to, byte) in self.0[offset as usize..].iter().zip(bytes) {
                to.store(*byte, Ordering::Relaxed);
            }
        }

        pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
            for (byte, from) in out.iter_mut().zip(&self.0[offset as usize..]) {
                *byte = from.load(Ordering::Relaxed);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_within_limits() {
        let is_size = |bytes| RingSize::new(bytes).is_some();
        assert!(is_size(4096) && is_size(1 << 18) && is_size(RING_BYTES_MAX));
        assert!(!is_size(0) && !is_size(2048) && !is_size(5000) && !is_size(1 << 31));
    }

    #[test]
    fn bytes_wrap_around_at_the_end_of_the_ring() {
        let size = RingSize::new(4096).expect("a size");
        let memory = Buffer::new(3 * 4096);
        let ring = Ring::new(Arc::clone(&memory), 4096, size);
        let bytes: Vec<u8> = (0..100).collect();
        ring.write(2 * 4096 - 30, &bytes);
        let mut out = [0; 100];
        ring.read(2 * 4096 - 30, &mut out);
        assert_eq!(out.as_slice(), bytes);
        memory.read(4096, &mut out[..70]);
        assert_eq!(out[..70], bytes[30..]);
        memory.read(2 * 4096 - 30, &mut out[..30]);
        assert_eq!(out[..30], bytes[..30]);
    }

    #[test]
    #[should_panic(expected = "extends beyond its memory")]
    fn a_ring_lies_in_its_memory() {
        let size = RingSize::new(4096).expect("a size");
        Ring::new(Buffer::new(4096), 1, size);
    }
}

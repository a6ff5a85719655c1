//! A ring of completions. It consists of chunks, and allocates each chunk on first use.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(not(loom))]
use std::sync::OnceLock;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

use crate::completion::WORDS;
#[cfg(loom)]
pub(crate) use seen_by_loom::OnceLock;

/// Number of completions in a chunk: 256 × 64 B = 16 KiB. A new chunk must be filled with zeros.
/// With small chunks, the thread inside the engine does this in short steps.
pub(crate) const CHUNK_SLOTS: u64 = if cfg!(loom) { 1 } else { 256 };

/// Slots for completions. Each completion has a position, which determines its slot.
///
/// One thread writes, and any number of threads read. Each slot has a stamp: the position of its
/// completion plus one. The writer stores the stamp last. So a thread that reads a stamp also sees
/// the words that were written before it.
///
/// The words that a thread has read are valid only if no other thread has polled the completion
/// after the read began. The queue checks this condition by its head, which is the position of the
/// oldest completion that was not polled.
#[derive(Debug)]
pub(crate) struct Ring {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    /// Number of slots; a power of two.
    slots: u64,
    /// Completions with this position or a higher position are in the next ring.
    end: AtomicU64,
}

/// A slot. Each slot fills a cache line, so that a write to one slot does not slow down a thread
/// that reads another slot.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The content that a thread reads at a position.
pub(crate) enum Seen {
    /// The words at this position. They are valid if no other thread has polled the completion
    /// after the read began.
    Words([u64; WORDS]),
    /// The completion at this position was not written yet.
    Nothing,
    /// The slot contains a newer completion, because the completion at this position was already
    /// polled.
    Newer,
}

impl Ring {
    /// Creates a ring with `slots` slots. The number must be a power of two.
    pub(crate) fn new(slots: u64) -> Self {
        let chunks = (0..slots.div_ceil(CHUNK_SLOTS)).map(|_| OnceLock::new()).collect();
        Self { chunks, slots, end: AtomicU64::new(u64::MAX) }
    }

    /// Writes the completion at `position`. The previous completion in its slot must have been
    /// polled. Only one thread at a time may call this function.
    #[inline]
    pub(crate) fn write(&self, position: u64, words: [u64; WORDS]) {
        let (chunk, slot) = self.place(position);
        let chunk = self.chunks[chunk].get_or_init(|| self.new_chunk());
        let slot = &chunk[slot];
        for (to, word) in slot.words.iter().zip(words) {
            to.store(word, Relaxed);
        }
        slot.stamp.store(position + 1, Release);
    }

    /// Reads the content of `position`.
    #[inline]
    pub(crate) fn read(&self, position: u64) -> Seen {
        let (chunk, slot) = self.place(position);
        let Some(slot) = self.chunks[chunk].get().and_then(|chunk| chunk.get(slot)) else {
            return Seen::Nothing;
        };
        match slot.stamp.load(Acquire) {
            stamp if stamp == position + 1 => {
                Seen::Words(core::array::from_fn(|word| slot.words[word].load(Relaxed)))
            }
            stamp if stamp > position => Seen::Newer,
            _ => Seen::Nothing,
        }
    }

    /// Ends this ring. The completion at `position` and all later completions go to the next ring,
    /// which must exist.
    pub(crate) fn end_at(&self, position: u64) {
        self.end.store(position, Release);
    }

    /// Returns whether the completion at `position` is in a later ring.
    pub(crate) fn ends_before(&self, position: u64) -> bool {
        position >= self.end.load(Acquire)
    }

    /// Returns the bytes allocated so far.
    pub(crate) fn bytes(&self) -> usize {
        let made: usize =
            self.chunks.iter().filter_map(|chunk| chunk.get()).map(|chunk| chunk.len()).sum();
        size_of_val::<[_]>(&self.chunks) + made * size_of::<Slot>()
    }

    #[inline]
    const fn place(&self, position: u64) -> (usize, usize) {
        let index = position & (self.slots - 1);
        ((index / CHUNK_SLOTS) as usize, (index % CHUNK_SLOTS) as usize)
    }

    #[cold]
    fn new_chunk(&self) -> Box<[Slot]> {
        let slot = |_| Slot {
            stamp: AtomicU64::new(0),
            words: core::array::from_fn(|_| AtomicU64::new(0)),
        };
        (0..self.slots.min(CHUNK_SLOTS)).map(slot).collect()
    }
}

/// Replaces the `OnceLock` of the standard library, which loom does not model, by one with a flag
/// that loom models. A thread that finds the flag set also sees the content.
#[cfg(loom)]
mod seen_by_loom {
    use loom::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug)]
    pub(crate) struct OnceLock<T> {
        lock: std::sync::OnceLock<T>,
        is_set: AtomicBool,
    }

    impl<T> OnceLock<T> {
        pub(crate) fn new() -> Self {
            Self { lock: std::sync::OnceLock::new(), is_set: AtomicBool::new(false) }
        }

        pub(crate) fn get(&self) -> Option<&T> {
            self.is_set.load(Ordering::Acquire).then(|| self.lock.get())?
        }

        /// Only one thread at a time may call this function.
        pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
            let content = self.lock.get_or_init(make);
            self.is_set.store(true, Ordering::Release);
            content
        }
    }
}

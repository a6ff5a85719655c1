//! Fragments that were cut and go to the end of their batch.

use semantics::Carried;

/// Fragments that were cut and are still to be made frames of.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    list: Vec<Carried>,
    bytes: u32,
}

impl Tails {
    /// With room for as many as there can be.
    pub(crate) fn allocated() -> Self {
        Self { list: Vec::with_capacity(TAILS_MAX), bytes: 0 }
    }

    /// Frames that are still to be made.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.list.len()
    }

    /// Bytes that they take at most.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Whether there is no room for one more.
    #[inline]
    pub(crate) const fn is_full(&self) -> bool {
        self.list.len() >= TAILS_MAX
    }

    /// Adds a fragment, which takes at most so many bytes as a frame.
    #[inline]
    pub(crate) fn push(&mut self, carried: Carried, frame_bytes: u32) {
        self.list.push(carried);
        self.bytes += frame_bytes;
    }

    /// One of them, in the order in which they were cut.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Carried> {
        self.list.get(index).copied()
    }

    /// Takes the last of them, down to the one with this index.
    #[cold]
    pub(crate) fn take_last(&mut self, index: usize) -> Option<Carried> {
        if self.list.len() > index { self.list.pop() } else { None }
    }

    /// Forgets all.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }
}

/// Operations in one batch whose ends are deferred, at most: those of 44 frames are of 4 KiB and more.
const TAILS_MAX: usize = 16;

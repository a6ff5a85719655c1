//! Fragments that wait for the end of their batch. Each of them is the last fragment of its
//! operation.

use semantics::Carried;

/// Fragments that were cut from operations but are not in frames yet.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    list: Vec<Carried>,
    bytes: u32,
}

impl Tails {
    /// Creates the list with its full capacity.
    pub(crate) fn allocated() -> Self {
        Self { list: Vec::with_capacity(TAILS_MAX), bytes: 0 }
    }

    /// Returns the number of fragments.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.list.len()
    }

    /// Returns an upper limit for the total size of the frames of all fragments, in bytes.
    #[inline]
    pub(crate) const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns whether there is no room for another fragment.
    #[inline]
    pub(crate) const fn is_full(&self) -> bool {
        self.list.len() >= TAILS_MAX
    }

    /// Adds a fragment whose frame has at most `frame_bytes` bytes.
    #[inline]
    pub(crate) fn push(&mut self, carried: Carried, frame_bytes: u32) {
        self.list.push(carried);
        self.bytes += frame_bytes;
    }

    /// Returns the fragment at `index`, in the order in which the fragments were cut; `None` if
    /// there are fewer fragments.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<Carried> {
        self.list.get(index).copied()
    }

    /// Removes and returns the last fragment, if its index is at least `index`.
    #[cold]
    pub(crate) fn take_last(&mut self, index: usize) -> Option<Carried> {
        if self.list.len() > index { self.list.pop() } else { None }
    }

    /// Removes all fragments.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.bytes = 0;
    }
}

/// Maximum number of deferred fragments in one batch. If a batch has 44 frames, this number
/// suffices for operations of 4 KiB or more.
const TAILS_MAX: usize = 16;

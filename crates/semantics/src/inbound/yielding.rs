//! Strict writes that arrive late yield (protocol.md §5.3): they leave out bytes that newer writes
//! have already placed.

use core::cell::OnceCell;

use mem::{AccessError, MemoryAccess, Payload, Rights};
use wire_edge::RemoteKey;

use super::Inbound;
use super::operation::{InKind, InOperation};
use super::placement::Tail;
use crate::pools::Pools;
use crate::range_set::RangeSet;
use crate::slab::NIL;

/// A location in memory, with the key and the addresses that the peer uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemotePlace {
    pub(super) key: RemoteKey,
    /// Address of the first byte of the operation.
    pub(super) base: u64,
    /// Offset of the first byte within the operation.
    pub(super) offset: u32,
}

impl Inbound {
    //= protocol.md: strict.3
    /// Places `bytes`, except two kinds of bytes: those in `own`, which are the bytes of this
    /// operation that have arrived before, and those that a newer operation has written. `later` is
    /// the first newer operation.
    ///
    /// Walks the newer operations and their ranges at most twice, for any pattern of overlaps. A
    /// walk takes at most one step for each operation in the window, plus
    /// [`EXTRA_RANGES_MAX`](super::EXTRA_RANGES_MAX) steps. If a frame is longer than
    /// [`MASK_BYTES`], each part of [`MASK_BYTES`] bytes has this cost.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "the slow path of `place_yielding`")]
    pub(super) fn place_around(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        own: Option<&RangeSet>,
        later: u32,
        place: RemotePlace,
        bytes: Payload<'_>,
        tail: Tail,
    ) -> Result<(), AccessError> {
        let RemotePlace { key, base, .. } = place;
        let kind = InKind::Write { key, base };
        for begin in (0..bytes.len()).step_by(MASK_BYTES) {
            let end = bytes.len().min(begin + MASK_BYTES);
            let offset = place.offset + begin as u32;
            let part = RemotePlace { offset, ..place };
            let length = (end - begin) as u32;
            let put = |low: u32, high: u32| {
                let piece = bytes.slice(begin + low as usize..begin + high as usize);
                let is_end = begin + high as usize == bytes.len();
                let tail = if is_end { tail } else { Tail::Any };
                self.place(memory, &pools.lists, &kind, offset + low, piece, tail)
            };
            let mut is_free = own.is_none_or(|own| !own.intersects(offset, offset + length));
            if is_free {
                self.newer_writes(memory, pools, later, part, length, |_, _| is_free = false);
            }
            if is_free {
                put(0, length)?;
                continue;
            }
            // Check the access to all bytes, even to bytes that are left out. Their key may have
            // become invalid after the newer bytes were written.
            let mut wanted = Mask::without(length, own, offset);
            while let Some((low, high)) = wanted.next_gap() {
                let address = base.wrapping_add(u64::from(offset + low));
                self.resolve(memory, key, address, u64::from(high - low))?;
            }
            let mut mask = Mask::without(length, own, offset);
            self.newer_writes(memory, pools, later, part, length, |low, high| mask.add(low, high));
            while let Some((low, high)) = mask.next_gap() {
                put(low, high)?;
            }
        }
        Ok(())
    }

    /// Calls `visit` with each range that the operation `later` and the operations after it have
    /// written within `length` bytes from `place`. Ranges are relative to `place`.
    fn newer_writes(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        later: u32,
        place: RemotePlace,
        length: u32,
        mut visit: impl FnMut(u32, u32),
    ) {
        let from = place.base + u64::from(place.offset);
        let located = OnceCell::new();
        let mut later = later;
        while later != NIL {
            count_step();
            let newer = &pools.incoming[later];
            let received = &pools.received[later as usize];
            later = newer.next;
            let first = received.start();
            let Some(base) = self.base_seen_from(memory, newer, first, place.key, from, &located)
            else {
                continue;
            };
            let base = base - i128::from(from);
            for &(low, high) in received.as_slice() {
                count_step();
                let (low, high) = (i128::from(low), i128::from(high.min(newer.held_from)));
                let low = (base + low).max(0);
                let high = (base + high).min(i128::from(length));
                if low >= i128::from(length) {
                    break;
                }
                if low < high {
                    visit(low as u32, high as u32);
                }
            }
        }
    }

    /// Returns the address of the first byte of a newer write, converted to an address in the
    /// region with `key`. Returns `None` if that write has placed no bytes.
    ///
    /// The same memory can be registered twice, at two different addresses. Therefore the
    /// calculation compares memory addresses of this process. `located` caches the memory address
    /// of `from`.
    fn base_seen_from(
        &self,
        memory: &MemoryAccess<'_>,
        newer: &InOperation,
        first: u32,
        key: RemoteKey,
        from: u64,
        located: &OnceCell<Option<u64>>,
    ) -> Option<i128> {
        let InKind::Write { key: newer_key, base } = newer.kind else { return None };
        if !newer.placed_early {
            return None;
        }
        if newer_key == key {
            return Some(i128::from(base));
        }
        let locate = |key, address| {
            let target = self.reach(memory, key, address, 1, Rights::REMOTE_WRITE).ok()?;
            memory.memory_address(&target).ok()
        };
        let own_at = (*located.get_or_init(|| locate(key, from)))?;
        let first = u64::from(first);
        let newer_at = i128::from(locate(newer_key, base + first)?) - i128::from(first);
        Some(newer_at - i128::from(own_at) + i128::from(from))
    }
}

/// Marks bytes of a frame or of a part of a frame, with one bit for each byte.
struct Mask {
    words: [u64; MASK_BYTES / 64],
    length: u32,
    /// The byte at which [`Mask::next_gap`] continues its search.
    at: u32,
}

impl Mask {
    const fn new(length: u32) -> Self {
        Self { words: [0; MASK_BYTES / 64], length, at: 0 }
    }

    /// Creates a mask for the `length` bytes of an operation that begin at `offset`. Marks the
    /// bytes that are in `own`.
    fn without(length: u32, own: Option<&RangeSet>, offset: u32) -> Self {
        let mut mask = Self::new(length);
        for &(low, high) in own.map_or(&[][..], RangeSet::as_slice) {
            mask.add(low.saturating_sub(offset), high.saturating_sub(offset));
        }
        mask
    }

    /// Marks `[low, high)`. Ignores bytes beyond the end of the mask.
    fn add(&mut self, low: u32, high: u32) {
        let high = high.min(self.length);
        let mut low = low;
        while low < high {
            let word_end = (low / 64 + 1) * 64;
            let count = high.min(word_end) - low;
            let bits = if count == 64 { u64::MAX } else { (1 << count) - 1 };
            self.words[low as usize / 64] |= bits << (low % 64);
            low += count;
        }
    }

    /// Returns the next range of bytes that are not marked; `None` if there is none.
    fn next_gap(&mut self) -> Option<(u32, u32)> {
        let low = self.skip(0);
        let high = self.skip(u64::MAX);
        (low < high).then_some((low, high))
    }

    /// Advances to the first bit that is 0. If `inverted` is all ones, advances to the first bit
    /// that is 1.
    fn skip(&mut self, inverted: u64) -> u32 {
        while self.at < self.length {
            let word = self.words[self.at as usize / 64] ^ inverted;
            let left = 64 - self.at % 64;
            let count = (word >> (self.at % 64)).trailing_ones().min(left);
            self.at += count;
            if count < left {
                break;
            }
        }
        self.at = self.at.min(self.length);
        self.at
    }
}

/// Maximum number of bytes that a mask covers. A frame never has more bytes. The mask takes 8 KiB.
const MASK_BYTES: usize = 1 << 16;

#[cfg(test)]
thread_local! {
    /// Number of operations and ranges with which writes were compared.
    pub(crate) static STEPS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
}

fn count_step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_are_the_ranges_that_were_not_added(
            length in 1_u32..300,
            added in proptest::collection::vec((0_u32..320, 0_u32..140), 0..12),
        ) {
            let mut mask = Mask::new(length);
            let mut model = vec![false; length as usize];
            for (low, count) in added {
                mask.add(low, low + count);
                let range = (low.min(length) as usize)..((low + count).min(length) as usize);
                model[range].fill(true);
            }
            let mut before = None;
            while let Some((low, high)) = mask.next_gap() {
                prop_assert!(before.is_none_or(|before| before < low) && high <= length);
                model[low as usize..high as usize].iter_mut().for_each(|taken| {
                    assert!(!*taken);
                    *taken = true;
                });
                before = Some(high);
            }
            prop_assert!(model.iter().all(|&taken| taken));
        }
    }
}

//! The entries of the region table that the engine looks at.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use crate::Rights;

/// Names a memory region on this side; never reused while the table lives, and refused by every other
/// table of the process.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct RegionId {
    /// Of the table it belongs to.
    table: u32,
    index: u32,
    generation: u32,
}

impl RegionId {
    /// No region: of no table.
    pub const NONE: Self = Self { table: u32::MAX, index: u32::MAX, generation: 0 };

    #[inline]
    pub(crate) const fn new(table: u32, index: u32, generation: u32) -> Self {
        Self { table, index, generation }
    }

    /// What distinguishes it from the others of its table.
    pub(crate) const fn to_raw(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The region of a table that a [`RegionId::to_raw`] came from.
    pub(crate) const fn from_raw(table: u32, raw: u64) -> Self {
        Self { table, index: raw as u32, generation: (raw >> 32) as u32 }
    }

    #[inline]
    pub(crate) const fn table(self) -> u32 {
        self.table
    }

    pub(crate) const fn index(self) -> u32 {
        self.index
    }

    pub(crate) const fn generation(self) -> u32 {
        self.generation
    }
}

impl fmt::Debug for RegionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionId({}.{})", self.index, self.generation)
    }
}

/// One entry: everything an access needs, on one cache line.
///
/// The fields but `state` are written only while the entry is not live, by the thread that holds the
/// registry's lock, and the entry becomes live with a release store of `state`. A thread inside an
/// access that has seen the entry live may read them until the access ends, since the entry is
/// written again only after every access that could have seen it live has ended.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// [`SlotState`] of the entry.
    state: AtomicU64,
    /// Where the bytes are.
    pub(crate) memory: AtomicPtr<u8>,
    /// The address of the first byte as peers name it.
    pub(crate) start: AtomicU64,
    /// Bytes. `start + len` does not wrap.
    pub(crate) len: AtomicU64,
    pub(crate) domain: AtomicU32,
}

impl Slot {
    /// Sequentially consistent for the sake of the turn gate; no dearer than acquire on x86-64.
    #[inline]
    pub(crate) fn state(&self) -> SlotState {
        SlotState(self.state.load(Ordering::SeqCst))
    }

    pub(crate) fn set_state(&self, state: SlotState) {
        self.state.store(state.0, Ordering::SeqCst);
    }
}

/// Generation in the high half, then rights in bits 8 to 15, then flags.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct SlotState(u64);

impl SlotState {
    pub(crate) const fn live(generation: u32, rights: Rights, kind: SlotKind) -> Self {
        let kind = match kind {
            SlotKind::Range => 0,
            SlotKind::WholeAddressSpace => Self::WHOLE,
            SlotKind::Ghost => Self::GHOST,
        };
        Self((generation as u64) << 32 | (rights.bits() as u64) << 8 | kind | Self::LIVE)
    }

    pub(crate) const fn dead(generation: u32) -> Self {
        Self((generation as u64) << 32)
    }

    #[inline]
    pub(crate) const fn is_live(self, generation: u32) -> bool {
        self.0 & Self::LIVE != 0 && self.generation() == generation
    }

    /// Whether peers may name the entry by a key, and its generation ends in these [`KEY_GENERATION_BITS`] bits.
    #[inline]
    pub(crate) const fn is_live_key(self, key_generation: u32) -> bool {
        self.0 & (Self::LIVE | Self::REVOKED) == Self::LIVE
            && self.generation() & KEY_GENERATION_MASK == key_generation
    }

    #[inline]
    pub(crate) const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) const fn rights(self) -> Rights {
        Rights::from_bits_truncating((self.0 >> 8) as u8)
    }

    #[inline]
    pub(crate) const fn is_whole_address_space(self) -> bool {
        self.0 & Self::WHOLE != 0
    }

    /// Whether its bytes are simply there, for a copy to read or write.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 & (Self::WHOLE | Self::GHOST) == 0
    }

    #[inline]
    pub(crate) const fn is_ghost(self) -> bool {
        self.0 & Self::GHOST != 0
    }

    /// The same region without its key and without the rights of peers.
    pub(crate) const fn revoked(self) -> Self {
        Self(self.0 & !((Rights::REMOTE.bits() as u64) << 8) | Self::REVOKED)
    }

    #[inline]
    pub(crate) const fn is_revoked(self) -> bool {
        self.0 & Self::REVOKED != 0
    }

    const LIVE: u64 = 1;
    const WHOLE: u64 = 1 << 1;
    const GHOST: u64 = 1 << 2;
    const REVOKED: u64 = 1 << 3;
}

/// What a region covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SlotKind {
    /// Probed memory that its owner keeps mapped.
    Range,
    /// Every address, mapped or not.
    WholeAddressSpace,
    /// Addresses without bytes behind them.
    Ghost,
}

/// An array that is shared without a lock and grows without moving: chunks are allocated when their
/// first entry is used, so a table with room for a million regions costs what its regions cost.
#[derive(Debug)]
pub(crate) struct GrowingArray<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default> GrowingArray<T> {
    /// Room for `entries_max` entries, rounded up to whole chunks.
    pub(crate) fn new(entries_max: u32) -> Self {
        let chunks = entries_max.div_ceil(CHUNK_ENTRIES);
        Self { chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    /// Entry `index`, if its chunk exists.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index / CHUNK_ENTRIES) as usize)?.get()?;
        chunk.get((index % CHUNK_ENTRIES) as usize)
    }

    /// Entry `index`, allocating its chunk if it is the first; nothing beyond the limit.
    #[cold]
    pub(crate) fn get_or_grow(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index / CHUNK_ENTRIES) as usize)?;
        let entries = chunk.get_or_init(|| (0..CHUNK_ENTRIES).map(|_| T::default()).collect());
        entries.get((index % CHUNK_ENTRIES) as usize)
    }
}

/// Bits of a remote key that name the slot: 2^20 regions are a hundred times what large MPI jobs
/// register per process.
pub(crate) const KEY_SLOT_BITS: u32 = 20;

/// Bits of a remote key that distinguish the regions that used the slot one after another.
pub(crate) const KEY_GENERATION_BITS: u32 = 32 - KEY_SLOT_BITS;

/// The generation's part of a key's plain form.
pub(crate) const KEY_GENERATION_MASK: u32 = (1 << KEY_GENERATION_BITS) - 1;

/// 1024 slots are 64 KiB: small for a program with one region, 1024 chunks for the largest table.
const CHUNK_ENTRIES: u32 = 1024;

const _: () = assert!(size_of::<Slot>() == 64);

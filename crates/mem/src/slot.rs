//! The entries of the region table. The engine reads them.

use core::fmt;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

use crate::rights::Rights;

/// Identifies a memory region in this process. A table never reuses an identifier, and every other
/// table of the process refuses it.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct RegionId {
    /// Number of the table to which the region belongs.
    table: u32,
    index: u32,
    generation: u32,
}

impl RegionId {
    /// No region. This identifier belongs to no table.
    pub const NONE: Self = Self { table: u32::MAX, index: u32::MAX, generation: 0 };

    #[inline]
    pub(crate) const fn new(table: u32, index: u32, generation: u32) -> Self {
        Self { table, index, generation }
    }

    /// Returns the part of the identifier that is unique within the table.
    pub(crate) const fn to_raw(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// Returns the identifier of a region of `table`, from the result of [`RegionId::to_raw`].
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

/// One table entry: all data that an access needs, on one cache line.
///
/// The thread that holds the registry's lock writes the fields other than `state`, only while the
/// entry is not live. After that, it makes the entry live by a release store of `state`. If a
/// thread sees the live entry inside an access, it may read the fields until the access ends. This
/// is safe, because the table rewrites an entry only after every such access has ended.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Slot {
    /// The entry's [`SlotState`].
    state: AtomicU64,
    /// Local address of the first byte.
    pub(crate) memory: AtomicPtr<u8>,
    /// The address that peers use for the first byte.
    pub(crate) start: AtomicU64,
    /// Length in bytes. `start + len` does not wrap.
    pub(crate) len: AtomicU64,
    pub(crate) domain: AtomicU32,
}

impl Slot {
    /// Loads the state. The turn gate requires sequential consistency, which costs the same as
    /// acquire on x86-64.
    #[inline]
    pub(crate) fn state(&self) -> SlotState {
        SlotState(self.state.load(Ordering::SeqCst))
    }

    pub(crate) fn set_state(&self, state: SlotState) {
        self.state.store(state.0, Ordering::SeqCst);
    }
}

/// State of an entry: the generation in the high half, the rights in bits 8 to 15, and flags.
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

    /// Returns whether peers may use a key of the entry, and the low [`KEY_GENERATION_BITS`] bits
    /// of the entry's generation equal `key_generation`.
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

    /// Returns whether plain copies can read and write the region's bytes.
    #[inline]
    pub(crate) const fn is_plain(self) -> bool {
        self.0 & (Self::WHOLE | Self::GHOST) == 0
    }

    #[inline]
    pub(crate) const fn is_ghost(self) -> bool {
        self.0 & Self::GHOST != 0
    }

    /// Returns the state with no key and without the rights of peers.
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

/// The kind of memory that a region covers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum SlotKind {
    /// Probed memory, which the owner keeps mapped.
    Range,
    /// Every address, mapped or not.
    WholeAddressSpace,
    /// Addresses without memory.
    Ghost,
}

/// A lock-free shared array that grows without moving its entries. It consists of chunks, and
/// allocates a chunk when an entry of the chunk is first used. So a table with room for a million
/// regions uses memory only for the regions that exist.
#[derive(Debug)]
pub(crate) struct GrowingArray<T> {
    chunks: Box<[OnceLock<Box<[T]>>]>,
}

impl<T: Default> GrowingArray<T> {
    /// Makes an array for `entries_max` entries, rounded up to whole chunks.
    pub(crate) fn new(entries_max: u32) -> Self {
        let chunks = entries_max.div_ceil(CHUNK_ENTRIES);
        Self { chunks: (0..chunks).map(|_| OnceLock::new()).collect() }
    }

    /// Returns entry `index`, if the chunk of the entry exists.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index / CHUNK_ENTRIES) as usize)?.get()?;
        chunk.get((index % CHUNK_ENTRIES) as usize)
    }

    /// Returns entry `index`, and allocates the chunk of the entry if necessary. Returns `None` if
    /// `index` exceeds the limit.
    #[cold]
    pub(crate) fn get_or_grow(&self, index: u32) -> Option<&T> {
        let chunk = self.chunks.get((index / CHUNK_ENTRIES) as usize)?;
        let entries = chunk.get_or_init(|| (0..CHUNK_ENTRIES).map(|_| T::default()).collect());
        entries.get((index % CHUNK_ENTRIES) as usize)
    }
}

/// Number of bits of a remote key that select the slot. 2^20 regions are a hundred times as many as
/// large MPI jobs register per process.
pub(crate) const KEY_SLOT_BITS: u32 = 20;

/// Number of bits of a remote key that distinguish successive regions in one slot.
pub(crate) const KEY_GENERATION_BITS: u32 = 32 - KEY_SLOT_BITS;

/// Mask of the generation in a decrypted key.
pub(crate) const KEY_GENERATION_MASK: u32 = (1 << KEY_GENERATION_BITS) - 1;

/// Entries of a chunk. 1024 slots take 64 KiB, which is little even for a program with one region.
/// The largest table has 1024 chunks.
const CHUNK_ENTRIES: u32 = 1024;

const _: () = assert!(size_of::<Slot>() == 64);

//! The tables of a node's control memory. `docs/dsm-protocol.md` has their bytes.

use crate::identity::{NODES_MAX, PageNumber, Rank};

/// The first word of the control memory: `ENTHDSM` and the version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"ENTHDSM\x02");

/// Address of the second word: nodes, pages, and the logarithm of the entries of the log.
const SETTINGS: u64 = 8;

/// Address of the number of notices that the node has published.
const PUBLISHED: u64 = 16;

/// Address of the barrier slots.
const BARRIERS: u64 = 0x100;

/// Rounds of a barrier of [`NODES_MAX`] nodes.
pub(crate) const ROUNDS_MAX: u32 = NODES_MAX.ilog2();

/// Words of a barrier slot before its clock: sequence, address, count, movers.
pub(crate) const SLOT_WORDS: usize = 4;

/// Bytes of a barrier slot.
const SLOT_BYTES: u64 = 8 * (SLOT_WORDS + NODES_MAX) as u64;

/// Address of the tables of moves.
const MOVES: u64 = 0x1c00;

/// The largest number of homes that move on request of one node at one barrier.
pub(crate) const MOVES_MAX: usize = 63;

/// Bytes of a table of moves: a header word and the moves.
const MOVES_BYTES: u64 = 8 * (MOVES_MAX as u64 + 1);

/// Address of the log.
const LOG: u64 = 0x2000;

/// Pages of a block of the table of sharers. A node has one byte for each of them, and the bytes of a
/// node are together: one write announces consecutive pages.
pub(crate) const BLOCK_PAGES: u32 = 64;

/// Bytes of a block of the table of sharers.
const BLOCK_BYTES: u64 = BLOCK_PAGES as u64 * NODES_MAX as u64;

const _: () = assert!(BARRIERS + 2 * ROUNDS_MAX as u64 * SLOT_BYTES <= MOVES);
const _: () = assert!(MOVES + 2 * MOVES_BYTES <= LOG);

/// Where the tables of control memory are, for given settings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Layout {
    nodes: u8,
    pages: u32,
    log_entries: u32,
}

//= dsm-protocol.md: control.1
impl Layout {
    /// Describes the control memory of one of `nodes` nodes for a region of `pages` pages and a log
    /// of `log_entries` entries.
    pub const fn new(nodes: u8, pages: u32, log_entries: u32) -> Self {
        Self { nodes, pages, log_entries }
    }

    /// Returns the size of the control memory in bytes.
    pub const fn bytes(&self) -> u64 {
        self.sharers_start() + self.pages.div_ceil(BLOCK_PAGES) as u64 * BLOCK_BYTES
    }

    /// Returns the words that begin the control memory, with their addresses.
    pub(crate) const fn header(&self) -> [(u64, u64); 3] {
        let log = self.log_entries.trailing_zeros() as u64;
        let settings = self.nodes as u64 | log << 8 | (self.pages as u64) << 32;
        [(0, MAGIC), (SETTINGS, settings), (PUBLISHED, 0)]
    }

    /// Returns the address of the number of published notices.
    pub(crate) const fn published() -> u64 {
        PUBLISHED
    }

    /// Returns the address of the slot of a round of barriers whose number has this parity.
    pub(crate) const fn barrier_slot(round: u32, sequence: u64) -> u64 {
        BARRIERS + (2 * round as u64 + (sequence & 1)) * SLOT_BYTES
    }

    /// Returns the address of the table of moves of barriers whose number has this parity.
    pub(crate) const fn moves(sequence: u64) -> u64 {
        MOVES + (sequence & 1) * MOVES_BYTES
    }

    /// Returns the number of entries of the log.
    pub(crate) const fn log_entries(&self) -> u64 {
        self.log_entries as u64
    }

    /// Returns the address of the log entry at `position`.
    pub(crate) const fn log_entry(&self, position: u64) -> u64 {
        LOG + 8 * (position & (self.log_entries as u64 - 1))
    }

    /// Returns the node whose directory has the page, and the address of its entry there.
    pub(crate) const fn directory(&self, page: PageNumber) -> (Rank, u64) {
        let rank = Rank((page.0 % self.nodes as u32) as u8);
        (rank, self.directory_start() + 8 * (page.0 / self.nodes as u32) as u64)
    }

    /// Returns the address of the byte by which `sharer` announces at the home that it reads the page.
    pub(crate) const fn sharer(&self, page: PageNumber, sharer: Rank) -> u64 {
        let block = self.sharers_start() + (page.0 / BLOCK_PAGES) as u64 * BLOCK_BYTES;
        block + sharer.0 as u64 * BLOCK_PAGES as u64 + (page.0 % BLOCK_PAGES) as u64
    }

    const fn directory_start(&self) -> u64 {
        LOG + 8 * self.log_entries as u64
    }

    const fn sharers_start(&self) -> u64 {
        let entries = self.pages.div_ceil(self.nodes as u32) as u64;
        (self.directory_start() + 8 * entries).next_multiple_of(64)
    }
}

//= dsm-protocol.md: log.1
/// Returns the log entry at `position` that says that `page` was written.
pub(crate) const fn log_entry(position: u64, page: PageNumber) -> u64 {
    (tag(position) as u64) << 32 | page.0 as u64
}

/// What a log entry says.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum LogEntry {
    /// The page was written.
    Written(PageNumber),
    /// A later entry has replaced the one at the position.
    Overwritten,
    /// No node writes such an entry.
    Malformed,
}

//= dsm-protocol.md: log.2
/// Decodes the log entry at `position`.
pub(crate) const fn decode_log_entry(layout: &Layout, position: u64, entry: u64) -> LogEntry {
    let page = entry as u32;
    let ahead = ((entry >> 32) as u32).wrapping_sub(tag(position));
    if page >= layout.pages {
        LogEntry::Malformed
    } else if ahead == 0 {
        LogEntry::Written(PageNumber(page))
    } else if ahead & (layout.log_entries - 1) == 0 && ahead < 1 << 31 {
        LogEntry::Overwritten
    } else {
        LogEntry::Malformed
    }
}

/// Returns what the entry at `position` has to distinguish it from earlier ones in its place, and
/// from empty memory.
const fn tag(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    //= dsm-protocol.md: control.1
    #[test]
    fn tables_of_control_memory_do_not_overlap() {
        let layout = Layout::new(3, 10, 16);
        assert_eq!(Layout::barrier_slot(0, 2), 0x100);
        assert_eq!(Layout::barrier_slot(5, 1), 0x100 + 11 * 544);
        assert_eq!((Layout::moves(0), Layout::moves(1)), (0x1c00, 0x1e00));
        assert_eq!(layout.log_entry(0), 0x2000);
        assert_eq!(layout.log_entry(17), 0x2008);
        assert_eq!(layout.directory(PageNumber(7)), (Rank(1), 0x2000 + 128 + 16));
        assert_eq!(layout.sharer(PageNumber(0), Rank(0)), 0x20c0);
        assert_eq!(layout.sharer(PageNumber(9), Rank(2)), 0x20c0 + 2 * 64 + 9);
        assert_eq!(layout.bytes(), 0x20c0 + 4096);
        let wide = Layout::new(64, 65, 16);
        let last = wide.sharer(PageNumber(64), Rank(63));
        assert_eq!(last, wide.sharer(PageNumber(0), Rank(0)) + 4096 + 63 * 64);
        assert!(last < wide.bytes());
    }

    proptest! {
        //= dsm-protocol.md: log.1
        //= dsm-protocol.md: log.2
        #[test]
        fn a_log_entry_is_that_of_its_position_or_of_a_later_lap(
            position in any::<u64>(), lap in 1_u64..1000, page in 0_u32..10, other in any::<u64>(),
        ) {
            let layout = Layout::new(3, 10, 16);
            let page = PageNumber(page);
            let entry = log_entry(position, page);
            prop_assert_eq!(decode_log_entry(&layout, position, entry), LogEntry::Written(page));
            let later = log_entry(position.wrapping_add(16 * lap), page);
            prop_assert_eq!(decode_log_entry(&layout, position, later), LogEntry::Overwritten);
            let beside = log_entry(position.wrapping_add(1), page);
            prop_assert_eq!(decode_log_entry(&layout, position, beside), LogEntry::Malformed);
            if let LogEntry::Written(page) = decode_log_entry(&layout, position, other) {
                prop_assert!(page.0 < 10);
            }
        }

        #[test]
        fn empty_memory_is_no_log_entry(position in 0_u64..1 << 20) {
            let layout = Layout::new(3, 10, 16);
            prop_assert!(!matches!(decode_log_entry(&layout, position, 0), LogEntry::Written(_)));
        }
    }
}

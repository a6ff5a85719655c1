//! Scatter/gather lists. The entries of a list are the local memory of an operation: its source or
//! its destination.

use mem::RegionId;
use thiserror::Error;

use crate::limits::{OPERATION_BYTES_MAX, PIECES_MAX};

/// A scatter/gather entry (SGE): a range of bytes in a region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// The region of the bytes.
    pub region: RegionId,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

impl Piece {
    /// An entry of zero bytes, in no region.
    pub const NOTHING: Self = Self { region: RegionId::NONE, offset: 0, length: 0 };
}

/// A scatter/gather list. The bytes of its entries, one after the other, are the bytes of an
/// operation or a receive.
///
/// The list has at most [`PIECES_MAX`] entries. The total length of the entries is at most the
/// length of the largest operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PieceList<'a> {
    pieces: &'a [Piece],
    length: u32,
}

/// Why scatter/gather entries do not form a valid list.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum PieceListError {
    /// There are too many entries.
    #[error(
        "{0} pieces are more than an operation is made of ({PIECES_MAX}); post several operations"
    )]
    TooMany(usize),
    /// The total length of the entries is above the length of the largest operation.
    #[error(
        "the pieces have {0} bytes together, and an operation carries {OPERATION_BYTES_MAX}; post several"
    )]
    TooLong(u64),
    /// The entry with this index ends at an offset beyond 2^64. No region has such an offset.
    #[error("piece {0} ends beyond 2^64; name bytes that its region has")]
    Range(usize),
}

impl<'a> PieceList<'a> {
    /// Creates a list of these entries. Entries may be empty. Does not check whether the regions
    /// have these bytes.
    ///
    /// # Errors
    /// Returns [`PieceListError`]; each variant names one rule that the list breaks.
    pub fn new(pieces: &'a [Piece]) -> Result<Self, PieceListError> {
        if pieces.len() > PIECES_MAX {
            return Err(PieceListError::TooMany(pieces.len()));
        }
        let ends = |piece: &Piece| piece.offset.checked_add(u64::from(piece.length)).is_some();
        if let Some(index) = pieces.iter().position(|piece| !ends(piece)) {
            return Err(PieceListError::Range(index));
        }
        // The sum cannot overflow, because the sum of 32 lengths below 2^32 is below 2^37.
        let total = pieces.iter().map(|piece| u64::from(piece.length)).sum();
        match u32::try_from(total) {
            Ok(length) if length <= OPERATION_BYTES_MAX => Ok(Self { pieces, length }),
            _ => Err(PieceListError::TooLong(total)),
        }
    }

    /// Returns the entries.
    pub const fn pieces(&self) -> &'a [Piece] {
        self.pieces
    }

    /// Returns the length of all entries together, in bytes.
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// Returns entries for the bytes `[offset, offset + length)` of the list, in order. The part of
    /// this range beyond the end of the list is ignored. No returned entry is empty.
    #[inline]
    pub fn cut(&self, offset: u32, length: u32) -> Cut<'a> {
        let inside = self.length.saturating_sub(offset);
        Cut { pieces: self.pieces, skip: offset, left: length.min(inside) }
    }
}

/// A stored copy of a list, with room for the maximum number of entries.
#[derive(Clone, Debug)]
pub struct StoredPieces {
    pieces: [Piece; PIECES_MAX],
    count: usize,
    length: u32,
}

impl StoredPieces {
    /// The empty list.
    pub const EMPTY: Self = Self { pieces: [Piece::NOTHING; PIECES_MAX], count: 0, length: 0 };

    /// Replaces the stored list.
    #[inline]
    pub fn store(&mut self, list: PieceList<'_>) {
        self.count = list.pieces.len().min(PIECES_MAX);
        self.length = list.length;
        for (kept, piece) in self.pieces.iter_mut().zip(list.pieces) {
            *kept = *piece;
        }
    }

    /// Returns the list that was last stored.
    #[inline]
    pub fn list(&self) -> PieceList<'_> {
        let pieces = self.pieces.get(..self.count).unwrap_or_default();
        PieceList { pieces, length: self.length }
    }
}

/// Iterator that [`PieceList::cut`] returns: the entries for a range of a list.
#[derive(Clone, Debug)]
pub struct Cut<'a> {
    pieces: &'a [Piece],
    /// Number of bytes of the remaining entries that lie before the range.
    skip: u32,
    /// Number of bytes of the range that the iterator has not returned yet.
    left: u32,
}

impl Iterator for Cut<'_> {
    type Item = Piece;

    #[inline]
    fn next(&mut self) -> Option<Piece> {
        while self.left > 0 {
            let (piece, rest) = self.pieces.split_first()?;
            self.pieces = rest;
            let Some(inside) = piece.length.checked_sub(self.skip).filter(|inside| *inside > 0)
            else {
                self.skip -= piece.length;
                continue;
            };
            let length = inside.min(self.left);
            let offset = piece.offset + u64::from(self.skip);
            self.skip = 0;
            self.left -= length;
            return Some(Piece { region: piece.region, offset, length });
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use mem::{Buffer, MemoryTable, Rights, TableLimits};
    use proptest::prelude::*;

    use super::*;

    /// Returns entries of a region with these lengths, ten bytes apart.
    fn pieces(lengths: &[u32]) -> Vec<Piece> {
        let table = MemoryTable::new(TableLimits::default().regions_max(1).domains_max(1), [7, 8]);
        let domain = table.allocate_domain();
        let region = table.register(domain, Buffer::new(8), Rights::NONE).expect("memory").id;
        let mut at = 0;
        let place = |&length: &u32| {
            let offset = at + 10;
            at = offset + u64::from(length);
            Piece { region, offset, length }
        };
        lengths.iter().map(place).collect()
    }

    #[test]
    fn a_list_has_at_most_32_sges() {
        let many = pieces(&[1; 33]);
        assert_eq!(PieceList::new(&many), Err(PieceListError::TooMany(33)));
        assert_eq!(PieceList::new(&many[..32]).map(|list| list.length()), Ok(32));
    }

    #[test]
    fn sge_lengths_with_an_overflowing_sum_are_refused() {
        let total = 32 * u64::from(u32::MAX);
        let list = pieces(&[u32::MAX; 32]);
        assert_eq!(PieceList::new(&list), Err(PieceListError::TooLong(total)));
        let list = pieces(&[OPERATION_BYTES_MAX, 0, 1]);
        let total = u64::from(OPERATION_BYTES_MAX) + 1;
        assert_eq!(PieceList::new(&list), Err(PieceListError::TooLong(total)));
        assert_eq!(PieceList::new(&list[..2]).map(|list| list.length()), Ok(OPERATION_BYTES_MAX));
    }

    #[test]
    fn an_sge_that_ends_beyond_64_bits_is_refused() {
        let mut list = pieces(&[5, 5]);
        list[1].offset = u64::MAX - 4;
        assert_eq!(PieceList::new(&list), Err(PieceListError::Range(1)));
        list[1].offset = u64::MAX - 5;
        assert!(PieceList::new(&list).is_ok());
    }

    #[test]
    fn a_list_without_sges_is_empty() {
        let nothing = PieceList::new(&[]).expect("a list");
        assert_eq!((nothing.length(), nothing.cut(0, 5).count()), (0, 0));
    }

    #[test]
    fn storing_a_list_replaces_the_previous_one_completely() {
        let (long, short) = (pieces(&[3, 0, 9, 1]), pieces(&[7]));
        let mut stored = StoredPieces::EMPTY;
        assert_eq!(stored.list(), PieceList::new(&[]).expect("a list"));
        for pieces in [&long, &short] {
            let list = PieceList::new(pieces).expect("a list");
            stored.store(list);
            assert_eq!(stored.list(), list);
        }
    }

    proptest! {
        #[test]
        fn a_cut_contains_the_bytes_of_its_range_in_order(
            lengths in prop::collection::vec(0..40_u32, 0..=32),
            offset in 0..600_u32,
            length in 0..600_u32,
        ) {
            let pieces = pieces(&lengths);
            let list = PieceList::new(&pieces).expect("a list");
            let bytes_of = |piece: Piece| (0..u64::from(piece.length)).map(move |at| piece.offset + at);
            let all: Vec<u64> = pieces.iter().copied().flat_map(bytes_of).collect();
            prop_assert_eq!(list.length() as usize, all.len());
            let cut: Vec<Piece> = list.cut(offset, length).collect();
            prop_assert!(cut.iter().all(|piece| piece.length > 0));
            let range = all.into_iter().skip(offset as usize).take(length as usize);
            prop_assert!(cut.into_iter().flat_map(bytes_of).eq(range));
        }

        #[test]
        fn a_cut_beyond_the_list_is_truncated(
            lengths in prop::collection::vec(0..=1_u32 << 26, 0..=32),
            offset: u32,
            length: u32,
        ) {
            let pieces = pieces(&lengths);
            let list = PieceList::new(&pieces).expect("at most 2^31 bytes");
            let inside = u64::from(list.length()).saturating_sub(u64::from(offset));
            let total: u64 = list.cut(offset, length).map(|piece| u64::from(piece.length)).sum();
            prop_assert_eq!(total, inside.min(u64::from(length)));
        }
    }
}

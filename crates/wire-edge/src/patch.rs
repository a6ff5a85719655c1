//! Records: the payload of a Patch (protocol.md §3.6).
//!
//! A Patch writes scattered words of four bytes. Its area is divided into blocks of 32 words. A
//! record names a block, has a bit for each word of the block, and contains the words whose bits
//! are set.

use core::ops::Range;

/// Size of a word of a Patch, in bytes.
pub const PATCH_WORD_BYTES: usize = 4;
/// Size of a block of a Patch in the memory of the target, in bytes.
pub const PATCH_BLOCK_BYTES: usize = 32 * PATCH_WORD_BYTES;
/// Maximum number of blocks in the area of a Patch.
pub const PATCH_BLOCKS_MAX: u32 = 1 << 16;
/// Maximum size of the area of a Patch, in bytes.
pub const PATCH_AREA_BYTES_MAX: u64 = PATCH_BLOCKS_MAX as u64 * PATCH_BLOCK_BYTES as u64;
/// Size of a record without its words, in bytes.
pub const PATCH_RECORD_HEADER_BYTES: usize = 8;
/// Size of the largest record, in bytes.
pub const PATCH_RECORD_BYTES_MAX: usize = PATCH_RECORD_HEADER_BYTES + PATCH_BLOCK_BYTES;
const _: () = assert!(PATCH_RECORD_BYTES_MAX == 136);

/// The start of a record. The words follow, in ascending order of their bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PatchRecord {
    /// Number of the block, counted from the start of the area.
    pub block: u16,
    /// Bit i stands for word i of the block.
    pub bitmap: u32,
}

impl PatchRecord {
    //= protocol.md: patch.2
    /// Decodes the start of a record.
    #[inline]
    pub const fn decode(bytes: &[u8; PATCH_RECORD_HEADER_BYTES]) -> Self {
        // A test of the table of fields checks that these offsets are those of the table.
        let [b0, b1, _, _, m0, m1, m2, m3] = *bytes;
        let block = u16::from_le_bytes([b0, b1]);
        Self { block, bitmap: u32::from_le_bytes([m0, m1, m2, m3]) }
    }

    //= protocol.md: frame.2
    /// Encodes the start of a record.
    #[inline]
    pub const fn encode(self) -> [u8; PATCH_RECORD_HEADER_BYTES] {
        let [b0, b1] = self.block.to_le_bytes();
        let [m0, m1, m2, m3] = self.bitmap.to_le_bytes();
        [b0, b1, 0, 0, m0, m1, m2, m3]
    }

    /// Returns the size of the record with its words, in bytes, 8 to 136.
    #[inline]
    pub const fn bytes(self) -> usize {
        PATCH_RECORD_HEADER_BYTES + self.bitmap.count_ones() as usize * PATCH_WORD_BYTES
    }

    /// Returns the range from the first to the last word that the record names, in bytes from the
    /// start of the area. The range is empty if the record names no word.
    #[inline]
    pub const fn span(self) -> Range<u64> {
        let start = self.block as u64 * PATCH_BLOCK_BYTES as u64;
        if self.bitmap == 0 {
            return start..start;
        }
        let first = self.bitmap.trailing_zeros() as u64;
        let end = 32 - self.bitmap.leading_zeros() as u64;
        start + first * PATCH_WORD_BYTES as u64..start + end * PATCH_WORD_BYTES as u64
    }
}

/// Divides payload bytes of a Patch into records. Ends before the first record that is not whole.
#[derive(Clone, Debug)]
pub struct PatchRecords<'a> {
    rest: &'a [u8],
}

impl<'a> PatchRecords<'a> {
    /// Creates an iterator over the records in `payload`.
    pub const fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    /// Returns the bytes that the iterator has not consumed. After the last record, these bytes are
    /// empty if and only if all records were whole.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for PatchRecords<'a> {
    type Item = (PatchRecord, &'a [u8]);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let record = PatchRecord::decode(self.rest.first_chunk()?);
        let (whole, rest) = self.rest.split_at_checked(record.bytes())?;
        self.rest = rest;
        Some((record, whole.get(PATCH_RECORD_HEADER_BYTES..).unwrap_or_default()))
    }
}

/// Encodes the words in which `after` differs from `before` as records, at the start of `out`.
/// Returns the number of bytes.
///
/// `before` and `after` are the same area at two times. Their size is a multiple of 4, at most
/// [`PATCH_AREA_BYTES_MAX`].
///
/// Returns `None` if the sizes differ or are not allowed, or if `out` is too short. The largest
/// result has 136 bytes for each 128 bytes of the area.
///
/// # Examples
/// ```
/// let (before, mut after) = ([0; 256], [0; 256]);
/// after[200] = 7;
/// let mut records = [0; 272];
/// // One record: 8 bytes and a word of 4 bytes.
/// assert_eq!(wire_edge::encode_patch(&before, &after, &mut records), Some(12));
/// ```
pub fn encode_patch(before: &[u8], after: &[u8], out: &mut [u8]) -> Option<usize> {
    let is_area = before.len() == after.len()
        && after.len().is_multiple_of(PATCH_WORD_BYTES)
        && after.len() as u64 <= PATCH_AREA_BYTES_MAX;
    if !is_area {
        return None;
    }
    let mut at = 0;
    let blocks = before.chunks(PATCH_BLOCK_BYTES).zip(after.chunks(PATCH_BLOCK_BYTES));
    for (block, (before, after)) in blocks.enumerate() {
        if before == after {
            continue;
        }
        let mut bitmap = 0;
        let mut words_at = at + PATCH_RECORD_HEADER_BYTES;
        let words = before.chunks_exact(PATCH_WORD_BYTES).zip(after.chunks_exact(PATCH_WORD_BYTES));
        for (word, (before, after)) in words.enumerate() {
            if before != after {
                bitmap |= 1 << word;
                out.get_mut(words_at..words_at + PATCH_WORD_BYTES)?.copy_from_slice(after);
                words_at += PATCH_WORD_BYTES;
            }
        }
        let record = PatchRecord { block: u16::try_from(block).ok()?, bitmap };
        out.get_mut(at..at + PATCH_RECORD_HEADER_BYTES)?.copy_from_slice(&record.encode());
        at = words_at;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::error::DecodeError;
    use crate::fields;
    use crate::rules::check_records;

    //= protocol.md: patch.2
    #[test]
    fn a_record_has_the_documented_bytes() {
        let record = PatchRecord { block: 0x0102, bitmap: 0x8000_0001 };
        assert_eq!(record.encode(), [0x02, 0x01, 0, 0, 0x01, 0, 0, 0x80]);
        assert_eq!(record.bytes(), 16);
        assert_eq!(record.span(), 0x0102 * 128..0x0103 * 128);
        // Receivers ignore the reserved bytes.
        assert_eq!(PatchRecord::decode(&[0x02, 0x01, 7, 9, 0x01, 0, 0, 0x80]), record);
        let middle = PatchRecord { block: 1, bitmap: 0b1100 };
        assert_eq!(middle.span(), 136..144);
        assert_eq!(PatchRecord { block: 2, bitmap: 0 }.span(), 256..256);
    }

    //= protocol.md: patch.2
    #[test]
    fn a_record_that_is_not_whole_is_refused() {
        let mut payload = PatchRecord { block: 3, bitmap: 0b11 }.encode().to_vec();
        payload.extend_from_slice(&[1; 8]);
        assert_eq!(check_records(0, &payload), Ok(()));
        for length in 1..payload.len() {
            let found = check_records(0, &payload[..length]);
            assert_eq!(found, Err(DecodeError::PatchRecord { offset: 0 }), "{length}");
        }
        payload.extend_from_slice(&[0; 4]);
        assert_eq!(check_records(0, &payload), Err(DecodeError::PatchRecord { offset: 16 }));
    }

    //= protocol.md: patch.3
    #[test]
    fn blocks_that_do_not_ascend_are_refused() {
        for (first, second) in [(3, 3), (3, 2), (u16::MAX, 0)] {
            let mut payload = PatchRecord { block: first, bitmap: 0 }.encode().to_vec();
            payload.extend_from_slice(&PatchRecord { block: second, bitmap: 0 }.encode());
            let refused = Err(DecodeError::PatchOrder { block: second });
            assert_eq!(check_records(0, &payload), refused);
        }
    }

    //= protocol.md: patch.1
    #[test]
    fn an_area_that_is_misaligned_or_leaves_the_address_space_is_refused() {
        let payload = [1, 0, 0, 0, 0, 0, 0, 0x80, 5, 5, 5, 5];
        for address in [1, 2, 3, 6] {
            let field = fields::ADDRESS.name;
            let refused = Err(DecodeError::Range { field, value: address });
            assert_eq!(check_records(address, &payload), refused);
        }
        assert_eq!(check_records(u64::MAX - 259, &payload), Ok(()));
        let address = u64::MAX - 255;
        let refused = Err(DecodeError::AddressWraps { address, length: 256 });
        assert_eq!(check_records(address, &payload), refused);
        assert_eq!(check_records(u64::MAX - 3, &[]), Ok(()));
    }

    proptest! {
        //= protocol.md: patch.2, patch.3
        #[test]
        fn an_encoded_difference_makes_the_new_bytes_of_the_old(
            before in vec(0..3_u8, 0..150),
            changes in vec((any::<proptest::sample::Index>(), 0..3_u8), 0..20),
        ) {
            let before: Vec<u8> = before.iter().flat_map(|&byte| [byte; 4]).collect();
            let mut after = before.clone();
            for (index, byte) in changes {
                if !after.is_empty() {
                    let at = index.index(after.len());
                    after[at] = byte;
                }
            }
            let mut out = [0; 8 * PATCH_RECORD_BYTES_MAX];
            let length = encode_patch(&before, &after, &mut out).unwrap();
            prop_assert!(check_records(0, &out[..length]).is_ok());
            let mut found = before.clone();
            for (record, words) in PatchRecords::new(&out[..length]) {
                let start = usize::from(record.block) * PATCH_BLOCK_BYTES;
                let named = (0..32).filter(|bit| record.bitmap & 1 << bit != 0);
                for (bit, word) in named.zip(words.chunks_exact(4)) {
                    let at = start + bit * 4;
                    prop_assert_ne!(&found[at..at + 4], word);
                    found[at..at + 4].copy_from_slice(word);
                }
            }
            prop_assert_eq!(&found, &after);
            let short = length.checked_sub(1).and_then(|short| {
                encode_patch(&before, &after, &mut out[..short])
            });
            prop_assert_eq!(short, None);
        }

        #[test]
        fn no_bytes_make_the_check_panic(address: u64, payload in vec(any::<u8>(), 0..300)) {
            let is_right = check_records(address, &payload).is_ok();
            let mut records = PatchRecords::new(&payload);
            let bytes: usize = records.by_ref().map(|(record, _)| record.bytes()).sum();
            prop_assert_eq!(bytes + records.rest().len(), payload.len());
            prop_assert!(!is_right || records.rest().is_empty());
        }
    }

    #[test]
    fn areas_of_different_or_odd_sizes_have_no_difference() {
        let mut out = [0; 300];
        assert_eq!(encode_patch(&[0; 8], &[0; 4], &mut out), None);
        assert_eq!(encode_patch(&[0; 6], &[1; 6], &mut out), None);
        assert_eq!(encode_patch(&[0; 8], &[0; 8], &mut out), Some(0));
        assert_eq!(encode_patch(&[0; 256], &[1; 256], &mut out), Some(272));
    }
}

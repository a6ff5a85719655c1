//! Diffs: which words of a page an interval has changed, and the payload of a Patch that carries
//! them.

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// Bytes of a word, the grain of a diff. Two nodes that write different bytes of one word in
/// concurrent intervals have a race.
pub const WORD_BYTES: usize = 4;

/// Words of a page.
pub const PAGE_WORDS: usize = PAGE_BYTES / WORD_BYTES;

/// Words of a block, which one record of a Patch describes.
const BLOCK_WORDS: usize = 32;

/// Blocks of a page.
pub const BLOCKS: usize = PAGE_WORDS / BLOCK_WORDS;

/// Bytes of a block.
const BLOCK_BYTES: usize = BLOCK_WORDS * WORD_BYTES;

/// Bytes of a record before its words: block number 2, zero 2, bitmap 4.
const RECORD_HEADER_BYTES: usize = 8;

/// The contents of a page.
pub type PageBytes = [u8; PAGE_BYTES];

/// The changed words of a page: bit `i` of element `b` is word `32 * b + i`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Bitmap([u32; BLOCKS]);

impl Bitmap {
    /// A bitmap without words.
    pub const EMPTY: Self = Self([0; BLOCKS]);

    /// Returns the bitmap of these blocks: bit `i` of element `b` is word `32 * b + i`.
    pub const fn from_blocks(blocks: [u32; BLOCKS]) -> Self {
        Self(blocks)
    }

    /// Adds a word. Ignores a word that no page has.
    pub fn insert(&mut self, word: usize) {
        if let Some(block) = self.0.get_mut(word / BLOCK_WORDS) {
            *block |= 1 << (word % BLOCK_WORDS);
        }
    }

    /// Adds all words of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| *own |= other);
    }

    /// Returns whether there is no word.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|block| *block == 0)
    }

    /// Returns the number of words.
    pub fn count(&self) -> usize {
        self.0.iter().map(|block| block.count_ones() as usize).sum()
    }

    /// Returns the words in ascending order.
    pub fn words(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(block, bits)| {
            let has = move |bit: &usize| bits >> bit & 1 == 1;
            (0..BLOCK_WORDS).filter(has).map(move |bit| block * BLOCK_WORDS + bit)
        })
    }

    /// Returns the first word that both bitmaps have.
    pub fn overlap(&self, other: &Self) -> Option<usize> {
        let both = self.0.iter().zip(other.0).enumerate();
        both.map(|(block, (own, other))| (block, own & other))
            .find(|(_, bits)| *bits != 0)
            .map(|(block, bits)| block * BLOCK_WORDS + bits.trailing_zeros() as usize)
    }

    /// Returns the first word and the number of words, if they follow each other without a gap.
    pub fn run(&self) -> Option<(usize, usize)> {
        let first = self.0.iter().position(|bits| *bits != 0)?;
        let last = self.0.iter().rposition(|bits| *bits != 0)?;
        let (first_bits, last_bits) = (self.0.get(first)?, self.0.get(last)?);
        let first = first * BLOCK_WORDS + first_bits.trailing_zeros() as usize;
        let end = (last + 1) * BLOCK_WORDS - last_bits.leading_zeros() as usize;
        let count = end - first;
        (count == self.count()).then_some((first, count))
    }

    /// Returns the wire format.
    pub fn to_bytes(&self) -> [u8; PAGE_WORDS / 8] {
        let mut bytes = [0; PAGE_WORDS / 8];
        for (to, block) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            *to = block.to_le_bytes();
        }
        bytes
    }

    /// Returns the bitmap in the wire format, or `None` if `bytes` has another length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (blocks, rest) = bytes.as_chunks::<4>();
        let blocks: [[u8; 4]; BLOCKS] = blocks.try_into().ok()?;
        rest.is_empty().then(|| Self(blocks.map(u32::from_le_bytes)))
    }
}

/// Compares a page with its twin. Appends the changed words to `words`, in ascending order, and
/// returns their bitmap.
///
/// Costs one pass over both pages; allocates only if `words` must grow.
pub fn compare(frame: &PageBytes, twin: &PageBytes, words: &mut Vec<u8>) -> Bitmap {
    let mut bitmap = Bitmap::EMPTY;
    let (now, _) = frame.as_chunks::<WORD_BYTES>();
    let (before, _) = twin.as_chunks::<WORD_BYTES>();
    for (word, (now, before)) in now.iter().zip(before).enumerate() {
        if now != before {
            bitmap.insert(word);
            words.extend_from_slice(now);
        }
    }
    bitmap
}

//= dsm-protocol.md: diff.2
/// Appends the payload of a Patch to `payload`: one record for each block that has changed words.
/// `words` are the words of `bitmap` in ascending order; words that are missing there are left out.
///
/// Costs a few nanoseconds for each record; allocates only if `payload` must grow.
pub fn encode(bitmap: &Bitmap, words: &[u8], payload: &mut Vec<u8>) {
    let mut rest = words;
    payload.reserve(words.len() + BLOCKS * RECORD_HEADER_BYTES + BLOCK_BYTES);
    for (block, bits) in (0_u64..).zip(bitmap.0) {
        if bits == 0 {
            continue;
        }
        let bytes = bits.count_ones() as usize * WORD_BYTES;
        let Some((own, later)) = rest.split_at_checked(bytes) else { return };
        payload.extend_from_slice(&(block | u64::from(bits) << 32).to_le_bytes());
        // A copy of a fixed length is several times faster than one of `bytes`.
        if let Some(block) = rest.first_chunk::<BLOCK_BYTES>() {
            let end = payload.len() + bytes;
            payload.extend_from_slice(block);
            payload.truncate(end);
        } else {
            payload.extend_from_slice(own);
        }
        rest = later;
    }
}

/// Returns the words of the payload of a Patch of a page, each with its number and bytes. Returns
/// `None` if the payload is malformed: cut off, a block twice, out of order or outside of the page,
/// or a record without words.
pub fn decode(payload: &[u8]) -> Option<Vec<(usize, [u8; WORD_BYTES])>> {
    let mut found = Vec::new();
    let mut rest = payload;
    let mut next_block = 0;
    while let Some((header, words)) = rest.split_first_chunk::<RECORD_HEADER_BYTES>() {
        let [low, high, _, _, bits @ ..] = *header;
        let block = u16::from_le_bytes([low, high]) as usize;
        let bits = u32::from_le_bytes(bits);
        if block < next_block || block >= BLOCKS || bits == 0 {
            return None;
        }
        next_block = block + 1;
        let (own, later) = words.split_at_checked(bits.count_ones() as usize * WORD_BYTES)?;
        let numbers = (0..BLOCK_WORDS).filter(|bit| bits >> bit & 1 == 1);
        found.extend(
            numbers.map(|bit| block * BLOCK_WORDS + bit).zip(own.as_chunks().0.iter().copied()),
        );
        rest = later;
    }
    rest.is_empty().then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pages() -> impl Strategy<Value = (Box<PageBytes>, Box<PageBytes>)> {
        let changes = proptest::collection::vec((0..PAGE_WORDS, any::<[u8; 4]>()), 0..200);
        changes.prop_map(|changes| {
            let twin = Box::new([7; PAGE_BYTES]);
            let mut frame = twin.clone();
            for (word, bytes) in changes {
                frame[word * 4..word * 4 + 4].copy_from_slice(&bytes);
            }
            (frame, twin)
        })
    }

    proptest! {
        //= dsm-protocol.md: diff.2
        #[test]
        fn a_decoded_diff_turns_the_twin_into_the_page((frame, mut twin) in pages()) {
            let mut words = Vec::new();
            let bitmap = compare(&frame, &twin, &mut words);
            let mut payload = Vec::new();
            encode(&bitmap, &words, &mut payload);
            let decoded = decode(&payload).unwrap();
            prop_assert_eq!(decoded.len(), bitmap.count());
            prop_assert!(decoded.iter().map(|(word, _)| *word).eq(bitmap.words()));
            for (word, bytes) in decoded {
                prop_assert_ne!(&twin[word * 4..word * 4 + 4], &bytes);
                twin[word * 4..word * 4 + 4].copy_from_slice(&bytes);
            }
            prop_assert_eq!(frame, twin);
        }

        #[test]
        fn any_payload_is_decoded_or_refused(payload in proptest::collection::vec(any::<u8>(), 0..64)) {
            if let Some(words) = decode(&payload) {
                prop_assert!(words.iter().is_sorted_by(|one, other| one.0 < other.0));
                prop_assert!(words.iter().all(|(word, _)| *word < PAGE_WORDS));
            }
        }

        #[test]
        fn a_bitmap_survives_its_wire_format(words in proptest::collection::btree_set(0..PAGE_WORDS, 0..40)) {
            let mut bitmap = Bitmap::EMPTY;
            for word in words.iter().copied() {
                bitmap.insert(word);
            }
            prop_assert!(bitmap.words().eq(words.iter().copied()));
            prop_assert_eq!(bitmap.count(), words.len());
            prop_assert_eq!(Bitmap::from_bytes(&bitmap.to_bytes()), Some(bitmap));
        }
    }

    #[test]
    fn words_without_a_gap_are_a_run() {
        let of = |words: &[usize]| {
            let mut bitmap = Bitmap::EMPTY;
            for word in words.iter().copied() {
                bitmap.insert(word);
            }
            bitmap
        };
        assert_eq!(of(&[31, 32, 33]).run(), Some((31, 3)));
        assert_eq!(of(&[31, 33]).run(), None);
        assert_eq!(of(&[]).run(), None);
        let all: Vec<usize> = (0..PAGE_WORDS).collect();
        assert_eq!(of(&all).run(), Some((0, PAGE_WORDS)));
        assert_eq!(of(&[1, 40]).overlap(&of(&[2, 40, 50])), Some(40));
        assert_eq!(of(&[1, 40]).overlap(&of(&[2, 50])), None);
    }

    #[test]
    fn records_out_of_order_and_empty_records_are_refused() {
        let record = |block: u8| [block, 0, 0, 0, 1, 0, 0, 0, 9, 9, 9, 9];
        assert!(decode(&[record(1), record(2)].concat()).is_some());
        assert!(decode(&[record(2), record(2)].concat()).is_none());
        assert!(decode(&[record(2), record(1)].concat()).is_none());
        assert!(decode(&record(32)).is_none());
        assert!(decode(&record(0)[..11]).is_none());
        assert!(decode(&[0; 8]).is_none());
    }
}

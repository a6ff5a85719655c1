//! The ack section (protocol.md §3.3).

use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::identity::{LinkIndex, MessageNumber, OperationNumber};
use crate::octets::{get, put};
use crate::parameters::ranged;

/// Maximum number of link blocks in an ack section: one for each link index.
pub const ACK_BLOCKS_MAX: usize = 16;
/// Maximum number of bitmap words in a link block. Eight words cover 512 packets below the first
/// gap. A path of 100 Gb/s with a round trip of 40 µs has 340 packets of 1472 bytes in flight.
pub const ACK_BLOCK_WORDS_MAX: usize = 8;
/// Size of the largest ack section, in bytes.
pub const ACK_SECTION_BYTES_MAX: usize =
    SECTION_BYTES + ACK_BLOCKS_MAX * (BLOCK_BYTES + ACK_BLOCK_WORDS_MAX * WORD_BYTES);

const SECTION_BYTES: usize = layout_end(Layout::AckSection);
const BLOCK_BYTES: usize = layout_end(Layout::AckBlock);
const WORD_BYTES: usize = 8;
const _: () = assert!(ACK_BLOCK_WORDS_MAX == 8); // the literal length of AckBlock::bitmap
const _: () = assert!(SECTION_BYTES == 12 && BLOCK_BYTES == 12);
const _: () = assert!(fields::BLOCKS.range.1 == ACK_BLOCKS_MAX as u64);
const _: () = assert!(fields::BLOCK_WORDS.range.1 == ACK_BLOCK_WORDS_MAX as u64);

/// Time from the arrival of a packet to its acknowledgement, in units of 64 ns. Times above 4.19 ms
/// are stored as 4.19 ms.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct AckDelay(pub u16);

impl AckDelay {
    /// Length of one unit, in nanoseconds.
    pub const UNIT_NS: u64 = 64;

    /// Converts `delay_ns` nanoseconds to units. Rounds down, and returns at most the largest
    /// value.
    #[inline]
    pub const fn from_ns(delay_ns: u64) -> Self {
        let units = delay_ns / Self::UNIT_NS;
        Self(if units > u16::MAX as u64 { u16::MAX } else { units as u16 })
    }

    /// Returns the delay in nanoseconds.
    #[inline]
    pub const fn to_ns(self) -> u64 {
        self.0 as u64 * Self::UNIT_NS
    }
}

/// Acknowledgement of the packets of one link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckBlock {
    /// The link of the acknowledged packets.
    pub link: LinkIndex,
    /// Number of frames that arrived on the link with a congestion mark (ECN CE) since the
    /// connection began, modulo 2^16.
    pub marked: u16,
    /// Time from the arrival of `largest` to this acknowledgement.
    pub delay: AckDelay,
    /// Number of consecutive received packets that end with `largest`, at least 1.
    pub run: u16,
    /// Low 32 bits of the largest packet number received.
    pub largest: u32,
    /// Number of words of `bitmap` on the wire, 0 to 8.
    pub words: u8,
    /// Bit `i` of word `w` is set if packet `largest − run − 1 − (64 w + i)` was received. Words
    /// that are not on the wire are 0.
    pub bitmap: [u64; 8],
}

impl AckBlock {
    /// Returns the number of bytes of this block on the wire.
    #[inline]
    pub const fn wire_bytes(&self) -> usize {
        BLOCK_BYTES + self.words as usize * WORD_BYTES
    }
}

/// The ack section of a frame, after a check of its fields. Borrows the bytes of the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AckSection<'a> {
    delivered: OperationNumber,
    credit: MessageNumber,
    blocks: &'a [u8],
}

impl<'a> AckSection<'a> {
    /// Returns the number of the peer's first operation that is not delivered.
    #[inline]
    pub const fn delivered(&self) -> OperationNumber {
        self.delivered
    }

    /// Returns the number of the peer's first message for which no receive is posted.
    #[inline]
    pub const fn credit(&self) -> MessageNumber {
        self.credit
    }

    /// Returns the link blocks, at most one for each link.
    #[inline]
    pub const fn blocks(&self) -> AckBlocks<'a> {
        AckBlocks { bytes: self.blocks }
    }

    //= protocol.md: ack-section.1
    /// Decodes the section at the start of `bytes`. Returns the section and the bytes after it.
    #[inline]
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let truncated = |part, needed, found| DecodeError::Truncated { part, needed, found };
        let Some((section, after)) = bytes.split_first_chunk::<SECTION_BYTES>() else {
            return Err(truncated("ack section", SECTION_BYTES, bytes.len()));
        };
        let blocks = ranged(&fields::BLOCKS, u8::from_le_bytes(get!(section, fields::BLOCKS)))?;
        let mut rest = after;
        let mut links_seen = 0_u16;
        for _ in 0..blocks {
            let Some((block, words)) = rest.split_first_chunk::<BLOCK_BYTES>() else {
                return Err(truncated("link block", BLOCK_BYTES, rest.len()));
            };
            let link =
                ranged(&fields::BLOCK_LINK, u8::from_le_bytes(get!(block, fields::BLOCK_LINK)))?;
            let words_count =
                ranged(&fields::BLOCK_WORDS, u8::from_le_bytes(get!(block, fields::BLOCK_WORDS)))?;
            ranged(&fields::BLOCK_RUN, u16::from_le_bytes(get!(block, fields::BLOCK_RUN)))?;
            if links_seen & (1 << link) != 0 {
                return Err(DecodeError::AckLinkTwice(LinkIndex(link)));
            }
            links_seen |= 1 << link;
            let bitmap_bytes = usize::from(words_count) * WORD_BYTES;
            rest = words.get(bitmap_bytes..).ok_or(truncated(
                "bitmap of a link block",
                bitmap_bytes,
                words.len(),
            ))?;
        }
        let (blocks, rest) = after.split_at(after.len() - rest.len());
        let delivered = OperationNumber(u32::from_le_bytes(get!(section, fields::DELIVERED)));
        let credit = MessageNumber(u32::from_le_bytes(get!(section, fields::CREDIT)));
        Ok((Self { delivered, credit, blocks }, rest))
    }
}

/// Iterator over the link blocks of an [`AckSection`].
#[derive(Clone, Debug)]
pub struct AckBlocks<'a> {
    /// The remaining bytes: whole blocks, whose fields the decoder of the section has checked.
    bytes: &'a [u8],
}

impl Iterator for AckBlocks<'_> {
    type Item = AckBlock;

    #[inline]
    fn next(&mut self) -> Option<AckBlock> {
        let (block, rest) = self.bytes.split_first_chunk::<BLOCK_BYTES>()?;
        let words = u8::from_le_bytes(get!(block, fields::BLOCK_WORDS));
        let (words_bytes, rest) = rest.split_at_checked(usize::from(words) * WORD_BYTES)?;
        self.bytes = rest;
        let mut bitmap = [0; ACK_BLOCK_WORDS_MAX];
        for (word, bytes) in bitmap.iter_mut().zip(words_bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(AckBlock {
            link: LinkIndex(u8::from_le_bytes(get!(block, fields::BLOCK_LINK))),
            marked: u16::from_le_bytes(get!(block, fields::BLOCK_MARKED)),
            delay: AckDelay(u16::from_le_bytes(get!(block, fields::BLOCK_DELAY))),
            run: u16::from_le_bytes(get!(block, fields::BLOCK_RUN)),
            largest: u32::from_le_bytes(get!(block, fields::BLOCK_LARGEST)),
            words,
            bitmap,
        })
    }
}

/// Returns the length of an ack section with these blocks, in bytes.
#[inline]
pub const fn ack_section_bytes(blocks: &[AckBlock]) -> usize {
    let mut bytes = SECTION_BYTES;
    let mut rest = blocks;
    while let [block, after @ ..] = rest {
        bytes += block.wire_bytes();
        rest = after;
    }
    bytes
}

/// Writes an ack section to the start of `out` and returns its length in bytes.
///
/// # Panics
///
/// Panics if there are more than [`ACK_BLOCKS_MAX`] blocks, or a block has more than
/// [`ACK_BLOCK_WORDS_MAX`] words.
pub fn encode_acks(
    delivered: OperationNumber,
    credit: MessageNumber,
    blocks: &[AckBlock],
    out: &mut [u8; ACK_SECTION_BYTES_MAX],
) -> usize {
    assert!(blocks.len() <= ACK_BLOCKS_MAX);
    let mut section = [0; SECTION_BYTES];
    put!(&mut section, fields::BLOCKS, (blocks.len() as u8).to_le_bytes());
    put!(&mut section, fields::DELIVERED, delivered.0.to_le_bytes());
    put!(&mut section, fields::CREDIT, credit.0.to_le_bytes());
    let mut at = SECTION_BYTES;
    out[..at].copy_from_slice(&section);
    for block in blocks {
        let mut header = [0; BLOCK_BYTES];
        put!(&mut header, fields::BLOCK_LINK, block.link.0.to_le_bytes());
        put!(&mut header, fields::BLOCK_WORDS, block.words.to_le_bytes());
        put!(&mut header, fields::BLOCK_MARKED, block.marked.to_le_bytes());
        put!(&mut header, fields::BLOCK_DELAY, block.delay.0.to_le_bytes());
        put!(&mut header, fields::BLOCK_RUN, block.run.to_le_bytes());
        put!(&mut header, fields::BLOCK_LARGEST, block.largest.to_le_bytes());
        out[at..at + BLOCK_BYTES].copy_from_slice(&header);
        at += BLOCK_BYTES;
        for word in &block.bitmap[..usize::from(block.words)] {
            out[at..at + WORD_BYTES].copy_from_slice(&word.to_le_bytes());
            at += WORD_BYTES;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::generate::ack_blocks;

    proptest! {
        #[test]
        fn the_length_is_known_before_encoding(blocks in ack_blocks(), after in 0..40_usize) {
            let (mut bytes, length) = section(&blocks);
            prop_assert_eq!(length, ack_section_bytes(&blocks));
            bytes.truncate(length);
            bytes.resize(length + after, 0xff);
            let (decoded, rest) = AckSection::decode(&bytes).unwrap();
            prop_assert_eq!(rest.len(), after);
            prop_assert_eq!(decoded.blocks().collect::<Vec<_>>(), blocks);
        }

        #[test]
        fn delays_survive_within_their_unit(delay_ns: u64) {
            let back_ns = AckDelay::from_ns(delay_ns).to_ns();
            prop_assert!(back_ns <= delay_ns);
            let saturated = delay_ns >= u64::from(u16::MAX) * AckDelay::UNIT_NS;
            prop_assert!(saturated || delay_ns - back_ns < AckDelay::UNIT_NS);
        }
    }

    //= protocol.md: ack-section.1
    #[test]
    fn broken_blocks_are_refused() {
        let block = AckBlock {
            link: LinkIndex(3),
            marked: 1,
            delay: AckDelay(2),
            run: 4,
            largest: 5,
            words: 0,
            bitmap: [0; ACK_BLOCK_WORDS_MAX],
        };
        let error = |blocks: &[AckBlock]| {
            let (bytes, length) = section(blocks);
            AckSection::decode(&bytes[..length]).err()
        };
        assert_eq!(error(&[block]), None);
        assert_eq!(error(&[block, block]), Some(DecodeError::AckLinkTwice(LinkIndex(3))));
        assert_eq!(
            error(&[AckBlock { run: 0, ..block }]),
            Some(DecodeError::Range { field: "run", value: 0 })
        );
        assert_eq!(
            error(&[AckBlock { link: LinkIndex(16), ..block }]),
            Some(DecodeError::Range { field: "link", value: 16 })
        );
        let (mut bytes, _) = section(&[block]);
        bytes[13] = 9;
        assert_eq!(
            AckSection::decode(&bytes),
            Err(DecodeError::Range { field: "words", value: 9 })
        );
    }

    #[test]
    fn the_largest_section_fits() {
        let block = AckBlock {
            link: LinkIndex(0),
            marked: 0,
            delay: AckDelay(0),
            run: 1,
            largest: 0,
            words: 8,
            bitmap: [u64::MAX; ACK_BLOCK_WORDS_MAX],
        };
        let blocks: Vec<_> =
            (0..16).map(|link| AckBlock { link: LinkIndex(link), ..block }).collect();
        assert_eq!(section(&blocks).1, ACK_SECTION_BYTES_MAX);
    }

    fn section(blocks: &[AckBlock]) -> (Vec<u8>, usize) {
        let mut out = [0; ACK_SECTION_BYTES_MAX];
        let length = encode_acks(OperationNumber(7), MessageNumber(8), blocks, &mut out);
        (out.to_vec(), length)
    }
}

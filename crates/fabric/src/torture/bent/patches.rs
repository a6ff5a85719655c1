//! Planted faults in the handling of patches and swaps.

use std::collections::VecDeque;

use wire_edge::{Flags, Header, PATCH_RECORD_HEADER_BYTES, PatchRecord, PatchRecords};

use super::{Bend, Bent};
use crate::host::{HostEngine, Region};

/// A word, and the region and offset where it belongs.
type Word = (Region, u32, [u8; 4]);

/// State of the faults in patches.
#[derive(Debug, Default)]
pub(super) struct Patches {
    /// The regions of the host, except those whose memory was freed.
    regions: Vec<Region>,
    /// The words of earlier frames, the newest frame last.
    earlier: VecDeque<Vec<Word>>,
}

impl Patches {
    pub(super) fn register(&mut self, region: Region) {
        self.regions.push(region);
    }

    pub(super) fn discard(&mut self, region: Region) {
        self.regions.retain(|other| other.number != region.number);
        for words in &mut self.earlier {
            words.retain(|(other, ..)| other.number != region.number);
        }
    }

    /// Returns the region with the four bytes at this address, and their offset. The key may be
    /// that of another region.
    fn find(&self, address: u64) -> Option<(Region, u32)> {
        self.regions.iter().find_map(|&region| {
            let offset = u32::try_from(address.checked_sub(region.address)?).ok()?;
            (offset.checked_add(4)? <= region.length_bytes).then_some((region, offset))
        })
    }
}

/// A patch in a frame: address of the area, and payload.
fn patch_of(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let frame = wire_edge::decode(bytes).ok()?;
    let Header::Patch { address, .. } = frame.header else { return None };
    Some((address, frame.payload))
}

/// Returns the address and the bytes of each named word.
fn words_of(address: u64, payload: &[u8]) -> impl Iterator<Item = (u64, [u8; 4])> {
    PatchRecords::new(payload).flat_map(move |(record, words)| {
        let start = address + u64::from(record.block) * 128;
        let bits = (0..32).filter(move |bit| record.bitmap & 1 << bit != 0);
        bits.zip(words.as_chunks::<4>().0).map(move |(bit, word)| (start + 4 * bit, *word))
    })
}

impl<E: HostEngine> Bent<E> {
    /// Returns the frame that the engine gets in place of a frame with a patch or swap.
    pub(super) fn bent_patch(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = wire_edge::decode(bytes).ok()?;
        let mut out = bytes.to_vec();
        let start = bytes.len() - frame.payload.len();
        match (self.bend, frame.header) {
            (Bend::MovesPatches, Header::Patch { offset, address, .. }) => {
                let moved = address + u64::from(offset);
                out[ADDRESS_AT..ADDRESS_AT + 8].copy_from_slice(&moved.to_le_bytes());
            }
            (Bend::MirrorsBitmaps, Header::Patch { .. }) => {
                let mut at = start;
                for (record, words) in PatchRecords::new(frame.payload) {
                    let bitmap = record.bitmap.reverse_bits();
                    let mirrored = PatchRecord { bitmap, ..record }.encode();
                    out[at..at + PATCH_RECORD_HEADER_BYTES].copy_from_slice(&mirrored);
                    at += PATCH_RECORD_HEADER_BYTES + words.len();
                }
            }
            (Bend::ExchangesWords, Header::Patch { .. }) => {
                let (_, words) = PatchRecords::new(frame.payload).next()?;
                let first = start + PATCH_RECORD_HEADER_BYTES;
                let (one, two) =
                    out.get_mut(first..first + words.len())?.split_at_mut_checked(4)?;
                one.swap_with_slice(two.get_mut(..4)?);
            }
            (Bend::IgnoresPatchFences, Header::Patch { .. }) => {
                out[super::FLAGS_AT] &= !Flags::FENCE_BEFORE.bits();
            }
            (Bend::AltersPatchImmediates, Header::Patch { immediate: Some(_), .. }) => {
                out[IMMEDIATE_AT] ^= 1;
            }
            (Bend::AddsInSwaps, Header::Atomic { .. }) if out[OPCODE_AT] == SWAP => {
                out[OPCODE_AT] = FETCH_ADD;
            }
            _ => return None,
        }
        Some(out)
    }

    /// Returns the words that the wrapper places after the engine has handled a frame.
    pub(super) fn before_patch(&mut self, bytes: &[u8]) -> Vec<Word> {
        let Some((address, payload)) = patch_of(bytes) else { return Vec::new() };
        let words = |patches: &Patches| -> Vec<Word> {
            let located = words_of(address, payload).filter_map(|(address, word)| {
                patches.find(address).map(|(region, offset)| (region, offset, word))
            });
            located.collect()
        };
        match self.bend {
            Bend::SkipsLastWords => {
                let last = words_of(address, payload).last();
                let place = last.and_then(|(address, _)| self.patches.find(address));
                place.map(|(region, offset)| self.held_word(region, offset)).into_iter().collect()
            }
            Bend::RepeatsPatches => {
                let own = words(&self.patches);
                self.patches.earlier.push_back(own);
                if self.patches.earlier.len() > REPEATED_AFTER {
                    return self.patches.earlier.pop_front().unwrap_or_default();
                }
                Vec::new()
            }
            Bend::PatchesUnderAnyKey => words(&self.patches),
            Bend::FillsGaps => {
                let gaps = PatchRecords::new(payload).filter_map(|(record, _)| {
                    let bit = (!record.bitmap).trailing_zeros();
                    let start = address + u64::from(record.block) * 128;
                    let is_gap = record.bitmap != 0 && bit < 32;
                    self.patches.find(start + u64::from(4 * bit)).filter(|_| is_gap)
                });
                gaps.map(|(region, offset)| (region, offset, [0; 4])).collect()
            }
            _ => Vec::new(),
        }
    }

    fn held_word(&self, region: Region, offset: u32) -> Word {
        let mut word = [0; 4];
        self.engine.read_memory(region, offset, &mut word);
        (region, offset, word)
    }

    /// Places words without the engine.
    pub(super) fn after_patch(&mut self, words: &[Word]) {
        for (region, offset, word) in words {
            self.engine.write_memory(*region, *offset, word);
        }
    }
}

/// Number of later frames after which the words of a frame are placed again.
const REPEATED_AFTER: usize = 12;

/// Offsets of fields in the frames of a Patch and of an Atomic.
const OPCODE_AT: usize = 16;
const ADDRESS_AT: usize = 24;
const IMMEDIATE_AT: usize = 32;

/// Opcodes of atomics on the wire.
const FETCH_ADD: u8 = 1;
const SWAP: u8 = 3;

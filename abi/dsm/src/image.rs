//! The global variables of a program, as bytes that another process of the same program takes over.
//!
//! The bytes are a sequence of pieces. A piece is an address, a length, and that many bytes, padded
//! to a multiple of eight. Pieces that contain only zeros are left out.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr::{with_exposed_provenance, with_exposed_provenance_mut};
use std::slice;

use crate::loaded::Loaded;

/// The global variables of the program in this process.
#[derive(Debug)]
pub(crate) struct Variables {
    parts: Vec<Range<usize>>,
}

/// The bytes are those of another program.
#[derive(Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "the global variables have other addresses than on rank 0; start the same file on all ranks"
)]
pub(crate) struct OtherVariables;

impl Variables {
    /// Finds the variables of a program.
    pub(crate) fn of(program: &Loaded) -> Self {
        let mut parts = program.writable();
        for hole in program.foreign() {
            parts = parts.into_iter().flat_map(|part| without(&part, &hole)).collect();
        }
        Self { parts }
    }

    /// Returns the variables as bytes. No other thread may change them meanwhile.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in self.pieces() {
            let start = with_exposed_provenance(piece.start);
            // SAFETY: the piece is in a writable segment of the program, which stays mapped. The
            // program upholds that no other thread changes it.
            let content: &[u8] = unsafe { slice::from_raw_parts(start, piece.len()) };
            if content.iter().any(|byte| *byte != 0) {
                bytes.extend((piece.start as u64).to_ne_bytes());
                bytes.extend((piece.len() as u64).to_ne_bytes());
                bytes.extend(content);
                bytes.resize(bytes.len().next_multiple_of(8), 0);
            }
        }
        bytes
    }

    /// Gives the variables the content of bytes that [`Self::to_bytes`] has made in another process.
    /// Changes nothing if they are those of another program.
    ///
    /// # Safety
    /// The bytes must come from a process with the same program and libraries at the same addresses.
    /// No other thread may use the variables, and no reference to them may exist.
    pub(crate) unsafe fn take(&self, bytes: &[u8]) -> Result<(), OtherVariables> {
        let mut given = pieces_in(bytes).ok_or(OtherVariables)?;
        let mut changes = Vec::new();
        for piece in self.pieces() {
            match given.remove(&piece.start) {
                Some(content) if content.len() != piece.len() => return Err(OtherVariables),
                content => changes.push((piece, content)),
            }
        }
        if !given.is_empty() {
            return Err(OtherVariables);
        }
        for (piece, content) in changes {
            let start = with_exposed_provenance_mut::<u8>(piece.start);
            // SAFETY: the piece is in a writable segment of the program, which stays mapped. The
            // caller excludes other uses.
            let old = unsafe { slice::from_raw_parts_mut(start, piece.len()) };
            match content {
                Some(content) => old.copy_from_slice(content),
                // To write zeros over zeros would use memory.
                None if old.iter().any(|byte| *byte != 0) => old.fill(0),
                None => {}
            }
        }
        Ok(())
    }

    /// Returns the parts, cut at the pages.
    fn pieces(&self) -> impl Iterator<Item = Range<usize>> {
        self.parts.iter().flat_map(|part| {
            let end = part.end;
            let next = move |start: usize| Some(start..(start + 1).next_multiple_of(PAGE).min(end));
            let first = Some(part.start).filter(|start| *start < end).and_then(next);
            std::iter::successors(first, move |piece| {
                Some(piece.end).filter(|start| *start < end).and_then(next)
            })
        })
    }
}

/// Returns the pieces in bytes, by their addresses.
fn pieces_in(mut bytes: &[u8]) -> Option<BTreeMap<usize, &[u8]>> {
    let mut pieces = BTreeMap::new();
    while !bytes.is_empty() {
        let (address, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let address = usize::try_from(u64::from_ne_bytes(*address)).ok()?;
        let length = usize::try_from(u64::from_ne_bytes(*length)).ok()?;
        let content = rest.get(..length)?;
        bytes = rest.get(length.checked_next_multiple_of(8)?..)?;
        if pieces.insert(address, content).is_some() {
            return None;
        }
    }
    Some(pieces)
}

/// Returns what is left of a part without a hole.
fn without(part: &Range<usize>, hole: &Range<usize>) -> [Range<usize>; 2] {
    let before = part.start..hole.start.clamp(part.start, part.end);
    let after = hole.end.clamp(part.start, part.end)..part.end;
    if hole.start >= part.end || hole.end <= part.start {
        [part.clone(), part.end..part.end]
    } else {
        [before, after]
    }
}

/// Bytes of a page. Pieces end at pages, so that large arrays without content cost nothing.
const PAGE: usize = 4096;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Memory that stands for the variables of a program.
    fn over(memory: &mut [u8]) -> Variables {
        let start = memory.as_mut_ptr().expose_provenance();
        let len = memory.len();
        Variables { parts: vec![start..start + len / 3, start + len / 3 + 1..start + len] }
    }

    #[test]
    fn holes_are_cut_out() {
        let cut = |hole: Range<usize>| {
            let parts = without(&(10..20), &hole).into_iter().filter(|part| !part.is_empty());
            parts.map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(cut(12..14), [(10, 12), (14, 20)]);
        assert_eq!(cut(5..14), [(14, 20)]);
        assert_eq!(cut(14..30), [(10, 14)]);
        assert_eq!(cut(5..30), []);
        assert_eq!(cut(0..10), [(10, 20)]);
        assert_eq!(cut(20..30), [(10, 20)]);
    }

    #[test]
    fn the_variables_of_the_test_program_can_be_read() {
        let program = crate::loaded::program().expect("a program");
        let bytes = Variables::of(&program).to_bytes();
        assert!(pieces_in(&bytes).is_some_and(|pieces| !pieces.is_empty()));
    }

    #[test]
    fn bytes_of_other_variables_are_refused_and_change_nothing() {
        let mut memory = vec![7; 5000];
        let variables = over(&mut memory);
        let bytes = variables.to_bytes();
        let mut other = bytes.clone();
        other[0] ^= 1;
        // SAFETY: the memory is used by this test alone.
        assert_eq!(unsafe { variables.take(&other) }, Err(OtherVariables));
        // SAFETY: as above.
        assert_eq!(unsafe { variables.take(&bytes[..bytes.len() - 8]) }, Err(OtherVariables));
        assert_eq!(memory, [7; 5000]);
    }

    proptest! {
        #[test]
        fn variables_have_the_content_of_the_other_process_afterwards(
            pages in proptest::collection::vec(any::<Option<u8>>(), 1..5),
            old in any::<u8>(),
            cut in 0..4096_usize,
        ) {
            let len = pages.len() * PAGE - cut;
            let mut memory: Vec<u8> = pages
                .iter()
                .flat_map(|page| (0..PAGE).map(move |at| page.map_or(0, |seed| seed ^ at as u8)))
                .take(len)
                .collect();
            let content = memory.clone();
            let variables = over(&mut memory);
            let bytes = variables.to_bytes();
            memory.fill(old);
            // SAFETY: the memory is used by this test alone.
            prop_assert_eq!(unsafe { variables.take(&bytes) }, Ok(()));
            let hole = len / 3;
            prop_assert_eq!(&memory[..hole], &content[..hole]);
            prop_assert_eq!(memory.get(hole), Some(&old));
            prop_assert_eq!(&memory[hole + 1..], &content[hole + 1..]);
        }

        #[test]
        fn no_bytes_are_trouble(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _pieces = pieces_in(&bytes);
        }
    }
}

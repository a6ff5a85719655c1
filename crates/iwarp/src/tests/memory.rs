//! The memory of an application, and an oracle that knows what may be placed in it.

use std::collections::{BTreeMap, VecDeque};

use wire_iwarp::Stag;

use crate::memory::{Access, Memory, Piece, Refusal};

/// A region.
#[derive(Clone, Debug)]
pub(super) struct Region {
    pub(super) key: u32,
    pub(super) base: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) remote_read: bool,
    pub(super) remote_write: bool,
    /// Whether the region belongs to another queue pair.
    pub(super) is_foreign: bool,
    /// What may be placed at each byte, once. `None` if nothing may be.
    pub(super) wanted: Vec<Option<u8>>,
    /// Whether each byte has been placed.
    pub(super) placed: Vec<bool>,
    /// Ends of tagged messages, with their starts.
    pub(super) ends: BTreeMap<u64, u64>,
}

/// The regions of one end, and its receives.
#[derive(Clone, Debug, Default)]
pub(super) struct TestMemory {
    pub(super) regions: Vec<Region>,
    pub(super) receives: VecDeque<(u64, Vec<Piece>)>,
    pub(super) taken: Vec<u64>,
    /// Whether no receive is posted yet.
    pub(super) is_late: bool,
    pub(super) invalidated: Vec<Stag>,
    /// Whether any bytes may be placed where the rights permit it.
    pub(super) takes_any_bytes: bool,
    /// Whether the check of a sink has been refused. Nothing may be placed after that.
    refused: bool,
    /// The first violation.
    pub(super) violation: Option<String>,
}

impl TestMemory {
    /// Adds a region of `length` bytes with these rights, whose bytes follow a pattern.
    pub(super) fn add(&mut self, key: u32, base: u64, length: usize, rights: (bool, bool)) {
        let bytes = (0..length).map(|at| pattern(key, at)).collect();
        self.regions.push(Region {
            key,
            base,
            bytes,
            remote_read: rights.0,
            remote_write: rights.1,
            is_foreign: false,
            wanted: vec![None; length],
            placed: vec![false; length],
            ends: BTreeMap::new(),
        });
    }

    pub(super) fn region(&self, key: u32) -> Option<&Region> {
        self.regions.iter().find(|region| region.key == key)
    }

    /// Gives a region to another queue pair.
    pub(super) fn give_away(&mut self, key: u32) {
        for region in self.regions.iter_mut().filter(|region| region.key == key) {
            region.is_foreign = true;
        }
    }

    pub(super) fn remove(&mut self, key: u32) {
        self.regions.retain(|region| region.key != key);
    }

    /// Allows to place `bytes` in these pieces, once. With `is_tagged`, the last byte must be the last.
    pub(super) fn want(&mut self, pieces: &[Piece], bytes: &[u8], is_tagged: bool) {
        let mut bytes = bytes.iter();
        let last = pieces.iter().rfind(|piece| piece.bytes > 0);
        for piece in pieces {
            let Some(region) = self.regions.iter_mut().find(|region| region.key == piece.key)
            else {
                continue;
            };
            let start = (piece.address - region.base) as usize;
            let mut length = 0;
            for (place, byte) in
                region.wanted[start..start + piece.bytes as usize].iter_mut().zip(&mut bytes)
            {
                assert_eq!(*place, None, "the test uses a place twice");
                *place = Some(*byte);
                length += 1;
            }
            if is_tagged && Some(piece) == last {
                region.ends.insert(piece.address + length, piece.address);
            }
        }
    }

    /// Returns whether all bytes of these pieces have been placed.
    pub(super) fn is_placed(&self, pieces: &[Piece]) -> bool {
        pieces.iter().all(|piece| {
            self.region(piece.key).is_some_and(|region| {
                let start = (piece.address - region.base) as usize;
                region.placed[start..start + piece.bytes as usize].iter().all(|placed| *placed)
            })
        })
    }

    pub(super) fn content(&self, pieces: &[Piece]) -> Vec<u8> {
        let mut all = Vec::new();
        for piece in pieces {
            let region = self.region(piece.key).expect("the test knows its regions");
            let start = (piece.address - region.base) as usize;
            all.extend_from_slice(&region.bytes[start..start + piece.bytes as usize]);
        }
        all
    }

    fn permit(&self, piece: Piece, access: Access) -> Result<(), Refusal> {
        let region = self.region(piece.key).ok_or(Refusal::Key)?;
        if region.is_foreign {
            return Err(Refusal::Stream);
        }
        let end = piece.address.checked_add(u64::from(piece.bytes)).ok_or(Refusal::Bounds)?;
        if piece.address < region.base || end > region.base + region.bytes.len() as u64 {
            return Err(Refusal::Bounds);
        }
        let is_allowed = match access {
            Access::LocalRead | Access::LocalWrite | Access::Receive => true,
            Access::RemoteRead => region.remote_read,
            Access::RemoteWrite => region.remote_write,
        };
        if is_allowed { Ok(()) } else { Err(Refusal::Rights) }
    }

    fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }
}

pub(super) fn pattern(key: u32, at: usize) -> u8 {
    (at as u32).wrapping_mul(31).wrapping_add(key.wrapping_mul(7)).wrapping_add(at as u32 >> 8)
        as u8
}

impl Memory for TestMemory {
    fn check(&mut self, piece: Piece, access: Access) -> Result<(), Refusal> {
        if piece.bytes == 0 {
            self.violate(format!("an empty piece is checked: {piece:?}"));
        }
        let checked = self.permit(piece, access);
        // A refused source ends the stream only when all before it is written.
        let is_sink = matches!(access, Access::LocalWrite | Access::Receive | Access::RemoteWrite);
        self.refused |= checked.is_err() && is_sink;
        checked
    }

    fn place(
        &mut self,
        piece: Piece,
        access: Access,
        bytes: &[u8],
        is_tail: bool,
    ) -> Result<(), Refusal> {
        if bytes.len() != piece.bytes as usize {
            self.violate(format!("{} bytes for {piece:?}", bytes.len()));
        }
        if self.refused {
            self.violate(format!("{piece:?} is placed after a refusal"));
        }
        // The region may have ended since the check.
        self.permit(piece, access)?;
        if self.takes_any_bytes {
            return Ok(());
        }
        let mut violation = None;
        let region = self.regions.iter_mut().find(|region| region.key == piece.key);
        let region = region.expect("the piece has been checked");
        let start = (piece.address - region.base) as usize;
        for (at, byte) in bytes.iter().enumerate() {
            let at = start + at;
            if region.wanted[at] != Some(*byte) || region.placed[at] {
                let wanted = region.wanted[at];
                violation = Some(format!("{byte} at {at} of {}: {wanted:?}", region.key));
                break;
            }
            region.placed[at] = true;
            region.bytes[at] = *byte;
        }
        let end = piece.address + u64::from(piece.bytes);
        if let Some((end, first)) = region.ends.range(piece.address + 1..=end).next() {
            let message = (first - region.base) as usize..(end - region.base) as usize;
            let word = message.len().min(8) as u64;
            if !is_tail || *end != piece.address + u64::from(piece.bytes) {
                violation = violation.or(Some(format!("the end of {piece:?} is no tail")));
            } else if end - piece.address < word && piece.address != *first {
                violation = violation.or(Some(format!("the last word is torn at {piece:?}")));
            } else if !region.placed[message].iter().all(|placed| *placed) {
                violation = violation.or(Some(format!("the last word of {piece:?} is not last")));
            }
        }
        if let Some(violation) = violation {
            self.violate(violation);
        }
        Ok(())
    }

    fn read(&mut self, piece: Piece, access: Access, out: &mut [u8]) -> Result<(), Refusal> {
        self.permit(piece, access)?;
        out.copy_from_slice(&self.content(&[piece]));
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Refusal> {
        if self.region(stag.0).is_none() {
            return Err(Refusal::Key);
        }
        self.remove(stag.0);
        self.invalidated.push(stag);
        Ok(())
    }

    fn take_receive(&mut self, pieces: &mut Vec<Piece>) -> Option<u64> {
        assert!(pieces.is_empty());
        if self.is_late {
            return None;
        }
        let (id, own) = self.receives.pop_front()?;
        pieces.extend(own);
        self.taken.push(id);
        Some(id)
    }
}

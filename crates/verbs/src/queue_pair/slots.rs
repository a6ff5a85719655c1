//! What is kept of a work request until it has ended.

use mem::RegionId;
use work::CompletionStatus;

use crate::work_request::{AddressVector, ScatterGather, SendFlags, SendOpcode};

/// A send.
#[derive(Debug)]
pub(crate) struct SendSlot {
    pub(crate) opcode: SendOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) to: Option<AddressVector>,
    pub(crate) inline: Option<Inline>,
    pub(crate) pieces: KeptPieces,
    /// The program wants a completion when it succeeds.
    pub(crate) is_reported: bool,
    /// Of a datagram: how it ended.
    pub(crate) outcome: Option<CompletionStatus>,
}

/// A receive.
#[derive(Debug)]
pub(crate) struct ReceiveSlot {
    pub(crate) pieces: KeptPieces,
}

/// Bytes that were given by value, where they are now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inline {
    /// The region they were copied to.
    pub region: RegionId,
    /// Where in it.
    pub offset: u64,
    /// How many.
    pub length: u32,
}

/// Pieces of memory, with room for as many as a queue allows.
#[derive(Debug)]
pub(crate) struct KeptPieces {
    pieces: Box<[ScatterGather]>,
    count: usize,
}

impl KeptPieces {
    pub(crate) fn new(max: u32) -> Self {
        Self { pieces: vec![ScatterGather::default(); max as usize].into(), count: 0 }
    }

    /// Keeps these, as many as there is room for.
    #[inline]
    pub(crate) fn keep(&mut self, pieces: &[ScatterGather]) {
        self.count = pieces.len().min(self.pieces.len());
        for (kept, piece) in self.pieces.iter_mut().zip(pieces) {
            *kept = *piece;
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> &[ScatterGather] {
        self.pieces.get(..self.count).unwrap_or_default()
    }
}

impl SendSlot {
    pub(crate) fn new(pieces_max: u32) -> Self {
        Self {
            opcode: SendOpcode::Send { immediate: None },
            flags: SendFlags::default(),
            to: None,
            inline: None,
            pieces: KeptPieces::new(pieces_max),
            is_reported: false,
            outcome: None,
        }
    }
}

impl ReceiveSlot {
    pub(crate) fn new(pieces_max: u32) -> Self {
        Self { pieces: KeptPieces::new(pieces_max) }
    }
}

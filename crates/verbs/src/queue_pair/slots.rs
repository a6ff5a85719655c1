//! The state that is stored for a work request until it completes.

use mem::RegionId;
use work::CompletionStatus;

use crate::work_request::{AddressVector, ScatterGather, SendFlags, SendOpcode};

/// State of a send.
#[derive(Debug)]
pub(crate) struct SendSlot {
    pub(crate) opcode: SendOpcode,
    pub(crate) flags: SendFlags,
    pub(crate) to: Option<AddressVector>,
    pub(crate) inline: Option<Inline>,
    pub(crate) pieces: KeptPieces,
    /// Whether the program wants a completion if the send succeeds.
    pub(crate) is_reported: bool,
    /// Status with which a datagram has completed; `None` if it has not completed.
    pub(crate) outcome: Option<CompletionStatus>,
}

/// State of a receive.
#[derive(Debug)]
pub(crate) struct ReceiveSlot {
    pub(crate) pieces: KeptPieces,
}

/// Location of inline bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inline {
    /// The region that the bytes were copied to.
    pub region: RegionId,
    /// Offset in the region, in bytes.
    pub offset: u64,
    /// Number of bytes.
    pub length: u32,
}

/// Scatter/gather entries of one work request, with room for the maximum number of entries that the
/// queue allows.
#[derive(Debug)]
pub(crate) struct KeptPieces {
    pieces: Box<[ScatterGather]>,
    count: usize,
}

impl KeptPieces {
    pub(crate) fn new(max: u32) -> Self {
        Self { pieces: vec![ScatterGather::default(); max as usize].into(), count: 0 }
    }

    /// Stores the entries. Drops the entries for which there is no room.
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

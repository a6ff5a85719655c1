//! Segments that have been checked: where their payload belongs, and what they belong to.

use wire_iwarp::{Cause, Opcode, ReadRequest, SEGMENT_HEADER_BYTES_MAX, Stag};

use crate::memory::{Access, Piece, Refusal};

/// Why the stream cannot go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fault {
    /// The peer broke a rule.
    Peer(Cause),
    /// Local memory cannot be used.
    Local(Refusal),
    /// No receive is posted for a message that may wait for one.
    NoReceiveYet,
}

/// An own read that is outstanding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutstandingRead {
    /// Number of the operation. `None` for the RTR read.
    pub(crate) number: Option<u64>,
    pub(crate) sink_stag: Stag,
    pub(crate) sink_offset: u64,
    pub(crate) size: u32,
    /// Bytes that have been placed.
    pub(crate) done: u32,
}

/// A read of the peer that is to be answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) request: ReadRequest,
    pub(crate) msn: u32,
}

impl Answer {
    /// Returns the range to read.
    pub(crate) fn source(&self) -> Piece {
        Piece {
            key: self.request.source_stag.0,
            address: self.request.source_offset,
            bytes: self.request.size,
        }
    }
}

/// The receive of a Send of which a part has arrived.
#[derive(Debug)]
pub(crate) struct CurrentReceive {
    pub(crate) id: u64,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) capacity: u64,
    pub(crate) done: u32,
    /// Opcode and STag of the first segment, which all segments share.
    pub(crate) opcode: Opcode,
    pub(crate) invalidate: Option<Stag>,
}

/// Where the payload of a segment belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// The peer's Write.
    Write { stag: Stag, offset: u64 },
    /// The answer to the oldest own read, from this byte on.
    Answer { at: u32 },
    /// The current receive, from this byte on.
    Receive { at: u32 },
    /// Nowhere: the RTR Send.
    Rtr,
}

/// A segment that has been checked, and where its payload belongs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement {
    pub(crate) target: Target,
    pub(crate) is_last: bool,
    /// Length of the payload.
    pub(crate) bytes: u32,
    /// Whether the payload ends a tagged message.
    pub(crate) is_tail: bool,
    header: [u8; SEGMENT_HEADER_BYTES_MAX],
    header_bytes: usize,
    pub(crate) ulpdu_length: u16,
}

impl Placement {
    pub(crate) fn new(target: Target, is_last: bool, bytes: u32) -> Self {
        let is_tagged = matches!(target, Target::Write { .. } | Target::Answer { .. });
        Self {
            target,
            is_last,
            bytes,
            is_tail: is_tagged && is_last,
            header: [0; SEGMENT_HEADER_BYTES_MAX],
            header_bytes: 0,
            ulpdu_length: 0,
        }
    }

    /// Returns the placement with the headers of its ULPDU, for a Terminate.
    pub(crate) fn with_header(mut self, ulpdu: &[u8], length: u16) -> Self {
        self.ulpdu_length = length;
        for (place, byte) in self.header.iter_mut().zip(ulpdu) {
            *place = *byte;
            self.header_bytes += 1;
        }
        self
    }

    /// Returns the headers of the ULPDU.
    pub(crate) fn header(&self) -> &[u8] {
        self.header.get(..self.header_bytes).unwrap_or_default()
    }

    /// Returns how the payload is placed.
    pub(crate) fn access(&self) -> Access {
        match self.target {
            Target::Write { .. } => Access::RemoteWrite,
            Target::Answer { .. } => Access::LocalWrite,
            Target::Receive { .. } | Target::Rtr => Access::Receive,
        }
    }

    /// Returns what a refusal of the memory means.
    pub(crate) fn fault(&self, refusal: Refusal) -> Fault {
        match self.target {
            Target::Write { .. } => Fault::Peer(refusal.cause_of_write()),
            _ => Fault::Local(refusal),
        }
    }
}

/// The pieces of a placement.
pub(crate) enum Pieces<A, B> {
    One(Option<Piece>),
    Read(A),
    Receive(B),
}

impl<A: Iterator<Item = Piece>, B: Iterator<Item = Piece>> Iterator for Pieces<A, B> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        match self {
            Self::One(piece) => piece.take(),
            Self::Read(pieces) => pieces.next(),
            Self::Receive(pieces) => pieces.next(),
        }
    }
}

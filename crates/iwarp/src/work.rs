//! Operations that a user posts, and the ring that keeps them until they complete.

use std::collections::VecDeque;

use wire_iwarp::Stag;

use crate::config::{Config, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, PIECES_MAX};
use crate::event::{Kind, Status};
use crate::memory::{Access, Piece};

/// What an operation does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WorkKind {
    /// Writes the payload into a buffer of the peer.
    Write {
        /// The peer's buffer.
        stag: Stag,
        /// Tagged offset of the first byte there.
        offset: u64,
    },
    /// Reads from a buffer of the peer into the pieces.
    Read {
        /// The peer's buffer.
        stag: Stag,
        /// Tagged offset of the first byte there.
        offset: u64,
    },
    /// Sends the payload as a message.
    Send {
        /// Whether the receiver is to get an event.
        solicited: bool,
        /// The STag that the receiver is to invalidate.
        invalidate: Option<Stag>,
    },
}

impl WorkKind {
    /// Returns the kind that the completion reports.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Write { .. } => Kind::Write,
            Self::Read { .. } => Kind::Read,
            Self::Send { .. } => Kind::Send,
        }
    }
}

/// The payload of an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Payload<'a> {
    /// Ranges of registered memory. They must not change until the operation completes.
    Pieces(&'a [Piece]),
    /// Bytes that posting copies, at most [`INLINE_BYTES_MAX`].
    Inline(&'a [u8]),
}

/// An operation to post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Work<'a> {
    /// Identifier that the completion reports.
    pub id: u64,
    /// What the operation does.
    pub kind: WorkKind,
    /// The payload, or the pieces into which a read places.
    pub payload: Payload<'a>,
    /// Whether success is reported.
    pub signaled: bool,
    /// Whether the operation waits until all earlier reads have completed.
    pub fence: bool,
}

/// Why an operation cannot be posted. The fault is the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The stream does not carry messages yet, or has ended.
    #[error("the stream carries no messages now")]
    NotConnected,
    /// The ring of operations, pieces or inline bytes is full. Post again after a completion.
    #[error("too many operations are outstanding")]
    Full,
    /// The payload has too many pieces.
    #[error("{0} pieces, more than {PIECES_MAX}")]
    Pieces(usize),
    /// The inline payload is too long.
    #[error("{0} bytes of inline payload, more than {INLINE_BYTES_MAX}")]
    Inline(usize),
    /// The message is too long.
    #[error("{0} bytes, more than {MESSAGE_BYTES_MAX}")]
    Length(u64),
    /// A read cannot have inline payload.
    #[error("a read with inline payload")]
    InlineRead,
    /// The peer answers no reads.
    #[error("the peer answers no reads")]
    NoReads,
    /// The range at the peer exceeds 64 bits.
    #[error("the range at the peer exceeds 64 bits")]
    Wraps,
}

/// A posted operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) kind: WorkKind,
    pub(crate) bytes: u32,
    pub(crate) fence: bool,
    signaled: bool,
    /// `None` while the operation is outstanding.
    status: Option<Status>,
    /// Number of the first piece, counted over the life of the ring.
    first_piece: u64,
    pieces: u32,
    inline_bytes: u32,
    /// Number of the first inline byte, counted over the life of the ring.
    first_inline: u64,
    is_inline: bool,
}

/// Keeps the posted operations in order, with their pieces and inline bytes, in three rings that
/// grow up to the sizes that are set at creation. An operation has a number, counted from 0 in the
/// order of posting. Operations leave the ring in this order, so pieces and bytes do, too.
#[derive(Debug)]
pub(crate) struct WorkRing {
    entries: VecDeque<Entry>,
    pieces: VecDeque<Piece>,
    inline: VecDeque<u8>,
    entries_max: usize,
    pieces_max: usize,
    inline_max: usize,
    /// Number of the oldest entry.
    base: u64,
    /// Number of the oldest piece.
    pieces_base: u64,
    /// Number of the oldest inline byte.
    inline_base: u64,
}

impl WorkRing {
    pub(crate) fn new(config: &Config) -> Self {
        let entries_max = usize::from(config.work_capacity);
        let pieces_max = usize::from(config.pieces_capacity);
        let inline_max = usize::from(config.inline_capacity);
        Self {
            entries: VecDeque::new(),
            pieces: VecDeque::new(),
            inline: VecDeque::new(),
            entries_max,
            pieces_max,
            inline_max,
            base: 0,
            pieces_base: 0,
            inline_base: 0,
        }
    }

    /// Releases memory that earlier operations have left.
    pub(crate) fn release(&mut self) {
        self.entries.shrink_to_fit();
        self.pieces.shrink_to_fit();
        self.inline.shrink_to_fit();
    }

    /// Appends an operation. Allocates if more operations are outstanding than ever before.
    pub(crate) fn post(&mut self, work: &Work<'_>) -> Result<(), PostError> {
        let length = match work.payload {
            Payload::Pieces(pieces) => {
                if pieces.len() > PIECES_MAX {
                    return Err(PostError::Pieces(pieces.len()));
                }
                pieces.iter().map(|piece| u64::from(piece.bytes)).sum()
            }
            Payload::Inline(bytes) => {
                if bytes.len() > INLINE_BYTES_MAX {
                    return Err(PostError::Inline(bytes.len()));
                }
                bytes.len() as u64
            }
        };
        let bytes = u32::try_from(length).ok().filter(|bytes| *bytes <= MESSAGE_BYTES_MAX);
        let bytes = bytes.ok_or(PostError::Length(length))?;
        match work.kind {
            WorkKind::Read { .. } if matches!(work.payload, Payload::Inline(_)) => {
                return Err(PostError::InlineRead);
            }
            WorkKind::Read { offset, .. } | WorkKind::Write { offset, .. }
                if offset.checked_add(length).is_none() =>
            {
                return Err(PostError::Wraps);
            }
            _ => {}
        }
        let (pieces, inline, is_inline) = match work.payload {
            Payload::Pieces(pieces) => (pieces, &[][..], false),
            Payload::Inline(bytes) => (&[][..], bytes, true),
        };
        if self.entries.len() >= self.entries_max
            || self.pieces.len() + pieces.len() > self.pieces_max
            || self.inline.len() + inline.len() > self.inline_max
        {
            return Err(PostError::Full);
        }
        self.entries.push_back(Entry {
            id: work.id,
            kind: work.kind,
            bytes,
            fence: work.fence,
            signaled: work.signaled,
            status: None,
            first_piece: self.pieces_base + self.pieces.len() as u64,
            pieces: pieces.len() as u32,
            first_inline: self.inline_base + self.inline.len() as u64,
            inline_bytes: inline.len() as u32,
            is_inline,
        });
        self.pieces.extend(pieces);
        self.inline.extend(inline);
        Ok(())
    }

    /// Returns how many operations can be posted now, if they need no pieces.
    pub(crate) fn free(&self) -> usize {
        self.entries_max - self.entries.len()
    }

    /// Returns whether no operation is in the ring.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the operation with this number.
    pub(crate) fn get(&self, number: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(number.checked_sub(self.base)?).ok()?)
    }

    /// Sets how the operation with this number ended, if it is outstanding.
    pub(crate) fn finish(&mut self, number: u64, status: Status) {
        let index = number.checked_sub(self.base).and_then(|index| usize::try_from(index).ok());
        if let Some(entry) = index.and_then(|index| self.entries.get_mut(index)) {
            entry.status.get_or_insert(status);
        }
    }

    /// Ends all outstanding operations.
    pub(crate) fn flush(&mut self) {
        for entry in &mut self.entries {
            entry.status.get_or_insert(Status::Flushed);
        }
    }

    /// Takes the oldest operation whose end is to be reported, with its status. Operations leave the
    /// ring in the order of posting.
    pub(crate) fn take_finished(&mut self) -> Option<(Entry, Status)> {
        loop {
            let entry = *self.entries.front()?;
            let status = entry.status?;
            self.entries.pop_front();
            self.base += 1;
            self.pieces.drain(..entry.pieces as usize);
            self.pieces_base += u64::from(entry.pieces);
            self.inline.drain(..entry.inline_bytes as usize);
            self.inline_base += u64::from(entry.inline_bytes);
            if entry.signaled || status != Status::Success {
                return Some((entry, status));
            }
        }
    }

    /// Returns the first piece of the operation.
    pub(crate) fn first_piece(&self, entry: &Entry) -> Option<Piece> {
        if entry.pieces == 0 { None } else { self.piece(entry.first_piece) }
    }

    /// Returns whether the payload is inline.
    pub(crate) fn is_inline(entry: &Entry) -> bool {
        entry.is_inline
    }

    /// Copies inline payload, from `offset` on, to `out`.
    pub(crate) fn copy_inline(&self, entry: &Entry, offset: u32, out: &mut [u8]) {
        let start = (entry.first_inline - self.inline_base) as usize + offset as usize;
        for (place, byte) in out.iter_mut().zip(self.inline.iter().skip(start)) {
            *place = *byte;
        }
    }

    /// Returns the parts of the operation's pieces that hold `bytes` bytes of the payload from
    /// `offset` on. Costs a step for each piece.
    pub(crate) fn parts(
        &self,
        entry: &Entry,
        offset: u32,
        bytes: u32,
    ) -> impl Iterator<Item = Piece> + use<'_> {
        let numbers = entry.first_piece..entry.first_piece + u64::from(entry.pieces);
        parts(numbers.filter_map(|number| self.piece(number)), offset, bytes)
    }

    fn piece(&self, number: u64) -> Option<Piece> {
        self.pieces.get(usize::try_from(number.checked_sub(self.pieces_base)?).ok()?).copied()
    }
}

/// Returns the parts of `pieces` that hold `bytes` bytes from `offset` on, without empty parts.
pub(crate) fn parts(
    pieces: impl Iterator<Item = Piece>,
    offset: u32,
    bytes: u32,
) -> impl Iterator<Item = Piece> {
    let mut skip = offset;
    let mut left = bytes;
    pieces.filter_map(move |piece| {
        let start = skip.min(piece.bytes);
        skip -= start;
        let length = left.min(piece.bytes - start);
        left -= length;
        (length > 0).then(|| piece.part(start, length))
    })
}

/// The access by which the payload of own operations is read.
pub(crate) const PAYLOAD: Access = Access::LocalRead;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_grows_up_to_its_size_and_releases_its_memory_when_it_is_empty() {
        let config = Config { work_capacity: 8, pieces_capacity: 8, ..Config::default() };
        let mut ring = WorkRing::new(&config);
        let piece = Piece { key: 1, address: 0, bytes: 1 };
        let write = |id| Work {
            id,
            kind: WorkKind::Write { stag: Stag(1), offset: 0 },
            payload: Payload::Pieces(std::slice::from_ref(&piece)),
            signaled: true,
            fence: false,
        };
        for _ in 0..2 {
            for id in 0..8 {
                ring.post(&write(id)).expect("there is room");
            }
            assert_eq!(ring.post(&write(8)), Err(PostError::Full));
            ring.flush();
            while ring.take_finished().is_some() {}
            ring.release();
            assert_eq!([ring.entries.capacity(), ring.pieces.capacity()], [0, 0]);
        }
    }
}

//! The next bytes of a stream, in the form in which a driver writes them.

use std::ops::Range;

use crate::cursor::Cursor;
use crate::memory::{Access, Piece};

/// Number of bytes after which a stream lets others write.
pub const TURN_BYTES: usize = 256 * 1024;

/// Number of copied bytes after which a turn ends: room for one long FPDU with a CRC. If TCP has no
/// room, the FPDUs behind the first one that it does not take are built again, so that many copied
/// payloads would be copied in vain. The kernel also finds so few bytes in the processor's cache.
const COPIED_TURN_BYTES: usize = 60 * 1024;

/// Number of parts after which a turn ends. One FPDU adds up to 34, and Linux takes 1024 a call.
const PARTS_MAX: usize = 512;

/// A part of the bytes to write.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Part {
    /// These bytes of [`Gather::bytes`].
    Bytes(Range<usize>),
    /// A range of registered memory, which the stream has checked for this access.
    Memory {
        /// The range.
        piece: Piece,
        /// The access: [`Access::LocalRead`] or [`Access::RemoteRead`].
        access: Access,
    },
}

impl Part {
    /// Returns the length of the part in bytes.
    pub fn length(&self) -> usize {
        match self {
            Self::Bytes(range) => range.len(),
            Self::Memory { piece, .. } => piece.bytes as usize,
        }
    }
}

/// One frame of a gather.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    /// Length of the gather with this frame, in bytes.
    pub(crate) end: usize,
    /// Where the sender is after this frame.
    pub(crate) after: Cursor,
}

/// The next bytes of a stream. One gather serves all streams of a thread in turn, so that an idle
/// stream needs no memory for it.
///
/// A driver passes it to [`crate::Stream::poll_transmit`], writes a prefix of [`Gather::parts`] to
/// the socket, and passes it to [`crate::Stream::handle_written`] before any other call of the
/// stream.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    /// Room for copied bytes. It is as long as it ever was, so that no room is cleared twice.
    room: Vec<u8>,
    /// Number of copied bytes.
    copied: usize,
    parts: Vec<Part>,
    frames: Vec<Frame>,
    total: usize,
    /// Room for an FPDU into which markers are to be put.
    pub(crate) unmarked: Vec<u8>,
}

impl Gather {
    /// Returns an empty gather. It keeps the memory that it needs for the largest turn.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the bytes to which [`Part::Bytes`] refers.
    pub fn bytes(&self) -> &[u8] {
        self.room.get(..self.copied).unwrap_or_default()
    }

    /// Returns the parts to write, in order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the number of bytes to write.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns whether nothing is to be written.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the lengths of the frames in bytes, in order. A driver whose peer wants one FPDU a
    /// segment ends a segment after each.
    pub fn frame_lengths(&self) -> impl Iterator<Item = usize> + '_ {
        let starts = std::iter::once(0).chain(self.frames.iter().map(|frame| frame.end));
        self.frames.iter().zip(starts).map(|(frame, start)| frame.end - start)
    }

    /// Empties the gather.
    pub(crate) fn clear(&mut self) {
        self.copied = 0;
        self.parts.clear();
        self.frames.clear();
        self.total = 0;
    }

    /// Returns whether another frame fits into the turn.
    pub(crate) fn has_room(&self) -> bool {
        self.total < TURN_BYTES && self.copied < COPIED_TURN_BYTES && self.parts.len() < PARTS_MAX
    }

    /// Returns the state to which [`Gather::discard_to`] returns.
    pub(crate) fn mark(&self) -> (usize, usize, usize) {
        (self.copied, self.parts.len(), self.total)
    }

    /// Discards what was added to an unfinished frame.
    pub(crate) fn discard_to(&mut self, (bytes, parts, total): (usize, usize, usize)) {
        self.copied = bytes;
        self.parts.truncate(parts);
        self.total = total;
        // The last part that stays may have grown.
        if let Some(Part::Bytes(range)) = self.parts.last_mut() {
            range.end = range.end.min(bytes);
        }
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let start = self.copied;
        self.place(bytes.len()).copy_from_slice(bytes);
        self.add(Part::Bytes(start..self.copied));
    }

    /// Appends `length` bytes that `fill` writes.
    pub(crate) fn put_with<E>(
        &mut self,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let start = self.copied;
        fill(self.place(length))?;
        self.add(Part::Bytes(start..self.copied));
        Ok(())
    }

    /// Returns the place of the next `length` copied bytes. It may hold old bytes.
    fn place(&mut self, length: usize) -> &mut [u8] {
        let start = self.copied;
        self.copied += length;
        if self.room.len() < self.copied {
            self.room.resize(self.copied, 0);
        }
        self.room.get_mut(start..self.copied).unwrap_or_default()
    }

    /// Appends a range of memory.
    pub(crate) fn put_memory(&mut self, piece: Piece, access: Access) {
        self.add(Part::Memory { piece, access });
    }

    /// Ends a frame.
    pub(crate) fn end_frame(&mut self, after: Cursor) {
        self.frames.push(Frame { end: self.total, after });
    }

    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Appends a part. Bytes that follow bytes become one part with them, so that a driver's list
    /// stays short.
    fn add(&mut self, part: Part) {
        self.total += part.length();
        if let (Part::Bytes(new), Some(Part::Bytes(last))) = (&part, self.parts.last_mut()) {
            last.end = new.end;
        } else {
            self.parts.push(part);
        }
    }
}

/// The rest of a frame of which TCP has taken a part.
#[derive(Clone, Debug)]
pub(crate) struct Rest {
    pub(crate) bytes: Vec<u8>,
    pub(crate) parts: Vec<Part>,
    /// Where the sender is after the frame.
    pub(crate) after: Cursor,
}

impl Rest {
    /// Returns what is left of the frame number `index` of the gather if TCP has taken `written`
    /// bytes of the gather.
    ///
    /// Copies the bytes that are not in registered memory: headers, or a payload under CRC, of at
    /// most 64 KiB. It allocates, which happens once for each time that the socket is full.
    pub(crate) fn of(out: &Gather, index: usize, written: usize) -> Option<Self> {
        let frame = out.frames.get(index)?;
        let (mut skip, mut left) = (written, frame.end - written);
        let mut rest = Self { bytes: Vec::new(), parts: Vec::new(), after: frame.after };
        for part in &out.parts {
            let skipped = skip.min(part.length());
            let taken = left.min(part.length() - skipped);
            skip -= skipped;
            left -= taken;
            if taken == 0 {
                continue;
            }
            match part {
                Part::Bytes(range) => {
                    let first = rest.bytes.len();
                    let start = range.start + skipped;
                    let bytes = out.bytes().get(start..start + taken).unwrap_or_default();
                    rest.bytes.extend_from_slice(bytes);
                    rest.parts.push(Part::Bytes(first..rest.bytes.len()));
                }
                Part::Memory { piece, access } => {
                    let piece = piece.part(skipped as u32, taken as u32);
                    rest.parts.push(Part::Memory { piece, access: *access });
                }
            }
        }
        Some(rest)
    }
}

impl Rest {
    /// Returns whether the rest refers to registered memory.
    pub(crate) fn has_memory(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Memory { .. }))
    }
}

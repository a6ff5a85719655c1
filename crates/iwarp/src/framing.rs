//! The bytes of an FPDU that has arrived in part.

use wire_iwarp::{Crc, FpduLayout, LENGTH_BYTES, MarkerStripper};

use crate::placement::Placement;

/// Keeps the bytes of an FPDU until they can be handled.
///
/// Without CRC, only the headers of an FPDU wait for each other: its payload is placed as it
/// arrives. With CRC or with markers, the whole FPDU waits.
#[derive(Debug)]
pub(crate) struct Input {
    /// The first bytes of the FPDU, without markers, or of the set-up frame.
    pub(crate) buffer: Vec<u8>,
    /// Number of bytes in `buffer` with which the next step is possible.
    pub(crate) needed: usize,
    /// The FPDU whose payload is being placed. `buffer` is empty then.
    pub(crate) streamed: Option<Streamed>,
    pub(crate) stripper: MarkerStripper,
    /// CRC of the bytes of the FPDU and of the markers in it, if there are markers.
    pub(crate) marked_crc: Crc,
    /// Whether a marker before the FPDU has begun.
    pub(crate) is_in_marker: bool,
    /// Whether a message waits for a receive. `buffer` may have its first bytes.
    pub(crate) is_waiting: bool,
    /// Whether a message that waits ends the stream.
    pub(crate) is_given_up: bool,
    /// The bytes of the message that waits, without those in `buffer`, and what follows.
    pub(crate) held: Vec<u8>,
}

/// An FPDU whose payload is placed while it arrives.
#[derive(Debug)]
pub(crate) struct Streamed {
    pub(crate) placement: Placement,
    /// Payload bytes that have arrived.
    pub(crate) done: u32,
    /// The last word of a tagged message, which is placed when it is complete.
    pub(crate) tail: [u8; TAIL_BYTES],
    /// Bytes of pads and CRC that are still to come. Meaningful when the payload is complete.
    pub(crate) trailer: usize,
}

/// Number of bytes at the end of a tagged message that are placed at once. It covers the widest word
/// on which programs poll.
pub(crate) const TAIL_BYTES: usize = 8;

impl Streamed {
    /// Returns the number of payload bytes that are placed as they arrive.
    pub(crate) fn body_bytes(&self) -> u32 {
        let tail = if self.placement.is_tail { TAIL_BYTES as u32 } else { 0 };
        self.placement.bytes.saturating_sub(tail)
    }
}

impl Input {
    pub(crate) fn new() -> Self {
        Self {
            buffer: Vec::new(),
            needed: LENGTH_BYTES,
            streamed: None,
            stripper: MarkerStripper::new(),
            marked_crc: Crc::new(),
            is_in_marker: false,
            is_waiting: false,
            is_given_up: false,
            held: Vec::new(),
        }
    }

    /// Returns whether the last received byte ended an FPDU.
    pub(crate) fn is_at_boundary(&self) -> bool {
        self.buffer.is_empty() && self.streamed.is_none() && !self.is_in_marker && !self.is_waiting
    }

    /// Returns the bytes of the set-up frame so far with these.
    pub(crate) fn setup_bytes(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Keeps the bytes of an incomplete set-up frame.
    pub(crate) fn keep_setup_bytes(&mut self, bytes: Vec<u8>) {
        self.buffer = bytes;
    }

    /// Empties the buffer, and takes over its memory from `buffer`.
    pub(crate) fn restart(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.buffer = buffer;
        self.needed = LENGTH_BYTES;
        self.marked_crc = Crc::new();
        self.is_in_marker = false;
    }

    pub(crate) fn release(&mut self) {
        self.buffer.shrink_to_fit();
    }
}

/// Returns the length of the ULPDU of the FPDU that begins with these bytes, if they contain it.
pub(crate) fn ulpdu_length(bytes: &[u8]) -> Option<u16> {
    bytes.first_chunk().map(|length| u16::from_be_bytes(*length))
}

/// Returns the length of the FPDU that begins with these bytes, if they contain its length field.
pub(crate) fn fpdu_length(bytes: &[u8]) -> Option<usize> {
    ulpdu_length(bytes).map(|length| FpduLayout::of(length).total)
}

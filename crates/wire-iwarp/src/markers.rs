//! Markers of MPA: 4 bytes in every 512 bytes of the stream, which point back to the start of the
//! FPDU that they are in (RFC 5044 sections 4.2 and 4.3).
//!
//! The first FPDU begins with a marker, and further markers follow every 512 bytes, markers
//! counted. A marker at the boundary of two FPDUs belongs to the second. As FPDUs and markers have
//! lengths that are multiples of 4, a marker never divides a length field or a CRC field.
//!
//! A marker is covered by the CRC of the FPDU that it is in (RFC 5044 section 4.4).

use core::ops::Range;

use crate::cause::Cause;
use crate::fpdu::FpduLayout;

/// Number of bytes of the stream from one marker to the next.
pub const MARKER_INTERVAL: usize = 512;

/// Length of a marker in bytes: 2 reserved, and the offset of the marker in its FPDU.
pub const MARKER_BYTES: usize = 4;

/// Length of the longest ULPDU in bytes that a sender may send with markers. The FPDU has at most
/// 65,536 bytes then, so that 16 bits hold the offset of every marker.
pub const MARKED_ULPDU_MAX: usize = 65_018;

/// Number of bytes between two markers.
const BETWEEN: usize = MARKER_INTERVAL - MARKER_BYTES;

/// Where a sender is between two markers. Lasts as long as the stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MarkerPosition {
    /// Bytes of the stream since the last marker began, below 512. 0 if a marker is next.
    since_marker: usize,
}

/// A part of an FPDU with markers, in the order of the wire.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Part {
    /// A marker.
    Marker([u8; MARKER_BYTES]),
    /// These bytes of the FPDU, counted without markers.
    Bytes(Range<usize>),
}

/// The parts of one FPDU with markers, in the order of the wire.
#[derive(Clone, Debug)]
pub struct FpduParts {
    since_marker: usize,
    /// Bytes of the FPDU that are in earlier parts.
    done: usize,
    /// Bytes of the FPDU without markers.
    total: usize,
    /// Bytes of the stream since the length field of the FPDU began.
    pointer: usize,
}

impl MarkerPosition {
    /// Returns the position at the start of the first FPDU.
    pub const fn new() -> Self {
        Self { since_marker: 0 }
    }

    /// Returns the number of markers in the next FPDU, if it has this layout.
    pub const fn markers_in(self, layout: FpduLayout) -> usize {
        let ahead = (MARKER_INTERVAL - self.since_marker) % MARKER_INTERVAL;
        if layout.total > ahead { 1 + (layout.total - ahead - 1) / BETWEEN } else { 0 }
    }

    /// Returns the parts of the next FPDU, whose ULPDU has at most [`MARKED_ULPDU_MAX`] bytes, and
    /// moves to its end. Allocates nothing; the iterator costs some additions a part.
    #[must_use]
    pub fn take_fpdu(&mut self, layout: FpduLayout) -> FpduParts {
        let length = layout.total + MARKER_BYTES * self.markers_in(layout);
        let since_marker = self.since_marker;
        self.since_marker = (since_marker + length) % MARKER_INTERVAL;
        FpduParts { since_marker, done: 0, total: layout.total, pointer: 0 }
    }
}

impl Iterator for FpduParts {
    type Item = Part;

    //= RFC 5044 section 4.2: a marker has the number of bytes since the length field of its FPDU
    //= RFC 5044 section 4.3: the stream has a marker in every 512 bytes, beginning with its first
    fn next(&mut self) -> Option<Part> {
        if self.done == self.total {
            return None;
        }
        if self.since_marker == 0 {
            let [high, low] = (self.pointer as u16).to_be_bytes();
            self.since_marker = MARKER_BYTES;
            // The length field follows a marker that is at the start of the FPDU.
            if self.done > 0 {
                self.pointer += MARKER_BYTES;
            }
            return Some(Part::Marker([0, 0, high, low]));
        }
        let length = (MARKER_INTERVAL - self.since_marker).min(self.total - self.done);
        let start = self.done;
        self.since_marker = (self.since_marker + length) % MARKER_INTERVAL;
        self.done += length;
        self.pointer += length;
        Some(Part::Bytes(start..self.done))
    }
}

/// What the next bytes of a received stream are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Run {
    /// So many bytes belong to a marker. Remove them, but pass them to the CRC of the FPDU.
    Marker(usize),
    /// So many bytes belong to FPDUs.
    Bytes(usize),
}

/// A marker does not point to the start of its FPDU.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a marker {expected} bytes behind the start of its FPDU says {found} bytes")]
pub struct MarkerError {
    /// Offset of the marker in its FPDU, in bytes.
    pub expected: usize,
    /// The offset that the marker has.
    pub found: u16,
}

impl MarkerError {
    /// Returns what a Terminate that answers this error says.
    pub const fn cause(self) -> Cause {
        Cause::MpaMarkerAndLength
    }
}

/// Finds the markers in a received stream, in any cut of the stream, and checks them. Lasts as long
/// as the stream.
///
/// It reads the length fields of FPDUs, to know where FPDUs begin.
#[derive(Clone, Copy, Debug, Default)]
pub struct MarkerStripper {
    /// Bytes of the stream since the last marker began, below 512. Below 4 inside of a marker.
    since_marker: usize,
    /// The bytes of the marker so far.
    marker: [u8; MARKER_BYTES],
    /// Bytes of the FPDU so far, without markers.
    done: usize,
    /// The length field of the FPDU, complete if `done` is 2 or more.
    length: [u8; 2],
    /// Bytes of the markers that are behind the length field of the FPDU.
    marker_bytes: usize,
}

impl MarkerStripper {
    /// Returns the state at the start of the first FPDU.
    pub fn new() -> Self {
        Self::default()
    }

    //= RFC 5044 section 8: a marker and a length field that disagree are an error
    /// Says what the first bytes of `bytes`, the next ones of the stream, are. Call it again with
    /// the rest. Returns `Run::Bytes(0)` for no bytes only. Costs some additions for each FPDU that
    /// begins in the run.
    ///
    /// # Errors
    /// Returns [`MarkerError`] if a marker ends in these bytes and does not point to the start of
    /// its FPDU. The stream is lost then.
    pub fn next_run(&mut self, bytes: &[u8]) -> Result<Run, MarkerError> {
        if self.since_marker >= MARKER_BYTES {
            let length = bytes.len().min(MARKER_INTERVAL - self.since_marker);
            self.pass(bytes.get(..length).unwrap_or_default());
            self.since_marker = (self.since_marker + length) % MARKER_INTERVAL;
            return Ok(Run::Bytes(length));
        }
        if bytes.is_empty() {
            return Ok(Run::Bytes(0));
        }
        let mut length = 0;
        for (place, byte) in self.marker.iter_mut().skip(self.since_marker).zip(bytes) {
            *place = *byte;
            length += 1;
        }
        self.since_marker += length;
        if self.since_marker == MARKER_BYTES {
            self.check_marker()?;
        }
        Ok(Run::Marker(length))
    }

    fn check_marker(&mut self) -> Result<(), MarkerError> {
        let [_, _, high, low] = self.marker;
        let found = u16::from_be_bytes([high, low]);
        let expected = self.done + self.marker_bytes;
        if usize::from(found) != expected {
            return Err(MarkerError { expected, found });
        }
        // The length field follows a marker that is at the start of the FPDU.
        if self.done > 0 {
            self.marker_bytes += MARKER_BYTES;
        }
        Ok(())
    }

    /// Passes over bytes of FPDUs.
    fn pass(&mut self, mut bytes: &[u8]) {
        while let Some((first, rest)) = bytes.split_first() {
            if let Some(place) = self.length.get_mut(self.done) {
                *place = *first;
                self.done += 1;
                bytes = rest;
                continue;
            }
            let total = FpduLayout::of(u16::from_be_bytes(self.length)).total;
            let length = bytes.len().min(total - self.done);
            self.done += length;
            bytes = bytes.get(length..).unwrap_or_default();
            if self.done == total {
                (self.done, self.marker_bytes) = (0, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::fpdu::{PAD_BYTES_MAX, ULPDU_MAX, encode_length};

    /// Returns FPDUs of these lengths without markers: the length field, then bytes that are never
    /// 0, so that they differ from markers.
    fn fpdus(lengths: &[u16]) -> Vec<Vec<u8>> {
        let fpdu = |&length| {
            let mut bytes = vec![0xaa; FpduLayout::of(length).total];
            bytes[..2].copy_from_slice(&encode_length(length));
            bytes
        };
        lengths.iter().map(fpdu).collect()
    }

    /// Returns the stream of these FPDUs with markers.
    fn marked(fpdus: &[Vec<u8>]) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut position = MarkerPosition::new();
        for fpdu in fpdus {
            let layout = FpduLayout::of(u16::from_be_bytes([fpdu[0], fpdu[1]]));
            let count = position.markers_in(layout);
            let before = stream.len();
            for part in position.take_fpdu(layout) {
                match part {
                    Part::Marker(marker) => stream.extend(marker),
                    Part::Bytes(range) => stream.extend(&fpdu[range]),
                }
            }
            assert_eq!(stream.len() - before, fpdu.len() + count * MARKER_BYTES);
        }
        stream
    }

    /// Removes the markers from pieces of a stream.
    fn stripped<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, MarkerError> {
        let mut stripper = MarkerStripper::new();
        let mut stream = Vec::new();
        for mut piece in pieces {
            while !piece.is_empty() {
                let length = match stripper.next_run(piece)? {
                    Run::Marker(length) => length,
                    Run::Bytes(length) => {
                        stream.extend(&piece[..length]);
                        length
                    }
                };
                assert!(length > 0, "every run makes progress");
                piece = &piece[length..];
            }
        }
        Ok(stream)
    }

    //= RFC 5044 section 4.2: a marker has the number of bytes since the length field of its FPDU
    //= RFC 5044 section 4.3: the stream has a marker in every 512 bytes, beginning with its first
    #[test]
    fn markers_are_where_the_rfc_places_them() {
        // The second FPDU ends at byte 512 of the stream, so its successor begins with a marker.
        let fpdus = fpdus(&[94, 402, 1000]);
        let stream = marked(&fpdus);
        assert_eq!(stream[..6], [0, 0, 0, 0, 0, 94]);
        assert_eq!(stream[512..518], [0, 0, 0, 0, 0x03, 0xe8]);
        assert_eq!(stream[1024..1028], [0, 0, 0x01, 0xfc], "508 bytes since byte 516");
        assert_eq!(stream.len(), 512 + 1008 + 2 * MARKER_BYTES);
    }

    #[test]
    fn a_marker_before_the_crc_field_belongs_to_its_fpdu() {
        let fpdus = fpdus(&[506]);
        let stream = marked(&fpdus);
        assert_eq!(stream.len(), 4 + 512 + 4);
        assert_eq!(stream[512..516], [0, 0, 0x01, 0xfc]);
    }

    #[test]
    fn the_longest_ulpdu_has_markers_of_16_bits() {
        let layout = FpduLayout::of(MARKED_ULPDU_MAX as u16);
        for since_marker in (0..MARKER_INTERVAL).step_by(4) {
            let parts = MarkerPosition { since_marker }.take_fpdu(layout);
            let mut at = 0;
            let mut front = 0;
            for part in parts {
                match part {
                    Part::Marker(marker) => {
                        if at == 0 {
                            front = MARKER_BYTES;
                        }
                        let pointer = usize::from(u16::from_be_bytes([marker[2], marker[3]]));
                        assert_eq!(pointer, at.max(front) - front, "no marker wraps");
                        at += MARKER_BYTES;
                    }
                    Part::Bytes(range) => at += range.len(),
                }
            }
        }
        const { assert!(MARKED_ULPDU_MAX + PAD_BYTES_MAX < ULPDU_MAX) }
    }

    //= RFC 5044 section 8: a marker and a length field that disagree are an error
    #[test]
    fn a_misplaced_marker_is_refused() {
        let mut stream = marked(&fpdus(&[94, 700]));
        stream[515] += 4;
        let expected = 512 - 4 - 100;
        let found = expected as u16 + 4;
        let error = MarkerError { expected, found };
        assert_eq!(stripped([&stream[..]]), Err(error));
        assert_eq!(error.cause(), Cause::MpaMarkerAndLength);
        let mut stream = marked(&fpdus(&[94, 700]));
        stream[5] += 4;
        assert!(stripped([&stream[..]]).is_err(), "the length field is wrong");
    }

    #[test]
    fn the_reserved_bytes_of_a_marker_are_ignored() {
        let fpdus = fpdus(&[94]);
        let mut stream = marked(&fpdus);
        stream[..2].copy_from_slice(&[7, 7]);
        assert_eq!(stripped([&stream[..]]), Ok(fpdus.concat()));
    }

    proptest! {
        #[test]
        fn the_stream_without_markers_is_that_of_the_sender(
            lengths in vec(prop_oneof![0..600_u16, 0..4_000_u16, 64_000..65_018_u16], 0..8),
            piece_bytes in vec(1..2_000_usize, 1..8),
        ) {
            let fpdus = fpdus(&lengths);
            let stream = marked(&fpdus);
            for (at, marker) in stream.chunks(MARKER_INTERVAL).enumerate() {
                prop_assert_eq!(&marker[..2], &[0, 0], "the marker {}", at);
            }
            let mut pieces = Vec::new();
            let mut rest = &stream[..];
            for length in piece_bytes.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, tail) = rest.split_at((*length).min(rest.len()));
                pieces.push(piece);
                rest = tail;
            }
            prop_assert_eq!(stripped(pieces), Ok(fpdus.concat()));
            prop_assert_eq!(stripped(stream.chunks(1)), Ok(fpdus.concat()));
        }

        #[test]
        fn any_stream_is_stripped_or_refused(bytes in vec(any::<u8>(), 0..3_000), zeros: bool) {
            let mut bytes = bytes;
            if zeros {
                bytes.iter_mut().take(4).for_each(|byte| *byte = 0);
            }
            let _ = stripped(bytes.chunks(7));
        }
    }
}

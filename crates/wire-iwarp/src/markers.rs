//! Markers of MPA: 4 bytes in every 512 bytes of the stream, which point back to the start of the
//! FPDU that they are in (RFC 5044 section 4.3).
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

    //= RFC 5044 section 4.3: a marker has the number of bytes since the length field of its FPDU
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

    //= RFC 5044 section 4.3: the receiver checks that markers and length fields agree
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

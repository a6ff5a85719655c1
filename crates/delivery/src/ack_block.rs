//! What one link block of an ack section says (`docs/protocol.md`, 3.3), until `wire-edge` has it.

use wire_edge::LinkIndex;

/// Time in units of 64 ns, saturating at about 4.2 ms.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub struct AckDelay(pub u16);

impl AckDelay {
    /// The nearest representable time that is not longer than `ns` nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        let units = ns / 64;
        Self(if units > u16::MAX as u64 { u16::MAX } else { units as u16 })
    }
}

/// Acknowledges packets of one link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckBlock {
    /// Whose packets.
    pub link: LinkIndex,
    /// Frames received with a congestion mark so far, modulo 2^16.
    pub marked: u16,
    /// From the arrival of `largest` to this acknowledgement.
    pub delay: AckDelay,
    /// Packets received without a gap up to and including `largest`, 1 to 65535.
    pub run: u16,
    /// Low 32 bits of the largest packet number received.
    pub largest: u32,
    /// Words of `bitmap` that are sent, 0 to 8.
    pub words: u8,
    /// Bit i of word w: packet `largest − run − 1 − (64 w + i)` was received.
    pub bitmap: [u64; 8],
}

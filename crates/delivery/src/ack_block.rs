//! The link block of an ack section, as `docs/protocol.md` §3.3 lays it out.

use wire_edge::LinkIndex;

/// Time from the arrival of the largest packet to the acknowledgement, in units of 64 ns.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckDelay(pub u16);

impl AckDelay {
    /// In nanoseconds, at most 4.2 ms; a longer time saturates.
    pub const fn to_ns(self) -> u64 {
        self.0 as u64 * 64
    }
}

/// What one end has received on one link.
#[derive(Clone, Copy, Debug)]
pub struct AckBlock {
    /// Whose packets this block acknowledges.
    pub link: LinkIndex,
    /// Frames received with a congestion mark so far, modulo 2^16.
    pub marked: u16,
    /// How long the acknowledgement was held back.
    pub delay: AckDelay,
    /// Packets received without a gap up to and including `largest`, at least 1.
    pub run: u16,
    /// Low 32 bits of the largest packet number received.
    pub largest: u32,
    /// Words of `bitmap` that count, 0–8.
    pub words: u8,
    /// Bit i of word w: packet `largest − run − 1 − (64 w + i)` was received.
    pub bitmap: [u64; 8],
}

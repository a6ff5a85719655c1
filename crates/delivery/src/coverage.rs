//! Looks up what an acknowledgement says about a packet. The low 32 bits of the packet number
//! identify the packet.

use wire_edge::AckBlock;

/// What an acknowledgement says about one packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Coverage {
    Received,
    Missing,
    /// The packet was sent after the largest packet of the block, so the block contains nothing
    /// about it.
    Beyond,
}

impl Coverage {
    //= protocol.md: ack.1
    pub(crate) fn of(block: &AckBlock, packet: u32) -> Self {
        let below = block.largest.wrapping_sub(packet);
        if below.cast_signed() < 0 {
            return Self::Beyond;
        }
        let run = u32::from(block.run);
        if below < run {
            return Self::Received;
        }
        // The packet directly below the run is missing, because otherwise the run would include it.
        let Some(bit) = below.checked_sub(run + 1) else { return Self::Missing };
        let word = (bit / 64) as usize;
        if word >= usize::from(block.words) {
            return Self::Missing;
        }
        match block.bitmap.get(word) {
            Some(bits) if bits >> (bit % 64) & 1 == 1 => Self::Received,
            _ => Self::Missing,
        }
    }
}

/// Returns true if packet number `packet` equals `end` or is later than `end`. Both arguments are
/// the low 32 bits of packet numbers.
pub(crate) const fn reaches(packet: u32, end: u32) -> bool {
    packet.wrapping_sub(end).cast_signed() >= 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire_edge::AckDelay;
    use wire_edge::LinkIndex;

    //= protocol.md: ack.1
    #[test]
    fn coverage_encodes_run_then_gap_then_bitmap() {
        let block = AckBlock {
            link: LinkIndex(0),
            marked: 0,
            delay: AckDelay(0),
            run: 2,
            largest: 3,
            words: 1,
            bitmap: [1 | 1 << 63, u64::MAX, 0, 0, 0, 0, 0, 0],
        };
        let of = |packet: u32| Coverage::of(&block, packet);
        assert_eq!(of(4), Coverage::Beyond);
        assert_eq!((of(3), of(2)), (Coverage::Received, Coverage::Received));
        assert_eq!((of(1), of(0)), (Coverage::Missing, Coverage::Received), "gap, then bit 0");
        assert_eq!(of(u32::MAX), Coverage::Missing, "bit 1, below the wrap");
        assert_eq!(of(0_u32.wrapping_sub(63)), Coverage::Received, "bit 63");
        assert_eq!(of(0_u32.wrapping_sub(64)), Coverage::Missing, "a word that does not count");
    }
}

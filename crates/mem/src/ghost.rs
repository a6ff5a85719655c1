//! Regions without memory, for simulations in which only lengths and addresses matter.
//!
//! Instead of the bytes of a payload, a simulated network carries a *stamp*: the address of the
//! payload in the sender's memory. The network writes the stamp at the place where the payload
//! would begin. The log of placements therefore shows which bytes of the sender were placed.

use crate::payload::Payload;

/// A placement in a ghost region.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GhostPlacement {
    /// The address that peers use for the first placed byte.
    pub address: u64,
    /// Length in bytes.
    pub len: u32,
    /// The first bytes of the payload, at most [`STAMP_BYTES`], as a little-endian number.
    pub stamp: u64,
}

/// Length of a stamp in bytes. If a payload is shorter, it contains only the first bytes of its
/// stamp.
pub const STAMP_BYTES: usize = 8;

/// Writes the stamp of a payload to the first bytes of `payload`. The stamp is the payload's
/// `address` in the sender's memory, in little-endian order.
pub fn write_stamp(address: u64, payload: &mut [u8]) {
    for (byte, stamp) in payload.iter_mut().zip(address.to_le_bytes()) {
        *byte = stamp;
    }
}

/// Returns the stamp of a payload.
pub(crate) fn read_stamp(payload: Payload<'_>) -> u64 {
    let mut stamp = [0; STAMP_BYTES];
    let bytes = payload.len().min(STAMP_BYTES);
    payload.slice(0..bytes).copy_to(&mut stamp[..bytes]);
    u64::from_le_bytes(stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::Rights;
    use crate::table::{MemoryTable, TableLimits};

    #[test]
    fn placements_in_a_ghost_are_recorded_with_their_origin() {
        let table = MemoryTable::new(TableLimits::default(), [1, 2]);
        let domain = table.allocate_domain();
        let region = table.register_ghost(domain, 1 << 40, 1 << 41, Rights::ALL).expect("it fits");
        let access = table.access();
        let source = access.source(region.id, 64, 1 << 20).expect("it is inside");
        assert_eq!(source.start.addr(), (1 << 40) + 64);
        let mut payload = [0; 12];
        access.copy_out(region.id, 96, &mut payload).expect("it is inside");
        let target = access
            .resolve(domain, region.key, (1 << 40) + 5, 12, Rights::REMOTE_WRITE)
            .expect("it is inside");
        access.place(&target, 0, &payload).expect("it is inside");
        access.place_tail(&target, 4, &payload[..2]).expect("it is inside");
        let mut placed = Vec::new();
        table.drain_ghosts(&mut placed);
        let stamp = (1 << 40) + 96;
        let first = GhostPlacement { address: (1 << 40) + 5, len: 12, stamp };
        let second = GhostPlacement { address: (1 << 40) + 9, len: 2, stamp: stamp & 0xffff };
        assert_eq!(placed, [first, second]);
        table.drain_ghosts(&mut placed);
        assert_eq!(placed.len(), 2);
        let word = access
            .resolve(domain, region.key, 1 << 40, 8, Rights::REMOTE_ATOMIC)
            .expect("it is inside");
        assert!(access.fetch_add(&word, 1).is_err());
    }
}

//! Patches that this side sends: where their local bytes may be cut.

use mem::MemoryAccess;
use wire_edge::{
    COMMON_BYTES, HEADER_BYTES_MAX, PATCH_RECORD_BYTES_MAX, PATCH_RECORD_HEADER_BYTES, PatchRecord,
};

use super::{Bytes, Outbound};

impl Outbound {
    /// Returns the smallest `room` with which [`Outbound::next_fragment`] can cut every operation,
    /// in bytes. A fragment of a patch has at least one record, and perhaps an immediate.
    pub const fn room_bytes_min(&self) -> u32 {
        if self.has_patched { PATCH_ROOM_BYTES } else { ROOM_BYTES }
    }
}

impl Bytes {
    /// Returns the length of the longest sequence of whole records that begins at `offset` of the local
    /// bytes of a patch and has at most `most` bytes. Costs about 5 ns for each record.
    pub(super) fn whole_records(&self, memory: &MemoryAccess<'_>, offset: u32, most: u32) -> u32 {
        // An inline patch always fits into one fragment.
        let Self::Region { region, offset: start } = *self else { return 0 };
        let mut len = 0;
        loop {
            let mut header = [0; PATCH_RECORD_HEADER_BYTES];
            let at = start.saturating_add(u64::from(offset)).saturating_add(u64::from(len));
            if most - len < header.len() as u32 || memory.copy_out(region, at, &mut header).is_err()
            {
                return len;
            }
            let bytes = PatchRecord::decode(&header).bytes() as u32;
            if bytes > most - len {
                return len;
            }
            len += bytes;
        }
    }
}

/// Room for the headers and a few bytes of payload of any operation but a patch.
const ROOM_BYTES: u32 = (HEADER_BYTES_MAX - COMMON_BYTES) as u32 + 12;
/// Room for the headers of a patch without the common header (20 bytes), an immediate and a record.
const PATCH_ROOM_BYTES: u32 = 20 + 4 + PATCH_RECORD_BYTES_MAX as u32;

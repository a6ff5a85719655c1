//! Encodes acknowledgements into the bytes of an ack section.

use delivery::Instant;
use wire_edge::{
    ACK_BLOCK_WORDS_MAX, ACK_BLOCKS_MAX, ACK_SECTION_BYTES_MAX, AckBlock, COMMON_BYTES,
    HEADER_BYTES_MAX, ack_section_bytes, encode_acks,
};

use crate::connection::Connection;

/// Holds one encoded ack section.
///
/// The section keeps its memory for the next batch. If each batch created a new section, it would
/// have to clear all of the memory, which costs more than filling the part in use. A default value
/// allocates memory on first use.
#[derive(Debug, Default)]
pub(crate) struct AckBytes {
    blocks: Vec<AckBlock>,
    bytes: Vec<u8>,
    len: usize,
}

impl AckBytes {
    /// Creates an empty section, and allocates memory for the longest possible section.
    pub(crate) fn allocated() -> Self {
        let mut acks = Self::default();
        acks.allocate();
        acks
    }

    #[cold]
    fn allocate(&mut self) {
        self.blocks.resize(ACK_BLOCKS_MAX, AckBlock::default());
        self.bytes.resize(ACK_SECTION_BYTES_MAX, 0);
    }

    /// Writes the pending acknowledgements of every link and the report of deliveries into the
    /// section, with at most `limit` bytes. Acknowledgements that do not fit stay pending.
    pub(crate) fn fill(&mut self, now: Instant, connection: &mut Connection, limit: usize) {
        if self.blocks.is_empty() {
            self.allocate();
        }
        let Self { blocks, bytes, len } = self;
        let Some(bytes) = bytes.first_chunk_mut() else { return };
        let mut used = 0;
        let mut room = limit.saturating_sub(ACK_SECTION_BYTES_MIN);
        let everything = connection.reported().must_report();
        for path in connection.paths_mut() {
            if room >= ACK_BLOCK_BYTES_MAX
                && used < blocks.len()
                && (everything || path.received().acknowledgement_joins(now))
                && let Some(block) = path.acknowledge(now)
            {
                room -= block.wire_bytes();
                blocks[used] = block;
                used += 1;
            }
        }
        let delivered = connection.inbound().delivered();
        let credit = connection.inbound().credit();
        connection.reported_mut().on_reported(delivered, credit);
        *len = encode_acks(delivered, credit, &blocks[..used], bytes);
    }

    //= protocol.md: close.7
    /// Writes a section that reports the deliveries of a connection that has ended. The section
    /// acknowledges no packet.
    pub(crate) fn fill_last(&mut self, connection: &Connection) {
        if self.blocks.is_empty() {
            self.allocate();
        }
        let Some(bytes) = self.bytes.first_chunk_mut() else { return };
        let (delivered, credit) =
            (connection.inbound().delivered(), connection.reported().credit());
        self.len = encode_acks(delivered, credit, &[], bytes);
    }

    /// Returns the length of the section in bytes; 0 if there is no section.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Drops the section. Returns whether there was a section.
    #[inline]
    pub(crate) const fn clear(&mut self) -> bool {
        core::mem::replace(&mut self.len, 0) > 0
    }

    /// Returns the bytes of the section and drops the section. Returns no bytes if there is no
    /// section.
    #[inline]
    pub(crate) fn take(&mut self) -> &[u8] {
        &self.bytes[..core::mem::replace(&mut self.len, 0)]
    }
}

/// Bytes of an ack section without blocks. `ACK_BLOCK_BYTES_MAX` is the length of the longest
/// block.
const ACK_SECTION_BYTES_MIN: usize = ack_section_bytes(&[]);
const ACK_BLOCK_BYTES_MAX: usize = 12 + 8 * ACK_BLOCK_WORDS_MAX;

/// Number of bytes that acknowledgements must leave free in an Ack frame, as in a data frame with
/// the headers of any operation but a patch and a few bytes of payload.
pub(crate) const BESIDE_ACKS_BYTES: usize = HEADER_BYTES_MAX + 12;

/// Returns the number of bytes that acknowledgements must leave free in a data frame of this
/// connection. After a patch was posted, the frame must have room for a record.
pub(crate) fn beside_acks_bytes(connection: &Connection) -> usize {
    COMMON_BYTES + connection.outbound().room_bytes_min() as usize
}

/// Checks that the smallest frame of the protocol has room for an ack section with blocks about two
/// links.
const _: () = assert!(256 - BESIDE_ACKS_BYTES >= ACK_SECTION_BYTES_MIN + 2 * ACK_BLOCK_BYTES_MAX);

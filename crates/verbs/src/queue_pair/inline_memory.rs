//! Registered memory for the inline bytes of sends.

use std::sync::{Arc, OnceLock};

use mem::{Buffer, MemoryTable, ProtectionDomain, Region, RegionId, Rights};

use super::slots::Inline;
use crate::attributes::QueuePairLimits;

/// Registered memory for the inline bytes of sends. It consists of chunks, and each chunk is
/// allocated when a send first needs it.
pub(super) struct InlineMemory {
    table: Arc<MemoryTable>,
    domain: ProtectionDomain,
    chunks: Box<[OnceLock<Option<Chunk>>]>,
    /// Maximum number of inline bytes of a send.
    bytes: u32,
    /// Number of slots in the ring of sends, a power of two.
    slots: u64,
}

struct Chunk {
    buffer: Arc<Buffer>,
    region: Region,
}

impl InlineMemory {
    pub(super) fn new(
        table: Arc<MemoryTable>,
        domain: ProtectionDomain,
        limits: QueuePairLimits,
    ) -> Self {
        let slots = u64::from(limits.sends).next_power_of_two();
        let chunks = (0..slots.div_ceil(CHUNK_SLOTS)).map(|_| OnceLock::new()).collect();
        Self { table, domain, chunks, bytes: limits.inline, slots }
    }

    /// Copies the bytes of the send with this number. The copy stays unchanged until another send
    /// uses the same slot. Returns `None` if no memory can be registered.
    pub(super) fn keep(&self, number: u64, bytes: &[u8]) -> Option<Inline> {
        let place = number & (self.slots - 1);
        let chunk = self.chunks.get((place / CHUNK_SLOTS) as usize)?;
        let Chunk { buffer, region } = chunk.get_or_init(|| self.make()).as_ref()?;
        let offset = place % CHUNK_SLOTS * u64::from(self.bytes);
        buffer.write(offset, bytes);
        Some(Inline { region: region.id, offset, length: bytes.len() as u32 })
    }

    #[cold]
    fn make(&self) -> Option<Chunk> {
        let buffer = Buffer::new(self.slots.min(CHUNK_SLOTS) * u64::from(self.bytes));
        let region = self.table.register(self.domain, Arc::clone(&buffer), Rights::NONE).ok()?;
        Some(Chunk { buffer, region })
    }

    /// Deregisters all chunks. The caller has closed the queue pair's `Wire`, so no send uses the
    /// memory.
    pub(super) fn release(&self) {
        for id in self.regions() {
            // This cannot fail, because the region is in this table and has no windows, and this
            // thread is not inside the engine.
            let _ = self.table.deregister(id);
        }
    }

    fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.chunks.iter().filter_map(|chunk| Some(chunk.get()?.as_ref()?.region.id))
    }
}

/// Number of sends in a chunk. A chunk has at most 128 × 256 B = 32 KiB. Chunks must be small,
/// because the library lets peers on the same host map larger buffers, and peers must not map the
/// memory of inline bytes.
const CHUNK_SLOTS: u64 = 128;

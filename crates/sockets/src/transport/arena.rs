//! The memory of a link group: the rings of its streams, and its receive buffers.

use std::sync::Arc;

use mem::{Buffer, MemoryTable, ProtectionDomain, Region, RegionId, RegisterError, Rights};

use crate::transport::ring::RingPart;
use crate::wire::{MESSAGE_BYTES_MAX, RingLocation};

/// The rings of all streams of one link group. They are registered in the group's protection
/// domain, so only the group's peer can access them.
#[derive(Debug)]
pub(crate) struct Arena {
    domain: ProtectionDomain,
    /// The chunks; a slot without a chunk is `None`.
    chunks: Vec<Option<Chunk>>,
}

/// The rings of several streams, registered together in two regions: one that the peer writes to,
/// and one to send from.
#[derive(Debug)]
struct Chunk {
    receive: (Arc<Buffer>, Region),
    send: (Arc<Buffer>, Region),
    /// Bit mask of the free pairs of rings: bit `n` stands for pair `n`.
    free: u32,
}

/// One allocated pair of rings.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Rings {
    chunk: u32,
    slot: u32,
    /// The region of the ring to send from, and the ring's offset in that region.
    pub(crate) send: (RegionId, u64),
    /// The location of the ring that the peer writes to.
    pub(crate) receive: RingLocation,
}

impl Arena {
    pub(crate) const fn new(domain: ProtectionDomain) -> Self {
        Self { domain, chunks: Vec::new() }
    }

    /// Allocates a free pair of rings. If no pair is free, adds a chunk.
    pub(crate) fn take(&mut self, memory: &MemoryTable) -> Result<Rings, RegisterError> {
        let has_room = |chunk: &Option<Chunk>| chunk.as_ref().is_some_and(|chunk| chunk.free != 0);
        let index = match self.chunks.iter().position(has_room) {
            Some(index) => index,
            None => self.add(Chunk::new(memory, self.domain)?),
        };
        let chunk = self.chunk_mut(index as u32);
        let slot = chunk.free.trailing_zeros();
        chunk.free &= !(1 << slot);
        let [offset, send_offset] =
            [RING_BYTES, SEND_RING_BYTES].map(|bytes| u64::from(slot) * u64::from(bytes));
        let (receive, send) = (&chunk.receive.1, &chunk.send.1);
        Ok(Rings {
            chunk: index as u32,
            slot,
            send: (send.id, send_offset),
            receive: RingLocation {
                key: receive.key,
                address: receive.start + offset,
                bytes: RING_BYTES,
            },
        })
    }

    /// Returns the memory of an allocated pair: the ring to send from, and the ring to receive
    /// into.
    pub(crate) fn parts(&self, rings: &Rings) -> (RingPart, RingPart) {
        let chunk = self.chunk(rings.chunk);
        let part = |memory: &Arc<Buffer>, bytes: u32| RingPart {
            memory: Arc::clone(memory),
            offset: u64::from(rings.slot) * u64::from(bytes),
            bytes,
        };
        (part(&chunk.send.0, SEND_RING_BYTES), part(&chunk.receive.0, RING_BYTES))
    }

    /// Frees a pair of rings after both ends have stopped using it. If this chunk and another chunk
    /// are then entirely free, removes this chunk and returns its regions. The caller must
    /// deregister these regions after it has released the lock of the engine. One free chunk stays
    /// for the next stream.
    pub(crate) fn give_back(&mut self, rings: &Rings) -> Option<[RegionId; 2]> {
        let chunk = self.chunk_mut(rings.chunk);
        assert!(chunk.free & 1 << rings.slot == 0, "a pair of rings is returned twice");
        chunk.free |= 1 << rings.slot;
        if chunk.free != FREE {
            return None;
        }
        let unused = self.chunks.iter().flatten().filter(|chunk| chunk.free == FREE);
        if unused.count() < 2 {
            return None;
        }
        let chunk = self.chunks.get_mut(rings.chunk as usize)?.take()?;
        Some([chunk.receive.1.id, chunk.send.1.id])
    }

    /// Adds a chunk in the first slot that has none.
    fn add(&mut self, chunk: Chunk) -> usize {
        let index = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        if index == self.chunks.len() {
            self.chunks.push(None);
        }
        self.chunks[index] = Some(chunk);
        index
    }

    fn chunk(&self, index: u32) -> &Chunk {
        let chunk = self.chunks[index as usize].as_ref();
        chunk.expect("the arena frees a chunk although a pair of its rings is in use")
    }

    fn chunk_mut(&mut self, index: u32) -> &mut Chunk {
        let chunk = self.chunks[index as usize].as_mut();
        chunk.expect("the arena frees a chunk although a pair of its rings is in use")
    }

    /// Returns the regions of all chunks. The caller must deregister them after it has released the
    /// lock of the engine.
    pub(crate) fn regions(&self) -> impl Iterator<Item = RegionId> {
        self.chunks.iter().flatten().flat_map(|chunk| [chunk.receive.1.id, chunk.send.1.id])
    }
}

impl Chunk {
    fn new(memory: &MemoryTable, domain: ProtectionDomain) -> Result<Self, RegisterError> {
        let make = |rights, bytes: u32| {
            let buffer = Buffer::new(u64::from(CHUNK_RINGS) * u64::from(bytes));
            let region = memory.register_as(domain, Arc::clone(&buffer), 0, rights)?;
            Ok((buffer, region))
        };
        let receive = make(Rights::REMOTE_WRITE, RING_BYTES)?;
        let send = make(Rights::NONE, SEND_RING_BYTES).inspect_err(|_| {
            // No peer knows the region yet. If this thread holds the lock of the engine, the
            // deregistration is refused. In that case the region ends together with the table.
            let _refused = memory.deregister(receive.1.id);
        })?;
        Ok(Self { receive, send, free: FREE })
    }
}

/// Receive buffers for the messages of a link group. Each of them is posted at all times.
#[derive(Debug)]
pub(crate) struct ReceiveBuffers {
    buffer: Arc<Buffer>,
    region: Region,
}

impl ReceiveBuffers {
    pub(crate) fn new(
        memory: &MemoryTable,
        domain: ProtectionDomain,
    ) -> Result<Self, RegisterError> {
        let buffer = Buffer::new(u64::from(RECEIVE_BUFFERS) * RECEIVE_BUFFER_BYTES);
        let region = memory.register_as(domain, Arc::clone(&buffer), 0, Rights::LOCAL_WRITE)?;
        Ok(Self { buffer, region })
    }

    /// Returns the region, offset and length of a buffer. `index` is less than [`RECEIVE_BUFFERS`].
    pub(crate) fn location(&self, index: u32) -> (RegionId, u64, u32) {
        (self.region.id, u64::from(index) * RECEIVE_BUFFER_BYTES, RECEIVE_BUFFER_BYTES as u32)
    }

    /// Copies the bytes of the message that arrived in buffer `index`. Returns a copy of the
    /// buffer, and the length of the message in it.
    pub(crate) fn read(
        &self,
        index: u32,
        bytes: u32,
    ) -> ([u8; RECEIVE_BUFFER_BYTES as usize], usize) {
        let mut message = [0; RECEIVE_BUFFER_BYTES as usize];
        self.buffer.read(u64::from(index) * RECEIVE_BUFFER_BYTES, &mut message);
        (message, (bytes as usize).min(message.len()))
    }

    pub(crate) const fn region(&self) -> RegionId {
        self.region.id
    }
}

/// Size of a ring in bytes: the data of 200 µs at 10 Gb/s. In this time, a reader on a busy host
/// usually reads some bytes.
pub(crate) const RING_BYTES: u32 = 256 * 1024;

/// Size of the ring to send from, in bytes. One half keeps the bytes that are in the peer's ring,
/// because this side may have to send them a second time by TCP. The other half holds unsent bytes.
const SEND_RING_BYTES: u32 = 2 * RING_BYTES;

/// Number of pairs of rings that are registered together. 8 × 256 KiB are 2 MiB of receive rings.
/// The kernel allocates a page at its first use.
const CHUNK_RINGS: u32 = 8;

const FREE: u32 = (1 << CHUNK_RINGS) - 1;

/// Maximum number of messages from the peer that can be in flight. The peer sends a credit for each
/// quarter of a ring that it has read. It also sends a few messages for each stream that begins or
/// ends.
pub(crate) const RECEIVE_BUFFERS: u32 = 64;

/// Size of a receive buffer in bytes. The longest message fits.
const RECEIVE_BUFFER_BYTES: u64 = 64;

const _: () = assert!(MESSAGE_BYTES_MAX as u64 <= RECEIVE_BUFFER_BYTES);

#[cfg(all(test, not(loom)))]
mod tests {
    use mem::TableLimits;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_two_streams_have_the_same_ring(takes in prop::collection::vec(any::<bool>(), 0..60)) {
            let memory = MemoryTable::new(TableLimits::default(), [1, 2]);
            let mut arena = Arena::new(memory.allocate_domain());
            let mut taken: Vec<Rings> = Vec::new();
            for take in takes {
                if take {
                    let rings = arena.take(&memory).expect("regions are left");
                    let same = |other: &Rings| other.receive.key == rings.receive.key
                        && other.receive.address == rings.receive.address
                        || other.send == rings.send;
                    prop_assert!(!taken.iter().any(same));
                    taken.push(rings);
                } else if let Some(rings) = taken.pop() {
                    deregister(&memory, arena.give_back(&rings));
                }
            }
        }
    }

    fn deregister(memory: &MemoryTable, regions: Option<[RegionId; 2]>) {
        for region in regions.into_iter().flatten() {
            memory.deregister(region).expect("it was registered");
        }
    }

    #[test]
    fn memory_of_ended_streams_is_freed_except_one_chunk() {
        let memory = MemoryTable::new(TableLimits::default(), [1, 2]);
        let mut arena = Arena::new(memory.allocate_domain());
        for _ in 0..3 {
            let taken: Vec<_> = (0..3 * CHUNK_RINGS)
                .map(|_| arena.take(&memory).expect("regions are left"))
                .collect();
            assert_eq!(arena.regions().count(), 6);
            for rings in &taken {
                deregister(&memory, arena.give_back(rings));
            }
            assert_eq!(arena.regions().count(), 2);
        }
    }
}

//! Registered memory and posted receives, as a stream reaches them during one turn.

use iwarp::{Access, Memory, Piece, Refusal};
use mem::{AccessError, MemoryAccess, PayloadSink, PayloadSlice, ProtectionDomain, Rights, Target};
use verbs::QueuePair;
use wire_edge::RemoteKey;
use wire_iwarp::Stag;

/// The memory of a queue pair's protection domain and the receives of the queue pair, for one turn.
pub(crate) struct TurnMemory<'a> {
    access: &'a MemoryAccess<'a>,
    /// `None` while no queue pair has the stream. The stream then reaches no memory.
    owner: Option<MemoryOwner<'a>>,
}

/// The queue pair of a stream.
#[derive(Clone, Copy)]
pub(crate) struct MemoryOwner<'a> {
    pub(crate) queue_pair: &'a QueuePair,
    pub(crate) domain: ProtectionDomain,
    /// The domain of the memory of receives.
    pub(crate) receive_domain: ProtectionDomain,
    /// Identifies the connection, for windows that are bound for a single connection.
    pub(crate) connection: u64,
}

impl<'a> TurnMemory<'a> {
    pub(crate) const fn new(access: &'a MemoryAccess<'a>, owner: Option<MemoryOwner<'a>>) -> Self {
        Self { access, owner }
    }

    /// Returns the bytes of a piece that the stream has checked, for the kernel to send. Returns
    /// `None` if the region has ended since.
    pub(crate) fn slice(&self, piece: Piece, access: Access) -> Option<PayloadSlice<'a>> {
        let target = self.resolve(piece, access).ok()?;
        self.access.source_of(&target, 0, piece.bytes).ok()
    }

    /// Returns the memory of a piece that the stream has checked, for the kernel to store received
    /// bytes there. Returns `None` if the region has ended since.
    pub(crate) fn sink(&self, piece: Piece, access: Access) -> Option<PayloadSink<'a>> {
        let target = self.resolve(piece, access).ok()?;
        self.access.sink(&target, 0, piece.bytes).ok()
    }

    /// Returns the piece for a scatter/gather entry that names its region, as those of shared
    /// receives do. If the region has ended, the piece has a key that names none.
    fn piece_of_region(&self, entry: &work::Piece) -> Piece {
        let region = self.access.region(entry.region).ok();
        let (key, start) = region.map_or((0, 0), |region| (region.key.0, region.start));
        Piece { key, address: start.wrapping_add(entry.offset), bytes: entry.length }
    }

    fn resolve(&self, piece: Piece, access: Access) -> Result<Target, Refusal> {
        let owner = self.owner.ok_or(Refusal::Key)?;
        let Piece { key, address, bytes } = piece;
        let (key, bytes) = (RemoteKey(key), u64::from(bytes));
        let resolved = match access {
            Access::LocalRead => {
                self.access.resolve(owner.domain, key, address, bytes, Rights::NONE)
            }
            Access::LocalWrite => {
                self.access.resolve(owner.domain, key, address, bytes, Rights::LOCAL_WRITE)
            }
            Access::Receive => {
                self.access.resolve(owner.receive_domain, key, address, bytes, Rights::LOCAL_WRITE)
            }
            Access::RemoteRead | Access::RemoteWrite => {
                let want = if access == Access::RemoteRead {
                    Rights::REMOTE_READ
                } else {
                    Rights::REMOTE_WRITE
                };
                self.access.resolve_for(owner.domain, owner.connection, key, address, bytes, want)
            }
        };
        resolved.map_err(refusal)
    }
}

impl Memory for TurnMemory<'_> {
    fn check(&mut self, piece: Piece, access: Access) -> Result<(), Refusal> {
        self.resolve(piece, access).map(|_| ())
    }

    fn place(
        &mut self,
        piece: Piece,
        access: Access,
        bytes: &[u8],
        is_tail: bool,
    ) -> Result<(), Refusal> {
        let target = self.resolve(piece, access)?;
        let placed = if is_tail {
            self.access.place_tail(&target, 0, bytes)
        } else {
            self.access.place(&target, 0, bytes)
        };
        placed.map_err(refusal)
    }

    fn read(&mut self, piece: Piece, access: Access, out: &mut [u8]) -> Result<(), Refusal> {
        let target = self.resolve(piece, access)?;
        self.access.copy_from(&target, 0, out).map_err(refusal)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Refusal> {
        let owner = self.owner.ok_or(Refusal::Key)?;
        let key = RemoteKey(stag.0);
        self.access.invalidate(owner.domain, owner.connection, key).map(|_| ()).map_err(refusal)
    }

    fn take_receive(&mut self, pieces: &mut Vec<Piece>) -> Option<u64> {
        let queue_pair = self.owner?.queue_pair;
        if queue_pair.shared_receives().is_some() {
            return queue_pair.take_shared_receive(|id, entries| {
                pieces.extend(entries.iter().map(|entry| self.piece_of_region(entry)));
                id
            });
        }
        let receive = queue_pair.next_receive()?;
        pieces.extend(receive.pieces().iter().map(piece_of));
        let id = receive.sequence();
        drop(receive);
        queue_pair.receive_taken();
        Some(id)
    }
}

/// Returns the piece of a scatter/gather entry.
pub(crate) const fn piece_of(entry: &verbs::ScatterGather) -> Piece {
    Piece { key: entry.key, address: entry.address, bytes: entry.length }
}

/// Returns why an access of a stream is refused.
const fn refusal(error: AccessError) -> Refusal {
    match error {
        AccessError::Bounds { .. } => Refusal::Bounds,
        AccessError::Permission { .. } => Refusal::Rights,
        AccessError::WrongDomain { .. } => Refusal::Stream,
        _ => Refusal::Key,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mem::{Buffer, MemoryTable, TableLimits};

    use super::*;

    #[test]
    fn every_refusal_of_registered_memory_has_its_reason() {
        let table = MemoryTable::new(TableLimits::default(), [1, 2]);
        let domain = table.allocate_domain();
        let buffer = Buffer::new(64);
        let start = buffer.address();
        let region = table.register(domain, Arc::clone(&buffer), Rights::REMOTE_READ);
        let region = region.expect("it fits");
        let access = table.access();
        let reason = |key, address, bytes, rights| {
            access.resolve(domain, key, address, bytes, rights).map(|_| ()).map_err(refusal)
        };
        assert_eq!(reason(region.key, start, 64, Rights::REMOTE_READ), Ok(()));
        assert_eq!(reason(region.key, start, 65, Rights::REMOTE_READ), Err(Refusal::Bounds));
        assert_eq!(reason(region.key, start, 1, Rights::REMOTE_WRITE), Err(Refusal::Rights));
        let unknown = RemoteKey(region.key.0 ^ 0x5a5a);
        assert_eq!(reason(unknown, start, 1, Rights::REMOTE_READ), Err(Refusal::Key));
        let other = table.allocate_domain();
        let foreign = access.resolve(other, region.key, start, 1, Rights::REMOTE_READ);
        assert_eq!(foreign.map(|_| ()).map_err(refusal), Err(Refusal::Stream));
    }

    #[test]
    fn a_stream_without_a_queue_pair_reaches_no_memory() {
        let table = MemoryTable::new(TableLimits::default(), [1, 2]);
        let access = table.access();
        let mut memory = TurnMemory::new(&access, None);
        let piece = Piece { key: 1, address: 0, bytes: 1 };
        assert_eq!(memory.check(piece, Access::RemoteRead), Err(Refusal::Key));
        assert_eq!(memory.place(piece, Access::RemoteWrite, &[1], true), Err(Refusal::Key));
        assert!(memory.slice(piece, Access::LocalRead).is_none());
        assert!(memory.sink(piece, Access::LocalWrite).is_none());
        assert_eq!(memory.take_receive(&mut Vec::new()), None);
        assert_eq!(memory.invalidate(Stag(1)), Err(Refusal::Key));
    }
}

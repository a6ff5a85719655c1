//! The connection table, and the ids in frames that identify connections. Ids are random, so that
//! no host can guess an id.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use semantics::{InboundLimits, Queues};
use wire_edge::ConnectionId;

use crate::config::{CONNECTIONS_MAX, EngineConfig};
use crate::connection::Connection;
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::rest::Resting;

/// Connections by index, by handle, and by the id in their frames.
///
/// The table draws each id at random from all 32-bit values. So the ids that a peer knows reveal
/// nothing about the ids of other connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: u32,
    used: u32,
    /// Maps each id to the slot of its connection.
    ids: HashMap<ConnectionId, u32, BuildHasherDefault<IdHasher>>,
    /// The id of the last look-up, and the index that it returned. The pair saves a look-up,
    /// because consecutive frames often belong to the same connection.
    last: (ConnectionId, u32),
    /// Memory that the table reuses when it expands compressed connections, at most `spare_max`
    /// entries.
    #[expect(clippy::vec_box, reason = "the box is what is kept")]
    spare: Vec<Box<Connection>>,
    spare_max: usize,
    /// The limits that connections grant by default.
    limits: InboundLimits,
    /// The queue of connections for which the application has not chosen a queue. Such connections
    /// complete nothing, so the queue needs no room for completions.
    unowned_queue: Queues,
}

/// Hashes ids. A simple function suffices, because ids are random and no other host chooses them.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u32(u32::from(byte));
        }
    }

    #[inline]
    fn write_u32(&mut self, id: u32) {
        // The multiplication mixes the id into the highest and the lowest bits. The hash table uses
        // these bits.
        self.0 = (self.0 ^ u64::from(id)).wrapping_mul(GOLDEN_RATIO);
    }
}

/// 2^64 divided by the golden ratio, rounded to an odd number. The multiples of this number are
/// evenly distributed.
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

#[derive(Debug)]
struct Slot {
    generation: u32,
    content: Content,
}

/// The content of a slot.
#[derive(Debug)]
enum Content {
    /// The slot is free, or its connection was taken out of the table.
    Nothing,
    Awake(Box<Connection>),
    Resting(Box<Resting>),
}

impl ConnectionTable {
    /// Creates an empty table for an endpoint. `unowned_queue` is for connections for which the
    /// application has not chosen a queue. This queue needs no room for completions, because such
    /// connections complete nothing.
    pub(crate) fn new(config: &EngineConfig, unowned_queue: Queues) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            limit: config.connections_max.min(CONNECTIONS_MAX),
            used: 0,
            ids: HashMap::default(),
            last: (ConnectionId(0), u32::MAX),
            spare: Vec::new(),
            spare_max: if config.allocates_ahead { config.active_connections } else { 0 },
            limits: config.inbound_limits(),
            unowned_queue,
        }
    }

    //= protocol.md: name.1
    /// Reserves a slot for a connection. Returns the handle of the connection, and an id that
    /// `random` has drawn. Returns `None` if the endpoint has the maximum number of connections.
    pub(crate) fn reserve(
        &mut self,
        mut random: impl FnMut() -> u32,
    ) -> Option<(ConnectionHandle, ConnectionId)> {
        if self.used >= self.limit {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, content: Content::Nothing });
            self.slots.len() as u32 - 1
        });
        let slot = self.slots.get_mut(index as usize)?;
        self.used += 1;
        slot.generation = slot.generation.wrapping_add(1);
        // Id 0 means "no connection" on the wire.
        let mut id = ConnectionId(0);
        while id == ConnectionId(0) || self.ids.contains_key(&id) {
            id = ConnectionId(random());
        }
        self.ids.insert(id, index);
        Some((ConnectionHandle { index, generation: slot.generation }, id))
    }

    /// Puts a connection into its slot.
    #[inline]
    pub(crate) fn put(&mut self, connection: Box<Connection>) {
        if let Some(slot) = self.slots.get_mut(connection.handle().index as usize) {
            slot.content = Content::Awake(connection);
        }
    }

    /// Takes a connection out of the table. Returns `None` if the connection is not in the table.
    /// If the connection is compressed, expands it. Later the caller [puts it
    /// back](ConnectionTable::put) or [releases](ConnectionTable::release) its slot.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(index as usize)?;
        match core::mem::replace(&mut slot.content, Content::Nothing) {
            Content::Nothing => None,
            Content::Awake(connection) => Some(connection),
            Content::Resting(resting) => {
                let handle = ConnectionHandle { index, generation: slot.generation };
                Some(self.wake(handle, *resting))
            }
        }
    }

    /// Returns whether a connection with this handle exists. The connection may be taken out of the
    /// table.
    pub(crate) fn has(&self, handle: ConnectionHandle) -> bool {
        let slot = self.slots.get(handle.index as usize);
        slot.is_some_and(|slot| slot.generation == handle.generation)
    }

    /// Returns the queue of connections for which the application has not chosen a queue. This
    /// queue has no room for completions, because such connections complete nothing.
    pub(crate) const fn unowned_queue(&self) -> &Queues {
        &self.unowned_queue
    }

    /// Takes the connection with this handle out of the table, like [`ConnectionTable::take`].
    /// Returns `None` if there is no such connection.
    pub(crate) fn take_handle(&mut self, handle: ConnectionHandle) -> Option<Box<Connection>> {
        if self.has(handle) { self.take(handle.index) } else { None }
    }

    #[cold]
    fn wake(&mut self, handle: ConnectionHandle, resting: Resting) -> Box<Connection> {
        match self.spare.pop() {
            Some(mut spare) => {
                let paths = spare.take_memory();
                *spare = resting.wake(handle, self.limits, paths);
                spare
            }
            None => Box::new(resting.wake(handle, self.limits, LinkSet::default())),
        }
    }

    /// Compresses a connection [at rest](Connection::is_at_rest) that is not compressed yet.
    #[cold]
    pub(crate) fn rest(&mut self, index: u32) {
        let Some(slot) = self.slots.get_mut(index as usize) else { return };
        let Content::Awake(connection) = &mut slot.content else { return };
        let resting = Box::new(connection.rest(self.limits));
        let before = core::mem::replace(&mut slot.content, Content::Resting(resting));
        if let Content::Awake(mut connection) = before
            && self.spare.len() < self.spare_max
        {
            connection.clear(&self.unowned_queue, self.limits);
            self.spare.push(connection);
        }
    }

    /// Calls `look` with the connection that has this handle, and returns the result. If the
    /// connection is compressed, `look` gets an expanded copy, and the table keeps the compressed
    /// form.
    pub(crate) fn look<R>(
        &self,
        handle: ConnectionHandle,
        look: impl FnOnce(&Connection) -> R,
    ) -> Option<R> {
        if self.has(handle) { self.look_at(handle.index, look) } else { None }
    }

    /// Calls `look` with the connection that has this index, like [`ConnectionTable::look`].
    pub(crate) fn look_at<R>(&self, index: u32, look: impl FnOnce(&Connection) -> R) -> Option<R> {
        let slot = self.slots.get(index as usize)?;
        match &slot.content {
            Content::Nothing => None,
            Content::Awake(connection) => Some(look(connection)),
            Content::Resting(resting) => {
                let handle = ConnectionHandle { index, generation: slot.generation };
                Some(look(&resting.read(handle, self.limits, LinkSet::default())))
            }
        }
    }

    /// Returns the connection with this index. Returns `None` if the connection was taken out of
    /// the table or is compressed.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Connection> {
        match &self.slots.get(index as usize)?.content {
            Content::Awake(connection) => Some(connection),
            _ => None,
        }
    }

    /// Returns all connections that are not compressed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        (0..self.slots.len() as u32).filter_map(|index| self.at(index))
    }

    /// Returns all compressed connections, with their indices.
    pub(crate) fn resting(&self) -> impl Iterator<Item = (u32, &Resting)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| match &slot.content {
            Content::Resting(resting) => Some((index as u32, &**resting)),
            _ => None,
        })
    }

    /// Frees the slot of a connection that was taken out of the table.
    pub(crate) fn release(&mut self, handle: ConnectionHandle, id: ConnectionId) {
        self.ids.remove(&id);
        self.free.push(handle.index);
        self.used -= 1;
        self.last = (ConnectionId(0), u32::MAX);
    }

    /// Returns the index of the connection with this id; `None` if there is no such connection.
    #[inline]
    pub(crate) fn find(&mut self, id: ConnectionId) -> Option<u32> {
        if self.last.0 == id && id != ConnectionId(0) {
            return Some(self.last.1);
        }
        let &index = self.ids.get(&id)?;
        self.last = (id, index);
        Some(index)
    }

    /// Returns the number of connections in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns the indices of all slots, including slots that are free now.
    pub(crate) fn indices(&self) -> core::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    //= protocol.md: name.1
    #[test]
    fn a_reused_slot_gets_a_new_connection_id() {
        let queue = std::sync::Arc::new(semantics::CompletionQueue::new(1));
        let mut table = ConnectionTable::new(&EngineConfig::default(), queue.into());
        let mut entropy = ChaCha8Rng::from_seed([3; 32]);
        let mut ids = HashSet::new();
        for _ in 0..20_000 {
            let (handle, id) = table.reserve(|| entropy.next_u32()).unwrap();
            assert_eq!(handle.index, 0);
            ids.insert(id);
            table.release(handle, id);
            assert_eq!(table.find(id), None);
        }
        assert!(ids.len() >= 19_990, "{} ids", ids.len());
    }
}

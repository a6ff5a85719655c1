//! The connections of an endpoint and their unguessable names.

use wire_edge::{ConnectionId, KeyedPermutation};

use crate::connection::Connection;
use crate::event::ConnectionHandle;

/// Bits of a connection id that are the index; the other twelve are the generation.
const INDEX_BITS: u32 = 20;
const GENERATION_MASK: u32 = (1 << (32 - INDEX_BITS)) - 1;

/// Connections by index, by handle, and by the id in their frames.
///
/// The id is a keyed permutation of index and generation: a peer cannot guess the id of another
/// connection, and finding the connection costs no look-up in a hash table.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: u32,
    used: u32,
    names: KeyedPermutation,
    /// The last id looked up, and its index: frames come in runs.
    last: (ConnectionId, u32),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

impl ConnectionTable {
    pub(crate) fn new(limit: u32, key: [u64; 2]) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            limit: limit.min(1 << INDEX_BITS),
            used: 0,
            names: KeyedPermutation::new(key),
            last: (ConnectionId(0), u32::MAX),
        }
    }

    /// Takes a slot and returns the names of the connection that will be in it.
    pub(crate) fn reserve(&mut self) -> Option<(ConnectionHandle, ConnectionId)> {
        if self.used >= self.limit {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, connection: None });
            self.slots.len() as u32 - 1
        });
        let slot = self.slots.get_mut(index as usize)?;
        self.used += 1;
        let mut id = ConnectionId(0);
        // Id 0 means "none" on the wire, so the generation that would have it is skipped.
        while id == ConnectionId(0) {
            slot.generation = slot.generation.wrapping_add(1);
            let name = index | (slot.generation & GENERATION_MASK) << INDEX_BITS;
            id = ConnectionId(self.names.encrypt(name));
        }
        Some((ConnectionHandle { index, generation: slot.generation }, id))
    }

    /// Puts a connection into its slot, or back into it.
    #[inline]
    pub(crate) fn put(&mut self, connection: Box<Connection>) {
        if let Some(slot) = self.slots.get_mut(connection.handle.index as usize) {
            slot.connection = Some(connection);
        }
    }

    /// Takes a connection out to work on it; [`ConnectionTable::put`] it back or
    /// [`ConnectionTable::release`] its slot.
    #[inline]
    pub(crate) fn take(&mut self, index: u32) -> Option<Box<Connection>> {
        self.slots.get_mut(index as usize)?.connection.take()
    }

    /// As [`ConnectionTable::take`], by handle.
    pub(crate) fn take_handle(&mut self, handle: ConnectionHandle) -> Option<Box<Connection>> {
        let slot = self.slots.get_mut(handle.index as usize)?;
        if slot.generation == handle.generation { slot.connection.take() } else { None }
    }

    pub(crate) fn get(&self, handle: ConnectionHandle) -> Option<&Connection> {
        let slot = self.slots.get(handle.index as usize)?;
        if slot.generation == handle.generation { slot.connection.as_deref() } else { None }
    }

    /// The connection with this index, unless it is taken out.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> Option<&Connection> {
        self.slots.get(index as usize)?.connection.as_deref()
    }

    /// All connections.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Connection> {
        self.slots.iter().filter_map(|slot| slot.connection.as_deref())
    }

    /// Frees the slot of a connection that was taken out.
    pub(crate) fn release(&mut self, handle: ConnectionHandle) {
        self.free.push(handle.index);
        self.used -= 1;
        self.last = (ConnectionId(0), u32::MAX);
    }

    /// The index of the connection with this id.
    #[inline]
    pub(crate) fn find(&mut self, id: ConnectionId) -> Option<u32> {
        if self.last.0 == id && id != ConnectionId(0) {
            return Some(self.last.1);
        }
        let name = self.names.decrypt(id.0);
        let index = name & ((1 << INDEX_BITS) - 1);
        let slot = self.slots.get(index as usize)?;
        if slot.connection.is_none() || slot.generation & GENERATION_MASK != name >> INDEX_BITS {
            return None;
        }
        self.last = (id, index);
        Some(index)
    }

    /// Connections in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Indices that are or were in use.
    pub(crate) fn indices(&self) -> core::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.limit
    }
}

//! The streams of a process, by their numbers.

use std::sync::Arc;

use delivery::Instant;
use engine::ConnectionHandle;

use crate::calls::connection::Connection;
use crate::rendezvous::doorbell::Doorbell;
use crate::transport::arena::Rings;
use crate::transport::stream::Stream;
use crate::wire::{RingLocation, StreamNumber, SwitchMarker};

/// A stream in the table.
pub(crate) struct StreamEntry {
    pub(crate) stream: Arc<Stream>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) doorbell: Doorbell,
    /// The link group that carries the stream.
    pub(crate) group: ConnectionHandle,
    pub(crate) rings: Rings,
    /// The switch marker that this side expects, and that the peer writes into the TCP connection.
    pub(crate) marker: SwitchMarker,
    /// The stream's number at the peer, and the peer's ring. `None` before the move.
    pub(crate) open: Option<(StreamNumber, RingLocation)>,
    /// True if the stream is queued to be served.
    pub(crate) is_queued: bool,
    /// The time of the stream's earliest pending entry in the timers.
    pub(crate) timer: Instant,
}

/// Streams by number. A number consists of a slot and a 16-bit generation, so it is reused only
/// after its slot has held 2^16 other streams.
#[derive(Default)]
pub(crate) struct StreamTable {
    slots: Vec<Slot>,
    free: Vec<u16>,
}

#[derive(Default)]
struct Slot {
    generation: u16,
    entry: Option<StreamEntry>,
}

impl StreamTable {
    /// Returns the number for the next stream. Returns `None` if all 2^16 slots are in use.
    pub(crate) fn next_number(&mut self) -> Option<StreamNumber> {
        if self.free.is_empty() {
            let index = u16::try_from(self.slots.len()).ok()?;
            self.slots.push(Slot::default());
            self.free.push(index);
        }
        let index = *self.free.last()?;
        let generation = self.slots[usize::from(index)].generation;
        Some(StreamNumber(u32::from(generation) << 16 | u32::from(index)))
    }

    /// Adds a stream under the number that [`StreamTable::next_number`] returned.
    pub(crate) fn insert(&mut self, number: StreamNumber, entry: StreamEntry) {
        let index = self.free.pop();
        assert!(index == Some(number.0 as u16), "the number is the next one");
        self.slots[usize::from(number.0 as u16)].entry = Some(entry);
    }

    pub(crate) fn get(&self, number: StreamNumber) -> Option<&StreamEntry> {
        let slot = self.slots.get(usize::from(number.0 as u16))?;
        slot.entry.as_ref().filter(|_| slot.generation == (number.0 >> 16) as u16)
    }

    pub(crate) fn get_mut(&mut self, number: StreamNumber) -> Option<&mut StreamEntry> {
        let slot = self.slots.get_mut(usize::from(number.0 as u16))?;
        let generation = slot.generation;
        slot.entry.as_mut().filter(|_| generation == (number.0 >> 16) as u16)
    }

    /// Returns the stream with this number if the stream belongs to `group`.
    pub(crate) fn of_group(
        &mut self,
        group: ConnectionHandle,
        number: StreamNumber,
    ) -> Option<&mut StreamEntry> {
        self.get_mut(number).filter(|entry| entry.group == group)
    }

    pub(crate) fn remove(&mut self, number: StreamNumber) -> Option<StreamEntry> {
        self.get(number)?;
        let slot = self.slots.get_mut(usize::from(number.0 as u16))?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(number.0 as u16);
        slot.entry.take()
    }

    /// Returns the numbers of all streams.
    pub(crate) fn numbers(&self) -> Vec<StreamNumber> {
        let number = |(index, slot): (usize, &Slot)| {
            let number = u32::from(slot.generation) << 16 | index as u32;
            slot.entry.as_ref().map(|_| StreamNumber(number))
        };
        self.slots.iter().enumerate().filter_map(number).collect()
    }
}

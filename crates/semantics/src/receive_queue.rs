//! Receives posted by an application, in the order in which messages consume them.

use std::collections::VecDeque;

use mem::RegionId;
use wire_edge::MessageNumber;

use crate::slab::NIL;
use work::Receive;

/// A posted receive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posted {
    pub(crate) context: u64,
    /// Maximum length of the message in bytes.
    pub(crate) length: u32,
    pub(crate) destination: Destination,
    /// Slot of the status table that reports the message instead of a completion; [`NIL`] if a
    /// completion reports the message.
    pub(crate) status: u32,
}

impl Posted {
    /// Creates a receive. A completion will report the message that arrives for it.
    pub(crate) const fn new(context: u64, length: u32, destination: Destination) -> Self {
        Self { context, length, destination, status: NIL }
    }

    /// Returns the receive as it was posted to a shared queue, and the slot of its list if it has
    /// one.
    pub(crate) const fn unconsumed(self) -> (Receive, Option<u32>) {
        let Self { context, length, destination, .. } = self;
        let (region, offset, slot) = match destination {
            Destination::Region { region, offset } => (region, offset, None),
            Destination::List(slot) => (RegionId::NONE, 0, Some(slot)),
        };
        (Receive { region, offset, length, context }, slot)
    }
}

/// Destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Destination {
    Region {
        region: RegionId,
        offset: u64,
    },
    /// The pieces (scatter/gather entries) of the list in this slot of
    /// [`Pools::lists`](crate::Pools).
    List(u32),
}

impl From<Receive> for Posted {
    fn from(Receive { region, offset, length, context }: Receive) -> Self {
        Self::new(context, length, Destination::Region { region, offset })
    }
}

/// Posted receives of one connection.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    entries: VecDeque<Posted>,
    capacity: usize,
    /// Number of the message that will consume the front entry.
    first: MessageNumber,
}

impl ReceiveQueue {
    /// Creates an empty queue for `capacity` receives. Message `first` will consume the first
    /// receive.
    pub(crate) fn new(capacity: u32, first: MessageNumber) -> Self {
        let capacity = capacity as usize;
        Self { entries: VecDeque::with_capacity(capacity), capacity, first }
    }

    /// Creates a queue like [`ReceiveQueue::new`], but allocates memory only when receives are
    /// added.
    pub(crate) const fn growing(capacity: u32, first: MessageNumber) -> Self {
        Self { entries: VecDeque::new(), capacity: capacity as usize, first }
    }

    /// Appends a receive. The caller has checked that the queue has room.
    pub(crate) fn add(&mut self, receive: Posted) {
        let is_added = self.push(receive);
        assert!(is_added, "a queue of receives holds more than it has room for");
    }

    /// Appends a receive. Returns false if the queue is full.
    pub(crate) fn push(&mut self, receive: Posted) -> bool {
        if self.is_full() {
            return false;
        }
        self.entries.push_back(receive);
        true
    }

    /// Returns the receives that no message has consumed, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Posted> {
        self.entries.iter()
    }

    /// Returns the number of receives that no message has consumed.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the queue is full.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// Returns the receive that `message` will consume. Returns `None` if the receive is not posted
    /// yet or is already consumed.
    pub(crate) fn get(&self, message: MessageNumber) -> Option<&Posted> {
        let index = usize::try_from(message.since(self.first)).ok()?;
        self.entries.get(index)
    }

    /// Consumes the receive of `message`. Returns `None` if the oldest receive belongs to another
    /// message.
    pub(crate) fn pop(&mut self, message: MessageNumber) -> Option<Posted> {
        if message != self.first {
            return None;
        }
        let receive = self.entries.pop_front()?;
        self.first = self.first.next();
        Some(receive)
    }

    /// Removes all receives that no message has consumed. Returns each receive with the number of
    /// the message for which it was posted.
    pub(crate) fn drain(
        &mut self,
    ) -> impl DoubleEndedIterator<Item = (MessageNumber, Posted)> + '_ {
        let first = self.first.0;
        let numbered = self.entries.drain(..).enumerate();
        numbered
            .map(move |(index, receive)| (MessageNumber(first.wrapping_add(index as u32)), receive))
    }

    /// Returns the number of the first message for which no receive is posted.
    pub(crate) fn credit(&self) -> MessageNumber {
        MessageNumber(self.first.0.wrapping_add(self.entries.len() as u32))
    }
}

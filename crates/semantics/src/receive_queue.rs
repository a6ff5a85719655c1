//! Receives an application posted, in the order messages will consume them.

use std::collections::VecDeque;

use wire_edge::MessageNumber;

use crate::Receive;

/// Posted receives of one connection. Allocated once, at the first posted receive.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    entries: VecDeque<Receive>,
    capacity: usize,
    /// Message that will consume the front entry.
    first: MessageNumber,
}

impl ReceiveQueue {
    /// A queue whose first receive will be consumed by message `first`.
    pub(crate) fn new(capacity: u32, first: MessageNumber) -> Self {
        let capacity = capacity as usize;
        Self { entries: VecDeque::with_capacity(capacity), capacity, first }
    }

    /// Appends a receive; false when the queue is full.
    pub(crate) fn push(&mut self, receive: Receive) -> bool {
        if self.entries.len() >= self.capacity {
            return false;
        }
        self.entries.push_back(receive);
        true
    }

    /// The receive that `message` consumes, if it is posted and not consumed yet.
    pub(crate) fn get(&self, message: MessageNumber) -> Option<&Receive> {
        let index = usize::try_from(message.since(self.first)).ok()?;
        self.entries.get(index)
    }

    /// Consumes the receive of `message`, which must be the oldest one.
    pub(crate) fn pop(&mut self, message: MessageNumber) -> Option<Receive> {
        if message != self.first {
            return None;
        }
        let receive = self.entries.pop_front()?;
        self.first = self.first.next();
        Some(receive)
    }

    /// Takes all receives that were not consumed, each with the message that would have consumed it.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = (MessageNumber, Receive)> + '_ {
        let first = self.first.0;
        let numbered = self.entries.drain(..).enumerate();
        numbered
            .map(move |(index, receive)| (MessageNumber(first.wrapping_add(index as u32)), receive))
    }

    /// Message number up to which (exclusive) receives are posted.
    pub(crate) fn credit(&self) -> MessageNumber {
        MessageNumber(self.first.0.wrapping_add(self.entries.len() as u32))
    }
}

//! Requests that a rank has started and has not awaited yet.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::{Message, Rank, Shared};

/// A started send. It completes when the sending processor has finished its part.
#[must_use = "to be awaited; a send that is dropped is still sent"]
pub struct Sending(pub(super) Request);

/// A posted receive. It completes with a message.
#[must_use = "to be awaited; a receive that is dropped still takes a message"]
pub struct Receiving(pub(super) Request);

impl Future for Sending {
    type Output = ();

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<()> {
        self.get_mut().0.take().map(|_| ())
    }
}

impl Future for Receiving {
    type Output = Message;

    fn poll(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Message> {
        self.get_mut().0.take()
    }
}

/// A slot of a rank's requests. A `Request` owns its slot until the program takes the result.
pub(super) struct Request {
    rank: u32,
    slot: u32,
    shared: Rc<RefCell<Shared>>,
    is_taken: bool,
}

impl Request {
    pub(super) fn new(rank: &Rank, slot: u32) -> Self {
        Self { rank: rank.number, slot, shared: Rc::clone(&rank.shared), is_taken: false }
    }

    fn take(&mut self) -> Poll<Message> {
        if self.is_taken {
            // The program polled this request after its completion. The contract of futures defines
            // no result for this case.
            return Poll::Pending;
        }
        let mut shared = self.shared.borrow_mut();
        match shared.ranks[self.rank as usize].requests.take(self.slot) {
            Some(message) => {
                self.is_taken = true;
                Poll::Ready(message)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_taken {
            let mut shared = self.shared.borrow_mut();
            shared.ranks[self.rank as usize].requests.abandon(self.slot);
        }
    }
}

/// The requests of a rank. Later requests reuse vacant slots.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Vacant,
    Pending,
    /// The request is pending, but the program has dropped it and does not need the result.
    Abandoned,
    Ended(Message),
}

impl Requests {
    /// Adds a pending request.
    pub(super) fn begin(&mut self) -> u32 {
        if let Some(slot) = self.vacant.pop() {
            self.slots[slot as usize] = Slot::Pending;
            return slot;
        }
        self.slots.push(Slot::Pending);
        self.slots.len() as u32 - 1
    }

    /// Completes a request with a message.
    pub(super) fn end(&mut self, slot: u32, message: Message) {
        match self.slots.get_mut(slot as usize) {
            Some(place @ Slot::Pending) => *place = Slot::Ended(message),
            Some(Slot::Abandoned) => self.vacate(slot),
            _ => {}
        }
    }

    /// Completes a request that is not a receive.
    pub(super) fn end_without_message(&mut self, slot: u32) {
        self.end(slot, Message { from: 0, tag: 0, bytes: 0, value: 0.0 });
    }

    /// Returns whether the program awaits a pending request or can still await it.
    pub(super) fn is_awaited(&self, slot: u32) -> bool {
        matches!(self.slots.get(slot as usize), Some(Slot::Pending))
    }

    fn take(&mut self, slot: u32) -> Option<Message> {
        let Some(Slot::Ended(message)) = self.slots.get(slot as usize).copied() else {
            return None;
        };
        self.vacate(slot);
        Some(message)
    }

    fn abandon(&mut self, slot: u32) {
        match self.slots.get_mut(slot as usize) {
            Some(place @ Slot::Pending) => *place = Slot::Abandoned,
            Some(Slot::Ended(_)) => self.vacate(slot),
            _ => {}
        }
    }

    fn vacate(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot::Vacant;
        self.vacant.push(slot);
    }
}

//! Compresses the sending half of a connection's operations when the connection becomes idle, and
//! restores it later.

use wire_edge::{MessageNumber, OperationNumber};

use super::{Outbound, PeerLimits};
use crate::slab::NIL;
use work::{Owner, Queues};

/// The sending half of operations of an idle connection, compressed into few bytes.
#[derive(Clone, Copy, Debug)]
pub struct OutboundAtRest {
    next_number: OperationNumber,
    next_message: MessageNumber,
    delivered: OperationNumber,
    window: u32,
    peer: PeerLimits,
    answer_turn: bool,
    queue_pair: bool,
}

impl Outbound {
    /// Returns whether the half is idle: no operation and no answer is pending.
    pub const fn is_at_rest(&self) -> bool {
        self.head == NIL
            && self.answer_head == NIL
            && self.again.is_empty()
            && self.held.is_empty()
            && self.last_fence.is_none()
            && !self.is_faulty
    }

    /// Compresses this half, and returns the compressed state.
    ///
    /// # Panics
    /// Panics if the half is not [idle](Outbound::is_at_rest).
    pub fn rest(&self) -> OutboundAtRest {
        assert!(self.is_at_rest(), "operations or answers are pending");
        OutboundAtRest {
            next_number: self.next_number,
            next_message: self.next_message,
            delivered: self.delivered,
            window: self.window,
            peer: self.peer,
            answer_turn: self.answer_turn,
            queue_pair: self.queue_pair,
        }
    }
}

impl OutboundAtRest {
    /// Restores the half. State that was not compressed has the values of [`Outbound::new`].
    #[must_use]
    pub fn wake(self, owner: Owner, queues: &Queues) -> Outbound {
        let Self { next_number, next_message, delivered, window, peer, answer_turn, queue_pair } =
            self;
        Outbound {
            next_number,
            next_message,
            delivered,
            window,
            answer_turn,
            queue_pair,
            ..Outbound::new(owner, peer, queues)
        }
    }
}

//! Handles messages for which the peer has no receive.

use wire_edge::{MessageNumber, OperationNumber};

use super::{Carried, CarriedKind, Chain, End, OutKind, OutOperation, Outbound};
use crate::limits::OPERATION_SHARE;
use crate::pools::Pools;
use work::OperationError;

impl Outbound {
    //= protocol.md: queue-pair.4, control.5
    /// Records that the peer has no receive for this message now. Until [`Outbound::on_ready`] is
    /// called, no fragments of the message's operation and of later operations are sent.
    ///
    /// If this returns true, the caller takes back the fragments in flight, and passes each of them
    /// to [`Outbound::on_returned`] or [`Outbound::on_lost`]. The report does not mean that a link
    /// is congested.
    ///
    /// Returns false if the report changes nothing. There are three such cases:
    /// * The report is already known.
    /// * The message was not sent, or it is already delivered.
    /// * The connection is not a queue pair.
    pub fn on_not_ready(&mut self, pools: &mut Pools, message: MessageNumber) -> bool {
        if !self.queue_pair {
            return false;
        }
        let Some(number) = self.sent_message(pools, message) else { return false };
        if self.not_ready.is_some_and(|known| number.since(known) >= 0) {
            return false;
        }
        self.not_ready = Some(number);
        if !self.is_spared {
            self.is_spared = pools.beyond.spare(self.beyond_share());
        }
        self.window = OPERATION_SHARE;
        self.blocked = true;
        let mut rest = core::mem::replace(&mut self.again, Chain::EMPTY);
        while !rest.is_empty() {
            let slot = rest.head;
            rest.head = pools.retransmissions[slot].next;
            pools.retransmissions[slot].next = super::NIL;
            let is_held = self.is_held(&pools.retransmissions[slot].carried);
            let chain = if is_held { &mut self.held } else { &mut self.again };
            chain.add(pools, slot, End::Back);
        }
        true
    }

    //= protocol.md: queue-pair.4
    /// Allows held fragments to be sent. The caller does this when the peer has receives again, or
    /// when the time of the next attempt has come.
    pub fn on_ready(&mut self, pools: &mut Pools) {
        self.not_ready = None;
        if core::mem::take(&mut self.is_spared) {
            pools.beyond.take_back(self.beyond_share());
        }
        let held = core::mem::replace(&mut self.held, Chain::EMPTY);
        self.again.append(pools, held);
        self.unblock();
    }

    /// Returns the number of outstanding operations beyond the [`OPERATION_SHARE`] operations that
    /// are guaranteed to each connection.
    const fn beyond_share(&self) -> u32 {
        self.outstanding.saturating_sub(OPERATION_SHARE)
    }

    /// Returns the operation that waits only for a receive of the peer. Returns `None` if there is
    /// no such operation. All earlier operations are delivered. Either the peer reported that it
    /// has no receive for the operation, or the peer has granted no credit for it.
    pub fn waits_for_receive(&self, pools: &Pools) -> Option<OperationNumber> {
        if self.fault.is_some() || self.is_faulty {
            return None;
        }
        if self.not_ready.is_some() {
            return self.not_ready;
        }
        let operation = pools.operations.get(self.cursor)?;
        let lacks_credit =
            operation.message().is_some_and(|message| message.since(self.peer.credit) >= 0);
        let is_oldest = operation.number == self.delivered;
        (lacks_credit && is_oldest && operation.sent == 0).then_some(operation.number)
    }

    //= protocol.md: queue-pair.5
    /// Fails the operation that has [waited too long for a receive](Outbound::waits_for_receive),
    /// like [`Outbound::fail`].
    pub fn give_up_on_receive(&mut self, pools: &mut Pools) {
        if let Some(number) = self.waits_for_receive(pools) {
            self.fail(pools, number, OperationError::ReceiverNotReady);
        }
    }

    /// Returns whether a fragment must wait until the peer is ready.
    pub fn is_held(&self, carried: &Carried) -> bool {
        let waiting = self.not_ready.filter(|_| carried.kind == CarriedKind::Request);
        waiting.is_some_and(|waiting| carried.number.since(waiting) >= 0)
    }

    /// Returns the operation with this message, if some fragment of it was sent and the peer has
    /// not reported it as delivered.
    fn sent_message(&self, pools: &Pools, message: MessageNumber) -> Option<OperationNumber> {
        let mut slot = self.head;
        while let Some(operation) = pools.operations.get(slot) {
            if operation.message() == Some(message) {
                let has_begun = operation.sent > 0 || operation.all_sent;
                let is_delivered = operation.number.since(self.delivered) < 0;
                return (has_begun && !is_delivered).then_some(operation.number);
            }
            if slot == self.cursor {
                break;
            }
            slot = operation.next;
        }
        None
    }
}

impl OutOperation {
    /// Returns the operation's message number; `None` if the operation consumes no receive of the
    /// peer.
    const fn message(&self) -> Option<MessageNumber> {
        match self.kind {
            OutKind::Write { message, takes_receive: true, .. } | OutKind::Send { message, .. } => {
                Some(message)
            }
            _ => None,
        }
    }
}

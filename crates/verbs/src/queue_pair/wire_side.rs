//! Requests and notifications of a wire to a queue pair. Only the thread inside the engine calls these.

use std::sync::{Arc, MutexGuard};

use semantics::SharedReceives;
use work::{CompletionStatus, Queues};

use super::QueuePair;
use super::slots::{Inline, ReceiveSlot, SendSlot};
use crate::attributes::{QueuePairAttributes, QueuePairState};
use crate::error::Error;
use crate::provider::Ending;
use crate::work_request::{AddressVector, ScatterGather, SendFlags, SendOpcode};

/// The oldest send that was not taken.
#[derive(Debug)]
pub struct TakenSend<'a> {
    sequence: u64,
    slot: MutexGuard<'a, SendSlot>,
}

impl TakenSend<'_> {
    /// Returns its number: the context of its completion.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the operation.
    pub fn opcode(&self) -> SendOpcode {
        self.slot.opcode
    }

    /// Returns the flags.
    pub fn flags(&self) -> SendFlags {
        self.slot.flags
    }

    /// Returns its bytes, or where those that are read go; none if they are [inline](TakenSend::inline).
    pub fn pieces(&self) -> &[ScatterGather] {
        self.slot.pieces.get()
    }

    /// Returns its bytes, if they were given by value.
    pub fn inline(&self) -> Option<Inline> {
        self.slot.inline
    }

    /// Returns the destination of a datagram.
    pub fn to(&self) -> Option<AddressVector> {
        self.slot.to
    }
}

/// The oldest receive that was not taken.
#[derive(Debug)]
pub struct TakenReceive<'a> {
    sequence: u64,
    slot: MutexGuard<'a, ReceiveSlot>,
}

impl TakenReceive<'_> {
    /// Returns its number: the context of its completion.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns where the message goes.
    pub fn pieces(&self) -> &[ScatterGather] {
        self.slot.pieces.get()
    }
}

impl QueuePair {
    /// Returns the attributes that were set, as they are now.
    pub fn attributes(&self) -> QueuePairAttributes {
        *self.lock_attributes()
    }

    /// Returns the domain in which the wire finds the memory that keys name.
    ///
    /// # Errors
    /// None that was not named when the queue pair was made.
    pub fn domain(&self) -> Result<mem::ProtectionDomain, Error> {
        self.domain.memory().map(|(_, domain)| domain)
    }

    /// Returns the queues to which completions go.
    pub fn queues(&self) -> Queues {
        let work = |queue: &crate::CompletionQueue| Arc::clone(queue.work());
        Queues::of_queue_pair(work(&self.send_queue), work(&self.receive_queue))
    }

    /// Returns the queue from which receives come, if others have them too.
    pub fn shared_receives(&self) -> Option<&Arc<SharedReceives>> {
        self.shared.as_ref().map(|shared| shared.receives())
    }

    /// Returns the oldest send that was not taken, if it may begin.
    #[inline]
    pub fn next_send(&self) -> Option<TakenSend<'_>> {
        let sequence = self.sends.taken();
        if self.state() != QueuePairState::ReadyToSend || sequence >= self.sends.posted() {
            return None;
        }
        Some(TakenSend { sequence, slot: self.sends.slot(sequence)? })
    }

    /// Takes the send that [`QueuePair::next_send`] has shown: it will complete.
    #[inline]
    pub fn send_taken(&self) {
        self.sends.take_to(self.sends.taken() + 1);
    }

    /// Returns the oldest receive that was not taken, if there is one of this queue pair alone.
    #[inline]
    pub fn next_receive(&self) -> Option<TakenReceive<'_>> {
        let sequence = self.receives.taken();
        let is_wanted = !matches!(self.state(), QueuePairState::Reset | QueuePairState::Error);
        if !is_wanted || sequence >= self.receives.posted() {
            return None;
        }
        Some(TakenReceive { sequence, slot: self.receives.slot(sequence)? })
    }

    /// Takes the receive that [`QueuePair::next_receive`] has shown: it will complete.
    #[inline]
    pub fn receive_taken(&self) {
        self.receives.take_to(self.receives.taken() + 1);
    }

    /// Whether no send that was taken is incomplete, by the completions that the program got.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.sends.taken() == self.sends.retired()
    }

    /// Whether sends wait that were not taken, and no earlier one is incomplete.
    #[inline]
    pub fn has_first_send(&self) -> bool {
        self.is_idle() && self.sends.posted() > self.sends.taken()
    }

    /// Fails the send that [`QueuePair::next_send`] has shown, which cannot be carried out for a fault of this
    /// side: it is taken, and completes with `status` when all before it are reported. A datagram queue pair goes
    /// to SQE, others to ERR. (Where the engine can complete it in its turn, a wire lets it do so.) In SQE,
    /// [`QueuePair::on_drained`] is awaited as after [`crate::Wire::drain`].
    pub fn send_failed(&self, send: TakenSend<'_>, status: CompletionStatus) {
        let TakenSend { sequence, mut slot } = send;
        slot.outcome = Some(status);
        drop(slot);
        self.fail_send(sequence, status);
    }

    /// Records that no work that was taken is in flight any more ([`crate::Wire::drain`]).
    pub fn on_drained(&self) {
        self.end_draining();
    }

    /// Records that the connection has ended, and its last completions are in their queues; not to be called when
    /// the wire was [closed](crate::Wire::close).
    pub fn on_ended(&self, ending: Ending) {
        self.end_connection(ending);
    }
}

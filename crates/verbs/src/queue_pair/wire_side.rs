//! The functions that the wire of a queue pair calls. A wire is the transport protocol that carries
//! the work of queue pairs, such as the edge protocol. All calls come from the thread inside the
//! engine.

use std::sync::{Arc, MutexGuard};

use work::{CompletionStatus, Piece, Queues, SharedReceives};

use super::QueuePair;
use super::slots::{Inline, ReceiveSlot, SendSlot};
use crate::attributes::{QueuePairAttributes, QueuePairState};
use crate::error::Error;
use crate::provider::Ending;
use crate::work_request::{AddressVector, ScatterGather, SendFlags, SendOpcode};

/// The oldest send that the wire (the transport) has not taken.
#[derive(Debug)]
pub struct TakenSend<'a> {
    sequence: u64,
    slot: MutexGuard<'a, SendSlot>,
}

impl TakenSend<'_> {
    /// Returns the number of the send. The wire (the transport) puts this number into the context
    /// of the send's completion.
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

    /// Returns the scatter/gather entries: the payload, or the destination of a read. The list is
    /// empty if the payload is [inline](TakenSend::inline).
    pub fn pieces(&self) -> &[ScatterGather] {
        self.slot.pieces.get()
    }

    /// Returns the inline bytes, if the send has them.
    pub fn inline(&self) -> Option<Inline> {
        self.slot.inline
    }

    /// Returns the destination of a datagram.
    pub fn to(&self) -> Option<AddressVector> {
        self.slot.to
    }
}

/// The oldest receive that the wire (the transport) has not taken.
#[derive(Debug)]
pub struct TakenReceive<'a> {
    sequence: u64,
    slot: MutexGuard<'a, ReceiveSlot>,
}

impl TakenReceive<'_> {
    /// Returns the number of the receive. The wire (the transport) puts this number into the
    /// context of the receive's completion.
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the scatter/gather entries of the destination.
    pub fn pieces(&self) -> &[ScatterGather] {
        self.slot.pieces.get()
    }
}

impl QueuePair {
    /// Returns the attributes, as the program set them last.
    pub fn attributes(&self) -> QueuePairAttributes {
        *self.lock_attributes()
    }

    /// Returns the protection domain in which the wire (the transport) resolves memory keys.
    ///
    /// # Errors
    /// Returns the errors that [`crate::ProtectionDomain::create_queue_pair`] can return for the
    /// domain.
    pub fn domain(&self) -> Result<mem::ProtectionDomain, Error> {
        self.domain.memory().map(|(_, domain)| domain)
    }

    /// Returns the protection domain in which the wire (the transport) resolves memory keys of
    /// receives: that of the shared receive queue, if the queue pair uses one.
    ///
    /// # Errors
    /// Returns the errors of [`QueuePair::domain`].
    pub fn receive_domain(&self) -> Result<mem::ProtectionDomain, Error> {
        let domain = self.shared.as_ref().map_or(&self.domain, |shared| shared.domain());
        domain.memory().map(|(_, domain)| domain)
    }

    /// Returns the completion queues.
    pub fn queues(&self) -> Queues {
        let work = |queue: &crate::completion_queue::CompletionQueue| Arc::clone(queue.work());
        Queues::of_queue_pair(work(&self.send_queue), work(&self.receive_queue))
    }

    /// Returns the shared receive queue, if the queue pair uses one.
    pub fn shared_receives(&self) -> Option<&Arc<SharedReceives>> {
        self.shared.as_ref().map(|shared| shared.receives())
    }

    /// Returns the oldest untaken send. Returns `None` if there is none, or if the queue pair is
    /// not in RTS.
    #[inline]
    pub fn next_send(&self) -> Option<TakenSend<'_>> {
        let sequence = self.sends.taken();
        if self.state() != QueuePairState::ReadyToSend || sequence >= self.sends.posted() {
            return None;
        }
        Some(TakenSend { sequence, slot: self.sends.slot(sequence)? })
    }

    /// Returns the number that the next posted send will get. Sends have consecutive numbers.
    #[inline]
    pub fn next_send_number(&self) -> u64 {
        self.sends.posted()
    }

    /// Takes the send that [`QueuePair::next_send`] returned. From now on, the wire (the transport)
    /// must complete the send.
    #[inline]
    pub fn send_taken(&self) {
        self.sends.take_to(self.sends.taken() + 1);
    }

    /// Returns the oldest untaken receive of the queue pair's own receive queue. Returns `None` if
    /// there is none, or if the queue pair is in RESET or ERR.
    #[inline]
    pub fn next_receive(&self) -> Option<TakenReceive<'_>> {
        let sequence = self.receives.taken();
        let is_wanted = !matches!(self.state(), QueuePairState::Reset | QueuePairState::Error);
        if !is_wanted || sequence >= self.receives.posted() {
            return None;
        }
        Some(TakenReceive { sequence, slot: self.receives.slot(sequence)? })
    }

    /// Takes the receive that [`QueuePair::next_receive`] returned. From now on, the wire (the
    /// transport) must complete the receive.
    #[inline]
    pub fn receive_taken(&self) {
        self.receives.take_to(self.receives.taken() + 1);
    }

    /// Takes the oldest receive of the shared receive queue for a message that has arrived, and
    /// raises the event of the queue if it then has fewer receives than its limit. `keep` gets the
    /// number that the wire (the transport) puts into the context of the receive's completion, and
    /// the scatter/gather entries.
    ///
    /// Returns `None` if the queue pair uses no shared queue or is in RESET or ERR, or if the queue
    /// is empty. No queue pair of the wire waits for a receive. A wire whose messages can wait uses
    /// [`QueuePair::shared_receives`] instead. Allocates nothing and takes no lock.
    #[inline]
    pub fn take_shared_receive<R>(&self, keep: impl FnOnce(u64, &[Piece]) -> R) -> Option<R> {
        let shared = self.shared.as_ref()?;
        if matches!(self.state(), QueuePairState::Reset | QueuePairState::Error) {
            return None;
        }
        let receives = shared.receives();
        let taken = receives.take(|receive, list| {
            let work::Receive { region, offset, length, context } = receive;
            match list {
                Some(list) => keep(context, list.pieces()),
                None => keep(context, &[Piece { region, offset, length }]),
            }
        });
        if receives.falls_below_limit() {
            shared.on_below_limit();
        }
        taken
    }

    /// Returns whether all taken sends are retired: they are complete, and the program has polled
    /// their completions.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.sends.taken() == self.sends.retired()
    }

    /// Returns whether there is a posted send that is not taken, and all earlier sends are retired.
    #[inline]
    pub fn has_first_send(&self) -> bool {
        self.is_idle() && self.sends.posted() > self.sends.taken()
    }

    /// Fails the send that [`QueuePair::next_send`] returned, because an error on this side
    /// prevents it.
    ///
    /// Takes the send, which completes with `status` after all earlier sends. A datagram queue pair
    /// enters SQE; any other queue pair enters ERR. If it enters SQE, the wire (the transport) must
    /// later call [`QueuePair::on_drained`], like after [`crate::Wire::drain`].
    ///
    /// If the engine itself can complete the send with an error, in order, the wire does not call
    /// this function.
    pub fn send_failed(&self, send: TakenSend<'_>, status: CompletionStatus) {
        let TakenSend { sequence, mut slot } = send;
        slot.outcome = Some(status);
        drop(slot);
        self.fail_send(sequence, status);
    }

    /// Records that no taken send is in flight any more. The wire (the transport) must call this
    /// function after [`crate::Wire::drain`].
    pub fn on_drained(&self) {
        self.end_draining();
    }

    /// Moves the queue pair from INIT through RTR to RTS, because the wire (the transport) has
    /// connected it itself. `reads_max` and `peer_reads_max` are the numbers of reads in flight, of
    /// this end and of the peer, to which both ends have agreed.
    ///
    /// Returns false if the queue pair is not in INIT any more: the program has reset it, destroyed
    /// it or moved it to ERR. The wire then closes the connection.
    ///
    /// The wire calls this in its turn, before it handles anything that the peer has sent on the
    /// connection. An event that the program takes would be too late, because some peers send at
    /// once.
    pub fn on_connected(&self, reads_max: u8, peer_reads_max: u8) -> bool {
        let is_in_time = self.enter_if(QueuePairState::Init, QueuePairState::ReadyToSend);
        if is_in_time {
            let mut attributes = self.lock_attributes();
            (attributes.reads_max, attributes.peer_reads_max) = (reads_max, peer_reads_max);
        }
        is_in_time
    }

    /// Records that the connection has ended. Its last completions are already in their queues. The
    /// wire (the transport) must not call this after [`crate::Wire::close`].
    pub fn on_ended(&self, ending: Ending) {
        self.end_connection(ending);
    }
}

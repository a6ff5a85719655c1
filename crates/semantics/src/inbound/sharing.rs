//! Receives that a connection shares with other connections (protocol.md §5.8). When a message
//! begins to arrive, the connection takes a receive from the shared queue.

use std::sync::Arc;

use wire_edge::{CloseReason, MessageNumber, OperationNumber};

use super::deliver::Stop;
use super::operation::{InKind, Part};
use super::{Inbound, Refusal, Surroundings, Verdict, violation};
use crate::limits::SHARED_WINDOW;
use crate::pools::Pools;
use crate::receive_queue::{Posted, ReceiveQueue};
use work::{Owner, PostError, SharedReceives};

/// The queue from which a connection takes receives.
#[derive(Debug)]
pub(super) struct Share {
    queue: Arc<SharedReceives>,
    /// The first message that lacks a receive; `None` if the connection does not wait for a
    /// receive.
    lacking: Option<MessageNumber>,
}

impl Inbound {
    /// Makes the connection take its receives from `queue`. The caller must call this before the
    /// first operation. The connection must be a queue pair, because shared receives reserve no
    /// room in the completion queue.
    ///
    /// # Panics
    /// Panics if the connection is not a queue pair, or if it has its own receives.
    pub fn share_receives(&mut self, queue: Arc<SharedReceives>) {
        assert!(self.queue_pair && !self.outlet.promises(), "only queue pairs share receives");
        assert!(self.receives.is_none(), "the connection has receives of its own");
        self.share = Some(Box::new(Share { queue, lacking: None }));
    }

    /// Returns the first message that lacks a receive, if this connection
    /// [waits](SharedReceives::next_ready) for a receive. If [`Inbound::is_stalled`] also returns
    /// true, the whole message has arrived, and the caller must notify the peer of the missing
    /// receive.
    pub fn lacks_receive(&self) -> Option<MessageNumber> {
        self.share.as_ref()?.lacking
    }

    //= protocol.md: shared.3
    /// Takes the receive that [`SharedReceives::next_ready`] announced, and resumes the deliveries
    /// that waited for this receive. After this call, the caller must notify the peer that there
    /// are receives again.
    pub fn on_ready(&mut self, around: &mut Surroundings<'_, '_>) -> Verdict {
        let first = self.next_message;
        if let Some(share) = self.share.as_mut() {
            share.lacking = None;
            let lists = &mut around.pools.lists;
            let taken = share.queue.take_waited_for(|receive, list| lists.receive(receive, list));
            if let Some(receive) = taken {
                around.pools.note_limit(&share.queue);
                own_queue(&mut self.receives, first).add(receive);
            }
        }
        if self.stalled { self.resume(around) } else { Verdict::Accepted }
    }

    /// Ensures that the message of a fragment has a receive, if the fragment needs the receive now.
    #[inline(never)]
    pub(super) fn see_to_receive(
        &mut self,
        pools: &mut Pools,
        part: &Part<'_>,
    ) -> Result<(), Verdict> {
        let number = part.number;
        let message = match part.kind {
            InKind::Send { message, .. } => message,
            // A write with an immediate also consumes a receive. Its message number is known only
            // when all earlier operations are delivered.
            _ if self.share.is_some() && number == self.expected => self.next_message,
            _ => return Ok(()),
        };
        match &self.receives {
            Some(receives) if receives.get(message).is_some() => Ok(()),
            _ => self.begin_message(pools, number, message),
        }
    }

    //= protocol.md: credit.3, shared.2, shared.5
    /// Ensures that `message` and all messages before it have receives. Operation `number` is the
    /// one that consumes the receive of `message`.
    pub(super) fn begin_message(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        message: MessageNumber,
    ) -> Result<(), Verdict> {
        let (first, window) = (self.next_message, self.shared_window());
        let ahead = u32::try_from(message.since(first));
        let is_granted = ahead.is_ok_and(|ahead| ahead < window);
        let Some(share) = self.share.as_mut().filter(|_| is_granted) else {
            // The credits reported to the peer contain the number of the first message without a
            // receive. The peer must not send this message or later ones.
            return Err(violation(CloseReason::ProtocolViolation, number));
        };
        let receives = own_queue(&mut self.receives, first);
        while receives.credit().since(message) <= 0 {
            let own = receives.len() as u32;
            let is_modest = share.leaves_enough(own) && pools.lists.grants_another(own);
            if number != self.expected && !is_modest {
                return Err(Verdict::Refused(Refusal::Pool));
            }
            match share.take(pools, self.owner, message) {
                Some(receive) => receives.add(receive),
                None => return Err(Verdict::Refused(Refusal::NotReady(message))),
            }
        }
        Ok(())
    }

    /// Returns the receive that the first undelivered operation consumes. All bytes of the
    /// operation have arrived.
    #[cold]
    pub(super) fn receive_in_turn(
        &mut self,
        pools: &mut Pools,
        message: MessageNumber,
    ) -> Result<Posted, Stop> {
        let violated = Stop::Peer(CloseReason::ProtocolViolation);
        if message != self.next_message {
            return Err(violated);
        }
        match self.begin_message(pools, self.expected, message) {
            Ok(()) => self.receives.as_mut().and_then(|own| own.pop(message)).ok_or(violated),
            Err(Verdict::Violation { reason, .. }) => Err(Stop::Peer(reason)),
            Err(_) => Err(Stop::Stalled),
        }
    }

    /// Checks that the connection has its own receives and does not use a shared queue.
    pub(super) const fn check_own_receives(&self) -> Result<(), PostError> {
        if self.share.is_some() { Err(PostError::ReceivesShared) } else { Ok(()) }
    }

    //= protocol.md: shared.6
    /// Returns receives to the shared queue if no message has consumed them. Does not return a
    /// receive that caused the end of the connection.
    pub(super) fn give_back(&mut self, pools: &mut Pools) {
        let Some(share) = self.share.as_mut() else { return };
        share.lacking = None;
        let mut own = self.receives.take();
        // On a queue pair, only the message of the first undelivered operation can fail.
        let failed = self.failed.and_then(|(message, error)| {
            let receive = own.as_mut().and_then(|own| own.pop(message));
            receive.map(|receive| (receive, error))
        });
        let unused = own.iter_mut().flat_map(|own| own.drain()).map(|(_, receive)| receive);
        for receive in unused.rev() {
            let (receive, slot) = receive.unconsumed();
            share.queue.give_back(receive, slot.map(|slot| pools.lists.get(slot)));
            if let Some(slot) = slot {
                pools.lists.remove(slot);
            }
        }
        if share.queue.end_waiting(self.owner) {
            pools.refilled.push(Arc::clone(&share.queue));
        }
        if let Some((receive, error)) = failed {
            self.complete_unused(pools, receive, error);
        }
    }

    /// Returns how many messages the peer may send after the last delivered message.
    pub(super) fn shared_window(&self) -> u32 {
        self.limits.operation_window.min(SHARED_WINDOW)
    }
}

impl Share {
    /// Takes a receive from the shared queue for `message`. If the queue is empty, the connection
    /// starts to wait for a receive, and the result is `None`.
    #[inline]
    fn take(&mut self, pools: &mut Pools, owner: Owner, message: MessageNumber) -> Option<Posted> {
        while self.lacking.is_none() {
            let lists = &mut pools.lists;
            let taken = self.queue.take(|receive, list| lists.receive(receive, list));
            if let Some(receive) = taken {
                pools.note_limit(&self.queue);
                return Some(receive);
            }
            if self.queue.wait(owner) {
                self.lacking = Some(message);
            }
        }
        self.lacking = self.lacking.filter(|lacking| lacking.since(message) < 0).or(Some(message));
        None
    }

    /// Returns whether a connection that has taken `own` receives may take another receive before a
    /// message needs it. Also returns true if the queue is empty, because the caller handles that
    /// case itself.
    fn leaves_enough(&self, own: u32) -> bool {
        let left = self.queue.left() as u32;
        left == 0 || Pools::grants_another(own, left)
    }
}

/// Returns the receives that the connection has taken. Creates the queue for them if necessary.
#[inline]
fn own_queue(receives: &mut Option<Box<ReceiveQueue>>, first: MessageNumber) -> &mut ReceiveQueue {
    receives.get_or_insert_with(|| Box::new(ReceiveQueue::growing(SHARED_WINDOW, first)))
}

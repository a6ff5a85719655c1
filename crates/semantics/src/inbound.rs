//! The receiving half of a connection's operations (protocol.md §5). Decides which bytes are placed
//! in memory and when. Delivers operations in order, and each exactly once.

mod deliver;
mod operation;
mod patch;
mod placement;
mod records;
mod rest;
mod sharing;
mod yielding;

use std::sync::Arc;

use mem::{AccessError, MemoryAccess, Payload, ProtectionDomain, RegionId, Rights, Target};
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey,
};

use crate::close::close_reason_of;
use crate::outbound::Outbound;
use crate::outlet::Outlet;
use crate::pools::Pools;
use crate::receive_queue::{Destination, Posted, ReceiveQueue};
use crate::slab::NIL;
use work::{
    Completion, CompletionKind, OperationError, Owner, Piece, PieceList, PostError, Queues, Receive,
};

use deliver::{Notice, Stop};
pub(crate) use operation::InOperation;
use operation::{InKind, Part};
use placement::Tail;
pub use rest::InboundAtRest;
use sharing::Share;
use yielding::RemotePlace;
#[cfg(test)]
pub(crate) use yielding::STEPS;

/// Limits that this side grants its peer.
#[derive(Clone, Copy, Debug)]
pub struct InboundLimits {
    /// Number of operations of the peer that this side tracks, counted from the first operation
    /// that is not delivered.
    pub operation_window: u32,
    /// Maximum number of reads and atomics that this side answers at the same time.
    pub read_depth: u16,
    /// Maximum number of payload bytes that this side holds for operations that must wait for
    /// earlier operations.
    pub order_pool_bytes: u32,
    /// Maximum number of receives that can be posted at the same time.
    pub receives: u32,
    /// Rights of the peer on this connection. The peer has a right only if the region also grants
    /// it.
    pub rights: Rights,
    /// Whether this side offers patches and swaps. A queue pair has none.
    pub patches: bool,
}

/// Result of handling a fragment, and the action for the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The fragment was placed, executed or held: acknowledge its packet.
    Accepted,
    /// The fragment has arrived before and changes no memory: acknowledge its packet again.
    Duplicate,
    /// There is no room for the fragment now. Do not acknowledge its packet; the peer then
    /// retransmits it.
    Refused(Refusal),
    /// The peer broke a rule, or accessed memory without the right to do so: close the connection.
    Violation {
        /// Reason to report to the peer.
        reason: CloseReason,
        /// The operation at fault.
        operation: OperationNumber,
    },
}

/// Reason why this side refuses a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The operation of the fragment lies beyond the window of operations.
    Window,
    /// The order pool is full, or all records are in use.
    Pool,
    /// The fragment would create more gaps than a record can hold.
    Ranges,
    /// The connection uses a shared receive queue, and this queue has no receive for the message.
    /// Notify the peer.
    NotReady(MessageNumber),
    /// On a queue pair, the access of this fragment fails, but earlier operations are not delivered
    /// yet. The peer must not see the error before these operations are delivered. The fragment is
    /// dropped, so that the peer retransmits it later.
    Early,
}

/// State outside the connection that is needed to handle a fragment.
#[derive(Debug)]
pub struct Surroundings<'a, 'm> {
    /// Memory of the application, accessible during this turn.
    pub memory: &'a MemoryAccess<'m>,
    /// The records that all connections of the endpoint share.
    pub pools: &'a mut Pools,
    /// The sending half of the connection, which sends answers to reads and atomics.
    pub outbound: &'a mut Outbound,
}

/// The receiving half of the operations of one connection.
#[derive(Debug)]
pub struct Inbound {
    owner: Owner,
    domain: ProtectionDomain,
    /// Number of the first operation that is not delivered.
    expected: OperationNumber,
    /// Slot of the first open operation; [`NIL`] if no operation is open. Open operations form a
    /// list in ascending order. If each frame completes its operation, no operation is ever open.
    head: u32,
    /// The record that the last fragment used. Fragments that completed their operation at once do
    /// not count.
    current: u32,
    /// Number of open operations. An open operation has a record.
    open: u32,
    /// Number of received byte ranges of all open operations together. The first range of each
    /// operation does not count.
    extra_ranges: u32,
    held_bytes: u32,
    /// Number of blocks of the order pool that hold the `held_bytes` bytes.
    held_blocks: u32,
    /// Number of open operations that have placed bytes before all earlier operations were
    /// delivered.
    placed_early: u32,
    limits: InboundLimits,
    next_message: MessageNumber,
    /// Whether the next delivery waits for room in the completion queue, for a receive, or for the
    /// end of an earlier answer.
    stalled: bool,
    /// Whether the rules of queue pairs apply to this connection, because both ends want a queue
    /// pair.
    queue_pair: bool,
    /// The region to which the peer wrote last, and the key that it used.
    known: Option<(RemoteKey, Target)>,
    outlet: Outlet,
    pub(crate) receives: Option<Box<ReceiveQueue>>,
    /// The shared receive queue, and what this connection waits for in it; `None` if the connection
    /// has its own receives.
    share: Option<Box<Share>>,
    /// The message whose receive caused the end of the connection, and the error in the completion
    /// of that receive.
    failed: Option<(MessageNumber, OperationError)>,
}

impl Inbound {
    /// Creates the receiving half of the connection `owner`. The peer may access regions of
    /// `domain`.
    pub fn new(
        owner: Owner,
        domain: ProtectionDomain,
        limits: InboundLimits,
        queues: &Queues,
    ) -> Self {
        Self {
            owner,
            domain,
            expected: OperationNumber(0),
            head: NIL,
            current: NIL,
            open: 0,
            extra_ranges: 0,
            held_bytes: 0,
            held_blocks: 0,
            placed_early: 0,
            limits,
            next_message: MessageNumber(0),
            stalled: false,
            queue_pair: false,
            known: None,
            outlet: Outlet::new(Arc::clone(&queues.receive), queues.promises),
            receives: None,
            share: None,
            failed: None,
        }
    }

    /// Sets the numbers of the first operation and message, for tests in which numbers wrap around.
    /// The peer must start with the same numbers. The caller must call this before the first
    /// receive.
    pub const fn begin_at(&mut self, operation: OperationNumber, message: MessageNumber) {
        self.expected = operation;
        self.next_message = message;
    }

    /// Applies the rules of queue pairs to all operations. Both ends must have agreed on these
    /// rules. The caller must call this before the first operation.
    pub const fn be_queue_pair(&mut self) {
        self.queue_pair = true;
    }

    //= protocol.md: operation.4, operation.5, invalidate.3, patch.8
    /// Handles a fragment of an operation of the peer. Never allocates memory. A fragment that
    /// arrives in order costs one key look-up and one copy.
    ///
    /// `header` must be the header of a request. For answers, call [`Outbound::handle_answer`]
    /// instead.
    pub fn handle<'p>(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        flags: Flags,
        header: &Header,
        payload: impl Into<Payload<'p>>,
    ) -> Verdict {
        let payload = payload.into();
        let (number, offset, kind, immediate) = match *header {
            Header::Write { operation, offset, key, address, immediate } => {
                let base = address.wrapping_sub(u64::from(offset));
                if self.known.is_none_or(|(known, _)| known != key) {
                    self.know(around.memory, key, address);
                }
                (operation, offset, InKind::Write { key, base }, immediate)
            }
            Header::Send { operation, offset, message, immediate } => {
                (operation, offset, InKind::Send { message, ends_key: false }, immediate)
            }
            Header::SendInvalidate { operation, offset, message, key } if self.queue_pair => {
                let kind = InKind::Send { message, ends_key: true };
                (operation, offset, kind, key.map(|key| key.0))
            }
            Header::ReadRequest { operation, length, key, address } => {
                (operation, 0, InKind::Read { key, address, length }, None)
            }
            Header::Patch { operation, offset, key, address, immediate } if self.has_patches() => {
                if self.known.is_none_or(|(known, _)| known != key) {
                    self.know(around.memory, key, address);
                }
                (operation, offset, InKind::Patch { key, address }, immediate)
            }
            Header::Atomic { opcode: AtomicOpcode::Swap, operation, .. } if !self.has_patches() => {
                return violation(CloseReason::ProtocolViolation, operation);
            }
            Header::Atomic { operation, opcode, key, address, operand, compare } => {
                (operation, 0, InKind::Atomic { opcode, key, address, operand, compare }, None)
            }
            _ => return violation(CloseReason::ProtocolViolation, OperationNumber(0)),
        };
        let distance = number.since(self.expected);
        if distance < 0 {
            return Verdict::Duplicate;
        }
        if distance as u32 >= self.limits.operation_window {
            return Verdict::Refused(Refusal::Window);
        }
        let whole = flags.contains(Flags::LAST) && offset == 0;
        let part = Part { number, flags, kind, offset, immediate, payload };
        if (immediate.is_some() || matches!(part.kind, InKind::Send { .. }))
            && let Err(verdict) = self.see_to_receive(around.pools, &part)
        {
            return verdict;
        }
        if distance == 0 && whole && !self.is_turn_open(around.pools) {
            return self.handle_whole(around, &part);
        }
        self.handle_part(around, &part)
    }

    /// Resumes deliveries that had to wait. If [`Inbound::is_stalled`] returns true, the caller
    /// must call this after each of these events:
    /// * A completion may have been polled.
    /// * An answer of any connection has finished. Connections share the records of answers.
    pub fn resume(&mut self, around: &mut Surroundings<'_, '_>) -> Verdict {
        self.stalled = false;
        self.advance(around)
    }

    /// Posts a buffer for the next message that has no receive yet.
    ///
    /// # Errors
    /// Returns [`PostError`] in these cases:
    ///
    /// * [`PostError::LocalAccess`] if the memory is not writable.
    /// * [`PostError::ReceiveQueueFull`] if the queue is full.
    /// * [`PostError::CompletionQueueFull`] if there is no room for the completion.
    /// * [`PostError::ReceivesShared`] if the connection takes its receives from a shared queue.
    pub fn post_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        receive: Receive,
    ) -> Result<(), PostError> {
        self.check_own_receives()?;
        let Receive { region, offset, length, .. } = receive;
        check_sink(memory, &Piece { region, offset, length })?;
        self.outlet.promise()?;
        if self.receives().push(receive.into()) {
            return Ok(());
        }
        self.outlet.withdraw();
        Err(PostError::ReceiveQueueFull(self.limits.receives))
    }

    /// Posts a buffer for the next message that has no receive yet. A slot of the status table
    /// reports the message, and no completion does. Therefore the completion queue needs no room.
    ///
    /// # Errors
    /// Returns the errors of [`Inbound::post_receive`], without [`PostError::CompletionQueueFull`].
    pub fn post_followed_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        receive: Receive,
        status: u32,
    ) -> Result<(), PostError> {
        self.check_followed_receive(memory, receive)?;
        self.receives().add(Posted { status, ..receive.into() });
        Ok(())
    }

    /// Checks whether [`Inbound::post_followed_receive`] would succeed.
    ///
    /// # Errors
    /// Returns the error that [`Inbound::post_followed_receive`] would return.
    pub fn check_followed_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        receive: Receive,
    ) -> Result<(), PostError> {
        self.check_own_receives()?;
        let Receive { region, offset, length, .. } = receive;
        check_sink(memory, &Piece { region, offset, length })?;
        if self.receives().is_full() {
            return Err(PostError::ReceiveQueueFull(self.limits.receives));
        }
        Ok(())
    }

    /// Posts a list of pieces (scatter/gather entries) for the next message that has no receive
    /// yet. The message fills the pieces one after the other.
    ///
    /// # Errors
    /// Returns the errors of [`Inbound::post_receive`], and [`PostError::NoListLeft`] if no record
    /// for a list is free.
    pub fn post_receive_list(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        list: PieceList<'_>,
        context: u64,
    ) -> Result<(), PostError> {
        self.check_own_receives()?;
        for piece in list.pieces() {
            check_sink(memory, piece)?;
        }
        if self.receives().is_full() {
            return Err(PostError::ReceiveQueueFull(self.limits.receives));
        }
        self.outlet.promise()?;
        let own = self.receives().len() as u32;
        let destination = match pools.lists.store(list, own) {
            Ok(slot) => Destination::List(slot),
            Err(error) => {
                self.outlet.withdraw();
                return Err(error);
            }
        };
        let is_posted = self.receives().push(Posted::new(context, list.length(), destination));
        assert!(is_posted, "there was room for the receive above");
        Ok(())
    }

    /// Posts a receive whose memory no longer exists. When a message arrives for it, the receive
    /// fails like a receive whose memory was deregistered after posting.
    ///
    /// # Errors
    /// Returns the errors of [`Inbound::post_receive`].
    pub fn post_failed_receive(&mut self, length: u32, context: u64) -> Result<(), PostError> {
        self.check_own_receives()?;
        self.outlet.promise()?;
        let receive = Receive { region: RegionId::NONE, offset: 0, length, context };
        if self.receives().push(receive.into()) {
            return Ok(());
        }
        self.outlet.withdraw();
        Err(PostError::ReceiveQueueFull(self.limits.receives))
    }

    fn receives(&mut self) -> &mut ReceiveQueue {
        let (capacity, first) = (self.limits.receives, self.next_message);
        self.receives.get_or_insert_with(|| Box::new(ReceiveQueue::new(capacity, first)))
    }

    /// Frees all records and completes all posted receives. If a receive caused the end of the
    /// connection, this receive completes with its own error. All other receives complete with
    /// `others`.
    pub fn flush(&mut self, pools: &mut Pools, others: OperationError) {
        while self.head != NIL {
            self.close_head(pools);
        }
        self.stalled = false;
        if self.share.is_some() {
            self.give_back(pools);
        }
        let Some(mut receives) = self.receives.take() else { return };
        for (message, receive) in receives.drain() {
            let error = match self.failed {
                Some((failed, error)) if failed == message => error,
                _ => others,
            };
            self.complete_unused(pools, receive, error);
        }
    }

    fn complete_unused(&mut self, pools: &mut Pools, receive: Posted, error: OperationError) {
        pools.forget(receive.destination);
        pools.note_room(self.owner);
        if receive.status != NIL {
            pools.finish(receive.status, Err(error));
            return;
        }
        let completion = Completion {
            context: receive.context,
            owner: self.owner,
            kind: CompletionKind::Receive,
            result: Err(error),
            bytes: 0,
            immediate: None,
            solicited: false,
            value: 0,
        };
        self.outlet.complete(&mut pools.notices, &completion);
    }

    /// Returns the number of the first operation of the peer that is not delivered.
    pub const fn delivered(&self) -> OperationNumber {
        self.expected
    }

    /// Returns the number of the first message that is not delivered.
    pub const fn next_message(&self) -> MessageNumber {
        self.next_message
    }

    //= protocol.md: credit.1, shared.1
    /// Returns the number of the first message for which no receive is posted.
    pub fn credit(&self) -> MessageNumber {
        if self.share.is_some() {
            return MessageNumber(self.next_message.0.wrapping_add(self.shared_window()));
        }
        self.receives.as_ref().map_or(self.next_message, |receives| receives.credit())
    }

    /// Returns whether a completion was lost because its queue was full. The connection must then
    /// end.
    pub const fn is_overrun(&self) -> bool {
        self.outlet.is_overrun()
    }

    /// Returns whether deliveries wait for a call of [`Inbound::resume`].
    pub const fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// Returns whether the peer may post patches and swaps.
    const fn has_patches(&self) -> bool {
        self.limits.patches && !self.queue_pair
    }

    /// Returns whether the first undelivered operation has a record.
    fn is_turn_open(&self, pools: &Pools) -> bool {
        pools.incoming.get(self.head).is_some_and(|head| head.number == self.expected)
    }

    /// Handles a fragment that contains the whole of the first undelivered operation, like most
    /// small operations. The operation gets a record only if it cannot be delivered at once.
    #[inline]
    fn handle_whole(&mut self, around: &mut Surroundings<'_, '_>, part: &Part<'_>) -> Verdict {
        let Part { number, flags, ref kind, immediate, payload, .. } = *part;
        let (memory, order) = (around.memory, (flags, kind));
        let placed =
            self.place_yielding(memory, around.pools, self.head, order, 0, payload, Tail::Ordered);
        if let Err(error) = placed {
            return self.fault(*kind, error, number);
        }
        match self.deliver(around, *kind, Notice { flags, immediate }, payload.len() as u32) {
            Ok(()) => {
                self.expected = number.next();
                if self.head == NIL { Verdict::Accepted } else { self.advance(around) }
            }
            Err(Stop::Stalled) => {
                self.stalled = true;
                self.open_stalled(around.pools, part)
            }
            Err(Stop::Fault(error)) => self.fault(*kind, error, number),
            Err(Stop::Peer(reason)) => violation(reason, number),
        }
    }

    /// Opens a record for an operation of one fragment. Its bytes are already placed, but the
    /// operation cannot be delivered yet.
    #[cold]
    fn open_stalled(&mut self, pools: &mut Pools, part: &Part<'_>) -> Verdict {
        let slot = match self.find_or_open(pools, part.number, part.flags, &part.kind) {
            Ok(slot) => slot,
            Err(verdict) => return verdict,
        };
        let length = part.payload.len() as u32;
        let operation = &mut pools.incoming[slot];
        operation.total = Some(length);
        operation.immediate = part.immediate;
        let inserted = pools.received[slot as usize].insert(0, length);
        assert!(inserted.is_ok(), "an empty range set takes one range");
        Verdict::Accepted
    }

    //= protocol.md: complete.3
    #[inline]
    fn handle_part(&mut self, around: &mut Surroundings<'_, '_>, part: &Part<'_>) -> Verdict {
        let number = part.number;
        let slot = match self.find_or_open(around.pools, number, part.flags, &part.kind) {
            Ok(slot) => slot,
            Err(verdict) => return verdict,
        };
        let verdict = self.accept_part(around, slot, part);
        // If the end of an operation has not arrived, the operation is not complete, and nothing
        // can be delivered. No held bytes need to be placed now, because this end placed them when
        // the operation became the first undelivered one.
        let may_advance = number == self.expected && around.pools.incoming[slot].total.is_some();
        if may_advance && verdict == Verdict::Accepted {
            return self.advance(around);
        }
        verdict
    }

    //= protocol.md: operation.6, operation.8, strict.1
    #[inline]
    fn accept_part(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        slot: u32,
        part: &Part<'_>,
    ) -> Verdict {
        let (memory, pools) = (around.memory, &mut *around.pools);
        let (start, end) = (part.offset, part.offset + part.payload.len() as u32);
        let (operation, received) = (&pools.incoming[slot], &pools.received[slot as usize]);
        if let Err(verdict) = operation.check(received, part, end) {
            return verdict;
        }
        let last = part.flags.contains(Flags::LAST);
        let is_old = start < received.end() || start == end;
        if is_old && received.contains(start, end) && (!last || operation.total.is_some()) {
            return Verdict::Duplicate;
        }
        let in_turn = part.number == self.expected;
        let is_at_limit = !in_turn && self.extra_ranges >= EXTRA_RANGES_MAX;
        if !received.takes(start, end) || is_at_limit && received.is_apart(start, end) {
            return Verdict::Refused(Refusal::Ranges);
        }
        let body_is_here = in_turn && received.contains(0, start);
        let room = if part.flags.contains(Flags::FENCE_BEFORE) && !in_turn {
            self.hold_fenced(pools, slot, start, part.payload, last)
        } else if part.flags.contains(Flags::STRICT) && last && !body_is_here {
            self.hold_tail(pools, slot, start, part.payload)
        } else {
            if let Err(error) = self.place_new(memory, pools, slot, part) {
                return self.fault(part.kind, error, part.number);
            }
            true
        };
        if !room {
            return Verdict::Refused(Refusal::Pool);
        }
        let received = &mut pools.received[slot as usize];
        let before = received.extra();
        let inserted = received.insert(start, end);
        assert!(inserted.is_ok(), "there was room for the range above");
        self.extra_ranges = self.extra_ranges + received.extra() - before;
        if last {
            let operation = &mut pools.incoming[slot];
            operation.total = Some(end);
            operation.immediate = part.immediate;
        }
        Verdict::Accepted
    }

    //= protocol.md: operation.7, relaxed.1
    /// Places those bytes of a fragment that have not arrived before.
    #[inline]
    fn place_new(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        slot: u32,
        part: &Part<'_>,
    ) -> Result<(), AccessError> {
        let (start, payload) = (part.offset, part.payload);
        let end = start + payload.len() as u32;
        let operation = &mut pools.incoming[slot];
        if part.number != self.expected && !operation.placed_early && !payload.is_empty() {
            operation.placed_early = true;
            self.placed_early += 1;
        }
        let next = operation.next;
        let tail = if part.flags.contains(Flags::LAST) { Tail::Ordered } else { Tail::Any };
        let order = (part.flags, &part.kind);
        let received = &pools.received[slot as usize];
        if start >= received.end() {
            return self.place_yielding(memory, pools, next, order, start, payload, tail);
        }
        if let InKind::Write { key, base } = part.kind
            && self.yields(next, part.flags)
        {
            let place = RemotePlace { key, base, offset: start };
            return self.place_around(memory, pools, Some(received), next, place, payload, tail);
        }
        if let InKind::Patch { key, address } = part.kind {
            return self.patch_new(memory, received, (key, address), start, payload);
        }
        let mut result = Ok(());
        received.uncovered(start, end, |low, high| {
            let piece = payload.slice((low - start) as usize..(high - start) as usize);
            if result.is_ok() {
                let tail = if high == end { tail } else { Tail::Any };
                result = self.place(memory, &pools.lists, &part.kind, low, piece, tail);
            }
        });
        result
    }

    //= protocol.md: answer.2, fault.1, fault.2
    /// Returns the verdict on a failed access. If the access belongs to a message, the receive of
    /// the message caused the failure.
    #[cold]
    fn fault(&mut self, kind: InKind, error: AccessError, operation: OperationNumber) -> Verdict {
        if self.queue_pair && operation != self.expected {
            return Verdict::Refused(Refusal::Early);
        }
        let reason = match (kind, error) {
            (InKind::Send { message, .. }, AccessError::Bounds { .. }) => {
                self.failed = Some((message, OperationError::MessageTooLong));
                CloseReason::MessageTooLong
            }
            (InKind::Send { message, .. }, _) => {
                self.failed = Some((message, OperationError::LocalAccess));
                CloseReason::LocalMemoryGone
            }
            _ => close_reason_of(error),
        };
        violation(reason, operation)
    }
}

/// Maximum number of received ranges of all open operations together, without the first range of
/// each operation. Twelve operations with the maximum number of ranges reach this limit. The limit
/// is necessary because each frame of a strict write is compared with all these ranges.
const EXTRA_RANGES_MAX: u32 = 2048;

/// Checks that a receive may write to `piece`.
fn check_sink(memory: &MemoryAccess<'_>, piece: &Piece) -> Result<(), AccessError> {
    if piece.length > 0 {
        let length = u64::from(piece.length);
        memory.resolve_local(piece.region, piece.offset, length, Rights::LOCAL_WRITE)?;
    }
    Ok(())
}

const fn violation(reason: CloseReason, operation: OperationNumber) -> Verdict {
    Verdict::Violation { reason, operation }
}

//! Operations of this side, from posting to completion, and its answers to the peer's reads and atomics.

mod answers;
mod asking;
mod complete;
mod fragments;
mod local;
mod post;
mod ready;
mod rest;

use std::sync::Arc;

use mem::{MemoryAccess, Payload, RegionId};
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey,
};

use crate::close::error_of_close;
use crate::limits::{OPERATION_SHARE, OPERATION_WINDOW_DEFAULT};
use crate::outlet::Outlet;
use crate::pools::Pools;
use crate::slab::{NIL, Slab};
use crate::{
    CompletionKind, INLINE_BYTES_MAX, Operation, OperationError, Owner, PieceList, PostError,
    Queues, Request, Sink,
};

pub(crate) use answers::Response;
pub use asking::Answer;
pub use fragments::{Carried, CarriedKind, Fragment, FragmentPayload, LocalFault};
use local::LocalWork;
pub use rest::OutboundAtRest;

/// What the peer granted when the connection was made.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Operations the peer tracks beyond the last delivered one.
    pub operation_window: u32,
    /// Reads and atomics the peer answers at a time.
    pub read_depth: u16,
    /// Bytes the peer holds for operations that must wait.
    pub order_pool_bytes: u32,
    /// Receives the peer had posted when it accepted or asked.
    pub credit: MessageNumber,
}

/// How much is posted on a connection, and whether more of it could begin.
///
/// Records are for what is in flight. If the peer lacks receives, work that is posted all the same holds records and
/// does nothing: it waits better where it is, but for [`OPERATION_SHARE`](crate::OPERATION_SHARE) operations.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PostingRoom {
    /// Operations that are posted and not complete.
    pub outstanding: u32,
    /// Receives of the peer for messages that are not posted yet. Below 0 if messages that are posted lack receives.
    pub credit: i32,
    /// Operations that may be posted at a time. It grows with each that the peer delivers, so that a peer that takes
    /// nothing holds few records.
    pub window: u32,
}

/// An operation posted and not complete.
#[derive(Debug)]
pub(crate) struct OutOperation {
    connection: u32,
    number: OperationNumber,
    /// The operation posted next on this connection.
    next: u32,
    kind: OutKind,
    /// Order and notification flags, the same in every fragment.
    flags: Flags,
    length: u32,
    /// Bytes handed out for a first transmission.
    sent: u32,
    /// The last fragment (or the request of a read) was handed out.
    all_sent: bool,
    signalled: bool,
    waits_for_answers: bool,
    /// Bytes acknowledged, or of a read arrived.
    progressed: u32,
    /// Bytes in flight that the peer may have to hold.
    at_risk: u32,
    immediate: Option<u32>,
    key: RemoteKey,
    address: u64,
    context: u64,
    status: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
enum OutKind {
    Write {
        source: Bytes,
        /// The receive that it takes at the peer of a queue pair, if there is an immediate.
        message: MessageNumber,
        takes_receive: bool,
    },
    Send {
        source: Bytes,
        message: MessageNumber,
        /// The peer ends the key of the operation with it.
        invalidates: bool,
    },
    Read {
        sink: RegionId,
        sink_offset: u64,
        /// List of pieces that the bytes go to instead, or [`NIL`].
        list: u32,
        /// Bytes that are here without a gap from the first one on.
        prefix: u32,
        /// Record of all that is here; [`NIL`] for as long as that is the prefix.
        ranges: u32,
        arrived: bool,
    },
    Atomic {
        opcode: AtomicOpcode,
        operand: u64,
        compare: u64,
        sink: Option<Sink>,
        value: Option<u64>,
    },
    /// Has no number of its own, but that of the next operation that the peer hears of.
    Local { work: LocalWork, completes_as: CompletionKind },
}

/// Where the bytes of a write or send are.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    Region {
        region: RegionId,
        offset: u64,
    },
    Inline([u8; INLINE_BYTES_MAX]),
    /// In the pieces of this list.
    Pieces(u32),
}

/// A fragment that was lost, or taken back by a driver, and waits to be retransmitted.
#[derive(Debug)]
pub(crate) struct Retransmission {
    carried: Carried,
    next: u32,
}

/// A list of such fragments.
#[derive(Clone, Copy, Debug)]
struct Chain {
    head: u32,
    tail: u32,
}

/// The sending half of the operations of one connection.
///
/// Operations form a list in the order they were posted; a cursor walks it as they are cut into
/// fragments. An operation is complete when the peer has delivered it (acknowledgements carry the
/// number of the first operation not delivered) and, for reads and atomics, the answer is here.
/// So the ledger of which fragment was acknowledged serves progress and retransmission only.
#[derive(Debug)]
pub struct Outbound {
    owner: Owner,
    head: u32,
    cursor: u32,
    tail: u32,
    again: Chain,
    answer_head: u32,
    /// Next answer with bytes not yet sent.
    answer_cursor: u32,
    answer_tail: u32,
    answering: u32,
    next_number: OperationNumber,
    next_message: MessageNumber,
    /// First operation the peer has not delivered.
    delivered: OperationNumber,
    /// The latest operation with a forward fence that was (partly) sent and is not complete: delivered
    /// is not enough, as a read's bytes leave the peer's memory later.
    last_fence: Option<OperationNumber>,
    peer: PeerLimits,
    at_risk_bytes: u32,
    /// Reads and atomics sent and not answered.
    asked: u32,
    /// Operations posted and not complete.
    outstanding: u32,
    /// See [`PostingRoom::window`].
    window: u32,
    /// Nothing more of the operation at the cursor may be sent before the peer says more.
    blocked: bool,
    answer_turn: bool,
    /// Both ends want the rules of queue pairs.
    queue_pair: bool,
    /// The first operation that failed on this side. Nothing of it and of later ones is sent any more.
    fault: Option<(OperationNumber, OperationError)>,
    /// An operation that failed on this side is complete, as are all before it.
    is_faulty: bool,
    /// The first operation for which the peer has no receive now.
    not_ready: Option<OperationNumber>,
    /// Its operations beyond its share take nothing from others, as they wait for the peer.
    is_spared: bool,
    /// What is to be retransmitted of it and of later ones, once the peer is ready.
    held: Chain,
    backlog_bytes: u64,
    outlet: Outlet,
}

impl Outbound {
    /// Creates the sending half of the connection `owner`; completions go to `queues.send`.
    pub fn new(owner: Owner, peer: PeerLimits, queues: &Queues) -> Self {
        Self {
            owner,
            head: NIL,
            cursor: NIL,
            tail: NIL,
            again: Chain::EMPTY,
            answer_head: NIL,
            answer_cursor: NIL,
            answer_tail: NIL,
            answering: 0,
            next_number: OperationNumber(0),
            next_message: MessageNumber(0),
            delivered: OperationNumber(0),
            last_fence: None,
            peer,
            at_risk_bytes: 0,
            asked: 0,
            outstanding: 0,
            window: OPERATION_SHARE,
            blocked: false,
            answer_turn: false,
            queue_pair: false,
            fault: None,
            is_faulty: false,
            not_ready: None,
            is_spared: false,
            held: Chain::EMPTY,
            backlog_bytes: 0,
            outlet: Outlet::new(Arc::clone(&queues.send), queues.promises),
        }
    }

    /// Sets what the peer granted, once the handshake says it.
    pub const fn set_peer_limits(&mut self, peer: PeerLimits) {
        self.peer = peer;
        self.unblock();
    }

    /// Begins with other numbers than 0, as the peer must, to see them wrap around.
    pub const fn begin_at(&mut self, operation: OperationNumber, message: MessageNumber) {
        self.next_number = operation;
        self.delivered = operation;
        self.next_message = message;
    }

    /// Follows the rules of queue pairs from now on, as both ends agreed. Before any operation.
    pub const fn be_queue_pair(&mut self) {
        self.queue_pair = true;
    }

    //= protocol.md: operation.1, queue-pair.7
    /// Accepts an operation. Allocates nothing; its fragments come from
    /// [`Outbound::next_fragment`].
    ///
    /// # Errors
    /// What [`Operation::check`] refuses; [`PostError::ReadsRefused`] if the peer serves no reads,
    /// [`PostError::QueuePairOnly`] if it knows no such request;
    /// [`PostError::NoOperationLeft`] or [`PostError::CompletionQueueFull`] if there is no record or no place for
    /// its completion.
    pub fn post(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        operation: &Operation,
    ) -> Result<OperationNumber, PostError> {
        self.check(operation)?;
        if self.queue_pair {
            operation.check_of_queue_pair(memory)?;
        } else {
            operation.check(memory)?;
        }
        let number = self.accept(pools, operation, NIL)?;
        if matches!(operation.request, Request::BindWindow { .. } | Request::Invalidate { .. }) {
            self.pass_local(memory, pools);
        }
        Ok(number)
    }

    /// Posts an operation as [`Outbound::post`] does, of which the bytes come from these pieces, or go to them if
    /// it is a read. It is as long as the list; length and place in the request are ignored. Lists serve writes,
    /// reads and sends only.
    ///
    /// # Errors
    /// As for [`Outbound::post`], and [`PostError::NoListLeft`].
    pub fn post_list(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        operation: &Operation,
        list: PieceList<'_>,
    ) -> Result<OperationNumber, PostError> {
        let has_bytes = matches!(
            operation.request,
            Request::Write { .. }
                | Request::Read { .. }
                | Request::Send { .. }
                | Request::SendInvalidate { .. }
        );
        if !has_bytes {
            return self.post(memory, pools, operation);
        }
        self.check(operation)?;
        operation.check_list(memory, list)?;
        let operation = Operation { length: list.length(), ..*operation };
        let slot = pools.lists.store(list, self.outstanding)?;
        self.accept(pools, &operation, slot).inspect_err(|_| pools.lists.remove(slot))
    }

    /// Puts an operation that can be performed behind the others; its bytes are in the pieces of `list`, if that is
    /// not [`NIL`].
    #[inline]
    fn accept(
        &mut self,
        pools: &mut Pools,
        operation: &Operation,
        list: u32,
    ) -> Result<OperationNumber, PostError> {
        self.admit(pools, operation)?;
        let record = self.record(operation, self.next_number, list);
        Ok(self.append(pools, record))
    }

    /// Makes sure of a record and of a place for the completion.
    #[inline]
    fn admit(&self, pools: &Pools, operation: &Operation) -> Result<(), PostError> {
        pools.check_room(self.outstanding)?;
        // As `OutOperation::has_place` says of the record.
        let has_place = operation.flags.signalled || operation.status.is_none();
        if has_place {
            self.outlet.promise()?;
        }
        Ok(())
    }

    /// Puts an operation that was admitted behind the others.
    #[inline]
    fn append(&mut self, pools: &mut Pools, record: OutOperation) -> OperationNumber {
        let number = record.number;
        if !record.is_local() {
            self.next_number = number.next();
        }
        let backlog_bytes = record.backlog_bytes();
        let slot = pools.operations.insert_growing(record);
        if self.tail == NIL {
            self.head = slot;
        } else {
            pools.operations[self.tail].next = slot;
        }
        self.tail = slot;
        if self.cursor == NIL {
            self.cursor = slot;
            self.unblock();
        }
        self.outstanding += 1;
        if self.outstanding > OPERATION_SHARE {
            pools.beyond.add(self.is_spared);
        }
        self.backlog_bytes += u64::from(backlog_bytes);
        number
    }

    //= protocol.md: credit.1, complete.2
    /// Handles what an acknowledgement says besides packets: every operation before `delivered` is
    /// delivered, and receives are posted for messages before `credit`. Completes operations.
    ///
    /// False if the peer claims to have delivered what was never sent.
    #[must_use]
    pub fn on_delivered(
        &mut self,
        pools: &mut Pools,
        delivered: OperationNumber,
        credit: MessageNumber,
    ) -> bool {
        if credit.since(self.peer.credit) > 0 {
            self.peer.credit = credit;
            self.unblock();
            pools.note_room(self.owner);
        }
        let advance = delivered.since(self.delivered);
        if advance <= 0 {
            return true;
        }
        if delivered.since(self.first_unsent(pools)) > 0 {
            return false;
        }
        self.delivered = delivered;
        self.window = (self.window + advance.cast_unsigned()).min(OPERATION_WINDOW_DEFAULT);
        if self.not_ready.is_some_and(|waiting| delivered.since(waiting) > 0) {
            self.on_ready(pools);
        }
        self.unblock();
        self.complete_ready(pools);
        true
    }

    /// Records that a fragment arrived at the peer.
    pub fn on_acknowledged(&mut self, pools: &mut Pools, carried: Carried) {
        match carried.kind {
            CarriedKind::Request => {
                let connection = self.owner.index();
                let Some(operation) = own_operation(&mut pools.operations, connection, &carried)
                else {
                    return;
                };
                if !matches!(operation.kind, OutKind::Write { .. } | OutKind::Send { .. }) {
                    return;
                }
                let progressed = operation.progressed.saturating_add(u32::from(carried.length));
                operation.progressed = progressed.min(operation.length);
                let (status, bytes) = (operation.status, operation.progressed);
                if let Some(status) = status {
                    pools.status.progress(status, bytes);
                }
            }
            CarriedKind::Answer => self.on_answer_acknowledged(pools, carried),
            CarriedKind::Control | CarriedKind::Nothing => {}
        }
    }

    //= protocol.md: again.1
    /// Queues a lost fragment for retransmission. On a queue pair those of the operation in turn go first: it may
    /// be all that the peer has room for, and the lists of others are many fragments.
    pub fn on_lost(&mut self, pools: &mut Pools, carried: Carried) {
        if self.is_wanted(pools, &carried) {
            let is_first = self.queue_pair
                && carried.kind == CarriedKind::Request
                && carried.number == self.delivered;
            self.queue_retransmission(
                pools,
                carried,
                if is_first { End::Front } else { End::Back },
            );
        }
    }

    /// Takes back a fragment that a driver did not take: it is the next to be sent. Call newest first.
    pub fn on_returned(&mut self, pools: &mut Pools, carried: Carried) {
        if self.is_wanted(pools, &carried) {
            self.queue_retransmission(pools, carried, End::Front);
        }
    }

    /// Handles an answer of the peer to a read or atomic of ours. False if it breaks the protocol.
    ///
    /// # Errors
    /// The local memory of the read is gone: the connection cannot go on.
    pub fn handle_answer<'p>(
        &mut self,
        memory: &MemoryAccess<'_>,
        pools: &mut Pools,
        flags: Flags,
        header: &Header,
        payload: impl Into<Payload<'p>>,
    ) -> Result<Answer, LocalFault> {
        match *header {
            Header::ReadResponse { operation, offset } => {
                let last = flags.contains(Flags::LAST);
                self.handle_read_answer(memory, pools, operation, offset, last, payload.into())
            }
            Header::AtomicResponse { operation, value } => {
                self.handle_atomic_answer(memory, pools, operation, value)
            }
            _ => Ok(Answer::Violation),
        }
    }

    //= protocol.md: answer.8
    /// Whether something is missing of the peer's answer to this operation of ours.
    pub fn lacks_answer(&self, pools: &Pools, number: OperationNumber) -> bool {
        let slot = pools.reads_index.get(self.owner.index(), number);
        slot.is_some_and(|slot| !pools.operations[slot].is_answered())
    }

    //= protocol.md: close.4, queue-pair.6
    /// Returns the error of the operation at fault when the peer closes for `reason`: [flush](Outbound::flush) with
    /// it, after [`Outbound::on_delivered`] has completed what the Close reports.
    pub const fn error_of_close(&self, reason: CloseReason) -> OperationError {
        error_of_close(reason, self.queue_pair)
    }

    /// Completes every operation: the one numbered `at_fault` with `fault`, the others with `others`.
    /// Frees every record.
    pub fn flush(
        &mut self,
        pools: &mut Pools,
        others: OperationError,
        at_fault: Option<(OperationNumber, OperationError)>,
    ) {
        while self.head != NIL {
            let slot = self.head;
            let operation = &pools.operations[slot];
            let error = match at_fault {
                Some((fault, error)) if fault == operation.number && !operation.is_local() => error,
                _ => others,
            };
            self.head = pools.operations[slot].next;
            self.finish(pools, slot, Err(error));
        }
        self.cursor = NIL;
        self.tail = NIL;
        self.on_ready(pools);
        while self.again.take_first(pools).is_some() {}
        self.flush_answers(pools);
        self.at_risk_bytes = 0;
        self.asked = 0;
        self.backlog_bytes = 0;
        self.fault = None;
        self.is_faulty = false;
        self.blocked = false;
    }

    /// Whether [`Outbound::next_fragment`] may have something.
    pub const fn wants_to_send(&self) -> bool {
        !self.again.is_empty() || self.answer_cursor != NIL || (self.cursor != NIL && !self.blocked)
    }

    /// Returns about how many payload bytes are not handed out yet.
    pub const fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Whether a completion was lost for want of room: the connection cannot go on.
    pub const fn is_overrun(&self) -> bool {
        self.outlet.is_overrun()
    }

    /// Returns the first operation that the peer is not known to have delivered.
    pub const fn delivered(&self) -> OperationNumber {
        self.delivered
    }

    /// Returns the number of operations posted and not complete.
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the number of messages that may be posted until the peer grants more.
    pub const fn credits(&self) -> u32 {
        let left = self.peer.credit.since(self.next_message);
        if left > 0 { left.cast_unsigned() } else { 0 }
    }

    /// Returns what decides how much work of an application is to be posted now: see [`PostingRoom`].
    pub const fn posting_room(&self) -> PostingRoom {
        let credit = self.peer.credit.since(self.next_message);
        PostingRoom {
            outstanding: self.outstanding,
            credit: if self.not_ready.is_some() { -1 } else { credit },
            window: self.window,
        }
    }

    /// Returns the number of answers in flight.
    pub const fn answering(&self) -> u32 {
        self.answering
    }

    /// Whether progress depends on something the peer must say or send.
    pub const fn waits_for_peer(&self) -> bool {
        self.outstanding > 0 || self.answering > 0
    }

    /// What kept the operation at the cursor back may be over.
    #[inline]
    const fn unblock(&mut self) {
        self.blocked = self.is_halted();
    }

    /// Whether nothing of the operation at the cursor may be sent, whatever the peer says of it.
    const fn is_halted(&self) -> bool {
        self.fault.is_some() || self.is_faulty || self.not_ready.is_some()
    }

    /// Number of the first operation that was not wholly handed out.
    fn first_unsent(&self, pools: &Pools) -> OperationNumber {
        pools.operations.get(self.cursor).map_or(self.next_number, |operation| operation.number)
    }

    fn is_wanted(&self, pools: &mut Pools, carried: &Carried) -> bool {
        match carried.kind {
            CarriedKind::Request => {
                own_operation(&mut pools.operations, self.owner.index(), carried)
                    .is_some_and(|operation| operation.number.since(self.delivered) >= 0)
                    && self.fault.is_none_or(|(fault, _)| carried.number.since(fault) < 0)
            }
            CarriedKind::Answer => self.own_answer(pools, carried).is_some(),
            CarriedKind::Control | CarriedKind::Nothing => false,
        }
    }

    fn queue_retransmission(&mut self, pools: &mut Pools, carried: Carried, end: End) {
        self.backlog_bytes += u64::from(carried.length);
        let node = Retransmission { carried, next: NIL };
        let slot = pools.retransmissions.insert_growing(node);
        let chain = if self.is_held(&carried) { &mut self.held } else { &mut self.again };
        chain.add(pools, slot, end);
    }
}

impl Chain {
    const EMPTY: Self = Self { head: NIL, tail: NIL };

    #[inline]
    const fn is_empty(self) -> bool {
        self.head == NIL
    }

    /// Adds a fragment that no list has.
    fn add(&mut self, pools: &mut Pools, slot: u32, end: End) {
        if self.head == NIL {
            *self = Self { head: slot, tail: slot };
            return;
        }
        match end {
            End::Front => {
                pools.retransmissions[slot].next = self.head;
                self.head = slot;
            }
            End::Back => {
                pools.retransmissions[self.tail].next = slot;
                self.tail = slot;
            }
        }
    }

    /// Adds the fragments of another list.
    fn append(&mut self, pools: &mut Pools, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            pools.retransmissions[self.tail].next = other.head;
            self.tail = other.tail;
        }
    }

    /// Takes the first fragment out and forgets it.
    fn take_first(&mut self, pools: &mut Pools) -> Option<Carried> {
        if self.head == NIL {
            return None;
        }
        let node = pools.retransmissions.remove(self.head);
        self.head = node.next;
        if self.head == NIL {
            self.tail = NIL;
        }
        Some(node.carried)
    }
}

#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

/// The operation a fragment belongs to, unless it is complete by now and its record used again.
fn own_operation<'a>(
    operations: &'a mut Slab<OutOperation>,
    connection: u32,
    carried: &Carried,
) -> Option<&'a mut OutOperation> {
    let operation = operations.get_mut(carried.slot)?;
    (operation.connection == connection && operation.number == carried.number).then_some(operation)
}

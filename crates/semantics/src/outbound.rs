//! The sending half of a connection's operations, from posting to completion, and answers to the
//! peer's reads and atomics.

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

/// Limits that the peer granted when the connection was set up.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Operations that the peer tracks beyond the last delivered one.
    pub operation_window: u32,
    /// Reads and atomics that the peer answers at a time.
    pub read_depth: u16,
    /// Bytes that the peer holds for operations that must wait.
    pub order_pool_bytes: u32,
    /// Receives posted at the peer when it accepted or requested the connection.
    pub credit: MessageNumber,
}

/// How many operations are posted on a connection, and how many more may be.
///
/// Records are meant for operations in flight. If the peer lacks receives, posted operations use
/// records without progress. Beyond [`OPERATION_SHARE`](crate::OPERATION_SHARE) operations, work
/// should then stay with the application.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PostingRoom {
    /// Operations posted and not complete.
    pub outstanding: u32,
    /// Receives of the peer left for messages not yet posted; negative if posted messages lack
    /// receives.
    pub credit: i32,
    /// Most operations that should be posted at a time. It grows with each operation that the peer
    /// delivers, so that a peer that delivers none uses few records.
    pub window: u32,
}

/// An operation posted and not complete.
#[derive(Debug)]
pub(crate) struct OutOperation {
    connection: u32,
    number: OperationNumber,
    /// Slot of the operation posted next on this connection.
    next: u32,
    kind: OutKind,
    /// Order and notification flags, repeated in every fragment.
    flags: Flags,
    length: u32,
    /// Bytes cut into fragments for the first time.
    sent: u32,
    /// Whether the last fragment, or the request of a read, was handed out.
    all_sent: bool,
    signalled: bool,
    waits_for_answers: bool,
    /// Bytes acknowledged; for a read, bytes received.
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
        /// Number of the receive that it consumes on a queue pair, if `takes_receive`.
        message: MessageNumber,
        takes_receive: bool,
    },
    Send {
        source: Bytes,
        message: MessageNumber,
        /// Whether the peer invalidates the key of the operation.
        invalidates: bool,
    },
    Read {
        sink: RegionId,
        sink_offset: u64,
        /// List of pieces that receives the bytes instead, or [`NIL`].
        list: u32,
        /// Bytes received without a gap from the first one on.
        prefix: u32,
        /// Record of all bytes received; [`NIL`] while they are just the prefix.
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
    /// Local work. It has the number of the next operation that is sent to the peer.
    Local { work: LocalWork, completes_as: CompletionKind },
}

/// Source of the bytes of a write or send.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    Region {
        region: RegionId,
        offset: u64,
    },
    Inline([u8; INLINE_BYTES_MAX]),
    /// The pieces of the list in this slot.
    Pieces(u32),
}

/// A fragment that was lost, or that a driver returned, and waits to be retransmitted.
#[derive(Debug)]
pub(crate) struct Retransmission {
    carried: Carried,
    next: u32,
}

/// A list of fragments to retransmit.
#[derive(Clone, Copy, Debug)]
struct Chain {
    head: u32,
    tail: u32,
}

/// The sending half of the operations of one connection.
///
/// Operations form a list in the order of posting; a cursor walks it as operations are cut into
/// fragments. An operation is complete when the peer has delivered it and, for reads and atomics,
/// the answer has arrived. Acknowledgements carry the number of the first operation not delivered.
/// So the acknowledgement of single fragments serves only progress reports and retransmission.
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
    /// First operation that the peer has not delivered.
    delivered: OperationNumber,
    /// The latest operation with a forward fence that was at least partly sent and is not complete.
    /// Delivery is not enough, because the bytes of a read leave the peer's memory after it.
    last_fence: Option<OperationNumber>,
    peer: PeerLimits,
    at_risk_bytes: u32,
    /// Reads and atomics sent and not yet answered.
    asked: u32,
    /// Operations posted and not complete.
    outstanding: u32,
    /// See [`PostingRoom::window`].
    window: u32,
    /// Whether the operation at the cursor must wait for an acknowledgement, an answer or a credit.
    blocked: bool,
    answer_turn: bool,
    /// Whether both ends agreed on the rules of queue pairs.
    queue_pair: bool,
    /// The first operation that failed on this side. No more fragments of it or of later operations
    /// are sent.
    fault: Option<(OperationNumber, OperationError)>,
    /// Whether an operation that failed on this side is complete, as are all before it.
    is_faulty: bool,
    /// The first operation for which the peer has no receive now.
    not_ready: Option<OperationNumber>,
    /// Whether its operations beyond its share are not counted against other connections, because
    /// they wait for the peer.
    is_spared: bool,
    /// Fragments of the operation `not_ready` and of later ones, to retransmit once the peer is
    /// ready.
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

    /// Sets the limits that the peer granted in the handshake.
    pub const fn set_peer_limits(&mut self, peer: PeerLimits) {
        self.peer = peer;
        self.unblock();
    }

    /// Starts with other numbers than 0, for tests in which numbers wrap around. The peer must
    /// start with the same numbers.
    pub const fn begin_at(&mut self, operation: OperationNumber, message: MessageNumber) {
        self.next_number = operation;
        self.delivered = operation;
        self.next_message = message;
    }

    /// Applies the rules of queue pairs from now on, as both ends agreed. Call before the first
    /// operation.
    pub const fn be_queue_pair(&mut self) {
        self.queue_pair = true;
    }

    //= protocol.md: operation.1, queue-pair.7
    /// Posts an operation, without allocating memory. [`Outbound::next_fragment`] returns its
    /// fragments.
    ///
    /// # Errors
    /// The errors of [`Operation::check`]; [`PostError::ReadsRefused`] if the peer answers no
    /// reads; [`PostError::QueuePairOnly`] if the peer does not know such a request;
    /// [`PostError::NoOperationLeft`] or [`PostError::CompletionQueueFull`] if there is no record
    /// or no room for the completion.
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

    /// Posts an operation as [`Outbound::post`] does, with the bytes in the pieces of `list`: the
    /// source of a write or send, the destination of a read. The operation is as long as the list;
    /// its own length and location are ignored. Other requests ignore the list.
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

    /// Appends a checked operation. Its bytes are in the pieces of `list`, unless that is [`NIL`].
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

    /// Checks that a record is free, and reserves room for the completion.
    #[inline]
    fn admit(&self, pools: &Pools, operation: &Operation) -> Result<(), PostError> {
        pools.check_room(self.outstanding)?;
        // Must agree with `OutOperation::has_place`.
        let has_place = operation.flags.signalled || operation.status.is_none();
        if has_place {
            self.outlet.promise()?;
        }
        Ok(())
    }

    /// Appends an admitted operation to the list.
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
    /// Handles the part of an acknowledgement that concerns operations: every operation before
    /// `delivered` is delivered, and receives are posted for all messages before `credit`.
    /// Completes operations.
    ///
    /// Returns false if the peer claims to have delivered an operation that was not wholly sent.
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

    /// Records that a fragment has arrived at the peer.
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
    /// Queues a lost fragment for retransmission. On a queue pair, fragments of the first operation
    /// not delivered go first: the peer may have room for that operation only, and later ones may
    /// have many fragments queued.
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

    /// Takes back a fragment that a driver did not accept; it becomes the next to send. Call newest
    /// first.
    pub fn on_returned(&mut self, pools: &mut Pools, carried: Carried) {
        if self.is_wanted(pools, &carried) {
            self.queue_retransmission(pools, carried, End::Front);
        }
    }

    /// Handles an answer of the peer to a read or atomic: [`Answer::Violation`] if it breaks the
    /// protocol.
    ///
    /// # Errors
    /// If the local memory of the read is gone; the connection must end.
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
    /// Returns whether a part of the peer's answer to operation `number` has not arrived.
    pub fn lacks_answer(&self, pools: &Pools, number: OperationNumber) -> bool {
        let slot = pools.reads_index.get(self.owner.index(), number);
        slot.is_some_and(|slot| !pools.operations[slot].is_answered())
    }

    //= protocol.md: close.4, queue-pair.6
    /// Returns the error of the operation at fault when the peer closes the connection for
    /// `reason`. First call [`Outbound::on_delivered`] with what the Close reports, then
    /// [`Outbound::flush`] with this error.
    pub const fn error_of_close(&self, reason: CloseReason) -> OperationError {
        error_of_close(reason, self.queue_pair)
    }

    /// Completes every operation, the one numbered `at_fault` with its error, all others with
    /// `others`. Frees all records.
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

    /// Returns whether [`Outbound::next_fragment`] may return a fragment.
    pub const fn wants_to_send(&self) -> bool {
        !self.again.is_empty() || self.answer_cursor != NIL || (self.cursor != NIL && !self.blocked)
    }

    /// Returns the approximate number of payload bytes not yet handed out.
    pub const fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Returns whether a completion was lost because its queue was full; the connection must end.
    pub const fn is_overrun(&self) -> bool {
        self.outlet.is_overrun()
    }

    /// Returns the first operation that is not known to be delivered.
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

    /// Returns how much work of the application should be posted now: see [`PostingRoom`].
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

    /// Returns whether progress depends on a frame from the peer.
    pub const fn waits_for_peer(&self) -> bool {
        self.outstanding > 0 || self.answering > 0
    }

    /// Lets the operation at the cursor be tried again, unless the connection is halted.
    #[inline]
    const fn unblock(&mut self) {
        self.blocked = self.is_halted();
    }

    /// Returns whether no fragment of the operation at the cursor may be sent, whatever the peer
    /// reports.
    const fn is_halted(&self) -> bool {
        self.fault.is_some() || self.is_faulty || self.not_ready.is_some()
    }

    /// Returns the number of the first operation not wholly handed out.
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

    /// Adds a fragment that is on no list.
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

    /// Appends the fragments of another list.
    fn append(&mut self, pools: &mut Pools, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            pools.retransmissions[self.tail].next = other.head;
            self.tail = other.tail;
        }
    }

    /// Removes and returns the first fragment.
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

/// Returns the operation of a fragment, unless it is complete and its record was reused.
fn own_operation<'a>(
    operations: &'a mut Slab<OutOperation>,
    connection: u32,
    carried: &Carried,
) -> Option<&'a mut OutOperation> {
    let operation = operations.get_mut(carried.slot)?;
    (operation.connection == connection && operation.number == carried.number).then_some(operation)
}

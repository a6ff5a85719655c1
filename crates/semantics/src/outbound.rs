//! The sending half of a connection's operations. Handles each operation from posting to
//! completion, and sends the answers to the peer's reads and atomics.

mod answers;
mod asking;
mod complete;
mod fragments;
mod local;
mod patch;
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
use work::{
    CompletionKind, INLINE_BYTES_MAX, Operation, OperationError, Owner, PieceList, PostError,
    Queues, Request, Sink,
};

pub(crate) use answers::Response;
pub use asking::Answer;
pub use fragments::{Carried, CarriedKind, Fragment, FragmentPayload, LocalFault};
use local::LocalWork;
pub use rest::OutboundAtRest;

/// Limits that the peer granted in the handshake.
#[derive(Clone, Copy, Debug)]
pub struct PeerLimits {
    /// Number of operations of this side that the peer tracks, counted from the first operation
    /// that is not delivered.
    pub operation_window: u32,
    /// Maximum number of reads and atomics that the peer answers at the same time.
    pub read_depth: u16,
    /// Number of payload bytes that the peer can hold for operations that must wait for earlier
    /// operations.
    pub order_pool_bytes: u32,
    /// Whether both ends offer patches and swaps, and the connection is not a queue pair.
    pub patches: bool,
    /// Number of the first message for which the peer had not posted a receive when it requested or
    /// accepted the connection.
    pub credit: MessageNumber,
}

/// The number of operations posted on a connection, and how many more the application should post.
///
/// The records of operations are meant for operations in flight. If the peer lacks receives, posted
/// operations use records without making progress. In that case, the application should post no
/// further work if more than [`OPERATION_SHARE`](crate::OPERATION_SHARE) operations are posted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PostingRoom {
    /// Number of operations that are posted and not complete.
    pub outstanding: u32,
    /// Number of receives that the peer has posted, minus the number of messages that are posted
    /// but not delivered. Negative if posted messages lack receives.
    pub credit: i32,
    /// Maximum number of operations that should be posted at the same time. It grows with each
    /// operation that the peer delivers. If the peer delivers nothing, the connection therefore
    /// uses few records.
    pub window: u32,
}

/// An operation that is posted and not complete.
#[derive(Debug)]
pub(crate) struct OutOperation {
    connection: u32,
    number: OperationNumber,
    /// Slot of the next operation that was posted on this connection.
    next: u32,
    kind: OutKind,
    /// Flags for order and notification, which every fragment contains.
    flags: Flags,
    length: u32,
    /// Number of bytes that were cut into fragments. Retransmissions do not count.
    sent: u32,
    /// Whether [`Outbound::next_fragment`] has returned the last fragment. For a read: whether it
    /// has returned the request.
    all_sent: bool,
    signalled: bool,
    waits_for_answers: bool,
    /// Number of acknowledged bytes; for a read, number of received bytes.
    progressed: u32,
    /// Number of bytes of this operation that are in flight and that the peer may have to hold.
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
        /// If `takes_receive`: the number of the receive that the operation consumes on a queue
        /// pair.
        message: MessageNumber,
        takes_receive: bool,
    },
    /// The bytes are records. The operation is never in a list of pieces.
    Patch { source: Bytes },
    Send {
        source: Bytes,
        message: MessageNumber,
        /// Whether the peer must invalidate the key that the operation names.
        invalidates: bool,
    },
    Read {
        sink: RegionId,
        sink_offset: u64,
        /// List of pieces (scatter/gather entries) that receives the bytes in place of a region, or
        /// [`NIL`].
        list: u32,
        /// Number of bytes at the start of the answer that were received without a gap.
        prefix: u32,
        /// Record of all received ranges; [`NIL`] if only a prefix has arrived.
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
    /// Local work, which sends nothing to the peer. It has the same number as the next operation
    /// that is sent to the peer.
    Local { work: LocalWork, completes_as: CompletionKind },
}

/// Source of the bytes of a write, patch or send.
#[derive(Clone, Copy, Debug)]
enum Bytes {
    Region {
        region: RegionId,
        offset: u64,
    },
    Inline([u8; INLINE_BYTES_MAX]),
    /// The pieces (scatter/gather entries) of the list in this slot.
    Pieces(u32),
}

/// A fragment that waits to be retransmitted. The fragment was lost, or a driver refused it.
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
/// Operations form a list in the order of posting. When an operation is cut into fragments, a
/// cursor moves along the list. A write or send is complete when the peer has delivered it. A read
/// or atomic is complete when its answer has also arrived.
///
/// Every acknowledgement contains the number of the first operation that the peer has not
/// delivered. The acknowledgement of a single fragment therefore only serves progress reports and
/// retransmission.
#[derive(Debug)]
pub struct Outbound {
    owner: Owner,
    head: u32,
    cursor: u32,
    tail: u32,
    again: Chain,
    answer_head: u32,
    /// Slot of the next answer that has bytes to send.
    answer_cursor: u32,
    answer_tail: u32,
    answering: u32,
    next_number: OperationNumber,
    next_message: MessageNumber,
    /// Number of the first operation that the peer has not delivered.
    delivered: OperationNumber,
    /// The latest operation with `FENCE_AFTER` that was sent at least in part and is not complete.
    /// The delivery of a read does not complete the read, because its bytes leave the peer's memory
    /// later.
    last_fence: Option<OperationNumber>,
    peer: PeerLimits,
    at_risk_bytes: u32,
    /// Number of reads and atomics that were sent and not answered.
    asked: u32,
    /// Number of operations that are posted and not complete.
    outstanding: u32,
    /// See [`PostingRoom::window`].
    window: u32,
    /// Whether the operation at the cursor waits for an acknowledgement, an answer or a credit.
    blocked: bool,
    answer_turn: bool,
    /// Whether the rules of queue pairs apply to this connection, because both ends want a queue
    /// pair.
    queue_pair: bool,
    /// Whether a patch was posted. See [`Outbound::room_bytes_min`].
    has_patched: bool,
    /// The first operation that failed on this side. After the failure, this side sends no fragment
    /// of this operation or of a later one.
    fault: Option<(OperationNumber, OperationError)>,
    /// Whether an operation has failed on this side, and this operation and all earlier operations
    /// are complete.
    is_faulty: bool,
    /// The first operation for which the peer has no receive now.
    not_ready: Option<OperationNumber>,
    /// If true, only the guaranteed operations of this connection reduce the room of other
    /// connections. The other operations do not, because they wait for the peer.
    is_spared: bool,
    /// Fragments of the operation `not_ready` and of later operations. They are retransmitted when
    /// the peer has receives again.
    held: Chain,
    backlog_bytes: u64,
    outlet: Outlet,
}

impl Outbound {
    /// Creates the sending half of the connection `owner`. Its completions go to `queues.send`.
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
            has_patched: false,
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

    /// Sets the numbers of the first operation and message, for tests in which numbers wrap around.
    /// The peer must start with the same numbers.
    pub const fn begin_at(&mut self, operation: OperationNumber, message: MessageNumber) {
        self.next_number = operation;
        self.delivered = operation;
        self.next_message = message;
    }

    /// Applies the rules of queue pairs to all operations. Both ends must have agreed on these
    /// rules. The caller must call this before the first operation.
    pub const fn be_queue_pair(&mut self) {
        self.queue_pair = true;
    }

    //= protocol.md: operation.1, queue-pair.7
    /// Posts an operation without allocating memory. [`Outbound::next_fragment`] returns its
    /// fragments.
    ///
    /// # Errors
    /// Returns the errors of [`Operation::check`], and [`PostError`] in these cases:
    ///
    /// * [`PostError::ReadsRefused`] if the peer answers no reads.
    /// * [`PostError::PatchesRefused`] if the request is a patch or swap, and the connection has
    ///   none.
    /// * [`PostError::QueuePairOnly`] if the request is possible only on a queue pair, and the
    ///   connection is not a queue pair.
    /// * [`PostError::NoOperationLeft`] if no record is free.
    /// * [`PostError::CompletionQueueFull`] if there is no room for the completion.
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

    /// Posts an operation like [`Outbound::post`], but with its bytes in the pieces (scatter/gather
    /// entries) of `list`. The list is the source of a write or send, or the destination of a read.
    ///
    /// The length of the operation is the length of the list. This function ignores the length and
    /// the location in `operation`. For requests without bytes and for patches, it ignores the
    /// list.
    ///
    /// # Errors
    /// Returns the errors of [`Outbound::post`], and [`PostError::NoListLeft`] if no record for a
    /// list is free.
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

    /// Appends a checked operation. If `list` is not [`NIL`], the bytes are in the pieces of that
    /// list.
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
        // This condition must be the same as the condition in `OutOperation::has_place`.
        let has_place = operation.flags.signalled || operation.status.is_none();
        if has_place {
            self.outlet.promise()?;
        }
        Ok(())
    }

    /// Appends an operation to the list. The caller has called [`Outbound::admit`].
    #[inline]
    fn append(&mut self, pools: &mut Pools, record: OutOperation) -> OperationNumber {
        let number = record.number;
        if !record.is_local() {
            self.next_number = number.next();
        }
        self.has_patched |= matches!(record.kind, OutKind::Patch { .. });
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
    /// Handles the part of an acknowledgement that concerns operations, and completes operations.
    /// The peer has delivered every operation with a number below `delivered`. The peer has posted
    /// receives for all messages with numbers below `credit`.
    ///
    /// Returns false if the peer reports as delivered an operation that was not sent completely.
    /// This breaks the protocol.
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

    /// Records that the peer has acknowledged a fragment.
    pub fn on_acknowledged(&mut self, pools: &mut Pools, carried: Carried) {
        match carried.kind {
            CarriedKind::Request => {
                let connection = self.owner.index();
                let Some(operation) = own_operation(&mut pools.operations, connection, &carried)
                else {
                    return;
                };
                if operation.is_question() || operation.is_local() {
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
    /// Queues a lost fragment for retransmission.
    ///
    /// On a queue pair, fragments of the first undelivered operation go to the front of the queue.
    /// The peer may have room only for that operation, and later operations may have many fragments
    /// in the queue.
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

    //= protocol.md: again.2
    /// Makes a fragment of the first undelivered operation the next fragment to send, if one waits
    /// for its retransmission. Searches the queue.
    ///
    /// The peer may have room only for that operation. The fragments that the peer refuses then fill
    /// the window, and only a probe may be sent.
    pub fn prefer_next_in_order(&mut self, pools: &mut Pools) {
        self.again.bring_forward(pools, self.delivered);
    }

    /// Takes back a fragment that a driver refused, and makes it the next fragment to send. If
    /// several fragments come back, the caller must begin with the newest.
    pub fn on_returned(&mut self, pools: &mut Pools, carried: Carried) {
        if self.is_wanted(pools, &carried) {
            self.queue_retransmission(pools, carried, End::Front);
        }
    }

    /// Handles an answer of the peer to a read or atomic. Returns [`Answer::Violation`] if the
    /// answer breaks the protocol.
    ///
    /// # Errors
    /// Returns an error if the local memory of the read is gone. The connection must then end.
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
    /// Returns whether the peer's answer to operation `number` is incomplete.
    pub fn lacks_answer(&self, pools: &Pools, number: OperationNumber) -> bool {
        let slot = pools.reads_index.get(self.owner.index(), number);
        slot.is_some_and(|slot| !pools.operations[slot].is_answered())
    }

    //= protocol.md: close.4, queue-pair.6
    /// Returns the error of the failed operation if the peer closes the connection with `reason`.
    /// The caller first passes the acknowledgement in the Close to [`Outbound::on_delivered`], and
    /// then this error to [`Outbound::flush`].
    pub const fn error_of_close(&self, reason: CloseReason) -> OperationError {
        error_of_close(reason, self.queue_pair)
    }

    /// Completes all operations with an error and frees all records. `at_fault` contains an
    /// operation and its error; all other operations complete with `others`.
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

    /// Returns approximately the number of payload bytes that [`Outbound::next_fragment`] has not
    /// returned yet.
    pub const fn backlog_bytes(&self) -> u64 {
        self.backlog_bytes
    }

    /// Returns whether a completion was lost because its queue was full. The connection must then
    /// end.
    pub const fn is_overrun(&self) -> bool {
        self.outlet.is_overrun()
    }

    /// Returns the number of the first operation that the peer has not reported as delivered.
    pub const fn delivered(&self) -> OperationNumber {
        self.delivered
    }

    /// Returns the number of operations that are posted and not complete.
    pub const fn outstanding(&self) -> u32 {
        self.outstanding
    }

    /// Returns the number of messages that may be posted before the peer grants more.
    pub const fn credits(&self) -> u32 {
        let left = self.peer.credit.since(self.next_message);
        if left > 0 { left.cast_unsigned() } else { 0 }
    }

    /// Returns how much work the application should post now; see [`PostingRoom`].
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

    /// Returns whether this half waits for a frame of the peer.
    pub const fn waits_for_peer(&self) -> bool {
        self.outstanding > 0 || self.answering > 0
    }

    /// Allows the next call of [`Outbound::next_fragment`] to try the operation at the cursor
    /// again. Has no effect if the connection is halted.
    #[inline]
    const fn unblock(&mut self) {
        self.blocked = self.is_halted();
    }

    /// Returns whether the connection is halted: no operation may be cut into fragments. Progress
    /// reports of the peer do not end this state.
    const fn is_halted(&self) -> bool {
        self.fault.is_some() || self.is_faulty || self.not_ready.is_some()
    }

    /// Returns the number of the first operation that is not yet completely cut into fragments.
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

    /// Adds a fragment. The fragment must not be on another list.
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

    /// Appends all fragments of the list `other`.
    fn append(&mut self, pools: &mut Pools, other: Self) {
        if self.is_empty() {
            *self = other;
        } else if !other.is_empty() {
            pools.retransmissions[self.tail].next = other.head;
            self.tail = other.tail;
        }
    }

    /// Moves the first fragment of the operation `number` to the front of the list. Does nothing if
    /// the list has no such fragment.
    fn bring_forward(&mut self, pools: &mut Pools, number: OperationNumber) {
        let (mut before, mut slot) = (NIL, self.head);
        while let Some(node) = pools.retransmissions.get(slot) {
            let next = node.next;
            if node.carried.kind != CarriedKind::Request || node.carried.number != number {
                (before, slot) = (slot, next);
                continue;
            }
            if before != NIL {
                pools.retransmissions[before].next = next;
                pools.retransmissions[slot].next = self.head;
                self.head = slot;
                if self.tail == slot {
                    self.tail = before;
                }
            }
            return;
        }
    }

    /// Removes and returns the first fragment; `None` if the list is empty.
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

/// Returns the operation of a fragment. Returns `None` if the operation is complete and another
/// operation uses its record.
fn own_operation<'a>(
    operations: &'a mut Slab<OutOperation>,
    connection: u32,
    carried: &Carried,
) -> Option<&'a mut OutOperation> {
    let operation = operations.get_mut(carried.slot)?;
    (operation.connection == connection && operation.number == carried.number).then_some(operation)
}

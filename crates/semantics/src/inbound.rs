//! What the peer asks of this side: placement, order, delivery, exactly once.

use std::sync::Arc;

use mem::{AccessError, MemoryAccess, ProtectionDomain, Rights, Target};
use wire_edge::{
    AtomicOpcode, CloseReason, Flags, Header, MessageNumber, OperationNumber, RemoteKey,
};

use crate::operation::close_reason_of;
use crate::order_pool::HeldList;
use crate::outbound::Outbound;
use crate::pools::Pools;
use crate::range_set::RangeSet;
use crate::receive_queue::ReceiveQueue;
use crate::slab::NIL;
use crate::{Completion, CompletionKind, CompletionQueue, OperationError, PostError, Receive};

/// What this side grants its peer.
#[derive(Clone, Copy, Debug)]
pub struct InboundLimits {
    /// Operations tracked beyond the last delivered one.
    pub operation_window: u32,
    /// Reads and atomics answered at a time.
    pub read_depth: u16,
    /// Payload bytes held for operations that must wait.
    pub order_pool_bytes: u32,
    /// Receives that can be posted.
    pub receives: u32,
}

/// What became of a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Placed, executed or held; acknowledge it.
    Accepted,
    /// It was here before; acknowledge it again, touch nothing.
    Duplicate,
    /// There is no room for it now; do not acknowledge it, it will come again.
    Refused(Refusal),
    /// The peer broke a rule, or asked for memory it may not touch: close the connection.
    Violation {
        /// What to tell the peer.
        reason: CloseReason,
        /// The operation at fault.
        operation: OperationNumber,
    },
}

/// Why there is no room for a fragment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// It belongs to an operation beyond the window.
    Window,
    /// The order pool or the records are all in use.
    Pool,
    /// It would open one hole too many.
    Ranges,
}

/// An operation of the peer that is partly here, or waits for earlier ones.
#[derive(Debug)]
pub(crate) struct InOperation {
    number: OperationNumber,
    /// The next later open operation of the connection.
    next: u32,
    flags: Flags,
    kind: InKind,
    /// Length, once the last fragment is here.
    total: Option<u32>,
    immediate: Option<u32>,
    /// Bytes that are here, placed or held.
    received: RangeSet,
    /// Bytes that are here and not placed.
    held: HeldList,
    /// Offset from which on bytes are held as the ordered tail; `u32::MAX` if none are.
    held_from: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum InKind {
    Write { key: RemoteKey, base: u64 },
    Send { message: MessageNumber },
    Read { key: RemoteKey, address: u64, length: u32 },
    Atomic { opcode: AtomicOpcode, key: RemoteKey, address: u64, operand: u64, compare: u64 },
}

/// Everything a fragment may need besides the state of its own connection.
#[derive(Debug)]
pub struct Surroundings<'a, 'm> {
    /// Application memory, for this turn.
    pub memory: &'a MemoryAccess<'m>,
    /// The endpoint's records.
    pub pools: &'a mut Pools,
    /// Where answers to reads and atomics go.
    pub outbound: &'a mut Outbound,
}

/// The receiving half of the operations of one connection.
#[derive(Debug)]
pub struct Inbound {
    connection: u32,
    domain: ProtectionDomain,
    /// Every operation before this one is delivered.
    expected: OperationNumber,
    /// Open operations, ascending; [`NIL`] when each frame so far completed its operation.
    head: u32,
    /// Record of the operation that the last general fragment belonged to.
    current: u32,
    held_bytes: u32,
    limits: InboundLimits,
    next_message: MessageNumber,
    /// Delivery waits for room in the completion queue or for an answer to be finished.
    stalled: bool,
    queue: Arc<CompletionQueue>,
    receives: Option<Box<ReceiveQueue>>,
}

/// Why delivery of the next operation cannot go on now.
enum Stop {
    Stalled,
    Fault(AccessError),
    Peer(CloseReason),
}

impl From<AccessError> for Stop {
    fn from(error: AccessError) -> Self {
        Self::Fault(error)
    }
}

impl Inbound {
    /// The receiving half of connection `connection`, whose peer may touch regions of `domain`.
    pub fn new(
        connection: u32,
        domain: ProtectionDomain,
        limits: InboundLimits,
        queue: Arc<CompletionQueue>,
    ) -> Self {
        Self {
            connection,
            domain,
            expected: OperationNumber(0),
            head: NIL,
            current: NIL,
            held_bytes: 0,
            limits,
            next_message: MessageNumber(0),
            stalled: false,
            queue,
            receives: None,
        }
    }

    /// Handles one operation fragment of the peer. Costs a key lookup and a copy when fragments come
    /// in order, and never allocates.
    ///
    /// `header` must be of a request: answers go to [`Outbound::handle_answer`].
    pub fn handle(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        flags: Flags,
        header: &Header,
        payload: &[u8],
    ) -> Verdict {
        let (number, offset, kind, immediate) = match *header {
            Header::Write { operation, offset, key, address, immediate } => {
                let base = address.wrapping_sub(u64::from(offset));
                (operation, offset, InKind::Write { key, base }, immediate)
            }
            Header::Send { operation, offset, message, immediate } => {
                (operation, offset, InKind::Send { message }, immediate)
            }
            Header::ReadRequest { operation, length, key, address } => {
                (operation, 0, InKind::Read { key, address, length }, None)
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
        if let InKind::Send { message } = kind
            && self.receives.as_ref().is_none_or(|receives| receives.get(message).is_none())
        {
            // Nobody sends a message before a receive is posted for it: credits say how many are.
            return violation(CloseReason::ProtocolViolation, number);
        }
        let whole = flags.contains(Flags::LAST) && offset == 0;
        if distance == 0 && self.head == NIL && whole {
            return self.handle_whole(around, flags, kind, immediate, payload);
        }
        self.handle_part(around, &Part { number, flags, kind, offset, immediate, payload })
    }

    /// Goes on with deliveries that had to wait. Call when [`Inbound::is_stalled`] and a completion
    /// may have been polled or an answer finished.
    pub fn resume(&mut self, around: &mut Surroundings<'_, '_>) -> Verdict {
        self.stalled = false;
        self.advance(around)
    }

    /// Posts a buffer for the next message without one.
    pub fn post_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        receive: Receive,
    ) -> Result<(), PostError> {
        let length = u64::from(receive.length);
        memory.resolve_local(receive.region, receive.offset, length, Rights::LOCAL_WRITE)?;
        let capacity = self.limits.receives;
        if !self.queue.reserve() {
            return Err(PostError::CompletionQueueFull);
        }
        let receives = self.receives.get_or_insert_with(|| Box::new(ReceiveQueue::new(capacity)));
        if receives.push(receive) {
            return Ok(());
        }
        self.queue.release();
        Err(PostError::ReceiveQueueFull(capacity))
    }

    /// Frees every record and completes every posted receive as flushed.
    pub fn flush(&mut self, pools: &mut Pools) {
        while self.head != NIL {
            self.close_head(pools);
        }
        self.stalled = false;
        let Some(receives) = self.receives.as_mut() else { return };
        for receive in receives.drain() {
            self.queue.fill(Completion {
                context: receive.context,
                connection: self.connection,
                kind: CompletionKind::Receive,
                result: Err(OperationError::Flushed),
                bytes: 0,
                immediate: None,
                value: 0,
            });
        }
        self.receives = None;
    }

    /// Every operation of the peer before this number is delivered.
    pub const fn delivered(&self) -> OperationNumber {
        self.expected
    }

    /// Number of the first message that was not delivered.
    pub const fn next_message(&self) -> MessageNumber {
        self.next_message
    }

    /// Message number up to which (exclusive) receives are posted.
    pub fn credit(&self) -> MessageNumber {
        self.receives.as_ref().map_or(self.next_message, |receives| receives.credit())
    }

    /// Whether deliveries wait for [`Inbound::resume`].
    pub const fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// An operation that is here whole, in order, with nothing else open: the common case of small
    /// operations.
    #[inline]
    fn handle_whole(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        flags: Flags,
        kind: InKind,
        immediate: Option<u32>,
        payload: &[u8],
    ) -> Verdict {
        let number = self.expected;
        let length = payload.len() as u32;
        if around.pools.incoming.room() == 0 {
            return Verdict::Refused(Refusal::Pool);
        }
        if let Err(error) = self.place(around.memory, kind, 0, payload, Tail::Ordered) {
            return fault(kind, error, number);
        }
        match self.deliver(around, kind, immediate, length) {
            Ok(()) => {
                self.expected = number.next();
                Verdict::Accepted
            }
            Err(Stop::Stalled) => {
                self.stalled = true;
                self.open_stalled(around.pools, number, flags, kind, immediate, length);
                Verdict::Accepted
            }
            Err(Stop::Fault(error)) => fault(kind, error, number),
            Err(Stop::Peer(reason)) => violation(reason, number),
        }
    }

    /// Keeps a delivered-but-for-the-completion operation until there is room for its completion.
    #[cold]
    fn open_stalled(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        flags: Flags,
        kind: InKind,
        immediate: Option<u32>,
        length: u32,
    ) {
        if let Ok(slot) = self.find_or_open(pools, number, flags, kind) {
            let operation = &mut pools.incoming[slot];
            operation.total = Some(length);
            operation.immediate = immediate;
            let inserted = operation.received.insert(0, length);
            assert!(inserted.is_ok(), "an empty range set takes one range");
        }
    }

    fn handle_part(&mut self, around: &mut Surroundings<'_, '_>, part: &Part<'_>) -> Verdict {
        let number = part.number;
        let slot = match self.find_or_open(around.pools, number, part.flags, part.kind) {
            Ok(slot) => slot,
            Err(verdict) => return verdict,
        };
        let verdict = self.accept_part(around, slot, part);
        if verdict == Verdict::Accepted && number == self.expected {
            return self.advance(around);
        }
        verdict
    }

    fn accept_part(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        slot: u32,
        part: &Part<'_>,
    ) -> Verdict {
        let (start, end) = (part.offset, part.offset + part.payload.len() as u32);
        let operation = &around.pools.incoming[slot];
        if let Err(verdict) = operation.check(part, end) {
            return verdict;
        }
        let last = part.flags.contains(Flags::LAST);
        if operation.received.contains(start, end) && (!last || operation.total.is_some()) {
            return Verdict::Duplicate;
        }
        let in_turn = part.number == self.expected;
        let fenced = part.flags.contains(Flags::FENCE_BEFORE) && !in_turn;
        let strict_tail = part.flags.contains(Flags::STRICT)
            && last
            && !(in_turn && operation.received.contains(0, start));
        let hold = fenced || strict_tail;
        let mut pieces = Pieces::default();
        operation.received.uncovered(start, end, |low, high| pieces.push(low, high));
        if pieces.overflow {
            return Verdict::Refused(Refusal::Ranges);
        }
        if hold && !self.has_order_room(around.pools, pieces.bytes()) {
            return Verdict::Refused(Refusal::Pool);
        }
        if around.pools.incoming[slot].received.insert(start, end).is_err() {
            return Verdict::Refused(Refusal::Ranges);
        }
        for &(low, high) in pieces.as_slice() {
            let bytes = &part.payload[(low - start) as usize..(high - start) as usize];
            if hold {
                self.hold(around.pools, slot, low, bytes, fenced);
            } else {
                let placed =
                    self.place_yielding(around.memory, around.pools, slot, low, bytes, last);
                if let Err(error) = placed {
                    return fault(part.kind, error, part.number);
                }
            }
        }
        let operation = &mut around.pools.incoming[slot];
        if last {
            operation.total = Some(end);
            operation.immediate = part.immediate;
        }
        Verdict::Accepted
    }

    /// Delivers operations in order for as long as the next one is complete.
    fn advance(&mut self, around: &mut Surroundings<'_, '_>) -> Verdict {
        while self.head != NIL && !self.stalled {
            let slot = self.head;
            let operation = &around.pools.incoming[slot];
            let (number, kind) = (operation.number, operation.kind);
            if number != self.expected {
                break;
            }
            match self.advance_one(around, slot) {
                Ok(true) => {
                    self.close_head(around.pools);
                    self.expected = number.next();
                }
                Ok(false) => break,
                Err(Stop::Stalled) => self.stalled = true,
                Err(Stop::Fault(error)) => return fault(kind, error, number),
                Err(Stop::Peer(reason)) => return violation(reason, number),
            }
        }
        Verdict::Accepted
    }

    /// Places what the operation in turn holds, as far as it may, and delivers it if it is complete.
    fn advance_one(&mut self, around: &mut Surroundings<'_, '_>, slot: u32) -> Result<bool, Stop> {
        let operation = &around.pools.incoming[slot];
        let complete = operation.is_complete();
        let strict_tail = operation.flags.contains(Flags::STRICT);
        // A fenced operation whose turn has come places what it holds, but an ordered tail waits for
        // its own body.
        if !complete && strict_tail && !operation.flags.contains(Flags::FENCE_BEFORE) {
            return Ok(false);
        }
        self.place_held(around, slot, complete)?;
        if !complete {
            return Ok(false);
        }
        let operation = &around.pools.incoming[slot];
        let (kind, immediate) = (operation.kind, operation.immediate);
        let length = operation.total.unwrap_or(0);
        self.deliver(around, kind, immediate, length)?;
        Ok(true)
    }

    fn place_held(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        slot: u32,
        complete: bool,
    ) -> Result<(), AccessError> {
        let operation = &around.pools.incoming[slot];
        let (mut held, total) = (operation.held, operation.total);
        let keep_tail = operation.flags.contains(Flags::STRICT) && !complete;
        let mut result = Ok(());
        let mut unseen_bytes = held.bytes;
        while unseen_bytes > 0 && result.is_ok() {
            let Some((offset, bytes)) = around.pools.order.front(&held) else { break };
            let end = offset + bytes.len() as u32;
            unseen_bytes -= bytes.len() as u32;
            if keep_tail && Some(end) == total {
                around.pools.order.rotate(&mut held);
                continue;
            }
            let last = Some(end) == total;
            result = self.place_yielding(around.memory, around.pools, slot, offset, bytes, last);
            self.held_bytes -= around.pools.order.pop(&mut held);
        }
        let operation = &mut around.pools.incoming[slot];
        operation.held = held;
        if held.is_empty() {
            operation.held_from = u32::MAX;
        }
        result
    }

    /// Makes an operation happen whose bytes are all placed.
    fn deliver(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        kind: InKind,
        immediate: Option<u32>,
        length: u32,
    ) -> Result<(), Stop> {
        match kind {
            InKind::Write { base, .. } => {
                if immediate.is_none() {
                    return Ok(());
                }
                let notification = Completion {
                    context: 0,
                    connection: self.connection,
                    kind: CompletionKind::Notification,
                    result: Ok(()),
                    bytes: length,
                    immediate,
                    value: base,
                };
                if self.queue.offer(notification) { Ok(()) } else { Err(Stop::Stalled) }
            }
            InKind::Send { message } => self.deliver_message(message, immediate, length),
            InKind::Read { key, address, length } => {
                if !self.may_answer(around) {
                    return Err(Stop::Stalled);
                }
                let wanted = u64::from(length);
                let target = around.memory.resolve(
                    self.domain,
                    key,
                    address,
                    wanted,
                    Rights::REMOTE_READ,
                )?;
                around.outbound.answer_read(around.pools, self.expected, target, length);
                Ok(())
            }
            InKind::Atomic { opcode, key, address, operand, compare } => {
                if !self.may_answer(around) {
                    return Err(Stop::Stalled);
                }
                let target =
                    around.memory.resolve(self.domain, key, address, 8, Rights::REMOTE_ATOMIC)?;
                let value = match opcode {
                    AtomicOpcode::FetchAdd => around.memory.fetch_add(&target, operand)?,
                    AtomicOpcode::CompareSwap => {
                        around.memory.compare_swap(&target, compare, operand)?
                    }
                };
                around.outbound.answer_atomic(around.pools, self.expected, value);
                Ok(())
            }
        }
    }

    fn deliver_message(
        &mut self,
        message: MessageNumber,
        immediate: Option<u32>,
        length: u32,
    ) -> Result<(), Stop> {
        let receive = self.receives.as_mut().and_then(|receives| receives.pop(message));
        let receive = receive.ok_or(Stop::Peer(CloseReason::ProtocolViolation))?;
        self.next_message = message.next();
        self.queue.fill(Completion {
            context: receive.context,
            connection: self.connection,
            kind: CompletionKind::Receive,
            result: Ok(()),
            bytes: length,
            immediate,
            value: 0,
        });
        Ok(())
    }

    fn may_answer(&self, around: &Surroundings<'_, '_>) -> bool {
        around.outbound.answering() < u32::from(self.limits.read_depth)
            && around.pools.responses.room() > 0
    }

    /// Places bytes of one operation where no later operation has placed bytes already: "the late
    /// writer yields" (protocol.md §5.3). Without later open operations this is one copy.
    fn place_yielding(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        slot: u32,
        offset: u32,
        bytes: &[u8],
        last: bool,
    ) -> Result<(), AccessError> {
        let operation = &pools.incoming[slot];
        let tail = if last { Tail::Ordered } else { Tail::Any };
        let InKind::Write { base, .. } = operation.kind else {
            return self.place(memory, operation.kind, offset, bytes, tail);
        };
        if !operation.flags.contains(Flags::STRICT) {
            return self.place(memory, operation.kind, offset, bytes, tail);
        }
        self.place_around(
            memory,
            pools,
            operation,
            operation.next,
            base + u64::from(offset),
            bytes,
            tail,
        )
    }

    #[expect(clippy::too_many_arguments, reason = "a recursive walk; the arguments are its state")]
    fn place_around(
        &self,
        memory: &MemoryAccess<'_>,
        pools: &Pools,
        operation: &InOperation,
        later: u32,
        address: u64,
        bytes: &[u8],
        tail: Tail,
    ) -> Result<(), AccessError> {
        let InKind::Write { base, .. } = operation.kind else { return Ok(()) };
        let mut later = later;
        while later != NIL {
            let newer = &pools.incoming[later];
            later = newer.next;
            let Some((low, high)) = newer.placed_overlap(address, bytes.len() as u64) else {
                continue;
            };
            // Recursion happens only at a later operation that overlaps, and goes on behind it.
            let InKind::Write { base: newer_base, .. } = newer.kind else { continue };
            let mut result = Ok(());
            let end = address + bytes.len() as u64;
            let mut piece = |from: u64, to: u64| {
                if from < to && result.is_ok() {
                    let part = &bytes[(from - address) as usize..(to - address) as usize];
                    let tail = if to == end { tail } else { Tail::Any };
                    result = self.place_around(memory, pools, operation, later, from, part, tail);
                }
            };
            piece(address, newer_base + u64::from(low));
            newer.received.uncovered(low, high, |from, to| {
                piece(newer_base + u64::from(from), newer_base + u64::from(to));
            });
            piece(newer_base + u64::from(high), end);
            return result;
        }
        self.place(memory, operation.kind, (address - base) as u32, bytes, tail)
    }

    fn place(
        &self,
        memory: &MemoryAccess<'_>,
        kind: InKind,
        offset: u32,
        bytes: &[u8],
        tail: Tail,
    ) -> Result<(), AccessError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let target = match kind {
            InKind::Write { key, base } => {
                let address = base.wrapping_add(u64::from(offset));
                memory.resolve(
                    self.domain,
                    key,
                    address,
                    bytes.len() as u64,
                    Rights::REMOTE_WRITE,
                )?
            }
            InKind::Send { message } => self.sink(memory, message, offset, bytes.len() as u64)?,
            InKind::Read { .. } | InKind::Atomic { .. } => return Ok(()),
        };
        match tail {
            Tail::Ordered => memory.place_tail(&target, 0, bytes),
            Tail::Any => memory.place(&target, 0, bytes),
        }
    }

    /// Where bytes of a message go.
    fn sink(
        &self,
        memory: &MemoryAccess<'_>,
        message: MessageNumber,
        offset: u32,
        len: u64,
    ) -> Result<Target, AccessError> {
        let receive = self.receives.as_ref().and_then(|receives| receives.get(message));
        let receive = receive.ok_or(AccessError::InvalidKey { name: u64::from(message.0) })?;
        let end = u64::from(offset) + len;
        if end > u64::from(receive.length) {
            return Err(AccessError::Bounds {
                address: receive.offset,
                len: end,
                start: receive.offset,
                limit: u64::from(receive.length),
            });
        }
        memory.resolve_local(
            receive.region,
            receive.offset + u64::from(offset),
            len,
            Rights::LOCAL_WRITE,
        )
    }

    fn has_order_room(&self, pools: &Pools, bytes: u32) -> bool {
        self.held_bytes + bytes <= self.limits.order_pool_bytes && pools.order.has_room(bytes)
    }

    fn hold(&mut self, pools: &mut Pools, slot: u32, offset: u32, bytes: &[u8], fenced: bool) {
        let mut held = pools.incoming[slot].held;
        pools.order.hold(&mut held, offset, bytes);
        let operation = &mut pools.incoming[slot];
        operation.held = held;
        let from = if fenced { 0 } else { offset };
        operation.held_from = operation.held_from.min(from);
        self.held_bytes += bytes.len() as u32;
    }

    /// The record of operation `number`, opened if there is none yet.
    fn find_or_open(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        flags: Flags,
        kind: InKind,
    ) -> Result<u32, Verdict> {
        if let Some(operation) = pools.incoming.get(self.current)
            && self.current != NIL
            && operation.number == number
        {
            return Ok(self.current);
        }
        if let Some(slot) = pools.incoming_index.get(self.connection, number) {
            self.current = slot;
            return Ok(slot);
        }
        let operation = InOperation {
            number,
            next: NIL,
            flags,
            kind,
            total: None,
            immediate: None,
            received: RangeSet::default(),
            held: HeldList::EMPTY,
            held_from: u32::MAX,
        };
        let slot = pools.incoming.insert(operation).map_err(|_| Verdict::Refused(Refusal::Pool))?;
        pools.incoming_index.insert(self.connection, number, slot);
        self.link(pools, slot, number);
        self.current = slot;
        Ok(slot)
    }

    /// Puts a record into the ascending list. Operations mostly open in order, so the walk starts
    /// at the record used last if that is an earlier one.
    fn link(&mut self, pools: &mut Pools, slot: u32, number: OperationNumber) {
        let start = match pools.incoming.get(self.current) {
            Some(current) if self.current != NIL && current.number.since(number) < 0 => {
                self.current
            }
            _ => NIL,
        };
        let mut before = start;
        let mut after = if start == NIL { self.head } else { pools.incoming[start].next };
        while after != NIL && pools.incoming[after].number.since(number) < 0 {
            before = after;
            after = pools.incoming[after].next;
        }
        pools.incoming[slot].next = after;
        if before == NIL {
            self.head = slot;
        } else {
            pools.incoming[before].next = slot;
        }
    }

    /// Frees the record of the earliest open operation.
    fn close_head(&mut self, pools: &mut Pools) {
        let mut operation = pools.incoming.remove(self.head);
        self.held_bytes -= pools.order.clear(&mut operation.held);
        pools.incoming_index.remove(self.connection, operation.number);
        if self.current == self.head {
            self.current = NIL;
        }
        self.head = operation.next;
    }
}

impl InOperation {
    /// Whether a fragment fits what is known of its operation.
    fn check(&self, part: &Part<'_>, end: u32) -> Result<(), Verdict> {
        let ordering = Flags(Flags::FENCE_BEFORE.0 | Flags::STRICT.0);
        let last_received = self.received.as_slice().last().map_or(0, |range| range.1);
        let last = part.flags.contains(Flags::LAST);
        let agrees = self.kind == part.kind
            && (self.flags.0 ^ part.flags.0) & ordering.0 == 0
            && match self.total {
                Some(total) if last => end == total,
                Some(total) => end <= total,
                None => !last || last_received <= end,
            };
        if agrees { Ok(()) } else { Err(violation(CloseReason::ProtocolViolation, self.number)) }
    }

    fn is_complete(&self) -> bool {
        self.total.is_some_and(|total| self.received.contains(0, total))
    }

    /// The part of `[address, address + len)` that this operation may have placed bytes in, as
    /// offsets within this operation.
    fn placed_overlap(&self, address: u64, len: u64) -> Option<(u32, u32)> {
        let InKind::Write { base, .. } = self.kind else { return None };
        let end = address.checked_add(len)?;
        let low = address.max(base) - base;
        let high = end.checked_sub(base)?.min(u64::from(self.held_from));
        let (low, high) = (u32::try_from(low).ok()?, high.min(u64::from(u32::MAX)) as u32);
        (low < high && self.received.intersects(low, high)).then_some((low, high))
    }
}

/// One fragment of a request.
struct Part<'a> {
    number: OperationNumber,
    flags: Flags,
    kind: InKind,
    offset: u32,
    immediate: Option<u32>,
    payload: &'a [u8],
}

/// Whether the last bytes must become visible after all others.
#[derive(Clone, Copy, Debug)]
enum Tail {
    Ordered,
    Any,
}

/// The parts of one fragment that are new: one, unless fragments of different sizes overlap.
#[derive(Default)]
struct Pieces {
    ranges: [(u32, u32); 8],
    len: usize,
    overflow: bool,
}

impl Pieces {
    fn push(&mut self, low: u32, high: u32) {
        match self.ranges.get_mut(self.len) {
            Some(range) => {
                *range = (low, high);
                self.len += 1;
            }
            None => self.overflow = true,
        }
    }

    fn as_slice(&self) -> &[(u32, u32)] {
        &self.ranges[..self.len]
    }

    fn bytes(&self) -> u32 {
        self.as_slice().iter().map(|range| range.1 - range.0).sum()
    }
}

const fn violation(reason: CloseReason, operation: OperationNumber) -> Verdict {
    Verdict::Violation { reason, operation }
}

/// What a failed access means for the connection: of a message, the receive is at fault.
fn fault(kind: InKind, error: AccessError, operation: OperationNumber) -> Verdict {
    let reason = match (kind, error) {
        (InKind::Send { .. }, AccessError::Bounds { .. }) => CloseReason::MessageTooLong,
        (InKind::Send { .. }, AccessError::InvalidKey { .. }) => CloseReason::LocalMemoryGone,
        _ => close_reason_of(error),
    };
    violation(reason, operation)
}

//! Records that all connections of an endpoint share.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wire_edge::OperationNumber;
use work::{
    Arrival, Completion, CompletionQueue, OperationError, Owner, Piece, PostError, Push,
    SharedReceives, StatusTable, StoredPieces, Unfit,
};

use crate::inbound::InOperation;
use crate::limits::{LIST_SHARE, NOT_READY_MAX, OPERATION_SHARE, PoolLimits};
use crate::lists::Lists;
use crate::order_pool::OrderPool;
use crate::outbound::{OutOperation, Response, Retransmission};
use crate::range_set::RangeSet;
use crate::receive_queue::Destination;
use crate::slab::Slab;

/// Records of operations that all connections of an endpoint share. An idle connection uses no
/// record.
#[derive(Debug)]
pub struct Pools {
    pub(crate) operations: Slab<OutOperation>,
    pub(crate) incoming: Slab<InOperation>,
    /// Received ranges of each operation, including held bytes. The index is the slot of the
    /// operation in `incoming`.
    pub(crate) received: Vec<RangeSet>,
    pub(crate) responses: Slab<Response>,
    /// Number of answers that this endpoint has begun to send to peers so far.
    pub(crate) answers_begun: u64,
    pub(crate) reads: Slab<RangeSet>,
    pub(crate) retransmissions: Slab<Retransmission>,
    pub(crate) order: OrderPool,
    /// Lists of pieces (scatter/gather entries) of operations and receives.
    pub(crate) lists: Lists,
    pub(crate) incoming_index: OperationIndex,
    pub(crate) reads_index: OperationIndex,
    pub(crate) status: Arc<StatusTable>,
    pub(crate) notices: Notices,
    /// Shared queues that have fewer receives than the limit that the application armed.
    pub(crate) below_limit: Vec<Arc<SharedReceives>>,
    /// Shared queues to which an ended connection has returned receives while other connections
    /// wait for receives of the queue.
    pub(crate) refilled: Vec<Arc<SharedReceives>>,
    pub(crate) room: RoomAwaited,
    pub(crate) beyond: Beyond,
}

/// Size in bytes of the records that each connection may use in any case: the guaranteed
/// operations, the lists of pieces of both halves, the first undelivered operation of the peer, and
/// one answer.
pub const SHARE_BYTES: usize = OPERATION_SHARE as usize * size_of::<OutOperation>()
    + 2 * LIST_SHARE as usize * size_of::<StoredPieces>()
    + size_of::<InOperation>()
    + size_of::<RangeSet>()
    + size_of::<Response>();

/// Connections whose application waits to post more work until the connection has room.
#[derive(Debug, Default)]
pub(crate) struct RoomAwaited {
    /// The connections that wait for room, as the bits of their owners.
    awaited_by: HashSet<u64, BuildHasherDefault<KeyMixer>>,
    there_for: Vec<Owner>,
}

impl RoomAwaited {
    #[cold]
    fn note(&mut self, owner: Owner) {
        if self.awaited_by.remove(&owner.bits()) {
            self.there_for.push(owner);
        }
    }
}

/// Counts the operations that are not guaranteed ([`OPERATION_SHARE`]). Guaranteed operations do
/// not reduce the room of other connections.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    /// Number of operations that reduce the room of other connections.
    common: u32,
    /// Number of operations that wait for a receive of the peer and therefore do not reduce the
    /// room of other connections.
    waiting: u32,
}

impl Beyond {
    /// Adds an operation. If `is_spared` is true, the connection of the operation waits for a
    /// receive, and the operation does not reduce the room of other connections.
    #[inline]
    pub(crate) const fn add(&mut self, is_spared: bool) {
        if is_spared {
            self.waiting += 1;
        } else {
            self.common += 1;
        }
    }

    /// Removes an operation that has ended.
    #[inline]
    pub(crate) const fn remove(&mut self, is_spared: bool) {
        if is_spared {
            self.waiting -= 1;
        } else {
            self.common -= 1;
        }
    }

    /// Spares a connection that begins to wait for a receive: its `count` operations that are not
    /// guaranteed no longer reduce the room of other connections. Changes nothing and returns false
    /// if too many operations of all connections already wait.
    pub(crate) const fn spare(&mut self, count: u32) -> bool {
        if self.waiting + count > NOT_READY_MAX {
            return false;
        }
        self.common -= count;
        self.waiting += count;
        true
    }

    /// Ends the sparing of a connection: its `count` operations that are not guaranteed reduce the
    /// room of other connections again.
    pub(crate) const fn take_back(&mut self, count: u32) {
        self.waiting -= count;
        self.common += count;
    }
}

/// The reports that the application receives.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Queues that received a completion for which the application waits.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
    /// Number of reports so far.
    pub(crate) count: u64,
}

impl Pools {
    /// Creates pools with the sizes in `limits`. Handles of operations read their state from the
    /// table `status`.
    pub fn new(limits: &PoolLimits, status: Arc<StatusTable>) -> Self {
        Self {
            operations: Slab::reserving(limits.operations),
            incoming: Slab::new(limits.incoming),
            received: (0..limits.incoming).map(|_| RangeSet::default()).collect(),
            responses: Slab::new(limits.responses),
            answers_begun: 0,
            reads: Slab::new(limits.reads),
            retransmissions: Slab::new(limits.retransmissions),
            order: OrderPool::new(limits.order_blocks),
            lists: Lists::default(),
            incoming_index: OperationIndex::new(limits.incoming),
            reads_index: OperationIndex::new(limits.operations),
            status,
            notices: Notices::default(),
            below_limit: Vec::new(),
            refilled: Vec::new(),
            room: RoomAwaited::default(),
            beyond: Beyond::default(),
        }
    }

    /// Creates pools like [`Pools::new`], but allocates memory when records are first used. This is
    /// for simulations of thousands of endpoints, most of which use few records.
    pub fn growing(limits: &PoolLimits, status: Arc<StatusTable>) -> Self {
        Self {
            operations: Slab::growing(limits.operations),
            incoming: Slab::growing(limits.incoming),
            received: Vec::new(),
            responses: Slab::growing(limits.responses),
            answers_begun: 0,
            reads: Slab::growing(limits.reads),
            retransmissions: Slab::growing(limits.retransmissions),
            order: OrderPool::growing(limits.order_blocks),
            lists: Lists::default(),
            incoming_index: OperationIndex::new(0),
            reads_index: OperationIndex::new(0),
            status,
            notices: Notices::default(),
            below_limit: Vec::new(),
            refilled: Vec::new(),
            room: RoomAwaited::default(),
            beyond: Beyond::default(),
        }
    }

    //= protocol.md: pool.5
    /// Returns whether a connection that has `own` records of a kind may have another record.
    /// `room` is the number of free records. The connection may have another record if `own` is
    /// less than `room`.
    ///
    /// With this rule, a single connection gets half of all records, and two connections get a
    /// third each. Some records always remain for later connections. If a connection needs a record
    /// to make any progress, the caller grants the record without calling this function.
    pub(crate) const fn grants_another(own: u32, room: u32) -> bool {
        own < room
    }

    //= protocol.md: pool.6
    /// Returns whether a connection with `own` incomplete operations may have another record.
    pub(crate) const fn grants_operation(&self, own: u32) -> bool {
        let room = self.operations.limit().saturating_sub(self.beyond.common);
        own < OPERATION_SHARE || Self::grants_another(own - OPERATION_SHARE, room)
    }

    /// Registers a connection whose application waits to post work. [`Pools::take_room`] returns
    /// the connection after each of these events:
    ///
    /// * One of its operations completes.
    /// * The peer grants it more messages.
    /// * One of its receives is consumed.
    pub fn await_room(&mut self, owner: Owner) {
        self.room.awaited_by.insert(owner.bits());
    }

    /// Removes and returns a connection that has room again and whose application
    /// [waits](Pools::await_room). The caller repeats this until it returns `None`.
    pub fn take_room(&mut self) -> Option<Owner> {
        self.room.there_for.pop()
    }

    /// Returns whether [`Pools::take_room`] would return a connection.
    #[inline]
    pub const fn has_room_news(&self) -> bool {
        !self.room.there_for.is_empty()
    }

    /// Records that this connection may have room again.
    #[inline]
    pub(crate) fn note_room(&mut self, owner: Owner) {
        if !self.room.awaited_by.is_empty() {
            self.room.note(owner);
        }
    }

    /// Clears the received ranges for the new record in `slot`.
    #[inline]
    pub(crate) fn clear_received(&mut self, slot: u32) {
        match self.received.get_mut(slot as usize) {
            Some(received) => received.clear(),
            // The pool now has more records than at its creation. It adds such records one by one.
            None => self.received.push(RangeSet::default()),
        }
    }

    /// Frees the list of a receive that has ended, if the receive had one.
    #[inline]
    pub(crate) fn forget(&mut self, destination: Destination) {
        if let Destination::List(slot) = destination {
            self.lists.remove(slot);
        }
    }

    /// Removes and returns a completion queue that needs attention. The queue is overrun, or it was
    /// armed and received a matching completion. The caller wakes the threads that wait for the
    /// queue, and repeats this until it returns `None`.
    pub fn take_fired(&mut self) -> Option<Arc<CompletionQueue>> {
        self.notices.fired.pop()
    }

    /// Returns the number of events that were reported to the application, by a completion or by a
    /// slot of the status table.
    #[inline]
    pub const fn report_count(&self) -> u64 {
        self.notices.count
    }

    /// Reports the result of an operation or receive in the slot `status` of the status table.
    #[inline]
    pub(crate) fn finish(&mut self, status: u32, result: Result<u64, OperationError>) {
        self.notices.count += 1;
        self.status.finish(status, result);
    }

    /// Reports the arrival of a message in the slot `status` of the status table, which belongs to
    /// the receive.
    #[inline]
    pub(crate) fn arrive(&mut self, status: u32, arrival: Arrival) {
        self.notices.count += 1;
        self.status.arrive(status, arrival);
    }

    /// Pushes a completion that belongs to no connection and for which no room is reserved. If
    /// there is no room, marks the queue as overrun and returns false.
    pub fn push(&mut self, queue: &Arc<CompletionQueue>, completion: &Completion) -> bool {
        match queue.push(completion) {
            Push::Added => {
                self.notices.count += 1;
                true
            }
            Push::Fired => {
                self.notices.count += 1;
                self.notices.fired.push(Arc::clone(queue));
                true
            }
            Push::NoRoom => {
                self.notices.fired.push(Arc::clone(queue));
                false
            }
        }
    }

    /// Fills the oldest receive of a shared queue with `bytes` bytes that belong to no connection.
    /// `place` gets the context and the pieces of the receive, and copies the bytes. Does not use
    /// receives for which connections wait.
    ///
    /// # Errors
    /// Returns [`Unfit`] if no receive can be used. All receives are then unchanged.
    pub fn fill_shared<R>(
        &mut self,
        queue: &Arc<SharedReceives>,
        bytes: usize,
        place: impl FnOnce(u64, &[Piece]) -> R,
    ) -> Result<R, Unfit> {
        let placed = queue.fill(bytes, place)?;
        self.note_limit(queue);
        Ok(placed)
    }

    /// Checks the limit of a shared queue after a receive was removed from the queue. If the queue
    /// is below its limit, [`Pools::take_below_limit`] will return the queue.
    #[inline]
    pub(crate) fn note_limit(&mut self, queue: &Arc<SharedReceives>) {
        if queue.falls_below_limit() {
            self.below_limit.push(Arc::clone(queue));
        }
    }

    /// Removes and returns a shared queue that has fewer receives than its
    /// [limit](SharedReceives::arm_limit). The caller reports this to the application, and repeats
    /// the call until it returns `None`.
    pub fn take_below_limit(&mut self) -> Option<Arc<SharedReceives>> {
        self.below_limit.pop()
    }

    /// Removes and returns a shared queue to which an ended connection has returned receives while
    /// other connections wait for receives of the queue; see [`SharedReceives::next_ready`]. The
    /// caller repeats this call until it returns `None`.
    pub fn take_refilled(&mut self) -> Option<Arc<SharedReceives>> {
        self.refilled.pop()
    }

    /// Returns whether [`Pools::take_refilled`] would return a queue.
    #[inline]
    pub const fn has_refilled(&self) -> bool {
        !self.refilled.is_empty()
    }

    /// Returns how many answers to reads and atomics of peers this endpoint has begun to send so
    /// far.
    pub const fn answers_begun(&self) -> u64 {
        self.answers_begun
    }

    /// Checks whether a connection that has `own` operations may post another.
    ///
    /// # Errors
    /// Returns [`PostError::NoOperationLeft`] if the connection may not post another operation.
    pub const fn check_room(&self, own: u32) -> Result<(), PostError> {
        if self.grants_operation(own) { Ok(()) } else { Err(PostError::NoOperationLeft(own)) }
    }

    /// Returns the number of records in use, by kind. If no operation is pending, all numbers are
    /// 0.
    pub fn in_use(&self) -> PoolUse {
        PoolUse {
            operations: self.operations.used(),
            incoming: self.incoming.used(),
            responses: self.responses.used(),
            reads: self.reads.used(),
            retransmissions: self.retransmissions.used(),
            order_blocks: self.order.used(),
            lists: self.lists.used(),
        }
    }
}

/// Numbers of records in use, by kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PoolUse {
    /// Operations that are posted and not complete.
    pub operations: u32,
    /// Operations of peers of which some bytes have arrived, or that wait for earlier operations.
    pub incoming: u32,
    /// Reads and atomics of peers that this side is answering.
    pub responses: u32,
    /// Reads of this side whose answers have arrived out of order.
    pub reads: u32,
    /// Fragments that wait to be retransmitted.
    pub retransmissions: u32,
    /// Blocks of the order pool in use.
    pub order_blocks: u32,
    /// Lists of pieces (scatter/gather entries).
    pub lists: u32,
}

/// Maps a connection and an operation number to the record of the operation. The memory of the map
/// grows only if the number of records grows.
#[derive(Debug)]
pub(crate) struct OperationIndex(HashMap<u64, u32, BuildHasherDefault<KeyMixer>>);

impl OperationIndex {
    fn new(capacity: u32) -> Self {
        // Reserve room for twice the number of records. Otherwise entries that were removed could
        // force the hash table to grow. With this room, the table reuses the places of removed
        // entries without growing.
        Self(HashMap::with_capacity_and_hasher(
            capacity as usize * 2,
            BuildHasherDefault::default(),
        ))
    }

    #[inline]
    pub(crate) fn get(&self, connection: u32, number: OperationNumber) -> Option<u32> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&key(connection, number)).copied()
    }

    pub(crate) fn insert(&mut self, connection: u32, number: OperationNumber, slot: u32) {
        self.0.insert(key(connection, number), slot);
    }

    pub(crate) fn remove(&mut self, connection: u32, number: OperationNumber) {
        self.0.remove(&key(connection, number));
    }
}

const fn key(connection: u32, number: OperationNumber) -> u64 {
    (connection as u64) << 32 | number.0 as u64
}

/// Mixes a key that consists of two small integers. The hash function needs no secret: a peer can
/// choose operation numbers only within its window, so it cannot make many keys collide.
#[derive(Debug, Default)]
pub(crate) struct KeyMixer(u64);

impl Hasher for KeyMixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The multiplication by the golden ratio spreads the low bits upwards. The shift and the
        // XOR move the high bits down.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

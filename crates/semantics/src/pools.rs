//! Records that all connections of an endpoint share.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use wire_edge::OperationNumber;
use work::{
    Arrival, Completion, CompletionQueue, OperationError, Owner, Piece, PostError, Push,
    StatusTable, StoredPieces,
};

use crate::inbound::InOperation;
use crate::limits::{LIST_SHARE, OPERATION_SHARE, PoolLimits, NOT_READY_MAX};
use crate::lists::Lists;
use crate::order_pool::OrderPool;
use crate::outbound::{OutOperation, Response, Retransmission};
use crate::range_set::RangeSet;
use crate::receive_queue::Destination;
use crate::slab::Slab;
use crate::{SharedReceives, Unfit};

/// Records of operations, which all connections of an endpoint share. An idle connection uses none.
#[derive(Debug)]
pub struct Pools {
    pub(crate) operations: Slab<OutOperation>,
    pub(crate) incoming: Slab<InOperation>,
    /// Ranges of received bytes. The index is the operation's slot in `incoming`. The ranges
    /// include held bytes.
    pub(crate) received: Vec<RangeSet>,
    pub(crate) responses: Slab<Response>,
    /// Number of answers to peers that have begun so far.
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
    /// Shared queues that hold fewer receives than the limit that the application armed.
    pub(crate) below_limit: Vec<Arc<SharedReceives>>,
    /// Shared queues to which receives were returned while connections wait for receives.
    pub(crate) refilled: Vec<Arc<SharedReceives>>,
    pub(crate) room: RoomAwaited,
    pub(crate) beyond: Beyond,
}

/// Size in bytes of the records that each connection may use in any case. The records are its share
/// of operations, the lists of pieces of both halves, the peer's operation in turn, and one answer.
pub const SHARE_BYTES: usize = OPERATION_SHARE as usize * size_of::<OutOperation>()
    + 2 * LIST_SHARE as usize * size_of::<StoredPieces>()
    + size_of::<InOperation>()
    + size_of::<RangeSet>()
    + size_of::<Response>();

/// Connections whose application has work to post when they have room.
#[derive(Debug, Default)]
pub(crate) struct RoomAwaited {
    /// The connections that wait for room. Each is stored as the bits of its owner.
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

/// Number of operations that exceed the shares of their connections. Operations within the shares
/// do not reduce the room of other connections.
#[derive(Debug, Default)]
pub(crate) struct Beyond {
    /// Number of operations that reduce the room of other connections.
    common: u32,
    /// Number of operations that wait for a receive of the peer and do not reduce the room of
    /// others.
    waiting: u32,
}

impl Beyond {
    /// Adds an operation. `is_spared` says whether its connection waits for a receive and is
    /// spared.
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

    /// Spares a connection that begins to wait for a receive: its `count` operations beyond its
    /// share no longer reduce the room of others. If too many operations are waiting already,
    /// changes nothing and returns false.
    pub(crate) const fn spare(&mut self, count: u32) -> bool {
        if self.waiting + count > NOT_READY_MAX {
            return false;
        }
        self.common -= count;
        self.waiting += count;
        true
    }

    /// Ends the sparing of a connection that has `count` operations beyond its share.
    pub(crate) const fn take_back(&mut self, count: u32) {
        self.waiting -= count;
        self.common += count;
    }
}

/// Reports to the application.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    /// Queues that received a completion for which the application waits.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
    /// Number of reports so far.
    pub(crate) count: u64,
}

impl Pools {
    /// Creates pools with the sizes in `limits`. Handles of operations read their state from
    /// `status`.
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

    /// Creates pools like [`Pools::new`], but allocates memory when records are first used. For
    /// simulations of thousands of endpoints, because most of them use few records.
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
    /// Returns whether a connection with `own` records of a kind may have another while `room`
    /// records are free. It may have another if `own` is less than `room`.
    ///
    /// Therefore a single connection gets half of all records, two connections get a third each,
    /// and some remain for later connections. A record that a connection needs to make any progress
    /// is granted in any case.
    pub(crate) const fn grants_another(own: u32, room: u32) -> bool {
        own < room
    }

    //= protocol.md: pool.6
    /// Returns whether a connection with `own` incomplete operations may have another record.
    pub(crate) const fn grants_operation(&self, own: u32) -> bool {
        let room = self.operations.limit().saturating_sub(self.beyond.common);
        own < OPERATION_SHARE || Self::grants_another(own - OPERATION_SHARE, room)
    }

    /// Registers a connection for [`Pools::take_room`], because work of the application waits.
    /// `take_room` returns the connection when one of its operations completes, the peer grants it
    /// more messages, or one of its receives is consumed.
    pub fn await_room(&mut self, owner: Owner) {
        self.room.awaited_by.insert(owner.bits());
    }

    /// Removes and returns a connection that has room again and for which work
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
            // Records beyond the initial number are appended one by one.
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

    /// Removes and returns a completion queue that is overrun, or that was armed and received a
    /// matching completion. The caller wakes the threads that wait for the queue, and repeats this
    /// until it returns `None`.
    pub fn take_fired(&mut self) -> Option<Arc<CompletionQueue>> {
        self.notices.fired.pop()
    }

    /// Returns the number of events that were reported to the application, by a completion or by a
    /// slot of the status table.
    #[inline]
    pub const fn report_count(&self) -> u64 {
        self.notices.count
    }

    /// Reports the result of an operation or receive in its slot of the status table.
    #[inline]
    pub(crate) fn finish(&mut self, status: u32, result: Result<u64, OperationError>) {
        self.notices.count += 1;
        self.status.finish(status, result);
    }

    /// Reports the arrival of a message in the receive's slot of the status table.
    #[inline]
    pub(crate) fn arrive(&mut self, status: u32, arrival: Arrival) {
        self.notices.count += 1;
        self.status.arrive(status, arrival);
    }

    /// Pushes a completion that belongs to no connection and has no reserved room. If there is no
    /// room, the queue overruns and this returns false.
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
    /// `place` gets the context and the pieces of the receive. Does not use receives that
    /// connections wait for.
    ///
    /// # Errors
    /// [`Unfit`] if no receive can be used. All receives are then unchanged.
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

    /// Checks the limit of a shared queue. A receive was removed from the queue.
    #[inline]
    pub(crate) fn note_limit(&mut self, queue: &Arc<SharedReceives>) {
        if queue.falls_below_limit() {
            self.below_limit.push(Arc::clone(queue));
        }
    }

    /// Removes and returns a shared queue that holds fewer receives than its
    /// [limit](SharedReceives::arm_limit). The caller notifies the thread that armed the limit, and
    /// repeats this until it returns `None`.
    pub fn take_below_limit(&mut self) -> Option<Arc<SharedReceives>> {
        self.below_limit.pop()
    }

    /// Removes and returns a shared queue to which an ended connection returned receives while
    /// others wait for receives; see [`SharedReceives::next_ready`]. The caller repeats this until
    /// it returns `None`.
    pub fn take_refilled(&mut self) -> Option<Arc<SharedReceives>> {
        self.refilled.pop()
    }

    /// Returns whether [`Pools::take_refilled`] would return a queue.
    #[inline]
    pub const fn has_refilled(&self) -> bool {
        !self.refilled.is_empty()
    }

    /// Returns the number of answers to reads and atomics of peers that have begun so far.
    pub const fn answers_begun(&self) -> u64 {
        self.answers_begun
    }

    /// Checks whether a connection with `own` operations may post another.
    ///
    /// # Errors
    /// [`PostError::NoOperationLeft`] if it may not.
    pub const fn check_room(&self, own: u32) -> Result<(), PostError> {
        if self.grants_operation(own) { Ok(()) } else { Err(PostError::NoOperationLeft(own)) }
    }

    /// Returns the number of records in use, by kind. All are 0 while no operation is pending.
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
    /// Operations of peers of which some bytes have arrived, or that wait.
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

/// Finds the record of an operation by connection and operation number. The index exceeds its first
/// size only if the number of records grows.
#[derive(Debug)]
pub(crate) struct OperationIndex(HashMap<u64, u32, BuildHasherDefault<KeyMixer>>);

impl OperationIndex {
    fn new(capacity: u32) -> Self {
        // Reserve room for twice the records. Then removals never force the table to grow; the
        // table cleans itself in place.
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

/// Mixes a key of two small integers. This needs no secret: a peer can choose operation numbers
/// only within its window, so it cannot make many keys collide.
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
        // The multiplication by the golden ratio spreads low bits upwards. The fold brings high
        // bits down.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

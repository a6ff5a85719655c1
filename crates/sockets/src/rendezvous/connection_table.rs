//! The connection table: the groups, undecided connections, offers and streams of a process. Only
//! the thread that runs the engine uses the table.

mod groups;
mod joins;
mod streams;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event as EngineEvent};
use mem::MemoryAccess;
use runtime::Readiness;
use semantics::{CompletionQueue, Owner};

use crate::calls::connection::Connection;
use crate::migration::machine::Event;
use crate::migration::offer::Offer;
use crate::rendezvous::doorbell::DescriptorKey;
use crate::rendezvous::exchange::{Arrival, Exchange};
use crate::rendezvous::group::DeferredDeregistration;
use crate::rendezvous::groups::Groups;
use crate::rendezvous::round_robin::RoundRobin;
use crate::rendezvous::shares::COMPLETIONS;
use crate::rendezvous::stream_table::StreamTable;
use crate::transport::stream_doorbell::StreamDescriptor;
use crate::wire::{OfferToken, StreamEnd, StreamNumber};

/// The connection table of a process.
pub(crate) struct ConnectionTable {
    /// State shared with all threads of the process.
    exchange: Arc<Exchange>,
    groups: Groups,
    /// Undecided connections, by their tokens.
    undecided: HashMap<u64, Undecided>,
    /// For the token of each offer, the token of the connection for which the offer was made.
    offers: HashMap<OfferToken, u64>,
    streams: StreamTable,
    /// Due times of timers. If a timer was postponed, it also fires at its earlier time.
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// The completion queue of all groups.
    queue: Arc<CompletionQueue>,
    /// Groups and streams that have operations to post.
    round_robin: RoundRobin<ConnectionHandle, StreamNumber>,
    /// Scratch memory for the numbers of streams whose doorbells are marked.
    marked: Vec<StreamNumber>,
    /// Memory that must be deregistered after the lock of the engine is released.
    deferred: Vec<DeferredDeregistration>,
    /// True if an event has occurred for which threads may wait.
    has_changed: bool,
}

/// The object that a timer belongs to.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Timer {
    Undecided(u64),
    Stream(u32),
    /// A group, by the index and generation of its connection.
    Group(u32, u32),
}

/// A connection that is about to move.
struct Undecided {
    connection: Arc<Connection>,
    /// The socket that receives offers, on the connecting side.
    rendezvous_socket: Option<OwnedFd>,
    /// The offer that this side has made or taken.
    offer: Option<Offer>,
    /// The group to which the connection moves.
    group: Option<ConnectionHandle>,
    /// This side's end of the stream.
    stream: Option<StreamNumber>,
    /// The peer's end of the stream.
    peer: Option<StreamEnd>,
    /// The time of the connection's earliest pending entry in `timers`.
    timer: Instant,
}

/// The references and the time that methods of the connection table need in one run of the engine.
pub(crate) struct EngineTurn<'t, 'm> {
    pub(crate) engine: &'t mut Engine,
    pub(crate) memory: &'t MemoryAccess<'m>,
    pub(crate) now: Instant,
    pub(crate) exchange: &'t Exchange,
}

impl ConnectionTable {
    pub(crate) fn new(exchange: Arc<Exchange>) -> Self {
        Self {
            exchange,
            groups: Groups::default(),
            undecided: HashMap::new(),
            offers: HashMap::new(),
            streams: StreamTable::default(),
            timers: BinaryHeap::new(),
            queue: Arc::new(CompletionQueue::new(COMPLETIONS)),
            round_robin: RoundRobin::new(),
            marked: Vec::new(),
            deferred: Vec::new(),
            has_changed: false,
        }
    }

    /// Returns the time at which the caller must call [`ConnectionTable::on_due`].
    pub(crate) fn due(&self) -> Instant {
        self.timers.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due)
    }

    /// Handles the events that threads have queued.
    pub(crate) fn take_arrivals(&mut self, turn: &mut EngineTurn<'_, '_>) {
        for arrival in turn.exchange.take_arrivals() {
            self.has_changed = true;
            match arrival {
                Arrival::Joiner { connection, rendezvous_socket } => {
                    self.begin(turn, &connection, Some(rendezvous_socket), None);
                }
                Arrival::Offered { offer, connection } => {
                    self.begin(turn, &connection, None, Some(offer));
                }
                Arrival::Began { token } => self.step(turn, token, Event::Bytes),
                Arrival::Left { token } => self.settle_undecided(turn, token),
            }
        }
    }

    pub(crate) fn on_event(&mut self, turn: &mut EngineTurn<'_, '_>, event: EngineEvent) {
        self.has_changed = true;
        match event {
            EngineEvent::Requested { connection, peer, private_data, .. } => {
                self.accept_group(turn, connection, peer, &private_data);
            }
            EngineEvent::Established { connection, .. } => self.on_established(turn, connection),
            EngineEvent::Closed { connection, reason, .. } => {
                self.on_group_lost(turn, connection, reason);
            }
            _ => {}
        }
    }

    pub(crate) fn on_descriptor(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        key: DescriptorKey,
        ready: Readiness,
    ) {
        match key {
            DescriptorKey::RendezvousSocket(id) => self.on_rendezvous_socket(turn, id),
            DescriptorKey::Stream(number, which) => {
                self.has_changed = true;
                // Handle completions first. The peer sends End before it closes TCP, and the
                // completion of that End may be queued.
                self.take_completions(turn);
                let Some(entry) = self.streams.get(number) else { return };
                // This side has hung up the end of a broken stream, so readiness of that end does
                // not mean that the program has closed it.
                let was_whole = !entry.stream.state.is_broken();
                entry.stream.on_descriptor(which, ready);
                if was_whole && which == StreamDescriptor::End {
                    entry.connection.on_end_ready();
                }
                self.enqueue(number);
            }
        }
    }

    pub(crate) fn on_due(&mut self, turn: &mut EngineTurn<'_, '_>) {
        while let Some(Reverse((due, timer))) = self.timers.peek().copied() {
            if due > turn.now {
                break;
            }
            self.timers.pop();
            self.has_changed = true;
            match timer {
                Timer::Undecided(id) => self.on_undecided_due(turn, id),
                Timer::Stream(number) => self.on_stream_due(StreamNumber(number)),
                Timer::Group(index, life) => {
                    self.on_group_due(turn, ConnectionHandle::of(Owner::new(index, life)));
                }
            }
        }
    }

    /// Returns true if an event has occurred since the last [`ConnectionTable::take_changed`].
    pub(crate) const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// Returns the result of [`ConnectionTable::has_changed`], and clears it.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Removes and returns the memory that the caller must deregister after it has released the
    /// lock of the engine.
    pub(crate) fn take_deferred(&mut self) -> Vec<DeferredDeregistration> {
        std::mem::take(&mut self.deferred)
    }

    /// Returns all connections that have moved or may still move.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let numbers = self.streams.numbers().into_iter();
        let moving =
            numbers.filter_map(|number| self.streams.get(number)).map(|entry| &entry.connection);
        let undecided = self.undecided.values().map(|undecided| &undecided.connection);
        moving.chain(undecided).map(Arc::clone).collect()
    }
}

impl Undecided {
    /// Closes the rendezvous socket, if it is open.
    fn close_rendezvous_socket(&mut self, exchange: &Exchange) {
        let Some(rendezvous_socket) = self.rendezvous_socket.take() else { return };
        if let Some(runtime) = exchange.runtime() {
            runtime.unwatch_descriptor(rendezvous_socket.as_fd());
        }
    }
}

/// The service number of link groups: "SOCK".
pub(crate) const SERVICE: u32 = 0x534f_434b;

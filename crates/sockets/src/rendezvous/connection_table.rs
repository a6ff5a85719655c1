//! The connection table: groups, joiners, offers and streams of a process. Only the thread inside the engine works on it.

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

/// See above.
pub(crate) struct ConnectionTable {
    /// What threads share with it.
    exchange: Arc<Exchange>,
    groups: Groups,
    /// By the tokens of their connections.
    undecided: HashMap<u64, Undecided>,
    /// Tokens of connections, by those of the offers that were made of them.
    offers: HashMap<OfferToken, u64>,
    streams: StreamTable,
    /// When who wants to be told of the time. Who was told otherwise since is asked once more than needed.
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// Completions of all groups.
    queue: Arc<CompletionQueue>,
    /// Groups and their streams that are asked for what they have to post.
    round_robin: RoundRobin<ConnectionHandle, StreamNumber>,
    /// Numbers of streams on their way to `round_robin`.
    marked: Vec<StreamNumber>,
    deferred: Vec<DeferredDeregistration>,
    /// Something has come that threads may wait for.
    has_changed: bool,
}

/// Who wants to be told of the time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Timer {
    Undecided(u64),
    Stream(u32),
    /// A group, by the index and the life of its connection.
    Group(u32, u32),
}

/// A connection that is to move.
struct Undecided {
    connection: Arc<Connection>,
    /// Where the offer comes, at the side that connected.
    rendezvous_socket: Option<OwnedFd>,
    /// The offer that was made, or taken.
    offer: Option<Offer>,
    /// The group by which it moves.
    group: Option<ConnectionHandle>,
    /// Its end of the stream.
    stream: Option<StreamNumber>,
    /// The peer's.
    peer: Option<StreamEnd>,
    /// When it was last entered to be told of the time.
    timer: Instant,
}

/// A turn of the engine.
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

    /// When [`ConnectionTable::on_due`] is wanted.
    pub(crate) fn due(&self) -> Instant {
        self.timers.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due)
    }

    /// Takes in what threads have left.
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
                // The peer closes TCP after its end, which may be here unread.
                self.take_completions(turn);
                let Some(entry) = self.streams.get(number) else { return };
                // One that is broken was hung up by this side.
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

    /// Whether something has come, or a connection was decided, since this was taken.
    pub(crate) const fn has_changed(&self) -> bool {
        self.has_changed
    }

    /// As [`ConnectionTable::has_changed`], from now on.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// What is to be taken out of the table of regions outside of the engine.
    pub(crate) fn take_deferred(&mut self) -> Vec<DeferredDeregistration> {
        std::mem::take(&mut self.deferred)
    }

    /// All connections that have moved, or may.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let numbers = self.streams.numbers().into_iter();
        let moving =
            numbers.filter_map(|number| self.streams.get(number)).map(|entry| &entry.connection);
        let undecided = self.undecided.values().map(|undecided| &undecided.connection);
        moving.chain(undecided).map(Arc::clone).collect()
    }
}

impl Undecided {
    /// Closes the rendezvous socket.
    fn close_rendezvous_socket(&mut self, exchange: &Exchange) {
        let Some(rendezvous_socket) = self.rendezvous_socket.take() else { return };
        if let Some(runtime) = exchange.runtime() {
            runtime.unwatch_descriptor(rendezvous_socket.as_fd());
        }
    }
}

/// Which service of an endpoint the groups are: "SOCK".
pub(crate) const SERVICE: u32 = 0x534f_434b;

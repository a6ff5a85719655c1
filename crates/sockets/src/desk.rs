//! The desk: groups, joiners, offers and streams of a process, as those inside the engine work on them.

mod groups;
mod joins;
mod streams;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use delivery::Instant;
use engine::{ConnectionHandle, Engine, Event};
use mem::MemoryAccess;
use runtime::Readiness;
use semantics::{CompletionQueue, Owner};

use crate::bell::DescriptorKey;
use crate::connection::Connection;
use crate::endpoint::{Arrival, Endpoint};
use crate::group::Grave;
use crate::groups::Groups;
use crate::offer::{Offer, Offering};
use crate::shares::COMPLETIONS;
use crate::stream::StreamDescriptor;
use crate::table::StreamTable;
use crate::turns::Turns;
use crate::upgrade::Joining;
use crate::wire::{OfferToken, StreamNumber};

/// See above.
pub(crate) struct Desk {
    /// Whose desk it is.
    endpoint: Weak<Endpoint>,
    groups: Groups,
    /// By the tokens of their connections.
    joiners: HashMap<u64, Joiner>,
    offers: HashMap<OfferToken, Offered>,
    /// Offers by the tokens of their connections.
    offered: HashMap<u64, OfferToken>,
    streams: StreamTable,
    /// When who wants to be told of the time. Who was told otherwise since is asked once more than needed.
    timers: BinaryHeap<Reverse<(Instant, Timer)>>,
    /// Completions of all groups.
    queue: Arc<CompletionQueue>,
    /// Groups and their streams that are asked for what they have to post.
    turns: Turns<ConnectionHandle, StreamNumber>,
    /// Numbers of streams on their way to `turns`.
    marked: Vec<StreamNumber>,
    graves: Vec<Grave>,
    /// Something has come that threads may wait for.
    has_changed: bool,
}

/// Who wants to be told of the time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Timer {
    Joiner(u64),
    Offer(u64),
    Stream(u32),
    /// A group, by the index and the life of its connection.
    Group(u32, u32),
}

/// A connection of the side that connected, which is undecided.
struct Joiner {
    connection: Arc<Connection>,
    joining: Joining,
    door: Option<OwnedFd>,
    /// The group that it joins, and its stream, once it asks.
    group: Option<ConnectionHandle>,
    stream: Option<StreamNumber>,
}

/// A connection of the side that accepted, which is undecided.
struct Offered {
    connection: Arc<Connection>,
    offer: Offer,
    offering: Offering,
}

/// A turn of the engine.
pub(crate) struct Turn<'t, 'm> {
    pub(crate) engine: &'t mut Engine,
    pub(crate) memory: &'t MemoryAccess<'m>,
    pub(crate) now: Instant,
    pub(crate) endpoint: &'t Endpoint,
}

impl Desk {
    pub(crate) fn new(endpoint: Weak<Endpoint>) -> Self {
        Self {
            endpoint,
            groups: Groups::default(),
            joiners: HashMap::new(),
            offers: HashMap::new(),
            offered: HashMap::new(),
            streams: StreamTable::default(),
            timers: BinaryHeap::new(),
            queue: Arc::new(CompletionQueue::new(COMPLETIONS)),
            turns: Turns::new(),
            marked: Vec::new(),
            graves: Vec::new(),
            has_changed: false,
        }
    }

    /// When [`Desk::on_due`] is wanted.
    pub(crate) fn due(&self) -> Instant {
        self.timers.peek().map_or(Instant::NEVER, |Reverse((due, _))| *due)
    }

    /// Takes in what threads have left.
    pub(crate) fn take_arrivals(&mut self, turn: &mut Turn<'_, '_>) {
        for arrival in turn.endpoint.take_arrivals() {
            self.has_changed = true;
            match arrival {
                Arrival::Joiner { connection, door } => {
                    let id = connection.token();
                    let joining = Joining::new(turn.now);
                    self.timers.push(Reverse((joining.due(), Timer::Joiner(id))));
                    let (door, group, stream) = (Some(door), None, None);
                    let joiner = Joiner { connection, joining, door, group, stream };
                    self.joiners.insert(id, joiner);
                }
                Arrival::Offered { offer, connection } => {
                    let mut offering = Offering::new(turn.now);
                    // The first was sent by the thread that left it.
                    let _sent = offering.step(turn.now);
                    self.timers.push(Reverse((turn.now, Timer::Offer(offer.token.0))));
                    self.offered.insert(connection.token(), offer.token);
                    self.offers.insert(offer.token, Offered { connection, offer, offering });
                }
                Arrival::Began { token } => self.on_first_bytes(turn, token),
                Arrival::Left { token } => self.on_left(turn, token),
            }
        }
    }

    pub(crate) fn on_event(&mut self, turn: &mut Turn<'_, '_>, event: Event) {
        self.has_changed = true;
        match event {
            Event::Requested { connection, peer, private_data, .. } => {
                self.accept_group(turn, connection, peer, &private_data);
            }
            Event::Established { connection, .. } => self.on_established(turn, connection),
            Event::Closed { connection, reason, .. } => {
                self.on_group_lost(turn, connection, reason);
            }
            _ => {}
        }
    }

    pub(crate) fn on_descriptor(
        &mut self,
        turn: &mut Turn<'_, '_>,
        key: DescriptorKey,
        ready: Readiness,
    ) {
        match key {
            DescriptorKey::Door(id) => self.on_door(turn, id),
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

    pub(crate) fn on_due(&mut self, turn: &mut Turn<'_, '_>) {
        while let Some(Reverse((due, timer))) = self.timers.peek().copied() {
            if due > turn.now {
                break;
            }
            self.timers.pop();
            self.has_changed = true;
            match timer {
                Timer::Joiner(id) => self.on_joiner_due(turn, id),
                Timer::Offer(token) => self.on_offer_due(turn, OfferToken(token)),
                Timer::Stream(number) => self.on_stream_due(turn, StreamNumber(number)),
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

    /// As [`Desk::has_changed`], from now on.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// What is to be taken out of the table of regions outside of the engine.
    pub(crate) fn take_graves(&mut self) -> Vec<Grave> {
        std::mem::take(&mut self.graves)
    }

    /// All connections that have moved, or may.
    pub(crate) fn connections(&self) -> Vec<Arc<Connection>> {
        let numbers = self.streams.numbers().into_iter();
        let moving =
            numbers.filter_map(|number| self.streams.get(number)).map(|entry| &entry.connection);
        let joiners = self.joiners.values().map(|joiner| &joiner.connection);
        let offered = self.offers.values().map(|offered| &offered.connection);
        moving.chain(joiners).chain(offered).map(Arc::clone).collect()
    }
}

impl Joiner {
    /// Closes the door.
    fn close_door(&mut self, endpoint: &Endpoint) {
        let Some(door) = self.door.take() else { return };
        if let Some(runtime) = endpoint.runtime() {
            runtime.unwatch_descriptor(door.as_fd());
        }
    }
}

/// Which service of an endpoint the groups are: "SOCK".
pub(crate) const SERVICE: u32 = 0x534f_434b;

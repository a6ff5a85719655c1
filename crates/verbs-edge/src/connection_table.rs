//! Connects queue pairs with their peers and handles the events of their connections.
//!
//! All functions run inside the engine: they are called by the one thread that drives the protocol.
//! An "id" is an identifier of the connection manager (`rdma_cm_id`).

mod given;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delivery::{Instant, LinkId};
use engine::{Closed, ConnectRequest, ConnectionHandle, Engine, Event, Grants, Terms};
use mem::MemoryAccess;
use runtime::Rest;
use verbs::{
    AccessFlags, Ending, Log, LogLevel, QueuePair, QueuePairAttributes, QueuePairState,
    QueuePairType, Registry,
};
use wire_edge::{CloseReason, PeerAddr};

pub(super) use self::given::parts_of;
use self::given::{Given, Standing};
use super::greeting::{Greeting, QueuePairPlace, Refusal, SERVICE};
use super::meeting::{Expected, Judgement, Psns, RECEIVER_WAIT_NS, WAIT_NS};
use super::patience::{not_ready_ns, parting_ns, search_ns, silence_ns};
use super::source::{Due, QueuePairSource};
use super::work::Ends;

/// The queue pairs of a started device and their connections.
pub(crate) struct ConnectionTable {
    registry: Arc<Registry>,
    tables: Mutex<Tables>,
    /// Time at which [`ConnectionTable::look`] must run next.
    due: Arc<Due>,
    log: Log,
}

#[derive(Default)]
struct Tables {
    /// Queue pairs, by queue pair number.
    entries: HashMap<u32, QueuePairEntry>,
    /// Maps a connection that a queue pair has requested or accepted to the number of the queue
    /// pair.
    connections: HashMap<ConnectionHandle, u32>,
    /// Requests of peers that a queue pair may accept later, oldest first.
    held: Vec<PendingRequest>,
    /// Queue pairs whose receives wait for room in the engine.
    again: Vec<Arc<QueuePairSource>>,
}

/// A queue pair, and the state of its connection.
struct QueuePairEntry {
    source: Arc<QueuePairSource>,
    phase: Phase,
    /// Number of searches for a peer that queue pairs with this queue pair number have begun.
    life: u32,
}

enum Phase {
    /// The queue pair is not looking for a peer.
    Open,
    /// The queue pair is looking for its peer.
    Seeking(Search),
    /// The queue pair takes over a connection that an id has requested or accepted.
    Given(Given),
    /// The queue pair is connected. If `has_id` is true, the queue pair has taken over the
    /// connection of an id.
    Connected { ends: Ends, greeting: Greeting, wanted: Wanted, has_id: bool },
    /// The peer has closed the connection. Outstanding work fails at `until` and not earlier,
    /// because a network adapter also needs some time to notice that the peer is gone.
    Parting { until: Instant },
    /// The connection has ended.
    Ended,
}

/// The peer that a queue pair searches for, and the route to the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) expected: Expected,
    /// The link, and the address to which this end sends requests. `None` if there is no route to
    /// the peer.
    pub(crate) path: Option<(LinkId, PeerAddr)>,
}

struct Search {
    wanted: Wanted,
    /// Time at which this end sends the next request.
    ask_at: Instant,
    /// Number of requests that this search has sent.
    tries: u32,
    /// Whether the peer has rejected the last request.
    is_refused: bool,
    /// The connection that this end has requested, if any.
    asked: Option<Side>,
    /// The connection that the peer has requested and this end has accepted, if any.
    accepted: Option<Side>,
}

/// A connection that may become the connection of a queue pair.
struct Side {
    handle: ConnectionHandle,
    /// The peer's greeting; `None` until it arrives.
    greeting: Option<Greeting>,
    is_established: bool,
}

/// A request of a peer that this end has not answered yet.
struct PendingRequest {
    handle: ConnectionHandle,
    from: PeerAddr,
    greeting: Greeting,
}

/// Action for [`ConnectionTable::finish`]. The caller must release the lock of the tables before it
/// calls that function.
pub(crate) enum Then {
    Nothing,
    /// The queue pair is connected: post its receives, and send its waiting work.
    Pull(Arc<QueuePairSource>),
    /// The connection has ended: notify the queue pair.
    Notify(Arc<QueuePairSource>, Ending),
}

impl ConnectionTable {
    pub(crate) fn new(registry: &Arc<Registry>, log: Log) -> Self {
        let due = Arc::new(Due::new());
        Self { registry: Arc::clone(registry), tables: Mutex::default(), due, log }
    }

    /// Adds a new queue pair.
    pub(crate) fn enter(&self, source: &Arc<QueuePairSource>) {
        let entry = QueuePairEntry { source: Arc::clone(source), phase: Phase::Open, life: 0 };
        self.tables().entries.insert(source.queue_pair().number(), entry);
    }

    /// Removes a queue pair that is about to be destroyed.
    pub(crate) fn leave(&self, engine: &mut Engine, now: Instant, number: u32) {
        let left = {
            let mut tables = self.tables();
            tables.abandon(engine, now, number);
            let unwanted = |held: &PendingRequest| held.greeting.destination.number == number;
            tables.refuse_held(engine, Refusal::UnknownNumber, unwanted);
            tables.entries.remove(&number)
        };
        // Dropping the entry may also drop the queue pair, so the lock must be released before.
        drop(left);
    }

    /// Starts to look for a queue pair's peer.
    pub(crate) fn seek(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        number: u32,
        wanted: Wanted,
    ) {
        let then = {
            let mut tables = self.tables();
            tables.abandon(engine, now, number);
            let Some(entry) = tables.entries.get_mut(&number) else { return };
            entry.life = entry.life.wrapping_add(1);
            let Expected { send_psn, .. } = wanted.expected;
            let wait_ns = match (wanted.expected.asks_first(), send_psn) {
                (true, Some(_)) => 0,
                (true, None) => RECEIVER_WAIT_NS,
                (false, _) => WAIT_NS,
            };
            let ask_at = now.after_ns(wait_ns);
            let peer = wanted.expected.peer;
            let (peer, gid) = (peer.number, peer.gid.address());
            let what = format_args!("queue pair {number:#x} looks for {peer:#x} at {gid}");
            self.log.note(LogLevel::Debug, what);
            entry.phase = Phase::Seeking(Search::new(wanted, ask_at));
            entry.source.set_refused(false);
            self.go_on(&mut tables, engine, now, number)
        };
        self.finish(engine, memory, now, then);
    }

    /// Applies attributes that the program has changed: those that requests announce to the peer,
    /// and the timeouts.
    pub(crate) fn update(&self, engine: &mut Engine, now: Instant, number: u32) {
        let mut tables = self.tables();
        let Tables { entries, connections, .. } = &mut *tables;
        let Some(entry) = entries.get_mut(&number) else { return };
        let attributes = entry.source.queue_pair().attributes();
        let is_sending = entry.source.queue_pair().state() == QueuePairState::ReadyToSend;
        let send_psn = is_sending.then_some(attributes.send_psn);
        match &mut entry.phase {
            Phase::Seeking(search) => {
                let was_unknown = search.wanted.expected.send_psn.is_none();
                search.wanted.expected.send_psn = send_psn;
                if was_unknown && send_psn.is_some() {
                    search.ask_with_psn(connections, engine, now);
                }
            }
            Phase::Connected { ends, greeting, wanted, .. } => {
                wanted.expected.send_psn = send_psn;
                if wanted.expected.psns(greeting) == Psns::Differ {
                    let wanted = *wanted;
                    tables.abandon(engine, now, number);
                    return self.seek_again(&mut tables, now, number, wanted);
                }
                be_patient(engine, *ends, entry.source.queue_pair(), greeting);
            }
            Phase::Open | Phase::Given(_) | Phase::Parting { .. } | Phase::Ended => {}
        }
        // Run the timers soon, because waiting work may fail earlier with the new timeouts.
        self.look_soon(now);
    }

    /// Closes all connections of a queue pair.
    pub(crate) fn close(&self, engine: &mut Engine, now: Instant, number: u32) {
        self.tables().abandon(engine, now, number);
    }

    /// Calls `visit` for each queue pair, with its peer and its connections if it has any.
    pub(crate) fn visit(
        &self,
        mut visit: impl FnMut(&QueuePair, Option<QueuePairPlace>, Option<Ends>),
    ) {
        for entry in self.tables().entries.values() {
            let (peer, ends) = match &entry.phase {
                Phase::Seeking(search) => (Some(search.wanted.expected.peer), None),
                Phase::Given(given) => (given.peer(), None),
                Phase::Connected { ends, wanted, .. } => (Some(wanted.expected.peer), Some(*ends)),
                Phase::Open | Phase::Parting { .. } | Phase::Ended => (None, None),
            };
            visit(entry.source.queue_pair(), peer, ends);
        }
    }

    /// Returns whether work waits for a peer that may soon be connected.
    pub(crate) fn awaits_peers(&self, now: Instant) -> bool {
        self.tables().entries.values().any(|entry| entry.source.awaits_peer(now))
    }

    /// Returns the time of the next [`ConnectionTable::look`].
    pub(crate) const fn due(&self) -> &Arc<Due> {
        &self.due
    }

    /// Returns the registry of completion owners.
    pub(crate) const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Requests a call of [`ConnectionTable::look`] in this pass of the engine or the next.
    pub(crate) fn look_soon(&self, now: Instant) {
        self.look_at(now);
    }

    fn look_at(&self, at: Instant) {
        self.due.ask(at);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts another search for the peer, because the established connection leads to another
    /// queue pair than the expected peer.
    fn seek_again(&self, tables: &mut Tables, now: Instant, number: u32, wanted: Wanted) {
        let Some(entry) = tables.entries.get_mut(&number) else { return };
        let ask_at = now.after_ns(pause_ns(0));
        entry.phase = Phase::Seeking(Search { is_refused: true, ..Search::new(wanted, ask_at) });
        self.look_at(ask_at);
    }

    //= protocol.md: verbs.2, verbs.6
    /// Accepts a held request from the peer of a searching queue pair. If no request can be
    /// accepted and it is time to send a request, sends one.
    fn go_on(&self, tables: &mut Tables, engine: &mut Engine, now: Instant, number: u32) -> Then {
        let Tables { entries, connections, held, .. } = tables;
        let Some(entry) = entries.get_mut(&number) else { return Then::Nothing };
        let life = entry.life;
        let Phase::Seeking(search) = &mut entry.phase else { return Then::Nothing };
        let source = &entry.source;
        // Only the latest request of a peer counts. If this end has accepted an earlier request of
        // the peer, but that connection is not established, the latest request replaces the earlier
        // one.
        {
            let asks = search.asked.is_some();
            let mut refused = Vec::new();
            let expected = &search.wanted.expected;
            let mut judge = |(position, held): (usize, &PendingRequest)| {
                if held.greeting.destination.number != number {
                    return None;
                }
                match expected.judge(&held.greeting, ip_of(held.from), asks) {
                    Judgement::Accept => Some(position),
                    Judgement::Hold => None,
                    Judgement::Refuse(refusal) => {
                        refused.push((held.handle, refusal));
                        None
                    }
                }
            };
            let accepted = held.iter().enumerate().rev().find_map(&mut judge);
            let accepted = accepted.map(|position| held.remove(position));
            for (handle, refusal) in refused {
                held.retain(|held| held.handle != handle);
                let _gone = engine.reject(handle, &refusal.encode());
            }
            if let Some(request) = accepted {
                if let Some(before) = search.accepted.take() {
                    connections.remove(&before.handle);
                    self.registry.disown(&[before.handle.owner()]);
                    let _gone = engine.close(now, before.handle, &[]);
                }
                self.accept(engine, now, source, search, &request, life);
                let accepted = search.accepted.as_ref();
                connections.extend(accepted.map(|side| (side.handle, number)));
            }
        }
        if search.asked.is_none() && (search.accepted.is_none() || search.asks_beside()) {
            if search.ask_at > now {
                self.look_at(search.ask_at);
                return Then::Nothing;
            }
            self.ask(engine, now, source, search, life);
            connections.extend(search.asked.as_ref().map(|side| (side.handle, number)));
        }
        Then::Nothing
    }

    //= protocol.md: verbs.4
    /// Accepts a request of the peer. This end's own request stays pending, because the peer may
    /// have abandoned its request and may accept this end's request instead.
    fn accept(
        &self,
        engine: &mut Engine,
        now: Instant,
        source: &Arc<QueuePairSource>,
        search: &mut Search,
        request: &PendingRequest,
        life: u32,
    ) {
        let queue_pair = source.queue_pair();
        let attributes = queue_pair.attributes();
        let reply = greeting(&search.wanted.expected, &attributes, life);
        let terms = terms(queue_pair, &attributes, CONFIRM_NS);
        let handle = request.handle;
        self.registry.own(handle.owner(), queue_pair);
        let (domain, queues) = (source.domain(), queue_pair.queues());
        let accepted = engine.accept_under(now, handle, domain, queues, &terms, &reply.encode());
        if accepted.is_err() {
            // The peer has withdrawn the request. A peer that still wants a connection sends
            // another request.
            return self.registry.disown(&[handle.owner()]);
        }
        let greeting = Some(request.greeting);
        search.accepted = Some(Side { handle, greeting, is_established: false });
        search.is_refused = false;
        source.set_refused(false);
        if !search.wanted.expected.is_own_peer() {
            search.ask_at = search.ask_at.max(now.after_ns(SEARCH_NS));
        }
    }

    /// Sends a request to the peer.
    fn ask(
        &self,
        engine: &mut Engine,
        now: Instant,
        source: &Arc<QueuePairSource>,
        search: &mut Search,
        life: u32,
    ) {
        search.tries += 1;
        search.ask_at = now.after_ns(pause_ns(search.tries));
        let Some(path) = search.wanted.path else { return self.look_at(search.ask_at) };
        let queue_pair = source.queue_pair();
        let attributes = queue_pair.attributes();
        let greeting = greeting(&search.wanted.expected, &attributes, life);
        let request = ConnectRequest {
            paths: vec![path],
            service: SERVICE,
            private_data: greeting.encode().to_vec(),
            domain: source.domain(),
            queues: queue_pair.queues(),
            terms: terms(queue_pair, &attributes, attempt_ns(search.tries)),
        };
        match engine.connect(now, request) {
            Ok(handle) => {
                search.asked = Some(Side { handle, greeting: None, is_established: false });
            }
            // Try again at `ask_at`. Before that time, a link may become usable, or another
            // connection may end and make room.
            Err(_) => self.look_at(search.ask_at),
        }
    }

    /// Handles an event of the engine.
    pub(crate) fn on_event(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        event: &Event,
    ) {
        let then = match event {
            Event::Requested { connection, service: SERVICE, peer, queue_pair, private_data } => {
                let request = (*connection, *queue_pair);
                self.on_requested(engine, now, request, *peer, private_data)
            }
            Event::Established { connection, private_data } => {
                self.on_established(engine, now, *connection, private_data)
            }
            Event::Closed { connection, reason, .. } => {
                self.on_closed(engine, now, *connection, *reason)
            }
            _ => Then::Nothing,
        };
        self.finish(engine, memory, now, then);
    }

    //= protocol.md: verbs.3, verbs.5, verbs.6
    /// Handles a request from the address `from`. `wants_queue_pair` is true if the request asks
    /// for a connection between queue pairs.
    fn on_requested(
        &self,
        engine: &mut Engine,
        now: Instant,
        (handle, wants_queue_pair): (ConnectionHandle, bool),
        from: PeerAddr,
        private_data: &[u8],
    ) -> Then {
        let refuse = |engine: &mut Engine, refusal: Refusal| {
            let _gone = engine.reject(handle, &refusal.encode());
            Then::Nothing
        };
        let Some(greeting) = Greeting::decode(private_data) else {
            return refuse(engine, Refusal::NotUnderstood);
        };
        if !wants_queue_pair {
            return refuse(engine, Refusal::Another);
        }
        let number = greeting.destination.number;
        let (source, gid) = (greeting.source.number, greeting.source.gid.address());
        let what = format_args!(
            "queue pair {number:#x} gets a request from {source:#x} at {gid} ({from})"
        );
        self.log.note(LogLevel::Debug, what);
        let mut tables = self.tables();
        if !tables.entries.contains_key(&number) {
            return refuse(engine, Refusal::UnknownNumber);
        }
        // This request replaces earlier requests of the same queue pair.
        tables.refuse_held(engine, Refusal::Another, |held| held.is_repeated_by(&greeting, from));
        tables.held.push(PendingRequest { handle, from, greeting });
        let then = self.go_on(&mut tables, engine, now, number);
        let is_for_it = |held: &&PendingRequest| held.greeting.destination.number == number;
        if tables.held.iter().filter(is_for_it).count() > HELD_MAX {
            // Reject the oldest request to make room. If the request came from the right peer, that
            // peer repeats it, and `go_on` decides about the repeated request.
            let oldest = tables.held.iter().find(is_for_it).map(|held| held.handle);
            tables.refuse_held(engine, Refusal::TooMany, |held| Some(held.handle) == oldest);
        }
        then
    }

    /// Handles an established connection.
    fn on_established(
        &self,
        engine: &mut Engine,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) -> Then {
        let mut tables = self.tables();
        let Tables { entries, connections, .. } = &mut *tables;
        let Some(&number) = connections.get(&handle) else { return Then::Nothing };
        let Some(entry) = entries.get_mut(&number) else { return Then::Nothing };
        let Phase::Seeking(search) = &mut entry.phase else {
            return entry.on_given_established(engine);
        };
        if let Some(asked) = search.asked.as_mut().filter(|asked| asked.handle == handle) {
            asked.greeting = Greeting::decode(private_data);
        }
        let sides = [&mut search.asked, &mut search.accepted];
        let Some(side) = sides.into_iter().flatten().find(|side| side.handle == handle) else {
            return Then::Nothing;
        };
        side.is_established = true;
        let wanted = search.wanted;
        let info = engine.info(handle).filter(|info| info.queue_pair);
        let peer = info.and_then(|info| info.paths.first().map(|path| path.peer));
        let is_confirmed = |said: &Greeting| wanted.expected.confirms(said, peer.and_then(ip_of));
        let Some((greeting, peer)) = side.greeting.filter(is_confirmed).zip(peer) else {
            tables.abandon(engine, now, number);
            self.seek_again(&mut tables, now, number, wanted);
            return Then::Nothing;
        };
        // A queue pair that is its own peer has two connections, and one of them may be established
        // long before the other. The established connection still has the short timeouts of an
        // attempt to connect, so set its normal timeouts now.
        let alone = Ends { sends: handle, receives: handle };
        be_patient(engine, alone, entry.source.queue_pair(), &greeting);
        let Some(ends) = search.ends() else { return Then::Nothing };
        let what = format_args!(
            "queue pair {number:#x} is connected to {:#x} at {peer}",
            greeting.source.number
        );
        self.log.note(LogLevel::Info, what);
        let source = Arc::clone(&entry.source);
        if search.asked.as_ref().is_some_and(|asked| asked.handle == ends.sends) {
            // Register the owner of this connection's completions now. This is early enough,
            // because no completion can have arrived before. The accepting end registers the owner
            // already when it accepts, because messages for shared receives may arrive at once.
            self.registry.own(ends.sends.owner(), source.queue_pair());
        }
        for other in search.beside(ends) {
            connections.remove(&other);
            self.registry.disown(&[other.owner()]);
            let _gone = engine.close(now, other, &[]);
        }
        entry.phase = Phase::Connected { ends, greeting, wanted, has_id: false };
        source.set_ends(ends);
        // The program may have changed its timeouts since the search began.
        be_patient(engine, ends, source.queue_pair(), &greeting);
        // Reject other requests of the peer, because the connection is now established.
        tables.refuse_held(engine, Refusal::Another, |held| held.is_repeated_by(&greeting, peer));
        Then::Pull(source)
    }

    /// Handles the end of a connection, or the failure of an attempt to establish one.
    fn on_closed(
        &self,
        engine: &mut Engine,
        now: Instant,
        handle: ConnectionHandle,
        reason: Closed,
    ) -> Then {
        let mut tables = self.tables();
        tables.held.retain(|held| held.handle != handle);
        let Some(number) = tables.connections.remove(&handle) else { return Then::Nothing };
        let Some(entry) = tables.entries.get_mut(&number) else { return Then::Nothing };
        let source = Arc::clone(&entry.source);
        match &mut entry.phase {
            Phase::Seeking(search) => {
                let is_it = |side: &mut Side| side.handle == handle;
                let was_asked = search.asked.take_if(is_it).is_some();
                let was_accepted = search.accepted.take_if(is_it).is_some();
                if was_asked && search.accepted.is_none() {
                    search.is_refused = matches!(reason, Closed::Rejected(_) | Closed::Refused(_));
                    source.set_refused(search.is_refused);
                }
                let what = format_args!("queue pair {number:#x} is not connected: {reason}");
                self.log.note(LogLevel::Debug, what);
                if was_accepted {
                    self.registry.disown(&[handle.owner()]);
                }
                if was_asked || was_accepted {
                    search.ask_at = now.after_ns(search.pause_ns(reason));
                }
                self.go_on(&mut tables, engine, now, number)
            }
            Phase::Given(given) => match given.standing() {
                Standing::Asked => {
                    // The connection manager repeats the request, or notifies the id of the
                    // failure.
                    entry.phase = Phase::Open;
                    Then::Nothing
                }
                Standing::Accepted => {
                    entry.phase = Phase::Ended;
                    source.clear_ends(true);
                    Then::Notify(source, Ending::Unreachable)
                }
                Standing::Established(ends) => {
                    let ending = ending_of(reason, true);
                    self.part(&mut tables, engine, now, (number, ends), (handle, reason, ending))
                }
            },
            Phase::Connected { ends, has_id, .. } => {
                let (ends, ending) = (*ends, ending_of(reason, *has_id));
                self.part(&mut tables, engine, now, (number, ends), (handle, reason, ending))
            }
            Phase::Open | Phase::Parting { .. } | Phase::Ended => Then::Nothing,
        }
    }

    /// Handles the end of a connection of a connected queue pair. If the queue pair has a second
    /// connection, closes the second connection too.
    fn part(
        &self,
        tables: &mut Tables,
        engine: &mut Engine,
        now: Instant,
        (number, ends): (u32, Ends),
        (handle, reason, ending): (ConnectionHandle, Closed, Ending),
    ) -> Then {
        let what = format_args!("the connection of queue pair {number:#x} has ended: {reason}");
        self.log.note(LogLevel::Info, what);
        let Some(entry) = tables.entries.get_mut(&number) else { return Then::Nothing };
        let source = Arc::clone(&entry.source);
        let others = [ends.sends, ends.receives];
        let is_parting = ending == Ending::ByPeer;
        let until = now.after_ns(parting_ns(&source.queue_pair().attributes()));
        entry.phase = if is_parting { Phase::Parting { until } } else { Phase::Ended };
        for other in others.into_iter().filter(|other| *other != handle) {
            tables.connections.remove(&other);
            let _gone = engine.close(now, other, &[]);
        }
        source.clear_ends(!is_parting);
        source.set_refused(true);
        if is_parting {
            self.look_at(until);
            return Then::Nothing;
        }
        Then::Notify(source, ending)
    }

    /// Returns the action that pulls waiting work, because a connection has room again.
    pub(crate) fn on_room(&self, handle: ConnectionHandle) -> Then {
        let tables = self.tables();
        let entry = tables.connections.get(&handle).and_then(|number| tables.entries.get(number));
        entry.map_or(Then::Nothing, |entry| Then::Pull(Arc::clone(&entry.source)))
    }

    /// Runs the timers: repeats requests, ends searches that have taken too long, and schedules the
    /// next run.
    pub(crate) fn look(&self, engine: &mut Engine, memory: &MemoryAccess<'_>, now: Instant) {
        self.due.clear();
        let again = std::mem::take(&mut self.tables().again);
        for source in again {
            self.finish(engine, memory, now, Then::Pull(source));
        }
        let numbers: Vec<u32> = {
            let tables = self.tables();
            let waiting = tables.entries.iter().filter(|(_, entry)| entry.is_waiting());
            waiting.map(|(number, _)| *number).collect()
        };
        for number in numbers {
            let then = {
                let mut tables = self.tables();
                match self.give_up(&mut tables, engine, now, number) {
                    Then::Nothing => self.go_on(&mut tables, engine, now, number),
                    then => then,
                }
            };
            self.finish(engine, memory, now, then);
        }
    }

    //= protocol.md: verbs.7
    /// Handles the timeouts of a queue pair:
    ///
    /// * If its work has waited too long for its peer, ends the search for the peer.
    /// * If its peer has closed the connection and the time `until` of `Phase::Parting` has
    ///   passed, reports the end of the connection.
    fn give_up(&self, tables: &mut Tables, engine: &mut Engine, now: Instant, number: u32) -> Then {
        let Some(entry) = tables.entries.get_mut(&number) else { return Then::Nothing };
        let source = Arc::clone(&entry.source);
        if let Phase::Parting { until } = entry.phase {
            if until > now {
                self.look_at(until);
                return Then::Nothing;
            }
            entry.phase = Phase::Ended;
            source.clear_ends(true);
            return Then::Notify(source, Ending::ByPeer);
        }
        if matches!(entry.phase, Phase::Seeking(_)) {
            source.note_waiting(now);
        }
        let (Phase::Seeking(search), Some(since)) = (&entry.phase, source.waits_since()) else {
            return Then::Nothing;
        };
        let attributes = source.queue_pair().attributes();
        let until = since.after_ns(search_ns(
            source.queue_pair().service(),
            &attributes,
            search.is_refused,
        ));
        if until > now {
            self.look_at(until);
            return Then::Nothing;
        }
        let peer = search.wanted.expected.peer;
        let (peer, gid) = (peer.number, peer.gid.address());
        let what = format_args!(
            "queue pair {number:#x} has work for {peer:#x} at {gid}, which was not found: check \
             that its program runs, and that it has the number and the first packet number of this \
             queue pair"
        );
        self.log.note(LogLevel::Warn, what);
        tables.abandon(engine, now, number);
        if let Some(entry) = tables.entries.get_mut(&number) {
            entry.phase = Phase::Ended;
        }
        source.clear_ends(true);
        Then::Notify(source, Ending::Unreachable)
    }

    /// Performs an action for which the lock of the tables must be released.
    pub(crate) fn finish(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        then: Then,
    ) {
        match then {
            Then::Nothing => {}
            Then::Notify(source, ending) => source.queue_pair().on_ended(ending),
            Then::Pull(source) => {
                // There may be many receives, so pull until all of them are posted. This loop is
                // not needed for sends, because the engine pulls waiting sends in this pass anyway.
                let rest = loop {
                    match source.pull(engine, memory, now, PULLED_AT_ONCE).rest {
                        Rest::More => {}
                        rest => break rest,
                    }
                };
                if rest == Rest::Blocked {
                    self.tables().again.push(source);
                    self.look_at(now.after_ns(ROOM_NS));
                }
            }
        }
    }
}

impl Tables {
    /// Closes all connections of a queue pair and ends its search for a peer.
    fn abandon(&mut self, engine: &mut Engine, now: Instant, number: u32) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        entry.source.clear_ends(false);
        let handles: Vec<ConnectionHandle> = match &entry.phase {
            Phase::Open | Phase::Parting { .. } | Phase::Ended => Vec::new(),
            Phase::Seeking(Search { asked, accepted, .. }) => {
                [asked, accepted].into_iter().flatten().map(|side| side.handle).collect()
            }
            Phase::Given(given) => vec![given.handle()],
            Phase::Connected { ends, .. } if ends.sends == ends.receives => vec![ends.sends],
            Phase::Connected { ends, .. } => vec![ends.sends, ends.receives],
        };
        entry.phase = Phase::Open;
        for handle in handles {
            self.connections.remove(&handle);
            // This fails if the connection has already ended.
            let _gone = engine.close(now, handle, &[]);
        }
    }

    /// Rejects the held requests for which `is_meant` returns true.
    fn refuse_held(
        &mut self,
        engine: &mut Engine,
        refusal: Refusal,
        is_refused: impl Fn(&PendingRequest) -> bool,
    ) {
        self.held.retain(|held| {
            let is_refused = is_refused(held);
            if is_refused {
                let _gone = engine.reject(held.handle, &refusal.encode());
            }
            !is_refused
        });
    }
}

impl QueuePairEntry {
    /// Returns whether a timer runs for this entry.
    const fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Seeking(_) | Phase::Parting { .. })
    }
}

impl Search {
    const fn new(wanted: Wanted, ask_at: Instant) -> Self {
        Self { wanted, ask_at, tries: 0, is_refused: false, asked: None, accepted: None }
    }

    /// Prepares a new request that contains the number of this end's first packet, because this
    /// number has become known. An earlier request without the number is withdrawn, because the
    /// peer cannot decide about it.
    fn ask_with_psn(
        &mut self,
        connections: &mut HashMap<ConnectionHandle, u32>,
        engine: &mut Engine,
        now: Instant,
    ) {
        let asked = self.asked.take_if(|asked| !asked.is_established);
        if let Some(asked) = &asked {
            connections.remove(&asked.handle);
            let _gone = engine.close(now, asked.handle, &[]);
        }
        if asked.is_some() || self.wanted.expected.asks_first() {
            self.ask_at = now;
        }
    }

    /// Returns whether this end continues to send requests after it has accepted a request of the
    /// peer.
    ///
    /// A queue pair that is its own peer needs two connections: one that it has requested and one
    /// that it has accepted.
    ///
    /// Otherwise, if two requests cross, one of the ends decides which of them counts. If the peer
    /// is the end that decides, it may have abandoned the request that this end has accepted. The
    /// accepted request then leads to no connection. But the peer has no pending request of its
    /// own, so it accepts another request of this end.
    fn asks_beside(&self) -> bool {
        self.wanted.expected.is_own_peer() || !self.wanted.expected.decides()
    }

    /// Returns the pause before the next request, in nanoseconds. The caller knows that the latest
    /// attempt to connect has failed. The pause is longer if the peer has rejected this end's
    /// request and this end has accepted a request of the peer, because that request probably
    /// succeeds.
    fn pause_ns(&self, reason: Closed) -> u64 {
        let has_other = self.accepted.is_some() && !self.wanted.expected.is_own_peer();
        match reason {
            Closed::Rejected(_) if has_other => SEARCH_NS,
            _ => pause_ns(self.tries),
        }
    }

    /// Returns the connections of this search other than those in `ends`.
    fn beside(&self, ends: Ends) -> impl Iterator<Item = ConnectionHandle> + use<> {
        let sides = [&self.asked, &self.accepted].map(|side| side.as_ref().map(|side| side.handle));
        sides.into_iter().flatten().filter(move |&side| side != ends.sends && side != ends.receives)
    }

    /// Returns the connections that the queue pair needs. Returns `None` if one of them is not
    /// established.
    fn ends(&self) -> Option<Ends> {
        let there = |side: &Option<Side>| {
            side.as_ref().filter(|side| side.is_established).map(|side| side.handle)
        };
        let (asked, accepted) = (there(&self.asked), there(&self.accepted));
        if self.wanted.expected.is_own_peer() {
            let (sends, receives) = asked.zip(accepted)?;
            return Some(Ends { sends, receives });
        }
        asked.or(accepted).map(|both| Ends { sends: both, receives: both })
    }
}

impl PendingRequest {
    /// Returns whether a later request of the same queue pair replaces this request. Queue pairs of
    /// different hosts can have the same number, so the source addresses are compared too.
    fn is_repeated_by(&self, later: &Greeting, from: PeerAddr) -> bool {
        ip_of(self.from) == ip_of(from)
            && self.greeting.destination.number == later.destination.number
            && self.greeting.source.number == later.source.number
    }
}

/// Returns the IP address of a peer. Returns `None` if the peer's address is not an IP address.
pub(super) fn ip_of(peer: PeerAddr) -> Option<IpAddr> {
    peer.to_socket().map(|peer| peer.ip().to_canonical())
}

/// Returns the greeting that this end sends to the peer.
fn greeting(expected: &Expected, attributes: &QueuePairAttributes, life: u32) -> Greeting {
    Greeting {
        kind: expected.kind,
        not_ready_timer: attributes.not_ready_timer & 31,
        life,
        destination: expected.peer,
        source: expected.own,
        receive_psn: expected.receive_psn,
        send_psn: expected.send_psn,
    }
}

/// Returns the terms of a queue pair's connection. They do not contain the timeouts that the
/// program has set, because these are known only in RTS. [`be_patient`] sets the timeouts later.
fn terms(queue_pair: &QueuePair, attributes: &QueuePairAttributes, silence_ns: u64) -> Terms {
    let receives = queue_pair.limits().receives.max(1);
    Terms::default()
        .queue_pair(true)
        .grants(
            Grants::default()
                .read_depth(Some(attributes.peer_reads_max.into()))
                .receives(Some(receives))
                .silence_ns(Some(silence_ns))
                .rights(Some(AccessFlags(attributes.access).rights())),
        )
        .shared_receives(queue_pair.shared_receives().cloned())
        .not_ready_ns(None)
}

/// Gives an established connection the timeouts that the program has set.
fn be_patient(engine: &mut Engine, ends: Ends, queue_pair: &QueuePair, peer: &Greeting) {
    let (attributes, strictness) = (queue_pair.attributes(), queue_pair.strictness());
    let not_ready_ns = match peer.kind {
        // On an unreliable connection, a program gets no error if the peer has no receive posted.
        // Therefore the work waits without limit.
        QueuePairType::Unreliable => None,
        _ => not_ready_ns(&attributes, peer.not_ready_timer, strictness),
    };
    for handle in [ends.sends, ends.receives] {
        // This fails if the connection has just ended.
        let silence_ns = silence_ns(peer.kind, &attributes, strictness);
        let _gone = engine.set_patience(handle, silence_ns, not_ready_ns);
    }
}

/// Returns the `Ending` that is reported to a queue pair if its connection closes for `reason`.
///
/// If the queue pair has an id, a rejection by the peer or a restart of the peer counts as a close
/// by the peer. In this case, the program gets an event of the id at once, and usually ends the
/// queue pair's outstanding work in response. Therefore this module lets that work fail only after
/// a delay, as a network adapter does.
const fn ending_of(reason: Closed, has_id: bool) -> Ending {
    match reason {
        Closed::Refused(_) | Closed::PeerRestarted if has_id => Ending::ByPeer,
        Closed::ByPeer | Closed::Here => Ending::ByPeer,
        Closed::PeerMisbehaved(reason) => match reason {
            CloseReason::UnknownKey | CloseReason::OutOfRange | CloseReason::RightMissing => {
                Ending::AccessRefused
            }
            // The message was too long for its receive. The receive completes with this error.
            CloseReason::MessageTooLong | CloseReason::LocalMemoryGone => Ending::OperationFailed,
            _ => Ending::PeerMisbehaved,
        },
        Closed::PeerRefused(_) | Closed::LocalMemory | Closed::OperationFailed => {
            Ending::OperationFailed
        }
        Closed::Overrun => Ending::Overrun,
        _ => Ending::Unreachable,
    }
}

/// Returns the time for which attempt number `tries` waits for an answer, in nanoseconds. Later
/// attempts wait longer, because a busy host may need more time than the first attempts allow.
fn attempt_ns(tries: u32) -> u64 {
    SEARCH_NS << tries.saturating_sub(1).min(2)
}

/// Returns the pause before the next request, in nanoseconds, after `tries` requests that the peer
/// has rejected or not answered.
fn pause_ns(tries: u32) -> u64 {
    (RETRY_NS << tries.min(5)).min(RETRY_NS_MAX)
}

/// First pause between requests, in nanoseconds. The pause doubles with each request.
const RETRY_NS: u64 = 10_000_000;
/// Maximum pause between requests, in nanoseconds.
const RETRY_NS_MAX: u64 = 200_000_000;

/// Time for which the first attempt waits for an answer, in nanoseconds. During an attempt, this
/// end repeats its frame with growing pauses. The next attempt starts with short pauses again.
const SEARCH_NS: u64 = 2_000_000_000;

/// Time in which an accepted peer must confirm the connection, in nanoseconds.
///
/// If this end closed a connection that the peer considers established, the peer's work would fail.
/// Therefore the time is long enough for a busy host. A new request of the peer does not have to
/// wait: it replaces the accepted request.
const CONFIRM_NS: u64 = 10_000_000_000;

/// Time after which this library tries again to post receives for which the engine had no room, in
/// nanoseconds.
const ROOM_NS: u64 = 1_000_000;

/// Maximum number of held requests for one queue pair. Such requests come from its peer, and from
/// queue pairs that were its peer before or will be its peer later.
const HELD_MAX: usize = 16;

/// Maximum number of work requests that one call pulls when a queue pair is connected.
const PULLED_AT_ONCE: u32 = 1024;

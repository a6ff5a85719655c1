//! The connection manager. An id (`rdma_cm_id`) sends its request in the Hello of a connection.
//! This connection stays open while the ids are connected, so that each end notices if its peer is
//! gone. If both ids have their queue pairs when they connect, the queue pairs take over the
//! connection. Otherwise the connection only carries the messages between the ids.
//!
//! Each listening port is a redirect port: it redirects requesters to the slot (UDP port) of the
//! process (protocol.md §10.3).

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ::work::{CompletionQueue, Queues};
use delivery::{Instant, LinkId};
use engine::{Closed, ConnectRequest, ConnectionHandle, Engine, Event, Grants, Terms};
use link::UdpError;
use mem::{MemoryAccess, ProtectionDomain};
use nix::errno::Errno;
use rdma_cm::{
    Caller, End, Exchange, Listener, Listening, Over, PortSpace, Refusal, Reply, Request, Route,
};
use runtime::AuxiliaryError;
use verbs::{Error, Gid, QueuePair, QueuePairType};
use wire_edge::{Moved, PeerAddr};

use super::connection_table::{ConnectionTable, Wanted, ip_of, parts_of};
use super::failure::forked;
use super::instance::Instance;
use super::outcome::{NO_SUCH_SERVICE, NOT_UNDERSTOOD, Outcome, Phase, outcome_of};
use super::source::QueuePairSource;

/// The service of connection requests.
pub(super) const SERVICE: u32 = 0x5244_434d;

/// State of the connection manager: listeners, and exchanges of requests and answers.
pub(crate) struct Manager {
    table: Arc<ConnectionTable>,
    home: OnceLock<Weak<Instance>>,
    tables: Mutex<Tables>,
    /// Connections whose exchange was dropped inside the engine. Code inside the engine cannot call
    /// the engine, so a timer closes them.
    dropped: Mutex<Vec<ConnectionHandle>>,
    /// Number of listeners of each redirect port, which redirects requesters to the slot.
    redirect_ports: Mutex<HashMap<SocketAddr, usize>>,
    /// Time at which [`Manager::on_due`] must run next, in nanoseconds.
    due_ns: AtomicU64,
    /// Completion queues of connections that carry no operations.
    queues: Queues,
}

type Callers = Vec<Arc<dyn Caller>>;

/// The work source of a queue pair that takes over a connection, and the expected peer.
type Taken = (Arc<QueuePairSource>, Wanted);

#[derive(Default)]
struct Tables {
    listeners: Vec<Listens>,
    /// Number of listeners created so far.
    count: u64,
    entries: HashMap<ConnectionHandle, ManagedEntry>,
    /// Requests to repeat, each with the time of the repetition.
    again: Vec<(Instant, ManagedEntry)>,
    /// Ids to notify when no frame of their connection is in flight any more. Each entry has the
    /// time of the notification.
    quiet: VecDeque<(Instant, Arc<dyn Caller>)>,
}

struct Listens {
    key: u64,
    ip: IpAddr,
    port: u16,
    space: PortSpace,
    listener: Arc<dyn Listener>,
}

struct ManagedEntry {
    caller: Arc<dyn Caller>,
    phase: Phase,
    /// Service of the request.
    service: QueuePairType,
    /// This end's request; `None` if the peer has answered it, or if the peer is the requester.
    question: Option<Box<Question>>,
    /// Parameters of the peer's queue pair, if the peer is the requester.
    peer: Option<End>,
    /// True if a queue pair takes over the connection, or has already taken it over.
    is_given: bool,
    /// Whether the id has requested the end of the connection.
    wants_end: bool,
}

/// A request of this end, stored because this end may have to repeat the request.
struct Question {
    path: (LinkId, PeerAddr),
    request: Request,
    /// The queue pair that takes over the connection if the peer agrees.
    queue_pair: Option<Arc<QueuePair>>,
    tries: u32,
    /// The id's reference to the connection.
    name: Name,
}

/// The connection of an exchange. `None` while the request waits to be repeated.
type Name = Arc<Mutex<Option<ConnectionHandle>>>;

impl Manager {
    pub(super) fn new(table: &Arc<ConnectionTable>) -> Arc<Self> {
        Arc::new(Self {
            table: Arc::clone(table),
            home: OnceLock::new(),
            tables: Mutex::default(),
            dropped: Mutex::default(),
            redirect_ports: Mutex::default(),
            due_ns: AtomicU64::new(u64::MAX),
            queues: Queues::from(Arc::new(CompletionQueue::new(1))),
        })
    }

    /// Sets the instance through which the manager reaches the engine.
    pub(super) fn settle(&self, home: &Arc<Instance>) {
        self.home.get_or_init(|| Arc::downgrade(home));
    }

    /// Handles an event of an exchange.
    pub(super) fn on_event(
        self: &Arc<Self>,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        event: &Event,
    ) {
        let _inside = Inside::enter();
        match event {
            Event::Requested { connection, service: SERVICE, peer, queue_pair, private_data } => {
                self.on_requested(engine, (*connection, *queue_pair), *peer, private_data);
            }
            Event::Established { connection, private_data } => {
                self.on_established(engine, memory, now, *connection, private_data);
            }
            Event::Closed { connection, reason, private_data } => {
                self.on_closed(now, *connection, *reason, private_data);
            }
            _ => {}
        }
    }

    pub(super) fn due(&self) -> Instant {
        Instant(self.due_ns.load(Ordering::Relaxed))
    }

    /// Runs the timers: ends requests that got no answer, and closes dropped exchanges.
    pub(super) fn on_due(&self, engine: &mut Engine, now: Instant) {
        if self.due() > now {
            return;
        }
        let _inside = Inside::enter();
        self.due_ns.store(u64::MAX, Ordering::Relaxed);
        for handle in std::mem::take(&mut *lock(&self.dropped)) {
            self.end(engine, now, handle, &[]);
        }
        self.ask_again(engine, now);
        let (given_up, quiet) = self.take_due(engine, now);
        for caller in given_up {
            caller.on_over(Over::Unreachable);
        }
        for caller in quiet {
            caller.on_quiet();
        }
    }

    /// Removes and returns two lists of ids: those whose requests got no answer in time, and those
    /// with a connection of which no frame is in flight any more. Schedules the next run of the
    /// timers.
    fn take_due(&self, engine: &mut Engine, now: Instant) -> (Callers, Callers) {
        let mut tables = self.tables();
        let is_late =
            |entry: &ManagedEntry| matches!(entry.phase, Phase::Asked(until) if until <= now);
        let late: Vec<ConnectionHandle> = tables
            .entries
            .iter()
            .filter(|(_, entry)| is_late(entry))
            .map(|(handle, _)| *handle)
            .collect();
        let mut given_up = Vec::new();
        for handle in late {
            let _gone = engine.close(now, handle, &[]);
            given_up.extend(tables.entries.remove(&handle).map(|entry| entry.caller));
        }
        let mut quiet = Vec::new();
        while tables.quiet.front().is_some_and(|(at, _)| *at <= now) {
            quiet.extend(tables.quiet.pop_front().map(|(_, caller)| caller));
        }
        let next = tables.entries.values().filter_map(|entry| match entry.phase {
            Phase::Asked(until) => Some(until),
            _ => None,
        });
        let again = tables.again.iter().map(|(at, _)| *at);
        let next = next.chain(again).chain(tables.quiet.front().map(|(at, _)| *at)).min();
        if let Some(next) = next {
            self.look_at(next);
        }
        (given_up, quiet)
    }

    //= protocol.md: cm.2, cm.3, cm.6
    fn on_requested(
        self: &Arc<Self>,
        engine: &mut Engine,
        (handle, wants_queue_pair): (ConnectionHandle, bool),
        from: PeerAddr,
        private_data: &[u8],
    ) {
        let request = Request::decode(private_data)
            .filter(|request| wants_queue_pair || !request.end.takes_over);
        let located = request.and_then(|mut request| {
            request.end.gid = Gid::of(ip_of(from)?);
            Some(request)
        });
        let refused = match located {
            None => Refusal::of(NOT_UNDERSTOOD),
            Some(request) => match self.listener(&request) {
                None => Refusal::of(NO_SUCH_SERVICE),
                Some(listener) => match self.pass_on(&listener, request, handle) {
                    Ok(()) => return,
                    Err(refusal) => refusal,
                },
            },
        };
        let _gone = engine.reject(handle, &refused.encode());
    }

    fn listener(&self, request: &Request) -> Option<Arc<dyn Listener>> {
        let to = request.to.address();
        let is_meant = |listens: &&Listens| {
            let is_there = listens.ip.is_unspecified()
                || listens.ip == to
                || (listens.ip.is_loopback() && to.is_loopback());
            is_there && listens.port == request.port && listens.space == request.space
        };
        let tables = self.tables();
        tables.listeners.iter().find(is_meant).map(|listens| Arc::clone(&listens.listener))
    }

    fn pass_on(
        self: &Arc<Self>,
        listener: &Arc<dyn Listener>,
        request: Request,
        handle: ConnectionHandle,
    ) -> Result<(), Refusal> {
        let (peer, service) = (request.end, request.end.service);
        let name: Name = Arc::new(Mutex::new(Some(handle)));
        let call = Arc::new(Call::new(self, name));
        let exchange: Arc<dyn Exchange> = Arc::clone(&call) as Arc<dyn Exchange>;
        match listener.on_request(request, exchange) {
            Ok(caller) => {
                let peer = Some(peer);
                let entry =
                    ManagedEntry { peer, ..ManagedEntry::new(caller, Phase::Requested, service) };
                self.tables().entries.insert(handle, entry);
                Ok(())
            }
            Err(refusal) => {
                call.has_ended.store(true, Ordering::Relaxed);
                Err(refusal)
            }
        }
    }

    //= protocol.md: cm.5, cm.6
    fn on_established(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) {
        let (caller, question, service, is_given) = {
            let mut tables = self.tables();
            let Some(entry) = tables.entries.get_mut(&handle) else { return };
            entry.phase = Phase::Connected;
            let question = entry.question.take();
            (Arc::clone(&entry.caller), question, entry.service, entry.is_given)
        };
        let Some(question) = question else { return caller.on_established() };
        let is_alike = |reply: &Reply| reply.end.service == question.request.end.service;
        let info = engine.info(handle);
        let is_queue_pair = info.as_ref().is_some_and(|info| info.queue_pair);
        let from = info.and_then(|info| ip_of(info.paths.first()?.peer));
        let mut reply = Reply::decode(private_data).filter(is_alike).and_then(|mut reply| {
            reply.end.gid = Gid::of(from?);
            reply.end.takes_over &= is_given;
            Some(reply).filter(|reply| is_queue_pair || !reply.end.takes_over)
        });
        if let Some(Reply { end, .. }) = &mut reply {
            let takes_over = end.takes_over;
            if is_given && !takes_over {
                self.table.take_back(handle);
                self.change(handle, |entry| entry.is_given = false);
            } else if is_given && !self.table.meet(engine, memory, now, handle, end) {
                // The queue pair no longer exists.
                reply = None;
            }
        }
        if service == QueuePairType::Datagram || reply.is_none() {
            // An exchange for datagrams always ends with the answer.
            self.end(engine, now, handle, &[]);
        }
        match reply {
            Some(reply) => caller.on_accepted(reply),
            None => caller.on_over(Over::of_refusal(Refusal::of(NOT_UNDERSTOOD), service)),
        }
    }

    fn on_closed(
        &self,
        now: Instant,
        handle: ConnectionHandle,
        reason: Closed,
        private_data: &[u8],
    ) {
        let mut entry = {
            let mut tables = self.tables();
            let Some(entry) = tables.entries.get_mut(&handle) else { return };
            if reason == Closed::Here && entry.is_kept() {
                entry.phase = Phase::Severed;
                return;
            }
            let Some(entry) = tables.entries.remove(&handle) else { return };
            entry
        };
        let outcome = outcome_of(entry.phase, reason, private_data);
        if let (Some(question), Outcome::Refused(Refusal { reason: NO_SUCH_SERVICE, .. })) =
            (&mut entry.question, &outcome)
            && question.tries < TRIES_MAX
        {
            question.tries += 1;
            *lock(&question.name) = None;
            let at = now.after_ns(AGAIN_NS);
            self.tables().again.push((at, entry));
            return self.look_at(at);
        }
        let over = outcome.over(entry.service);
        self.report_end(now, &entry, over);
    }

    fn report_end(&self, now: Instant, entry: &ManagedEntry, over: Over) {
        if matches!(entry.phase, Phase::Connected | Phase::Severed) {
            let at = now.after_ns(QUIET_NS);
            self.tables().quiet.push_back((at, Arc::clone(&entry.caller)));
            self.look_at(at);
        }
        entry.caller.on_over(over);
    }

    /// Closes a connection and notifies its id.
    fn close(&self, engine: &mut Engine, now: Instant, handle: ConnectionHandle) {
        let severed = {
            let mut tables = self.tables();
            let is_severed =
                tables.entries.get(&handle).is_some_and(|entry| entry.phase == Phase::Severed);
            is_severed.then(|| tables.entries.remove(&handle)).flatten()
        };
        match severed {
            Some(entry) => self.report_end(now, &entry, Over::Disconnected),
            None => {
                // This fails if the connection has already ended.
                let _gone = engine.close(now, handle, &[]);
            }
        }
    }

    /// Records that the id wants the connection to end. Returns whether the connection is still
    /// open and the caller must close it.
    fn wants_end(&self, handle: ConnectionHandle) -> bool {
        let known = self.change(handle, |entry| {
            entry.wants_end = true;
            (entry.is_given, entry.phase == Phase::Severed)
        });
        match known {
            None => false,
            // A queue pair that no longer has the connection has already closed it.
            Some((is_given, is_severed)) => is_severed || !is_given || self.table.has(handle),
        }
    }

    fn change<R>(
        &self,
        handle: ConnectionHandle,
        change: impl Fn(&mut ManagedEntry) -> R,
    ) -> Option<R> {
        self.tables().entries.get_mut(&handle).map(change)
    }

    /// Closes a connection and removes its entry.
    fn end(
        &self,
        engine: &mut Engine,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) {
        let forgotten = self.tables().entries.remove(&handle);
        drop(forgotten);
        // This fails if the connection has already ended.
        let _gone = engine.close(now, handle, private_data);
    }

    //= protocol.md: cm.4
    /// Repeats requests to ports at which no id was listening.
    fn ask_again(&self, engine: &mut Engine, now: Instant) {
        let due: Vec<ManagedEntry> = {
            let mut tables = self.tables();
            let (due, later) = tables.again.drain(..).partition(|(at, _)| *at <= now);
            let due: Vec<_> = due;
            tables.again = later;
            due.into_iter().map(|(_, entry)| entry).collect()
        };
        for entry in due {
            let caller = Arc::clone(&entry.caller);
            if self.ask(engine, now, entry).is_err() {
                caller.on_over(Over::Unreachable);
            }
        }
    }

    /// Sends the request of an entry.
    fn ask(&self, engine: &mut Engine, now: Instant, entry: ManagedEntry) -> Result<(), Error> {
        let mut entry = entry;
        let Some(question) = &mut entry.question else { return Ok(()) };
        let source = question.queue_pair.as_ref().and_then(|pair| self.table.lend(pair));
        entry.is_given = source.is_some();
        question.request.end.takes_over = source.is_some();
        let (domain, queues, terms) = match &source {
            Some(source) => parts_of(source, question.request.end.responder_resources, SILENCE_NS),
            None => (ProtectionDomain::NONE, self.queues.clone(), terms()),
        };
        let asked = ConnectRequest {
            paths: vec![question.path],
            service: SERVICE,
            private_data: question.request.encode(),
            domain,
            queues,
            terms,
        };
        let handle = engine.connect(now, asked).map_err(|error| {
            let number = Errno::ENETUNREACH as i32;
            Error::System { what: error.to_string(), number }
        })?;
        if let Some(source) = &source {
            self.table.give(handle, source);
        }
        *lock(&question.name) = Some(handle);
        if let Phase::Asked(until) = entry.phase {
            self.look_at(until);
        }
        self.tables().entries.insert(handle, entry);
        Ok(())
    }

    /// Removes a request that waits to be repeated.
    fn forget(&self, name: &Name) {
        let is_it = |entry: &ManagedEntry| {
            entry.question.as_ref().is_some_and(|question| Arc::ptr_eq(&question.name, name))
        };
        let mut tables = self.tables();
        let place = tables.again.iter().position(|(_, entry)| is_it(entry));
        let forgotten = place.map(|place| tables.again.swap_remove(place));
        drop(tables);
        drop(forgotten);
    }

    //= protocol.md: cm.5
    fn accept(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        handle: ConnectionHandle,
        reply: &[u8],
        taken: Option<&Taken>,
    ) -> Result<(), Error> {
        if let Some((source, wanted)) = taken {
            let peer = self.change(handle, |entry| entry.peer).flatten();
            let gone = || Error::Invalid("the request was withdrawn".into());
            let asked = (&peer.ok_or_else(gone)?, reply);
            self.table.accept_given(engine, memory, now, handle, (source, *wanted), asked)?;
        } else {
            let (domain, queues) = (ProtectionDomain::NONE, self.queues.clone());
            engine
                .accept_under(now, handle, domain, queues, &terms(), reply)
                .map_err(|error| Error::Invalid(error.to_string()))?;
        }
        self.change(handle, |entry| {
            entry.phase = Phase::Accepted;
            entry.is_given = taken.is_some();
        });
        Ok(())
    }

    fn look_at(&self, at: Instant) {
        self.due_ns.fetch_min(at.0, Ordering::Relaxed);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }

    fn home(&self) -> Result<Arc<Instance>, Error> {
        let home = self.home.get().and_then(Weak::upgrade);
        home.ok_or_else(|| Error::NoDevice("the device is closed".into()))
    }

    /// Opens redirect ports, which redirect requesters from a listening port to the device's slot.
    /// At loopback addresses, only the first device of a process opens them.
    fn open_redirect_ports(
        &self,
        home: &Instance,
        at: SocketAddr,
        is_first: bool,
    ) -> Result<Vec<SocketAddr>, Error> {
        let links = home.runtime().link_addresses().map_err(forked)?;
        let links: Vec<SocketAddr> =
            links.iter().filter_map(|(_, address)| address.to_socket()).collect();
        let mut opened = Vec::new();
        for ip in redirect_ips(at.ip(), &links, is_first) {
            let redirect_port = SocketAddr::new(ip, at.port());
            let open = self.open_redirect_port(home, redirect_port, &links);
            if let Err(error) = open {
                self.close_redirect_ports(home, &opened);
                return Err(error);
            }
            opened.push(redirect_port);
        }
        Ok(opened)
    }

    fn open_redirect_port(
        &self,
        home: &Instance,
        redirect_port: SocketAddr,
        links: &[SocketAddr],
    ) -> Result<(), Error> {
        let mut redirect_ports = lock(&self.redirect_ports);
        if let Some(count) = redirect_ports.get_mut(&redirect_port) {
            *count += 1;
            return Ok(());
        }
        let Some(there) = moved_to(redirect_port.ip(), links) else {
            return Err(Error::System {
                what: format!("no link has an address of the family of {redirect_port}"),
                number: Errno::EADDRNOTAVAIL as i32,
            });
        };
        let moved = Moved { address: PeerAddr::from(there), service: SERVICE };
        home.runtime()
            .open_redirect_port(redirect_port, vec![(SERVICE, moved)])
            .map_err(redirect_error)?;
        redirect_ports.insert(redirect_port, 1);
        Ok(())
    }

    fn close_redirect_ports(&self, home: &Instance, opened: &[SocketAddr]) {
        let mut redirect_ports = lock(&self.redirect_ports);
        for redirect_port in opened {
            let Some(count) = redirect_ports.get_mut(redirect_port) else { continue };
            *count -= 1;
            if *count == 0 {
                redirect_ports.remove(redirect_port);
                // Ignore the error, because no redirect port is open in a forked child.
                let _forked = home.runtime().close_redirect_port(*redirect_port);
            }
        }
    }
}

impl ManagedEntry {
    const fn new(caller: Arc<dyn Caller>, phase: Phase, service: QueuePairType) -> Self {
        let (question, peer, is_given, wants_end) = (None, None, false, false);
        Self { caller, phase, service, question, peer, is_given, wants_end }
    }

    /// Returns whether the entry must stay after its queue pair has closed the connection. Programs
    /// first flush the queue pair's work, then disconnect the id, and then wait for the event of
    /// the disconnection. This event requires the entry.
    fn is_kept(&self) -> bool {
        self.is_given && !self.wants_end && self.phase == Phase::Connected
    }
}

impl Manager {
    /// Listens at `at` for the device of `home`. `is_first` is true for the first device of the
    /// process.
    pub(super) fn listen_at(
        self: &Arc<Self>,
        (home, is_first): (&Instance, bool),
        at: SocketAddr,
        space: PortSpace,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error> {
        let redirect_ports = self.open_redirect_ports(home, at, is_first)?;
        let mut tables = self.tables();
        tables.count += 1;
        let key = tables.count;
        let (ip, port) = (at.ip().to_canonical(), at.port());
        tables.listeners.push(Listens { key, ip, port, space, listener });
        Ok(Box::new(Port { manager: Arc::clone(self), key, redirect_ports }))
    }

    /// Sends a connection request for the device of `home`.
    pub(super) fn connect_to(
        self: &Arc<Self>,
        home: &Instance,
        route: Route,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error> {
        let to = route.to;
        let Some(link) = home.ways().link_from(route.gid.address(), to.ip()) else {
            return Err(Error::System {
                what: format!("no link reaches {to}"),
                number: Errno::ENETUNREACH as i32,
            });
        };
        let path = (link, PeerAddr::from(to));
        let manager = Arc::clone(self);
        let name: Name = Arc::default();
        let service = request.end.service;
        let (request, queue_pair) = (request.clone(), queue_pair.cloned());
        let question = Question { path, request, queue_pair, tries: 1, name: Arc::clone(&name) };
        let ask = move |engine: &mut Engine, _: &MemoryAccess<'_>, now: Instant| {
            let phase = Phase::Asked(now.after_ns(ANSWER_NS));
            let question = Some(Box::new(question));
            manager.ask(
                engine,
                now,
                ManagedEntry { question, ..ManagedEntry::new(caller, phase, service) },
            )
        };
        home.runtime().control(ask).map_err(forked)??;
        Ok(Arc::new(Call::new(self, name)))
    }
}

/// A port at which an id listens.
struct Port {
    manager: Arc<Manager>,
    key: u64,
    redirect_ports: Vec<SocketAddr>,
}

impl Listening for Port {}

impl Drop for Port {
    fn drop(&mut self) {
        let left = {
            let mut tables = self.manager.tables();
            let place = tables.listeners.iter().position(|listens| listens.key == self.key);
            place.map(|place| tables.listeners.swap_remove(place))
        };
        drop(left);
        if let Ok(home) = self.manager.home() {
            self.manager.close_redirect_ports(&home, &self.redirect_ports);
        }
    }
}

/// The handle by which an id refers to its exchange.
struct Call {
    manager: Weak<Manager>,
    name: Name,
    /// Whether the request was rejected when it arrived.
    has_ended: AtomicBool,
}

impl Call {
    fn new(manager: &Arc<Manager>, name: Name) -> Self {
        Self { manager: Arc::downgrade(manager), name, has_ended: AtomicBool::new(false) }
    }

    /// Returns the connection manager and its instance. Returns an error in a forked child, because
    /// another thread of the parent may have held the lock of the tables during the fork.
    fn manager(&self) -> Result<(Arc<Manager>, Arc<Instance>), Error> {
        let gone = || Error::NoDevice("the device is closed".into());
        let manager = self.manager.upgrade().ok_or_else(gone)?;
        let home = manager.home()?;
        home.check()?;
        Ok((manager, home))
    }

    /// Returns the work source of a queue pair that takes over the connection, and the expected
    /// peer.
    fn taken(&self, queue_pair: &Arc<QueuePair>) -> Result<Taken, Error> {
        let (manager, home) = self.manager()?;
        let not_free = || {
            Error::Invalid(
                "the queue pair is already connected, or belongs to another device".into(),
            )
        };
        let source = manager.table.lend(queue_pair).ok_or_else(not_free)?;
        let wanted = home.wanted(&source)?;
        Ok((source, wanted))
    }

    /// If the exchange has a connection, calls `work` inside the engine.
    fn inside<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Manager, &mut Engine, &MemoryAccess<'_>, Instant, ConnectionHandle) -> R
        + Send
        + 'static,
    ) -> Result<Option<R>, Error> {
        let (manager, home) = self.manager()?;
        let name = Arc::clone(&self.name);
        let work = move |engine: &mut Engine, memory: &MemoryAccess<'_>, now| {
            let _inside = Inside::enter();
            let handle = *lock(&name);
            handle.map(|handle| work(&manager, engine, memory, now, handle))
        };
        home.runtime().control(work).map_err(forked)
    }
}

impl Exchange for Call {
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error> {
        let taken = queue_pair.map(|queue_pair| self.taken(queue_pair)).transpose()?;
        let reply = reply.encode();
        let accept = self.inside(move |manager, engine, memory, now, handle| {
            manager.accept(engine, memory, now, handle, &reply, taken.as_ref())
        })?;
        accept.unwrap_or_else(|| Err(Error::Invalid("the request was withdrawn".into())))
    }

    fn take_over(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error> {
        let (manager, home) = self.manager()?;
        let Some(source) = manager.table.source(queue_pair) else { return Ok(()) };
        let wanted = home.wanted(&source)?;
        self.inside(move |manager, engine, memory, now, handle| {
            manager.table.take_over(engine, memory, now, handle, wanted);
        })
        .map(|_| ())
    }

    fn reject(&self, refusal: &Refusal) -> Result<(), Error> {
        let bytes = refusal.encode();
        self.inside(move |manager, engine, _, now, handle| {
            let was = manager.tables().entries.get(&handle).map(|entry| entry.phase);
            if was == Some(Phase::Requested) {
                let forgotten = manager.tables().entries.remove(&handle);
                drop(forgotten);
                // This fails if the peer has withdrawn the request.
                let _gone = engine.reject(handle, &bytes);
            } else {
                manager.end(engine, now, handle, &bytes);
            }
        })
        .map(|_| ())
    }

    fn close(&self) {
        // Return in a forked child, which has nothing to close.
        let Ok((manager, _)) = self.manager() else { return };
        let handle = *lock(&self.name);
        if handle.is_none_or(|handle| manager.wants_end(handle)) {
            // The manager notifies the id when the connection has ended.
            let _gone =
                self.inside(|manager, engine, _, now, handle| manager.close(engine, now, handle));
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        if Inside::is_here() {
            // Code inside the engine cannot call the engine. The next run of the timers closes the
            // connection.
            let handle = *lock(&self.name);
            if let (Some(manager), Some(handle)) = (self.manager.upgrade(), handle) {
                lock(&manager.dropped).push(handle);
                manager.look_at(Instant(0));
            }
            return;
        }
        let Ok((manager, home)) = self.manager() else { return };
        let name = Arc::clone(&self.name);
        // Do this inside the engine, because otherwise a timer could repeat the request meanwhile.
        let forget = move |engine: &mut Engine, _: &MemoryAccess<'_>, now| {
            let _inside = Inside::enter();
            manager.forget(&name);
            let handle = *lock(&name);
            if let Some(handle) = handle {
                manager.end(engine, now, handle, &[]);
            }
        };
        let _forked = home.runtime().control(forget);
    }
}

/// Marks the current thread as inside the engine until the value is dropped.
struct Inside(bool);

impl Inside {
    fn enter() -> Self {
        Self(IS_INSIDE.replace(true))
    }

    fn is_here() -> bool {
        IS_INSIDE.get()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(self.0);
    }
}

thread_local! {
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Returns the terms of an exchange's connection. The connection carries no operations. Its timeout
/// is short, so that each end soon notices if its peer is gone.
fn terms() -> Terms {
    let grants = Grants::default().silence_ns(Some(SILENCE_NS)).receives(Some(1));
    Terms::default().queue_pair(true).grants(grants)
}

/// Returns the addresses at which requesters to a listening address are redirected. An unspecified
/// address stands for the addresses of all links, and on the first device also for the loopback
/// addresses.
fn redirect_ips(at: IpAddr, links: &[SocketAddr], is_first: bool) -> Vec<IpAddr> {
    if !at.is_unspecified() {
        return vec![at];
    }
    let mut ips: Vec<IpAddr> = links.iter().map(SocketAddr::ip).collect();
    for own in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let has_family = ips.iter().any(|ip| ip.is_ipv4() == own.is_ipv4());
        if is_first && has_family && !ips.contains(&own) {
            ips.push(own);
        }
    }
    ips.retain(|ip| at.is_ipv6() || ip.is_ipv4());
    ips
}

/// Returns the address to which a redirect port redirects: the slot's UDP port at the same IP
/// address. If no link has that IP address, returns the address of another link, if there is one.
fn moved_to(redirect_port: IpAddr, links: &[SocketAddr]) -> Option<SocketAddr> {
    let alike = || links.iter().filter(|link| link.is_ipv4() == redirect_port.is_ipv4());
    if let Some(same) = alike().find(|link| link.ip() == redirect_port) {
        let none: IpAddr = match redirect_port {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        return Some(SocketAddr::new(none, same.port()));
    }
    alike().next().copied()
}

fn redirect_error(error: AuxiliaryError) -> Error {
    let number = match &error {
        AuxiliaryError::Socket(UdpError::AddressInUse { .. }) => Errno::EADDRINUSE,
        AuxiliaryError::Socket(UdpError::NoSuchAddress { .. }) => Errno::EADDRNOTAVAIL,
        AuxiliaryError::Socket(UdpError::NoPermission { .. }) => Errno::EACCES,
        AuxiliaryError::Socket(UdpError::NoDescriptor { .. }) => Errno::EMFILE,
        AuxiliaryError::NoneLeft => return Error::NoRoom(error.to_string()),
        _ => return Error::of_cause(error),
    };
    Error::System { what: error.to_string(), number: number as i32 }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time for which the peer of a request or of a connection may be silent, in nanoseconds.
const SILENCE_NS: u64 = 10_000_000_000;

/// Time in which a program must answer a request that its host has received, in nanoseconds.
const ANSWER_NS: u64 = 60_000_000_000;

/// Number of requests to a port at which no id listens, and the pause between them in nanoseconds.
/// Some programs connect twice to one port, and their servers reopen the listener in between. With
/// other libraries, address resolution takes long enough for this.
const TRIES_MAX: u32 = 5;
const AGAIN_NS: u64 = 30_000_000;

/// Time after the end of a connection in which its frames may still be in flight, in nanoseconds.
const QUIET_NS: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn sockets(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_wildcard_port_has_a_redirect_port_at_each_address_and_at_loopback() {
        let links = sockets(&["10.0.0.1:61440", "[fd00::1]:61440"]);
        let ips = |at: &str| -> Vec<String> {
            redirect_ips(at.parse().unwrap(), &links, true)
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        assert_eq!(ips("0.0.0.0"), ["10.0.0.1", "127.0.0.1"]);
        assert_eq!(ips("::"), ["10.0.0.1", "fd00::1", "127.0.0.1", "::1"]);
        assert_eq!(ips("10.0.0.1"), ["10.0.0.1"]);
        // The second device of a process opens no loopback addresses, because the first device has
        // them.
        assert_eq!(redirect_ips("0.0.0.0".parse().unwrap(), &links, false).len(), 1);
    }

    #[test]
    fn a_request_at_an_address_without_a_link_is_redirected_to_one_that_has_a_link() {
        let links = sockets(&["10.0.0.1:61440"]);
        let there = |redirect_port: &str| {
            moved_to(redirect_port.parse().unwrap(), &links).map(|to| to.to_string())
        };
        assert_eq!(there("10.0.0.1"), Some("0.0.0.0:61440".into()));
        assert_eq!(there("127.0.0.1"), Some("10.0.0.1:61440".into()));
        assert_eq!(there("::1"), None);
    }
}

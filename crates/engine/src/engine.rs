//! The endpoint: the calls that applications and runtimes use.

use std::sync::Arc;

use delivery::{EndpointCounters, Instant, LinkCaps, LinkEvent, LinkId, SentPool, SettingError};
use mem::{MemoryAccess, ProtectionDomain};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use semantics::{
    Carried, CompletionQueue, Inbound, Operation, OperationError, Outbound, PieceList, PoolUse,
    Pools, PostError, PostingRoom, Queues, Receive, SharedReceives, StatusTable,
};
use wire_edge::{CloseReason, Epoch, LinkIndex, OperationNumber, PRIVATE_BYTES_MAX, PeerAddr};

use crate::agenda::Agenda;
use crate::attempt::Attempt;
use crate::config::EngineConfig;
use crate::connection::Connection;
use crate::datagrams::{Around, Datagrams};
use crate::event::{Closed, ConnectError, ConnectionHandle, ConnectionInfo, Event, Unknown};
use crate::links::{EngineLinkError, Links};
use crate::names::Names;
use crate::news::News;
use crate::parts::Parts;
use crate::path::Path;
use crate::peer_names::PeerNames;
use crate::phase::Phase;
use crate::questions::Questions;
use crate::reception::Reception;
use crate::refusals::Report;
use crate::replies::Replies;
use crate::scratch::Scratch;
use crate::table::ConnectionTable;
use crate::terms::{OwnTerms, Terms};
use crate::watch::Watch;

/// Protocol state of one endpoint: all its connections and links.
///
/// The engine does no I/O and reads no clock. All calls of a turn get the same value of `now`. The
/// crate's documentation describes the order of calls.
#[derive(Debug)]
pub struct Engine {
    config: EngineConfig,
    entropy: ChaCha8Rng,
    incarnation: u64,
    links: Links,
    connections: ConnectionTable,
    pools: Pools,
    sent: SentPool<Carried>,
    agenda: Agenda,
    /// When the last turn began.
    turn_at: Instant,
    reception: Reception,
    peers: PeerNames,
    watch: Watch,
    replies: Replies,
    questions: Questions,
    news: News,
    counters: EndpointCounters,
    scratch: Scratch,
    /// The state of datagrams; `None` until a caller opens the first port or the first datagram
    /// arrives.
    datagrams: Option<Box<Datagrams>>,
}

/// The parameters of a connection to open.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// Links, and the peer's address on each link, best first. The first link that answers becomes
    /// link 0 of the connection. The other links join the connection later. The connection also
    /// uses addresses that the peer announces later.
    pub paths: Vec<(LinkId, PeerAddr)>,
    /// The number of the peer's listener.
    pub service: u32,
    /// Data sent with the request, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Regions that the peer may access.
    pub domain: ProtectionDomain,
    /// Queues that receive the completions.
    pub queues: Queues,
    /// Settings of this connection.
    pub terms: Terms,
}

/// Closes a connection, as [`Engine::close`] documents.
fn close(parts: &mut Parts<'_>, connection: &mut Connection, now: Instant, private_data: &[u8]) {
    match connection.phase() {
        Phase::Requested => parts.reject_request(connection, private_data),
        Phase::Connecting => parts.end(connection, Closed::Here, Vec::new()),
        Phase::Accepted | Phase::Established => {
            connection.close_mut().attach(private_data);
            let close = (CloseReason::Application, OperationNumber(0));
            parts.begin_close(now, connection, close, Closed::Here);
        }
        Phase::Closing | Phase::Drained | Phase::Gone => {}
    }
}

/// Number of connections for which the lists of connections have room from the start.
const LISTED_AHEAD: u32 = 64;

impl Engine {
    //= protocol.md: reset.4
    /// Creates an endpoint without links. `seed` must be unpredictable, except in a simulation. The
    /// engine stores the state of operations in the table `status`, from which handles of
    /// operations read the state.
    ///
    /// # Errors
    /// Returns the errors of [`EngineConfig::check`].
    pub fn new(
        config: EngineConfig,
        seed: [u8; 32],
        status: Arc<StatusTable>,
    ) -> Result<Self, SettingError> {
        config.check()?;
        let mut entropy = ChaCha8Rng::from_seed(seed);
        let incarnation = entropy.next_u64();
        let mut cookie_key = [0; 16];
        entropy.fill_bytes(&mut cookie_key);
        let records = usize::from(config.packets_max);
        let ahead = config.allocates_ahead;
        // Number of connections for which the lists have room at the start.
        let listed = if ahead { LISTED_AHEAD } else { 0 };
        let pools = if ahead { Pools::new } else { Pools::growing };
        let connections =
            ConnectionTable::new(&config, Queues::from(Arc::new(CompletionQueue::new(1))));
        Ok(Self {
            incarnation,
            links: Links::new(listed as usize),
            pools: pools(&config.pools, status),
            sent: SentPool::new(if ahead { config.active_connections } else { 0 }, records),
            agenda: Agenda::new(listed),
            turn_at: Instant::default(),
            reception: Reception::new(
                cookie_key,
                config.requests_max,
                connections.limit(),
                config.confirm_ns,
            ),
            connections,
            peers: PeerNames::default(),
            watch: Watch::default(),
            replies: Replies::new(ahead),
            questions: Questions::new(),
            news: News::new(ahead),
            counters: EndpointCounters::default(),
            datagrams: None,
            scratch: if ahead { Scratch::default() } else { Scratch::without_room() },
            entropy,
            config,
        })
    }

    /// Swaps the engine's scratch memory with `scratch`, so that several engines can use the same
    /// scratch memory. Call this function before [`Engine::poll_transmit`], and a second time after
    /// [`Engine::poll_transmit`].
    pub fn exchange_scratch(&mut self, scratch: &mut Scratch) {
        core::mem::swap(&mut self.scratch, scratch);
    }

    /// Adds a link to the endpoint, or replaces the capabilities of an attached link. An
    /// established connection also uses the link if an address of the peer answers on it.
    ///
    /// # Errors
    /// Returns [`EngineLinkError`]; each variant names one cause.
    pub fn attach_link(&mut self, link: LinkId, caps: LinkCaps) -> Result<(), EngineLinkError> {
        self.links.attach(link, caps)?;
        self.with_each(|parts, connection| parts.on_link_attached(connection, link, &caps));
        Ok(())
    }

    /// Removes a link. Connections continue over their other links.
    pub fn detach_link(&mut self, link: LinkId) {
        self.links.detach(link);
        self.with_each(|parts, connection| {
            let gone = connection.paths().iter().filter(|path| path.link() == link);
            let gone: Vec<LinkIndex> = gone.map(Path::index).collect();
            for index in gone {
                parts.lose_path(connection, index);
            }
        });
    }

    /// Returns the incarnation: a random number that the endpoint chooses when it starts. Peers
    /// compare this number to detect a restart of the endpoint.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes the endpoint pass requests for connections to `service` to the application.
    pub fn listen(&mut self, service: u32) {
        self.reception.listen(service);
    }

    /// Makes the endpoint reject requests for connections to `service`.
    pub fn unlisten(&mut self, service: u32) {
        self.reception.unlisten(service);
    }

    //= protocol.md: set-up.1
    /// Asks a peer for a connection. [`Event::Established`] or [`Event::Closed`] reports the
    /// result.
    ///
    /// # Errors
    /// Returns [`ConnectError`]; each variant names one cause.
    pub fn connect(
        &mut self,
        now: Instant,
        request: ConnectRequest,
    ) -> Result<ConnectionHandle, ConnectError> {
        if request.private_data.len() > PRIVATE_BYTES_MAX {
            return Err(ConnectError::PrivateData(request.private_data.len()));
        }
        if request.paths.is_empty() {
            return Err(ConnectError::NoPath);
        }
        request.terms.check()?;
        for (link, _) in &request.paths {
            if !self.links.is_attached(*link) {
                return Err(ConnectError::UnknownLink(link.0));
            }
        }
        let limit = self.connections.limit();
        let mut connection = self
            .fresh_connection(Phase::Connecting)
            .ok_or(ConnectError::NoConnectionLeft(limit))?;
        let handle = connection.handle();
        let ConnectRequest { paths, service, private_data, domain, queues, terms } = request;
        let terms = OwnTerms::new(&self.config, &terms);
        let attempt = Attempt::new(now, service, paths, private_data);
        connection.begin_attempt(now, &self.config, attempt, domain, queues, terms);
        self.counters.handshakes_started += 1;
        self.adopt(connection);
        Ok(handle)
    }

    /// Closes a connection, or rejects a request that was not answered yet.
    ///
    /// Outstanding operations complete as flushed. The peer receives the first 128 bytes of
    /// `private_data`. [`Event::Closed`] follows.
    ///
    /// # Errors
    /// Returns [`Unknown`] if there is no such connection.
    pub fn close(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) -> Result<(), Unknown> {
        let close = |parts: &mut Parts<'_>, connection: &mut Connection| {
            close(parts, connection, now, private_data);
        };
        self.with_handle(handle, close).ok_or(Unknown)
    }

    /// Closes a connection because the local memory of an operation was gone before the operation
    /// could be posted.
    ///
    /// The effect is the same as when the memory disappears after the post: the engine flushes
    /// outstanding operations, and [`Event::Closed`] follows with
    /// [`Closed::LocalMemory`](crate::Closed::LocalMemory). If the connection is closing already,
    /// this call does nothing.
    ///
    /// # Errors
    /// Returns [`Unknown`] if there is no such connection.
    #[cold]
    pub fn close_without_memory(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
    ) -> Result<(), Unknown> {
        let close = |parts: &mut Parts<'_>, connection: &mut Connection| {
            if connection.is_open() {
                parts.lose_local_memory(now, connection);
            }
        };
        self.with_handle(handle, close).ok_or(Unknown)
    }

    /// Sets the timeouts of a connection, in nanoseconds. Verbs programs set these timeouts after
    /// they have connected.
    ///
    /// `silence_ns` limits how long the peer may be silent (see
    /// [`Grants::silence_ns`](crate::Grants::silence_ns)). `not_ready_ns` limits how long an
    /// operation waits for a receive of the peer (see [`Terms::not_ready_ns`]).
    ///
    /// # Errors
    /// Returns [`Unknown`] if there is no such connection.
    pub fn set_patience(
        &mut self,
        handle: ConnectionHandle,
        silence_ns: u64,
        not_ready_ns: Option<u64>,
    ) -> Result<(), Unknown> {
        let set = |_: &mut Parts<'_>, connection: &mut Connection| {
            connection.set_patience(silence_ns.max(1), not_ready_ns);
        };
        self.with_handle(handle, set).ok_or(Unknown)
    }

    /// Closes all connections, as [`Engine::close`] does.
    pub fn close_all(&mut self, now: Instant) {
        self.with_each(|parts, connection| close(parts, connection, now, &[]));
    }

    /// Posts an operation. Call [`Engine::poll_transmit`] afterwards.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    #[inline]
    pub fn post(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        operation: &Operation,
    ) -> Result<OperationNumber, PostError> {
        self.post_by(handle, |outbound, pools| outbound.post(memory, pools, operation))
    }

    /// Posts an operation as [`Engine::post`] does, with a scatter/gather list.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_list(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        operation: &Operation,
        list: PieceList<'_>,
    ) -> Result<OperationNumber, PostError> {
        self.post_by(handle, |outbound, pools| outbound.post_list(memory, pools, operation, list))
    }

    /// Posts work of a queue pair that failed before the caller could pass the work to the engine.
    /// The work completes with `error` after all earlier work, and the connection ends.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_failed(
        &mut self,
        handle: ConnectionHandle,
        operation: &Operation,
        error: OperationError,
    ) -> Result<(), PostError> {
        self.post_by(handle, |outbound, pools| outbound.post_failed(pools, operation, error))
    }

    #[inline]
    fn post_by<R>(
        &mut self,
        handle: ConnectionHandle,
        post: impl FnOnce(&mut Outbound, &mut Pools) -> Result<R, PostError>,
    ) -> Result<R, PostError> {
        let mut connection = self.connections.take_handle(handle).ok_or(PostError::NotConnected)?;
        let result = if connection.is_open() {
            post(connection.outbound_mut(), &mut self.pools)
        } else {
            Err(PostError::NotConnected)
        };
        self.agenda.mark_ready(connection.handle().index);
        self.connections.put(connection);
        result
    }

    //= protocol.md: credit.4
    /// Posts a buffer for one message. The caller may post buffers before the connection is
    /// established.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        receive: Receive,
    ) -> Result<(), PostError> {
        self.post_receive_by(handle, |inbound, _| inbound.post_receive(memory, receive))
    }

    /// Posts a receive like [`Engine::post_receive`]. The engine reports the message in a slot of
    /// the status table, and queues no completion.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_followed_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        receive: Receive,
        status: u32,
    ) -> Result<(), PostError> {
        self.post_receive_by(handle, |inbound, _| {
            inbound.post_followed_receive(memory, receive, status)
        })
    }

    /// Checks whether [`Engine::post_followed_receive`] would succeed. Posts nothing.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn check_followed_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        receive: Receive,
    ) -> Result<(), PostError> {
        self.post_receive_by(handle, |inbound, _| inbound.check_followed_receive(memory, receive))
    }

    /// Posts a receive as [`Engine::post_receive`] does, with a scatter/gather list as the buffer.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_receive_list(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        list: PieceList<'_>,
        context: u64,
    ) -> Result<(), PostError> {
        self.post_receive_by(handle, |inbound, pools| {
            inbound.post_receive_list(memory, pools, list, context)
        })
    }

    /// Posts a receive of a queue pair whose memory does not exist. If a message consumes the
    /// receive, the receive completes with an error, and the connection ends.
    ///
    /// # Errors
    /// Returns [`PostError`]; each variant names one cause.
    pub fn post_failed_receive(
        &mut self,
        handle: ConnectionHandle,
        length: u32,
        context: u64,
    ) -> Result<(), PostError> {
        self.post_receive_by(handle, |inbound, _| inbound.post_failed_receive(length, context))
    }

    #[inline]
    fn post_receive_by(
        &mut self,
        handle: ConnectionHandle,
        post: impl FnOnce(&mut Inbound, &mut Pools) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let mut connection = self.connections.take_handle(handle).ok_or(PostError::NotConnected)?;
        let open =
            !matches!(connection.phase(), Phase::Closing | Phase::Drained | Phase::Requested);
        let result = if open {
            post(connection.inbound_mut(), &mut self.pools)
        } else {
            Err(PostError::NotConnected)
        };
        if connection.reported().lacks_credit(connection.inbound()) {
            connection.reported_mut().report_now();
            self.agenda.mark_ready(connection.handle().index);
        }
        self.parts().rest_later(&connection);
        self.connections.put(connection);
        result
    }

    /// Handles a change of a link.
    pub fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent) {
        if !self.links.is_attached(link) {
            return;
        }
        let mut event = event;
        match event {
            LinkEvent::Changed(caps) if self.links.on_changed(link, caps) => {}
            // The engine cannot use the new capabilities, so treat the link as down.
            LinkEvent::Changed(_) => event = LinkEvent::Down,
            LinkEvent::Down => self.links.on_down(link),
            LinkEvent::TooBig(peer, limit, evidence) => {
                return self.on_report(now, link, peer, Report::TooBig(limit), evidence);
            }
            LinkEvent::Refused(peer, evidence) => {
                return self.on_report(now, link, peer, Report::Refused, evidence);
            }
            // Other events concern only the thread that sleeps on the links.
            _ => return,
        }
        self.with_each(|parts, connection| parts.on_link_event(now, connection, link, event));
    }

    /// Returns the time at which the caller must call [`Engine::handle_timeout`]. Any other call
    /// may change this time.
    pub fn poll_timeout(&self) -> Instant {
        self.agenda.next_deadline()
    }

    /// Returns whether all connections are idle, so that only their keep-alive timers are pending.
    /// Visits every connection.
    pub fn is_idle(&self) -> bool {
        let is_awake_at_rest = |connection: &Connection| {
            let deadline = self.agenda.deadline(connection.handle().index);
            let next = if connection.is_at_rest() { connection.rest_ends_at() } else { deadline };
            deadline == Instant::NEVER
                || connection.is_open() && next == connection.liveness().ask_at()
        };
        let wakes_only_to_ask = |index: u32, keep_alive_at| {
            [keep_alive_at, Instant::NEVER].contains(&self.agenda.deadline(index))
        };
        !self.has_work()
            && self.connections.iter().all(is_awake_at_rest)
            && self
                .connections
                .resting()
                .all(|(index, rest)| wakes_only_to_ask(index, rest.keep_alive_at))
    }

    /// Returns the next event of the control path; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.news.poll()
    }

    /// Returns whether [`Engine::poll_transmit`] has work to do.
    pub fn has_work(&self) -> bool {
        self.agenda.has_work()
            || !self.replies.is_empty()
            || self.pools.has_refilled()
            || self.has_datagrams()
    }

    /// Returns whether [`Engine::poll_transmit`] has something to send now. If the result is false,
    /// the caller may do other work before it calls [`Engine::poll_transmit`]. Until that call,
    /// [`Engine::poll_timeout`] returns a time that is out of date.
    #[inline]
    pub fn is_urgent(&self, now: Instant) -> bool {
        let mut ready = self.agenda.ready();
        let is_quiet = match (ready.next(), ready.next()) {
            (None, _) => true,
            (Some(index), None) => {
                self.connections.at(index).is_some_and(|connection| !connection.is_urgent(now))
            }
            // If two or more connections are ready, do not check each of them. This would cost more
            // time than the caller saves by calling `poll_transmit` later.
            (Some(_), Some(_)) => false,
        };
        let is_quiet = is_quiet && self.replies.is_empty() && self.agenda.stalled() == 0;
        !is_quiet || self.has_datagrams()
    }

    /// Returns whether datagrams are waiting to be sent.
    #[inline]
    pub(crate) fn has_datagrams(&self) -> bool {
        self.datagrams.as_ref().is_some_and(|datagrams| !datagrams.is_empty())
    }

    /// Returns the state of datagrams; `None` if no port and no datagram exists.
    #[inline]
    pub(crate) fn datagrams(&self) -> Option<&Datagrams> {
        self.datagrams.as_deref()
    }

    //= protocol.md: shared.3
    /// Handles receives that were posted to a shared queue. Connections and datagrams that
    /// [wait](SharedReceives::post) for receives continue.
    pub fn on_receives_posted(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        receives: &SharedReceives,
    ) {
        while let Some(owner) = receives.next_ready() {
            self.with_handle(ConnectionHandle::of(owner), |parts, connection| {
                parts.on_receive_there(now, memory, connection);
            });
        }
        if self.datagrams.is_some() {
            self.begin_turn(now);
            let (datagrams, mut around) = self.lend_datagrams();
            datagrams.on_receives_posted(memory, &mut around, receives);
        }
    }

    /// Returns a shared queue that has fewer receives than its armed
    /// [limit](SharedReceives::arm_limit). Returns each such queue once, and `None` if there is no
    /// further one.
    pub fn take_below_limit(&mut self) -> Option<Arc<SharedReceives>> {
        self.pools.take_below_limit()
    }

    /// Removes and returns the next completion queue that must wake an application; `None` if there
    /// is none. After the turn, the caller wakes the application or signals the queue's descriptor.
    #[inline]
    pub fn take_fired(&mut self) -> Option<Arc<CompletionQueue>> {
        self.pools.take_fired()
    }

    /// Returns the number of reports to applications so far. A report is a completion or a change
    /// in the status table. If the number differs from an earlier result, there is a new report.
    #[inline]
    pub const fn report_count(&self) -> u64 {
        self.pools.report_count()
    }

    /// Returns the state of a connection; `None` if there is no such connection.
    pub fn info(&self, handle: ConnectionHandle) -> Option<ConnectionInfo> {
        self.connections.look(handle, Self::info_of)
    }

    fn info_of(connection: &Connection) -> ConnectionInfo {
        ConnectionInfo {
            established: connection.is_open(),
            queue_pair: connection.is_queue_pair(),
            patches: connection.is_open() && connection.outbound().has_patches(),
            outstanding: connection.outbound().outstanding(),
            credits: connection.outbound().credits(),
            paths: connection.paths().iter().map(Path::info).collect(),
        }
    }

    /// Returns the number of operations of a connection that were posted and are not complete.
    /// Returns 0 if there is no such connection.
    #[inline]
    pub fn outstanding(&self, handle: ConnectionHandle) -> u32 {
        // A compressed connection has no outstanding operations.
        let connection = self.connections.at(handle.index).filter(|_| self.connections.has(handle));
        connection.map_or(0, |connection| connection.outbound().outstanding())
    }

    /// Returns the number of operations posted on a connection, and how many the application should
    /// post. If there is no such connection, returns the default value.
    #[inline]
    pub fn posting_room(&self, handle: ConnectionHandle) -> PostingRoom {
        let room = |connection: &Connection| connection.outbound().posting_room();
        if !self.connections.has(handle) {
            return PostingRoom::default();
        }
        match self.connections.at(handle.index) {
            Some(connection) => room(connection),
            None => self.connections.look(handle, room).unwrap_or_default(),
        }
    }

    /// Requests a notification for an application that waits for room on this connection. Each of
    /// these events makes room:
    ///
    /// * an operation of the connection completes,
    /// * the peer grants more messages, or
    /// * a message consumes a receive of the connection.
    ///
    /// After the next such event, [`Engine::poll_room`] returns the connection once.
    pub fn await_room(&mut self, handle: ConnectionHandle) {
        self.pools.await_room(handle.owner());
    }

    /// Returns the next connection that has [room](Engine::await_room), or that has ended; `None`
    /// if there is no further one.
    pub fn poll_room(&mut self) -> Option<ConnectionHandle> {
        self.pools.take_room().map(ConnectionHandle::of)
    }

    /// Returns whether [`Engine::poll_room`] would return a connection.
    #[inline]
    pub const fn has_room_news(&self) -> bool {
        self.pools.has_room_news()
    }

    /// Returns whether any connection has an operation that was posted and is not complete. Visits
    /// every connection.
    pub fn has_outstanding(&self) -> bool {
        self.connections.iter().any(|connection| connection.outbound().outstanding() > 0)
    }

    /// Returns the counters of the whole endpoint. [`Engine::info`] returns the counters of links.
    pub const fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// Checks that a connection has room for one more operation.
    ///
    /// # Errors
    /// Returns [`PostError::NoOperationLeft`] if the connection has no room for another operation.
    pub fn check_room(&self, handle: ConnectionHandle) -> Result<(), PostError> {
        self.pools.check_room(self.posting_room(handle).outstanding)
    }

    /// Returns how many records that all connections share are in use, by kind.
    pub fn pool_use(&self) -> PoolUse {
        self.pools.in_use()
    }

    /// Returns how many answers to reads and atomics of peers this endpoint has begun to send.
    pub const fn answers_begun(&self) -> u64 {
        self.pools.answers_begun()
    }

    /// Returns the number of connections, whatever their phase.
    pub const fn connection_count(&self) -> u32 {
        self.connections.used()
    }

    /// Returns whether the peer of any connection has not yet acknowledged a Close of this end.
    /// Visits every connection.
    pub fn is_closing(&self) -> bool {
        self.connections.iter().any(|connection| connection.phase() == Phase::Closing)
    }

    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.turn_at = now;
        self.links.begin_turn();
    }

    /// Borrows the connection table, and the state that connections share.
    #[inline]
    pub(crate) fn lend(&mut self) -> (&mut ConnectionTable, Parts<'_>) {
        let parts = Parts {
            config: &self.config,
            incarnation: self.incarnation,
            turn_at: self.turn_at,
            entropy: &mut self.entropy,
            links: &mut self.links,
            agenda: &mut self.agenda,
            pools: &mut self.pools,
            sent: &mut self.sent,
            reception: &mut self.reception,
            peers: &mut self.peers,
            watch: &mut self.watch,
            replies: &mut self.replies,
            questions: &mut self.questions,
            news: &mut self.news,
            counters: &mut self.counters,
            scratch: &mut self.scratch,
        };
        (&mut self.connections, parts)
    }

    /// Borrows the state of datagrams, and the state that datagrams and connections use together.
    /// Creates the state of datagrams on first use.
    #[inline]
    pub(crate) fn lend_datagrams(&mut self) -> (&mut Datagrams, Around<'_>) {
        let around = Around {
            pools: &mut self.pools,
            counters: &mut self.counters,
            links: &mut self.links,
            scratch: &mut self.scratch,
            now: self.turn_at,
        };
        (self.datagrams.get_or_insert_default(), around)
    }

    pub(crate) const fn connections(&self) -> &ConnectionTable {
        &self.connections
    }

    /// Borrows the state that connections share.
    #[inline]
    pub(crate) fn parts(&mut self) -> Parts<'_> {
        self.lend().1
    }

    /// Runs `work` on a connection of the table, and adds the connection to the ready list.
    pub(crate) fn with_index<R>(
        &mut self,
        index: u32,
        work: impl FnOnce(&mut Parts<'_>, &mut Connection) -> R,
    ) -> Option<R> {
        let (connections, mut parts) = self.lend();
        let mut connection = connections.take(index)?;
        let result = work(&mut parts, &mut connection);
        parts.put_back(connections, connection);
        Some(result)
    }

    /// Runs `work` on the connection with this handle, and adds the connection to the ready list.
    pub(crate) fn with_handle<R>(
        &mut self,
        handle: ConnectionHandle,
        work: impl FnOnce(&mut Parts<'_>, &mut Connection) -> R,
    ) -> Option<R> {
        self.connections.has(handle).then(|| self.with_index(handle.index, work))?
    }

    /// Runs `work` on every connection, and adds every connection to the ready list.
    fn with_each(&mut self, mut work: impl FnMut(&mut Parts<'_>, &mut Connection)) {
        for index in self.connections.indices() {
            self.with_index(index, &mut work);
        }
    }

    /// Returns all state that refers to regions of this endpoint.
    pub(crate) fn users_of_regions(&self) -> (&ConnectionTable, &Pools, Option<&Datagrams>) {
        (&self.connections, &self.pools, self.datagrams.as_deref())
    }

    /// Adds a new connection to the table and to the ready list.
    pub(crate) fn adopt(&mut self, connection: Box<Connection>) {
        let (connections, mut parts) = self.lend();
        parts.agenda.admit(connection.handle().index);
        parts.put_back(connections, connection);
    }

    /// Creates a connection in this phase, with new ids. Returns `None` if the table is full.
    pub(crate) fn fresh_connection(&mut self, phase: Phase) -> Option<Box<Connection>> {
        let (handle, id) = self.connections.reserve(|| self.entropy.next_u32())?;
        let names = Names::new(id, Epoch(self.entropy.next_u32() as u16));
        let queue = self.connections.unowned_queue();
        Some(Connection::new(&self.config, handle, names, phase, queue))
    }
}

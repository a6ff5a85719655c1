//! The endpoint: what applications and runtimes call.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use delivery::{
    CookieJar, EndpointCounters, Instant, LINKS_MAX, LinkCaps, LinkEvent, LinkId, RateLimiter,
    RxFrame, SentPool, SilenceBudget, TimerQueue,
};
use mem::{MemoryAccess, ProtectionDomain};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use semantics::{
    Carried, CompletionQueue, Inbound, Operation, Outbound, PeerLimits, PoolUse, Pools, PostError,
    Queues, Receive, StatusTable,
};
use thiserror::Error;
use wire_edge::{
    CloseReason, ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, PRIVATE_BYTES_MAX,
    PeerAddr,
};

use crate::acknowledge::AckBytes;
use crate::config::EngineConfig;
use crate::connection::{Connection, HandshakeState, Phase};
use crate::event::{
    Closed, ConnectError, ConnectionHandle, ConnectionInfo, Event, PathInfo, Unknown,
};
use crate::frames::FrameWriter;
use crate::handshake::{HelloKey, Reply};
use crate::link_set::LinkSet;
use crate::per_host::PerHost;
use crate::report::Report;
use crate::scratch::batch;
use crate::table::ConnectionTable;

/// Protocol state of one endpoint: every connection, every link.
///
/// Does no I/O and reads no clock; `now` is one value per turn. See the crate's documentation for
/// the order of calls.
#[derive(Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) entropy: ChaCha8Rng,
    pub(crate) incarnation: u64,
    pub(crate) links: [Option<EngineLink>; LINKS_MAX],
    /// Links (by bit) whose driver had no room in this turn.
    pub(crate) blocked: u16,
    /// Peers for which a driver had no room in this turn, while it may have some for others.
    pub(crate) blocked_peers: Vec<(LinkId, PeerAddr)>,
    pub(crate) connections: ConnectionTable,
    pub(crate) pools: Pools,
    pub(crate) sent: SentPool<Carried>,
    pub(crate) timers: TimerQueue,
    /// The last turn.
    pub(crate) turn_at: Instant,
    /// Connections to serve in [`Engine::poll_transmit`]; may name some that are no more.
    pub(crate) ready: VecDeque<u32>,
    /// Connections whose deliveries wait for room in a completion queue.
    pub(crate) stalled: Vec<u32>,
    /// Connections that owed acknowledgements when they were last served.
    pub(crate) owing: Vec<u32>,
    pub(crate) listeners: HashSet<u32>,
    /// Connections by what is the same in each Hello that asks for them, so that a repeated one finds
    /// them, from whichever of the peer's addresses.
    pub(crate) hellos: HashMap<HelloKey, u32>,
    /// Connections by the id and epoch that this end puts into its frames: a Reset quotes both.
    pub(crate) by_peer: HashMap<(ConnectionId, Epoch), u32>,
    /// How many requests of each host the application has not answered.
    pub(crate) requests: PerHost,
    /// How many connections of each host are accepted here and not confirmed by a frame of the peer.
    pub(crate) unconfirmed: PerHost,
    /// Handshake frames that wait to be sent.
    pub(crate) replies: VecDeque<Reply>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) cookies: CookieJar,
    pub(crate) reply_limit: RateLimiter,
    pub(crate) reset_limit: RateLimiter,
    /// Limits the reports without proof that are looked at: each costs a look at every connection.
    pub(crate) hearsay_limit: RateLimiter,
    pub(crate) counters: EndpointCounters,
    pub(crate) batch: FrameWriter,
    /// Batches for the links of a connection that has several, by position.
    pub(crate) spare_batches: Vec<FrameWriter>,
    pub(crate) acks: AckBytes,
    /// A completion queue without room: of connections for which the application has chosen none yet.
    nobodys_queue: Queues,
}

/// A link of the endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EngineLink {
    pub(crate) caps: LinkCaps,
    pub(crate) up: bool,
}

/// A connection to be.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// Links and the peer's address on each, best first; the first that answers becomes link 0 of
    /// the connection, the others join it. Further addresses the peer tells of are used too.
    pub paths: Vec<(LinkId, PeerAddr)>,
    /// Which listener of the peer is meant.
    pub service: u32,
    /// Sent along, at most 512 bytes.
    pub private_data: Vec<u8>,
    /// Regions the peer may reach.
    pub domain: ProtectionDomain,
    /// Where completions go.
    pub queues: Queues,
}

/// What became of a batch of frames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Emitted {
    /// The link took so many of the first frames; fewer than all means that it is full: over shared memory
    /// for this peer, else for all.
    Taken(usize),
    /// Payload of the frame with this index is not mapped: the application unmapped registered memory. The
    /// link took the frames before it.
    PayloadUnmapped(usize),
}

/// Why a link could not be attached.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum EngineLinkError {
    /// Link identifiers go from 0 to 15.
    #[error("link identifier {0} is not below {LINKS_MAX}")]
    Identifier(u8),
    /// Frames must be at least 256 bytes.
    #[error(
        "link {link} carries frames of {frame_bytes} bytes; the edge protocol needs 256 (raise the interface's MTU)"
    )]
    FrameTooSmall {
        /// Which link.
        link: u8,
        /// What it carries.
        frame_bytes: u16,
    },
}

/// Answers to strangers waiting to be sent; more are dropped and asked for again. At most 944 bytes
/// each, so 240 KB in all, for a burst of requests in one turn.
pub(crate) const REPLIES_MAX: usize = 256;

/// Connections that the lists of connections have room for from the start.
const LISTED_AHEAD: u32 = 64;

impl Engine {
    //= protocol.md: reset.4
    /// An endpoint without links. `seed` must be unpredictable (in a simulation: the seed), `status`
    /// is where handles of operations look. What a user has set goes through
    /// [`EngineConfig::check`] first.
    ///
    /// # Panics
    /// If [`EngineConfig::packets_max`] is too small or too large.
    pub fn new(config: EngineConfig, seed: [u8; 32], status: Arc<StatusTable>) -> Self {
        let mut entropy = ChaCha8Rng::from_seed(seed);
        let incarnation = entropy.next_u64();
        let mut cookie_key = [0; 16];
        entropy.fill_bytes(&mut cookie_key);
        let records = usize::from(config.packets_max);
        let ahead = config.allocates_ahead;
        // Lists of connections, by number.
        let listed = if ahead { LISTED_AHEAD } else { 0 };
        let pools = if ahead { Pools::new } else { Pools::growing };
        let nobodys_queue = Queues::from(Arc::new(CompletionQueue::new(1)));
        Self {
            incarnation,
            links: [None; LINKS_MAX],
            blocked: 0,
            blocked_peers: Vec::with_capacity(listed as usize),
            connections: ConnectionTable::new(&config, nobodys_queue.clone()),
            pools: pools(&config.pools, status),
            sent: SentPool::new(if ahead { config.active_connections } else { 0 }, records),
            timers: TimerQueue::with_capacity(listed),
            ready: VecDeque::with_capacity(listed as usize),
            turn_at: Instant::default(),
            stalled: Vec::new(),
            owing: Vec::with_capacity(listed as usize),
            listeners: HashSet::new(),
            hellos: HashMap::new(),
            by_peer: HashMap::new(),
            requests: PerHost::default(),
            unconfirmed: PerHost::default(),
            replies: VecDeque::with_capacity(if ahead { REPLIES_MAX } else { 0 }),
            events: VecDeque::new(),
            cookies: CookieJar::new(cookie_key),
            // A storm of connections from a cluster, four times 10 000 hosts within a second; at 3 µs for
            // each answer, an eighth of a processor.
            reply_limit: RateLimiter::new(40_000, 8000),
            reset_limit: RateLimiter::new(1000, 100),
            hearsay_limit: RateLimiter::new(10, 10),
            counters: EndpointCounters::default(),
            batch: if ahead { batch() } else { FrameWriter::new(0, 0) },
            spare_batches: Vec::new(),
            acks: if ahead { AckBytes::allocated() } else { AckBytes::default() },
            nobodys_queue,
            entropy,
            config,
        }
    }

    /// Adds a link to the endpoint, or replaces what is known of it. Connections that are established
    /// use it, too, as soon as a link of the peer is found that answers there.
    pub fn attach_link(&mut self, link: LinkId, caps: LinkCaps) -> Result<(), EngineLinkError> {
        if caps.frame_bytes_max < FRAME_BYTES_MIN {
            let frame_bytes = caps.frame_bytes_max;
            return Err(EngineLinkError::FrameTooSmall { link: link.0, frame_bytes });
        }
        let slot =
            self.links.get_mut(usize::from(link.0)).ok_or(EngineLinkError::Identifier(link.0))?;
        *slot = Some(EngineLink { caps, up: true });
        for index in self.connections.indices() {
            self.with_index(index, |engine, connection| {
                engine.on_link_attached(connection, link, &caps);
            });
        }
        Ok(())
    }

    /// Takes a link away; connections go on over their others.
    pub fn detach_link(&mut self, link: LinkId) {
        if let Some(slot) = self.links.get_mut(usize::from(link.0)) {
            *slot = None;
        }
        for index in self.connections.indices() {
            self.with_index(index, |engine, connection| {
                let gone: Vec<LinkIndex> = connection
                    .paths
                    .iter()
                    .filter(|path| path.link == link)
                    .map(|path| path.index)
                    .collect();
                for index in gone {
                    engine.lose_path(connection, index);
                }
            });
        }
    }

    /// The number, random at each start, by which peers tell the lives of an endpoint apart.
    pub const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Requests for connections to `service` are passed on from now on.
    pub fn listen(&mut self, service: u32) {
        self.listeners.insert(service);
    }

    /// Requests for connections to `service` are rejected from now on.
    pub fn unlisten(&mut self, service: u32) {
        self.listeners.remove(&service);
    }

    //= protocol.md: set-up.1
    /// Asks a peer for a connection; [`Event::Established`] or [`Event::Closed`] tells how it ended.
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
        for (link, _) in &request.paths {
            if !self.links.get(usize::from(link.0)).is_some_and(Option::is_some) {
                return Err(ConnectError::UnknownLink(link.0));
            }
        }
        let limit = self.connections.limit();
        let (handle, id) =
            self.reserve_connection().ok_or(ConnectError::NoConnectionLeft(limit))?;
        let mut connection = self.fresh_connection(handle, id, Phase::Connecting);
        connection.inbound = self.inbound(handle, request.domain, &request.queues);
        connection.outbound = self.outbound(handle, NOTHING_GRANTED, &request.queues);
        connection.queues = request.queues;
        connection.silence.on_waiting(now);
        connection.handshake = Some(Box::new(HandshakeState {
            started_at: now,
            service: request.service,
            candidates: request.paths,
            candidate: 0,
            cookie: [0; wire_edge::COOKIE_BYTES],
            private_data: request.private_data,
        }));
        connection.retry_at = now;
        self.counters.handshakes_started += 1;
        self.adopt(connection);
        Ok(handle)
    }

    /// Closes a connection: outstanding operations complete as flushed, the peer is told with
    /// `private_data` (at most 128 bytes, more is cut off), then [`Event::Closed`] follows. A
    /// request not answered yet is rejected.
    pub fn close(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) -> Result<(), Unknown> {
        let mut connection = self.connections.take_handle(handle).ok_or(Unknown)?;
        match connection.phase {
            Phase::Requested => self.refuse(&mut connection, private_data),
            Phase::Connecting => self.end(&mut connection, Closed::Here, Vec::new()),
            Phase::Accepted | Phase::Established => {
                let kept = private_data.len().min(wire_edge::CLOSE_PRIVATE_BYTES_MAX);
                connection.close_data = private_data.get(..kept).unwrap_or_default().to_vec();
                let close = (CloseReason::Application, OperationNumber(0));
                self.begin_close(now, &mut connection, close, Closed::Here);
            }
            Phase::Closing | Phase::Drained | Phase::Gone => {}
        }
        self.put_back(connection);
        Ok(())
    }

    /// Accepts an operation for sending. Call [`Engine::poll_transmit`] afterwards.
    #[inline]
    pub fn post(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        operation: &Operation,
    ) -> Result<OperationNumber, PostError> {
        let mut connection = self.connections.take_handle(handle).ok_or(PostError::NotConnected)?;
        let result = if connection.is_open() {
            connection.outbound.post(memory, &mut self.pools, operation)
        } else {
            Err(PostError::NotConnected)
        };
        self.mark_ready(&mut connection);
        self.connections.put(connection);
        result
    }

    //= protocol.md: credit.4
    /// Posts a buffer for one message. Allowed before the connection is established.
    pub fn post_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        handle: ConnectionHandle,
        receive: Receive,
    ) -> Result<(), PostError> {
        let mut connection = self.connections.take_handle(handle).ok_or(PostError::NotConnected)?;
        let open = !matches!(connection.phase, Phase::Closing | Phase::Drained | Phase::Requested);
        let result = if open {
            connection.inbound.post_receive(memory, receive)
        } else {
            Err(PostError::NotConnected)
        };
        let told = connection.told_credit;
        let posted = connection.inbound.credit().since(told);
        // The peer may be waiting for a receive: tell it as soon as what it knows of is used up by
        // half; until then it hears of new receives with other acknowledgements.
        if posted > 0 && told.since(connection.inbound.next_message()) <= posted {
            connection.report_now = true;
            self.mark_ready(&mut connection);
        }
        self.rest_later(&connection);
        self.connections.put(connection);
        result
    }

    //= protocol.md: frame.1
    /// Handles one frame, placing its payload straight into registered memory.
    #[expect(clippy::needless_pass_by_value, reason = "a frame is handed over, not lent")]
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        link: LinkId,
        frame: RxFrame<'_>,
    ) {
        match wire_edge::peek(frame.bytes) {
            Ok((wire_edge::Kind::Handshake, ..)) => {
                self.handle_handshake(now, memory, link, &frame);
            }
            Ok((_, id, epoch)) => {
                self.handle_connection_frame(now, memory, link, &frame, id, epoch);
            }
            Err(_) => self.counters.malformed += 1,
        }
    }

    /// Handles a change of a link.
    pub fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent) {
        let Some(Some(known)) = self.links.get_mut(usize::from(link.0)) else { return };
        match event {
            LinkEvent::Changed(caps) => {
                if caps.frame_bytes_max < FRAME_BYTES_MIN {
                    // It carries nothing of ours any more.
                    return self.handle_link_event(now, link, LinkEvent::Down);
                }
                known.caps = caps;
                known.up = true;
            }
            LinkEvent::Down => known.up = false,
            LinkEvent::TooBig(peer, limit, evidence) => {
                return self.on_report(now, link, peer, Report::TooBig(limit), evidence);
            }
            LinkEvent::Refused(peer, evidence) => {
                return self.on_report(now, link, peer, Report::Refused, evidence);
            }
            // News for the thread that sleeps on the links; the engine has no use for it.
            _ => return,
        }
        for index in self.connections.indices() {
            self.with_index(index, |engine, connection| {
                engine.on_link_event(now, connection, link, event);
            });
        }
    }

    /// When to call [`Engine::handle_timeout`], after any other call.
    pub fn poll_timeout(&self) -> Instant {
        self.timers.next()
    }

    /// Whether nothing is under way: all that would still wake the endpoint up are the keep-alives of
    /// idle connections. Looks at every connection.
    pub fn is_at_rest(&self) -> bool {
        let is_awake_at_rest = |connection: &Connection| {
            let deadline = self.timers.deadline(connection.handle.index);
            let next = if connection.is_at_rest() { connection.rest_ends_at() } else { deadline };
            deadline == Instant::NEVER || connection.is_open() && next == connection.keep_alive_at
        };
        let wakes_only_to_ask = |index: u32, keep_alive_at| {
            [keep_alive_at, Instant::NEVER].contains(&self.timers.deadline(index))
        };
        !self.has_work()
            && self.connections.iter().all(is_awake_at_rest)
            && self
                .connections
                .resting()
                .all(|(index, rest)| wakes_only_to_ask(index, rest.keep_alive_at))
    }

    /// The next piece of news of the control path.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether [`Engine::poll_transmit`] has something to look at.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.replies.is_empty() || !self.stalled.is_empty()
    }

    /// Whether [`Engine::poll_transmit`] has something to send now. If not, the call may be put off
    /// until after the next piece of work; [`Engine::poll_timeout`] is out of date until then.
    #[inline]
    pub fn is_urgent(&self, now: Instant) -> bool {
        let mut ready = self.ready.iter();
        let is_quiet = match (ready.next(), ready.next()) {
            (None, _) => true,
            (Some(&index), None) => {
                self.connections.at(index).is_some_and(|connection| !connection.is_urgent(now))
            }
            // Not worth the search.
            (Some(_), Some(_)) => false,
        };
        !(is_quiet && self.replies.is_empty() && self.stalled.is_empty())
    }

    /// What is known of a connection.
    pub fn info(&self, handle: ConnectionHandle) -> Option<ConnectionInfo> {
        self.connections.look(handle, Self::info_of)
    }

    fn info_of(connection: &Connection) -> ConnectionInfo {
        let paths = connection.paths.iter().map(|path| PathInfo {
            index: path.index.0,
            link: path.link,
            peer: path.peer,
            state: path.state.state(),
            srtt_ns: path.send.srtt_ns(),
            rate_bytes_per_second: path.send.rate_bytes_per_second(),
            window_bytes: path.send.window(),
            in_flight_bytes: path.send.in_flight_bytes(),
            packets: path.send.packets(),
            frame_bytes: path.mtu.current(),
            counters: path.counters,
        });
        ConnectionInfo {
            established: connection.is_open(),
            outstanding: connection.outbound.outstanding(),
            paths: paths.collect(),
        }
    }

    /// Counters of the endpoint as a whole; those of links are in [`Engine::info`].
    pub const fn counters(&self) -> &EndpointCounters {
        &self.counters
    }

    /// How many shared records are in use.
    pub fn pool_use(&self) -> PoolUse {
        self.pools.in_use()
    }

    /// Connections in whichever phase.
    pub const fn connection_count(&self) -> u32 {
        self.connections.used()
    }

    /// Whether a peer has yet to acknowledge that a connection is closed. Looks at every connection.
    pub fn is_closing(&self) -> bool {
        self.connections.iter().any(|connection| connection.phase == Phase::Closing)
    }

    /// Puts a connection into the list of those to serve.
    #[inline]
    pub(crate) fn mark_ready(&mut self, connection: &mut Connection) {
        if !connection.queued {
            connection.queued = true;
            self.ready.push_back(connection.handle.index);
        }
    }

    /// Works on a connection that is in the table, and puts it on the list of those to serve.
    pub(crate) fn with_index(&mut self, index: u32, work: impl FnOnce(&mut Self, &mut Connection)) {
        let Some(mut connection) = self.connections.take(index) else { return };
        work(self, &mut connection);
        self.put_back(connection);
    }

    /// Puts a connection back into the table and on the list of those to serve, or drops it if it is over.
    pub(crate) fn put_back(&mut self, mut connection: Box<Connection>) {
        if connection.phase == Phase::Gone {
            self.forget(connection);
            return;
        }
        self.mark_ready(&mut connection);
        self.connections.put(connection);
    }

    /// Takes a new connection into the table, and puts it on the list of those to serve.
    pub(crate) fn adopt(&mut self, connection: Box<Connection>) {
        self.timers.ensure_capacity(connection.handle.index);
        self.put_back(connection);
    }

    /// Drops a connection that was taken out of the table.
    fn forget(&mut self, mut connection: Box<Connection>) {
        let handle = connection.handle;
        for path in &mut connection.paths {
            path.send.drain(&mut self.sent, &mut |_| {});
        }
        for (listed, list) in [
            (connection.listed_stalled, &mut self.stalled),
            (connection.listed_owing, &mut self.owing),
        ] {
            if listed && let Some(position) = list.iter().position(|&index| index == handle.index) {
                list.swap_remove(position);
            }
        }
        self.timers.set(handle.index, Instant::NEVER);
        if let Some(key) = connection.hello_key {
            self.hellos.remove(&key);
        }
        let peer_key = (connection.peer_id, connection.peer_epoch);
        if self.by_peer.get(&peer_key) == Some(&handle.index) {
            self.by_peer.remove(&peer_key);
        }
        self.forget_unconfirmed(&mut connection);
        let id = connection.id;
        drop(connection);
        self.connections.release(handle, id);
    }

    /// Takes a place for a connection, and draws its id.
    pub(crate) fn reserve_connection(&mut self) -> Option<(ConnectionHandle, ConnectionId)> {
        let Self { connections, entropy, .. } = self;
        connections.reserve(|| entropy.next_u32())
    }

    pub(crate) fn fresh_connection(
        &mut self,
        handle: ConnectionHandle,
        id: ConnectionId,
        phase: Phase,
    ) -> Box<Connection> {
        let queues = self.nobodys_queue.clone();
        Box::new(Connection {
            handle,
            phase,
            id,
            peer_id: ConnectionId(0),
            epoch: Epoch(self.entropy.next_u32() as u16),
            peer_epoch: Epoch(0),
            peer: None,
            paths: LinkSet::default(),
            joining: None,
            told_addresses: 0,
            join_due: false,
            scheduler: None,
            outbound: Outbound::new(handle.owner(), NOTHING_GRANTED, &queues),
            inbound: self.inbound(handle, ProtectionDomain::NONE, &queues),
            queues,
            silence: SilenceBudget::new(self.config.silence_budget_ns),
            handshake: None,
            hello_key: None,
            unconfirmed_at: None,
            retry_at: Instant::NEVER,
            retries: 0,
            queued: false,
            listed_stalled: false,
            listed_owing: false,
            heard: false,
            heard_at: Instant::default(),
            keep_alive_at: Instant::NEVER,
            compares_links: false,
            asked_on: None,
            unasked: 0,
            spread_at: Instant::NEVER,
            arrives_at: (0, Instant::default()),
            in_step: 0,
            asked: false,
            furthest: (OperationNumber(self.config.numbers_from), 0),
            report_now: false,
            told_credit: MessageNumber(self.config.numbers_from),
            told_delivered: OperationNumber(self.config.numbers_from),
            close: (CloseReason::Finished, OperationNumber(0)),
            close_data: Vec::new(),
        })
    }

    pub(crate) fn inbound(
        &self,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        queues: &Queues,
    ) -> Inbound {
        let limits = self.config.inbound_limits();
        let mut inbound = Inbound::new(handle.owner(), domain, limits, queues);
        let first = self.config.numbers_from;
        inbound.begin_at(OperationNumber(first), MessageNumber(first));
        inbound
    }

    pub(crate) fn outbound(
        &self,
        handle: ConnectionHandle,
        peer: PeerLimits,
        queues: &Queues,
    ) -> Outbound {
        let mut outbound = Outbound::new(handle.owner(), peer, queues);
        let first = self.config.numbers_from;
        outbound.begin_at(OperationNumber(first), MessageNumber(first));
        outbound
    }
}

/// What a peer has granted before it said anything.
pub(crate) const NOTHING_GRANTED: PeerLimits = PeerLimits {
    operation_window: 0,
    read_depth: 0,
    order_pool_bytes: 0,
    credit: MessageNumber(0),
};

/// Smallest frame a link must carry (protocol.md §2.2).
pub(crate) const FRAME_BYTES_MIN: u16 = 256;

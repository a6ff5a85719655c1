//! Connection set-up: Hello, Retry, Accept, Reject, Pending, and replies to strangers.

use delivery::{Instant, LinkId, PathState, RxFrame};
use mem::{MemoryAccess, ProtectionDomain};
use semantics::{PeerLimits, Queues};
use wire_edge::{
    Addresses, ConnectionId, DecodeError, Epoch, Features, Handshake, HandshakeFrame, LinkIndex,
    Moved, PRIVATE_BYTES_MAX, Parameters, PeerAddr, RejectReason, VERSION,
};

use crate::attempt::Attempt;
use crate::config::EngineConfig;
use crate::config::{OPERATION_WINDOW_MAX, READ_DEPTH_MAX};
use crate::connection::Connection;
use crate::engine::Engine;
use crate::event::{AcceptError, Closed, ConnectionHandle, Event, Unknown};
use crate::hello::Hello;
use crate::joining::Joining;
use crate::life::Life;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::PING;
use crate::phase::Phase;
use crate::reception::Admission;
use crate::terms::{OwnTerms, Terms};

impl Engine {
    /// Accepts a request. The peer may access the regions of `domain`, and completions go to
    /// `queues`.
    ///
    /// When a frame of the peer proves that the peer received the Accept, [`Event::Established`]
    /// follows.
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause.
    pub fn accept(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        queues: impl Into<Queues>,
        private_data: &[u8],
    ) -> Result<(), AcceptError> {
        let terms = Terms::default();
        self.accept_under(now, handle, domain, queues, &terms, private_data)
    }

    /// Accepts a request as [`Engine::accept`] does, with terms for this connection.
    ///
    /// # Errors
    /// Returns [`AcceptError`]; each variant names one cause.
    pub fn accept_under(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        queues: impl Into<Queues>,
        terms: &Terms,
        private_data: &[u8],
    ) -> Result<(), AcceptError> {
        terms.check()?;
        if private_data.len() > PRIVATE_BYTES_MAX {
            return Err(AcceptError::PrivateData(private_data.len()));
        }
        let (connections, mut parts) = self.lend();
        let mut connection = connections.take_handle(handle).ok_or(AcceptError::Gone)?;
        let place = connection.attempt().and_then(Attempt::first);
        let (Phase::Requested, Some(parameters), Some((link, peer))) =
            (connection.phase(), connection.names().peer().copied(), place)
        else {
            connections.put(connection);
            return Err(AcceptError::Gone);
        };
        parts.reception.on_accepted(peer);
        let terms = OwnTerms::new(parts.config, terms);
        let operations = (granted(parts.config, &parameters), domain, queues.into());
        connection.accept(now, parts.config, peer, operations, terms, private_data);
        connection.on_peer_wants(parameters.features);
        let state = PathState::validated(now);
        parts.open_path(now, &mut connection, LinkIndex(0), (link, peer), Life::Settled, state);
        parts.peers.learn(connection.names().of_peer(), handle.index);
        parts.put_back(connections, connection);
        Ok(())
    }

    /// Rejects a request. The peer receives the first 512 bytes of `private_data`.
    ///
    /// # Errors
    /// Returns [`Unknown`] if there is no such connection.
    pub fn reject(&mut self, handle: ConnectionHandle, private_data: &[u8]) -> Result<(), Unknown> {
        let reject = |parts: &mut Parts<'_>, connection: &mut Connection| {
            if connection.phase() == Phase::Requested {
                parts.reject_request(connection, private_data);
            }
        };
        self.with_handle(handle, reject).ok_or(Unknown)
    }

    //= protocol.md: frame.3, amplify.2
    /// Handles a handshake frame.
    #[cold]
    pub(crate) fn handle_handshake(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        link: LinkId,
        frame: &RxFrame<'_>,
    ) {
        let mut parts = self.parts();
        if !parts.links.is_attached(link) {
            // The link is not attached. Without an attached link, this end cannot reply, and a
            // connection cannot use the link.
            parts.counters.wrong_address += 1;
            return;
        }
        let from = frame.from;
        let decoded = match wire_edge::decode_handshake(frame.bytes) {
            Ok(decoded) => decoded,
            Err(DecodeError::Version(_)) => {
                parts.counters.unsupported += 1;
                return parts.on_other_version(now, link, from, frame.bytes);
            }
            Err(_) => {
                parts.counters.malformed += 1;
                return;
            }
        };
        let HandshakeFrame { source, destination, .. } = decoded;
        match decoded.body {
            Handshake::Hello { parameters, cookie, private_data, .. } => {
                let hello = Hello { source, parameters, cookie, private_data };
                self.on_hello(now, link, from, &hello);
            }
            Handshake::Reset { epoch, packet } => {
                self.on_reset(memory, from, source, epoch, packet);
            }
            body => self.on_answer(now, link, from, source, destination, &body),
        }
    }
}

impl Parts<'_> {
    //= protocol.md: set-up.1, silence.1
    /// Sends the next handshake frame of a connection, if the frame is due.
    pub(crate) fn serve_handshake(&mut self, now: Instant, connection: &mut Connection) {
        if !connection.retry().is_due(now) {
            return;
        }
        let Some(attempt) = connection.attempt() else { return };
        // The pause between repetitions grows only after this end has sent one more Hello to every
        // address.
        let said = usize::from(connection.retry().count());
        let rounds = match connection.phase() {
            Phase::Connecting => said / attempt.places().len().max(1),
            _ => said,
        };
        let pause_ns = (HANDSHAKE_RETRY_NS << rounds.min(6)).min(HANDSHAKE_RETRY_NS_MAX);
        // The random part separates the frames of hosts that start at the same time, for instance
        // after a power failure. Without it, these hosts would repeat their frames at the same
        // times.
        let spread_ns = self.random() % (pause_ns / 4);
        connection.retry_mut().again(now.after_ns(pause_ns + spread_ns));
        let phase = connection.phase();
        let Some(attempt) = connection.attempt_mut() else { return };
        let place = match phase {
            Phase::Connecting => attempt.poll_place(),
            _ => attempt.first(),
        };
        let Some(attempt) = connection.attempt() else { return };
        let addresses = self.local_addresses(place.as_ref(), attempt.private_data().len());
        let addresses = Addresses::from_slice(&addresses);
        let parameters = self.parameters(connection, attempt.service());
        let private_data = attempt.private_data();
        let body = match phase {
            Phase::Connecting => {
                Handshake::Hello { parameters, cookie: attempt.cookie(), addresses, private_data }
            }
            Phase::Accepted => {
                let parameters = Parameters { service: 0, ..parameters };
                Handshake::Accept { parameters, addresses, private_data }
            }
            _ => return connection.retry_mut().pause(),
        };
        if let Some((link, to)) = place {
            let (peer_id, _) = connection.names().of_peer();
            self.reply(link, to, peer_id, connection.names().id(), body);
        }
    }

    //= protocol.md: amplify.1, reset.1
    /// Answers a frame of an unknown connection by a Reset. Such a frame arrives if a peer still
    /// uses a connection from before this endpoint started.
    #[cold]
    pub(crate) fn reset(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &RxFrame<'_>,
        id: ConnectionId,
        epoch: Epoch,
    ) {
        let Ok(decoded) = wire_edge::decode_split(frame.bytes, frame.outside.len()) else { return };
        // Limit the rate of Resets. Send no Reset that would be longer than the frame that causes
        // it.
        if frame.len() < RESET_BYTES || !self.reception.may_reset(now) {
            self.counters.rate_limited += 1;
            return;
        }
        self.counters.resets_sent += 1;
        let body = Handshake::Reset { epoch, packet: decoded.prefix.packet };
        self.reply(link, frame.from, ConnectionId(0), id, body);
    }

    /// Rejects a request of a peer, and ends the connection of the request.
    pub(crate) fn reject_request(&mut self, connection: &mut Connection, private_data: &[u8]) {
        let kept = private_data.len().min(PRIVATE_BYTES_MAX);
        let body = Handshake::Reject {
            reason: RejectReason::Application,
            private_data: private_data.get(..kept).unwrap_or_default(),
        };
        let place = connection.attempt().and_then(Attempt::first);
        if let Some((link, to)) = place {
            let (peer_id, _) = connection.names().of_peer();
            self.reply(link, to, peer_id, ConnectionId(0), body);
            self.reception.on_request_over(to);
        }
        self.counters.handshakes_refused += 1;
        connection.end();
    }

    /// Adds a link to a connection. Returns false if the link is not attached, or if this end does
    /// not have the parameters of the peer.
    pub(crate) fn open_path(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        (link, peer): (LinkId, PeerAddr),
        life: Life,
        state: PathState,
    ) -> bool {
        let (Some(caps), Some(parameters)) =
            (self.links.caps(link), connection.names().peer().copied())
        else {
            return false;
        };
        let mut path = Path::new(now, index, (link, peer), caps, self.config, &parameters);
        if let Some(before) = connection.paths_mut().take_retired(index) {
            path = before.renew(path, now, caps, self.config, &parameters);
        }
        path.begin(life, state);
        connection.paths_mut().open(path);
        let links = connection.paths().len();
        connection.spreading_mut().on_opened(links);
        true
    }

    //= protocol.md: set-up.18, join.3, join.8, index.2
    /// Returns a free link index of a connection, within the limits of both ends. Returns `None` if
    /// no index may be used.
    ///
    /// * The initiator uses low indices and the responder uses high indices, so that the two ends
    ///   rarely open two links under one index.
    /// * This function prefers an index that was free for a long time to an index that was used
    ///   recently.
    /// * With `at_once`, returns only an index under which the peer accepts a new link immediately.
    pub(crate) fn free_index(
        &self,
        connection: &Connection,
        at_once: Option<Instant>,
    ) -> Option<LinkIndex> {
        let theirs = connection.names().peer().map_or(1, |peer| peer.links_max.min(16) as u8);
        let limit = self.config.links_max.min(theirs).min(LinkIndex::MAX + 1);
        let used_at = |index: LinkIndex| match connection.paths().retired(index) {
            Some(retired) if retired.reusable_at() > self.turn_at => retired.at.after_ns(1),
            _ => Instant::default(),
        };
        let responds = !connection.is_initiator();
        let order =
            (0..limit).map(|turn| LinkIndex(if responds { limit - 1 - turn } else { turn }));
        order
            .filter(|&index| connection.paths().with(index).is_none())
            .filter(|&index| {
                let retired = connection.paths().retired(index);
                at_once.is_none() || retired.is_none_or(|was| at_once >= Some(was.reusable_at()))
            })
            .min_by_key(|&index| used_at(index))
    }

    //= protocol.md: preamble.2
    fn on_other_version(&mut self, now: Instant, link: LinkId, from: PeerAddr, bytes: &[u8]) {
        let Ok(preamble) = wire_edge::preamble(bytes) else { return };
        let hello = Handshake::Hello {
            parameters: NO_PARAMETERS,
            cookie: [0; wire_edge::COOKIE_BYTES],
            addresses: Addresses::NONE,
            private_data: &[],
        };
        if preamble.step == hello.step() && self.reception.may_answer(now) {
            let body = Handshake::VersionMismatch { lowest: VERSION, highest: VERSION };
            self.reply(link, from, preamble.source, ConnectionId(0), body);
        }
    }
}

impl Engine {
    fn on_hello(&mut self, now: Instant, link: LinkId, from: PeerAddr, hello: &Hello<'_>) {
        let parts = self.parts();
        parts.counters.hellos_received += 1;
        let reject = |reason| Handshake::Reject { reason, private_data: &[] };
        let body = match parts.reception.admit(now, parts.counters, from, hello) {
            Admission::Ignored => return,
            Admission::Repeated(index) => {
                return self.on_repeated_hello(now, link, from, hello.source, index);
            }
            Admission::Welcome => {
                if let Some(connection) = self.fresh_connection(Phase::Requested) {
                    return self.begin_request(now, link, from, hello, connection);
                }
                self.parts().counters.handshakes_refused += 1;
                reject(RejectReason::ConnectionLimit)
            }
            Admission::Refused(reason) => reject(reason),
            Admission::Prove(cookie) => Handshake::Retry { cookie },
        };
        self.parts().reply(link, from, hello.source, ConnectionId(0), body);
    }

    //= protocol.md: phase.4
    /// Ends all requests of the host at `from` that wait for the application. The caller does this
    /// when it ends a connection that this host has not confirmed in time. If an initiator still
    /// wants its connection, it repeats its Hello.
    pub(crate) fn withdraw_requests(&mut self, from: PeerAddr) {
        if !self.parts().reception.has_requests_of(from) {
            return;
        }
        for index in self.connections().indices() {
            let place = self.connections().at(index).and_then(|connection| {
                let is_request = connection.phase() == Phase::Requested;
                connection.attempt()?.first().map(|place| place.1).filter(|_| is_request)
            });
            let Some(peer) = place.filter(|peer| peer.host() == from.host()) else { continue };
            self.with_index(index, |parts, connection| {
                parts.reception.on_request_over(peer);
                parts.counters.handshakes_refused += 1;
                let reason =
                    Closed::Unreachable { peer, silence_ms: parts.config.confirm_ns / 1_000_000 };
                parts.end(connection, reason, Vec::new());
            });
        }
    }

    //= protocol.md: set-up.9
    fn begin_request(
        &mut self,
        now: Instant,
        link: LinkId,
        from: PeerAddr,
        hello: &Hello<'_>,
        mut connection: Box<Connection>,
    ) {
        let handle = connection.handle();
        connection.names_mut().on_requested(hello);
        let service = hello.parameters.service;
        connection.begin_request(Attempt::new(now, service, vec![(link, from)], Vec::new()));
        let parts = self.parts();
        parts.reception.on_requested(from, hello.key(), handle.index);
        parts.news.push(Event::Requested {
            connection: handle,
            service,
            peer: from,
            queue_pair: hello.parameters.features.contains(Features::QUEUE_PAIR),
            private_data: hello.private_data.to_vec(),
        });
        self.adopt(connection);
    }

    //= protocol.md: set-up.6
    fn on_repeated_hello(
        &mut self,
        now: Instant,
        link: LinkId,
        from: PeerAddr,
        source: ConnectionId,
        index: u32,
    ) {
        self.with_index(index, |parts, connection| match connection.phase() {
            Phase::Requested => {
                parts.reply(link, from, source, ConnectionId(0), Handshake::Pending);
            }
            Phase::Accepted => connection.retry_mut().set(now),
            _ => {}
        });
    }

    //= protocol.md: set-up.11, set-up.12, set-up.14, set-up.15, set-up.16
    /// Handles an answer to a Hello of this end.
    fn on_answer(
        &mut self,
        now: Instant,
        link: LinkId,
        from: PeerAddr,
        source: ConnectionId,
        destination: ConnectionId,
        body: &Handshake<'_>,
    ) {
        let (connections, parts) = self.lend();
        let Some(index) = connections.find(destination) else {
            parts.counters.unknown_connection += 1;
            return;
        };
        self.with_index(index, |parts, connection| {
            if connection.phase() != Phase::Connecting {
                // The peer repeats its Accept until a packet of this end arrives. So this end sends
                // a packet.
                if let (Handshake::Accept { .. }, Phase::Established) = (body, connection.phase())
                    && let Some(path) = connection.paths_mut().first_mut()
                    && path.send().in_flight_bytes() == 0
                {
                    path.say(PING);
                }
                return;
            }
            let asked = connection.attempt().is_some_and(|attempt| attempt.asks_at((link, from)));
            if !asked {
                // This end sent no Hello to that address. The sender of this answer therefore
                // guessed the ids.
                parts.counters.wrong_address += 1;
                return;
            }
            match *body {
                Handshake::Retry { cookie } => {
                    if let Some(attempt) = connection.attempt_mut() {
                        attempt.on_cookie((link, from), cookie);
                    }
                    connection.retry_mut().begin(now);
                }
                Handshake::Pending => {
                    connection.liveness_mut().on_progress(Some(now));
                    connection.retry_mut().defer(now.after_ns(PENDING_RETRY_NS));
                }
                Handshake::Accept { ref parameters, addresses, private_data } => {
                    let place = (link, from);
                    parts.on_accept(now, connection, place, source, parameters, addresses);
                    parts.news.push(Event::Established {
                        connection: connection.handle(),
                        private_data: private_data.to_vec(),
                    });
                }
                Handshake::Reject { reason: RejectReason::Moved, private_data }
                    if follows(connection, (link, from), private_data) =>
                {
                    connection.retry_mut().begin(now);
                }
                Handshake::Reject { reason, private_data } => {
                    parts.counters.handshakes_failed += 1;
                    parts.end(connection, Closed::Rejected(reason), private_data.to_vec());
                }
                Handshake::VersionMismatch { lowest, highest }
                    if (lowest..=highest).contains(&VERSION) =>
                {
                    parts.counters.unsupported += 1;
                }
                Handshake::VersionMismatch { lowest, highest } => {
                    parts.counters.handshakes_failed += 1;
                    parts.end(connection, Closed::Version { lowest, highest }, Vec::new());
                }
                Handshake::Hello { .. } | Handshake::Reset { .. } => {}
            }
        });
    }
}

impl Parts<'_> {
    //= protocol.md: set-up.13, set-up.14
    fn on_accept(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        (link, from): (LinkId, PeerAddr),
        source: ConnectionId,
        parameters: &Parameters,
        addresses: Addresses<'_>,
    ) {
        connection.names_mut().on_accepted(source, parameters);
        connection.outbound_mut().set_peer_limits(granted(self.config, parameters));
        connection.on_peer_wants(parameters.features);
        let attempt = connection.establish(now, self.config);
        self.counters.handshakes_completed += 1;
        self.peers.learn(connection.names().of_peer(), connection.handle().index);
        let state = PathState::validated(now);
        self.open_path(now, connection, LinkIndex(0), (link, from), Life::Settled, state);
        if let Some(path) = connection.paths_mut().first_mut() {
            path.say(PING);
        }
        let asked = attempt.map_or_else(Vec::new, |attempt| attempt.into_places());
        let known = Joining::new((link, from), asked, addresses.iter());
        connection.pairs_mut().begin(known);
    }
}

impl Engine {
    //= protocol.md: close.6, reset.2, reset.3
    /// Handles a Reset: the peer does not know the connection. Ignores the Reset if it does not
    /// name a packet that this end sent.
    fn on_reset(
        &mut self,
        _memory: &MemoryAccess<'_>,
        from: PeerAddr,
        source: ConnectionId,
        epoch: Epoch,
        packet: u32,
    ) {
        let parts = self.parts();
        let Some(index) = parts.peers.find((source, epoch)) else {
            parts.counters.resets_ignored += 1;
            return;
        };
        self.with_index(index, |parts, connection| {
            let answers_us = connection.paths().iter().any(|path| {
                path.peer() == from && path.has_sent_lately(packet) && connection.is_peer_at(path)
            });
            if !answers_us {
                parts.counters.resets_ignored += 1;
                return;
            }
            parts.counters.resets_accepted += 1;
            match connection.phase() {
                Phase::Closing | Phase::Drained => connection.end(),
                // The peer has removed the connection after its Close. Its last operations may
                // still arrive on another link.
                _ if connection.is_parting() => {}
                _ => parts.end(connection, Closed::PeerRestarted, Vec::new()),
            }
        });
    }
}

impl Parts<'_> {
    /// Queues a handshake frame for an address, with the given connection ids.
    fn reply(
        &mut self,
        link: LinkId,
        to: PeerAddr,
        destination: ConnectionId,
        source: ConnectionId,
        body: Handshake<'_>,
    ) {
        self.replies.push(self.counters, (link, to), destination, source, body);
    }

    /// Returns the addresses of this end, at most as many as fit into a frame to `place`.
    fn local_addresses(
        &self,
        place: Option<&(LinkId, PeerAddr)>,
        private_bytes: usize,
    ) -> Vec<PeerAddr> {
        let caps = place.and_then(|&(link, _)| self.links.caps(link));
        let frame_bytes = caps.map_or(0, |caps| usize::from(caps.frame_bytes_max));
        let room = frame_bytes.saturating_sub(HELLO_BYTES + private_bytes) / size_of::<PeerAddr>();
        self.links.iter().map(|(_, caps)| caps.local).take(room).collect()
    }

    fn parameters(&mut self, connection: &Connection, service: u32) -> Parameters {
        let links = || self.links.iter().map(|(_, caps)| caps);
        let limits = connection.limits(self.config);
        Parameters {
            incarnation: self.incarnation,
            features: connection.features(self.config),
            epoch: connection.names().epoch(),
            links_max: u16::from(self.config.links_max.clamp(1, LinkIndex::MAX + 1)),
            frame_bytes_max: links().map(|caps| caps.frame_bytes_max).max().unwrap_or(1472),
            read_depth: limits.read_depth.min(READ_DEPTH_MAX),
            operation_window: self.config.operation_window.clamp(1, OPERATION_WINDOW_MAX),
            order_pool_bytes: limits.order_pool_bytes,
            receive_buffer_bytes: links()
                .map(|caps| caps.receive_buffer_bytes)
                .min()
                .unwrap_or(65_536),
            ack_delay_max_ns: self.config.acknowledgement.delay_max_ns(),
            receive_credit: connection.inbound().credit(),
            service,
        }
    }
}

//= protocol.md: moved.2
/// Continues the attempt at the place that the peer at `from` named in its answer, because the
/// service has moved there. Returns false if the attempt ignores the answer.
fn follows(
    connection: &mut Connection,
    (link, from): (LinkId, PeerAddr),
    private_data: &[u8],
) -> bool {
    let Ok(moved) = Moved::decode(private_data) else { return false };
    let (Some(there), Some(attempt)) = (moved.seen_from(from), connection.attempt_mut()) else {
        return false;
    };
    attempt.on_moved((link, there), moved.service)
}

/// Returns the limits that a peer grants in its parameters to an end with this configuration.
const fn granted(config: &EngineConfig, parameters: &Parameters) -> PeerLimits {
    PeerLimits {
        operation_window: parameters.operation_window,
        read_depth: parameters.read_depth,
        order_pool_bytes: parameters.order_pool_bytes,
        credit: parameters.receive_credit,
        patches: config.patches && parameters.features.contains(Features::PATCH),
    }
}

/// Pause before the first repetition of a handshake frame, in nanoseconds. The pause doubles with
/// each repetition.
const HANDSHAKE_RETRY_NS: u64 = 10_000_000;
/// Longest pause between repetitions of a handshake frame, in nanoseconds.
const HANDSHAKE_RETRY_NS_MAX: u64 = 500_000_000;
/// Pause before the next Hello after a Pending, in nanoseconds. The pause is long because the
/// peer's application already has the request, and a further Hello only shows that this end still
/// waits.
const PENDING_RETRY_NS: u64 = 500_000_000;
/// Bytes of a Hello without addresses and private data. An Accept is shorter.
const HELLO_BYTES: usize = 112;
/// Bytes of a Reset on the wire.
const RESET_BYTES: usize = 24;

const NO_PARAMETERS: Parameters = Parameters {
    incarnation: 0,
    features: Features::NONE,
    epoch: Epoch(0),
    links_max: 1,
    frame_bytes_max: 256,
    read_depth: 0,
    operation_window: 1,
    order_pool_bytes: 0,
    receive_buffer_bytes: 0,
    ack_delay_max_ns: 0,
    receive_credit: wire_edge::MessageNumber(0),
    service: 0,
};

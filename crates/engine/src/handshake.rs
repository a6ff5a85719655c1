//! Connection set-up: Hello, Retry, Accept, Reject, Pending, and what strangers are told.

use delivery::{CookieError, Instant, LinkId, PathState, RxFrame};
use mem::{MemoryAccess, ProtectionDomain};
use rand_chacha::rand_core::Rng;
use semantics::{PeerLimits, Queues};
use wire_edge::{
    Addresses, ConnectionId, DecodeError, Epoch, Features, HANDSHAKE_BYTES_MAX, Handshake,
    HandshakeFrame, LinkIndex, PRIVATE_BYTES_MAX, Parameters, PeerAddr, RejectReason, VERSION,
};

use crate::config::{OPERATION_WINDOW_MAX, READ_DEPTH_MAX};
use crate::connection::{Connection, HandshakeState, Phase};
use crate::control::PING;
use crate::engine::{Engine, REPLIES_MAX};
use crate::event::{AcceptError, Closed, ConnectionHandle, Event, Unknown};
use crate::join::Joining;
use crate::life::Life;
use crate::path::Path;

/// A handshake frame on its way out.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) link: LinkId,
    pub(crate) to: PeerAddr,
    pub(crate) bytes: Vec<u8>,
}

/// What is the same in every Hello of one attempt to connect, from whichever address.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct HelloKey {
    incarnation: u64,
    source: ConnectionId,
    epoch: Epoch,
    service: u32,
}

delivery::pack_fields!(HelloKey { incarnation, source, epoch, service });

impl HelloKey {
    //= protocol.md: set-up.10
    const fn of(hello: &Hello<'_>) -> Self {
        let Parameters { incarnation, epoch, service, .. } = hello.parameters;
        Self { incarnation, source: hello.source, epoch, service }
    }
}

/// A request of a peer, as decoded.
struct Hello<'a> {
    source: ConnectionId,
    parameters: Parameters,
    cookie: [u8; wire_edge::COOKIE_BYTES],
    private_data: &'a [u8],
}

impl Engine {
    /// Accepts a request: its peer may reach the regions of `domain`, completions go to `queues`.
    /// [`Event::Established`] follows when the peer is known to have heard.
    pub fn accept(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        queues: impl Into<Queues>,
        private_data: &[u8],
    ) -> Result<(), AcceptError> {
        if private_data.len() > PRIVATE_BYTES_MAX {
            return Err(AcceptError::PrivateData(private_data.len()));
        }
        let mut connection = self.connections.take_handle(handle).ok_or(AcceptError::Gone)?;
        let place =
            connection.handshake.as_ref().and_then(|state| state.candidates.first().copied());
        let (Phase::Requested, Some(parameters), Some((link, peer))) =
            (connection.phase, connection.peer, place)
        else {
            self.connections.put(connection);
            return Err(AcceptError::Gone);
        };
        self.requests.remove(peer);
        self.unconfirmed.add(peer);
        connection.unconfirmed_at = Some(peer);
        let queues = queues.into();
        connection.inbound = self.inbound(handle, domain, &queues);
        connection.outbound = self.outbound(handle, granted(&parameters), &queues);
        connection.queues = queues;
        connection.phase = Phase::Accepted;
        if let Some(state) = connection.handshake.as_mut() {
            state.private_data = private_data.to_vec();
            state.started_at = now;
        }
        let state = PathState::validated(now);
        self.open_path(now, &mut connection, LinkIndex(0), (link, peer), Life::Settled, state);
        self.by_peer.insert((connection.peer_id, connection.peer_epoch), handle.index);
        connection.silence.on_waiting(now);
        connection.retry_at = now;
        connection.retries = 0;
        self.put_back(connection);
        Ok(())
    }

    /// Rejects a request, with private data (at most 512 bytes, more is cut off).
    pub fn reject(&mut self, handle: ConnectionHandle, private_data: &[u8]) -> Result<(), Unknown> {
        let mut connection = self.connections.take_handle(handle).ok_or(Unknown)?;
        if connection.phase == Phase::Requested {
            self.refuse(&mut connection, private_data);
        }
        self.put_back(connection);
        Ok(())
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
        if !self.links.get(usize::from(link.0)).is_some_and(Option::is_some) {
            // Nothing could be answered there, nor a connection go on.
            self.counters.wrong_address += 1;
            return;
        }
        let from = frame.from;
        let decoded = match wire_edge::decode_handshake(frame.bytes) {
            Ok(decoded) => decoded,
            Err(DecodeError::Version(_)) => {
                self.counters.unsupported += 1;
                return self.on_other_version(now, link, from, frame.bytes);
            }
            Err(_) => {
                self.counters.malformed += 1;
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

    //= protocol.md: set-up.1, silence.1
    /// Sends what a connection in set-up has to send, if it is time.
    pub(crate) fn serve_handshake(&mut self, now: Instant, connection: &mut Connection) {
        if connection.retry_at > now {
            return;
        }
        let Some(mut state) = connection.handshake.take() else { return };
        // Each address is asked before the pauses grow.
        let rounds = match connection.phase {
            Phase::Connecting => usize::from(connection.retries) / state.candidates.len().max(1),
            _ => usize::from(connection.retries),
        };
        let pause_ns = (HANDSHAKE_RETRY_NS << rounds.min(6)).min(HANDSHAKE_RETRY_NS_MAX);
        // Those who began together, after a power failure say, do not go on together.
        let spread_ns = self.random() % (pause_ns / 4);
        connection.retry_at = now.after_ns(pause_ns + spread_ns);
        connection.retries = connection.retries.saturating_add(1);
        let place = match connection.phase {
            Phase::Connecting => state.candidates.get(state.candidate),
            _ => state.candidates.first(),
        };
        let addresses = self.local_addresses(place, state.private_data.len());
        let parameters = self.parameters(connection, state.service);
        match connection.phase {
            Phase::Connecting => {
                let body = Handshake::Hello {
                    parameters,
                    cookie: state.cookie,
                    addresses: Addresses::from_slice(&addresses),
                    private_data: &state.private_data,
                };
                if let Some(&(link, to)) = state.candidates.get(state.candidate) {
                    self.reply(link, to, ConnectionId(0), connection.id, body);
                }
                state.candidate = (state.candidate + 1) % state.candidates.len().max(1);
            }
            Phase::Accepted => {
                let body = Handshake::Accept {
                    parameters: Parameters { service: 0, ..parameters },
                    addresses: Addresses::from_slice(&addresses),
                    private_data: &state.private_data,
                };
                if let Some(&(link, to)) = state.candidates.first() {
                    self.reply(link, to, connection.peer_id, connection.id, body);
                }
            }
            _ => connection.retry_at = Instant::NEVER,
        }
        connection.handshake = Some(state);
    }

    //= protocol.md: reset.1
    /// A frame of a connection that does not exist: its sender may mean one from before this endpoint started.
    #[cold]
    pub(crate) fn on_unknown_connection(
        &mut self,
        now: Instant,
        link: LinkId,
        frame: &RxFrame<'_>,
        id: ConnectionId,
        epoch: Epoch,
    ) {
        self.counters.unknown_connection += 1;
        self.reset(now, link, frame, id, epoch);
    }

    //= protocol.md: amplify.1, reset.1
    /// Answers a frame of no connection with a reset.
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
        // A reset is no longer than the frame that asked for it, and there are only so many.
        if frame.len() < RESET_BYTES || !self.reset_limit.allow(now) {
            self.counters.rate_limited += 1;
            return;
        }
        self.counters.resets_sent += 1;
        let body = Handshake::Reset { epoch, packet: decoded.prefix.packet };
        self.reply(link, frame.from, ConnectionId(0), id, body);
    }

    /// Says no to the peer of a request, and ends it.
    pub(crate) fn refuse(&mut self, connection: &mut Connection, private_data: &[u8]) {
        let kept = private_data.len().min(PRIVATE_BYTES_MAX);
        let body = Handshake::Reject {
            reason: RejectReason::Application,
            private_data: private_data.get(..kept).unwrap_or_default(),
        };
        let place =
            connection.handshake.as_ref().and_then(|state| state.candidates.first().copied());
        if let Some((link, to)) = place {
            self.reply(link, to, connection.peer_id, ConnectionId(0), body);
            self.requests.remove(to);
        }
        self.counters.handshakes_refused += 1;
        connection.phase = Phase::Gone;
    }

    /// Adds a link to a connection.
    pub(crate) fn open_path(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        (link, peer): (LinkId, PeerAddr),
        life: Life,
        state: PathState,
    ) -> bool {
        let (Some(Some(known)), Some(parameters)) =
            (self.links.get(usize::from(link.0)), connection.peer.as_ref())
        else {
            return false;
        };
        let mut path = Path::new(now, index, link, peer, &known.caps, &self.config, parameters);
        if let Some(before) = connection.paths.take_retired(index) {
            path = before.renew(path, now, &known.caps, &self.config, parameters);
        }
        path.begin(life, state);
        connection.paths.open(path);
        if connection.paths.len() > 1 && connection.scheduler.is_none() {
            connection.scheduler = Some(Box::default());
        }
        true
    }

    //= protocol.md: set-up.18, join.3, join.8, index.2
    /// A link index that is free on a connection, within the limits of both sides. The initiator
    /// takes the lowest and the responder the highest, so that they do not open two links under one
    /// index; one that was not used lately is preferred.
    /// With a time, only those that the peer takes for a new link at once are considered.
    pub(crate) fn free_index(
        &self,
        connection: &Connection,
        at_once: Option<Instant>,
    ) -> Option<LinkIndex> {
        let theirs = connection.peer.as_ref().map_or(1, |peer| peer.links_max.min(16) as u8);
        let limit = self.config.links_max.min(theirs).min(LinkIndex::MAX + 1);
        let used_at = |index: LinkIndex| match connection.paths.retired(index) {
            Some(retired) if retired.rested_at() > self.turn_at => retired.at.after_ns(1),
            _ => Instant::default(),
        };
        let responds = connection.hello_key.is_some();
        let order =
            (0..limit).map(|turn| LinkIndex(if responds { limit - 1 - turn } else { turn }));
        order
            .filter(|&index| connection.paths.with(index).is_none())
            .filter(|&index| {
                let retired = connection.paths.retired(index);
                at_once.is_none() || retired.is_none_or(|was| at_once >= Some(was.rested_at()))
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
        if preamble.step == hello.step() && self.reply_limit.allow(now) {
            let body = Handshake::VersionMismatch { lowest: VERSION, highest: VERSION };
            self.reply(link, from, preamble.source, ConnectionId(0), body);
        }
    }

    //= protocol.md: set-up.2, set-up.3, set-up.4, set-up.5, set-up.7, set-up.8, cookie.1, amplify.1
    fn on_hello(&mut self, now: Instant, link: LinkId, from: PeerAddr, hello: &Hello<'_>) {
        self.counters.hellos_received += 1;
        let Hello { source, parameters, .. } = *hello;
        let cookie = self.cookies.verify(now, from, source, parameters.service, &hello.cookie);
        // Who shows a cookie is known to be there; of strangers only so many are answered.
        if cookie.is_err() && !self.reply_limit.allow(now) {
            self.counters.rate_limited += 1;
            return;
        }
        let reject = |reason| Handshake::Reject { reason, private_data: &[] };
        if !self.listeners.contains(&parameters.service) {
            let body = reject(RejectReason::NoListener);
            return self.reply(link, from, source, ConnectionId(0), body);
        }
        if let Err(error) = cookie {
            let has_cookie = hello.cookie != [0; wire_edge::COOKIE_BYTES];
            match error {
                CookieError::Expired => self.counters.cookies_expired += 1,
                CookieError::Forged => self.counters.cookies_forged += u64::from(has_cookie),
            }
            self.counters.retries_sent += 1;
            let cookie = self.cookies.issue(now, from, source, parameters.service);
            return self.reply(link, from, source, ConnectionId(0), Handshake::Retry { cookie });
        }
        if let Some(&index) = self.hellos.get(&HelloKey::of(hello)) {
            return self.on_repeated_hello(now, link, from, source, index);
        }
        if self.unconfirmed.of(from) >= self.unconfirmed_share() {
            // It may ask again: each that it confirms makes room.
            self.counters.rate_limited += 1;
            return;
        }
        let slot = if self.has_room_for_request(from) { self.reserve_connection() } else { None };
        let Some((handle, id)) = slot else {
            self.counters.handshakes_refused += 1;
            let body = reject(RejectReason::ConnectionLimit);
            return self.reply(link, from, source, ConnectionId(0), body);
        };
        self.begin_request(now, link, from, hello, handle, id);
    }

    //= protocol.md: phase.1
    /// Whether one more request of the host at `from` may wait: however many it makes, others have room.
    fn has_room_for_request(&self, from: PeerAddr) -> bool {
        let share = (self.config.requests_max / HOST_SHARE).max(1);
        self.requests.all() < self.config.requests_max && self.requests.of(from) < share
    }

    //= protocol.md: phase.2
    /// Connections that one host may leave unconfirmed at a time.
    fn unconfirmed_share(&self) -> u32 {
        (self.connections.limit() / HOST_SHARE).max(1)
    }

    /// The peer has confirmed the connection, or it is over.
    pub(crate) fn forget_unconfirmed(&mut self, connection: &mut Connection) {
        if let Some(peer) = connection.unconfirmed_at.take() {
            self.unconfirmed.remove(peer);
        }
    }

    //= protocol.md: phase.3
    /// Whether a connection that was accepted has been unconfirmed for so long that others come first:
    /// requests that wait for the application, or connections to be.
    pub(crate) fn is_overdue(&self, now: Instant, connection: &Connection) -> bool {
        let (Some(peer), Some(state)) = (connection.unconfirmed_at, &connection.handshake) else {
            return false;
        };
        let limit = self.connections.limit();
        let is_pressed = self.requests.all() > 0
            || self.unconfirmed.of(peer) > self.unconfirmed_share() / 2
            || self.connections.used() > limit - limit / HOST_SHARE;
        is_pressed && state.started_at.after_ns(CONFIRM_NS) <= now
    }

    //= protocol.md: phase.4
    /// A host leaves connections unconfirmed while others wait: its requests give way, too. Who means
    /// them asks again.
    pub(crate) fn withdraw_requests(&mut self, from: PeerAddr) {
        if self.requests.of(from) == 0 {
            return;
        }
        for index in self.connections.indices() {
            let place = self.connections.at(index).and_then(|connection| {
                let state = connection.handshake.as_ref()?;
                let is_request = connection.phase == Phase::Requested;
                state.candidates.first().map(|place| place.1).filter(|_| is_request)
            });
            let Some(peer) = place.filter(|peer| peer.host() == from.host()) else { continue };
            self.requests.remove(peer);
            self.counters.handshakes_refused += 1;
            let reason = Closed::Unreachable { peer, silence_ms: CONFIRM_NS / 1_000_000 };
            self.with_index(index, |engine, connection| engine.end(connection, reason, Vec::new()));
        }
    }

    //= protocol.md: set-up.9
    fn begin_request(
        &mut self,
        now: Instant,
        link: LinkId,
        from: PeerAddr,
        hello: &Hello<'_>,
        handle: ConnectionHandle,
        id: ConnectionId,
    ) {
        let mut connection = self.fresh_connection(handle, id, Phase::Requested);
        connection.peer_id = hello.source;
        connection.peer_epoch = hello.parameters.epoch;
        connection.peer = Some(hello.parameters);
        connection.hello_key = Some(HelloKey::of(hello));
        connection.handshake = Some(Box::new(HandshakeState {
            started_at: now,
            service: hello.parameters.service,
            candidates: vec![(link, from)],
            candidate: 0,
            cookie: hello.cookie,
            private_data: Vec::new(),
        }));
        self.hellos.insert(HelloKey::of(hello), handle.index);
        self.requests.add(from);
        self.events.push_back(Event::Requested {
            connection: handle,
            service: hello.parameters.service,
            peer: from,
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
        self.with_index(index, |engine, connection| match connection.phase {
            Phase::Requested => {
                engine.reply(link, from, source, ConnectionId(0), Handshake::Pending);
            }
            Phase::Accepted => connection.retry_at = now,
            _ => {}
        });
    }

    //= protocol.md: set-up.11, set-up.12, set-up.14, set-up.15, set-up.16
    /// Handles an answer to a Hello of ours.
    fn on_answer(
        &mut self,
        now: Instant,
        link: LinkId,
        from: PeerAddr,
        source: ConnectionId,
        destination: ConnectionId,
        body: &Handshake<'_>,
    ) {
        let Some(index) = self.connections.find(destination) else {
            self.counters.unknown_connection += 1;
            return;
        };
        self.with_index(index, |engine, connection| {
            if connection.phase != Phase::Connecting {
                // The peer repeats its Accept until it hears something from us.
                if let (Handshake::Accept { .. }, Phase::Established) = (body, connection.phase)
                    && let Some(path) = connection.paths.first_mut()
                    && path.send.in_flight_bytes() == 0
                {
                    path.pending.say(PING);
                }
                return;
            }
            let asked = connection
                .handshake
                .as_ref()
                .is_some_and(|state| state.candidates.contains(&(link, from)));
            if !asked {
                // Nobody there was asked: it can only be a guess.
                engine.counters.wrong_address += 1;
                return;
            }
            match *body {
                Handshake::Retry { cookie } => {
                    if let Some(state) = connection.handshake.as_mut() {
                        state.cookie = cookie;
                        // The one that answered is asked again.
                        let answered = state.candidates.iter().position(|c| *c == (link, from));
                        state.candidate = answered.unwrap_or(state.candidate);
                    }
                    connection.retry_at = now;
                    connection.retries = 0;
                }
                Handshake::Pending => {
                    connection.silence.on_progress(now, true);
                    connection.retry_at = connection.retry_at.max(now.after_ns(PENDING_RETRY_NS));
                }
                Handshake::Accept { ref parameters, addresses, private_data } => {
                    let place = (link, from);
                    engine.on_accept(now, connection, place, source, parameters, addresses);
                    engine.events.push_back(Event::Established {
                        connection: connection.handle,
                        private_data: private_data.to_vec(),
                    });
                }
                Handshake::Reject { reason, private_data } => {
                    engine.counters.handshakes_failed += 1;
                    engine.end(connection, Closed::Rejected(reason), private_data.to_vec());
                }
                Handshake::VersionMismatch { lowest, highest }
                    if (lowest..=highest).contains(&VERSION) =>
                {
                    engine.counters.unsupported += 1;
                }
                Handshake::VersionMismatch { lowest, highest } => {
                    engine.counters.handshakes_failed += 1;
                    engine.end(connection, Closed::Version { lowest, highest }, Vec::new());
                }
                Handshake::Hello { .. } | Handshake::Reset { .. } => {}
            }
        });
    }

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
        connection.peer_id = source;
        connection.peer_epoch = parameters.epoch;
        connection.peer = Some(*parameters);
        connection.outbound.set_peer_limits(granted(parameters));
        connection.phase = Phase::Established;
        connection.retry_at = Instant::NEVER;
        connection.retries = 0;
        connection.silence.on_progress(now, false);
        connection.keep_alive_at = now.after_ns(self.config.keep_alive_ns);
        self.counters.handshakes_completed += 1;
        self.by_peer.insert((source, parameters.epoch), connection.handle.index);
        let state = PathState::validated(now);
        self.open_path(now, connection, LinkIndex(0), (link, from), Life::Settled, state);
        if let Some(path) = connection.paths.first_mut() {
            path.pending.say(PING);
        }
        let asked = connection.handshake.take().map_or_else(Vec::new, |state| state.candidates);
        connection.joining = Joining::new((link, from), asked, addresses.iter());
        connection.join_due = true;
    }

    //= protocol.md: close.6, reset.2, reset.3
    /// The peer does not know the connection any more, if the reset answers something we sent.
    fn on_reset(
        &mut self,
        _memory: &MemoryAccess<'_>,
        from: PeerAddr,
        source: ConnectionId,
        epoch: Epoch,
        packet: u32,
    ) {
        let Some(&index) = self.by_peer.get(&(source, epoch)) else {
            self.counters.resets_ignored += 1;
            return;
        };
        self.with_index(index, |engine, connection| {
            let answers_us = connection.paths.iter().any(|path| {
                let behind = path.send.next_packet().truncate().wrapping_sub(packet);
                let is_sent = (1..=RESET_PACKETS_MAX).contains(&behind);
                path.peer == from && is_sent && connection.is_peer_at(path)
            });
            if !answers_us {
                engine.counters.resets_ignored += 1;
                return;
            }
            engine.counters.resets_accepted += 1;
            match connection.phase {
                Phase::Closing | Phase::Drained => connection.phase = Phase::Gone,
                _ => engine.end(connection, Closed::PeerRestarted, Vec::new()),
            }
        });
    }

    //= protocol.md: amplify.3, amplify.4
    fn reply(
        &mut self,
        link: LinkId,
        to: PeerAddr,
        destination: ConnectionId,
        source: ConnectionId,
        body: Handshake<'_>,
    ) {
        if to.is_group() {
            // Whoever put it there, nobody asked from there.
            self.counters.wrong_address += 1;
            return;
        }
        if self.replies.len() >= REPLIES_MAX {
            self.counters.rate_limited += 1;
            return;
        }
        let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
        let frame = HandshakeFrame { version: VERSION, destination, source, body };
        let len = frame.encode(&mut bytes);
        bytes.truncate(len);
        self.replies.push_back(Reply { link, to, bytes });
    }

    /// As many of our addresses as a frame on the way to `place` has room for.
    fn local_addresses(
        &self,
        place: Option<&(LinkId, PeerAddr)>,
        private_bytes: usize,
    ) -> Vec<PeerAddr> {
        let link = place.and_then(|(link, _)| self.links.get(usize::from(link.0))?.as_ref());
        let frame_bytes = link.map_or(0, |link| usize::from(link.caps.frame_bytes_max));
        let room = frame_bytes.saturating_sub(HELLO_BYTES + private_bytes) / size_of::<PeerAddr>();
        self.links.iter().flatten().map(|link| link.caps.local).take(room).collect()
    }

    fn parameters(&mut self, connection: &Connection, service: u32) -> Parameters {
        let links = || self.links.iter().flatten();
        Parameters {
            incarnation: self.incarnation,
            features: Features::NONE,
            epoch: connection.epoch,
            links_max: u16::from(self.config.links_max.clamp(1, LinkIndex::MAX + 1)),
            frame_bytes_max: links().map(|link| link.caps.frame_bytes_max).max().unwrap_or(1472),
            read_depth: self.config.read_depth.min(READ_DEPTH_MAX),
            operation_window: self.config.operation_window.clamp(1, OPERATION_WINDOW_MAX),
            order_pool_bytes: self.config.order_pool_bytes,
            receive_buffer_bytes: links()
                .map(|link| link.caps.receive_buffer_bytes)
                .min()
                .unwrap_or(65_536),
            ack_delay_max_ns: self.config.acknowledgement.delay_max_ns(),
            receive_credit: connection.inbound.credit(),
            service,
        }
    }
}

impl Engine {
    /// Fresh random bits.
    pub(crate) fn random(&mut self) -> u64 {
        self.entropy.next_u64()
    }
}

/// What a peer grants by its parameters.
const fn granted(parameters: &Parameters) -> PeerLimits {
    PeerLimits {
        operation_window: parameters.operation_window,
        read_depth: parameters.read_depth,
        order_pool_bytes: parameters.order_pool_bytes,
        credit: parameters.receive_credit,
    }
}

/// One host's requests that wait are at most this part of all, and its unconfirmed connections: four must
/// join to shut others out.
const HOST_SHARE: u32 = 4;
/// Time to confirm a connection while others wait, in nanoseconds: four Accepts, of which three may be lost,
/// and round trips of a continent.
const CONFIRM_NS: u64 = 200_000_000;
/// Pause before the first repetition of a handshake frame; doubles with each.
const HANDSHAKE_RETRY_NS: u64 = 10_000_000;
/// Longest pause between repetitions.
const HANDSHAKE_RETRY_NS_MAX: u64 = 500_000_000;
/// Pause after the peer said that its application has the request.
const PENDING_RETRY_NS: u64 = 500_000_000;
/// Bytes of a Hello without addresses and private data; those of an Accept are fewer.
const HELLO_BYTES: usize = 112;
/// Bytes of a reset on the wire.
const RESET_BYTES: usize = 24;
/// A reset must name one of the last so many packets: no guess of one who does not see them hits.
pub(crate) const RESET_PACKETS_MAX: u32 = 4096;

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

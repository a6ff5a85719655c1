//! One connection: its ids and epochs, its phase, its links, and the operations of both directions.

use delivery::{Instant, LinkState, Pack, Packer, Unpacker};
use mem::ProtectionDomain;
use semantics::{Inbound, InboundLimits, Outbound, Owner, PeerLimits, Queues};
use wire_edge::{CloseReason, Features, LinkIndex, MessageNumber, OperationNumber, PeerAddr};

use crate::ack_duty::{AckDuty, Moment};
use crate::asks::Asks;
use crate::attempt::Attempt;
use crate::close_notice::CloseNotice;
use crate::config::EngineConfig;
use crate::event::ConnectionHandle;
use crate::link_set::LinkSet;
use crate::liveness::Liveness;
use crate::names::Names;
use crate::pairs::Pairs;
use crate::parting::Parting;
use crate::path::Path;
use crate::pending::PING;
use crate::phase::Phase;
use crate::receive_wait::ReceiveWait;
use crate::reported::Reported;
use crate::request_order::RequestOrder;
use crate::retry::Retry;
use crate::spreading::Spreading;
use crate::terms::OwnTerms;

/// One connection of an endpoint. Each part of the connection is a separate type with its own
/// state. The functions that change the phase of the connection are in this type, because a change
/// of phase concerns several parts.
#[derive(Debug)]
pub(crate) struct Connection {
    handle: ConnectionHandle,
    names: Names,
    phase: Phase,
    /// State that only the handshake needs; `None` after the handshake.
    attempt: Option<Box<Attempt>>,
    /// The address of the peer, while this end has accepted the connection and the peer has not
    /// confirmed it. `None` at all other times.
    unconfirmed_at: Option<PeerAddr>,
    paths: LinkSet,
    pairs: Pairs,
    spreading: Spreading,
    asks: Asks,
    outbound: Outbound,
    inbound: Inbound,
    queues: Queues,
    requests: RequestOrder,
    reported: Reported,
    liveness: Liveness,
    /// When to repeat a handshake frame, a Close, or a question for a report of deliveries and
    /// credits.
    retry: Retry,
    /// Content of the Close that this end sends.
    close: CloseNotice,
    /// A Close of the peer that has not taken effect yet; `None` at all other times.
    parting: Option<Box<Parting>>,
    /// Settings of this connection; `None` if the connection uses the settings of the endpoint.
    terms: Option<Box<OwnTerms>>,
}

/// Calls a macro with the parts of a connection that the engine writes when it compresses the
/// connection. The list omits the links, which are written separately. Writing and reading both use
/// this list, so that they have the same order.
macro_rules! with_written_parts {
    ($callee:ident) => {
        $callee!(names, pairs, spreading, asks, requests, reported, liveness, retry)
    };
}

/// Defines accessors of parts.
macro_rules! lend {
    ($($part:ident: $type:ty),* $(,)?) => {
        $(#[inline]
        pub(crate) const fn $part(&self) -> &$type {
            &self.$part
        })*
    };
    (mut $($lend:ident($part:ident): $type:ty),* $(,)?) => {
        $(#[inline]
        pub(crate) const fn $lend(&mut self) -> &mut $type {
            &mut self.$part
        })*
    };
}

impl Connection {
    /// Creates a connection that has only the id and the epoch of this end. No operation completes
    /// before [`begin_operations`](Self::begin_operations).
    pub(crate) fn new(
        config: &EngineConfig,
        handle: ConnectionHandle,
        names: Names,
        phase: Phase,
        unowned_queue: &Queues,
    ) -> Box<Self> {
        let first = config.numbers_from;
        Box::new(Self {
            handle,
            names,
            phase,
            attempt: None,
            unconfirmed_at: None,
            paths: LinkSet::default(),
            pairs: Pairs::default(),
            spreading: Spreading::default(),
            asks: Asks::default(),
            outbound: Outbound::new(handle.owner(), NOTHING_GRANTED, unowned_queue),
            inbound: config.inbound(
                handle,
                config.inbound_limits(),
                ProtectionDomain::NONE,
                unowned_queue,
            ),
            queues: unowned_queue.clone(),
            requests: RequestOrder::new(first),
            reported: Reported::new(first),
            liveness: Liveness::new(config.silence_budget_ns),
            retry: Retry::NONE,
            close: CloseNotice::default(),
            parting: None,
            terms: None,
        })
    }

    lend! {
        names: Names, paths: LinkSet, pairs: Pairs, outbound: Outbound, inbound: Inbound, reported: Reported, liveness: Liveness, retry: Retry, close: CloseNotice,
    }

    lend! {
        mut names_mut(names): Names, paths_mut(paths): LinkSet, pairs_mut(pairs): Pairs,
        spreading_mut(spreading): Spreading, outbound_mut(outbound): Outbound,
        inbound_mut(inbound): Inbound, requests_mut(requests): RequestOrder, reported_mut(reported): Reported,
        liveness_mut(liveness): Liveness, retry_mut(retry): Retry, close_mut(close): CloseNotice,
    }

    /// Returns the links, and the state of this end's operations.
    #[inline]
    pub(crate) const fn paths_and_outbound(&mut self) -> (&mut LinkSet, &mut Outbound) {
        (&mut self.paths, &mut self.outbound)
    }

    /// Returns the state of the peer's operations, and of this end's operations.
    #[inline]
    pub(crate) const fn operations(&mut self) -> (&mut Inbound, &mut Outbound) {
        (&mut self.inbound, &mut self.outbound)
    }

    /// Returns the state of the search for further links, and the links of the connection.
    pub(crate) const fn pairs_and_paths(&mut self) -> (&mut Pairs, &LinkSet) {
        (&mut self.pairs, &self.paths)
    }

    /// Returns the handle by which the engine and the application refer to the connection.
    #[inline]
    pub(crate) const fn handle(&self) -> ConnectionHandle {
        self.handle
    }

    /// Returns the phase of the connection.
    #[inline]
    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the state of the handshake; `None` after the handshake.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_deref()
    }

    /// Returns a mutable reference to the state of the handshake; `None` after the handshake.
    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.attempt.as_deref_mut()
    }

    /// Returns the peer's address, if this end has accepted the connection and the peer has not
    /// confirmed it.
    pub(crate) const fn unconfirmed_at(&self) -> Option<PeerAddr> {
        self.unconfirmed_at
    }

    /// Ends the wait for a confirmation, because the peer has confirmed the connection or the
    /// connection has ended. Returns the peer's address if this end was waiting.
    pub(crate) const fn take_unconfirmed(&mut self) -> Option<PeerAddr> {
        self.unconfirmed_at.take()
    }
}

/// Changes of the phase.
impl Connection {
    /// Sets the regions that the peer may access, the completion queues and the terms.
    fn begin_operations(
        &mut self,
        config: &EngineConfig,
        granted: PeerLimits,
        domain: ProtectionDomain,
        queues: Queues,
        terms: Option<Box<OwnTerms>>,
    ) {
        self.terms = terms;
        self.liveness.set_budget(self.silence_ns(config));
        let limits = self.limits(config);
        self.inbound = config.inbound(self.handle, limits, domain, &queues);
        self.outbound = config.outbound(self.handle, granted, &queues);
        self.queues = queues;
    }

    /// Begins the handshake as initiator.
    pub(crate) fn begin_attempt(
        &mut self,
        now: Instant,
        config: &EngineConfig,
        attempt: Attempt,
        domain: ProtectionDomain,
        queues: Queues,
        terms: Option<Box<OwnTerms>>,
    ) {
        assert!(self.phase == Phase::Connecting, "only an initiator begins an attempt");
        self.begin_operations(config, NOTHING_GRANTED, domain, queues, terms);
        self.liveness.on_waiting(now);
        self.attempt = Some(Box::new(attempt));
        self.retry.begin(now);
    }

    /// Begins a request of the peer, which the application will accept or reject.
    pub(crate) fn begin_request(&mut self, attempt: Attempt) {
        assert!(self.phase == Phase::Requested, "only a responder begins a request");
        self.attempt = Some(Box::new(attempt));
    }

    /// Accepts the request of the peer at address `peer`.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        config: &EngineConfig,
        peer: PeerAddr,
        (granted, domain, queues): (PeerLimits, ProtectionDomain, Queues),
        terms: Option<Box<OwnTerms>>,
        private_data: &[u8],
    ) {
        self.phase = self.phase.on_accepted();
        self.unconfirmed_at = Some(peer);
        self.begin_operations(config, granted, domain, queues, terms);
        if let Some(attempt) = self.attempt_mut() {
            attempt.on_accepted(now, private_data);
        }
        self.liveness.on_waiting(now);
        self.retry.begin(now);
    }

    /// Makes the connection established. Ends the handshake, and returns the state of the handshake
    /// to the caller.
    pub(crate) fn establish(
        &mut self,
        now: Instant,
        config: &EngineConfig,
    ) -> Option<Box<Attempt>> {
        self.phase = self.phase.on_established();
        self.retry.end();
        self.liveness.begin(now, self.keep_alive_ns(config));
        self.attempt.take()
    }

    /// Begins to close the connection. The Close reports `close` to the peer.
    pub(crate) fn begin_close(&mut self, now: Instant, close: (CloseReason, OperationNumber)) {
        self.phase = self.phase.on_closing();
        self.close.begin(close);
        self.retry.begin(now);
    }

    //= protocol.md: close.8
    /// Records a Close of the peer on a link. Returns whether the Close takes effect now, because it
    /// has arrived on all links that are Up.
    pub(crate) fn hear_close(
        &mut self,
        now: Instant,
        link: LinkIndex,
        private_data: &[u8],
    ) -> bool {
        let parting = self.parting.get_or_insert_with(|| Box::new(Parting::new(now, private_data)));
        parting.on_close(link);
        let is_heard =
            |path: &Path| path.state() != LinkState::Up || parting.is_heard_on(path.index());
        self.paths.iter().all(is_heard)
    }

    /// Returns when a Close of the peer takes effect that has not arrived on all links. `NEVER` if
    /// there is none.
    pub(crate) fn parts_at(&self) -> Instant {
        self.parting.as_ref().map_or(Instant::NEVER, |parting| parting.until())
    }

    /// Returns whether a Close of the peer has arrived that has not taken effect yet.
    #[inline]
    pub(crate) const fn is_parting(&self) -> bool {
        self.parting.is_some()
    }

    /// Removes and returns the Close of the peer that has not taken effect yet.
    pub(crate) const fn take_parting(&mut self) -> Option<Box<Parting>> {
        self.parting.take()
    }

    /// Handles a Close of the peer. This end answers repetitions of the Close until the time
    /// `until`.
    pub(crate) fn drain(&mut self, until: Instant) {
        if self.phase != Phase::Drained {
            self.phase = self.phase.on_drained();
            self.retry.set(until);
        }
    }

    /// Ends the connection.
    pub(crate) const fn end(&mut self) {
        self.phase = Phase::Gone;
    }
}

/// Settings of the connection.
impl Connection {
    /// Returns the limits of the peer's operations at this end.
    pub(crate) fn limits(&self, config: &EngineConfig) -> InboundLimits {
        self.terms.as_ref().map_or_else(|| config.inbound_limits(), |terms| terms.limits())
    }

    /// Returns how long the peer may be silent while this end waits for something, in nanoseconds.
    pub(crate) fn silence_ns(&self, config: &EngineConfig) -> u64 {
        self.terms.as_ref().map_or(config.silence_budget_ns, |terms| terms.silence_ns())
    }

    /// Returns the time of silence after which this end asks the peer for a sign of life, in
    /// nanoseconds.
    pub(crate) fn keep_alive_ns(&self, config: &EngineConfig) -> u64 {
        self.terms.as_ref().map_or(config.keep_alive_ns, |terms| terms.keep_alive_ns())
    }

    //= protocol.md: feature.1, patch.8
    /// Returns the features that this end offers.
    pub(crate) fn features(&self, config: &EngineConfig) -> Features {
        match &self.terms {
            Some(terms) if terms.wants_queue_pair() => Features::QUEUE_PAIR,
            _ if config.patches => Features::PATCH,
            _ => Features::NONE,
        }
    }

    /// Handles the features that the peer offers. A feature applies if both ends offer it.
    pub(crate) fn on_peer_wants(&mut self, features: Features) {
        let wants = features.contains(Features::QUEUE_PAIR);
        let Some(terms) = self.terms.as_mut().filter(|_| wants) else { return };
        if terms.on_peer_wants() {
            self.inbound.be_queue_pair();
            self.outbound.be_queue_pair();
            if let Some(shared) = terms.take_shared_receives() {
                self.inbound.share_receives(shared);
                self.reported.report_now();
            }
        }
    }

    /// Defers the Close with which this end refuses a request of the peer, until the peer has
    /// received all earlier answers. If this is not a queue pair, returns false and does nothing.
    pub(crate) fn refuse_later(&mut self, close: (CloseReason, OperationNumber)) -> bool {
        match &mut self.terms {
            Some(terms) if terms.is_queue_pair() => {
                terms.set_refused(close);
                true
            }
            _ => false,
        }
    }

    /// Returns whether this end has deferred a Close with which it refuses a request of the peer.
    /// This end sends the Close after the peer has received all earlier answers.
    #[inline]
    pub(crate) fn has_refused(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.has_refused())
    }

    /// Removes the deferred Close, and returns its reason and its operation. Returns `None` if no
    /// Close is deferred.
    pub(crate) fn take_refused(&mut self) -> Option<(CloseReason, OperationNumber)> {
        self.terms.as_mut()?.take_refused()
    }

    /// Records that this connection asks its peer for a sign of life on behalf of all connections
    /// over the same links.
    ///
    /// Returns false and records nothing if the connection uses only the settings of the endpoint.
    /// In that case the connection asks only for itself.
    pub(crate) fn asks_for_all(&mut self) -> bool {
        self.terms.as_mut().map(|terms| terms.ask_for_all()).is_some()
    }

    /// Handles a sign of life of the peer. Returns whether this connection had asked on behalf of
    /// all connections.
    #[inline]
    pub(crate) fn take_asking_for_all(&mut self) -> bool {
        self.terms.as_mut().is_some_and(|terms| terms.take_asking_for_all())
    }

    /// Returns the state of the wait for receives of the peer, if this is a queue pair.
    pub(crate) fn receive_wait_mut(&mut self) -> Option<&mut ReceiveWait> {
        self.terms
            .as_mut()
            .filter(|terms| terms.is_queue_pair())
            .map(|terms| terms.receive_wait_mut())
    }

    /// Sets how long the peer may be silent, and how long an operation waits for a receive of the
    /// peer, both in nanoseconds. Does nothing if the connection uses the settings of the endpoint.
    pub(crate) fn set_patience(&mut self, silence_ns: u64, not_ready_ns: Option<u64>) {
        let Some(terms) = &mut self.terms else { return };
        terms.set_patience(silence_ns, not_ready_ns);
        self.liveness.set_budget(silence_ns);
    }

    /// Returns whether the connection is a queue pair.
    pub(crate) fn is_queue_pair(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.is_queue_pair())
    }
}

/// Compressed state of an idle connection.
impl Connection {
    /// Returns whether all these conditions hold:
    ///
    /// * the connection is established,
    /// * no packet is in flight, and no acknowledgement is pending,
    /// * this end waits for nothing and has nothing to report.
    ///
    /// While they hold, only a timer or new work can change the state of the connection.
    pub(crate) fn is_at_rest(&self) -> bool {
        // This code runs whenever the engine has served a connection. The test ends at the first
        // failure, so the condition that fails most often stands first.
        self.outbound.is_at_rest()
            && self.paths.iter().all(Path::is_at_rest)
            && self.inbound.is_at_rest()
            && self.phase == Phase::Established
            && self.attempt.is_none()
            && self.unconfirmed_at.is_none()
            && self.retry.is_paused()
            && self.liveness.is_at_rest()
            && self.reported.is_at_rest()
            && !self.pairs.is_due()
            && self.close.is_empty()
            && self.parting.is_none()
    }

    /// Writes the state that differs between idle connections. Omits the state that the compressed
    /// form of a connection stores separately.
    pub(crate) fn pack(&self) -> Box<[u8]> {
        let mut to = Packer::new(self.liveness.heard_at());
        macro_rules! pack {
            ($($written:ident),*) => {
                let Self {
                    paths,
                    $($written,)*
                    handle: _,
                    phase: _,
                    attempt: _,
                    unconfirmed_at: _,
                    outbound: _,
                    inbound: _,
                    queues: _,
                    close: _,
                    parting: _,
                    terms: _,
                } = self;
                paths.pack(&mut to);
                $($written.pack(&mut to);)*
            };
        }
        with_written_parts!(pack);
        to.finish()
    }

    /// Restores a connection from the bytes that [`Connection::pack`] wrote. The restored
    /// connection has no pending operation. `paths` contains no links; the restored links use the
    /// memory of `paths`. The connection asks its peer for a sign of life at the time `ask_at`.
    pub(crate) fn unpack(
        bytes: &[u8],
        handle: ConnectionHandle,
        paths: LinkSet,
        (inbound, outbound, queues): (Inbound, Outbound, Queues),
        ask_at: Instant,
    ) -> Self {
        let mut from = Unpacker::new(bytes);
        let paths = paths.unpack(&mut from);
        macro_rules! connection {
            ($($written:ident),*) => {
                Self {
                    handle,
                    phase: Phase::Established,
                    attempt: None,
                    unconfirmed_at: None,
                    paths,
                    $($written: Pack::unpack(&mut from),)*
                    outbound,
                    inbound,
                    queues,
                    close: CloseNotice::default(),
                    parting: None,
                    terms: None,
                }
            };
        }
        let mut connection = with_written_parts!(connection);
        assert!(from.is_at_end(), "a connection is read as it was written");
        connection.liveness.wake(ask_at);
        connection
    }

    /// Returns the queues that receive the completions.
    pub(crate) fn queues(&self) -> Queues {
        self.queues.clone()
    }

    /// Restores the state that the peer's operations had before the connection was compressed.
    pub(crate) fn wake_inbound(&mut self, inbound: Inbound) {
        self.inbound = inbound;
    }

    /// Removes and returns the settings of the connection; `None` if the connection uses the
    /// settings of the endpoint. While a connection is compressed, its settings are stored
    /// separately.
    pub(crate) const fn take_terms(&mut self) -> Option<Box<OwnTerms>> {
        self.terms.take()
    }

    /// Restores the settings that [`Connection::take_terms`] returned.
    pub(crate) fn set_terms(&mut self, terms: Option<Box<OwnTerms>>) {
        self.terms = terms;
    }

    /// Releases all state of the connection, but keeps memory that another connection can reuse.
    pub(crate) fn clear(&mut self, queues: &Queues, limits: InboundLimits) {
        self.paths.clear();
        self.terms = None;
        self.pairs = Pairs::default();
        self.spreading = Spreading::default();
        self.inbound = Inbound::new(Owner::default(), ProtectionDomain::NONE, limits, queues);
        self.outbound = Outbound::new(Owner::default(), NOTHING_GRANTED, queues);
        self.queues = queues.clone();
    }

    /// Returns the memory of the links, and leaves the connection without links.
    pub(crate) fn take_memory(&mut self) -> LinkSet {
        assert!(self.paths.is_empty(), "it was cleared");
        core::mem::take(&mut self.paths)
    }
}

impl Connection {
    /// Returns the link with this index. Returns `None` if the index is free.
    pub(crate) fn path_mut(&mut self, index: LinkIndex) -> Option<&mut Path> {
        self.paths.with_mut(index)
    }

    //= protocol.md: reset.2, index.3
    /// Returns whether frames from the address of `path` come from the peer.
    ///
    /// Returns true if the peer has answered on this link. If no link is up, also returns true if
    /// the peer answered earlier on a removed link with the same two addresses. In that case,
    /// another host may have the peer's address now, but this end has no better address to ask.
    pub(crate) fn is_peer_at(&self, path: &Path) -> bool {
        let is_up = |path: &Path| path.may_carry_data();
        let was_link = || self.paths.was_link(path.pair());
        path.is_validated() || was_link() && !self.paths.iter().any(is_up)
    }

    /// Returns the position of the usable link with the shortest round trip. If no link is usable,
    /// returns the position of a link on which the peer has answered before.
    pub(crate) fn nearest_path(&self) -> usize {
        let mut best = self.paths.iter().position(Path::is_validated).unwrap_or(0);
        let mut best_ns = u64::MAX;
        for (position, path) in self.paths.iter().enumerate() {
            if path.may_carry_data() && path.send().srtt_ns() < best_ns {
                (best, best_ns) = (position, path.send().srtt_ns());
            }
        }
        best
    }

    //= protocol.md: ack.9
    /// Handles a fragment that arrived twice. The reason may be that all acknowledgements of this
    /// end use one link, and that this link loses them. Therefore this end sends a Ping on each
    /// link that has nothing in flight. If a link gets no answer, it has failed.
    #[cold]
    pub(crate) fn doubt_links(&mut self) {
        if self.paths.len() > 1 {
            for path in &mut self.paths {
                if path.may_carry_data() && path.send().in_flight_bytes() == 0 {
                    path.say(PING);
                }
            }
        }
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> bool {
        self.paths.iter().any(|path| path.send().in_flight_bytes() > 0)
    }

    /// Returns whether this end waits for a frame of the peer.
    #[inline]
    pub(crate) fn awaits_peer(&self) -> bool {
        self.outbound.waits_for_peer() || self.phase == Phase::Closing || self.in_flight()
    }

    //= protocol.md: silence.2, silence.5
    /// Returns the time from which the silence of the peer counts, if the peer sends nothing after
    /// `now`. Returns `None` if this end waits for nothing.
    ///
    /// Even if this end waits for a frame, it may have no outstanding operation. No application
    /// then waits for the peer, and the peer may be busy with a computation, with no thread that
    /// drives its endpoint. In that case, the silence counts only from the time at which an idle
    /// connection would ask the peer.
    #[inline]
    pub(crate) fn silent_since(&self, now: Instant, config: &EngineConfig) -> Option<Instant> {
        if !self.awaits_peer() {
            return None;
        }
        let is_passive = self.phase == Phase::Established && self.outbound.outstanding() == 0;
        match self.keep_alive_ns(config) {
            keep_alive_ns if is_passive && keep_alive_ns != u64::MAX => {
                Some(self.liveness.heard_at().after_ns(keep_alive_ns).max(now))
            }
            _ => Some(now),
        }
    }

    /// Calls [`Asks::asks_with_next`] with the links of this connection, and returns the result.
    #[inline]
    pub(crate) fn asks_with_next(&mut self, position: usize) -> bool {
        self.asks.asks_with_next(&mut self.paths, position)
    }

    /// Calls [`Asks::on_asked`] with the links of this connection.
    pub(crate) fn on_asked(&mut self) {
        self.asks.on_asked(&mut self.paths);
    }

    /// Calls [`Asks::on_acknowledged`] with the links of this connection.
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, link: LinkIndex) {
        self.asks.on_acknowledged(&mut self.paths, link);
    }

    /// Returns the earliest time after `now` at which pacing allows a link to transmit. Returns
    /// [`Instant::NEVER`] if this end has nothing to send, or if there is no such time.
    #[inline]
    pub(crate) fn opens_at(&self, now: Instant, batches: bool) -> Instant {
        if !self.outbound.wants_to_send() {
            return Instant::NEVER;
        }
        let opens = self.paths.iter().map(|path| path.opens_at(now, batches));
        let spread_at =
            core::iter::once(self.spreading.again_at()).filter(|_| self.paths.len() > 1);
        opens.chain(spread_at).filter(|&at| at > now).min().unwrap_or(Instant::NEVER)
    }

    /// Returns whether this end must send something now.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.phase != Phase::Established
            || self.pairs.is_due()
            || self.outbound.wants_to_send()
            || self.ack_duty(now, Moment::NoData) == AckDuty::Alone
            || self.paths.iter().any(|path| path.is_urgent(now))
    }

    /// Queues a control message about the whole connection, on the link with the shortest round
    /// trip.
    #[cold]
    pub(crate) fn say_on_nearest(&mut self, message: u16) {
        let nearest = self.nearest_path();
        if let Some(path) = self.paths.get_mut(nearest) {
            path.say(message);
        }
    }

    /// Returns whether a completion was lost because a completion queue was full.
    #[inline]
    pub(crate) const fn is_overrun(&self) -> bool {
        self.outbound.is_overrun() || self.inbound.is_overrun()
    }

    /// Returns whether operations may be posted.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }
}

impl EngineConfig {
    /// Creates the state of the peer's operations on a new connection.
    pub(crate) fn inbound(
        &self,
        handle: ConnectionHandle,
        limits: InboundLimits,
        domain: ProtectionDomain,
        queues: &Queues,
    ) -> Inbound {
        let mut inbound = Inbound::new(handle.owner(), domain, limits, queues);
        let first = self.numbers_from;
        inbound.begin_at(OperationNumber(first), MessageNumber(first));
        inbound
    }

    /// Creates the state of this end's operations on a new connection. `peer` contains the limits
    /// that the peer granted.
    pub(crate) fn outbound(
        &self,
        handle: ConnectionHandle,
        peer: PeerLimits,
        queues: &Queues,
    ) -> Outbound {
        let mut outbound = Outbound::new(handle.owner(), peer, queues);
        let first = self.numbers_from;
        outbound.begin_at(OperationNumber(first), MessageNumber(first));
        outbound
    }
}

/// Limits that apply until the peer grants limits in the handshake.
pub(crate) const NOTHING_GRANTED: PeerLimits = PeerLimits {
    operation_window: 0,
    read_depth: 0,
    order_pool_bytes: 0,
    credit: MessageNumber(0),
    patches: false,
};

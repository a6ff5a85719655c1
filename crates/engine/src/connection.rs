//! One connection: its names, its phase, its links and the two halves of its operations.

use delivery::{Instant, Pack, Packer, Unpacker};
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
use crate::path::Path;
use crate::patience::Patience;
use crate::pending::PING;
use crate::phase::Phase;
use crate::reported::Reported;
use crate::request_order::RequestOrder;
use crate::retry::Retry;
use crate::spreading::Spreading;
use crate::terms::OwnTerms;

/// One connection of an endpoint: parts, each of which keeps its own state, and the steps from phase to
/// phase, which concern several of them.
#[derive(Debug)]
pub(crate) struct Connection {
    handle: ConnectionHandle,
    names: Names,
    phase: Phase,
    /// What only the handshake needs; dropped when it has ended.
    attempt: Option<Box<Attempt>>,
    /// Where the peer is that has not confirmed the connection, if this end has accepted it.
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
    /// When to repeat a handshake frame, a close, or a question for news.
    retry: Retry,
    /// What Close says, once it is sent.
    close: CloseNotice,
    /// What it has of its own; nothing if it lives under the terms of the endpoint.
    terms: Option<Box<OwnTerms>>,
}

/// Calls a macro with the parts of a connection, but for its links, that are written down when it rests: one
/// list, so that they are read in the order in which they were written.
macro_rules! with_written_parts {
    ($callee:ident) => {
        $callee!(names, pairs, spreading, asks, requests, reported, liveness, retry)
    };
}

/// Lends parts: each is asked there, and does its own steps.
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
    /// A connection of which nothing is known but its own names. Nothing completes before it
    /// [begins](Self::begin_operations).
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

    /// The links, and the operations whose fragments they carry.
    #[inline]
    pub(crate) const fn paths_and_outbound(&mut self) -> (&mut LinkSet, &mut Outbound) {
        (&mut self.paths, &mut self.outbound)
    }

    /// What the peer does here, and what this end does there.
    #[inline]
    pub(crate) const fn operations(&mut self) -> (&mut Inbound, &mut Outbound) {
        (&mut self.inbound, &mut self.outbound)
    }

    /// What is known of pairs of links, and the links.
    pub(crate) const fn pairs_and_paths(&mut self) -> (&mut Pairs, &LinkSet) {
        (&mut self.pairs, &self.paths)
    }

    /// By what the engine and the application know it.
    #[inline]
    pub(crate) const fn handle(&self) -> ConnectionHandle {
        self.handle
    }

    /// Where it stands.
    #[inline]
    pub(crate) const fn phase(&self) -> Phase {
        self.phase
    }

    /// What the handshake needs, while it lasts.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.attempt.as_deref()
    }

    /// The same, for a step of it.
    pub(crate) fn attempt_mut(&mut self) -> Option<&mut Attempt> {
        self.attempt.as_deref_mut()
    }

    /// Where the peer is that has not confirmed the connection, if this end has accepted it.
    pub(crate) const fn unconfirmed_at(&self) -> Option<PeerAddr> {
        self.unconfirmed_at
    }

    /// The peer has confirmed the connection, or the connection has ended. Returns the peer's address if neither was
    /// known before.
    pub(crate) const fn take_unconfirmed(&mut self) -> Option<PeerAddr> {
        self.unconfirmed_at.take()
    }
}

/// From phase to phase.
impl Connection {
    /// The application has chosen what the peer may reach, and where completions go.
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

    /// This end asks for it.
    pub(crate) fn begin_attempt(
        &mut self,
        now: Instant,
        config: &EngineConfig,
        attempt: Attempt,
        domain: ProtectionDomain,
        queues: Queues,
        terms: Option<Box<OwnTerms>>,
    ) {
        assert!(self.phase == Phase::Connecting, "whoever is asked does not ask");
        self.begin_operations(config, NOTHING_GRANTED, domain, queues, terms);
        self.liveness.on_waiting(now);
        self.attempt = Some(Box::new(attempt));
        self.retry.begin(now);
    }

    /// The peer asks for it, and the application decides.
    pub(crate) fn begin_request(&mut self, attempt: Attempt) {
        assert!(self.phase == Phase::Requested, "whoever asks is not asked");
        self.attempt = Some(Box::new(attempt));
    }

    /// The application accepts the request of the peer at this address.
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

    /// Both ends have the connection: ends the attempt.
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

    /// This end closes the connection and sends the reason.
    pub(crate) fn begin_close(&mut self, now: Instant, close: (CloseReason, OperationNumber)) {
        self.phase = self.phase.on_closing();
        self.close.begin(close);
        self.retry.begin(now);
    }

    /// The peer closes it: its repetitions are answered until that time.
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

/// What it has of its own.
impl Connection {
    /// What the peer may do here.
    pub(crate) fn limits(&self, config: &EngineConfig) -> InboundLimits {
        self.terms.as_ref().map_or_else(|| config.inbound_limits(), |terms| terms.limits())
    }

    /// How long the peer may be silent while something is awaited.
    pub(crate) fn silence_ns(&self, config: &EngineConfig) -> u64 {
        self.terms.as_ref().map_or(config.silence_budget_ns, |terms| terms.silence_ns())
    }

    /// After how much silence the peer is asked.
    pub(crate) fn keep_alive_ns(&self, config: &EngineConfig) -> u64 {
        self.terms.as_ref().map_or(config.keep_alive_ns, |terms| terms.keep_alive_ns())
    }

    //= protocol.md: feature.1
    /// What this end offers.
    pub(crate) fn features(&self) -> Features {
        match &self.terms {
            Some(terms) if terms.wants_queue_pair() => Features::QUEUE_PAIR,
            _ => Features::NONE,
        }
    }

    /// The peer says what it offers: what both do holds.
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

    /// Refuses what the peer asks for later, when it has all answers; false if it is no queue pair, which does not
    /// wait.
    pub(crate) fn refuse_later(&mut self, close: (CloseReason, OperationNumber)) -> bool {
        match &mut self.terms {
            Some(terms) if terms.is_queue_pair() => {
                terms.set_refused(close);
                true
            }
            _ => false,
        }
    }

    /// Whether the peer has asked for what it may not have, and answers are still outstanding.
    #[inline]
    pub(crate) fn has_refused(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.has_refused())
    }

    /// What it is that the peer may not have, and why.
    pub(crate) fn take_refused(&mut self) -> Option<(CloseReason, OperationNumber)> {
        self.terms.as_mut()?.take_refused()
    }

    /// It asks its peer for a sign of life: whether for all that go to the same, as those do that may ask often.
    pub(crate) fn asks_for_all(&mut self) -> bool {
        self.terms.as_mut().map(|terms| terms.ask_for_all()).is_some()
    }

    /// The peer is heard: whether it was asked for all.
    #[inline]
    pub(crate) fn take_asking_for_all(&mut self) -> bool {
        self.terms.as_mut().is_some_and(|terms| terms.take_asking_for_all())
    }

    /// How long it waits for receives of the peer, if it is a queue pair.
    pub(crate) fn patience_mut(&mut self) -> Option<&mut Patience> {
        self.terms.as_mut().filter(|terms| terms.is_queue_pair()).map(|terms| terms.patience_mut())
    }

    /// It waits for so long from now on, if it has terms of its own.
    pub(crate) fn set_patience(&mut self, silence_ns: u64, not_ready_ns: Option<u64>) {
        let Some(terms) = &mut self.terms else { return };
        terms.set_patience(silence_ns, not_ready_ns);
        self.liveness.set_budget(silence_ns);
    }

    /// Whether it is a queue pair.
    pub(crate) fn is_queue_pair(&self) -> bool {
        self.terms.as_ref().is_some_and(|terms| terms.is_queue_pair())
    }
}

/// At rest.
impl Connection {
    /// Whether nothing is pending: the connection is established, nothing is in flight, owed or awaited, and there is
    /// nothing to report. Only a timer or something new can change that.
    pub(crate) fn is_at_rest(&self) -> bool {
        // The most likely reason comes first: this is asked whenever a connection was served.
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
    }

    /// Writes down what has not one value in all connections at rest, and is not kept as it is.
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
                    terms: _,
                } = self;
                paths.pack(&mut to);
                $($written.pack(&mut to);)*
            };
        }
        with_written_parts!(pack);
        to.finish()
    }

    /// Reads what [`Connection::pack`] wrote. The links take the memory of `paths`, which is empty; the
    /// operations are those of a connection at rest, and it asks its peer at that time.
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
                    terms: None,
                }
            };
        }
        let mut connection = with_written_parts!(connection);
        assert!(from.is_at_end(), "a connection is read as it was written");
        connection.liveness.wake(ask_at);
        connection
    }

    /// Where its completions go.
    pub(crate) fn queues(&self) -> Queues {
        self.queues.clone()
    }

    /// What the peer does here is what it was before the connection rested.
    pub(crate) fn wake_inbound(&mut self, inbound: Inbound) {
        self.inbound = inbound;
    }

    /// What it has of its own, which goes where it goes.
    pub(crate) const fn take_terms(&mut self) -> Option<Box<OwnTerms>> {
        self.terms.take()
    }

    /// See [`Connection::take_terms`].
    pub(crate) fn set_terms(&mut self, terms: Option<Box<OwnTerms>>) {
        self.terms = terms;
    }

    /// Lets go of everything but memory.
    pub(crate) fn clear(&mut self, queues: &Queues, limits: InboundLimits) {
        self.paths.clear();
        self.terms = None;
        self.pairs = Pairs::default();
        self.spreading = Spreading::default();
        self.inbound = Inbound::new(Owner::default(), ProtectionDomain::NONE, limits, queues);
        self.outbound = Outbound::new(Owner::default(), NOTHING_GRANTED, queues);
        self.queues = queues.clone();
    }

    /// Gives out the memory of its links, of which there are none any more.
    pub(crate) fn take_memory(&mut self) -> LinkSet {
        assert!(self.paths.is_empty(), "it was cleared");
        core::mem::take(&mut self.paths)
    }
}

impl Connection {
    /// The link with this index, if it is there.
    pub(crate) fn path_mut(&mut self, index: LinkIndex) -> Option<&mut Path> {
        self.paths.with_mut(index)
    }

    //= protocol.md: reset.2, index.3
    /// Whether frames from the address of a link come from the peer: it has answered there. If it answered under an
    /// earlier use of the index, another host may have the address now; but while no link is up, no other address can
    /// be asked.
    pub(crate) fn is_peer_at(&self, path: &Path) -> bool {
        let is_up = |path: &Path| path.may_carry_data();
        let was_link = || self.paths.was_link(path.pair());
        path.is_validated() || was_link() && !self.paths.iter().any(is_up)
    }

    /// Position of the usable link with the shortest round trip; without one, of a link on which the
    /// peer has answered.
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
    /// The peer repeats what is here already: perhaps it does not hear our acknowledgements, which
    /// all go over one link. With a frame in flight on each link, a dead one is found out.
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

    /// Whether packets that ask for an acknowledgement are in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> bool {
        self.paths.iter().any(|path| path.send().in_flight_bytes() > 0)
    }

    /// Whether this side waits for anything from the peer.
    #[inline]
    pub(crate) fn awaits_peer(&self) -> bool {
        self.outbound.waits_for_peer() || self.phase == Phase::Closing || self.in_flight()
    }

    //= protocol.md: silence.2, silence.5
    /// Since when the silence of the peer counts, if it is silent from now on; `None` if nothing is awaited.
    ///
    /// While no operation of this side is outstanding, no application waits, and the peer may compute without a thread
    /// that drives it: then the silence counts from when an idle connection would ask.
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

    /// See [`Asks::asks_with_next`].
    #[inline]
    pub(crate) fn asks_with_next(&mut self, position: usize) -> bool {
        self.asks.asks_with_next(&mut self.paths, position)
    }

    /// See [`Asks::on_asked`].
    pub(crate) fn on_asked(&mut self) {
        self.asks.on_asked(&mut self.paths);
    }

    /// See [`Asks::on_acknowledged`].
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, link: LinkIndex) {
        self.asks.on_acknowledged(&mut self.paths, link);
    }

    /// When a link whose window is closed may transmit by the clock, if there is something to send.
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

    /// Whether something is to be sent now.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.phase != Phase::Established
            || self.pairs.is_due()
            || self.outbound.wants_to_send()
            || self.ack_duty(now, Moment::NoData) == AckDuty::Alone
            || self.paths.iter().any(|path| path.is_urgent(now))
    }

    /// Says something of the connection as a whole.
    #[cold]
    pub(crate) fn say_on_nearest(&mut self, message: u16) {
        let nearest = self.nearest_path();
        if let Some(path) = self.paths.get_mut(nearest) {
            path.say(message);
        }
    }

    /// Whether a completion was lost for want of room.
    #[inline]
    pub(crate) const fn is_overrun(&self) -> bool {
        self.outbound.is_overrun() || self.inbound.is_overrun()
    }

    /// Whether operations may be posted.
    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }
}

impl EngineConfig {
    /// What the peer of a new connection does.
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

    /// What a new connection does, whose peer has granted this.
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

/// What a peer has granted before it said anything.
pub(crate) const NOTHING_GRANTED: PeerLimits = PeerLimits {
    operation_window: 0,
    read_depth: 0,
    order_pool_bytes: 0,
    credit: MessageNumber(0),
};

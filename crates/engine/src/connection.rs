//! One connection: its names, its phase, its links and the two halves of its operations.

use std::sync::Arc;

use delivery::{Instant, LinkId};
use mem::ProtectionDomain;
use semantics::{CompletionQueue, Inbound, Outbound, PeerLimits};
use wire_edge::{
    ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, Parameters, PeerAddr,
};

use crate::ack_duty::{AckDuty, Moment};
use crate::asks::Asks;
use crate::close_notice::CloseNotice;
use crate::config::EngineConfig;
use crate::event::ConnectionHandle;
use crate::hello::HelloKey;
use crate::link_set::LinkSet;
use crate::liveness::Liveness;
use crate::pairs::Pairs;
use crate::path::Path;
use crate::pending::PING;
use crate::request_order::RequestOrder;
use crate::retry::Retry;
use crate::spreading::Spreading;
use crate::told::Told;

/// Where a connection stands (protocol.md §4).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Hello was sent; no answer yet.
    Connecting,
    /// The peer's Hello is with the application.
    Requested,
    /// Accept was sent; nothing proves yet that it arrived.
    Accepted,
    /// Usable.
    Established,
    /// Close was sent; waits for its acknowledgement.
    Closing,
    /// The peer closed; only repeats its acknowledgement of that.
    Drained,
    /// Over: the engine drops it when it puts it back into the table.
    Gone,
}

/// One connection of an endpoint.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) handle: ConnectionHandle,
    pub(crate) phase: Phase,
    /// The id peers put into frames to this side.
    pub(crate) id: ConnectionId,
    /// The id to put into frames to the peer.
    pub(crate) peer_id: ConnectionId,
    /// The epoch that frames to this side must carry.
    pub(crate) epoch: Epoch,
    /// The epoch to put into frames to the peer.
    pub(crate) peer_epoch: Epoch,
    /// What the peer said of itself in the handshake.
    pub(crate) peer: Option<Parameters>,
    pub(crate) paths: LinkSet,
    pub(crate) pairs: Pairs,
    pub(crate) spreading: Spreading,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) liveness: Liveness,
    /// What only the handshake needs; gone when it is over.
    pub(crate) handshake: Option<Box<HandshakeState>>,
    /// Key under which repetitions of the peer's Hello find this connection.
    pub(crate) hello_key: Option<HelloKey>,
    /// Where the peer is that has not confirmed the connection, if this end has accepted it.
    pub(crate) unconfirmed_at: Option<PeerAddr>,
    /// When to repeat a handshake frame, a close, or a question for news.
    pub(crate) retry: Retry,
    pub(crate) asks: Asks,
    pub(crate) requests: RequestOrder,
    pub(crate) told: Told,
    /// What Close says, once it is sent.
    pub(crate) close: CloseNotice,
}

/// What only the handshake needs.
#[derive(Debug)]
pub(crate) struct HandshakeState {
    pub(crate) started_at: Instant,
    pub(crate) service: u32,
    /// Where to try, in order; the first that answers becomes link 0.
    pub(crate) candidates: Vec<(LinkId, PeerAddr)>,
    pub(crate) candidate: usize,
    pub(crate) cookie: [u8; wire_edge::COOKIE_BYTES],
    pub(crate) private_data: Vec<u8>,
}

impl EngineConfig {
    /// What the peer of a new connection does.
    pub(crate) fn inbound(
        &self,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        queue: &Arc<CompletionQueue>,
    ) -> Inbound {
        let limits = self.inbound_limits();
        let mut inbound = Inbound::new(handle.index, domain, limits, Arc::clone(queue));
        let first = self.numbers_from;
        inbound.begin_at(OperationNumber(first), MessageNumber(first));
        inbound
    }

    /// What a new connection does, whose peer has granted this.
    pub(crate) fn outbound(
        &self,
        handle: ConnectionHandle,
        peer: PeerLimits,
        queue: Arc<CompletionQueue>,
    ) -> Outbound {
        let mut outbound = Outbound::new(handle.index, peer, queue);
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

impl Connection {
    /// The link with this index, if it is there.
    pub(crate) fn path_mut(&mut self, index: LinkIndex) -> Option<&mut Path> {
        self.paths.with_mut(index)
    }

    //= protocol.md: reset.2, index.3
    /// Whether what comes from the address of a link comes from the peer: it has answered there. Where it
    /// has answered under an index of before, somebody else may be by now; but while no link is up, there
    /// is nobody else to ask.
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

    /// When a link whose window is closed can send again by the clock, if there is something to send.
    #[inline]
    pub(crate) fn opens_at(&self, now: Instant) -> Instant {
        if !self.outbound.wants_to_send() {
            return Instant::NEVER;
        }
        let opens = self.paths.iter().map(|path| path.opens_at(now));
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

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }
}

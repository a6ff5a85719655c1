//! One connection: its names, its phase, its links and the two halves of its operations.

use delivery::{ASK_FRAMES_MAX, Instant, LinkId, SchedulerState, SilenceBudget};
use semantics::{Inbound, Outbound, Queues};
use wire_edge::{
    CloseReason, ConnectionId, Epoch, LinkIndex, MessageNumber, OperationNumber, Parameters,
    PeerAddr,
};

use crate::ack_duty::{AckDuty, Moment};
use crate::control::PING;
use crate::event::ConnectionHandle;
use crate::handshake::HelloKey;
use crate::join::Joining;
use crate::link_set::LinkSet;
use crate::path::Path;

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
    /// What is known of pairs of links that may join; absent while there is none to try.
    pub(crate) joining: Option<Box<Joining>>,
    /// Links (by bit) whose address the peer was told, as they have no part in the connection.
    pub(crate) told_addresses: u16,
    /// Whether to look for pairs that may join.
    pub(crate) join_due: bool,
    /// Present with several links.
    pub(crate) scheduler: Option<Box<SchedulerState>>,
    pub(crate) outbound: Outbound,
    pub(crate) inbound: Inbound,
    pub(crate) queues: Queues,
    pub(crate) silence: SilenceBudget,
    /// What only the handshake needs; gone when it is over.
    pub(crate) handshake: Option<Box<HandshakeState>>,
    /// Key under which repetitions of the peer's Hello find this connection.
    pub(crate) hello_key: Option<HelloKey>,
    /// Where the peer is that has not confirmed the connection, if this end has accepted it.
    pub(crate) unconfirmed_at: Option<PeerAddr>,
    /// When to repeat a handshake frame, a close, or a question for news.
    pub(crate) retry_at: Instant,
    pub(crate) retries: u8,
    /// It is in the engine's list of connections to serve.
    pub(crate) queued: bool,
    /// It is in the engine's list of connections whose deliveries wait.
    pub(crate) listed_stalled: bool,
    /// It is in the engine's list of connections that may owe acknowledgements.
    pub(crate) listed_owing: bool,
    /// A new packet of the peer arrived since the connection was last served.
    pub(crate) heard: bool,
    /// When the connection was last served after a new packet of the peer had arrived.
    pub(crate) heard_at: Instant,
    /// When to look whether anything was heard lately, and to ask if not.
    pub(crate) keep_alive_at: Instant,
    /// Links have come or gone: the peer is asked at that time in any case.
    pub(crate) compares_links: bool,
    /// When a link that leaves data to better ones would run dry.
    pub(crate) spread_at: Instant,
    /// Position of the link of the newest data frame, [`LINKS_MAX`](delivery::LINKS_MAX) if that is no
    /// more, and when the frame should arrive, but for what all links share.
    pub(crate) arrives_at: (usize, Instant),
    /// Data frames since a link was last brought out of step with another.
    pub(crate) in_step: u32,
    /// The link on which it was asked.
    pub(crate) asked_on: Option<LinkIndex>,
    /// Data frames sent on any link since the peer was last asked for an acknowledgement.
    pub(crate) unasked: u32,
    /// The peer asked for news: it is told on every link, as it may not hear us on the nearest.
    pub(crate) asked: bool,
    /// The furthest byte of a request so far: what comes before it came out of order.
    pub(crate) furthest: (OperationNumber, u32),
    /// The peer is to hear of deliveries or receives even if there is no packet to acknowledge.
    pub(crate) report_now: bool,
    /// The credit last told to the peer.
    pub(crate) told_credit: MessageNumber,
    /// The deliveries last told to the peer.
    pub(crate) told_delivered: OperationNumber,
    /// What Close says, once it is sent.
    pub(crate) close: (CloseReason, OperationNumber),
    pub(crate) close_data: Vec<u8>,
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

/// Frames for which the next question for an acknowledgement waits for another link than the last.
const ASK_TURN_FRAMES: u32 = 16;

/// A round trip longer than twice the shortest by this makes a question late, in nanoseconds.
const ASK_LATE_NS: u64 = 100_000;

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
        let is_up = |path: &Path| path.state.may_carry_data();
        let was_link = || self.paths.was_link((path.link, path.peer));
        path.is_validated() || was_link() && !self.paths.iter().any(is_up)
    }

    /// Position of the usable link with the shortest round trip; without one, of a link on which the
    /// peer has answered.
    pub(crate) fn nearest_path(&self) -> usize {
        let mut best = self.paths.iter().position(Path::is_validated).unwrap_or(0);
        let mut best_ns = u64::MAX;
        for (position, path) in self.paths.iter().enumerate() {
            if path.state.may_carry_data() && path.send.srtt_ns() < best_ns {
                (best, best_ns) = (position, path.send.srtt_ns());
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
                if path.state.may_carry_data() && path.send.in_flight_bytes() == 0 {
                    path.pending.say(PING);
                }
            }
        }
    }

    /// Whether packets that ask for an acknowledgement are in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> bool {
        self.paths.iter().any(|path| path.send.in_flight_bytes() > 0)
    }

    /// Whether this side waits for anything from the peer.
    #[inline]
    pub(crate) fn awaits_peer(&self) -> bool {
        self.outbound.waits_for_peer() || self.phase == Phase::Closing || self.in_flight()
    }

    /// Counts one more data frame on the link at `position`; whether it should ask for an
    /// acknowledgement, which will tell of all links.
    #[inline]
    pub(crate) fn asks_with_next(&mut self, position: usize) -> bool {
        self.unasked += 1;
        let all_asks = self.unasked >= ASK_FRAMES_MAX && self.may_ask_for_all(position);
        let Some(path) = self.paths.get_mut(position) else { return false };
        path.unasked += 1;
        let asks = all_asks || path.send.asks_after(path.unasked);
        if asks {
            self.asked_on = Some(path.index);
            self.on_asked();
        }
        asks
    }

    /// Whether a frame of the link at `position` may ask for an acknowledgement of all links: it is
    /// not always the same one, as that may be the one that carries nothing any more, and none on which
    /// the question arrives so late that the peer has acknowledged long before.
    fn may_ask_for_all(&self, position: usize) -> bool {
        let [_, _, ..] = self.paths.as_slice() else { return true };
        let nearest = self.paths.iter().filter(|path| path.state.may_carry_data());
        let nearest_ns = nearest.map(|path| path.send.srtt_ns()).min().unwrap_or(0);
        let Some(path) = self.paths.get(position) else { return false };
        let is_near = path.send.srtt_ns() <= 2 * nearest_ns + ASK_LATE_NS;
        is_near && self.asked_on != Some(path.index)
            || self.unasked >= ASK_FRAMES_MAX + ASK_TURN_FRAMES
                && (is_near || self.unasked >= 2 * ASK_FRAMES_MAX)
    }

    /// The peer is asked for an acknowledgement.
    pub(crate) fn on_asked(&mut self) {
        self.unasked = 0;
        for path in &mut self.paths {
            path.unasked = 0;
        }
    }

    /// The peer has acknowledged frames of a link. Where nothing is in flight any more there is nothing
    /// to ask for: of two ends that answer each other neither ever asks.
    #[inline]
    pub(crate) fn on_acknowledged(&mut self, link: LinkIndex) {
        let mut is_idle = true;
        for path in &mut self.paths {
            let is_path_idle = path.send.in_flight_bytes() == 0;
            is_idle &= is_path_idle;
            if is_path_idle && path.index == link {
                path.unasked = 0;
            }
        }
        if is_idle {
            self.unasked = 0;
        }
    }

    /// When a link whose window is closed can send again by the clock, if there is something to send.
    #[inline]
    pub(crate) fn opens_at(&self, now: Instant) -> Instant {
        if !self.outbound.wants_to_send() {
            return Instant::NEVER;
        }
        let opens = self.paths.iter().map(|path| path.opens_at(now));
        let spread_at = core::iter::once(self.spread_at).filter(|_| self.paths.len() > 1);
        opens.chain(spread_at).filter(|&at| at > now).min().unwrap_or(Instant::NEVER)
    }

    /// Whether something is to be sent now.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.phase != Phase::Established
            || self.join_due
            || self.outbound.wants_to_send()
            || self.ack_duty(now, Moment::NoData) == AckDuty::Alone
            || self.paths.iter().any(|path| path.is_urgent(now))
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }
}

//! One link of one connection: a link of this endpoint, the peer's address there, packets both ways,
//! measurements, and what is to be said on it.

use delivery::{
    CongestionAlgorithm, Instant, LinkCaps, LinkCounters, LinkId, LinkView, PathChange, PathMtu,
    PathState, ReceivedPackets, SendConfig, SendHalf,
};
use semantics::Carried;
use wire_edge::{LinkIndex, PacketNumber, Parameters, PeerAddr};

use crate::ack_duty::AckDuty;
use crate::config::EngineConfig;
use crate::engine::FRAME_BYTES_MIN;
use crate::life::Life;
use crate::pending::Pending;
use crate::report::Refusals;

/// One link of one connection: both halves of its packets, and what is known of the way.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) index: LinkIndex,
    pub(crate) link: LinkId,
    pub(crate) peer: PeerAddr,
    /// The address of this end on the link when it was opened: the peer takes frames from there only.
    pub(crate) local: PeerAddr,
    pub(crate) send: SendHalf<Carried>,
    pub(crate) received: ReceivedPackets,
    pub(crate) mtu: PathMtu,
    pub(crate) state: PathState,
    pub(crate) counters: LinkCounters,
    /// What is to be said on it.
    pub(crate) pending: Pending,
    /// How often nobody was found to listen at the peer's address.
    pub(crate) refusals: Refusals,
    /// Frames that may be sent although the window is closed: a probe after a timeout.
    pub(crate) probes_allowed: u8,
    /// What it is to the connection.
    life: Life,
    /// The peer was heard under this index before it was used anew: it may not have heard yet that the
    /// link of before is gone.
    pub(crate) was_heard: bool,
    /// The peer asked to use this link only when no other works.
    pub(crate) backup: bool,
    /// When it was opened.
    pub(crate) opened_at: Instant,
    /// When a new packet last arrived on it, or it was opened.
    pub(crate) heard_at: Instant,
    /// When something was last acknowledged on this link.
    pub(crate) progress_at: Instant,
    /// Data frames sent since the peer was last asked for an acknowledgement.
    pub(crate) unasked: u32,
}

delivery::pack_fields!(Path {
    index,
    link,
    peer,
    local,
    send,
    received,
    mtu,
    state,
    counters,
    pending,
    refusals,
    probes_allowed,
    life,
    was_heard,
    backup,
    opened_at,
    heard_at,
    progress_at,
    unasked,
});

impl Path {
    //= protocol.md: set-up.18, size.1
    pub(crate) fn new(
        now: Instant,
        index: LinkIndex,
        link: LinkId,
        peer: PeerAddr,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) -> Self {
        let limit = caps.frame_bytes_max.min(parameters.frame_bytes_max);
        let mtu = PathMtu::new(caps.frame_bytes_safe.max(FRAME_BYTES_MIN), limit);
        let mut send = SendHalf::new(&send_config(caps, config, parameters, &mtu), now);
        let mut received = ReceivedPackets::new(config.acknowledgement);
        send.begin_at(PacketNumber(u64::from(config.numbers_from)));
        received.begin_at(u64::from(config.numbers_from));
        received.set_lossless(caps.local.is_shared_memory());
        Self {
            index,
            link,
            peer,
            local: caps.local,
            send,
            received,
            mtu,
            state: PathState::new(now),
            counters: LinkCounters::default(),
            pending: Pending::default(),
            refusals: Refusals::NONE,
            probes_allowed: 0,
            life: Life::Settled,
            was_heard: false,
            backup: false,
            opened_at: now,
            heard_at: now,
            // Nothing was ever acknowledged on it: its silence says nothing about other links.
            progress_at: Instant::default(),
            unasked: 0,
        }
    }

    //= protocol.md: index.1
    /// The same link index in use again, over whichever link: packet numbers go on from where they
    /// were, as they are never reused; everything else begins anew.
    pub(crate) fn renew(
        self,
        fresh: Self,
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) -> Self {
        let was_heard = self.is_heard();
        let mut path = Self { send: self.send, received: self.received, was_heard, ..fresh };
        path.received.set_lossless(caps.local.is_shared_memory());
        path.send.set_frame_bytes(u32::from(path.mtu.current()));
        path.restart(now, caps, config, parameters);
        path
    }

    //= protocol.md: state.3
    /// Forgets what was measured: the link came back, perhaps over another way.
    pub(crate) fn restart(
        &mut self,
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) {
        self.send.restart_measurement(&send_config(caps, config, parameters, &self.mtu), now);
    }

    /// Frames of data were lost, the largest of them of at least `bytes`. If the size of its frames may be
    /// the cause, it becomes smaller.
    pub(crate) fn on_frames_lost(&mut self, now: Instant, bytes: u32) {
        if bytes > 0 && self.mtu.on_frame_lost(now, self.send.srtt_ns(), bytes) {
            self.send.set_frame_bytes(u32::from(self.mtu.current()));
        }
    }

    /// Whether something is to be sent on this link now, data and acknowledgements apart.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.probes_allowed > 0 || self.wants_control(now)
    }

    /// Whether a control frame is to be sent because of this link.
    #[inline]
    pub(crate) fn wants_control(&self, now: Instant) -> bool {
        self.pending.has_news() && self.may_tell()
            || self.pending.nonce().is_some()
            || self.state.deadline() <= now
    }

    //= protocol.md: amplify.6
    /// Whether the peer may be told more that it has to acknowledge. Control frames need no window, and
    /// what they say is often what the peer makes this end say: it waits, in a few bits, until the peer
    /// has acknowledged what it was told, or a probe is due.
    ///
    /// Nothing is told where nobody has answered.
    pub(crate) const fn may_tell(&self) -> bool {
        self.is_validated() && (self.pending.may_tell() || self.probes_allowed > 0)
    }

    /// A control frame that the peer has to acknowledge goes out, which [may be](Self::may_tell).
    pub(crate) const fn on_told(&mut self) {
        if !self.pending.may_tell() {
            self.probes_allowed = self.probes_allowed.saturating_sub(1);
        }
    }

    /// Whether nothing is under way on it, to be told or to be acknowledged.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_at_rest = self.send.is_at_rest();
        let is_all_heard = self.pending.is_all_heard();
        debug_assert!(!is_at_rest || is_all_heard, "every frame in flight comes back once");
        is_at_rest
            && self.received.is_at_rest()
            && !self.pending.has_news()
            && self.pending.nonce().is_none()
            && self.probes_allowed == 0
            && self.refusals.deadline() == Instant::NEVER
    }

    /// Whether the peer may know of a link under this index.
    pub(crate) const fn is_heard(&self) -> bool {
        self.was_heard || self.counters.frames_received > 0
    }

    /// Whether somebody has answered at the peer's address. Until then it may be somebody else's, who
    /// gets no data, and nothing but a few small frames.
    pub(crate) const fn is_validated(&self) -> bool {
        self.life.has_answered()
    }

    //= protocol.md: amplify.5
    /// Whether so many bytes may go to an address from which nobody has answered: in all, up to
    /// [`UNPROVEN_FACTOR`] times what came from there.
    pub(crate) const fn may_answer(&self, bytes: u64) -> bool {
        let most = UNPROVEN_FACTOR * self.counters.bytes_received;
        self.is_validated() || self.counters.bytes_sent + bytes <= most
    }

    /// Whether both ends should have it: it is neither on trial nor no more.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self.life, Life::Settled)
    }

    /// Whether this end tries it, and nobody has answered yet.
    pub(crate) const fn is_trial(&self) -> bool {
        matches!(self.life, Life::Trial)
    }

    /// Whether the peer opened it, and has not answered here yet.
    pub(crate) const fn is_offered(&self) -> bool {
        matches!(self.life, Life::Offered)
    }

    /// Whether it is no more, and only stays as there is no other.
    pub(crate) const fn is_lost(&self) -> bool {
        matches!(self.life, Life::Lost)
    }

    /// How its life begins, and whether anything is known of the way.
    pub(crate) fn begin(&mut self, life: Life, state: PathState) {
        (self.life, self.state) = (life, state);
    }

    /// The peer has answered on it.
    pub(crate) const fn on_answered(&mut self) {
        self.life = self.life.on_answered();
    }

    /// It is no more, and stays as there is no other.
    #[must_use]
    pub(crate) fn on_lost(&mut self) -> Option<PathChange> {
        self.life = self.life.on_lost();
        self.state.on_link_down()
    }

    /// What it leads over is there again: what waited for it goes on.
    pub(crate) fn on_back(&mut self, now: Instant) {
        self.life = self.life.on_back();
        self.state.on_link_up(now);
    }

    /// Whether it carries nothing and the peer has not been heard on it for a while.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        !self.state.may_carry_data() && self.heard_at.after_ns(STALE_NS) <= now
    }

    /// When the pair counts as one that does not answer, if it is on trial: one pause after this many
    /// challenges.
    pub(crate) const fn trial_ends_at(&self, challenges: u64) -> Instant {
        if self.is_trial() && self.counters.path_challenges_sent >= challenges {
            self.state.deadline()
        } else {
            Instant::NEVER
        }
    }

    /// When its window opens by the clock for a burst.
    pub(crate) fn opens_at(&self, now: Instant) -> Instant {
        if self.state.may_carry_data() {
            self.send.opens_at(now, self.send.quantum_bytes())
        } else {
            Instant::NEVER
        }
    }

    //= protocol.md: state.5
    /// What the scheduler is shown.
    ///
    /// The shortest round trip of all links is `rtt_min_ns`.
    pub(crate) fn view(&self, now: Instant, sole: bool, rtt_min_ns: u64) -> LinkView {
        let frame_bytes = u32::from(self.mtu.current());
        let estimate = self.send.estimate();
        LinkView {
            rate_bytes_per_second: estimate.worth_trying(now, frame_bytes),
            one_way_ns: estimate.one_way_ns(rtt_min_ns),
            idle_at: estimate.idle_at(now),
            window_left_bytes: u64::from(self.send.window_left(now)),
            opens_at: self.send.opens_at(now, frame_bytes),
            has_share: false,
            frame_bytes,
            usable: (sole && self.is_validated()) || self.state.may_carry_data(),
            backup: self.backup,
        }
    }

    /// The earliest of its timers, those of the path MTU apart: they only matter while data flows.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let acknowledgement_at = AckDuty::again_at(now, &self.received);
        let asked_at = self.state.deadline().min(self.refusals.deadline());
        self.send.deadline().min(acknowledgement_at).min(asked_at)
    }
}

/// Bytes that the frame had at least in which data was sent: the shortest headers and the payload.
pub(crate) const fn frame_bytes_min(carried: &Carried) -> u32 {
    OPERATION_HEADER_BYTES + carried.length as u32
}

/// Bytes of the common header, the number of an operation and an offset.
const OPERATION_HEADER_BYTES: u32 = 20;

/// An address from which nobody has answered gets at most this many times the bytes that came from there.
const UNPROVEN_FACTOR: u64 = 3;

/// Silence on a link that carries no data, after which the peer may mean another link by its index:
/// five challenges.
const STALE_NS: u64 = 1_000_000_000;

fn send_config(
    caps: &LinkCaps,
    config: &EngineConfig,
    parameters: &Parameters,
    mtu: &PathMtu,
) -> SendConfig {
    let own = SendConfig {
        algorithm: config.congestion,
        initial_window_frames: config.initial_window_frames,
        frame_bytes: u32::from(mtu.current()),
        receive_buffer_bytes: parameters.receive_buffer_bytes,
        ack_delay_max_ns: parameters.ack_delay_max_ns,
        probe_timeout_min_ns: config.probe_timeout_min_ns,
        probe_timeout_max_ns: config.probe_timeout_max_ns,
        nominal_rate: caps.rate.map(|bits| bits / 8),
        packets_max: config.packets_max,
        ..SendConfig::default()
    };
    // Memory has no queue that overflows and loses nothing: a full ring makes the sender wait. What
    // would be congestion elsewhere is a processor that does something else for a while.
    if caps.local.is_shared_memory() {
        return SendConfig {
            algorithm: CongestionAlgorithm::Fixed { frames: MEMORY_WINDOW_FRAMES },
            receive_buffer_bytes: caps.receive_buffer_bytes,
            probe_timeout_min_ns: own.probe_timeout_min_ns.max(MEMORY_PROBE_NS),
            ..own
        };
    }
    own
}

/// Frames in flight over shared memory: four times those after which an acknowledgement is asked for,
/// so that the sender never waits for one.
const MEMORY_WINDOW_FRAMES: u32 = 256;

/// Shortest probe timeout over shared memory, in nanoseconds: the kernel gives other processes the
/// processor for some milliseconds at a time. That the peer has ended is told by its socket.
const MEMORY_PROBE_NS: u64 = 50_000_000;

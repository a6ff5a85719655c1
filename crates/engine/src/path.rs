//! A path: one link of one connection. A path consists of the local link, the peer's address on
//! that link, the packets in both directions, the measurements, and the pending control messages.

use delivery::{
    Arrival, Eliciting, Fate, Instant, LinkCaps, LinkCounters, LinkId, LinkState, LinkView,
    PathChange, PathState, ReceivedPackets, SendHalf, SentPool,
};
use semantics::{Carried, CarriedKind, Refusal};
use wire_edge::{AckBlock, LinkIndex, Parameters, PeerAddr};

use crate::ack_duty::AckDuty;
use crate::config::EngineConfig;
use crate::event::PathInfo;
use crate::heard::Heard;
use crate::life::Life;
use crate::pending::{LostControl, PING, Pending};
use crate::purpose::Purpose;
use crate::refusals::{QUESTION_NS, Refusals};
use crate::returned::Returned;
use crate::sending::Sending;

/// One link of one connection: its packets in both directions, and its measurements.
#[derive(Debug)]
pub(crate) struct Path {
    index: LinkIndex,
    link: LinkId,
    peer: PeerAddr,
    /// This end's address when the link was opened. The peer accepts frames on this link only from
    /// this address.
    local: PeerAddr,
    sending: Sending,
    received: ReceivedPackets,
    state: PathState,
    counters: LinkCounters,
    /// Control messages to send on this link.
    pending: Pending,
    /// Consecutive refusals: reports that nothing listens at the peer's address.
    refusals: Refusals,
    /// The role of this link on the connection: trial, offered, settled or lost.
    life: Life,
    heard: Heard,
    /// Whether the peer asked to use this link only while no other link works.
    is_backup: bool,
    opened_at: Instant,
    /// When the last new packet arrived on this link. The initial value is the time when the link
    /// was opened.
    heard_at: Instant,
    /// When the peer last acknowledged something on this link.
    progress_at: Instant,
}

delivery::pack_fields!(Path {
    index,
    link,
    peer,
    local,
    sending,
    received,
    state,
    counters,
    pending,
    refusals,
    life,
    heard,
    is_backup,
    opened_at,
    heard_at,
    progress_at,
});

/// A packet that arrived on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// The low 32 bits of the packet number, as on the wire.
    pub(crate) number: u32,
    pub(crate) received_at: Instant,
    /// Whether the network marked the packet: ECN *congestion experienced*.
    pub(crate) is_marked: bool,
    pub(crate) eliciting: Eliciting,
    /// Whether the packet asks for an immediate acknowledgement.
    pub(crate) asks: bool,
}

impl Path {
    /// Creates a path on which no packet was sent yet. The caller then calls
    /// [`begin`](Self::begin).
    pub(crate) fn new(
        now: Instant,
        index: LinkIndex,
        (link, peer): (LinkId, PeerAddr),
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) -> Self {
        let mut received = ReceivedPackets::new(config.acknowledgement);
        received.begin_at(u64::from(config.numbers_from));
        received.set_lossless(caps.local.is_shared_memory());
        Self {
            index,
            link,
            peer,
            local: caps.local,
            sending: Sending::new(now, caps, config, parameters),
            received,
            state: PathState::new(now),
            counters: LinkCounters::default(),
            pending: Pending::default(),
            refusals: Refusals::NONE,
            life: Life::Settled,
            heard: Heard::Never,
            is_backup: false,
            opened_at: now,
            heard_at: now,
            // The initial value lies in the past, because a path that never made progress must not
            // make other links look silent.
            progress_at: Instant::default(),
        }
    }

    //= protocol.md: index.1
    /// Reuses the link index for `fresh`, which may be a path over a different local link. Packet
    /// numbers continue, because the protocol never reuses them. All other state comes from
    /// `fresh`.
    pub(crate) fn renew(
        self,
        fresh: Self,
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) -> Self {
        assert_eq!(self.index, fresh.index, "packet numbers belong to an index");
        assert!(self.sending.half().in_flight_bytes() == 0, "what was in flight was given up");
        let heard = self.heard.renewed();
        let sending = fresh.sending.after(self.sending);
        let mut path = Self { sending, received: self.received, heard, ..fresh };
        path.received.set_lossless(caps.local.is_shared_memory());
        path.restart(now, caps, config, parameters);
        path
    }

    //= protocol.md: state.3
    /// Discards the measurements, because the link may use another route after it was down.
    pub(crate) fn restart(
        &mut self,
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) {
        self.sending.restart(now, caps, config, parameters);
    }

    #[inline]
    pub(crate) const fn index(&self) -> LinkIndex {
        self.index
    }

    /// Returns the link of this endpoint.
    #[inline]
    pub(crate) const fn link(&self) -> LinkId {
        self.link
    }

    #[inline]
    pub(crate) const fn peer(&self) -> PeerAddr {
        self.peer
    }

    /// Returns the link of this endpoint and the peer's address.
    #[inline]
    pub(crate) const fn pair(&self) -> (LinkId, PeerAddr) {
        (self.link, self.peer)
    }

    /// Returns whether frames on this link have the source address `local`. The peer accepts frames
    /// only from that address.
    pub(crate) fn leaves_from(&self, local: PeerAddr) -> bool {
        self.local == local
    }

    #[inline]
    pub(crate) const fn send(&self) -> &SendHalf<Carried> {
        self.sending.half()
    }

    /// Returns the record of received packets and of their acknowledgement.
    #[inline]
    pub(crate) const fn received(&self) -> &ReceivedPackets {
        &self.received
    }

    /// Returns the control messages to send on this link.
    #[inline]
    pub(crate) const fn pending(&self) -> &Pending {
        &self.pending
    }

    #[inline]
    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.sending.frame_bytes()
    }

    #[inline]
    pub(crate) const fn may_carry_data(&self) -> bool {
        self.state.may_carry_data()
    }

    #[inline]
    pub(crate) const fn state(&self) -> LinkState {
        self.state.state()
    }

    /// Returns the state that applications and logs show.
    pub(crate) fn info(&self) -> PathInfo {
        let send = self.send();
        PathInfo {
            index: self.index.0,
            link: self.link,
            peer: self.peer,
            state: self.state(),
            srtt_ns: send.srtt_ns(),
            rate_bytes_per_second: send.rate_bytes_per_second(),
            window_bytes: send.window(),
            in_flight_bytes: send.in_flight_bytes(),
            packets: send.packets(),
            frame_bytes: self.frame_bytes(),
            counters: self.counters,
        }
    }

    /// Returns whether this link has something to send now, apart from data and acknowledgements.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.sending.may_probe() || self.wants_control(now)
    }

    #[inline]
    pub(crate) fn wants_control(&self, now: Instant) -> bool {
        self.pending.has_news() && self.may_report()
            || self.pending.nonce().is_some()
            || self.state.deadline() <= now
    }

    //= protocol.md: amplify.6
    /// Returns whether this link may send another control frame that the peer must acknowledge.
    ///
    /// The window does not limit such frames, so the number in flight has a separate limit. Further
    /// messages wait until the peer acknowledges earlier frames or a probe is due; each waiting
    /// message takes only a bit. Returns false while the peer has not answered on this link.
    pub(crate) const fn may_report(&self) -> bool {
        self.is_validated() && (self.pending.may_report() || self.sending.may_probe())
    }

    /// Returns whether no frame is in flight, and no report or acknowledgement is pending.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_at_rest = self.send().is_at_rest();
        let is_all_heard = self.pending.is_all_heard();
        debug_assert!(!is_at_rest || is_all_heard, "every frame in flight comes back once");
        is_at_rest
            && self.received.is_at_rest()
            && !self.pending.has_news()
            && self.pending.nonce().is_none()
            && !self.sending.may_probe()
            && self.refusals.deadline() == Instant::NEVER
    }

    /// Returns whether frames have arrived under the index of this link, so that the peer may know
    /// a link with this index.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard != Heard::Never
    }

    /// Returns whether the peer has answered at its address. Before an answer, the address may
    /// belong to another host, so this end sends no data and only a few small frames to it.
    pub(crate) const fn is_validated(&self) -> bool {
        self.life.has_answered()
    }

    //= protocol.md: amplify.5
    /// Returns whether `bytes` more bytes may go to the peer's address. If the peer has not
    /// answered at this address, at most [`UNPROVEN_FACTOR`] times the bytes received from it may
    /// go there.
    pub(crate) const fn may_answer(&self, bytes: u64) -> bool {
        let most = UNPROVEN_FACTOR * self.counters.bytes_received;
        self.is_validated() || self.counters.bytes_sent + bytes <= most
    }

    /// Returns whether `packet`, the low 32 bits of a packet number, is one of the last
    /// [`RESET_PACKETS_MAX`] packets sent.
    pub(crate) const fn has_sent_lately(&self, packet: u32) -> bool {
        let behind = self.send().next_packet().truncate().wrapping_sub(packet);
        behind >= 1 && behind <= RESET_PACKETS_MAX
    }

    /// Returns whether the role of this link is settled: both ends should have it.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self.life, Life::Settled)
    }

    /// Returns whether this end still tests the link: the peer has not answered yet.
    pub(crate) const fn is_trial(&self) -> bool {
        matches!(self.life, Life::Trial)
    }

    pub(crate) const fn is_offered(&self) -> bool {
        matches!(self.life, Life::Offered)
    }

    /// Returns whether the interface of this link is gone. Such a link stays only because the
    /// connection has no other link.
    pub(crate) const fn is_lost(&self) -> bool {
        matches!(self.life, Life::Lost)
    }

    pub(crate) fn begin(&mut self, life: Life, state: PathState) {
        (self.life, self.state) = (life, state);
    }

    /// Makes the link settled, because the peer has answered on it.
    pub(crate) const fn on_answered(&mut self) {
        self.life = self.life.on_answered();
    }

    /// Marks the link as lost: its interface is gone, and the connection has no other link.
    #[must_use]
    pub(crate) fn on_lost(&mut self) -> Option<PathChange> {
        self.life = self.life.on_lost();
        self.state.on_link_down()
    }

    /// Puts the link back in use, because its interface has returned.
    pub(crate) fn on_back(&mut self, now: Instant) {
        self.life = self.life.on_back();
        self.state.on_link_up(now);
    }

    /// Returns whether this link carries no data and the peer was silent on it for [`STALE_NS`].
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        !self.state.may_carry_data() && self.heard_at.after_ns(STALE_NS) <= now
    }

    /// Returns the time at which a trial of this link ends without an answer: one pause after the
    /// last of `challenges` challenges. Returns [`Instant::NEVER`] if this end does not test the
    /// link.
    pub(crate) const fn trial_ends_at(&self, challenges: u64) -> Instant {
        if self.is_trial() && self.counters.path_challenges_sent >= challenges {
            self.state.deadline()
        } else {
            Instant::NEVER
        }
    }

    /// Returns the time at which pacing next allows a burst, or a batch if `batches` is true.
    /// Returns [`Instant::NEVER`] if the link may not carry data.
    pub(crate) fn opens_at(&self, now: Instant, batches: bool) -> Instant {
        let send = self.send();
        if self.state.may_carry_data() {
            send.opens_at(now, if batches { send.awaited_bytes() } else { send.quantum_bytes() })
        } else {
            Instant::NEVER
        }
    }

    //= protocol.md: state.5
    /// Returns the state of this link for the scheduler. `rtt_min_ns` is the shortest round trip of
    /// all links of the connection.
    pub(crate) fn view(&self, now: Instant, sole: bool, rtt_min_ns: u64) -> LinkView {
        let (send, frame_bytes) = (self.send(), u32::from(self.frame_bytes()));
        let estimate = send.estimate();
        LinkView {
            rate_bytes_per_second: estimate.worth_trying(now, frame_bytes),
            one_way_ns: estimate.one_way_ns(rtt_min_ns),
            idle_at: estimate.idle_at(now),
            window_left_bytes: u64::from(send.window_left(now)),
            opens_at: send.opens_at(now, frame_bytes),
            has_share: false,
            frame_bytes,
            usable: (sole && self.is_validated()) || self.may_carry_data(),
            backup: self.is_backup,
        }
    }

    /// Returns the earliest deadline. Omits the path MTU, which is probed only while data flows.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let acknowledgement_at = AckDuty::again_at(now, &self.received);
        let asked_at = self.state.deadline().min(self.refusals.deadline());
        self.send().deadline().min(acknowledgement_at).min(asked_at)
    }
}

/// Sending.
impl Path {
    /// Records a frame that is sent. `has_acks` says whether the frame carries acknowledgements.
    #[inline]
    pub(crate) fn on_sent(
        &mut self,
        pool: &mut SentPool<Carried>,
        now: Instant,
        bytes: u32,
        purpose: Purpose,
        carried: Carried,
        has_acks: bool,
    ) {
        self.sending.on_sent(pool, now, bytes, purpose, carried);
        let counters = &mut self.counters;
        counters.frames_sent += 1;
        counters.bytes_sent += u64::from(bytes);
        counters.payload_bytes_sent += u64::from(carried.length);
        *purpose.counter(counters) += 1;
        counters.piggybacked_acks_sent += u64::from(has_acks && purpose != Purpose::Acknowledge);
    }

    /// Reverses the sending of the last `frames` frames, which the driver did not accept. The
    /// frames have `bytes` bytes in all and were sent for `purpose`. They count as never sent.
    /// Passes their contents to `back`, newest first.
    pub(crate) fn unsend(
        &mut self,
        pool: &mut SentPool<Carried>,
        (frames, bytes): (usize, u64),
        purpose: Purpose,
        has_acks: bool,
        back: &mut impl FnMut(Carried),
    ) {
        let mut payload_bytes = 0;
        self.sending.unsend(pool, frames, purpose, &mut |carried| {
            payload_bytes += u64::from(carried.length);
            back(carried);
        });
        let counters = &mut self.counters;
        counters.frames_sent -= frames as u64;
        counters.bytes_sent -= bytes;
        counters.payload_bytes_sent -= payload_bytes;
        *purpose.counter(counters) -= frames as u64;
        counters.piggybacked_acks_sent -= u64::from(has_acks && purpose != Purpose::Acknowledge);
    }

    /// Handles the last `frames` frames, sent for `purpose`, if the driver does not know whether
    /// they left. The frames count as sent. Passes their contents to `back`, newest first, for
    /// retransmission.
    pub(crate) fn disown(
        &mut self,
        pool: &mut SentPool<Carried>,
        frames: usize,
        purpose: Purpose,
        back: &mut impl FnMut(Carried),
    ) {
        let again = &mut self.counters.retransmissions;
        self.sending.disown(pool, frames, purpose, &mut |carried| {
            *again += u64::from(purpose == Purpose::Data);
            back(carried);
        });
    }

    /// Records that the link has sent the one frame that a closed window permits.
    #[inline]
    pub(crate) const fn use_probe(&mut self) {
        self.sending.use_probe();
    }

    /// Records a control frame with reports, questions or answers.
    pub(crate) const fn on_control_sent(
        &mut self,
        messages: u16,
        of_links: Option<u16>,
        is_acknowledged: bool,
    ) {
        if is_acknowledged && !self.pending.may_report() {
            self.sending.use_probe();
        }
        self.pending.on_sent(messages, of_links, is_acknowledged);
    }

    /// Returns true if the window has room for a full frame, or if the link may send a probe.
    #[inline]
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.sending.has_room(now)
    }

    /// Returns whether [`Path::has_room`] would still hold after frames of `bytes` bytes that are
    /// not built yet.
    #[inline]
    pub(crate) fn has_room_beside(&self, now: Instant, bytes: u32) -> bool {
        if bytes == 0 {
            return self.has_room(now);
        }
        self.send().has_room(now, bytes + u32::from(self.frame_bytes()))
    }

    /// Returns whether the link may send a frame although the window is closed.
    #[inline]
    pub(crate) const fn may_probe(&self) -> bool {
        self.sending.may_probe()
    }

    #[inline]
    pub(crate) fn asks_with_next(&mut self) -> bool {
        self.sending.asks_with_next()
    }

    #[inline]
    pub(crate) const fn on_asked(&mut self) {
        self.sending.on_asked();
    }

    pub(crate) const fn begin_train(&mut self, now: Instant) {
        self.sending.begin_train(now);
    }

    pub(crate) fn compare_with(&mut self, fastest: u64) {
        self.sending.compare_with(fastest);
    }

    #[inline]
    pub(crate) fn set_application_limited(&mut self, is_limited: bool) {
        self.sending.set_application_limited(is_limited);
    }

    /// Counts a turn in which this link got no data although it had room and data was waiting.
    pub(crate) const fn on_left_idle(&mut self) {
        self.counters.idle_with_data += 1;
    }

    /// Returns when the next probe of the path MTU may be due.
    #[inline]
    pub(crate) const fn mtu_probe_at(&self) -> Instant {
        self.sending.mtu_probe_at()
    }

    /// Returns the size of the path MTU probe to send now, in bytes, if one is due.
    pub(crate) fn poll_mtu_probe(&mut self, now: Instant) -> Option<u16> {
        self.sending.poll_mtu_probe(now)
    }

    pub(crate) fn on_too_big(&mut self, limit: u16, is_proven: bool) {
        self.sending.on_too_big(limit, is_proven);
    }

    /// Handles a new limit for the size of frames, in bytes, of a link that is up.
    pub(crate) fn on_link_changed(&mut self, now: Instant, limit: u16) {
        self.sending.set_limit(limit);
        self.state.on_link_up(now);
        if self.send().in_flight_bytes() > 0 {
            // While no frame passed, the probe timeout may have become long. A Ping now gets an
            // answer sooner than that timeout.
            self.say(PING);
        }
    }
}

/// Acknowledgements, losses and timeouts.
impl Path {
    /// Handles an acknowledgement by the peer. Passes the contents of acknowledged and lost packets
    /// to `operations`. Returns `None` if the acknowledgement is invalid: it covers packets that
    /// the peer cannot have received.
    pub(crate) fn on_ack(
        &mut self,
        pool: &mut SentPool<Carried>,
        (now, received_at): (Instant, Instant),
        block: &AckBlock,
        operations: &mut impl FnMut(Fate, Carried),
    ) -> Option<Acknowledged> {
        debug_assert_eq!(block.link, self.index, "a block is about one link");
        let returned = self.sending.on_ack(pool, (now, received_at), block, operations)?;
        self.on_returned(&returned);
        self.counters.spurious_losses += returned.spurious_losses;
        let mut change = None;
        if returned.is_progress {
            self.progress_at = now;
            change = self.state.on_progress();
        }
        let Returned { is_progress, has_reported_statuses, .. } = returned;
        Some(Acknowledged { is_progress, has_reported_statuses, change })
    }

    /// Handles the timer of this link. Passes the contents of packets that now count as lost to
    /// `operations`. Returns whether a [probe](Self::probe) is due.
    pub(crate) fn on_timeout(
        &mut self,
        pool: &mut SentPool<Carried>,
        now: Instant,
        operations: &mut impl FnMut(Fate, Carried),
    ) -> bool {
        let (returned, is_probe_due) = self.sending.on_timeout(pool, now, operations);
        self.on_returned(&returned);
        self.counters.probe_timeouts += u64::from(is_probe_due);
        is_probe_due
    }

    fn on_returned(&mut self, returned: &Returned) {
        self.pending.on_returned(returned.control);
        self.counters.retransmissions += returned.data_lost;
        self.counters.packets_lost += returned.packets_lost;
        self.counters.mtu_probes_lost += u64::from(matches!(returned.probe, Some((Fate::Lost, _))));
    }

    /// Returns the start of the current wait for an acknowledgement. This is the time at which the
    /// oldest packet in flight was sent, or the time of the last progress if that is later. If no
    /// packet is in flight, `now` takes the place of the first time.
    pub(crate) fn waits_since(&self, now: Instant) -> Instant {
        self.send().oldest_sent_at().unwrap_or(now).max(self.progress_at)
    }

    pub(crate) const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    //= protocol.md: again.2
    /// Removes and returns the oldest content in flight for retransmission, after a probe timeout.
    /// If the content is not data, queues a Ping instead. Returns `None` if only a probe of the
    /// path MTU was in flight.
    pub(crate) fn probe(&mut self, now: Instant) -> Option<Probe> {
        let Some((carried, may_be_size)) = self.sending.probe(now) else {
            self.say(PING);
            return None;
        };
        if carried.kind == CarriedKind::Control {
            let mut lost = LostControl::default();
            lost.add(&carried);
            self.pending.on_returned(lost);
            self.say(PING);
            return Some(Probe { data: None, may_be_size });
        }
        self.counters.retransmissions += 1;
        Some(Probe { data: Some(carried), may_be_size })
    }

    /// Handles a probe timeout. The link becomes suspect if other links made progress in that time.
    #[must_use]
    pub(crate) fn on_probe_timeout(
        &mut self,
        now: Instant,
        others_progress: bool,
    ) -> Option<PathChange> {
        self.state.on_probe_timeout(now, others_progress)
    }

    //= protocol.md: state.2
    /// Removes everything in flight; passes data to `operations`, and returns control messages.
    pub(crate) fn give_up(
        &mut self,
        pool: &mut SentPool<Carried>,
        operations: &mut impl FnMut(Carried),
    ) -> LostControl {
        let mut lost = LostControl::default();
        let again = &mut self.counters.retransmissions;
        self.sending.drain(pool, &mut |carried| {
            lost.add(&carried);
            if carried.kind != CarriedKind::Control {
                *again += 1;
                operations(carried);
            }
        });
        self.pending.on_given_up();
        self.sending.withdraw_probe();
        lost
    }

    /// Removes the content that the peer has refused from the content in flight, and passes it to
    /// `operations`. The refusal does not count as congestion.
    pub(crate) fn take_refused(
        &mut self,
        pool: &mut SentPool<Carried>,
        is_refused: &mut impl FnMut(&Carried) -> bool,
        operations: &mut impl FnMut(Carried),
    ) {
        let again = &mut self.counters.retransmissions;
        self.sending.retire(pool, is_refused, &mut |carried| {
            *again += 1;
            operations(carried);
        });
    }

    /// Drops the records of everything in flight, because the caller no longer needs the results.
    pub(crate) fn let_go(&mut self, pool: &mut SentPool<Carried>) {
        self.sending.drain(pool, &mut |_| {});
        self.pending.on_given_up();
    }
}

/// Receiving.
impl Path {
    /// Handles the arrival of a frame with a packet. Returns whether the packet is new. If the
    /// packet is not new, the caller drops its content.
    #[inline]
    pub(crate) fn on_frame(&mut self, now: Instant, frame_bytes: usize, packet: &Packet) -> bool {
        let arrival = self.received.classify(packet.number);
        self.heard = Heard::Here;
        let counters = &mut self.counters;
        counters.frames_received += 1;
        counters.bytes_received += frame_bytes as u64;
        match arrival {
            Arrival::New { .. } => {
                counters.congestion_marked += u64::from(packet.is_marked);
                self.heard_at = now;
                self.refusals = Refusals::NONE;
                return true;
            }
            Arrival::Implausible => {
                counters.dropped_implausible += 1;
                return false;
            }
            Arrival::Duplicate => counters.dropped_duplicate += 1,
            Arrival::TooOld => counters.dropped_too_old += 1,
        }
        self.observe(now, packet);
        false
    }

    #[inline]
    pub(crate) fn observe(&mut self, now: Instant, packet: &Packet) {
        let Packet { number, received_at, is_marked, eliciting, asks } = *packet;
        self.received.observe(now, received_at, number, is_marked, eliciting, asks);
    }

    /// Records the arrival of a data frame. `is_out_of_order` says whether later data arrived
    /// before this frame.
    #[inline]
    pub(crate) fn on_data(&mut self, is_out_of_order: bool) {
        self.counters.data_frames_received += 1;
        self.counters.out_of_order += u64::from(is_out_of_order);
        self.sending.end_train();
    }

    pub(crate) const fn on_control(&mut self) {
        self.counters.control_frames_received += 1;
    }

    /// Counts a frame with acknowledgements. `are_alone` says whether the frame has no other
    /// content.
    pub(crate) const fn on_acks(&mut self, are_alone: bool) {
        if are_alone {
            self.counters.explicit_acks_received += 1;
        } else {
            self.counters.piggybacked_acks_received += 1;
        }
    }

    /// Adds `bytes` bytes of payload to the bytes received.
    #[inline]
    pub(crate) const fn on_taken(&mut self, bytes: usize) {
        self.counters.payload_bytes_received += bytes as u64;
    }

    /// Counts a fragment that had arrived before.
    pub(crate) const fn on_not_placed(&mut self) {
        self.counters.not_placed += 1;
    }

    /// Counts a fragment for which this end had no room. This end does not acknowledge the packet
    /// of the fragment.
    pub(crate) const fn on_refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Window => self.counters.dropped_outside_window += 1,
            Refusal::Pool | Refusal::Ranges | Refusal::Early | Refusal::NotReady(_) => {
                self.counters.dropped_no_room += 1;
            }
        }
    }

    /// Writes an acknowledgement of the packets received on this link. Returns `None` if no packet
    /// waits for an acknowledgement.
    pub(crate) fn acknowledge(&mut self, now: Instant) -> Option<AckBlock> {
        self.received.write_block(now, self.index)
    }

    /// Returns whether the peer sent packet `number` after all packets received so far.
    pub(crate) fn is_ahead(&self, number: u32) -> bool {
        matches!(self.received.classify(number), Arrival::New { out_of_order: false, .. })
    }

    /// Returns whether no frame has arrived on this link after the link was opened.
    pub(crate) fn is_unheard(&self) -> bool {
        self.heard != Heard::Here
    }

    /// Returns when the link was opened.
    pub(crate) const fn opened_at(&self) -> Instant {
        self.opened_at
    }
}

/// Control messages to send.
impl Path {
    pub(crate) const fn say(&mut self, messages: u16) {
        self.pending.say(messages);
    }

    pub(crate) const fn say_again(&mut self, lost: LostControl) {
        self.pending.say_again(lost);
    }

    pub(crate) const fn say_again_of_links(&mut self, lost: LostControl) {
        self.pending.say_again_of_links(lost);
    }

    /// Moves the pending messages of `other` to this link, except answers to challenges.
    pub(crate) const fn speak_for(&mut self, other: &mut Self) {
        self.pending.inherit(&mut other.pending);
    }

    /// Moves the pending reports about links to `all`. Also adds the pending status of this link to
    /// `all`.
    pub(crate) fn hand_news_of_links(&mut self, all: &mut Pending) {
        all.inherit_of_links(&mut self.pending);
        if self.pending.announces() {
            all.report_statuses(1 << self.index.0);
        }
    }

    /// Moves all pending reports about links from `all` to this link.
    pub(crate) const fn take_news_of_links(&mut self, all: &mut Pending) {
        self.pending.inherit_of_links(all);
    }

    pub(crate) const fn report_statuses(&mut self, links: u32) {
        self.pending.report_statuses(links);
    }

    pub(crate) const fn announce_addresses(&mut self, links: u16) {
        self.pending.announce_addresses(links);
    }

    /// Withdraws the report of this link's status, because the peer knows the status.
    pub(crate) const fn on_announced(&mut self) {
        self.pending.announce(false);
    }

    /// Queues the answer to the peer's challenge with this nonce.
    pub(crate) const fn answer(&mut self, nonce: u64) {
        self.pending.answer(nonce);
    }

    //= protocol.md: amplify.5
    /// Drops the pending answer to a challenge if a frame of `bytes` bytes [would exceed the
    /// limit](Self::may_answer) for this address.
    pub(crate) const fn limit_answer(&mut self, bytes: u64) {
        if !self.may_answer(bytes) {
            self.pending.drop_answer();
        }
    }

    /// Handles a report that the peer's host refused `packet`; `None` stands for the newest packet.
    /// Returns whether this refusal proves that the address has no listener.
    pub(crate) fn on_refused_packet(&mut self, now: Instant, packet: Option<u32>) -> bool {
        let newest = self.send().next_packet().truncate().wrapping_sub(1);
        let has_failed = self.refusals.on_refused(now, packet.unwrap_or(newest));
        self.ask_after_refusal(now);
        has_failed
    }

    /// Handles the discovery, by another connection, that nothing listens at the address. Returns
    /// true if the discovery is new for this link. Ignores the discovery if the peer sent something
    /// on this link while the other connection asked.
    pub(crate) fn on_no_listener_found(&mut self, now: Instant) -> bool {
        let is_heard = self.heard_at.after_ns(2 * QUESTION_NS) > now;
        let is_news = !is_heard && !self.refusals.have_failed();
        if is_news {
            self.refusals.fail();
        }
        is_news
    }

    /// Sends a Ping if a question is due after a refusal. The answer shows that the peer's address
    /// has a listener.
    pub(crate) fn ask_after_refusal(&mut self, now: Instant) {
        if self.refusals.poll_question(now, self.send().next_packet()) {
            self.say(PING);
        }
    }

    /// Returns whether the peer's host has refused a frame and this end has not asked the peer
    /// after that.
    pub(crate) fn is_question_due(&self) -> bool {
        self.refusals.deadline() != Instant::NEVER
    }

    /// Returns false if the reports so far show that nothing listens at the peer's address.
    pub(crate) const fn may_be_listened_at(&self) -> bool {
        !self.refusals.have_failed()
    }
}

/// Challenges and state changes.
impl Path {
    /// Returns when to call [`Path::poll_challenge`].
    #[inline]
    pub(crate) const fn challenge_at(&self) -> Instant {
        self.state.deadline()
    }

    /// Handles a challenge that is due. If too many earlier challenges got no answer, the link
    /// fails.
    #[must_use]
    pub(crate) fn on_challenge_due(&mut self, now: Instant) -> Option<PathChange> {
        self.state.on_challenge_due(now)
    }

    /// Returns whether this end has to send a challenge now.
    pub(crate) fn poll_challenge(&mut self, now: Instant) -> bool {
        self.state.deadline() <= now && self.state.poll_challenge(now)
    }

    /// Counts a challenge that is about to be sent.
    pub(crate) const fn count_challenge(&mut self) {
        self.counters.path_challenges_sent += 1;
    }

    /// Records that a challenge with this nonce was sent.
    pub(crate) fn on_challenge_sent(&mut self, nonce: u64) {
        self.state.on_challenge_sent(nonce);
    }

    /// Handles the answer to the challenge with this nonce. Returns the change of state, if any.
    #[must_use]
    pub(crate) fn on_challenge_answered(&mut self, now: Instant, nonce: u64) -> Option<PathChange> {
        self.state.on_challenge_answered(now, nonce)
    }

    /// Returns the number of consecutive challenges without an answer.
    pub(crate) const fn unanswered(&self) -> u8 {
        self.state.unanswered()
    }

    /// Handles the failure of the local link. The link carries no frames until it recovers.
    #[must_use]
    pub(crate) fn on_link_down(&mut self) -> Option<PathChange> {
        self.state.on_link_down()
    }

    /// Handles a report that the link is broken. The peer may have sent the report, or another host
    /// that now has the peer's address. This end immediately sends a challenge.
    #[must_use]
    pub(crate) fn on_said_broken(&mut self, now: Instant) -> Option<PathChange> {
        let change = self.state.on_link_down();
        self.state.on_link_up(now);
        change
    }

    /// Handles the peer's report that the link works.
    pub(crate) fn on_said_available(&mut self, now: Instant) {
        self.is_backup = false;
        self.state.on_link_up(now);
    }

    /// Handles the peer's request to use the link only while no other link works.
    pub(crate) const fn on_said_backup(&mut self) {
        self.is_backup = true;
    }

    /// Counts a suspicion or a failure of the link. After a failure, also reports the failure to
    /// the peer.
    pub(crate) const fn on_out_of_use(&mut self, has_failed: bool) {
        if has_failed {
            self.counters.failures += 1;
            self.pending.announce(true);
        } else {
            self.counters.suspicions += 1;
        }
    }

    /// Handles the removal of the link from the connection.
    pub(crate) const fn on_removed(&mut self) {
        self.state.on_removed();
    }
}

/// The result of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Whether the acknowledgement covers a packet that was not acknowledged before.
    pub(crate) is_progress: bool,
    /// Whether the acknowledgement covers a report of link statuses.
    pub(crate) has_reported_statuses: bool,
    pub(crate) change: Option<PathChange>,
}

/// The probe to send after a probe timeout.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// The content of the oldest data frame, to retransmit; `None` if a Ping was queued instead.
    pub(crate) data: Option<Carried>,
    /// Whether the cause of the timeout may be the size of frames instead of a broken link.
    pub(crate) may_be_size: bool,
}

/// Limit for an address that is not validated: the bytes sent to it are at most this factor times
/// the bytes received from it.
const UNPROVEN_FACTOR: u64 = 3;

/// Number of latest packets that a Reset or a report must name to count. A host that names such a
/// packet has seen it, because a guess of a 32-bit number almost never succeeds.
const RESET_PACKETS_MAX: u32 = 4096;

/// Silence on a link without data, in nanoseconds, after which the peer may have reused the link
/// index. Five challenges fit in this time.
const STALE_NS: u64 = 1_000_000_000;

#[cfg(test)]
pub(crate) mod tests;

//! One link of one connection: a link of this endpoint, the peer's address there, packets both ways,
//! measurements, and what is to be said on it.

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

/// One link of one connection: both halves of its packets, and what is known of the way.
#[derive(Debug)]
pub(crate) struct Path {
    index: LinkIndex,
    link: LinkId,
    peer: PeerAddr,
    /// The address of this end on the link when it was opened: the peer takes frames from there only.
    local: PeerAddr,
    sending: Sending,
    received: ReceivedPackets,
    state: PathState,
    counters: LinkCounters,
    /// What is to be said on it.
    pending: Pending,
    /// How often the peer's address was found to have no listener.
    refusals: Refusals,
    /// What it is to the connection.
    life: Life,
    heard: Heard,
    /// The peer asked to use this link only when no other works.
    is_backup: bool,
    /// When it was opened.
    opened_at: Instant,
    /// When a new packet last arrived on it, or it was opened.
    heard_at: Instant,
    /// When something was last acknowledged on this link.
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

/// A packet that has arrived on a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    /// Its number, as it was on the wire.
    pub(crate) number: u32,
    pub(crate) received_at: Instant,
    /// The network marked it, as there is congestion.
    pub(crate) is_marked: bool,
    pub(crate) eliciting: Eliciting,
    /// It asks for an acknowledgement at once.
    pub(crate) asks: bool,
}

impl Path {
    /// A link over which nothing was sent yet; how its life [begins](Self::begin) is said next.
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
            // Nothing was ever acknowledged on it: its silence says nothing about other links.
            progress_at: Instant::default(),
        }
    }

    //= protocol.md: index.1
    /// The same link index in use again, over any link: packet numbers go on from where they were, as they are never
    /// reused; everything else starts from the beginning.
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
    /// Forgets what was measured: the link came back, perhaps over another way.
    pub(crate) fn restart(
        &mut self,
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) {
        self.sending.restart(now, caps, config, parameters);
    }

    /// Its index on the connection.
    #[inline]
    pub(crate) const fn index(&self) -> LinkIndex {
        self.index
    }

    /// The link of this endpoint.
    #[inline]
    pub(crate) const fn link(&self) -> LinkId {
        self.link
    }

    /// The peer's address.
    #[inline]
    pub(crate) const fn peer(&self) -> PeerAddr {
        self.peer
    }

    /// The link of this endpoint and the peer's address.
    #[inline]
    pub(crate) const fn pair(&self) -> (LinkId, PeerAddr) {
        (self.link, self.peer)
    }

    /// Whether frames leave from this address of this end, the only one from which the peer takes them.
    pub(crate) fn leaves_from(&self, local: PeerAddr) -> bool {
        self.local == local
    }

    /// What is in flight on it and measured of it.
    #[inline]
    pub(crate) const fn send(&self) -> &SendHalf<Carried> {
        self.sending.half()
    }

    /// What was received on it and has to be acknowledged.
    #[inline]
    pub(crate) const fn received(&self) -> &ReceivedPackets {
        &self.received
    }

    /// What is to be said on it.
    #[inline]
    pub(crate) const fn pending(&self) -> &Pending {
        &self.pending
    }

    /// Bytes of a full frame.
    #[inline]
    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.sending.frame_bytes()
    }

    /// Whether new data may be put on it.
    #[inline]
    pub(crate) const fn may_carry_data(&self) -> bool {
        self.state.may_carry_data()
    }

    /// Whether it is known whether frames arrive.
    #[inline]
    pub(crate) const fn state(&self) -> LinkState {
        self.state.state()
    }

    /// Returns what applications and logs show of it.
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

    /// Whether something is to be sent on this link now, data and acknowledgements apart.
    #[inline]
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.sending.may_probe() || self.wants_control(now)
    }

    /// Whether a control frame is to be sent because of this link.
    #[inline]
    pub(crate) fn wants_control(&self, now: Instant) -> bool {
        self.pending.has_news() && self.may_report()
            || self.pending.nonce().is_some()
            || self.state.deadline() <= now
    }

    //= protocol.md: amplify.6
    /// Whether more frames that the peer must acknowledge may be sent. Control frames need no window, and what they say
    /// is often caused by the peer: it waits, in a few bits, until the peer has acknowledged the earlier ones, or a
    /// probe is due.
    ///
    /// Nothing is announced where the peer has not answered.
    pub(crate) const fn may_report(&self) -> bool {
        self.is_validated() && (self.pending.may_report() || self.sending.may_probe())
    }

    /// Whether nothing on it is in flight, to be reported or to be acknowledged.
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

    /// Whether the peer may know of a link under this index.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard != Heard::Never
    }

    /// Whether somebody has answered at the peer's address. Until then it may be somebody else's, who
    /// gets no data, and nothing but a few small frames.
    pub(crate) const fn is_validated(&self) -> bool {
        self.life.has_answered()
    }

    //= protocol.md: amplify.5
    /// Whether so many bytes may go to an address from which no answer has come: in all, up to [`UNPROVEN_FACTOR`]
    /// times what came from there.
    pub(crate) const fn may_answer(&self, bytes: u64) -> bool {
        let most = UNPROVEN_FACTOR * self.counters.bytes_received;
        self.is_validated() || self.counters.bytes_sent + bytes <= most
    }

    /// Whether the packet with this number, as far as frames carry it, is one of the last that were sent.
    pub(crate) const fn has_sent_lately(&self, packet: u32) -> bool {
        let behind = self.send().next_packet().truncate().wrapping_sub(packet);
        behind >= 1 && behind <= RESET_PACKETS_MAX
    }

    /// Whether both ends should have it: it is neither on trial nor no more.
    pub(crate) const fn is_settled(&self) -> bool {
        matches!(self.life, Life::Settled)
    }

    /// Whether this end tries it, and the peer has not answered yet.
    pub(crate) const fn is_trial(&self) -> bool {
        matches!(self.life, Life::Trial)
    }

    /// Whether the peer opened it, and has not answered here yet.
    pub(crate) const fn is_offered(&self) -> bool {
        matches!(self.life, Life::Offered)
    }

    /// Whether the link is gone, and only stays because there is no other.
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

    /// The link is gone, and stays because there is no other.
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

    /// When its window opens by the clock for a burst, or for a batch if it `batches`.
    pub(crate) fn opens_at(&self, now: Instant, batches: bool) -> Instant {
        let send = self.send();
        if self.state.may_carry_data() {
            send.opens_at(now, if batches { send.batch_bytes() } else { send.quantum_bytes() })
        } else {
            Instant::NEVER
        }
    }

    //= protocol.md: state.5
    /// What the scheduler is shown.
    ///
    /// The shortest round trip of all links is `rtt_min_ns`.
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

    /// The earliest of its timers, those of the path MTU apart: they only matter while data flows.
    pub(crate) fn deadline(&self, now: Instant) -> Instant {
        let acknowledgement_at = AckDuty::again_at(now, &self.received);
        let asked_at = self.state.deadline().min(self.refusals.deadline());
        self.send().deadline().min(acknowledgement_at).min(asked_at)
    }
}

/// What is sent on it.
impl Path {
    /// A frame goes out on it, which carries acknowledgements or not.
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

    /// The driver did not take the last `frames`, of so many bytes in all, which were sent for `purpose`:
    /// they count as never sent, and what they carried is given out, newest first.
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

    /// The driver did not take the last `frames`, which were sent for `purpose`, and does not know whether they left:
    /// they count as sent, and what they carried is given out, newest first, to be retransmitted.
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

    /// A frame of data has gone, perhaps although the window is closed.
    #[inline]
    pub(crate) const fn use_probe(&mut self) {
        self.sending.use_probe();
    }

    /// A control frame was sent that reports something to the peer, or asks or answers.
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

    /// The window has room for a full frame, or one may go nevertheless.
    #[inline]
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.sending.has_room(now)
    }

    /// [`Path::has_room`] beside frames of so many bytes that are still to be made.
    #[inline]
    pub(crate) fn has_room_beside(&self, now: Instant, bytes: u32) -> bool {
        if bytes == 0 {
            return self.has_room(now);
        }
        self.send().has_room(now, bytes + u32::from(self.frame_bytes()))
    }

    /// Whether a frame may go although the window is closed.
    #[inline]
    pub(crate) const fn may_probe(&self) -> bool {
        self.sending.may_probe()
    }

    /// See [`Sending::asks_with_next`].
    #[inline]
    pub(crate) fn asks_with_next(&mut self) -> bool {
        self.sending.asks_with_next()
    }

    /// See [`Sending::on_asked`].
    #[inline]
    pub(crate) const fn on_asked(&mut self) {
        self.sending.on_asked();
    }

    /// See [`SendHalf::begin_train`].
    pub(crate) const fn begin_train(&mut self, now: Instant) {
        self.sending.begin_train(now);
    }

    /// See [`SendHalf::compare_with`].
    pub(crate) fn compare_with(&mut self, fastest: u64) {
        self.sending.compare_with(fastest);
    }

    /// See [`SendHalf::set_application_limited`].
    #[inline]
    pub(crate) fn set_application_limited(&mut self, is_limited: bool) {
        self.sending.set_application_limited(is_limited);
    }

    /// A turn gave it nothing although it had room and there was something to give.
    pub(crate) const fn on_left_idle(&mut self) {
        self.counters.idle_with_data += 1;
    }

    /// When the next probe of the path MTU may be due.
    #[inline]
    pub(crate) const fn mtu_probe_at(&self) -> Instant {
        self.sending.mtu_probe_at()
    }

    /// The size of a probe of the path MTU to send now, if one is due.
    pub(crate) fn poll_mtu_probe(&mut self, now: Instant) -> Option<u16> {
        self.sending.poll_mtu_probe(now)
    }

    /// See [`Sending::on_too_big`].
    pub(crate) fn on_too_big(&mut self, limit: u16, is_proven: bool) {
        self.sending.on_too_big(limit, is_proven);
    }

    /// What the link can do has changed, and it is up.
    pub(crate) fn on_link_changed(&mut self, now: Instant, limit: u16) {
        self.sending.set_limit(limit);
        self.state.on_link_up(now);
        if self.send().in_flight_bytes() > 0 {
            // The probe timeout may have grown long while nothing got through.
            self.say(PING);
        }
    }
}

/// What comes back of it.
impl Path {
    /// The peer acknowledges packets of it; what they carried of operations is given out. Nothing if the peer
    /// cannot have received them.
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

    /// Its timer has come; what is lost by that is given out. Whether a [probe](Self::probe) is due.
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

    /// Since when something has waited for an acknowledgement on it, or it is now.
    pub(crate) fn waits_since(&self, now: Instant) -> Instant {
        self.send().oldest_sent_at().unwrap_or(now).max(self.progress_at)
    }

    /// When something was last acknowledged on it.
    pub(crate) const fn progress_at(&self) -> Instant {
        self.progress_at
    }

    //= protocol.md: again.2
    /// What is oldest goes out again, and the peer is asked if that is no data. Nothing if only a probe of
    /// the path MTU was in flight.
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

    /// A probe was due: the way may be broken, if others progressed meanwhile.
    #[must_use]
    pub(crate) fn on_probe_timeout(
        &mut self,
        now: Instant,
        others_progress: bool,
    ) -> Option<PathChange> {
        self.state.on_probe_timeout(now, others_progress)
    }

    //= protocol.md: state.2
    /// Gives out what is in flight, for other links: data and, returned, control messages.
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

    /// Gives out what is in flight that the peer has refused, without a word on the link.
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

    /// Drops what is in flight: its result is not needed any more.
    pub(crate) fn let_go(&mut self, pool: &mut SentPool<Carried>) {
        self.sending.drain(pool, &mut |_| {});
        self.pending.on_given_up();
    }
}

/// What has arrived on it.
impl Path {
    /// A frame has arrived with a packet. Whether that is new: nothing but its arrival is of any interest
    /// otherwise.
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

    /// A packet is to be acknowledged.
    #[inline]
    pub(crate) fn observe(&mut self, now: Instant, packet: &Packet) {
        let Packet { number, received_at, is_marked, eliciting, asks } = *packet;
        self.received.observe(now, received_at, number, is_marked, eliciting, asks);
    }

    /// A frame of data has arrived on it, behind data of later or not.
    #[inline]
    pub(crate) fn on_data(&mut self, is_out_of_order: bool) {
        self.counters.data_frames_received += 1;
        self.counters.out_of_order += u64::from(is_out_of_order);
        self.sending.end_train();
    }

    /// A control frame has arrived on it.
    pub(crate) const fn on_control(&mut self) {
        self.counters.control_frames_received += 1;
    }

    /// Acknowledgements have arrived on it, with something else or alone.
    pub(crate) const fn on_acks(&mut self, are_alone: bool) {
        if are_alone {
            self.counters.explicit_acks_received += 1;
        } else {
            self.counters.piggybacked_acks_received += 1;
        }
    }

    /// So many bytes of payload were taken.
    #[inline]
    pub(crate) const fn on_taken(&mut self, bytes: usize) {
        self.counters.payload_bytes_received += bytes as u64;
    }

    /// A fragment had come before.
    pub(crate) const fn on_not_placed(&mut self) {
        self.counters.not_placed += 1;
    }

    /// A fragment found no room, and is not acknowledged.
    pub(crate) const fn on_refused(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Window => self.counters.dropped_outside_window += 1,
            Refusal::Pool | Refusal::Ranges | Refusal::Early | Refusal::NotReady(_) => {
                self.counters.dropped_no_room += 1;
            }
        }
    }

    /// Writes an acknowledgement of what has arrived on it, if there is anything.
    pub(crate) fn acknowledge(&mut self, now: Instant) -> Option<AckBlock> {
        self.received.write_block(now, self.index)
    }

    /// Whether a packet of this number was sent after all that came so far.
    pub(crate) fn is_ahead(&self, number: u32) -> bool {
        matches!(self.received.classify(number), Arrival::New { out_of_order: false, .. })
    }

    /// Whether nothing at all has come on it.
    pub(crate) fn is_unheard(&self) -> bool {
        self.heard != Heard::Here
    }

    /// When it was opened.
    pub(crate) const fn opened_at(&self) -> Instant {
        self.opened_at
    }
}

/// What is to be said on it.
impl Path {
    /// See [`Pending::say`].
    pub(crate) const fn say(&mut self, messages: u16) {
        self.pending.say(messages);
    }

    /// See [`Pending::say_again`].
    pub(crate) const fn say_again(&mut self, lost: LostControl) {
        self.pending.say_again(lost);
    }

    /// See [`Pending::say_again_of_links`].
    pub(crate) const fn say_again_of_links(&mut self, lost: LostControl) {
        self.pending.say_again_of_links(lost);
    }

    /// What was to be said on another link, but for answers, is said on this one.
    pub(crate) const fn speak_for(&mut self, other: &mut Self) {
        self.pending.inherit(&mut other.pending);
    }

    /// What is to be said of links moves to `all`, and what is to be said of this one joins it.
    pub(crate) fn hand_news_of_links(&mut self, all: &mut Pending) {
        all.inherit_of_links(&mut self.pending);
        if self.pending.announces() {
            all.report_statuses(1 << self.index.0);
        }
    }

    /// All that is to be said of links is said on this one.
    pub(crate) const fn take_news_of_links(&mut self, all: &mut Pending) {
        self.pending.inherit_of_links(all);
    }

    /// See [`Pending::report_statuses`].
    pub(crate) const fn report_statuses(&mut self, links: u32) {
        self.pending.report_statuses(links);
    }

    /// See [`Pending::announce_addresses`].
    pub(crate) const fn announce_addresses(&mut self, links: u16) {
        self.pending.announce_addresses(links);
    }

    /// The peer has heard, or knows, how this link is.
    pub(crate) const fn on_announced(&mut self) {
        self.pending.announce(false);
    }

    /// The peer's challenge with this nonce is to be answered.
    pub(crate) const fn answer(&mut self, nonce: u64) {
        self.pending.answer(nonce);
    }

    //= protocol.md: amplify.5
    /// An answer of `bytes` bytes is due: no more if that is [too much](Self::may_answer) for who asks.
    pub(crate) const fn limit_answer(&mut self, bytes: u64) {
        if !self.may_answer(bytes) {
            self.pending.drop_answer();
        }
    }

    /// A packet that went there was refused, or the newest if it is not known which. Returns whether this refusal
    /// proves that the address has no listener.
    pub(crate) fn on_refused_packet(&mut self, now: Instant, packet: Option<u32>) -> bool {
        let newest = self.send().next_packet().truncate().wrapping_sub(1);
        let has_failed = self.refusals.on_refused(now, packet.unwrap_or(newest));
        self.ask_who_refuses(now);
        has_failed
    }

    /// Another connection has found that the address has no listener. Returns whether that holds and is new: a peer
    /// that was heard during its questions is there.
    pub(crate) fn on_no_listener_found(&mut self, now: Instant) -> bool {
        let is_heard = self.heard_at.after_ns(2 * QUESTION_NS) > now;
        let is_news = !is_heard && !self.refusals.have_failed();
        if is_news {
            self.refusals.fail();
        }
        is_news
    }

    /// Asks whether there is somebody at the peer's address, if it is time after a refusal.
    pub(crate) fn ask_who_refuses(&mut self, now: Instant) {
        if self.refusals.poll_question(now, self.send().next_packet()) {
            self.say(PING);
        }
    }

    /// Whether a frame was refused, and the peer is asked about that soon.
    pub(crate) fn is_question_due(&self) -> bool {
        self.refusals.deadline() != Instant::NEVER
    }

    /// Whether somebody may listen at the peer's address, as far as is reported.
    pub(crate) const fn may_be_listened_at(&self) -> bool {
        !self.refusals.have_failed()
    }
}

/// What is found out about the way.
impl Path {
    /// When [`Path::poll_challenge`] has something to do.
    #[inline]
    pub(crate) const fn challenge_at(&self) -> Instant {
        self.state.deadline()
    }

    /// Its challenge is due: whether it counts as failed, as those before were not answered.
    #[must_use]
    pub(crate) fn on_challenge_due(&mut self, now: Instant) -> Option<PathChange> {
        self.state.on_challenge_due(now)
    }

    /// Whether a challenge is to go out now.
    pub(crate) fn poll_challenge(&mut self, now: Instant) -> bool {
        self.state.deadline() <= now && self.state.poll_challenge(now)
    }

    /// A challenge is about to go out.
    pub(crate) const fn count_challenge(&mut self) {
        self.counters.path_challenges_sent += 1;
    }

    /// A challenge with this nonce went out.
    pub(crate) fn on_challenge_sent(&mut self, nonce: u64) {
        self.state.on_challenge_sent(nonce);
    }

    /// A challenge with this nonce is answered.
    #[must_use]
    pub(crate) fn on_challenge_answered(&mut self, now: Instant, nonce: u64) -> Option<PathChange> {
        self.state.on_challenge_answered(now, nonce)
    }

    /// Challenges that were not answered, one after the other.
    pub(crate) const fn unanswered(&self) -> u8 {
        self.state.unanswered()
    }

    /// The link it leads over carries nothing any more.
    #[must_use]
    pub(crate) fn on_link_down(&mut self) -> Option<PathChange> {
        self.state.on_link_down()
    }

    /// The peer, or the host that has its address now, reports that the link is broken: it is asked again at once.
    #[must_use]
    pub(crate) fn on_said_broken(&mut self, now: Instant) -> Option<PathChange> {
        let change = self.state.on_link_down();
        self.state.on_link_up(now);
        change
    }

    /// The peer says that it works.
    pub(crate) fn on_said_available(&mut self, now: Instant) {
        self.is_backup = false;
        self.state.on_link_up(now);
    }

    /// The peer wants it to be used only when no other works.
    pub(crate) const fn on_said_backup(&mut self) {
        self.is_backup = true;
    }

    /// The link is suspected, or has failed: counts that, and reports it if it has failed.
    pub(crate) const fn on_out_of_use(&mut self, has_failed: bool) {
        if has_failed {
            self.counters.failures += 1;
            self.pending.announce(true);
        } else {
            self.counters.suspicions += 1;
        }
    }

    /// It was taken away from the connection.
    pub(crate) const fn on_removed(&mut self) {
        self.state.on_removed();
    }
}

/// What an acknowledgement said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    /// Of something that was not acknowledged before.
    pub(crate) is_progress: bool,
    /// The peer has heard the status of links.
    pub(crate) has_reported_statuses: bool,
    pub(crate) change: Option<PathChange>,
}

/// What is done as nothing comes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probe {
    /// What the oldest frame of data carried, to be retransmitted; if there is none, the peer is asked.
    pub(crate) data: Option<Carried>,
    /// The size of frames may be why nothing comes back, not the way.
    pub(crate) may_be_size: bool,
}

/// An address from which no answer has come gets at most this many times the bytes that came from there.
const UNPROVEN_FACTOR: u64 = 3;

/// Packets that were sent lately: a reset or a report that names one comes from who sees them, as no guess
/// hits.
const RESET_PACKETS_MAX: u32 = 4096;

/// Silence on a link that carries no data, after which the peer may mean another link by its index:
/// five challenges.
const STALE_NS: u64 = 1_000_000_000;

#[cfg(test)]
pub(crate) mod tests;

//! The sending half of one link: its packets in flight, the size of its frames, and when its frames
//! ask for an acknowledgement.

use delivery::{
    CongestionAlgorithm, Fate, Instant, LinkCaps, PathMtu, SendConfig, SendHalf, SentPool,
    TimeoutOutcome,
};
use semantics::Carried;
use wire_edge::{AckBlock, PacketNumber, Parameters};

use crate::config::EngineConfig;
use crate::links::FRAME_BYTES_MIN;
use crate::purpose::Purpose;
use crate::returned::Returned;

/// The sending half of a link, and the size of its frames.
///
/// Congestion control counts in frames of this size. Therefore every change of the size must reach
/// both `half` and `mtu`.
#[derive(Debug)]
pub(crate) struct Sending {
    half: SendHalf<Carried>,
    mtu: PathMtu,
    /// Number of probe frames that the link may send after a timeout although the window is closed.
    probes_allowed: u8,
    /// Number of data frames that this end sent after it last asked the peer for an
    /// acknowledgement.
    unasked: u32,
}

delivery::pack_fields!(Sending { half, mtu, probes_allowed, unasked });

impl Sending {
    //= protocol.md: set-up.18, size.1
    /// Creates the sending half of a link to a peer with these parameters.
    pub(crate) fn new(
        now: Instant,
        caps: &LinkCaps,
        config: &EngineConfig,
        parameters: &Parameters,
    ) -> Self {
        let limit = caps.frame_bytes_max.min(parameters.frame_bytes_max);
        let mtu = PathMtu::new(caps.frame_bytes_safe.max(FRAME_BYTES_MIN), limit);
        let mut half = SendHalf::new(&send_config(caps, config, parameters, &mtu), now);
        half.begin_at(PacketNumber(u64::from(config.numbers_from)));
        Self { half, mtu, probes_allowed: 0, unasked: 0 }
    }

    //= protocol.md: index.1
    /// Continues the packet numbers of `before`, because the protocol never reuses a packet number.
    /// All other state comes from `self`.
    pub(crate) fn after(self, before: Self) -> Self {
        let mut after = Self { half: before.half, ..self };
        after.follow_mtu();
        after
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
        self.half.restart_measurement(&send_config(caps, config, parameters, &self.mtu), now);
    }

    /// Returns the packets in flight and the measurements.
    #[inline]
    pub(crate) const fn half(&self) -> &SendHalf<Carried> {
        &self.half
    }

    /// Returns the size of a full frame, in bytes.
    #[inline]
    pub(crate) const fn frame_bytes(&self) -> u16 {
        self.mtu.current()
    }

    /// Returns whether the link may send a frame although the window is closed.
    #[inline]
    pub(crate) const fn may_probe(&self) -> bool {
        self.probes_allowed > 0
    }

    /// Allows the link to send one frame although the window is closed. Has no effect if the link
    /// has such a permission already.
    pub(crate) fn allow_probe(&mut self) {
        self.probes_allowed = self.probes_allowed.max(1);
    }

    /// Records that the link has used its permission to send one frame although the window is
    /// closed.
    #[inline]
    pub(crate) const fn use_probe(&mut self) {
        self.probes_allowed = self.probes_allowed.saturating_sub(1);
    }

    //= protocol.md: amplify.6, state.5
    /// Returns whether the link may send a full frame now.
    #[inline]
    pub(crate) fn has_room(&self, now: Instant) -> bool {
        self.may_probe() || self.half.has_room(now, u32::from(self.frame_bytes()))
    }

    /// Counts the next data frame. Returns whether the frame should ask for an acknowledgement of
    /// this link's packets.
    #[inline]
    pub(crate) fn asks_with_next(&mut self) -> bool {
        self.unasked += 1;
        self.half.asks_after(self.unasked)
    }

    /// Restarts the count of data frames, because this end has asked the peer for an
    /// acknowledgement or nothing is in flight.
    #[inline]
    pub(crate) const fn on_asked(&mut self) {
        self.unasked = 0;
    }

    /// Calls [`SendHalf::begin_train`]. The caller does this if the link sends data after a
    /// silence, or if this end answers the peer with data.
    pub(crate) const fn begin_train(&mut self, now: Instant) {
        self.half.begin_train(now);
    }

    /// Calls [`SendHalf::end_train`].
    #[inline]
    pub(crate) const fn end_train(&mut self) {
        self.half.end_train();
    }

    /// Calls [`SendHalf::compare_with`].
    pub(crate) fn compare_with(&mut self, fastest: u64) {
        self.half.compare_with(fastest);
    }

    /// Calls [`SendHalf::set_application_limited`].
    #[inline]
    pub(crate) fn set_application_limited(&mut self, is_limited: bool) {
        self.half.set_application_limited(is_limited);
    }

    /// Records a frame that is sent.
    #[inline]
    pub(crate) fn on_sent(
        &mut self,
        pool: &mut SentPool<Carried>,
        now: Instant,
        bytes: u32,
        purpose: Purpose,
        carried: Carried,
    ) {
        debug_assert_eq!(self.half.frame_bytes(), u32::from(self.mtu.current()), "one size");
        self.half.on_sent(pool, now, bytes, purpose.class(), carried);
    }

    /// Reverses the sending of the last `frames` frames, which the driver did not accept. Passes
    /// their contents to `back`, newest first.
    pub(crate) fn unsend(
        &mut self,
        pool: &mut SentPool<Carried>,
        frames: usize,
        purpose: Purpose,
        back: &mut impl FnMut(Carried),
    ) {
        self.half.unsend(pool, frames, back);
        if purpose == Purpose::ProbeMtu {
            self.mtu.on_probe_unsent();
        }
    }

    /// Takes back the contents of the last `frames` frames, if the driver does not know whether it
    /// sent them. Passes the contents to `back`, newest first.
    pub(crate) fn disown(
        &mut self,
        pool: &mut SentPool<Carried>,
        frames: usize,
        purpose: Purpose,
        back: &mut impl FnMut(Carried),
    ) {
        self.half.disown(pool, frames, back);
        if purpose == Purpose::ProbeMtu {
            self.mtu.on_probe_unsent();
        }
    }

    /// Handles an acknowledgement by the peer. If the acknowledgement covers packets that the peer
    /// cannot have received, returns `None` and changes nothing.
    pub(crate) fn on_ack(
        &mut self,
        pool: &mut SentPool<Carried>,
        (now, received_at): (Instant, Instant),
        block: &AckBlock,
        operations: &mut impl FnMut(Fate, Carried),
    ) -> Option<Returned> {
        let mut returned = Returned::default();
        let summary = self
            .half
            .on_ack(pool, now, received_at, block, &mut |fate, carried| {
                returned.take(fate, carried, operations);
            })
            .ok()?;
        returned.packets_lost = u64::from(summary.newly_lost);
        returned.spurious_losses = u64::from(summary.spurious);
        returned.is_progress = summary.newly_acked > 0;
        self.mtu.on_frames_acked(returned.acked_bytes);
        self.on_returned(now, &returned);
        Some(returned)
    }

    /// Handles the timeout of packets in flight. Returns the fate of the packets, and whether a
    /// [probe](Self::probe) is due.
    pub(crate) fn on_timeout(
        &mut self,
        pool: &mut SentPool<Carried>,
        now: Instant,
        operations: &mut impl FnMut(Fate, Carried),
    ) -> (Returned, bool) {
        let mut returned = Returned::default();
        let outcome = self.half.on_timeout(pool, now, &mut |fate, carried| {
            returned.take(fate, carried, operations);
        });
        returned.packets_lost = returned.data_lost;
        self.on_returned(now, &returned);
        (returned, matches!(outcome, TimeoutOutcome::Probe { .. }))
    }

    fn on_returned(&mut self, now: Instant, returned: &Returned) {
        let lost_bytes = returned.lost_bytes;
        if lost_bytes > 0 && self.mtu.on_frame_lost(now, self.half.srtt_ns(), lost_bytes) {
            self.follow_mtu();
        }
        match returned.probe {
            Some((Fate::Acked, size)) => {
                self.mtu.on_probe_acked(size);
                self.follow_mtu();
            }
            Some((Fate::Lost, size)) => self.mtu.on_probe_lost(size),
            None => {}
        }
    }

    //= protocol.md: again.2
    /// Returns the content of the oldest frame in flight that is not a probe of the path MTU, for
    /// retransmission after a probe timeout. Also returns whether the size of frames may be the
    /// cause of the timeout.
    ///
    /// Returns `None` if only a probe of the path MTU was in flight. Such a probe often gets no
    /// answer, because it may be too big for the path.
    pub(crate) fn probe(&mut self, now: Instant) -> Option<(Carried, bool)> {
        let carried = self.half.retire_oldest_for_probe()?;
        let is_large = self.mtu.current() > self.mtu.safe();
        if is_large && self.mtu.on_timeout(now) {
            self.follow_mtu();
        }
        self.allow_probe();
        Some((carried, is_large))
    }

    /// Calls [`SendHalf::retire`].
    pub(crate) fn retire(
        &mut self,
        pool: &mut SentPool<Carried>,
        is_refused: &mut impl FnMut(&Carried) -> bool,
        back: &mut impl FnMut(Carried),
    ) {
        self.half.retire(pool, is_refused, back);
    }

    /// Removes everything in flight, so that other links retransmit it. Passes the contents to
    /// `back`, oldest first. Packet numbers continue.
    pub(crate) fn drain(&mut self, pool: &mut SentPool<Carried>, back: &mut impl FnMut(Carried)) {
        self.half.drain(pool, back);
    }

    /// Withdraws the permission to send a frame although the window is closed.
    pub(crate) const fn withdraw_probe(&mut self) {
        self.probes_allowed = 0;
    }

    /// Sets the size of the largest frame that the link can send and the peer accepts.
    pub(crate) fn set_limit(&mut self, limit: u16) {
        self.mtu.set_limit(limit);
        self.follow_mtu();
    }

    /// Handles a report that frames of more than `limit` bytes do not pass. `is_proven` says
    /// whether the report quotes a frame of this end.
    pub(crate) fn on_too_big(&mut self, limit: u16, is_proven: bool) {
        if is_proven {
            self.mtu.on_frame_too_big(limit);
        } else {
            self.mtu.on_doubt(limit);
        }
        self.follow_mtu();
    }

    /// Returns when the next probe of the path MTU may be due.
    #[inline]
    pub(crate) const fn mtu_probe_at(&self) -> Instant {
        self.mtu.deadline()
    }

    /// Returns the size of the path MTU probe to send now, in bytes, if one is due.
    pub(crate) fn poll_mtu_probe(&mut self, now: Instant) -> Option<u16> {
        self.mtu.poll_probe(now)
    }

    fn follow_mtu(&mut self) {
        self.half.set_frame_bytes(u32::from(self.mtu.current()));
    }
}

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
    // Shared memory loses nothing: no queue overflows, because the sender waits when a ring is
    // full. On a network, a long delay means congestion. Over shared memory, a long delay means
    // that the processor of the peer runs other work for a while.
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

/// Window over shared memory, in frames. The window is four times the number of frames after which
/// the sender asks for an acknowledgement, so the sender never waits for an acknowledgement.
const MEMORY_WINDOW_FRAMES: u32 = 256;

/// Shortest probe timeout over shared memory, in nanoseconds. The kernel may give the processor to
/// other processes for some milliseconds at a time. The timeout may be this long, because it need
/// not detect the end of the peer's process: the socket of that process reports its end
/// immediately.
const MEMORY_PROBE_NS: u64 = 50_000_000;

#[cfg(test)]
pub(crate) mod tests {
    use semantics::CarriedKind;
    use wire_edge::{Epoch, Features, LinkIndex, MessageNumber, PeerAddr};

    use super::*;

    pub(crate) const CAPS: LinkCaps = LinkCaps {
        frame_bytes_max: 9000,
        frame_bytes_safe: 1400,
        segments: 1,
        offloads: false,
        receive_buffer_bytes: 1 << 20,
        rate: None,
        local: PeerAddr([0; 20]),
    };

    pub(crate) const PARAMETERS: Parameters = Parameters {
        incarnation: 1,
        features: Features::NONE,
        epoch: Epoch(1),
        links_max: 2,
        frame_bytes_max: 9000,
        read_depth: 1,
        operation_window: 16,
        order_pool_bytes: 0,
        receive_buffer_bytes: 1 << 20,
        ack_delay_max_ns: 25_000,
        receive_credit: MessageNumber(0),
        service: 0,
    };

    pub(crate) fn pool() -> SentPool<Carried> {
        SentPool::new(1, usize::from(EngineConfig::default().packets_max))
    }

    fn sending() -> Sending {
        Sending::new(START, &CAPS, &EngineConfig::default(), &PARAMETERS)
    }

    pub(crate) fn data(number: u32) -> Carried {
        Carried { slot: number, length: 1000, kind: CarriedKind::Request, ..Carried::default() }
    }

    fn is_one_size(sending: &Sending, bytes: u16) -> bool {
        sending.frame_bytes() == bytes && sending.half().frame_bytes() == u32::from(bytes)
    }

    #[test]
    fn every_change_of_the_frame_size_reaches_congestion_control() {
        let (mut sending, mut pool) = (sending(), pool());
        assert!(is_one_size(&sending, 1400));
        let size = sending.poll_mtu_probe(START).expect("larger frames are tried");
        sending.on_sent(&mut pool, START, u32::from(size), Purpose::ProbeMtu, probe_of(size));
        let later = START.after_ns(100_000);
        let acknowledged = sending.on_ack(&mut pool, (later, later), &block(0, 1), &mut |_, _| {});
        assert!(acknowledged.is_some_and(|acknowledged| acknowledged.is_progress));
        assert!(is_one_size(&sending, size));
        sending.on_too_big(5000, true);
        assert!(is_one_size(&sending, size.min(5000)));
        sending.set_limit(2000);
        assert!(is_one_size(&sending, 2000));
        sending.on_too_big(1500, false);
        assert!(is_one_size(&sending, 1500));
    }

    #[test]
    fn one_probe_frame_is_sent_despite_a_closed_window() {
        let (mut sending, mut pool) = (sending(), pool());
        let mut frames = 0;
        while sending.has_room(START) {
            sending.on_sent(&mut pool, START, 1400, Purpose::Data, data(frames));
            frames += 1;
        }
        let (oldest, may_be_size) = sending.probe(START).expect("data is in flight");
        assert_eq!((oldest.slot, may_be_size), (0, false));
        assert!(sending.has_room(START));
        sending.probe(START);
        sending.use_probe();
        assert!(!sending.may_probe(), "two timeouts allow only one frame");
        sending.allow_probe();
        sending.withdraw_probe();
        assert!(!sending.may_probe());
    }

    //= protocol.md: index.1
    #[test]
    fn packet_numbers_continue_after_a_restart_of_the_path() {
        let (mut before, mut pool) = (sending(), pool());
        for number in 0..5 {
            before.on_sent(&mut pool, START, 1400, Purpose::Data, data(number));
        }
        before.on_too_big(600, true);
        before.drain(&mut pool, &mut |_| {});
        let next = before.half().next_packet();
        let after = sending().after(before);
        assert_eq!(after.half().next_packet(), next);
        assert!(is_one_size(&after, 1400));
    }

    #[test]
    fn a_frame_that_no_driver_took_was_not_sent() {
        let (mut sending, mut pool) = (sending(), pool());
        let first = sending.half().next_packet();
        for number in 0..3 {
            sending.on_sent(&mut pool, START, 1400, Purpose::Data, data(number));
        }
        let mut back = Vec::new();
        sending.unsend(&mut pool, 3, Purpose::Data, &mut |carried| back.push(carried.slot));
        assert_eq!(back, [2, 1, 0]);
        assert_eq!(sending.half().next_packet(), first);
        let size = sending.poll_mtu_probe(START).expect("larger frames are tried");
        sending.on_sent(&mut pool, START, u32::from(size), Purpose::ProbeMtu, probe_of(size));
        sending.unsend(&mut pool, 1, Purpose::ProbeMtu, &mut |_| {});
        assert_eq!(sending.poll_mtu_probe(START), Some(size), "it is due again");
    }

    pub(crate) fn block(largest: u32, run: u16) -> AckBlock {
        AckBlock { link: LinkIndex(0), largest, run, ..AckBlock::default() }
    }

    fn probe_of(size: u16) -> Carried {
        let slot = crate::pending::MTU_PROBE | u32::from(size);
        Carried { slot, kind: CarriedKind::Control, ..Carried::default() }
    }

    const START: Instant = Instant(1_000_000);
}

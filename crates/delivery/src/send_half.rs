//! The sending half of one link of one connection.

mod rest;

use wire_edge::{AckBlock, PacketNumber};

use crate::congestion::{AckSample, CongestionController, Controller, LossSample};
use crate::coverage::{Coverage, reaches};
use crate::loss::{ReorderTolerance, Verdict};
use crate::rate::{RateEstimator, SendStamp, bytes_in};
use crate::rtt::RttEstimator;
use crate::sent_packets::{Kind, NewRecord, PacketClass, Record, SentPackets, SentPool};
use crate::{Instant, ProtocolError, SendConfig};

/// What became of a packet's content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The peer accepted it.
    Acked,
    /// It must be sent again.
    Lost,
}

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckSummary {
    /// Packets newly acknowledged.
    pub newly_acked: u32,
    /// Their bytes.
    pub newly_acked_bytes: u32,
    /// Packets newly declared lost.
    pub newly_lost: u32,
    /// Round-trip time without the peer's delay, in nanoseconds.
    pub rtt_sample_ns: Option<u64>,
    /// Packets acknowledged that had been declared lost.
    pub spurious: u32,
    /// Frames that arrived with a congestion mark since the last acknowledgement.
    pub marked: u32,
}

/// What a timer asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TimeoutOutcome {
    /// Nothing beyond the losses reported.
    Nothing,
    /// The probe timeout fired: send a packet that asks to be acknowledged, window or not. See
    /// [`SendHalf::retire_oldest_for_probe`].
    Probe {
        /// Probe timeouts since the last acknowledgement, this one included.
        count_so_far: u32,
    },
}

/// Sent packets, round-trip time, loss detection, probe timeout, congestion control and delivery
/// rate of one link of one connection in one direction.
///
/// `T` is what a packet carried. It comes back exactly once per packet: acknowledged or lost
/// through `report`, or returned by [`unsend`](Self::unsend), [`drain`](Self::drain) or
/// [`retire_oldest_for_probe`](Self::retire_oldest_for_probe).
///
/// Packet numbers are never reused, so every acknowledgement of a packet is unambiguous. Links keep
/// the order of frames, so a packet that later ones overtake is lost: three numbers or a quarter of the smallest round
/// trip later, more after losses that turned out to be none. Records
/// of lost packets stay for a while as *ghosts* without content: an acknowledgement of one proves
/// that it was not lost, and undoes what congestion control made of it.
#[derive(Debug)]
pub struct SendHalf<T: Copy> {
    packets: SentPackets<T>,
    rtt: RttEstimator,
    rate: RateEstimator,
    controller: Controller,
    tolerance: ReorderTolerance,
    drain: Drain,
    next: PacketNumber,
    /// One more than the largest number acknowledged.
    acked_end: PacketNumber,
    /// When the newest acknowledged packet was sent, and how long its acknowledgement took.
    newest_acked_sent_at: Instant,
    newest_acked_took_ns: u64,
    /// When the first overtaken packet counts as lost.
    loss_at: Instant,
    /// Last acknowledgement of something new, or last probe timeout.
    progress_at: Instant,
    /// When the link will have carried what was handed to it.
    idle_at: Instant,
    nominal_rate: Option<u64>,
    probe_timeout_min_ns: u64,
    probe_timeout_max_ns: u64,
    in_flight_bytes: u32,
    receive_buffer_bytes: u32,
    ack_delay_max_ns: u32,
    frame_bytes: u32,
    probe_count: u32,
    packets_max: u16,
    /// The peer's count of marked frames, as last seen.
    marked: u16,
}

/// An idle link of a connection costs no more than eight cache lines.
const _: () = assert!(size_of::<SendHalf<[u64; 2]>>() <= 512);

/// Duration of one burst at the measured rate, in nanoseconds: short against the round trips of a
/// LAN, long enough to fill a segmentation offload from 30 Gb/s on.
const QUANTUM_NS: u64 = 16_000;

/// Largest burst, in bytes: what one `sendmsg` with segmentation offload takes.
const QUANTUM_BYTES_MAX: u32 = 65_536;

/// Smallest burst, in frames.
const QUANTUM_FRAMES_MIN: u32 = 2;

/// Doublings of the probe timeout after which it no longer grows.
const BACKOFF_MAX: u32 = 16;

/// Round trips for which the queue is kept drained: one until others notice, one until they have
/// drained it, too, one to measure, and one as rounds are counted from their middle.
const DRAINED_ROUNDS: u32 = 4;

/// Least that acknowledgements vary, in nanoseconds: what a timer of the peer is late.
const PROBE_MARGIN_NS: u64 = 200_000;

/// Probe timeouts without an answer after which congestion is persistent (RFC 9002 §7.6.1).
const PERSISTENT_PROBES: u32 = 6;

/// Frames for which a sender asks for one acknowledgement, at most: 1.6 % of extra frames.
pub const ASK_FRAMES_MAX: u32 = 64;

/// Frames that may be taken for delivered before their acknowledgement is here: those of two
/// acknowledgements, of which the first may be lost, and what travels meanwhile.
const AHEAD_FRAMES_MAX: u32 = 144;

/// Time for which frames may be taken for delivered, in nanoseconds: 166 frames at 1 Gb/s, 16 at
/// 100 Mb/s.
const AHEAD_NS_MAX: u64 = 2_000_000;

impl<T: Copy> SendHalf<T> {
    /// A half with nothing in flight; its first packet has number 0.
    ///
    /// # Panics
    /// If a full frame has no byte or more than 65535.
    pub fn new(config: &SendConfig, now: Instant) -> Self {
        assert!((1..=u32::from(u16::MAX)).contains(&config.frame_bytes));
        Self {
            packets: SentPackets::new(),
            rtt: RttEstimator::new(config.initial_rtt_ns, now),
            rate: RateEstimator::new(now),
            controller: Controller::new(
                config.algorithm,
                config.initial_window_frames,
                config.frame_bytes,
            ),
            tolerance: ReorderTolerance::default(),
            drain: Drain::No,
            next: PacketNumber(0),
            acked_end: PacketNumber(0),
            newest_acked_sent_at: Instant(0),
            newest_acked_took_ns: 0,
            loss_at: Instant::NEVER,
            progress_at: now,
            idle_at: now,
            nominal_rate: config.nominal_rate,
            probe_timeout_min_ns: config.probe_timeout_min_ns,
            probe_timeout_max_ns: config.probe_timeout_max_ns,
            in_flight_bytes: 0,
            receive_buffer_bytes: config.receive_buffer_bytes,
            ack_delay_max_ns: config.ack_delay_max_ns,
            frame_bytes: config.frame_bytes,
            probe_count: 0,
            packets_max: config.packets_max,
            marked: 0,
        }
    }

    /// The number the next packet gets.
    pub const fn next_packet(&self) -> PacketNumber {
        self.next
    }

    /// A packet of `bytes` bytes goes out. Probes aside, the caller has seen that
    /// [`window_left`](Self::window_left) allows it.
    ///
    /// # Panics
    /// If a frame has more than 65535 bytes, or 65535 packets are in flight.
    pub fn on_sent(
        &mut self,
        pool: &mut SentPool<T>,
        now: Instant,
        bytes: u32,
        class: PacketClass,
        content: T,
    ) -> PacketNumber {
        let packet = self.next;
        self.next = packet.next();
        let kind = match class {
            PacketClass::Unacknowledged => return packet,
            PacketClass::Data => Kind::Data,
            PacketClass::MtuProbe => Kind::MtuProbe,
        };
        let bytes16 = u16::try_from(bytes).expect("a frame is at most 65507 bytes long");
        if self.packets.oldest().is_none() {
            self.progress_at = now;
        }
        let stamp = self.rate.on_sent(now, self.in_flight_bytes);
        self.idle_at = self.idle_at.max(now).after_ns(self.transmission_ns(bytes));
        let wait_ns = u32::try_from(self.idle_at.since_ns(now)).unwrap_or(u32::MAX);
        let record = NewRecord { content, sent_at: now, stamp, wait_ns, bytes: bytes16, kind };
        self.packets.push(pool, packet, record);
        self.in_flight_bytes += bytes;
        self.controller.on_sent(now, bytes, self.in_flight_bytes);
        packet
    }

    /// The driver did not take the last `count` frames: their numbers are taken back, as they never
    /// left the host, and their contents returned, newest first. Pure acknowledgements count among
    /// the frames and return nothing.
    ///
    /// # Panics
    /// If fewer than `count` packets were sent, or one of them was acknowledged.
    pub fn unsend(&mut self, pool: &mut SentPool<T>, count: usize, back: &mut impl FnMut(T)) {
        assert!(count as u64 <= self.next.0 - self.acked_end.0, "only the last frames come back");
        self.next = PacketNumber(self.next.0 - count as u64);
        while let Some(slot) = self.packets.newest() {
            let packet = self.packets.record(slot).packet;
            if !reaches(packet, self.next.truncate()) {
                break;
            }
            let record = self.packets.remove(slot);
            self.in_flight_bytes -= u32::from(record.bytes);
            let spared_ns = self.transmission_ns(u32::from(record.bytes));
            self.idle_at = Instant(self.idle_at.0.saturating_sub(spared_ns));
            back(record.content);
        }
        self.packets.release_if_empty(pool);
    }

    /// The peer acknowledged packets. Contents that it accepted are reported in the order in which
    /// they were sent, then those that count as lost now. `received_at` is when the acknowledgement
    /// arrived at the host, at most `now`: between the two no network was involved.
    ///
    /// # Errors
    /// [`ProtocolError::AckOfUnsent`]; nothing has changed then.
    pub fn on_ack(
        &mut self,
        pool: &mut SentPool<T>,
        now: Instant,
        received_at: Instant,
        block: &AckBlock,
        report: &mut impl FnMut(Fate, T),
    ) -> Result<AckSummary, ProtocolError> {
        let largest = PacketNumber::expand(block.largest, self.next);
        if largest >= self.next {
            return Err(ProtocolError::AckOfUnsent { acknowledged: largest, next: self.next });
        }
        let in_flight_before = self.in_flight_bytes;
        let mut acked = Acked::default();
        let mut summary = AckSummary::default();
        self.ack_flight(block, report, &mut acked);
        self.ack_ghosts(now, block, &mut acked, &mut summary);
        if largest.next() > self.acked_end {
            self.acked_end = largest.next();
            summary.marked = u32::from(block.marked.wrapping_sub(self.marked));
            self.marked = block.marked;
        }
        summary.newly_acked = acked.packets;
        summary.newly_acked_bytes = acked.bytes;
        if acked.newest.is_some() {
            let window_limited = in_flight_before.saturating_add(self.quantum_bytes())
                > self.window()
                && self.drain == Drain::No;
            let waited_ns = now.since_ns(received_at);
            self.on_progress(
                now,
                waited_ns,
                block.delay.to_ns(),
                window_limited,
                &acked,
                &mut summary,
            );
        }
        summary.newly_lost = self.detect_losses(now, report);
        self.bound_backlog(now);
        self.packets.release_if_empty(pool);
        Ok(summary)
    }

    /// To be called when [`deadline`](Self::deadline) is reached. Reports contents that count as
    /// lost now, and tells whether a probe is due.
    pub fn on_timeout(
        &mut self,
        pool: &mut SentPool<T>,
        now: Instant,
        report: &mut impl FnMut(Fate, T),
    ) -> TimeoutOutcome {
        if now >= self.loss_at {
            self.detect_losses(now, report);
        }
        self.expire_ghosts(now);
        let mut outcome = TimeoutOutcome::Nothing;
        if now >= self.probe_at() {
            self.probe_count += 1;
            self.progress_at = now;
            if self.probe_count == PERSISTENT_PROBES {
                let loss = LossSample {
                    lost_bytes: 0,
                    lost_packets: 0,
                    newest_sent_at: now,
                    persistent: true,
                };
                self.controller.on_loss(now, &loss);
            }
            outcome = TimeoutOutcome::Probe { count_so_far: self.probe_count };
        }
        self.packets.release_if_empty(pool);
        outcome
    }

    /// Hands back the content of the oldest data packet in flight, to be sent again under a new
    /// number on the best link. The packet no longer counts as in flight, but its number stays
    /// known: a late acknowledgement still gives a round-trip time.
    pub fn retire_oldest_for_probe(&mut self) -> Option<T> {
        let slot = self.oldest_data()?;
        let record = self.packets.remember(slot, Kind::Retired);
        self.in_flight_bytes -= u32::from(record.bytes);
        Some(record.content)
    }

    /// Returns all contents in flight, oldest first, for other links. Numbers go on.
    pub fn drain(&mut self, pool: &mut SentPool<T>, back: &mut impl FnMut(T)) {
        while let Some(slot) = self.packets.oldest() {
            back(self.packets.remove(slot).content);
        }
        self.packets.forget_ghosts();
        self.packets.release_if_empty(pool);
        self.in_flight_bytes = 0;
        self.loss_at = Instant::NEVER;
        self.idle_at = Instant(0);
        self.drain = Drain::No;
    }

    /// The link came back, or leads another way now: round-trip time, rate and window are measured
    /// from the beginning. Numbers go on, and what is in flight stays.
    pub fn restart_measurement(&mut self, config: &SendConfig, now: Instant) {
        self.rtt = RttEstimator::new(config.initial_rtt_ns, now);
        self.rate.restart();
        self.controller =
            Controller::new(config.algorithm, config.initial_window_frames, self.frame_bytes);
        self.tolerance = ReorderTolerance::default();
        self.drain = Drain::No;
        self.probe_count = 0;
    }

    /// Sets the size of a full frame, in bytes.
    pub fn set_frame_bytes(&mut self, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
        self.controller.set_frame_bytes(frame_bytes);
    }

    /// Tells whether there is nothing to send although the window is open; the delivery rate then
    /// says nothing about the link.
    pub fn set_application_limited(&mut self, limited: bool) {
        self.rate.set_limited(limited, self.in_flight_bytes);
    }

    /// Nothing is in flight on any link of the connection, and frames will be sent on some. From how
    /// long they wait the link's rate is learnt, until the peer [sends data itself](Self::end_train).
    pub const fn begin_train(&mut self, now: Instant) {
        self.rate.begin_train(now);
    }

    /// The peer sends data: what acknowledgements wait for may be that.
    #[inline]
    pub const fn end_train(&mut self) {
        self.rate.end_train();
    }

    /// The next time at which [`on_timeout`](Self::on_timeout) must run; [`Instant::NEVER`] if
    /// nothing is in flight and no lost packet is remembered.
    #[inline]
    pub fn deadline(&self) -> Instant {
        if self.packets.is_at_rest() {
            return self.loss_at;
        }
        let expires = self.packets.oldest_ghost().map_or(Instant::NEVER, |slot| {
            // While packets are in flight, acknowledgements and probes clean up.
            if self.packets.len() > 0 { Instant::NEVER } else { self.ghost_expires(slot) }
        });
        self.loss_at.min(self.probe_at()).min(expires)
    }

    /// Bytes that the congestion window, the peer's buffer and the records still allow.
    ///
    /// Acknowledgements come for many frames at a time. In between the window opens by the clock, at
    /// the measured rate, as if each frame were acknowledged: what is taken for delivered does not
    /// count, for a limited time and number of frames.
    pub fn window_left(&self, now: Instant) -> u32 {
        let room = self.packets.room(self.packets_max as usize) as u32;
        let travelling = self.in_flight_bytes.saturating_sub(self.presumed_bytes(now));
        let left = self.window().saturating_sub(travelling);
        let buffer = self.receive_buffer_bytes.max(self.frame_bytes);
        left.min(buffer.saturating_sub(self.in_flight_bytes))
            .min(room.saturating_mul(self.frame_bytes))
    }

    /// Whether [`window_left`](Self::window_left) is at least `bytes`, which costs next to nothing while
    /// it would be so without anything taken for delivered.
    #[inline]
    pub fn has_room(&self, now: Instant, bytes: u32) -> bool {
        let taken = self.in_flight_bytes.saturating_add(bytes);
        let is_open = taken <= self.window()
            && taken <= self.receive_buffer_bytes.max(self.frame_bytes)
            && self.packets.room(self.packets_max as usize) as u64 * u64::from(self.frame_bytes)
                >= u64::from(bytes);
        is_open || self.window_left(now) >= bytes
    }

    /// When [`window_left`](Self::window_left) will be `bytes` if no acknowledgement comes; `now` if
    /// it is, [`Instant::NEVER`] if only an acknowledgement can help.
    pub fn opens_at(&self, now: Instant, bytes: u32) -> Instant {
        if self.window_left(now) >= bytes {
            return now;
        }
        let needed = self.in_flight_bytes.saturating_add(bytes).saturating_sub(self.window());
        let (Some(since), Some(rate)) = (self.presumes_since(), self.rate.bytes_per_second())
        else {
            return Instant::NEVER;
        };
        let room = self.packets.room(self.packets_max as usize) as u32;
        if needed > self.ahead_bytes()
            || self.in_flight_bytes + bytes > self.receive_buffer_bytes
            || room.saturating_mul(self.frame_bytes) < bytes
        {
            return Instant::NEVER;
        }
        since.after_ns(u64::from(needed) * 1_000_000_000 / clocked(rate) + 1)
    }

    /// Frames after which the peer should be asked for an acknowledgement: half of what may be sent
    /// until it is here, at most [`ASK_FRAMES_MAX`].
    pub fn ask_frames(&self) -> u32 {
        let window = self.window();
        let slack = window.saturating_add(self.ahead_bytes()).saturating_sub(self.pipe_bytes());
        let frames = slack.max(window / 4) / (2 * self.frame_bytes);
        frames.clamp(1, ASK_FRAMES_MAX)
    }

    /// Whether an acknowledgement is to be asked for after so many frames: [`Self::ask_frames`] or more.
    /// For few frames this is found out without the division there.
    #[inline]
    pub fn asks_after(&self, frames: u32) -> bool {
        let (window, more) = (self.window(), (frames + 1) * 2 * self.frame_bytes);
        let is_few = frames < ASK_FRAMES_MAX
            && (4 * more <= window || more <= window.saturating_sub(self.pipe_bytes()));
        !is_few && frames >= self.ask_frames()
    }

    /// What the link itself holds at the measured rate, in bytes.
    fn pipe_bytes(&self) -> u32 {
        let rate = self.rate.bytes_per_second().unwrap_or(0);
        u32::try_from(bytes_in(rate, self.rtt.min_ns())).unwrap_or(u32::MAX)
    }

    /// Bytes in flight that are taken for delivered, though nobody said so yet.
    fn presumed_bytes(&self, now: Instant) -> u32 {
        let (Some(since), Some(rate)) = (self.presumes_since(), self.rate.bytes_per_second())
        else {
            return 0;
        };
        bytes_in(clocked(rate), now.since_ns(since)).min(u64::from(self.ahead_bytes())) as u32
    }

    /// From when on frames count as delivered by the clock; `None` if they do not.
    fn presumes_since(&self) -> Option<Instant> {
        if self.probe_count > 0 || self.drain != Drain::No || self.controller.is_fixed() {
            return None;
        }
        let sent_at = self.oldest_sent_at()?;
        Some(self.progress_at.max(sent_at.after_ns(self.rtt.min_ns())))
    }

    /// Most bytes that may be taken for delivered: none where the window is large enough to wait for
    /// acknowledgements.
    fn ahead_bytes(&self) -> u32 {
        let Some(rate) = self.rate.bytes_per_second() else { return 0 };
        if self.drain != Drain::No || self.controller.is_fixed() {
            return 0;
        }
        let pipe = bytes_in(rate, self.rtt.min_ns());
        let wanted = pipe + u64::from((2 * ASK_FRAMES_MAX + 32) * self.frame_bytes);
        let missing = wanted.saturating_sub(u64::from(self.controller.window()));
        let most = u64::from(AHEAD_FRAMES_MAX * self.frame_bytes);
        missing.min(most).min(bytes_in(rate, AHEAD_NS_MAX)) as u32
    }

    /// Bytes in flight.
    pub const fn in_flight_bytes(&self) -> u32 {
        self.in_flight_bytes
    }

    /// When the oldest data packet in flight was sent; the oldest probe of the path MTU if there is
    /// nothing else, whose silence says nothing.
    pub fn oldest_sent_at(&self) -> Option<Instant> {
        let slot = self.oldest_data().or_else(|| self.packets.oldest());
        slot.map(|slot| self.packets.record(slot).sent_at)
    }

    fn oldest_data(&self) -> Option<u16> {
        let mut slot = self.packets.oldest()?;
        while self.packets.record(slot).kind != Kind::Data {
            slot = self.packets.after(slot)?;
        }
        Some(slot)
    }

    /// Smoothed round-trip time, in nanoseconds.
    pub const fn srtt_ns(&self) -> u64 {
        self.rtt.smoothed_ns()
    }

    /// Mean variation of the round-trip time, in nanoseconds.
    pub const fn rtt_var_ns(&self) -> u64 {
        self.rtt.variation_ns()
    }

    /// Recent minimum of the round-trip time, in nanoseconds.
    pub fn rtt_min_ns(&self) -> u64 {
        self.rtt.min_ns()
    }

    /// Measured delivery rate.
    pub fn rate_bytes_per_second(&self) -> Option<u64> {
        self.rate.bytes_per_second()
    }

    /// What the link has carried in the long run, whatever it may carry now.
    pub fn steady_rate(&self) -> Option<u64> {
        self.rate.steady(None)
    }

    /// The rate at which a link among several should be tried: the measured one, or more as long as it
    /// delivers all it is given and nothing waits on it. A link that is given little because it is
    /// believed to be slow would else remain so.
    pub fn rate_worth_trying(&self, now: Instant) -> Option<u64> {
        let rate = self.rate.steady_by_now(now, self.nominal_rate)?;
        let few_frames_ns = self.transmission_ns(QUEUE_SEEN_FRAMES * self.frame_bytes);
        let queue_ns = QUEUE_SEEN_NS.max(few_frames_ns);
        let waits = self.rtt.smoothed_ns() > self.rtt.min_ns().saturating_mul(2) + queue_ns;
        Some(if self.rate.is_untried() && !waits { rate.saturating_mul(2) } else { rate })
    }

    /// When the link will have carried what was handed to it; not before `now`.
    pub fn idle_at(&self, now: Instant) -> Instant {
        self.idle_at.max(now)
    }

    /// Probe timeouts since the last acknowledgement of something new.
    pub const fn probe_count(&self) -> u32 {
        self.probe_count
    }

    /// Bytes to send in one burst.
    pub fn quantum_bytes(&self) -> u32 {
        let rate = self.rate.bytes_per_second().or(self.nominal_rate).unwrap_or(0);
        let bytes = bytes_in(rate, QUANTUM_NS);
        let least = (QUANTUM_FRAMES_MIN * self.frame_bytes).min(QUANTUM_BYTES_MAX);
        bytes.clamp(u64::from(least), u64::from(QUANTUM_BYTES_MAX)) as u32
    }

    /// The congestion window bounded by the peer's buffer, in bytes; one frame always fits.
    pub fn window(&self) -> u32 {
        let window = self.controller.window().min(self.receive_buffer_bytes).max(self.frame_bytes);
        if self.drain == Drain::No { window } else { window.min(self.drained_bytes()) }
    }

    /// Reports what `block` acknowledges of the packets in flight.
    fn ack_flight(
        &mut self,
        block: &AckBlock,
        report: &mut impl FnMut(Fate, T),
        acked: &mut Acked,
    ) {
        let mut at = self.packets.oldest();
        while let Some(slot) = at {
            at = self.packets.after(slot);
            let packet = self.packets.record(slot).packet;
            match Coverage::of(block, packet) {
                Coverage::Beyond => break,
                Coverage::Missing => {}
                Coverage::Received => {
                    let record = self.packets.remove(slot);
                    self.in_flight_bytes -= u32::from(record.bytes);
                    acked.count(&record);
                    report(Fate::Acked, record.content);
                }
            }
        }
    }

    /// Finds packets that had been declared lost or retired and arrived after all.
    fn ack_ghosts(
        &mut self,
        now: Instant,
        block: &AckBlock,
        acked: &mut Acked,
        summary: &mut AckSummary,
    ) {
        self.expire_ghosts(now);
        let mut at = self.packets.oldest_ghost();
        while let Some(slot) = at {
            at = self.packets.after(slot);
            if Coverage::of(block, self.packets.record(slot).packet) != Coverage::Received {
                continue;
            }
            let record = self.packets.remove_ghost(slot);
            acked.count(&record);
            if record.kind == Kind::Lost {
                summary.spurious += 1;
                self.tolerance.on_spurious_loss(self.rate.round());
                self.controller.on_spurious_loss();
            }
        }
    }

    /// Something new was acknowledged: measures round-trip time and rate, and tells congestion
    /// control.
    fn on_progress(
        &mut self,
        now: Instant,
        waited_ns: u64,
        delay_ns: u64,
        window_limited: bool,
        acked: &Acked,
        summary: &mut AckSummary,
    ) {
        let Some((sent_at, stamp)) = acked.newest else { return };
        self.progress_at = now;
        self.probe_count = 0;
        let took_ns = now.since_ns(sent_at);
        if sent_at >= self.newest_acked_sent_at {
            self.newest_acked_sent_at = sent_at;
            self.newest_acked_took_ns = took_ns;
        }
        let waited_ns = waited_ns.min(took_ns);
        let others_drain =
            self.rtt.others_drain(now, (took_ns - waited_ns).saturating_sub(delay_ns));
        let rtt_ns = self.rtt.on_sample(now, took_ns - waited_ns, delay_ns, waited_ns);
        self.correct_backlog(rtt_ns, acked);
        summary.rtt_sample_ns = Some(rtt_ns);
        // What acknowledgements waited for would make rates uneven that are not.
        let told_at = Instant(now.0.saturating_sub(took_ns.saturating_sub(rtt_ns)));
        let round_started =
            self.rate.on_acked(told_at, acked.bytes, stamp, sent_at, self.rtt.min_ns());
        if self.in_flight_bytes == 0 {
            let min_ns = self.rtt.min_ns();
            let queued_ns = rtt_ns.saturating_sub(min_ns);
            self.rate.on_train(now, sent_at, queued_ns, min_ns, self.frame_bytes);
        }
        if round_started {
            self.tolerance.on_round(self.rate.round());
            self.rtt.on_round();
        }
        self.drain_for_min(now, others_drain);
        let sample = AckSample {
            acked_bytes: acked.bytes,
            acked_packets: acked.packets,
            marked_frames: summary.marked,
            window_limited,
            round_started,
            rtt_ns: Some(rtt_ns),
            rtt_min_ns: self.rtt.min_ns(),
            host_ns: self.rtt.host_ns(),
            rate: self.rate.bytes_per_second(),
            rate_is_lower_bound: self.rate.is_lower_bound(),
            quantum_bytes: self.quantum_bytes(),
        };
        self.controller.on_ack(now, &sample);
    }

    /// When the smallest round-trip time has not been seen for long, a queue of the sender's own
    /// making may hide it, or the route is longer now: halves what is in flight for some round
    /// trips. Competing senders see that and join in, or a queue of theirs would be measured.
    fn drain_for_min(&mut self, now: Instant, others_drain: bool) {
        match self.drain {
            Drain::No => {
                let due = others_drain || self.rtt.min_is_old(now);
                if due && !self.controller.is_fixed() {
                    self.drain = Drain::Emptying;
                }
            }
            Drain::Emptying => {
                if self.in_flight_bytes <= self.drained_bytes() {
                    self.rtt.start_anew();
                    self.drain = Drain::Measuring { round: self.rate.round() };
                }
            }
            Drain::Measuring { round } => {
                if self.rate.round().wrapping_sub(round) >= DRAINED_ROUNDS {
                    self.rtt.finish_anew(now);
                    self.drain = Drain::No;
                }
            }
        }
    }

    /// What is in flight while the queue is drained: half of what the link itself holds.
    fn drained_bytes(&self) -> u32 {
        let rate = self.rate.bytes_per_second().unwrap_or(0);
        let half = bytes_in(rate, self.rtt.min_ns()) / 2;
        let least = QUANTUM_FRAMES_MIN * self.frame_bytes;
        u32::try_from(half).unwrap_or(u32::MAX).max(least)
    }

    /// Applies the loss rule to every packet that an acknowledged one has overtaken, and sets
    /// `loss_at` for those that are not lost yet. Returns how many packets were lost.
    fn detect_losses(&mut self, now: Instant, report: &mut impl FnMut(Fate, T)) -> u32 {
        self.loss_at = Instant::NEVER;
        let end = self.acked_end.truncate();
        let mut lost = Lost::default();
        let mut at = self.packets.oldest();
        while let Some(slot) = at {
            at = self.packets.after(slot);
            let record = *self.packets.record(slot);
            if reaches(record.packet, end) {
                break;
            }
            match self.verdict(now, &record) {
                Verdict::NotLostYet(lost_at) => self.loss_at = self.loss_at.min(lost_at),
                Verdict::Lost => {
                    self.packets.remember(slot, Kind::Lost);
                    self.in_flight_bytes -= u32::from(record.bytes);
                    lost.count(&record, record.kind == Kind::Data);
                    report(Fate::Lost, record.content);
                }
            }
        }
        self.judge_retired(now, &mut lost);
        if lost.congestion.lost_packets > 0 {
            self.controller.on_loss(now, &lost.congestion);
        }
        lost.packets
    }

    /// A retired packet that later ones have overtaken is a loss for congestion control, too.
    fn judge_retired(&mut self, now: Instant, lost: &mut Lost) {
        let end = self.acked_end.truncate();
        let mut at = self.packets.oldest_ghost();
        while let Some(slot) = at {
            at = self.packets.after(slot);
            let record = *self.packets.record(slot);
            if record.kind == Kind::Retired
                && !reaches(record.packet, end)
                && self.verdict(now, &record) == Verdict::Lost
            {
                self.packets.set_kind(slot, Kind::Lost);
                lost.count(&record, true);
                lost.packets -= 1;
            }
        }
    }

    fn verdict(&self, now: Instant, record: &Record<T>) -> Verdict {
        let overtaken_by = self.acked_end.truncate().wrapping_sub(1).wrapping_sub(record.packet);
        self.tolerance.verdict(
            now,
            record.sent_at,
            overtaken_by,
            self.newest_acked_took_ns,
            self.rtt.min_ns(),
        )
    }

    fn expire_ghosts(&mut self, now: Instant) {
        while let Some(slot) = self.packets.oldest_ghost() {
            if now < self.ghost_expires(slot) {
                break;
            }
            self.packets.remove_ghost(slot);
        }
    }

    /// A ghost is remembered for two probe timeouts beyond the usual round trip.
    fn ghost_expires(&self, slot: u16) -> Instant {
        let ns = self.rtt.smoothed_ns().saturating_add(2 * self.probe_timeout_ns());
        self.packets.record(slot).sent_at.after_ns(ns)
    }

    /// Probe timeout without backoff, in nanoseconds.
    fn probe_timeout_ns(&self) -> u64 {
        let variation_ns = (4 * self.rtt.variation_ns()).max(PROBE_MARGIN_NS);
        let expected = self.rtt.smoothed_ns() + variation_ns + u64::from(self.ack_delay_max_ns);
        expected.max(self.probe_timeout_min_ns)
    }

    /// When the probe timeout fires: nothing new was acknowledged for that long although the
    /// oldest packet has been in flight for that long.
    fn probe_at(&self) -> Instant {
        let Some(sent_at) = self.oldest_sent_at() else { return Instant::NEVER };
        let since = sent_at.max(self.progress_at);
        let doubled = 1 << self.probe_count.min(BACKOFF_MAX);
        let backed_off_ns = self.probe_timeout_ns().saturating_mul(doubled);
        since.after_ns(backed_off_ns.min(self.probe_timeout_max_ns))
    }

    fn believed_rate(&self) -> Option<u64> {
        self.rate.steady(self.nominal_rate)
    }

    fn transmission_ns(&self, bytes: u32) -> u64 {
        let rate = self.believed_rate().unwrap_or(u64::MAX).max(1);
        u64::from(bytes) * 1_000_000_000 / rate
    }

    /// A packet waited longer or shorter on the link than was expected when it was sent: what followed
    /// it waits as much longer or shorter.
    fn correct_backlog(&mut self, rtt_ns: u64, acked: &Acked) {
        let own_ns = self.transmission_ns(acked.newest_bytes);
        let waited_ns = rtt_ns.saturating_sub(self.rtt.min_ns()).saturating_add(own_ns);
        let expected_ns = u64::from(acked.newest_wait_ns);
        self.idle_at = if waited_ns >= expected_ns {
            self.idle_at.after_ns((waited_ns - expected_ns) / 2)
        } else {
            Instant(self.idle_at.0.saturating_sub((expected_ns - waited_ns) / 2))
        };
    }

    /// What is not in flight any more is not in a queue either.
    fn bound_backlog(&mut self, now: Instant) {
        if self.in_flight_bytes == 0 {
            self.idle_at = self.idle_at.min(now);
            return;
        }
        let travelling = self.in_flight_bytes.saturating_sub(self.presumed_bytes(now));
        let all = now.after_ns(self.transmission_ns(travelling));
        self.idle_at = self.idle_at.min(all);
    }
}

/// The rate by which the window opens while no acknowledgement comes: a little more than what was
/// measured, or a rate that was measured too low would remain so.
const fn clocked(rate: u64) -> u64 {
    rate + rate / 8
}

/// A round trip longer than twice the shortest shows a queue if it is so by this many frames of the link,
/// and by this time, in nanoseconds, which four frames take at 1 Gb/s: hosts take some of it, too.
const QUEUE_SEEN_FRAMES: u32 = 4;
const QUEUE_SEEN_NS: u64 = 50_000;

/// Progress of a measurement of the smallest round-trip time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Drain {
    No,
    /// Too much is in flight still.
    Emptying,
    /// What is in flight was halved in this round.
    Measuring {
        round: u32,
    },
}

/// Sums over the packets one block acknowledges.
#[derive(Default)]
struct Acked {
    packets: u32,
    bytes: u32,
    newest: Option<(Instant, SendStamp)>,
    newest_wait_ns: u32,
    newest_bytes: u32,
}

impl Acked {
    fn count<T>(&mut self, record: &Record<T>) {
        self.packets += 1;
        self.bytes += u32::from(record.bytes);
        if self.newest.is_none_or(|(sent_at, _)| sent_at <= record.sent_at) {
            self.newest = Some((record.sent_at, record.stamp));
            self.newest_wait_ns = record.wait_ns;
            self.newest_bytes = u32::from(record.bytes);
        }
    }
}

/// Sums over the packets lost at one time.
struct Lost {
    packets: u32,
    congestion: LossSample,
}

impl Default for Lost {
    fn default() -> Self {
        let congestion = LossSample {
            lost_bytes: 0,
            lost_packets: 0,
            newest_sent_at: Instant(0),
            persistent: false,
        };
        Self { packets: 0, congestion }
    }
}

impl Lost {
    fn count<T>(&mut self, record: &Record<T>, congestion: bool) {
        self.packets += 1;
        if congestion {
            self.congestion.lost_packets += 1;
            self.congestion.lost_bytes += u32::from(record.bytes);
            self.congestion.newest_sent_at = self.congestion.newest_sent_at.max(record.sent_at);
        }
    }
}

#[cfg(test)]
mod tests;

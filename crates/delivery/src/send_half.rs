//! The sending half of one link of one connection.

mod acknowledged;
mod losses;
mod rest;
mod window;

use wire_edge::PacketNumber;

use crate::congestion::{CongestionController, Controller, LossSample};
use crate::coverage::reaches;
use crate::link_estimate::LinkEstimate;
use crate::loss::ReorderTolerance;
use crate::rate::RateEstimator;
use crate::rtt::RttEstimator;
use crate::sent_packets::{Kind, NewRecord, PacketClass, SentPackets, SentPool};
use crate::{Instant, SendConfig};

pub use self::window::{ASK_FRAMES_MAX, BATCH_NS, QUANTUM_NS};

/// What became of a packet's content.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The peer accepted it.
    Acked,
    /// It must be retransmitted.
    Lost,
}

/// What an acknowledgement changed.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckSummary {
    /// Packets newly acknowledged.
    pub newly_acked: u32,
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
/// the order of frames, so a packet that later ones overtake is lost: three numbers or a quarter of
/// the smallest round trip later, more after losses that turned out to be none. Records of lost
/// packets stay for a while as *ghosts* without content: an acknowledgement of one proves that it
/// was not lost, and undoes what congestion control made of it.
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
    estimate: LinkEstimate,
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

/// Least that acknowledgements vary, in nanoseconds: what a timer of the peer is late.
const PROBE_MARGIN_NS: u64 = 200_000;

/// Probe timeouts without an answer after which congestion is persistent (RFC 9002 §7.6.1).
const PERSISTENT_PROBES: u32 = 6;

impl<T: Copy> SendHalf<T> {
    /// Creates a half with nothing in flight; its first packet has number 0.
    ///
    /// # Panics
    /// If a full frame has no byte or more than 65535.
    pub fn new(config: &SendConfig, now: Instant) -> Self {
        assert!((1..=u32::from(u16::MAX)).contains(&config.frame_bytes));
        let rtt = RttEstimator::new(config.initial_rtt_ns, now);
        let rate = RateEstimator::new(now);
        Self {
            packets: SentPackets::new(),
            rtt,
            rate,
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
            estimate: LinkEstimate::new(config.nominal_rate, &rate, &rtt, now),
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

    /// Takes all packets before `first` for ones that were acknowledged long ago, as the peer does, to see
    /// numbers wrap around. Before any packet.
    pub const fn begin_at(&mut self, first: PacketNumber) {
        self.next = first;
        self.acked_end = first;
    }

    /// Returns the number the next packet gets.
    pub const fn next_packet(&self) -> PacketNumber {
        self.next
    }

    //= protocol.md: packet.1
    /// Records that a packet of `bytes` bytes goes out, and returns its number. Probes aside, the caller has seen
    /// that [`window_left`](Self::window_left) allows it.
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
        let stamp = self.rate.on_sent(now, self.in_flight_bytes, kind == Kind::MtuProbe);
        let wait_ns = u32::try_from(self.estimate.on_sent(now, bytes)).unwrap_or(u32::MAX);
        let record = NewRecord { content, sent_at: now, stamp, wait_ns, bytes: bytes16, kind };
        self.packets.push(pool, packet, record);
        self.in_flight_bytes += bytes;
        self.controller.on_sent(now, bytes, self.in_flight_bytes);
        packet
    }

    //= protocol.md: packet.1
    /// Takes back the last `count` frames, which the driver did not take: their numbers are free again, as they
    /// never left the host, and their contents are returned, newest first. Pure acknowledgements count among the
    /// frames and return nothing.
    ///
    /// # Panics
    /// If fewer than `count` packets were sent, or one of them was acknowledged.
    pub fn unsend(&mut self, pool: &mut SentPool<T>, count: usize, back: &mut impl FnMut(T)) {
        self.disown(pool, count, back);
        self.next = PacketNumber(self.next.0 - count as u64);
    }

    //= protocol.md: packet.1
    /// Takes back the contents of the last `count` frames, which the driver did not take without knowing whether
    /// they left the host: they are returned as by [`unsend`](Self::unsend), to be retransmitted, which is no sign
    /// of congestion. Their numbers are not used again, and acknowledgements of them are ignored.
    ///
    /// # Panics
    /// As for [`unsend`](Self::unsend).
    pub fn disown(&mut self, pool: &mut SentPool<T>, count: usize, back: &mut impl FnMut(T)) {
        assert!(count as u64 <= self.next.0 - self.acked_end.0, "only the last frames come back");
        let first = PacketNumber(self.next.0 - count as u64);
        while let Some(slot) = self.packets.newest() {
            let packet = self.packets.record(slot).packet;
            if !reaches(packet, first.truncate()) {
                break;
            }
            let record = self.packets.remove(slot);
            self.in_flight_bytes -= u32::from(record.bytes);
            self.estimate.on_taken_back(u32::from(record.bytes));
            back(record.content);
        }
        self.packets.release_if_empty(pool);
    }

    //= protocol.md: again.2
    /// Reports contents that count as lost now, and returns whether a probe is due. Call when
    /// [`deadline`](Self::deadline) is reached.
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

    /// Hands back the content of the oldest data packet in flight, to be retransmitted under a new
    /// number on the best link. The packet no longer counts as in flight, but its number stays
    /// known: a late acknowledgement still gives a round-trip time.
    pub fn retire_oldest_for_probe(&mut self) -> Option<T> {
        let slot = self.oldest_data()?;
        let record = self.packets.remember(slot, Kind::Retired);
        self.in_flight_bytes -= u32::from(record.bytes);
        Some(record.content)
    }

    /// Returns contents in flight, oldest first, that the receiver has said not to have taken: that is no sign of
    /// congestion. Their packets are forgotten, and late acknowledgements of them say nothing.
    pub fn retire(
        &mut self,
        pool: &mut SentPool<T>,
        is_refused: &mut impl FnMut(&T) -> bool,
        back: &mut impl FnMut(T),
    ) {
        let mut next = self.packets.oldest();
        while let Some(slot) = next {
            next = self.packets.after(slot);
            let record = self.packets.record(slot);
            if record.kind == Kind::Data && is_refused(&record.content) {
                let record = self.packets.remove(slot);
                self.in_flight_bytes -= u32::from(record.bytes);
                back(record.content);
            }
        }
        self.packets.release_if_empty(pool);
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
        self.estimate.on_drained();
        self.drain = Drain::No;
    }

    //= protocol.md: state.3
    /// Measures round-trip time, rate and window from the start, because the link came back or leads another way
    /// now. Numbers go on, and what is in flight stays.
    pub fn restart_measurement(&mut self, config: &SendConfig, now: Instant) {
        self.rtt = RttEstimator::new(config.initial_rtt_ns, now);
        self.rate.restart();
        self.estimate.update(&self.rate, &self.rtt);
        self.controller =
            Controller::new(config.algorithm, config.initial_window_frames, self.frame_bytes);
        self.tolerance = ReorderTolerance::default();
        self.drain = Drain::No;
        self.probe_count = 0;
    }

    /// Returns the size of a full frame, in bytes.
    #[inline]
    pub const fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Sets the size of a full frame, in bytes.
    pub fn set_frame_bytes(&mut self, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
        self.controller.set_frame_bytes(frame_bytes);
    }

    /// Sets whether there is nothing to send although the window is open; the delivery rate then has no meaning for
    /// the link.
    pub fn set_application_limited(&mut self, limited: bool) {
        self.rate.set_limited(limited, self.in_flight_bytes);
    }

    /// Begins to learn the rate of the link from how long frames wait, as nothing is in flight on any link of the
    /// connection and frames will be sent on some. This ends when the peer [sends data itself](Self::end_train).
    pub const fn begin_train(&mut self, now: Instant) {
        self.rate.begin_train(now);
    }

    /// Ends the learning of the rate, because the peer sends data, for which acknowledgements may wait.
    #[inline]
    pub const fn end_train(&mut self) {
        self.rate.end_train();
    }

    /// Returns the next time at which [`on_timeout`](Self::on_timeout) must run; [`Instant::NEVER`] if nothing is
    /// in flight and no lost packet is remembered.
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

    /// Returns the number of bytes in flight.
    pub const fn in_flight_bytes(&self) -> u32 {
        self.in_flight_bytes
    }

    /// Returns how many packets are in flight or remembered as lost.
    pub fn packets(&self) -> u16 {
        self.packets.len()
    }

    /// Returns when the oldest data packet in flight was sent; the oldest probe of the path MTU, whose loss has no
    /// meaning for the link, if there is nothing else.
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

    /// Returns the smoothed round-trip time, in nanoseconds.
    pub const fn srtt_ns(&self) -> u64 {
        self.rtt.smoothed_ns()
    }

    /// Returns the mean variation of the round-trip time, in nanoseconds.
    pub const fn rtt_var_ns(&self) -> u64 {
        self.rtt.variation_ns()
    }

    /// Returns the recent minimum of the round-trip time, in nanoseconds.
    pub fn rtt_min_ns(&self) -> u64 {
        self.rtt.min_ns()
    }

    /// Returns the measured delivery rate, in bytes per second.
    pub fn rate_bytes_per_second(&self) -> Option<u64> {
        self.rate.bytes_per_second()
    }

    /// Returns the estimate of the link: its rate, its delay, and how much is queued on it.
    pub const fn estimate(&self) -> &LinkEstimate {
        &self.estimate
    }

    /// Sets the rate of the fastest link: see [`LinkEstimate::compare_with`].
    pub const fn compare_with(&mut self, fastest: u64) {
        self.estimate.compare_with(fastest);
    }

    /// Returns how many probe timeouts there were since the last acknowledgement of something new.
    pub const fn probe_count(&self) -> u32 {
        self.probe_count
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
        let doubled = 1_u64.checked_shl(self.probe_count).unwrap_or(u64::MAX);
        let backed_off_ns = self.probe_timeout_ns().saturating_mul(doubled);
        since.after_ns(backed_off_ns.min(self.probe_timeout_max_ns))
    }
}

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

#[cfg(test)]
mod tests;

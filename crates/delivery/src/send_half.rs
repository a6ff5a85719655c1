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
use crate::send_config::SendConfig;
use crate::sent_packets::{Kind, NewRecord, PacketClass, SentPackets, SentPool};
use crate::time::Instant;

pub use self::window::{ASK_FRAMES_MAX, BATCH_NS, QUANTUM_NS};

/// The fate of the content of a packet.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// The peer accepted the content.
    Acked,
    /// The content must be retransmitted.
    Lost,
}

/// The changes that an acknowledgement caused.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AckSummary {
    /// Packets newly acknowledged.
    pub newly_acked: u32,
    /// Packets newly declared lost.
    pub newly_lost: u32,
    /// Round-trip time without the delay at the peer, in nanoseconds; `None` if no new packet was
    /// acknowledged.
    pub rtt_sample_ns: Option<u64>,
    /// Packets acknowledged after they had been declared lost.
    pub spurious: u32,
    /// Number of frames that arrived at the peer with a congestion mark after the previous
    /// acknowledgement.
    pub marked: u32,
}

/// The caller's task after a timer has fired.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TimeoutOutcome {
    /// Handle the reported losses, if any. Nothing else is to do.
    Nothing,
    /// The probe timeout fired. Send a packet that asks for an acknowledgement, even if the window
    /// is full. [`SendHalf::retire_oldest_for_probe`] returns the content for this packet.
    Probe {
        /// Number of probe timeouts since the last acknowledgement, including this one.
        count_so_far: u32,
    },
}

/// One direction of a link of a connection: sent packets, round-trip time, loss detection, probe
/// timeout, congestion control and delivery rate.
///
/// `T` is the content of a packet. The half returns the content of each packet exactly once: as
/// acknowledged or lost through `report`, or by [`unsend`](Self::unsend), [`drain`](Self::drain) or
/// [`retire_oldest_for_probe`](Self::retire_oldest_for_probe).
///
/// Packet numbers are never reused, so every acknowledgement of a packet is unambiguous. Links
/// deliver frames in order. Therefore the half declares a packet lost when a later packet is
/// acknowledged: later by three numbers, or by a quarter of the smallest round trip. This tolerance
/// grows after spurious losses.
///
/// The record of a lost packet stays for some time as a *ghost*, without content. An
/// acknowledgement of a ghost proves that the packet was not lost. The half then undoes the
/// reaction of congestion control.
#[derive(Debug)]
pub struct SendHalf<T: Copy> {
    packets: SentPackets<T>,
    rtt: RttEstimator,
    rate: RateEstimator,
    controller: Controller,
    tolerance: ReorderTolerance,
    drain: Drain,
    next: PacketNumber,
    /// One more than the largest acknowledged number.
    acked_end: PacketNumber,
    /// Time at which the newest acknowledged packet was sent. `newest_acked_took_ns` is the time
    /// from the sending of that packet to its acknowledgement, in nanoseconds.
    newest_acked_sent_at: Instant,
    newest_acked_took_ns: u64,
    /// If later packets have overtaken packets in flight: the earliest time at which one of the
    /// overtaken packets is declared lost. Otherwise [`Instant::NEVER`].
    loss_at: Instant,
    /// Time of the last acknowledgement of a new packet, or of the last probe timeout.
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
    /// Value of the peer's counter of marked frames in the last acknowledgement, modulo 2^16.
    marked: u16,
}

/// This struct takes at most eight cache lines, also for an idle connection.
const _: () = assert!(size_of::<SendHalf<[u64; 2]>>() <= 512);

/// Shortest time that the probe timeout allows for the variation of round trips, in nanoseconds. A
/// timer of the peer may be late by as much.
const PROBE_MARGIN_NS: u64 = 200_000;

/// Number of probe timeouts without an answer after which congestion is persistent (RFC 9002
/// §7.6.1).
const PERSISTENT_PROBES: u32 = 6;

impl<T: Copy> SendHalf<T> {
    /// Creates a half with no packet in flight. Its first packet has number 0.
    ///
    /// # Panics
    /// Panics if `frame_bytes` is not between 1 and 65535.
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

    /// Treats all packets before `first` as acknowledged long ago. Meant for tests in which numbers
    /// wrap around. Call this before any packet is sent. The peer must also start at `first`.
    pub const fn begin_at(&mut self, first: PacketNumber) {
        self.next = first;
        self.acked_end = first;
    }

    /// Returns the number that the next packet gets.
    pub const fn next_packet(&self) -> PacketNumber {
        self.next
    }

    //= protocol.md: packet.1
    /// Records that a packet of `bytes` bytes is sent, and returns its number. Except for probes,
    /// the caller must have checked [`window_left`](Self::window_left).
    ///
    /// # Panics
    /// Panics if `bytes` exceeds 65535, or if 65535 packets are in flight.
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
    /// Takes back the last `count` frames, because the driver did not accept them. These frames
    /// never left the host, so their numbers may be used again. Passes their contents to `back`,
    /// newest first. Pure acknowledgements are included in `count`, but have no content.
    ///
    /// # Panics
    /// Panics if fewer than `count` packets were sent, or if one of the last `count` packets was
    /// acknowledged.
    pub fn unsend(&mut self, pool: &mut SentPool<T>, count: usize, back: &mut impl FnMut(T)) {
        self.disown(pool, count, back);
        self.next = PacketNumber(self.next.0 - count as u64);
    }

    //= protocol.md: packet.1
    /// Takes back the contents of the last `count` frames. The driver rejected these frames, but
    /// does not know whether they left the host. Passes the contents to `back` like
    /// [`unsend`](Self::unsend), so that the caller retransmits them. This does not count as
    /// congestion. The numbers of the frames are not used again, and acknowledgements of these
    /// numbers are ignored.
    ///
    /// # Panics
    /// Panics in the same cases as [`unsend`](Self::unsend).
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
    /// Reports contents that are now declared lost, and returns whether a probe is due. Call this
    /// at [`deadline`](Self::deadline).
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

    /// Returns the content of the oldest data packet in flight, if there is one, so that the caller
    /// retransmits it under a new number on the best link. The packet no longer counts as in
    /// flight. But the half remembers its number, so a late acknowledgement still gives a sample of
    /// the round-trip time.
    pub fn retire_oldest_for_probe(&mut self) -> Option<T> {
        let slot = self.oldest_data()?;
        let record = self.packets.remember(slot, Kind::Retired);
        self.in_flight_bytes -= u32::from(record.bytes);
        Some(record.content)
    }

    /// Passes contents that the receiver reported as refused to `back`, oldest first. A refusal
    /// does not count as congestion. Removes the records of these packets, so later
    /// acknowledgements of them are ignored.
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

    /// Passes all contents in flight to `back`, oldest first, so that other links send them. Packet
    /// numbers continue.
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
    /// Restarts the measurement of round-trip time, rate and window. Call this when the link works
    /// again or has another route. Packet numbers continue, and packets stay in flight.
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

    /// Records whether the application has no data to send, while the window is open. While it has
    /// no data, the delivery rate does not show the rate of the link.
    pub fn set_application_limited(&mut self, limited: bool) {
        self.rate.set_limited(limited, self.in_flight_bytes);
    }

    /// Starts a train: the frames of one message, by which the sender measures the rate of the
    /// link. The rate follows from the time that these frames wait on the link. Call this when no
    /// packet is in flight on any link of the connection, before sending frames. The measurement
    /// ends when [the peer sends data](Self::end_train).
    pub const fn begin_train(&mut self, now: Instant) {
        self.rate.begin_train(now);
    }

    /// Ends the train, because the peer sends data. Acknowledgements may now wait behind this data.
    #[inline]
    pub const fn end_train(&mut self) {
        self.rate.end_train();
    }

    /// Returns the time at which [`on_timeout`](Self::on_timeout) must be called next. Returns
    /// [`Instant::NEVER`] if no packet is in flight and no lost packet is remembered.
    #[inline]
    pub fn deadline(&self) -> Instant {
        if self.packets.is_at_rest() {
            return self.loss_at;
        }
        let expires = self.packets.oldest_ghost().map_or(Instant::NEVER, |slot| {
            // While packets are in flight, ghosts (records of lost packets) need no timer, because
            // the handling of acknowledgements and probes removes ghosts.
            if self.packets.len() > 0 { Instant::NEVER } else { self.ghost_expires(slot) }
        });
        self.loss_at.min(self.probe_at()).min(expires)
    }

    /// Returns the number of bytes in flight.
    pub const fn in_flight_bytes(&self) -> u32 {
        self.in_flight_bytes
    }

    /// Returns the number of packets in flight.
    pub fn packets(&self) -> u16 {
        self.packets.len()
    }

    /// Returns the time at which the oldest data packet in flight was sent. If there is no data
    /// packet, returns the time at which the oldest path-MTU probe was sent. Returns `None` if
    /// nothing is in flight. Data packets come first, because the loss of a probe does not show
    /// that the link has failed.
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

    /// Returns the measured delivery rate, in bytes per second; `None` before the first sample.
    pub fn rate_bytes_per_second(&self) -> Option<u64> {
        self.rate.bytes_per_second()
    }

    /// Returns the estimate of the link: its rate, its delay, and its queue.
    pub const fn estimate(&self) -> &LinkEstimate {
        &self.estimate
    }

    /// Sets the rate of the fastest link, like [`LinkEstimate::compare_with`].
    pub const fn compare_with(&mut self, fastest: u64) {
        self.estimate.compare_with(fastest);
    }

    /// Returns the number of probe timeouts since the last acknowledgement of a new packet.
    pub const fn probe_count(&self) -> u32 {
        self.probe_count
    }

    /// Returns the probe timeout without backoff, in nanoseconds.
    fn probe_timeout_ns(&self) -> u64 {
        let variation_ns = (4 * self.rtt.variation_ns()).max(PROBE_MARGIN_NS);
        let expected = self.rtt.smoothed_ns() + variation_ns + u64::from(self.ack_delay_max_ns);
        expected.max(self.probe_timeout_min_ns)
    }

    /// Returns the time at which the probe timeout fires. The timeout starts when the oldest packet
    /// in flight is sent. The timeout restarts with each acknowledgement of a new packet and with
    /// each probe timeout.
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
    /// The sender waits until fewer bytes are in flight.
    Emptying,
    /// The bytes in flight were halved in round `round`.
    Measuring {
        round: u32,
    },
}

#[cfg(test)]
mod tests;

//! Handles acknowledgements in a sending half.

use wire_edge::{AckBlock, PacketNumber};

use super::{AckSummary, Drain, Fate, SendHalf};
use crate::congestion::{AckSample, CongestionController};
use crate::coverage::Coverage;
use crate::protocol_error::ProtocolError;
use crate::rate::{Newest, SendStamp};
use crate::sent_packets::{Kind, Record, SentPool};
use crate::time::Instant;

impl<T: Copy> SendHalf<T> {
    //= protocol.md: ack.11
    /// Handles an acknowledgement from the peer. Reports the contents that the peer accepted, in
    /// the order of sending, and then the contents that are now declared lost. `received_at` is the
    /// time at which the acknowledgement arrived at this host, at most `now`. The time from
    /// `received_at` to `now` is a delay in this host and not in the network.
    ///
    /// # Errors
    /// Returns [`ProtocolError::AckOfUnsent`] if the acknowledgement covers a packet that was never
    /// sent. In this case nothing has changed.
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

    /// Reports the packets in flight that `block` acknowledges.
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

    /// Handles packets that were declared lost or retired, and that `block` now acknowledges.
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

    /// Measures round-trip time and rate after new packets were acknowledged, and informs
    /// congestion control.
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
        // Use the time at which the acknowledgement would have arrived without delays in the hosts.
        // Otherwise the varying delays would make the samples of a steady rate vary.
        let acknowledged_at = Instant(now.0.saturating_sub(took_ns.saturating_sub(rtt_ns)));
        let (min_ns, frame_bytes) = (self.rtt.min_ns(), self.frame_bytes);
        let newest = Newest { stamp, sent_at, window_limited };
        let round_started =
            self.rate.on_acked(acknowledged_at, acked.bytes, newest, min_ns, frame_bytes);
        if self.in_flight_bytes == 0 {
            let queued_ns = rtt_ns.saturating_sub(min_ns);
            self.rate.on_train(now, sent_at, queued_ns, min_ns, self.frame_bytes);
        }
        if round_started {
            self.tolerance.on_round(self.rate.round());
            self.rtt.on_round();
        }
        self.drain_for_min(now, others_drain);
        self.estimate.update(&self.rate, &self.rtt);
        let sample = AckSample {
            acked_bytes: acked.bytes,
            acked_packets: acked.packets,
            marked_frames: summary.marked,
            window_limited,
            round_started,
            rtt_ns: Some(rtt_ns),
            rtt_min_ns: self.rtt.min_ns(),
            host_ns: self.rtt.host_ns(),
            rate: self.rate_in_flight(),
            rate_is_lower_bound: self.rate.is_lower_bound(),
            quantum_bytes: self.quantum_bytes(),
        };
        self.controller.on_ack(now, &sample);
    }

    /// If no sample has confirmed the smallest round-trip time for a long time, measures it again.
    /// Either a queue of this sender lengthens all round trips, or the route has become longer. For
    /// the measurement, this method halves the bytes in flight for some round trips. Competing
    /// senders notice the shorter queue and do the same, so the measurement does not include their
    /// queues.
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
                    self.rtt.start_again();
                    self.drain = Drain::Measuring { round: self.rate.round() };
                }
            }
            Drain::Measuring { round } => {
                if self.rate.round().wrapping_sub(round) >= DRAINED_ROUNDS {
                    self.rtt.finish_again(now);
                    self.drain = Drain::No;
                }
            }
        }
    }

    /// Corrects the expected waits. If a packet waited longer or shorter on the link than expected,
    /// the packets after it will also wait longer or shorter.
    fn correct_backlog(&mut self, rtt_ns: u64, acked: &Acked) {
        let queued_ns = rtt_ns.saturating_sub(self.rtt.min_ns());
        let expected_ns = u64::from(acked.newest_wait_ns);
        self.estimate.on_waited(acked.newest_bytes, queued_ns, expected_ns);
    }

    /// Limits the estimated queue of the link to the bytes in flight that are not presumed
    /// delivered.
    fn bound_backlog(&mut self, now: Instant) {
        let travelling = self.in_flight_bytes.saturating_sub(self.presumed_bytes(now));
        self.estimate.bound_queue(now, travelling);
    }
}

/// Sums over the packets that one block acknowledges, and the newest of these packets.
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

/// Number of round trips for which the sender keeps the queue drained. In the first round trip,
/// other senders notice that the queue is shorter. In the second, they drain their queues. In the
/// third, the sender measures. One more is needed, because counting starts in the middle of a round
/// trip.
const DRAINED_ROUNDS: u32 = 4;

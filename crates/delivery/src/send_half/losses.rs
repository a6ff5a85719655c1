//! Declares packets lost, and decides how long to remember lost packets.

use super::{Fate, SendHalf};
use crate::congestion::{CongestionController, LossSample};
use crate::coverage::reaches;
use crate::loss::Verdict;
use crate::sent_packets::{Kind, Record};
use crate::time::Instant;

impl<T: Copy> SendHalf<T> {
    /// Applies the loss rule to every packet in flight that an acknowledged packet has overtaken.
    /// If some of these packets are not lost yet, sets `loss_at` to the earliest time at which one
    /// of them will be lost. Returns the number of packets declared lost.
    pub(super) fn detect_losses(&mut self, now: Instant, report: &mut impl FnMut(Fate, T)) -> u32 {
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

    /// If later packets have overtaken a retired packet, reports the retired packet to congestion
    /// control as a loss.
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

    pub(super) fn expire_ghosts(&mut self, now: Instant) {
        while let Some(slot) = self.packets.oldest_ghost() {
            if now < self.ghost_expires(slot) {
                break;
            }
            self.packets.remove_ghost(slot);
        }
    }

    /// Returns the time at which a ghost (the record of a lost packet) is removed: two probe
    /// timeouts after the usual round trip.
    pub(super) fn ghost_expires(&self, slot: u16) -> Instant {
        let ns = self.rtt.smoothed_ns().saturating_add(2 * self.probe_timeout_ns());
        self.packets.record(slot).sent_at.after_ns(ns)
    }
}

/// Sums over the packets declared lost at one time.
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
    //= protocol.md: size.3
    fn count<T>(&mut self, record: &Record<T>, congestion: bool) {
        self.packets += 1;
        if congestion {
            self.congestion.lost_packets += 1;
            self.congestion.lost_bytes += u32::from(record.bytes);
            self.congestion.newest_sent_at = self.congestion.newest_sent_at.max(record.sent_at);
        }
    }
}

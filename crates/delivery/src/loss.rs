//! Decides when a packet is declared lost.

use crate::time::Instant;

/// Distance in packet numbers after which a packet is declared lost: the peer acknowledges a packet
/// of the same link, and its number is larger by at least this distance. Links deliver frames in
/// order, so the distance only allows for the slight reordering of multi-queue NICs (RFC 9002
/// §6.1.1).
const REORDER_PACKETS: u32 = 3;

/// Largest number of doublings of the tolerance after spurious losses. After all doublings, the
/// tolerance is 3 · 2^4 = 48 packets, and 2^4 quarters of a round trip.
const STEPS_MAX: u8 = 4;

/// Number of round trips without a spurious loss after which one doubling is undone (RFC 8985
/// §6.2).
const STEP_LIFETIME_ROUNDS: u32 = 16;

/// Smallest reordering window, in nanoseconds: the spacing of two frames at 10 Gb/s.
const REORDER_WINDOW_NS_MIN: u64 = 1_000;

/// The result of the loss rule for a packet, when a later packet was acknowledged before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// The packet may be late and not lost. If it is still unacknowledged at this time, it is lost.
    NotLostYet(Instant),
    /// The packet is lost.
    Lost,
}

/// The amount of reordering that the loss rule tolerates on one link before it declares a packet
/// lost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReorderTolerance {
    /// Number of doublings of both limits: the distance in packet numbers, and the reordering
    /// window in time.
    steps: u8,
    /// Round in which `steps` last changed.
    changed_in_round: u32,
}

crate::pack_fields!(ReorderTolerance { steps, changed_in_round });

impl ReorderTolerance {
    /// Applies the loss rule. A packet is lost in two cases:
    ///
    /// * An acknowledged packet has a number that is larger by at least [`REORDER_PACKETS`].
    /// * An acknowledged packet was sent later by at least the reordering window.
    ///
    /// Spurious losses raise both limits.
    ///
    /// `overtaken_by` is the largest acknowledged packet number minus the number of this packet.
    /// `round_trip_ns` is the time from the sending of the newest acknowledged packet to its
    /// acknowledgement.
    pub(crate) fn verdict(
        self,
        now: Instant,
        sent_at: Instant,
        overtaken_by: u32,
        round_trip_ns: u64,
        rtt_min_ns: u64,
    ) -> Verdict {
        if overtaken_by >= REORDER_PACKETS << self.steps {
            return Verdict::Lost;
        }
        let lost_at = sent_at.after_ns(round_trip_ns).after_ns(self.window_ns(rtt_min_ns));
        if now >= lost_at { Verdict::Lost } else { Verdict::NotLostYet(lost_at) }
    }

    /// Doubles the tolerance, because the peer has acknowledged a packet that was declared lost.
    pub(crate) fn on_spurious_loss(&mut self, round: u32) {
        self.steps = (self.steps + 1).min(STEPS_MAX);
        self.changed_in_round = round;
    }

    /// Ends a round trip. If the number of doublings last changed long ago, undoes one doubling.
    pub(crate) fn on_round(&mut self, round: u32) {
        if self.steps > 0 && round.wrapping_sub(self.changed_in_round) >= STEP_LIFETIME_ROUNDS {
            self.steps -= 1;
            self.changed_in_round = round;
        }
    }

    fn window_ns(self, rtt_min_ns: u64) -> u64 {
        (rtt_min_ns / 4).max(REORDER_WINDOW_NS_MIN) << self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_later_packets_prove_a_loss() {
        let rule = ReorderTolerance::default();
        assert_eq!(rule.verdict(Instant(0), Instant(0), 3, 100_000, 100_000), Verdict::Lost);
        assert_eq!(
            rule.verdict(Instant(100_000), Instant(0), 2, 100_000, 100_000),
            Verdict::NotLostYet(Instant(125_000))
        );
    }

    #[test]
    fn a_quarter_of_a_round_trip_later_an_overtaken_packet_is_lost() {
        let rule = ReorderTolerance::default();
        assert_eq!(rule.verdict(Instant(125_000), Instant(0), 1, 100_000, 100_000), Verdict::Lost);
    }

    #[test]
    fn tolerance_grows_with_spurious_losses_and_decays() {
        let mut rule = ReorderTolerance::default();
        rule.on_spurious_loss(10);
        assert!(matches!(
            rule.verdict(Instant(0), Instant(0), 5, 100_000, 100_000),
            Verdict::NotLostYet(_)
        ));
        assert_eq!(rule.verdict(Instant(0), Instant(0), 6, 100_000, 100_000), Verdict::Lost);
        rule.on_round(26);
        assert_eq!(rule.verdict(Instant(0), Instant(0), 3, 100_000, 100_000), Verdict::Lost);
    }
}

//! Packing (compression) of a sending half that has no packet in flight.

use super::{Drain, SendHalf};
use crate::pack::{Pack, Packer, Unpacker};
use crate::sent_packets::SentPackets;

impl<T: Copy> SendHalf<T> {
    /// Returns true if no packet is in flight and no lost packet is remembered. Only then may the
    /// caller pack the half.
    pub const fn is_at_rest(&self) -> bool {
        self.packets.is_at_rest()
    }

    /// Recomputes the part of the link estimate that depends on round trips, because this part is
    /// not packed.
    fn estimated(mut self) -> Self {
        self.estimate.take_round_trips(&self.rtt);
        self
    }
}

crate::pack_fields!(SendHalf<T: Copy> {
    rtt,
    rate,
    controller,
    tolerance,
    drain,
    next,
    acked_end,
    newest_acked_sent_at,
    newest_acked_took_ns,
    loss_at,
    progress_at,
    estimate,
    probe_timeout_min_ns,
    probe_timeout_max_ns,
    in_flight_bytes,
    receive_buffer_bytes,
    ack_delay_max_ns,
    frame_bytes,
    probe_count,
    packets_max,
    marked,
} packets = SentPackets::new(); Self::estimated);

impl Pack for Drain {
    fn pack(&self, to: &mut Packer) {
        match *self {
            Self::No => 0_u8.pack(to),
            Self::Emptying => 1_u8.pack(to),
            Self::Measuring { round } => {
                2_u8.pack(to);
                round.pack(to);
            }
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match u8::unpack(from) {
            0 => Self::No,
            1 => Self::Emptying,
            _ => Self::Measuring { round: Pack::unpack(from) },
        }
    }
}

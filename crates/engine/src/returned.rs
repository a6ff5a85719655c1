//! Collects the fates of the frames of a link, when an acknowledgement or a timeout shows that
//! frames were acknowledged or lost.

use delivery::Fate;
use semantics::{Carried, CarriedKind};

use crate::pending::{LostControl, MTU_PROBE, STATUS};

/// The fates of the frames of a link after an acknowledgement or a timeout.
#[derive(Debug, Default)]
pub(crate) struct Returned {
    /// Control messages to retransmit, and the number of control frames that are no longer in
    /// flight.
    pub(crate) control: LostControl,
    /// Number of data frames declared lost.
    pub(crate) data_lost: u64,
    /// Number of packets declared lost. `spurious_losses` is the number of packets that were
    /// declared lost earlier and are acknowledged now.
    pub(crate) packets_lost: u64,
    pub(crate) spurious_losses: u64,
    /// Whether the acknowledgement covers a packet that was not acknowledged before.
    pub(crate) is_progress: bool,
    /// Whether the peer has received a report of link statuses.
    pub(crate) has_reported_statuses: bool,
    /// Lower bounds for the size of the largest acknowledged data frame, and for the size of the
    /// largest lost data frame, in bytes.
    pub(crate) acked_bytes: u32,
    pub(crate) lost_bytes: u32,
    /// The fate of the path MTU probe, and the size of the probe in bytes.
    pub(crate) probe: Option<(Fate, u16)>,
}

impl Returned {
    /// Records the fate of a frame. Passes the content of a data frame to `operations`.
    pub(crate) fn take(
        &mut self,
        fate: Fate,
        carried: Carried,
        operations: &mut impl FnMut(Fate, Carried),
    ) {
        match (fate, carried.kind) {
            (_, CarriedKind::Control) if carried.slot & MTU_PROBE != 0 => {
                self.probe = Some((fate, carried.slot as u16));
            }
            (Fate::Lost, CarriedKind::Control) => self.control.add(&carried),
            (Fate::Acked, CarriedKind::Control) => {
                self.control.add_arrived();
                self.has_reported_statuses |=
                    carried.slot & STATUS != 0 && carried.offset & 0xffff != 0;
            }
            (Fate::Acked, _) => {
                self.acked_bytes = self.acked_bytes.max(frame_bytes_min(&carried));
                operations(fate, carried);
            }
            (Fate::Lost, _) => {
                self.data_lost += 1;
                self.lost_bytes = self.lost_bytes.max(frame_bytes_min(&carried));
                operations(fate, carried);
            }
        }
    }
}

/// Returns a lower bound for the size of a data frame, in bytes: the size of its payload plus the
/// shortest headers.
const fn frame_bytes_min(carried: &Carried) -> u32 {
    OPERATION_HEADER_BYTES + carried.length as u32
}

/// Bytes of the common header, an operation number and an offset.
const OPERATION_HEADER_BYTES: u32 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::{PING, Pending};

    fn of(slot: u32, length: u16, kind: CarriedKind) -> Carried {
        Carried { slot, length, kind, ..Carried::default() }
    }

    #[test]
    fn only_fragments_of_operations_are_returned_to_operations() {
        let (mut returned, mut operations) = (Returned::default(), Vec::new());
        for (fate, carried) in [
            (Fate::Acked, of(1, 700, CarriedKind::Request)),
            (Fate::Lost, of(2, 900, CarriedKind::Answer)),
            (Fate::Lost, of(3, 100, CarriedKind::Request)),
            (Fate::Acked, of(PING.into(), 0, CarriedKind::Control)),
            (Fate::Lost, of(MTU_PROBE | 0xbb8, 0, CarriedKind::Control)),
        ] {
            returned.take(fate, carried, &mut |_, carried| operations.push(carried.slot));
        }
        assert_eq!(operations, [1, 2, 3]);
        assert_eq!(returned.data_lost, 2);
        assert_eq!((returned.acked_bytes, returned.lost_bytes), (720, 920));
        assert_eq!(returned.probe, Some((Fate::Lost, 0xbb8)));
    }

    #[test]
    fn a_lost_message_is_retransmitted_and_a_delivered_one_is_not() {
        let mut pending = Pending::default();
        for _ in 0..2 {
            pending.say(PING);
            pending.on_sent(PING, None, true);
        }
        let mut returned = Returned::default();
        let ping = of(PING.into(), 0, CarriedKind::Control);
        returned.take(Fate::Acked, ping, &mut |_, _| {});
        pending.on_returned(core::mem::take(&mut returned.control));
        assert_eq!(pending.messages(), 0);
        returned.take(Fate::Lost, ping, &mut |_, _| {});
        pending.on_returned(returned.control);
        assert_eq!(pending.messages(), PING);
        assert!(pending.is_all_heard());
    }

    #[test]
    fn only_an_acknowledged_status_frame_counts_as_a_status_report() {
        for (slot, statuses, has_reported) in
            [(STATUS, 2, true), (STATUS, 0, false), (STATUS, 2 << 16, false), (0, 2, false)]
        {
            let mut returned = Returned::default();
            let carried = Carried { offset: statuses, ..of(slot, 0, CarriedKind::Control) };
            returned.take(Fate::Acked, carried, &mut |_, _| {});
            assert_eq!(returned.has_reported_statuses, has_reported, "{slot} {statuses}");
        }
    }
}

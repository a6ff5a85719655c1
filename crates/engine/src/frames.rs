//! Frames going out: the one place where they are made, numbered, counted and handed to drivers.
//!
//! One rule holds for what a driver does not take: it was never sent. Its packet number goes to the next frame, it is
//! not counted, and what it carried is due again: data and acknowledgements are given back here, control messages are
//! pending until their frame is taken. If the driver does not know whether a frame left, its number is not used again,
//! since the peer may have it; else the same holds.

use delivery::{Instant, LinkId};
use semantics::{Carried, LocalFault};
use wire_edge::Flags;

use crate::connection::Connection;
use crate::new_frame::{Emit, Emitted, NewFrame, Sent};
use crate::parts::Parts;
use crate::path::Path;
use crate::purpose::Purpose;

impl Parts<'_> {
    /// Makes a batch of one frame on the link at `position` and hands it over; false if the link is full.
    /// With the flag ACK it takes the acknowledgements that were written.
    pub(crate) fn send_alone(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        frame: &NewFrame<'_>,
        emit: Emit<'_>,
    ) -> bool {
        let names = connection.names().of_peer();
        let path = &mut connection.paths_mut()[position];
        let has_acks = frame.flags.contains(Flags::ACK);
        if !has_acks {
            self.scratch.drop_acks();
        }
        self.scratch.begin(path.peer());
        let pushed = self.scratch.push(now, self.sent, names, path, frame);
        pushed.is_some() && self.hand_over(now, connection, position, has_acks, emit) == Sent::All
    }

    /// Hands the batch, of which the first frame may have acknowledgements, to the driver of the link at
    /// `position`.
    pub(crate) fn hand_over(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        has_acks: bool,
        emit: Emit<'_>,
    ) -> Sent {
        let link = connection.paths()[position].link();
        match self.scratch.emit(self.links, link, emit) {
            Emitted::Taken(taken) if taken == self.scratch.len() => Sent::All,
            Emitted::Taken(taken) => {
                self.take_back(connection, position, has_acks, taken);
                Sent::Blocked
            }
            Emitted::Doubtful { taken, doubtful } => {
                self.take_back(connection, position, has_acks, taken + doubtful);
                self.disown(connection, position, has_acks && taken == 0, doubtful);
                Sent::Blocked
            }
            Emitted::PayloadUnmapped(frame) => {
                let first = frame.min(self.scratch.len() - 1);
                let unmapped = self.take_back(connection, position, has_acks, first);
                self.local_memory_gone(now, connection, LocalFault::of(&unmapped));
                Sent::Failed
            }
        }
    }

    /// The driver has taken only the first frames of the batch: the others were never sent. Returns what the first of
    /// these carried. There may be none, if no frame could be made; then nothing was counted, and what was to be
    /// acknowledged is still to be reported.
    #[cold]
    pub(crate) fn take_back(
        &mut self,
        connection: &mut Connection,
        position: usize,
        has_acks: bool,
        taken: usize,
    ) -> Carried {
        let Self { scratch, sent, pools, .. } = self;
        let (paths, outbound) = connection.paths_and_outbound();
        let path = &mut paths[position];
        let frames = scratch.len() - taken;
        let (purpose, bytes) = (scratch.purpose(), scratch.bytes_from(taken));
        let mut first = Carried::default();
        let has_acks = has_acks && taken == 0;
        path.unsend(sent, (frames, bytes), purpose, has_acks && frames > 0, &mut |carried| {
            first = carried;
            if purpose == Purpose::Data {
                outbound.on_returned(pools, carried);
            }
        });
        connection.reported_mut().report_if(has_acks);
        first
    }

    //= protocol.md: packet.1
    /// Of the frames of the batch, the last `frames` that were not taken back may have left: what they carried is
    /// retransmitted under new numbers, with the acknowledgements that they may have carried.
    #[cold]
    fn disown(
        &mut self,
        connection: &mut Connection,
        position: usize,
        had_acks: bool,
        frames: usize,
    ) {
        let Self { scratch, sent, pools, .. } = self;
        let purpose = scratch.purpose();
        let (paths, outbound) = connection.paths_and_outbound();
        paths[position].disown(sent, frames, purpose, &mut |carried| {
            if purpose == Purpose::Data {
                outbound.on_returned(pools, carried);
            }
        });
        connection.reported_mut().report_if(had_acks);
    }

    /// Frames of a batch that a driver takes at once.
    pub(crate) fn segments(&self, link: LinkId) -> usize {
        let segments = self.links.caps(link).map_or(1, |caps| usize::from(caps.segments));
        // A batch that was lent without room grows.
        segments.clamp(1, self.scratch.room().max(1))
    }

    /// Whether frames handed over at once cost as little as one.
    pub(crate) fn offloads(&self, link: LinkId) -> bool {
        self.links.caps(link).is_some_and(|caps| caps.offloads)
    }

    /// Whether nothing can be sent on a link of a connection now.
    pub(crate) fn is_blocked(&self, path: &Path) -> bool {
        self.links.is_blocked(path.link(), path.peer())
    }

    /// Whether a link of the connection is full: its driver has room again soon but does not report it. A link that is
    /// down reports when it is back.
    pub(crate) fn is_full(&self, path: &Path) -> bool {
        self.links.is_full(path.link(), path.peer())
    }
}

//! Passes the frames of connections to drivers, and counts the frames. All frames of connections
//! pass through this file.
//!
//! If a driver does not accept a frame:
//!
//! * the next frame gets the packet number of this frame, and no counter counts this frame,
//! * the data and acknowledgements of the frame are queued again,
//! * control messages stay in their queue, because the engine removes them only when a frame was
//!   sent.
//!
//! If the driver does not know whether a frame left the host, the engine does the same with data,
//! acknowledgements and control messages. But no later frame gets the packet number of this frame,
//! because the peer may have received this frame.

use delivery::{Instant, LinkId};
use semantics::{Carried, LocalFault};
use wire_edge::Flags;

use crate::connection::Connection;
use crate::new_frame::{Emit, Emitted, NewFrame, Sent};
use crate::parts::Parts;
use crate::path::Path;
use crate::purpose::Purpose;

impl Parts<'_> {
    /// Sends one frame in a separate batch on the link at `position`. Returns false if the link is
    /// full. A frame with the flag ACK carries the acknowledgements in the scratch memory.
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

    /// Passes the batch to the driver of the link at `position`. `has_acks` says whether the first
    /// frame carries acknowledgements.
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

    /// Queues for retransmission the content of the frames that the driver did not accept. These
    /// are all frames of the batch after the first `taken` frames. Returns the content of the first
    /// frame that was not accepted. If the batch is empty, because the engine could not build a
    /// frame, only queues the acknowledgements again.
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
    /// Handles the last `frames` frames of the batch, about which the driver does not know whether
    /// they left the host. The engine retransmits their data under new packet numbers, and repeats
    /// their acknowledgements.
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

    /// Returns how many frames of a batch the driver accepts in one call.
    pub(crate) fn segments(&self, link: LinkId) -> usize {
        let segments = self.links.caps(link).map_or(1, |caps| usize::from(caps.segments));
        // If the caller lent scratch memory without capacity, allow one frame: the memory grows as
        // needed.
        segments.clamp(1, self.scratch.room().max(1))
    }

    /// Returns whether the link has segmentation offload. With offload, a call for many frames
    /// costs about as much as a call for one frame.
    pub(crate) fn offloads(&self, link: LinkId) -> bool {
        self.links.caps(link).is_some_and(|caps| caps.offloads)
    }

    /// Returns whether a link of a connection accepts no frame now.
    pub(crate) fn is_blocked(&self, path: &Path) -> bool {
        self.links.is_blocked(path.link(), path.peer())
    }

    /// Returns whether a link of the connection is full. The driver of a full link will have room
    /// soon, but gives no signal when it has room. Returns false for a link that is down, because a
    /// driver reports when its link is up again.
    pub(crate) fn is_full(&self, path: &Path) -> bool {
        self.links.is_full(path.link(), path.peer())
    }
}

//! Handles frames of connections that arrive. Performs the steps of protocol.md §3.4, from the
//! look-up of the connection id to the acknowledgement.

use delivery::{Eliciting, Fate, Instant, LinkId, LinkState, PathState, RxFrame};
use mem::{MemoryAccess, Payload};
use semantics::{
    AccessFault, Answer, Inbound, LocalFault, OperationError, Outbound, Pools, Refusal,
    Surroundings, Verdict,
};
use wire_edge::{
    AckSection, CloseReason, Control, Flags, Frame, Header, Kind, LinkIndex, LinkStatus,
    OperationNumber, PeerAddr, control_messages,
};

use crate::connection::Connection;
use crate::engine::Engine;
use crate::event::{Closed, Event};
use crate::life::Life;
use crate::link_set::RETIRED_NS;
use crate::parts::Parts;
use crate::path::{Packet, Path};
use crate::pending::{NOT_READY, READY};
use crate::phase::Phase;

impl Engine {
    //= protocol.md: frame.1, receive.1, name.3
    /// Handles one frame. Copies the payload of the frame directly to registered memory.
    #[expect(clippy::needless_pass_by_value, reason = "a frame is handed over, not lent")]
    #[inline]
    pub fn handle_frame(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        link: LinkId,
        frame: RxFrame<'_>,
    ) {
        let peeked = wire_edge::peek(frame.bytes);
        if let Ok((Kind::Handshake, ..)) = peeked {
            return self.handle_handshake(now, memory, link, &frame);
        }
        if let Ok((Kind::Datagram, ..)) = peeked {
            self.note_time(now);
            return self.handle_datagram(memory, link, &frame);
        }
        let (connections, mut parts) = self.lend();
        let Ok((_, id, epoch)) = peeked else {
            parts.counters.malformed += 1;
            return;
        };
        let Some(index) = connections.find(id) else {
            parts.counters.unknown_connection += 1;
            return parts.reset(now, link, &frame, id, epoch);
        };
        let Some(mut connection) = connections.take(index) else { return };
        if connection.names().epoch() == epoch {
            parts.receive(now, memory, link, &frame, &mut connection);
            parts.end_if_over(now, &mut connection);
        } else {
            // Answer as if the connection were unknown, so that the guess of an id does not reveal
            // a connection.
            parts.counters.wrong_epoch += 1;
            parts.reset(now, link, &frame, id, epoch);
        }
        parts.put_back(connections, connection);
    }
}

impl Parts<'_> {
    //= protocol.md: frame.3, receive.2, receive.4, receive.8, close.5
    fn receive(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        link: LinkId,
        frame: &RxFrame<'_>,
        connection: &mut Connection,
    ) {
        // Borrow the frame from the result instead of moving it. To move a value that was just
        // written, the processor must wait for each store.
        let result = wire_edge::decode_split(frame.bytes, frame.outside.len());
        let Ok(decoded) = &result else {
            self.counters.malformed += 1;
            return;
        };
        let is_inside = frame.outside.is_empty();
        let payload = if is_inside { decoded.payload.into() } else { frame.outside };
        if matches!(connection.phase(), Phase::Connecting | Phase::Requested | Phase::Gone) {
            return;
        }
        let index = decoded.prefix.link;
        let Some(mut position) = self.position(now, connection, link, frame, decoded, index) else {
            self.counters.wrong_address += 1;
            return;
        };
        let path = &mut connection.paths_mut()[position];
        let packet = Packet {
            number: decoded.prefix.packet,
            received_at: frame.received_at,
            is_marked: frame.congestion_experienced,
            eliciting: eliciting(decoded),
            asks: decoded.prefix.flags.contains(Flags::ACK_NOW),
        };
        if !path.on_frame(now, frame.len(), &packet) {
            return;
        }
        if connection.phase() == Phase::Accepted {
            self.confirm(now, connection);
        }
        connection.liveness_mut().on_heard();
        if let Some(acks) = &decoded.acks {
            self.handle_acks(now, memory, connection, position, decoded, acks, frame.received_at);
            // The acknowledgements in the frame may have restored a link. When a link is restored,
            // the engine may remove other links, including the link of this frame.
            let still = connection.paths().iter().position(|path| path.index() == index);
            let Some(still) = still else { return };
            position = still;
        }
        let delivered = connection.inbound().delivered();
        if self.handle_body(now, memory, connection, position, decoded, payload) {
            // On several links, the later frames of an operation can arrive first. In that case, a
            // frame from the middle completes the operation. Treat such a frame like the last frame
            // of the operation, because no later frame of the operation will ask for an
            // acknowledgement.
            let completes = connection.inbound().delivered() != delivered;
            let eliciting = if completes { packet.eliciting.as_last() } else { packet.eliciting };
            // The content of the frame may have removed the link.
            if let Some(path) = connection.path_mut(index) {
                path.observe(now, &Packet { eliciting, ..packet });
            }
        }
    }

    //= protocol.md: receive.3, link.1, join.3, join.11, index.2
    /// Returns the position of the link to which the frame belongs. If this end has no link with
    /// that index, a challenge in the frame opens the link. Returns `None` if the frame belongs to
    /// no link and opens none.
    #[inline]
    fn position(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        link: LinkId,
        frame: &RxFrame<'_>,
        decoded: &Frame<'_>,
        index: LinkIndex,
    ) -> Option<usize> {
        if let Some(position) = connection.paths().iter().position(|path| path.index() == index) {
            let path = &connection.paths()[position];
            if path.link() == link && path.peer() == frame.from {
                return Some(position);
            }
            if !is_challenge(decoded) || !self.vacates(now, connection, index, decoded) {
                return None;
            }
        }
        let place = (link, frame.from);
        if takes_back(now, connection, place, index, decoded) {
            let state = PathState::new(now);
            let opened = self.open_path(now, connection, index, place, Life::Settled, state);
            return opened.then(|| connection.paths().len() - 1);
        }
        let challenge = is_challenge(decoded);
        let room = connection.paths().len() < usize::from(self.config.links_max);
        // A late challenge, which the peer sent before the link was removed, must not open the link
        // again.
        let settled = connection.paths().retired(index).is_none_or(|retired| {
            let is_next = retired.is_unnoticed && retired.path.is_ahead(decoded.prefix.packet);
            is_next || now >= retired.at.after_ns(RETIRED_NS)
        });
        // In phase Accepted, a challenge proves that the peer has this end's Accept, like any other
        // frame. If the peer has removed the link of the handshake, it is possible that no other
        // frame arrives.
        let open = matches!(connection.phase(), Phase::Accepted | Phase::Established);
        if !challenge || !settled || !open || frame.from.is_group() {
            return None;
        }
        if !room || !self.gives_way(connection, place) {
            // The peer has a link with this index, but this end does not have it. Report that to
            // the peer.
            if let Some(path) = connection.paths_mut().first_mut() {
                path.report_statuses(1 << index.0);
            }
            return None;
        }
        let state = PathState::new(now);
        let opened = self.open_path(now, connection, index, place, Life::Offered, state);
        opened.then(|| connection.paths().len() - 1)
    }

    //= protocol.md: join.9, join.10
    /// Frees an index under which the peer opens another link, if this end can give up its own link
    /// with that index. Returns whether the index is free.
    #[cold]
    fn vacates(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        frame: &Frame<'_>,
    ) -> bool {
        let Some(path) = connection.path_mut(index) else { return true };
        let link = path.link();
        if path.is_offered() {
            // The peer gave up the pair of this link and now tries another pair under the same
            // index.
            return path.is_ahead(frame.prefix.packet) && self.drop_unnoticed(connection, index);
        }
        if path.is_settled() && path.is_stale(now) && path.is_ahead(frame.prefix.packet) {
            return self.replaces_stale(connection, index);
        }
        // Both ends opened a link with this index. The link of the initiator keeps the index.
        let is_new = path.is_trial() && path.is_unheard();
        if connection.is_initiator() || !is_new || !self.drop_unnoticed(connection, index) {
            return false;
        }
        // This end has ended its trial. The peer is the initiator, and tries the pair of this link
        // if it knows the address of the link. Therefore announce the address.
        connection.announce_address(link);
        true
    }

    //= protocol.md: compare.5
    /// Resolves a conflict about an index: the two ends use the index for different links, and
    /// neither end receives the frames that the other end sends under this index. The initiator
    /// removes its link. The responder replaces its link by the link that the peer opens. Returns
    /// whether the peer's link replaces the link of this end.
    #[cold]
    fn replaces_stale(&mut self, connection: &mut Connection, index: LinkIndex) -> bool {
        if connection.is_initiator() {
            if self.remove_path_of(connection, index) {
                connection.pairs_mut().look();
            }
            return false;
        }
        self.drop_unnoticed(connection, index)
    }

    //= protocol.md: join.9
    /// If both ends opened the same pair, decides which of the two links stays: the link with the
    /// initiator's index. Returns whether the peer may open the pair.
    #[cold]
    fn gives_way(&mut self, connection: &mut Connection, place: (LinkId, PeerAddr)) -> bool {
        let own = connection.paths().iter().find(|path| path.pair() == place);
        match own.map(|path| (path.index(), path.is_lost(), path.state())) {
            None | Some((_, true, _)) => true,
            Some(_) if connection.is_initiator() => false,
            Some((index, false, LinkState::Validating)) => self.remove_path_of(connection, index),
            Some(_) => true,
        }
    }

    //= protocol.md: receive.5
    /// Confirms the connection. The first frame of the peer proves that the peer has received this
    /// end's Accept.
    #[cold]
    fn confirm(&mut self, now: Instant, connection: &mut Connection) {
        self.forget_unconfirmed(connection);
        connection.establish(now, self.config);
        self.counters.handshakes_completed += 1;
        self.news
            .push(Event::Established { connection: connection.handle(), private_data: Vec::new() });
    }

    /// Handles the acknowledgements of packets and operations in a frame.
    #[expect(
        clippy::too_many_arguments,
        reason = "the frame, its link and its time belong together"
    )]
    //= protocol.md: receive.6
    fn handle_acks(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        decoded: &Frame<'_>,
        acks: &AckSection<'_>,
        received_at: Instant,
    ) {
        connection.paths_mut()[position].on_acks(matches!(decoded.header, Header::Ack));
        if !matches!(connection.phase(), Phase::Established) {
            return;
        }
        for block in acks.blocks() {
            if !self.handle_block(now, received_at, connection, &block) {
                return self.violated(now, connection, OperationNumber(0));
            }
        }
        let (delivered, credit) = (acks.delivered(), acks.credit());
        if !connection.outbound_mut().on_delivered(self.pools, delivered, credit) {
            return self.violated(now, connection, delivered);
        }
        if connection.inbound().is_stalled() {
            self.resume(now, memory, connection);
        }
    }

    /// Handles the acknowledgement of one link's packets. Returns false if the acknowledgement
    /// violates the protocol.
    fn handle_block(
        &mut self,
        now: Instant,
        received_at: Instant,
        connection: &mut Connection,
        block: &wire_edge::AckBlock,
    ) -> bool {
        let (paths, outbound) = connection.paths_and_outbound();
        let Some(path) = paths.iter_mut().find(|path| path.index() == block.link) else {
            // An earlier step for this frame may have removed the link.
            return true;
        };
        let pools = &mut *self.pools;
        let times = (now, received_at);
        let acknowledged = path.on_ack(self.sent, times, block, &mut |fate, carried| match fate {
            Fate::Acked => outbound.on_acknowledged(pools, carried),
            Fate::Lost => outbound.on_lost(pools, carried),
        });
        let Some(acknowledged) = acknowledged else { return false };
        if acknowledged.has_reported_statuses {
            connection.announce_addresses_again(self.links.attached());
        }
        if acknowledged.is_progress {
            connection.on_acknowledged(block.link);
        }
        self.on_path_change(now, connection, block.link, acknowledged.change);
        true
    }

    //= protocol.md: receive.7, control.1
    /// Handles the content of a frame. Returns false if this end must not acknowledge the packet.
    #[inline]
    fn handle_body(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        decoded: &Frame<'_>,
        payload: Payload<'_>,
    ) -> bool {
        match decoded.header {
            Header::Write { operation, offset, .. }
            | Header::Send { operation, offset, .. }
            | Header::SendInvalidate { operation, offset, .. }
            | Header::Patch { operation, offset, .. } => {
                let is_behind = connection.requests_mut().is_behind(operation, offset);
                connection.paths_mut()[position].on_data(is_behind);
                self.handle_request(now, memory, connection, position, decoded, payload)
            }
            Header::ReadRequest { .. } | Header::Atomic { .. } => {
                self.handle_request(now, memory, connection, position, decoded, payload)
            }
            Header::ReadResponse { .. } | Header::AtomicResponse { .. } => {
                connection.paths_mut()[position].on_data(false);
                self.handle_answer(now, memory, connection, position, decoded, payload)
            }
            Header::Control => {
                connection.paths_mut()[position].on_control();
                let index = connection.paths()[position].index();
                let mut reminds = false;
                for message in control_messages(decoded.payload) {
                    match message {
                        Ok(Control::Address(address)) if reminds => {
                            connection.remember_address(address);
                        }
                        Ok(message @ Control::Links(_)) => {
                            reminds = true;
                            self.on_control(now, connection, index, &message);
                        }
                        Ok(message) => self.on_control(now, connection, index, &message),
                        Err(_) => self.counters.malformed += 1,
                    }
                }
                true
            }
            Header::Ack | Header::Probe => true,
        }
    }

    #[inline]
    fn handle_request(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        decoded: &Frame<'_>,
        payload: Payload<'_>,
    ) -> bool {
        if !connection.is_open() {
            return true;
        }
        if connection.has_refused() {
            connection.paths_mut()[position].on_refused(Refusal::Early);
            return false;
        }
        let (inbound, outbound) = connection.operations();
        let mut around = Surroundings { memory, pools: self.pools, outbound };
        let verdict = inbound.handle(&mut around, decoded.prefix.flags, &decoded.header, payload);
        let path = &mut connection.paths_mut()[position];
        match verdict {
            Verdict::Accepted => {
                path.on_taken(payload.len());
                self.note_stall(connection);
                true
            }
            Verdict::Duplicate => {
                path.on_not_placed();
                connection.doubt_links();
                true
            }
            Verdict::Refused(refusal) => {
                path.on_refused(refusal);
                if matches!(refusal, Refusal::NotReady(_)) {
                    connection.say_on_nearest(NOT_READY);
                }
                false
            }
            Verdict::Violation { reason, operation } => {
                self.refuse_access(now, connection, reason, operation);
                true
            }
        }
    }

    fn handle_answer(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        decoded: &Frame<'_>,
        payload: Payload<'_>,
    ) -> bool {
        if !connection.is_open() {
            return true;
        }
        let (paths, outbound) = connection.paths_and_outbound();
        let path = &mut paths[position];
        let flags = decoded.prefix.flags;
        match outbound.handle_answer(memory, self.pools, flags, &decoded.header, payload) {
            Ok(Answer::Accepted) => {
                path.on_taken(payload.len());
                true
            }
            Ok(Answer::Duplicate) => {
                path.on_not_placed();
                connection.doubt_links();
                true
            }
            Ok(Answer::NoRoom) => {
                path.on_refused(Refusal::Pool);
                false
            }
            Ok(Answer::Violation) => {
                self.violated(now, connection, OperationNumber(0));
                true
            }
            Err(fault) => {
                self.local_memory_gone(now, connection, fault);
                true
            }
        }
    }

    /// Resumes deliveries that have waited for room in a completion queue or for a receive.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
    ) {
        self.go_on(now, connection, |inbound, outbound, pools| {
            inbound.resume(&mut Surroundings { memory, pools, outbound })
        });
    }

    //= protocol.md: shared.3
    /// Resumes the message that waited for a receive, because the application posted a receive.
    pub(crate) fn on_receive_there(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
    ) {
        self.go_on(now, connection, |inbound, outbound, pools| {
            inbound.on_ready(&mut Surroundings { memory, pools, outbound })
        });
        if connection.is_open() {
            connection.say_on_nearest(READY);
        }
        self.end_if_over(now, connection);
    }

    fn go_on(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        deliver: impl FnOnce(&mut Inbound, &mut Outbound, &mut Pools) -> Verdict,
    ) {
        if connection.has_refused() {
            return;
        }
        let (inbound, outbound) = connection.operations();
        let before = inbound.delivered();
        if let Verdict::Violation { reason, operation } = deliver(inbound, outbound, self.pools) {
            self.refuse_access(now, connection, reason, operation);
        } else {
            let has_delivered = connection.inbound().delivered() != before;
            connection.reported_mut().report_if(has_delivered);
            self.note_stall(connection);
        }
    }

    //= protocol.md: shared.4
    /// Handles deliveries that must wait. If they wait until the application polls a completion
    /// queue, puts the connection on the list of such connections. If they wait for a receive,
    /// queues a report to the peer that the receive is missing.
    #[inline]
    fn note_stall(&mut self, connection: &mut Connection) {
        if !connection.inbound().is_stalled() {
            return;
        }
        if connection.inbound().lacks_receive().is_some() {
            connection.say_on_nearest(NOT_READY);
        } else {
            self.agenda.mark_stalled(connection.handle().index);
        }
    }

    //= protocol.md: violation.1, fault.3
    /// Closes a connection whose peer requested a forbidden access. On a queue pair, first sends
    /// the answers to the peer's earlier requests.
    #[cold]
    pub(crate) fn refuse_access(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        reason: CloseReason,
        operation: OperationNumber,
    ) {
        if reason != CloseReason::ProtocolViolation
            && connection.outbound().answering() > 0
            && connection.refuse_later((reason, operation))
        {
            return;
        }
        self.counters.violations += 1;
        let closed = match reason {
            CloseReason::LocalMemoryGone => Closed::LocalMemory,
            _ => Closed::PeerMisbehaved(reason),
        };
        self.begin_close(now, connection, (reason, operation), closed);
    }

    //= protocol.md: violation.4
    /// Closes a connection whose peer violated the protocol.
    #[cold]
    pub(crate) fn violated(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        operation: OperationNumber,
    ) {
        self.refuse_access(now, connection, CloseReason::ProtocolViolation, operation);
    }

    //= protocol.md: answer.9, violation.6, queue-pair.3, fault.3
    /// Closes a connection because local memory is gone. If an operation of this end needed the
    /// memory, the Close names that operation. If a read of the peer needed the memory, the peer
    /// gets the error for an unknown key.
    #[cold]
    pub(crate) fn local_memory_gone(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        fault: LocalFault,
    ) {
        let close = match fault {
            LocalFault::Operation(operation) if connection.is_queue_pair() => {
                let error = OperationError::LocalAccess;
                connection.outbound_mut().fail(self.pools, operation, error);
                return self.end_if_over(now, connection);
            }
            LocalFault::Operation(operation) => {
                let fault = (operation, OperationError::LocalAccess);
                let rest = Closed::LocalMemory.operation_error();
                connection.outbound_mut().flush(self.pools, rest, Some(fault));
                (CloseReason::LocalMemoryGone, OperationNumber(0))
            }
            LocalFault::Answer(read) if connection.is_queue_pair() => {
                connection.outbound_mut().abandon_answers(self.pools, read);
                return self.refuse_access(now, connection, CloseReason::UnknownKey, read);
            }
            LocalFault::Answer(read) => (CloseReason::UnknownKey, read),
        };
        self.begin_close(now, connection, close, Closed::LocalMemory);
    }
}

impl Parts<'_> {
    /// Closes a connection because the local memory of an operation was gone before the operation
    /// could be posted.
    #[cold]
    pub(crate) fn lose_local_memory(&mut self, now: Instant, connection: &mut Connection) {
        let close = (CloseReason::LocalMemoryGone, OperationNumber(0));
        self.begin_close(now, connection, close, Closed::LocalMemory);
    }

    //= protocol.md: answer.8, queue-pair.3
    /// Handles the peer's report that it cannot retransmit a part of an answer, because the memory
    /// of the answer is gone. Does nothing if this end has all parts of the answer.
    #[cold]
    pub(crate) fn on_answer_gone(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        operation: OperationNumber,
    ) {
        if !connection.is_open() || !connection.outbound().lacks_answer(self.pools, operation) {
            return;
        }
        let error = OperationError::RemoteAccess(AccessFault::Key);
        if connection.is_queue_pair() {
            connection.outbound_mut().fail(self.pools, operation, error);
            return self.end_if_over(now, connection);
        }
        let reason = CloseReason::LocalMemoryGone;
        let closed = Closed::PeerRefused(reason);
        let fault = Some((operation, error));
        connection.outbound_mut().flush(self.pools, closed.operation_error(), fault);
        let close = (reason, OperationNumber(0));
        self.begin_close(now, connection, close, closed);
    }
}

//= protocol.md: remove.4
/// Returns whether this end must open a removed link again, because the peer removes all other
/// links in this frame.
///
/// It can happen that this end removes one link, and that the peer removes all other links at the
/// same time. No common link is left. In that case the removal by the initiator applies, and the
/// responder reopens the link that it removed. But the responder may not receive the report of that
/// removal. In that case, the initiator reopens its own removed link after half of `RETIRED_NS`.
fn takes_back(
    now: Instant,
    connection: &Connection,
    place: (LinkId, PeerAddr),
    index: LinkIndex,
    frame: &Frame<'_>,
) -> bool {
    if !matches!(frame.header, Header::Control) || connection.phase() != Phase::Established {
        return false;
    }
    let was_here = connection.paths().retired(index).is_some_and(|retired| {
        let path = &retired.path;
        let patience_ns = if connection.is_initiator() { RETIRED_NS / 2 } else { 0 };
        path.pair() == place
            && path.is_validated()
            && path.is_ahead(frame.prefix.packet)
            && now >= retired.at.after_ns(patience_ns)
    });
    let is_removed = |path: &Path| {
        control_messages(frame.payload).any(|message| {
            matches!(message, Ok(Control::LinkStatus(which, LinkStatus::Removed)) if which == path.index())
        })
    };
    // Ignore links on which the peer has not answered, because such a link never counts as the last
    // link.
    was_here && connection.paths().iter().all(|path| !path.is_validated() || is_removed(path))
}

/// Returns whether a frame contains a challenge. The first frame of a new link contains a
/// challenge.
fn is_challenge(frame: &Frame<'_>) -> bool {
    matches!(frame.header, Header::Control)
        && control_messages(frame.payload)
            .any(|message| matches!(message, Ok(Control::PathChallenge(_))))
}

/// Returns whether a frame asks for an acknowledgement, and whether more frames of its operation
/// follow.
#[inline]
fn eliciting(frame: &Frame<'_>) -> Eliciting {
    if !frame.header.kind().is_ack_eliciting() {
        return Eliciting::No;
    }
    match frame.header {
        Header::Write { .. }
        | Header::Send { .. }
        | Header::SendInvalidate { .. }
        | Header::Patch { .. }
        | Header::ReadResponse { .. }
            if !frame.prefix.flags.contains(Flags::LAST) =>
        {
            Eliciting::Midway
        }
        // No program answers these frames, so no data will follow that could carry the
        // acknowledgement. Do not wait for data.
        Header::Probe | Header::Control if frame.prefix.flags.contains(Flags::ACK_NOW) => {
            Eliciting::Midway
        }
        _ => Eliciting::Yes,
    }
}

//! Handles control messages of the peer and their effects: links that join, fail and leave, and the
//! end of a connection. The code in this file only queues messages to the peer; the code in
//! `control_frames.rs` sends them.

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, PathChange, PathState};
use semantics::OperationError;
use wire_edge::{CloseReason, Control, LinkIndex, LinkStatus, OperationNumber, PeerAddr};

use crate::connection::Connection;
use crate::engine::Engine;
use crate::event::{Closed, ConnectionHandle, Event, Unknown};
use crate::life::Life;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::CLOSE_ACK;
use crate::phase::Phase;

impl Engine {
    //= protocol.md: join.8
    /// Adds a link to an established connection, and returns the index of the link. If the link is
    /// already part of the connection, returns the existing index.
    ///
    /// The link carries data after the peer has answered on it. If the peer does not answer, the
    /// engine removes the link, and the initiator tries the link again later.
    ///
    /// # Errors
    /// Returns an error if the connection does not exist or is not established, if the link is not
    /// attached, or if all link indices of the connection are in use.
    pub fn add_path(
        &mut self,
        now: Instant,
        handle: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    ) -> Result<u8, Unknown> {
        let add = |parts: &mut Parts<'_>, connection: &mut Connection| {
            let is_this =
                |path: &&Path| path.link() == link && path.peer() == peer && !path.is_lost();
            if let Some(index) = connection.paths().iter().find(is_this).map(Path::index) {
                connection.pairs_mut().welcome(link);
                return Ok(index.0);
            }
            let index = parts.free_index(connection, None).filter(|_| connection.is_open());
            let index = index.ok_or(Unknown)?;
            let state = PathState::new(now);
            if !parts.open_path(now, connection, index, (link, peer), Life::Trial, state) {
                return Err(Unknown);
            }
            connection.ask_for((link, peer));
            Ok(index.0)
        };
        self.with_handle(handle, add).ok_or(Unknown)?
    }

    /// Removes a link from a connection. The other links retransmit the packets that are in flight
    /// on the removed link. Does nothing if the link is the last one on which the peer has
    /// answered.
    ///
    /// # Errors
    /// Returns [`Unknown`] if there is no such connection.
    pub fn remove_path(&mut self, handle: ConnectionHandle, index: u8) -> Result<(), Unknown> {
        let remove = |parts: &mut Parts<'_>, connection: &mut Connection| {
            let index = LinkIndex(index);
            let pair = connection.paths().with(index).map(Path::pair);
            if parts.remove_path_of(connection, index)
                && let Some((link, peer)) = pair
            {
                connection.pairs_mut().forget(peer, Some(link));
            }
        };
        self.with_handle(handle, remove).ok_or(Unknown)
    }
}

impl Parts<'_> {
    //= protocol.md: remove.1
    /// Removes a link and reports the removal to the peer. Returns false and does nothing if the
    /// connection has no such link, or if the peer has answered on no other link.
    pub(crate) fn remove_path_of(&mut self, connection: &mut Connection, index: LinkIndex) -> bool {
        let is_gone = self.drop_path(connection, index);
        if is_gone && let Some(path) = connection.paths_mut().first_mut() {
            path.report_statuses(1 << index.0);
        }
        is_gone
    }

    /// Removes a link that the peer opened but on which the peer does not answer.
    ///
    /// Returns whether the link was removed. After the removal, a responder announces the address
    /// of its link again, so that the initiator can try the link later. This end itself never tries
    /// the source address of the peer's frames, because that address may belong to another host.
    pub(crate) fn doubt_path(&mut self, connection: &mut Connection, index: LinkIndex) -> bool {
        let Some(path) = connection.path_mut(index) else { return false };
        let link = path.link();
        let is_gone = self.remove_path_of(connection, index);
        if is_gone {
            connection.announce_address(link);
        }
        is_gone
    }

    //= protocol.md: remove.3
    /// Handles the loss of a link's interface. If the peer has answered on no other link, the
    /// connection keeps this link until another link works.
    pub(crate) fn lose_path(&mut self, connection: &mut Connection, index: LinkIndex) {
        if !self.remove_path_of(connection, index)
            && let Some(path) = connection.path_mut(index)
        {
            let change = path.on_lost();
            self.on_path_change(self.turn_at, connection, index, change);
        }
        connection.pairs_mut().look();
    }

    /// Handles a link that was attached to the endpoint: a new link, or a link that was attached
    /// before.
    pub(crate) fn on_link_attached(
        &mut self,
        connection: &mut Connection,
        link: LinkId,
        caps: &LinkCaps,
    ) {
        let now = self.turn_at;
        for path in connection.paths_mut().iter_mut().filter(|path| path.link() == link) {
            // The link can be used again only if the peer still accepts frames from the address of
            // the link.
            if path.is_lost() && path.leaves_from(caps.local) {
                path.on_back(now);
            }
        }
        connection.pairs_mut().welcome(link);
        connection.announce_address(link);
    }

    //= protocol.md: close.5, challenge.3, control.5
    /// Handles one control message that arrived on link `index`.
    pub(crate) fn on_control(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        message: &Control<'_>,
    ) {
        if connection.phase() == Phase::Gone {
            // An earlier message of this frame has ended the connection.
            return;
        }
        match *message {
            Control::Padding => {}
            Control::Address(address) => connection.learn_address(address),
            Control::Ping => {
                let has_several = connection.paths().len() > 1;
                connection.reported_mut().on_question(has_several);
            }
            Control::Links(links) => self.on_links(now, connection, links),
            Control::Gone(operation) => self.on_answer_gone(now, connection, operation),
            Control::NotReady(message) => self.on_not_ready(now, connection, message),
            Control::Ready => self.on_ready(connection),
            Control::PathChallenge(nonce) => {
                if let Some(path) = connection.path_mut(index) {
                    path.answer(nonce);
                }
            }
            Control::PathResponse(nonce) => {
                let change = connection
                    .path_mut(index)
                    .and_then(|path| path.on_challenge_answered(now, nonce));
                self.on_path_change(now, connection, index, change);
            }
            Control::LinkStatus(which, status) => {
                self.on_link_status(now, connection, which, status);
            }
            Control::Close { reason, operation, private_data } => {
                self.on_close(now, connection, index, (reason, operation), private_data);
            }
            Control::CloseAck => {
                if connection.phase() == Phase::Closing {
                    connection.end();
                }
            }
        }
    }

    //= protocol.md: state.2
    /// Handles a change of state of a link of a connection.
    pub(crate) fn on_path_change(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        change: Option<PathChange>,
    ) {
        let Some(change) = change else { return };
        match change {
            PathChange::Suspected | PathChange::Failed => self.give_up(connection, index),
            _ => self.on_path_works(connection, index),
        }
        if matches!(change, PathChange::Validated | PathChange::Restored) {
            connection.liveness_mut().compare_links_soon(now);
        }
        let Some(path) = connection.path_mut(index) else { return };
        let (link, state) = (path.link(), path.state());
        match change {
            PathChange::Suspected | PathChange::Failed => {
                path.on_out_of_use(change == PathChange::Failed);
            }
            PathChange::Recovered => {}
            PathChange::Validated | PathChange::Restored => {
                self.on_way_known(now, connection, index, change == PathChange::Restored);
            }
        }
        let connection = connection.handle();
        self.news.push(Event::Path { connection, index: index.0, link, state });
    }

    /// Handles the first answer on a link, or the first answer after a failure of the link.
    /// Discards measurements from before the failure.
    fn on_way_known(
        &self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        is_restored: bool,
    ) {
        let peer = connection.names().peer().copied();
        let Some(position) = connection.paths().iter().position(|path| path.index() == index)
        else {
            return;
        };
        let path = &mut connection.paths_mut()[position];
        if is_restored && let (Some(caps), Some(peer)) = (self.links.caps(path.link()), peer) {
            path.restart(now, caps, self.config, &peer);
        }
        connection.spreading_mut().forget(position);
    }

    //= protocol.md: compare.6
    /// Handles the first answer on a link. The link replaces lost links of the connection.
    fn on_path_works(&mut self, connection: &mut Connection, index: LinkIndex) {
        let Some(path) = connection.path_mut(index) else { return };
        path.on_answered();
        let pair = path.pair();
        // If two links of the connection have the same link of this end and the same address of the
        // peer, only one of the two stays. The initiator decides which one.
        let is_same = |path: &&Path| path.pair() == pair && path.index() != index;
        if connection.is_initiator()
            && let Some(other) = connection.paths().iter().find(is_same)
        {
            if other.may_carry_data() {
                self.remove_path_of(connection, index);
                return;
            }
            let other = other.index();
            self.remove_path_of(connection, other);
        }
        connection.keep_pair(pair);
        while let Some(lost) =
            connection.paths().iter().find(|path| path.is_lost()).map(Path::index)
            && self.remove_path_of(connection, lost)
        {}
        connection.pairs_mut().look();
    }

    //= protocol.md: state.2
    /// Removes everything in flight from a link, so that other links retransmit it.
    pub(crate) fn give_up(&mut self, connection: &mut Connection, index: LinkIndex) {
        let pools = &mut *self.pools;
        let (paths, outbound) = connection.paths_and_outbound();
        let Some(path) = paths.iter_mut().find(|path| path.index() == index) else { return };
        let lost = path.give_up(self.sent, &mut |carried| outbound.on_lost(pools, carried));
        path.say_again_of_links(lost);
    }

    /// Handles a change of a link of the endpoint.
    pub(crate) fn on_link_event(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        link: LinkId,
        event: LinkEvent,
    ) {
        let peer_limit = connection.names().peer().map_or(u16::MAX, |peer| peer.frame_bytes_max);
        let mut changes: Vec<(LinkIndex, Option<PathChange>)> = Vec::new();
        let sole = connection.paths().len() == 1;
        if let LinkEvent::Changed(caps) = event {
            self.on_address_changed(connection, link, &caps);
        }
        // After this change, the link may reach an address of the peer that it did not reach
        // before, or a test of the link may fail. Request a search for usable pairs of link and
        // address.
        if matches!(event, LinkEvent::Changed(_) | LinkEvent::Down) {
            connection.pairs_mut().look();
        }
        for path in connection.paths_mut().iter_mut().filter(|path| path.link() == link) {
            match event {
                LinkEvent::Changed(caps) => {
                    path.on_link_changed(now, caps.frame_bytes_max.min(peer_limit));
                }
                LinkEvent::Down if !sole => changes.push((path.index(), path.on_link_down())),
                _ => {}
            }
        }
        for (index, change) in changes {
            self.on_path_change(now, connection, index, change);
        }
    }

    /// Handles a change of a link's address. The peer drops frames that have the new address and
    /// the old link index. Therefore, links of the connection with the old address are lost.
    fn on_address_changed(&mut self, connection: &mut Connection, link: LinkId, caps: &LinkCaps) {
        let changed: Vec<LinkIndex> = connection
            .paths()
            .iter()
            .filter(|path| path.link() == link && !path.leaves_from(caps.local) && !path.is_lost())
            .map(Path::index)
            .collect();
        for index in changed {
            self.lose_path(connection, index);
        }
        if !connection.paths().iter().any(|path| path.link() == link && !path.is_lost()) {
            connection.welcome_back(link);
        }
    }

    //= protocol.md: close.1
    /// Begins to close a connection and reports the close to the peer. Outstanding operations and
    /// receives complete with an error that gives the reason.
    pub(crate) fn begin_close(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        close: (CloseReason, OperationNumber),
        reason: Closed,
    ) {
        if connection.is_parting() {
            return self.part(now, connection);
        }
        self.flush(connection, reason.operation_error(), None);
        self.counters.closed_here += 1;
        connection.begin_close(now, close);
        self.news.push(Event::Closed {
            connection: connection.handle(),
            reason,
            private_data: Vec::new(),
        });
    }

    //= protocol.md: overrun.1, queue-pair.3, fault.3
    /// Closes a queue pair that cannot continue, for one of these reasons:
    ///
    /// * a completion was lost,
    /// * an operation failed on this side, or
    /// * this end deferred the Close with which it refuses a request, and the peer has now received
    ///   all earlier answers.
    #[inline]
    pub(crate) fn end_if_over(&mut self, now: Instant, connection: &mut Connection) {
        if connection.is_overrun() || connection.outbound().is_faulty() || connection.has_refused()
        {
            self.end_over(now, connection);
        }
    }

    #[cold]
    fn end_over(&mut self, now: Instant, connection: &mut Connection) {
        if !connection.is_open() {
            return;
        }
        let nothing = OperationNumber(0);
        if connection.is_overrun() {
            let close = (CloseReason::ResourceLimit, nothing);
            self.begin_close(now, connection, close, Closed::Overrun);
        } else if connection.outbound().is_faulty() {
            let close = (CloseReason::Application, nothing);
            self.begin_close(now, connection, close, Closed::OperationFailed);
        } else if connection.outbound().answering() == 0
            && let Some((reason, operation)) = connection.take_refused()
        {
            self.refuse_access(now, connection, reason, operation);
        }
    }

    /// Ends a connection without notifying the peer. If a Close of the peer has not taken effect
    /// yet, the Close is the reason for the end.
    pub(crate) fn end(
        &mut self,
        connection: &mut Connection,
        reason: Closed,
        private_data: Vec<u8>,
    ) {
        let (reason, private_data) = match connection.take_parting() {
            Some(parting) => (Closed::ByPeer, parting.into_private_data()),
            None => (reason, private_data),
        };
        self.flush(connection, reason.operation_error(), None);
        connection.end();
        self.news.push(Event::Closed { connection: connection.handle(), reason, private_data });
    }

    /// Completes everything outstanding and frees every record.
    fn flush(
        &mut self,
        connection: &mut Connection,
        rest: OperationError,
        at_fault: Option<(OperationNumber, OperationError)>,
    ) {
        connection.outbound_mut().flush(self.pools, rest, at_fault);
        connection.inbound_mut().flush(self.pools, rest);
        for path in connection.paths_mut() {
            path.let_go(self.sent);
        }
    }

    //= protocol.md: control.4, close.3, close.4, close.8
    fn on_close(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        index: LinkIndex,
        (reason, operation): (CloseReason, OperationNumber),
        private_data: &[u8],
    ) {
        if let Some(path) = connection.path_mut(index) {
            path.say(CLOSE_ACK);
        }
        if matches!(connection.phase(), Phase::Closing | Phase::Drained) {
            return connection.drain(now.after_ns(DRAIN_NS));
        }
        let peaceful = matches!(reason, CloseReason::Application | CloseReason::Finished);
        if !peaceful {
            let fault = Some((operation, connection.outbound().error_of_close(reason)));
            let private_data = private_data.to_vec();
            self.end_by_peer(now, connection, Closed::PeerRefused(reason), fault, private_data);
            return;
        }
        let is_heard = connection.hear_close(now, index, private_data);
        if is_heard || connection.phase() != Phase::Established {
            self.part(now, connection);
        }
    }

    //= protocol.md: close.8
    /// Lets a Close of the peer take effect. Does nothing if there is none.
    pub(crate) fn part(&mut self, now: Instant, connection: &mut Connection) {
        let Some(parting) = connection.take_parting() else { return };
        let private_data = parting.into_private_data();
        self.end_by_peer(now, connection, Closed::ByPeer, None, private_data);
    }

    /// Ends a connection that the peer has closed.
    fn end_by_peer(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        reason: Closed,
        fault: Option<(OperationNumber, OperationError)>,
        private_data: Vec<u8>,
    ) {
        // A Close with another reason may arrive while one waits.
        drop(connection.take_parting());
        connection.drain(now.after_ns(DRAIN_NS));
        self.flush(connection, reason.operation_error(), fault);
        self.counters.closed_by_peer += 1;
        self.news.push(Event::Closed { connection: connection.handle(), reason, private_data });
    }

    //= protocol.md: status.2
    fn on_link_status(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        which: LinkIndex,
        status: LinkStatus,
    ) {
        let sole = connection.paths().len() == 1;
        let Some(path) = connection.path_mut(which) else { return };
        match status {
            LinkStatus::Available => path.on_said_available(now),
            LinkStatus::Backup => path.on_said_backup(),
            LinkStatus::Down if !sole => {
                let change = path.on_said_broken(now);
                self.on_path_change(now, connection, which, change);
                // The peer sent this report, so the peer knows the status already.
                if let Some(path) = connection.path_mut(which) {
                    path.on_announced();
                }
            }
            LinkStatus::Removed => {
                let (pair, is_trial) = (path.pair(), path.is_trial());
                if !self.drop_path(connection, which) {
                    return;
                }
                if is_trial {
                    connection.on_trial_refused(pair);
                } else {
                    connection.pairs_mut().forget(pair.1, None);
                }
            }
            // The report is about the only link of the connection. Ignore the report, because the
            // timeouts of the link will show whether the link works.
            LinkStatus::Down => {}
        }
    }

    //= protocol.md: remove.1, remove.3
    /// Removes a link from a connection. If this is the last link on which the peer has answered,
    /// returns false and does nothing.
    pub(crate) fn drop_path(&mut self, connection: &mut Connection, index: LinkIndex) -> bool {
        if !connection.paths().has_answer_beside(index) {
            return false;
        }
        let Some(position) = connection.paths().iter().position(|path| path.index() == index)
        else {
            return false;
        };
        let mut path = connection.paths_mut().remove(position);
        connection.spreading_mut().on_positions_shifted();
        let handle = connection.handle();
        let (paths, outbound) = connection.paths_and_outbound();
        let pools = &mut *self.pools;
        let lost = path.give_up(self.sent, &mut |carried| outbound.on_lost(pools, carried));
        if let Some(other) = paths.first_mut() {
            other.say_again(lost);
            other.speak_for(&mut path);
        }
        path.on_removed();
        if !path.is_trial() {
            self.news.push(Event::Path {
                connection: handle,
                index: index.0,
                link: path.link(),
                state: path.state(),
            });
        }
        let was_settled = path.is_settled();
        connection.paths_mut().retire(self.turn_at, path);
        if was_settled {
            connection.liveness_mut().compare_links_soon(self.turn_at);
        }
        true
    }

    /// Removes a link without a report to the peer, because the peer does not know the link.
    /// Returns whether the link was removed.
    pub(crate) fn drop_unnoticed(&mut self, connection: &mut Connection, index: LinkIndex) -> bool {
        let is_gone = self.drop_path(connection, index);
        if is_gone {
            connection.paths_mut().forget_last_retired();
        }
        is_gone
    }

    //= protocol.md: set-up.17
    /// Handles a report of the network that nothing listens at the address `peer`, to which this
    /// end tries to connect.
    pub(crate) fn on_refused(&mut self, connection: &mut Connection, link: LinkId, peer: PeerAddr) {
        let Some(attempt) = connection.attempt_mut() else { return };
        if attempt.give_up((link, peer)) {
            self.counters.handshakes_failed += 1;
            self.end(connection, Closed::Refused(peer), Vec::new());
        }
    }
}

/// How long this end answers repetitions of a Close after the peer closed the connection, in
/// nanoseconds.
const DRAIN_NS: u64 = 200_000_000;

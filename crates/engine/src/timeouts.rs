//! Handles timers: probe timeouts, repetitions of handshake and Close frames, questions for reports
//! of deliveries and credits, peers that are silent for too long, and the compression of idle
//! connections.

use delivery::{Fate, Instant};
use mem::MemoryAccess;

use crate::connection::Connection;
use crate::engine::Engine;
use crate::event::Closed;
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::{CLOSE, PING};
use crate::phase::Phase;

impl Engine {
    /// Handles everything that is due at `now`. Call this function when the time from
    /// [`Engine::poll_timeout`] has passed, and call [`Engine::poll_transmit`] after it.
    pub fn handle_timeout(&mut self, now: Instant, memory: &MemoryAccess<'_>) {
        let _ = memory;
        while let Some(index) = self.parts().agenda.next_due(now) {
            if self.come_to_rest(now, index) {
                continue;
            }
            let (connections, parts) = self.lend();
            let used = connections.used();
            let over = connections.at(index).filter(|at| parts.is_set_up_over(now, at, used));
            let Some(unconfirmed_at) = over.map(Connection::unconfirmed_at) else {
                self.with_index(index, |parts, connection| parts.on_timeout(now, connection));
                continue;
            };
            if let Some(peer) = unconfirmed_at {
                self.withdraw_requests(peer);
            }
            self.with_index(index, |parts, connection| parts.end_set_up(now, connection));
        }
    }

    /// Compresses all idle connections immediately. The caller knows that nothing will happen on
    /// these connections for a while. Visits every connection.
    pub fn rest(&mut self) {
        let (connections, mut parts) = self.lend();
        for index in connections.indices() {
            let Some(connection) = connections.at(index) else { continue };
            if parts.may_rest(connection) {
                let deadline = connection.rest_ends_at();
                connections.rest(index);
                parts.agenda.set_timer(index, deadline);
            }
        }
        parts.trim();
    }

    /// Compresses a connection whose timer has expired, if the connection has no pending work and
    /// nothing else is due on it. Returns whether it was compressed.
    fn come_to_rest(&mut self, now: Instant, index: u32) -> bool {
        let (connections, mut parts) = self.lend();
        let Some(connection) = connections.at(index) else { return false };
        let deadline = connection.rest_ends_at();
        if deadline <= now || !parts.may_rest(connection) {
            return false;
        }
        connections.rest(index);
        parts.agenda.set_timer(index, deadline);
        parts.trim();
        true
    }
}

impl Parts<'_> {
    /// Sets the timer of a connection to its earliest deadline.
    pub(crate) fn arm_timer(&mut self, now: Instant, connection: &mut Connection) {
        if connection.is_parting() {
            return self.agenda.set_timer(connection.handle().index, connection.parts_at());
        }
        Self::ask_for_news(now, connection);
        let mut deadline = connection.retry().at();
        let index = connection.handle().index;
        if self.agenda.is_ready(index)
            && matches!(connection.phase(), Phase::Connecting | Phase::Accepted)
        {
            // The handshake frame waits for room on a link, so the connection needs no timer.
            deadline = Instant::NEVER;
        }
        if !matches!(connection.phase(), Phase::Closing | Phase::Drained) {
            deadline = deadline.min(connection.liveness().exhausted_at());
        }
        if connection.phase() == Phase::Established {
            deadline = deadline.min(connection.join_deadline()).min(connection.liveness().ask_at());
            for path in connection.paths() {
                deadline = deadline.min(path.deadline(now));
            }
            // If the connection has several links, do not wait for a full batch. While this link
            // waited, the other links would send the frames.
            let batches = match connection.paths().as_slice() {
                [only] => self.offloads(only.link()),
                _ => false,
            };
            deadline = deadline.min(connection.opens_at(now, batches));
            if connection.is_queue_pair() {
                deadline = deadline.min(self.receive_awaited_until(now, connection));
            }
            let rests_at = now.after_ns(self.config.rest_ns);
            if deadline > rests_at && self.may_rest(connection) {
                deadline = rests_at;
            }
        }
        self.agenda.set_timer(index, deadline);
    }

    //= protocol.md: close.2
    /// Repeats the Close if its repetition is due. After the last repetition, ends the connection.
    pub(crate) fn serve_close(now: Instant, connection: &mut Connection) {
        if !connection.retry().is_due(now) {
            return;
        }
        if connection.phase() == Phase::Drained || connection.retry().count() >= CLOSE_TRIES {
            return connection.end();
        }
        for path in connection.paths_mut() {
            path.say(CLOSE);
        }
        let pause_ns = CLOSE_RETRY_NS << connection.retry().count();
        connection.retry_mut().again(now.after_ns(pause_ns));
    }

    //= protocol.md: silence.2
    /// Returns whether the time for the set-up of a connection has ended. `used` is the number of
    /// connections in use.
    fn is_set_up_over(&self, now: Instant, connection: &Connection, used: u32) -> bool {
        let (Phase::Connecting | Phase::Accepted, Some(state)) =
            (connection.phase(), connection.attempt())
        else {
            return false;
        };
        let is_overdue = |peer| self.reception.is_overdue(now, peer, state.started_at(), used);
        connection.liveness().is_exhausted(now)
            || connection.unconfirmed_at().is_some_and(is_overdue)
    }

    /// Ends a connection that was not set up in time.
    fn end_set_up(&mut self, now: Instant, connection: &mut Connection) {
        let Some(state) = connection.attempt() else { return };
        let peer = state.first().map_or_else(Default::default, |place| place.1);
        let silence_ms = now.since_ns(state.started_at()) / 1_000_000;
        self.counters.handshakes_failed += 1;
        self.counters.unreachable += 1;
        self.end(connection, Closed::Unreachable { peer, silence_ms }, Vec::new());
    }

    //= protocol.md: silence.2
    fn on_timeout(&mut self, now: Instant, connection: &mut Connection) {
        if connection.phase() != Phase::Established {
            return;
        }
        if connection.is_parting() {
            if connection.parts_at() <= now {
                self.part(now, connection);
            }
            return;
        }
        if connection.liveness().is_exhausted(now) {
            let peer = connection.paths().first().map_or_else(Default::default, Path::peer);
            let silence_ms = connection.silence_ns(self.config) / 1_000_000;
            self.counters.unreachable += 1;
            self.end(connection, Closed::Unreachable { peer, silence_ms }, Vec::new());
            return;
        }
        for position in 0..connection.paths().len() {
            self.on_path_timeout(now, connection, position);
        }
        for path in connection.paths_mut() {
            path.ask_after_refusal(now);
        }
        self.drop_unanswered(connection);
        if connection.liveness().ask_at() <= now {
            self.keep_alive(now, connection);
        }
        if connection.retry().is_due(now) {
            self.ask_now(now, connection);
        }
        self.wait_for_receive(now, connection);
    }

    //= protocol.md: challenge.2, join.10
    /// Drops links that the peer opened but on which the peer never answered. The peer chose the
    /// address of such a link. The address may belong to another host, which must not receive more
    /// challenges.
    fn drop_unanswered(&mut self, connection: &mut Connection) {
        let unanswered = |path: &Path| path.is_offered() && path.unanswered() >= CHALLENGES_MAX;
        while let Some(index) =
            connection.paths().iter().find(|path| unanswered(path)).map(Path::index)
            && self.doubt_path(connection, index)
        {}
    }

    fn on_path_timeout(&mut self, now: Instant, connection: &mut Connection, position: usize) {
        let others_at = connection
            .paths()
            .iter()
            .enumerate()
            .filter(|&(other, _)| other != position)
            .map(|(_, path)| path.progress_at())
            .max()
            .unwrap_or_default();
        let (paths, outbound) = connection.paths_and_outbound();
        let path = &mut paths[position];
        if path.send().deadline() > now {
            return;
        }
        // Other links count only if they made progress after this link began to wait for an
        // acknowledgement.
        let others_progress = others_at > path.waits_since(now);
        let pools = &mut *self.pools;
        let is_probe_due = path.on_timeout(self.sent, now, &mut |fate, carried| {
            if fate == Fate::Lost {
                outbound.on_lost(pools, carried);
            }
        });
        // If a question is due after a refusal, send the question instead of a probe. The network
        // reports only a few refusals a second, and a refused probe would use up one of these
        // reports.
        let is_question_due = connection.paths()[position].is_question_due();
        if is_probe_due && !is_question_due {
            self.probe(now, connection, position, others_progress);
            // Send Pings on the other links. Their answers show whether only this link or the whole
            // peer is silent. The peer can answer a Ping even if it has no memory for held
            // fragments.
            for (other, path) in connection.paths_mut().iter_mut().enumerate() {
                if other != position && path.may_carry_data() {
                    path.say(PING);
                }
            }
        }
    }

    //= protocol.md: again.2
    /// Handles a probe timeout of a link. The best link retransmits the oldest unacknowledged
    /// bytes. If this link stays silent while other links get answers, the other links retransmit
    /// everything that is in flight on this link.
    fn probe(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        others_progress: bool,
    ) {
        let sole_hope = !connection.paths().iter().any(Path::may_carry_data);
        let (paths, outbound) = connection.paths_and_outbound();
        let path = &mut paths[position];
        let Some(probe) = path.probe(now) else { return };
        // If the size of the frames may be the cause of the timeout, the link does not become
        // suspect.
        let others_progress = others_progress && !probe.may_be_size;
        if let Some(carried) = probe.data {
            outbound.on_returned(self.pools, carried);
            if path.send().probe_count() > 1 {
                // The peer did not answer the last probe either: it may have room for no other
                // operation than the next one in order.
                outbound.prefer_next_in_order(self.pools);
            }
            if !outbound.wants_to_send() {
                // The peer no longer needs the content of the oldest packet, but this end must
                // still ask the peer for an answer.
                path.say(PING);
            }
        }
        let index = path.index();
        if !path.may_carry_data() && !sole_hope {
            // This link got its data while no link was up. Other links are up now, and will deliver
            // the data faster.
            self.give_up(connection, index);
            return;
        }
        let change = path.on_probe_timeout(now, others_progress);
        self.on_path_change(now, connection, index, change);
    }

    //= protocol.md: news.1
    /// Schedules a question to the peer for a report of deliveries and credits. If operations are
    /// outstanding but no packet is in flight, this end waits for such a report, and the frame with
    /// the report may have been lost.
    fn ask_for_news(now: Instant, connection: &mut Connection) {
        if connection.phase() != Phase::Established {
            return;
        }
        if connection.in_flight() {
            connection.retry_mut().pause();
            return;
        }
        if !connection.outbound().waits_for_peer() {
            connection.retry_mut().end();
            return;
        }
        if connection.retry().is_paused() {
            let pause_ns = (NEWS_NS << connection.retry().count().min(5)).min(NEWS_NS_MAX);
            connection.retry_mut().again(now.after_ns(pause_ns));
        }
    }

    //= protocol.md: news.1, news.3
    /// Asks the peer for a report of deliveries and credits. If the rate limit for questions is
    /// exhausted, schedules the question for later.
    fn ask_now(&mut self, now: Instant, connection: &mut Connection) {
        if let Err(until) = self.questions.may_ask(now) {
            return connection.retry_mut().set(until);
        }
        connection.retry_mut().pause();
        let nearest = connection.nearest_path();
        if let Some(path) = connection.paths_mut().get_mut(nearest) {
            path.say(PING);
        }
    }

    /// Releases memory of lists that grew while many connections were opened or lost.
    fn trim(&mut self) {
        self.news.trim();
        self.replies.trim();
    }

    /// Sets the timer that compresses a connection. The caller calls this after a step that took
    /// the connection out of the table and left it without work.
    pub(crate) fn rest_later(&mut self, connection: &Connection) {
        let index = connection.handle().index;
        let rests_at = self.turn_at.after_ns(self.config.rest_ns);
        if rests_at < self.agenda.deadline(index) && self.may_rest(connection) {
            self.agenda.set_timer(index, rests_at);
        }
    }
}

/// Number of unanswered challenges after which this end drops a link that the peer opened. The
/// pauses between the challenges are 10, 20, 40, 80 and 160 ms, so the link survives a few losses.
const CHALLENGES_MAX: u8 = 6;
/// Pause before this end repeats the Close, in nanoseconds. The pause doubles with each repetition.
const CLOSE_RETRY_NS: u64 = 20_000_000;
/// Number of transmissions of the Close after which the peer counts as gone. Together with their
/// pauses, they take 620 ms.
const CLOSE_TRIES: u8 = 5;
/// Pause before this end asks the peer for a report of deliveries and credits, in nanoseconds. The
/// pause doubles after each answer that reports nothing new.
const NEWS_NS: u64 = 1_000_000;
/// Longest pause between questions for a report of deliveries and credits, in nanoseconds. The
/// protocol also uses this pause while the receiver is not ready (protocol.md §5.5).
const NEWS_NS_MAX: u64 = 20_000_000;

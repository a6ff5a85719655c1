//! Sends frames, one connection after the other: control frames, data with acknowledgements, and
//! probes of the path MTU. Sends handshake frames after the frames of all connections.

use delivery::{Instant, LinkId, TxBatch};
use mem::MemoryAccess;
use semantics::{Carried, CarriedKind, Fragment, LocalFault};
use wire_edge::{Flags, Header};

use crate::ack_bytes::beside_acks_bytes;
use crate::ack_duty::{AckDuty, Moment};
use crate::asks::expects_answer;
use crate::config::Asking;
use crate::connection::Connection;
use crate::engine::Engine;
use crate::links::is_full_alone;
use crate::new_frame::{Body, COMMON_BYTES, Emit, Emitted, NewFrame, Sent};
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::MTU_PROBE;
use crate::phase::Phase;
use crate::purpose::Purpose;
use crate::scratch::BATCH_BYTES_MAX;

/// Whether a connection has more to send.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Served {
    /// The connection has nothing to send until a frame, a timer or a call gives it work.
    Done,
    /// The connection can send more immediately.
    More,
    /// The connection has more to send, but the link is full.
    Blocked,
}

/// Number of batches that a connection may send before the engine serves other connections.
const BATCHES_PER_TURN: u32 = 4;

impl Engine {
    /// Passes the frames to send now to `emit`, in batches. Call this function after every other
    /// call. If the result is true, call this function again soon, because one turn did not suffice
    /// or a link is full.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        emit: &mut dyn FnMut(LinkId, &TxBatch) -> Emitted,
    ) -> bool {
        self.begin_turn(now);
        while let Some(receives) = self.parts().pools.take_refilled() {
            self.on_receives_posted(now, memory, &receives);
        }
        self.resume_stalled(now, memory);
        let (connections, mut parts) = self.lend();
        let mut more = false;
        let ready = parts.agenda.ready_count();
        for _ in 0..ready {
            let Some(index) = parts.agenda.next_ready() else { break };
            let Some(mut connection) = connections.take(index) else { continue };
            match parts.serve(now, memory, &mut connection, emit) {
                Served::Done => {}
                Served::More | Served::Blocked => {
                    more = true;
                    parts.agenda.mark_ready(index);
                }
            }
            parts.arm_timer(now, &mut connection);
            if connection.ack_duty(now, Moment::BeforeSleep) != AckDuty::Nothing {
                parts.agenda.mark_owing(index);
            }
            if connection.phase() == Phase::Gone {
                parts.put_back(connections, connection);
            } else {
                connections.put(connection);
            }
        }
        if parts.links.has_refused() {
            // The connection that the engine serves first may use all room of a link. Therefore the
            // next turn begins with another connection.
            parts.agenda.rotate();
        }
        more |= parts.send_replies(emit);
        if self.has_datagrams() {
            let (datagrams, mut around) = self.lend_datagrams();
            more |= datagrams.transmit(memory, &mut around, emit);
        }
        more
    }

    /// Makes all pending acknowledgements due. A thread calls this function before it sleeps, and
    /// then calls [`Engine::poll_transmit`].
    pub fn hasten_acknowledgements(&mut self) {
        let (connections, parts) = self.lend();
        let (now, agenda) = (parts.turn_at, parts.agenda);
        let owes_last = |connection: &Connection| {
            connection.ack_duty(now, Moment::BeforeSleep) == AckDuty::Alone
        };
        // Connections that the engine has not served yet may also have pending acknowledgements.
        for index in agenda.ready() {
            if let Some(mut connection) = connections.take(index) {
                let owes_last = owes_last(&connection);
                connection.reported_mut().report_if(owes_last);
                connections.put(connection);
            }
        }
        while let Some(index) = agenda.next_owing() {
            // A compressed connection has no pending acknowledgement.
            if connections.at(index).is_none_or(|connection| !owes_last(connection)) {
                continue;
            }
            if let Some(mut connection) = connections.take(index) {
                connection.reported_mut().report_now();
                agenda.mark_ready(index);
                connections.put(connection);
            }
        }
    }

    fn resume_stalled(&mut self, now: Instant, memory: &MemoryAccess<'_>) {
        for _ in 0..self.parts().agenda.stalled() {
            let Some(index) = self.parts().agenda.next_stalled() else { break };
            self.with_index(index, |parts, connection| {
                if connection.is_open() && connection.inbound().is_stalled() {
                    parts.resume(now, memory, connection);
                    parts.end_if_over(now, connection);
                }
            });
        }
    }
}

impl Parts<'_> {
    fn serve(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Served {
        if connection.liveness_mut().poll_heard(now) {
            let silent_since = connection.silent_since(now, self.config);
            connection.liveness_mut().on_progress(silent_since);
            if connection.take_asking_for_all() {
                self.on_answer_for_all(now, connection);
            }
        }
        // An operation that was posted after the last turn may have completed immediately. If its
        // completion was lost, or if it failed, a queue pair may have to close.
        self.end_if_over(now, connection);
        match connection.phase() {
            Phase::Connecting | Phase::Accepted => {
                // Many connections may be in set-up at the same time. If the list of replies is
                // full, it drops further replies, so send the waiting replies now.
                if self.replies.is_full() && self.send_replies(emit) {
                    return Served::Blocked;
                }
                self.serve_handshake(now, connection);
                return Served::Done;
            }
            Phase::Requested | Phase::Gone => return Served::Done,
            Phase::Closing | Phase::Drained => {
                Self::serve_close(now, connection);
                let sent = self.send_control(now, connection, emit);
                return if sent { Served::Done } else { Served::Blocked };
            }
            Phase::Established if connection.is_parting() => {
                // The peer takes nothing any more but the answer to its Close.
                let sent = self.send_control(now, connection, emit);
                return if sent { Served::Done } else { Served::Blocked };
            }
            Phase::Established => {}
        }
        if connection.join_deadline() <= now {
            self.join_links(now, connection);
        }
        let mut sent = !connection.paths().iter().any(|path| path.wants_control(now))
            || self.send_control(now, connection, emit);
        let served = self.send_data(now, memory, connection, emit);
        if connection.phase() == Phase::Established {
            sent &= self.send_due_acknowledgements(now, connection, emit);
        }
        match connection.silent_since(now, self.config) {
            Some(since) => connection.liveness_mut().on_waiting(since),
            // This end waits for nothing any more, and the peer sent no answer. This happens, for
            // instance, if this end waited only for the answer to a probe of the path MTU, and the
            // probe was lost.
            None => connection.liveness_mut().on_progress(None),
        }
        if sent { served } else { Served::Blocked }
    }

    /// Sends data on the links that the scheduler chooses, together with pending acknowledgements.
    fn send_data(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Served {
        let mut has_probed = false;
        for _ in 0..BATCHES_PER_TURN {
            if !connection.outbound().wants_to_send() {
                if !has_probed {
                    self.probe_mtu(now, connection, emit);
                }
                return Served::Done;
            }
            let sent = match only_position(connection) {
                Some(position) => {
                    let path = &connection.paths()[position];
                    if may_send(now, path) && !self.is_blocked(path) {
                        self.send_batch(now, memory, connection, position, emit)
                    } else {
                        Sent::Nothing
                    }
                }
                None => self.spread(now, memory, connection, emit),
            };
            match sent {
                Sent::All => {}
                // The operation failed, but the earlier operations of the queue pair continue.
                Sent::Failed if connection.is_open() => {}
                Sent::Nothing if self.any_full(connection) => return Served::Blocked,
                Sent::Nothing | Sent::Failed => return Served::Done,
                Sent::Blocked => return Served::Blocked,
            }
            self.probe_mtu(now, connection, emit);
            has_probed = true;
        }
        Served::More
    }

    /// Sends one batch of data frames on the link at `position`, on which the connection [may
    /// send](may_send).
    fn send_batch(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        emit: Emit<'_>,
    ) -> Sent {
        self.scratch.begin(connection.paths()[position].peer());
        self.scratch.drop_acks();
        if connection.acks_ride(now) {
            let frame_bytes = connection.paths()[position].frame_bytes();
            let limit = usize::from(frame_bytes) - beside_acks_bytes(connection);
            self.scratch.write_acks(now, connection, limit);
        }
        let had_acks = self.scratch.acks_len() > 0;
        let alone = match self.fill_batch(now, memory, connection, position) {
            Ok(alone) => alone,
            Err(fault) => {
                self.return_tails(connection, 0);
                self.take_back(connection, position, had_acks, 0);
                self.local_memory_gone(now, connection, fault);
                return Sent::Failed;
            }
        };
        if self.scratch.is_empty() {
            connection.reported_mut().report_if(self.scratch.drop_acks());
            return Sent::Nothing;
        }
        if !alone {
            self.ask_if_last(connection);
        }
        let (paths, outbound) = connection.paths_and_outbound();
        paths[position].set_application_limited(!outbound.wants_to_send());
        self.hand_over(now, connection, position, had_acks, emit)
    }

    /// Fills the batch with data frames for the link at `position`. Returns whether the peer probably
    /// answers the last frame soon ([`expects_answer`]).
    #[inline]
    fn fill_batch(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
    ) -> Result<bool, LocalFault> {
        let segments = self.segments(connection.paths()[position].link());
        let frame_bytes = u32::from(connection.paths()[position].frame_bytes());
        let (mut bytes, mut batch_bytes, mut alone) = (0, None, true);
        while self.scratch.len() + self.scratch.tails.len() < segments
            && bytes + self.scratch.tails.bytes() + frame_bytes <= BATCH_BYTES_MAX
            && connection.outbound().wants_to_send()
        {
            // The first frame needs no check, because the caller has checked that the window has
            // room for it.
            let deferred_bytes = self.scratch.tails.bytes();
            if bytes + deferred_bytes > 0 {
                let path = &connection.paths()[position];
                let batch_bytes = *batch_bytes.get_or_insert_with(|| self.batch_bytes(path));
                if bytes + deferred_bytes >= batch_bytes
                    || !path.has_room_beside(now, deferred_bytes)
                {
                    break;
                }
            }
            let room = frame_bytes - COMMON_BYTES - self.scratch.acks_len() as u32;
            // Borrow the fragment instead of moving it. To move a value that was just written, the
            // processor must wait.
            match &connection.outbound_mut().next_fragment(memory, self.pools, room) {
                Ok(Some(fragment)) if self.defers(connection, position, fragment, room) => {}
                Ok(Some(fragment)) => {
                    bytes += self.push_data(now, memory, connection, position, fragment)?;
                    alone = expects_answer(fragment);
                }
                Ok(None) => break,
                Err(fault) => return Err(*fault),
            }
        }
        let has_tails = self.push_tails(now, memory, connection, position)?;
        Ok(alone && !has_tails)
    }

    /// Makes the last frame of the batch ask for an acknowledgement, if this end has no data left
    /// to send.
    pub(crate) fn ask_if_last(&mut self, connection: &mut Connection) {
        let asks = self.config.asking == Asking::Spaced && !connection.outbound().wants_to_send();
        if asks {
            self.scratch.ask_with_last();
            connection.on_asked();
        }
    }

    /// Appends one data frame to the batch and records it as in flight. Returns the size of the
    /// frame, in bytes.
    #[inline]
    pub(crate) fn push_data(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        fragment: &Fragment,
    ) -> Result<u32, LocalFault> {
        let asks = self.config.asking == Asking::Spaced && connection.asks_with_next(position);
        let flags = if asks { fragment.flags.with(Flags::ACK_NOW) } else { fragment.flags };
        let frame = NewFrame {
            purpose: Purpose::Data,
            header: &fragment.header,
            flags,
            body: Body::Of(fragment, self.pools, memory),
            carried: fragment.carried,
        };
        let names = connection.names().of_peer();
        let path = &mut connection.paths_mut()[position];
        let pushed = self.scratch.push(now, self.sent, names, path, &frame);
        if pushed.is_some() {
            path.use_probe();
        }
        pushed.ok_or_else(|| LocalFault::of(&fragment.carried))
    }

    /// Returns the number of bytes after which a batch ends. With segmentation offload, a call for
    /// many frames costs little more than a call for one frame, so the number is higher.
    fn batch_bytes(&self, path: &Path) -> u32 {
        let send = path.send();
        if self.offloads(path.link()) { send.offloaded_bytes() } else { send.quantum_bytes() }
    }

    //= protocol.md: ack.10
    /// Sends a probe of the path MTU on each link that carries data and whose probe is due.
    fn probe_mtu(&mut self, now: Instant, connection: &mut Connection, emit: Emit<'_>) {
        for position in 0..connection.paths().len() {
            let path = &mut connection.paths_mut()[position];
            if path.mtu_probe_at() > now || !path.may_carry_data() || self.is_blocked(path) {
                continue;
            }
            let Some(size) = path.poll_mtu_probe(now) else { continue };
            let frame = NewFrame {
                purpose: Purpose::ProbeMtu,
                header: &Header::Probe,
                flags: Flags::ACK_NOW,
                body: Body::PaddingTo(size),
                carried: Carried {
                    slot: MTU_PROBE | u32::from(size),
                    kind: CarriedKind::Control,
                    ..Carried::default()
                },
            };
            self.send_alone(now, connection, position, &frame, emit);
        }
    }

    /// Sends answers to strangers. Returns true if some answers must wait because a link is full.
    fn send_replies(&mut self, emit: Emit<'_>) -> bool {
        let Self { replies, scratch, links, .. } = self;
        replies.offer(|reply| {
            let is_sent = scratch.send_encoded(links, reply.link, reply.to, &reply.bytes, emit);
            // A peer that does not read must not block answers to other peers. Drop the answer to
            // such a peer. The peer will ask again.
            is_sent || is_full_alone(reply.to)
        })
    }

    /// Returns whether a link of the connection is full. The driver of a full link will have room
    /// soon, but gives no signal when it has room. Ignores links that are down, because a driver
    /// reports when its link is up again.
    fn any_full(&self, connection: &Connection) -> bool {
        connection.paths().iter().any(|path| self.is_full(path))
    }
}

/// Returns the position of the link that carries all data, if there is no choice: the only link, or
/// the link over shared memory. Shared memory is never slower than a link through the kernel,
/// because both links between two processes of one host use the same processors.
#[inline]
fn only_position(connection: &Connection) -> Option<usize> {
    let paths = connection.paths().as_slice();
    if let [path] = paths {
        return path.is_validated().then_some(0);
    }
    let shares_memory = |path: &Path| path.peer().is_shared_memory() && path.may_carry_data();
    let position = paths.iter().position(shares_memory)?;
    (!paths.iter().any(Path::may_probe)).then_some(position)
}

//= protocol.md: amplify.6, state.5
/// Returns true if the window of a link has room for a full frame, or if the link may send a probe.
#[inline]
pub(crate) fn may_send(now: Instant, path: &Path) -> bool {
    path.has_room(now)
}

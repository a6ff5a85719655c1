//! Frames going out, one connection after the other: control frames, data with acknowledgements, probes
//! of the path MTU; and handshake frames for those who have no connection yet.

use delivery::{Instant, LINKS_MAX, LinkId, PacketClass, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, CarriedKind, Fragment, FragmentPayload, LocalFault, Pools};
use wire_edge::{
    CONTROL_BYTES_MAX, Control, Flags, HEADER_BYTES_MAX, Header, PeerAddr, Prefix, encode_header,
};

use crate::acknowledge::BESIDE_ACKS_BYTES;
use crate::config::Asking;
use crate::connection::{Connection, Phase};
use crate::control::MTU_PROBE;
use crate::engine::{Emitted, Engine, REPLIES_MAX};
use crate::path::Path;
use crate::tell::pad;

/// How a link driver takes frames.
pub(crate) type Emit<'a> = &'a mut dyn FnMut(LinkId, &TxBatch) -> Emitted;

/// What is left to do for a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Served {
    /// Nothing before something happens.
    Done,
    /// More could be sent at once.
    More,
    /// More could be sent, but the link is full.
    Blocked,
}

/// Bytes of one batch: the largest UDP payload, so that segmentation offload takes it whole.
pub(crate) const BATCH_BYTES_MAX: u32 = 65_507;

/// Batches a connection may send before others have their turn.
const BATCHES_PER_TURN: u32 = 4;

impl Engine {
    /// Passes the frames to send now to `emit`, batch by batch. Call it after every other call, and
    /// again soon when it returns true: then there is more to send than fits one turn, or a link is
    /// full.
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        emit: &mut dyn FnMut(LinkId, &TxBatch) -> Emitted,
    ) -> bool {
        self.turn_at = now;
        self.blocked = 0;
        self.blocked_peers.clear();
        self.resume_stalled(now, memory);
        let mut more = false;
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(mut connection) = self.connections.take(index) else { continue };
            connection.queued = false;
            match self.serve(now, memory, &mut connection, emit) {
                Served::Done => {}
                Served::More | Served::Blocked => {
                    more = true;
                    self.mark_ready(&mut connection);
                }
            }
            self.settle(now, &mut connection);
            if !connection.listed_owing
                && connection.paths.iter().any(|path| path.received.acknowledgement_owed())
            {
                connection.listed_owing = true;
                self.owing.push(index);
            }
            if connection.phase == Phase::Gone {
                self.put_back(connection);
            } else {
                self.connections.put(connection);
            }
        }
        if self.blocked != 0 || !self.blocked_peers.is_empty() {
            // Who was served first has had what room there was: the next turn begins with another.
            if let Some(first) = self.ready.pop_front() {
                self.ready.push_back(first);
            }
        }
        self.send_replies(emit) || more
    }

    /// Makes all acknowledgements that are owed due: for a thread about to sleep. Call
    /// [`Engine::poll_transmit`] afterwards.
    pub fn hasten_acknowledgements(&mut self) {
        // Those that have not been served yet may owe some too.
        for position in 0..self.ready.len() {
            if let Some(&index) = self.ready.get(position)
                && let Some(mut connection) = self.connections.take(index)
            {
                connection.report_now |= owes_last_acknowledgement(&connection);
                self.connections.put(connection);
            }
        }
        while let Some(index) = self.owing.pop() {
            if self.connections.disown(index) {
                continue;
            }
            let Some(mut connection) = self.connections.take(index) else { continue };
            connection.listed_owing = false;
            if owes_last_acknowledgement(&connection) {
                connection.report_now = true;
                self.mark_ready(&mut connection);
            }
            self.connections.put(connection);
        }
    }

    fn resume_stalled(&mut self, now: Instant, memory: &MemoryAccess<'_>) {
        for _ in 0..self.stalled.len() {
            let index = self.stalled.swap_remove(0);
            self.with_index(index, |engine, connection| {
                connection.listed_stalled = false;
                if connection.is_open() && connection.inbound.is_stalled() {
                    engine.resume(now, memory, connection);
                }
            });
        }
    }

    fn serve(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Served {
        if connection.heard {
            connection.heard = false;
            connection.heard_at = now;
            let waiting = connection.awaits_peer();
            connection.silence.on_progress(now, waiting);
        }
        match connection.phase {
            Phase::Connecting | Phase::Accepted => {
                // Many connections may be set up at once; what they say is not dropped for that.
                if self.replies.len() >= REPLIES_MAX && self.send_replies(emit) {
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
            Phase::Established => {}
        }
        if connection.join_deadline() <= now {
            self.join_links(now, connection);
        }
        let mut sent = !connection.paths.iter().any(|path| path.wants_control(now))
            || self.send_control(now, connection, emit);
        let served = self.send_data(now, memory, connection, emit);
        if connection.phase == Phase::Established {
            sent &= self.send_due_acknowledgements(now, connection, emit);
        }
        if connection.awaits_peer() {
            connection.silence.on_waiting(now);
        } else {
            // What was awaited may have been given up without an answer, as a lost probe of the path
            // MTU is: then nothing is awaited any more.
            connection.silence.on_progress(now, false);
        }
        if sent { served } else { Served::Blocked }
    }

    /// Sends data on the links that should have it, with whatever there is to acknowledge.
    fn send_data(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Served {
        let mut has_probed = false;
        for _ in 0..BATCHES_PER_TURN {
            if !connection.outbound.wants_to_send() {
                if !has_probed {
                    self.probe_mtu(now, connection, emit);
                }
                return Served::Done;
            }
            let sent = match only_position(connection) {
                Some(position) => {
                    let path = &connection.paths[position];
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
                Sent::Nothing if self.any_full(connection) => return Served::Blocked,
                Sent::Nothing | Sent::Failed => return Served::Done,
                Sent::Blocked => return Served::Blocked,
            }
            self.probe_mtu(now, connection, emit);
            has_probed = true;
        }
        Served::More
    }

    /// Sends one batch of data frames on the link at `position`, which [may send](may_send).
    fn send_batch(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        emit: Emit<'_>,
    ) -> Sent {
        let segments = self.segments(connection.paths[position].link);
        self.batch.reset(connection.paths[position].peer);
        self.acks.len = 0;
        if owes_acknowledgement(now, connection) {
            let frame_bytes = connection.paths[position].mtu.current();
            self.acks.fill(now, connection, usize::from(frame_bytes) - BESIDE_ACKS_BYTES);
        }
        let had_acks = self.acks.len > 0;
        let mut bytes = 0;
        let mut burst_bytes = None;
        let mut last_start = 0;
        let mut alone = true;
        let mut fault = None;
        let frame_bytes = u32::from(connection.paths[position].mtu.current());
        while self.batch.len() < segments
            && bytes + frame_bytes <= BATCH_BYTES_MAX
            && connection.outbound.wants_to_send()
        {
            // One frame always goes, as the caller has asked for its room.
            if !self.batch.is_empty() {
                let path = &connection.paths[position];
                let burst_bytes = *burst_bytes.get_or_insert_with(|| path.send.quantum_bytes());
                if bytes >= burst_bytes || !may_send(now, path) {
                    break;
                }
            }
            let room = frame_bytes - COMMON_BYTES - self.acks.len as u32;
            // Looked at where it is: moving what was just written makes the processor wait for it.
            match &connection.outbound.next_fragment(memory, &mut self.pools, room) {
                Ok(Some(fragment)) => {
                    last_start = self.batch.header_mut().len();
                    match self.push_data(now, memory, connection, position, fragment) {
                        Ok(len) => bytes += len,
                        Err(error) => {
                            fault = Some(error);
                            break;
                        }
                    }
                    self.acks.len = 0;
                    alone = fragment.carried.last && fragment.carried.offset == 0;
                }
                Ok(None) => break,
                Err(error) => {
                    fault = Some(*error);
                    break;
                }
            }
        }
        if let Some(fault) = fault {
            self.local_memory_gone(now, connection, fault);
            return Sent::Failed;
        }
        if self.batch.is_empty() {
            if had_acks {
                connection.report_now = true;
            }
            return Sent::Nothing;
        }
        if !alone {
            self.ask_if_last(connection, last_start);
        }
        let path = &mut connection.paths[position];
        path.send.set_application_limited(!connection.outbound.wants_to_send());
        self.emit_data(now, connection, position, had_acks, emit)
    }

    /// Whoever falls silent in the middle of an operation, or with its end, asks for an
    /// acknowledgement with the last frame of the batch, which starts at `last_start`.
    pub(crate) fn ask_if_last(&mut self, connection: &mut Connection, last_start: usize) {
        let asks = self.config.asking == Asking::Spaced && !connection.outbound.wants_to_send();
        if asks && let Some(flags) = self.batch.header_mut().get_mut(last_start + FLAGS_OFFSET) {
            *flags |= Flags::ACK_NOW.bits();
            connection.on_asked();
        }
    }

    /// Appends one data frame to the batch and to what is in flight; returns its bytes.
    #[inline]
    pub(crate) fn push_data(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        fragment: &Fragment,
    ) -> Result<u32, LocalFault> {
        let with_acks = if self.acks.len > 0 { Flags::ACK } else { Flags::NONE };
        let asks = self.config.asking == Asking::Spaced && connection.asks_with_next(position);
        let with_acks = if asks { with_acks.with(Flags::ACK_NOW) } else { with_acks };
        let path = &mut connection.paths[position];
        let prefix = Prefix {
            kind: fragment.header.kind(),
            link: path.index,
            flags: fragment.flags.with(with_acks),
            epoch: connection.peer_epoch,
            connection: connection.peer_id,
            packet: path.send.next_packet().truncate(),
        };
        let start = self.batch.header_mut().len();
        push_frame(&mut self.batch, &prefix, &fragment.header, self.acks.as_slice());
        let outside = append_payload(&mut self.batch, memory, &self.pools, fragment)
            .map_err(|()| LocalFault::of(&fragment.carried))?;
        let bytes = (self.batch.header_mut().len() - start) as u32 + outside.len;
        // The source of an own operation stays as it is until that is complete; what a peer reads may
        // change as soon as it was read.
        if matches!(fragment.header, Header::Write { .. } | Header::Send { .. }) {
            self.batch.finish_lasting_frame(outside);
        } else {
            self.batch.finish_frame(outside);
        }
        path.send.on_sent(&mut self.sent, now, bytes, PacketClass::Data, fragment.carried);
        path.probes_allowed = path.probes_allowed.saturating_sub(1);
        let counters = &mut path.counters;
        counters.frames_sent += 1;
        counters.data_frames_sent += 1;
        counters.bytes_sent += u64::from(bytes);
        counters.payload_bytes_sent += u64::from(fragment.carried.length);
        counters.piggybacked_acks_sent += u64::from(self.acks.len > 0);
        Ok(bytes)
    }

    /// Hands the batch to the driver; what it does not take is the next to be sent.
    pub(crate) fn emit_data(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        had_acks: bool,
        emit: Emit<'_>,
    ) -> Sent {
        let frames = self.batch.len();
        let Connection { paths, outbound, .. } = connection;
        let path = &mut paths[position];
        let taken = match emit(path.link, &self.batch) {
            Emitted::Taken(taken) => taken.min(frames),
            Emitted::PayloadUnmapped(frame) => {
                let left = frames - frame.min(frames - 1);
                let mut first = Carried::default();
                path.send.unsend(&mut self.sent, left, &mut |carried| first = carried);
                self.local_memory_gone(now, connection, LocalFault::of(&first));
                return Sent::Failed;
            }
        };
        if taken == frames {
            return Sent::All;
        }
        let pools = &mut self.pools;
        let mut payload_bytes = 0;
        path.send.unsend(&mut self.sent, frames - taken, &mut |carried| {
            payload_bytes += u64::from(carried.length);
            outbound.on_returned(pools, carried);
        });
        path.counters.payload_bytes_sent -= payload_bytes;
        let unsent_bytes: u64 = (taken..frames).map(|i| self.batch.frame(i).len() as u64).sum();
        path.counters.frames_sent -= (frames - taken) as u64;
        path.counters.data_frames_sent -= (frames - taken) as u64;
        path.counters.bytes_sent -= unsent_bytes;
        path.counters.piggybacked_acks_sent -= u64::from(had_acks && taken == 0);
        connection.report_now |= had_acks && taken == 0;
        let (link, to) = (path.link, path.peer);
        self.block(link, to);
        Sent::Blocked
    }

    //= protocol.md: ack.10
    /// Sends a probe of the path MTU on links that carry data, when one is due.
    fn probe_mtu(&mut self, now: Instant, connection: &mut Connection, emit: Emit<'_>) {
        for position in 0..connection.paths.len() {
            let path = &mut connection.paths[position];
            if path.mtu.deadline() > now || !path.state.may_carry_data() || self.is_blocked(path) {
                continue;
            }
            let Some(size) = path.mtu.poll_probe(now) else { continue };
            let prefix = Prefix {
                kind: Header::Probe.kind(),
                link: path.index,
                flags: Flags::ACK_NOW,
                epoch: connection.peer_epoch,
                connection: connection.peer_id,
                packet: path.send.next_packet().truncate(),
            };
            self.batch.reset(path.peer);
            push_frame(&mut self.batch, &prefix, &Header::Probe, &[]);
            self.batch.header_mut().resize(usize::from(size), 0);
            self.batch.finish_frame(PayloadSlice::EMPTY);
            let carried = Carried {
                slot: MTU_PROBE | u32::from(size),
                kind: CarriedKind::Control,
                ..Carried::default()
            };
            let class = PacketClass::MtuProbe;
            path.send.on_sent(&mut self.sent, now, u32::from(size), class, carried);
            let link = path.link;
            if self.emit_one(link, emit) {
                let counters = &mut path.counters;
                counters.frames_sent += 1;
                counters.bytes_sent += u64::from(size);
                counters.mtu_probes_sent += 1;
            }
        }
    }

    /// Sends answers to strangers; true if some wait for a link that is full.
    fn send_replies(&mut self, emit: Emit<'_>) -> bool {
        for _ in 0..self.replies.len() {
            let Some(reply) = self.replies.pop_front() else { break };
            self.batch.reset(reply.to);
            self.batch.header_mut().extend_from_slice(&reply.bytes);
            self.batch.finish_frame(PayloadSlice::EMPTY);
            // One peer that takes nothing must not take the place of all others; it asks again.
            if !self.emit_one(reply.link, emit) && !is_full_alone(reply.to) {
                self.replies.push_back(reply);
            }
        }
        !self.replies.is_empty()
    }

    /// Hands a batch of one frame to a driver; false if it is full. What a link that is down does
    /// not carry is lost on the way.
    pub(crate) fn emit_one(&mut self, link: LinkId, emit: Emit<'_>) -> bool {
        if !self.is_usable(link) {
            return true;
        }
        let to = self.batch.to();
        if !self.has_no_room(link, to) && emit(link, &self.batch) == Emitted::Taken(0) {
            self.block(link, to);
        }
        !self.has_no_room(link, to)
    }

    pub(crate) fn segments(&self, link: LinkId) -> usize {
        let known = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        let segments = known.map_or(1, |link| usize::from(link.caps.segments));
        // A batch that was lent without room grows.
        segments.clamp(1, self.batch.room().max(1))
    }

    /// Whether frames handed over at once cost as little as one.
    pub(crate) fn offloads(&self, link: LinkId) -> bool {
        let known = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        known.is_some_and(|link| link.caps.offloads)
    }

    /// Whether nothing can be sent on a link of a connection now.
    pub(crate) fn is_blocked(&self, path: &Path) -> bool {
        !self.is_usable(path.link) || self.has_no_room(path.link, path.peer)
    }

    /// Whether a link of the connection is full: its driver has room again soon, and nobody will say
    /// so. A link that is down says so when it is back.
    fn any_full(&self, connection: &Connection) -> bool {
        connection.paths.iter().any(|path| self.is_full(path))
    }

    pub(crate) fn is_full(&self, path: &Path) -> bool {
        self.is_usable(path.link) && self.has_no_room(path.link, path.peer)
    }

    /// Whether a driver has refused frames for a peer in this turn.
    fn has_no_room(&self, link: LinkId, to: PeerAddr) -> bool {
        self.blocked >> link.0 & 1 != 0 || self.blocked_peers.contains(&(link, to))
    }

    fn block(&mut self, link: LinkId, to: PeerAddr) {
        if is_full_alone(to) {
            self.blocked_peers.push((link, to));
        } else if usize::from(link.0) < LINKS_MAX {
            self.blocked |= 1 << link.0;
        }
    }
}

/// Whether the driver that reaches a peer has room for that one apart from others: memory is shared with
/// each, and one that does not read fills only its own. Other drivers have one queue for all.
const fn is_full_alone(to: PeerAddr) -> bool {
    to.is_shared_memory()
}

/// The link that all data takes: the only one, or memory that the two share, which is never slower than
/// what passes through the kernel, and all links between two processes of one host take the same
/// processors.
#[inline]
fn only_position(connection: &Connection) -> Option<usize> {
    let paths = connection.paths.as_slice();
    if let [path] = paths {
        return path.is_validated().then_some(0);
    }
    let shares_memory = |path: &Path| path.peer.is_shared_memory() && path.state.may_carry_data();
    let position = paths.iter().position(shares_memory)?;
    paths.iter().all(|path| path.probes_allowed == 0).then_some(position)
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Sent {
    All,
    Nothing,
    Blocked,
    Failed,
}

//= protocol.md: amplify.6, state.5
/// Whether a link's window has room for a frame: a full one while much is in flight.
#[inline]
pub(crate) fn may_send(now: Instant, path: &Path) -> bool {
    path.probes_allowed > 0 || path.send.has_room(now, u32::from(path.mtu.current()))
}

#[inline]
pub(crate) fn owes_acknowledgement(now: Instant, connection: &Connection) -> bool {
    let is_held_back = |path: &Path| path.received.is_held_back();
    connection.report_now
        || connection.paths.iter().any(|path| path.received.acknowledgement_rides(now))
        || connection.has_deliveries_to_tell() && connection.paths.iter().any(is_held_back)
}

/// Whether an acknowledgement is owed that nothing will ask for.
fn owes_last_acknowledgement(connection: &Connection) -> bool {
    connection.report_now
        || connection.paths.iter().any(|path| path.received.acknowledgement_is_last())
}

/// Appends the headers of a frame to the batch.
#[inline]
pub(crate) fn push_frame(batch: &mut TxBatch, prefix: &Prefix, header: &Header, acks: &[u8]) {
    let mut bytes = [0; HEADER_BYTES_MAX];
    let len = encode_header(prefix, header, &mut bytes);
    let out = batch.header_mut();
    out.extend_from_slice(&bytes[..len]);
    out.extend_from_slice(acks);
}

/// Copies a small payload behind the headers, or says where a large one is.
#[inline]
fn append_payload(
    batch: &mut TxBatch,
    memory: &MemoryAccess<'_>,
    pools: &Pools,
    fragment: &Fragment,
) -> Result<PayloadSlice, ()> {
    let out = batch.header_mut();
    let start = out.len();
    let copied = match fragment.payload {
        FragmentPayload::Outside(slice) => return Ok(slice),
        FragmentPayload::None => Ok(()),
        FragmentPayload::Gone(operation) => {
            let mut bytes = [0; CONTROL_BYTES_MAX];
            let len = Control::Gone(operation).encode(&mut bytes);
            out.extend_from_slice(&bytes[..len]);
            pad(out, len);
            Ok(())
        }
        FragmentPayload::Inline => {
            out.extend_from_slice(pools.inline_payload(&fragment.carried));
            Ok(())
        }
        FragmentPayload::Region(region, offset, len) => {
            out.resize(start + len as usize, 0);
            memory.copy_out(region, offset, &mut out[start..])
        }
        FragmentPayload::Target(target, offset, len) => {
            out.resize(start + len as usize, 0);
            memory.copy_from(&target, offset, &mut out[start..])
        }
    };
    copied.map(|()| PayloadSlice::EMPTY).map_err(|_| ())
}

/// Bytes of the common header, and where its flags are.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;
const FLAGS_OFFSET: usize = 1;

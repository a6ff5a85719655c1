//! Frames going out: control, data with acknowledgements, bare acknowledgements, probes.

use delivery::{Instant, LINKS_MAX, LinkId, PacketClass, TxBatch};
use mem::{MemoryAccess, PayloadSlice};
use semantics::{Carried, CarriedKind, Fragment, FragmentPayload, Pools};
use wire_edge::{
    CONTROL_BYTES_MAX, Control, Flags, HEADER_BYTES_MAX, Header, LinkIndex, LinkStatus, Prefix,
    encode_header,
};

use crate::acknowledge::BESIDE_ACKS_BYTES;
use crate::config::Asking;
use crate::connection::{Connection, Phase};
use crate::control::{CLOSE, CLOSE_ACK, MTU_PROBE, PING, STATUS};
use crate::engine::{Emitted, Engine, REPLIES_MAX};
use crate::path::Path;

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

/// Shortest body of a control frame: 12 bytes behind the common header make the 24 of a reset.
const CONTROL_BODY_MIN: usize = 12;

/// Addresses in one control frame, 22 bytes each: with everything else there may be, an open
/// connection's stays below 256 bytes.
const ADDRESSES_PER_FRAME: u32 = 6;

/// Type of the control message that means nothing (protocol.md §3.5).
const PADDING: u8 = 0;

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
        let mut sent = self.send_control(now, connection, emit);
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

    /// Sends control messages that are pending on any link; false if some wait for a full one.
    fn send_control(&mut self, now: Instant, connection: &mut Connection, emit: Emit<'_>) -> bool {
        let nearest = connection.nearest_path();
        gather_status(connection, nearest);
        let mut sent = true;
        for position in 0..connection.paths.len() {
            let path = &mut connection.paths[position];
            if path.state.deadline() <= now {
                let (index, change) = (path.index, path.state.on_challenge_due(now));
                self.on_path_change(now, connection, index, change);
            }
            let path = &mut connection.paths[position];
            let challenged = path.state.deadline() <= now && path.state.poll_challenge(now);
            let announces = position == nearest
                && (path.retry_status != 0 || path.removed != 0 || path.addresses != 0);
            if !challenged && path.control == 0 && path.response.is_none() && !announces {
                continue;
            }
            if !challenged && self.is_full(path.link) {
                sent = false;
                continue;
            }
            let challenge = challenged.then(|| self.random());
            self.send_control_on(now, connection, position, challenge, announces, emit);
            // The addresses of many new links take several frames.
            while announces && connection.paths[position].addresses != 0 {
                self.send_control_on(now, connection, position, None, true, emit);
            }
        }
        sent
    }

    fn send_control_on(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        challenge: Option<u64>,
        announces: bool,
        emit: Emit<'_>,
    ) {
        let statuses: [Option<LinkStatus>; 16] = statuses_of(connection, position, announces);
        let Connection { paths, close, close_data, peer_id, peer_epoch, phase, .. } = connection;
        let path = &mut paths[position];
        let mut body = Vec::with_capacity(64);
        let mut add = |message: Control<'_>| {
            let mut bytes = [0; CONTROL_BYTES_MAX];
            let len = message.encode(&mut bytes);
            body.extend_from_slice(&bytes[..len]);
        };
        if path.control & PING != 0 {
            add(Control::Ping);
        }
        if path.control & CLOSE != 0 {
            let (reason, operation) = *close;
            add(Control::Close { reason, operation, private_data: close_data });
        }
        if path.control & CLOSE_ACK != 0 {
            add(Control::CloseAck);
        }
        if let Some(nonce) = challenge {
            add(Control::PathChallenge(nonce));
            path.state.on_challenge_sent(nonce);
            path.counters.path_challenges_sent += 1;
        }
        if let Some(nonce) = path.response.take() {
            add(Control::PathResponse(nonce));
        }
        for (index, status) in statuses.iter().enumerate() {
            if let Some(status) = status {
                add(Control::LinkStatus(LinkIndex(index as u8), *status));
            }
        }
        let mut addresses = 0;
        if announces {
            addresses = self.links_to_tell(path.addresses);
            for (index, link) in self.links.iter().enumerate() {
                if let Some(link) = link
                    && addresses >> index & 1 != 0
                {
                    add(Control::Address(link.caps.local));
                }
            }
        }
        // A peer that has forgotten the connection answers with a reset only what is no shorter than
        // that; and a frame of one Ping may be all that is ever sent to it.
        if let Some(missing) = CONTROL_BODY_MIN.checked_sub(body.len()).filter(|&bytes| bytes > 0) {
            body.extend_from_slice(&[PADDING, missing as u8]);
            body.resize(body.len() + missing, 0);
        }
        let told = if announces { path.retry_status | path.removed } else { 0 };
        let told = told & 0xffff | u32::from(addresses) << 16;
        let control = core::mem::take(&mut path.control);
        let kept = u32::from(control) | if announces { STATUS } else { 0 };
        path.counters.control_frames_sent += 1;
        // What only asks or answers whether the way works is not repeated by loss detection.
        // Nor is what ends a connection: that has a timer of its own, and the peer decides how often
        // it asks.
        let open = *phase == Phase::Established;
        let class =
            if kept == 0 || !open { PacketClass::Unacknowledged } else { PacketClass::Data };
        let carried =
            Carried { slot: kept, offset: told, kind: CarriedKind::Control, ..Carried::default() };
        let urgent = if control & (PING | CLOSE) == 0 { Flags::NONE } else { Flags::ACK_NOW };
        let prefix = Prefix {
            kind: Header::Control.kind(),
            link: path.index,
            flags: urgent,
            epoch: *peer_epoch,
            connection: *peer_id,
            packet: path.send.next_packet().truncate(),
        };
        if announces {
            path.retry_status = 0;
            path.removed = 0;
            // If none was told, those are not attached any more.
            path.addresses = if addresses == 0 { 0 } else { path.addresses & !addresses };
        }
        let link = path.link;
        self.batch.reset(path.peer);
        push_frame(&mut self.batch, &prefix, &Header::Control, &[]);
        self.batch.header_mut().extend_from_slice(&body);
        self.batch.finish_frame(PayloadSlice::EMPTY);
        let bytes = self.batch.frame(0).len() as u32;
        path.send.on_sent(&mut self.sent, now, bytes, class, carried);
        path.counters.frames_sent += 1;
        path.counters.bytes_sent += u64::from(bytes);
        for (position, status) in statuses.iter().enumerate() {
            if status.is_some()
                && let Some(told) = paths.iter_mut().find(|path| path.index.0 == position as u8)
            {
                told.announce = None;
            }
        }
        self.emit_one(link, emit);
    }

    /// Sends data on the links that should have it, with whatever there is to acknowledge.
    fn send_data(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Served {
        for _ in 0..BATCHES_PER_TURN {
            if !connection.outbound.wants_to_send() {
                self.probe_mtu(now, connection, emit);
                return Served::Done;
            }
            let sent = match only_position(connection) {
                Some(position) => {
                    let path = &connection.paths[position];
                    if may_send(now, path) && !self.is_blocked(path.link) {
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
            if connection.in_flight() {
                self.probe_mtu(now, connection, emit);
            }
        }
        Served::More
    }

    /// Sends one batch of data frames on the link at `position`.
    fn send_batch(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        position: usize,
        emit: Emit<'_>,
    ) -> Sent {
        let burst_bytes = connection.paths[position].send.quantum_bytes();
        let segments = self.segments(connection.paths[position].link);
        self.batch.reset(connection.paths[position].peer);
        self.acks.len = 0;
        if owes_acknowledgement(now, connection) {
            let frame_bytes = connection.paths[position].mtu.current();
            self.acks.fill(now, connection, usize::from(frame_bytes) - BESIDE_ACKS_BYTES);
        }
        let had_acks = self.acks.len > 0;
        let mut bytes = 0;
        let mut last_start = 0;
        let mut alone = true;
        let mut fault = None;
        let frame_bytes = u32::from(connection.paths[position].mtu.current());
        while self.batch.len() < segments
            && bytes < burst_bytes
            && bytes + frame_bytes <= BATCH_BYTES_MAX
        {
            let path = &mut connection.paths[position];
            if path.probes_allowed == 0 && !may_send(now, path) {
                break;
            }
            let room = u32::from(path.mtu.current()) - COMMON_BYTES - self.acks.len as u32;
            match connection.outbound.next_fragment(memory, &mut self.pools, room) {
                Ok(Some(fragment)) => {
                    last_start = self.batch.header_mut().len();
                    match self.push_data(now, memory, connection, position, &fragment) {
                        Ok(len) => bytes += len,
                        Err(operation) => {
                            fault = Some(operation);
                            break;
                        }
                    }
                    self.acks.len = 0;
                    alone = fragment.carried.last && fragment.carried.offset == 0;
                }
                Ok(None) => break,
                Err(error) => {
                    fault = Some(error.operation);
                    break;
                }
            }
        }
        if let Some(operation) = fault {
            self.local_memory_gone(now, connection, operation);
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
    ) -> Result<u32, wire_edge::OperationNumber> {
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
        let operation = fragment.carried.number;
        let outside = append_payload(&mut self.batch, memory, &self.pools, fragment)
            .map_err(|()| operation)?;
        let bytes = (self.batch.header_mut().len() - start) as u32 + outside.len;
        self.batch.finish_frame(outside);
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
            Emitted::PayloadUnmapped => {
                // The oldest operation under way is the one to blame.
                let operation = outbound.oldest(&self.pools);
                self.local_memory_gone(now, connection, operation);
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
        self.block(connection.paths[position].link);
        Sent::Blocked
    }

    /// Sends a probe of the path MTU on links that carry data, when one is due.
    fn probe_mtu(&mut self, now: Instant, connection: &mut Connection, emit: Emit<'_>) {
        for position in 0..connection.paths.len() {
            let path = &mut connection.paths[position];
            if path.mtu.deadline() > now
                || !path.state.may_carry_data()
                || self.is_blocked(path.link)
            {
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
            path.counters.frames_sent += 1;
            path.counters.bytes_sent += u64::from(size);
            path.counters.mtu_probes_sent += 1;
            let link = path.link;
            self.emit_one(link, emit);
        }
    }

    /// Sends answers to strangers; true if some wait for a link that is full.
    fn send_replies(&mut self, emit: Emit<'_>) -> bool {
        for _ in 0..self.replies.len() {
            let Some(reply) = self.replies.pop_front() else { break };
            self.batch.reset(reply.to);
            self.batch.header_mut().extend_from_slice(&reply.bytes);
            self.batch.finish_frame(PayloadSlice::EMPTY);
            if !self.emit_one(reply.link, emit) {
                self.replies.push_back(reply);
            }
        }
        !self.replies.is_empty()
    }

    /// Hands a batch of one frame to a driver; false if it is full. What a link that is down does
    /// not carry is lost on the way.
    pub(crate) fn emit_one(&mut self, link: LinkId, emit: Emit<'_>) -> bool {
        if !self.is_blocked(link) && emit(link, &self.batch) == Emitted::Taken(0) {
            self.block(link);
        }
        !self.is_full(link)
    }

    /// Of a set of links (by bit), those that are attached, as many as one frame takes.
    fn links_to_tell(&self, links: u16) -> u16 {
        let mut told = 0_u16;
        for (index, link) in self.links.iter().enumerate() {
            let is_one = link.is_some() && links >> index & 1 != 0;
            if is_one && told.count_ones() < ADDRESSES_PER_FRAME {
                told |= 1 << index;
            }
        }
        told
    }

    pub(crate) fn segments(&self, link: LinkId) -> usize {
        let known = self.links.get(usize::from(link.0)).and_then(Option::as_ref);
        let segments = known.map_or(1, |link| usize::from(link.caps.segments));
        // A batch that was lent without room grows.
        segments.clamp(1, self.batch.room().max(1))
    }

    pub(crate) fn is_blocked(&self, link: LinkId) -> bool {
        match self.links.get(usize::from(link.0)) {
            Some(Some(known)) => self.blocked >> link.0 & 1 != 0 || !known.up,
            _ => true,
        }
    }

    /// Whether a link of the connection is full: its driver has room again soon, and nobody will say
    /// so. A link that is down says so when it is back.
    fn any_full(&self, connection: &Connection) -> bool {
        connection.paths.iter().any(|path| self.is_full(path.link))
    }

    pub(crate) fn is_full(&self, link: LinkId) -> bool {
        let known = self.links.get(usize::from(link.0));
        matches!(known, Some(Some(known)) if known.up) && self.blocked >> link.0 & 1 != 0
    }

    fn block(&mut self, link: LinkId) {
        if usize::from(link.0) < LINKS_MAX {
            self.blocked |= 1 << link.0;
        }
    }
}

/// The link that all data takes: the only one, or memory that the two share, which is never slower than
/// what passes through the kernel, and all links between two processes of one host take the same
/// processors.
#[inline]
fn only_position(connection: &Connection) -> Option<usize> {
    let paths = connection.paths.as_slice();
    if paths.len() == 1 {
        return Some(0);
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

/// Whether a link's window has room for a frame: a full one while much is in flight.
#[inline]
pub(crate) fn may_send(now: Instant, path: &Path) -> bool {
    let left = path.send.window_left(now);
    left >= u32::from(path.mtu.current()) || path.probes_allowed > 0
}

#[inline]
pub(crate) fn owes_acknowledgement(now: Instant, connection: &Connection) -> bool {
    connection.report_now
        || connection.paths.iter().any(|path| path.received.acknowledgement_rides(now))
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

/// Collects what is to be told of the links on the nearest one.
fn gather_status(connection: &mut Connection, nearest: usize) {
    if connection.paths.len() < 2 {
        return;
    }
    let (mut status, mut removed, mut addresses) = (0, 0, 0);
    for path in &mut connection.paths {
        status |= core::mem::take(&mut path.retry_status);
        removed |= core::mem::take(&mut path.removed);
        addresses |= core::mem::take(&mut path.addresses);
        if path.announce.is_some() {
            status |= 1 << path.index.0;
        }
    }
    if let Some(path) = connection.paths.get_mut(nearest) {
        path.retry_status = status;
        path.removed = removed;
        path.addresses = addresses;
    }
}

/// What to tell of each link index on the link at `position`.
fn statuses_of(
    connection: &Connection,
    position: usize,
    announces: bool,
) -> [Option<LinkStatus>; 16] {
    let mut statuses = [None; 16];
    if !announces {
        return statuses;
    }
    let Some(carrier) = connection.paths.get(position) else { return statuses };
    for (index, slot) in statuses.iter_mut().enumerate() {
        if (carrier.removed | carrier.retry_status) & 1 << index == 0 {
            continue;
        }
        let path = connection.paths.iter().find(|path| usize::from(path.index.0) == index);
        *slot = Some(match path {
            None => LinkStatus::Removed,
            Some(path) if path.state.may_carry_data() => LinkStatus::Available,
            Some(_) => LinkStatus::Down,
        });
    }
    statuses
}

/// Bytes of the common header, and where its flags are.
pub(crate) const COMMON_BYTES: u32 = wire_edge::COMMON_BYTES as u32;
const FLAGS_OFFSET: usize = 1;

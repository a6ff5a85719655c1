//! A plain engine that keeps every guarantee in the simplest way. It has one stream of packets in
//! each direction, retransmits by go-back-N, and performs all operations in order. It can also
//! break one guarantee on purpose; the harness must detect this.

mod surface;

use std::collections::{BTreeMap, VecDeque};

use delivery::{Instant, LinkId};
use wire_edge::{PatchRecords, PeerAddr};

use crate::host::{
    Cause, Completion, CompletionKind, ConnectionHandle, HostEngine, HostEvent, Operation, Region,
    RequestHandle, Tuning,
};
use crate::oracle::kind_of;
use crate::random::Random;

/// The guarantee that the engine breaks on purpose.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bug {
    None,
    /// If a duplicate of a write arrives late, the engine places it in memory again.
    PlacesDuplicates,
    /// A write that arrives before earlier operations is placed immediately, even if a fence
    /// forbids it.
    PlacesEarly,
    /// An atomic that arrives twice is performed twice.
    RepeatsAtomics,
    CompletesTwice,
    NeverCompletes,
    /// Two operations complete in the wrong order.
    SwapsCompletions,
    /// A write completes when it has been sent, before it has arrived.
    CompletesTooSoon,
    /// Sometimes a bit of an immediate is flipped.
    AltersImmediates,
    /// One byte is written after the end of a region.
    WritesBeyond,
    /// Connections end without a reason.
    GivesUp,
    /// Writes of a connection are performed after it has ended.
    WritesAfterEnd,
    /// A queue is longer than the engine reports.
    Hoards,
    /// After some time, the engine stops sending.
    FallsSilent,
    /// A read returns old bytes.
    ReadsStale,
    /// Whenever the engine runs, it sends another ping to a silent peer. The engine stores all
    /// these pings.
    RepeatsEachTurn,
    /// The engine sends to the source address of a connection's last frame, even if it has not
    /// validated that address.
    FollowsAnybody,
    /// If a driver is full for one peer, the engine also stops sending frames to other peers.
    StopsAtFullDriver,
    /// The engine has only one record for messages that have no receive. All peers share this
    /// record.
    HasOneRecord,
    /// Any report that a peer is unreachable ends the connection, even a false one.
    BelievesNews,
    /// The engine sends frames as large as the interface allows, even if they never arrive.
    SendsLargeFrames,
}

#[derive(Debug)]
pub(crate) struct PlainEngine {
    bug: Bug,
    random: Random,
    dead_peer_ns: u64,
    links: BTreeMap<LinkId, PeerAddr>,
    connections: BTreeMap<u32, Connection>,
    events: VecDeque<HostEvent>,
    /// Answers to frames that belong to no connection. Each entry has a link, an address and bytes.
    replies: VecDeque<(LinkId, PeerAddr, Vec<u8>)>,
    regions: BTreeMap<u32, Memory>,
    next_region: u32,
    frames_handled: u64,
    /// The connection with a message that waits for a receive.
    waiting: Option<u32>,
    /// Length of the largest frame that all links carry, in bytes.
    frame_bytes_max: u16,
    /// Service that new connections and regions use.
    place: u32,
}

#[derive(Debug)]
struct Memory {
    key: u32,
    live: bool,
    /// Service whose connections can access the memory.
    place: u32,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    state: State,
    peer: u32,
    paths: Vec<(LinkId, PeerAddr)>,
    /// Index of the path in use. A timeout makes the engine use the next path.
    path: usize,
    hello: Vec<u8>,
    /// Bodies of packets that are not acknowledged. The first has the number `acked`.
    window: VecDeque<(Vec<u8>, Option<u64>)>,
    acked: u32,
    /// Number of the first packet that has not been sent since the last timeout.
    sent: u32,
    expected: u32,
    owes_ack: bool,
    pings: bool,
    operations: VecDeque<Pending>,
    next_operation: u64,
    receives: VecDeque<(Region, u32, u32, u64)>,
    received: u32,
    completions: VecDeque<Completion>,
    retry_at: Instant,
    retries: u32,
    heard_at: Instant,
    /// Number of pings that the engine has sent since the peer's last frame.
    unanswered: u64,
    /// Payload of a packet in bytes.
    fragment: usize,
    /// Service of the connection.
    place: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Asking,
    Asked,
    Open,
    Ended,
}

#[derive(Debug)]
struct Pending {
    number: u64,
    operation: Operation,
    done: bool,
    result_bytes: u32,
}

// The edge protocol has no frames of these kinds, so forged frames of the edge protocol do not
// affect this engine.
const HELLO: u8 = 0x0a;
const ACCEPT: u8 = 0x1a;
const REJECT: u8 = 0x2a;
const RESET: u8 = 0x3a;
const BYE: u8 = 0x4a;
const DATA: u8 = 0x5a;
const DENIED: u8 = 0x6a;

const WRITE: u8 = 1;
const READ: u8 = 2;
const ATOMIC: u8 = 3;
const SEND: u8 = 4;
const RESPONSE: u8 = 5;
/// Asks whether the peer is alive. The engine sends pings, which have no number, while it waits for
/// an answer.
const PING: u8 = 6;

const GUARD: usize = 64;
const FRAGMENT: usize = 1_000;
/// Maximum length of all headers of a packet, in bytes.
const HEADERS_MAX: usize = 40;
const WINDOW: u32 = 32;

impl PlainEngine {
    pub(crate) fn new(tuning: &Tuning, bug: Bug) -> Self {
        let mut seed = [0; 8];
        seed.copy_from_slice(&tuning.entropy[..8]);
        Self {
            bug,
            random: Random::new(u64::from_le_bytes(seed)),
            dead_peer_ns: tuning.dead_peer_ns,
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            events: VecDeque::new(),
            replies: VecDeque::new(),
            regions: BTreeMap::new(),
            next_region: 0,
            frames_handled: 0,
            waiting: None,
            frame_bytes_max: u16::MAX,
            place: 0,
        }
    }

    fn add(
        &mut self,
        now: Instant,
        state: State,
        peer: u32,
        paths: Vec<(LinkId, PeerAddr)>,
    ) -> u32 {
        let id = self.random.next_u64() as u32 | 1;
        self.connections.insert(
            id,
            Connection {
                state,
                peer,
                paths,
                path: 0,
                hello: Vec::new(),
                window: VecDeque::new(),
                acked: 0,
                sent: 0,
                expected: 0,
                owes_ack: false,
                pings: false,
                operations: VecDeque::new(),
                next_operation: 0,
                receives: VecDeque::new(),
                received: 0,
                completions: VecDeque::new(),
                retry_at: now,
                retries: 0,
                heard_at: now,
                unanswered: 0,
                fragment: self.fragment(),
                place: self.place,
            },
        );
        id
    }

    /// Returns the payload that packets of a new connection carry, in bytes.
    fn fragment(&self) -> usize {
        match self.bug {
            Bug::SendsLargeFrames => usize::from(self.frame_bytes_max) - HEADERS_MAX,
            _ => FRAGMENT,
        }
    }

    fn end(&mut self, id: u32, cause: Cause) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.state == State::Ended {
            return;
        }
        connection.state = State::Ended;
        if self.waiting == Some(id) {
            self.waiting = None;
        }
        connection.retry_at = Instant::NEVER;
        for pending in connection.operations.drain(..) {
            if self.bug != Bug::NeverCompletes {
                let done = pending.completion(false);
                connection.completions.push_back(done);
            }
        }
        self.events.push_back(HostEvent::Closed(ConnectionHandle(u64::from(id)), cause));
    }

    /// Returns the bytes that a remote access addresses; `None` if the access is not allowed.
    fn access(&mut self, id: u32, key: u32, address: u64, length: u32) -> Option<&mut [u8]> {
        let place = self.connections.get(&id)?.place;
        let memory = self.regions.get_mut(&((address >> 32) as u32));
        let memory = memory.filter(|memory| memory.live && memory.place == place)?;
        let start = address as u32 as usize;
        let end = start.checked_add(length as usize)?;
        (memory.key == key && end <= memory.bytes.len() - 2 * GUARD)
            .then(|| &mut memory.bytes[GUARD + start..GUARD + end])
    }

    fn handle_data(&mut self, now: Instant, id: u32, sequence: u32, acked: u32, body: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.heard_at = now;
        connection.unanswered = 0;
        while connection.acked < acked && !connection.window.is_empty() {
            let (_, ends) = connection.window.pop_front().unwrap_or_default();
            connection.acked += 1;
            connection.sent = connection.sent.max(connection.acked);
            connection.retries = 0;
            connection.retry_at = now.after_ns(2_000_000);
            if let Some(number) = ends {
                connection.finish(number, None);
            }
        }
        self.report(id);
        if body.is_empty() {
            return;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.owes_ack = true;
        if body[0] == PING {
            return;
        }
        let expected = connection.expected;
        let early = sequence > expected && self.bug == Bug::PlacesEarly;
        let again = sequence < expected
            && match self.bug {
                Bug::PlacesDuplicates => body[0] == WRITE,
                Bug::RepeatsAtomics => body[0] == ATOMIC,
                _ => false,
            };
        if sequence == expected || early && body[0] == WRITE || again {
            let in_turn = sequence == expected;
            match self.perform(id, body, in_turn) {
                Some(true) if in_turn => {
                    if let Some(connection) = self.connections.get_mut(&id) {
                        connection.expected += 1;
                    }
                }
                Some(_) => {}
                None => {
                    self.send_control(id, DENIED);
                    self.end(id, Cause::AccessDenied);
                }
            }
        }
    }

    /// Performs one packet. Returns `Some(false)` if the engine cannot accept the packet now, and
    /// `None` if the packet is not allowed.
    fn perform(&mut self, id: u32, body: &[u8], in_turn: bool) -> Option<bool> {
        let (head, payload) = body.split_first_chunk::<HEAD>()?;
        let head = Head::decode(head);
        let bug = self.bug;
        match head.kind {
            WRITE => {
                let beyond = u32::from(bug == Bug::WritesBeyond && payload.len() > 900);
                let memory = self.access(id, head.key, head.address, payload.len() as u32)?;
                memory.copy_from_slice(payload);
                if beyond == 1 {
                    let region = (head.address >> 32) as u32;
                    let memory = self.regions.get_mut(&region)?;
                    let last = memory.bytes.len() - GUARD;
                    memory.bytes[last] ^= 1;
                }
                if head.last && head.has_immediate && in_turn {
                    let alter = u32::from(bug == Bug::AltersImmediates);
                    self.connections.get_mut(&id)?.completions.push_back(Completion {
                        kind: CompletionKind::Notification,
                        context: 0,
                        success: true,
                        length_bytes: head.total,
                        immediate: Some(head.immediate ^ alter),
                        invalidated: None,
                        fault: None,
                    });
                }
            }
            READ => {
                let bytes = self.access(id, head.key, head.address, head.total)?.to_vec();
                let bytes = if bug == Bug::ReadsStale { vec![0; bytes.len()] } else { bytes };
                self.connections.get_mut(&id)?.respond(&bytes);
            }
            ATOMIC => {
                let memory = self.access(id, head.key, head.address, 8)?;
                let before = u64::from_le_bytes(*memory.first_chunk()?);
                let (operand, compare) = (word(payload, 0)?, word(payload, 8)?);
                let after = match head.immediate {
                    0 => before.wrapping_add(operand),
                    2 => operand,
                    _ if before == compare => operand,
                    _ => before,
                };
                memory.copy_from_slice(&after.to_le_bytes());
                if in_turn {
                    self.connections.get_mut(&id)?.respond(&before.to_le_bytes());
                }
            }
            SEND => return self.take_message(id, head, payload),
            _ => self.take_response(id, head, payload)?,
        }
        Some(true)
    }

    fn take_message(&mut self, id: u32, head: Head, payload: &[u8]) -> Option<bool> {
        let is_shared = self.bug == Bug::HasOneRecord;
        if is_shared && self.waiting.is_some_and(|other| other != id) {
            return Some(false);
        }
        let connection = self.connections.get_mut(&id)?;
        let Some(&(region, offset, _, context)) = connection.receives.front() else {
            self.waiting = Some(id);
            return Some(false);
        };
        self.waiting = None;
        let at = offset + connection.received;
        connection.received += payload.len() as u32;
        if head.last {
            connection.receives.pop_front();
            connection.received = 0;
            connection.completions.push_back(Completion {
                kind: CompletionKind::Receive,
                context,
                success: true,
                length_bytes: head.total,
                immediate: head.has_immediate.then_some(head.immediate),
                invalidated: None,
                fault: None,
            });
        }
        self.write_memory(region, at, payload);
        Some(true)
    }

    fn take_response(&mut self, id: u32, head: Head, payload: &[u8]) -> Option<()> {
        let connection = self.connections.get_mut(&id)?;
        let pending = connection
            .operations
            .iter_mut()
            .find(|pending| !pending.done && pending.operation.action.is_question())?;
        let (region, at) =
            (pending.operation.local, pending.operation.local_offset + pending.result_bytes);
        pending.result_bytes += payload.len() as u32;
        let number = pending.number;
        if head.last {
            connection.finish(number, Some(()));
        }
        self.write_memory(region, at, payload);
        self.report(id);
        Some(())
    }

    /// Reports completions, in the order of posting.
    fn report(&mut self, id: u32) {
        let bug = self.bug;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut ready = Vec::new();
        while connection.operations.front().is_some_and(|pending| pending.done) {
            let Some(pending) = connection.operations.pop_front() else { break };
            if pending.operation.flags.signalled {
                ready.push(pending.completion(true));
            }
        }
        if bug == Bug::SwapsCompletions && ready.len() > 1 {
            ready.swap(0, 1);
        }
        for completion in ready {
            if bug == Bug::CompletesTwice && completion.context == 7 {
                connection.completions.push_back(completion);
            }
            if bug != Bug::NeverCompletes || completion.context != 7 {
                connection.completions.push_back(completion);
            }
        }
    }

    /// Sends a control packet to the peer of a connection, without retransmission.
    fn send_control(&mut self, id: u32, kind: u8) {
        let Some(connection) = self.connections.get(&id) else { return };
        if let Some(&(link, to)) = connection.paths.get(connection.path) {
            let frame = preamble(kind, connection.peer, id);
            self.replies.push_back((link, to, frame));
        }
    }

    fn handle_hello(&mut self, now: Instant, link: LinkId, from: PeerAddr, peer: u32, rest: &[u8]) {
        let known = self
            .connections
            .iter()
            .find(|(_, connection)| connection.peer == peer && connection.state != State::Asking);
        if let Some((&id, connection)) = known {
            if connection.state == State::Open {
                self.send_control(id, ACCEPT);
            }
            return;
        }
        let Some((&paths, private_data)) = rest.split_first() else { return };
        let mut addresses = Vec::new();
        let Some((list, private_data)) = private_data.split_at_checked(usize::from(paths) * 21)
        else {
            return;
        };
        for entry in list.chunks_exact(21) {
            let mut address = [0; 20];
            address.copy_from_slice(&entry[1..]);
            addresses.push((LinkId(entry[0]), PeerAddr(address)));
        }
        let path = addresses.iter().position(|path| *path == (link, from)).unwrap_or(0);
        let id = self.add(now, State::Asked, peer, addresses);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.path = path;
        }
        self.events.push_back(HostEvent::Requested {
            request: RequestHandle(u64::from(id)),
            private_data: private_data.to_vec(),
        });
    }
}

impl Connection {
    fn finish(&mut self, number: u64, response: Option<()>) {
        if let Some(pending) = self.operations.iter_mut().find(|pending| pending.number == number) {
            let waits = pending.operation.action.is_question();
            pending.done |= !waits || response.is_some();
        }
    }

    fn respond(&mut self, bytes: &[u8]) {
        let head = Head { kind: RESPONSE, total: bytes.len() as u32, ..Head::default() };
        self.queue(head, bytes, None);
    }

    /// Queues the words of a patch, each as a write of its own.
    fn queue_words(&mut self, head: Head, records: &[u8], number: u64) {
        let mut writes: Vec<(u64, &[u8])> = Vec::new();
        for (record, words) in PatchRecords::new(records) {
            let start = record.span().start;
            let first = record.bitmap.trailing_zeros();
            let bits = (first..32).filter(|bit| record.bitmap & 1 << bit != 0);
            for (bit, word) in bits.zip(words.chunks_exact(4)) {
                writes.push((start + u64::from(4 * (bit - first)), word));
            }
        }
        if writes.is_empty() {
            writes.push((0, &[]));
        }
        let count = writes.len();
        for (index, (offset, word)) in writes.into_iter().enumerate() {
            let last = index + 1 == count;
            let mut body = Head { address: head.address + offset, last, ..head }.encode();
            body.extend_from_slice(word);
            self.window.push_back((body, last.then_some(number)));
        }
    }

    fn queue(&mut self, head: Head, bytes: &[u8], number: Option<u64>) {
        let fragment = self.fragment;
        let pieces = bytes.len().div_ceil(fragment).max(1);
        for piece in 0..pieces {
            let start = piece * fragment;
            let end = bytes.len().min(start + fragment);
            let last = piece + 1 == pieces;
            let head = Head { address: head.address + start as u64, last, ..head };
            let mut body = head.encode();
            body.extend_from_slice(&bytes[start..end]);
            self.window.push_back((body, number.filter(|_| last)));
        }
    }
}

impl Pending {
    fn completion(&self, success: bool) -> Completion {
        Completion {
            kind: kind_of(self.operation.action),
            context: self.operation.context,
            success,
            length_bytes: if success { self.operation.length_bytes } else { 0 },
            immediate: None,
            invalidated: None,
            fault: None,
        }
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    kind: u8,
    last: bool,
    has_immediate: bool,
    key: u32,
    address: u64,
    total: u32,
    immediate: u32,
}

const HEAD: usize = 23;

impl Head {
    fn encode(self) -> Vec<u8> {
        let mut bytes = vec![self.kind, u8::from(self.last), u8::from(self.has_immediate)];
        bytes.extend_from_slice(&self.key.to_le_bytes());
        bytes.extend_from_slice(&self.address.to_le_bytes());
        bytes.extend_from_slice(&self.total.to_le_bytes());
        bytes.extend_from_slice(&self.immediate.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD]) -> Self {
        Self {
            kind: bytes[0],
            last: bytes[1] == 1,
            has_immediate: bytes[2] == 1,
            key: half(bytes, 3).unwrap_or(0),
            address: word(bytes, 7).unwrap_or(0),
            total: half(bytes, 15).unwrap_or(0),
            immediate: half(bytes, 19).unwrap_or(0),
        }
    }
}

fn preamble(kind: u8, to: u32, from: u32) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&to.to_le_bytes());
    bytes.extend_from_slice(&from.to_le_bytes());
    bytes
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

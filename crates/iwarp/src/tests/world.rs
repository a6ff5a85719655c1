//! Two streams, two pipes, and a model of what they must do.

use std::collections::VecDeque;

use delivery::Instant;
use wire_iwarp::{Revision, Stag};

use super::memory::TestMemory;
use super::random::Random;
use crate::config::{Config, RtrKinds};
use crate::event::{EndCause, Event, Kind, Status};
use crate::gather::{Gather, Part};
use crate::memory::{Memory, Piece};
use crate::stream::{Counters, Stream};
use crate::work::{Payload, PostError, Work, WorkKind};

/// Keys of the regions of an end.
const LOCAL_SOURCE: u32 = 0x100;
const LOCAL_SINK: u32 = 0x200;
const REMOTE_SOURCE: u32 = 0x300;
const REMOTE_SINK: u32 = 0x400;
/// Keys from here on are those of regions that Sends invalidate.
const WINDOWS: u32 = 0x1000;
const REGION_BYTES: usize = 400_000;
/// Bytes between two ranges that must stay as they are.
const GUARD_BYTES: u64 = 3;

/// An operation that an end has posted.
#[derive(Clone, Debug)]
struct Op {
    kind: Kind,
    bytes: u32,
    signaled: bool,
    fence: bool,
    /// Where the payload goes: at the peer, or here for a read.
    sink: Vec<Piece>,
    solicited: bool,
    invalidate: Option<Stag>,
    status: Option<Status>,
}

/// A receive that an end has posted.
#[derive(Clone, Debug)]
struct Receive {
    pieces: Vec<Piece>,
    status: Option<Status>,
}

/// One end, its memory, and the bytes that travel to it.
pub(super) struct End {
    pub(super) stream: Stream,
    pub(super) memory: TestMemory,
    /// Bytes in flight to this end.
    pub(super) pipe: VecDeque<u8>,
    /// Whether the peer's end of the pipe is closed.
    is_peer_closed: bool,
    is_closed: bool,
    /// Whether bytes after the set-up frame have arrived.
    has_heard: bool,
    is_established: bool,
    pub(super) cause: Option<EndCause>,
    ops: Vec<Op>,
    /// Number of operations that have been reported, or passed over without a report.
    reported: usize,
    receives: Vec<Receive>,
    /// Number of Sends that the peer has posted.
    claimed: usize,
    /// Number of receives that have completed.
    received: usize,
    local_free: u64,
    remote_free: u64,
    windows: u32,
}

impl End {
    fn new(stream: Stream, index: u64) -> Self {
        let mut memory = TestMemory::default();
        for (key, rights) in [
            (LOCAL_SOURCE, (false, false)),
            (LOCAL_SINK, (false, false)),
            (REMOTE_SOURCE, (true, false)),
            (REMOTE_SINK, (false, true)),
        ] {
            memory.add(key, base(key) + index * 64, REGION_BYTES, rights);
        }
        Self {
            stream,
            memory,
            pipe: VecDeque::new(),
            is_peer_closed: false,
            is_closed: false,
            has_heard: false,
            is_established: false,
            cause: None,
            ops: Vec::new(),
            reported: 0,
            receives: Vec::new(),
            claimed: 0,
            received: 0,
            local_free: 0,
            remote_free: 0,
            windows: 0,
        }
    }

    /// Returns what changes while anything happens.
    fn progress(&self) -> (Counters, usize, bool, bool) {
        let is_ended = self.cause.is_some();
        (self.stream.counters(), self.pipe.len(), self.is_closed, is_ended)
    }

    fn is_done(&self) -> bool {
        let is_reported = self.ops.iter().all(|op| op.status.is_some() || !op.signaled);
        is_reported && self.received == self.claimed && self.stream.is_idle()
    }
}

fn base(key: u32) -> u64 {
    0x10_0000 * u64::from(key)
}

/// What may happen in a run, besides cuts and delays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chances {
    /// Whether connections may break, and bytes change under CRC.
    pub(super) faults: bool,
    /// Whether the responder sleeps through the first FPDUs, as siw does.
    pub(super) sleepy: bool,
}

/// Two ends.
pub(super) struct World {
    random: Random,
    ends: [End; 2],
    now: Instant,
    out: Gather,
    chances: Chances,
    /// Whether the run has broken something, so that streams may end.
    is_broken: bool,
    /// Whether the random steps have ended. All receives are in time then.
    is_settling: bool,
    /// Bytes of the initiator that the sleeping responder has not seen.
    asleep: Option<VecDeque<u8>>,
    is_awake: bool,
}

fn random_config(random: &mut Random) -> Config {
    let kinds =
        RtrKinds { write: random.one_in(2), read: random.one_in(2), send: random.one_in(2) };
    let is_offered = kinds.write || kinds.read || kinds.send;
    let depth = 1 + random.below(3) as u16;
    Config {
        revision: random.pick(&[Revision::Two, Revision::Two, Revision::One, Revision::Zero]),
        crc: random.one_in(2),
        markers: random.one_in(5),
        ird: depth,
        ord: 1 + random.below(3) as u16,
        ird_max: 3,
        peer_to_peer: is_offered.then_some(kinds),
        mss: random.pick(&[0, 200, 536, 1448, 8948]),
        long_fpdus: random.one_in(3),
        fpdu_bytes: random.one_in(4).then(|| random.pick(&[0, 128, 900, 20_000, u16::MAX])),
        private_data_max: 512,
        waits_for_receives: random.one_in(2),
        work_capacity: 1 + random.below(8) as u16,
        pieces_capacity: 8 + random.below(8) as u16,
        inline_capacity: 256 + random.below(300) as u16,
    }
}

impl World {
    pub(super) fn new(seed: u64, chances: Chances) -> Self {
        let mut random = Random::new(seed);
        let now = Instant(random.next() >> 20);
        let mut configs = [random_config(&mut random), random_config(&mut random)];
        // Without negotiation, the ends must know each other's limits.
        for config in &mut configs {
            config.ird_max = 3;
            config.ord = config.ord.min(3);
        }
        let private = vec![7; random.below(200)];
        let initiator = Stream::initiate(configs[0], &private, now).expect("short private data");
        let responder = Stream::respond(configs[1], now);
        Self {
            random,
            ends: [End::new(initiator, 0), End::new(responder, 1)],
            now,
            out: Gather::new(),
            chances,
            is_broken: false,
            is_settling: false,
            asleep: None,
            is_awake: !chances.sleepy,
        }
    }

    /// Runs the world: random work first, then until all work is done, then the close.
    pub(super) fn run(&mut self) -> Result<(), String> {
        let steps = 150 + self.random.below(400);
        for _ in 0..steps {
            self.step()?;
        }
        self.settle()?;
        // A responder whose initiator sends nothing may not speak.
        let is_mute = self.ends[0].stream.counters().fpdus_sent == 0;
        if !self.is_broken && !is_mute {
            for (index, end) in self.ends.iter().enumerate() {
                if !end.is_established || !end.is_done() {
                    let ops = end.ops.iter().filter(|op| op.status.is_none()).count();
                    let received = format!("{} of {} received", end.received, end.claimed);
                    return Err(format!("end {index} stalls: {ops} operations, {received}"));
                }
            }
        }
        let closing = self.random.below(2);
        self.is_broken = true;
        self.close(closing)?;
        self.settle()?;
        self.check_end()
    }

    fn check_end(&self) -> Result<(), String> {
        for (index, end) in self.ends.iter().enumerate() {
            if end.cause.is_none() {
                return Err(format!("end {index} has not ended"));
            }
            if let Some(number) = end.ops.iter().position(|op| op.signaled && op.status.is_none()) {
                return Err(format!("operation {number} of end {index} is not reported"));
            }
            let mut taken = end.memory.taken.iter();
            if taken.any(|id| end.receives[*id as usize].status.is_none()) {
                return Err(format!("a receive of end {index} was taken and is not reported"));
            }
            // A region that has ended has lost its bytes.
            let has_sink = end.memory.region(LOCAL_SINK).is_some();
            let done = |op: &&Op| op.status == Some(Status::Success) && has_sink;
            for op in end.ops.iter().filter(done) {
                if op.kind == Kind::Read && !end.memory.is_placed(&op.sink) {
                    return Err(format!("a read of end {index} completed without its bytes"));
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let index = self.random.below(2);
        match self.random.below(20) {
            0..=5 => self.transmit(index),
            6..=12 => self.deliver(index),
            13..=15 => self.post(index),
            16..=17 => {
                self.post_receive(index);
                Ok(())
            }
            18 => self.wait(),
            _ if self.chances.faults && self.random.one_in(30) => self.break_something(index),
            _ => Ok(()),
        }
    }

    /// Moves bytes and time until nothing happens any more.
    fn settle(&mut self) -> Result<(), String> {
        self.is_settling = true;
        for _ in 0..100_000 {
            let before = self.ends.each_ref().map(End::progress);
            for index in 0..2 {
                self.transmit(index)?;
                self.deliver(index)?;
                self.deliver(index)?;
            }
            let after = self.ends.each_ref().map(End::progress);
            if before != after {
                continue;
            }
            let is_quiet = self.ends.iter().all(|end| end.pipe.is_empty());
            self.out.clear();
            let is_silent = (0..2).all(|index| {
                let end = &mut self.ends[index];
                end.stream.poll_transmit(&mut end.memory, &mut self.out);
                self.out.is_empty()
            });
            if is_quiet && is_silent {
                let timeouts = self.ends.iter().filter_map(|end| end.stream.next_timeout());
                let Some(next) = timeouts.min() else { return Ok(()) };
                self.now = self.now.max(next);
                self.on_time()?;
            }
        }
        Err("the world does not settle".into())
    }

    fn on_time(&mut self) -> Result<(), String> {
        for index in 0..2 {
            self.ends[index].stream.handle_timeout(self.now);
            self.take_events(index)?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), String> {
        // The deadlines of the set-up are seconds away.
        self.now = self.now.after_ns(self.random.next() % 4_000_000);
        self.on_time()
    }

    /// Lets an end write a part of what it has to write.
    fn transmit(&mut self, index: usize) -> Result<(), String> {
        let (end, peer) = pair(&mut self.ends, index);
        if end.is_closed {
            return Ok(());
        }
        end.stream.poll_transmit(&mut end.memory, &mut self.out);
        let total = self.out.total();
        let lengths: usize = self.out.frame_lengths().sum();
        if lengths != 0 && lengths != total {
            return Err(format!("frames of {lengths} bytes in {total}"));
        }
        let is_fpdu = lengths > 0;
        if index == 1 && is_fpdu && !end.has_heard && !end.stream.is_hold_over {
            return Err("the responder speaks first".into());
        }
        if total > 0 {
            let taken = match self.random.below(4) {
                0 => 1 + self.random.below(total),
                1 => total.min(1 + self.random.below(40)),
                _ => total,
            };
            let mut bytes = Vec::new();
            for part in self.out.parts() {
                match part {
                    Part::Bytes(range) => bytes.extend(&self.out.bytes()[range.clone()]),
                    Part::Memory { piece, access } => {
                        let mut copy = vec![0; piece.bytes as usize];
                        let read = end.memory.read(*piece, *access, &mut copy);
                        read.map_err(|refusal| format!("{piece:?} to write: {refusal}"))?;
                        bytes.extend(copy);
                    }
                }
            }
            if bytes.len() != total {
                return Err(format!("{} bytes instead of {total}", bytes.len()));
            }
            end.stream.handle_written(self.now, taken, &self.out);
            bytes.truncate(taken);
            // A responder that has spoken sleeps through nothing that comes later.
            let has_spoken = peer.stream.counters().fpdus_sent > 0;
            if index == 0 && is_fpdu && !self.is_awake && !(has_spoken && self.asleep.is_none()) {
                let asleep = self.asleep.get_or_insert_default();
                if asleep.is_empty() {
                    asleep.extend(bytes);
                } else {
                    peer.pipe.append(asleep);
                    peer.pipe.extend(bytes);
                    self.is_awake = true;
                }
            } else if !peer.is_closed {
                peer.pipe.extend(bytes);
            }
        }
        if end.stream.may_close() {
            end.is_closed = true;
            peer.is_peer_closed = true;
            if let Some(asleep) = self.asleep.as_mut().filter(|_| index == 0) {
                peer.pipe.append(asleep);
                self.is_awake = true;
            }
        }
        self.take_events(index)
    }

    /// Delivers a part of the bytes in flight, and the end of the connection behind the last.
    fn deliver(&mut self, index: usize) -> Result<(), String> {
        let end = &mut self.ends[index];
        if end.is_closed {
            end.pipe.clear();
            return Ok(());
        }
        if end.stream.waits_for_receive() {
            // The receive is posted now, or later.
            end.memory.is_late = !self.is_settling && self.random.one_in(2);
            end.stream.handle_receives(&mut end.memory);
            return self.take_events(index);
        }
        // Without markers, a message may come before its receive.
        let waits = end.stream.config.waits_for_receives && !end.stream.terms().receives_markers;
        end.memory.is_late = waits && !self.is_settling && self.random.one_in(3);
        let waiting = end.pipe.len();
        if waiting > 0 {
            let taken = match self.random.below(5) {
                0 => 1,
                1 => waiting.min(1 + self.random.below(30)),
                2 => 1 + self.random.below(waiting),
                _ => waiting,
            };
            // A region that has ended is no sink. The stream meets this itself.
            let sink = end.stream.direct_sink().filter(|_| self.random.one_in(2));
            let sink = sink.filter(|sink| end.memory.region(sink.piece.key).is_some());
            if let Some(sink) = sink {
                let taken = taken.min(sink.piece.bytes as usize);
                let bytes: Vec<u8> = end.pipe.drain(..taken).collect();
                let piece = Piece { bytes: taken as u32, ..sink.piece };
                let placed = end.memory.place(piece, sink.access, &bytes, false);
                placed.map_err(|refusal| format!("direct: {refusal}"))?;
                end.stream.handle_placed(taken as u32);
            } else {
                let bytes: Vec<u8> = end.pipe.drain(..taken).collect();
                end.has_heard |= end.is_established || end.stream.terms().ird > 0;
                end.stream.handle_received(&bytes, &mut end.memory);
            }
        } else if end.is_peer_closed {
            end.stream.handle_end();
        }
        if let Some(violation) = &end.memory.violation {
            return Err(format!("memory of end {index}: {violation}"));
        }
        self.take_events(index)
    }

    fn close(&mut self, index: usize) -> Result<(), String> {
        let end = &mut self.ends[index];
        end.stream.close(&mut end.memory);
        self.take_events(index)
    }

    fn break_something(&mut self, index: usize) -> Result<(), String> {
        match self.random.below(6) {
            0 => {
                self.is_broken = true;
                self.close(index)?;
            }
            1 => {
                self.is_broken = true;
                for index in 0..2 {
                    self.ends[index].stream.handle_reset();
                    self.ends[index].pipe.clear();
                    self.take_events(index)?;
                }
            }
            2 => {
                // A FIN at any byte: the rest of the peer's bytes is lost.
                self.is_broken = true;
                let kept = self.random.below(self.ends[index].pipe.len() + 1);
                self.ends[index].pipe.truncate(kept);
                self.ends[index].is_peer_closed = true;
                self.ends[1 - index].stream.handle_reset();
                self.ends[1 - index].is_closed = true;
                self.take_events(1 - index)?;
            }
            3 | 4 => {
                let end = &mut self.ends[index];
                if end.stream.terms().crc && end.has_heard && !end.pipe.is_empty() {
                    let at = self.random.below(end.pipe.len());
                    // Bit 15 of a length would ask for 32 KiB that never come.
                    end.pipe[at] ^= 1 << self.random.below(5);
                    self.is_broken = true;
                }
            }
            _ => {
                // A region ends while it is in use.
                self.is_broken = true;
                let key = self.random.pick(&[LOCAL_SOURCE, REMOTE_SOURCE, REMOTE_SINK, LOCAL_SINK]);
                self.ends[index].memory.remove(key);
            }
        }
        Ok(())
    }

    fn post_receive(&mut self, index: usize) {
        let end = &mut self.ends[index];
        if end.receives.len() >= end.claimed + 6 {
            return;
        }
        let mut pieces = Vec::new();
        for _ in 0..self.random.below(4) {
            let bytes = self.random.pick(&[0, 1, 5, 64, 900, 3000]);
            if let Some(piece) = take(&mut end.local_free, index, LOCAL_SINK, bytes) {
                pieces.push(piece);
            }
        }
        end.memory.receives.push_back((end.receives.len() as u64, pieces.clone()));
        end.receives.push(Receive { pieces, status: None });
    }

    /// Posts a random operation.
    fn post(&mut self, index: usize) -> Result<(), String> {
        let random = &mut self.random;
        let (end, peer) = pair(&mut self.ends, index);
        if !end.is_established || end.cause.is_some() {
            return Ok(());
        }
        let id = end.ops.len() as u64;
        let (signaled, fence) = (!random.one_in(4), random.one_in(5));
        let length = random.pick(&[0, 1, 7, 8, 9, 200, 256, 257, 1400, 1500, 5000, 70_000]);
        let length = if length == 70_000 && !random.one_in(8) { 4096 } else { length };
        let mut op = Op {
            kind: random.pick(&[Kind::Write, Kind::Read, Kind::Send]),
            bytes: length,
            signaled,
            fence,
            sink: Vec::new(),
            solicited: false,
            invalidate: None,
            status: None,
        };
        if op.kind == Kind::Read {
            return post_read(random, index, end, peer, op);
        }
        let work_kind = if op.kind == Kind::Send {
            // A Send needs a receive, and takes those in order.
            let Some(receive) = peer.receives.get(peer.claimed) else { return Ok(()) };
            let capacity: u32 = receive.pieces.iter().map(|piece| piece.bytes).sum();
            op.bytes = if random.one_in(3) { capacity } else { length.min(capacity) };
            op.sink.clone_from(&receive.pieces);
            op.solicited = random.one_in(2);
            if random.one_in(6) {
                let key = WINDOWS + peer.windows;
                op.invalidate = Some(Stag(key));
            }
            WorkKind::Send { solicited: op.solicited, invalidate: op.invalidate }
        } else {
            let mut free = peer.remote_free;
            let Some(sink) = take(&mut free, 1 - index, REMOTE_SINK, op.bytes) else {
                return Ok(());
            };
            op.sink.push(sink);
            WorkKind::Write { stag: Stag(sink.key), offset: sink.address }
        };
        let pieces = source_pieces(random, index, op.bytes);
        let content = end.source_content(&pieces);
        let Some(content) = content else { return Ok(()) };
        let is_inline = content.len() <= 256 && random.one_in(3);
        let payload = if is_inline { Payload::Inline(&content) } else { Payload::Pieces(&pieces) };
        let work = Work { id, kind: work_kind, payload, signaled, fence };
        match end.stream.post_send(&work) {
            Ok(()) => {}
            Err(PostError::Full | PostError::NotConnected) => return Ok(()),
            Err(error) => return Err(format!("post: {error}")),
        }
        if op.kind == Kind::Send {
            peer.claimed += 1;
            if let Some(stag) = op.invalidate {
                peer.windows += 1;
                peer.memory.add(stag.0, base(stag.0), 8, (true, true));
            }
            peer.memory.want(&op.sink, &content, false);
        } else {
            take(&mut peer.remote_free, 1 - index, REMOTE_SINK, op.bytes);
            if op.bytes > 0 {
                peer.memory.want(&op.sink, &content, true);
            }
        }
        end.ops.push(op);
        Ok(())
    }

    /// Takes the events of an end, and compares them with the model.
    fn take_events(&mut self, index: usize) -> Result<(), String> {
        while let Some(event) = self.ends[index].stream.poll_event() {
            if self.ends[index].cause.is_some() {
                return Err(format!("{event:?} after the end"));
            }
            self.on_event(index, event).map_err(|what| format!("end {index}: {what}"))?;
        }
        Ok(())
    }

    fn on_event(&mut self, index: usize, event: Event) -> Result<(), String> {
        let (end, peer) = pair(&mut self.ends, index);
        match event {
            Event::Request { private_data, .. } => {
                let private = vec![9; private_data.len() / 2];
                let (ird, ord) = (1 + self.random.below(3), 1 + self.random.below(3));
                let accepted = end.stream.accept(&private, ird as u16, ord as u16);
                accepted.map_err(|error| error.to_string())
            }
            Event::Established { .. } => {
                let was_established = std::mem::replace(&mut end.is_established, true);
                if was_established { Err("established twice".into()) } else { Ok(()) }
            }
            Event::Rejected { .. } => Err("rejected".into()),
            Event::Completed { id, kind, status, bytes } => {
                end.on_completed(id as usize, kind, status, bytes)
            }
            Event::ReceiveCompleted { id, status, bytes, solicited, invalidated } => {
                if id as usize != end.received {
                    return Err(format!("receive {id} instead of {}", end.received));
                }
                end.received += 1;
                let receive = end.receives.get_mut(id as usize).ok_or("an unknown receive")?;
                receive.status = Some(status);
                if status != Status::Success {
                    return Ok(());
                }
                let sends = peer.ops.iter().enumerate().filter(|(_, op)| op.kind == Kind::Send);
                let (number, op) = sends.clone().nth(id as usize).ok_or("no such Send")?;
                if (op.bytes, op.solicited, op.invalidate) != (bytes, solicited, invalidated) {
                    return Err(format!("receive {id} differs from {op:?}"));
                }
                // A region that has ended has lost its bytes.
                let has_sink = end.memory.region(LOCAL_SINK).is_some();
                let sink = prefix(&op.sink, bytes);
                if bytes > 0 && has_sink && !end.memory.is_placed(&sink) {
                    return Err(format!("receive {id} completed without its bytes"));
                }
                let earlier = peer.ops.iter().take(number);
                let mut reads = earlier.filter(|op| op.kind == Kind::Read);
                let has_sink = peer.memory.region(LOCAL_SINK).is_some();
                if op.fence && has_sink && !reads.all(|read| peer.memory.is_placed(&read.sink)) {
                    return Err(format!("Send {number} overtook a read before its fence"));
                }
                Ok(())
            }
            Event::Ended { cause } => {
                end.cause = Some(cause);
                let is_expected = self.is_broken;
                let is_flushed = end.stream.is_idle();
                if !is_flushed {
                    return Err("ended with outstanding operations".into());
                }
                if is_expected { Ok(()) } else { Err(format!("ended: {cause}")) }
            }
        }
    }
}

impl End {
    /// Returns the content of own pieces, unless their region has ended.
    fn source_content(&self, pieces: &[Piece]) -> Option<Vec<u8>> {
        self.memory.region(LOCAL_SOURCE)?;
        Some(self.memory.content(pieces))
    }

    fn on_completed(
        &mut self,
        id: usize,
        kind: Kind,
        status: Status,
        bytes: u32,
    ) -> Result<(), String> {
        let passed = self.ops.get(self.reported..id).ok_or("reported twice or unknown")?;
        if let Some(at) = passed.iter().position(|op| op.signaled) {
            return Err(format!("operation {} was passed over", self.reported + at));
        }
        self.reported = id + 1;
        let op = self.ops.get_mut(id).ok_or("an unknown operation")?;
        if (op.kind, op.bytes) != (kind, bytes) {
            return Err(format!("{kind:?} of {bytes} bytes instead of {op:?}"));
        }
        if status == Status::Success && !op.signaled {
            return Err("an unsignaled success is reported".into());
        }
        op.status = Some(status);
        let sink = op.sink.clone();
        let is_placed = kind != Kind::Read || self.memory.is_placed(&sink);
        // A region that has ended has lost its bytes.
        if status == Status::Success && !is_placed && self.memory.region(LOCAL_SINK).is_some() {
            return Err(format!("read {id} completed without its bytes"));
        }
        Ok(())
    }
}

fn post_read(
    random: &mut Random,
    index: usize,
    end: &mut End,
    peer: &mut End,
    mut op: Op,
) -> Result<(), String> {
    let mut free = end.local_free;
    let mut left = op.bytes;
    while left > 0 {
        let bytes = if op.sink.len() == 2 { left } else { 1 + random.below(left as usize) as u32 };
        let Some(piece) = take(&mut free, index, LOCAL_SINK, bytes) else { return Ok(()) };
        op.sink.push(piece);
        left -= bytes;
    }
    let at = random.below(REGION_BYTES - op.bytes as usize) as u64;
    let address = base(REMOTE_SOURCE) + (1 - index as u64) * 64 + at;
    let source = Piece { key: REMOTE_SOURCE, address, bytes: op.bytes };
    if peer.memory.region(REMOTE_SOURCE).is_none() || end.memory.region(LOCAL_SINK).is_none() {
        return Ok(());
    }
    let content = peer.memory.content(&[source]);
    let work = Work {
        id: end.ops.len() as u64,
        kind: WorkKind::Read { stag: Stag(REMOTE_SOURCE), offset: address },
        payload: Payload::Pieces(&op.sink),
        signaled: op.signaled,
        fence: op.fence,
    };
    match end.stream.post_send(&work) {
        Ok(()) => {}
        Err(PostError::Full | PostError::NotConnected) => return Ok(()),
        Err(error) => return Err(format!("post: {error}")),
    }
    end.local_free = free;
    end.memory.want(&op.sink, &content, true);
    end.ops.push(op);
    Ok(())
}

/// Takes an unused range of a sink.
fn take(free: &mut u64, index: usize, key: u32, bytes: u32) -> Option<Piece> {
    let end = *free + u64::from(bytes) + GUARD_BYTES;
    if end > REGION_BYTES as u64 {
        return None;
    }
    let address = base(key) + index as u64 * 64 + *free;
    *free = end;
    Some(Piece { key, address, bytes })
}

/// Returns random pieces of the own source that have `bytes` bytes together.
fn source_pieces(random: &mut Random, index: usize, bytes: u32) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let bytes = if pieces.len() == 2 { left } else { 1 + random.below(left as usize) as u32 };
        let at = random.below(REGION_BYTES - bytes as usize) as u64;
        let address = base(LOCAL_SOURCE) + index as u64 * 64 + at;
        pieces.push(Piece { key: LOCAL_SOURCE, address, bytes });
        left -= bytes;
    }
    pieces
}

/// Returns the first `bytes` bytes of the pieces.
fn prefix(pieces: &[Piece], bytes: u32) -> Vec<Piece> {
    crate::work::parts(pieces.iter().copied(), 0, bytes).collect()
}

fn pair(ends: &mut [End; 2], index: usize) -> (&mut End, &mut End) {
    let [first, second] = ends;
    if index == 0 { (first, second) } else { (second, first) }
}

//! Two sides and an unreliable network between them. A seed determines every step of a run.

use std::collections::BTreeMap;
use std::sync::Arc;

use mem::{
    Buffer, MemoryTable, PayloadSlice, ProtectionDomain, Region, RegionId, Rights, TableLimits,
};
use wire_edge::{Flags, Header, MessageNumber, OperationNumber, RemoteKey};

use crate::inbound::{Inbound, InboundLimits, Refusal, Surroundings, Verdict};
use crate::limits::PoolLimits;
use crate::outbound::{Answer, Carried, Fragment, FragmentPayload, Outbound, PeerLimits};
use crate::pools::{PoolUse, Pools};
use work::{
    Completion, CompletionQueue, Operation, OperationFlags, Order, Owner, Queues, Receive, Request,
    Source, StatusTable,
};

/// The generator Splitmix64: small, seedable, and good enough to shuffle packets.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Returns a number less than `end`. `end` must not be 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    pub(super) pools: PoolLimits,
    pub(super) window: u32,
    pub(super) order_pool_bytes: u32,
    pub(super) read_depth: u16,
    pub(super) receives: u32,
    pub(super) queue: usize,
    /// Whether posting work reserves room in the completion queue.
    pub(super) promises: bool,
    pub(super) queue_pair: bool,
    pub(super) first: OperationNumber,
    /// Percentages of packets that the network loses and duplicates.
    pub(super) lose: u64,
    pub(super) repeat: u64,
    /// Possible sizes of frames in bytes, without the common header.
    pub(super) rooms: &'static [u32],
}

pub(super) const POOLS: PoolLimits = PoolLimits {
    operations: 64,
    incoming: 64,
    responses: 16,
    reads: 16,
    retransmissions: 256,
    order_blocks: 64,
};

impl Default for Config {
    fn default() -> Self {
        Self {
            pools: POOLS,
            window: 64,
            order_pool_bytes: 64 * 1024,
            read_depth: 4,
            receives: 16,
            queue: 256,
            promises: true,
            queue_pair: false,
            first: OperationNumber(0),
            lose: 15,
            repeat: 25,
            rooms: &[128, 150, 201, 333],
        }
    }
}

pub(super) const MEMORY_BYTES: u64 = 8192;
pub(super) const SOURCE_BYTES: u64 = 1 << 20;

pub(super) struct Side {
    pub(super) table: MemoryTable,
    pub(super) domain: ProtectionDomain,
    pub(super) pools: Pools,
    pub(super) outbound: Outbound,
    pub(super) inbound: Inbound,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) status: Arc<StatusTable>,
    /// Memory that the peer may access.
    pub(super) memory: Arc<Buffer>,
    pub(super) region: Region,
    /// Memory from which operations of this side send.
    pub(super) sources: Arc<Buffer>,
    pub(super) source: RegionId,
    pub(super) completions: Vec<Completion>,
}

impl Config {
    fn queues(&self, queue: &Arc<CompletionQueue>) -> Queues {
        Queues { promises: self.promises, ..Arc::clone(queue).into() }
    }
}

impl Side {
    pub(super) fn new(config: &Config, seed: u64) -> Self {
        let table = MemoryTable::new(TableLimits::default(), [seed, 1]);
        let domain = table.allocate_domain();
        let memory = Buffer::new(MEMORY_BYTES);
        let region = table.register(domain, Arc::clone(&memory), Rights::ALL).unwrap();
        let sources = Buffer::new(SOURCE_BYTES);
        let source = table.register(domain, Arc::clone(&sources), Rights::NONE).unwrap().id;
        let queue = Arc::new(CompletionQueue::new(config.queue));
        let queues = config.queues(&queue);
        let status = Arc::new(StatusTable::new(64));
        let limits = InboundLimits {
            operation_window: config.window,
            read_depth: config.read_depth,
            order_pool_bytes: config.order_pool_bytes,
            receives: config.receives,
            rights: Rights::ALL,
            patches: true,
        };
        let peer = PeerLimits {
            operation_window: config.window,
            read_depth: config.read_depth,
            order_pool_bytes: config.order_pool_bytes,
            credit: MessageNumber(config.first.0),
            patches: true,
        };
        let mut inbound = Inbound::new(Owner::new(7, 1), domain, limits, &queues);
        let mut outbound = Outbound::new(Owner::new(7, 1), peer, &queues);
        inbound.begin_at(config.first, MessageNumber(config.first.0));
        outbound.begin_at(config.first, MessageNumber(config.first.0));
        if config.queue_pair {
            inbound.be_queue_pair();
            outbound.be_queue_pair();
        }
        let pools = Pools::new(&config.pools, Arc::clone(&status));
        Self {
            table,
            domain,
            pools,
            outbound,
            inbound,
            queue,
            status,
            memory,
            region,
            sources,
            source,
            completions: Vec::new(),
        }
    }

    pub(super) fn post(
        &mut self,
        operation: &Operation,
    ) -> Result<OperationNumber, work::PostError> {
        let memory = self.table.access();
        self.outbound.post(&memory, &mut self.pools, operation)
    }

    pub(super) fn post_receive(
        &mut self,
        offset: u64,
        length: u32,
        context: u64,
    ) -> Result<(), work::PostError> {
        let memory = self.table.access();
        let receive = Receive { region: self.region.id, offset, length, context };
        self.inbound.post_receive(&memory, receive)
    }

    pub(super) fn post_receive_nowhere(&mut self, context: u64) {
        let memory = self.table.access();
        let receive = Receive { region: RegionId::NONE, offset: 77, length: 0, context };
        self.inbound.post_receive(&memory, receive).unwrap();
    }

    pub(super) fn handle(&mut self, flags: Flags, header: &Header, payload: &[u8]) -> Verdict {
        let memory = self.table.access();
        let mut around =
            Surroundings { memory: &memory, pools: &mut self.pools, outbound: &mut self.outbound };
        self.inbound.handle(&mut around, flags, header, payload)
    }

    pub(super) fn resume(&mut self) -> Verdict {
        let memory = self.table.access();
        let mut around =
            Surroundings { memory: &memory, pools: &mut self.pools, outbound: &mut self.outbound };
        self.inbound.resume(&mut around)
    }

    pub(super) fn answer(&mut self, flags: Flags, header: &Header, payload: &[u8]) -> Answer {
        let memory = self.table.access();
        self.outbound.handle_answer(&memory, &mut self.pools, flags, header, payload).unwrap()
    }

    /// Returns the next fragment, if there is one. The lifetime of the fragment is longer than that
    /// of the memory access with which the fragment was cut. The caller must therefore not read the
    /// fragment after its region is gone.
    pub(super) fn fragment(&mut self, room: u32) -> Option<Fragment<'static>> {
        let memory = self.table.access();
        let cut = self.outbound.next_fragment(&memory, &mut self.pools, room).unwrap();
        cut.map(|Fragment { header, flags, payload, carried }| {
            let payload = match payload {
                FragmentPayload::None => FragmentPayload::None,
                FragmentPayload::Outside(slice) => {
                    FragmentPayload::Outside(PayloadSlice::at(slice.start, slice.len))
                }
                FragmentPayload::Region(region, at, len) => {
                    FragmentPayload::Region(region, at, len)
                }
                FragmentPayload::Target(target, at, len) => {
                    FragmentPayload::Target(target, at, len)
                }
                FragmentPayload::Inline => FragmentPayload::Inline,
                FragmentPayload::Pieces => FragmentPayload::Pieces,
                FragmentPayload::Gone(operation) => FragmentPayload::Gone(operation),
            };
            Fragment { header, flags, payload, carried }
        })
    }

    pub(super) fn poll(&mut self) {
        while let Some(completion) = self.queue.poll() {
            self.completions.push(completion);
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; MEMORY_BYTES as usize];
        self.memory.read(0, &mut bytes);
        bytes
    }

    pub(super) fn fill(&self, offset: u64, len: usize, value: u8) {
        self.memory.write(offset, &vec![value; len]);
    }

    /// Returns the bytes that a driver would send after the header.
    pub(super) fn payload(&self, fragment: &Fragment<'_>) -> Vec<u8> {
        let memory = self.table.access();
        match fragment.payload {
            FragmentPayload::None | FragmentPayload::Gone(_) => Vec::new(),
            FragmentPayload::Pieces => {
                let mut out = Vec::new();
                self.pools.gather(&memory, &fragment.carried, &mut out).unwrap();
                out
            }
            FragmentPayload::Inline => self.pools.inline_payload(&fragment.carried).to_vec(),
            FragmentPayload::Region(region, offset, len) => {
                let mut out = vec![0; len as usize];
                memory.copy_out(region, offset, &mut out).unwrap();
                out
            }
            FragmentPayload::Target(target, offset, len) => {
                let mut out = vec![0; len as usize];
                memory.copy_from(&target, offset, &mut out).unwrap();
                out
            }
            FragmentPayload::Outside(slice) => {
                let mut out = vec![0; slice.len as usize];
                let address = slice.start.addr() as u64;
                let buffer = [&self.memory, &self.sources]
                    .into_iter()
                    .find(|buffer| {
                        (0..buffer.len()).contains(&address.wrapping_sub(buffer.address()))
                    })
                    .unwrap();
                buffer.read(address - buffer.address(), &mut out);
                out
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) from: usize,
    id: u64,
    pub(super) flags: Flags,
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
}

pub(super) struct Pair {
    pub(super) config: Config,
    pub(super) random: Random,
    pub(super) sides: [Side; 2],
    network: Vec<Packet>,
    /// Packets that are neither acknowledged nor reported lost.
    in_flight: BTreeMap<u64, (usize, Carried)>,
    acknowledged: Vec<u64>,
    next_id: u64,
    /// All packets sent so far, if the test records them.
    pub(super) history: Option<Vec<Packet>>,
    /// Flags to remove from every frame. The removal is a fault that the oracles must detect.
    pub(super) stripped: Flags,
}

impl Pair {
    pub(super) fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            random: Random(seed),
            sides: [Side::new(&config, seed), Side::new(&config, seed ^ 0xffff)],
            network: Vec::new(),
            in_flight: BTreeMap::new(),
            acknowledged: Vec::new(),
            next_id: 0,
            history: None,
            stripped: Flags::NONE,
        }
    }

    /// Cuts a fragment on `side` and puts it into the network. Returns false if there is no
    /// fragment.
    pub(super) fn emit(&mut self, side: usize) -> bool {
        let room = self.config.rooms[self.random.below(self.config.rooms.len())];
        let Some(fragment) = self.sides[side].fragment(room) else { return false };
        if self.random.chance(5) {
            let Side { outbound, pools, .. } = &mut self.sides[side];
            outbound.on_returned(pools, fragment.carried);
            return true;
        }
        let payload = self.sides[side].payload(&fragment);
        assert_eq!(payload.len(), usize::from(fragment.carried.length));
        assert!(payload.len() as u32 + 8 <= room);
        let id = self.next_id;
        self.next_id += 1;
        let flags = Flags(fragment.flags.0 & !self.stripped.0);
        let packet = Packet { from: side, id, flags, header: fragment.header, payload };
        if let Some(history) = &mut self.history {
            history.push(packet.clone());
        }
        self.network.push(packet);
        self.in_flight.insert(id, (side, fragment.carried));
        true
    }

    /// Delivers a random packet of the network. Returns `None` if the network is empty.
    pub(super) fn deliver(&mut self) -> Option<Verdict> {
        if self.network.is_empty() {
            return None;
        }
        let index = self.random.below(self.network.len());
        let packet = if self.random.chance(self.config.repeat) {
            self.network[index].clone()
        } else {
            self.network.swap_remove(index)
        };
        if self.random.chance(self.config.lose) {
            return Some(Verdict::Accepted);
        }
        let verdict = self.receive(&packet);
        if let Verdict::Refused(Refusal::NotReady(message)) = verdict
            && !self.random.chance(20)
        {
            let Side { outbound, pools, .. } = &mut self.sides[packet.from];
            if outbound.on_not_ready(pools, message) {
                self.take_back(packet.from);
            }
        }
        if matches!(verdict, Verdict::Accepted | Verdict::Duplicate) {
            self.acknowledged.push(packet.id);
        }
        Some(verdict)
    }

    pub(super) fn receive(&mut self, packet: &Packet) -> Verdict {
        let side = &mut self.sides[1 - packet.from];
        match packet.header {
            Header::ReadResponse { .. } | Header::AtomicResponse { .. } => {
                match side.answer(packet.flags, &packet.header, &packet.payload) {
                    Answer::Accepted => Verdict::Accepted,
                    Answer::Duplicate => Verdict::Duplicate,
                    Answer::NoRoom => Verdict::Refused(Refusal::Ranges),
                    Answer::Violation => panic!("an honest answer is a violation: {packet:?}"),
                }
            }
            _ => side.handle(packet.flags, &packet.header, &packet.payload),
        }
    }

    /// Acknowledges some or all of the packets that have arrived.
    pub(super) fn acknowledge(&mut self) {
        for id in core::mem::take(&mut self.acknowledged) {
            if self.random.chance(10) {
                continue;
            }
            if let Some((side, carried)) = self.in_flight.remove(&id) {
                let Side { outbound, pools, .. } = &mut self.sides[side];
                outbound.on_acknowledged(pools, carried);
            }
        }
    }

    /// Returns to side `from` all packets that it has in flight, newest first, like a driver that
    /// refuses them.
    fn take_back(&mut self, from: usize) {
        let Side { outbound, pools, .. } = &mut self.sides[from];
        let taken = self.in_flight.extract_if(.., |_, (side, _)| *side == from);
        for (_, (_, carried)) in taken.collect::<Vec<_>>().into_iter().rev() {
            outbound.on_returned(pools, carried);
        }
    }

    pub(super) fn lose_one(&mut self) {
        if self.in_flight.is_empty() {
            return;
        }
        let nth = self.random.below(self.in_flight.len());
        let id = *self.in_flight.keys().nth(nth).unwrap();
        let (side, carried) = self.in_flight.remove(&id).unwrap();
        let Side { outbound, pools, .. } = &mut self.sides[side];
        outbound.on_lost(pools, carried);
    }

    /// Reports to each side which operations the other side has delivered.
    pub(super) fn synchronize(&mut self) {
        for side in 0..2 {
            let peer = &self.sides[1 - side].inbound;
            let (delivered, credit) = (peer.delivered(), peer.credit());
            let Side { outbound, pools, .. } = &mut self.sides[side];
            assert!(outbound.on_delivered(pools, delivered, credit));
        }
    }

    pub(super) fn poll(&mut self) {
        for side in &mut self.sides {
            side.poll();
            if side.inbound.is_stalled() {
                assert_eq!(side.resume(), Verdict::Accepted);
            }
        }
    }

    /// Performs a random step. Calls `seen` with both sides after each frame.
    pub(super) fn step(&mut self, seen: &mut impl FnMut(&[Side; 2])) {
        match self.random.below(12) {
            0..=2 => {
                let side = self.random.below(2);
                for _ in 0..=self.random.below(4) {
                    self.emit(side);
                }
            }
            3..=7 => match self.deliver() {
                Some(Verdict::Violation { reason, operation }) => {
                    panic!("an honest frame is a violation: {reason:?} of {operation:?}")
                }
                Some(_) => seen(&self.sides),
                None => self.lose_one(),
            },
            8 => self.lose_one(),
            9 => self.acknowledge(),
            10 => self.synchronize(),
            _ => {
                self.poll();
                seen(&self.sides);
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sides.iter().all(|side| !side.outbound.waits_for_peer())
    }

    /// Posts all operations and runs until none is pending. Calls `seen` with both sides after each
    /// frame.
    pub(super) fn run(&mut self, operations: &[Operation], seen: &mut impl FnMut(&[Side; 2])) {
        let mut next = 0;
        let mut steps = 0;
        while next < operations.len() || !self.is_idle() {
            if next < operations.len() && self.random.chance(40) {
                match self.sides[0].post(&operations[next]) {
                    Ok(number) => {
                        let first = self.config.first.0;
                        assert_eq!(number.0, first.wrapping_add(next as u32));
                        next += 1;
                    }
                    Err(
                        work::PostError::NoOperationLeft(_)
                        | work::PostError::CompletionQueueFull(_),
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            self.step(seen);
            steps += 1;
            assert!(steps < 200_000, "no end after {next} operations: {:?}", self.in_use());
        }
        self.poll();
        assert_eq!(self.in_use(), [PoolUse::default(); 2]);
    }

    /// Returns the numbers of records in use on both sides. Before that, discards retransmissions
    /// that no operation needs.
    pub(super) fn in_use(&mut self) -> [PoolUse; 2] {
        for side in 0..2 {
            while self.sides[side].outbound.wants_to_send()
                && self.sides[side].fragment(128).is_some()
            {}
        }
        self.sides.each_ref().map(|side| side.pools.in_use())
    }
}

/// Returns the key and the address of `offset` in the memory of side 1.
pub(super) fn remote(pair: &Pair, offset: u64) -> (RemoteKey, u64) {
    let region = pair.sides[1].region;
    (region.key, region.start + offset)
}

/// Returns a write that stores `index + 1` in every byte of its range.
pub(super) fn write(
    pair: &Pair,
    index: usize,
    offset: u64,
    length: u32,
    flags: OperationFlags,
) -> Operation {
    let (key, address) = remote(pair, offset);
    let source = source(pair, index, length);
    operation(Request::Write { source, key, address }, index, length, flags)
}

/// Returns a source with `length` bytes of value `index + 1`. The source is inline if it has few
/// bytes and the index is even.
pub(super) fn source(pair: &Pair, index: usize, length: u32) -> Source {
    let value = index as u8 + 1;
    if length <= 64 && index.is_multiple_of(2) {
        return Source::Inline([value; 64]);
    }
    let offset = index as u64 * 4096;
    pair.sides[0].sources.write(offset, &vec![value; length as usize]);
    Source::Region { region: pair.sides[0].source, offset }
}

pub(super) fn operation(
    request: Request,
    index: usize,
    length: u32,
    flags: OperationFlags,
) -> Operation {
    Operation { request, length, flags, immediate: None, context: index as u64, status: None }
}

pub(super) const fn flags(order: Order) -> OperationFlags {
    OperationFlags {
        fence_before: false,
        fence_after: false,
        waits_for_answers: false,
        order,
        notify: false,
        signalled: true,
    }
}

/// Checks that side 0 received the completions of `count` operations, each once and in order.
pub(super) fn assert_completed_in_order(pair: &Pair, count: usize) {
    let contexts: Vec<u64> = pair.sides[0].completions.iter().map(|c| c.context).collect();
    assert_eq!(contexts, (0..count as u64).collect::<Vec<_>>());
    assert!(pair.sides[0].completions.iter().all(|completion| completion.result.is_ok()));
}

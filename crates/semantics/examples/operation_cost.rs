//! Measures the cost of operations without links, in nanoseconds. Both halves of a connection run
//! on one thread.
//!
//! `cargo run --release -p ethernot-semantics --example operation_cost`
#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::sync::Arc;
use std::time::Instant;

use mem::{Buffer, MemoryAccess, MemoryTable, Region, RegionId, Rights, TableLimits};
use semantics::{
    CompletionQueue, Inbound, InboundLimits, Operation, OperationFlags, Order, Outbound, Owner,
    PeerLimits, PoolLimits, Pools, Request, Source, StatusTable, Surroundings, Verdict,
};
use wire_edge::{Flags, Header, MessageNumber};

fn main() {
    let mut rig = Rig::new();
    for (name, order) in [("relaxed", Order::Relaxed), ("strict", Order::Strict)] {
        for batch in [1, 16] {
            let cost = best(|| rig.small_writes(200_000, batch, order, false));
            println!("8 B write, {name}, an ack per {batch:2}:     {cost:6.1} ns per operation");
        }
        let cost = best(|| rig.small_writes(200_000, 16, order, true));
        println!("8 B write, {name}, pairs swapped:       {cost:6.1} ns per operation");
        let cost = best(|| rig.large_writes(200, order, false));
        println!("1 MiB write, {name}, in order:          {cost:6.1} ns per 1440 B fragment");
        let cost = best(|| rig.large_writes(200, order, true));
        println!("1 MiB write, {name}, bursts swapped:    {cost:6.1} ns per 1440 B fragment");
    }
    let cost = best(|| rig.bare_copies(200));
    println!("the copies of a 1 MiB write alone:          {cost:6.1} ns per 1440 B");
    let cost = best(|| rig.reads(200));
    println!("1 MiB read, in order:                    {cost:6.1} ns per 1440 B fragment");
}

/// Returns the smallest of several measurements. Other work of the machine makes some measurements
/// longer.
fn best(mut measure: impl FnMut() -> f64) -> f64 {
    (0..15).map(|_| measure()).fold(f64::INFINITY, f64::min)
}

struct Rig {
    table: Arc<MemoryTable>,
    pools: [Pools; 2],
    outbound: [Outbound; 2],
    inbound: Inbound,
    queue: Arc<CompletionQueue>,
    domain: mem::ProtectionDomain,
    target: Region,
    source: RegionId,
    payload: Vec<u8>,
}

const LARGE_BYTES: u32 = 1 << 20;
const FRAGMENT_BYTES: usize = 1440;
/// Room in bytes for a fragment: a payload of `FRAGMENT_BYTES` bytes and a header of 20 bytes.
const ROOM_BYTES: u32 = FRAGMENT_BYTES as u32 + 20;

impl Rig {
    fn new() -> Self {
        let table = Arc::new(MemoryTable::new(TableLimits::default(), [1, 2]));
        let domain = table.allocate_domain();
        let register = || table.register(domain, Buffer::new(LARGE_BYTES.into()), Rights::ALL);
        let (target, source) = (register().unwrap(), register().unwrap().id);
        let queues = [(); 2].map(|()| Arc::new(CompletionQueue::new(1024)));
        let limits = InboundLimits {
            operation_window: 1024,
            read_depth: 16,
            order_pool_bytes: 1 << 18,
            receives: 16,
            rights: Rights::ALL,
            patches: true,
        };
        let peer = PeerLimits {
            operation_window: 1024,
            read_depth: 16,
            order_pool_bytes: 1 << 18,
            credit: MessageNumber(0),
            patches: true,
        };
        let pools = || Pools::new(&PoolLimits::default(), Arc::new(StatusTable::new(16)));
        let outbound = |queue: &Arc<CompletionQueue>| {
            Outbound::new(Owner::default(), peer, &Arc::clone(queue).into())
        };
        Self {
            domain,
            target,
            source,
            pools: [pools(), pools()],
            outbound: [outbound(&queues[0]), outbound(&queues[1])],
            inbound: Inbound::new(Owner::default(), domain, limits, &Arc::clone(&queues[1]).into()),
            queue: Arc::clone(&queues[0]),
            payload: vec![7; FRAGMENT_BYTES],
            table,
        }
    }

    fn handle(&mut self, memory: &MemoryAccess<'_>, flags: Flags, header: &Header, bytes: usize) {
        let mut around =
            Surroundings { memory, pools: &mut self.pools[1], outbound: &mut self.outbound[1] };
        let payload = &self.payload[..bytes];
        let verdict = self.inbound.handle(&mut around, flags, header, payload);
        assert_eq!(verdict, Verdict::Accepted);
    }

    fn acknowledge(&mut self, completions: usize) {
        let delivered = self.inbound.delivered();
        let is_new = self.outbound[0].on_delivered(&mut self.pools[0], delivered, MessageNumber(0));
        assert!(is_new);
        for _ in 0..completions {
            assert!(self.queue.poll().is_some());
        }
    }

    fn write(&self, source: Source, length: u32, order: Order) -> Operation {
        Operation {
            request: Request::Write { source, key: self.target.key, address: self.target.start },
            length,
            flags: OperationFlags { order, signalled: true, ..OperationFlags::default() },
            immediate: None,
            context: 1,
            status: None,
        }
    }

    fn small_writes(&mut self, count: usize, batch: usize, order: Order, swap: bool) -> f64 {
        let write = self.write(Source::Inline([1; 64]), 8, order);
        let table = Arc::clone(&self.table);
        let started = Instant::now();
        for _ in 0..count / batch {
            let memory = table.access();
            let mut kept = None;
            for index in 0..batch {
                let (outbound, pools) = (&mut self.outbound[0], &mut self.pools[0]);
                outbound.post(&memory, pools, &write).unwrap();
                let fragment = outbound.next_fragment(&memory, pools, ROOM_BYTES);
                let Ok(Some(fragment)) = fragment else { panic!("nothing to send") };
                outbound.on_acknowledged(pools, fragment.carried);
                if swap && index % 2 == 0 {
                    kept = Some(fragment);
                    continue;
                }
                self.handle(&memory, fragment.flags, &fragment.header, 8);
                if let Some(fragment) = kept.take() {
                    self.handle(&memory, fragment.flags, &fragment.header, 8);
                }
            }
            self.acknowledge(batch);
        }
        started.elapsed().as_nanos() as f64 / count as f64
    }

    fn large_writes(&mut self, count: usize, order: Order, swap: bool) -> f64 {
        let source = Source::Region { region: self.source, offset: 0 };
        let write = self.write(source, LARGE_BYTES, order);
        let table = Arc::clone(&self.table);
        let (mut fragments, mut kept) = (0, Vec::with_capacity(16));
        let started = Instant::now();
        for _ in 0..count {
            let memory = table.access();
            self.outbound[0].post(&memory, &mut self.pools[0], &write).unwrap();
            loop {
                let (outbound, pools) = (&mut self.outbound[0], &mut self.pools[0]);
                let fragment = outbound.next_fragment(&memory, pools, ROOM_BYTES);
                let Ok(Some(fragment)) = &fragment else { break };
                outbound.on_acknowledged(pools, fragment.carried);
                fragments += 1;
                let bytes = usize::from(fragment.carried.length);
                if swap && fragments % 32 < 16 && !fragment.carried.last {
                    kept.push((fragment.flags, fragment.header, bytes));
                    continue;
                }
                self.handle(&memory, fragment.flags, &fragment.header, bytes);
                if fragments % 32 == 31 || fragment.carried.last {
                    for (flags, header, bytes) in kept.drain(..) {
                        self.handle(&memory, flags, &header, bytes);
                    }
                }
            }
            self.acknowledge(1);
        }
        started.elapsed().as_nanos() as f64 / f64::from(fragments)
    }

    fn bare_copies(&self, count: usize) -> f64 {
        let memory = self.table.access();
        let mut fragments = 0;
        let started = Instant::now();
        for _ in 0..count {
            for offset in (0..LARGE_BYTES as usize - FRAGMENT_BYTES).step_by(FRAGMENT_BYTES) {
                let target = memory
                    .resolve(
                        self.domain,
                        self.target.key,
                        self.target.start + offset as u64,
                        FRAGMENT_BYTES as u64,
                        Rights::REMOTE_WRITE,
                    )
                    .unwrap();
                memory.place(&target, 0, &self.payload).unwrap();
                fragments += 1;
            }
        }
        started.elapsed().as_nanos() as f64 / f64::from(fragments)
    }

    fn reads(&mut self, count: usize) -> f64 {
        let (key, address) = (self.target.key, self.target.start);
        let request = Request::Read { sink: self.source, sink_offset: 0, key, address };
        let read = Operation {
            request,
            ..self.write(Source::Inline([0; 64]), LARGE_BYTES, Order::Relaxed)
        };
        let table = Arc::clone(&self.table);
        let mut fragments = 0;
        let started = Instant::now();
        for _ in 0..count {
            let memory = table.access();
            let (outbound, pools) = (&mut self.outbound[0], &mut self.pools[0]);
            outbound.post(&memory, pools, &read).unwrap();
            let question = outbound.next_fragment(&memory, pools, ROOM_BYTES).unwrap().unwrap();
            self.handle(&memory, question.flags, &question.header, 0);
            loop {
                let (outbound, pools) = (&mut self.outbound[1], &mut self.pools[1]);
                let answer = outbound.next_fragment(&memory, pools, ROOM_BYTES - 12).unwrap();
                let Some(answer) = answer else { break };
                let payload = &self.payload[..usize::from(answer.carried.length)];
                let (asker, pools) = (&mut self.outbound[0], &mut self.pools[0]);
                asker.handle_answer(&memory, pools, answer.flags, &answer.header, payload).unwrap();
                self.outbound[1].on_acknowledged(&mut self.pools[1], answer.carried);
                fragments += 1;
            }
            self.acknowledge(1);
        }
        started.elapsed().as_nanos() as f64 / f64::from(fragments)
    }
}

//! Two engines, a link in virtual time, real memory.

use std::collections::VecDeque;
use std::sync::Arc;

use delivery::{Instant, LinkCaps, LinkId, RxFrame, TxBatch};
use engine::{ConnectRequest, ConnectionHandle, Emitted, Engine, EngineConfig, Event};
use mem::{Buffer, MemoryTable, ProtectionDomain, Region, Rights, TableLimits};
use semantics::{
    Completion, CompletionKind, CompletionQueue, Operation, OperationFlags, Receive, Request,
    Source, StatusTable,
};
use wire_edge::PeerAddr;

struct Host {
    engine: Engine,
    memory: Arc<MemoryTable>,
    domain: ProtectionDomain,
    queue: Arc<CompletionQueue>,
    buffer: Arc<Buffer>,
    region: Region,
    connection: Option<ConnectionHandle>,
}

struct Pair {
    now: Instant,
    hosts: [Host; 2],
    /// Frames under way: arrival, to which host, on which link, bytes.
    wire: VecDeque<(Instant, usize, u8, Vec<u8>)>,
    links: u8,
    frames: u64,
    /// Which frames to drop.
    drop: Box<dyn FnMut(u64) -> bool>,
}

const DELAY_NS: u64 = 20_000;
const BUFFER_BYTES: u64 = 1 << 22;

fn address(host: usize, link: u8) -> PeerAddr {
    PeerAddr::from(std::net::SocketAddr::from(([10, link, 0, host as u8 + 1], 7000)))
}

impl Host {
    fn new(host: usize, links: u8, config: EngineConfig) -> Self {
        let memory = Arc::new(MemoryTable::new(TableLimits::default(), [1, 2]));
        let domain = memory.allocate_domain();
        let buffer = Buffer::new(BUFFER_BYTES);
        let region = memory.register(domain, Arc::clone(&buffer), Rights::ALL).unwrap();
        let status = Arc::new(StatusTable::new(64));
        let mut engine = Engine::new(config, [host as u8 + 7; 32], status);
        for link in 0..links {
            let caps = LinkCaps {
                frame_bytes_max: 1472,
                frame_bytes_safe: 1472,
                segments: 44,
                receive_buffer_bytes: 1 << 20,
                rate: None,
                local: address(host, link),
            };
            engine.attach_link(LinkId(link), caps).unwrap();
        }
        let queue = Arc::new(CompletionQueue::new(4096));
        Self { engine, memory, domain, queue, buffer, region, connection: None }
    }
}

impl Pair {
    fn new(links: u8) -> Self {
        let hosts = [0, 1].map(|host| Host::new(host, links, EngineConfig::default()));
        let drop = Box::new(|_| false);
        Self { now: Instant(1_000), hosts, wire: VecDeque::new(), links, frames: 0, drop }
    }

    fn connected(links: u8) -> Self {
        let mut pair = Self::new(links);
        pair.hosts[1].engine.listen(0);
        let request = ConnectRequest {
            paths: vec![(LinkId(0), address(1, 0))],
            service: 0,
            private_data: b"hello".to_vec(),
            domain: pair.hosts[0].domain,
            queue: Arc::clone(&pair.hosts[0].queue),
        };
        let handle = pair.hosts[0].engine.connect(pair.now, request).unwrap();
        pair.hosts[0].connection = Some(handle);
        pair.run_for(50_000_000);
        assert!(pair.hosts.iter().all(|host| host.connection.is_some_and(|connection| {
            let info = host.engine.info(connection).unwrap();
            info.established && info.paths.len() == usize::from(links)
        })));
        pair
    }

    fn transmit(&mut self, host: usize) {
        let Self { now, hosts, wire, frames, drop, .. } = self;
        let access = hosts[host].memory.access();
        for _ in 0..100 {
            let more =
                hosts[host].engine.poll_transmit(*now, &access, &mut |link, batch: &TxBatch| {
                    for index in 0..batch.len() {
                        let frame = batch.frame(index);
                        let mut bytes = frame.header.to_vec();
                        if frame.payload.len > 0 {
                            // SAFETY: the test's buffers outlive the turn.
                            bytes.extend_from_slice(unsafe {
                                std::slice::from_raw_parts(
                                    frame.payload.start,
                                    frame.payload.len as usize,
                                )
                            });
                        }
                        *frames += 1;
                        if !drop(*frames) {
                            wire.push_back((now.after_ns(DELAY_NS), 1 - host, link.0, bytes));
                        }
                    }
                    Emitted::Taken(batch.len())
                });
            if !more {
                break;
            }
        }
    }

    fn events(&mut self, host: usize) {
        while let Some(event) = self.hosts[host].engine.poll_event() {
            if let Event::Requested { connection, private_data, .. } = event {
                assert_eq!(private_data, b"hello");
                let Host { engine, domain, queue, .. } = &mut self.hosts[host];
                engine.accept(self.now, connection, *domain, Arc::clone(queue), b"yes").unwrap();
                self.hosts[host].connection = Some(connection);
            } else {
                println!("{:?} host {host}: {event:?}", self.now);
            }
        }
    }

    fn step(&mut self, until: Instant) -> bool {
        for host in 0..2 {
            self.events(host);
            self.transmit(host);
        }
        let next = self.wire.iter().map(|frame| frame.0).min().unwrap_or(Instant::NEVER);
        let timer = self.hosts.iter().map(|host| host.engine.poll_timeout()).min().unwrap();
        let at = next.min(timer);
        if at > until {
            self.now = until;
            return false;
        }
        self.now = self.now.max(at);
        while let Some(index) = self.wire.iter().position(|frame| frame.0 <= self.now) {
            let (_, host, link, mut bytes) = self.wire.remove(index).unwrap();
            let access = self.hosts[host].memory.access();
            let frame = RxFrame {
                bytes: &mut bytes,
                received_at: self.now,
                congestion_experienced: false,
                from: address(1 - host, link),
            };
            self.hosts[host].engine.handle_frame(self.now, &access, LinkId(link), frame);
        }
        for host in &mut self.hosts {
            if host.engine.poll_timeout() <= self.now {
                let access = host.memory.access();
                host.engine.handle_timeout(self.now, &access);
            }
        }
        true
    }

    fn run_for(&mut self, ns: u64) {
        let until = self.now.after_ns(ns);
        while self.step(until) {}
    }

    fn post(&mut self, host: usize, request: Request, length: u32, context: u64) {
        let operation = Operation {
            request,
            length,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context,
            status: None,
        };
        let Host { engine, memory, connection, .. } = &mut self.hosts[host];
        engine.post(&memory.access(), connection.unwrap(), &operation).unwrap();
    }

    fn source(&self, host: usize, offset: u64) -> Source {
        Source::Region { region: self.hosts[host].region.id, offset }
    }

    fn remote(&self, host: usize, offset: u64) -> (wire_edge::RemoteKey, u64) {
        (self.hosts[host].region.key, self.hosts[host].region.start + offset)
    }

    fn done(&self, host: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.hosts[host].queue.poll()).collect()
    }

    fn fill(&self, host: usize, bytes: u64) {
        let pattern: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        self.hosts[host].buffer.write(0, &pattern);
    }

    fn assert_same(&self, bytes: u64) {
        let read = |host: usize| {
            let mut out = vec![0; bytes as usize];
            self.hosts[host].buffer.read(0, &mut out);
            out
        };
        assert!(read(0) == read(1), "the two memories differ");
    }
}

#[test]
fn small_and_large_writes_arrive_and_complete_in_order() {
    let mut pair = Pair::connected(1);
    pair.fill(0, BUFFER_BYTES);
    for (index, (offset, length)) in
        [(0, 8), (8, 0), (8, 4096), (4104, 1 << 20), (1_052_680, 100_000)].into_iter().enumerate()
    {
        let (key, address) = pair.remote(1, offset);
        let source = pair.source(0, offset);
        pair.post(0, Request::Write { source, key, address }, length, index as u64);
    }
    pair.run_for(200_000_000);
    let done = pair.done(0);
    assert_eq!(done.iter().map(|c| c.context).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert!(done.iter().all(|c| c.result.is_ok()), "{done:?}");
    pair.assert_same(1_152_680);
    assert_eq!(pair.hosts[1].engine.pool_use(), semantics::PoolUse::default());
}

#[test]
fn every_kind_of_operation_works_under_loss_on_two_links() {
    for links in [1, 2] {
        let mut pair = Pair::connected(links);
        pair.fill(1, BUFFER_BYTES);
        pair.drop = Box::new(|frame| frame % 11 == 3);
        let receive = Receive {
            region: pair.hosts[1].region.id,
            offset: 2_000_000,
            length: 5000,
            context: 77,
        };
        {
            let Host { engine, memory, connection, .. } = &mut pair.hosts[1];
            engine.post_receive(&memory.access(), connection.unwrap(), receive).unwrap();
        }
        pair.hosts[1].buffer.store_u64(1_000_000, 40);
        let (key, address) = pair.remote(1, 1_000_000);
        pair.post(0, Request::FetchAdd { key, address, operand: 2 }, 8, 1);
        pair.post(0, Request::CompareSwap { key, address, compare: 42, swap: 7 }, 8, 2);
        let sink = pair.hosts[0].region.id;
        let (key, address) = pair.remote(1, 0);
        pair.post(0, Request::Read { sink, sink_offset: 0, key, address }, 1_000_000, 3);
        let source = pair.source(0, 0);
        pair.post(0, Request::Send { source }, 5000, 4);
        let source = pair.source(0, 3_000_000);
        let (key, address) = pair.remote(1, 3_000_000);
        pair.post(0, Request::Write { source, key, address }, 500_000, 5);
        pair.run_for(2_000_000_000);
        let done = pair.done(0);
        let seen: Vec<_> = done.iter().map(|c| (c.context, c.value, c.result)).collect();
        assert_eq!(
            seen,
            [(1, 40, Ok(())), (2, 42, Ok(())), (3, 0, Ok(())), (4, 0, Ok(())), (5, 0, Ok(()))]
        );
        assert_eq!(pair.hosts[1].buffer.load_u64(1_000_000), 7);
        pair.assert_same(1_000_000);
        let received = pair.done(1);
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].kind, received[0].bytes), (CompletionKind::Receive, 5000));
        for host in &pair.hosts {
            assert_eq!(host.engine.pool_use(), semantics::PoolUse::default());
        }
        let _ = pair.links;
    }
}

#[test]
fn a_wrong_key_fails_the_operation_and_ends_the_connection() {
    let mut pair = Pair::connected(1);
    let (key, address) = pair.remote(1, 0);
    let source = pair.source(0, 0);
    let wrong = wire_edge::RemoteKey(key.0 ^ 1);
    pair.post(0, Request::Write { source, key: wrong, address }, 8, 1);
    pair.post(0, Request::Write { source, key, address }, 8, 2);
    pair.run_for(2_000_000_000);
    let done = pair.done(0);
    assert_eq!(
        done.iter().map(|c| (c.context, c.result)).collect::<Vec<_>>(),
        [
            (1, Err(semantics::OperationError::RemoteAccess(semantics::AccessFault::Key))),
            (2, Err(semantics::OperationError::Flushed))
        ]
    );
    assert_eq!(pair.hosts[0].engine.connection_count(), 0);
    assert_eq!(pair.hosts[1].engine.connection_count(), 0);
}

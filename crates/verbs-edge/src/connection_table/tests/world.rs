//! Two hosts in virtual time, each with an engine, a connection table and one queue pair.
//!
//! A host runs only when the test says so. In this way, the test decides which host is slow. The
//! inbox of a host contains frames in the order in which they were sent.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use delivery::{Instant, LinkCaps, LinkId, RxFrame, TxBatch};
use engine::{Emitted, Engine, EngineConfig};
use mem::{MemoryTable, Payload, TableLimits};
use semantics::StatusTable;
use verbs::{
    AddressVectorAttributes, AttributeMask, CompletionQueue, Device, DeviceAttributes, Error, Gid,
    GidEntry, GidKind, Log, LogLevel, Modification, OnDemandPaging, PortAttributes, PortState,
    Provider, QueuePair, QueuePairAttributes, QueuePairInit, QueuePairLimits, QueuePairState,
    QueuePairType, ReceiveRequest, Registry, SendFlags, SendOpcode, SendRequest, Services,
    Strictness, Transport, Vendor, Wire, WorkCompletion,
};
use wire_edge::PeerAddr;
use work::SharedReceives;

use crate::connection_table::{ConnectionTable, Phase, Wanted};
use crate::greeting::{QueuePairPlace, SERVICE};
use crate::meeting::Expected;
use crate::source::QueuePairSource;

/// Index of the host whose queue pair has the smaller number.
pub(super) const SMALLER: usize = 0;
/// Index of the host whose queue pair has the larger number.
pub(super) const LARGER: usize = 1;

/// Two hosts and the frames between them.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) hosts: [Host; 2],
    /// Time that a frame needs to reach the inbox of a host, in nanoseconds.
    pub(super) delay_ns: u64,
    /// Frames in flight: time of arrival, destination host, bytes.
    transit: VecDeque<(Instant, usize, Vec<u8>)>,
}

/// A host with one queue pair.
pub(super) struct Host {
    pub(super) engine: Engine,
    memory: Arc<MemoryTable>,
    table: Arc<ConnectionTable>,
    source: Arc<QueuePairSource>,
    queue_pair: Arc<QueuePair>,
    queue: Arc<CompletionQueue>,
    wanted: Wanted,
    /// Index of the host with the queue pair's peer.
    peer: usize,
    timeout: u8,
    /// Frames that have arrived but that the host has not handled.
    pub(super) inbox: VecDeque<Vec<u8>>,
    has_more: bool,
}

impl World {
    /// Creates two hosts with the timeout code `timeout`. Their queue pairs are each other's peers.
    pub(super) fn new(timeout: u8) -> Self {
        Self::with([LARGER, SMALLER], timeout)
    }

    /// Creates two hosts with the timeout code `timeout`. Each queue pair is its own peer.
    pub(super) fn apart(timeout: u8) -> Self {
        Self::with([SMALLER, LARGER], timeout)
    }

    fn with(peers: [usize; 2], timeout: u8) -> Self {
        let hosts = [SMALLER, LARGER].map(|at| Host::new((at, peers[at]), timeout));
        Self { now: Instant(1000), hosts, delay_ns: 0, transit: VecDeque::new() }
    }

    /// Removes the queue pair of a host from the connection table of that host.
    pub(super) fn leave(&mut self, at: usize) {
        let now = self.now;
        let Host { engine, table, queue_pair, .. } = &mut self.hosts[at];
        table.leave(engine, now, queue_pair.number());
    }

    /// Adds the queue pair of a host to the connection table of that host again.
    pub(super) fn enter(&mut self, at: usize) {
        let Host { table, source, .. } = &self.hosts[at];
        table.enter(source);
    }

    /// Starts the search for the peer of a host's queue pair.
    pub(super) fn seek(&mut self, at: usize) {
        let now = self.now;
        let Host { engine, memory, table, queue_pair, wanted, .. } = &mut self.hosts[at];
        table.seek(engine, &memory.access(), now, queue_pair.number(), *wanted);
        self.transmit(at);
    }

    /// Makes the queue pair of a host ready to send, if necessary, and posts a message.
    pub(super) fn be_ready_to_send(&mut self, at: usize) {
        let now = self.now;
        let Host { engine, table, queue_pair, timeout, peer, .. } = &mut self.hosts[at];
        if queue_pair.state() != QueuePairState::ReadyToReceive {
            return;
        }
        modify(queue_pair, (*peer, *timeout), QueuePairState::ReadyToSend, 0x1_2e01);
        let send = SendRequest {
            id: 1,
            opcode: SendOpcode::Send { immediate: None },
            flags: SendFlags::default(),
            pieces: &[],
            inline: None,
            to: None,
        };
        queue_pair.post_send(&[send]).expect("it has room");
        table.update(engine, now, queue_pair.number());
        self.turn(at, 0);
    }

    /// Makes a host handle at most `frames` frames, and then its timers. The runtime handles frames
    /// and timers in the same order.
    pub(super) fn turn(&mut self, at: usize, frames: usize) {
        let now = self.now;
        while self.transit.front().is_some_and(|(due, ..)| *due <= now)
            && let Some((_, to, bytes)) = self.transit.pop_front()
        {
            self.hosts[to].inbox.push_back(bytes);
        }
        let Host { engine, memory, table, inbox, source, peer, .. } = &mut self.hosts[at];
        for mut bytes in inbox.drain(..frames.min(inbox.len())) {
            let frame = RxFrame {
                bytes: &mut bytes,
                outside: Payload::EMPTY,
                received_at: now,
                congestion_experienced: false,
                from: address(*peer),
            };
            engine.handle_frame(now, &memory.access(), LinkId(0), frame);
        }
        if engine.poll_timeout() <= now {
            engine.handle_timeout(now, &memory.access());
        }
        if table.due.next() <= now {
            table.look(engine, &memory.access(), now);
        }
        while let Some(event) = engine.poll_event() {
            table.on_event(engine, &memory.access(), now, &event);
        }
        source.pull(engine, &memory.access(), now, 16);
        self.transmit(at);
    }

    fn transmit(&mut self, at: usize) {
        let now = self.now;
        let Host { engine, memory, has_more, .. } = &mut self.hosts[at];
        let mut sent = Vec::new();
        *has_more = engine.poll_transmit(now, &memory.access(), &mut |_, batch: &TxBatch| {
            for index in 0..batch.len() {
                let frame = batch.frame(index);
                assert_eq!(frame.payload.len, 0, "no message has bytes");
                sent.push(frame.header.to_vec());
            }
            Emitted::Taken(batch.len())
        });
        let (due, to) = (now.after_ns(self.delay_ns), self.hosts[at].peer);
        if self.delay_ns == 0 {
            self.hosts[to].inbox.extend(sent);
        } else {
            self.transit.extend(sent.into_iter().map(|bytes| (due, to, bytes)));
        }
    }

    /// Lets time pass. Only the hosts in `running` run in this time.
    pub(super) fn pass(&mut self, ns: u64, running: &[usize]) {
        let until = self.now.after_ns(ns);
        loop {
            for &at in running {
                self.turn(at, usize::MAX);
            }
            let next = running.iter().map(|&at| self.hosts[at].due(self.now)).min();
            let arrival = self.transit.front().map_or(Instant::NEVER, |(due, ..)| *due);
            let next = next.unwrap_or(Instant::NEVER).min(arrival).max(self.now.after_ns(STEP_NS));
            if next > until {
                break;
            }
            self.now = next;
        }
        self.now = until;
    }

    /// Polls the completion queues of both hosts and returns the new completions. For each host,
    /// completions of sends come first.
    pub(super) fn completions(&self) -> [Vec<WorkCompletion>; 2] {
        self.hosts.each_ref().map(|host| {
            let mut completions = [WorkCompletion::NOTHING; 8];
            let found = host.queue.poll(&mut completions).expect("it is this process");
            completions[..found].to_vec()
        })
    }

    /// Returns whether both queue pairs are connected.
    pub(super) fn are_connected(&self) -> bool {
        self.hosts.iter().all(|host| {
            let tables = host.table.tables();
            let entry = tables.entries.get(&host.queue_pair.number()).expect("it was entered");
            matches!(entry.phase, Phase::Connected { .. })
        })
    }
}

impl Host {
    fn new((at, peer): (usize, usize), timeout: u8) -> Self {
        let memory = Arc::new(MemoryTable::new(TableLimits::default(), [1, 2]));
        let config = EngineConfig::default().confirm_ns(10_000_000_000);
        let status = Arc::new(StatusTable::new(64));
        let mut engine =
            Engine::new(config, [at as u8 + 1; 32], status).expect("a good configuration");
        engine.attach_link(LinkId(0), caps(at)).expect("the first link");
        engine.listen(SERVICE);
        let log = Log::open(LogLevel::Off, None);
        let registry = Registry::new();
        let table = Arc::new(ConnectionTable::new(&registry, log.expect("there is no trace")));
        let provider = Arc::new(Still {
            attributes: attributes(),
            registry,
            memory: Arc::clone(&memory),
            number: AtomicU64::new(number(at).into()),
        });
        let context = Device::new(provider).open().expect("it opens");
        let queue = context.create_completion_queue(16, None).expect("a queue");
        let domain = context.allocate_domain().expect("a domain");
        let init = QueuePairInit {
            service: QueuePairType::Reliable,
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            shared_queue: None,
            limits: QueuePairLimits { sends: 4, receives: 4, ..QueuePairLimits::default() },
            signals_all: true,
        };
        let queue_pair = domain.create_queue_pair(&init).expect("a queue pair");
        modify(&queue_pair, (peer, timeout), QueuePairState::Init, 0x39);
        modify(&queue_pair, (peer, timeout), QueuePairState::ReadyToReceive, 0x12_9181);
        queue_pair.post_receive(&[ReceiveRequest { id: 2, pieces: &[] }]).expect("it has room");
        let domain = queue_pair.domain().expect("it has one");
        let source = Arc::new(QueuePairSource::new(&queue_pair, domain, table.due()));
        table.enter(&source);
        let expected = Expected {
            kind: QueuePairType::Reliable,
            own: place(at),
            peer: place(peer),
            receive_psn: 7,
            send_psn: None,
        };
        let wanted = Wanted { expected, path: Some((LinkId(0), address(peer))) };
        let inbox = VecDeque::new();
        Self {
            engine,
            memory,
            table,
            source,
            queue_pair,
            queue,
            wanted,
            peer,
            timeout,
            inbox,
            has_more: false,
        }
    }

    /// Returns the time at which the host next has work to do, not before `now`.
    fn due(&self, now: Instant) -> Instant {
        if self.has_more || !self.inbox.is_empty() {
            return now;
        }
        self.engine.poll_timeout().min(self.table.due.next())
    }
}

/// Moves a queue pair to another state. The queue pair of host `peer` is its peer.
fn modify(queue_pair: &QueuePair, (peer, timeout): (usize, u8), state: QueuePairState, mask: u32) {
    let gid = place(peer).gid;
    let attributes = QueuePairAttributes {
        path_mtu: 1024,
        destination: number(peer),
        path: AddressVectorAttributes { gid, is_global: true, port: 1, ..Default::default() },
        receive_psn: 7,
        send_psn: 7,
        timeout,
        retries: 7,
        not_ready_retries: 7,
        port: 1,
        ..QueuePairAttributes::default()
    };
    let (mask, current) = (AttributeMask(mask), queue_pair.state());
    let change = Modification { mask, state, current, drained_event: false, attributes };
    queue_pair.modify(&change).expect("a transition");
}

impl Drop for Host {
    fn drop(&mut self) {
        self.queue_pair.destroy().expect("it is there");
        self.table.leave(&mut self.engine, Instant::NEVER, self.queue_pair.number());
    }
}

/// A device that starts no threads and sends no frames. The tests run the engine themselves.
struct Still {
    attributes: DeviceAttributes,
    registry: Arc<Registry>,
    memory: Arc<MemoryTable>,
    number: AtomicU64,
}

struct StillWire;

impl Provider for Still {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    fn port(&self) -> PortAttributes {
        PortAttributes { state: PortState::Active, active_mtu: 1024, gids: 1, rate: None }
    }

    fn path_mtu(&self) -> u32 {
        1024
    }

    fn gids(&self) -> Vec<GidEntry> {
        vec![GidEntry { gid: place(SMALLER).gid, kind: GidKind::RoceV2, index: 0, interface: 1 }]
    }

    fn memory(&self) -> Result<Arc<MemoryTable>, Error> {
        Ok(Arc::clone(&self.memory))
    }

    fn reserve_number(&self, _service: QueuePairType) -> Result<u32, Error> {
        Ok(self.number.load(Ordering::Relaxed) as u32)
    }

    fn release_number(&self, _number: u32) {}

    fn wire(&self, _queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error> {
        Ok(Box::new(StillWire))
    }

    fn receives_posted(&self, _receives: &Arc<SharedReceives>) {}

    fn arm_limit(&self, _receives: &Arc<SharedReceives>, _limit: u32) -> Result<bool, Error> {
        Ok(false)
    }

    fn drive(&self) {}

    fn send_deferred(&self) {}

    fn wait(&self, _ready: &mut dyn FnMut() -> bool) {}

    fn wake(&self) {}

    fn serve_alone(&self) {}
}

impl Wire for StillWire {
    fn open(&self) -> Result<(), Error> {
        Ok(())
    }

    fn connect(&self) -> Result<(), Error> {
        Ok(())
    }

    fn update(&self) -> Result<(), Error> {
        Ok(())
    }

    fn ring(&self) {}

    fn receives(&self) {}

    fn drain(&self) {}

    fn send_out(&self) {}

    fn close(&self) {}

    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Ok(())
    }
}

fn attributes() -> DeviceAttributes {
    DeviceAttributes {
        name: "still0".into(),
        node_guid: [1; 8],
        vendor: Vendor::NONE,
        services: Services::of(Transport::InfiniBand),
        on_demand_paging: OnDemandPaging::Supported,
        message_bytes_max: 1 << 20,
        queue_pairs_max: 1,
        work_requests_max: 64,
        pieces_max: 4,
        read_pieces_max: 4,
        inline_max: 64,
        completion_queues_max: 4,
        completions_max: 64,
        regions_max: 4,
        windows_max: 1,
        region_bytes_max: 1 << 20,
        domains_max: 4,
        read_depth_max: 16,
        shared_queues_max: 1,
        shared_receives_max: 16,
        address_handles_max: 1,
        groups_max: 1,
        strictness: Strictness::Lenient,
    }
}

fn number(at: usize) -> u32 {
    0x1005 + at as u32
}

fn ip(at: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, at as u8 + 1).into()
}

fn place(at: usize) -> QueuePairPlace {
    QueuePairPlace { number: number(at), gid: Gid::of(ip(at)) }
}

fn address(at: usize) -> PeerAddr {
    SocketAddr::new(ip(at), 0xf001).into()
}

fn caps(at: usize) -> LinkCaps {
    LinkCaps {
        frame_bytes_max: 1472,
        frame_bytes_safe: 1472,
        segments: 44,
        offloads: false,
        receive_buffer_bytes: 1 << 20,
        rate: None,
        local: address(at),
    }
}

/// Shortest time between two runs of a host, in nanoseconds.
const STEP_NS: u64 = 20_000;

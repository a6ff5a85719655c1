//! Two engines with real memory, and a network in virtual time between them.
//!
//! Every turn of a host checks two conditions:
//!
//! * The timer of the host is in the future, or the host has more to send.
//! * Time has advanced within the last 10 000 turns.

#![expect(dead_code, reason = "every test takes what it needs")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use delivery::{Instant, LinkCaps, LinkId, RxFrame, TxBatch};
use engine::{Closed, Event};
use engine::{
    ConnectRequest, ConnectionHandle, ConnectionInfo, Emitted, Engine, EngineConfig, Terms,
};
use mem::{Buffer, MemoryTable, Payload, ProtectionDomain, Region, Rights, TableLimits};
use semantics::{
    Completion, CompletionQueue, Operation, OperationFlags, PoolUse, PostError, Queues, Receive,
    Request, Source, StatusTable,
};
use wire_edge::{PeerAddr, RemoteKey};

/// Bytes of each host's registered memory.
pub(crate) const BUFFER_BYTES: u64 = 1 << 22;

/// Default delay of a link in one direction, in nanoseconds.
pub(crate) const DELAY_NS: u64 = 20_000;

/// The capabilities of one link, which are equal at both hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) frame_bytes_max: u16,
    pub(crate) frame_bytes_safe: u16,
    /// The rate of the network, in bits per second; `None` for no limit. Engines do not know this
    /// rate.
    pub(crate) rate: Option<u64>,
    /// Whether the link has segmentation offload, with which a call for many frames costs as little
    /// as a call for one frame.
    pub(crate) offloads: bool,
}

impl Default for LinkPlan {
    fn default() -> Self {
        Self { frame_bytes_max: 1472, frame_bytes_safe: 1472, rate: None, offloads: false }
    }
}

/// One of the two hosts, and its end of the connection.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) memory: Arc<MemoryTable>,
    pub(crate) domain: ProtectionDomain,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) region: Region,
    pub(crate) connection: Option<ConnectionHandle>,
    /// Events in the order of their arrival, including requests.
    pub(crate) events: Vec<Event>,
    /// Whether the host had more to send at the end of its last turn.
    pub(crate) more: bool,
    /// Whether the host accepts requests immediately.
    pub(crate) accepts: bool,
    /// Whether the host is suspended.
    pub(crate) paused: bool,
    /// Terms with which the host connects and accepts.
    pub(crate) terms: Terms,
}

/// One direction of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Channel {
    pub(crate) delay_ns: u64,
    /// Rate in bits per second; `None` for no limit.
    pub(crate) rate: Option<u64>,
    /// Maximum bytes of a frame; longer frames are lost.
    pub(crate) frame_bytes_max: usize,
    pub(crate) up: bool,
    /// Maximum bytes that wait for the wire; further frames are dropped.
    pub(crate) queue_bytes: u64,
    /// When the wire becomes free.
    pub(crate) free_at: Instant,
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

/// A frame in flight.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) to: usize,
    pub(crate) link: u8,
    pub(crate) from: PeerAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Returns whether to deliver a frame; a frame with the result false is dropped. May change the
/// frame.
pub(crate) type Filter = Box<dyn FnMut(u64, &mut Flight) -> bool>;

/// Returns how many frames of a batch a driver accepts. The arguments are the host, the link and
/// the number of frames.
pub(crate) type Take = Box<dyn FnMut(usize, u8, usize) -> Emitted>;

/// Two hosts and the network between them.
pub(crate) struct Pair {
    pub(crate) now: Instant,
    /// A copy of `now` that a [`Take`] can read.
    pub(crate) clock: Rc<Cell<Instant>>,
    pub(crate) hosts: [Host; 2],
    pub(crate) wire: BTreeMap<(Instant, u64), Flight>,
    /// The channels of each host, by link.
    pub(crate) channels: [Vec<Channel>; 2],
    pub(crate) frames: u64,
    /// For each sending host, the number of messages that a driver with segmentation offload would
    /// send. One message contains frames of equal size, and may end with a shorter frame.
    pub(crate) messages: [u64; 2],
    pub(crate) filter: Filter,
    pub(crate) take: Take,
    /// Number of frames and of bytes sent to addresses that belong to neither host.
    pub(crate) strays: BTreeMap<[u8; 20], (u64, u64)>,
    plans: Vec<LinkPlan>,
    /// Number of turns after time last advanced.
    turns: u32,
}

thread_local! {
    static SHARES_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Makes all links of the test use shared memory.
pub(crate) fn share_memory() {
    SHARES_MEMORY.set(true);
}

pub(crate) fn address(host: usize, link: u8) -> PeerAddr {
    if SHARES_MEMORY.get() {
        return PeerAddr::shared_memory(1, (u64::from(link) << 8) | (host as u64 + 1));
    }
    PeerAddr::from(std::net::SocketAddr::from(([10, link, 0, host as u8 + 1], 7000)))
}

impl Host {
    pub(crate) fn new(host: usize, seed: u8, plans: &[LinkPlan], config: EngineConfig) -> Self {
        Self::with_memory(host, seed, plans, config, BUFFER_BYTES)
    }

    pub(crate) fn with_memory(
        host: usize,
        seed: u8,
        plans: &[LinkPlan],
        config: EngineConfig,
        bytes: u64,
    ) -> Self {
        let memory = Arc::new(MemoryTable::new(TableLimits::default(), [1, 2]));
        let domain = memory.allocate_domain();
        let buffer = Buffer::new(bytes);
        let region = memory.register(domain, Arc::clone(&buffer), Rights::ALL).unwrap();
        let status = Arc::new(StatusTable::new(64));
        let mut engine = Engine::new(config, [seed; 32], status).unwrap();
        for (link, plan) in plans.iter().enumerate() {
            engine.attach_link(LinkId(link as u8), caps(host, link as u8, plan)).unwrap();
        }
        let queue = Arc::new(CompletionQueue::new(4096));
        Self {
            engine,
            memory,
            domain,
            queue,
            buffer,
            region,
            connection: None,
            events: Vec::new(),
            more: false,
            accepts: true,
            paused: false,
            terms: Terms::default(),
        }
    }

    /// Returns the queues that receive completions.
    fn queues(&self) -> Queues {
        let queue = || Arc::clone(&self.queue);
        if self.terms.queue_pair {
            return Queues::of_queue_pair(queue(), queue());
        }
        queue().into()
    }

    /// Returns the reasons of all closed connections.
    pub(crate) fn closed(&self) -> Vec<Closed> {
        let reason = |event: &Event| match event {
            Event::Closed { reason, .. } => Some(*reason),
            _ => None,
        };
        self.events.iter().filter_map(reason).collect()
    }

    pub(crate) fn established(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Established { .. })).count()
    }

    pub(crate) fn info(&self) -> ConnectionInfo {
        self.engine.info(self.connection.unwrap()).unwrap()
    }
}

pub(crate) fn caps(host: usize, link: u8, plan: &LinkPlan) -> LinkCaps {
    LinkCaps {
        frame_bytes_max: plan.frame_bytes_max,
        frame_bytes_safe: plan.frame_bytes_safe,
        segments: 44,
        offloads: plan.offloads,
        receive_buffer_bytes: 1 << 20,
        rate: None,
        local: address(host, link),
    }
}

impl Pair {
    /// Creates two hosts without a connection.
    pub(crate) fn new(links: u8) -> Self {
        Self::with(&vec![LinkPlan::default(); usize::from(links)], EngineConfig::default())
    }

    pub(crate) fn with(plans: &[LinkPlan], config: EngineConfig) -> Self {
        let [first, second] = [config.clone(), config];
        let hosts = [Host::new(0, 7, plans, first), Host::new(1, 8, plans, second)];
        Self::of(plans, hosts)
    }

    pub(crate) fn of(plans: &[LinkPlan], hosts: [Host; 2]) -> Self {
        let channel = |plan: &LinkPlan| Channel {
            delay_ns: DELAY_NS,
            rate: plan.rate,
            frame_bytes_max: usize::from(plan.frame_bytes_max),
            up: true,
            queue_bytes: 1 << 18,
            free_at: Instant(0),
            frames: 0,
            bytes: 0,
        };
        Self {
            now: Instant(1_000),
            clock: Rc::new(Cell::new(Instant(1_000))),
            hosts,
            wire: BTreeMap::new(),
            channels: [0, 1].map(|_| plans.iter().map(channel).collect()),
            frames: 0,
            messages: [0; 2],
            filter: Box::new(|_, _| true),
            take: Box::new(|_, _, frames| Emitted::Taken(frames)),
            strays: BTreeMap::new(),
            plans: plans.to_vec(),
            turns: 0,
        }
    }

    /// Creates two hosts with a connection over `links` links. The first host is the initiator.
    pub(crate) fn connected(links: u8) -> Self {
        let mut pair = Self::new(links);
        pair.establish();
        pair
    }

    pub(crate) fn connected_with(plans: &[LinkPlan], config: EngineConfig) -> Self {
        let mut pair = Self::with(plans, config);
        pair.establish();
        pair
    }

    /// Establishes the connection over all links.
    pub(crate) fn establish(&mut self) {
        self.hosts[1].engine.listen(0);
        self.connect();
        self.run_for(50_000_000);
        let links = self.plans.len();
        for host in &self.hosts {
            let info = host.info();
            assert!(info.established && info.paths.len() == links, "{info:?}");
        }
    }

    /// Requests a connection from the first host.
    pub(crate) fn connect(&mut self) -> ConnectionHandle {
        let request = ConnectRequest {
            paths: vec![(LinkId(0), address(1, 0))],
            service: 0,
            private_data: b"hello".to_vec(),
            domain: self.hosts[0].domain,
            queues: self.hosts[0].queues(),
            terms: self.hosts[0].terms.clone(),
        };
        let handle = self.hosts[0].engine.connect(self.now, request).unwrap();
        self.hosts[0].connection = Some(handle);
        handle
    }

    /// Replaces a host by a new host without any state.
    pub(crate) fn restart(&mut self, host: usize, seed: u8) {
        self.hosts[host] = Host::new(host, seed, &self.plans, EngineConfig::default());
        if host == 1 {
            self.hosts[1].engine.listen(0);
        }
    }

    /// Runs one turn of a host: timers, frames to send, events.
    pub(crate) fn turn(&mut self, host: usize) {
        if self.hosts[host].paused {
            return;
        }
        self.news(host);
        let now = self.now;
        // A call may have given the engine work that is due now, before the engine has set a timer
        // for that work.
        for _ in 0..3 {
            let Host { engine, memory, .. } = &mut self.hosts[host];
            if engine.poll_timeout() <= now {
                engine.handle_timeout(now, &memory.access());
            }
            self.transmit(host);
            self.news(host);
            let Host { engine, more, .. } = &self.hosts[host];
            if *more || engine.poll_timeout() > now {
                return;
            }
        }
        panic!("host {host}: the timer stays in the past at {now:?}, so its driver would spin");
    }

    fn transmit(&mut self, host: usize) {
        let Self {
            now, clock, hosts, wire, channels, frames, filter, take, strays, messages, ..
        } = self;
        let now = *now;
        clock.set(now);
        let Host { engine, memory, more, .. } = &mut hosts[host];
        for round in 0.. {
            let access = memory.access();
            let mut moved = false;
            let mut full = false;
            *more = engine.poll_transmit(now, &access, &mut |link, batch: &TxBatch| {
                let verdict = take(host, link.0, batch.len());
                // If the driver does not know whether frames left the host, all these frames leave
                // in this test.
                let (taken, leaving) = match verdict {
                    Emitted::Taken(taken) => (taken, taken),
                    Emitted::Doubtful { taken, doubtful } => (taken, taken + doubtful),
                    Emitted::PayloadUnmapped(_) => return verdict,
                };
                full |= taken < batch.len();
                messages[host] += messages_in(batch, taken.min(batch.len()));
                for index in 0..leaving.min(batch.len()) {
                    moved = true;
                    let frame = batch.frame(index);
                    let mut bytes = frame.header.to_vec();
                    if frame.payload.len > 0 {
                        // SAFETY: the hosts' buffers outlive the turn, and no other thread runs.
                        bytes.extend_from_slice(unsafe {
                            std::slice::from_raw_parts(
                                frame.payload.start,
                                frame.payload.len as usize,
                            )
                        });
                    }
                    let to = batch.to();
                    let Some(other) =
                        (0..2).find(|&other| address(other, link.0) == to && other != host)
                    else {
                        let (frames, sum) = strays.entry(to.0).or_default();
                        (*frames, *sum) = (*frames + 1, *sum + bytes.len() as u64);
                        continue;
                    };
                    *frames += 1;
                    let from = address(host, link.0);
                    let mut flight = Flight { to: other, link: link.0, from, bytes };
                    if filter(*frames, &mut flight)
                        && let Some(at) =
                            channels[host][usize::from(link.0)].carry(now, flight.bytes.len())
                    {
                        wire.insert((at, *frames), flight);
                    }
                }
                verdict
            });
            if !*more || full {
                break;
            }
            assert!(
                moved || round < 8,
                "host {host} has more to send at {now:?} and sends nothing"
            );
            assert!(round < 100_000, "host {host} sends without end at {now:?}");
        }
    }

    fn news(&mut self, host: usize) {
        while let Some(event) = self.hosts[host].engine.poll_event() {
            if let Event::Requested { connection, .. } = event
                && self.hosts[host].accepts
            {
                self.accept(host, connection);
            }
            self.hosts[host].events.push(event);
        }
    }

    pub(crate) fn accept(&mut self, host: usize, connection: ConnectionHandle) {
        let queues = self.hosts[host].queues();
        let Host { engine, domain, terms, .. } = &mut self.hosts[host];
        engine.accept_under(self.now, connection, *domain, queues, terms, b"yes").unwrap();
        self.hosts[host].connection = Some(connection);
    }

    /// Passes a frame to a host now.
    pub(crate) fn deliver(&mut self, flight: &mut Flight) {
        let Host { engine, memory, .. } = &mut self.hosts[flight.to];
        let frame = RxFrame {
            bytes: &mut flight.bytes,
            outside: Payload::EMPTY,
            received_at: self.now,
            congestion_experienced: false,
            from: flight.from,
        };
        engine.handle_frame(self.now, &memory.access(), LinkId(flight.link), frame);
    }

    /// Runs one turn of both hosts, and advances time to the next event. Returns false if the next
    /// event is after `until`.
    pub(crate) fn step(&mut self, until: Instant) -> bool {
        self.turn(0);
        self.turn(1);
        let frame = self.wire.keys().next().map_or(Instant::NEVER, |key| key.0);
        let mut next = frame;
        for host in self.hosts.iter().filter(|host| !host.paused) {
            next = next.min(host.engine.poll_timeout());
            if host.more {
                next = next.min(self.now.after_ns(RETRY_NS));
            }
        }
        if next > until {
            self.now = self.now.max(until);
            return false;
        }
        if next > self.now {
            self.now = next;
            self.turns = 0;
        }
        self.turns += 1;
        assert!(self.turns < 10_000, "time stands still at {:?}", self.now);
        while let Some(entry) = self.wire.first_entry()
            && entry.key().0 <= self.now
        {
            let number = entry.key().1;
            let mut flight = entry.remove();
            if self.hosts[flight.to].paused {
                // The host is suspended, so the frame waits in its buffers.
                self.wire.insert((self.now.after_ns(PAUSE_NS), number), flight);
            } else {
                self.deliver(&mut flight);
            }
        }
        true
    }

    pub(crate) fn run_for(&mut self, ns: u64) {
        let until = self.now.after_ns(ns);
        while self.step(until) {}
    }

    /// Runs until `holds` returns true. Panics after `ns` nanoseconds.
    pub(crate) fn run_until(&mut self, ns: u64, what: &str, mut holds: impl FnMut(&Self) -> bool) {
        let until = self.now.after_ns(ns);
        while !holds(self) {
            let goes_on = self.step(until);
            if !goes_on && !holds(self) {
                for host in &self.hosts {
                    println!("{:#?}", host.connection.and_then(|c| host.engine.info(c)));
                    println!("{:?} {:?}", host.engine.pool_use(), host.engine.counters());
                }
                panic!("not within {} ms: {what}", ns / 1_000_000);
            }
        }
    }

    pub(crate) fn try_post(
        &mut self,
        host: usize,
        request: Request,
        length: u32,
        context: u64,
        flags: OperationFlags,
    ) -> Result<(), PostError> {
        let operation =
            Operation { request, length, flags, immediate: None, context, status: None };
        let Host { engine, memory, connection, .. } = &mut self.hosts[host];
        engine.post(&memory.access(), connection.unwrap(), &operation).map(|_| ())
    }

    pub(crate) fn post(&mut self, host: usize, request: Request, length: u32, context: u64) {
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        self.try_post(host, request, length, context, flags).unwrap();
    }

    /// Posts a request, with the immediate `immediate` if there is one.
    pub(crate) fn post_with(
        &mut self,
        host: usize,
        request: Request,
        length: u32,
        context: u64,
        immediate: Option<u32>,
    ) {
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        let operation = Operation { request, length, flags, immediate, context, status: None };
        let Host { engine, memory, connection, .. } = &mut self.hosts[host];
        engine.post(&memory.access(), connection.unwrap(), &operation).unwrap();
    }

    /// Posts a write to the memory of the other host. The source and the destination have the same
    /// offset.
    pub(crate) fn write(&mut self, host: usize, offset: u64, length: u32, context: u64) {
        let (key, address) = self.remote(1 - host, offset);
        let source = self.source(host, offset);
        self.post(host, Request::Write { source, key, address }, length, context);
    }

    pub(crate) fn receive(&mut self, host: usize, offset: u64, length: u32, context: u64) {
        let receive = Receive { region: self.hosts[host].region.id, offset, length, context };
        let Host { engine, memory, connection, .. } = &mut self.hosts[host];
        engine.post_receive(&memory.access(), connection.unwrap(), receive).unwrap();
    }

    pub(crate) fn source(&self, host: usize, offset: u64) -> Source {
        Source::Region { region: self.hosts[host].region.id, offset }
    }

    pub(crate) fn remote(&self, host: usize, offset: u64) -> (RemoteKey, u64) {
        (self.hosts[host].region.key, self.hosts[host].region.start + offset)
    }

    pub(crate) fn done(&self, host: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.hosts[host].queue.poll()).collect()
    }

    pub(crate) fn fill(&self, host: usize, bytes: u64) {
        let pattern: Vec<u8> = (0..bytes).map(|i| (i * 7 + i / 251) as u8).collect();
        self.hosts[host].buffer.write(0, &pattern);
    }

    /// Returns whether the first `bytes` bytes of the two memories are equal.
    pub(crate) fn same(&self, bytes: u64) -> bool {
        let read = |host: usize| {
            let mut out = vec![0; bytes as usize];
            self.hosts[host].buffer.read(0, &mut out);
            out
        };
        read(0) == read(1)
    }

    /// Asserts that no operation is outstanding, no record is in use, and no timer would wake the
    /// endpoint.
    pub(crate) fn assert_idle(&self) {
        for (index, host) in self.hosts.iter().enumerate() {
            assert_eq!(host.engine.pool_use(), PoolUse::default(), "host {index}");
            assert!(host.engine.is_idle(), "host {index} has a timer");
            assert!(!host.engine.has_work() && !host.more, "host {index} has work");
        }
    }

    pub(crate) fn set_up(&mut self, host: usize, link: usize, up: bool) {
        self.channels[host][link].up = up;
    }
}

/// Returns the number of messages that a driver with segmentation offload needs for the first
/// `frames` frames of a batch.
fn messages_in(batch: &TxBatch, frames: usize) -> u64 {
    let lengths = (0..frames).map(|index| batch.frame(index).len());
    let (mut messages, mut equal, mut before) = (0, 0, 0);
    for length in lengths {
        if messages == 0 || length > equal || before < equal {
            messages += 1;
            equal = length;
        }
        before = length;
    }
    messages
}

impl Channel {
    /// Returns the time at which a frame arrives; `None` if the frame is lost.
    fn carry(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        self.frames += 1;
        self.bytes += bytes as u64;
        if !self.up || bytes > self.frame_bytes_max {
            return None;
        }
        let Some(rate) = self.rate else { return Some(now.after_ns(self.delay_ns)) };
        // The wire also carries preamble, Ethernet, IP and UDP headers, checksum and gap.
        let wire_ns = |bytes: u64| (bytes + 66) * 8 * 1_000_000_000 / rate;
        let waits_ns = self.free_at.since_ns(now);
        if waits_ns > wire_ns(self.queue_bytes) {
            return None;
        }
        self.free_at = self.free_at.max(now).after_ns(wire_ns(bytes as u64));
        Some(self.free_at.after_ns(self.delay_ns))
    }
}

/// Pause between checks of a suspended host's buffers, in nanoseconds.
const PAUSE_NS: u64 = 100_000;

/// Pause before the engine tries to pass frames to a full driver again, in nanoseconds.
const RETRY_NS: u64 = 10_000;

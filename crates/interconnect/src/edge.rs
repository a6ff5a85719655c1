//! Hosts with the real engine: the network carries frames of the edge protocol instead of messages
//! of a model.
//!
//! An [`EdgeFabric`] is a [`Fabric`] that contains other fabrics. It splits a message of a workload
//! into remote writes; the last write notifies the target. The engines turn the writes into frames,
//! and one [`Ethernet`] per rail carries the frames. Payload has only a length and a source
//! ([`mem::MemoryTable::register_ghost`]), unless [`PayloadKind::Bytes`] is set.
//!
//! A table of all operations checks three guarantees:
//!
//! * Every operation is placed exactly once.
//! * Every operation is placed from the right source and in the requested order.
//! * The completion of every operation is reported once.
//!
//! Each frame and each operation takes processor time of a host. The processor does one thing at a
//! time.

mod bytes;
mod counts;
mod frames;
mod host;
mod open_operations;
mod outage;
mod setup;
mod tap;
mod turn;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use delivery::SettingError;
use engine::{ConnectionHandle, Scratch};
use mem::{GhostPlacement, MemoryTable, RegisterError, TableLimits};
use semantics::{CompletionQueue, StatusTable};
use wire_edge::ENVELOPE_BYTES;

use super::ethernet::{Ethernet, EthernetConfiguration, PortCounters};
use super::routing::{RouteTable, Routing, RoutingError};
use super::simulation::{Context, FABRIC_PLACES, Fabric, Message, Stuck};
use super::topology::Topology;
use super::wheel::Event;
use bytes::Bytes;
pub use counts::Counts;
pub use fabric::EdgeCosts;
use frames::Frames;
pub use host::address;
use host::{Arrived, EngineHost};
use open_operations::OpenOperations;
pub use open_operations::Order;
pub(super) use open_operations::{OPERATION_BYTES_MAX, WINDOW_MAX};
pub use outage::{Outage, OutageError};
pub use tap::{Tap, TappedFrame};
use turn::push;

/// Settings of the hosts' software.
#[derive(Clone, Debug, PartialEq)]
pub struct EdgeConfiguration {
    /// Number of rails: separate copies of the network, each with a link to every host; 1 to 8.
    pub rails: u8,
    /// Sending policy of the engines.
    pub protocol: Protocol,
    /// Maximum length of the operations that write a message, in bytes; at most 128 MiB.
    pub operation_bytes: u32,
    /// Maximum number of outstanding operations from one host to another; at most 4096.
    pub window: u32,
    /// Maximum number of outstanding operations of one host; at most 8192.
    pub operations: u32,
    /// Required order between the operations of a message.
    pub order: Order,
    /// Length of the envelope: bytes of a frame on the wire before the header of the edge protocol.
    pub envelope_bytes: u32,
    /// Maximum number of frames that a driver accepts at a time; at most 64.
    pub segments: u16,
    /// Whether the driver accepts several frames of equal length at the cost of one frame, as a UDP
    /// driver with segmentation offload does. The engine then makes longer batches for each link.
    pub offloads: bool,
    /// Maximum number of frames that wait in a host for its link.
    pub transmit_queue_frames: u32,
    /// Maximum number of frames that wait for the processor of a host; at most 32768. Further
    /// frames are lost.
    pub receive_queue_frames: u32,
    /// Minimum time between two interrupts for frames, in picoseconds. If a frame arrives sooner
    /// after an interrupt, it waits for the next interrupt. Otherwise it causes an interrupt
    /// immediately. 0 means that the host polls.
    pub interrupt_interval_ps: u64,
    /// Processor time of frames and operations.
    pub costs: EdgeCosts,
    /// Whether frames are UDP datagrams. Switches mark congestion (ECN) in UDP datagrams, and hosts
    /// see these marks. If this is false, frames are raw Ethernet frames, which cannot be marked.
    pub sees_marks: bool,
    /// What the payload of operations consists of.
    pub payload: PayloadKind,
    /// Random losses, in frames per million.
    pub loss_ppm: u32,
    /// Cables and switches that fail and come back.
    pub outages: Vec<Outage>,
    /// Rate that each link reports to its engine, in bits per second.
    pub rate_bps: u64,
    /// Whether hosts connect before the run. This applies to all pairs that the workload can name
    /// in advance.
    pub connects_ahead: bool,
}

/// What the payload of operations consists of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PayloadKind {
    /// Only lengths; no bytes are stored.
    Ghost,
    /// Real bytes. The network copies them from one host's memory to another's, and the target's
    /// bytes are compared with the bytes sent.
    Bytes,
}

/// Sending policy of the engines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// The policy of this project.
    Edge,
    /// The policy of the `MultiEdge` paper: round robin, a fixed window, rare acknowledgements.
    MultiEdge,
}

impl EdgeConfiguration {
    /// Rejects settings with which a run is impossible.
    ///
    /// # Errors
    /// Returns [`SettingError`] if a setting is out of range. The error names the setting and its
    /// range.
    pub fn check(&self) -> Result<(), SettingError> {
        let within =
            |setting, value: u32, wanted| SettingError::unless_within(setting, &value, &wanted);
        within("rails", self.rails.into(), 1..=RAILS_MAX as u32)?;
        within("operation_bytes", self.operation_bytes, 1..=OPERATION_BYTES_MAX)?;
        within("window", self.window, 1..=WINDOW_MAX)?;
        within("operations", self.operations, 1..=POSTED_MAX)?;
        within("segments", self.segments.into(), 1..=SEGMENTS_MAX)?;
        within("transmit_queue_frames", self.transmit_queue_frames, 1..=u32::MAX)?;
        within("receive_queue_frames", self.receive_queue_frames, 1..=RECEIVE_QUEUE_MAX)?;
        within("loss_ppm", self.loss_ppm, 0..=1_000_000)
    }
}

impl Default for EdgeConfiguration {
    fn default() -> Self {
        Self {
            rails: 1,
            protocol: Protocol::Edge,
            operation_bytes: 1 << 16,
            window: 16,
            operations: 32,
            order: Order::default(),
            envelope_bytes: ENVELOPE_BYTES as u32,
            segments: 64,
            offloads: false,
            transmit_queue_frames: 64,
            receive_queue_frames: 1024,
            interrupt_interval_ps: 0,
            costs: EdgeCosts::default(),
            sees_marks: false,
            payload: PayloadKind::Ghost,
            loss_ppm: 0,
            outages: Vec::new(),
            rate_bps: 10_000_000_000,
            connects_ahead: true,
        }
    }
}

/// Why the hosts cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EdgeError {
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The length of frames is outside the protocol's range.
    #[error(
        "frames of {frame_bytes} bytes: the edge protocol needs 256 to 65507; change mtu_bytes of the fabric"
    )]
    FrameBytes {
        /// MTU without the envelope.
        frame_bytes: u32,
    },
    /// The topology does not support the requested routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// An outage names a cable or switch that does not exist.
    #[error(transparent)]
    Outage(#[from] OutageError),
    /// A connection that hosts make before the run could not be established.
    #[error("hosts {from} and {to} could not be connected on {rails} rails within a minute")]
    NotConnected {
        /// Host that tried to connect.
        from: u32,
        /// Host that should have accepted the connection.
        to: u32,
        /// Number of rails.
        rails: u8,
    },
    /// The hosts need more memory than a simulation may use.
    #[error(
        "payload = \"bytes\" needs {bytes} bytes of memory, and the maximum is {BYTES_MAX}: each \
         of {pairs} pairs of a sending and a receiving host needs twice window x operation_bytes; \
         lower window, operation_bytes or the number of hosts, or use payload = \"ghost\""
    )]
    Bytes {
        /// Memory needed, in bytes.
        bytes: u64,
        /// Number of pairs of a sending and a receiving host.
        pairs: u64,
    },
    /// The table of regions has no room for all hosts.
    #[error("memory of host {host}: {cause}")]
    Memory {
        /// The host.
        host: u32,
        /// Error that the table of regions reports.
        cause: RegisterError,
    },
}

/// Hosts with engines, and the rails between them.
#[derive(Debug)]
pub struct EdgeFabric {
    configuration: EdgeConfiguration,
    rails: Vec<Ethernet>,
    hosts: Vec<EngineHost>,
    memory: MemoryTable,
    /// Completions of all hosts. A host removes its own completions after its engine has run, at
    /// the end of its turn.
    queue: Arc<CompletionQueue>,
    frames: Frames,
    open_operations: OpenOperations,
    /// Memory of hosts, if the payload is bytes.
    bytes: Option<Bytes>,
    /// Observer that gets copies of frames, if one is set.
    tap: Option<Box<dyn Tap>>,
    pairs: Vec<Pair>,
    /// Index of each pair by its two hosts, the lower host first. This map is used for look-ups
    /// only. The order of iteration differs between runs, so iterating the map would make runs
    /// differ.
    pairs_by_hosts: HashMap<(u32, u32), u32>,
    streams: Vec<Stream>,
    /// Empty lists of streams, kept to reuse their memory.
    spare_lists: Vec<VecDeque<u32>>,
    work: Work,
    outages: Vec<outage::Change>,
    outages_are_scheduled: bool,
    /// Number of messages that were accepted and are not complete at their source.
    open_messages: u64,
    /// Hosts whose timers are suspended because no message is pending.
    suspended: Vec<u32>,
    /// Difference between the engines' clocks and the simulation's clock.
    base_ns: u64,
    frame_bytes_max: u16,
    counts: Counts,
}

/// Scratch memory that a host uses while its engine runs. All hosts share this memory, because only
/// one of them runs at a time.
#[derive(Debug, Default)]
struct Work {
    scratch: Scratch,
    received: Vec<u8>,
    /// Memory in which a frame and its payload are assembled.
    whole: Vec<u8>,
    arrived: Vec<u32>,
    placed: Vec<GhostPlacement>,
    /// Frames that will arrive soon. Each entry has the index of the message that carries the frame
    /// through the Ethernet, and the destination host.
    coming: Vec<(u32, u32)>,
}

/// Two hosts that have a connection or are establishing one.
#[derive(Clone, Copy, Debug)]
struct Pair {
    /// The host with the lower number connects to the other.
    hosts: [u32; 2],
    handles: [Option<ConnectionHandle>; 2],
    /// For each end, whether the end may post.
    is_established: [bool; 2],
}

/// Messages from one host to another. Pair p has two streams: stream 2p from its lower host, and
/// stream 2p + 1 from its higher host.
#[derive(Debug, Default)]
struct Stream {
    /// Messages whose operations are not all posted.
    waiting: VecDeque<u32>,
    /// Number of posted bytes of the first waiting message.
    posted_bytes: u32,
    /// Number of outstanding operations.
    in_flight: u32,
    /// Whether the stream is in its host's list of streams that have something to post.
    is_blocked: bool,
    /// For each message whose operations are all posted but not all complete: the number of its
    /// outstanding operations.
    ending: VecDeque<u32>,
    /// Number of outstanding operations of the first message in `waiting`.
    since_end: u32,
}

impl EdgeFabric {
    /// Creates hosts on a topology, with an Ethernet of this kind for each rail.
    ///
    /// # Errors
    /// Returns [`EdgeError`]; each variant names one cause.
    pub fn new(
        topology: &Topology,
        routing: Routing,
        ethernet: EthernetConfiguration,
        configuration: EdgeConfiguration,
        seed: u64,
    ) -> Result<Self, EdgeError> {
        configuration.check()?;
        let frame_bytes = ethernet.mtu_bytes.saturating_sub(configuration.envelope_bytes);
        let frame_bytes_max = u16::try_from(frame_bytes)
            .ok()
            .filter(|bytes| (256..=FRAME_BYTES_MAX).contains(bytes))
            .ok_or(EdgeError::FrameBytes { frame_bytes })?;
        let configuration = EdgeConfiguration { rate_bps: ethernet.host_rate_bps, ..configuration };
        let routes = RouteTable::new(topology, routing)?;
        let rail = |rail| {
            let mut network = Ethernet::new(topology, routes.clone(), ethernet);
            network.set_rail(rail);
            network
        };
        let regions_max = match configuration.payload {
            PayloadKind::Ghost => topology.hosts(),
            PayloadKind::Bytes => TableLimits::REGIONS_MAX,
        };
        let limits = TableLimits::default().regions_max(regions_max).domains_max(topology.hosts());
        let memory = MemoryTable::new(limits, [seed, !seed]);
        let status = Arc::new(StatusTable::new(1));
        let operations = topology.hosts() as usize * configuration.operations as usize;
        let queued_bytes = u64::from(ethernet.mtu_bytes + ethernet.overhead_bytes)
            * u64::from(configuration.transmit_queue_frames);
        let hosts = (0..topology.hosts()).map(|host| {
            let own_bps = topology.cable_settings(topology.host_link(host)).rate_bps;
            let rate_bps = own_bps.unwrap_or(ethernet.host_rate_bps);
            let rate = (rate_bps, queued_bytes * (8_000_000_000_000 / rate_bps.max(1)));
            EngineHost::new(host, rate, &configuration, frame_bytes_max, &memory, &status, seed)
        });
        Ok(Self {
            rails: (0..configuration.rails).map(rail).collect(),
            hosts: hosts.collect::<Result<_, _>>()?,
            memory,
            queue: Arc::new(CompletionQueue::new(operations + NOTIFICATIONS)),
            frames: Frames::default(),
            open_operations: OpenOperations::new(configuration.order),
            bytes: match configuration.payload {
                PayloadKind::Ghost => None,
                PayloadKind::Bytes => Some(Bytes::new(&configuration)),
            },
            tap: None,
            pairs: Vec::new(),
            pairs_by_hosts: HashMap::new(),
            streams: Vec::new(),
            spare_lists: Vec::new(),
            work: Work::default(),
            outages: outage::changes(topology, &configuration)?,
            outages_are_scheduled: false,
            open_messages: 0,
            suspended: Vec::new(),
            base_ns: 0,
            frame_bytes_max,
            counts: Counts::default(),
            configuration,
        })
    }

    /// Returns the counters of the run.
    pub fn counts(&self) -> Counts {
        let mut counts = self.counts.clone();
        counts.rails.resize(self.rails.len(), delivery::LinkCounters::default());
        for pair in &self.pairs {
            for (host, handle) in pair.hosts.iter().zip(pair.handles) {
                let engine = &self.hosts[*host as usize].engine;
                let info = handle.and_then(|handle| engine.info(handle));
                for path in info.iter().flat_map(|info| &info.paths) {
                    counts.rails[usize::from(path.link.0)].add(&path.counters);
                }
            }
        }
        counts.bytes_placed_again = self.open_operations.placed_again();
        counts.connections = self.pairs.len() as u64;
        counts
    }

    /// Returns the memory that the networks use, in bytes. Does not count the hosts.
    pub fn network_bytes(&self) -> usize {
        self.rails.iter().map(Ethernet::bytes).sum()
    }

    /// Compresses the state of idle connections on all hosts, as each engine does after
    /// [`engine::EngineConfig::rest_ns`]. Reduces the memory of these connections, and has no other
    /// effect.
    pub fn rest(&mut self) {
        for host in &mut self.hosts {
            host.engine.rest();
        }
    }

    /// Returns the violations of guarantees; empty if the engines are correct.
    pub fn violations(&self) -> &[String] {
        self.open_operations.violations()
    }

    /// Checks that the memory suffices for a workload with `ranks` ranks. Only a payload of bytes
    /// needs memory. `pairs` lists the pairs that the workload names. If `pairs` is empty, any two
    /// ranks may send to each other.
    ///
    /// # Errors
    /// Returns [`EdgeError`]; each variant names one cause.
    pub fn check_memory(&self, pairs: &[(u32, u32)], ranks: u32) -> Result<(), EdgeError> {
        self.bytes.as_ref().map_or(Ok(()), |bytes| bytes.check(pairs, ranks))
    }

    /// Checks at the end of a run that no host has written to erased memory.
    pub fn check_erased(&mut self) {
        if let Some(bytes) = &mut self.bytes {
            bytes.check_erased(&mut self.open_operations);
        }
    }

    /// Handles frames that have arrived from the rails, and frames that the rails have lost.
    fn on_rails(&mut self, context: &mut Context) {
        self.on_rails_lost(context);
        // All frames are collected before the first is handled. Handling a frame can add delivered
        // messages of the workload to `context`, and this function must not take those for frames.
        let mut arrived = std::mem::take(&mut self.work.arrived);
        arrived.extend(std::iter::from_fn(|| context.take_delivered()));
        for message in arrived.drain(..) {
            let arrived = context.messages.remove(message);
            self.on_arrived(context, message, &arrived);
        }
        self.work.arrived = arrived;
    }

    /// Handles the arrival of a frame at its host.
    fn on_arrived(&mut self, context: &mut Context, number: u32, arrived: &Message) {
        let Message { tag: frame, source, destination, is_marked, .. } = *arrived;
        let host = &mut self.hosts[destination as usize];
        let configuration = &self.configuration;
        if configuration.loss_ppm > 0 && host.random.chance_ppm(configuration.loss_ppm) {
            self.counts.frames_lost_at_random += 1;
            self.lose(context, number, frame);
            return;
        }
        if host.inbox.len() >= configuration.receive_queue_frames as usize {
            self.counts.frames_lost_at_hosts += 1;
            self.lose(context, number, frame);
            return;
        }
        if let Some(recorder) = &mut context.recorder {
            recorder.on_frame_arrived(number, Some((source, destination)));
        }
        let now_ps = context.wheel.now_ps();
        host.inbox.push_back(Arrived { frame, source, is_marked, at_ps: now_ps });
        self.counts.frames_received += 1;
        self.counts.frames_marked += u64::from(is_marked && configuration.sees_marks);
        let ready_ps = host.free_ps.max(host.interrupt_ps);
        self.tap_received(frame, (source, destination), is_marked, now_ps);
        if ready_ps <= now_ps {
            self.turn(context, destination);
        } else {
            self.schedule_turn(context, destination, ready_ps);
        }
    }

    /// Drops a frame that has arrived at its host.
    #[cold]
    fn lose(&mut self, context: &mut Context, number: u32, frame: u32) {
        self.frames.remove(frame);
        if let Some(recorder) = &mut context.recorder {
            recorder.on_frame_arrived(number, None);
        }
    }

    fn schedule_turn(&mut self, context: &mut Context, host: u32, time_ps: u64) {
        let state = &mut self.hosts[host as usize];
        if time_ps < state.turn_ps {
            state.turn_ps = time_ps;
            context.schedule(time_ps, TURN | host, 0);
        }
    }

    fn on_own_event(&mut self, context: &mut Context, event: Event) {
        let (time_ps, number) = (event.time_ps, event.place & NUMBER_MASK);
        match event.place & !NUMBER_MASK {
            TURN => {
                let host = &mut self.hosts[number as usize];
                if host.turn_ps == time_ps {
                    host.turn_ps = NEVER_PS;
                    self.turn(context, number);
                }
            }
            TIMER => self.on_timer(context, number, time_ps),
            DELIVER => context.deliver(event.subject),
            _ => self.change(context, number),
        }
    }

    fn on_timer(&mut self, context: &mut Context, number: u32, time_ps: u64) {
        let host = &mut self.hosts[number as usize];
        if host.timer_ps != time_ps {
            return;
        }
        host.timer_ps = NEVER_PS;
        if host.engine.poll_timeout() <= host::instant(self.base_ns, time_ps) {
            if host.free_ps <= time_ps {
                self.turn(context, number);
            } else {
                let free_ps = host.free_ps;
                self.schedule_turn(context, number, free_ps);
            }
        } else {
            self.arm(context, number);
        }
    }

    /// Schedules a check of a host's engine timers if any message is pending. Idle engines have
    /// timers too. If no message is pending, these timers are suspended, because the run could
    /// otherwise not end.
    fn arm(&mut self, context: &mut Context, number: u32) {
        let host = &mut self.hosts[number as usize];
        let deadline = host.engine.poll_timeout();
        if deadline.0 == u64::MAX {
            return;
        }
        if self.open_messages == 0 {
            if !host.is_suspended {
                host.is_suspended = true;
                self.suspended.push(number);
            }
            return;
        }
        let due_ps = deadline.0.saturating_sub(self.base_ns).saturating_mul(1_000);
        let due_ps = due_ps.max(context.wheel.now_ps());
        if due_ps < host.timer_ps {
            host.timer_ps = due_ps;
            context.schedule(due_ps, TIMER | number, 0);
        }
    }

    /// Counts an accepted message. If no other message is pending, resumes the suspended timers.
    fn on_opened(&mut self, context: &mut Context) {
        self.open_messages += 1;
        if self.open_messages > 1 {
            return;
        }
        for number in std::mem::take(&mut self.suspended) {
            self.hosts[number as usize].is_suspended = false;
            self.arm(context, number);
        }
    }
}

impl Fabric for EdgeFabric {
    fn inject(&mut self, context: &mut Context, message: u32) {
        self.schedule_outages(context);
        let (source, destination) = {
            let message = context.messages.get(message);
            (message.source, message.destination)
        };
        self.on_opened(context);
        if let Some(recorder) = &mut context.recorder {
            recorder.on_taken(message, (source, destination));
        }
        let (pair, is_new) = self.pair(source, destination);
        let stream = 2 * pair + u32::from(source > destination);
        push(&mut self.streams[stream as usize].waiting, message, &mut self.spare_lists);
        if is_new {
            self.connect(context, pair);
        }
        self.hosts[source as usize].block(&mut self.streams, stream);
        let now_ps = context.wheel.now_ps();
        // The host's engine does not run now, but in a turn that is scheduled for the same time or
        // later. A rank posts several messages at the same time, and one turn handles them
        // together.
        let ready_ps = self.hosts[source as usize].free_ps.max(now_ps);
        self.schedule_turn(context, source, ready_ps);
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        if event.place & OWN == OWN {
            self.on_own_event(context, event);
            return;
        }
        let rail = event.place >> RAIL_SHIFT & RAIL_MASK;
        let place = event.place & !(RAIL_MASK << RAIL_SHIFT);
        context.set_place_base(rail << RAIL_SHIFT);
        if let Some(recorder) = &mut context.recorder {
            recorder.set_rail(rail);
        }
        self.rails[rail as usize].handle(context, Event { place, ..event });
        context.set_place_base(0);
        self.on_rails(context);
    }

    /// Prefetches the state of frames that will arrive soon. With a thousand hosts the state
    /// exceeds the caches, and prefetching saves a third of the run's time.
    fn foresee(&mut self, context: &Context) {
        let Self { rails, work, frames, hosts, .. } = self;
        work.coming.clear();
        let mut seen = 0;
        for event in context.wheel.due().iter().filter(|event| event.place < FABRIC_PLACES) {
            if event.place & OWN != OWN {
                let rail = &rails[(event.place >> RAIL_SHIFT & RAIL_MASK) as usize];
                let place = event.place & !(RAIL_MASK << RAIL_SHIFT);
                let (bytes, message) = rail.touch(place, event.subject);
                seen ^= u64::from(bytes);
                work.coming.extend(message.map(|message| (message, 0)));
            }
        }
        // Each step uses what the previous step has loaded into the cache.
        for (message, destination) in &mut work.coming {
            let known = context.messages.get(*message);
            (*message, *destination) = (known.tag, known.destination);
        }
        for &(frame, destination) in &work.coming {
            let host = &hosts[destination as usize];
            seen ^= frames.touch(frame) ^ host.free_ps ^ host.inbox.len() as u64;
        }
        // The values were read only to load them into the cache. Without `black_box`, the compiler
        // would remove the reads.
        std::hint::black_box(seen);
    }

    fn diagnose(&self, _context: &Context) -> Stuck {
        let waiting = self.streams.iter().filter(|stream| !stream.waiting.is_empty()).count();
        Stuck::Unfinished {
            what: format!(
                "{} messages are not complete; {waiting} pairs of hosts have further operations to \
                 post",
                self.open_messages
            ),
        }
    }

    fn port_counters(&self) -> Vec<PortCounters> {
        let of_rail = |(number, rail): (usize, &Ethernet)| {
            let mut counters = rail.port_counters();
            if number > 0 {
                for port in &mut counters {
                    port.name = format!("rail {number} {}", port.name);
                }
            }
            counters
        };
        self.rails.iter().enumerate().flat_map(of_rail).collect()
    }

    fn hops(&self) -> u64 {
        self.rails.iter().map(Fabric::hops).sum()
    }

    fn slot_ps(&self) -> u64 {
        self.rails.first().map_or(1, Fabric::slot_ps)
    }
}

/// Number of completion queue entries that are reserved for the notifications of one turn of a
/// host. If operations could use all entries, two hosts could wait forever for each other's
/// notifications.
const NOTIFICATIONS: usize = 4096;

/// Maximum memory of all hosts together, in bytes.
const BYTES_MAX: u64 = 1 << 30;

/// Length of the largest edge protocol frame that fits a UDP datagram.
const FRAME_BYTES_MAX: u16 = 65_507;

/// A time later than any event.
const NEVER_PS: u64 = u64::MAX;

/// Bit position of the rail in `Event::place`, which identifies the link, switch or host of an
/// event. The lower bits are the number of a link or switch of the rail. The two bits above the
/// rail distinguish events of the rail's Ethernet: one bit stands for the engine of a switch, the
/// other bit for the queue of a link.
const RAIL_SHIFT: u32 = 25;
const RAIL_BITS: u32 = 3;
const RAIL_MASK: u32 = (1 << RAIL_BITS) - 1;

/// Maximum outstanding operations of one host, which is the number of operation records in an
/// engine.
pub(super) const POSTED_MAX: u32 = 8192;

/// Maximum number of frames that a driver accepts at a time: one batch of the engine.
pub(super) const SEGMENTS_MAX: u32 = 64;

/// Maximum number of frames that wait for the processor of a host.
pub(super) const RECEIVE_QUEUE_MAX: u32 = 1 << 15;

/// Maximum number of rails.
pub(super) const RAILS_MAX: u64 = 1 << RAIL_BITS;

/// Flags in `Event::place` of an event that belongs to no rail: both bits above the rail are set.
/// The Ethernet of a rail never sets both bits, because it has no transport. The lower bits are the
/// kind of the event and the number of a host or an outage.
const OWN: u32 = 0b11 << 28;
const NUMBER_MASK: u32 = (1 << RAIL_SHIFT) - 1;
/// Event: an outage starts or ends.
const CHANGE: u32 = OWN;
/// Event: a host runs a turn, in which it receives frames, runs its engine and sends frames.
const TURN: u32 = OWN | 1 << RAIL_SHIFT;
/// Event: a timer of an engine may be due.
const TIMER: u32 = OWN | 2 << RAIL_SHIFT;
/// Event: a rank is notified of a message.
const DELIVER: u32 = OWN | 3 << RAIL_SHIFT;

//! Streams: consecutive operations of one size. Several operations are in flight, in one or both
//! directions. Streams show the combined throughput of several links and the cost of
//! acknowledgements.

use core::fmt::Write as _;

use delivery::{Instant, LinkCounters, LinkId, SchedulingPolicy};
use engine::EngineConfig;

use crate::channel::{Faults, Jitter, LinkModel, Overhead, TokenBucket};
use crate::edge_host::EdgeHost;
use crate::host::{Action, ConnectionHandle, Flags, HostEngine, HostEvent, Operation, Region};
use crate::network::{PortId, Segment, port_address};
use crate::random::Random;
use crate::scenario::{TransferError, check_links};
use crate::world::{Application, World};

/// The policies of the engines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Policies {
    /// The policies of [`EngineConfig::default`].
    Default,
    /// The policies of [`EngineConfig::multiedge`].
    MultiEdge,
    /// The policies of [`EngineConfig::default`], but with round robin between the links.
    RoundRobin,
}

impl Policies {
    /// Returns the configuration that has these policies.
    pub fn config(self) -> EngineConfig {
        match self {
            Self::Default => EngineConfig::default(),
            Self::MultiEdge => EngineConfig::multiedge(),
            Self::RoundRobin => EngineConfig::default().scheduling(SchedulingPolicy::RoundRobin),
        }
    }
}

/// Consecutive operations of one size.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    /// The links; each model applies to both directions.
    pub links: &'a [LinkModel],
    /// Probability that a frame is lost, in each direction, in parts per million.
    pub loss_ppm: u32,
    /// Size of an operation in bytes.
    pub operation_bytes: u32,
    /// Number of operations in flight.
    pub depth: u32,
    /// Whether the other host sends an equal stream at the same time.
    pub two_way: bool,
    /// Whether operations are strict instead of relaxed.
    pub strict: bool,
    /// Policies of both engines.
    pub policies: Policies,
    /// Time before measuring begins, in nanoseconds.
    pub warm_up_ns: u64,
    /// Time that is measured, in nanoseconds.
    pub measured_ns: u64,
    /// Maximum pause of a host, in nanoseconds. The mean time between two pauses is
    /// [`STALL_EVERY_NS`].
    pub stall_ns_max: u64,
    /// Seed of the losses and of the engines.
    pub seed: u64,
}

impl<'a> Stream<'a> {
    /// Returns a stream in one direction without losses. The stream has relaxed operations of 1
    /// MiB, eight of them in flight. It is measured for 200 ms, after a warm-up of 100 ms.
    pub const fn new(links: &'a [LinkModel]) -> Self {
        Self {
            links,
            loss_ppm: 0,
            operation_bytes: 1 << 20,
            depth: 8,
            two_way: false,
            strict: false,
            policies: Policies::Default,
            warm_up_ns: 100_000_000,
            measured_ns: 200_000_000,
            stall_ns_max: 0,
            seed: 1,
        }
    }

    /// Returns this stream in both directions at the same time.
    #[must_use]
    pub const fn both_ways(self) -> Self {
        Self { two_way: true, ..self }
    }

    /// Returns the sum of the rates of all links in the used directions, in bits per second.
    fn rate(&self) -> f64 {
        let sum: f64 = self.links.iter().map(|link| link.rate as f64).sum();
        if self.two_way { 2.0 * sum } else { sum }
    }
}

/// The results of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamOutcome {
    /// Rate of bytes that arrived for the first time, in bits per second. Sums all directions.
    pub goodput: f64,
    /// The goodput, in percent of the sum of the links' rates. The rates count headers, the goodput
    /// does not.
    pub share_percent: f64,
    /// Number of pure acknowledgements and retransmissions, in percent of the data frames.
    pub extra_percent: f64,
    /// Number of data frames received after a frame with a later position, in percent of all data
    /// frames received.
    pub out_of_order_percent: f64,
    /// Number of data frames received.
    pub frames: u64,
    /// Number of frames dropped because a queue was full.
    pub queue_full: u64,
    /// Number of frames that a receiver dropped without acknowledging them, because it had no room.
    pub refused: u64,
}

/// Runs a stream in virtual time.
///
/// # Errors
/// Returns [`TransferError`] if the connection cannot be established, fails, or transfers no data.
pub fn run(stream: &Stream<'_>) -> Result<StreamOutcome, TransferError> {
    check_links(stream.links)?;
    let mut world = make_world(stream);
    let paths: Vec<_> =
        (0..stream.links.len() as u8).map(|link| (LinkId(link), port_address(1, link))).collect();
    let mut ends = Vec::new();
    for host in 0..2 {
        let bytes = stream.operation_bytes;
        let (source, target) =
            (world.engine_mut(host).register(bytes), world.engine_mut(host).register(bytes));
        ends.push(End { source, target, connection: None, ready: false });
    }
    let opened = world.engine_mut(0).connect(Instant(0), &paths, &[]);
    ends[0].connection = Some(opened.map_err(TransferError::Refused)?);
    let mut pumps = Pumps {
        stream: *stream,
        ends,
        random: Random::stream(stream.seed, STALL_STREAM),
        failed: false,
    };
    if stream.stall_ns_max > 0 {
        world.wake_at(Instant(STALL_EVERY_NS), 0);
    }
    advance(&mut world, &mut pumps, Instant(stream.warm_up_ns))?;
    let before = Totals::of(&world, &pumps);
    let end = Instant(stream.warm_up_ns + stream.measured_ns);
    advance(&mut world, &mut pumps, end)?;
    let after = Totals::of(&world, &pumps);
    let counted = after.link.since(&before.link);
    if counted.payload_bytes_received == 0 {
        let (bytes, limit_ns) = (stream.operation_bytes, stream.measured_ns);
        return Err(TransferError::Unfinished { bytes, limit_ns });
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let goodput = counted.payload_bytes_received as f64 * 8e9 / stream.measured_ns as f64;
    Ok(StreamOutcome {
        goodput,
        share_percent: 100.0 * goodput / stream.rate(),
        extra_percent: percent(counted.extra_frames(), counted.data_frames_sent),
        out_of_order_percent: percent(counted.out_of_order, counted.data_frames_received),
        frames: counted.data_frames_received,
        queue_full: after.queue_full - before.queue_full,
        refused: counted.dropped_no_room + counted.dropped_outside_window,
    })
}

fn make_world(stream: &Stream<'_>) -> World<EdgeHost> {
    let mut world = World::new(stream.seed, 0);
    let segments: Vec<usize> =
        stream.links.iter().map(|_| world.network.add_segment(Segment::Direct)).collect();
    for host in 0..2 {
        let mut ports: Vec<PortId> = Vec::new();
        for (link, model) in stream.links.iter().enumerate() {
            let address = port_address(host as u8, link as u8);
            let port = world.network.add_port(segments[link], address, *model);
            let faults = Faults { loss_ppm: stream.loss_ppm, ..Faults::default() };
            world.network.set_faults(port, faults);
            ports.push(port);
        }
        let mut entropy = [0; 32];
        Random::stream(stream.seed, host as u64).fill(&mut entropy);
        world.add_host(EdgeHost::with_config(stream.policies.config(), entropy), &ports);
        world.engine_mut(host).listen(Instant(0));
    }
    world
}

fn advance(
    world: &mut World<EdgeHost>,
    pumps: &mut Pumps<'_>,
    until: Instant,
) -> Result<(), TransferError> {
    world.run_until(until, pumps).map_err(TransferError::Stuck)?;
    if pumps.failed {
        let (bytes, limit_ns) = (pumps.stream.operation_bytes, until.0);
        return Err(TransferError::Unfinished { bytes, limit_ns });
    }
    Ok(())
}

/// The end of the connection on one host.
#[derive(Debug)]
struct End {
    source: Region,
    target: Region,
    connection: Option<ConnectionHandle>,
    ready: bool,
}

/// The application of both hosts. A sending host keeps `depth` operations posted.
struct Pumps<'a> {
    stream: Stream<'a>,
    ends: Vec<End>,
    random: Random,
    failed: bool,
}

impl Pumps<'_> {
    fn post(&mut self, world: &mut World<EdgeHost>, host: usize) {
        let Some(connection) = self.ends[host].connection else { return };
        let target = self.ends[1 - host].target;
        let operation = Operation {
            action: Action::Write,
            local: self.ends[host].source,
            local_offset: 0,
            length_bytes: self.stream.operation_bytes,
            key: target.key,
            address: target.address,
            immediate: None,
            flags: Flags { signalled: true, strict: self.stream.strict, ..Flags::default() },
            context: 1,
        };
        let now = world.now();
        self.failed |= world.engine_mut(host).post(now, connection, &operation).is_err();
    }
}

impl Application<EdgeHost> for Pumps<'_> {
    fn on_wake(&mut self, world: &mut World<EdgeHost>, _token: u64) {
        let host = self.random.below(2) as usize;
        let pause_ns = self.random.below(self.stream.stall_ns_max.max(1));
        if !world.is_paused(host) {
            world.pause(host, world.now().after_ns(pause_ns));
        }
        let next_ns = pause_ns + self.random.below(2 * STALL_EVERY_NS);
        world.wake_at(world.now().after_ns(next_ns), 0);
    }

    fn on_event(&mut self, world: &mut World<EdgeHost>, host: usize, event: HostEvent) {
        let now = world.now();
        match event {
            HostEvent::Requested { request, .. } => {
                // Accepting fails if the request no longer exists; the peer then requests again.
                let _ = world.engine_mut(host).accept(now, request);
            }
            HostEvent::Established(connection) => {
                self.ends[host].connection = Some(connection);
                self.ends[host].ready = true;
                if host == 0 || self.stream.two_way {
                    for _ in 0..self.stream.depth {
                        self.post(world, host);
                    }
                }
            }
            HostEvent::Closed(..) => self.failed = true,
        }
    }

    fn on_turn(&mut self, world: &mut World<EdgeHost>, host: usize) {
        let Some(connection) = self.ends[host].connection else { return };
        while !self.failed
            && let Some(completion) = world.poll_completion(host, connection)
        {
            self.failed |= !completion.success;
            self.post(world, host);
        }
    }
}

/// Counters of both hosts at one time.
struct Totals {
    link: LinkCounters,
    queue_full: u64,
}

impl Totals {
    fn of(world: &World<EdgeHost>, pumps: &Pumps<'_>) -> Self {
        let mut link = LinkCounters::default();
        for (host, end) in pumps.ends.iter().enumerate() {
            let engine = world.engine(host);
            let handle = end.connection.and_then(|connection| engine.engine_handle(connection));
            let info = handle.and_then(|handle| engine.engine().info(handle));
            for path in info.iter().flat_map(|info| &info.paths) {
                link.add(&path.counters);
            }
        }
        Self { link, queue_full: world.network.counters().queue_full }
    }
}

/// Returns a raw Ethernet link at MTU 1500. Its rate counts the Ethernet header, as `tbf` does.
/// Frames have an envelope of 12 bytes and a header of 14 bytes. The queue has room for 150 full
/// frames, and there is a little jitter.
pub const fn raw_link(rate: u64, propagation_ns: u64) -> LinkModel {
    LinkModel {
        overhead: Overhead { network_bytes: 12, packet_bytes_min: 46, ethernet_bytes: 14 },
        frame_bytes_max: 1488,
        queue_bytes: 150 * 1514,
        jitter: Jitter::Uniform { most_ns: 3_000 },
        ..LinkModel::ethernet(rate, propagation_ns)
    }
}

/// Returns the link with a shaper, like the shaper on a port of a software switch. The shaper has a
/// burst of 250 µs and a queue of 200 full frames. The delay of its timer is that of a busy
/// processor.
#[must_use]
pub const fn shaped(link: LinkModel) -> LinkModel {
    LinkModel {
        bucket: Some(TokenBucket {
            peak_rate: 40 * GIGABIT,
            burst_ns: 250_000,
            late_ns_max: 60_000,
        }),
        queue_bytes: 200 * 1514,
        ..link
    }
}

const GIGABIT: u64 = 1_000_000_000;

/// The sets of links of the `MultiEdge` paper, and sets of unequal links. Each has a name.
pub const SET_UPS: [(&str, &[LinkModel]); 9] = [
    ("1L-1G", &[raw_link(GIGABIT, 20_000)]),
    ("1L-100M", &[raw_link(GIGABIT / 10, 20_000)]),
    ("2L-1G", &[raw_link(GIGABIT, 20_000); 2]),
    ("1G+100M", &[raw_link(GIGABIT, 20_000), raw_link(GIGABIT / 10, 20_000)]),
    ("10G+1G", &[raw_link(10 * GIGABIT, 20_000), raw_link(GIGABIT, 20_000)]),
    ("1G/20us+1G/2ms", &[raw_link(GIGABIT, 20_000), raw_link(GIGABIT, 2_000_000)]),
    ("4L-2.5G", &[raw_link(5 * GIGABIT / 2, 20_000); 4]),
    ("1L-10G", &[raw_link(10 * GIGABIT, 20_000)]),
    ("2L-10G", &[raw_link(10 * GIGABIT, 20_000); 2]),
];

/// Formats one line of a table of streams.
pub fn line(name: &str, outcome: &StreamOutcome) -> String {
    let mut text = String::new();
    let _ = write!(
        text,
        "{name:36} | {:8.0} | {:7.1} | {:7.2} | {:14.1} | {:8} | {:10} | {:7}",
        outcome.goodput / 1e6,
        outcome.share_percent,
        outcome.extra_percent,
        outcome.out_of_order_percent,
        outcome.frames,
        outcome.queue_full,
        outcome.refused,
    );
    text
}

/// The heading for [`line()`].
pub const HEADING: &str = "stream                               |     Mb/s | share % | extra % | out of order % |   frames | queue full | refused";

/// Mean time between two pauses of a host, in nanoseconds.
pub const STALL_EVERY_NS: u64 = 2_000_000;

/// Number of the random stream for pauses.
const STALL_STREAM: u64 = 77;

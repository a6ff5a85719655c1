//! Networks and workloads that measure the speed of the simulator itself.

use super::collective::{Collective, CollectiveConfiguration, CollectiveLoop};
use super::edge::{EdgeConfiguration, EdgeError, EdgeFabric};
use super::ethernet::{Ethernet, EthernetConfiguration};
use super::flit::{FlitConfiguration, FlitFabric, PortConfiguration};
use super::goal::{Goal, GoalError};
use super::loggp::{LogGp, LogGpConfiguration};
use super::routing::{LanePolicy, Paths, RouteTable, Routing, RoutingError};
use super::simulation::{HostCosts, Parts, Simulation};
use super::topology::{Topology, TopologyError};
use super::workload::{OpenLoad, Pattern, Sizes, Workload as _};

/// Why a benchmark cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchmarkError {
    /// The topology cannot be built.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The topology does not support the requested routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The hosts cannot be set up.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// The trace cannot be replayed.
    #[error(transparent)]
    Goal(#[from] GoalError),
}

/// A simulation that is ready to run, with the size and memory of its network.
#[derive(Debug)]
pub struct Benchmark<F, W = OpenLoad> {
    /// The simulation.
    pub simulation: Simulation<F, W>,
    /// Number of hosts.
    pub hosts: u32,
    /// Memory of tables and ports before the run, in bytes.
    pub network_bytes: usize,
    /// Number of ports of switches and hosts.
    pub ports: usize,
}

/// Creates a fat tree of 100 Gb/s Ethernet with ECMP. Each host sends frames of 1500 bytes to
/// uniformly chosen destinations for `duration_ps` picoseconds. Each host uses half the rate of its
/// link.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn fat_tree(radix: u32, duration_ps: u64) -> Result<Benchmark<Ethernet>, BenchmarkError> {
    let topology = Topology::fat_tree(radix)?;
    let routes = RouteTable::new(&topology, Routing::Shortest)?;
    let mut configuration = EthernetConfiguration::with_rate(100_000_000_000);
    configuration.latency_ps = 500_000;
    configuration.propagation_ps = 10_000;
    let ethernet = Ethernet::new(&topology, routes, configuration);
    let hosts = topology.hosts();
    // With headers and gap, a frame occupies the link for the time of 1538 bytes, 80 ps per byte. A
    // host that sends one frame in twice this time uses half the rate of its link.
    let interval_ps = 2 * 1538 * 80;
    let workload =
        OpenLoad::new(hosts, Pattern::Uniform, Sizes::Fixed(1500), interval_ps, duration_ps, 1);
    let network_bytes = ethernet.bytes();
    let placement: Vec<u32> = (0..hosts).collect();
    let simulation = Simulation::new(ethernet, workload, &placement, HostCosts::default());
    Ok(Benchmark { simulation, hosts, network_bytes, ports: topology.links().len() })
}

/// Creates the benchmark of [`fat_tree`], divided into at most `parts` parts that can run in
/// parallel.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn fat_tree_parts(
    radix: u32,
    duration_ps: u64,
    parts: u32,
) -> Result<Parts<OpenLoad>, BenchmarkError> {
    let topology = Topology::fat_tree(radix)?;
    Ok(fat_tree(radix, duration_ps)?.simulation.divide(&topology, parts))
}

/// Creates a torus of 16 x 16 routers with one host each, in a fabric of flits with credits and
/// virtual channels. Each host sends packets of four flits to uniformly chosen destinations. The
/// load is 0.2 flits per host and cycle.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn flit_torus(duration_ps: u64) -> Result<Benchmark<FlitFabric>, BenchmarkError> {
    let topology = Topology::torus(&[16, 16], 1, 1)?;
    let table = RouteTable::new(&topology, Routing::DimensionOrder { is_reversed: false })?;
    let channels = 4;
    let paths = Paths::new(&topology, &table, LanePolicy::Dateline, channels.into())?;
    let configuration = FlitConfiguration {
        router: None,
        flit_ps: 1_000,
        hop_ps: 2_000,
        entry_ps: 2_000,
        exit_ps: 2_000,
        credit_ps: 1_000,
        flit_payload_bytes: 64,
        packet_overhead_bytes: 0,
        channels,
        buffer_flits: 16,
        clock_ps: 0,
        ports: PortConfiguration {
            rate_bps: 0,
            mtu_bytes: 4_096,
            payload_min_bytes: 0,
            overhead_bytes: 0,
            gap_bytes: 0,
        },
    };
    let fabric = FlitFabric::new(&topology, paths, configuration);
    let hosts = topology.hosts();
    let interval_ps = 4 * configuration.flit_ps * 5;
    let workload =
        OpenLoad::new(hosts, Pattern::Uniform, Sizes::Fixed(256), interval_ps, duration_ps, 1);
    let placement: Vec<u32> = (0..hosts).collect();
    let simulation = Simulation::new(fabric, workload, &placement, HostCosts::default());
    Ok(Benchmark { simulation, hosts, network_bytes: 0, ports: topology.links().len() })
}

/// Creates a benchmark of messages of 8 bytes among 1024 hosts with the LogGP model, at the maximum
/// rate of the hosts.
pub fn loggp(duration_ps: u64) -> Benchmark<LogGp> {
    let hosts = 1024;
    let configuration = LogGpConfiguration::new(1_000_000, 100_000, 80);
    let workload = OpenLoad::new(hosts, Pattern::Uniform, Sizes::Fixed(8), 250_000, duration_ps, 1);
    let placement: Vec<u32> = (0..hosts).collect();
    let fabric = LogGp::new(hosts, configuration);
    let simulation = Simulation::new(fabric, workload, &placement, HostCosts::default());
    Benchmark { simulation, hosts, network_bytes: 0, ports: hosts as usize }
}

/// Creates a benchmark that replays a GOAL trace with the LogGP model. In the trace, 1024 ranks
/// pass messages round a ring, `rounds` times. This function parses the trace, so the time of the
/// run does not include parsing.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn goal(rounds: u32) -> Result<Benchmark<LogGp, Goal>, BenchmarkError> {
    let ranks = 1024;
    let trace = Goal::parse("ring", &Goal::ring(ranks, rounds))?;
    let configuration = LogGpConfiguration::new(1_000_000, 100_000, 80);
    let placement: Vec<u32> = (0..ranks).collect();
    let fabric = LogGp::new(ranks, configuration);
    let simulation = Simulation::new(fabric, trace, &placement, HostCosts::symmetric(200_000, 10));
    Ok(Benchmark { simulation, hosts: ranks, network_bytes: 0, ports: ranks as usize })
}

/// Creates connected hosts with the real engine on one switch of 10 Gb/s. Payloads have lengths,
/// but no bytes. In each of `rounds` rounds, host h sends a message of 64 KiB to host h + n / 2,
/// modulo the number n of hosts. The interval between two interrupts of a host is at least 10 µs.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn engines(
    hosts: u32,
    rounds: u32,
) -> Result<Benchmark<EdgeFabric, CollectiveLoop>, BenchmarkError> {
    let (mut fabric, ports) = unconnected_engines(hosts)?;
    let workload = CollectiveLoop::new(CollectiveConfiguration {
        collective: Collective::Ring { bytes: 1 << 16, distance: hosts / 2 },
        ranks: hosts,
        iterations: rounds,
        compute_ps: 0,
        reduce_ps_per_byte: 0,
    });
    fabric.connect_ahead(&workload.pairs())?;
    let network_bytes = fabric.network_bytes();
    let placement: Vec<u32> = (0..hosts).collect();
    let simulation = Simulation::new(fabric, workload, &placement, HostCosts::default());
    Ok(Benchmark { simulation, hosts, network_bytes, ports })
}

/// Returns the hosts of [`engines`] before they connect, and the number of ports of their network.
///
/// # Errors
/// Returns [`BenchmarkError`]; each variant names one cause.
pub fn unconnected_engines(hosts: u32) -> Result<(EdgeFabric, usize), BenchmarkError> {
    let topology = Topology::star(hosts)?;
    let mut ethernet = EthernetConfiguration::with_rate(10_000_000_000);
    ethernet.latency_ps = 500_000;
    ethernet.propagation_ps = 10_000;
    let configuration =
        EdgeConfiguration { interrupt_interval_ps: 10_000_000, ..EdgeConfiguration::default() };
    let fabric = EdgeFabric::new(&topology, Routing::Shortest, ethernet, configuration, 1)?;
    Ok((fabric, topology.links().len()))
}

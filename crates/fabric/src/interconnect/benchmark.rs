//! Runs that measure the simulator itself.

use super::ethernet::{Ethernet, EthernetConfiguration};
use super::routing::{RouteTable, Routing, RoutingError};
use super::simulation::Simulation;
use super::topology::{Topology, TopologyError};
use super::workload::{OpenLoad, Pattern, Sizes};

/// Why a benchmark cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchmarkError {
    /// No such topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// No such routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
}

/// A run, and what the network takes in memory before it.
#[derive(Debug)]
pub struct Benchmark<F> {
    /// To be run.
    pub simulation: Simulation<F, OpenLoad>,
    /// Hosts.
    pub hosts: u32,
    /// Memory of tables and ports, in bytes.
    pub network_bytes: usize,
    /// Ports of switches and hosts.
    pub ports: usize,
}

/// A fat tree of 100 Gb/s Ethernet with ECMP: frames of 1500 bytes to uniform destinations at half
/// load, for so long.
pub fn fat_tree(radix: u32, duration_ps: u64) -> Result<Benchmark<Ethernet>, BenchmarkError> {
    let topology = Topology::fat_tree(radix)?;
    let routes = RouteTable::new(&topology, Routing::Shortest)?;
    let mut configuration = EthernetConfiguration::with_rate(100_000_000_000);
    configuration.latency_ps = 500_000;
    configuration.propagation_ps = 10_000;
    let ethernet = Ethernet::new(&topology, routes, configuration);
    let hosts = topology.hosts();
    // A frame with its gap takes 1538 × 80 ps.
    let interval_ps = 2 * 1538 * 80;
    let workload =
        OpenLoad::new(hosts, Pattern::Uniform, Sizes::Fixed(1500), interval_ps, duration_ps, 1);
    let network_bytes = ethernet.bytes();
    let placement: Vec<u32> = (0..hosts).collect();
    let simulation =
        Simulation::new(ethernet, workload, &placement, super::simulation::HostCosts::default());
    Ok(Benchmark { simulation, hosts, network_bytes, ports: topology.links().len() })
}

//! Compares the simulator with exact theoretical results.

use super::benchmark::BenchmarkError;
use super::ethernet::{Ethernet, EthernetConfiguration, Forwarding};
use super::fluid::{Fluid, FluidConfiguration};
use super::goal::Goal;
use super::loggp::{LogGp, LogGpConfiguration};
use super::routing::{Choice, RouteTable, Routing};
use super::simulation::{HostCosts, Outcome, Simulation, Stuck};
use super::topology::{LinkKind, Topology};
use super::workload::{OpenLoad, Pattern, Sizes, TokenPass};

/// A value according to theory, and its value in a simulation.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// Name of the value.
    pub name: &'static str,
    /// Unit of both values.
    pub unit: &'static str,
    /// Theoretical value.
    pub theory: f64,
    /// Simulated value.
    pub model: f64,
}

impl Comparison {
    /// Returns the absolute value of the difference, in percent of the theoretical value.
    pub fn error_percent(&self) -> f64 {
        (self.model / self.theory - 1.0).abs() * 100.0
    }
}

/// Why a comparison could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TheoryError {
    /// The network cannot be built.
    #[error(transparent)]
    Network(#[from] BenchmarkError),
    /// A run stopped before its workload had finished.
    #[error(transparent)]
    Stuck(#[from] Stuck),
}

/// Compares all values for which theory has a formula.
///
/// # Errors
/// Returns [`TheoryError`]; each variant names one cause.
pub fn compare() -> Result<Vec<Comparison>, TheoryError> {
    Ok(vec![
        constant_service(50)?,
        constant_service(80)?,
        exponential_service(50)?,
        exponential_service(70)?,
        tandem()?,
        pipelined_tandem()?,
        torus_saturation()?,
        ping_pong()?,
        max_min_share()?,
    ])
}

/// Compares the waiting time in an M/D/1 queue: ρ S / (2 (1 − ρ)) for load ρ and service time S.
fn constant_service(load_percent: u64) -> Result<Comparison, TheoryError> {
    let outcome = queue(load_percent, Sizes::Fixed(SIZE_BYTES))?;
    let load = load_percent as f64 / 100.0;
    Ok(Comparison {
        name: if load_percent == 50 { "M/D/1 wait, load 0.5" } else { "M/D/1 wait, load 0.8" },
        unit: "us",
        theory: load * SERVICE_US / (2.0 * (1.0 - load)),
        model: outcome.latency.mean_us() - SERVICE_US - HEADER_US,
    })
}

/// Compares the waiting time in an M/M/1 queue: ρ S / (1 − ρ) for load ρ and mean service time S.
fn exponential_service(load_percent: u64) -> Result<Comparison, TheoryError> {
    let outcome = queue(load_percent, Sizes::Exponential(SIZE_BYTES))?;
    let load = load_percent as f64 / 100.0;
    let service_us = outcome.delivered_bytes as f64 / outcome.delivered as f64 * 8e-3;
    Ok(Comparison {
        name: if load_percent == 50 { "M/M/1 wait, load 0.5" } else { "M/M/1 wait, load 0.7" },
        unit: "us",
        theory: load * SERVICE_US / (1.0 - load),
        model: outcome.latency.mean_us() - service_us - HEADER_US,
    })
}

/// Runs Poisson arrivals at a link of 1 Gb/s. After this link, frames cross a second link, which
/// adds the time of a header but no waiting time.
fn queue(load_percent: u64, sizes: Sizes) -> Result<Outcome, TheoryError> {
    let topology = Topology::star(2).map_err(BenchmarkError::from)?;
    let routes = RouteTable::new(&topology, Routing::Shortest).map_err(BenchmarkError::from)?;
    let forwarding = Forwarding::CutThrough { header_bytes: 1 };
    let configuration = EthernetConfiguration { forwarding, ..bare() };
    let ethernet = Ethernet::new(&topology, routes, configuration);
    let interval_ps = u64::from(SIZE_BYTES) * 8_000 * 100 / load_percent;
    let until_ps = interval_ps * ARRIVALS;
    let load = OpenLoad::new(2, Pattern::Incast(1), sizes, interval_ps, until_ps, 7);
    Ok(Simulation::new(ethernet, load, &[0, 1], HostCosts::default()).run()?)
}

/// Compares the time of one frame through a chain of switches that store and forward. According to
/// theory, this is the sum of the frame's times on all links and of the latencies of the switches.
fn tandem() -> Result<Comparison, TheoryError> {
    let outcome = row(1_000)?;
    Ok(Comparison {
        name: "one frame through 4 switches",
        unit: "us",
        theory: 5.0 * (8.0 + 0.1) + 4.0 * 0.5,
        model: outcome.latency.mean_us(),
    })
}

/// Compares the time of ten frames through the chain of switches. The frames belong to one message
/// and follow each other without gaps.
fn pipelined_tandem() -> Result<Comparison, TheoryError> {
    let outcome = row(10_000)?;
    Ok(Comparison {
        name: "ten frames through 4 switches",
        unit: "us",
        theory: 5.0 * (8.0 + 0.1) + 4.0 * 0.5 + 9.0 * 8.0,
        model: outcome.latency.mean_us(),
    })
}

fn row(bytes: u32) -> Result<Outcome, TheoryError> {
    let topology = Topology::cascade(4, 1, 1).map_err(BenchmarkError::from)?;
    let routes = RouteTable::new(&topology, Routing::Shortest).map_err(BenchmarkError::from)?;
    let configuration = EthernetConfiguration {
        mtu_bytes: 1_000,
        propagation_ps: 100_000,
        latency_ps: 500_000,
        ..bare()
    };
    let ethernet = Ethernet::new(&topology, routes, configuration);
    // Rank 0 is on the first host, and rank 1 on the last host.
    let token = TokenPass::new(2, bytes, 0, 1);
    Ok(Simulation::new(ethernet, token, &[0, 3], HostCosts::default()).run()?)
}

/// Compares the load at which uniform traffic fills the links of a k × k torus. According to
/// theory, this load is 8 / k of a link's rate per host. The comparison corrects this value for
/// messages that hosts would send to themselves. The simulated value is extrapolated from the mean
/// load of links at a low load.
fn torus_saturation() -> Result<Comparison, TheoryError> {
    let side = 8_u32;
    let topology = Topology::torus(&[side, side], 1, 1).map_err(BenchmarkError::from)?;
    let routing = Routing::DimensionOrder { is_reversed: false };
    let routes = RouteTable::new(&topology, routing).map_err(BenchmarkError::from)?;
    let ethernet = Ethernet::new(&topology, routes, bare());
    let hosts = topology.hosts();
    let interval_ps = u64::from(SIZE_BYTES) * 8_000 * 10;
    let load = OpenLoad::new(
        hosts,
        Pattern::Uniform,
        Sizes::Fixed(SIZE_BYTES),
        interval_ps,
        interval_ps * 4_000,
        3,
    );
    let placement: Vec<u32> = (0..hosts).collect();
    let (_, ethernet) =
        Simulation::new(ethernet, load, &placement, HostCosts::default()).run_to_end()?;
    let (mut between, mut from_hosts) = ((0.0, 0.0), (0.0, 0.0));
    for (link, bytes) in topology.links().iter().zip(ethernet.link_bytes()) {
        let sum = match link.kind {
            LinkKind::Switch { .. } => &mut between,
            LinkKind::Host if topology.is_host(link.from) => &mut from_hosts,
            LinkKind::Host => continue,
        };
        *sum = (sum.0 + bytes as f64, sum.1 + 1.0);
    }
    let hosts = f64::from(hosts);
    Ok(Comparison {
        name: "uniform saturation of an 8 x 8 torus",
        unit: "of a link",
        theory: 8.0 / f64::from(side) * (hosts - 1.0) / hosts,
        model: (from_hosts.0 / from_hosts.1) / (between.0 / between.1),
    })
}

/// Compares the round trip of a message: 2 (2 o + L + (k − 1) G).
fn ping_pong() -> Result<Comparison, TheoryError> {
    let configuration = LogGpConfiguration::new(5_000_000, 1_000_000, 800);
    let rounds = 100_u32;
    let token = TokenPass::new(2, 4_096, 0, 2 * rounds);
    let fabric = LogGp::new(2, configuration);
    let outcome =
        Simulation::new(fabric, token, &[0, 1], HostCosts::symmetric(1_500_000, 100)).run()?;
    let overhead_us = 2.0 * (1.5 + 4_096.0 * 1e-4);
    Ok(Comparison {
        name: "LogGP ping-pong of 4 KiB",
        unit: "us",
        theory: 2.0 * (overhead_us + 5.0 + 4_095.0 * 8e-4),
        model: outcome.completed_ps as f64 / 1e6 / f64::from(rounds),
    })
}

/// Compares max-min fair rates on two trunks of 1 Gb/s. Three messages cross the first trunk. One
/// of these messages and a fourth message cross the second trunk. Each message on the first trunk
/// gets a third of this trunk's rate. The fourth message gets two thirds of the second trunk.
fn max_min_share() -> Result<Comparison, TheoryError> {
    let trace = "num_ranks 6\n\
                 rank 0 {\nsend 100000000b to 4\nsend 100000000b to 3\n}\n\
                 rank 1 {\nsend 100000000b to 2\n}\n\
                 rank 2 {\nrecv 100000000b from 1\n}\n\
                 rank 3 {\nsend 1000000b to 5\nrecv 100000000b from 0\n}\n\
                 rank 4 {\nrecv 100000000b from 0\n}\n\
                 rank 5 {\nrecv 1000000b from 3\n}\n";
    let trace = Goal::parse("max-min", trace).map_err(BenchmarkError::from)?;
    let topology = Topology::cascade(3, 2, 1).map_err(BenchmarkError::from)?;
    let routes = RouteTable::new(&topology, Routing::Shortest).map_err(BenchmarkError::from)?;
    let configuration = FluidConfiguration {
        host_rate_bps: 10_000_000_000,
        trunk_rate_bps: 1_000_000_000,
        link_latency_ps: 0,
        choice: Choice::PerFlow,
        salt: 0,
    };
    let fluid = Fluid::new(&topology, routes, configuration);
    let placement: Vec<u32> = (0..6).collect();
    let outcome = Simulation::new(fluid, trace, &placement, HostCosts::default()).run()?;
    Ok(Comparison {
        name: "max-min share beside three flows",
        unit: "of a link",
        theory: 2.0 / 3.0,
        model: 8_000.0 / outcome.latency.min_us(),
    })
}

/// Returns an Ethernet of 1 Gb/s without headers, gaps and latencies.
fn bare() -> EthernetConfiguration {
    EthernetConfiguration {
        payload_min_bytes: 0,
        overhead_bytes: 0,
        gap_bytes: 0,
        mtu_bytes: 1 << 20,
        ..EthernetConfiguration::with_rate(1_000_000_000)
    }
}

/// Length of a frame in bytes; its service time is 8 µs.
const SIZE_BYTES: u32 = 1_000;
const SERVICE_US: f64 = 8.0;
/// Time in which a link carries the one byte that a switch needs before it forwards a frame, in µs.
const HEADER_US: f64 = 0.008;
/// Number of messages that arrive in the simulation of a queue. It makes the standard error of the
/// mean wait at load 0.8 less than 1 %.
const ARRIVALS: u64 = 600_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulator_agrees_with_theory_within_two_percent() {
        for comparison in compare().expect("all of them run") {
            assert!(comparison.error_percent() < 2.0, "{comparison:?}");
        }
    }
}

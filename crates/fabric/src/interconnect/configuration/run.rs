//! From a configuration to what it comes to.

use super::super::dependency;
use super::super::edge::{Counts, EdgeConfiguration, EdgeFabric};
use super::super::ethernet::{Ethernet, EthernetConfiguration};
use super::super::exchange::Exchange;
use super::super::flit::FlitFabric;
use super::super::fluid::Fluid;
use super::super::loggp::LogGp;
use super::super::routing::{Paths, RouteTable};
use super::super::simulation::{Fabric, Outcome, Simulation};
use super::super::statistics::mix;
use super::super::workload::{MeshExchange, OpenLoad, TokenPass, Workload};
use super::super::wormhole::Wormhole;
use super::{Configuration, ConfigurationError, FabricConfiguration, WorkloadConfiguration};

impl Configuration {
    /// Runs it.
    pub fn run(&self) -> Result<Outcome, ConfigurationError> {
        self.run_counting().map(|(outcome, _)| outcome)
    }

    /// Runs it, and tells what engines counted, if its hosts have such.
    pub fn run_counting(&self) -> Result<(Outcome, Option<Counts>), ConfigurationError> {
        let hosts = self.topology.hosts();
        match &self.workload {
            WorkloadConfiguration::Exchange { partners, bytes, rounds } => {
                self.run_workload_counting(Exchange::new(hosts, *partners, *bytes, *rounds), hosts)
            }
            WorkloadConfiguration::TokenPass { bytes, delay_ps, passes } => {
                self.run_workload_counting(TokenPass::new(hosts, *bytes, *delay_ps, *passes), hosts)
            }
            WorkloadConfiguration::Mesh(mesh) => {
                self.run_workload_counting(MeshExchange::new(*mesh), mesh.width * mesh.height)
            }
            WorkloadConfiguration::OpenLoad { pattern, sizes, interval_ps, until_ps } => {
                let (pattern, sizes) = (pattern.clone(), sizes.clone());
                let load = OpenLoad::new(hosts, pattern, sizes, *interval_ps, *until_ps, self.seed);
                self.run_workload_counting(load, hosts)
            }
        }
    }

    /// The channels of a circle in which packets may come to wait for each other, if the routes allow
    /// one. Only fabrics whose packets hold links while they wait have such.
    pub fn deadlock_risk(&self) -> Result<Option<Vec<String>>, ConfigurationError> {
        let channels = match &self.fabric {
            FabricConfiguration::Wormhole(_) => 1,
            FabricConfiguration::Flit(flit) => usize::from(flit.channels),
            _ => return Ok(None),
        };
        let table = RouteTable::new(&self.topology, self.routing)?;
        let paths = Paths::new(&self.topology, &table, self.lanes, channels)?;
        Ok(dependency::circle(&self.topology, &paths, channels))
    }

    /// Hash of all settings.
    pub fn hash(&self) -> u64 {
        self.effective.bytes().fold(0, |hash, byte| mix(hash, byte.into()))
    }

    /// Runs another workload than its own, of so many ranks, on the hosts from 0.
    pub fn run_workload(
        &self,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<Outcome, ConfigurationError> {
        self.run_workload_counting(workload, ranks).map(|(outcome, _)| outcome)
    }

    fn run_workload_counting(
        &self,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<(Outcome, Option<Counts>), ConfigurationError> {
        let table = || RouteTable::new(&self.topology, self.routing);
        let outcome = match &self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
                if let Some(edge) = &self.edge {
                    let (outcome, counts) = self.run_edge(*ethernet, edge, workload, ranks)?;
                    return Ok((outcome, Some(counts)));
                }
                self.finish(Ethernet::new(&self.topology, table()?, *ethernet), workload, ranks)
            }
            FabricConfiguration::Wormhole(wormhole) => {
                let paths = Paths::new(&self.topology, &table()?, self.lanes, 1)?;
                self.finish(Wormhole::new(&self.topology, paths, *wormhole), workload, ranks)
            }
            FabricConfiguration::Flit(flit) => {
                let channels = flit.channels.into();
                let paths = Paths::new(&self.topology, &table()?, self.lanes, channels)?;
                self.finish(FlitFabric::new(&self.topology, paths, *flit), workload, ranks)
            }
            FabricConfiguration::Fluid(fluid) => {
                self.finish(Fluid::new(&self.topology, table()?, *fluid), workload, ranks)
            }
            FabricConfiguration::LogGp(loggp) => {
                self.finish(LogGp::new(self.topology.hosts(), *loggp), workload, ranks)
            }
        }?;
        Ok((outcome, None))
    }

    fn run_edge(
        &self,
        ethernet: EthernetConfiguration,
        edge: &EdgeConfiguration,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<(Outcome, Counts), ConfigurationError> {
        let edge = edge.clone();
        let mut fabric = EdgeFabric::new(&self.topology, self.routing, ethernet, edge, self.seed)?;
        fabric.connect_ahead(&workload.pairs())?;
        let placement: Vec<u32> = (0..ranks).collect();
        let simulation =
            Simulation::new(fabric, workload, &placement, self.costs).with_limits(self.limits);
        let (outcome, fabric) = simulation.run_to_end()?;
        if !fabric.violations().is_empty() {
            return Err(ConfigurationError::Violations {
                violations: fabric.violations().to_vec(),
            });
        }
        Ok((outcome, fabric.counts()))
    }

    fn finish(
        &self,
        fabric: impl Fabric,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<Outcome, ConfigurationError> {
        let placement: Vec<u32> = (0..ranks).collect();
        let simulation =
            Simulation::new(fabric, workload, &placement, self.costs).with_limits(self.limits);
        Ok(simulation.run()?)
    }
}

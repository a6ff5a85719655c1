//! From a configuration to what it comes to.

use super::super::dependency;
use super::super::ethernet::Ethernet;
use super::super::flit::FlitFabric;
use super::super::fluid::Fluid;
use super::super::loggp::LogGp;
use super::super::routing::{Paths, RouteTable};
use super::super::simulation::{Driver, Fabric, InTurns, Outcome, Simulation};
use super::super::statistics::mix;
use super::super::workload::{MeshExchange, OpenLoad, Separable, TokenPass, Workload};
use super::super::wormhole::Wormhole;
use super::{Configuration, ConfigurationError, FabricConfiguration, WorkloadConfiguration};

impl Configuration {
    /// Runs it, on one thread.
    pub fn run(&self) -> Result<Outcome, ConfigurationError> {
        Self { threads: 1, ..self.clone() }.run_with(&InTurns)
    }

    /// Runs it, on several threads if that is wanted: as so many parts that `driver` does.
    pub fn run_with(&self, driver: &dyn Driver) -> Result<Outcome, ConfigurationError> {
        let hosts = self.topology.hosts();
        match &self.workload {
            WorkloadConfiguration::TokenPass { bytes, delay_ps, passes } => {
                let token = TokenPass::new(hosts, *bytes, *delay_ps, *passes);
                self.run_divided(token, hosts, driver)
            }
            WorkloadConfiguration::Mesh(mesh) => {
                self.run_divided(MeshExchange::new(*mesh), mesh.width * mesh.height, driver)
            }
            WorkloadConfiguration::OpenLoad { pattern, sizes, interval_ps, until_ps } => {
                let (pattern, sizes) = (pattern.clone(), sizes.clone());
                let load = OpenLoad::new(hosts, pattern, sizes, *interval_ps, *until_ps, self.seed);
                self.run_divided(load, hosts, driver)
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

    /// Runs another workload than its own, of so many ranks, on the hosts from 0, as so many parts as
    /// there are threads.
    pub fn run_divided(
        &self,
        workload: impl Separable,
        ranks: u32,
        driver: &dyn Driver,
    ) -> Result<Outcome, ConfigurationError> {
        let fabric = match &self.fabric {
            _ if self.threads == 1 => return self.run_workload(workload, ranks),
            FabricConfiguration::Ethernet(ethernet) => {
                let routes = RouteTable::new(&self.topology, self.routing)?;
                let ethernet = Ethernet::new(&self.topology, routes, *ethernet);
                let simulation = self.simulation(ethernet, workload, ranks);
                return Ok(simulation.divide(&self.topology, self.threads).run(driver)?);
            }
            FabricConfiguration::Wormhole(_) => "wormhole",
            FabricConfiguration::Flit(_) => "flit",
            FabricConfiguration::Fluid(_) => "fluid",
            FabricConfiguration::LogGp(_) => "loggp",
        };
        Err(ConfigurationError::Undivided { fabric, threads: self.threads })
    }

    /// Runs another workload than its own, of so many ranks, on the hosts from 0, on one thread.
    pub fn run_workload(
        &self,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<Outcome, ConfigurationError> {
        let table = || RouteTable::new(&self.topology, self.routing);
        match &self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
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
        }
    }

    fn finish(
        &self,
        fabric: impl Fabric,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<Outcome, ConfigurationError> {
        Ok(self.simulation(fabric, workload, ranks).run()?)
    }

    fn simulation<F: Fabric, W: Workload>(
        &self,
        fabric: F,
        workload: W,
        ranks: u32,
    ) -> Simulation<F, W> {
        let placement: Vec<u32> = (0..ranks).collect();
        Simulation::new(fabric, workload, &placement, self.costs)
            .with_receiving(self.receiving)
            .with_limits(self.limits)
    }
}

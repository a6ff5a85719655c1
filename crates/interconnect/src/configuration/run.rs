//! Runs a configuration.

use super::super::collective::CollectiveLoop;
use super::super::dependency;
use super::super::edge::{EdgeConfiguration, EdgeFabric, Tap};
use super::super::ethernet::{Ethernet, EthernetConfiguration};
use super::super::flit::{FlitConfiguration, FlitFabric, RouterFabric};
use super::super::fluid::{Fluid, FluidConfiguration};
use super::super::loggp::LogGp;
use super::super::records::{RecordLimits, Recorder};
use super::super::routing::{Paths, RouteTable, Ties, salt};
use super::super::simulation::{Driver, Fabric, InTurns, Outcome, Simulation, Stuck, Watcher};
use super::super::statistics::mix;
use super::super::workload::{
    AnyWorkload, Flows, Member, MeshExchange, OpenLoad, Separable, Several, TokenPass, Workload,
};
use super::super::wormhole::Wormhole;
use super::units::Unit;
use super::workloads::member_seed;
use super::{Configuration, ConfigurationError, FabricConfiguration, WorkloadConfiguration};

/// Options that record and watch a run.
#[derive(Default)]
pub struct Watch<'a> {
    /// Limits of the records, if the run is recorded.
    pub records: Option<RecordLimits>,
    /// Callback that gets the progress every few thousand events, and can stop the run.
    pub progress: Option<&'a mut Watcher<'a>>,
    /// Receives a copy of the frames of hosts with the real engine.
    pub tap: Option<Box<dyn Tap>>,
}

impl Configuration {
    /// Runs the configuration, on one thread.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn run(&self) -> Result<Outcome, ConfigurationError> {
        Self { threads: 1, ..self.clone() }.run_watched(&InTurns, Watch::default())
    }

    /// Runs the configuration, recorded or watched as `watch` says. If the configuration has
    /// several threads, `driver` runs one part for each thread. A recorded run always has one
    /// thread.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn run_watched(
        &self,
        driver: &dyn Driver,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        let hosts = self.topology.hosts();
        if let WorkloadConfiguration::Several(members) = &self.workload {
            let members = members.iter().enumerate().map(|(place, member)| {
                let (workload, ranks) =
                    self.alone_workload(&member.workload, member_seed(self.seed, place));
                Member { workload, ranks, start_ps: member.start_ps, class: member.class }
            });
            return self.run_divided(Several::new(members.collect()), hosts, driver, watch);
        }
        let (workload, ranks) = self.alone_workload(&self.workload, self.seed);
        match workload {
            AnyWorkload::TokenPass(token) => self.run_divided(token, ranks, driver, watch),
            AnyWorkload::Mesh(mesh) => self.run_divided(mesh, ranks, driver, watch),
            AnyWorkload::OpenLoad(load) => self.run_divided(load, ranks, driver, watch),
            AnyWorkload::Flows(flows) => self.run_divided(flows, ranks, driver, watch),
            AnyWorkload::Collective(own) => self.run_divided(own, ranks, driver, watch),
        }
    }

    /// Returns a single workload and its number of ranks. [`WorkloadConfiguration::Several`] cannot
    /// be a member of several workloads; for this value, the result is a workload without flows.
    fn alone_workload(&self, workload: &WorkloadConfiguration, seed: u64) -> (AnyWorkload, u32) {
        let hosts = self.topology.hosts();
        match workload {
            WorkloadConfiguration::TokenPass { bytes, delay_ps, passes } => {
                let token = TokenPass::new(hosts, *bytes, *delay_ps, *passes);
                (AnyWorkload::TokenPass(token), hosts)
            }
            WorkloadConfiguration::Mesh(mesh) => {
                (AnyWorkload::Mesh(MeshExchange::new(*mesh)), mesh.width * mesh.height)
            }
            WorkloadConfiguration::OpenLoad { pattern, sizes, arrivals, interval_ps, until_ps } => {
                let (pattern, sizes) = (pattern.clone(), sizes.clone());
                let load = OpenLoad::new(hosts, pattern, sizes, *interval_ps, *until_ps, seed);
                (AnyWorkload::OpenLoad(load.with_arrivals(*arrivals)), hosts)
            }
            WorkloadConfiguration::Flows(flows) => {
                (AnyWorkload::Flows(Flows::new(hosts, flows.clone())), hosts)
            }
            WorkloadConfiguration::Collective(collective) => {
                (AnyWorkload::Collective(CollectiveLoop::new(*collective)), collective.ranks)
            }
            WorkloadConfiguration::Several(_) => {
                (AnyWorkload::Flows(Flows::new(hosts, Vec::new().into())), hosts)
            }
        }
    }

    /// Returns a circle of channels in which packets could wait for each other; `None` if the
    /// routes permit no such circle. A circle is possible only in fabrics whose packets hold links
    /// while they wait.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
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

    /// Returns a hash of all settings.
    pub fn hash(&self) -> u64 {
        self.effective.bytes().fold(0, |hash, byte| mix(hash, byte.into()))
    }

    /// Runs another workload, of `ranks` ranks, in one part for each configured thread. The ranks
    /// run on the hosts from 0.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn run_divided(
        &self,
        workload: impl Separable,
        ranks: u32,
        driver: &dyn Driver,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        self.judge(self.run_parts(workload, ranks, driver, watch))
    }

    fn run_parts(
        &self,
        workload: impl Separable,
        ranks: u32,
        driver: &dyn Driver,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        let fabric = match &self.fabric {
            FabricConfiguration::Ethernet(_) if self.edge.is_some() && self.threads > 1 => "edge",
            _ if self.threads == 1 || watch.records.is_some() || watch.tap.is_some() => {
                return self.run_whole(workload, ranks, watch);
            }
            FabricConfiguration::Ethernet(ethernet) => {
                let routes = RouteTable::new(&self.topology, self.routing)?;
                let ethernet = Ethernet::new(&self.topology, routes, self.salted(ethernet));
                let simulation = self.simulation(ethernet, workload, ranks);
                let parts = simulation.divide(&self.topology, self.threads);
                return Ok(match watch.progress {
                    Some(progress) => parts.run_watched(driver, progress),
                    None => parts.run(driver),
                }?);
            }
            FabricConfiguration::Wormhole(_) => "wormhole",
            FabricConfiguration::Flit(_) => "flit",
            FabricConfiguration::Fluid(_) => "fluid",
            FabricConfiguration::LogGp(_) => "loggp",
        };
        Err(ConfigurationError::Undivided { fabric, threads: self.threads })
    }

    /// Runs another workload, of `ranks` ranks, on one thread. The ranks run on the hosts from 0.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn run_workload(
        &self,
        workload: impl Workload,
        ranks: u32,
    ) -> Result<Outcome, ConfigurationError> {
        self.run_workload_watched(workload, ranks, Watch::default())
    }

    /// Runs a workload as [`Self::run_workload`] does, recorded or watched.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn run_workload_watched(
        &self,
        workload: impl Workload,
        ranks: u32,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        self.judge(self.run_whole(workload, ranks, watch))
    }

    /// Returns the outcome of a run. If packets were lost, returns an error that names the key that
    /// permits losses.
    fn judge(
        &self,
        ended: Result<Outcome, ConfigurationError>,
    ) -> Result<Outcome, ConfigurationError> {
        match ended {
            Err(ConfigurationError::Stuck(Stuck::Lost { packets })) => Err(match self.lossy() {
                Some(wrong) => ConfigurationError::Lossy { wrong: Box::new(wrong), packets },
                None => Stuck::Lost { packets }.into(),
            }),
            Err(ConfigurationError::Stuck(Stuck::WarmUp { warmup_ps, completed_ps })) => {
                let half = Unit::Time.quoted(Unit::Time.below(completed_ps / 2));
                let expected = format!(
                    "less, because all messages were posted before this time, and the run ended at {}; {half} would do",
                    Unit::Time.written(Unit::Time.below(completed_ps))
                );
                Err(self.written.value("run", "warmup_ps", warmup_ps.to_string(), expected))
            }
            other => other.map_err(|error| self.written.locate(error)),
        }
    }

    /// Returns an error if the run lost packets and nothing retransmitted them. The error names the
    /// key that permits the losses, and a remedy.
    pub fn unrepaired(&self, outcome: &Outcome) -> Option<ConfigurationError> {
        let is_repaired = self.edge.is_some() || outcome.transport.is_some();
        if outcome.dropped == 0 || is_repaired {
            return None;
        }
        let (wrong, packets) = (Box::new(self.lossy()?), outcome.dropped);
        Some(ConfigurationError::Unrepaired { wrong, packets })
    }

    /// Returns an error about the key that permits losses, if the configuration has such a key.
    fn lossy(&self) -> Option<ConfigurationError> {
        let remedy = "[fabric] lossless = [0], or [host] transport = \"selective_repeat\", or \
                      [host] kind = \"edge\", so that all messages arrive";
        let Some((key, bytes)) = self.fabric.lossy() else { return self.lossy_cable(remedy) };
        Some(self.written.value("fabric", key, bytes.to_string(), format!("0, or {remedy}")))
    }

    fn run_whole(
        &self,
        workload: impl Workload,
        ranks: u32,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        let table = || RouteTable::new(&self.topology, self.routing);
        let has_engines =
            self.edge.is_some() && matches!(self.fabric, FabricConfiguration::Ethernet(_));
        if watch.tap.is_some() && !has_engines {
            return Err(ConfigurationError::NoFrames);
        }
        match &self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
                let ethernet = self.salted(ethernet);
                if let Some(edge) = &self.edge {
                    return self.run_edge(&ethernet, edge, workload, ranks, watch);
                }
                let fabric = Ethernet::new(&self.topology, table()?, ethernet);
                self.finish(fabric, workload, ranks, watch)
            }
            FabricConfiguration::Wormhole(wormhole) => {
                let paths = Paths::new(&self.topology, &table()?, self.lanes, 1)?;
                self.finish(Wormhole::new(&self.topology, paths, *wormhole), workload, ranks, watch)
            }
            FabricConfiguration::Flit(flit) if let Some(router) = flit.router => {
                let fabric =
                    RouterFabric::new(&self.topology, self.paths_of_draws(flit)?, *flit, router);
                self.finish(fabric, workload, ranks, watch)
            }
            FabricConfiguration::Flit(flit) => {
                let channels = flit.channels.into();
                let paths = Paths::new(&self.topology, &table()?, self.lanes, channels)?;
                self.finish(FlitFabric::new(&self.topology, paths, *flit), workload, ranks, watch)
            }
            FabricConfiguration::Fluid(fluid) => {
                let fluid = FluidConfiguration { salt: salt(self.seed), ..*fluid };
                self.finish(Fluid::new(&self.topology, table()?, fluid), workload, ranks, watch)
            }
            FabricConfiguration::LogGp(loggp) => {
                self.finish(LogGp::new(self.topology.hosts(), *loggp), workload, ranks, watch)
            }
        }
    }

    /// Returns the given Ethernet settings, with random numbers that are derived from the seed of
    /// the run.
    const fn salted(&self, ethernet: &EthernetConfiguration) -> EthernetConfiguration {
        EthernetConfiguration { salt: salt(self.seed), ..*ethernet }
    }

    /// Returns the alternative sets of paths of packets. A torus has two sets. The two sets differ
    /// only for pairs of hosts that are equally far apart in both directions of a ring.
    fn paths_of_draws(&self, flit: &FlitConfiguration) -> Result<Vec<Paths>, ConfigurationError> {
        let is_torus = self.topology.grid().is_some_and(|grid| grid.is_torus);
        let ties: &[Ties] = if is_torus { &[Ties::Up, Ties::Down] } else { &[Ties::ByPosition] };
        let paths = ties.iter().map(|&ties| {
            let table = RouteTable::with_ties(&self.topology, self.routing, ties)?;
            Ok(Paths::new(&self.topology, &table, self.lanes, flit.channels.into())?)
        });
        paths.collect()
    }

    /// Runs a workload on hosts with the real engine.
    fn run_edge(
        &self,
        ethernet: &EthernetConfiguration,
        edge: &EdgeConfiguration,
        workload: impl Workload,
        ranks: u32,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        let edge = edge.clone();
        let (rails, links) = (u32::from(edge.rails), self.topology.links().len());
        let mut fabric = EdgeFabric::new(&self.topology, self.routing, *ethernet, edge, self.seed)?;
        let pairs = workload.pairs();
        fabric.check_memory(&pairs, ranks)?;
        fabric.connect_ahead(&pairs)?;
        if let Some(tap) = watch.tap {
            fabric.set_tap(tap);
        }
        let mut simulation = self.simulation(fabric, workload, ranks);
        if let Some(limits) = watch.records {
            let recorder = Recorder::new(limits, links * rails as usize, 1);
            simulation = simulation.with_recorder(recorder.with_engines(rails, links as u32));
        }
        let (mut outcome, mut fabric) = match watch.progress {
            Some(progress) => simulation.run_watched(progress),
            None => simulation.run_to_end(),
        }?;
        fabric.check_erased();
        if !fabric.violations().is_empty() {
            return Err(ConfigurationError::Violations {
                violations: fabric.violations().to_vec(),
            });
        }
        outcome.engines = Some(Box::new(fabric.counts()));
        Ok(outcome)
    }

    fn finish(
        &self,
        fabric: impl Fabric,
        workload: impl Workload,
        ranks: u32,
        watch: Watch,
    ) -> Result<Outcome, ConfigurationError> {
        let mut simulation = self.simulation(fabric, workload, ranks);
        if let Some(limits) = watch.records {
            let channels = match &self.fabric {
                FabricConfiguration::Flit(flit) => usize::from(flit.channels),
                _ => 1,
            };
            let links = self.topology.links().len();
            let has_windows = match &self.fabric {
                FabricConfiguration::Ethernet(ethernet) => ethernet.has_transport(),
                _ => false,
            };
            let recorder = Recorder::new(limits, links, channels).with_windows(has_windows);
            simulation = simulation.with_recorder(recorder);
        }
        let (outcome, _) = match watch.progress {
            Some(progress) => simulation.run_watched(progress),
            None => simulation.run_to_end(),
        }?;
        Ok(outcome)
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

impl FabricConfiguration {
    /// Returns the key that permits losses, and its value; `None` if no buffer has a limit.
    fn lossy(&self) -> Option<(&'static str, u64)> {
        let Self::Ethernet(ethernet) = self else { return None };
        let keys = [
            ("buffer_bytes", ethernet.buffer_bytes),
            ("shared_bytes", ethernet.queues.shared_bytes),
        ];
        keys.into_iter().find(|(_, bytes)| *bytes > 0)
    }
}

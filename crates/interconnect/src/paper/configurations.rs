//! The three interconnects of the paper, as configurations of the simulator.

use super::super::cost::PriceListError;
use super::super::ethernet::{Ethernet, EthernetConfiguration, Forwarding};
use super::super::flit::{FlitConfiguration, FlitFabric, PortConfiguration};
use super::super::routing::{Choice, LanePolicy, Paths, RouteTable, Routing, RoutingError};
use super::super::simulation::{HostCosts, Outcome, Simulation, Stuck};
use super::super::topology::{Topology, TopologyError};
use super::super::workload::Workload;
use super::super::wormhole::{Arbiter, LaneSelection, Wormhole, WormholeConfiguration};
use super::reference::Interconnect;

/// The simulated cluster, with the settings of the three interconnects.
#[derive(Clone, Debug)]
pub struct Configurations {
    /// Ethernet: four switches with 64 hosts each, and a fifth switch that connects them.
    pub ethernet: EthernetConfiguration,
    /// Number of cables from each of the four switches to the fifth.
    pub ethernet_trunks: u32,
    /// Myrinet: crossbars of 16 ports, 8 of them for hosts, in a torus with two lanes in each
    /// direction.
    pub myrinet: WormholeConfiguration,
    /// Whether routes of Myrinet follow the second dimension first.
    pub myrinet_reversed: bool,
    /// Avici: cards with 16 Gigabit Ethernet ports, in a torus.
    pub avici: FlitConfiguration,
    /// Number of iterations of `mesh`.
    pub iterations: u32,
    /// Computation of each rank in each iteration of `mesh`, in picoseconds.
    pub compute_ps: u64,
    /// Order in which a rank sends to its neighbours; see [`MeshConfiguration::order`].
    ///
    /// [`MeshConfiguration::order`]: super::super::workload::MeshConfiguration::order
    pub order: [u8; 4],
    /// Delay of each rank in `token_pass`, in picoseconds.
    pub delay_ps: u64,
}

/// Why an experiment of the paper cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PaperError {
    /// A topology cannot be built.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A topology does not support the requested routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The price list cannot be used.
    #[error(transparent)]
    Prices(#[from] PriceListError),
    /// A run stopped before its workload had finished.
    #[error("{interconnect}, {what}: {cause}")]
    Stuck {
        /// Name of the interconnect.
        interconnect: &'static str,
        /// Name of the run.
        what: String,
        /// Reason why the run stopped.
        cause: Stuck,
    },
}

impl Default for Configurations {
    /// Returns the settings that all experiments of the paper share.
    fn default() -> Self {
        Self {
            ethernet: EthernetConfiguration {
                propagation_ps: 4_000,
                latency_ps: 404_000,
                host_frame_interval_ps: 310_000,
                forwarding: Forwarding::StoreAndForward,
                choice: Choice::LeastLoaded,
                ..EthernetConfiguration::with_rate(GIGABIT_BPS)
            },
            ethernet_trunks: 6,
            myrinet: WormholeConfiguration {
                // At 1.28 Gb/s, one byte takes 6.25 ns.
                character_ps: 6_250,
                character_bytes: 1,
                header_characters: 11,
                hop_characters: 38,
                exit_characters: 12,
                turnaround_characters: 1,
                storage_characters: 470,
                arbiter: Arbiter::HostsLast,
                lanes: LaneSelection::FirstFree,
                direction_order: [1, 2, 0, 3],
            },
            myrinet_reversed: true,
            avici: FlitConfiguration {
                router: None,
                flit_ps: 30_000,
                hop_ps: 45_000,
                entry_ps: 90_000,
                exit_ps: 90_000,
                credit_ps: 45_000,
                // A flit has 72 bytes, of which 14 are its header.
                flit_payload_bytes: 58,
                packet_overhead_bytes: 12,
                channels: 2,
                buffer_flits: 64,
                clock_ps: 30_000,
                ports: PortConfiguration {
                    rate_bps: GIGABIT_BPS,
                    mtu_bytes: 1500,
                    payload_min_bytes: 46,
                    overhead_bytes: 26,
                    gap_bytes: 12,
                },
            },
            iterations: 9,
            // A multiple of the clock period of Avici's ports, within 1 % of 10 µs.
            compute_ps: 9_990_000,
            order: [0, 1, 3, 2],
            delay_ps: 12_000_000,
        }
    }
}

impl Configurations {
    /// Runs a workload of 256 ranks; rank r runs on host `placement[r]`.
    ///
    /// # Errors
    /// Returns [`Stuck`] if the run ends before its workload has finished.
    pub fn run<W: Workload>(
        &self,
        network: &Networks,
        interconnect: Interconnect,
        workload: W,
        placement: &[u32],
        costs: HostCosts,
    ) -> Result<Outcome, Stuck> {
        match interconnect {
            Interconnect::Ethernet => {
                let (topology, routes) = &network.ethernet;
                let fabric = Ethernet::new(topology, routes.clone(), self.ethernet);
                Simulation::new(fabric, workload, placement, costs).run()
            }
            Interconnect::Myrinet => {
                let (topology, paths) = &network.myrinet;
                let fabric = Wormhole::new(topology, paths.clone(), self.myrinet);
                Simulation::new(fabric, workload, placement, costs).run()
            }
            Interconnect::Avici => {
                let (topology, paths) = &network.avici;
                let fabric = FlitFabric::new(topology, paths.clone(), self.avici);
                Simulation::new(fabric, workload, placement, costs).run()
            }
        }
    }

    /// Returns the costs of messages at a host. The costs were fitted to the latency of an MPI
    /// ping-pong. The part of the latency that is not transmission is divided equally between the
    /// two hosts. The costs of Ethernet hosts are a tenth higher than the costs of other hosts.
    pub const fn host_costs(&self, interconnect: Interconnect) -> HostCosts {
        match interconnect {
            Interconnect::Myrinet => HostCosts::symmetric(58_000_000, 20_000),
            Interconnect::Avici | Interconnect::Ethernet => {
                HostCosts::symmetric(63_800_000, 22_000)
            }
        }
    }
}

/// Topologies and routes of the three interconnects, which many runs use.
#[derive(Debug)]
pub struct Networks {
    /// Ethernet with a spanning tree whose root is the fifth switch.
    pub ethernet: (Topology, RouteTable),
    /// Myrinet with dimension order and dateline lanes.
    pub myrinet: (Topology, Paths),
    /// Avici with dimension order and dateline lanes, as virtual channels.
    pub avici: (Topology, Paths),
}

impl Networks {
    /// Builds the networks of these configurations.
    ///
    /// # Errors
    /// Returns [`PaperError`]; each variant names one cause.
    pub fn new(configurations: &Configurations) -> Result<Self, PaperError> {
        let ethernet = Topology::leaf_spine(4, 64, 1, configurations.ethernet_trunks)?;
        let tree = RouteTable::new(&ethernet, Routing::SpanningTree { root: 4 })?;

        let myrinet = Topology::torus(&[8, 4], 8, 2)?;
        let is_reversed = configurations.myrinet_reversed;
        let table = RouteTable::new(&myrinet, Routing::DimensionOrder { is_reversed })?;
        let myrinet_paths = Paths::new(&myrinet, &table, LanePolicy::Dateline, 1)?;

        let avici = Topology::torus(&[2, 2, 4], 16, 1)?;
        let table = RouteTable::new(&avici, Routing::DimensionOrder { is_reversed: false })?;
        let channels = usize::from(configurations.avici.channels);
        let avici_paths = Paths::new(&avici, &table, LanePolicy::Dateline, channels)?;
        Ok(Self {
            ethernet: (ethernet, tree),
            myrinet: (myrinet, myrinet_paths),
            avici: (avici, avici_paths),
        })
    }
}

/// Returns the placement in which rank r runs on host r. Neighbours on the ring of ranks are then
/// neighbours in the network.
pub fn linear() -> Vec<u32> {
    (0..RANKS).collect()
}

/// Returns the placement of `mesh`. On Ethernet, consecutive ranks are on different switches, so
/// that half of the messages cross the fifth switch.
pub fn mesh_placement(interconnect: Interconnect) -> Vec<u32> {
    match interconnect {
        Interconnect::Ethernet => (0..RANKS).map(|rank| rank % 4 * 64 + rank / 4).collect(),
        Interconnect::Myrinet | Interconnect::Avici => linear(),
    }
}

/// Number of hosts, which is also the number of ranks.
pub const RANKS: u32 = 256;
/// Number of ranks along each side of `mesh`.
pub const MESH_SIDE: u32 = 16;
const GIGABIT_BPS: u64 = 1_000_000_000;

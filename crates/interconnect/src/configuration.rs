//! Reads a simulation from TOML text. The keys have the names of the Rust API.
//!
//! Every key has a default. An unknown key is an error whose text names the nearest known key. The
//! effective configuration, which includes all defaults, can be written as TOML.

mod ethernet;
mod fidelity;
mod flits;
mod flows;
mod graph;
mod homa;
mod hosts;
mod lines;
mod meanings;
#[cfg(test)]
mod mistakes;
mod purchase;
mod reader;
mod reference;
mod run;
mod slowdown;
mod sweep;
mod transport;
mod units;
mod workloads;

use std::sync::Arc;

use toml::Table;

use super::collective::CollectiveConfiguration;
use super::edge::{EdgeConfiguration, EdgeError};
use super::ethernet::EthernetConfiguration;
use super::flit::FlitConfiguration;
use super::fluid::FluidConfiguration;
use super::loggp::LogGpConfiguration;
use super::receiving::ReceivingConfiguration;
use super::routing::{Choice, LanePolicy, Routing, RoutingError};
use super::saturation::limits_at_load;
use super::simulation::{HostCosts, Limits, Stuck};
use super::topology::{Topology, TopologyError};
use super::workload::{Arrivals, Flow, MeshConfiguration, Pattern, Sizes, SizesError};
use super::wormhole::{Arbiter, LaneSelection, WormholeConfiguration};
use ethernet::{check_ethernet, read_ethernet, read_jitter, read_receiving};
use lines::Written;
use reader::Reader;

pub use fidelity::{Fidelity, IdleNetwork};
pub use reference::{Key, keys, markdown};
pub use run::Watch;
pub use slowdown::Slowdowns;
pub use sweep::{Point, parse_sweep};
/// Value of a key in a configuration.
pub use toml::Value as Setting;
pub use units::Unit;

/// A simulation that can be run.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Topology of the network.
    pub topology: Topology,
    /// Routes through the topology.
    pub routing: Routing,
    /// Rule that assigns lanes (virtual channels), in fabrics that have them.
    pub lanes: LanePolicy,
    /// Model of the network that carries messages.
    pub fabric: FabricConfiguration,
    /// Costs of messages at hosts.
    pub costs: HostCosts,
    /// Costs of frames at hosts, and how hosts are notified of messages.
    pub receiving: ReceivingConfiguration,
    /// Settings of hosts that run the real engine; `None` for hosts that are only modelled.
    pub edge: Option<EdgeConfiguration>,
    /// Workload of the ranks.
    pub workload: WorkloadConfiguration,
    /// Length of the warm-up, and the limits of events and time at which a run stops.
    pub limits: Limits,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of parts that run in parallel. The result does not depend on this number.
    pub threads: u32,
    /// All settings, defaults included, as TOML.
    pub effective: String,
    /// The file as its author wrote it. Errors name its lines and show its values.
    written: Written,
}

/// Kind of fabric, with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a run has one of them")]
pub enum FabricConfiguration {
    /// Ethernet switches with output queues.
    Ethernet(EthernetConfiguration),
    /// Worms: messages that hold several links at the same time.
    Wormhole(WormholeConfiguration),
    /// Flits with credits and virtual channels.
    Flit(FlitConfiguration),
    /// A fixed cost per message, without a network.
    LogGp(LogGpConfiguration),
    /// Fluid model: messages divide the rates of links max-min fairly.
    Fluid(FluidConfiguration),
}

/// Kind of workload, with its settings.
#[derive(Clone, Debug)]
pub enum WorkloadConfiguration {
    /// [`TokenPass`](super::workload::TokenPass).
    TokenPass {
        /// Length of the token, in bytes.
        bytes: u32,
        /// Delay of the token at each rank, in picoseconds.
        delay_ps: u64,
        /// How many times the token is passed on.
        passes: u32,
    },
    /// [`MeshExchange`](super::workload::MeshExchange).
    Mesh(MeshConfiguration),
    /// [`OpenLoad`](super::workload::OpenLoad).
    OpenLoad {
        /// Rule that chooses destinations.
        pattern: Pattern,
        /// Distribution of message lengths.
        sizes: Sizes,
        /// Random distribution of the times between posts.
        arrivals: Arrivals,
        /// Mean time between two messages of a rank, in picoseconds.
        interval_ps: u64,
        /// Time at which ranks stop posting, in picoseconds.
        until_ps: u64,
    },
    /// [`Flows`](super::workload::Flows).
    Flows(Arc<[Flow]>),
    /// [`CollectiveLoop`](super::collective::CollectiveLoop).
    Collective(CollectiveConfiguration),
    /// [`Several`](super::workload::Several).
    Several(Vec<MemberConfiguration>),
}

/// One workload of several.
#[derive(Clone, Debug)]
pub struct MemberConfiguration {
    /// Name of the workload in results.
    pub name: String,
    /// The workload; its times count from `start_ps`. Must not be
    /// [`WorkloadConfiguration::Several`].
    pub workload: WorkloadConfiguration,
    /// Start time, in picoseconds.
    pub start_ps: u64,
    /// Class of the workload's messages, if switches classify by workload.
    pub class: u8,
}

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigurationError {
    /// The text is not TOML.
    #[error("{file}:{line}: {cause}{remedy}")]
    Syntax {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Message of the parser.
        cause: String,
        /// What the author of the file probably meant, in words; can be empty.
        remedy: String,
    },
    /// The key is unknown.
    #[error("{file}: unknown key `{key}` {}; {remedy}", place(.section))]
    UnknownKey {
        /// Name of the file.
        file: String,
        /// Section; empty outside of all sections.
        section: String,
        /// Name of the key.
        key: String,
        /// Text that names the nearest known key, or all keys.
        remedy: String,
    },
    /// The value of a key is outside its range.
    #[error("{file}: {key} {} is {value}, but must be {expected}", place(.section))]
    Value {
        /// Name of the file.
        file: String,
        /// Section; empty for a key outside all sections.
        section: String,
        /// Name of the key.
        key: String,
        /// Value in the file.
        value: String,
        /// Values that are allowed.
        expected: String,
    },
    /// Any other error, with its place in the file.
    #[error("{place}: {cause}")]
    Within {
        /// File, line and section.
        place: String,
        /// The error.
        cause: Box<Self>,
    },
    /// The topology cannot be built.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// The topology does not support the configured routes.
    #[error(transparent)]
    Routing(#[from] RoutingError),
    /// The distribution of sizes is invalid.
    #[error(transparent)]
    Sizes(#[from] SizesError),
    /// A line of a file of flows is invalid.
    #[error(
        "{file}:{line}: {what}; a line is `SOURCE DESTINATION BYTES START`, as `0 1 1MiB 10us`"
    )]
    Flow {
        /// Name of the file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Description of the mistake in the line.
        what: String,
    },
    /// A file that the configuration names cannot be read.
    #[error("{file}: read {path}: {reason}")]
    File {
        /// Name of the configuration.
        file: String,
        /// Path that the configuration names.
        path: String,
        /// Reason why the file cannot be read.
        reason: String,
    },
    /// The workload has no adjustable load, so a search cannot find its saturation.
    #[error("kind in [workload] is {kind}, but must be \"open_load\" to search for saturation")]
    NoLoad {
        /// Kind of the workload.
        kind: String,
    },
    /// The run cannot be divided into parts.
    #[error(
        "{fabric} runs on 1 thread, not on {threads}: only ethernet with hosts of kind model can be divided"
    )]
    Undivided {
        /// Kind of the fabric or of the hosts.
        fabric: &'static str,
        /// Number of threads requested.
        threads: u32,
    },
    /// The caller wants to capture frames, but the hosts have no engine that sends any.
    #[error(
        "no frames to capture: only hosts with the real engine send frames, on a fabric of kind \
         ethernet; set kind = \"edge\" in [host]"
    )]
    NoFrames,
    /// The workload waits for messages whose packets were lost and are not retransmitted.
    #[error("{wrong}; {packets} packets were lost, and the workload waits for their messages")]
    Lossy {
        /// Error about the setting that permits the losses.
        wrong: Box<Self>,
        /// Number of packets lost.
        packets: u64,
    },
    /// Packets were lost, and the configured hosts do not retransmit packets.
    #[error("{wrong}; {packets} packets were lost")]
    Unrepaired {
        /// Error about the setting that permits the losses.
        wrong: Box<Self>,
        /// Number of packets lost.
        packets: u64,
    },
    /// The run stopped before its workload had finished.
    #[error(transparent)]
    Stuck(#[from] Stuck),
    /// The hosts cannot be set up.
    #[error(transparent)]
    Edge(#[from] EdgeError),
    /// The real engine violated a guarantee of the protocol.
    #[error("the engine violated its guarantees; the first violations are:\n{}", .violations.join("\n"))]
    Violations {
        /// Texts of the violations.
        violations: Vec<String>,
    },
}

impl Configuration {
    /// Reads a configuration that names no other files. `file` is the name of the text in errors.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigurationError> {
        Self::parse_with_files(file, text, &no_files)
    }

    /// Reads a configuration and the files that it names. `read` gets the path of such a file. It
    /// returns the text of the file, or the reason why the file cannot be read. [`Self::effective`]
    /// contains the contents of these files.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn parse_with_files(
        file: &str,
        text: &str,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Self, ConfigurationError> {
        let written = Written { file: file.to_owned(), text: text.to_owned() };
        Self::from_written(&written, parse_table(file, text)?, read)
    }

    /// Reads a configuration from a table that was parsed already. `read` reads the files that the
    /// configuration names.
    fn from_written(
        written: &Written,
        root: Table,
        read: &dyn Fn(&str) -> Result<String, String>,
    ) -> Result<Self, ConfigurationError> {
        let root = workloads::insert_files(&written.file, root, read);
        let read = root.and_then(|root| Self::from_table(&written.file, root));
        let (configuration, _) = read.map_err(|error| written.locate(error))?;
        let configuration = Self { written: written.clone(), ..configuration };
        configuration.check_transport()?;
        configuration.check_flows()?;
        Ok(configuration)
    }

    /// Reads a configuration from a table. Also returns all keys that the configuration can have.
    fn from_table(file: &str, mut root: Table) -> Result<(Self, Vec<Key>), ConfigurationError> {
        let mut effective = String::new();
        let outages = hosts::outage_tables(file, &mut root)?;
        let mut members = workloads::members(file, &mut root)?;
        let mut section = |name: &str| Reader::section(file, &mut root, name);
        let (mut topology_keys, mut routing_keys) = (section("topology")?, section("routing")?);
        let (mut fabric_keys, mut host_keys) = (section("fabric")?, section("host")?);
        let mut run_keys = section("run")?;
        let sections = ["topology", "routing", "fabric", "host", "workload", "run"];
        Reader::finish_root(file, &root, &sections)?;

        let topology = read_topology(&mut topology_keys)?;
        if topology.hosts() < 2 {
            return Err(topology_keys.wrong_number(
                "hosts",
                topology.hosts().into(),
                "2 or more in all",
            ));
        }
        let mut fabric = read_fabric(&mut fabric_keys, &topology)?;
        graph::check_fabric(&topology_keys, &topology, &fabric)?;
        if let FabricConfiguration::Ethernet(ethernet) = &fabric {
            check_ethernet(&fabric_keys, ethernet)?;
        }
        let (routing, lanes) = read_routing(&mut routing_keys, &topology, &fabric)?;
        flits::check_lanes((&fabric_keys, &topology_keys), &topology, lanes, &fabric)?;
        let costs = read_costs(&mut host_keys)?;
        let receiving = read_receiving(&mut host_keys, &fabric)?;
        let mut edge = hosts::read(&mut host_keys, &fabric)?;
        if edge.is_some() {
            hosts::check(&host_keys, &fabric_keys, &fabric, &receiving)?;
        } else {
            let (transport, homa) = transport::read(&mut host_keys, &fabric, &topology)?;
            if let FabricConfiguration::Ethernet(ethernet) = &mut fabric {
                (ethernet.transport, ethernet.homa) = (transport, homa);
            }
        }
        if let FabricConfiguration::Ethernet(ethernet) = &mut fabric {
            let reacts = edge.is_some() || ethernet.has_transport();
            ethernet.jitter_percent = if reacts { read_jitter(&mut fabric_keys)? } else { 0 };
        }
        let (outages, outages_effective, outage_keys) =
            hosts::read_outages(outages, edge.is_some())?;
        if let Some(edge) = &mut edge {
            edge.outages = outages;
        }
        let seed = run_keys.number("seed", 1, 0, u64::MAX >> 1)?;
        let workload = match members.as_mut_slice() {
            [workload_keys] if !workload_keys.is_listed() => {
                workloads::read_workload(workload_keys, &topology, &fabric, seed)?
            }
            members => workloads::read_members(members, &topology, &fabric, seed)?,
        };
        let threads = run_keys.number("threads", 1, 1, THREADS_MAX)? as u32;
        let limits = Limits {
            warmup_ps: run_keys.number("warmup_ps", 0, 0, u64::MAX >> 1)?,
            events: run_keys.number("events", Limits::default().events, 1, u64::MAX >> 1)?,
            ..Limits::default()
        };
        if let WorkloadConfiguration::OpenLoad { until_ps, .. } = workload
            && limits.warmup_ps >= until_ps
        {
            let half = Unit::Time.quoted(until_ps / 2);
            let until = Unit::Time.written(until_ps);
            let expected = format!("less than [workload] until_ps, {until}; {half} would do");
            return Err(run_keys.wrong_number("warmup_ps", limits.warmup_ps, &expected));
        }
        let mut known = outage_keys;
        let sections = [topology_keys, routing_keys, fabric_keys, host_keys].into_iter();
        for keys in sections.chain(members).chain([run_keys]) {
            let (text, keys) = keys.finish()?;
            effective.push_str(&text);
            known.extend(keys);
        }
        effective.push_str(&outages_effective);
        let configuration = Self {
            topology,
            routing,
            lanes,
            fabric,
            costs,
            receiving,
            edge,
            workload,
            limits,
            seed,
            threads,
            effective,
            written: Written::default(),
        };
        Ok((configuration, known))
    }
}

impl Configuration {
    /// Returns this configuration with another load, for a saturation search. Also returns the load
    /// that counts as 100 percent, in bytes per second of one host.
    pub(super) fn at_load(
        &self,
        load_percent: f64,
        seed: u64,
    ) -> Result<(Self, f64), ConfigurationError> {
        let topology = &self.topology;
        let mut workload = self.workload.clone();
        let WorkloadConfiguration::OpenLoad { pattern, sizes, interval_ps, until_ps, .. } =
            &mut workload
        else {
            return Err(ConfigurationError::NoLoad { kind: self.workload.kind().to_owned() });
        };
        let limits = limits_at_load(self.limits, *until_ps);
        *interval_ps = self.fabric.interval_ps(pattern, sizes, topology, load_percent);
        let full_ps = self.fabric.interval_ps(pattern, sizes, topology, 100.0);
        let rate = sizes.mean_bytes_1024ths() as f64 / 1024.0 / (full_ps as f64 * 1e-12);
        Ok((Self { workload, limits, seed, threads: 1, ..self.clone() }, rate))
    }
}

impl WorkloadConfiguration {
    /// Returns the value of `kind` in `[workload]` that selects this kind of workload.
    const fn kind(&self) -> &'static str {
        match self {
            Self::TokenPass { .. } => "token_pass",
            Self::Mesh(_) => "mesh",
            Self::OpenLoad { .. } => "open_load",
            Self::Flows(_) => "flows",
            Self::Collective(_) => "a collective",
            Self::Several(_) => "a list",
        }
    }
}

/// Parses a table in TOML.
fn parse_table(file: &str, text: &str) -> Result<Table, ConfigurationError> {
    text.parse().map_err(|cause| lines::syntax(file, text, &cause))
}

/// Describes the section of a key, for error texts.
fn place(section: &str) -> String {
    match section {
        "" => "outside of all sections".to_owned(),
        section => format!("in [{section}]"),
    }
}

fn no_files(_path: &str) -> Result<String, String> {
    Err("this configuration cannot name other files".to_owned())
}

fn read_topology(keys: &mut Reader) -> Result<Topology, ConfigurationError> {
    let kinds = [
        "star",
        "cascade",
        "leaf_spine",
        "fat_tree",
        "torus",
        "mesh",
        "hyperx",
        "dragonfly",
        "graph",
    ];
    let kind = keys.word("kind", "star", &kinds)?;
    if kind == "graph" {
        return graph::read(keys);
    }
    let mut number = |key, default| keys.number(key, default, 1, 1 << 20).map(|n| n as u32);
    Ok(match kind.as_str() {
        "star" => Topology::star(number("hosts", 16)?)?,
        "cascade" => {
            Topology::cascade(number("switches", 2)?, number("hosts", 16)?, number("trunks", 1)?)?
        }
        "leaf_spine" => Topology::leaf_spine(
            number("leaves", 4)?,
            number("hosts", 16)?,
            number("spines", 4)?,
            number("trunks", 1)?,
        )?,
        "fat_tree" => {
            let radix = number("radix", 8)?;
            if !radix.is_multiple_of(2) {
                let expected = format!("even; {} would do", (radix + 1).min(128));
                return Err(keys.wrong_number("radix", radix.into(), &expected));
            }
            Topology::fat_tree(radix)?
        }
        "dragonfly" => {
            Topology::dragonfly(number("switches", 4)?, number("hosts", 2)?, number("global", 2)?)?
        }
        grid => {
            let (hosts, lanes) = (number("hosts", 1)?, number("lanes", 1)?);
            let sizes = keys.numbers("sizes", &[4, 4], 1, 1 << 16)?;
            let sizes: Vec<u32> = sizes.into_iter().map(|size| size as u32).collect();
            match grid {
                "torus" => Topology::torus(&sizes, hosts, lanes)?,
                "mesh" => Topology::mesh(&sizes, hosts, lanes)?,
                _ => Topology::hyperx(&sizes, hosts, lanes)?,
            }
        }
    })
}

fn read_routing(
    keys: &mut Reader,
    topology: &Topology,
    fabric: &FabricConfiguration,
) -> Result<(Routing, LanePolicy), ConfigurationError> {
    let default = if topology.grid().is_some() { "dimension_order" } else { "shortest" };
    let kind = keys.word("kind", default, &["shortest", "spanning_tree", "dimension_order"])?;
    let routing = match kind.as_str() {
        "shortest" => Routing::Shortest,
        "spanning_tree" => {
            let root = keys.number("root", 0, 0, u32::MAX.into())?;
            if root >= topology.switches().into() {
                let last = topology.switches().saturating_sub(1);
                let expected = format!("a switch of {}, from 0 to {last}", topology.name());
                return Err(keys.wrong_number("root", root, &expected));
            }
            Routing::SpanningTree { root: root as u32 }
        }
        _ if topology.grid().is_none() => {
            let expected = format!("\"shortest\" on {}, which has no dimensions", topology.name());
            return Err(keys.wrong_word("kind", &kind, &expected));
        }
        _ => Routing::DimensionOrder { is_reversed: keys.flag("is_reversed", false)? },
    };
    let default = if fabric.router().is_some() { "partition" } else { "dateline" };
    let policies = ["dateline", "partition", "balanced", "free"];
    let lanes = match keys.word("lanes", default, &policies)?.as_str() {
        "free" => LanePolicy::Free,
        "partition" => LanePolicy::Partition,
        "balanced" => LanePolicy::Balanced,
        _ => LanePolicy::Dateline,
    };
    Ok((routing, lanes))
}

fn read_fabric(
    keys: &mut Reader,
    topology: &Topology,
) -> Result<FabricConfiguration, ConfigurationError> {
    let kind =
        keys.word("kind", "ethernet", &["ethernet", "wormhole", "flit", "loggp", "fluid"])?;
    Ok(match kind.as_str() {
        "ethernet" => FabricConfiguration::Ethernet(read_ethernet(keys)?),
        "wormhole" => FabricConfiguration::Wormhole(read_wormhole(keys)?),
        "flit" => FabricConfiguration::Flit(flits::read(keys, topology)?),
        "fluid" => {
            let host_rate_bps =
                keys.number("host_rate_bps", 10_000_000_000, RATE_MIN_BPS, RATE_MAX_BPS)?;
            FabricConfiguration::Fluid(FluidConfiguration {
                host_rate_bps,
                trunk_rate_bps: keys.number(
                    "trunk_rate_bps",
                    host_rate_bps,
                    RATE_MIN_BPS,
                    RATE_MAX_BPS,
                )?,
                link_latency_ps: keys.number("link_latency_ps", 500_000, 0, TIME_MAX_PS)?,
                choice: match keys.word("choice", "per_flow", &["per_flow", "per_source"])?.as_str()
                {
                    "per_source" => Choice::PerSource,
                    _ => Choice::PerFlow,
                },
                salt: 0,
            })
        }
        _ => FabricConfiguration::LogGp(LogGpConfiguration {
            latency_ps: keys.number("latency_ps", 5_000_000, 0, TIME_MAX_PS)?,
            gap_ps: keys.number("gap_ps", 1_000_000, 0, TIME_MAX_PS)?,
            byte_ps: keys.number("byte_ps", 80, 0, BYTE_TIME_MAX_PS)?,
            holds_receiver: keys.flag("holds_receiver", true)?,
        }),
    })
}

fn read_wormhole(keys: &mut Reader) -> Result<WormholeConfiguration, ConfigurationError> {
    let mut characters = |key, default, least| keys.number(key, default, least, CHARACTERS_MAX);
    Ok(WormholeConfiguration {
        header_characters: characters("header_characters", 8, 0)?,
        hop_characters: characters("hop_characters", 38, 1)?,
        exit_characters: characters("exit_characters", 16, 0)?,
        turnaround_characters: characters("turnaround_characters", 0, 0)?,
        storage_characters: characters("storage_characters", 278, 1)?,
        character_ps: keys.number("character_ps", 6_250, 1, BYTE_TIME_MAX_PS)?,
        character_bytes: keys.number("character_bytes", 1, 1, BYTES_MAX)? as u32,
        arbiter: match keys
            .word("arbiter", "fair", &["fair", "hosts_first", "hosts_last"])?
            .as_str()
        {
            "hosts_first" => Arbiter::HostsFirst,
            "hosts_last" => Arbiter::HostsLast,
            _ => Arbiter::Fair,
        },
        lanes: match keys.word("lanes", "first_free", &["first_free", "per_source"])?.as_str() {
            "per_source" => LaneSelection::PerSource,
            _ => LaneSelection::FirstFree,
        },
        direction_order: [0, 1, 2, 3],
    })
}

fn read_costs(keys: &mut Reader) -> Result<HostCosts, ConfigurationError> {
    let mut time = |key, most| keys.number(key, 0, 0, most);
    Ok(HostCosts {
        send_ps: time("send_ps", TIME_MAX_PS)?,
        send_ps_per_byte: time("send_ps_per_byte", BYTE_TIME_MAX_PS)?,
        receive_ps: time("receive_ps", TIME_MAX_PS)?,
        receive_ps_per_byte: time("receive_ps_per_byte", BYTE_TIME_MAX_PS)?,
    })
}

/// Maximum value of a time in a configuration: about eighteen minutes. A single action of a run
/// takes at most a small multiple of this time, and a run ends at 2^62 ps. Sums of times therefore
/// never overflow.
const TIME_MAX_PS: u64 = 1 << 50;
/// Maximum time per byte. With this time per byte, the longest message takes 2^54 ps.
const BYTE_TIME_MAX_PS: u64 = 1 << 24;
/// Maximum length of a message: one gibibyte.
const MESSAGE_MAX_BYTES: u64 = 1 << 30;
/// Maximum value of those settings of a wormhole network that are numbers of characters. A
/// character is the unit that a wormhole network transmits. At the longest time per character,
/// `BYTE_TIME_MAX_PS`, a setting of `CHARACTERS_MAX` characters is a time of 2^44 ps.
const CHARACTERS_MAX: u64 = 1 << 20;
/// Minimum rate. At this rate, a byte takes 16 µs. The simulator counts the time of a byte in units
/// of 1/256 ps, and this time is just below 2^32 such units.
const RATE_MIN_BPS: u64 = 500_000;
/// Maximum rate. At this rate, a byte takes 1 ps.
const RATE_MAX_BPS: u64 = 8_000_000_000_000;
/// Minimum MTU. At this MTU, the longest message has 16 million frames.
const MTU_MIN_BYTES: u64 = 64;
/// Maximum number of parts of a run.
const THREADS_MAX: u64 = super::ethernet::PARTS_MAX as u64;
/// Maximum length of a frame. Even at the slowest rate, sending such a frame takes far less than
/// the maximum time.
const BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Configuration::parse("a.toml", text).expect_err("it is wrong").to_string()
    }

    #[test]
    fn a_warm_up_beyond_the_end_is_an_error() {
        let run = |warmup_ps: u64, threads: u32| {
            let text = format!(
                "[topology]\nkind = \"leaf_spine\"\n[workload]\nkind = \"ring\"\niterations = 3\n\
                 [run]\nwarmup_ps = {warmup_ps}\nthreads = {threads}\n"
            );
            let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
            configuration.run().map(|outcome| outcome.latency.count())
        };
        assert!(run(1, 1).is_ok_and(|count| count > 0));
        for threads in [1, 2] {
            let error = run(1_000_000_000_000, threads).expect_err("nothing is left").to_string();
            assert!(error.contains("warmup_ps in [run]"), "{error}");
            assert!(error.contains("all messages were posted before"), "{error}");
        }
    }

    #[test]
    fn an_empty_configuration_has_defaults_and_parses_back() {
        let configuration = Configuration::parse("a.toml", "").expect("all is optional");
        assert_eq!(configuration.topology.hosts(), 16);
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is valid");
        assert_eq!(again.effective, configuration.effective);
    }

    #[test]
    fn unknown_keys_are_errors_with_the_nearest_name() {
        let text = refused("[fabric]\nmtu_byte = 9000\n");
        assert!(text.contains("unknown key `mtu_byte` in [fabric]"), "{text}");
        assert!(text.contains("`mtu_bytes`"), "{text}");
        let text = refused("[fabrick]\nkind = \"flit\"\n");
        assert!(text.contains("`fabric`"), "{text}");
        assert!(refused("seed = 3\n").contains("unknown key `seed` outside of all sections"));
        assert!(
            refused("[sweep.run]\nseed = [3]\n").contains("only `ethernot sim sweep` reads it")
        );
        assert!(refused("fabric = 3\n").contains("fabric outside of all sections is 3"));
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(refused("[fabric]\nhost_rate_bps = 0\n").contains("host_rate_bps"));
        assert!(refused("[fabric]\nmtu_bytes = -1\n").contains("-1"));
        assert!(refused("[fabric]\nkind = \"token-ring\"\n").contains("ethernet, wormhole"));
        assert!(refused("[topology]\nkind = \"torus\"\nsizes = 4\n").contains("sizes"));
        assert!(refused("[topology\n").contains("a.toml"));
        assert!(refused("[topology]\nhosts = 1\n").contains("2 or more"));
        let text = "[topology]\nkind = \"leaf_spine\"\nspines = 1\ntrunks = 65\n";
        assert!(refused(text).contains("trunks is 65"), "{}", refused(text));
    }

    #[test]
    fn every_fabric_runs_every_collective() {
        let collectives = [
            ("kind = \"ring\"", 16 * 2),
            ("kind = \"all_to_all\"", 16 * 15 * 2),
            ("kind = \"all_to_all\"\nalgorithm = \"pairwise\"", 16 * 15 * 2),
            ("kind = \"all_reduce\"", 16 * 30 * 2),
            ("kind = \"all_reduce\"\nalgorithm = \"recursive_doubling\"", 16 * 4 * 2),
            ("kind = \"all_reduce\"\nalgorithm = \"rabenseifner\"", 16 * 8 * 2),
            ("kind = \"broadcast\"\nroot = 3", 15 * 2),
            ("kind = \"barrier\"", 16 * 4 * 2),
        ];
        for fabric in ["ethernet", "wormhole", "flit", "loggp", "fluid"] {
            for (keys, messages) in collectives {
                let text = format!(
                    "[topology]\nkind = \"torus\"\nsizes = [4, 4]\nlanes = 2\n[fabric]\nkind = \
                     \"{fabric}\"\n[workload]\n{keys}\niterations = 2\n"
                );
                let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
                let outcome = configuration.run().expect("it ends");
                assert_eq!(outcome.delivered, messages, "{fabric} {keys}");
                let again = Configuration::parse("b.toml", &configuration.effective);
                assert_eq!(again.expect("it reads back").run().expect("ends").hash, outcome.hash);
            }
        }
    }

    #[test]
    fn every_fabric_runs_reproducibly() {
        for fabric in ["ethernet", "wormhole", "flit", "loggp", "fluid"] {
            let text = format!(
                "[topology]\nkind = \"torus\"\nsizes = [4, 4]\nlanes = 2\n[fabric]\nkind = \
                 \"{fabric}\"\n[workload]\nkind = \"mesh\"\niterations = 3\n"
            );
            let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
            let first = configuration.run().expect("it ends");
            assert_eq!(first.delivered, 16 * 4 * 3, "{fabric}");
            assert_eq!(first.hash, configuration.run().expect("it ends").hash);
        }
    }
}

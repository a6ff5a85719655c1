//! Keys of the section `[workload]`.

use toml::{Table, Value};

use super::super::collective::{Collective, CollectiveConfiguration, Exchange, Reduction};
use super::super::ethernet::CLASSES_MAX;
use super::super::statistics::mix;
use super::super::topology::Topology;
use super::super::workload::{
    Arrivals, MeshConfiguration, Pattern, SizeTable, Sizes, WORKLOADS_MAX,
};
use super::flows::{file_value, read_flows};
use super::graph::host_rate_bps;
use super::reader::{Reader, shown};
use super::{
    BYTE_TIME_MAX_PS, ConfigurationError, FabricConfiguration, MESSAGE_MAX_BYTES,
    MemberConfiguration, TIME_MAX_PS, WorkloadConfiguration,
};

/// Removes and returns the sections of workloads: `[workload]`, or each `[[workload]]`.
pub(super) fn members(file: &str, root: &mut Table) -> Result<Vec<Reader>, ConfigurationError> {
    match root.get("workload") {
        Some(Value::Array(list)) if list.is_empty() => Err(ConfigurationError::Value {
            file: file.to_owned(),
            section: String::new(),
            key: "workload".to_owned(),
            value: "[]".to_owned(),
            expected: "a section: [workload], or several: [[workload]]".to_owned(),
        }),
        Some(Value::Array(_)) => Reader::sections(file, root, "workload"),
        _ => Ok(vec![Reader::section(file, root, "workload")?]),
    }
}

/// Reads each `[[workload]]`.
pub(super) fn read_members(
    members: &mut [Reader],
    topology: &Topology,
    fabric: &FabricConfiguration,
    seed: u64,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let count = members.len();
    let several = members.iter_mut().enumerate().map(|(place, keys)| {
        if count > WORKLOADS_MAX {
            let expected = format!("from 1 to {WORKLOADS_MAX}");
            return Err(keys.wrong_number("the number of workloads", count as u64, &expected));
        }
        Ok(MemberConfiguration {
            name: keys.text("name", &format!("workload {place}"))?,
            start_ps: keys.number("start_ps", 0, 0, TIME_MAX_PS)?,
            class: keys.number("class", 0, 0, u64::from(CLASSES_MAX) - 1)? as u8,
            workload: read_workload(keys, topology, fabric, member_seed(seed, place))?,
        })
    });
    several.collect::<Result<_, _>>().map(WorkloadConfiguration::Several)
}

/// Returns the seed of one member of several workloads. `place` is the index of the member. The
/// first member has the seed of the run.
pub(super) const fn member_seed(seed: u64, place: usize) -> u64 {
    if place == 0 { seed } else { mix(seed, place as u64) }
}

pub(super) fn read_workload(
    keys: &mut Reader,
    topology: &Topology,
    fabric: &FabricConfiguration,
    seed: u64,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let hosts = topology.hosts();
    let kinds = [
        "token_pass",
        "mesh",
        "open_load",
        "flows",
        "ring",
        "all_to_all",
        "incast",
        "all_reduce",
        "broadcast",
        "barrier",
    ];
    let kind = keys.word("kind", "open_load", &kinds)?;
    if kind == "flows" {
        return read_flows(keys, hosts);
    }
    let bytes_default = if kind == "barrier" { 1 } else { 1_500 };
    let bytes = keys.number("bytes", bytes_default, 1, MESSAGE_MAX_BYTES)? as u32;
    match kind.as_str() {
        "token_pass" => Ok(WorkloadConfiguration::TokenPass {
            bytes,
            delay_ps: keys.number("delay_ps", 0, 0, TIME_MAX_PS)?,
            passes: keys.number("passes", hosts.into(), 1, u32::MAX.into())? as u32,
        }),
        "mesh" => read_mesh(keys, hosts, bytes),
        "open_load" => read_open_load(keys, topology, bytes, fabric, seed),
        collective => read_collective(keys, hosts, bytes, collective),
    }
}

fn read_mesh(
    keys: &mut Reader,
    hosts: u32,
    bytes: u32,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let side = hosts.isqrt();
    let width = keys.number("width", side.into(), 1, hosts.into())? as u32;
    let height_max = u64::from(hosts / width);
    Ok(WorkloadConfiguration::Mesh(MeshConfiguration {
        width,
        height: keys.number("height", height_max, 1, height_max)? as u32,
        bytes,
        iterations: keys.number("iterations", 10, 0, u32::MAX.into())? as u32,
        compute_ps: keys.number("compute_ps", 10_000_000, 0, TIME_MAX_PS)?,
        order: [0, 1, 3, 2],
    }))
}

fn read_collective(
    keys: &mut Reader,
    hosts: u32,
    bytes: u32,
    kind: &str,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let ranks = keys.number("ranks", hosts.into(), 2, hosts.into())? as u32;
    let mut reduce_ps_per_byte = 0;
    let collective = match kind {
        "ring" => {
            let distance = keys.number("distance", 1, 1, ranks.into())? as u32;
            Collective::Ring { bytes, distance }
        }
        "incast" => {
            let target = keys.number("target", 0, 0, u64::from(ranks) - 1)? as u32;
            Collective::Incast { bytes, target }
        }
        "all_to_all" => {
            let algorithm =
                keys.word("algorithm", "shifted", &["shifted", "pairwise", "at_once"])?;
            let exchange = match algorithm.as_str() {
                "pairwise" => Exchange::Pairwise,
                "at_once" => Exchange::AtOnce,
                _ => Exchange::Shifted,
            };
            Collective::AllToAll { bytes, exchange }
        }
        "all_reduce" => {
            let algorithms = ["ring", "recursive_doubling", "rabenseifner"];
            let reduction = match keys.word("algorithm", "ring", &algorithms)?.as_str() {
                "recursive_doubling" => Reduction::RecursiveDoubling,
                "rabenseifner" => Reduction::Rabenseifner,
                _ => Reduction::Ring,
            };
            reduce_ps_per_byte = keys.number("reduce_ps_per_byte", 0, 0, BYTE_TIME_MAX_PS)?;
            Collective::AllReduce { bytes, reduction }
        }
        "broadcast" => {
            let root = keys.number("root", 0, 0, u64::from(ranks) - 1)? as u32;
            Collective::Broadcast { bytes, root }
        }
        _ => Collective::Barrier { bytes },
    };
    Ok(WorkloadConfiguration::Collective(CollectiveConfiguration {
        collective,
        ranks,
        iterations: keys.number("iterations", 10, 0, u32::MAX.into())? as u32,
        compute_ps: keys.number("compute_ps", 0, 0, TIME_MAX_PS)?,
        reduce_ps_per_byte,
    }))
}

fn read_open_load(
    keys: &mut Reader,
    topology: &Topology,
    bytes: u32,
    fabric: &FabricConfiguration,
    seed: u64,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let pattern = read_pattern(keys, topology, seed)?;
    keys.declare("sizes_file", "the name of a file");
    let sizes = read_sizes(keys, bytes)?;
    let arrivals = match keys.word("arrivals", "poisson", &["poisson", "bernoulli"])?.as_str() {
        "bernoulli" => {
            let default = match fabric {
                FabricConfiguration::Flit(flit) => flit.flit_ps,
                _ => 1_000,
            };
            Arrivals::Bernoulli(keys.number("slot_ps", default, 1, TIME_MAX_PS)?)
        }
        _ => Arrivals::Poisson,
    };
    let interval_ps = keys.number("interval_ps", 10_000_000, 1, TIME_MAX_PS)?;
    let until_ps = keys.number("until_ps", 1_000_000_000, 1, TIME_MAX_PS)?;
    let load_percent = keys.fraction("load_percent", 0.0, 0.0, LOAD_MAX_PERCENT)?;
    let interval_ps = if load_percent > 0.0 {
        fabric.interval_ps(&pattern, &sizes, topology, load_percent)
    } else {
        interval_ps
    };
    Ok(WorkloadConfiguration::OpenLoad { pattern, sizes, arrivals, interval_ps, until_ps })
}

/// Names of the patterns that an open load can have.
const PATTERNS: [&str; 11] = [
    "uniform",
    "any",
    "shift",
    "permutation",
    "incast",
    "hotspot",
    "transpose",
    "bit_complement",
    "bit_reverse",
    "tornado",
    "neighbour",
];

fn read_pattern(
    keys: &mut Reader,
    topology: &Topology,
    seed: u64,
) -> Result<Pattern, ConfigurationError> {
    let hosts = topology.hosts();
    let last = u64::from(hosts) - 1;
    let name = keys.word("pattern", "uniform", &PATTERNS)?;
    let of_ranks = match name.as_str() {
        "incast" => return Ok(Pattern::Incast(keys.number("target", 0, 0, last)? as u32)),
        "shift" => {
            let distance = keys.number("distance", u64::from(hosts / 2), 1, hosts.into())? as u32;
            let to = (0..hosts).map(|rank| (rank + distance) % hosts);
            return Ok(Pattern::Permutation(to.collect()));
        }
        "hotspot" => {
            let targets = keys.numbers("targets", &[0], 0, last)?;
            if targets.is_empty() {
                return Err(keys.wrong_number("the length of targets", 0, "1 or more"));
            }
            let percent = keys.fraction("hot_percent", 10.0, 0.0, 100.0)?;
            let targets = targets.into_iter().map(|target| target as u32).collect();
            let share_ppm = (percent * 10_000.0).round() as u32;
            return Ok(Pattern::Hotspot { targets, share_ppm });
        }
        "permutation" => return Ok(Pattern::random_permutation(hosts, seed)),
        "any" => return Ok(Pattern::Any),
        "tornado" => return Ok(Pattern::tornado(topology)),
        "neighbour" => return Ok(Pattern::neighbour(topology)),
        "transpose" => Pattern::transpose(hosts),
        "bit_complement" => Pattern::bit_complement(hosts),
        "bit_reverse" => Pattern::bit_reverse(hosts),
        _ => return Ok(Pattern::Uniform),
    };
    of_ranks.map_err(|needs| {
        let expected = format!("used with {}, not with {hosts}", needs.expected(hosts));
        keys.wrong_word("pattern", &name, &expected)
    })
}

fn read_sizes(keys: &mut Reader, bytes: u32) -> Result<Sizes, ConfigurationError> {
    let kinds = ["fixed", "exponential", "bimodal", "table"];
    Ok(match keys.word("sizes", "fixed", &kinds)?.as_str() {
        "exponential" => Sizes::Exponential(bytes),
        "bimodal" => Sizes::bimodal(
            bytes,
            keys.number("large_bytes", 64 * u64::from(bytes), 1, MESSAGE_MAX_BYTES)? as u32,
            keys.number("large_percent", 10, 0, 100)? as u32,
        ),
        "table" => {
            let lengths = keys.numbers("table_bytes", &[1_500], 1, MESSAGE_MAX_BYTES)?;
            let shares = keys.numbers("table_shares_ppb", &[WHOLE_PPB], 0, WHOLE_PPB)?;
            if lengths.len() != shares.len() {
                let expected = format!("as long as table_bytes: {} numbers", lengths.len());
                let count = shares.len() as u64;
                return Err(keys.wrong_number("the length of table_shares_ppb", count, &expected));
            }
            let pairs = lengths.into_iter().zip(shares);
            let points = pairs.map(|(bytes, share)| (bytes as u32, share as u32)).collect();
            Sizes::Table(SizeTable::from_points(keys.file(), points)?)
        }
        _ => Sizes::Fixed(bytes),
    })
}

impl FabricConfiguration {
    /// Returns the mean time between the messages of a rank, in picoseconds. With this time, each
    /// host sends `load_percent` of the rate of its link. If the rates of hosts differ, the slowest
    /// host determines the time. For an incast, the rate of the target determines the time.
    pub(super) fn interval_ps(
        &self,
        pattern: &Pattern,
        sizes: &Sizes,
        topology: &Topology,
        load_percent: f64,
    ) -> u64 {
        let (senders, target) = match pattern {
            Pattern::Incast(target) => (u128::from(topology.hosts()) - 1, Some(*target)),
            _ => (1, None),
        };
        let message_ps = self.host_ps((topology, target), sizes.mean_bytes_1024ths()) >> 10;
        // The precision is a millionth of a percent.
        let millionths = ((load_percent * 1e6).round() as u128).max(1);
        let interval_ps = message_ps * senders * 100_000_000 / millionths;
        interval_ps.clamp(1, TIME_MAX_PS.into()) as u64
    }

    /// Returns the time in which a host's link carries `bytes` bytes of payload, without headers,
    /// in picoseconds. If there is a target, this is the link of the host `target`.
    fn host_ps(&self, (topology, target): (&Topology, Option<u32>), bytes: u64) -> u128 {
        let bytes = u128::from(bytes);
        let at_rate = |rate_bps: u64| bytes * 8_000_000_000_000 / u128::from(rate_bps.max(1));
        let of_cables = |rate_bps: u64| at_rate(host_rate_bps(topology, target, rate_bps));
        match self {
            Self::Ethernet(ethernet) => of_cables(ethernet.host_rate_bps),
            Self::Fluid(fluid) => of_cables(fluid.host_rate_bps),
            Self::LogGp(loggp) => bytes * u128::from(loggp.byte_ps),
            Self::Wormhole(worm) => {
                bytes * u128::from(worm.character_ps) / u128::from(worm.character_bytes.max(1))
            }
            Self::Flit(flit) if flit.ports.rate_bps > 0 => at_rate(flit.ports.rate_bps),
            Self::Flit(flit) => {
                bytes * u128::from(flit.flit_ps) / u128::from(flit.flit_payload_bytes.max(1))
            }
        }
    }
}

/// Replaces the file names in `[workload]` by the contents of the files. The effective
/// configuration then needs no other files.
pub(super) fn insert_files(
    file: &str,
    mut root: Table,
    read: &dyn Fn(&str) -> Result<String, String>,
) -> Result<Table, ConfigurationError> {
    let read = |key: &str, value: &Value, example: &str| {
        let path = value.as_str().ok_or_else(|| ConfigurationError::Value {
            file: file.to_owned(),
            section: "workload".to_owned(),
            key: key.to_owned(),
            value: shown(value),
            expected: format!("the name of a file; \"{example}\" would do"),
        })?;
        let text = read(path).map_err(|reason| ConfigurationError::File {
            file: file.to_owned(),
            path: path.to_owned(),
            reason,
        })?;
        Ok::<_, ConfigurationError>((path.to_owned(), text))
    };
    let workloads = match root.get_mut("workload") {
        Some(Value::Array(list)) => list.as_mut_slice(),
        Some(alone) => std::slice::from_mut(alone),
        None => &mut [],
    };
    for workload in workloads.iter_mut().filter_map(Value::as_table_mut) {
        if let Some(value) = workload.get_mut("flows_file") {
            let (path, text) = read("flows_file", value, "web.flows")?;
            *value = file_value(&path, text);
            workload.entry("kind").or_insert_with(|| Value::String("flows".to_owned()));
        }
        if let Some(value) = workload.remove("sizes_file") {
            let (path, text) = read("sizes_file", &value, "sizes.cdf")?;
            insert_size_table(workload, &path, &text)?;
        }
    }
    Ok(root)
}

fn insert_size_table(
    workload: &mut Table,
    path: &str,
    text: &str,
) -> Result<(), ConfigurationError> {
    let table = SizeTable::parse(path, text)?;
    let numbers = |number: fn(&(u32, u32)) -> u32| {
        let list = table.points().iter().map(|point| Value::Integer(number(point).into()));
        Value::Array(list.collect())
    };
    workload.entry("sizes").or_insert_with(|| Value::String("table".to_owned()));
    workload.insert("table_bytes".to_owned(), numbers(|(bytes, _)| *bytes));
    workload.insert("table_shares_ppb".to_owned(), numbers(|(_, share)| *share));
    Ok(())
}

/// Maximum load: ten times the rate of a host's link.
const LOAD_MAX_PERCENT: f64 = 1_000.0;
/// The number 1, in parts per billion.
const WHOLE_PPB: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::super::super::simulation::InTurns;
    use super::super::{Configuration, Watch, WorkloadConfiguration};

    fn interval_ps(text: &str) -> u64 {
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        match configuration.workload {
            WorkloadConfiguration::OpenLoad { interval_ps, .. } => interval_ps,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_load_is_a_share_of_the_host_link_rate() {
        // 1500 bytes take 1.2 µs at 10 Gb/s.
        let load = "[workload]\nload_percent = 50\n";
        assert_eq!(interval_ps(load), 2_400_000);
        assert_eq!(interval_ps("[workload]\nload_percent = 0.125\n"), 960_000_000);
        assert_eq!(interval_ps(&format!("{load}pattern = \"permutation\"\n")), 2_400_000);
        // The fifteen senders share the link of the target.
        assert_eq!(interval_ps(&format!("{load}pattern = \"incast\"\n")), 36_000_000);
        assert_eq!(interval_ps(&format!("{load}[fabric]\nkind = \"loggp\"\n")), 240_000);
        // The lengths are bimodal: nine messages of 1500 bytes for each message of 96000 bytes.
        let bimodal = format!("{load}sizes = \"bimodal\"\n");
        assert_eq!(interval_ps(&bimodal), 2_400_000 * 73 / 10);
    }

    #[test]
    fn the_requested_load_is_carried() {
        let text =
            "[workload]\nload_percent = 30\nsizes = \"exponential\"\nuntil_ps = 20_000_000_000\n";
        let outcome = Configuration::parse("a.toml", text).expect("valid").run().expect("it ends");
        let carried = outcome.delivered_bytes as f64 * 8.0 / (16.0 * 0.02 * 1e10);
        assert!((carried / 0.3 - 1.0).abs() < 0.03, "{carried}");
    }

    #[test]
    fn every_pattern_runs_on_packets_and_on_flits() {
        for pattern in super::PATTERNS {
            for (fabric, until_ps) in [
                ("ethernet", 500_000_000),
                ("wormhole", 500_000_000),
                ("flit", 5_000_000),
                ("flit\"\nrouter = \"booksim2", 5_000_000),
                ("fluid", 100_000_000),
            ] {
                let text = format!(
                    "[topology]\nkind = \"torus\"\nsizes = [4, 4]\nlanes = 2\n[fabric]\nkind = \
                     \"{fabric}\"\n[workload]\npattern = \"{pattern}\"\nload_percent = 20.5\nuntil_ps = \
                     {until_ps}\n"
                );
                let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
                let outcome = configuration.run().expect("it ends");
                let accepted = outcome.accepted.rate(16).expect("an open load");
                assert!(outcome.delivered > 0 && accepted > 0.0, "{pattern} {fabric}");
            }
        }
    }

    /// With two threads, each part counts the arrivals at its own hosts only. The sum must equal
    /// the count of the undivided run.
    #[test]
    fn accepted_load_equals_requested_load_in_whole_and_divided_runs() {
        let text = "[workload]\npattern = \"neighbour\"\nload_percent = 12.5\nuntil_ps = \
                    20_000_000_000\n[topology]\nkind = \"leaf_spine\"\n[run]\nwarmup_ps = 2_000_000_000\n";
        let mut configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let whole = configuration.run().expect("it ends");
        let rate = whole.accepted.rate(configuration.topology.hosts()).expect("an open load");
        assert!((rate / (0.125 * 1e10 / 8.0) - 1.0).abs() < 0.02, "{rate}");
        configuration.threads = 2;
        let divided = configuration.run_watched(&InTurns, Watch::default()).expect("it ends");
        assert_eq!(divided.accepted, whole.accepted);
    }

    #[test]
    fn a_file_of_sizes_becomes_part_of_the_configuration() {
        let text = "[workload]\nsizes_file = \"web.cdf\"\n";
        let read = |path: &str| match path {
            "web.cdf" => Ok("64 0.5\n1500 1\n".to_owned()),
            _ => Err("no such file".to_owned()),
        };
        let configuration =
            Configuration::parse_with_files("a.toml", text, &read).expect("it is valid");
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is whole");
        assert_eq!(again.effective, configuration.effective);
        assert_eq!(again.run().expect("it ends").hash, configuration.run().expect("ends").hash);

        let refused = |text: &str| {
            Configuration::parse_with_files("a.toml", text, &read).expect_err("wrong").to_string()
        };
        assert!(refused("[workload]\nsizes_file = \"x\"\n").contains("read x: no such file"));
        assert!(refused("[workload]\nsizes_file = 3\n").contains("the name of a file"));
        let lists = "[workload]\nsizes = \"table\"\ntable_bytes = [1, 2]\n";
        assert!(refused(lists).contains("as long as table_bytes"));
    }
}

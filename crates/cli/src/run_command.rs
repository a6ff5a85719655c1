//! `ethernot sim run`, `show` and `verify`: simulations from configurations.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use interconnect::configuration::{
    Configuration, ConfigurationError, MemberConfiguration, Unit, Watch, WorkloadConfiguration,
};
use interconnect::drawing;
use interconnect::edge::Counts;
use interconnect::ethernet::{PortCounters, TransportCounts};
use interconnect::goal::Goal;
use interconnect::simulation::{Outcome, WorkloadOutcome};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::{print, writing};
use crate::simulation::{Finished, OutputArguments, with_progress};
use crate::threads::OnThreads;

/// Simulate the cluster that a configuration describes.
///
/// The configuration is TOML. Every key has a default; `ethernot sim show` prints all keys. The
/// result is the same, bit for bit, on every machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim run cluster.toml\n  \
    ethernot sim run cluster.toml --manifest run.json\n  \
    ethernot sim run cluster.toml --threads 4\n  \
    ethernot sim run cluster.toml --why --html report.html --trace timeline.json\n  \
    ethernot sim run cluster.toml --messages messages.csv --links links.csv --queues queues.arrow\n  \
    ethernot sim run cluster.toml --slowdown\n  \
    ethernot sim run examples/simulator/graph.toml --links links.csv\n  \
    ethernot sim run engines.toml --pcapng frames.pcapng --pcapng-hosts 0,5\n\n\
    A configuration:\n  \
    [topology]\n  kind = \"leaf_spine\"\n  leaves = 4\n  spines = 2\n  \
    [fabric]\n  kind = \"ethernet\"\n  host_rate_bps = 10_000_000_000\n  \
    [workload]\n  kind = \"all_reduce\"\n  algorithm = \"rabenseifner\"\n  bytes = 1_048_576\n\n\
    Topologies: star, cascade, leaf_spine, fat_tree, torus, mesh, hyperx, dragonfly, or graph (hosts, switches, and cables\n\
    with ends, rate_bps, propagation_ps, buffer_bytes and count).\n\n\
    Workloads: token_pass, mesh, open_load (pattern = uniform, any, shift, permutation, incast, hotspot,\n\
    transpose, bit_complement, bit_reverse, tornado or neighbour; load_percent; sizes = fixed, exponential, bimodal or table, with sizes_file = a cumulative\n\
    distribution), flows (flows_file = lines of source, destination, bytes and start), ring, all_to_all, incast, all_reduce, broadcast, barrier. Several sections [[workload]] run together.\n\n\
    Transports of [host]: go_back_n or selective_repeat, with congestion = fixed, dctcp, delay or dcqcn; homa, with classes of [fabric] as priorities.")]
pub(crate) struct RunArguments {
    /// The configuration; `-` for standard input
    configuration: PathBuf,
    /// Write the configuration and the result as JSON, for `ethernot sim verify`
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Number of threads for the parts of the network, instead of the configuration's number; the
    /// result does not change
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    outputs: OutputArguments,
}

/// Show all settings of a configuration, including defaults, and a drawing of the topology.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim show cluster.toml\n  \
    ethernot sim show cluster.toml --svg topology.svg\n  \
    ethernot sim show cluster.toml --json")]
pub(crate) struct ShowArguments {
    /// The configuration; `-` for standard input
    configuration: PathBuf,
    /// Write a drawing of the topology
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the settings as JSON
    #[arg(long)]
    json: bool,
}

/// Replay a trace in GOAL, the text or binary format of LogGOPSim.
///
/// Without a configuration, uses the LogGP model, which has latencies and gaps of messages, but no
/// network. With a configuration, uses the topology and fabric of the configuration, and ignores
/// its workload.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim goal trace.goal\n  \
    ethernot sim goal trace.goal --configuration cluster.toml\n  \
    ethernot sim goal trace.goal --configuration cluster.toml --why --html report.html\n  \
    ethernot sim goal trace.goal -L 2us -o 500ns -g 1us -G 0.08ns -S 65535\n  \
    ethernot sim goal trace.goal --rendezvous-above 65535\n  \
    ethernot sim goal trace.goal --to-binary trace.bin")]
pub(crate) struct GoalArguments {
    /// The trace
    #[arg(value_name = "TRACE")]
    goal: PathBuf,
    /// Configuration with the topology and fabric
    #[arg(long, value_name = "FILE")]
    configuration: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArguments,
    /// Size in bytes. A larger message waits for its receive before its data are sent (S of
    /// `LogGOPSim`) [default: all messages are sent immediately]
    #[arg(short = 'S', long, value_name = "BYTES", allow_hyphen_values = true)]
    rendezvous_above: Option<String>,
    /// Write the trace in the binary format of LogGOPSim instead of replaying it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["configuration", "json", "rendezvous_above", "ModelArguments", "OutputArguments"])]
    to_binary: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    outputs: OutputArguments,
}

/// The parameters of the LogGP model, with the names of LogGOPSim. Times are in nanoseconds, or
/// have a unit: `2us`.
#[derive(Debug, Args)]
struct ModelArguments {
    /// L: time from the first byte sent to the first byte received [default: 5us]
    #[arg(
        short = 'L',
        long,
        value_name = "TIME",
        conflicts_with = "configuration",
        allow_hyphen_values = true
    )]
    latency: Option<String>,
    /// o: processor time for each message sent, and for each received [default: 0]
    #[arg(
        short = 'o',
        long,
        value_name = "TIME",
        conflicts_with = "configuration",
        allow_hyphen_values = true
    )]
    overhead: Option<String>,
    /// g: shortest time between two messages of one host [default: 1us]
    #[arg(
        short = 'g',
        long,
        value_name = "TIME",
        conflicts_with = "configuration",
        allow_hyphen_values = true
    )]
    gap: Option<String>,
    /// G: time per byte [default: 80ps]
    #[arg(
        short = 'G',
        long,
        value_name = "TIME",
        conflicts_with = "configuration",
        allow_hyphen_values = true
    )]
    gap_per_byte: Option<String>,
}

impl ModelArguments {
    /// Returns a configuration with this number of hosts.
    fn configuration(&self, hosts: u32) -> Result<Configuration, Failure> {
        let mut text = format!("[topology]\nhosts = {hosts}\n[fabric]\nkind = \"loggp\"\n");
        let keys = [
            ("-L", "latency_ps", &self.latency),
            ("-g", "gap_ps", &self.gap),
            ("-G", "byte_ps", &self.gap_per_byte),
            ("-o", "[host]\nsend_ps", &self.overhead),
            ("-o", "receive_ps", &self.overhead),
        ];
        for (_, key, value) in keys {
            if let Some(value) = value {
                let unit = if value.parse::<f64>().is_ok() { " ns" } else { "" };
                // Writing to a `String` cannot fail.
                let _ = writeln!(text, "{key} = {:?}", value.clone() + unit);
            }
        }
        Configuration::parse("-L, -o, -g, -G", &text).map_err(|error| {
            let ConfigurationError::Value { key, value, expected, .. } = &error else {
                return error.into();
            };
            // Error texts name the option, because the user has not written keys or lines.
            match keys.iter().find(|(_, name, _)| name.ends_with(key)) {
                Some((option, ..)) => format!("{option} is {value}, but must be {expected}").into(),
                None => error.into(),
            }
        })
    }
}

/// Run the simulation of a manifest again, and compare.
///
/// The exit status is 1 if the result differs in any delivery.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim verify run.json\n  \
    ethernot sim verify run.json --threads 4 --json")]
pub(crate) struct VerifyArguments {
    /// The manifest that `ethernot sim run --manifest` wrote
    manifest: PathBuf,
    /// Number of threads for the parts of the network, instead of the manifest's number; the result
    /// does not change
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: Option<u32>,
    /// Print both hashes as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &RunArguments) -> Result<(), Failure> {
    let mut configuration = read(&arguments.configuration)?;
    if let Some(threads) = arguments.threads {
        configuration.threads = threads;
    }
    if let Some(circle) = configuration.deadlock_risk()? {
        eprintln!(
            "ethernot: warning: packets can wait for each other in a circle (deadlock): {}; \
             [routing] lanes = \"dateline\" prevents this",
            circle.join(" -> ")
        );
    }
    let run = |watch: Watch| configuration.run_watched(&OnThreads, watch);
    let finished = arguments.outputs.watch(&configuration, run)?;
    if let Some(path) = &arguments.manifest {
        let manifest = to_json(&configuration, &finished.outcome);
        writing(path, |file| writeln!(file, "{manifest:#}"))?;
    }
    finish(&configuration, &finished, &arguments.outputs, arguments.json, Program::Workload)
}

/// Writes the requested files and prints the results of a run.
fn finish(
    configuration: &Configuration,
    finished: &Finished,
    outputs: &OutputArguments,
    is_json: bool,
    program: Program,
) -> Result<(), Failure> {
    outputs.write(configuration, finished)?;
    let Finished { outcome, seconds, .. } = finished;
    if let Some(unrepaired) = configuration.unrepaired(outcome) {
        eprintln!("ethernot: warning: {unrepaired}");
    }
    let text = if is_json {
        let mut json = to_json(configuration, outcome);
        if let Some(entries) = json.as_object_mut() {
            let diagnosis = outputs.diagnosis_json(configuration, outcome);
            entries.insert("diagnosis".to_owned(), diagnosis);
            entries.insert("slowdown".to_owned(), finished.slowdown_json());
            if program == Program::Trace {
                let us = outcome.finished_ps.iter().map(|time_ps| *time_ps as f64 / 1e6);
                entries.insert("finished_us".to_owned(), us.collect());
                entries.remove("collective");
            }
        }
        format!("{json:#}\n")
    } else {
        let engines = outcome.engines.as_deref();
        let engines = engines.map(|counts| counts_summary(counts, outcome, *seconds));
        let transport = outcome.transport.as_ref();
        let transport = transport.map(|counts| transport_summary(counts, outcome));
        let more = match program {
            Program::Workload => collective_summary(configuration, outcome),
            Program::Trace => ranks_summary(outcome),
        };
        summary(configuration, outcome, *seconds)
            + &finished.slowdown_summary()
            + &workloads_summary(configuration, outcome)
            + &more
            + &engines.unwrap_or_default()
            + &transport.unwrap_or_default()
            + &outputs.diagnosis(configuration, outcome)
    };
    print(&text)
}

pub(crate) fn show(arguments: &ShowArguments) -> Result<(), Failure> {
    let configuration = read(&arguments.configuration)?;
    if let Some(path) = &arguments.svg {
        let svg = drawing::draw(&configuration.topology);
        writing(path, |file| file.write_all(svg.as_bytes()))?;
    }
    if arguments.json {
        let settings: Value = toml::from_str(&configuration.effective)
            .map_err(|error| format!("the settings are not valid TOML: {error}"))?;
        return print(&format!("{settings:#}\n"));
    }
    print(&configuration.effective)
}

pub(crate) fn goal(arguments: &GoalArguments) -> Result<(), Failure> {
    let name = arguments.goal.display().to_string();
    let bytes = fs::read(&arguments.goal).map_err(|error| format!("read {name}: {error}"))?;
    let trace = Goal::read(&name, &bytes)?;
    if let Some(path) = &arguments.to_binary {
        return writing(path, |file| file.write_all(&trace.encode()));
    }
    let trace = match &arguments.rendezvous_above {
        Some(bytes) => trace.with_rendezvous_above(rendezvous_bytes(bytes)?)?,
        None => trace,
    };
    let ranks = trace.ranks();
    let configuration = match &arguments.configuration {
        Some(path) => read(path)?,
        None => arguments.model.configuration(ranks.max(2))?,
    };
    let hosts = configuration.topology.hosts();
    if hosts < ranks {
        return Err(format!("{name} has {ranks} ranks, but there are only {hosts} hosts").into());
    }
    let run = |watch: Watch| configuration.run_divided(trace, ranks, &OnThreads, watch);
    let finished = arguments.outputs.watch(&configuration, run)?;
    finish(&configuration, &finished, &arguments.outputs, arguments.json, Program::Trace)
}

fn rendezvous_bytes(text: &str) -> Result<u32, Failure> {
    let bytes = text.parse().ok().or_else(|| Unit::Size.parse(text)?.try_into().ok());
    bytes.ok_or_else(|| {
        let most = u32::MAX;
        format!("-S is {text}, but must be from 0 to {most} bytes; 65535 or \"64 KiB\" would do")
            .into()
    })
}

/// The program of the ranks.
#[derive(Clone, Copy, Eq, PartialEq)]
enum Program {
    /// The workload of the configuration.
    Workload,
    /// A trace instead of the workload.
    Trace,
}

pub(crate) fn verify(arguments: &VerifyArguments) -> Result<(), Failure> {
    let path = &arguments.manifest;
    let wrong = |what: &str| format!("{}: {what}", path.display());
    let text =
        fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let no_manifest =
        |why: &str| wrong(&format!("not a manifest of `ethernot sim run --manifest`: {why}"));
    let manifest: Value =
        serde_json::from_str(&text).map_err(|error| no_manifest(&error.to_string()))?;
    let field = |name: &str| {
        let value = manifest.get(name).and_then(Value::as_str);
        value.ok_or_else(|| no_manifest(&format!("the key `{name}` is missing")))
    };
    let (expected, version) = (field("result_hash")?, field("version")?);
    let name = path.display().to_string();
    let mut configuration = Configuration::parse(&name, field("configuration")?)?;
    if let Some(threads) = arguments.threads {
        configuration.threads = threads;
    }
    let outcome = with_progress(|progress| {
        let watch = Watch { progress: Some(progress), ..Watch::default() };
        configuration.run_watched(&OnThreads, watch)
    })?;
    let found = format!("{:016x}", outcome.hash);
    if arguments.json {
        let hashes = json!({ "result_hash": found, "expected_hash": expected });
        print(&format!("{hashes:#}\n"))?;
    }
    if found != expected {
        let own = env!("CARGO_PKG_VERSION");
        return Err(wrong(&format!(
            "the result is {found} instead of {expected}; version {version} wrote the manifest, \
             and this is version {own}"
        ))
        .into());
    }
    if arguments.json {
        Ok(())
    } else {
        print(&format!("{}: same result, {found}\n", path.display()))
    }
}

pub(crate) fn read(path: &Path) -> Result<Configuration, Failure> {
    let name = path.display().to_string();
    let text = if path.as_os_str() == "-" {
        io::read_to_string(io::stdin())
    } else {
        fs::read_to_string(path)
    };
    let text = text.map_err(|error| format!("read {name}: {error}"))?;
    Ok(Configuration::parse_with_files(&name, &text, &beside(path))?)
}

/// Returns a function that reads files named in a configuration. Relative paths start at the
/// configuration's folder.
pub(crate) fn beside(configuration: &Path) -> impl Fn(&str) -> Result<String, String> {
    let folder = configuration.parent().unwrap_or(Path::new("")).to_owned();
    move |path| fs::read_to_string(folder.join(path)).map_err(|error| error.to_string())
}

fn summary(configuration: &Configuration, outcome: &Outcome, seconds: f64) -> String {
    let Outcome { latency, histogram, .. } = outcome;
    let quantile = |share| histogram.quantile_us(share);
    let lost = match outcome.dropped {
        0 => String::new(),
        packets => format!(", {packets} packets LOST"),
    };
    let ports = ports(outcome);
    let accepted = outcome.accepted.rate(configuration.topology.hosts());
    let accepted = accepted.map_or_else(String::new, |bytes_per_second| {
        let gigabits = bytes_per_second * 8e-9;
        format!(
            "accepted {gigabits:.4} Gb/s from each host, between the warm-up and the end of \
             posting\n"
        )
    });
    format!(
        "{}\n{} messages, {} bytes{lost}; completed at {:.3} us\n{accepted}latency us: min {:.3}  mean {:.3}  \
         median {:.3}  99 % {:.3}  99.9 % {:.3}  max {:.3}  sigma {:.3}\n{} hops, {} events, {:.1} M \
         events/s\n{ports}result hash {:016x}\n",
        configuration.topology.name(),
        outcome.delivered,
        outcome.delivered_bytes,
        outcome.completed_ps as f64 / 1e6,
        latency.min_us(),
        latency.mean_us(),
        quantile(0.5),
        quantile(0.99),
        quantile(0.999),
        latency.max_us(),
        latency.deviation_us(),
        outcome.hops,
        outcome.events,
        outcome.events as f64 / seconds * 1e-6,
        outcome.hash,
    )
}

/// Returns the workloads with their results, or nothing if there is only one workload.
fn workloads<'a>(
    configuration: &'a Configuration,
    outcome: &'a Outcome,
) -> impl Iterator<Item = (&'a MemberConfiguration, &'a WorkloadOutcome)> {
    let members = match &configuration.workload {
        WorkloadConfiguration::Several(members) => members.as_slice(),
        _ => &[],
    };
    members.iter().zip(&outcome.workloads)
}

fn workloads_summary(configuration: &Configuration, outcome: &Outcome) -> String {
    let line = |(member, own): (&MemberConfiguration, &WorkloadOutcome)| {
        format!(
            "{}: {} messages, {} bytes, the last at {:.3} us; latency us: min {:.3}  mean {:.3}  median \
             {:.3}  99 % {:.3}  max {:.3}\n",
            member.name,
            own.delivered,
            own.delivered_bytes,
            own.completed_ps as f64 / 1e6,
            own.latency.min_us(),
            own.latency.mean_us(),
            own.histogram.quantile_us(0.5),
            own.histogram.quantile_us(0.99),
            own.latency.max_us(),
        )
    };
    workloads(configuration, outcome).map(line).collect()
}

fn workload_to_json((member, own): (&MemberConfiguration, &WorkloadOutcome)) -> Value {
    json!({
        "name": member.name,
        "start_us": member.start_ps as f64 / 1e6,
        "class": member.class,
        "messages": own.delivered,
        "bytes": own.delivered_bytes,
        "completed_us": own.completed_ps as f64 / 1e6,
        "latency_us": {
            "min": own.latency.min_us(),
            "mean": own.latency.mean_us(),
            "median": own.histogram.quantile_us(0.5),
            "p99": own.histogram.quantile_us(0.99),
            "max": own.latency.max_us(),
            "deviation": own.latency.deviation_us(),
        },
    })
}

/// Returns how often a collective ran, and the time of one run; `None` for other workloads.
fn collective(configuration: &Configuration, outcome: &Outcome) -> Option<(u32, f64)> {
    match &configuration.workload {
        WorkloadConfiguration::Collective(collective) if collective.iterations > 0 => {
            let one_us = outcome.completed_ps as f64 / 1e6 / f64::from(collective.iterations);
            Some((collective.iterations, one_us))
        }
        _ => None,
    }
}

fn collective_summary(configuration: &Configuration, outcome: &Outcome) -> String {
    match collective(configuration, outcome) {
        Some((iterations, one_us)) => {
            format!("{iterations} repetitions, each in {one_us:.3} us on average\n")
        }
        None => String::new(),
    }
}

/// Returns a text with the ranks that finished first, in the middle and last, and their completion
/// times.
fn ranks_summary(outcome: &Outcome) -> String {
    let mut ranks: Vec<(u64, usize)> = outcome.finished_ps.iter().copied().zip(0..).collect();
    ranks.sort_unstable();
    let shown =
        |&(time_ps, rank): &(u64, usize)| format!("rank {rank} at {:.3} us", time_ps as f64 / 1e6);
    let middle = ranks.get(ranks.len() / 2).map(shown).unwrap_or_default();
    let first = ranks.first().map(shown).unwrap_or_default();
    let last: Vec<String> = ranks.iter().rev().take(RANKS_SHOWN).map(shown).collect();
    format!(
        "finished: first {first}, middle {middle}, last {}; --json shows all\n",
        last.join(", ")
    )
}

/// Returns the engines' counters as text.
fn counts_summary(counts: &Counts, outcome: &Outcome, seconds: f64) -> String {
    let links = counts.links();
    let lost = counts.frames_lost_in_network;
    let mut text = format!(
        "engines: {} connections, {} operations, goodput {:.3} Gb/s in all\nframes: {} sent, {} \
         lost in the network, {} lost at random, {} lost in hosts, {} received with a mark; {:.2} \
         M frames/s simulated\n",
        counts.connections,
        counts.operations,
        outcome.goodput_bps() / 1e9,
        counts.frames_sent,
        lost,
        counts.frames_lost_at_random,
        counts.frames_lost_at_hosts,
        counts.frames_marked,
        counts.frames_received as f64 / seconds * 1e-6,
    );
    // Writing to a `String` cannot fail.
    let _ = writeln!(
        text,
        "data frames {}, retransmissions {}, out of order {:.2} %, extra frames {:.2} %",
        links.data_frames_sent,
        links.retransmissions,
        counts.out_of_order_percent(),
        counts.extra_frames_percent(),
    );
    for (rail, links) in counts.rails.iter().enumerate() {
        let _ = writeln!(
            text,
            "rail {rail}: {} data frames, {} frames with only an acknowledgement, {} probe \
             timeouts, {} suspicions, {} failures",
            links.data_frames_sent,
            links.explicit_acks_sent,
            links.probe_timeouts,
            links.suspicions,
            links.failures,
        );
    }
    text
}

/// Returns the counters of model hosts' transport as text.
fn transport_summary(counts: &TransportCounts, outcome: &Outcome) -> String {
    if counts.is_receiver_driven {
        return homa_summary(counts, outcome);
    }
    let mut text = format!(
        "transport: {} connections, goodput {:.3} Gb/s of a throughput of {:.3} Gb/s in all\ndata \
         frames {}, retransmitted {} ({:.2} %), timeouts {}, lost at random {}, duplicates {}, out \
         of order and discarded {}\nwindow {:.2} frames, round trip {:.3} us on average and {:.3} \
         us at most, {:.2} % of acknowledgements with a mark\n",
        counts.connections,
        outcome.goodput_bps() / 1e9,
        counts.throughput_bps(outcome.completed_ps) / 1e9,
        counts.data_frames,
        counts.retransmitted_frames,
        counts.retransmitted_percent(),
        counts.timeouts,
        counts.frames_lost_at_random,
        counts.duplicate_frames,
        counts.discarded_frames,
        counts.window_frames(),
        counts.round_trip_ps() / 1e6,
        counts.round_trip_max_ps as f64 / 1e6,
        counts.marked_percent(),
    );
    if let Some(rate_bps) = counts.rate_bps() {
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "rate of a connection {:.3} Gb/s on average, {} notifications of congestion",
            rate_bps / 1e9,
            counts.notifications
        );
    }
    text
}

/// Returns the counters of a receiver-driven transport (Homa) as text.
fn homa_summary(counts: &TransportCounts, outcome: &Outcome) -> String {
    format!(
        "transport: {} pairs of hosts, goodput {:.3} Gb/s of a throughput of {:.3} Gb/s in \
         all\ndata frames {}, retransmitted {} ({:.2} %), timeouts {}, lost at random {}, \
         duplicates {}\ngrants {}, requests to retransmit {}\n",
        counts.connections,
        outcome.goodput_bps() / 1e9,
        counts.throughput_bps(outcome.completed_ps) / 1e9,
        counts.data_frames,
        counts.retransmitted_frames,
        counts.retransmitted_percent(),
        counts.timeouts,
        counts.frames_lost_at_random,
        counts.duplicate_frames,
        counts.grants,
        counts.resends,
    )
}

fn transport_to_json(counts: &TransportCounts, outcome: &Outcome) -> Value {
    let mut json = json!({
        "connections": counts.connections,
        "goodput_bps": outcome.goodput_bps(),
        "throughput_bps": counts.throughput_bps(outcome.completed_ps),
        "data_frames": counts.data_frames,
        "payload_bytes": counts.payload_bytes,
        "retransmitted_frames": counts.retransmitted_frames,
        "timeouts": counts.timeouts,
        "acknowledgements": counts.acknowledgements,
        "marked_percent": counts.marked_percent(),
        "frames_lost_at_random": counts.frames_lost_at_random,
        "duplicate_frames": counts.duplicate_frames,
        "discarded_frames": counts.discarded_frames,
        "window_frames": counts.window_frames(),
        "round_trip_us": counts.round_trip_ps() / 1e6,
        "round_trip_max_us": counts.round_trip_max_ps as f64 / 1e6,
    });
    if let (Some(rate_bps), Some(entries)) = (counts.rate_bps(), json.as_object_mut()) {
        entries.insert("notifications".to_owned(), json!(counts.notifications));
        entries.insert("rate_bps".to_owned(), json!(rate_bps));
    }
    if let (true, Some(entries)) = (counts.is_receiver_driven, json.as_object_mut()) {
        entries.insert("grants".to_owned(), json!(counts.grants));
        entries.insert("resends".to_owned(), json!(counts.resends));
    }
    json
}

fn counts_to_json(counts: &Counts) -> Value {
    let rails: Vec<Value> = counts
        .rails
        .iter()
        .map(|rail| rail.iter().map(|(name, value, _)| (name.to_owned(), json!(value))).collect())
        .collect();
    json!({
        "connections": counts.connections,
        "operations": counts.operations,
        "frames_sent": counts.frames_sent,
        "frames_received": counts.frames_received,
        "frames_marked": counts.frames_marked,
        "frames_lost_in_network": counts.frames_lost_in_network,
        "frames_lost_at_random": counts.frames_lost_at_random,
        "frames_lost_at_hosts": counts.frames_lost_at_hosts,
        "frames_astray": counts.frames_astray,
        "bytes_placed_again": counts.bytes_placed_again,
        "out_of_order_percent": counts.out_of_order_percent(),
        "extra_frames_percent": counts.extra_frames_percent(),
        "rails": rails,
    })
}

/// Returns a line for each of the ports that lost, marked or paused most packets.
fn ports(outcome: &Outcome) -> String {
    let mut ports: Vec<&PortCounters> = outcome.ports.iter().collect();
    ports.sort_by_key(|port| std::cmp::Reverse((port.dropped, port.paused_ps, port.marked)));
    let mut text = String::new();
    for port in ports.iter().take(PORTS_SHOWN) {
        let PortCounters { name, dropped, marked, pauses, paused_ps, queue_bytes_max, .. } = port;
        // Writing to a `String` cannot fail.
        let _ = writeln!(
            text,
            "{name}: {dropped} lost, {marked} marked, {pauses} pauses of {:.3} us in all, queue at \
             most {queue_bytes_max} bytes",
            *paused_ps as f64 / 1e6
        );
    }
    if ports.len() > PORTS_SHOWN {
        let _ = writeln!(text, "and {} more ports; --json shows all", ports.len() - PORTS_SHOWN);
    }
    text
}

pub(crate) fn to_json(configuration: &Configuration, outcome: &Outcome) -> Value {
    let Outcome { latency, histogram, .. } = outcome;
    let port = |port: &PortCounters| {
        json!({
            "name": port.name,
            "lost": port.dropped,
            "marked": port.marked,
            "pauses": port.pauses,
            "paused_us": port.paused_ps as f64 / 1e6,
            "queue_bytes_max": port.queue_bytes_max,
            "headroom_bytes_max": port.headroom_bytes_max,
        })
    };
    let mut json = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "configuration": configuration.effective,
        "configuration_hash": format!("{:016x}", configuration.hash()),
        "seed": configuration.seed,
        "result_hash": format!("{:016x}", outcome.hash),
        "messages": outcome.delivered,
        "bytes": outcome.delivered_bytes,
        "packets_lost": outcome.dropped,
        "completed_us": outcome.completed_ps as f64 / 1e6,
        "accepted_bps": outcome.accepted.rate(configuration.topology.hosts()).map(|rate| rate * 8.0),
        "latency_us": {
            "min": latency.min_us(),
            "mean": latency.mean_us(),
            "median": histogram.quantile_us(0.5),
            "p99": histogram.quantile_us(0.99),
            "max": latency.max_us(),
            "deviation": latency.deviation_us(),
        },
        "hops": outcome.hops,
        "events": outcome.events,
        "histogram": {
            "upper_us": histogram.classes().map(|(upper_ps, _)| upper_ps as f64 / 1e6).collect::<Vec<_>>(),
            "messages": histogram.classes().map(|(_, count)| count).collect::<Vec<_>>(),
        },
        "ports": outcome.ports.iter().map(port).collect::<Vec<_>>(),
    });
    if let (Some((iterations, one_us)), Some(entries)) =
        (collective(configuration, outcome), json.as_object_mut())
    {
        let collective = json!({ "iterations": iterations, "one_us": one_us });
        entries.insert("collective".to_owned(), collective);
    }
    if let (false, Some(entries)) = (outcome.workloads.is_empty(), json.as_object_mut()) {
        let list = workloads(configuration, outcome).map(workload_to_json).collect();
        entries.insert("workloads".to_owned(), list);
    }
    if let (Some(counts), Some(entries)) = (&outcome.engines, json.as_object_mut()) {
        entries.insert("engines".to_owned(), counts_to_json(counts));
    }
    if let (Some(counts), Some(entries)) = (&outcome.transport, json.as_object_mut()) {
        entries.insert("transport".to_owned(), transport_to_json(counts, outcome));
    }
    json
}

/// Number of ranks to print of those that finished last: as many as fit into a line.
const RANKS_SHOWN: usize = 3;
/// Number of ports to print: as many as fit on a screen together with the other lines.
const PORTS_SHOWN: usize = 8;

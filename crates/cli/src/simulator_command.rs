//! `ethernot sim speed` and `ethernot sim theory`: measures and checks the simulator itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use interconnect::benchmark::{self, Benchmark};
use interconnect::collective::CollectiveLoop;
use interconnect::edge::EdgeFabric;
use interconnect::simulation::{Fabric, Outcome};
use interconnect::theory;
use interconnect::workload::Workload;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::output::write_results;
use crate::threads::OnThreads;

/// Measure the speed of the interconnect simulator on one processor of this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim speed\n  \
    ethernot sim speed --threads 2\n  \
    ethernot sim speed --repetitions 5 --json speed.json")]
pub(crate) struct SpeedArguments {
    /// Runs of each network; reports the fastest run, which other programs have disturbed least
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Also measure the fat trees, divided into parts on this number of threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    threads: u32,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Compare the interconnect simulator with exact results of theory.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim theory\n  \
    ethernot sim theory --json theory.json")]
pub(crate) struct TheoryArguments {
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run_speed(arguments: &SpeedArguments) -> Result<(), Failure> {
    let count = arguments.repetitions;
    // Measures memory first. Later the hosts would reuse memory that other measurements have freed,
    // and the process would not grow.
    let memory = measure_memory()?;
    // Measures the run with 4096 hosts next, before runs that need more memory. The peak memory of
    // a process never falls, so a later measurement would include the memory of those runs.
    let many = measure_engines("real engine, 4096 hosts", 1, || Ok(benchmark::engines(4096, 2)?))?;
    let engines =
        measure_engines("real engine, 1024 hosts", count, || Ok(benchmark::engines(1024, 10)?))?;
    let networks = measure_networks(count, arguments.threads)?;
    let mut text = String::new();
    let mut entries = Map::new();
    for network in networks {
        let (line, entry) = network.line_and_entry();
        text.push_str(&line);
        entries.insert(network.name.to_owned(), entry);
    }
    for engines in [engines, many] {
        let (line, entry) = engines.line_and_entry();
        text.push_str(&line);
        entries.insert(engines.name.to_owned(), entry);
    }
    let EngineMemory { host_bytes, connection_bytes } = memory;
    // Writing to a `String` cannot fail, here and below.
    let _ = writeln!(
        text,
        "{:24} {host_bytes:.0} B per host, {connection_bytes:.0} B per end of a connection, \
         resident",
        "real engine, memory"
    );
    entries.insert(
        "real engine, memory".to_owned(),
        json!({ "bytes_per_host": host_bytes, "bytes_per_connection_end": connection_bytes }),
    );
    let equal = equal_hashes()?;
    let _ = writeln!(text, "equal on 1, 2 and 4 threads: {equal} of {} hashes", THREADS.len());
    entries.insert("divided".to_owned(), json!({ "equal_hashes": equal }));
    let json = || Ok(format!("{:#}", Value::Object(entries)));
    write_results(arguments.json.as_deref(), json, || text)
}

/// Measures each network `count` times. If `threads` is more than one, also measures fat trees on
/// these threads.
fn measure_networks(count: u32, threads: u32) -> Result<Vec<Measured>, Failure> {
    let mut networks = vec![
        measure("fat tree, 1024 hosts", "packet-hops", count, || {
            Ok(benchmark::fat_tree(16, 200_000_000)?)
        })?,
        measure("fat tree, 8192 hosts", "packet-hops", count, || {
            Ok(benchmark::fat_tree(32, 20_000_000)?)
        })?,
        measure("16 x 16 torus of flits", "flit-hops", count, || {
            Ok(benchmark::flit_torus(5_000_000)?)
        })?,
        measure("LogGP, 1024 hosts", "messages", count, || Ok(benchmark::loggp(1_000_000_000)))?,
        measure("GOAL, 1024 ranks, LogGP", "messages", count, || Ok(benchmark::goal(1_000)?))?,
    ];
    if threads == 1 {
        return Ok(networks);
    }
    for (name, radix, duration_ps) in
        [("1024 hosts, on threads", 16, 200_000_000), ("8192 hosts, on threads", 32, 20_000_000)]
    {
        networks.push(repeat(name, "packet-hops", count, || {
            let parts = benchmark::fat_tree_parts(radix, duration_ps, threads)?;
            Ok((f64::NAN, move || Ok(parts.run(&OnThreads)?)))
        })?);
    }
    Ok(networks)
}

impl Measured {
    /// Returns the results as a line of text and as JSON.
    fn line_and_entry(&self) -> (String, Value) {
        let Self { name, unit, figures } = self;
        let Figures { hops, seconds, hash, bytes_per_port } = figures;
        let millions = *hops as f64 / seconds * 1e-6;
        let json = json!({
            "unit": unit,
            "hops": hops,
            "seconds": seconds,
            "millions_per_second": millions,
            "bytes_per_port": bytes_per_port,
            "hash": format!("{hash:016x}"),
        });
        (format!("{name:24} {millions:6.2} M {unit}/s  (hash {hash:016x})\n"), json)
    }
}

impl Engines {
    /// Returns the results as a line of text and as JSON.
    fn line_and_entry(&self) -> (String, Value) {
        let Self { name, frames, seconds, resident_bytes, hash } = self;
        let millions = *frames as f64 / seconds * 1e-6;
        let mebibytes = *resident_bytes as f64 / f64::from(1 << 20);
        let json = json!({
            "unit": "frames",
            "frames": frames,
            "seconds": seconds,
            "millions_per_second": millions,
            "resident_mebibytes": mebibytes,
            "hash": format!("{hash:016x}"),
        });
        let line = format!(
            "{name:24} {millions:6.2} M frames/s  {mebibytes:.0} MiB resident  (hash {hash:016x})\n"
        );
        (line, json)
    }
}

/// Simulates a divided fat tree with each number of threads in [`THREADS`]. Returns how many of the
/// results equal the result of the undivided fat tree.
fn equal_hashes() -> Result<usize, Failure> {
    let whole = benchmark::fat_tree(16, DIVIDED_PS)?.simulation.run()?.hash;
    let mut equal = 0;
    for threads in THREADS {
        let parts = benchmark::fat_tree_parts(16, DIVIDED_PS, threads)?;
        equal += usize::from(parts.run(&OnThreads)?.hash == whole);
    }
    Ok(equal)
}

/// The numbers of threads with which [`equal_hashes`] simulates the fat tree, and the virtual time
/// of these runs.
const THREADS: [u32; 3] = [1, 2, 4];
const DIVIDED_PS: u64 = 20_000_000;

pub(crate) fn run_theory(arguments: &TheoryArguments) -> Result<(), Failure> {
    let comparisons = theory::compare()?;
    let mut text = String::new();
    let mut worst = 0.0_f64;
    let mut entries = Vec::new();
    for comparison in &comparisons {
        let error = comparison.error_percent();
        worst = worst.max(error);
        let _ = writeln!(
            text,
            "{:40} theory {:9.4}  model {:9.4} {}  error {error:.2} %",
            comparison.name, comparison.theory, comparison.model, comparison.unit
        );
        entries.push(json!({
            "name": comparison.name,
            "unit": comparison.unit,
            "theory": comparison.theory,
            "model": comparison.model,
            "error_percent": error,
        }));
    }
    let json = json!({ "worst_error_percent": worst, "comparisons": entries });
    write_results(arguments.json.as_deref(), || Ok(format!("{json:#}")), || text)
}

/// Results of hosts with the real engine in the fastest run.
struct Engines {
    name: &'static str,
    frames: u64,
    seconds: f64,
    /// Peak memory of the process so far, in bytes.
    resident_bytes: u64,
    hash: u64,
}

fn measure_engines(
    name: &'static str,
    repetitions: u32,
    build: impl Fn() -> Result<Benchmark<EdgeFabric, CollectiveLoop>, Failure>,
) -> Result<Engines, Failure> {
    let mut best: Option<Engines> = None;
    for _ in 0..repetitions {
        let benchmark = build()?;
        let start = Instant::now();
        let (outcome, fabric) = benchmark.simulation.run_to_end()?;
        let seconds = start.elapsed().as_secs_f64();
        if !fabric.violations().is_empty() {
            return Err(format!("{name}: {}", fabric.violations().join("\n")).into());
        }
        let hash = outcome.hash;
        if best.as_ref().is_some_and(|best| best.hash != hash) {
            return Err(format!("{name}: two runs have different hashes").into());
        }
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            let frames = fabric.counts().frames_received;
            let resident_bytes = resident_bytes("VmHWM:");
            best = Some(Engines { name, frames, seconds, resident_bytes, hash });
        }
    }
    best.ok_or_else(|| "no repetitions".into())
}

/// Resident bytes of a host with the real engine, and of one end of an idle connection.
struct EngineMemory {
    host_bytes: f64,
    connection_bytes: f64,
}

/// Connects each host with an increasing number of other hosts, and measures how much the process
/// grows.
fn measure_memory() -> Result<EngineMemory, Failure> {
    const HOSTS: u32 = 1024;
    const PEERS: u32 = 16;
    let before = resident_bytes("VmRSS:");
    let (mut fabric, _) = benchmark::unconnected_engines(HOSTS)?;
    let network_bytes = fabric.network_bytes() as f64;
    let hosts_bytes = resident_bytes("VmRSS:").saturating_sub(before) as f64 - network_bytes;
    let mut connect = |by: u32| {
        let pairs: Vec<_> = (0..HOSTS).map(|host| (host, (host + by) % HOSTS)).collect();
        fabric.connect_ahead(&pairs)
    };
    // Does not measure the first call, because it also allocates memory that later calls reuse.
    connect(1)?;
    let with_one = resident_bytes("VmRSS:");
    for by in 2..=PEERS {
        connect(by)?;
    }
    let grown_bytes = resident_bytes("VmRSS:").saturating_sub(with_one) as f64;
    Ok(EngineMemory {
        host_bytes: hosts_bytes.max(0.0) / f64::from(HOSTS),
        connection_bytes: grown_bytes / f64::from(2 * (PEERS - 1) * HOSTS),
    })
}

/// Returns the current (`VmRSS:`) or peak (`VmHWM:`) memory of this process, in bytes; 0 if the
/// kernel does not report it.
fn resident_bytes(which: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(which));
    let kibibytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kibibytes.unwrap_or_default() * 1024
}

struct Measured {
    name: &'static str,
    unit: &'static str,
    figures: Figures,
}

/// Results of the fastest run.
struct Figures {
    hops: u64,
    seconds: f64,
    hash: u64,
    bytes_per_port: f64,
}

fn measure<F: Fabric, W: Workload>(
    name: &'static str,
    unit: &'static str,
    repetitions: u32,
    build: impl Fn() -> Result<Benchmark<F, W>, Failure>,
) -> Result<Measured, Failure> {
    repeat(name, unit, repetitions, || {
        let Benchmark { simulation, network_bytes, ports, .. } = build()?;
        Ok((network_bytes as f64 / ports as f64, move || Ok(simulation.run()?)))
    })
}

/// Calls the function that `build` returns, `repetitions` times, and returns the fastest run.
/// `build` also returns the bytes per port.
fn repeat<R: FnOnce() -> Result<Outcome, Failure>>(
    name: &'static str,
    unit: &'static str,
    repetitions: u32,
    build: impl Fn() -> Result<(f64, R), Failure>,
) -> Result<Measured, Failure> {
    let mut best: Option<Figures> = None;
    for _ in 0..repetitions {
        let (bytes_per_port, run) = build()?;
        let start = Instant::now();
        let outcome = run()?;
        let seconds = start.elapsed().as_secs_f64();
        let hash = outcome.hash;
        if best.as_ref().is_some_and(|best| best.hash != hash) {
            return Err(format!("{name}: two runs have different hashes").into());
        }
        if best.as_ref().is_none_or(|best| seconds < best.seconds) {
            best = Some(Figures { hops: outcome.hops, seconds, hash, bytes_per_port });
        }
    }
    let figures = best.ok_or("no repetitions")?;
    Ok(Measured { name, unit, figures })
}

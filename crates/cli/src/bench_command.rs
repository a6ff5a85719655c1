//! `ethernot bench`: measures transports, and has subcommands for other benchmarks.

use std::path::{Path, PathBuf};

use bench::plan::{BUSY_MAX, Options, PathChoice};
use bench::results::Results;
use bench::transport::{Test, Waiting};
use clap::{Args, Subcommand, value_parser};
use testbed::cleanup;

use crate::failover_command;
use crate::link_names::{Links, parse_count_or_links, try_links};
use crate::output::{check_writable, terminal_columns, write_results, write_text};
use crate::progress::Progress;
use crate::quantities::{parse_seconds, parse_size, parse_test, parse_waiting};
use crate::{
    Failure, apache_command, ganglia_command, multiedge_command, own_program, programs_command,
    sockets_command, verbs_command, yardsticks_command,
};

/// Measure latency, throughput and CPU time of every transport next to kernel TCP.
///
/// Runs the ping-pong, one-way and two-way tests over message sizes, and tests of small operations
/// and of connection set-up. As root, makes a network namespace for the client and one for the
/// server, joins them by veth pairs, and removes them at the end. Without root, uses the loopback
/// interface. With --peer, the server is another host that runs `ethernot serve`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  \
    ethernot bench --quick\n  \
    ethernot bench --json results.json --html results.html\n  \
    ethernot bench --tests one-way --sizes 64K,1M --transports tcp,tcp-poll\n  \
    ethernot bench --peer 192.0.2.2\n  \
    ethernot bench --peer 192.0.2.2 --links eth0,packet:eth1\n  \
    ethernot bench multiedge --quick\n  \
    ethernot bench sockets --quick",
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    study: Option<Study>,
    /// Measure fewer sizes and repetitions: less than a minute
    #[arg(long)]
    quick: bool,
    /// Message sizes in bytes, such as 8,4K,1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Tests to run: ping-pong, one-way, two-way, operation-rate, connection-setup,
    /// many-connections; also small-beside-stream, which by default does not run
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Transports to measure, such as tcp,tcp-poll,udp
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    transports: Vec<String>,
    /// Number of links between client and server. With --peer, the names of this host's links, such
    /// as eth0,packet:eth1; name the server's links with `ethernot serve --links` [default: 2]
    #[arg(long, value_name = "N|LINKS", value_parser = parse_count_or_links)]
    links: Option<Links>,
    /// MTU of the links, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u32,
    /// Samples of each measurement; the highest and the lowest are excluded
    /// [default: 10, with --quick 5]
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
    /// Approximate length of the whole run [default: 180, with --quick 40]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    time: Option<f64>,
    /// Operations in flight, for transports with pipelining
    #[arg(long, value_name = "N", default_value_t = 64)]
    in_flight: u32,
    /// Connections in the test of many connections
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    connections: u32,
    /// How threads wait, for transports that have a choice: poll, mixed (spin, then sleep) or
    /// interrupt (sleep immediately); measures each mode of the list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "poll", value_parser = parse_waiting)]
    waiting: Vec<Waiting>,
    /// Threads that spin on this host during the measurement: 0 to 16
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u32).range(..=i64::from(BUSY_MAX)))]
    busy: u32,
    /// Take one sample of each measurement in turn, instead of all samples of one measurement
    /// before the next. A change of the host's speed then affects all measurements equally
    #[arg(long)]
    interleaved: bool,
    /// Host that runs `ethernot serve`, by one or several addresses separated by commas; each
    /// address becomes a link
    #[arg(long, value_name = "HOST[:PORT]", value_delimiter = ',', conflicts_with_all = ["loopback", "mtu"])]
    peer: Vec<String>,
    /// Use the loopback interface, even as root
    #[arg(long)]
    loopback: bool,
    /// Do not restrict client and server to one CPU each
    #[arg(long)]
    no_pinning: bool,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page with tables and curves
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Benchmarks that are subcommands.
#[derive(Debug, Subcommand)]
enum Study {
    Multiedge(multiedge_command::Arguments),
    Sockets(sockets_command::Arguments),
    Failover(failover_command::Arguments),
    Yardsticks(yardsticks_command::Arguments),
    Apache(apache_command::Arguments),
    Ganglia(ganglia_command::Arguments),
    Programs(programs_command::Arguments),
    Verbs(verbs_command::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.study {
        Some(Study::Multiedge(arguments)) => multiedge_command::run(arguments),
        Some(Study::Sockets(arguments)) => sockets_command::run(arguments),
        Some(Study::Failover(arguments)) => failover_command::run(arguments),
        Some(Study::Yardsticks(arguments)) => yardsticks_command::run(arguments),
        Some(Study::Apache(arguments)) => apache_command::run(arguments),
        Some(Study::Ganglia(arguments)) => ganglia_command::run(arguments),
        Some(Study::Programs(arguments)) => programs_command::run(arguments),
        Some(Study::Verbs(arguments)) => verbs_command::run(arguments),
        None => run_transports(arguments),
    }
}

fn run_transports(arguments: &Arguments) -> Result<(), Failure> {
    // Install the handler before anything else. A background job of a script ignores signals, and
    // would lose a signal that arrives before the handler is installed.
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let options = options(arguments)?;
    try_links(&options.link_names)?;
    let files = [&arguments.json, &arguments.html].into_iter().flatten();
    check_writable(files.map(PathBuf::as_path))?;
    let mut progress = Progress::new();
    let outcome = bench::run::run(&options, &mut progress);
    progress.finish();
    let results = outcome?;
    if let Some(path) = &arguments.html {
        write_html(&results, path)?;
    }
    let json = || serde_json::to_string_pretty(&results);
    write_results(arguments.json.as_deref(), json, || table(&results))
}

/// Returns the table in the width of the terminal.
pub(crate) fn table(results: &Results) -> String {
    report::table(results, terminal_columns(COLUMNS_DEFAULT))
}

/// Writes the HTML page to `path`.
pub(crate) fn write_html(results: &Results, path: &Path) -> Result<(), Failure> {
    write_text(path, &report::page(results)?)
}

fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let or = |chosen: &[u64], default: &[u64]| {
        if chosen.is_empty() { default.to_vec() } else { chosen.to_vec() }
    };
    let quick = arguments.quick;
    let path = match (arguments.peer.is_empty(), arguments.loopback) {
        (false, _) => PathChoice::Peer(arguments.peer.clone()),
        (true, true) => PathChoice::Loopback,
        (true, false) => PathChoice::Automatic,
    };
    let (links, link_names) = match (&arguments.links, &path) {
        (None, _) => (LINKS, Vec::new()),
        (Some(Links::Named(names)), PathChoice::Peer(_)) => (0, names.0.clone()),
        (Some(Links::Named(_)), _) => {
            return Err(
                "without --peer, --links takes a number; to use links by name, add --peer HOST, \
                 and run `ethernot serve` on that host"
                    .into(),
            );
        }
        (Some(Links::Count(_)), PathChoice::Peer(_)) => {
            return Err("with --peer, --links takes names, such as eth0,packet:eth1; without \
                        --links, each address of --peer becomes a link"
                .into());
        }
        (Some(Links::Count(count)), _) => (*count, Vec::new()),
    };
    let tests = if arguments.tests.is_empty() { &Test::ALL[..] } else { &arguments.tests };
    Ok(Options {
        path,
        links,
        link_names,
        mtu: arguments.mtu,
        tests: tests.to_vec(),
        transports: arguments.transports.clone(),
        sizes: or(&arguments.sizes, if quick { &SIZES_QUICK } else { &SIZES }),
        repetitions: arguments.repetitions.unwrap_or(if quick { 5 } else { 10 }),
        budget_seconds: arguments.time.unwrap_or(if quick { 40.0 } else { 180.0 }),
        in_flight: arguments.in_flight,
        connections: arguments.connections,
        pinning: !arguments.no_pinning,
        waitings: arguments.waiting.clone(),
        busy: arguments.busy,
        interleaved: arguments.interleaved,
        ..Options::new(own_program()?)
    })
}

/// Default number of links between the namespaces.
const LINKS: u32 = 2;

/// Default message sizes from 8 B to 4 MiB.
const SIZES: [u64; 9] = [8, 64, 512, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const SIZES_QUICK: [u64; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
const COLUMNS_DEFAULT: u16 = 100;

//! `ethernot bench programs`: a suite of unmodified programs over kernel TCP and over the edge.

use bench::programs::{self, CASES, Wishes};
use clap::Args;

use crate::progress::Progress;
use crate::shaped_command::{self, OutputArguments};
use crate::{Failure, own_program};

/// Measure a suite of unmodified programs, alternately over kernel TCP and over the edge.
///
/// Runs wrk on nginx, redis-benchmark, iperf3, sockperf and gmond. The server runs in one network
/// namespace and the client in another, alternately directly and under `ethernot run --sockets`.
/// In cases whose names end with -client-only, -server-only, -default or -left-alone, connections
/// stay on TCP; these cases show the cost of the library for such connections. If a program is not
/// installed, prints a message and skips its cases. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ethernot bench programs --quick\n  ethernot bench programs \
                        --cases wrk-16K,redis-get-1 --repetitions 5\n  ethernot bench programs \
                        --json programs.json --html programs.html\n  ethernot bench programs \
                        --control                 (how much ratios vary by chance)")]
pub(crate) struct Arguments {
    /// Three samples of each case: about two minutes
    #[arg(long)]
    quick: bool,
    /// Cases: wrk-16K, wrk-256K, redis-set-1, redis-get-1, redis-set-16, redis-get-16, iperf3-1,
    /// iperf3-4, sockperf-event, sockperf-poll, gmond, iperf3-client-only, sockperf-client-only,
    /// iperf3-left-alone, sockperf-left-alone, iperf3-server-only, iperf3-default,
    /// redis-get-1-client-only, redis-get-1-server-only, redis-get-1-default; fresh (a connection
    /// per request, one at a time) and ab (50 at a time), each with -client-only, -server-only and
    /// -default [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_case)]
    cases: Vec<String>,
    /// Samples of each case over kernel TCP, and the same number over the edge; the highest and the
    /// lowest are excluded [default: 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Seconds of a sample
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// MTU of the link, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u32,
    /// Do not restrict client and server to one CPU each
    #[arg(long)]
    no_pinning: bool,
    /// Compare kernel TCP with itself
    #[arg(long)]
    control: bool,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench programs")?;
    arguments.output.check()?;
    let wishes = Wishes {
        own_program: own_program()?,
        cases: arguments.cases.clone(),
        repetitions: arguments.repetitions.unwrap_or(if arguments.quick { 3 } else { 10 }),
        seconds: arguments.seconds,
        mtu: arguments.mtu,
        pinning: !arguments.no_pinning,
        is_control: arguments.control,
    };
    let mut progress = Progress::new();
    let outcome = programs::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::programs_page(&found)),
        |columns| report::programs_table(&found, columns),
        120,
    )
}

fn parse_case(text: &str) -> Result<String, String> {
    let known = || CASES.map(|entry| entry.name).join(", ");
    let found = CASES.iter().find(|entry| entry.name == text);
    found.map(|entry| entry.name.to_string()).ok_or_else(|| format!("the cases are: {}", known()))
}

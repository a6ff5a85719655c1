//! `ethernot bench sockets`: measures ordinary sockets by the methods of the papers.

use std::path::Path;
use std::process::{Command, Stdio};

use bench::plan::BUSY_MAX;
use bench::sockets::cases::ITERATIONS_MAX;
use bench::sockets::work::{MESSAGE_BYTES_MAX, STREAMS_MAX};
use bench::sockets::{self, Contender, Test, Wishes};
use clap::Args;
use testbed::cleanup;
use testbed::namespace::{MTU_MAX, MTU_MIN};

use crate::progress::Progress;
use crate::quantities::{parse_rate, parse_seconds, parse_size};
use crate::shaped_command::OutputArguments;
use crate::{Failure, own_program};

/// Measure a program with ordinary sockets over kernel TCP and over the edge, by the methods of the
/// papers.
///
/// Measures latency, throughput, multi-stream, hot-spot, fan-in, fan-out and connection time. Uses
/// the methods of the papers: takes samples of the contenders alternately, drops the highest and
/// the lowest sample, and averages the others. All contenders except the native API run the same
/// program. Over the edge the program runs under `ethernot run --sockets`, and a sample counts only
/// if the library's counters prove that its connections moved. As root, makes network namespaces
/// for the server and for three hosts with clients, and removes them at the end. Without root, uses
/// the loopback interface.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench sockets --quick\n  \
    ethernot bench sockets --json sockets.json --html sockets.html\n  \
    ethernot bench sockets --tests latency --sizes 1,1K --mtu 1500\n  \
    ethernot bench sockets --tests hot-spot,fan-in,fan-out --clients 1,3,12\n  \
    ethernot bench sockets --tests latency,throughput --iterations 100000 --rate 10G\n  \
    ethernot bench sockets --contenders native,native-packet,native-xdp --tests latency\n  \
    ethernot bench sockets --contenders tcp,native --loopback")]
pub(crate) struct Arguments {
    /// Fewer sizes, clients and samples than in the papers, and one MTU: about a minute
    #[arg(long)]
    quick: bool,
    /// Tests to run: latency, throughput, multi-stream, hot-spot, fan-in, fan-out, connection
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Contenders to measure: tcp, tcp-poll, sockets, sockets-poll, native (over UDP), native-packet,
    /// native-xdp [default: the first five]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_contender)]
    contenders: Vec<Contender>,
    /// Message sizes of latency and throughput in bytes, such as 1,1K,64K
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_message)]
    sizes: Vec<u64>,
    /// Numbers of streams in multi-stream, and of clients in hot-spot, fan-in and fan-out
    /// [default: 1,2,3,6,9,12, with --quick 1,12]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(STREAMS_MAX)))]
    clients: Vec<u32>,
    /// MTUs of the links, in bytes [default: 1500,9000, with --quick 1500]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(i64::from(MTU_MIN)..=i64::from(MTU_MAX)))]
    mtu: Vec<u32>,
    /// Samples of each case; the highest and the lowest are excluded [default: 10, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: Option<u32>,
    /// Length of a sample, without its warm-up [default: 0.25, with --quick 0.12]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
    /// Length of a sample of latency or throughput as a number of round trips or messages, instead
    /// of a time; the papers use 100000. Samples of the native API always have a length in time
    #[arg(long, value_name = "N", conflicts_with = "seconds", value_parser = clap::value_parser!(u64).range(1..=ITERATIONS_MAX))]
    iterations: Option<u64>,
    /// Bits per second of each host's link, such as 10G [default: not limited]
    #[arg(long, value_name = "RATE", conflicts_with = "loopback", value_parser = parse_rate)]
    rate: Option<u64>,
    /// Use the loopback interface, even as root
    #[arg(long)]
    loopback: bool,
    /// Do not restrict client and server to one CPU each in tests with one client
    #[arg(long)]
    no_pinning: bool,
    /// Threads that spin during the measurement: 0 to 16
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=i64::from(BUSY_MAX)))]
    busy: u32,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}"))?;
    arguments.output.check()?;
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let outcome = sockets::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::sockets_page(&found)?),
        |columns| report::sockets_table(&found, columns),
        120,
    )?;
    let refused: u32 = found.refused.iter().map(|refused| refused.samples).sum();
    if refused > 0 {
        let reasons: Vec<_> =
            found.refused.iter().map(|one| format!("{}: {}", one.what, one.reason)).collect();
        let reasons = reasons.join("; ");
        return Err(format!("{refused} samples do not count: {reasons}").into());
    }
    Ok(())
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    let quick = arguments.quick;
    let program = own_program()?;
    let is_wanted = arguments.contenders.iter().any(|contender| contender.is_preloaded());
    let needs_library = is_wanted || arguments.contenders.is_empty();
    let no_library = if needs_library { why_no_library(&program) } else { None };
    if let Some(reason) = no_library.as_ref().filter(|_| is_wanted) {
        return Err(format!("contenders that need the library cannot be measured: {reason}").into());
    }
    Ok(Wishes {
        program,
        loopback: arguments.loopback,
        tests: chosen(&arguments.tests, &Test::ALL),
        contenders: chosen(&arguments.contenders, Contender::USUAL),
        latency_sizes: chosen(&arguments.sizes, if quick { &[1, 1024] } else { &LATENCY_SIZES }),
        throughput_sizes: chosen(
            &arguments.sizes,
            if quick { &[1024, 65_536, 1 << 20] } else { &THROUGHPUT_SIZES },
        ),
        clients: chosen(&arguments.clients, if quick { &[1, 12] } else { &CLIENTS }),
        mtus: chosen(&arguments.mtu, if quick { &[1500] } else { &[1500, 9000] }),
        repetitions: arguments.repetitions.unwrap_or(if quick { 5 } else { 10 }),
        sample_seconds: arguments.seconds.unwrap_or(if quick { 0.12 } else { 0.25 }),
        iterations: arguments.iterations,
        rate: arguments.rate,
        pinning: !arguments.no_pinning,
        busy: arguments.busy,
        no_library,
        is_quick: quick,
    })
}

fn chosen<T: Clone>(chosen: &[T], default: &[T]) -> Vec<T> {
    if chosen.is_empty() { default.to_vec() } else { chosen.to_vec() }
}

/// Runs a program that does nothing under `ethernot run --sockets`. If this fails, returns the
/// reason.
fn why_no_library(program: &Path) -> Option<String> {
    let tried = Command::new(program)
        .args(["run", "--sockets", "--", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output();
    match tried {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().next().unwrap_or("it says nothing");
            Some(first.trim_start_matches("ethernot: ").to_string())
        }
        Err(error) => Some(format!("start {}: {error}", program.display())),
    }
}

fn parse_test(text: &str) -> Result<Test, String> {
    let known = || Test::ALL.map(Test::name).join(", ");
    let found = Test::ALL.into_iter().find(|test| test.name() == text);
    found.ok_or_else(|| format!("the tests are: {}", known()))
}

fn parse_contender(text: &str) -> Result<Contender, String> {
    let known = || Contender::ALL.map(Contender::name).join(", ");
    let found = Contender::ALL.into_iter().find(|contender| contender.name() == text);
    found.ok_or_else(|| format!("unknown contender: known contenders are: {}", known()))
}

fn parse_message(text: &str) -> Result<u64, String> {
    let largest =
        || format!("invalid message size: a message has at most {} M", MESSAGE_BYTES_MAX >> 20);
    parse_size(text).and_then(
        |bytes| {
            if bytes <= MESSAGE_BYTES_MAX { Ok(bytes) } else { Err(largest()) }
        },
    )
}

/// Message sizes that we chose within the range of the papers' figures.
const LATENCY_SIZES: [u64; 6] = [1, 64, 256, 1 << 10, 4 << 10, 16 << 10];
/// Sizes up to 1 MiB, because throughput in the papers begins to fall at 512 KB.
const THROUGHPUT_SIZES: [u64; 8] =
    [64, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20];

/// Numbers of clients that we chose between 1 and 12, the papers' range.
const CLIENTS: [u32; 6] = [1, 2, 3, 6, 9, 12];

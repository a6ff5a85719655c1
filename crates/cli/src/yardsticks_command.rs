//! `ethernot bench yardsticks`: small messages against the least that a host can do, and against
//! other programs.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use bench::multiedge::LinkKind;
use bench::plan::{Options, PathChoice};
use bench::transport::Test;
use bench::transports::EDGE;
use bench::yardsticks::{self, Report};
use clap::Args;

use crate::Failure;
use crate::bench_command::parse_seconds;
use crate::progress::Progress;
use crate::shaped_command::{self, HostArguments};

/// Compare an 8-byte ping-pong with bare frames of equal size and with other programs.
///
/// The other programs are `ucx_perftest -t ucp_put_lat` over TCP (Debian package ucx-utils) and
/// `sockperf ping-pong --tcp` (package sockperf); the smallest message of sockperf has 14 bytes. One
/// that is not installed is left out with a message. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench yardsticks --link xdp\n  \
    ethernot bench yardsticks --link packet --json yardsticks.json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    hosts: HostArguments,
    /// Samples of each figure; the highest and the lowest are left out
    #[arg(long, value_name = "N", default_value_t = 5)]
    repetitions: u32,
    /// About how long the exchanges of this program may take
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0, value_parser = parse_seconds)]
    time: f64,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench yardsticks")?;
    let options = options(arguments)?;
    let mut progress = Progress::new();
    let outcome = yardsticks::measure(arguments.hosts.link, &options, &mut progress);
    progress.finish();
    let report = outcome?;
    if let Some(path) = &arguments.json {
        let text = format!("{}\n", serde_json::to_string_pretty(&report)?);
        if path.as_os_str() == "-" {
            return Ok(io::stdout().write_all(text.as_bytes())?);
        }
        fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    Ok(io::stdout().write_all(table(&report).as_bytes())?)
}

fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let links = vec![match arguments.hosts.link {
        LinkKind::Packet => "packet:link1".to_string(),
        LinkKind::Udp => "udp:link1".to_string(),
        LinkKind::Xdp => "xdp:link1:0".to_string(),
    }];
    let bare = match arguments.hosts.link {
        LinkKind::Packet => "bare-packet",
        LinkKind::Udp => "udp",
        LinkKind::Xdp => "bare-xdp",
    };
    Ok(Options {
        program: env::current_exe().map_err(|error| format!("find this program: {error}"))?,
        path: PathChoice::Automatic,
        links: 1,
        link_names: links.clone(),
        server_link_names: links,
        mtu: 1500,
        tests: vec![Test::PingPong],
        transports: vec![EDGE.to_string(), bare.to_string()],
        sizes: vec![yardsticks::EXTERNAL_BYTES],
        repetitions: arguments.repetitions,
        budget_seconds: arguments.time,
        in_flight: 1,
        connections: 1,
        pinning: !arguments.hosts.no_pinning,
        in_order: false,
        sleeps: false,
        interleaved: false,
        delays_us: Vec::new(),
    })
}

/// One line for each contender.
fn table(report: &Report) -> String {
    let mut text = format!("8-byte ping-pong over {}, half a round trip\n", report.kind.name());
    for (name, latency) in &report.latency_ns {
        let ratio = report
            .ratios
            .get(name)
            .map_or_else(String::new, |ratio| format!("   edge takes {ratio:.2} of it"));
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "{name:<14}{:>8.2} us{ratio}", latency.median / 1e3);
    }
    for (name, why) in &report.cannot_run {
        let _ = writeln!(text, "{name:<14}cannot run here: {why}");
    }
    text
}

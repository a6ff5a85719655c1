//! `ethernot bench yardsticks`: compares small messages with bare frames, which have the lowest
//! cost that is possible on this host, and with other programs.

use std::fmt::Write as _;
use std::path::PathBuf;

use bench::multiedge::LinkKind;
use bench::plan::Options;
use bench::transport::Test;
use bench::transports::EDGE;
use bench::yardsticks::{self, Report};
use clap::Args;

use crate::output::{check_writable, write_results};
use crate::progress::Progress;
use crate::quantities::parse_seconds;
use crate::shaped_command::{self, HostArguments};
use crate::{Failure, own_program};

/// Compare an 8-byte ping-pong with bare frames of equal size and with other programs. Also compare
/// a stream over UDP with a stream of bare datagrams.
///
/// The stream of bare datagrams makes the same system calls as a stream of remote writes: one call
/// gathers 44 headers and payloads, which the kernel sends and delivers as one segmented datagram.
/// The receiver copies each payload to the target memory.
///
/// The other programs are `ucx_perftest -t ucp_put_lat` over TCP (Debian package ucx-utils) and
/// `sockperf ping-pong --tcp` (package sockperf); the smallest message of sockperf has 14 bytes.
/// Skips a program that is not installed, with a message. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench yardsticks --link xdp\n  \
    ethernot bench yardsticks --link packet --json yardsticks.json")]
pub(crate) struct Arguments {
    #[command(flatten)]
    hosts: HostArguments,
    /// Samples of each figure; the highest and the lowest are excluded
    #[arg(long, value_name = "N", default_value_t = 5)]
    repetitions: u32,
    /// Approximate length of the measurements without other programs
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0, value_parser = parse_seconds)]
    time: f64,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench yardsticks")?;
    check_writable(arguments.json.as_deref())?;
    let options = options(arguments)?;
    let mut progress = Progress::new();
    let outcome = yardsticks::measure(arguments.hosts.link, &options, &mut progress);
    progress.finish();
    let report = outcome?;
    let json = || serde_json::to_string_pretty(&report);
    write_results(arguments.json.as_deref(), json, || table(&report))
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
        link_names: links.clone(),
        server_link_names: links,
        tests: vec![Test::PingPong],
        transports: vec![EDGE.to_string(), bare.to_string()],
        sizes: vec![yardsticks::EXTERNAL_BYTES],
        repetitions: arguments.repetitions,
        budget_seconds: arguments.time,
        pinning: !arguments.hosts.no_pinning,
        ..Options::new(own_program()?)
    })
}

/// Returns one line per contender.
fn table(report: &Report) -> String {
    let mut text = format!("8-byte ping-pong over {}, half a round trip\n", report.kind.name());
    for (name, latency) in &report.latency_ns {
        let ratio = report.ratios.get(name).map_or_else(String::new, |ratio| {
            format!("   latency of edge divided by this latency: {ratio:.2}")
        });
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{name:<14}{:>8.2} us{ratio}", latency.median / 1e3);
    }
    for stream in &report.streams {
        let _ = writeln!(
            text,
            "one-way {} KiB over udp: {:.1} Gb/s; the bare path with the same gather and copy: \
             {:.1} Gb/s; ratio {:.2}",
            stream.message_bytes >> 10,
            stream.edge_bits_per_second.median / 1e9,
            stream.bare_bits_per_second.median / 1e9,
            stream.ratio.median
        );
    }
    for (name, why) in &report.cannot_run {
        let _ = writeln!(text, "{name:<14}cannot run here: {why}");
    }
    text
}

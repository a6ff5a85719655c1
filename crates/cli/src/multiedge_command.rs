//! `ethernot bench multiedge`: the testbed of the paper, and past it.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use bench::cleanup;
use bench::multiedge::run::{self, LinkKind, Options};
use bench::multiedge::setups::{SET_UPS, SIZES, SIZES_QUICK, SetUp};
use bench::transport::{EdgePolicy, Test};
use clap::Args;
use console::Term;

use crate::Failure;
use crate::bench_command::{COLUMNS_DEFAULT, check_writable, parse_seconds, parse_size};
use crate::progress::Progress;

/// Run the set-ups of the MultiEdge paper, and further ones, on shaped virtual Ethernet.
///
/// Two hosts and a switch for each link are made of network namespaces and removed at the end; the
/// rate of a link is set on the switch's ports. The ping-pong, one-way and two-way tests run with our
/// rules and with MultiEdge's (round robin, fixed window, an acknowledgement for every so many
/// frames) in turn, beside the paper's figures. Needs root and the packages iproute2 (ip, tc).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench multiedge --quick\n  \
    ethernot bench multiedge --link udp --set-ups 1L-1G,2Lu-1G --html multiedge.html\n  \
    ethernot bench multiedge --set-ups direct --link xdp --yardsticks --tests ping-pong --sizes 8\n  \
    ethernot bench multiedge --set-ups 1L-10G --mtu 9000 --tests one-way,two-way --sizes 1M")]
pub(crate) struct Arguments {
    /// Fewer sizes and shorter samples
    #[arg(long)]
    quick: bool,
    /// Set-ups to measure: direct, 1L-1G, 2L-1G, 2Lu-1G, 1L-10G, 1L-10G-jumbo, 4L-2.5G, 1G+100M,
    /// 10G+1G, 1G/20us+1G/2ms, 2L-10G, 1L-1G-wire, 1L-1G-loss1, 1L-1G-loss5 [default: all but direct]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_set_up)]
    set_ups: Vec<&'static SetUp>,
    /// How frames are sent: packet, udp, xdp
    #[arg(long, value_name = "KIND", value_parser = parse_link, default_value = "packet")]
    link: LinkKind,
    /// MTU of all links, in bytes [default: 1500; 1L-10G-jumbo: 9000]
    #[arg(long, value_name = "N")]
    mtu: Option<u32>,
    /// Tests to run: ping-pong, one-way, two-way
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Message sizes in bytes, such as 8,4K,1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Rules to measure: own, multiedge [default: both]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_policy)]
    policy: Vec<EdgePolicy>,
    /// Also measure bare frames without a protocol, ucx_perftest and sockperf (ping-pong)
    #[arg(long)]
    yardsticks: bool,
    /// Samples of each figure; the highest and the lowest are left out [default: 5, with --quick 3]
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
    /// Length of a sample [default: 0.3, with --quick 0.15]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    seconds: Option<f64>,
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

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let options = options(arguments)?;
    check_writable([&arguments.json, &arguments.html])?;
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let mut progress = Progress::new();
    let outcome = run::run(&options, &mut progress);
    progress.finish();
    let results = outcome?;
    if let Some(path) = &arguments.html {
        let page = report::multiedge_page(&results)?;
        fs::write(path, page).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    if let Some(path) = &arguments.json {
        let text = format!("{}\n", serde_json::to_string_pretty(&results)?);
        if path.as_os_str() == "-" {
            return Ok(io::stdout().write_all(text.as_bytes())?);
        }
        fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    let columns = Term::stdout().size_checked().map_or(COLUMNS_DEFAULT, |(_, columns)| columns);
    io::stdout().write_all(report::multiedge_table(&results, columns).as_bytes())?;
    Ok(())
}

fn options(arguments: &Arguments) -> Result<Options, Failure> {
    let quick = arguments.quick;
    let or = |chosen: &[u64], default: &[u64]| {
        if chosen.is_empty() { default.to_vec() } else { chosen.to_vec() }
    };
    let set_ups = if arguments.set_ups.is_empty() {
        SET_UPS.iter().filter(|set_up| set_up.is_default).collect()
    } else {
        arguments.set_ups.clone()
    };
    let tests = if arguments.tests.is_empty() { &TESTS[..] } else { &arguments.tests };
    let policies = if arguments.policy.is_empty() {
        vec![EdgePolicy::Own, EdgePolicy::MultiEdge]
    } else {
        arguments.policy.clone()
    };
    Ok(Options {
        program: env::current_exe().map_err(|error| format!("find this program: {error}"))?,
        set_ups,
        link: arguments.link,
        mtu: arguments.mtu,
        tests: tests.to_vec(),
        sizes: or(&arguments.sizes, if quick { &SIZES_QUICK } else { &SIZES }),
        policies,
        yardsticks: arguments.yardsticks,
        repetitions: arguments.repetitions.unwrap_or(if quick { 3 } else { 5 }),
        sample_seconds: arguments.seconds.unwrap_or(if quick { 0.15 } else { 0.3 }),
        pinning: !arguments.no_pinning,
    })
}

fn parse_set_up(text: &str) -> Result<&'static SetUp, String> {
    let known = || SET_UPS.iter().map(|set_up| set_up.name).collect::<Vec<_>>().join(", ");
    SetUp::by_name(text).ok_or_else(|| format!("the set-ups are: {}", known()))
}

pub(crate) fn parse_link(text: &str) -> Result<LinkKind, String> {
    let known = || LinkKind::ALL.map(LinkKind::name).join(", ");
    let mut kinds = LinkKind::ALL.into_iter();
    kinds
        .find(|kind| kind.name() == text)
        .ok_or_else(|| format!("the kinds of links are: {}", known()))
}

fn parse_test(text: &str) -> Result<Test, String> {
    let known = || TESTS.map(Test::name).join(", ");
    TESTS
        .into_iter()
        .find(|test| test.name() == text)
        .ok_or_else(|| format!("the tests are: {}", known()))
}

fn parse_policy(text: &str) -> Result<EdgePolicy, String> {
    match text {
        "own" => Ok(EdgePolicy::Own),
        "multiedge" => Ok(EdgePolicy::MultiEdge),
        _ => Err("the rules are: own, multiedge".to_string()),
    }
}

const TESTS: [Test; 3] = [Test::PingPong, Test::OneWay, Test::TwoWay];

//! `ethernot bench multiedge`: measures the set-ups of the MultiEdge paper and further set-ups.

use bench::multiedge::{self, LinkKind, SIZES, SIZES_QUICK, SetUp, Wishes, setups};
use bench::plan::{BUSY_MAX, Options};
use bench::transport::{Test, Waiting};
use clap::{Args, value_parser};

use crate::progress::Progress;
use crate::quantities::{parse_seconds, parse_size, parse_test, parse_waiting};
use crate::shaped_command::{self, HostArguments, OutputArguments, chosen_tests};
use crate::{Failure, own_program};

/// Measure the edge protocol over links of known rate: the set-ups of the MultiEdge paper and more.
///
/// Makes a network namespace for each of the two hosts, and one for each link. The namespace of a
/// link contains a switch whose ports have the link's rate, queue, delay and loss. Runs ping-pong,
/// one-way and two-way over the message sizes of the paper's figure 2, alternately with this
/// project's sending policy and with MultiEdge's. Shows the results next to the paper's values.
/// Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench multiedge --quick\n  \
    ethernot bench multiedge --setups 2L-1G,1G+100M --tests one-way --sizes 1M\n  \
    ethernot bench multiedge --link udp --json multiedge.json --html multiedge.html")]
pub(crate) struct Arguments {
    /// Fewer sizes, shorter samples: about two minutes
    #[arg(long)]
    quick: bool,
    /// Set-ups: 1L-1G, 2L-1G, 2Lu-1G, 1L-10G, 1L-10G-9000, 4L-2.5G, 1G+100M, 10G+1G,
    /// 1G/20us+1G/2ms, 2L-10G; also those that by default do not run: 10G+1G-9000, 4L-2.5G-9000,
    /// 1L-100M, 2L-100M, 1L-1G-loss1, 1L-1G-loss5
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_setup)]
    setups: Vec<SetUp>,
    #[command(flatten)]
    hosts: HostArguments,
    /// MTU of the links in bytes, instead of the MTU of each set-up
    #[arg(long, value_name = "N")]
    mtu: Option<u32>,
    /// Tests to run: ping-pong, one-way, two-way; also small-beside-stream, which by default does
    /// not run
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_test)]
    tests: Vec<Test>,
    /// Message sizes in bytes, such as 8,4K,1M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<u64>,
    /// Sending policies to measure: own, multiedge or both
    #[arg(long, value_name = "RULES", default_value = "both", value_parser = ["own", "multiedge", "both"])]
    policy: String,
    /// Also measure a bare stream of frames, which shows the highest rate of this host without a
    /// protocol. Applies to one-way and two-way over packet links without delay, with messages of
    /// at least 128K
    #[arg(long)]
    bare: bool,
    /// Also measure kernel TCP with blocking sockets over the first link, and MPTCP over all links
    /// of set-ups with several links
    #[arg(long)]
    tcp: bool,
    /// Samples of each measurement; the highest and the lowest are excluded
    /// [default: 5, with --quick 3]
    #[arg(long, value_name = "N")]
    repetitions: Option<u32>,
    /// Approximate length of each set-up's run [default: 60, with --quick 12]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    time: Option<f64>,
    /// Operations in flight in one-way and two-way
    #[arg(long, value_name = "N", default_value_t = 16)]
    in_flight: u32,
    /// How threads wait: poll, mixed (spin, then sleep) or interrupt (sleep immediately); measures
    /// each mode of the list
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "poll", value_parser = parse_waiting)]
    waiting: Vec<Waiting>,
    /// Threads that spin during the measurement: 0 to 16
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = value_parser!(u32).range(..=i64::from(BUSY_MAX)))]
    busy: u32,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench multiedge")?;
    arguments.output.check()?;
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let outcome = multiedge::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::multiedge_page(&found)?),
        |columns| report::multiedge_table(&found, columns),
        120,
    )
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    if arguments.bare && arguments.hosts.link != LinkKind::Packet {
        let kind = arguments.hosts.link.name();
        return Err(
            format!("--bare works only over packet links, not over {kind}; remove --bare").into()
        );
    }
    let quick = arguments.quick;
    let setups = if arguments.setups.is_empty() {
        setups::all().into_iter().filter(|setup| setup.by_default).collect()
    } else {
        arguments.setups.clone()
    };
    let options = Options {
        tests: chosen_tests(&arguments.tests)?,
        sizes: chosen_sizes(&arguments.sizes, quick),
        repetitions: arguments.repetitions.unwrap_or(if quick { 3 } else { 5 }),
        budget_seconds: arguments.time.unwrap_or(if quick { 12.0 } else { 60.0 }),
        in_flight: arguments.in_flight,
        pinning: !arguments.hosts.no_pinning,
        waitings: arguments.waiting.clone(),
        busy: arguments.busy,
        ..Options::new(own_program()?)
    };
    Ok(Wishes {
        setups,
        kind: arguments.hosts.link,
        mtu: arguments.mtu,
        with_own: arguments.policy != "multiedge",
        with_multiedge: arguments.policy != "own",
        with_bare: arguments.bare,
        with_tcp: arguments.tcp,
        options,
    })
}

/// Returns the chosen sizes, or the sizes of the paper's figure if none are chosen.
pub(crate) fn chosen_sizes(chosen: &[u64], is_quick: bool) -> Vec<u64> {
    match (chosen, is_quick) {
        ([], true) => SIZES_QUICK.to_vec(),
        ([], false) => SIZES.to_vec(),
        _ => chosen.to_vec(),
    }
}

pub(crate) fn parse_setup(text: &str) -> Result<SetUp, String> {
    setups::by_name(text).ok_or_else(|| {
        let known: Vec<_> = setups::all().into_iter().map(|setup| setup.name).collect();
        format!("unknown set-up: known set-ups are: {}", known.join(", "))
    })
}

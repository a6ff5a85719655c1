//! `ethernot bench ganglia`: an unmodified cluster monitor over kernel TCP and over the edge.

use bench::ganglia::{self, HOSTS, HOSTS_MAX, HOSTS_QUICK, Wishes};
use bench::unmodified::gmond::METRICS_MAX;
use clap::Args;

use crate::progress::Progress;
use crate::shaped_command::{self, OutputArguments};
use crate::unmodified_arguments::ComparisonArguments;
use crate::{Failure, own_program};

/// Measure how fast Ganglia gathers reports from many hosts, alternately over kernel TCP and over
/// the edge.
///
/// Starts unmodified gmond on up to 16 hosts connected by one switch; each host is a network
/// namespace. Each host runs gmond twice: directly, and under `ethernot run --sockets`. Another
/// host gathers the reports of all hosts: in one test from one host after another, in another test
/// from all hosts at the same time. Shows how many times per second this host gathers all reports,
/// the percentage of the time for connecting, and ratios of edge to TCP. Needs root, and the
/// package ganglia-monitor.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ethernot bench ganglia --quick\n  ethernot bench ganglia \
                        --hosts 16 --repetitions 5\n  ethernot bench ganglia --hosts 3 --metrics 1           \
                        (the shortest answer of gmond)\n  ethernot bench ganglia --json \
                        ganglia.json --html ganglia.html")]
pub(crate) struct Arguments {
    /// Measure 1, 4 and 16 hosts, three samples each: less than a minute
    #[arg(long)]
    quick: bool,
    /// Numbers of hosts, 1 to 16 [default: 1,2,4,8,16]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=HOSTS_MAX as i64))]
    hosts: Vec<u32>,
    /// Metrics that each host reports, which determine the size of an answer
    /// [default: all 32, about 12 KB]
    #[arg(long, value_name = "N", default_value_t = METRICS_MAX as u64, hide_default_value = true, value_parser = clap::value_parser!(u64).range(1..=METRICS_MAX as u64))]
    metrics: u64,
    #[command(flatten)]
    comparison: ComparisonArguments,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench ganglia")?;
    arguments.output.check()?;
    let hosts = match (arguments.hosts.is_empty(), arguments.quick) {
        (false, _) => arguments.hosts.clone(),
        (true, true) => HOSTS_QUICK.to_vec(),
        (true, false) => HOSTS.to_vec(),
    };
    let comparison = &arguments.comparison;
    let wishes = Wishes {
        own_program: own_program()?,
        other: comparison.other,
        hosts,
        repetitions: comparison.repetitions(arguments.quick),
        metrics: arguments.metrics as usize,
        seconds: comparison.seconds,
        mtu: comparison.mtu,
        pinning: !comparison.no_pinning,
    };
    let mut progress = Progress::new();
    let outcome = ganglia::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string_pretty(&found),
        || Ok(report::ganglia_page(&found)?),
        |columns| report::ganglia_table(&found, columns),
        150,
    )
}

//! `ethernot bench failover`: cuts one of two links and restores it.

use bench::failover::{self, Cut, Wishes};
use bench::plan::Options;
use bench::transport::Test;
use clap::Args;
use testbed::switched::LinkShape;

use crate::progress::Progress;
use crate::quantities::{parse_rate, parse_seconds, parse_size};
use crate::shaped_command::{self, HostArguments, OutputArguments};
use crate::{Failure, own_program};

/// Cut one of two links during a transfer, restore it, and show the throughput over time.
///
/// Streams writes over two links through switches; the target checks every byte. Cuts the second
/// link in three ways: silently in both directions, silently in one direction, and by removing its
/// carrier. Needs root.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench failover\n  \
    ethernot bench failover --link udp --cuts one-way --html failover.html")]
pub(crate) struct Arguments {
    #[command(flatten)]
    hosts: HostArguments,
    /// How to cut the link: both-ways, one-way, carrier [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_cut)]
    cuts: Vec<Cut>,
    /// Rates of the two links in bits per second, such as 1G,100M
    #[arg(long, value_name = "RATE,RATE", default_value = "1G,1G", value_parser = parse_rates)]
    rates: [u64; 2],
    /// Length of each of the three phases in seconds: before the cut, during the cut, after the
    /// restoration
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5, value_parser = parse_seconds)]
    phase: f64,
    /// Bytes of a message
    #[arg(long, value_name = "SIZE", default_value = "64K", value_parser = parse_message)]
    size: u64,
    /// MTU of the links, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u32,
    #[command(flatten)]
    output: OutputArguments,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    shaped_command::begin("bench failover")?;
    arguments.output.check()?;
    let wishes = wishes(arguments)?;
    let mut progress = Progress::new();
    let outcome = failover::run(&wishes, &mut progress);
    progress.finish();
    let found = outcome?;
    arguments.output.write(
        || serde_json::to_string(&found),
        || Ok(report::failover_page(&found)?),
        |columns| report::failover_table(&found, columns),
        100,
    )
}

fn wishes(arguments: &Arguments) -> Result<Wishes, Failure> {
    Ok(Wishes {
        kind: arguments.hosts.link,
        links: arguments.rates.map(LinkShape::of_rate),
        cuts: if arguments.cuts.is_empty() { Cut::ALL.to_vec() } else { arguments.cuts.clone() },
        phase_seconds: arguments.phase,
        message_bytes: arguments.size,
        options: Options {
            links: 2,
            mtu: arguments.mtu,
            tests: vec![Test::VerifiedStream],
            sizes: vec![arguments.size],
            budget_seconds: arguments.phase,
            in_flight: 16,
            pinning: !arguments.hosts.no_pinning,
            ..Options::new(own_program()?)
        },
    })
}

fn parse_cut(text: &str) -> Result<Cut, String> {
    let known = || Cut::ALL.map(Cut::name).join(", ");
    let found = Cut::ALL.into_iter().find(|cut| cut.name() == text);
    found.ok_or_else(|| format!("unknown kind of cut: known kinds are: {}", known()))
}

fn parse_rates(text: &str) -> Result<[u64; 2], String> {
    let wanted = || "invalid rates: give two rates in bits per second, such as 1G,100M".to_string();
    let (one, other) = text.split_once(',').ok_or_else(wanted)?;
    let rate = |text| parse_rate(text).map_err(|_| wanted());
    Ok([rate(one)?, rate(other)?])
}

fn parse_message(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text)?;
    if bytes >= 8 && bytes.is_multiple_of(8) && bytes <= 1 << 20 {
        Ok(bytes)
    } else {
        Err("invalid size: it must be a multiple of 8 bytes, at most 1M".to_string())
    }
}

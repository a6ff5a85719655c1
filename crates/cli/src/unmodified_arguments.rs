//! Common arguments of commands that measure unmodified programs.

use bench::unmodified::way::Way;
use clap::Args;

/// The configuration to compare with kernel TCP, and the number and length of samples.
#[derive(Debug, Args)]
pub(crate) struct ComparisonArguments {
    /// What to compare with kernel TCP. With the library on both sides: edge, edge-poll (threads
    /// poll while they wait), default (a connection moves only if a move makes it faster),
    /// left-alone (no connection may move). With the library on one side: client-only, server-only.
    /// Without the library: tcp, which compares TCP with itself and shows how much ratios vary by
    /// chance
    #[arg(long = "against-tcp", value_name = "WAY", default_value = "edge", value_parser = parse_way)]
    pub(crate) other: Way,
    /// Samples of each case, for each side of the comparison; the highest and the lowest are
    /// excluded [default: 10, with --quick 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repetitions: Option<u32>,
    /// Seconds of a sample
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// MTU of the links, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    pub(crate) mtu: u32,
    /// Do not restrict clients and servers to one CPU each
    #[arg(long)]
    pub(crate) no_pinning: bool,
}

impl ComparisonArguments {
    /// Returns the number of samples of each case.
    pub(crate) fn repetitions(&self, is_quick: bool) -> u32 {
        self.repetitions.unwrap_or(if is_quick { 3 } else { 10 })
    }
}

fn parse_way(text: &str) -> Result<Way, String> {
    let known = || Way::ALL.map(Way::name).join(", ");
    let found = Way::ALL.into_iter().find(|way| way.name() == text);
    found.ok_or_else(|| format!("the ways are: {}", known()))
}

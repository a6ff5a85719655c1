//! `ethernot bench failover`: a link dies in mid-transfer.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use bench::cleanup;
use bench::failover::run::{self, CutKind, Options};
use bench::multiedge::run::LinkKind;
use clap::Args;

use crate::Failure;
use crate::bench_command::check_writable;
use crate::multiedge_command::parse_link;
use crate::progress::Progress;

/// Cut one of two links in mid-transfer, restore it, and show what was felt of it.
///
/// Two 1 Gb/s links between two hosts of network namespaces; one is cut silently in both directions,
/// then in one direction, then in the other, then by taking the carrier away. The target checks every
/// byte. Needs root and the packages iproute2 (ip, tc) and nftables (nft).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot bench failover --quick\n  \
    ethernot bench failover --link udp --html failover.html\n  \
    ethernot bench failover --cuts both,carrier --json failover.json")]
pub(crate) struct Arguments {
    /// Shorter transfers
    #[arg(long)]
    quick: bool,
    /// What to cut: both, to-target, to-source, carrier [default: each in turn]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_cut)]
    cuts: Vec<CutKind>,
    /// How frames are sent: packet, udp, xdp
    #[arg(long, value_name = "KIND", value_parser = parse_link, default_value = "packet")]
    link: LinkKind,
    /// MTU of the links, in bytes
    #[arg(long, value_name = "N", default_value_t = 1500)]
    mtu: u32,
    /// Do not restrict source and target to one CPU each
    #[arg(long)]
    no_pinning: bool,
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page with the rates over time
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let cuts = if arguments.cuts.is_empty() { &CutKind::ALL[..] } else { &arguments.cuts };
    let options = Options {
        program: env::current_exe().map_err(|error| format!("find this program: {error}"))?,
        link: arguments.link,
        mtu: arguments.mtu,
        cuts: cuts.to_vec(),
        quarter: Duration::from_millis(if arguments.quick { 350 } else { 600 }),
        pinning: !arguments.no_pinning,
    };
    check_writable([&arguments.json, &arguments.html])?;
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}"))?;
    let mut progress = Progress::new();
    let outcome = run::run(&options, &mut progress);
    progress.finish();
    let results = outcome?;
    if let Some(path) = &arguments.html {
        let page = report::failover_page(&results);
        fs::write(path, page).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    if let Some(path) = &arguments.json {
        let text = format!("{}\n", serde_json::to_string_pretty(&results)?);
        if path.as_os_str() == "-" {
            return Ok(io::stdout().write_all(text.as_bytes())?);
        }
        fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
    }
    io::stdout().write_all(report::failover_table(&results).as_bytes())?;
    Ok(())
}

fn parse_cut(text: &str) -> Result<CutKind, String> {
    let known = || CutKind::ALL.map(CutKind::name).join(", ");
    let mut kinds = CutKind::ALL.into_iter();
    kinds.find(|kind| kind.name() == text).ok_or_else(|| format!("the cuts are: {}", known()))
}

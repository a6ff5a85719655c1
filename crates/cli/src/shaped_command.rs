//! What the commands have in common that measure over links of their own making.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use bench::multiedge::LinkKind;
use bench::{cleanup, namespaces};
use clap::Args;
use console::Term;

use crate::Failure;

/// The hosts and their links.
#[derive(Debug, Args)]
pub(crate) struct HostArguments {
    /// How frames reach the links: packet (raw Ethernet), udp or xdp
    #[arg(long, value_name = "KIND", default_value = "packet", value_parser = parse_kind)]
    pub(crate) link: LinkKind,
    /// Do not restrict client and server to one CPU each
    #[arg(long)]
    pub(crate) no_pinning: bool,
}

/// Where results go.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page with the results as charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Makes sure that `command` may make namespaces, and that none is left if it is interrupted.
pub(crate) fn begin(command: &str) -> Result<(), Failure> {
    if !namespaces::are_possible() {
        return Err(format!(
            "{command} makes network namespaces, which needs root (CAP_SYS_ADMIN and \
             CAP_NET_ADMIN): run it with sudo"
        )
        .into());
    }
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}").into())
}

impl OutputArguments {
    /// Writes what is wanted. The table is asked for with the width of the terminal, or
    /// `columns_default` where there is none.
    pub(crate) fn write(
        &self,
        json: impl FnOnce() -> Result<String, serde_json::Error>,
        page: impl FnOnce() -> Result<String, Failure>,
        table: impl FnOnce(u16) -> String,
        columns_default: u16,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            fs::write(path, page()?)
                .map_err(|error| format!("write {}: {error}", path.display()))?;
        }
        if let Some(path) = &self.json {
            let mut text = json()?;
            text.push('\n');
            if path.as_os_str() == "-" {
                return Ok(io::stdout().write_all(text.as_bytes())?);
            }
            fs::write(path, text).map_err(|error| format!("write {}: {error}", path.display()))?;
        }
        let columns = Term::stdout().size_checked().map_or(columns_default, |(_, columns)| columns);
        Ok(io::stdout().write_all(table(columns).as_bytes())?)
    }
}

fn parse_kind(text: &str) -> Result<LinkKind, String> {
    let known = || LinkKind::ALL.map(LinkKind::name).join(", ");
    let found = LinkKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| format!("the kinds of links are: {}", known()))
}

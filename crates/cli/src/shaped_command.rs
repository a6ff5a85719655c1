//! Arguments and checks of commands that create links and measure over them.

use std::path::PathBuf;

use bench::multiedge::LinkKind;
use bench::transport::Test;
use clap::Args;
use testbed::{cleanup, namespace};

use crate::Failure;
use crate::output::{check_writable, terminal_columns, write_results, write_text};

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

/// The files for the results.
#[derive(Debug, Args)]
pub(crate) struct OutputArguments {
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a self-contained page with the results as charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Checks that `command` may make namespaces. Installs a signal handler that removes the namespaces
/// after an interruption.
pub(crate) fn begin(command: &str) -> Result<(), Failure> {
    if !namespace::are_possible() {
        return Err(format!(
            "{command} makes network namespaces, which needs root (CAP_SYS_ADMIN and \
             CAP_NET_ADMIN): run it with sudo"
        )
        .into());
    }
    cleanup::on_signals().map_err(|error| format!("handle Ctrl-C: {error}").into())
}

impl OutputArguments {
    /// Checks that the files can be written, before the measurement.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check_writable([&self.json, &self.html].into_iter().flatten().map(PathBuf::as_path))
    }

    /// Writes the requested files. Prints the table unless JSON goes to standard output. `table`
    /// gets the width of the terminal, or `columns_default` without a terminal.
    pub(crate) fn write(
        &self,
        json: impl FnOnce() -> Result<String, serde_json::Error>,
        page: impl FnOnce() -> Result<String, Failure>,
        table: impl FnOnce(u16) -> String,
        columns_default: u16,
    ) -> Result<(), Failure> {
        if let Some(path) = &self.html {
            write_text(path, &page()?)?;
        }
        write_results(self.json.as_deref(), json, || table(terminal_columns(columns_default)))
    }
}

/// Returns the chosen tests, or the paper's tests if none are chosen. Refuses tests that are
/// neither in the paper nor small-beside-stream.
pub(crate) fn chosen_tests(chosen: &[Test]) -> Result<Vec<Test>, Failure> {
    let is_possible = |test: &Test| TESTS.contains(test) || *test == Test::SmallBesideStream;
    if let Some(other) = chosen.iter().find(|test| !is_possible(test)) {
        let known = TESTS.map(Test::name).join(", ");
        return Err(format!("unknown test {:?}; known tests are: {known}", other.name()).into());
    }
    Ok(if chosen.is_empty() { TESTS.to_vec() } else { chosen.to_vec() })
}

fn parse_kind(text: &str) -> Result<LinkKind, String> {
    let known = || LinkKind::ALL.map(LinkKind::name).join(", ");
    let found = LinkKind::ALL.into_iter().find(|kind| kind.name() == text);
    found.ok_or_else(|| format!("unknown kind of link: known kinds are: {}", known()))
}

/// The tests of figure 2 in the `MultiEdge` paper.
pub(crate) const TESTS: [Test; 3] = [Test::PingPong, Test::OneWay, Test::TwoWay];

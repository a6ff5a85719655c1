//! `ethernot dsm top`: what the ranks of running programs do with their shared memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::thread;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, TableStyle};
use dsm::statistics::{FORMAT, PageReport, RankReport, SOCKET, WaitReport};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::geteuid;
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;

/// Report what the ranks of running programs do with their shared memory (docs/dsm.md).
///
/// Queries the ranks on this host. Shows faults, fetches and patches a second by rank; the pages
/// that are fetched most; the pages that two ranks change between two barriers, with the line of the
/// program that has allocated them; and what threads wait for. Does not disturb the programs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot dsm top\n  \
    ethernot dsm top --once\n  \
    ethernot dsm top --once --json | jq '.ranks[] | {rank, counters}'")]
pub(crate) struct Arguments {
    /// Print one report with the totals, instead of one each second until Ctrl-C
    #[arg(long)]
    once: bool,
    /// Print JSON instead of tables, one line for each report
    #[arg(long)]
    json: bool,
    /// Rows of each list
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    rows: usize,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut before: Option<Found> = None;
    loop {
        let found = Found::ask()?;
        let text = if arguments.json {
            format!("{}\n", found.to_json())
        } else {
            let is_live = !arguments.once && io::stdout().is_terminal();
            let home = if is_live { CLEAR } else { "" };
            format!("{home}{}", found.to_text(before.as_ref(), arguments.rows))
        };
        match print(&text).and_then(|()| Ok(io::stdout().flush()?)) {
            // The reader has closed the pipe, so the command ends.
            Err(error) if is_broken_pipe(&*error) => return Ok(()),
            outcome => outcome?,
        }
        if arguments.once {
            return Ok(());
        }
        before = Some(found);
        thread::sleep(INTERVAL);
    }
}

fn is_broken_pipe(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// The reports of all ranks on this host.
#[derive(Debug, Default)]
struct Found {
    /// By program and rank.
    ranks: Vec<RankReport>,
    /// Processes that did not answer.
    silent: Vec<String>,
    /// Number of processes of other users.
    refused: usize,
}

impl Found {
    fn ask() -> Result<Self, Failure> {
        let sockets = fs::read_to_string("/proc/self/net/unix")
            .map_err(|error| format!("read /proc/self/net/unix: {error}"))?;
        let mut found = Self::default();
        for name in names(&sockets) {
            match ask(&name) {
                Ok(text) if text.is_empty() => found.refused += 1,
                Ok(text) => match parse(&text) {
                    Some(report) => found.ranks.push(report),
                    None => found.silent.push(format!("{} speaks another version", process(&name))),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    found.silent.push(format!(
                        "{} does not answer; check whether the program is stopped",
                        process(&name)
                    ));
                }
                // The process has ended since its socket was listed.
                Err(_) => {}
            }
        }
        found.ranks.sort_by(|a, b| (&a.meet, a.rank, a.pid).cmp(&(&b.meet, b.rank, b.pid)));
        Ok(found)
    }

    fn to_json(&self) -> Value {
        json!({
            "format": FORMAT,
            "ranks": self.ranks,
            "silent": self.silent,
            "of_other_users": self.refused,
        })
    }

    /// Returns the tables. With an earlier report, their amounts are those of a second.
    fn to_text(&self, before: Option<&Self>, rows: usize) -> String {
        let mut text = String::new();
        for ranks in self.ranks.chunk_by(|a, b| (&a.meet, a.size) == (&b.meet, b.size)) {
            show(&mut text, ranks, before, rows);
        }
        if self.ranks.is_empty() {
            text.push_str(
                "no program shares memory; start one with: ethernot dsm run -n 4 -- PROGRAM\n",
            );
        }
        for silent in &self.silent {
            // Writing to a string cannot fail. So below.
            let _ = writeln!(text, "{silent}");
        }
        if self.refused > 0 {
            let _ = writeln!(text, "{} of other users, which only root can see", self.refused);
        }
        text
    }
}

/// Returns the names of the sockets at which ranks listen, each once.
fn names(sockets: &str) -> Vec<String> {
    let names =
        sockets.lines().filter_map(|line| line.split_whitespace().last()?.strip_prefix('@'));
    let mut names: Vec<_> =
        names.filter(|name| name.starts_with(SOCKET)).map(str::to_owned).collect();
    names.sort_unstable();
    // Sockets of accepted connections have the name of the listener, too.
    names.dedup();
    names
}

fn process(name: &str) -> String {
    let number = name.rsplit('-').next().unwrap_or(name);
    format!("process {}", plain(number))
}

/// Replaces control characters, because any process may listen under such a name, and its texts must
/// not move the cursor or colour the terminal.
fn plain(text: &str) -> String {
    text.replace(char::is_control, "?")
}

/// Returns the report of the process that listens under this name. Returns an empty one if the
/// process belongs to another user, which could send a false report, or refuses this user.
fn ask(name: &str) -> io::Result<Vec<u8>> {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)?;
    let (owner, own) = (getsockopt(&stream, PeerCredentials)?.uid(), geteuid().as_raw());
    if owner != own && owner != 0 && own != 0 {
        return Ok(Vec::new());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut text = Vec::new();
    match (&stream).take(REPORT_BYTES_MAX).read_to_end(&mut text) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Vec::new()),
        read => read.map(|_| text),
    }
}

fn parse(text: &[u8]) -> Option<RankReport> {
    let report = serde_json::from_slice::<RankReport>(text).ok();
    let mut report = report.filter(|report| report.format == FORMAT)?;
    for text in [&mut report.meet, &mut report.program, &mut report.method] {
        *text = plain(text);
    }
    for page in &mut report.pages {
        page.allocations.iter_mut().for_each(|place| *place = plain(place));
    }
    report.waits.iter_mut().for_each(|wait| wait.kind = plain(&wait.kind));
    Some(report)
}

/// Adds the tables of one program.
fn show(text: &mut String, ranks: &[RankReport], before: Option<&Found>, rows: usize) {
    let Some(first) = ranks.first() else { return };
    let _ = writeln!(
        text,
        "{}: {} of {} ranks are on this host; {}",
        first.program,
        ranks.len(),
        first.size,
        first.method
    );
    let _ = writeln!(text, "{}", rank_table(ranks, before));
    let pages = pages_of(ranks);
    let mut fetched: Vec<_> = pages.iter().filter(|(_, page)| page.fetches > 0).collect();
    fetched.sort_by_key(|(_, page)| std::cmp::Reverse(page.fetches));
    show_pages(text, "pages by fetches", &fetched, rows, |page| page.fetches);
    let mut shared: Vec<_> = pages.iter().filter(|(_, page)| page.conflicts > 0).collect();
    shared.sort_by_key(|(_, page)| std::cmp::Reverse(page.conflicts));
    let title =
        "pages that several ranks change between two barriers (false sharing, if the words differ)";
    show_pages(text, title, &shared, rows, |page| page.conflicts);
    show_waits(text, ranks, rows);
    text.push('\n');
}

/// The columns of the table of ranks: title and counter.
const COLUMNS: [(&str, &str); 5] = [
    ("faults", "faults"),
    ("fetches", "fetches"),
    ("patches", "patches"),
    ("invalid", "invalidations"),
    ("locks passed", "handovers"),
];

fn rank_table(ranks: &[RankReport], before: Option<&Found>) -> Table {
    let unit = if before.is_some() { "/s" } else { "" };
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    let titles = COLUMNS.iter().map(|(title, _)| format!("{title}{unit}"));
    let waits = ["page", "barrier", "lock"].map(|kind| format!("{kind} wait ms{unit}"));
    let header = ["rank".to_owned(), "process".to_owned()].into_iter().chain(titles).chain(waits);
    table.set_header(header);
    for report in ranks {
        let old = before.and_then(|before| before.ranks.iter().find(|old| old.pid == report.pid));
        let milliseconds =
            report.milliseconds - old.map_or(0, |old| old.milliseconds.min(report.milliseconds));
        let rate = |now: u64, then: u64| {
            let amount = now.saturating_sub(then);
            match old {
                Some(_) if milliseconds > 0 => amount * 1000 / milliseconds,
                _ => amount,
            }
        };
        let counter =
            |report: &RankReport, name: &str| report.counters.get(name).copied().unwrap_or(0);
        let counters = COLUMNS
            .iter()
            .map(|(_, name)| rate(counter(report, name), old.map_or(0, |old| counter(old, name))));
        let waits = ["page", "barrier", "lock"]
            .map(|kind| rate(waited(report, kind), old.map_or(0, |old| waited(old, kind))) / 1000);
        let numbers = counters.chain(waits).map(|number| number.to_string());
        table.add_row([report.rank.to_string(), report.pid.to_string()].into_iter().chain(numbers));
    }
    for column in table.column_iter_mut() {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Returns how long threads of a rank have waited for all objects of a kind, in microseconds.
fn waited(report: &RankReport, kind: &str) -> u64 {
    let rows = report.waits.iter().filter(|wait| wait.kind == kind);
    rows.map(|wait| wait.microseconds).fold(0, u64::saturating_add)
}

/// Returns the costs of pages on all ranks.
fn pages_of(ranks: &[RankReport]) -> BTreeMap<u64, PageReport> {
    let mut pages: BTreeMap<u64, PageReport> = BTreeMap::new();
    for page in ranks.iter().flat_map(|report| &report.pages) {
        let sum = pages.entry(page.address).or_default();
        sum.fetches = sum.fetches.saturating_add(page.fetches);
        // Each of the ranks that change the page counts the same barriers.
        sum.conflicts = sum.conflicts.max(page.conflicts);
        for place in &page.allocations {
            if !sum.allocations.contains(place) {
                sum.allocations.push(place.clone());
            }
        }
    }
    pages
}

fn show_pages(
    text: &mut String,
    title: &str,
    pages: &[(&u64, &PageReport)],
    rows: usize,
    amount: fn(&PageReport) -> u64,
) {
    if pages.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}:");
    for (address, page) in pages.iter().take(rows) {
        let places = page.allocations.join(", ");
        let _ = writeln!(text, "  {:>8}  {address:#x}  {places}", amount(page));
    }
}

fn show_waits(text: &mut String, ranks: &[RankReport], rows: usize) {
    let mut waits: BTreeMap<(&str, u64), (u64, u64)> = BTreeMap::new();
    for WaitReport { kind, address, count, microseconds, .. } in
        ranks.iter().flat_map(|report| &report.waits)
    {
        let (all, total) = waits.entry((kind, *address)).or_default();
        *all = all.saturating_add(*count);
        *total = total.saturating_add(*microseconds);
    }
    let mut waits: Vec<_> = waits.into_iter().collect();
    waits.sort_by_key(|(_, (_, microseconds))| std::cmp::Reverse(*microseconds));
    if !waits.is_empty() {
        let _ = writeln!(text, "waits of all threads:");
    }
    for ((kind, address), (count, microseconds)) in waits.into_iter().take(rows) {
        let name = if address == 0 { kind.to_owned() } else { format!("{kind} {address:#x}") };
        let _ = writeln!(
            text,
            "  {:>8} ms  {name}: {count} times, {} µs each",
            microseconds / 1000,
            microseconds / count.max(1)
        );
    }
}

/// Moves the cursor to the upper left corner, and clears the screen.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Time between two reports.
const INTERVAL: Duration = Duration::from_secs(1);

/// How long a process may take to answer.
const PATIENCE: Duration = Duration::from_millis(500);

/// Bytes of a report, at most.
const REPORT_BYTES_MAX: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rank: u64, fetches: u64, milliseconds: u64) -> RankReport {
        let value = json!({
            "format": FORMAT, "meet": "127.0.0.1:7", "program": "grid", "pid": 100 + rank,
            "rank": rank, "size": 2, "method": "mprotect", "milliseconds": milliseconds,
            "counters": { "faults": 2 * fetches, "fetches": fetches },
            "pages": [
                { "address": 0x2000, "fetches": fetches, "conflicts": rank, "allocations": ["a.rs:1"] },
            ],
            "waits": [{ "kind": "lock", "address": 64, "count": 2, "microseconds": 5000 }],
        });
        parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn the_tables_have_rates_by_rank_and_sums_by_page_and_lock() {
        let before =
            Found { ranks: vec![report(0, 100, 1000), report(1, 10, 1000)], ..Found::default() };
        let now =
            Found { ranks: vec![report(0, 300, 3000), report(1, 10, 3000)], ..Found::default() };
        let text = now.to_text(Some(&before), 10);
        let row = |rank: &str| {
            let row = text.lines().find(|line| line.split_whitespace().next() == Some(rank));
            row.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("0")[..4], ["0", "100", "200", "100"]);
        assert_eq!(row("1")[..4], ["1", "101", "0", "0"]);
        assert!(text.contains("310  0x2000  a.rs:1"), "{text}");
        assert!(text.contains("10 ms  lock 0x40: 4 times, 2500 µs each"), "{text}");
        let totals = now.to_text(None, 10);
        assert!(totals.contains("grid: 2 of 2 ranks are on this host; mprotect"), "{totals}");
        assert!(totals.contains("600"), "{totals}");
    }

    #[test]
    fn without_programs_the_text_says_how_to_start_one() {
        assert!(Found::default().to_text(None, 10).contains("ethernot dsm run -n 4"));
    }

    #[test]
    fn control_characters_and_other_formats_are_not_shown() {
        let mut value = serde_json::to_value(report(0, 1, 1)).unwrap();
        value["program"] = "\u{1b}[31m".into();
        assert_eq!(parse(value.to_string().as_bytes()).unwrap().program, "?[31m");
        value["format"] = "other".into();
        assert!(parse(value.to_string().as_bytes()).is_none());
    }

    #[test]
    fn names_are_those_of_ranks() {
        let sockets = "0: 2 @ethernot-dsm-12\n0: 3 @ethernot-dsm-12\n0: 2 @other-1\n0: 2 /run/x\n";
        assert_eq!(names(sockets), ["ethernot-dsm-12"]);
    }
}

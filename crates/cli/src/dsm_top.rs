//! `ethernot dsm top`: what the ranks of running programs do with their shared memory.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, TableStyle};
use dsm::statistics::{FORMAT, PageReport, RankReport, SOCKET, WaitReport};
use serde_json::{Value, json};

use crate::Failure;
use crate::reports::{self, Unreported};

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
        if !reports::print_now(&text)? {
            return Ok(());
        }
        if arguments.once {
            return Ok(());
        }
        before = Some(found);
        thread::sleep(INTERVAL);
    }
}

/// The reports of all ranks on this host.
#[derive(Debug, Default)]
struct Found {
    /// By program and rank.
    ranks: Vec<RankReport>,
    unreported: Unreported,
}

impl Found {
    fn ask() -> Result<Self, Failure> {
        let mut found = Self::default();
        let ranks = &mut found.ranks;
        found.unreported = reports::ask_all(&[SOCKET], |_, report| {
            let report = rank_of(report);
            report.map(|report| ranks.push(report)).is_some()
        })?;
        found.ranks.sort_by(|a, b| (&a.meet, a.rank, a.pid).cmp(&(&b.meet, b.rank, b.pid)));
        Ok(found)
    }

    fn to_json(&self) -> Value {
        json!({
            "format": FORMAT,
            "ranks": self.ranks,
            "silent": self.unreported.silent,
            "of_other_users": self.unreported.refused,
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
        for silent in &self.unreported.silent {
            // Writing to a string cannot fail. So below.
            let _ = writeln!(text, "{silent}");
        }
        if self.unreported.refused > 0 {
            let _ = writeln!(
                text,
                "{} of other users, which only root can see",
                self.unreported.refused
            );
        }
        text
    }
}

/// Returns the report of a rank, or `None` if it has another format.
fn rank_of(report: Value) -> Option<RankReport> {
    let report = serde_json::from_value::<RankReport>(report).ok();
    report.filter(|report| report.format == FORMAT)
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
        rank_of(value).unwrap()
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
    fn reports_of_other_formats_are_not_shown() {
        let mut value = serde_json::to_value(report(0, 1, 1)).unwrap();
        assert!(rank_of(value.clone()).is_some());
        value["format"] = "other".into();
        assert!(rank_of(value).is_none());
    }
}

//! Runs transfers with the real engine over simulated links, and compares the results with a
//! snapshot.

use std::fmt::Write as _;

use fabric::scenario::{self, Measured, Outcome};

/// Virtual time is the same on every machine, so the test compares all figures exactly. A
/// difference of a single frame or nanosecond is either intended or a fault.
#[test]
fn transfers_take_exactly_what_the_snapshot_says() {
    let rows = scenario::run().expect("every transfer finishes");
    bounds_hold(&rows);
    let table = exact_table(&rows);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &table).expect("the snapshot can be written");
    }
    let accepted = std::fs::read_to_string(path).expect("the snapshot is checked in");
    let difference = difference(&accepted, &table);
    assert!(difference.is_empty(), "transfers took something else:\n\n{difference}\n{RENEW}");
}

#[test]
fn a_difference_shows_old_and_new_lines_and_no_others() {
    assert_eq!(difference("a\nb\nc\n", "a\nb\nc\n"), "");
    assert_eq!(difference("a\nb\nc\n", "a\nB\nc\nd\n"), "-b\n+B\n+d\n");
    assert_eq!(difference("a\nb\n", "a\n"), "-b\n");
}

/// Formats a table of whole numbers. `ethernot sim scenario` computes rates and percentages from
/// the same numbers.
fn exact_table(rows: &[Measured]) -> String {
    let mut text = format!(
        "{}\n\n{:41} | {:>11} | {:>6} | {:>8} | {:>9} | {:>7}\n",
        RENEW, "scenario", "time ns", "frames", "at least", "overtaken", "answers",
    );
    for Measured { name, outcome, .. } in rows {
        let Outcome { duration_ns, frames, answers, overtaken, frames_min } = outcome;
        let written = writeln!(
            text,
            "{name:41} | {duration_ns:11} | {frames:6} | {frames_min:8} | {overtaken:9} | {answers:7}",
        );
        written.expect("text takes everything");
    }
    text
}

/// Returns the lines that differ: each old line, and after it the new line that replaces it.
fn difference(old: &str, new: &str) -> String {
    let (mut old, mut new) = (old.lines(), new.lines());
    let mut text = String::new();
    loop {
        let (before, after) = (old.next(), new.next());
        if before.is_none() && after.is_none() {
            return text;
        }
        if before == after {
            continue;
        }
        for (sign, line) in [('-', before), ('+', after)] {
            if let Some(line) = line {
                writeln!(text, "{sign}{line}").expect("text takes everything");
            }
        }
    }
}

/// Checks the limits that the project guarantees.
fn bounds_hold(rows: &[Measured]) {
    let time_ns = |name: &str| {
        let row = rows.iter().find(|row| row.name == name).expect("the scenario exists");
        row.outcome.duration_ns as f64
    };
    let both = time_ns("1 MB, 1 Gb/s + 100 Mb/s") / time_ns("1 MB, 1 Gb/s");
    assert!(both <= 0.93, "a slow second link: {both:.3} of the time of the fast one alone");
    let lossy = time_ns("16 MB, 1 Gb/s") / time_ns("16 MB, 1 Gb/s, 1 % loss");
    assert!(lossy >= 0.93, "with 1 % loss {lossy:.3} of the goodput without");
}

/// Text at the start of the snapshot, which says how to update it.
const RENEW: &str = "Transfers in virtual time, compared exactly. If a change is meant, renew this file with\n\
    UPDATE_SNAPSHOTS=1 cargo test -p fabric --test scenarios\n\
    and say in the commit what changed and why.";

//! What transfers over simulated links take with the real engine.

use std::fmt::Write as _;

use fabric::scenario::{self, Measured};

#[test]
fn transfers_take_what_the_snapshot_says() {
    let rows = scenario::run().expect("every transfer finishes");
    let table = coarse_table(&rows);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &table).expect("the snapshot can be written");
    }
    let accepted = std::fs::read_to_string(path).expect("the snapshot is checked in");
    assert_eq!(table, accepted, "run with UPDATE_SNAPSHOTS=1 to accept");
    bounds_hold(&rows);
}

/// Rounded so far that only what somebody would notice shows as a change; `ethernot sim scenario`
/// prints all digits.
fn coarse_table(rows: &[Measured]) -> String {
    let mut text = String::from(
        "scenario                                  | goodput Mb/s | out of order % | extra % | acks %\n",
    );
    for Measured { name, length_bytes, outcome } in rows {
        let goodput = two_digits(outcome.goodput(*length_bytes) / 1e6);
        let out_of_order = to_multiple(outcome.out_of_order_percent(), 20.0);
        let extra = to_multiple(outcome.extra_percent(), 2.0);
        let answers = to_multiple(outcome.answer_percent(), 25.0);
        let written = writeln!(
            text,
            "{name:41} | {goodput:12.0} | {out_of_order:14.0} | {extra:7.0} | {answers:6.0}",
        );
        written.expect("text takes everything");
    }
    text
}

fn two_digits(figure: f64) -> f64 {
    let unit = 10_f64.powf(figure.abs().log10().floor() - 1.0).max(1.0);
    to_multiple(figure, unit)
}

fn to_multiple(figure: f64, unit: f64) -> f64 {
    (figure / unit).round() * unit
}

/// What the project promises of them.
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

//! The table on a terminal.

use std::fmt::Write;

use bench::results::{Measurement, Ratio, Results};
use bench::statistics::Summary;
use bench::transport::Test;
use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use crate::format::{digits, scaled, size, time_ns};

/// One table of all measurements, for a terminal of `columns` columns.
pub fn table(results: &Results, columns: u16) -> String {
    let mut table = Table::new();
    table.load_style(LINES).set_width(columns);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER.map(|(name, alignment)| Cell::new(name).set_alignment(alignment)));
    let mut previous: Option<(Test, u64)> = None;
    for measurement in &results.results {
        if previous.is_some_and(|(test, _)| test != measurement.test) {
            table.add_row([""]);
        }
        let case = (measurement.test, measurement.message_bytes);
        let is_new = previous.replace(case) != Some(case);
        table.add_row(row(measurement, is_new));
    }
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(text, "{}", heading(results));
    let _ = writeln!(text, "{table}");
    let _ = writeln!(text, "{}", notes(results));
    text
}

fn row(measurement: &Measurement, is_new_case: bool) -> Vec<Cell> {
    let case = |text: String| if is_new_case { text } else { String::new() };
    let optional = |value: Option<String>| value.unwrap_or_else(|| "–".to_string());
    let cells = [
        case(measurement.test.name().to_string()),
        case(size(measurement.message_bytes)),
        measurement.label(),
        optional(measurement.latency_ns.map(|latency| time_ns(latency.median))),
        rate(measurement),
        optional(measurement.cpu_seconds_per_gigabyte.map(|cpu| digits(cpu.median))),
        optional(primary_ratio(measurement).map(|ratio| format!("{}×", digits(ratio.median)))),
        optional(measurement.extra_frame_percent.map(digits)),
        optional(measurement.out_of_order_percent.map(digits)),
        format!("±{:.0} %", primary(measurement).spread_percent()),
    ];
    cells
        .into_iter()
        .zip(HEADER)
        .map(|(text, (_, alignment))| Cell::new(text).set_alignment(alignment))
        .collect()
}

/// Bits per second where there are bytes to count, operations per second elsewhere.
fn rate(measurement: &Measurement) -> String {
    match measurement.test {
        Test::OperationRate | Test::ConnectionSetup | Test::ManyConnections => {
            scaled(measurement.operations_per_second.median, "op/s")
        }
        _ => scaled(measurement.bytes_per_second.median * 8.0, "b/s"),
    }
}

/// What repetitions are compared by.
fn primary(measurement: &Measurement) -> Summary {
    let latency = measurement.latency_ns.filter(|_| measurement.test.is_about_latency());
    latency.unwrap_or(measurement.operations_per_second)
}

/// The ratio to the baseline, by what the test is about.
fn primary_ratio(measurement: &Measurement) -> Option<Summary> {
    let Ratio { latency, throughput, .. } = measurement.ratio.as_ref()?;
    if measurement.test.is_about_latency() { *latency } else { *throughput }
}

fn heading(results: &Results) -> String {
    let path = &results.path;
    let mtu = path.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
    let settings = &results.settings;
    format!(
        "{}{mtu} · {} × {} · Linux {}\nmedians of {} samples of {:.2} s each, without the highest \
         and the lowest",
        path.kind.description(),
        results.server.cpus,
        results.server.cpu,
        results.server.kernel,
        settings.repetitions,
        settings.sample_seconds,
    )
}

/// What the columns mean, and what the transports are.
fn notes(results: &Results) -> String {
    let mut notes = NOTES.to_string();
    for transport in &results.transports {
        // Writing to a string does not fail.
        let _ = write!(notes, "\n{}: {}", transport.name, transport.description);
    }
    notes
}

/// A rule above, below, and under the header.
const LINES: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

const NOTES: &str = "\
latency: median of an operation (ping-pong: half a round trip). rate: payload, both directions.
CPU s/GB: both processes, per 10^9 payload bytes. to tcp: latency against latency in ping-pong and
set-up (less is better), else rate against rate, repetition by repetition. spread: half of highest
minus lowest. extra: acks and retransmissions per data frame; ooo: frames out of order.";

const HEADER: [(&str, CellAlignment); 10] = [
    ("test", CellAlignment::Left),
    ("size", CellAlignment::Right),
    ("transport", CellAlignment::Left),
    ("latency", CellAlignment::Right),
    ("rate", CellAlignment::Right),
    ("CPU s/GB", CellAlignment::Right),
    ("to tcp", CellAlignment::Right),
    ("extra %", CellAlignment::Right),
    ("ooo %", CellAlignment::Right),
    ("spread", CellAlignment::Right),
];

//! Shows results of the `MultiEdge` paper's set-ups: a table for a terminal, and a page with the
//! paper's values and our values.

use std::fmt::Write;

use bench::multiedge::{Paper, Report, Row, SetUpResults, paper};
use bench::results::label;
use bench::statistics::Summary;
use bench::transport::Test;
use bench::transports::{BASELINE, EDGE, MPTCP, MULTIEDGE};
use bench::yardsticks::bare_stream;
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::{self, ChartError, Point, Series};
use crate::format::{date, digits, scaled, size};
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};

/// Draws one table for each set-up, for a terminal of `columns` columns.
pub fn multiedge_table(report: &Report, columns: u16) -> String {
    let mut text = String::new();
    for found in &report.setups {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{}", heading(report, found));
        let table = terminal_table(&HEADER, rows(found), columns);
        let _ = writeln!(text, "{table}");
        for (contender, reason) in &found.cannot_run {
            let _ = writeln!(text, "{contender}: cannot run here: {reason}");
        }
        text.push('\n');
    }
    let _ = writeln!(text, "{}", notes());
    text
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn multiedge_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot and MultiEdge";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>The edge protocol over links of known rate, with its \
         own rules (edge) and with the rules of MultiEdge (multiedge), compared with the values \
         that the paper measured on its machines (paper).</p></header>",
        escaped(&date(report.unix_seconds)),
    );
    for found in &report.setups {
        let _ = writeln!(body, "<section><h2>{}</h2>", escaped(&heading(report, found)));
        let is_shown = |name: &str| match name {
            PAPER => TESTS.iter().any(|test| paper::figures(&found.setup.name, *test).is_some()),
            _ => found.rows.iter().any(|row| row.contender == name),
        };
        let shown = CONTENDERS.iter().enumerate().filter(|(_, (name, _))| is_shown(name));
        body.push_str(&legend(shown.map(|(colour, (_, label))| (colour, *label))));
        body.push_str("<div class=\"charts\">\n");
        for test in TESTS {
            for quantity in &QUANTITIES {
                if quantity.tests.contains(&test) {
                    figure(&mut body, found, test, quantity)?;
                }
            }
        }
        body.push_str("</div>\n");
        body.push_str(&page_table(&HEADER, rows(found)));
        for (contender, reason) in &found.cannot_run {
            let reason = escaped(reason);
            let _ = writeln!(body, "<p>{contender}: cannot run here: {reason}</p>");
        }
        body.push_str("</section>\n");
    }
    let _ = writeln!(body, "<footer>{}</footer>", escaped(&notes()).replace('\n', "<br>"));
    Ok(document(title, "", &body))
}

fn heading(report: &Report, found: &SetUpResults) -> String {
    format!(
        "{} over {}: {}, MTU {}",
        found.setup.name,
        report.kind.name(),
        found.setup.description,
        found.setup.mtu
    )
}

fn figure(
    body: &mut String,
    found: &SetUpResults,
    test: Test,
    quantity: &Quantity,
) -> Result<(), ChartError> {
    let mut series: Vec<Series> = CONTENDERS
        .iter()
        .enumerate()
        .map(|(colour, (name, _))| Series { colour, points: points(found, test, quantity, name) })
        .collect();
    let sizes: Vec<u64> = series.iter().flat_map(|s| &s.points).map(|p| p.message_bytes).collect();
    let (Some(&smallest), Some(&largest)) = (sizes.iter().min(), sizes.iter().max()) else {
        return Ok(());
    };
    let printed = paper::figures(&found.setup.name, test).as_ref().and_then(quantity.paper);
    if let (Some(value), Some(paper)) = (printed, series.last_mut()) {
        let point = |message_bytes| Point {
            message_bytes,
            median: value,
            min: value,
            max: value,
            note: format!("paper, {}: {} {}", quantity.bound, digits(value), quantity.axis),
        };
        paper.points = vec![point(smallest), point(largest)];
    }
    let title = format!("{}, {}: {}", found.setup.name, test.name(), quantity.name);
    if let Some(svg) = chart::draw(&title, quantity.axis, &series)? {
        let _ = writeln!(
            body,
            "<figure><figcaption>{}: {}</figcaption>{svg}</figure>",
            test.name(),
            quantity.name
        );
    }
    Ok(())
}

fn points(found: &SetUpResults, test: Test, quantity: &Quantity, contender: &str) -> Vec<Point> {
    let of_test = || found.rows.iter().filter(|row| row.test == test && row.contender == contender);
    // The curves show only the first of the selected ways to wait. The table shows all of them.
    let waiting = of_test().next().map(|row| row.waiting);
    let rows = of_test().filter(|row| Some(row.waiting) == waiting);
    let point = |row: &Row| {
        let value = (quantity.value)(row)?;
        let note = format!(
            "{contender}, {}: {} {} ({} to {})",
            size(row.message_bytes),
            digits(value.median),
            quantity.axis,
            digits(value.min),
            digits(value.max)
        );
        let Summary { median, min, max } = value;
        Some(Point { message_bytes: row.message_bytes, median, min, max, note })
    };
    rows.filter_map(point).collect()
}

/// Returns the texts of all measurements of a set-up, one row each.
fn rows(found: &SetUpResults) -> Vec<[String; HEADER.len()]> {
    let mut previous = None;
    let row = |row: &Row| {
        let case = (row.test, row.message_bytes);
        cells(found, row, previous.replace(case) != Some(case))
    };
    found.rows.iter().map(row).collect()
}

fn cells(found: &SetUpResults, row: &Row, is_new: bool) -> [String; HEADER.len()] {
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_string(), digits);
    let case = |text: String| if is_new { text } else { String::new() };
    let printed = paper::figures(&found.setup.name, row.test);
    let in_paper = printed.and_then(|printed| {
        let largest = found.rows.iter().map(|row| row.message_bytes).max();
        let rate = printed.megabytes_per_second.filter(|_| Some(row.message_bytes) == largest);
        rate.map(|rate| format!("{rate} MB/s"))
    });
    [
        case(row.test.name().to_string()),
        case(size(row.message_bytes)),
        label(&row.contender, row.waiting, 1),
        optional(row.latency_us.map(|latency| latency.median)),
        scaled(row.megabytes_per_second.median * 8e6, "b/s"),
        digits(row.share_percent.median),
        case(in_paper.unwrap_or_default()),
        optional(row.post_ns),
        optional(row.protocol_cpu_percent),
        digits(row.ends_cpu_percent),
        digits(row.wakeups_per_frame * 100.0),
        optional(row.out_of_order_percent),
        optional(row.extra_frame_percent),
    ]
}

/// The quantity of a chart.
struct Quantity {
    name: &'static str,
    axis: &'static str,
    tests: &'static [Test],
    value: fn(&Row) -> Option<Summary>,
    paper: fn(&Paper) -> Option<f64>,
    /// Words that say what kind of value the paper prints, such as "largest throughput".
    bound: &'static str,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        name: "latency",
        axis: "µs",
        tests: &[Test::PingPong],
        value: |row| row.latency_us,
        paper: |paper| paper.latency_us,
        bound: "smallest message",
    },
    Quantity {
        name: "throughput",
        axis: "MB/s",
        tests: &[Test::PingPong, Test::OneWay, Test::TwoWay],
        value: |row| Some(row.megabytes_per_second),
        paper: |paper| paper.megabytes_per_second,
        bound: "largest throughput",
    },
    Quantity {
        name: "protocol CPU time",
        axis: "% of a CPU",
        tests: &[Test::OneWay, Test::TwoWay],
        value: |row| {
            row.protocol_cpu_percent.map(|percent| Summary {
                median: percent,
                min: percent,
                max: percent,
            })
        },
        paper: |paper| paper.protocol_cpu_percent,
        bound: "at most",
    },
];

/// The tests in the order of their charts.
const TESTS: [Test; 3] = [Test::PingPong, Test::OneWay, Test::TwoWay];

/// Contender name for the paper's values.
const PAPER: &str = "paper";

/// The contenders in the order of their colours. The paper is the last one.
const CONTENDERS: [(&str, &str); 6] = [
    (EDGE, "edge: the edge protocol with its own rules"),
    (MULTIEDGE, "multiedge: the edge protocol with the rules of MultiEdge, on this machine"),
    (BASELINE, "tcp: kernel TCP"),
    (MPTCP, "mptcp: MPTCP of the kernel"),
    (
        bare_stream::NAME,
        "bare: frames at the rate of the links, without a protocol, limited by this machine",
    ),
    (PAPER, "paper: the largest or smallest value that the paper reports"),
];

const HEADER: [Column; 13] = [
    ("test", Left),
    ("size", Left),
    ("rules", Left),
    ("lat µs", Right),
    ("rate", Right),
    ("% links", Right),
    ("paper", Right),
    ("post ns", Right),
    ("prot. CPU %", Right),
    ("CPU %", Right),
    ("wakes %", Right),
    ("o-o-o %", Right),
    ("extra %", Right),
];

/// Returns an explanation of the columns.
fn notes() -> String {
    let [from, to] = paper::interrupt_percent();
    format!(
        "% links: payload, in percent of the rate of all links together, in each direction that \
         the test uses. post: time to initiate an operation (paper: {} ns). prot. CPU: time in the \
         engine and its system calls at both hosts, in percent of one CPU. CPU: time of both \
         processes and of the softirq threads, in percent of one CPU, at most 200. wakes: number \
         of times that a thread of either process slept and woke, per full frame of payload \
         (paper: in applications, {from} to {to} % of frames caused an interrupt).\no-o-o: frames \
         out of order (paper: up to {} % on two links). extra: explicit acknowledgements and \
         retransmissions per data frame (paper: up to {} %). paper: largest throughput, if the \
         text of the paper prints it; the paper's hosts had 1.8 GHz Opterons and real adapters.",
        paper::post_ns(),
        paper::out_of_order_percent(),
        paper::extra_frame_percent(),
    )
}

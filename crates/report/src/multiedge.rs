//! The paper's set-ups: a table for a terminal, and a page with the paper's figures beside ours.

use std::fmt::Write;

use bench::multiedge::{Paper, Report, Row, SetUpResults, paper};
use bench::statistics::Summary;
use bench::transport::Test;
use bench::transports::{EDGE, MULTIEDGE};
use bench::yardsticks::bare_stream;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use crate::chart::{self, COLOURS, ChartError, Point, Series};
use crate::format::{date, digits, scaled, size};
use crate::page::{STYLE, escaped};
use crate::table::LINES;

/// One table for each set-up, for a terminal of `columns` columns.
pub fn multiedge_table(report: &Report, columns: u16) -> String {
    let mut text = String::new();
    for found in &report.setups {
        // Writing to a string does not fail, here and below.
        let _ = writeln!(text, "{}", heading(report, found));
        let mut table = Table::new();
        table.load_style(LINES).set_width(columns);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_header(HEADER.map(|name| cell(name, name)));
        let mut previous = None;
        for row in &found.rows {
            let case = (row.test, row.message_bytes);
            let is_new = previous.replace(case) != Some(case);
            table.add_row(
                cells(found, row, is_new).iter().zip(HEADER).map(|(text, name)| cell(text, name)),
            );
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
        let _ = writeln!(text, "{table}\n");
    }
    let _ = writeln!(text, "{NOTES}");
    text
}

/// A page with everything inside.
pub fn multiedge_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot and MultiEdge";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>The edge protocol over links of known rate, by its own \
         rules (edge) and by those of MultiEdge (multiedge), next to what the paper measured on its \
         machines (paper).</p></header>",
        escaped(&date(report.unix_seconds)),
    );
    for found in &report.setups {
        let _ = writeln!(body, "<section><h2>{}</h2>", escaped(&heading(report, found)));
        body.push_str("<ul class=\"legend\">");
        for (colour, (_, label)) in CONTENDERS.iter().enumerate() {
            let _ = write!(
                body,
                "<li><span style=\"background:var(--series-{})\"></span>{label}</li>",
                colour % COLOURS
            );
        }
        body.push_str("</ul>\n<div class=\"charts\">\n");
        for test in [Test::PingPong, Test::OneWay, Test::TwoWay] {
            for quantity in &QUANTITIES {
                if quantity.tests.contains(&test) {
                    figure(&mut body, found, test, quantity)?;
                }
            }
        }
        body.push_str("</div>\n");
        whole_table(&mut body, found);
        body.push_str("</section>\n");
    }
    let _ = writeln!(body, "<footer>{}</footer>", escaped(NOTES).replace('\n', "<br>"));
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    ))
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
    let told = paper::figures(&found.setup.name, test).and_then(quantity.paper);
    if let (Some(value), Some(paper)) = (told, series.last_mut()) {
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
    let rows = found.rows.iter().filter(|row| row.test == test && row.contender == contender);
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

fn whole_table(body: &mut String, found: &SetUpResults) {
    body.push_str("<div class=\"wide\"><table><thead><tr>");
    for name in HEADER {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    let mut previous = None;
    for row in &found.rows {
        let case = (row.test, row.message_bytes);
        let is_new = previous.replace(case) != Some(case);
        body.push_str(if is_new { "<tr class=\"case\">" } else { "<tr>" });
        for text in cells(found, row, is_new) {
            let _ = write!(body, "<td>{}</td>", escaped(&text));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div>\n");
}

fn cells(found: &SetUpResults, row: &Row, is_new: bool) -> [String; HEADER.len()] {
    let optional = |value: Option<f64>| value.map_or_else(|| "–".to_string(), digits);
    let case = |text: String| if is_new { text } else { String::new() };
    let told = paper::figures(&found.setup.name, row.test);
    let in_paper = told.and_then(|told| {
        let largest = found.rows.iter().map(|row| row.message_bytes).max();
        let rate = told.megabytes_per_second.filter(|_| Some(row.message_bytes) == largest);
        rate.map(|rate| format!("{rate} MB/s"))
    });
    [
        case(row.test.name().to_string()),
        case(size(row.message_bytes)),
        row.contender.clone(),
        optional(row.latency_us.map(|latency| latency.median)),
        scaled(row.megabytes_per_second.median * 8e6, "b/s"),
        digits(row.share_percent.median),
        case(in_paper.unwrap_or_default()),
        optional(row.post_ns),
        optional(row.protocol_cpu_percent),
        optional(row.out_of_order_percent),
        optional(row.extra_frame_percent),
        optional(row.retransmission_percent),
        optional(row.wakeup_percent),
    ]
}

fn cell(text: &str, column: &str) -> Cell {
    let is_text = matches!(column, "test" | "size" | "rules");
    Cell::new(text).set_alignment(if is_text { CellAlignment::Left } else { CellAlignment::Right })
}

/// What a chart shows.
struct Quantity {
    name: &'static str,
    axis: &'static str,
    tests: &'static [Test],
    value: fn(&Row) -> Option<Summary>,
    paper: fn(&Paper) -> Option<f64>,
    /// What the paper's figure bounds.
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

/// In the order of their colours; the paper last.
const CONTENDERS: [(&str, &str); 5] = [
    (EDGE, "edge: this protocol's rules"),
    (MULTIEDGE, "multiedge: the rules of MultiEdge, on this machine"),
    ("tcp", "tcp: kernel TCP"),
    (
        bare_stream::NAME,
        "bare-stream: frames by the clock with no protocol, as far as this machine carries",
    ),
    ("paper", "paper: the largest or smallest value that the paper tells"),
];

const HEADER: [&str; 13] = [
    "test",
    "size",
    "rules",
    "lat µs",
    "rate",
    "% links",
    "paper",
    "post ns",
    "prot. CPU %",
    "o-o-o %",
    "extra %",
    "again %",
    "wakeups %",
];

const NOTES: &str = "% links: payload of what all links carry, in each direction used. post: time to \
initiate an operation (paper: 2000 ns). prot. CPU: time in the engine and its system calls, both \
hosts, of one CPU.\no-o-o: frames out of order (paper: up to 50 % on two links). extra: explicit \
acknowledgements and retransmissions per data frame (paper: up to 5.5 %). again: retransmissions.\n\
wakeups: of sleeping threads, per frame received (paper: 10 to 40 % of frames interrupt). paper: \
largest throughput; its hosts had 1.8 GHz Opterons and real adapters.";

//! The set-ups of the paper: the paper's figures, `MultiEdge`'s rules here, and ours.

use std::fmt::Write;

use bench::multiedge::results::{MultiedgeResults, Point};
use bench::multiedge::setups::PaperFigures;
use bench::statistics::Summary;
use bench::transport::Test;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use crate::chart::{self, COLOURS, ChartError, Point as Dot, Series};
use crate::format::{date, digits, scaled, size, time_ns};
use crate::page::{document, escaped};
use crate::table::LINES;

/// The table for a terminal of `columns` columns: one line for each figure of each contender.
pub fn multiedge_table(results: &MultiedgeResults, columns: u16) -> String {
    let mut table = Table::new();
    table.load_style(LINES).set_width(columns.max(COLUMNS_MIN));
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER);
    for row in rows(results) {
        table.add_row(row.into_iter().enumerate().map(|(column, text)| {
            let is_name = column < 4;
            let side = if is_name { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(side)
        }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    format!("{}\n{table}\n{}\n", facts(results), NOTES)
}

/// The page.
pub fn multiedge_page(results: &MultiedgeResults) -> Result<String, ChartError> {
    let mut body = String::new();
    let title = "Ethernot on MultiEdge's testbed";
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(results.unix_seconds)),
        escaped(&facts(results)).replace('\n', "<br>")
    );
    for set_up in &results.set_ups {
        for (test, heading) in [
            (Test::PingPong, "one message back and forth"),
            (Test::OneWay, "messages from client to server"),
            (Test::TwoWay, "messages in both directions, counted together"),
        ] {
            section(&mut body, results, &set_up.name, test, heading)?;
        }
    }
    body.push_str("<section><h2>all figures</h2><div class=\"wide\"><table><thead><tr>");
    for name in HEADER {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    for row in rows(results) {
        body.push_str("<tr>");
        for cell in row {
            let _ = write!(body, "<td>{}</td>", escaped(&cell));
        }
        body.push_str("</tr>\n");
    }
    let _ = writeln!(
        body,
        "</tbody></table></div></section><footer>{} ethernot {}</footer>",
        escaped(NOTES).replace('\n', "<br>"),
        escaped(&results.version)
    );
    Ok(document(title, &body))
}

fn section(
    body: &mut String,
    results: &MultiedgeResults,
    set_up: &str,
    test: Test,
    heading: &str,
) -> Result<(), ChartError> {
    let points = || results.points.iter().filter(|p| p.set_up == set_up && p.test == test);
    let mut names: Vec<&str> = Vec::new();
    for point in points().filter(|point| point.failure.is_none()) {
        if !names.contains(&point.contender.as_str()) {
            names.push(&point.contender);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let paper = points().find_map(|point| point.paper);
    let _ = write!(
        body,
        "<section><h2>{} {}</h2><p>{heading}</p><ul class=\"legend\">",
        escaped(set_up),
        test.name()
    );
    let colour = |name: &str| match name {
        "edge" => 3,
        "multiedge" => 2,
        PAPER => 5,
        _ => 0,
    };
    let shown = names.iter().copied().chain(paper.is_some().then_some(PAPER));
    for name in shown {
        let label = if name == PAPER { "the paper's extreme over all sizes" } else { name };
        let _ = write!(
            body,
            "<li><span style=\"background:var(--series-{})\"></span>{}</li>",
            colour(name) % COLOURS,
            escaped(label)
        );
    }
    body.push_str("</ul><div class=\"charts\">\n");
    for quantity in &QUANTITIES {
        let mut series: Vec<Series> = names
            .iter()
            .map(|name| {
                let own = points().filter(|point| point.contender == *name);
                let dots = own.filter_map(|point| dot(point, quantity));
                Series { colour: colour(name), points: dots.collect() }
            })
            .collect();
        if let Some(value) = paper.and_then(|paper| (quantity.paper)(&paper)) {
            series.push(constant(&series, value * quantity.scale, quantity.axis, colour(PAPER)));
        }
        let title = format!("{set_up} {}: {}", test.name(), quantity.name);
        if let Some(svg) = chart::draw(&title, quantity.axis, &series)? {
            let name = quantity.name;
            let _ = writeln!(body, "<figure><figcaption>{name}</figcaption>{svg}</figure>");
        }
    }
    body.push_str("</div></section>\n");
    Ok(())
}

fn dot(point: &Point, quantity: &Quantity) -> Option<Dot> {
    let value = (quantity.value)(point)?;
    let [median, min, max] =
        [value.median, value.min, value.max].map(|value| value * quantity.scale);
    let note = format!(
        "{}, {}: {} {}",
        point.contender,
        size(point.message_bytes),
        digits(median),
        quantity.axis
    );
    Some(Dot { message_bytes: point.message_bytes, median, min, max, note })
}

/// A figure of the paper, which gives only the extreme, over the sizes of the others.
fn constant(series: &[Series], value: f64, axis: &str, colour: usize) -> Series {
    let mut sizes: Vec<u64> =
        series.iter().flat_map(|one| &one.points).map(|point| point.message_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let note = format!("the paper: {} {axis}", digits(value));
    let point = |message_bytes| Dot {
        message_bytes,
        median: value,
        min: value,
        max: value,
        note: note.clone(),
    };
    Series { colour, points: sizes.into_iter().map(point).collect() }
}

/// The lines: for each case the paper's, then the contenders'.
fn rows(results: &MultiedgeResults) -> Vec<[String; COLUMNS]> {
    let mut rows = Vec::new();
    let mut previous: Option<(&str, Test, u64)> = None;
    for point in &results.points {
        let case = (point.set_up.as_str(), point.test, point.message_bytes);
        let is_new = previous.replace(case) != Some(case);
        if let Some(paper) = point.paper.filter(|_| is_new) {
            rows.push(paper_row(point, &paper));
        }
        rows.push(row(point, is_new && point.paper.is_none()));
    }
    rows
}

fn row(point: &Point, is_first: bool) -> [String; COLUMNS] {
    let [set_up, test, bytes] = case(point, is_first);
    if let Some(failure) = &point.failure {
        let mut row: [String; COLUMNS] = Default::default();
        let texts = [set_up, test, bytes, point.contender.clone(), format!("failed: {failure}")];
        for (cell, text) in row.iter_mut().zip(texts) {
            *cell = text;
        }
        return row;
    }
    let median = |summary: Option<Summary>| summary.map(|summary| summary.median);
    let percent = |value: Option<f64>| value.map_or_else(dash, digits);
    [
        set_up,
        test,
        bytes,
        point.contender.clone(),
        median(point.latency_ns).map_or_else(dash, time_ns),
        median(point.bytes_per_second).map_or_else(dash, |rate| scaled(rate * 8.0, "b/s")),
        percent(median(point.share_of_links).map(|share| share * 100.0)),
        median(point.initiate_ns).map_or_else(dash, time_ns),
        percent(median(point.protocol_cpu_percent)),
        percent(point.out_of_order_percent),
        percent(point.extra_frame_percent),
        percent(point.wakeups_per_frame),
        point.queue_drops.to_string(),
    ]
}

fn paper_row(point: &Point, paper: &PaperFigures) -> [String; COLUMNS] {
    let [set_up, test, bytes] = case(point, true);
    let limit =
        |value: Option<f64>| value.map_or_else(dash, |value| format!("≤ {}", digits(value)));
    [
        set_up,
        test,
        bytes,
        PAPER.to_string(),
        paper.latency_ns.map_or_else(dash, |ns| format!("≥ {}", time_ns(ns))),
        paper.bytes_per_second.map_or_else(dash, |rate| format!("≤ {}", scaled(rate * 8.0, "b/s"))),
        paper.share_of_links.map_or_else(dash, |share| format!("≤ {}", digits(share * 100.0))),
        paper.initiate_ns.map_or_else(dash, time_ns),
        limit(paper.protocol_cpu_percent),
        limit(paper.out_of_order_percent),
        limit(paper.extra_frame_percent),
        dash(),
        dash(),
    ]
}

fn case(point: &Point, is_first: bool) -> [String; 3] {
    if is_first {
        [point.set_up.clone(), point.test.name().to_string(), size(point.message_bytes)]
    } else {
        Default::default()
    }
}

fn dash() -> String {
    "–".to_string()
}

fn facts(results: &MultiedgeResults) -> String {
    format!(
        "{} links; {} samples of {} s per figure; {}, {} CPUs, Linux {}",
        results.link,
        results.repetitions,
        results.sample_seconds,
        results.machine.cpu,
        results.machine.cpus,
        results.machine.kernel
    )
}

struct Quantity {
    name: &'static str,
    axis: &'static str,
    value: fn(&Point) -> Option<Summary>,
    paper: fn(&PaperFigures) -> Option<f64>,
    scale: f64,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity {
        name: "Latency",
        axis: "µs",
        value: |point| point.latency_ns,
        paper: |paper| paper.latency_ns,
        scale: 1e-3,
    },
    Quantity {
        name: "Throughput",
        axis: "Gb/s",
        value: |point| point.bytes_per_second,
        paper: |paper| paper.bytes_per_second,
        scale: 8e-9,
    },
    Quantity {
        name: "Protocol CPU",
        axis: "% of one CPU",
        value: |point| point.protocol_cpu_percent,
        paper: |paper| paper.protocol_cpu_percent,
        scale: 1.0,
    },
];

const PAPER: &str = "paper";
const COLUMNS: usize = 13;
const HEADER: [&str; COLUMNS] = [
    "set-up",
    "test",
    "size",
    "who",
    "latency",
    "rate",
    "of links %",
    "initiate",
    "CPU %",
    "disorder %",
    "extra %",
    "wakeups/frame",
    "drops",
];
/// Narrower, nothing fits.
const COLUMNS_MIN: u16 = 130;

const NOTES: &str = "paper: MultiEdge, IPDPS 2007, its extreme over all sizes; multiedge: its rules \
in this engine; edge: ours. Payload rates; a link's rate counts frames with Ethernet header.\n\
initiate: in the call that posts. CPU %: of one CPU, at the host that needs more, in turns of the \
protocol that found work, system calls included.\n\
disorder: data frames behind later ones; extra: explicit acknowledgements and retransmissions, per \
100 data frames. drops: in the switches' queues, warm-ups included.";

#[cfg(test)]
mod tests {
    use bench::machine::Machine;
    use bench::multiedge::results::{FORMAT, SetUpFacts};

    use super::*;

    #[test]
    fn paper_and_contenders_stand_below_each_other() {
        let table = multiedge_table(&results(), 200);
        let position = |text: &str| table.find(text).unwrap_or_else(|| panic!("{text}: {table}"));
        assert!(position("≤ 96.0") < position("failed: no such link"));
    }

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = multiedge_page(&results()).unwrap();
        let page = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("<svg") && page.contains("2Lu-1G"));
    }

    fn results() -> MultiedgeResults {
        let flat = |value| Some(Summary { median: value, min: value, max: value });
        let mut good = Point::of_samples("2Lu-1G", Test::OneWay, 1 << 20, "edge", Vec::new(), None);
        good.bytes_per_second = flat(240e6);
        good.share_of_links = flat(0.96);
        let bad =
            Point::failed("2Lu-1G", Test::OneWay, 1 << 20, "multiedge", "no such link".into());
        MultiedgeResults {
            format: FORMAT.to_string(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine::default(),
            link: "udp".to_string(),
            repetitions: 1,
            sample_seconds: 0.1,
            pinned_to: None,
            set_ups: vec![SetUpFacts {
                name: "2Lu-1G".to_string(),
                links: Vec::new(),
                mtu: 1500,
                is_strict: false,
            }],
            points: vec![good, bad],
        }
    }
}

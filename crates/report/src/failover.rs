//! Shows how a cut link affects a stream over two links: a table, and a page with the throughput
//! over time.

use std::fmt::Write;

use bench::failover::{Outcome, Report};
use comfy_table::CellAlignment::{Left, Right};
use plotters::prelude::*;

use crate::format::{date, digits, scaled};
use crate::page::{document, escaped};
use crate::rows::{Column, page_table, terminal_table};

/// Draws a table with one row for each cut, for a terminal of `columns` columns. Below the table,
/// one line for each cut shows the throughput over time.
pub fn failover_table(report: &Report, columns: u16) -> String {
    let table = terminal_table(&HEADER, report.cuts.iter().map(cells), columns);
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "{}", heading(report));
    let _ = writeln!(text, "{table}");
    let room = usize::from(columns).saturating_sub(COURSE_NAME_COLUMNS + 1).max(1);
    for outcome in &report.cuts {
        let (name, course) = (outcome.cut.name(), course(outcome, room));
        let _ = writeln!(text, "{name:>COURSE_NAME_COLUMNS$} {course}");
    }
    let _ = writeln!(text, "{NOTES}");
    text
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns an error if a chart cannot be drawn.
pub fn failover_page(report: &Report) -> Result<String, std::io::Error> {
    let title = "Ethernot: a link is cut";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&heading(report))
    );
    for outcome in &report.cuts {
        let name = outcome.cut.name();
        let svg = chart(outcome).map_err(|reason| {
            std::io::Error::other(format!("draw the throughput of the cut {name}: {reason}"))
        })?;
        let _ = writeln!(
            body,
            "<section><h2>{name}</h2><figure><figcaption>Throughput over time, Gb/s. The lines \
             mark the cut and the restoration of the link.</figcaption>{svg}</figure></section>"
        );
    }
    let _ = writeln!(
        body,
        "<section>{}</section><footer>{}</footer>",
        page_table(&HEADER, report.cuts.iter().map(cells)),
        escaped(NOTES).replace('\n', "<br>")
    );
    Ok(document(title, "", &body))
}

fn heading(report: &Report) -> String {
    let [one, other] = report.links.map(|link| scaled(link.rate as f64, "b/s"));
    format!("two links of {one} and {other} over {}; the second is cut", report.kind.name())
}

fn cells(outcome: &Outcome) -> [String; HEADER.len()] {
    [
        outcome.cut.name().to_string(),
        outcome.messages.to_string(),
        outcome.lost.to_string(),
        outcome.corrupted.to_string(),
        scaled(outcome.before_bits_per_second, "b/s"),
        scaled(outcome.remaining_bits_per_second, "b/s"),
        format!("{} ms", digits(outcome.gap_ms)),
        outcome.back_ms.map_or_else(|| "never".to_string(), |ms| format!("{} ms", digits(ms))),
    ]
}

/// Returns the throughput over time as one line of at most `room` block characters. The line starts
/// at half of the time from the start of the stream to the cut.
fn course(outcome: &Outcome, room: usize) -> String {
    let from = outcome.cut_at_ms / 2;
    let shown_ms = outcome.timeline.len().saturating_sub(from as usize);
    let means = buckets(outcome, shown_ms.div_ceil(room).max(COURSE_BUCKET_MS));
    let highest = means.iter().map(|(_, rate)| *rate).fold(0.0, f64::max).max(1.0);
    let block = |rate: f64| {
        let level = (rate / highest * (BLOCKS.len() - 1) as f64).round() as usize;
        BLOCKS.get(level).copied().unwrap_or('█')
    };
    means.iter().filter(|(at, _)| *at >= from).map(|(_, rate)| block(*rate)).collect()
}

/// Returns the bits per second in each interval of `bucket_ms`, with the start time of each
/// interval.
fn buckets(outcome: &Outcome, bucket_ms: usize) -> Vec<(u64, f64)> {
    let chunks = outcome.timeline.chunks(bucket_ms);
    let rate = |(index, chunk): (usize, &[u32])| {
        let bytes: u64 = chunk.iter().map(|&bytes| u64::from(bytes)).sum();
        ((index * bucket_ms) as u64, bytes as f64 * 8e3 / chunk.len() as f64)
    };
    chunks.enumerate().map(rate).collect()
}

fn chart(outcome: &Outcome) -> Result<String, String> {
    let points: Vec<(f64, f64)> = buckets(outcome, CHART_BUCKET_MS)
        .into_iter()
        .map(|(at_ms, rate)| (at_ms as f64 / 1e3, rate / 1e9))
        .collect();
    let end = points.last().map_or(1.0, |point| point.0);
    let top = points.iter().map(|point| point.1).fold(0.1, f64::max) * 1.1;
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (1000, 320)).into_drawing_area();
        let text = ("sans-serif", 14).into_font().color(&GREY);
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..end, 0.0..top)
            .map_err(|error| error.to_string())?;
        chart
            .configure_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.25))
            .light_line_style(TRANSPARENT)
            .label_style(text.clone())
            .axis_desc_style(text)
            .x_desc("seconds")
            .y_desc("Gb/s")
            .draw()
            .map_err(|error| error.to_string())?;
        for at_ms in [outcome.cut_at_ms, outcome.restored_at_ms] {
            let at = at_ms as f64 / 1e3;
            chart
                .draw_series([PathElement::new(vec![(at, 0.0), (at, top)], RED.stroke_width(1))])
                .map_err(|error| error.to_string())?;
        }
        chart
            .draw_series(LineSeries::new(points, BLUE.stroke_width(2)))
            .map_err(|error| error.to_string())?;
        root.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

const HEADER: [Column; 8] = [
    ("cut", Left),
    ("messages", Right),
    ("lost", Right),
    ("corrupted", Right),
    ("before", Right),
    ("remaining", Right),
    ("gap", Right),
    ("back after", Right),
];

const NOTES: &str = "gap: longest time in which the rate, in windows of 5 ms, was less than 80 % of the remaining \
rate. back after: time from the restoration of the link until the rate is 80 % of the rate before the cut.\nThe target \
compared every byte.";

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Shortest time that one block character represents, in milliseconds.
const COURSE_BUCKET_MS: usize = 50;
const COURSE_NAME_COLUMNS: usize = 10;
const CHART_BUCKET_MS: usize = 5;

/// A grey that is readable on light and on dark pages.
const GREY: RGBColor = RGBColor(128, 128, 128);
const RED: RGBColor = RGBColor(214, 69, 65);
const BLUE: RGBColor = RGBColor(52, 120, 198);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_fits_the_terminal_however_long_the_run() {
        for (seconds, room) in [(1, 80), (7, 89), (60, 20), (60, 1)] {
            let outcome = Outcome {
                cut: bench::failover::Cut::OneWay,
                cut_at_ms: 300,
                restored_at_ms: 600,
                messages: 1,
                lost: 0,
                corrupted: 0,
                before_bits_per_second: 1.0,
                remaining_bits_per_second: 1.0,
                gap_ms: 1.0,
                back_ms: None,
                late_ms: 0.0,
                timeline: vec![1000; seconds * 1000],
            };
            let blocks = course(&outcome, room).chars().count();
            assert!((1..=room).contains(&blocks), "{blocks} blocks in {room} columns");
        }
    }
}

//! What one of two links did to a stream when it was cut: a table, and a page with the throughput
//! over time.

use std::fmt::Write;

use bench::failover::{Outcome, Report};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use plotters::prelude::*;

use crate::format::{date, digits, scaled};
use crate::page::{STYLE, escaped};
use crate::table::LINES;

/// One row for each cut, and its course in a line, for a terminal of `columns` columns.
pub fn failover_table(report: &Report, columns: u16) -> String {
    let mut table = Table::new();
    table.load_style(LINES).set_width(columns);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(HEADER);
    for outcome in &report.cuts {
        let cells = cells(outcome);
        table.add_row(cells.iter().enumerate().map(|(column, text)| {
            let right = if column == 0 { CellAlignment::Left } else { CellAlignment::Right };
            Cell::new(text).set_alignment(right)
        }));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let mut text = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "{}", heading(report));
    let _ = writeln!(text, "{table}");
    for outcome in &report.cuts {
        let _ = writeln!(text, "{:>10} {}", outcome.cut.name(), course(outcome));
    }
    let _ = writeln!(text, "{NOTES}");
    text
}

/// A page with everything inside.
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
            "<section><h2>{name}</h2><figure><figcaption>Throughput over time, Gb/s; cut and \
             restored at the lines</figcaption>{svg}</figure></section>"
        );
    }
    body.push_str("<section><div class=\"wide\"><table><thead><tr>");
    for name in HEADER {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    for outcome in &report.cuts {
        body.push_str("<tr>");
        for text in cells(outcome) {
            let _ = write!(body, "<td>{}</td>", escaped(&text));
        }
        body.push_str("</tr>\n");
    }
    let _ = writeln!(
        body,
        "</tbody></table></div></section><footer>{}</footer>",
        escaped(NOTES).replace('\n', "<br>")
    );
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    ))
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

/// Throughput over time as one line of blocks, from the middle of the time before the cut.
fn course(outcome: &Outcome) -> String {
    let means = buckets(outcome, COURSE_BUCKET_MS);
    let highest = means.iter().map(|(_, rate)| *rate).fold(0.0, f64::max).max(1.0);
    let from = outcome.cut_at_ms / 2;
    let block = |rate: f64| {
        let level = (rate / highest * (BLOCKS.len() - 1) as f64).round() as usize;
        BLOCKS.get(level).copied().unwrap_or('█')
    };
    means.iter().filter(|(at, _)| *at >= from).map(|(_, rate)| block(*rate)).collect()
}

/// Bits per second in each `bucket_ms` of the timeline, with the time of its start.
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

const HEADER: [&str; 8] =
    ["cut", "messages", "lost", "corrupted", "before", "remaining", "gap", "back after"];

const NOTES: &str = "gap: longest time with less than 80 % of the remaining rate, in windows of 5 ms. \
back after: from the restoration until 80 % of the rate before comes again.\nEvery byte was compared \
at the target.";

const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const COURSE_BUCKET_MS: usize = 50;
const CHART_BUCKET_MS: usize = 5;

/// Readable on light and on dark pages.
const GREY: RGBColor = RGBColor(128, 128, 128);
const RED: RGBColor = RGBColor(214, 69, 65);
const BLUE: RGBColor = RGBColor(52, 120, 198);

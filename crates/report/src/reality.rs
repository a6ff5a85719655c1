//! Compares the engine on real links with simulation: a table, and a page with the curves of both.

use std::fmt::Write;

use bench::reality::{Curve, HostCosts, Point, Report, STEADY_PERCENT, SetUpComparison};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::{self, ChartError, Point as Drawn, Series};
use crate::format::{date, digits, size};
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};

/// Draws tables for a terminal of `columns` columns: one table of the hosts' costs, and one table
/// for each set-up.
pub fn reality_table(report: &Report, columns: u16) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(text, "{}\n", costs(&report.calibration));
    for found in &report.setups {
        let _ = writeln!(text, "{}", heading(found));
        let table = terminal_table(&HEADER, found.curves.iter().flat_map(rows), columns);
        let _ = writeln!(text, "{table}\n");
    }
    let _ = writeln!(text, "{}\n{}", explanation(), summary(report));
    text
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn reality_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: simulation and reality";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>The engine on virtual Ethernet of this machine with \
         limited rates, compared with the same engine in the simulator. {}</p><p>{} In the charts, \
         bars show the quartiles of the real samples and the range of the \
         seeds.</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&summary(report)),
        escaped(explanation()),
        escaped(&costs(&report.calibration)),
    );
    for found in &report.setups {
        let _ = writeln!(body, "<section><h2>{}</h2>", escaped(&heading(found)));
        body.push_str(&legend(CONTENDERS.into_iter().enumerate()));
        body.push_str("<div class=\"charts\">\n");
        for curve in &found.curves {
            figure(&mut body, found, curve)?;
        }
        body.push_str("</div>\n");
        body.push_str(&page_table(&HEADER, found.curves.iter().flat_map(rows)));
        body.push_str("</section>\n");
    }
    Ok(document(title, "", &body))
}

fn heading(found: &SetUpComparison) -> String {
    format!("{}: {}, MTU {}", found.setup.name, found.setup.description, found.setup.mtu)
}

fn costs(costs: &HostCosts) -> String {
    format!(
        "Costs, measured on a link without a rate limit: {} ns per sent frame and {} ns per byte, \
         {} ns per received frame and {} ns per byte, {} ns per post, {} ns per call, {} ns to \
         gather a payload, {} ns to poll a link, {} ns more per sent frame for each further link. \
         A frame reaches the receiver {} ns before the sender has finished its work for the frame. \
         Error of the fit: {} % root mean square, {} % at most.",
        digits(costs.frame_send_ns),
        digits(costs.frame_send_ns_per_byte),
        digits(costs.frame_receive_ns),
        digits(costs.frame_receive_ns_per_byte),
        digits(costs.post_ns),
        digits(costs.call_ns),
        digits(costs.gather_ns),
        digits(costs.poll_ns),
        digits(costs.spread_ns),
        digits(costs.return_ns),
        digits(costs.rms_error_percent),
        digits(costs.worst_error_percent),
    )
}

fn summary(report: &Report) -> String {
    let all = || report.setups.iter().flat_map(|s| &s.curves).flat_map(|c| &c.points);
    let points = || all().filter(|point| point.is_steady());
    let unsteady = all().count() - points().count();
    let within = points().filter(|point| point.error_percent <= BOUND_PERCENT).count();
    let misses = points().count() - within;
    let outside = |point: &&Point| point.error_percent > BOUND_PERCENT;
    let beyond = points().filter(outside).filter(|point| point.is_beyond_repeats()).count();
    format!(
        "At steady points, the simulated value differs from the real value by at most {} %, and by \
         {} % in the median. {within} of {} points differ by at most {BOUND_PERCENT} %. Of the \
         other {misses}, {beyond} differ by more than real samples differ among themselves. \
         {unsteady} further points are not steady: the middle half of their samples is not within \
         {STEADY_PERCENT} % of the median.",
        digits(report.worst_error_percent),
        digits(report.median_error_percent),
        within + misses,
    )
}

/// Returns an explanation of the columns and the bars.
const fn explanation() -> &'static str {
    "Real is the median of the samples, taken of all points in turn; repeats: half the distance between their \
     quartiles, in percent. Simulated is the median over seeds, by seed what single ones say. Beyond: the \
     simulation is at least 1 % off and outside the quartiles, so chance in reality does not account for it."
}

fn is_beyond(point: &Point) -> bool {
    point.error_percent >= NOTED_PERCENT && point.is_beyond_repeats()
}

fn figure(body: &mut String, found: &SetUpComparison, curve: &Curve) -> Result<(), ChartError> {
    let (test, quantity) = (curve.test.name(), curve.quantity);
    let note = |name: &str, point: &Point, value: f64| {
        format!("{name}, {}: {} {}", size(point.message_bytes), digits(value), quantity.unit())
    };
    let real = |point: &Point| Drawn {
        message_bytes: point.message_bytes,
        median: point.real.median,
        min: point.real_quartiles[0],
        max: point.real_quartiles[1],
        note: note(CONTENDERS[0], point, point.real.median),
    };
    let simulated = |point: &Point| Drawn {
        message_bytes: point.message_bytes,
        median: point.simulated,
        min: point.simulated_range[0],
        max: point.simulated_range[1],
        note: note(CONTENDERS[1], point, point.simulated),
    };
    let series = [
        Series { colour: 0, points: curve.points.iter().map(real).collect() },
        Series { colour: 1, points: curve.points.iter().map(simulated).collect() },
    ];
    let title = format!("{}, {test}: {}", found.setup.name, quantity.name());
    if let Some(svg) = chart::draw(&title, quantity.unit(), &series)? {
        let _ = writeln!(
            body,
            "<figure><figcaption>{test}: {}</figcaption>{svg}</figure>",
            quantity.name()
        );
    }
    Ok(())
}

/// Returns a row for each message size, and a row for the whole curve.
fn rows(curve: &Curve) -> Vec<[String; HEADER.len()]> {
    let unit = curve.quantity.unit();
    let with_unit = |value: f64| format!("{} {unit}", digits(value));
    let mut rows = Vec::with_capacity(curve.points.len() + 1);
    for point in &curve.points {
        let is_first = rows.is_empty();
        rows.push([
            if is_first { curve.test.name().to_string() } else { String::new() },
            size(point.message_bytes),
            with_unit(point.real.median),
            format!(
                "{}{}",
                digits(point.repeats_percent()),
                if point.is_steady() { "" } else { ", not steady" }
            ),
            with_unit(point.simulated),
            {
                let [least, most] = point.simulated_range;
                format!("{} – {}", digits(least), digits(most))
            },
            digits(point.error_percent),
            if is_beyond(point) { "yes" } else { "" }.to_string(),
        ]);
    }
    let worst = format!(
        "worst {}, median {}",
        digits(curve.worst_error_percent),
        digits(curve.median_error_percent)
    );
    let mut last: [String; HEADER.len()] = Default::default();
    last[ERROR_COLUMN] = worst;
    rows.push(last);
    rows
}

const HEADER: [Column; 8] = [
    ("test", Left),
    ("size", Left),
    ("real", Right),
    ("repeats ±%", Right),
    ("simulated", Right),
    ("by seed", Right),
    ("error %", Right),
    ("beyond", Right),
];
const ERROR_COLUMN: usize = 6;

/// Smallest error that is marked in the table, in percent.
const NOTED_PERCENT: f64 = 1.0;

/// Largest acceptable error of a point, in percent.
const BOUND_PERCENT: f64 = 10.0;

/// Names of the curves in the order of their colours.
const CONTENDERS: [&str; 2] = ["real", "simulated"];

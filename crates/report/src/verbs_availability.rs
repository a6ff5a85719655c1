//! Shows the fraction of its CPU that a program keeps while it exchanges messages: tables, and
//! curves of a page.

use std::fmt::Write;

use bench::statistics::Summary;
use bench::verbs::curves::{Availability, Curve, CurvePoint, Method};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::ChartError;
use crate::format::{digits, scaled, size, time_ns};
use crate::lines::{self, Line, LinePoint, Scale};
use crate::page::{escaped, legend};
use crate::rows::{Column, page_table, terminal_table};

/// Draws a table with a row for each curve, for a terminal of `columns` columns.
pub(crate) fn availability_table(availability: &Availability, columns: u16) -> String {
    let table = terminal_table(&HEADER, rows(availability), columns);
    format!("{}\n{table}\n{NOTES}\n", accounting(availability))
}

/// Adds the section about availability to a page.
pub(crate) fn availability_section(
    body: &mut String,
    availability: &Availability,
) -> Result<(), ChartError> {
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<section><h2>availability of the CPU</h2><p>{}</p>",
        escaped(&accounting(availability))
    );
    let mut carriers: Vec<&str> = Vec::new();
    for curve in &availability.curves {
        if !carriers.contains(&curve.carrier.as_str()) {
            carriers.push(&curve.carrier);
        }
    }
    body.push_str(&legend(carriers.iter().copied().enumerate()));
    body.push_str("<div class=\"charts\">\n");
    for chart in [&BANDWIDTH, &WAIT] {
        charts(body, availability, &carriers, chart)?;
    }
    body.push_str("</div>\n");
    body.push_str(&page_table(&HEADER, rows(availability)));
    body.push_str("<h3>all points</h3>\n");
    body.push_str(&page_table(&POINTS_HEADER, point_rows(availability)));
    let _ = writeln!(body, "<p>{}</p></section>", escaped(NOTES).replace('\n', "<br>"));
    Ok(())
}

/// The quantity of a chart with the curves of one method.
struct Chart {
    method: Method,
    caption: &'static str,
    axes: [&'static str; 2],
    scale: Scale,
    place: fn(&CurvePoint) -> (f64, f64),
}

const BANDWIDTH: Chart = Chart {
    method: Method::Polling,
    caption: "polling: bandwidth against availability",
    axes: ["availability", "GB/s, both ways"],
    scale: Scale::Even,
    place: |point| (point.availability.median, point.bytes_per_second.median * 1e-9),
};

const WAIT: Chart = Chart {
    method: Method::PostWorkWait,
    caption: "post-work-wait: wait after work",
    axes: ["work alone (µs)", "wait (µs)"],
    scale: Scale::Logarithmic,
    place: |point| (point.interval_us, point.round_us[2]),
};

/// Adds one chart for each size. A chart has a line for each carrier: the device, TCP, or an MPI
/// over one of these two.
fn charts(
    body: &mut String,
    availability: &Availability,
    carriers: &[&str],
    chart: &Chart,
) -> Result<(), ChartError> {
    let chosen: Vec<&Curve> =
        availability.curves.iter().filter(|curve| curve.method == chart.method).collect();
    let mut sizes: Vec<u64> = chosen.iter().map(|curve| curve.size).collect();
    sizes.dedup();
    for bytes in sizes {
        let line = |(colour, carrier): (usize, &&str)| {
            let of_carrier = |curve: &&&Curve| curve.size == bytes && curve.carrier == **carrier;
            let points = chosen.iter().filter(of_carrier).flat_map(|curve| &curve.points);
            let points = points.map(|point| {
                let (x, y) = (chart.place)(point);
                LinePoint { x, y, note: format!("{carrier}, {}", shown(point)) }
            });
            Line { colour, points: points.collect() }
        };
        let lines: Vec<Line> = carriers.iter().enumerate().map(line).collect();
        let title = format!("{}, {}", chart.caption, size(bytes));
        if let Some(svg) = lines::draw(&title, chart.axes, chart.scale, &lines)? {
            let _ = writeln!(
                body,
                "<figure><figcaption>{}</figcaption>{svg}</figure>",
                escaped(&title)
            );
        }
    }
    Ok(())
}

fn shown(point: &CurvePoint) -> String {
    format!(
        "work of {}: availability {}, {}, wait {}",
        time_ns(point.interval_us * 1e3),
        digits(point.availability.median),
        scaled(point.bytes_per_second.median, "B/s"),
        time_ns(point.round_us[2] * 1e3),
    )
}

fn accounting(availability: &Availability) -> String {
    availability.accounting.map_or_else(
        || "CPU times are not compared with the sum of all CPU time, because hosts share all CPUs.".to_string(),
        |accounting| {
            format!(
                "Availability and all other CPU time of the worker's host add up to 1 ± 0.05 at {} of {} points.",
                accounting.within, accounting.points
            )
        },
    )
}

fn rows(availability: &Availability) -> Vec<[String; HEADER.len()]> {
    let mut before = None;
    let row = |curve: &Curve| {
        let is_first = before != Some((curve.method, curve.size));
        before = Some((curve.method, curve.size));
        let head = |text: String| if is_first { text } else { String::new() };
        let [method, bytes] = [head(curve.method.name().to_string()), head(size(curve.size))];
        let carrier = curve.carrier.clone();
        if let Some(reason) = &curve.cannot_run {
            let [full, half, ratio, share, wait, silent] = Default::default();
            let note = format!("cannot run: {reason}");
            return [method, bytes, carrier, full, half, ratio, share, wait, silent, note];
        }
        let bandwidths = curve.points.iter().map(|point| point.bytes_per_second.median);
        let full = bandwidths.reduce(f64::max).filter(|full| *full > 0.0);
        let spread = |value: Option<Summary>| {
            value.map_or_else(String::new, |value| {
                format!("{} ±{:.0} %", digits(value.median), value.spread_percent())
            })
        };
        let ratio = curve.ratios.first().map(|ratio| ratio.value);
        let busy = curve.points.iter().filter(|point| point.is_busy).count();
        [
            method,
            bytes,
            carrier,
            full.map_or_else(String::new, |full| scaled(full, "B/s")),
            curve.half_bandwidth.map_or_else(String::new, |half| scaled(half.median, "B/s")),
            spread(ratio),
            spread(curve.wait_share),
            spread(curve.wait_ratio),
            spread(curve.silent_availability),
            if busy > 0 { format!("busy at {busy} points") } else { String::new() },
        ]
    };
    availability.curves.iter().map(row).collect()
}

fn point_rows(availability: &Availability) -> Vec<[String; POINTS_HEADER.len()]> {
    let of_curve = |curve: &Curve| {
        let rows: Vec<_> = curve
            .points
            .iter()
            .enumerate()
            .map(|(index, point)| point_row(curve, point, index == 0))
            .collect();
        rows
    };
    availability.curves.iter().flat_map(of_curve).collect()
}

fn point_row(curve: &Curve, point: &CurvePoint, is_first: bool) -> [String; POINTS_HEADER.len()] {
    let name = if is_first { curve.name.clone() } else { String::new() };
    let percent = |share: Option<f64>| {
        share.map_or_else(String::new, |share| format!("{:.0}", share * 100.0))
    };
    let accounted = point.accounted.map_or_else(String::new, digits);
    let [post, work, wait] = point.round_us.map(|us| time_ns(us * 1e3));
    let note =
        if point.is_busy { format!("busy: {:.0} %", point.dry_run_percent) } else { String::new() };
    [
        name,
        time_ns(point.interval_us * 1e3),
        digits(point.availability.median),
        scaled(point.bytes_per_second.median, "B/s"),
        post,
        work,
        wait,
        percent(point.softirq_share),
        percent(point.interrupts_elsewhere_share),
        accounted,
        note,
    ]
}

const HEADER: [Column; 10] = [
    ("method", Left),
    ("bytes", Right),
    ("carrier", Left),
    ("highest", Right),
    ("at 0.5", Right),
    ("to its TCP", Right),
    ("wait / transfer", Right),
    ("longest / shortest", Right),
    ("silent", Right),
    ("notes", Left),
];

const POINTS_HEADER: [Column; 11] = [
    ("curve", Left),
    ("work alone", Right),
    ("availability", Right),
    ("both ways", Right),
    ("post", Right),
    ("work", Right),
    ("wait", Right),
    ("softirq %", Right),
    ("elsewhere %", Right),
    ("accounted", Right),
    ("notes", Left),
];

const NOTES: &str = "availability: time of the work alone divided by its time with messages. highest: highest \
bandwidth in both directions of all intervals; at 0.5: highest bandwidth at which the program keeps half of its CPU; \
to its TCP: bandwidth at 0.5 divided by the same bandwidth of this program over TCP.\nwait / transfer: wait after work \
that is longer than the transfer, divided by the time of the transfer; longest / shortest: wait at the longest \
interval divided by the wait at the shortest. silent: availability if nothing is sent.\nsoftirq %: share of the \
worker's CPU in softirq; elsewhere %: irq and softirq time of all other CPUs. accounted: availability plus all other \
CPU time of the worker's host.";

#[cfg(test)]
mod tests {
    use bench::verbs::curves::{Accounting, CurveRatio};

    use super::*;

    fn all(median: f64) -> Summary {
        Summary { median, min: median, max: median }
    }

    fn availability() -> Availability {
        let point = CurvePoint {
            iterations: 100,
            interval_us: 120.0,
            availability: all(0.4),
            bytes_per_second: all(2e9),
            round_us: [1.0, 2.0, 3.0],
            softirq_share: Some(0.25),
            interrupts_elsewhere_share: Some(0.0),
            accounted: Some(0.99),
            dry_run_percent: 20.0,
            is_busy: true,
            retaken: 1,
        };
        let curve = Curve {
            name: "polling-262144-edge0".to_string(),
            method: Method::Polling,
            size: 262_144,
            carrier: "edge0".to_string(),
            points: vec![point.clone(), CurvePoint { availability: all(0.6), ..point }],
            half_bandwidth: Some(all(1.5e9)),
            ratios: vec![CurveRatio { to: "tcp".to_string(), value: all(1.7) }],
            wait_share: None,
            wait_ratio: None,
            silent_availability: None,
            cannot_run: None,
        };
        let missing = Curve {
            name: "polling-262144-mpich-edge0".to_string(),
            carrier: "mpich-edge0".to_string(),
            points: Vec::new(),
            half_bandwidth: None,
            ratios: Vec::new(),
            cannot_run: Some("<no> mpicc".to_string()),
            ..curve.clone()
        };
        let waits = Curve {
            name: "post-work-wait-262144-edge0".to_string(),
            method: Method::PostWorkWait,
            wait_share: Some(all(0.05)),
            ..curve.clone()
        };
        let accounting = Some(Accounting { points: 10, within: 9, share: 0.9 });
        Availability { curves: vec![curve, missing, waits], accounting }
    }

    #[test]
    fn a_curve_has_its_figures_or_its_reason() {
        let table = availability_table(&availability(), 250);
        for text in [
            "at 9 of 10 points",
            "2.00 GB/s",
            "1.50 GB/s",
            "1.70 ±0 %",
            "cannot run: <no> mpicc",
            "busy at 2 points",
            "0.050 ±0 %",
        ] {
            assert!(table.contains(text), "{text}: {table}");
        }
    }

    #[test]
    fn the_section_has_a_chart_of_each_method_and_escapes_foreign_markup() {
        let mut body = String::new();
        availability_section(&mut body, &availability()).unwrap();
        assert_eq!(body.matches("<svg").count(), 2, "{body}");
        assert!(body.contains("bandwidth against availability, 256 KiB"), "{body}");
        assert!(body.contains("&lt;no&gt; mpicc") && !body.contains("<no>"));
        assert!(body.contains("busy: 20 %"));
    }
}

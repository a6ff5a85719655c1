//! The engine on real links beside the same in simulation: a table, and a page with both curves.

use std::fmt::Write;

use bench::reality::{Curve, HostCosts, Point, Report, SetUpComparison};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::{self, ChartError, Point as Drawn, Series};
use crate::format::{date, digits, size};
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};

/// What hosts cost, and one table for each set-up, for a terminal of `columns` columns.
pub fn reality_table(report: &Report, columns: u16) -> String {
    let mut text = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(text, "{}\n", costs(&report.calibration));
    for found in &report.setups {
        let _ = writeln!(text, "{}", heading(found));
        let table = terminal_table(&HEADER, found.curves.iter().flat_map(rows), columns);
        let _ = writeln!(text, "{table}\n");
    }
    let _ = writeln!(text, "{}", summary(report));
    text
}

/// A page with everything inside.
pub fn reality_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: simulation and reality";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>The engine on shaped virtual Ethernet of this machine, and \
         the same engine in simulation. {}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&summary(report)),
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
        "Costs, found on a link without limit: {} ns a frame sent and {} ns a byte, {} ns a frame received \
         and {} ns a byte, {} ns a post, {} ns a call, {} ns to gather a payload, {} ns a look at a link; a \
         frame is seen {} ns before its sender is done. Fit: {} % root of the mean square, {} % at worst.",
        digits(costs.frame_send_ns),
        digits(costs.frame_send_ns_per_byte),
        digits(costs.frame_receive_ns),
        digits(costs.frame_receive_ns_per_byte),
        digits(costs.post_ns),
        digits(costs.call_ns),
        digits(costs.gather_ns),
        digits(costs.poll_ns),
        digits(costs.return_ns),
        digits(costs.rms_error_percent),
        digits(costs.worst_error_percent),
    )
}

fn summary(report: &Report) -> String {
    format!(
        "Simulation is {} % from reality at worst and {} % in the median of all points.",
        digits(report.worst_error_percent),
        digits(report.median_error_percent)
    )
}

fn figure(body: &mut String, found: &SetUpComparison, curve: &Curve) -> Result<(), ChartError> {
    let (test, quantity) = (curve.test.name(), curve.quantity);
    let note = |who: &str, point: &Point, value: f64| {
        format!("{who}, {}: {} {}", size(point.message_bytes), digits(value), quantity.unit())
    };
    let real = |point: &Point| Drawn {
        message_bytes: point.message_bytes,
        median: point.real.median,
        min: point.real.min,
        max: point.real.max,
        note: note(CONTENDERS[0], point, point.real.median),
    };
    let simulated = |point: &Point| Drawn {
        message_bytes: point.message_bytes,
        median: point.simulated,
        min: point.simulated,
        max: point.simulated,
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

/// A row for each size, and one for the whole curve.
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
            format!("{} – {}", digits(point.real.min), digits(point.real.max)),
            with_unit(point.simulated),
            digits(point.error_percent),
        ]);
    }
    let worst = format!(
        "worst {}, median {}",
        digits(curve.worst_error_percent),
        digits(curve.median_error_percent)
    );
    rows.push([String::new(), String::new(), String::new(), String::new(), String::new(), worst]);
    rows
}

const HEADER: [Column; 6] = [
    ("test", Left),
    ("size", Left),
    ("real", Right),
    ("from – to", Right),
    ("simulated", Right),
    ("error %", Right),
];

/// In the order of their colours.
const CONTENDERS: [&str; 2] = ["real", "simulated"];

//! Shows the cost of registering memory: tables, and curves of a page.

use std::fmt::Write;

use bench::statistics::Summary;
use bench::verbs::registration::{Cost, Registration, RegistrationPoint};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::{self, ChartError, Point, Series};
use crate::format::{digits, size, time_ns};
use crate::page::{escaped, legend};
use crate::rows::{Column, page_table, terminal_table};

/// Draws a table with a row for each point, for a terminal of `columns` columns.
pub(crate) fn registration_table(registration: &Registration, columns: u16) -> String {
    let table = terminal_table(&HEADER, rows(registration), columns);
    let facts: String = facts(registration).into_iter().map(|line| line + "\n").collect();
    format!("{facts}{table}\n{NOTES}\n")
}

/// Adds the section about registration to a page.
pub(crate) fn registration_section(
    body: &mut String,
    registration: &Registration,
) -> Result<(), ChartError> {
    body.push_str("<section><h2>registration of memory</h2>");
    for line in facts(registration) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(body, "<p>{}</p>", escaped(&line));
    }
    let alone = |point: &&RegistrationPoint| (point.alive, point.threads) == (1, 1);
    let points: Vec<&RegistrationPoint> = registration.points.iter().filter(alone).collect();
    let mut kinds: Vec<&str> = Vec::new();
    for point in &points {
        if !kinds.contains(&point.memory.as_str()) {
            kinds.push(&point.memory);
        }
    }
    body.push_str(&legend(kinds.iter().copied().enumerate()));
    body.push_str("<div class=\"charts\">\n");
    for chart in &CHARTS {
        let series = |(colour, kind): (usize, &&str)| {
            let of_kind = points.iter().filter(|point| point.memory == **kind);
            let mut points: Vec<Point> = of_kind.map(|point| curve_point(chart, point)).collect();
            points.sort_by_key(|point| point.message_bytes);
            Series { colour, points }
        };
        let series: Vec<Series> = kinds.iter().enumerate().map(series).collect();
        if let Some(svg) = chart::draw_over(chart.caption, "region (bytes)", chart.axis, &series)? {
            let caption = escaped(chart.caption);
            let _ = writeln!(body, "<figure><figcaption>{caption}</figcaption>{svg}</figure>");
        }
    }
    body.push_str("</div>\n");
    body.push_str(&page_table(&HEADER, rows(registration)));
    let _ = writeln!(body, "<p>{}</p></section>", escaped(NOTES));
    Ok(())
}

/// The quantity of a chart.
struct Chart {
    caption: &'static str,
    axis: &'static str,
    value: fn(&RegistrationPoint) -> Summary,
}

const CHARTS: [Chart; 4] = [
    Chart { caption: "register", axis: "µs", value: |point| point.register.mean_us },
    Chart { caption: "deregister", axis: "µs", value: |point| point.deregister.mean_us },
    Chart { caption: "register and move", axis: "µs", value: |point| point.sum.mean_us },
    Chart { caption: "register and move / move", axis: "ratio", value: |point| point.sum_to_move },
];

fn curve_point(chart: &Chart, point: &RegistrationPoint) -> Point {
    let value = (chart.value)(point);
    Point {
        message_bytes: point.size,
        median: value.median,
        min: value.min,
        max: value.max,
        note: format!(
            "{}, {}: {} {}",
            point.memory,
            size(point.size),
            digits(value.median),
            chart.axis
        ),
    }
}

/// Returns the growth of the costs, and the reasons for missing measurements.
fn facts(registration: &Registration) -> Vec<String> {
    let growth = registration.growth.iter().map(|growth| {
        format!(
            "{}: registering a region of {} takes {} times as long as registering a region of {}, \
             and deregistering it takes {} times as long",
            growth.memory,
            size(growth.largest),
            digits(growth.register.median),
            size(growth.smallest),
            digits(growth.deregister.median),
        )
    });
    let failures = registration.failures.iter();
    growth
        .chain(failures.map(|one| format!("{}: not measured: {}", one.name, one.cannot_run)))
        .collect()
}

fn rows(registration: &Registration) -> Vec<[String; HEADER.len()]> {
    registration.points.iter().map(row).collect()
}

fn row(point: &RegistrationPoint) -> [String; HEADER.len()] {
    let mean = |cost: &Cost| time_ns(cost.mean_us.median * 1e3);
    let surroundings = point.surroundings;
    let note = if surroundings.is_busy {
        format!("busy: {:.0} %, load {:.1}", surroundings.dry_run_percent, surroundings.load)
    } else {
        String::new()
    };
    [
        point.memory.clone(),
        size(point.size),
        point.alive.to_string(),
        point.threads.to_string(),
        mean(&point.register),
        time_ns(point.register.deviation_us * 1e3),
        time_ns(point.register.p99_us * 1e3),
        mean(&point.deregister),
        mean(&point.both),
        mean(&point.r#move),
        mean(&point.sum),
        format!(
            "{} ±{:.0} %",
            digits(point.sum_to_move.median),
            point.sum_to_move.spread_percent()
        ),
        note,
    ]
}

const HEADER: [Column; 13] = [
    ("memory", Left),
    ("bytes", Right),
    ("alive", Right),
    ("threads", Right),
    ("register", Right),
    ("deviation", Right),
    ("99 %", Right),
    ("deregister", Right),
    ("both", Right),
    ("move", Right),
    ("sum", Right),
    ("sum / move", Right),
    ("notes", Left),
];

const NOTES: &str = "All values are means. move: time to write every byte once from memory that was registered and \
used before. sum: time to register memory and to write every byte of it once. For fresh memory, the sum includes the \
page faults, because the write touches the memory for the first time.";

#[cfg(test)]
mod tests {
    use bench::verbs::figures::Surroundings;
    use bench::verbs::registration::{Growth, SweepFailure};

    use super::*;

    fn all(median: f64) -> Summary {
        Summary { median, min: median, max: median }
    }

    fn registration() -> Registration {
        let cost =
            |us| Cost { mean_us: all(us), median_us: all(us), deviation_us: 0.5, p99_us: 9.0 };
        let point = RegistrationPoint {
            name: "touched-4096-1-1".to_string(),
            device: "edge0".to_string(),
            memory: "touched".to_string(),
            size: 4096,
            alive: 1,
            threads: 1,
            samples: 5,
            register: cost(2.0),
            deregister: cost(1.0),
            both: cost(3.0),
            r#move: cost(10.0),
            sum: cost(12.0),
            deregister_after_move: cost(1.0),
            sum_to_move: all(1.2),
            surroundings: Surroundings { is_busy: true, ..Surroundings::default() },
        };
        let growth = Growth {
            memory: "touched".to_string(),
            smallest: 4096,
            largest: 1 << 20,
            register: all(1.3),
            deregister: all(1.1),
        };
        let failure = SweepFailure {
            name: "huge-4096-1-1".to_string(),
            cannot_run: "<no> pages".to_string(),
        };
        Registration { points: vec![point], growth: vec![growth], failures: vec![failure] }
    }

    #[test]
    fn costs_growth_and_reasons_are_shown() {
        let table = registration_table(&registration(), 250);
        for text in [
            "touched: registering a region of 1 MiB takes 1.30 times as long",
            "huge-4096-1-1: not measured: <no> pages",
            "2.00 µs",
            "1.20 ±0 %",
            "busy: 0 %",
        ] {
            assert!(table.contains(text), "{text}: {table}");
        }
        let mut body = String::new();
        registration_section(&mut body, &registration()).unwrap();
        assert_eq!(body.matches("<svg").count(), 4, "{body}");
        assert!(body.contains("&lt;no&gt; pages") && !body.contains("<no>"));
    }
}

//! Shows measurements of a verbs device: tables for a terminal, and a page with curves.

use std::fmt::Write;

use bench::verbs::figures::{Measured, Point as Measurement};
use bench::verbs::{Report, Steering};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::{self, ChartError, Point, Series};
use crate::format::{date, digits, scaled, size, time_ns};
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};
use crate::verbs_availability::{availability_section, availability_table};
use crate::verbs_registration::{registration_section, registration_table};

/// Draws tables for a terminal of `columns` columns: a table with a row for each contender at each
/// point, and tables of the other tests.
pub fn verbs_table(report: &Report, columns: u16) -> String {
    let devices: String = devices(report).map(|line| line + "\n").collect();
    let mut text = format!("{}\n{devices}", facts(report));
    if !report.points.is_empty() {
        let table = terminal_table(&HEADER, rows(report), columns);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{table}\n{NOTES}");
    }
    if let Some(availability) = &report.availability {
        text.push_str(&availability_table(availability, columns));
    }
    if let Some(registration) = &report.registration {
        text.push_str(&registration_table(registration, columns));
    }
    text
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn verbs_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: measurements of verbs devices";
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&facts(report)),
    );
    for line in devices(report) {
        let _ = writeln!(body, "<p>{}</p>", escaped(&line));
    }
    for (kind, caption, axis) in KINDS {
        curves(&mut body, report, kind, caption, axis)?;
    }
    if let Some(availability) = &report.availability {
        availability_section(&mut body, availability)?;
    }
    if let Some(registration) = &report.registration {
        registration_section(&mut body, registration)?;
    }
    if !report.points.is_empty() {
        let table = page_table(&HEADER, rows(report));
        let notes = escaped(NOTES).replace('\n', "<br>");
        let _ = writeln!(body, "<section><h2>all figures</h2>{table}<p>{notes}</p></section>");
    }
    let _ = writeln!(body, "<footer>ethernot {}</footer>", escaped(&report.version));
    Ok(document(title, "", &body))
}

/// Adds one chart for each operation and window, with a curve for each contender.
fn curves(
    body: &mut String,
    report: &Report,
    kind: &str,
    caption: &str,
    axis: &str,
) -> Result<(), ChartError> {
    let points: Vec<&Measurement> =
        report.points.iter().filter(|point| point.kind == kind).collect();
    let mut names: Vec<&str> = Vec::new();
    let mut shapes = Vec::new();
    for point in &points {
        for one in &point.contenders {
            if !names.contains(&one.name.as_str()) {
                names.push(&one.name);
            }
        }
        if !shapes.contains(&(point.operation, point.window)) {
            shapes.push((point.operation, point.window));
        }
    }
    if points.is_empty() {
        return Ok(());
    }
    let _ = writeln!(body, "<section><h2>{}</h2>", escaped(caption));
    body.push_str(&legend(names.iter().copied().enumerate()));
    body.push_str("<div class=\"charts\">\n");
    for (operation, window) in shapes {
        let chosen: Vec<&Measurement> = points
            .iter()
            .filter(|point| (point.operation, point.window) == (operation, window))
            .copied()
            .collect();
        let series = names.iter().enumerate().map(|(colour, name)| {
            let measured = chosen.iter().filter_map(|point| {
                let one = point.contenders.iter().find(|one| one.name == *name)?;
                curve_point(point, one)
            });
            Series { colour, points: measured.collect() }
        });
        let title = format!("{caption}: {}, window {window}", operation.name());
        if let Some(svg) = chart::draw(&title, axis, &series.collect::<Vec<_>>())? {
            let _ = writeln!(
                body,
                "<figure><figcaption>{}</figcaption>{svg}</figure>",
                escaped(&title)
            );
        }
    }
    body.push_str("</div></section>\n");
    Ok(())
}

fn curve_point(point: &Measurement, one: &Measured) -> Option<Point> {
    let scale = if point.unit == "s" { 1e6 } else { 1e-9 };
    let value = one.value?.scaled(scale);
    Some(Point {
        message_bytes: point.size,
        median: value.median,
        min: value.min,
        max: value.max,
        note: format!("{}, {}: {}", one.name, size(point.size), shown(point, one)),
    })
}

fn facts(report: &Report) -> String {
    let pinning = match (report.pinned_to, report.protocol_on) {
        (Some([client, server]), None) => format!("client on CPU {client}, server on CPU {server}"),
        (Some([client, server]), Some([of_client, of_server])) => format!(
            "client on CPU {client} with its protocol on CPU {of_client}, server on CPU {server} with its protocol on \
             CPU {of_server}"
        ),
        (None, _) => "hosts share all CPUs".to_string(),
    };
    let steering = match &report.steering {
        Steering::On => "packets are processed on the receiver's CPU".to_string(),
        Steering::Off => "packets are processed on the sender's CPU".to_string(),
        Steering::NotWritable(reason) => {
            format!("packets are processed on the sender's CPU, because {reason}")
        }
    };
    let hosts = match (&report.peer, report.mtu) {
        (Some(peer), _) => format!("This host and {peer}"),
        (None, mtu) => {
            format!("Two hosts, MTU {}, {pinning}, {steering}", mtu.unwrap_or_default())
        }
    };
    format!(
        "{hosts}; {} samples of {} s of each point. {}, {} CPUs, Linux {}.",
        report.runs,
        report.sample_seconds,
        report.machine.cpu,
        report.machine.cpus,
        report.machine.kernel,
    )
}

fn devices(report: &Report) -> impl Iterator<Item = String> {
    report.devices.iter().map(|device| match (&device.cannot_run, &device.transport) {
        (Some(reason), _) => format!("{}: not measured: {reason}", device.name),
        (None, Some(transport)) => format!("{}: {transport}", device.name),
        (None, None) => format!("{}: no test used it", device.name),
    })
}

fn rows(report: &Report) -> Vec<[String; HEADER.len()]> {
    let of_point = |point: &Measurement| {
        let rows: Vec<_> = point
            .contenders
            .iter()
            .enumerate()
            .map(|(index, one)| row(point, one, index == 0))
            .collect();
        rows
    };
    report.points.iter().flat_map(of_point).collect()
}

fn row(point: &Measurement, one: &Measured, is_first: bool) -> [String; HEADER.len()] {
    let head = |text: String| if is_first { text } else { String::new() };
    let [kind, bytes, window] = [
        head(format!("{} {}", point.kind, point.operation.name())),
        head(size(point.size)),
        head(point.window.to_string()),
    ];
    let name = one.name.clone();
    if let Some(reason) = &one.cannot_run {
        let [value, mean, polling, blocking, cpu, interrupts] = Default::default();
        let note = format!("cannot run: {reason}");
        return [kind, bytes, window, name, value, mean, polling, blocking, cpu, interrupts, note];
    }
    let ratio = |to: &str| {
        let found = one.ratios.iter().find(|ratio| ratio.to == to);
        found.map_or_else(String::new, |ratio| {
            format!("{} ±{:.0} %", digits(ratio.value.median), ratio.value.spread_percent())
        })
    };
    let mean = one.paper_mean.map_or_else(String::new, |mean| unit(point, mean));
    let both = |shares: [f64; 2]| shares.map(|share| format!("{:.0}", share * 100.0)).join(" / ");
    let surroundings = point.surroundings;
    let busy = (is_first && surroundings.is_busy).then(|| {
        format!("busy: {:.0} %, load {:.1}", surroundings.dry_run_percent, surroundings.load)
    });
    let others = one.ratios.iter().filter(|ratio| !ratio.to.starts_with("tcp-"));
    let others = others.map(|ratio| format!("{} of {}", digits(ratio.value.median), ratio.to));
    let note = others.chain(busy).collect::<Vec<_>>().join("; ");
    [
        kind,
        bytes,
        window,
        name,
        shown(point, one),
        mean,
        ratio("tcp-polling"),
        ratio("tcp-events"),
        both(one.cpu_shares),
        both(one.interrupt_shares),
        note,
    ]
}

/// Formats the median and the spread.
fn shown(point: &Measurement, one: &Measured) -> String {
    one.value.map_or_else(String::new, |value| {
        format!("{} ±{:.0} %", unit(point, value.median), value.spread_percent())
    })
}

fn unit(point: &Measurement, value: f64) -> String {
    if point.unit == "s" { time_ns(value * 1e9) } else { scaled(value, "B/s") }
}

/// Kinds of points, with the captions and axes of their charts.
const KINDS: [(&str, &str, &str); 6] = [
    ("bandwidth", "bandwidth in one direction", "GB/s"),
    ("both-ways", "bandwidth in both directions, added up", "GB/s"),
    ("latency", "latency", "µs"),
    ("mpi-bandwidth", "MPI: bandwidth in one direction", "GB/s"),
    ("mpi-both-ways", "MPI: bandwidth in both directions, added up", "GB/s"),
    ("mpi-latency", "MPI: latency", "µs"),
];

const HEADER: [Column; 11] = [
    ("what", Left),
    ("bytes", Right),
    ("window", Right),
    ("contender", Left),
    ("median", Right),
    ("paper's mean", Right),
    ("to TCP polling", Right),
    ("to TCP blocking", Right),
    ("CPU %", Right),
    ("interrupts %", Right),
    ("notes", Left),
];

const NOTES: &str = "Each value is the median, and after it the mean as in the paper: without the highest and the \
lowest sample; ± half of the distance between the lowest and the highest of the other samples. Each ratio compares two \
samples of the same turn.\nCPU %: CPU time of the programs of client / server, in percent of one CPU; interrupts %: \
time in which the CPU of client / server processed packets that arrived. busy: difference between the \
times of the work alone before and after a sample; a large difference shows that the machine also did other work. MPI: \
a number with the name of a contender is the ratio to that contender.";

#[cfg(test)]
mod tests {
    use bench::machine::Machine;
    use bench::statistics::Summary;
    use bench::verbs::contender::Manner;
    use bench::verbs::figures::{Ratio, Surroundings};
    use bench::verbs::{DeviceRow, Operation};

    use super::*;

    fn measured(name: &str) -> Measured {
        let value = Summary { median: 1e9, min: 0.9e9, max: 1.1e9 };
        let ratio = Summary { median: 1.5, min: 1.4, max: 1.6 };
        Measured {
            name: name.to_string(),
            device: "edge0".to_string(),
            manner: Manner::Polling,
            paper_mean: Some(1.01e9),
            value: Some(value),
            ratios: ["tcp-polling", "mpich-tcp"]
                .map(|to| Ratio { to: to.to_string(), value: ratio, cpu: None })
                .to_vec(),
            cpu_shares: [0.5, 0.25],
            cpu_seconds_per_gigabyte: 1.0,
            interrupt_shares: [0.0, 0.125],
            samples: vec![1e9],
            cannot_run: None,
        }
    }

    fn report() -> Report {
        let mut failed = measured("edge0-events");
        failed.cannot_run = Some("<no> device".to_string());
        let point = Measurement {
            name: "bandwidth-write-65536-16".to_string(),
            kind: "bandwidth".to_string(),
            operation: Operation::Write,
            size: 65_536,
            window: 16,
            unit: "B/s".to_string(),
            contenders: vec![measured("edge0-polling"), failed],
            surroundings: Surroundings { is_busy: true, ..Surroundings::default() },
        };
        Report {
            format: String::new(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine::default(),
            peer: None,
            mtu: Some(1500),
            pinned_to: Some([0, 1]),
            protocol_on: None,
            steering: Steering::NotWritable("read-only".to_string()),
            runs: 10,
            sample_seconds: 0.1,
            devices: vec![DeviceRow {
                name: "mlx5_0".to_string(),
                transport: None,
                cannot_run: Some("there is no device mlx5_0 here".to_string()),
            }],
            points: vec![point],
            availability: None,
            registration: None,
        }
    }

    #[test]
    fn a_case_that_was_not_measured_has_a_reason() {
        let table = verbs_table(&report(), 250);
        for text in [
            "mlx5_0: not measured: there is no device mlx5_0 here",
            "cannot run: <no> device",
            "1.50 ±7 %",
            "1.01 GB/s",
            "50 / 25",
            "0 / 12",
            "1.50 of mpich-tcp; busy: 0 %, load 0.0",
            "because read-only",
        ] {
            assert!(table.contains(text), "{text}: {table}");
        }
    }

    #[test]
    fn the_page_has_a_curve_and_escapes_foreign_markup() {
        let page = verbs_page(&report()).unwrap();
        assert!(
            page.contains("<svg") && page.contains("bandwidth in one direction: write, window 16")
        );
        assert!(page.contains("&lt;no&gt; device") && !page.contains("<no>"));
    }
}

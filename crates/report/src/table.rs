//! The table of a benchmark for a terminal.

use std::fmt::Write;

use bench::machine::Machine;
use bench::results::{Measurement, Results};
use bench::statistics::Summary;
use bench::transport::{Test, counter};
use bench::transports::{BASELINE, YARDSTICK};
use comfy_table::CellAlignment;

use crate::format::{digits, scaled, size, time_ns};
use crate::rows::{Column, terminal_table};

/// Draws one table of all measurements, for a terminal of `columns` columns.
pub fn table(results: &Results, columns: u16) -> String {
    let mut lines = Vec::new();
    for (measurement, row) in results.results.iter().zip(rows(results)) {
        let test = measurement.test;
        if lines.last().is_some_and(|(previous, _)| *previous != test) {
            lines.push((test, [const { String::new() }; HEADER.len()]));
        }
        lines.push((test, row));
    }
    let table = terminal_table(&HEADER, lines.into_iter().map(|(_, row)| row), columns);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", facts(results));
    let _ = writeln!(text, "{table}");
    let _ = writeln!(text, "{}", notes(results));
    text
}

/// Returns the texts of all measurements, one row each.
pub(crate) fn rows(results: &Results) -> Vec<[String; HEADER.len()]> {
    let mut previous = None;
    let row = |measurement: &Measurement| {
        let case = (measurement.test, measurement.message_bytes);
        cells(measurement, previous.replace(case) != Some(case))
    };
    results.results.iter().map(row).collect()
}

/// Returns the texts of a row. Test and size appear only in the first of several rows with the same
/// test and size.
fn cells(measurement: &Measurement, is_new_case: bool) -> [String; HEADER.len()] {
    let case = |text: String| if is_new_case { text } else { String::new() };
    let optional = |value: Option<String>| value.unwrap_or_else(|| "–".to_string());
    [
        case(measurement.test.name().to_string()),
        case(size(measurement.message_bytes)),
        measurement.label(),
        optional(measurement.latency_ns.map(|latency| time_ns(latency.median))),
        rate(measurement),
        optional(measurement.cpu_seconds_per_gigabyte.map(|cpu| digits(cpu.median))),
        optional(to_baseline(measurement)),
        optional(measurement.extra_frame_percent.map(digits)),
        optional(measurement.out_of_order_percent.map(digits)),
        format!("±{:.0} %", primary(measurement).spread_percent()),
    ]
}

fn to_baseline(measurement: &Measurement) -> Option<String> {
    if measurement.transport == BASELINE {
        return Some("1×".to_string());
    }
    Some(format!("{}×", digits(measurement.ratio_to(BASELINE)?.median)))
}

/// Returns the rate in bits per second. In tests about operations, returns operations per second.
fn rate(measurement: &Measurement) -> String {
    match measurement.test {
        Test::OperationRate | Test::ConnectionSetup | Test::ManyConnections => {
            scaled(measurement.operations_per_second.median, "op/s")
        }
        _ => scaled(measurement.bytes_per_second.median * 8.0, "b/s"),
    }
}

/// Returns the quantity by which the repetitions are compared.
fn primary(measurement: &Measurement) -> Summary {
    let latency = measurement.latency_ns.filter(|_| measurement.test.is_about_latency());
    latency.unwrap_or(measurement.operations_per_second)
}

/// Returns the path, the hosts and the settings as two lines. If busy threads ran, a third line
/// says so.
pub(crate) fn facts(results: &Results) -> String {
    let Results { path, client, server, settings, .. } = results;
    let links = match path.links {
        1 => "1 link".to_string(),
        links => format!("{links} links"),
    };
    let mtu = path.mtu.map_or(String::new(), |mtu| format!(", MTU {mtu}"));
    let host =
        |machine: &Machine| format!("{} × {}, Linux {}", machine.cpus, machine.cpu, machine.kernel);
    let hosts = if client == server {
        host(server)
    } else {
        format!("client {} · server {}", host(client), host(server))
    };
    let pinning = if settings.pinned_to.is_some() { ", each side on one CPU" } else { "" };
    let busy = match settings.busy {
        0 => String::new(),
        1 => "\nbeside 1 busy thread".to_string(),
        threads => format!("\nbeside {threads} busy threads"),
    };
    let dropped = match settings.dropped {
        0 => "",
        _ => ", without the highest and the lowest",
    };
    format!(
        "{}, {links}{mtu} · {hosts}\nmedians of {} samples of {:.2} s{dropped}{pinning}{busy}",
        path.kind.description(),
        settings.repetitions,
        settings.sample_seconds,
    )
}

/// Returns explanations of the columns and of the transports.
pub(crate) fn notes(results: &Results) -> String {
    let mut notes = NOTES.to_string();
    // Writing to a string cannot fail.
    for remark in results.results.iter().filter_map(remark) {
        let _ = write!(notes, "\n{remark}");
    }
    for transport in &results.transports {
        let _ = write!(notes, "\n{}: {}", transport.name, transport.description);
    }
    notes
}

/// Returns a sentence about a result that has no column: the comparison with bare datagrams, or the
/// cost of many connections.
fn remark(measurement: &Measurement) -> Option<String> {
    let what = || {
        let (test, label) = (measurement.test.name(), measurement.label());
        format!("{test} {} {label}", size(measurement.message_bytes))
    };
    if let Some(ratio) =
        measurement.ratio_to(YARDSTICK).filter(|_| measurement.transport != BASELINE)
    {
        let kind = if measurement.test.is_about_latency() { "latency" } else { "rate" };
        let [median, min, max] = [ratio.median, ratio.min, ratio.max].map(digits);
        return Some(format!(
            "{}: {median}× the {kind} of bare {YARDSTICK} ({min} to {max})",
            what()
        ));
    }
    let counter = |name: &str| measurement.counters.get(name).copied();
    let bytes = counter(counter::BYTES_PER_IDLE_CONNECTION)?;
    let at_client = counter(counter::CLIENT_BYTES_PER_IDLE_CONNECTION)
        .map_or(String::new(), |bytes| format!(" at the server, {bytes:.0} at the client"));
    let of_samples = measurement.samples.iter().filter_map(|s| s.counters.get(counter::SLOWDOWN));
    let slowdown = Summary::trimmed(of_samples.copied())
        .map(|slowdown| slowdown.median)
        .or_else(|| counter(counter::SLOWDOWN))
        .map_or(String::new(), |slowdown| {
            format!(", {}× the latency of a connection alone", digits(slowdown))
        });
    Some(format!("{}: {bytes:.0} bytes per idle connection{at_client}{slowdown}", what()))
}

const NOTES: &str = "\
latency: median time of an operation (ping-pong: half of a round trip). rate: payload in both
directions. CPU s/GB: CPU seconds of both processes per 10^9 payload bytes. to tcp: ratio to tcp in
the same repetition; in ping-pong and set-up the ratio of latencies (less is better), otherwise the
ratio of rates. spread: half of the distance between the highest and the lowest value, in percent of
the median. extra: acknowledgements and retransmissions per data frame. ooo: frames out of order.";

/// Names and alignments of the columns.
pub(crate) const HEADER: [Column; 10] = [
    ("test", CellAlignment::Left),
    ("size", CellAlignment::Right),
    ("transport", CellAlignment::Left),
    ("latency", CellAlignment::Right),
    ("rate", CellAlignment::Right),
    ("CPU s/GB", CellAlignment::Right),
    ("to tcp", CellAlignment::Right),
    ("extra %", CellAlignment::Right),
    ("ooo %", CellAlignment::Right),
    ("spread", CellAlignment::Right),
];

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bench::results::{FORMAT, PathFacts, PathKind, Ratio, Settings, TransportFacts};
    use bench::transport::Waiting;

    #[test]
    fn a_row_fits_into_100_columns() {
        for line in table(&results(), 100).lines() {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }

    #[test]
    fn a_row_is_one_line_and_shows_the_measurement() {
        let text = table(&results(), 100);
        let row = text.lines().find(|line| line.contains("edge ×2")).unwrap();
        for part in ["3.65 µs", "27.4 Gb/s", "0.640", "0.250×", "4.30", "12.5", "±10 %"] {
            assert!(row.contains(part), "{part} in {row}");
        }
    }

    #[test]
    fn busy_threads_are_shown() {
        let facts_text = facts(&results());
        assert!(
            facts_text.ends_with("each side on one CPU\nbeside 2 busy threads"),
            "{facts_text}"
        );
    }

    #[test]
    fn remarks_compare_with_datagrams_and_with_one_connection() {
        let mut results = results();
        let remarks = notes(&results);
        assert!(remarks.contains("ping-pong 256 KiB edge ×2: 0.250× the latency of bare udp"));
        for measurement in &mut results.results {
            measurement.ratios.clear();
        }
        results.results.push(one(Test::ManyConnections, "edge", 2));
        results.results.last_mut().unwrap().ratios.clear();
        let wanted = "many-connections 256 KiB edge ×2: 3000 bytes per idle connection, 1.05× the";
        assert!(notes(&results).contains(wanted), "{}", notes(&results));
    }

    /// Returns results with a row of the greatest possible width.
    pub(crate) fn results() -> Results {
        Results {
            format: FORMAT.to_string(),
            version: "0.0.0".to_string(),
            unix_seconds: 0,
            path: PathFacts { kind: PathKind::Namespaces, links: 2, mtu: Some(1500) },
            client: Machine::default(),
            server: Machine::default(),
            settings: Settings {
                repetitions: 10,
                dropped: 2,
                sample_seconds: 0.1,
                in_flight: 64,
                pinned_to: Some([0, 1]),
                busy: 2,
            },
            transports: vec![TransportFacts { name: "edge".into(), description: "it".into() }],
            results: [Test::PingPong, Test::ConnectionSetup]
                .into_iter()
                .flat_map(|test| [("tcp-poll", 1), ("edge", 2)].map(|(t, l)| one(test, t, l)))
                .collect(),
        }
    }

    fn about(median: f64) -> Summary {
        Summary { median, min: median * 0.9, max: median * 1.1 }
    }

    fn ratio(to: &str) -> Ratio {
        Ratio {
            to: to.to_string(),
            latency: Some(about(0.25)),
            throughput: Some(about(1.6)),
            cpu: Some(about(0.9)),
        }
    }

    fn one(test: Test, transport: &str, links: u32) -> Measurement {
        Measurement {
            test,
            transport: transport.to_string(),
            links,
            waiting: Waiting::Poll,
            message_bytes: 256 << 10,
            latency_ns: Some(about(3650.0)),
            latency_p99_ns: Some(about(9000.0)),
            bytes_per_second: about(27.4e9 / 8.0),
            operations_per_second: about(1.5e6),
            cpu_seconds_per_gigabyte: Some(about(0.64)),
            softirq_cpu_seconds_per_gigabyte: Some(about(0.01)),
            extra_frame_percent: Some(4.3),
            out_of_order_percent: Some(12.5),
            ratios: ["tcp", "udp"].map(ratio).into(),
            counters: [
                (counter::BYTES_PER_IDLE_CONNECTION.to_string(), 3000.0),
                (counter::SLOWDOWN.to_string(), 1.05),
            ]
            .into(),
            samples: vec![],
        }
    }
}

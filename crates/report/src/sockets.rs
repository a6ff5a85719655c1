//! Shows measurements of ordinary sockets over kernel TCP and over the edge: a table for a
//! terminal.

use std::fmt::Write;

use bench::results::PathKind;
use bench::sockets::{Contender, Figure, Report, Row, Test};
use comfy_table::CellAlignment::{Left, Right};

use crate::format::{digits, scaled, size};
use crate::rows::{Column, terminal_table};

/// Draws one table for each MTU, for a terminal of `columns` columns. Below the tables, lists the
/// samples that do not count, with the reasons.
pub fn sockets_table(report: &Report, columns: u16) -> String {
    let mut text = format!("{}\n\n", conditions(report));
    for mtu in mtus(report) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "MTU {mtu}");
        let table = terminal_table(&HEADER, rows(report, mtu), columns);
        let _ = writeln!(text, "{table}\n");
    }
    for line in refusals(report) {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "{NOTES}");
    text
}

/// Returns the hosts and settings of the measurement as text.
pub(crate) fn conditions(report: &Report) -> String {
    let path = match report.path {
        PathKind::Namespaces => {
            "a server and three hosts with clients, in network namespaces at one switch"
        }
        PathKind::Loopback => "the loopback interface",
        PathKind::Peer => "two hosts",
    };
    let settings = &report.settings;
    let mut text = format!(
        "{path}; {} ({} CPUs), Linux {}.\n{} samples of {} s for each value, taken of all \
         contenders in turn; {} are dropped, and the mean of the others counts.",
        report.machine.cpu,
        report.machine.cpus,
        report.machine.kernel,
        settings.repetitions,
        settings.sample_seconds,
        settings.dropped,
    );
    if let Some(iterations) = report.iterations {
        let _ = write!(
            text,
            " Samples of latency and throughput have {iterations} iterations instead of this time."
        );
    }
    if let Some(rate) = report.rate {
        let _ = write!(text, " Links of {}.", scaled(rate as f64, "b/s"));
    }
    if report.is_quick {
        text.push_str(" A quick run: the papers have 10 samples, and more sizes and clients.");
    }
    if let Some(reason) = &report.no_library {
        let _ = write!(text, "\nOver the edge, only the native API was measured: {reason}.");
    }
    text
}

/// Returns the measured MTUs in the order of their measurement.
pub(crate) fn mtus(report: &Report) -> Vec<u32> {
    let mut mtus: Vec<u32> = report.rows.iter().map(|row| row.mtu).collect();
    mtus.dedup();
    mtus
}

/// Returns the samples that do not count, one line for each reason.
pub(crate) fn refusals(report: &Report) -> impl Iterator<Item = String> {
    report.refused.iter().map(|refused| {
        let (samples, what) = (refused.samples, &refused.what);
        format!("does not count: {what} ({samples} samples): {}", refused.reason)
    })
}

/// Returns the texts of all rows of an MTU.
pub(crate) fn rows(report: &Report, mtu: u32) -> Vec<[String; HEADER.len()]> {
    let mut previous = None;
    let of_mtu = report.rows.iter().filter(|row| row.mtu == mtu);
    let row = |row: &Row| {
        let case = (row.test, row.message_bytes, row.clients);
        cells(row, previous.replace(case) != Some(case))
    };
    of_mtu.map(row).collect()
}

fn cells(row: &Row, is_new: bool) -> [String; HEADER.len()] {
    let case = |text: String| if is_new { text } else { String::new() };
    let none = || "–".to_string();
    let mean = |figure: Option<Figure>| figure.map_or_else(none, |figure| digits(figure.mean));
    let ratio = |to: Contender| row.ratio_to(to).map(|ratio| ratio.value);
    let range = ratio(Contender::Tcp)
        .map_or_else(none, |figure| format!("{}–{}", digits(figure.min), digits(figure.max)));
    let result = row.value().map_or_else(none, |figure| {
        let is_time = row.test.is_about_time();
        let time = || format!("{} µs", digits(figure.mean));
        if is_time { time() } else { scaled(figure.mean * 8.0, "b/s") }
    });
    let clients = if row.test.has_clients() { row.clients.to_string() } else { String::new() };
    let bytes = if row.test == Test::Connection { none() } else { size(row.message_bytes) };
    [
        case(row.test.name().to_string()),
        case(bytes),
        case(clients),
        row.contender.name().to_string(),
        result,
        mean(ratio(Contender::Tcp)),
        range,
        mean(ratio(Contender::TcpPoll)),
        mean(row.latency_p99_us.or(row.first_answer_us)),
        mean(row.upgrade_us),
        mean(row.cpu_percent),
        mean(row.client_cpu_percent),
        mean(row.server_cpu_percent),
        mean(row.fairness),
    ]
}

pub(crate) const HEADER: [Column; 14] = [
    ("test", Left),
    ("size", Left),
    ("clients", Right),
    ("over", Left),
    ("result", Right),
    ("× tcp", Right),
    ("from–to", Right),
    ("× tcp-poll", Right),
    ("p99 µs", Right),
    ("moved µs", Right),
    ("CPU %", Right),
    ("client", Right),
    ("server", Right),
    ("fair", Right),
];

/// An explanation of the columns.
pub(crate) const NOTES: &str = "result: time of a message in one direction (latency, hot-spot), payload of all clients \
(throughput and others), or time of the call of connect (connection). × tcp: result divided by the result of kernel \
TCP in the same turn; from–to: range of these ratios. p99: time of a message in one direction; for connection, time \
until the first byte is answered.\nmoved: time until a connection had moved to the edge, if the library counts it. \
CPU: time of all processes and of softirq threads, in percent of one processor; client, server: time of only the \
processes of the clients, and of only the server. fair: Jain's index of the clients' rates.\nThe smallest message of \
native has 8 bytes. Threads of native poll.";

#[cfg(test)]
pub(crate) mod tests {
    use bench::machine::Machine;
    use bench::results::Settings;
    use bench::sockets::figures::Sample;
    use bench::sockets::{FORMAT, Ratio, Refused};

    use super::*;

    /// Returns a report with every test and contender. Each test has one or two sizes or numbers of
    /// clients.
    pub(crate) fn report() -> Report {
        let mut rows = Vec::new();
        for test in Test::ALL {
            for number in [1, 12] {
                for contender in Contender::ALL {
                    rows.push(row(test, number, contender));
                }
            }
        }
        Report {
            format: FORMAT.to_string(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine { cpu: "<cpu>".to_string(), cpus: 2, kernel: "6".to_string() },
            path: PathKind::Namespaces,
            settings: Settings {
                repetitions: 3,
                dropped: 2,
                sample_seconds: 0.1,
                in_flight: 16,
                pinned_to: None,
                busy: 0,
            },
            iterations: Some(100_000),
            rate: Some(10_000_000_000),
            is_quick: true,
            no_library: None,
            rows,
            refused: vec![Refused {
                what: "latency 1 B, sockets".to_string(),
                reason: "0 of 1 connections <moved>".to_string(),
                samples: 3,
            }],
        }
    }

    fn row(test: Test, number: u32, contender: Contender) -> Row {
        let value = f64::from(number) * (1.0 + contender as u32 as f64);
        let figure = Figure { mean: value, min: value * 0.9, max: value * 1.1 };
        let rate = Figure { mean: value * 1e9, min: value * 0.9e9, max: value * 1.1e9 };
        let (bytes, clients) = if test.has_sizes() { (number, 1) } else { (1, number) };
        Row {
            test,
            mtu: 1500,
            message_bytes: u64::from(bytes),
            clients,
            contender,
            latency_us: Some(figure),
            latency_p99_us: None,
            bytes_per_second: Some(rate),
            operations_per_second: Some(rate),
            connect_us: Some(figure),
            first_answer_us: None,
            upgrade_us: None,
            fairness: test.has_clients().then_some(Figure { mean: 0.9, min: 0.8, max: 1.0 }),
            cpu_percent: Some(figure),
            client_cpu_percent: Some(figure),
            server_cpu_percent: Some(figure),
            ratios: vec![Ratio { to: Contender::Tcp, value: figure, cpu: None }],
            samples: vec![Sample::default()],
        }
    }

    #[test]
    fn the_table_marks_samples_that_do_not_count() {
        let text = sockets_table(&report(), 160);
        assert!(text.contains("hot-spot") && text.contains("tcp-poll"), "{text}");
        assert!(text.contains("does not count: latency 1 B, sockets (3 samples)"), "{text}");
        assert!(text.contains("A quick run"), "{text}");
    }

    #[test]
    fn the_unit_matches_the_test() {
        let report = report();
        let found = rows(&report, 1500);
        let of = |test: Test| found.iter().find(|row| row[0] == test.name()).unwrap();
        assert!(of(Test::Latency)[4].ends_with("µs") && of(Test::FanIn)[4].ends_with("b/s"));
    }
}

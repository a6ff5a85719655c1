//! Shows measurements of Ganglia over kernel TCP and over the edge: a table for a terminal, and a
//! page with the same charts as in the papers.

use std::fmt::Write;

use bench::ganglia::{PARALLEL, Report, SEQUENTIAL};
use bench::unmodified::figures::{Case, Quantity};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::ChartError;
use crate::format::date;
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};
use crate::unmodified::{Axes, cells, counted, figure, ratio_of, way, ways};

/// Draws a table for a terminal of `columns` columns, with one row for each number of hosts and
/// gathering order.
pub fn ganglia_table(report: &Report, columns: u16) -> String {
    let table = terminal_table(&HEADER, rows(report), columns);
    format!("{}\n{table}\n{NOTES}\n", facts(report))
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn ganglia_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: Ganglia over the edge";
    let mut body = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&facts(report)),
    );
    for (group, what) in GROUPS {
        let of_group = report.cases.iter().filter(|case| case.group == group);
        let cases: Vec<(u64, &Case)> = of_group.map(|case| (case.at as u64, case)).collect();
        if cases.is_empty() {
            continue;
        }
        let _ = writeln!(body, "<section><h2>{group}</h2><p>{what}</p>");
        body.push_str(&legend(ways(report.other).into_iter().enumerate()));
        body.push_str("<div class=\"charts\">\n");
        for (quantity, name) in CHARTS {
            let title = format!("{group}: {name}");
            body.push_str(&figure(&Axes { title: &title, x: "hosts", quantity }, &cases)?);
        }
        body.push_str("</div></section>\n");
    }
    let _ = writeln!(
        body,
        "<section><h2>all figures</h2>{}</section>\n<footer>{} ethernot {}</footer>",
        page_table(&HEADER, rows(report)),
        escaped(NOTES).replace('\n', "<br>"),
        escaped(&report.version)
    );
    Ok(document(title, "", &body))
}

fn facts(report: &Report) -> String {
    let pinning = match report.pinned_to {
        Some([client, server]) => format!("gatherer on CPU {client}, all hosts on CPU {server}"),
        None => "not pinned".to_string(),
    };
    format!(
        "gmond on hosts at one switch, {} metrics in answers of {} to {} bytes, MTU {}, {pinning}; \
         {} samples of {} s for each way. Kernel TCP against {}; the library in all gmonds: {}. \
         {}, {} CPUs, Linux {}.",
        report.metrics,
        report.answer_bytes[0],
        report.answer_bytes[1],
        report.mtu,
        report.repetitions,
        report.sample_seconds,
        report.other.name(),
        counted(&report.server_path),
        report.machine.cpu,
        report.machine.cpus,
        report.machine.kernel,
    )
}

fn rows(report: &Report) -> Vec<[String; HEADER.len()]> {
    let mut previous = None;
    let row = |case: &Case| {
        let is_new = previous.replace(case.group.clone()) != Some(case.group.clone());
        row(case, is_new)
    };
    report.cases.iter().map(row).collect()
}

fn row(case: &Case, is_new: bool) -> [String; HEADER.len()] {
    let [rate_tcp, rate_other, rate] = cells(case, Quantity::PerSecond);
    let [tail_tcp, tail_other, _] = cells(case, Quantity::LatencyP99Us);
    let [connect_tcp, connect_other, connect] = cells(case, Quantity::ConnectUs);
    let [answer_tcp, answer_other, answer] = cells(case, Quantity::AnswerUs);
    [
        if is_new { case.group.clone() } else { String::new() },
        format!("{}", case.at),
        rate_tcp,
        rate_other,
        rate,
        connect_tcp,
        connect_other,
        connect,
        answer_tcp,
        answer_other,
        answer,
        tail_tcp,
        tail_other,
        ratio_of(case, Quantity::ServerCpuUs),
        way(case),
    ]
}

const HEADER: [Column; 15] = [
    ("hosts asked", Left),
    ("hosts", Right),
    ("gathers/s tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("connect µs tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("answer µs tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("99 % µs tcp", Right),
    ("other", Right),
    ("host CPU", Right),
    ("way", Left),
];

/// Quantities and axis titles of the charts, as in the papers.
const CHARTS: [(Quantity, &str); 4] = [
    (Quantity::PerSecond, "gathers per second"),
    (Quantity::LatencyP50Us, "time of a gather"),
    (Quantity::ConnectUs, "connect() of one host"),
    (Quantity::AnswerUs, "answer of one host"),
];

const GROUPS: [(&str, &str); 2] = [
    (
        SEQUENTIAL,
        "The gatherer asks all hosts, one after the other. Each host has a separate connection, \
         which ends with the answer. The paper has at most three servers. 16 hosts, gathers per \
         second and the parts of a gather are our additions.",
    ),
    (PARALLEL, "The gatherer asks all hosts at the same time, each over a separate connection."),
];

const NOTES: &str = "ratio: value with the other way divided by the value with kernel TCP, for each sample; ± half of \
the distance between the lowest and the highest ratio. connect and answer: medians for one host; 99 %: time of a whole \
gather.\nhost CPU: ratio of the CPU times of all gmonds for each gather. way: counters of the library in the gatherer, \
with the other way; NOT SHOWN if the counters of a sample do not show that its connections took this way.";

#[cfg(test)]
mod tests {
    use bench::machine::Machine;
    use bench::unmodified::way::{PathTaken, Way};

    use super::*;
    use crate::unmodified::tests::case;

    #[test]
    fn table_and_page_have_every_case() {
        let cases = [(SEQUENTIAL, 1.0), (SEQUENTIAL, 16.0), (PARALLEL, 16.0)];
        let report = Report {
            format: String::new(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine::default(),
            other: Way::Edge,
            repetitions: 1,
            metrics: 32,
            answer_bytes: [11_900, 12_100],
            sample_seconds: 1,
            mtu: 1500,
            pinned_to: None,
            server_path: PathTaken::default(),
            cases: cases.map(|(group, at)| case(group, "name", at)).to_vec(),
        };
        let table = ganglia_table(&report, 220);
        assert_eq!(table.matches("sequential").count(), 1, "{table}");
        assert!(table.contains("parallel") && table.contains("8 moved"), "{table}");
        assert_eq!(ganglia_page(&report).unwrap().matches("<svg").count(), 8);
    }
}

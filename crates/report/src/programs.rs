//! Shows measurements of a suite of unmodified programs over kernel TCP and over the edge: a table
//! for a terminal, and a page.

use std::fmt::Write;

use bench::programs::Report;
use bench::unmodified::figures::Case;
use comfy_table::CellAlignment::{Left, Right};

use crate::format::date;
use crate::page::{document, escaped};
use crate::rows::{Column, page_table, terminal_table};
use crate::unmodified::{cells, way};

/// Draws a table with a row for each figure, for a terminal of `columns` columns.
pub fn programs_table(report: &Report, columns: u16) -> String {
    let table = terminal_table(&HEADER, rows(report), columns);
    format!("{}\n{table}\n{NOTES}\n", facts(report))
}

/// Makes a self-contained HTML page of the report.
pub fn programs_page(report: &Report) -> String {
    let title = "Ethernot: unmodified programs over the edge";
    let mut body = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>\n<section>{}</section>\n<footer>{} ethernot {}</footer>",
        escaped(&date(report.unix_seconds)),
        escaped(&facts(report)),
        page_table(&HEADER, rows(report)),
        escaped(NOTES).replace('\n', "<br>"),
        escaped(&report.version)
    );
    document(title, "", &body)
}

fn facts(report: &Report) -> String {
    let pinning = match report.pinned_to {
        Some([client, server]) => format!("client on CPU {client}, server on CPU {server}"),
        None => "not pinned".to_string(),
    };
    format!(
        "Two hosts, MTU {}, {pinning}; {} samples of {} s for each way. {}, {} CPUs, Linux {}.",
        report.mtu,
        report.repetitions,
        report.sample_seconds,
        report.machine.cpu,
        report.machine.cpus,
        report.machine.kernel,
    )
}

fn rows(report: &Report) -> Vec<[String; HEADER.len()]> {
    report.cases.iter().flat_map(rows_of).collect()
}

/// Returns a row for each figure of a case. If the case has no figures, returns a row with the
/// reason.
fn rows_of(case: &Case) -> Vec<[String; HEADER.len()]> {
    let head = |is_first: bool, text: String| if is_first { text } else { String::new() };
    let name = || [case.name.clone(), case.other.name().to_string()];
    if case.figures.is_empty() {
        let [name, other] = name();
        let [quantity, unit, tcp, value, ratio] = Default::default();
        return vec![[name, other, quantity, unit, tcp, value, ratio, way(case)]];
    }
    let row = |(index, figure): (usize, &bench::unmodified::figures::Figure)| {
        let is_first = index == 0;
        let [name, other] = name().map(|text| head(is_first, text));
        let [tcp, value, ratio] = cells(case, figure.quantity);
        let unit = if figure.unit == "B/s" { String::new() } else { figure.unit.clone() };
        let quantity = figure.quantity.name().to_string();
        [name, other, quantity, unit, tcp, value, ratio, head(is_first, way(case))]
    };
    case.figures.iter().enumerate().map(row).collect()
}

const HEADER: [Column; 8] = [
    ("case", Left),
    ("against tcp", Left),
    ("what", Left),
    ("unit", Left),
    ("tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("way", Left),
];

const NOTES: &str = "ratio: value with the other way divided by the value with kernel TCP, for each sample; ± half of \
the distance between the lowest and the highest ratio. way: counters of the library in the client, with the other \
way;\nNOT SHOWN if the counters of a sample do not show that its connections took this way. With client-only, \
server-only, left-alone and default, connections stay with kernel TCP: their ratios show the cost of the library.";

#[cfg(test)]
mod tests {
    use bench::machine::Machine;

    use super::*;
    use crate::unmodified::tests::case;

    #[test]
    fn every_figure_has_a_row_or_a_reason_why_it_did_not_run() {
        let mut failed = case("nginx", "wrk-256K", 0.0);
        failed.figures.clear();
        failed.cannot_run = Some("wrk is not installed".to_string());
        let report = Report {
            format: String::new(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine::default(),
            repetitions: 1,
            sample_seconds: 1,
            mtu: 1500,
            pinned_to: None,
            cases: vec![case("nginx", "wrk-16K", 0.0), failed],
        };
        let table = programs_table(&report, 160);
        assert!(table.contains("throughput") && table.contains("99 % latency"), "{table}");
        assert!(table.contains("cannot run: wrk is not installed"), "{table}");
        assert!(programs_page(&report).contains("wrk-16K"));
    }
}

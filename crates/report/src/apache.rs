//! Shows measurements of Apache over kernel TCP and over the edge: a table for a terminal, and a
//! page with the same charts as in the papers.

use std::fmt::Write;

use bench::apache::{ApacheCase, FILE_GROUP, Report, ZIPF_GROUP};
use bench::unmodified::figures::{Case, Quantity};
use comfy_table::CellAlignment::{Left, Right};

use crate::chart::ChartError;
use crate::format::{date, digits, size};
use crate::page::{document, escaped, legend};
use crate::rows::{Column, page_table, terminal_table};
use crate::unmodified::{Axes, cells, counted, figure, ratio_of, way, ways};

/// Draws a table for a terminal of `columns` columns, with one row for each file size and each
/// trace.
pub fn apache_table(report: &Report, columns: u16) -> String {
    let table = terminal_table(&HEADER, rows(report), columns);
    format!("{}\n{table}\n{NOTES}\n", facts(report))
}

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn apache_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: Apache over the edge";
    let mut body = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&facts(report)),
    );
    for (group, what) in GROUPS {
        let of_group = |found: &&ApacheCase| found.case.group == group;
        let cases: Vec<(u64, &Case)> = report
            .cases
            .iter()
            .filter(of_group)
            .map(|found| (found.mean_bytes.round() as u64, &found.case))
            .collect();
        if cases.is_empty() {
            continue;
        }
        let _ = writeln!(body, "<section><h2>{group}</h2><p>{}</p>", escaped(what));
        body.push_str(&legend(ways(report.other).into_iter().enumerate()));
        body.push_str("<div class=\"charts\">\n");
        for (quantity, name) in CHARTS {
            let title = format!("{group}: {name}");
            let axes = Axes { title: &title, x: "mean transfer (bytes)", quantity };
            body.push_str(&figure(&axes, &cases)?);
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
        Some([client, server]) => format!("clients on CPU {client}, server on CPU {server}"),
        None => "not pinned".to_string(),
    };
    let kept = if report.closes { "one for each request" } else { "kept" };
    format!(
        "Apache {} and wrk on {} hosts with {} connections ({kept}), MTU {}, {pinning}; {} samples \
         of {} s for each way; {} files compared over both ways. Kernel TCP against {}; the \
         library in the server: {}. {}, {} CPUs, Linux {}.",
        report.mpm.name(),
        report.client_hosts,
        report.connections,
        report.mtu,
        report.repetitions,
        report.sample_seconds,
        report.files_verified,
        report.other.name(),
        counted(&report.server_path),
        report.machine.cpu,
        report.machine.cpus,
        report.machine.kernel,
    )
}

fn rows(report: &Report) -> Vec<[String; HEADER.len()]> {
    report.cases.iter().map(row).collect()
}

fn row(found: &ApacheCase) -> [String; HEADER.len()] {
    let case = &found.case;
    let name = if case.group == FILE_GROUP {
        format!("file of {}", size(case.at as u64))
    } else {
        format!("Zipf α {}", case.at)
    };
    let [rate_tcp, rate_other, rate] = cells(case, Quantity::PerSecond);
    let [bytes_tcp, bytes_other, _] = cells(case, Quantity::BytesPerSecond);
    let [tail_tcp, tail_other, tail] = cells(case, Quantity::LatencyP99Us);
    [
        name,
        format!("{} K", digits(found.mean_bytes / 1024.0)),
        rate_tcp,
        rate_other,
        rate,
        bytes_tcp,
        bytes_other,
        tail_tcp,
        tail_other,
        tail,
        ratio_of(case, Quantity::ServerCpuUs),
        ratio_of(case, Quantity::ClientCpuUs),
        way(case),
    ]
}

const HEADER: [Column; 13] = [
    ("what", Left),
    ("mean", Right),
    ("req/s tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("tcp", Right),
    ("other", Right),
    ("99 % µs tcp", Right),
    ("other", Right),
    ("ratio", Right),
    ("server CPU", Right),
    ("client CPU", Right),
    ("way", Left),
];

/// Quantities and axis titles of the charts, as in the papers.
const CHARTS: [(Quantity, &str); 4] = [
    (Quantity::PerSecond, "requests per second"),
    (Quantity::BytesPerSecond, "throughput"),
    (Quantity::LatencyP99Us, "99 % latency"),
    (Quantity::ServerCpuUs, "CPU time of the server for each request"),
];

const GROUPS: [(&str, &str); 2] = [
    (
        FILE_GROUP,
        "All requests are for one file. The slides also draw requests per second for single files, \
         with a TCP offload engine and with the host's own stack. They print no file sizes, so 1 \
         KiB to 2 MiB are our choice.",
    ),
    (
        ZIPF_GROUP,
        "Requests for 100 files of 1 KiB to 1 MiB. The size of a file grows with its rank, and its \
         popularity is proportional to 1 / rank^α. With α of 0.1, 0.25, 0.5, 0.75, 0.9 and 1.2, \
         the mean transfer is 139, 120, 89, 60, 45 and 22 KiB. The axis shows the mean transfer, \
         so α falls from left to right.",
    ),
];

const NOTES: &str = "ratio: value with the other way divided by the value with kernel TCP, for each sample; ± half of \
the distance between the lowest and the highest ratio. CPU: ratio of the CPU times for each request.\nway: counters of \
the library in wrk, with the other way; NOT SHOWN if the counters of a sample do not show that its connections took \
this way.";

#[cfg(test)]
mod tests {
    use bench::machine::Machine;
    use bench::unmodified::apache_server::Mpm;
    use bench::unmodified::way::{PathTaken, Way};

    use super::*;
    use crate::unmodified::tests::case;

    #[test]
    fn table_and_page_have_every_case() {
        let report = Report {
            format: String::new(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine { cpu: "<b>".to_string(), ..Machine::default() },
            other: Way::Edge,
            mpm: Mpm::Event,
            connections: 8,
            client_hosts: 3,
            closes: false,
            repetitions: 1,
            sample_seconds: 1,
            mtu: 1500,
            pinned_to: None,
            files_verified: 2,
            server_path: PathTaken::default(),
            cases: vec![
                ApacheCase { mean_bytes: 1024.0, case: case(FILE_GROUP, "file-1024", 1024.0) },
                ApacheCase { mean_bytes: 61440.0, case: case(ZIPF_GROUP, "zipf-0.75", 0.75) },
            ],
        };
        let table = apache_table(&report, 200);
        assert!(table.contains("file of 1 KiB") && table.contains("Zipf α 0.75"), "{table}");
        let page = apache_page(&report).unwrap();
        assert_eq!(page.matches("<svg").count(), 8);
        assert!(page.contains("&lt;b&gt;") && !page.contains("<b>"), "{page}");
    }
}

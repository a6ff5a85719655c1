//! `ethernot sim paper`: simulates a published study again.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use interconnect::paper::Reproduction;
use interconnect::paper::configurations::Configurations;
use interconnect::paper::prices::Cost;
use interconnect::paper::reference::{COLUMNS, Interconnect};
use interconnect::paper::results::{Cell, Curve, Token};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::write_results;

/// Simulate a published study again, and compare its tables and figures with the models.
///
/// If a number differs by more than a tenth from the printed number, prints the reason. The results
/// depend only on the models, not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim paper sandia1999\n  \
    ethernot sim paper sandia1999 --json sandia1999.json")]
pub(crate) struct Arguments {
    /// The study
    study: Study,
    /// Write the results as JSON; `-` for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Study {
    /// Cost/Performance Evaluation of Gigabit Ethernet and Myrinet as Cluster Interconnect
    Sandia1999,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Study::Sandia1999 = arguments.study;
    let start = Instant::now();
    let result = Reproduction::new(&Configurations::default())?;
    let seconds = start.elapsed().as_secs_f64();
    let json = || Ok(format!("{:#}", to_json(&result, seconds)));
    write_results(arguments.json.as_deref(), json, || text(&result, seconds))
}

/// Returns all results as text. Writing to a `String` cannot fail, so the results of `writeln!` are
/// ignored.
fn text(result: &Reproduction, seconds: f64) -> String {
    let mut text = String::new();
    text.push_str(
        "Chen, Wyckoff, Moor (Sandia, 1999): Cost/Performance Evaluation of Gigabit Ethernet and \
         Myrinet as Cluster Interconnect\nTimes in us. The heading sigma^2 of the paper means the \
         standard deviation sigma.\n\n",
    );
    table1(&mut text, result);
    table2(&mut text, result);
    figures(&mut text, result);
    cost_table(&mut text, result);
    let _ = writeln!(
        text,
        "\nresult hash {:016x}; {} events in {seconds:.2} s",
        result.hash, result.events
    );
    text
}

fn table1(text: &mut String, result: &Reproduction) {
    let _ = writeln!(text, "Table 1: token_pass, 1 byte (model / paper), and 15 MB");
    for token in &result.tokens {
        let _ = write!(text, "  {:18}", token.interconnect.name());
        for ((model, paper), column) in token.model.iter().zip(token.paper).zip(COLUMNS) {
            let _ = write!(text, " {column} {model:.3} / {paper:.3} ");
        }
        let Token { model_mbps, theory_mbps, .. } = token;
        let _ = writeln!(text, "  {model_mbps:.1} Mb/s of {theory_mbps:.1} in theory");
    }
    let _ = writeln!(text, "  {} of 12 as printed\n", result.table1_exact());
}

fn table2(text: &mut String, result: &Reproduction) {
    let _ = writeln!(text, "Table 2: mesh (model / paper, error)");
    for interconnect in Interconnect::ALL {
        let _ = writeln!(text, "  {}", interconnect.name());
        let cells: Vec<&Cell> = result.cells_of(interconnect).collect();
        for row in cells.chunks(COLUMNS.len()) {
            let bytes = row.first().map_or(0, |cell| cell.bytes);
            let _ = write!(text, "  {bytes:6} B");
            for cell in row {
                let _ = write!(
                    text,
                    "  {:7.2} /{:7.2} {:+5.1}%",
                    cell.model,
                    cell.paper,
                    cell.error_percent()
                );
            }
            text.push('\n');
        }
        let _ =
            writeln!(text, "    RMS log error {:.1} %", result.rms_log_error_percent(interconnect));
    }
    let [one, five, ten, fifteen, twenty] =
        [1.0, 5.0, 10.0, 15.0, 20.0].map(|percent| result.cells_within(percent));
    let _ = writeln!(
        text,
        "  of {} cells, {one} are within 1 %, {five} within 5 %, {ten} within 10 %, {fifteen} \
         within 15 %, {twenty} within 20 %; of 21 minima, {} are as printed",
        result.cells.len(),
        result.minima_exact()
    );
    let _ = writeln!(text, "  Cells that differ by more than 10 %:");
    for (cell, reason) in result.cells.iter().filter_map(|cell| Some((cell, cell.reason()?))) {
        let _ = writeln!(
            text,
            "    {} {} B {}: {:.2} for {:.2} ({:+.0} %): {reason}",
            cell.interconnect.name(),
            cell.bytes,
            COLUMNS.get(cell.column).unwrap_or(&"?"),
            cell.model,
            cell.paper,
            cell.error_percent()
        );
    }
}

fn figures(text: &mut String, result: &Reproduction) {
    let _ = writeln!(
        text,
        "\nFigures 5 and 6: completion of mesh in us, by host overhead as a share of today's"
    );
    for curve in &result.curves {
        let _ = write!(text, "  {:18}{:5} B", curve.interconnect.name(), curve.bytes);
        for (share, time_us) in &curve.points {
            let _ = write!(text, "  {share}: {time_us:.0}");
        }
        let _ = writeln!(text, "  knee {:.1} %", curve.knee * 100.0);
    }
    let _ = writeln!(text, "  Statements of the paper:");
    for statement in &result.statements {
        let verdict = if statement.holds { "yes" } else { "NO " };
        let note = statement.note.map(|note| format!(" ({note})")).unwrap_or_default();
        let _ = writeln!(
            text,
            "    {verdict} {}: {}: {}{note}",
            statement.figure, statement.text, statement.model
        );
    }
}

fn cost_table(text: &mut String, result: &Reproduction) {
    let _ = writeln!(text, "\nCost of 256 nodes, US dollars of 1999");
    for cost in &result.costs {
        let Cost { interconnect, bill, formula, quoted_thousands } = cost;
        let lines: Vec<String> = bill
            .lines
            .iter()
            .map(|line| format!("{} x {} at {}", line.count, line.part.name, line.part.price))
            .collect();
        let _ = writeln!(
            text,
            "  {:18}{} (paper: {formula}, quoted {quoted_thousands} K) = {}",
            interconnect.name(),
            bill.total(),
            lines.join(" + ")
        );
    }
    for finding in &result.findings {
        let _ = writeln!(text, "  Finding: {finding}");
    }
}

fn to_json(result: &Reproduction, seconds: f64) -> Value {
    let rms = |interconnect| result.rms_log_error_percent(interconnect);
    let expected_statements = result.statements.iter().filter(|statement| statement.holds).count();
    let exact_totals = result.costs.iter().filter(|cost| cost.bill.is_total(cost.formula)).count();
    json!({
        "study": "sandia1999",
        "seconds": seconds,
        "events": result.events,
        "hash": format!("{:016x}", result.hash),
        "summary": {
            "table1_exact": result.table1_exact(),
            "minima_exact": result.minima_exact(),
            "rms_log_error_percent": {
                "myrinet": rms(Interconnect::Myrinet),
                "avici": rms(Interconnect::Avici),
                "ethernet": rms(Interconnect::Ethernet),
            },
            "cells": result.cells.len(),
            "cells_within_10_percent": result.cells_within(10.0),
            "statements": result.statements.len(),
            "statements_that_hold": expected_statements,
            "statements_explained": result.statements.iter()
                .filter(|statement| statement.holds || statement.note.is_some()).count(),
            "cost_totals_exact": exact_totals,
            "findings": result.findings.len(),
        },
        "table1": result.tokens.iter().map(token_to_json).collect::<Vec<_>>(),
        "table2": result.cells.iter().map(cell_to_json).collect::<Vec<_>>(),
        "completion": result.curves.iter().map(curve_to_json).collect::<Vec<_>>(),
        "statements": result.statements.iter().map(|statement| json!({
            "figure": statement.figure,
            "text": statement.text,
            "model": statement.model,
            "holds": statement.holds,
            "note": statement.note,
        })).collect::<Vec<_>>(),
        "costs": result.costs.iter().map(|cost| json!({
            "interconnect": cost.interconnect.name(),
            "total": cost.bill.total(),
            "paper": cost.formula,
            "lines": cost.bill.lines.iter().map(|line| json!([
                line.part.name, line.count, line.part.price,
            ])).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "findings": result.findings,
    })
}

fn token_to_json(token: &Token) -> Value {
    json!({
        "interconnect": token.interconnect.name(),
        "columns": COLUMNS,
        "model_us": token.model,
        "paper_us": token.paper,
        "model_mbps": token.model_mbps,
        "theory_mbps": token.theory_mbps,
    })
}

fn cell_to_json(cell: &Cell) -> Value {
    json!({
        "interconnect": cell.interconnect.name(),
        "bytes": cell.bytes,
        "column": COLUMNS.get(cell.column),
        "paper_us": cell.paper,
        "model_us": cell.model,
        "error_percent": cell.error_percent(),
        "reason": cell.reason(),
    })
}

fn curve_to_json(curve: &Curve) -> Value {
    json!({
        "interconnect": curve.interconnect.name(),
        "bytes": curve.bytes,
        "points": curve.points.iter().map(|(share, time_us)| json!({
            "overhead": share, "completion_us": time_us,
        })).collect::<Vec<_>>(),
        "knee": curve.knee,
    })
}

//! `ethernot sim scenario`: measures transfers over simulated links.

use std::path::PathBuf;

use clap::Args;
use fabric::scenario::{self, Measured};
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::output::write_results;

/// Measure transfers over simulated links, in virtual time.
///
/// Each transfer is one write after a warm-up of equal size. The results depend on the protocol
/// alone, not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim scenario\n  \
    ethernot sim scenario --json scenario.json")]
pub(crate) struct Arguments {
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let rows = scenario::run()?;
    let json = || {
        let scenarios: Map<String, Value> =
            rows.iter().map(|row| (row.name.to_owned(), to_json(row))).collect();
        Ok(format!("{:#}", json!({ "scenarios": scenarios })))
    };
    write_results(arguments.json.as_deref(), json, || scenario::table(&rows))
}

fn to_json(row: &Measured) -> Value {
    let Measured { length_bytes, outcome, .. } = row;
    json!({
        "bytes": length_bytes,
        "time_ns": outcome.duration_ns,
        "goodput_bits_per_second": outcome.goodput(*length_bytes),
        "out_of_order_percent": outcome.out_of_order_percent(),
        "extra_frames_percent": outcome.extra_percent(),
        "answers_percent": outcome.answer_percent(),
    })
}

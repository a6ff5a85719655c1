//! `ethernot sim scenario`: transfers over simulated links.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;

use crate::Failure;

/// Measure transfers over simulated links, in virtual time.
///
/// The figures depend on the protocol alone, not on this machine.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim scenario\n  \
    ethernot sim scenario --json scenario.json")]
pub(crate) struct Arguments {
    /// Write the results as JSON; `-` for standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub(crate) fn run(_arguments: &Arguments) -> Result<(), Failure> {
    io::stdout().flush()?;
    Ok(())
}

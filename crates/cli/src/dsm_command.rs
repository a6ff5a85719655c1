//! `ethernot dsm`: programs whose processes share memory.

use std::process::ExitCode;

use clap::Subcommand;

use crate::{dsm_run, dsm_top};

/// The commands for programs whose processes share memory.
#[derive(Debug, Subcommand)]
pub(crate) enum SharedMemory {
    Run(dsm_run::Arguments),
    Top(dsm_top::Arguments),
}

/// Runs the command. Returns the status that it ends with.
pub(crate) fn run(command: &SharedMemory) -> ExitCode {
    match command {
        SharedMemory::Run(arguments) => dsm_run::run(arguments),
        SharedMemory::Top(arguments) => dsm_top::run(arguments).map_or_else(
            |error| {
                eprintln!("ethernot: {}", crate::explain(&*error));
                ExitCode::FAILURE
            },
            |()| ExitCode::SUCCESS,
        ),
    }
}

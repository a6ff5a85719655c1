//! Runs commands and finds the cause of a failure in their output.

use std::process::{Command, Output, Stdio};

use super::found::Failure;

/// Runs a command without an input, and returns its output.
pub(super) fn run(command: &mut Command) -> Result<Output, Failure> {
    command.stdin(Stdio::null()).output().map_err(|cause| {
        Failure::CannotRun(format!("{}: {cause}", command.get_program().display()))
    })
}

pub(super) fn last_line(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned()
}

/// Returns cargo's first error, without the lists and hints that may follow. If there is none,
/// returns the last line of the output.
pub(super) fn cause(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let error = text.lines().find(|line| line.starts_with("error"));
    error.map_or_else(|| last_line(output), str::to_owned)
}

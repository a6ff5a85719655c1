//! Development commands of the project: tests, builds, checks. Run as `cargo xtask NAME` or through
//! `./x NAME`.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "a build tool tells how long its steps take")]

mod acceptance;
mod building;
mod c_abi;
mod check;
mod constants;
mod count;
mod deny;
mod error;
mod floor;
mod fuzz;
mod guest;
mod install;
mod known_failures;
mod libraries;
mod libraries_c;
mod libraries_sockets;
mod loom;
mod miri;
mod package;
mod perf_programs;
mod public_api;
mod python;
mod skips;
mod suite;
mod test_output;
mod test_programs;
mod tidy;
mod workspace;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::building::build_program;
use crate::error::{USAGE, XtaskError};
use crate::workspace::{Workspace, cargo};

/// Commands passed to the `ethernot` program unchanged.
const PROGRAM_COMMANDS: [&str; 5] = ["bench", "sim", "serve", "report", "doctor"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let Some((command, rest)) = arguments.split_first() else {
        println!("{USAGE}");
        return Ok(ExitCode::SUCCESS);
    };
    match command.as_str() {
        "help" | "-h" | "--help" => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        "test" => suite::run(&Workspace::load()?),
        "check" => check::run(&Workspace::load()?, rest),
        "constants" => constants::run(&Workspace::load()?, rest),
        "c-abi" => c_abi::run(&Workspace::load()?),
        "api" => public_api::run(&Workspace::load()?),
        "acceptance" => acceptance::run(&Workspace::load()?, rest),
        "fuzz" => fuzz::run(&Workspace::load()?, rest),
        "guest" => Ok(guest::run(&Workspace::load()?, rest)),
        "deny" => Ok(outcome(deny::test()?)),
        "install" => install::run(&Workspace::load()?, rest),
        "package" => package::run(&Workspace::load()?, rest),
        "libraries" => libraries::run(&Workspace::load()?, rest),
        "loom" => Ok(outcome(loom::test(&Workspace::load()?)?)),
        "miri" => miri::run(&Workspace::load()?),
        "python" => python::run(&Workspace::load()?),
        "tidy" => tidy::run(&Workspace::load()?),
        "dissector" => regenerate_dissector(&Workspace::load()?),
        name if PROGRAM_COMMANDS.contains(&name) => hand_over(&Workspace::load()?, arguments),
        other => Err(XtaskError::Usage { what: format!("unknown command `{other}`") }),
    }
}

/// Returns success if no test has failed.
fn outcome(count: count::Count) -> ExitCode {
    if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds `ethernot` and replaces this process by it, so that signals and the exit status are those
/// of `ethernot`.
fn hand_over(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let program = build_program(workspace)?;
    if libraries::are_needed(arguments) {
        libraries::build(workspace, true)?;
    }
    let cause = Command::new(&program).args(arguments).exec();
    Err(XtaskError::Start { program: program.display().to_string(), cause })
}

fn regenerate_dissector(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    if !workspace.packages.iter().any(|package| package.name == "dissector") {
        return Err(XtaskError::NotBuilt { program: "dissector".into() });
    }
    let path = workspace.root.join("tools/wireshark/ethernot.lua");
    let output = cargo()
        .args(["run", "--quiet", "--package", "dissector"])
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|cause| XtaskError::Start { program: "cargo run -p dissector".into(), cause })?;
    if !output.status.success() {
        let program = "cargo run -p dissector".into();
        return Err(XtaskError::Failed { program, status: output.status });
    }
    // The dissector's generator either prints the script, which begins with `--`, or writes the
    // file itself and prints a message.
    if !output.stdout.is_empty() && output.stdout.starts_with(b"--") {
        std::fs::write(&path, &output.stdout)
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })?;
    }
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

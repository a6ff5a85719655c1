//! The project's own chores, run as `cargo xtask NAME` or through `./x NAME`.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "a build tool tells how long its steps take")]

mod acceptance;
mod c_abi;
mod check;
mod constants;
mod count;
mod deny;
mod floor;
mod fuzz;
mod install;
mod known_failures;
mod libraries;
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
mod tidy;
mod workspace;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::workspace::{Workspace, cargo};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test                       format, lints, documentation, every test, torture; ends with a count
  check [--against COMMIT | --all]
                             format, lints, unit tests and the rules of the house, of crates with a file that changed
                             since the last commit, or since COMMIT
  bench|sim|serve|report|doctor [ARGS]
                             build `ethernot` in release and run that command of it
  acceptance NAME [--quick] [--against COMMIT] [--only TEXT]...
                             measure a suite of bounds, or its rows with a TEXT in their names; prints a table, exits 1
                             if something does not work
  api                        check the public Rust API: listing, examples, errors (UPDATE_SNAPSHOTS=1 keeps it)
  constants [--list] [--only TEXT]...
                             give each constant that decides behaviour its neutral value, in a copy of the sources, and
                             print which test notices; hours for all
  c-abi                      compare the ABI of the C library with the recorded one (needs abidiff; UPDATE_SNAPSHOTS=1 keeps it)
  dissector                  regenerate tools/wireshark/ethernot.lua
  fuzz --seconds N [TARGET...]
                             run every fuzz target in turn, or those named, N seconds in all
  install --destdir DIR [--prefix PREFIX]
                             build and install the command, its libraries and documents below DIR
  package [--output DIR]     the same as a package for Debian (needs dpkg-dev); prints its path
  deny                       check licences, known faults and sources of crates (needs cargo-deny)
  libraries [--release]      build the C libraries that programs for RDMA load; prints their folder
  loom                       run the models of threads, in every interleaving
  miri                       interpret the tests of the crates that only compute (needs nightly)
  python                     build the Python packages and run their tests, in a place of their own
  tidy                       check the rules of the house";

/// Commands handed to the `ethernot` program as they are.
const PROGRAM_COMMANDS: [&str; 5] = ["bench", "sim", "serve", "report", "doctor"];

/// Benchmarks of programs over the libraries.
const WITH_LIBRARIES: [&str; 5] = ["sockets", "apache", "ganglia", "programs", "verbs"];

/// Why a chore could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum XtaskError {
    #[error("cannot start `{program}`: {cause}")]
    Start { program: String, cause: std::io::Error },
    #[error("`{program}` failed ({status})")]
    Failed { program: String, status: std::process::ExitStatus },
    #[error("cargo metadata: {reason}")]
    Metadata { reason: String },
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write { path: PathBuf, cause: std::io::Error },
    #[error("no package of this workspace builds `{program}`")]
    NotBuilt { program: String },
    #[error("{path}, {what}", path = path.display())]
    Names { path: PathBuf, what: String },
    #[error(
        "{path} needs a C library newer than 2.28, for {names}; add these names to abi/floor",
        path = path.display()
    )]
    CLibrary { path: PathBuf, names: String },
    #[error("{what}\n\n{USAGE}")]
    Usage { what: String },
}

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

/// Success if nothing has failed.
fn outcome(count: count::Count) -> ExitCode {
    if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Builds `ethernot` and becomes it, so that signals and the exit status are its own.
fn hand_over(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let program = build_program(workspace)?;
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if matches!(words[..], ["bench", measured, ..] if WITH_LIBRARIES.contains(&measured)) {
        libraries::build(workspace, true)?;
    }
    let cause = Command::new(&program).args(arguments).exec();
    Err(XtaskError::Start { program: program.display().to_string(), cause })
}

/// Builds the `ethernot` program in the release profile and returns its path.
/// Builds it to be used and measured.
fn build_program(workspace: &Workspace) -> Result<PathBuf, XtaskError> {
    build_program_in(workspace, "release")
}

/// Builds it in a profile of the workspace.
fn build_program_in(workspace: &Workspace, profile: &str) -> Result<PathBuf, XtaskError> {
    let package = workspace
        .package_of_program("ethernot")
        .ok_or_else(|| XtaskError::NotBuilt { program: "ethernot".into() })?;
    let name = package.name.as_str();
    let arguments = ["build", "--profile", profile, "--package", name];
    checked(cargo().args(arguments).args(["--bin", "ethernot"]))?;
    let program = workspace.program_in(profile, "ethernot");
    floor::check([program.clone()])?;
    Ok(program)
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
    // The generator either prints the script or writes the file itself.
    if !output.stdout.is_empty() && output.stdout.starts_with(b"--") {
        std::fs::write(&path, &output.stdout)
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })?;
    }
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// Runs a command to its end with our terminal; anything but success is an error.
fn checked(command: &mut Command) -> Result<(), XtaskError> {
    let program = format!("{command:?}").replace('"', "");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(XtaskError::Failed { program, status }),
        Err(cause) => Err(XtaskError::Start { program, cause }),
    }
}

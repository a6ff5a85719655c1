//! `cargo xtask test`: runs every check, one after the other, and prints one count at the end.
//!
//! The count is the number of tests, from the output of `cargo test`. A test that cannot run on
//! this host prints a line that begins with `skip` and returns. Such a test counts as skipped,
//! although the test harness reports it as passed. The torture (random faults in the simulator)
//! counts as one test. The loom models together count as one test. If format, lints or
//! documentation fail, each of them counts as one failure; otherwise they do not count. A list of
//! skipped tests precedes the count.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::count::Count;
use crate::error::XtaskError;
use crate::skips::Skips;
use crate::test_output::TestReader;
use crate::workspace::{Workspace, cargo};
use crate::{c_abi, deny, known_failures, libraries, public_api, test_programs};

/// Seeds of the torture (random faults in the simulator) in an ordinary test run.
const TORTURE_SEEDS: &str = "0..500";

/// Runs all checks. The last line on standard output is the count.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    let mut count = Count::NONE;
    let mut failed = Vec::new();
    let skips = RefCell::new(Skips::default());
    let mut step = |name, work: &dyn Fn() -> Result<Count, XtaskError>| {
        let of_step = timed(name, work)?;
        if of_step.skipped > 0 && name != TESTS {
            skips.borrow_mut().add(name, "skipped: see what the step has printed");
        }
        if of_step.failed > 0 {
            failed.push(name);
        }
        count.add(of_step);
        Ok(())
    };
    step("format", &|| lint(cargo().args(["fmt", "--all", "--check"])))?;
    step("lints", &|| {
        let clippy = ["clippy", "--workspace", "--all-targets", "--keep-going"];
        lint(cargo().args(clippy).args(["--", "-D", "warnings"]))
    })?;
    step("documentation", &|| {
        let doc = ["doc", "--workspace", "--no-deps", "--quiet"];
        lint(cargo().args(doc).env("RUSTDOCFLAGS", "-D warnings"))
    })?;
    step("public API", &|| public_api::show(workspace))?;
    step("ABI of the C library", &|| c_abi::test(workspace))?;
    step("crates from outside", &deny::test)?;
    step("programs and libraries", &|| build_libraries(workspace))?;
    step(TESTS, &|| {
        test_programs::run(workspace, steps_beside(workspace), &mut skips.borrow_mut())
    })?;
    step("known failures", &|| known_failures::test(workspace, &workspace.packages))?;
    if !failed.is_empty() {
        println!("failed steps: {}", failed.join(", "));
    }
    print!("{}", skips.into_inner());
    println!("{count}");
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The step that prints its tests individually.
const TESTS: &str = "tests";

/// Announces a step, runs it, and prints its result and duration.
pub(crate) fn timed(
    name: &str,
    work: &dyn Fn() -> Result<Count, XtaskError>,
) -> Result<Count, XtaskError> {
    println!("== {name}");
    let start = Instant::now();
    let count = work()?;
    let verdict = if count.failed > 0 { "FAILED" } else { "ok" };
    println!("== {name}: {verdict}, {:.1} s", start.elapsed().as_secs_f64());
    Ok(count)
}

/// Runs a command. Only its exit status decides whether it passed.
pub(crate) fn lint(command: &mut Command) -> Result<Count, XtaskError> {
    match command.status() {
        Ok(status) if status.success() => Ok(Count::NONE),
        Ok(_) => Ok(Count::ONE_FAILED),
        Err(cause) => Err(XtaskError::Start { program: format!("{command:?}"), cause }),
    }
}

/// Runs `cargo test` with arguments that select tests. Prints failures, skipped tests and one line
/// per test program.
pub(crate) fn run_tests(chosen: &[String], skips: &RefCell<Skips>) -> Result<Count, XtaskError> {
    let mut command = cargo();
    command
        .args(["test", "--no-fail-fast"])
        .args(chosen)
        .args(["--", "--show-output"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let start_error = |cause| XtaskError::Start { program: "cargo test".into(), cause };
    let mut child = command.spawn().map_err(start_error)?;
    let mut reader = TestReader::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).split(b'\n') {
            let line = line.map_err(start_error)?;
            if let Some(shown) = reader.handle_line(&String::from_utf8_lossy(&line)) {
                println!("{shown}");
            }
        }
    }
    let status = child.wait().map_err(start_error)?;
    let mut count = reader.count();
    if !status.success() && count.failed == 0 {
        // The build failed, or a test program crashed before it printed its count.
        count.add(Count::ONE_FAILED);
    }
    skips.borrow_mut().append(reader.into_skipped());
    Ok(count)
}

/// Builds all programs and tests, and the libraries that tests load into programs. This step runs
/// before all tests, so that a build error is printed only once.
fn build_libraries(workspace: &Workspace) -> Result<Count, XtaskError> {
    match libraries::build(workspace, false) {
        Ok(_) => Ok(Count::NONE),
        Err(XtaskError::Failed { program, status }) => {
            println!("`{program}` failed ({status})");
            Ok(Count::ONE_FAILED)
        }
        Err(error @ XtaskError::CLibrary { .. }) => {
            println!("{error}");
            Ok(Count::ONE_FAILED)
        }
        Err(other) => Err(other),
    }
}

/// Returns the steps that run at the same time as the tests, because these steps only compute. Each
/// step is a command.
fn steps_beside(workspace: &Workspace) -> [(&'static str, Command); 3] {
    // The build of all tests has replaced the file of the running program, which thus cannot run
    // itself again.
    let own = workspace.program_in("dev", "xtask");
    let chore = |name| {
        let mut command = Command::new(&own);
        command.arg(name);
        command
    };
    // Uses the profile of the tests, because assertions matter more here than speed, which is close
    // to that of a release build.
    let mut torture = Command::new(workspace.program_in("dev", "ethernot"));
    torture.args(["sim", "torture", "--seeds", TORTURE_SEEDS]);
    [
        ("models of threads", chore("loom")),
        ("Python package", chore("python")),
        ("torture", torture),
    ]
}

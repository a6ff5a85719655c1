//! `cargo xtask test`: every check there is, one after the other, and one count at the end.
//!
//! The count is of tests, taken from what `cargo test` prints. A test that finds it cannot run on
//! this host prints a line starting with `skip` and returns; it is counted as skipped, though
//! the test harness calls it passed. The torture counts as one test, and so do the models of threads. Format, lints and documentation add
//! nothing when they pass and one failure each when they do not. What was skipped is listed before the count.

use std::cell::RefCell;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use crate::skips::Skips;
use crate::workspace::{Workspace, cargo};
use crate::{XtaskError, build_program_in, c_abi, deny, libraries, loom, public_api, python};

/// Seeds of the torture in an ordinary test run.
const TORTURE_SEEDS: &str = "0..500";

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Count {
    pub(crate) const NONE: Self = Self { passed: 0, failed: 0, skipped: 0 };
    pub(crate) const ONE_PASSED: Self = Self { passed: 1, ..Self::NONE };
    pub(crate) const ONE_FAILED: Self = Self { failed: 1, ..Self::NONE };
    pub(crate) const ONE_SKIPPED: Self = Self { skipped: 1, ..Self::NONE };

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, skipped } = self;
        write!(formatter, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs everything; the last line on standard output is the count.
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
    step("C libraries", &|| build_libraries(workspace))?;
    step(TESTS, &|| run_tests(&skips))?;
    step("models of threads", &|| loom::test(workspace))?;
    step("Python package", &|| python::test(workspace))?;
    step("torture", &|| run_torture(workspace))?;
    if !failed.is_empty() {
        println!("failed steps: {}", failed.join(", "));
    }
    print!("{}", skips.into_inner());
    println!("{count}");
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The step of which each test is listed.
const TESTS: &str = "tests";

/// Announces a step, runs it, tells how it went and how long it took.
fn timed(name: &str, work: &dyn Fn() -> Result<Count, XtaskError>) -> Result<Count, XtaskError> {
    println!("== {name}");
    let start = Instant::now();
    let count = work()?;
    let verdict = if count.failed > 0 { "FAILED" } else { "ok" };
    println!("== {name}: {verdict}, {:.1} s", start.elapsed().as_secs_f64());
    Ok(count)
}

fn lint(command: &mut Command) -> Result<Count, XtaskError> {
    match command.status() {
        Ok(status) if status.success() => Ok(Count::NONE),
        Ok(_) => Ok(Count::ONE_FAILED),
        Err(cause) => Err(XtaskError::Start { program: format!("{command:?}"), cause }),
    }
}

/// `cargo test` over the workspace, shown in short: failures, skips and one line per test program.
fn run_tests(skips: &RefCell<Skips>) -> Result<Count, XtaskError> {
    let mut command = cargo();
    command
        .args(["test", "--workspace", "--no-fail-fast", "--", "--show-output"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    let start_error = |cause| XtaskError::Start { program: "cargo test --workspace".into(), cause };
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
        // It did not build, or a test program died before it could count.
        count.add(Count::ONE_FAILED);
    }
    skips.borrow_mut().append(reader.skipped);
    Ok(count)
}

/// The libraries that tests give to programs of others: built before, so that what is wrong with them shows once.
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

fn run_torture(workspace: &Workspace) -> Result<Count, XtaskError> {
    if workspace.package_of_program("ethernot").is_none() {
        println!("skipped: no package of this workspace builds `ethernot` yet");
        return Ok(Count::ONE_SKIPPED);
    }
    // As the tests have it: assertions count for more here than speed, which is nearly that of a release.
    let program = match build_program_in(workspace, "dev") {
        Ok(program) => program,
        Err(XtaskError::Failed { .. }) => return Ok(Count::ONE_FAILED),
        Err(other) => return Err(other),
    };
    let start_error = |cause| XtaskError::Start { program: program.display().to_string(), cause };
    let known = Command::new(&program)
        .args(["sim", "torture", "--help"])
        .stdin(Stdio::null())
        .output()
        .map_err(start_error)?;
    if !known.status.success() {
        println!("skipped: `ethernot sim torture` does not exist yet");
        return Ok(Count::ONE_SKIPPED);
    }
    let status = Command::new(&program)
        .args(["sim", "torture", "--seeds", TORTURE_SEEDS])
        .stdin(Stdio::null())
        .status()
        .map_err(start_error)?;
    Ok(if status.success() { Count::ONE_PASSED } else { Count::ONE_FAILED })
}

/// Reads what test programs print, line by line, and decides what a person needs to see.
#[derive(Default)]
pub(crate) struct TestReader {
    reported: Count,
    /// Tests that passed by saying that they cannot run here.
    skips: u64,
    /// Between `successes:` and the next result: output of tests that passed.
    in_successes: bool,
    /// Test whose output is being read, until it has been counted as a skip.
    test: Option<String>,
    /// What did not run.
    skipped: Skips,
}

impl TestReader {
    /// Takes a line; returns what to print for it, if anything.
    pub(crate) fn handle_line(&mut self, line: &str) -> Option<String> {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.in_successes = false;
            self.test = None;
            self.reported.add(parse_result(counts));
            return Some(line.to_owned());
        }
        match line {
            "successes:" => {
                self.in_successes = true;
                return None;
            }
            "failures:" => self.in_successes = false,
            _ => {}
        }
        if self.in_successes {
            return self.handle_output_of_success(line);
        }
        let of_test = line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        if let Some((test, reason)) = of_test
            && reason.starts_with("ignored")
        {
            self.skipped.add(test, &reason.replacen("ignored, ", "ignored: ", 1));
        }
        let is_quiet = line.is_empty()
            || line.starts_with("running ")
            || (line.starts_with("test ") && line.ends_with(" ok"));
        (!is_quiet).then(|| line.to_owned())
    }

    fn handle_output_of_success(&mut self, line: &str) -> Option<String> {
        if let Some(header) = line.strip_prefix("---- ") {
            self.test = header.strip_suffix(" stdout ----").map(str::to_owned);
            return None;
        }
        let says_skip = line.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("skip"));
        if !says_skip {
            return None;
        }
        let test = self.test.take()?;
        self.skips += 1;
        self.skipped.add(&test, line);
        Some(format!("{test}: {line}"))
    }

    /// The count so far, with the tests that skipped themselves counted as such.
    pub(crate) fn count(&self) -> Count {
        Count {
            passed: self.reported.passed.saturating_sub(self.skips),
            failed: self.reported.failed,
            skipped: self.reported.skipped + self.skips,
        }
    }
}

/// Reads `ok. 3 passed; 0 failed; 1 ignored; …`.
fn parse_result(line: &str) -> Count {
    let counts = line.split_once(". ").map_or(line, |(_, counts)| counts);
    let mut count = Count::NONE;
    for part in counts.split(';') {
        let mut words = part.split_whitespace();
        let (Some(number), Some(what)) = (words.next(), words.next()) else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => count.passed += number,
            "failed" => count.failed += number,
            "ignored" => count.skipped += number,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &str) -> (Count, Vec<String>) {
        let mut reader = TestReader::default();
        let shown = lines.lines().filter_map(|line| reader.handle_line(line)).collect();
        (reader.count(), shown)
    }

    #[test]
    fn results_of_several_programs_add_up() {
        let (count, _) = read(
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
        );
        assert_eq!(count, Count { passed: 5, failed: 5, skipped: 1 });
    }

    #[test]
    fn a_test_that_says_skip_is_counted_as_skipped_once() {
        let (count, shown) = read(
            "running 2 tests\ntest a ... ok\ntest b ... ok\n\nsuccesses:\n\n\
             ---- a stdout ----\nskipped: needs root\nskipped: again\n\n\
             ---- b stdout ----\nwe skip nothing here\n\n\
             successes:\n    a\n    b\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n",
        );
        assert_eq!(count, Count { passed: 1, failed: 0, skipped: 1 });
        assert_eq!(shown.first().map(String::as_str), Some("a: skipped: needs root"));
        assert_eq!(shown.len(), 2);
    }

    #[test]
    fn what_did_not_run_is_listed_with_its_reason() {
        let mut reader = TestReader::default();
        let lines = "test a ... ok\ntest slow ... ignored, measures\nsuccesses:\n\n\
             ---- a stdout ----\nskipped: needs root\n\n";
        for line in lines.lines() {
            reader.handle_line(line);
        }
        let listed = reader.skipped.to_string();
        assert!(listed.contains("measures\n    slow\nneeds root\n    a\n"), "{listed}");
    }

    #[test]
    fn the_report_of_a_failure_is_shown() {
        let (_, shown) = read(
            "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\nskip me not\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored\n",
        );
        assert!(shown.iter().any(|line| line == "skip me not"));
    }

    #[test]
    fn the_count_reads_as_documented() {
        let count = Count { passed: 3, failed: 0, skipped: 1 };
        assert_eq!(count.to_string(), "3 passed, 0 failed, 1 skipped");
    }
}

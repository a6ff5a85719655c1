//! Runs tests many times, to find faults that appear once in a hundred runs.

use super::commands::{cause, run};
use super::found::{Failure, Found};
use crate::count::Count;
use crate::python;
use crate::test_output::TestReader;
use crate::workspace::{Workspace, cargo, package_name};

/// Tests that one command runs.
#[derive(Clone, Copy)]
pub(super) enum Tests {
    /// Tests of a package, in these targets (arguments of `cargo test`).
    Cargo {
        package: &'static str,
        targets: &'static [&'static str],
        names: &'static [&'static str],
    },
    /// Tests of the Python package `ethernot`.
    Python { names: &'static [&'static str] },
}

/// Runs the tests `times` times. Returns the number of runs in which a test failed.
pub(super) fn count(workspace: &Workspace, tests: Tests, times: u32) -> Result<Found, Failure> {
    match tests {
        Tests::Cargo { package, targets, names } => {
            let arguments = arguments(package, targets);
            let mut build = cargo();
            let output = run(build.args(&arguments).arg("--no-run"))?;
            if !output.status.success() {
                return Err(Failure::CannotRun(cause(&output)));
            }
            eprintln!("-- cargo {} -- {}, {times} times", arguments.join(" "), names.join(" "));
            of_runs(names, times, || run_once(&arguments, names))
        }
        Tests::Python { names } => {
            let cannot = |error: crate::error::XtaskError| Failure::CannotRun(error.to_string());
            let installed = python::install(workspace).map_err(cannot)?;
            let installed = installed.map_err(Failure::CannotRun)?;
            eprintln!("-- pytest -k {}, {times} times", names.join(" or "));
            of_runs(names, times, || Ok((installed.run(names).map_err(cannot)?, None)))
        }
    }
}

fn arguments(package: &str, targets: &[&str]) -> Vec<String> {
    let fixed = ["test", "--no-fail-fast", "--package", &package_name(package)].map(str::to_owned);
    fixed.into_iter().chain(targets.iter().map(|&target| target.to_owned())).collect()
}

/// Returns the counts of one run. If a test cannot run here, also returns its reason.
fn run_once(arguments: &[String], names: &[&str]) -> Result<(Count, Option<String>), Failure> {
    let mut command = cargo();
    command.args(arguments).arg("--").args(names).arg("--show-output");
    let output = run(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut reader = TestReader::default();
    let shown: Vec<String> = text.lines().filter_map(|line| reader.handle_line(line)).collect();
    let mut count = reader.count();
    if !output.status.success() && count.failed == 0 {
        // A test program crashed, so its output contains no count of failed tests.
        count.failed = 1;
    }
    if count.failed > 0 {
        eprintln!("{text}");
    }
    let skip = shown.iter().find_map(|line| Some(line.split_once(": skipped: ")?.1.to_owned()));
    Ok((count, skip))
}

/// Adds up the runs. Each of the names must match a test.
fn of_runs(
    names: &[&str],
    times: u32,
    mut run: impl FnMut() -> Result<(Count, Option<String>), Failure>,
) -> Result<Found, Failure> {
    let (mut bad, mut total) = (0, Count::NONE);
    for _ in 0..times {
        let (count, skip) = run()?;
        let Count { passed, failed, skipped } = count;
        if passed + failed == 0 {
            let reason = skip.unwrap_or_else(|| "no test has run".into());
            return Err(Failure::CannotRun(reason));
        }
        if passed + failed + skipped < names.len() as u64 {
            let missing = format!("{} names stand for {} tests", names.len(), passed + failed);
            return Err(Failure::CannotRun(missing));
        }
        bad += u32::from(failed > 0);
        total.add(count);
    }
    let not_run = match total.skipped {
        0 => String::new(),
        skipped => format!(", {skipped} not run"),
    };
    let Count { passed, failed, .. } = total;
    let note = format!(" of {times} ({passed} tests passed, {failed} failed{not_run})");
    Ok(Found { figure: f64::from(bad), note, bare: None })
}

#[cfg(test)]
mod tests {
    use super::super::Probe;
    use super::super::suites::SUITES;
    use super::*;
    use crate::workspace::source_root;

    #[test]
    fn runs_with_a_failure_are_counted_once_each() {
        let mut left = [(2, 0), (0, 2), (1, 1), (2, 0)].into_iter();
        let found = of_runs(&["a", "b"], 4, || {
            let (passed, failed) = left.next().expect("four runs");
            Ok((Count { passed, failed, skipped: 0 }, None))
        });
        let note = " of 4 (5 tests passed, 3 failed)".into();
        assert_eq!(found, Ok(Found { figure: 2.0, note, bare: None }));
    }

    #[test]
    fn tests_that_cannot_run_report_the_reason_and_unknown_names_are_errors() {
        let skipped = Count { passed: 0, failed: 0, skipped: 1 };
        let found = of_runs(&["a"], 9, || Ok((skipped, Some("needs root".into()))));
        assert_eq!(found, Err(Failure::CannotRun("needs root".into())));
        let found = of_runs(&["a", "b"], 9, || Ok((Count::ONE_PASSED, None)));
        assert!(matches!(found, Err(Failure::CannotRun(_))), "{found:?}");
    }

    #[test]
    fn names_are_those_of_tests() {
        let root = source_root();
        let mut sources = String::new();
        for folder in ["abi", "crates", "python/ethernot/tests"] {
            collect(&root.join(folder), &mut sources);
        }
        for row in SUITES.iter().flat_map(|suite| suite.rows) {
            let Probe::Repeated { tests, .. } = row.probe else { continue };
            let (Tests::Cargo { names, .. } | Tests::Python { names }) = tests;
            for name in names {
                let found =
                    ["fn", "def"].iter().any(|word| sources.contains(&format!("{word} {name}(")));
                assert!(found, "{}: there is no test {name}", row.name);
            }
        }
    }

    /// Appends the text of files that may contain tests.
    fn collect(folder: &std::path::Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.ends_with("target") {
                collect(&path, text);
            } else if path.extension().is_some_and(|kind| kind == "rs" || kind == "py") {
                text.push_str(&std::fs::read_to_string(&path).expect("text"));
            }
        }
    }
}

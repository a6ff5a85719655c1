//! Figures that tests print: `figure: NAME: NUMBER`.

use std::path::Path;

use super::commands::{cause, run};
use super::found::{Failure, Found};
use crate::workspace::{cargo, package_name};

/// The tests that print a figure.
#[derive(Clone, Copy)]
pub(super) struct Tests {
    pub(super) package: &'static str,
    /// The argument of `cargo test` that selects the target: `--lib` or `--test=NAME`.
    pub(super) target: &'static str,
    /// A text that selects tests: those whose names contain the text.
    pub(super) part: &'static str,
    /// The text that selects tests in a quick run, or `None` if all of the tests take too long for
    /// a quick run. If `part_quick` differs from `part`, a quick run omits ignored tests.
    pub(super) part_quick: Option<&'static str>,
}

impl Tests {
    /// Returns the arguments of `cargo`. A full run includes ignored tests. A quick run includes
    /// ignored tests only if `part_quick` equals `part`.
    pub(super) fn arguments(self, quick: bool) -> Result<Vec<String>, Failure> {
        let Self { package, target, part, part_quick } = self;
        let chosen = if quick { part_quick } else { Some(part) };
        let chosen = chosen.ok_or_else(|| Failure::CannotRun("run without --quick".into()))?;
        let package = package_name(package);
        let mut arguments =
            vec!["test", "--release", "--quiet", "--package", &package, target, chosen];
        arguments.extend(["--", "--nocapture"]);
        if chosen == part {
            arguments.push("--include-ignored");
        }
        Ok(arguments.into_iter().map(str::to_owned).collect())
    }
}

/// Runs tests and returns their output if all of them pass. If `other` is a folder with the
/// libraries of another commit, an environment variable passes it to the tests.
pub(super) fn output(arguments: &[String], other: Option<&Path>) -> Result<String, Failure> {
    let shown = arguments.join(" ");
    eprintln!("-- cargo {shown}");
    let mut command = cargo();
    command.args(arguments);
    if let Some(folder) = other {
        command.env(OTHER, folder);
    }
    let output = run(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let has_run = text.contains("test result: ");
    match (output.status.success(), has_run) {
        (true, _) => Ok(text),
        (false, true) => Err(Failure::Failed(format!("`cargo {shown}` failed"))),
        (false, false) => Err(Failure::CannotRun(cause(&output))),
    }
}

/// Environment variable with the folder of the other commit's libraries. The name must equal the
/// name in `abi/programs/tests/speeds.rs`.
const OTHER: &str = "ETHERNOT_TEST_OTHER_LIBRARIES";

/// Returns the largest of the figures with this name.
pub(super) fn largest(text: &str, name: &str) -> Result<Found, Failure> {
    let mark = format!("figure: {name}: ");
    let figures = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(&mark)?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    });
    let largest = figures.reduce(f64::max);
    let missing = || {
        let skip = text.lines().find_map(|line| Some(line.split_once("skipped: ")?.1));
        Failure::CannotRun(match skip {
            Some(reason) => reason.to_owned(),
            None => format!("no test prints a figure `{name}`"),
        })
    };
    largest.map(Found::plain).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_figure_of_a_name_counts_at_any_position_in_a_line() {
        let text = "running 2 tests\nfigure: a: 1.5\ntest x ... figure: a: 2.5\nfigure: ab: 9\n";
        assert_eq!(largest(text, "a"), Ok(Found::plain(2.5)));
        assert!(matches!(largest(text, "b"), Err(Failure::CannotRun(_))));
    }

    #[test]
    fn a_skipped_test_gives_the_reason_for_a_missing_figure() {
        let text = "running 1 test\ntest x ... skipped: `mpirun` is not installed\nok\n";
        let missing = Failure::CannotRun("`mpirun` is not installed".into());
        assert_eq!(largest(text, "a"), Err(missing));
    }

    #[test]
    fn long_tests_run_only_in_a_full_run() {
        let tests = Tests { package: "a", target: "--lib", part: "long", part_quick: None };
        assert!(matches!(tests.arguments(true), Err(Failure::CannotRun(_))));
        let full = tests.arguments(false).expect("they are run");
        assert!(full.contains(&"--include-ignored".to_owned()), "{full:?}");
        let quick = Tests { part_quick: Some("short"), ..tests }.arguments(true).expect("so too");
        assert!(quick.contains(&"short".to_owned()) && !quick.contains(&"long".to_owned()));
        assert!(!quick.contains(&"--include-ignored".to_owned()), "{quick:?}");
    }

    #[test]
    fn short_ignored_tests_run_in_a_quick_run() {
        let part_quick = Some("measured");
        let tests = Tests { package: "a", target: "--lib", part: "measured", part_quick };
        assert_eq!(tests.arguments(true), tests.arguments(false));
        let quick = tests.arguments(true).expect("they are run");
        assert!(quick.contains(&"--include-ignored".to_owned()), "{quick:?}");
    }
}

//! `cargo xtask acceptance NAME`: measures figures on this machine, and compares them with bounds.
//!
//! A suite is a list of rows (`acceptance/suites.rs`). Each row has a name, a bound, and a
//! [`Probe`] that measures its figure. If several rows need a command with equal arguments, the
//! command runs once (`acceptance/runner.rs`). Figures that depend on the machine are only for the
//! record. The exit status is 1 if a row of [`Kind::Works`] misses its bound.

mod against;
mod commands;
mod commits;
mod compared;
mod constants;
mod entries;
mod fabric_rows;
mod found;
mod guest_figures;
mod printed;
mod repeated;
mod runner;
mod sender;
mod structure;
mod suites;
mod verdicts;

use std::fmt;
use std::process::ExitCode;

use crate::error::XtaskError;
use crate::workspace::Workspace;

use found::{VERDICT_OK, VERDICT_SHORT};
use runner::Runner;
use suites::SUITES;

/// A named list of rows.
struct Suite {
    name: &'static str,
    rows: &'static [Row],
    /// The commit to compare with if the user does not give the option `--against`. If this is
    /// `None` and the option is missing, rows that compare with another commit cannot run.
    against: Option<&'static str>,
}

/// One requirement: its bounds, and how to measure its figure.
struct Row {
    name: &'static str,
    bound: Bound,
    /// The bound of a quick run, if it differs because the run is shorter.
    bound_quick: Option<Bound>,
    probe: Probe,
}

/// The bound that a figure must satisfy, with its unit.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtLeast(f64, &'static str),
    AtMost(f64, &'static str),
}

/// The consequence if a row misses its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The command fails, because a function does not work, independent of the machine.
    Works,
    /// The figure is valid only for this machine at this time; it is printed only for the record.
    ForTheRecord,
}

/// How to measure a figure.
///
/// A command is `ethernot` with `arguments`. In the arguments, `{json}` stands for a file to which
/// the program writes its result. `{quick:A|B}` stands for A in a quick run and for B in a full
/// run.
#[derive(Clone, Copy)]
enum Probe {
    /// A number at a JSON pointer of a result, divided by another number of that result.
    Ratio { arguments: &'static [&'static str], pointer: &'static str, to: &'static str },
    /// A number at a JSON pointer of a result.
    Number { arguments: &'static [&'static str], pointer: &'static str },
    /// A figure of a measurement of `ethernot bench`.
    Bench { arguments: &'static [&'static str], of: Measurement, figure: Figure },
    /// A figure of a point of `ethernot bench multiedge`.
    Point { arguments: &'static [&'static str], point: PointOf, figure: PointFigure },
    /// The ratio of an 8-byte ping-pong to a yardstick of `ethernot bench yardsticks`.
    Yardstick { arguments: &'static [&'static str], to: &'static str },
    /// The highest sum of the fields over all cuts of `ethernot bench failover`.
    WorstCut { arguments: &'static [&'static str], fields: &'static [&'static str] },
    /// The number of attempts, at the JSON pointer `count`. The row fails if the exit status of the
    /// command reports that an attempt failed.
    AllSucceed { arguments: &'static [&'static str], count: &'static str },
    /// The minutes for which these targets were fuzzed without a crash. An empty list means all
    /// targets.
    Fuzz { targets: &'static [&'static str], seconds_quick: u32, seconds_full: u32 },
    /// The worst point of `ethernot sim policies`: the lowest ratio of this project's policy to the
    /// better of the other policies.
    Policies { arguments: &'static [&'static str] },
    /// The throughput of this project's sending policy divided by the throughput of `MultiEdge`'s
    /// policy, as the median of several runs of `ethernot bench multiedge`, at the point with the
    /// lowest median. If the other policies were slower in a run than in the other runs, the
    /// machine was busy, and the run does not count.
    Rules { arguments: &'static [&'static str], points: &'static [PointOf] },
    /// The worst ratio of one contender of `ethernot bench` to another, over all sizes.
    Contenders { arguments: &'static [&'static str], test: &'static str, pair: Pair },
    /// The number of a package's tests that fail. `chosen` are arguments of `cargo test`, separated
    /// by spaces.
    Tests { package: &'static str, chosen: &'static str, in_quick: bool },
    /// The number of runs of these tests in which a test fails.
    Repeated { tests: repeated::Tests, times_quick: u32, times_full: u32 },
    /// The largest figure of this name that tests print. All of these tests must pass.
    Printed { tests: printed::Tests, name: &'static str },
    /// Like [`Probe::Printed`], for a figure that is equal on all machines.
    Reproducible { tests: printed::Tests, name: &'static str },
    /// A number at a JSON pointer of an entry of a result. `steps` lead from the result to the
    /// entry.
    Entry {
        arguments: &'static [&'static str],
        steps: &'static [entries::Step],
        pointer: &'static str,
    },
    /// The number of constants of the sending policy whose value is a number that was chosen
    /// freely, and not computed from other values.
    Constants,
    /// The figure at the point where a comparison of two contenders of `ethernot bench`,
    /// `bench multiedge` or `bench sockets` has the worst result.
    Compared { arguments: &'static [&'static str], comparison: compared::Comparison },
    /// The lowest ratio of the rate of a stream over UDP to the rate of a stream of bare datagrams,
    /// in a result of `ethernot bench yardsticks`.
    BareStream { arguments: &'static [&'static str] },
    /// A number at a JSON pointer of the result of a simulation; it is equal on all machines.
    Simulated { arguments: &'static [&'static str], pointer: &'static str },
    /// The lowest ratio of one of these figures to the same figure at the commit of `--against`,
    /// measured alternately.
    AgainstEach(&'static [against::Figure]),
    /// The largest figure of this name that tests print. The tests compare the libraries with the
    /// libraries of the commit of `--against`.
    AgainstPrinted { tests: printed::Tests, name: &'static str },
    /// The ratio of a field's value with this program to its value with the program of the commit
    /// of `--against`. The programs run alternately.
    Against { arguments: &'static [&'static str], of: Measurement, field: &'static str },
    /// The number of rows of a suite that are ok at the commit of `--against` and short here.
    Verdicts(&'static str),
    /// The ratio of two figures of devices in a guest whose clock counts instructions. `unit` is the
    /// unit of both figures.
    InGuest { of: &'static str, to: &'static str, unit: &'static str },
    /// A count in the sources.
    Sources(structure::Count),
}

/// Two contenders of a measurement, each with its transport and links, and the field whose ratio is
/// computed.
#[derive(Clone, Copy)]
struct Pair {
    own: (&'static str, u64),
    other: (&'static str, u64),
    field: &'static str,
    unit: Shown,
}

/// A point in the results of `ethernot bench multiedge`.
#[derive(Clone, Copy)]
struct PointOf {
    set_up: &'static str,
    test: &'static str,
    bytes: u64,
}

/// The figure that this project's sending policy reaches at a point.
#[derive(Clone, Copy)]
enum PointFigure {
    /// The payload rate in percent of the rate of all links together.
    Share,
    /// Like [`Self::Share`], in a set-up whose links have a delay. The set-up `without` has the
    /// same links without the delay. The row compares with the bare stream of frames in the set-up
    /// `without`, because a delay does not change the rate of a link.
    ShareWithDelay { without: &'static str },
    /// The number in this field of the point, in the unit of the bound.
    Field(&'static str),
    /// The throughput of this project's policy divided by the throughput of a contender, which may
    /// be in another set-up.
    ThroughputTo { set_up: &'static str, contender: &'static str },
}

/// An entry in the results of `ethernot bench`.
#[derive(Clone, Copy)]
struct Measurement {
    test: &'static str,
    transport: &'static str,
}

/// The figure of an entry.
#[derive(Clone, Copy)]
enum Figure {
    /// The ratio to another transport, computed for each pair of samples: `latency`, `throughput`
    /// or `cpu`.
    RatioTo { transport: &'static str, of: &'static str, shown: Shown },
    /// The median of a summary, shown with the median of another transport.
    Median { shown: Shown, beside: Option<&'static str> },
    /// The median of a counter over the samples.
    Counter(&'static str),
    /// The larger of two counters.
    Larger(&'static str, &'static str),
}

/// A field of an entry in the unit in which it is shown.
#[derive(Clone, Copy)]
struct Shown {
    field: &'static str,
    scale: f64,
    unit: &'static str,
}

/// The outcome of a row.
#[derive(Debug, PartialEq)]
enum Outcome {
    Measured {
        value: String,
        ok: bool,
    },
    /// The figure misses the bound, and no protocol can reach the bound on this machine.
    BeyondHere {
        value: String,
        reason: String,
    },
    CannotRun {
        reason: String,
    },
}

/// Returns the names of all suites.
fn suite_names() -> Vec<&'static str> {
    SUITES.iter().map(|suite| suite.name).collect()
}

/// Measures a suite and prints its table.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let known = || suite_names().join(", ");
    let usage = || XtaskError::Usage { what: format!("acceptance needs one of: {}", known()) };
    let mut quick = false;
    let mut against = None;
    let mut only = Vec::new();
    let mut names = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => quick = true,
            "--against" => against = Some(arguments.next().ok_or_else(usage)?.clone()),
            "--only" => only.push(arguments.next().ok_or_else(usage)?.as_str()),
            _ => names.push(argument),
        }
    }
    let [name] = names.as_slice() else { return Err(usage()) };
    let suite = SUITES.iter().find(|suite| suite.name == name.as_str()).ok_or_else(|| {
        XtaskError::Usage { what: format!("no suite `{name}`; there are: {}", known()) }
    })?;

    if let Some(commit) = suite.against.filter(|_| against.is_none()) {
        println!("compared with {commit}, as --against names no commit");
    }
    let rows = chosen(suite, &only)?;
    let against = against.or_else(|| suite.against.map(str::to_owned));
    let mut runner = Runner::new(workspace, quick, against);
    println!("row | measured | bound | verdict");
    let mut verdicts = [0_usize; 3];
    let mut works = true;
    for row in rows {
        let bound = row.bound_quick.filter(|_| quick).unwrap_or(row.bound);
        let outcome = runner.measure(&row.probe, bound);
        let class = match &outcome {
            Outcome::Measured { ok: true, .. } => 0,
            Outcome::Measured { ok: false, .. } => 1,
            Outcome::BeyondHere { .. } | Outcome::CannotRun { .. } => 2,
        };
        if let Some(counter) = verdicts.get_mut(class) {
            *counter += 1;
        }
        works &= class != 1 || row.probe.kind() == Kind::ForTheRecord;
        println!("{}", line(row.name, bound, &outcome, row.probe.kind()));
    }
    let [ok, short, cannot] = verdicts;
    println!("{}: {ok} ok, {short} short, {cannot} cannot run here", suite.name);
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the rows of a suite whose names contain one of these texts, or all rows if there are no
/// texts.
fn chosen(suite: &Suite, only: &[&str]) -> Result<Vec<&'static Row>, XtaskError> {
    let is_in_no_name = |text: &&&str| !suite.rows.iter().any(|row| row.name.contains(**text));
    if let Some(text) = only.iter().find(is_in_no_name) {
        let names: Vec<_> = suite.rows.iter().map(|row| row.name).collect();
        let (suite, names) = (suite.name, names.join("\n"));
        let what =
            format!("no row of suite {suite} has `{text}` in its name; its rows are:\n{names}");
        return Err(XtaskError::Usage { what });
    }
    let is_chosen = |row: &&Row| only.is_empty() || only.iter().any(|text| row.name.contains(text));
    Ok(suite.rows.iter().filter(is_chosen).collect())
}

impl Probe {
    /// Returns the consequence if the row misses its bound.
    fn kind(&self) -> Kind {
        match self {
            Self::Tests { .. }
            | Self::Repeated { .. }
            | Self::AllSucceed { .. }
            | Self::Fuzz { .. }
            | Self::Reproducible { .. }
            | Self::Simulated { .. } => Kind::Works,
            _ => Kind::ForTheRecord,
        }
    }
}

fn line(name: &str, bound: Bound, outcome: &Outcome, kind: Kind) -> String {
    let (measured, verdict) = match outcome {
        Outcome::Measured { value, ok: true } => (value.as_str(), VERDICT_OK.to_owned()),
        Outcome::Measured { value, ok: false } => {
            let record = if kind == Kind::ForTheRecord { " (for the record)" } else { "" };
            (value.as_str(), format!("{VERDICT_SHORT}{record}"))
        }
        Outcome::BeyondHere { value, reason } => {
            (value.as_str(), format!("cannot run here: {reason}"))
        }
        Outcome::CannotRun { reason } => ("-", format!("cannot run here: {reason}")),
    };
    format!("{name} | {measured} | {bound} | {verdict}")
}

impl Bound {
    fn is_met_by(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least, _) => figure >= least,
            Self::AtMost(most, _) => figure <= most,
        }
    }

    fn with_unit(self, figure: f64) -> String {
        let (Self::AtLeast(_, unit) | Self::AtMost(_, unit)) = self;
        format!("{} {unit}", rounded(figure))
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least, _) => write!(formatter, ">= {}", self.with_unit(*least)),
            Self::AtMost(most, _) => write!(formatter, "<= {}", self.with_unit(*most)),
        }
    }
}

/// Formats small figures with three significant digits, and large figures as whole numbers.
fn rounded(figure: f64) -> String {
    if figure.abs() >= 100.0 || figure.fract() == 0.0 {
        format!("{figure:.0}")
    } else if figure.abs() >= 10.0 {
        format!("{figure:.1}")
    } else if figure.abs() >= 1.0 {
        format!("{figure:.2}")
    } else {
        format!("{figure:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::{files_below, ignored, read};

    #[test]
    fn a_bound_is_met_at_its_edge() {
        assert!(Bound::AtLeast(1.2, "x").is_met_by(1.2));
        assert!(!Bound::AtLeast(1.2, "x").is_met_by(1.19));
        assert!(Bound::AtMost(1.2, "x").is_met_by(1.2));
        assert!(!Bound::AtMost(1.2, "x").is_met_by(1.21));
        assert!(!Bound::AtMost(1.2, "x").is_met_by(f64::NAN));
    }

    #[test]
    fn a_row_prints_its_four_fields() {
        let bound = Bound::AtLeast(1.5e6, "op/s");
        let measured = Outcome::Measured { value: "7 op/s".into(), ok: false };
        let works = line("n", bound, &measured, Kind::Works);
        assert_eq!(works, "n | 7 op/s | >= 1500000 op/s | short");
        let record = line("n", bound, &measured, Kind::ForTheRecord);
        assert_eq!(record, "n | 7 op/s | >= 1500000 op/s | short (for the record)");
        let cannot = Outcome::CannotRun { reason: "needs root".into() };
        assert_eq!(
            line("n", bound, &cannot, Kind::Works),
            "n | - | >= 1500000 op/s | cannot run here: needs root"
        );
    }

    #[test]
    fn only_rows_about_correctness_fail_the_command() {
        let tests = Probe::Tests { package: "p", chosen: "t", in_quick: true };
        assert_eq!(tests.kind(), Kind::Works);
        let arguments: &[&str] = &["sim", "waiting"];
        assert_eq!(Probe::Simulated { arguments, pointer: "/worst" }.kind(), Kind::Works);
        assert_eq!(Probe::Number { arguments, pointer: "/worst" }.kind(), Kind::ForTheRecord);
        assert_eq!(Probe::BareStream { arguments }.kind(), Kind::ForTheRecord);
        let part_quick = Some("t");
        let tests = printed::Tests { package: "p", target: "--lib", part: "t", part_quick };
        assert_eq!(Probe::Reproducible { tests, name: "n" }.kind(), Kind::Works);
        assert_eq!(Probe::Printed { tests, name: "n" }.kind(), Kind::ForTheRecord);
    }

    #[test]
    fn suites_named_by_slow_tests_exist() {
        let workspace = Workspace::load().unwrap();
        let mut files = files_below(&workspace.root, &workspace.target_dir).unwrap();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "rs"));
        let mut named = 0;
        for file in files.iter().filter(|file| !file.ends_with("tidy/ignored.rs")) {
            for suite in ignored::suites(&read(file).unwrap()) {
                assert!(suite_names().contains(&suite.as_str()), "{}: {suite}", file.display());
                named += 1;
            }
        }
        assert!(named > 40, "only {named} slow tests were found");
    }

    #[test]
    fn rows_are_selected_by_a_part_of_their_names() {
        let suite = &SUITES[0];
        assert_eq!(chosen(suite, &[]).unwrap().len(), suite.rows.len());
        let (name, rows) = (suite.rows[0].name, chosen(suite, &[suite.rows[0].name]).unwrap());
        assert!(rows.iter().all(|row| row.name.contains(name)) && rows[0].name == name);
        let refusal =
            chosen(suite, &[suite.rows[0].name, "no such row"]).err().unwrap().to_string();
        assert!(refusal.contains("`no such row`") && refusal.contains(name), "{refusal}");
    }

    #[test]
    fn bounds_are_numbers_with_the_same_unit_in_quick_runs() {
        for row in SUITES.iter().flat_map(|suite| suite.rows) {
            let parts = |bound| match bound {
                Bound::AtLeast(number, unit) | Bound::AtMost(number, unit) => (number, unit),
            };
            let (number, unit) = parts(row.bound);
            assert!(number.is_finite(), "{}", row.name);
            assert!(row.bound_quick.is_none_or(|quick| parts(quick).1 == unit), "{}", row.name);
        }
    }

    #[test]
    fn rows_of_a_suite_have_distinct_names() {
        for suite in SUITES {
            let mut names: Vec<_> = suite.rows.iter().map(|row| row.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), suite.rows.len());
        }
    }

    #[test]
    fn figures_keep_three_digits() {
        let figures = [0.1234, 1.234, 12.34, 1234.4, 4.0].map(rounded);
        assert_eq!(figures, ["0.123", "1.23", "12.3", "1234", "4"]);
    }
}

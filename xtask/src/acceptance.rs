//! `cargo xtask acceptance NAME`: what the project promises, measured here and now.
//!
//! A suite is a list of rows, a row is data: what is measured, the bound, and a [`Probe`] that
//! gets the figure. To add a row, add an entry to a suite; to connect a row to a command, replace
//! its `Probe::NotBuilt`. The command is `ethernot` with `arguments`, where `{json}` stands for a file
//! the program writes its result to and `{quick:A|B}` for A in a quick run and B in a full one;
//! commands with equal arguments run once. The figure is at a JSON pointer of the result; a text
//! there says why there is none.
//! The exit status is always 0: this is a record, not a gate.

use std::collections::HashMap;
use std::fmt;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::workspace::Workspace;
use crate::{XtaskError, build_program};

/// A named list of rows.
struct Suite {
    name: &'static str,
    rows: &'static [Row],
}

/// One promise.
struct Row {
    name: &'static str,
    bound: Bound,
    probe: Probe,
}

/// What the figure must satisfy, in the unit that follows.
#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64, &'static str),
    AtMost(f64, &'static str),
}

/// How a figure is got.
#[expect(dead_code, reason = "the commands are connected as they come to exist")]
enum Probe {
    /// The command that would give it does not exist yet.
    NotBuilt,
    /// A number in the result of a command, times `scale`.
    Figure { arguments: &'static [&'static str], pointer: &'static str, scale: f64 },
    /// A number in the result of a command divided by another one of the same result.
    Ratio { arguments: &'static [&'static str], pointer: &'static str, to: &'static str },
    /// `count` things were tried; the exit status of the command says that none failed.
    AllSucceed { arguments: &'static [&'static str], count_quick: f64, count_full: f64 },
}

/// What became of a row.
#[derive(Debug, PartialEq)]
enum Outcome {
    Measured { value: String, ok: bool },
    CannotRun { reason: String },
}

const SUITES: &[Suite] = &[Suite { name: "edge-engine", rows: EDGE_ENGINE }];

/// The edge engine over UDP, against TCP and bare UDP on the same path, medians.
const EDGE_ENGINE: &[Row] = &[
    Row {
        name: "one-way writes of 1 MiB, one UDP link, against TCP one-way",
        bound: Bound::AtLeast(1.2, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "same, CPU seconds per GB (both sides) against TCP",
        bound: Bound::AtMost(1.0, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "ping-pong 8 B, polled, against bare polled UDP of the same packet size",
        bound: Bound::AtMost(1.25, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "ping-pong 8 B, polled, against blocking TCP",
        bound: Bound::AtMost(0.25, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "8 B writes, 64 in flight, one thread a side",
        bound: Bound::AtLeast(1.5e6, "operations/s"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "same, against bare sendto datagrams",
        bound: Bound::AtLeast(5.0, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "10 000 connections of one endpoint: memory per idle connection",
        bound: Bound::AtMost(4096.0, "B"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "10 000 connections of one endpoint: 8 B ping-pong on one, against one alone",
        bound: Bound::AtMost(1.2, "x"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "connection set-up, sequential, one endpoint, median",
        bound: Bound::AtMost(100.0, "us"),
        probe: Probe::NotBuilt,
    },
    Row {
        name: "torture seeds, none failing",
        bound: Bound::AtLeast(500.0, "seeds"),
        probe: Probe::AllSucceed {
            arguments: &["sim", "torture", "--seeds", "{quick:0..500|0..50000}"],
            count_quick: 500.0,
            count_full: 50_000.0,
        },
    },
    Row {
        name: "simulated 1 MB write, 1 Gb/s + 100 Mb/s, against the fast link alone",
        bound: Bound::AtMost(0.93, "x"),
        probe: Probe::Ratio {
            arguments: SCENARIOS,
            pointer: "/scenarios/1 MB, 1 Gb~1s + 100 Mb~1s/time_ns",
            to: "/scenarios/1 MB, 1 Gb~1s/time_ns",
        },
    },
    Row {
        name: "1 % loss on a simulated 1 Gb/s, 50 us link: goodput against no loss",
        bound: Bound::AtLeast(0.93, "x"),
        probe: Probe::Ratio {
            arguments: SCENARIOS,
            pointer: "/scenarios/16 MB, 1 Gb~1s, 1 % loss/goodput_bits_per_second",
            to: "/scenarios/16 MB, 1 Gb~1s/goodput_bits_per_second",
        },
    },
    Row {
        name: "fuzzing of each decoder and of handle_frame without a crash",
        bound: Bound::AtLeast(30.0, "min"),
        probe: Probe::NotBuilt,
    },
];

/// Transfers over simulated links.
const SCENARIOS: &[&str] = &["sim", "scenario", "--json", "{json}"];

/// Prints the table of a suite.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let quick = arguments.iter().any(|argument| argument == "--quick");
    let names: Vec<&String> =
        arguments.iter().filter(|argument| !argument.starts_with("--")).collect();
    let known = || SUITES.iter().map(|suite| suite.name).collect::<Vec<_>>().join(", ");
    let [name] = names.as_slice() else {
        return Err(XtaskError::Usage { what: format!("acceptance needs one of: {}", known()) });
    };
    let suite = SUITES.iter().find(|suite| suite.name == name.as_str()).ok_or_else(|| {
        XtaskError::Usage { what: format!("no suite `{name}`; there are: {}", known()) }
    })?;

    let mut runner = Runner::new(workspace, quick);
    println!("row | measured | bound | verdict");
    let mut verdicts = [0_usize; 3];
    for row in suite.rows {
        let outcome = runner.measure(row);
        let class = match &outcome {
            Outcome::Measured { ok: true, .. } => 0,
            Outcome::Measured { ok: false, .. } => 1,
            Outcome::CannotRun { .. } => 2,
        };
        if let Some(counter) = verdicts.get_mut(class) {
            *counter += 1;
        }
        println!("{}", line(row, &outcome));
    }
    let [ok, short, cannot] = verdicts;
    println!("{}: {ok} ok, {short} short, {cannot} cannot run here", suite.name);
    Ok(ExitCode::SUCCESS)
}

fn line(row: &Row, outcome: &Outcome) -> String {
    let (measured, verdict) = match outcome {
        Outcome::Measured { value, ok: true } => (value.as_str(), "ok".to_owned()),
        Outcome::Measured { value, ok: false } => (value.as_str(), "short".to_owned()),
        Outcome::CannotRun { reason } => ("-", format!("cannot run here: {reason}")),
    };
    format!("{} | {measured} | {} | {verdict}", row.name, row.bound)
}

/// Runs commands, remembering their results.
struct Runner<'a> {
    workspace: &'a Workspace,
    quick: bool,
    /// Built on first use; the reason when that failed.
    program: Option<Result<std::path::PathBuf, String>>,
    results: HashMap<Vec<String>, Result<Value, String>>,
}

impl<'a> Runner<'a> {
    fn new(workspace: &'a Workspace, quick: bool) -> Self {
        Self { workspace, quick, program: None, results: HashMap::new() }
    }

    fn measure(&mut self, row: &Row) -> Outcome {
        let figure = match row.probe {
            Probe::NotBuilt => Err("not built yet".to_owned()),
            Probe::Figure { arguments, pointer, scale } => self
                .result(arguments)
                .and_then(|result| number(&result, pointer).map(|figure| figure * scale)),
            Probe::Ratio { arguments, pointer, to } => self.result(arguments).and_then(|result| {
                let base = number(&result, to)?;
                if base == 0.0 {
                    return Err(format!("{to} is 0"));
                }
                Ok(number(&result, pointer)? / base)
            }),
            Probe::AllSucceed { arguments, count_quick, count_full } => {
                self.result(arguments).map(|_| if self.quick { count_quick } else { count_full })
            }
        };
        match figure {
            Ok(figure) => Outcome::Measured {
                value: row.bound.with_unit(figure),
                ok: row.bound.is_met_by(figure),
            },
            Err(reason) => Outcome::CannotRun { reason },
        }
    }

    /// The JSON result of a command, or the reason why there is none, in one line.
    fn result(&mut self, arguments: &[&str]) -> Result<Value, String> {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| choose(argument, self.quick)).collect();
        if let Some(result) = self.results.get(&arguments) {
            return result.clone();
        }
        let result = self.program().and_then(|program| {
            let file = self.workspace.target_dir.join("acceptance.json");
            execute(&program, &arguments, &file)
        });
        self.results.insert(arguments, result.clone());
        result
    }

    fn program(&mut self) -> Result<std::path::PathBuf, String> {
        let workspace = self.workspace;
        self.program
            .get_or_insert_with(|| match build_program(workspace) {
                Ok(program) => Ok(program),
                Err(XtaskError::NotBuilt { .. }) => Err("not built yet".to_owned()),
                Err(error) => Err(error.to_string()),
            })
            .clone()
    }
}

/// Runs `ethernot arguments`; its result is the file named by `{json}`, else nothing.
fn execute(
    program: &std::path::Path,
    arguments: &[String],
    file: &std::path::Path,
) -> Result<Value, String> {
    let writes_file = arguments.iter().any(|argument| argument == "{json}");
    let _ = std::fs::remove_file(file);
    let path = file.display().to_string();
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.replace("{json}", &path)).collect();
    let shown = arguments.join(" ");
    eprintln!("-- ethernot {shown}");
    let output = Command::new(program)
        .args(&arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| format!("`ethernot {shown}`: {cause}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(format!("`ethernot {shown}` failed ({}): {last}", output.status));
    }
    if !writes_file {
        return Ok(Value::Null);
    }
    let bytes = std::fs::read(file).map_err(|cause| format!("no result file: {cause}"))?;
    serde_json::from_slice(&bytes).map_err(|cause| format!("result is not JSON: {cause}"))
}

/// Expands `{quick:A|B}`.
fn choose(argument: &str, quick: bool) -> String {
    let choice = argument
        .strip_prefix("{quick:")
        .and_then(|rest| rest.strip_suffix('}'))
        .and_then(|choices| choices.split_once('|'));
    match choice {
        Some((short, full)) => (if quick { short } else { full }).to_owned(),
        None => argument.to_owned(),
    }
}

/// The figure at `pointer`; a text in its place is the program's reason for having none.
fn number(result: &Value, pointer: &str) -> Result<f64, String> {
    match result.pointer(pointer) {
        Some(Value::Number(figure)) => figure.as_f64().ok_or_else(|| figure.to_string()),
        Some(Value::String(reason)) => Err(reason.clone()),
        _ => Err(format!("no number at {pointer} of the result")),
    }
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

/// Three significant digits for small figures, whole numbers for large ones.
fn rounded(figure: f64) -> String {
    if figure.abs() >= 100.0 || figure.fract() == 0.0 {
        format!("{figure:.0}")
    } else if figure.abs() >= 10.0 {
        format!("{figure:.1}")
    } else {
        format!("{figure:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let row = Row { name: "n", bound: Bound::AtLeast(1.5e6, "op/s"), probe: Probe::NotBuilt };
        let measured = Outcome::Measured { value: "7 op/s".into(), ok: false };
        assert_eq!(line(&row, &measured), "n | 7 op/s | >= 1500000 op/s | short");
        let cannot = Outcome::CannotRun { reason: "needs root".into() };
        assert_eq!(line(&row, &cannot), "n | - | >= 1500000 op/s | cannot run here: needs root");
    }

    #[test]
    fn quick_and_full_runs_choose_their_side() {
        assert_eq!(choose("{quick:0..500|0..50000}", true), "0..500");
        assert_eq!(choose("{quick:0..500|0..50000}", false), "0..50000");
        assert_eq!(choose("{json}", true), "{json}");
    }

    #[test]
    fn a_missing_figure_names_its_pointer() {
        let result = serde_json::json!({"edge": {"ratio": 1.5, "tcp": "needs root"}});
        assert_eq!(number(&result, "/edge/ratio"), Ok(1.5));
        assert_eq!(number(&result, "/edge/tcp"), Err("needs root".to_owned()));
        assert!(number(&result, "/edge/none").is_err_and(|reason| reason.contains("/edge/none")));
    }

    #[test]
    fn rows_of_a_suite_have_different_names() {
        for suite in SUITES {
            let mut names: Vec<_> = suite.rows.iter().map(|row| row.name).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), suite.rows.len());
        }
    }
}

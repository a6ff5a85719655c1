//! Runs commands, caches their results and finds figures in them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::commands::{cause, last_line, run};
use super::found::{Failure, Found};
use super::guest_figures::Figures;
use super::{Bound, Figure, Measurement, Outcome, PointFigure, PointOf, Probe, Shown, rounded};
use super::{
    against, compared, constants, entries, printed, repeated, sender, structure, verdicts,
};
use crate::building::build_program;
use crate::error::XtaskError;
use crate::libraries;
use crate::workspace::Workspace;

/// Runs commands and caches their results.
pub(super) struct Runner<'a> {
    workspace: &'a Workspace,
    pub(super) quick: bool,
    /// The commit to compare with, if one was named.
    against: Option<String>,
    /// The program of the commit `against`, built on first use, or the reason why the build failed.
    reference: Option<Result<PathBuf, String>>,
    /// The folder of the libraries of the commit `against`, built on first use, or the reason why
    /// the build failed.
    reference_libraries: Option<Result<PathBuf, String>>,
    /// The `ethernot` program, built on first use, or the reason why the build failed.
    program: Option<Result<PathBuf, String>>,
    /// The result of building the libraries for programs: `None` before their first use. An error
    /// contains the reason why the build failed.
    libraries: Option<Result<(), String>>,
    results: HashMap<Vec<String>, Result<Value, Failure>>,
    /// Output of tests, by their arguments.
    printed: HashMap<Vec<String>, Result<String, Failure>>,
    /// Figures of devices in a guest, measured on first use.
    in_guest: Option<Result<Figures, Failure>>,
}

impl<'a> Runner<'a> {
    pub(super) fn new(workspace: &'a Workspace, quick: bool, against: Option<String>) -> Self {
        Self {
            workspace,
            quick,
            against,
            reference: None,
            reference_libraries: None,
            program: None,
            libraries: None,
            results: HashMap::new(),
            printed: HashMap::new(),
            in_guest: None,
        }
    }

    /// Measures a row and returns the verdict.
    pub(super) fn measure(&mut self, probe: &Probe, bound: Bound) -> Outcome {
        verdict(self.figure(probe, bound), bound)
    }

    fn figure(&mut self, probe: &Probe, bound: Bound) -> Result<Found, Failure> {
        match *probe {
            Probe::Ratio { arguments, pointer, to } => {
                let result = self.result(arguments)?;
                ratio(number(&result, pointer)?, number(&result, to)?).map(Found::plain)
            }
            Probe::Number { arguments, pointer } => {
                let result = self.result(arguments)?;
                number(&result, pointer).map(Found::plain)
            }
            Probe::Bench { arguments, of, figure } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                bench_figure(&result, path_of(arguments), of, figure)
            }
            Probe::Point { arguments, point, figure } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                point_figure(&result, point, figure)
            }
            Probe::Yardstick { arguments, to } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                yardstick(&result, to)
            }
            Probe::WorstCut { arguments, fields } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                worst_cut(&result, fields)
            }
            Probe::AllSucceed { arguments, count } => {
                let result = self.result(arguments)?;
                number(&result, count).map(Found::plain)
            }
            Probe::Fuzz { targets, seconds_quick, seconds_full } => {
                fuzz(targets, if self.quick { seconds_quick } else { seconds_full })
            }
            Probe::Policies { arguments } => sender::policies(&self.result(arguments)?),
            Probe::Rules { arguments, points } => sender::rules(self, arguments, points),
            Probe::Contenders { arguments, test, pair } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                sender::contenders(&result, path_of(arguments), test, &pair)
            }
            Probe::Tests { in_quick: false, .. } | Probe::InGuest { .. } if self.quick => {
                Err(Failure::CannotRun("run without --quick".into()))
            }
            Probe::Tests { package, chosen, .. } => sender::tests(package, chosen),
            Probe::Repeated { tests, times_quick, times_full } => {
                let times = if self.quick { times_quick } else { times_full };
                repeated::count(self.workspace, tests, times)
            }
            Probe::Printed { tests, name } | Probe::Reproducible { tests, name } => {
                printed::largest(&self.printed(tests, None)?, name)
            }
            Probe::AgainstPrinted { tests, name } => {
                // If a quick run omits these tests, returns the error before the build.
                tests.arguments(self.quick)?;
                let other = self.reference_libraries().map_err(Failure::CannotRun)?;
                printed::largest(&self.printed(tests, Some(&other))?, name)
            }
            Probe::Entry { arguments, steps, pointer } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                entries::figure(&result, steps, pointer)
            }
            Probe::Constants => constants::count(&self.workspace.root),
            Probe::Compared { arguments, comparison } => {
                let result = self.result(arguments).map_err(unmeasured)?;
                compared::worst(&result, &comparison, bound)
            }
            Probe::BareStream { arguments } => {
                bare_stream(&self.result(arguments).map_err(unmeasured)?)
            }
            Probe::Simulated { arguments, pointer } => {
                number(&self.result(arguments)?, pointer).map(Found::plain)
            }
            Probe::AgainstEach(figures) => against::worst(self, figures),
            Probe::Against { arguments, of, field } => against::ratio(self, arguments, of, field),
            Probe::InGuest { of, to, unit } => {
                let figures = self.in_guest()?;
                let (figure, other) = (figures.value(of)?, figures.value(to)?);
                let note = format!(" ({} and {} {unit})", rounded(figure), rounded(other));
                Ok(Found { figure: ratio(figure, other)?, note, bare: None })
            }
            Probe::Sources(count) => {
                structure::count(self.workspace, self.against.as_deref(), count)
            }
            Probe::Verdicts(suite) => {
                let commit = self.against.as_deref();
                let commit = commit
                    .ok_or_else(|| Failure::CannotRun("name a commit with --against".into()))?;
                verdicts::became_short(self.workspace, commit, suite, self.quick)
            }
        }
    }

    /// Returns the JSON result of a command. If there is none, returns the reason in one line.
    fn result(&mut self, arguments: &[&str]) -> Result<Value, Failure> {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| choose(argument, self.quick)).collect();
        if let Some(result) = self.results.get(&arguments) {
            return result.clone();
        }
        let mut program = self.program();
        if libraries::are_needed(&arguments) {
            program = program.and_then(|program| self.libraries().map(|()| program));
        }
        let result =
            program.map_err(Failure::CannotRun).and_then(|program| self.run(&program, &arguments));
        self.results.insert(arguments, result.clone());
        result
    }

    /// Returns the output of tests. Tests with equal arguments run once.
    fn printed(
        &mut self,
        tests: printed::Tests,
        other_libraries: Option<&Path>,
    ) -> Result<String, Failure> {
        let arguments = tests.arguments(self.quick)?;
        let run = |arguments: &Vec<String>| printed::output(arguments, other_libraries);
        self.printed.entry(arguments).or_insert_with_key(run).clone()
    }

    /// Runs a command of this program without the cache, and returns its JSON result.
    pub(super) fn fresh_result(&mut self, arguments: &[&str]) -> Result<Value, Failure> {
        let program = self.program().map_err(Failure::CannotRun)?;
        self.result_by(&program, arguments)
    }

    /// Runs a command of `program` without the cache, and returns its JSON result.
    pub(super) fn result_by(&self, program: &Path, arguments: &[&str]) -> Result<Value, Failure> {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| choose(argument, self.quick)).collect();
        self.run(program, &arguments)
    }

    fn run(&self, program: &Path, arguments: &[String]) -> Result<Value, Failure> {
        execute(program, arguments, &self.workspace.target_dir.join("acceptance.json"))
    }

    /// Returns the program of the commit to compare with.
    pub(super) fn reference(&mut self) -> Result<PathBuf, String> {
        let (workspace, against) = (self.workspace, self.against.as_deref());
        self.reference
            .get_or_insert_with(|| {
                let commit = against.ok_or("name a commit with --against")?;
                against::build(workspace, commit)
            })
            .clone()
    }

    /// Returns the folder with the libraries of the commit to compare with.
    fn reference_libraries(&mut self) -> Result<PathBuf, String> {
        let (workspace, against) = (self.workspace, self.against.as_deref());
        self.reference_libraries
            .get_or_insert_with(|| {
                let commit = against.ok_or("name a commit with --against")?;
                against::build_libraries(workspace, commit)
            })
            .clone()
    }

    fn libraries(&mut self) -> Result<(), String> {
        let workspace = self.workspace;
        let build = || libraries::build(workspace, true);
        self.libraries
            .get_or_insert_with(|| build().map(|_folder| ()).map_err(|error| error.to_string()))
            .clone()
    }

    /// Returns the figures of devices in a guest.
    fn in_guest(&mut self) -> Result<Figures, Failure> {
        if self.in_guest.is_none() {
            let program = self.program();
            let program = program.and_then(|program| self.libraries().map(|()| program));
            let figures = program.map_err(Failure::CannotRun);
            let workspace = self.workspace;
            self.in_guest = Some(figures.and_then(|path| Figures::measure(workspace, &path)));
        }
        self.in_guest.clone().unwrap_or_else(|| Err(Failure::CannotRun("not measured".into())))
    }

    pub(super) fn program(&mut self) -> Result<PathBuf, String> {
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

/// Compares a figure with a bound. If the bare stream of frames also misses the bound, no protocol
/// can meet the bound on this machine.
fn verdict(figure: Result<Found, Failure>, bound: Bound) -> Outcome {
    match figure {
        Ok(Found { figure, note, bare }) => {
            let value = format!("{}{note}", bound.with_unit(figure));
            let ok = bound.is_met_by(figure);
            match bare.filter(|&bare| !ok && !bound.is_met_by(bare)) {
                Some(bare) => {
                    let most = bound.with_unit(bare);
                    let reason = format!("without a protocol, or by other rules, it is {most}");
                    Outcome::BeyondHere { value, reason }
                }
                None => Outcome::Measured { value, ok },
            }
        }
        Err(Failure::Failed(message)) => Outcome::Measured { value: message, ok: false },
        Err(Failure::CannotRun(reason)) => Outcome::CannotRun { reason },
    }
}

/// The exit status of `ethernot` for an unknown command or option.
const WRONG_USAGE: i32 = 2;

/// Runs `ethernot arguments` with the path `file` in place of `{json}`, and returns the JSON in
/// that file.
fn execute(program: &Path, arguments: &[String], file: &Path) -> Result<Value, Failure> {
    let _ = std::fs::remove_file(file);
    let path = file.display().to_string();
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.replace("{json}", &path)).collect();
    let shown = arguments.join(" ");
    eprintln!("-- ethernot {shown}");
    // Omits the options, because the reason must fit into a row of the table. All arguments were
    // printed before the run.
    let command = arguments.iter().take_while(|argument| !argument.starts_with('-'));
    let command = command.cloned().collect::<Vec<_>>().join(" ");
    let output = run(Command::new(program).args(&arguments))?;
    if output.status.code() == Some(WRONG_USAGE) {
        let what = format!("`ethernot {command}` is unknown to this program: {}", cause(&output));
        return Err(Failure::CannotRun(what));
    }
    if !output.status.success() {
        let last = last_line(&output);
        return Err(Failure::Failed(format!("`ethernot {command}` failed: {last}")));
    }
    let cannot = |reason: String| Failure::CannotRun(reason);
    let bytes = std::fs::read(file).map_err(|cause| cannot(format!("no result file: {cause}")))?;
    serde_json::from_slice(&bytes).map_err(|cause| cannot(format!("result is not JSON: {cause}")))
}

/// Fuzzes for `seconds` seconds by running xtask again, because the targets are built with another
/// toolchain.
fn fuzz(targets: &[&str], seconds: u32) -> Result<Found, Failure> {
    if crate::fuzz::Compiler::installed().is_none() {
        return Err(Failure::CannotRun("cargo-fuzz is missing".into()));
    }
    eprintln!("-- cargo xtask fuzz --seconds {seconds} {}", targets.join(" "));
    let own = std::env::current_exe()
        .map_err(|cause| Failure::CannotRun(format!("cannot find this program: {cause}")))?;
    let seconds_text = seconds.to_string();
    let arguments = ["fuzz", "--seconds", &seconds_text];
    let output = run(Command::new(own).args(arguments).args(targets))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or("no message").to_owned();
    match (output.status.success(), last.contains("crashed")) {
        (true, _) => {
            Ok(Found { figure: f64::from(seconds) / 60.0, note: format!(" ({last})"), bare: None })
        }
        (false, true) => Err(Failure::Failed(last)),
        (false, false) => Err(Failure::CannotRun(last_line(&output))),
    }
}

/// Converts a failure into [`Failure::CannotRun`], because a failed measurement says nothing about
/// the bound.
pub(super) fn unmeasured(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(why) | Failure::CannotRun(why) => Failure::CannotRun(why),
    }
}

/// Returns A of an argument `{quick:A|B}` in a quick run, and B in a full run. Returns any other
/// argument unchanged.
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

/// Returns the number at `pointer`.
pub(super) fn number(result: &Value, pointer: &str) -> Result<f64, Failure> {
    result
        .pointer(pointer)
        .and_then(Value::as_f64)
        .ok_or_else(|| Failure::CannotRun(format!("no number at {pointer} of the result")))
}

pub(super) fn ratio(figure: f64, to: f64) -> Result<f64, Failure> {
    if to == 0.0 { Err(Failure::CannotRun("compared with 0".into())) } else { Ok(figure / to) }
}

/// Returns the path for which the bounds of a command are valid. If the arguments request loopback,
/// which processes that share memory need, the path is loopback. Otherwise it is network
/// namespaces.
fn path_of(arguments: &[&str]) -> &'static str {
    if arguments.contains(&"--loopback") { "loopback" } else { "namespaces" }
}

/// Returns a figure of the results of `ethernot bench`. Fails if the results come from a path other
/// than [`path_of`].
fn bench_figure(
    result: &Value,
    wanted: &str,
    of: Measurement,
    figure: Figure,
) -> Result<Found, Failure> {
    let path = result.pointer("/path/kind").and_then(Value::as_str).unwrap_or("an unknown path");
    if path != wanted {
        let why = format!("measured over {path}; the bound is for {wanted} (namespaces: as root)");
        return Err(Failure::CannotRun(why));
    }
    let own = entry(result, of)?;
    match figure {
        Figure::RatioTo { transport, of: kind, shown } => {
            let ratios = own.get("ratios").and_then(Value::as_array);
            let ratio = ratios.into_iter().flatten().find(|ratio| ratio["to"] == transport);
            let ratio = ratio.ok_or_else(|| {
                Failure::CannotRun(format!("the result has no ratio to {transport}"))
            })?;
            let other = entry(result, Measurement { transport, ..of })?;
            let (own, other) = (shown.median(own)?, shown.median(other)?);
            let note =
                format!(" ({} {}; {transport} {})", rounded(own), shown.unit, rounded(other));
            Ok(Found { figure: number(ratio, &format!("/{kind}/median"))?, note, bare: None })
        }
        Figure::Median { shown, beside } => {
            let note = match beside {
                Some(transport) => {
                    let other = shown.median(entry(result, Measurement { transport, ..of })?)?;
                    format!(" ({transport} {} {})", rounded(other), shown.unit)
                }
                None => String::new(),
            };
            Ok(Found { figure: shown.median(own)?, note, bare: None })
        }
        Figure::Counter(name) => counter(own, name).map(Found::plain),
        Figure::Larger(one, other) => {
            let (one, other) = (counter(own, one)?, counter(own, other)?);
            let note = format!(" (server {}, client {})", rounded(one), rounded(other));
            Ok(Found { figure: one.max(other), note, bare: None })
        }
    }
}

/// Returns the throughput of the point `own` as a share of the links' rate. Also returns the higher
/// of two other shares: that of the bare stream of frames and that of MultiEdge's policy, in the
/// set-up `bare_in`.
fn share(result: &Value, of: PointOf, bare_in: &str, own: &Value) -> Result<Found, Failure> {
    let share_of = |set_up: &str, contender: &str| {
        let point = point(result, of, set_up, contender).ok()?;
        number(point, "/share_percent/median").ok()
    };
    let rate = number(own, "/megabytes_per_second/median")? * 8e-3;
    let rules = share_of(of.set_up, "multiedge");
    let rules =
        rules.map_or_else(String::new, |share| format!("; MultiEdge's rules {} %", rounded(share)));
    let bare = share_of(bare_in, "bare");
    let bare = bare.map(|bare| bare.max(share_of(bare_in, "multiedge").unwrap_or(bare)));
    let note = format!(" ({} Gb/s{rules})", rounded(rate));
    Ok(Found { figure: number(own, "/share_percent/median")?, note, bare })
}

/// Returns the figure that this project's policy reached at a point, in the results of
/// `ethernot bench multiedge`.
fn point_figure(result: &Value, of: PointOf, figure: PointFigure) -> Result<Found, Failure> {
    let PointOf { set_up, .. } = of;
    let own = point(result, of, set_up, "edge")?;
    let rules = point(result, of, set_up, "multiedge").ok();
    match figure {
        PointFigure::Share => share(result, of, set_up, own),
        PointFigure::ShareWithDelay { without } => share(result, of, without, own),
        PointFigure::Field(name) => {
            let rules = rules.and_then(|point| point[name].as_f64());
            let note = rules.map_or_else(String::new, |value| {
                format!(" (MultiEdge's rules {})", rounded(value))
            });
            Ok(Found { figure: number(own, &format!("/{name}"))?, note, bare: None })
        }
        PointFigure::ThroughputTo { set_up, contender } => {
            let other = point(result, of, set_up, contender)?;
            let rate = |point| number(point, "/megabytes_per_second/median");
            let (own, other) = (rate(own)?, rate(other)?);
            let note = format!(" ({} MB/s; {contender} {})", rounded(own), rounded(other));
            Ok(Found { figure: ratio(own, other)?, note, bare: None })
        }
    }
}

/// Returns the point of a contender in a set-up.
pub(super) fn point<'a>(
    result: &'a Value,
    of: PointOf,
    set_up: &str,
    contender: &str,
) -> Result<&'a Value, Failure> {
    let set_ups = result.get("setups").and_then(Value::as_array);
    let mut set_ups = set_ups.into_iter().flatten();
    let rows = set_ups.find(|entry| entry["setup"]["name"] == set_up);
    let rows = rows.and_then(|entry| entry.get("rows")).and_then(Value::as_array);
    let mut rows = rows.into_iter().flatten();
    let found = rows.find(|row| {
        row["test"] == of.test && row["message_bytes"] == of.bytes && row["contender"] == contender
    });
    found.ok_or_else(|| {
        let PointOf { test, bytes, .. } = of;
        let what = format!("the result has no {test} of {bytes} B of {contender} on {set_up}");
        Failure::CannotRun(what)
    })
}

/// Returns the ratio to a yardstick. If there is none, returns the reason.
fn yardstick(result: &Value, to: &str) -> Result<Found, Failure> {
    if let Some(why) = result["cannot_run"][to].as_str() {
        return Err(Failure::CannotRun(why.to_owned()));
    }
    let latency_us = |name: &str| number(result, &format!("/latency_ns/{name}/median"));
    let (own, other) = (latency_us("edge")? / 1e3, latency_us(to)? / 1e3);
    let note = format!(" ({} us; {to} {})", rounded(own), rounded(other));
    Ok(Found { figure: number(result, &format!("/ratios/{to}"))?, note, bare: None })
}

/// Returns the lowest ratio of the rate of a stream to the rate of the stream of bare datagrams.
fn bare_stream(result: &Value) -> Result<Found, Failure> {
    let streams = result["streams"].as_array().into_iter().flatten();
    let mut least = f64::INFINITY;
    let mut notes = Vec::new();
    for stream in streams {
        let figure = number(stream, "/ratio/median")?;
        let [edge, bare] = ["/edge_bits_per_second/median", "/bare_bits_per_second/median"]
            .map(|pointer| number(stream, pointer).map(|bits| rounded(bits * 1e-9)));
        least = least.min(figure);
        let bytes = &stream["message_bytes"];
        notes.push(format!("{bytes} B {}: {} of {} Gb/s", rounded(figure), edge?, bare?));
    }
    if notes.is_empty() {
        return Err(Failure::CannotRun("the result has no streams".into()));
    }
    Ok(Found { figure: least, note: format!(" ({})", notes.join(", ")), bare: None })
}

/// Returns the highest sum of the fields over all cuts. Fails if a cut does not have the fields.
fn worst_cut(result: &Value, fields: &[&str]) -> Result<Found, Failure> {
    let cuts = result.get("cuts").and_then(Value::as_array);
    let cuts = cuts.filter(|cuts| !cuts.is_empty());
    let cuts = cuts.ok_or_else(|| Failure::CannotRun("the result has no cuts".into()))?;
    let mut worst = 0.0_f64;
    let mut notes = Vec::new();
    for cut in cuts {
        let name = cut["cut"].as_str().unwrap_or("a cut");
        let values: Option<Vec<f64>> = fields.iter().map(|field| cut[*field].as_f64()).collect();
        let Some(values) = values else {
            return Err(Failure::Failed(format!("{name}: no {}", fields.join(" and "))));
        };
        let sum: f64 = values.iter().sum();
        worst = worst.max(sum);
        notes.push(format!("{name} {}", rounded(sum)));
    }
    Ok(Found { figure: worst, note: format!(" ({})", notes.join(", ")), bare: None })
}

/// Returns the measurement of a test and transport over one link.
pub(super) fn entry(result: &Value, of: Measurement) -> Result<&Value, Failure> {
    let entries = result.get("results").and_then(Value::as_array);
    let Measurement { test, transport } = of;
    entries
        .into_iter()
        .flatten()
        .find(|entry| {
            entry["test"] == test && entry["transport"] == transport && entry["links"] == 1
        })
        .ok_or_else(|| Failure::CannotRun(format!("the result has no {test} of {transport}")))
}

impl Shown {
    fn median(self, entry: &Value) -> Result<f64, Failure> {
        Ok(number(entry, &format!("/{}/median", self.field))? * self.scale)
    }
}

/// Returns the median of a counter over the samples of a measurement.
fn counter(entry: &Value, name: &str) -> Result<f64, Failure> {
    let samples = entry.get("samples").and_then(Value::as_array);
    let mut values: Vec<f64> = samples
        .into_iter()
        .flatten()
        .filter_map(|sample| sample["counters"][name].as_f64())
        .collect();
    values.sort_by(f64::total_cmp);
    let upper = values.get(values.len() / 2);
    let lower = values.get(values.len().saturating_sub(1) / 2);
    match (lower, upper) {
        (Some(&lower), Some(&upper)) => Ok(f64::midpoint(lower, upper)),
        _ => Err(Failure::CannotRun(format!("no counter {name} in the result"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quick_and_full_runs_use_their_own_values() {
        assert_eq!(choose("{quick:0..500|0..50000}", true), "0..500");
        assert_eq!(choose("{quick:0..500|0..50000}", false), "0..50000");
        assert_eq!(choose("{json}", true), "{json}");
    }

    #[test]
    fn the_error_for_a_missing_figure_names_its_pointer() {
        let result = json!({"edge": {"ratio": 1.5}});
        assert_eq!(number(&result, "/edge/ratio"), Ok(1.5));
        let missing = number(&result, "/edge/none").expect_err("there is none");
        assert!(format!("{missing:?}").contains("/edge/none"));
    }

    #[test]
    fn a_ratio_is_shown_with_both_figures() {
        let shown = Shown { field: "latency_ns", scale: 1e-3, unit: "us" };
        let figure = Figure::RatioTo { transport: "udp", of: "latency", shown };
        let found = bench_figure(&results("namespaces"), "namespaces", EDGE, figure);
        assert_eq!(found, Ok(Found { figure: 1.5, note: " (4.50 us; udp 3)".into(), bare: None }));
    }

    #[test]
    fn a_counter_is_the_median_of_the_samples() {
        let found =
            bench_figure(&results("namespaces"), "namespaces", EDGE, Figure::Counter("slowdown"));
        assert_eq!(found, Ok(Found::plain(1.02)));
        let larger = Figure::Larger("slowdown", "memory");
        let found = bench_figure(&results("namespaces"), "namespaces", EDGE, larger)
            .expect("both are there");
        assert!((found.figure - 2000.0).abs() < 1e-9);
    }

    /// Returns a one-way point like those in results of `ethernot bench multiedge`.
    fn row(contender: &str, share: f64) -> Value {
        json!({
            "test": "one-way", "message_bytes": 8, "contender": contender,
            "megabytes_per_second": {"median": share}, "share_percent": {"median": share},
            "extra_frame_percent": 1.5,
        })
    }

    #[test]
    fn points_are_found_by_set_up_and_contender() {
        let result = json!({"setups": [
            {"setup": {"name": "1L-1G"}, "rows": [row("multiedge", 50.0), row("edge", 90.0)]},
        ]});
        let of = PointOf { set_up: "1L-1G", test: "one-way", bytes: 8 };
        let found = point_figure(&result, of, PointFigure::Share).expect("it is there");
        assert!((found.figure - 90.0).abs() < 1e-9);
        assert!(found.note.contains("MultiEdge's rules 50 %"), "{}", found.note);
        let against = |contender| PointFigure::ThroughputTo { set_up: "1L-1G", contender };
        let found = point_figure(&result, of, against("multiedge")).expect("both are there");
        assert!((found.figure - 1.8).abs() < 1e-9);
        assert!(point_figure(&result, of, against("tcp")).is_err());
    }

    #[test]
    fn a_point_that_bare_frames_miss_does_not_fail() {
        let by_rules = |own: f64, bare: f64, rules: f64| {
            let rows = [row("edge", own), row("bare", bare), row("multiedge", rules)];
            let result = json!({"setups": [{"setup": {"name": "1L-10G"}, "rows": rows}]});
            let of = PointOf { set_up: "1L-10G", test: "one-way", bytes: 8 };
            let found = point_figure(&result, of, PointFigure::Share);
            verdict(found, Bound::AtLeast(90.0, "%"))
        };
        let outcome = |own: f64, bare: f64| by_rules(own, bare, 0.0);
        assert!(matches!(by_rules(80.0, 85.0, 91.0), Outcome::Measured { ok: false, .. }));
        assert!(matches!(by_rules(80.0, 85.0, 89.0), Outcome::BeyondHere { .. }));
        assert!(matches!(outcome(91.0, 50.0), Outcome::Measured { ok: true, .. }));
        assert!(matches!(outcome(89.0, 90.0), Outcome::Measured { ok: false, .. }));
        let Outcome::BeyondHere { value, reason } = outcome(28.0, 35.5) else { panic!("beyond") };
        assert!(value.starts_with("28 %") && reason.contains("35.5 %"), "{value}: {reason}");
    }

    #[test]
    fn delayed_links_are_compared_with_bare_frames_without_delay() {
        let outcome = |bare: f64| {
            let result = json!({"setups": [
                {"setup": {"name": "1L"}, "rows": [row("bare", bare), row("multiedge", 20.0)]},
                {"setup": {"name": "1L/2ms"}, "rows": [row("edge", 80.0)]},
            ]});
            let of = PointOf { set_up: "1L/2ms", test: "one-way", bytes: 8 };
            let figure = PointFigure::ShareWithDelay { without: "1L" };
            verdict(point_figure(&result, of, figure), Bound::AtLeast(90.0, "%"))
        };
        assert!(matches!(outcome(91.0), Outcome::Measured { ok: false, .. }));
        assert!(matches!(outcome(89.0), Outcome::BeyondHere { .. }));
    }

    #[test]
    fn the_worst_cut_counts_and_a_cut_without_recovery_fails() {
        let result = json!({"cuts": [
            {"cut": "one-way", "gap_ms": 3.0, "back_ms": null},
            {"cut": "carrier", "gap_ms": 9.0, "back_ms": 4.0},
        ]});
        let found = worst_cut(&result, &["gap_ms"]).expect("both have it");
        assert!((found.figure - 9.0).abs() < 1e-9);
        assert!(matches!(worst_cut(&result, &["back_ms"]), Err(Failure::Failed(_))));
        assert!(matches!(worst_cut(&json!({}), &["gap_ms"]), Err(Failure::CannotRun(_))));
    }

    #[test]
    fn a_missing_yardstick_reports_the_reason() {
        let result = json!({
            "latency_ns": {"edge": {"median": 2000.0}, "ucx-tcp": {"median": 10_000.0}},
            "ratios": {"ucx-tcp": 0.2}, "cannot_run": {"sockperf-tcp": "not installed"},
        });
        assert!((yardstick(&result, "ucx-tcp").expect("there").figure - 0.2).abs() < 1e-9);
        let missing = yardstick(&result, "sockperf-tcp");
        assert_eq!(missing, Err(Failure::CannotRun("not installed".into())));
    }

    #[test]
    fn a_run_over_loopback_proves_nothing() {
        let found =
            bench_figure(&results("loopback"), "namespaces", EDGE, Figure::Counter("slowdown"));
        assert!(matches!(found, Err(Failure::CannotRun(why)) if why.contains("loopback")));
    }

    #[test]
    fn a_run_that_requested_loopback_is_proven_there() {
        assert_eq!(path_of(&["bench", "--loopback"]), "loopback");
        assert_eq!(path_of(&["bench"]), "namespaces");
        let found =
            bench_figure(&results("loopback"), "loopback", EDGE, Figure::Counter("slowdown"));
        assert!(found.is_ok());
    }

    const EDGE: Measurement = Measurement { test: "ping-pong", transport: "edge" };

    fn results(path: &str) -> Value {
        let sample = |slowdown: f64| json!({"counters": {"slowdown": slowdown, "memory": 2000}});
        let entry = |transport: &str, latency_ns: f64, ratios: Value| {
            json!({
                "test": "ping-pong", "transport": transport, "links": 1,
                "latency_ns": {"median": latency_ns}, "ratios": ratios,
                "samples": [sample(1.04), sample(1.0), sample(1.02)],
            })
        };
        let ratios = json!([{"to": "udp", "latency": {"median": 1.5}}]);
        json!({
            "path": {"kind": path},
            "results": [entry("edge", 4500.0, ratios), entry("udp", 3000.0, json!([]))],
        })
    }
}

//! Runs the benchmark or simulation command of each item.

use std::fs;
use std::path::Path;
use std::process::{self, Command, Stdio};
use std::time::Instant;

use bench::machine::{self, Machine};
use bench::reality::HostCosts;
use bench::{apache, ganglia, multiedge, sockets, verbs};
use interconnect::paper::Reproduction;
use interconnect::paper::configurations::Configurations;
use papers::document::{self, Document, Seen, Series};
use papers::printed::Item;
use testbed::{cleanup, clock};

use super::folder::Folder;
use super::series::{self, Curves};
use super::verbs_series;
use crate::Failure;

/// An item and the key of its paper.
pub(super) type Wanted = (&'static str, &'static Item);

/// The results of a command.
struct Outcome {
    series: Vec<Series>,
    seen: Vec<Seen>,
    notes: Vec<String>,
}

impl Outcome {
    /// Adds the results of another command. `panel` returns the name that a panel of the other
    /// command gets.
    fn extend(&mut self, other: Self, panel: impl Fn(&str) -> String) {
        let renamed = other.series.into_iter();
        self.series.extend(renamed.map(|one| Series { panel: panel(&one.panel), ..one }));
        self.notes.extend(other.notes);
    }
}

/// Groups items by command. The groups are ordered so that most items are complete early, because
/// users may interrupt the run.
pub(super) fn groups(wanted: &[Wanted], is_quick: bool) -> Vec<Vec<Wanted>> {
    let mut groups: Vec<Vec<Wanted>> = Vec::new();
    for &(key, item) in wanted {
        let arguments = item.arguments(is_quick);
        let same = |group: &&mut Vec<Wanted>| {
            group.first().is_some_and(|(_, first)| {
                (&first.arguments(is_quick), &first.retest) == (&arguments, &item.retest)
            })
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push((key, item)),
            None => groups.push(vec![(key, item)]),
        }
    }
    let cost = |group: &Vec<Wanted>| {
        let seconds = group.iter().map(|(_, item)| item.seconds(is_quick)).max().unwrap_or(0);
        (f64::from(seconds) / group.len() as f64 * 1000.0) as u64
    };
    groups.sort_by_key(cost);
    groups
}

/// Runs the command of a group, and writes a document for each item. If an item cannot be measured,
/// its document contains the reason.
pub(super) fn measure(
    program: &Path,
    folder: &Folder,
    group: &[Wanted],
    is_quick: bool,
) -> Result<(), Failure> {
    let Some((_, first)) = group.first() else { return Ok(()) };
    let arguments = first.arguments(is_quick);
    let command = format!("ethernot {}", arguments.join(" "));
    let names: Vec<String> = group.iter().map(|(key, item)| format!("{key}/{}", item.id)).collect();
    eprintln!("ethernot: {}: {command}", names.join(", "));
    let (unix_seconds, load) = (clock::unix_seconds(), machine::load());
    let start = Instant::now();
    let outcome = run(program, folder, &arguments).map(|mut found| {
        if let Some(again) = first.retest_arguments(is_quick) {
            let more =
                run_again(program, folder, &names, "a second run that tests reasons", &again);
            found.extend(more, |panel| first.retest_panel(panel));
        }
        found
    });
    let mut besides = Vec::new();
    if outcome.is_ok() {
        for arguments in shown_beside(group, is_quick) {
            let why = "what is shown beside it";
            let found = run_again(program, folder, &names, why, &arguments);
            besides.push((arguments, found));
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    for (key, item) in group {
        let mut document = Document::new(key, &item.id);
        env!("CARGO_PKG_VERSION").clone_into(&mut document.version);
        document.commit = commit(program);
        document.unix_seconds = unix_seconds;
        document.seconds = seconds;
        document.command.clone_from(&command);
        document.is_quick = is_quick;
        document.machine = machine();
        document.load = load;
        match &outcome {
            Ok(found) => {
                let belongs = |one: &&Series| {
                    item.take.iter().any(|panel| one.panel.starts_with(panel.as_str()))
                };
                let own = item.beside_arguments(is_quick);
                let beside = besides.iter().find(|(arguments, _)| Some(arguments) == own.as_ref());
                let outcomes = [Some(found), beside.map(|(_, found)| found)];
                for found in outcomes.into_iter().flatten() {
                    document.series.extend(found.series.iter().filter(belongs).cloned());
                    document.notes.extend(found.notes.iter().cloned());
                }
                document.seen.clone_from(&found.seen);
                if document.series.is_empty() {
                    let why = found.notes.first().map_or("nothing", String::as_str);
                    document.cannot_run = Some(format!("`{command}` measured nothing: {why}"));
                }
            }
            Err(error) => document.cannot_run = Some(error.clone()),
        }
        if let Some(why) = &document.cannot_run {
            eprintln!("ethernot: {key}/{} was not measured: {why}", item.id);
        }
        folder.write(&document)?;
    }
    Ok(())
}

/// Returns the commands whose curves the page shows beside those of the group.
fn shown_beside(group: &[Wanted], is_quick: bool) -> Vec<Vec<String>> {
    let mut commands: Vec<_> =
        group.iter().filter_map(|(_, item)| item.beside_arguments(is_quick)).collect();
    commands.sort();
    commands.dedup();
    commands
}

/// Runs another command for a group of items. If the command fails, returns its error as a note.
fn run_again(
    program: &Path,
    folder: &Folder,
    names: &[String],
    why: &str,
    arguments: &[String],
) -> Outcome {
    let command = arguments.join(" ");
    eprintln!("ethernot: {}, {why}: ethernot {command}", names.join(", "));
    run(program, folder, arguments).unwrap_or_else(|error| Outcome {
        series: vec![],
        seen: vec![],
        notes: vec![format!("`{command}`: {error}")],
    })
}

fn run(program: &Path, folder: &Folder, arguments: &[String]) -> Result<Outcome, String> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["sim", "paper", ..] = words.as_slice() {
        let found =
            Reproduction::new(&Configurations::default()).map_err(|error| error.to_string())?;
        let (curves, seen) = series::of_sandia(&found);
        return Ok(Outcome { series: curves.finish(), seen, notes: found.findings });
    }
    let path = folder.scratch("bench");
    let outcome = bench(program, &words, &path);
    // Removing the file fails only if the command has written no file.
    let _ = fs::remove_file(&path);
    outcome
}

/// Runs a benchmark in its own process and reads its JSON. A benchmark may write results and then
/// fail, for example because it refuses samples. In that case, returns the results with a note.
fn bench(program: &Path, words: &[&str], path: &Path) -> Result<Outcome, String> {
    let output = Command::new(program)
        .args(words)
        .arg("--json")
        .arg(path)
        .env(cleanup::ENDS_WITH, process::id().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|error| format!("start {}: {error}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().last().unwrap_or("it says nothing");
    let last = last.trim_start_matches("ethernot: ").to_owned();
    let mut notes = if output.status.success() { vec![] } else { vec![last.clone()] };
    let Ok(text) = fs::read_to_string(path) else { return Err(last) };
    let (curves, more) = curves(words, &text)
        .map_err(|error| format!("the results of `{}`: {error}", words.join(" ")))?;
    notes.extend(more);
    Ok(Outcome { series: curves.finish(), seen: vec![], notes })
}

fn curves(words: &[&str], text: &str) -> Result<(Curves, Vec<String>), serde_json::Error> {
    Ok(match words.get(1).copied() {
        Some("calibrate") => {
            let costs: HostCosts = serde_json::from_str(text)?;
            (series::of_calibration(&costs.points), Vec::new())
        }
        Some("multiedge") => {
            let report: multiedge::Report = serde_json::from_str(text)?;
            (series::of_multiedge(&report), Vec::new())
        }
        Some("ganglia") => {
            let report: ganglia::Report = serde_json::from_str(text)?;
            series::of_cases(&report.cases, "servers")
        }
        Some("apache") => {
            let report: apache::Report = serde_json::from_str(text)?;
            series::of_cases(report.cases.iter().map(|one| &one.case), "file size (bytes), or α")
        }
        Some("verbs") => {
            let report: verbs::Report = serde_json::from_str(text)?;
            verbs_series::of_verbs(&report)
        }
        _ => {
            let report: sockets::Report = serde_json::from_str(text)?;
            let notes = report.no_library.clone().into_iter();
            let refused = report.refused.iter();
            let refused = refused.map(|one| format!("{}: {}", one.what, one.reason));
            (series::of_sockets(&report), notes.chain(refused).collect())
        }
    })
}

fn machine() -> document::Machine {
    let Machine { cpu, cpus, kernel } = Machine::this();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    document::Machine { host: host.trim().to_owned(), cpu, cpus, kernel }
}

/// Returns the commit of the source tree that contains the program, if there is one.
fn commit(program: &Path) -> String {
    let folder = program.parent().unwrap_or(Path::new("."));
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["rev-parse", "--short=12", "HEAD"])
        .stdin(Stdio::null())
        .output();
    let text = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
    let text = text.map(|text| String::from_utf8_lossy(&text).trim().to_owned());
    text.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_one_command_are_measured_together_cheapest_first() {
        let items = papers::printed::all().iter().flat_map(|paper| {
            paper.items.iter().filter(|item| item.has_command()).map(|item| (&*paper.key, item))
        });
        let groups = groups(&items.collect::<Vec<_>>(), true);
        assert_eq!(groups[0].len(), 5, "the study of Sandia");
        let sizes: usize = groups.iter().map(Vec::len).sum();
        assert!(groups.len() < sizes);
    }

    #[test]
    fn a_command_that_several_items_show_beside_them_runs_once() {
        let paper = papers::printed::paper("sandia1999").expect("it is listed");
        let group: Vec<Wanted> = paper.items.iter().map(|item| (&*paper.key, item)).collect();
        assert_eq!(shown_beside(&group, true), [["sim", "calibrate", "--quick"]]);
    }
}

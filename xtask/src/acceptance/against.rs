//! Compares this program with the program of another commit. Runs both programs alternately,
//! because the speed of the machine varies.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Measurement;
use super::commands::{last_line, run};
use super::commits::{cannot_run, git, name};
use super::found::{Failure, Found};
use super::runner::{Runner, number, unmeasured};
use super::{rounded, runner};
use crate::workspace::{Workspace, cargo};

/// Runs both programs in rounds. In each round, divides this program's figure by the other
/// program's figure. Returns the median of these ratios.
pub(super) fn ratio(
    runner: &mut Runner<'_>,
    arguments: &[&str],
    of: Measurement,
    field: &str,
) -> Result<Found, Failure> {
    let reference = runner.reference().map_err(Failure::CannotRun)?;
    let own = runner.program().map_err(Failure::CannotRun)?;
    let rounds = if runner.quick { 3 } else { 9 };
    let mut ratios = Vec::new();
    for _ in 0..rounds {
        let of_program = |program: &Path| {
            let result = runner.result_by(program, arguments).map_err(unmeasured)?;
            number(runner::entry(&result, of)?, &format!("/{field}/median"))
        };
        ratios.push(runner::ratio(of_program(&own)?, of_program(&reference)?)?);
    }
    ratios.sort_by(f64::total_cmp);
    let [least, figure, most] = [0, ratios.len() / 2, ratios.len() - 1].map(|place| ratios[place]);
    let note = format!(" ({rounds} rounds, {} to {})", rounded(least), rounded(most));
    Ok(Found { figure, note, bare: None })
}

/// A figure of a command that this program and the other commit's program both support.
#[derive(Clone, Copy)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) arguments: &'static [&'static str],
    pub(super) at: At,
    /// Whether a larger figure is better. If not, the ratio is inverted: the other program's figure
    /// is divided by this program's figure.
    pub(super) more_is_better: bool,
}

/// Place of a figure in a result.
#[derive(Clone, Copy)]
pub(super) enum At {
    /// The median of a field of an entry of `ethernot bench`.
    Entry(Measurement, &'static str),
    /// The number at this JSON pointer.
    Pointer(&'static str),
}

impl Figure {
    fn of(&self, result: &Value) -> Result<f64, Failure> {
        match self.at {
            At::Entry(of, field) => number(runner::entry(result, of)?, &format!("/{field}/median")),
            At::Pointer(pointer) => number(result, pointer),
        }
    }
}

/// Returns the lowest ratio of all figures. In each round, divides this program's value of a figure
/// by the other program's value. The ratio of the figure is the median over the rounds.
pub(super) fn worst(runner: &mut Runner<'_>, figures: &[Figure]) -> Result<Found, Failure> {
    let reference = runner.reference().map_err(Failure::CannotRun)?;
    let own = runner.program().map_err(Failure::CannotRun)?;
    let rounds = if runner.quick { 3 } else { 9 };
    let mut ratios = vec![Vec::new(); figures.len()];
    for _ in 0..rounds {
        for (figure, ratios) in figures.iter().zip(&mut ratios) {
            let of_program = |program: &Path| {
                let result = runner.result_by(program, figure.arguments).map_err(unmeasured)?;
                figure.of(&result)
            };
            let (own, other) = (of_program(&own)?, of_program(&reference)?);
            let (part, whole) = if figure.more_is_better { (own, other) } else { (other, own) };
            ratios.push(runner::ratio(part, whole)?);
        }
    }
    let mut least = f64::INFINITY;
    let mut notes = Vec::new();
    for (figure, mut ratios) in figures.iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        let [low, median, high] = [0, ratios.len() / 2, ratios.len() - 1].map(|at| ratios[at]);
        least = least.min(median);
        let [low, median, high] = [low, median, high].map(rounded);
        notes.push(format!("{} {median}, {low} to {high}", figure.name));
    }
    let note = format!(" ({rounds} rounds: {})", notes.join("; "));
    Ok(Found { figure: least, note, bare: None })
}

/// Builds the program of `commit` with the same tools and settings; returns its path.
pub(super) fn build(workspace: &Workspace, commit: &str) -> Result<PathBuf, String> {
    let (folder, name) = (folder(workspace), name(workspace, commit)?);
    let program = folder.join(format!("ethernot-{name}"));
    if !program.exists() {
        let arguments = ["build", "--release", "--bin", "ethernot"];
        build_sources(workspace, &name, &arguments)?;
        let built = folder.join("target/release/ethernot");
        let copied = std::fs::copy(&built, &program);
        copied.map_err(|cause| format!("copy {}: {cause}", built.display()))?;
    }
    Ok(program)
}

/// Builds the libraries of `commit` with the same tools and settings; returns their folder.
pub(super) fn build_libraries(workspace: &Workspace, commit: &str) -> Result<PathBuf, String> {
    let (folder, name) = (folder(workspace), name(workspace, commit)?);
    let libraries = folder.join(format!("libraries-{name}"));
    if !libraries.exists() {
        let arguments = ["run", "--quiet", "--package", "xtask", "--", "libraries", "--release"];
        build_sources(workspace, &name, &arguments)?;
        let built = folder.join("target/release/lib/ethernot");
        // The folder gets its final name only after it is complete, so that an interrupted build
        // does not look like a complete one.
        let fresh = folder.join("libraries.fresh");
        let copied = copy_libraries(&built, &fresh);
        copied
            .and_then(|()| std::fs::rename(&fresh, &libraries))
            .map_err(|cause| format!("copy {}: {cause}", built.display()))?;
    }
    Ok(libraries)
}

/// Copies the libraries without the other files beside them.
fn copy_libraries(from: &Path, to: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    for file in std::fs::read_dir(from)? {
        let file = file?;
        if file.file_name().to_string_lossy().contains(".so") {
            std::fs::copy(file.path(), to.join(file.file_name()))?;
        }
    }
    Ok(())
}

/// Returns the folder for builds of other commits.
fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target_dir.join("against")
}

/// Runs cargo in the sources of the commit of this short name.
fn build_sources(workspace: &Workspace, name: &str, arguments: &[&str]) -> Result<(), String> {
    let folder = folder(workspace);
    std::fs::create_dir_all(&folder)
        .map_err(|cause| format!("make {}: {cause}", folder.display()))?;
    let sources = folder.join("sources");
    let place = sources.display().to_string();
    // An interrupted run may have left the work tree.
    let _ = git(workspace, &["worktree", "remove", "--force", &place]);
    let _ = git(workspace, &["worktree", "prune"]);
    git(workspace, &["worktree", "add", "--detach", &place, name])?;
    let built = cargo_in(&sources, &folder.join("target"), arguments);
    let _ = git(workspace, &["worktree", "remove", "--force", &place]);
    built
}

fn cargo_in(sources: &Path, target: &Path, arguments: &[&str]) -> Result<(), String> {
    eprintln!("-- cargo {}, in {}", arguments.join(" "), sources.display());
    let mut command = cargo();
    command.current_dir(sources).env("CARGO_TARGET_DIR", target).args(arguments);
    // If cargo has started this program, this variable names the sources of this program, not those
    // of the other commit.
    command.env_remove("CARGO_MANIFEST_DIR");
    let output = run(&mut command).map_err(cannot_run)?;
    if !output.status.success() {
        return Err(format!("the other commit does not build: {}", last_line(&output)));
    }
    Ok(())
}

//! Compares the verdicts of suites at this commit with their verdicts at another commit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::commands::{last_line, run};
use super::commits;
use super::found::{Failure, Found, VERDICT_OK, VERDICT_SHORT};
use crate::workspace::{Workspace, cargo};

/// Verdicts of a suite by the names of its rows.
type Verdicts = BTreeMap<String, Verdict>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    Short,
    Unknown,
}

/// Runs a suite at the commit of `--against` and here. Returns the number of rows that are ok there
/// and short here. Prints the names of rows that it measures again.
///
/// Some rows depend on the load of the machine, so such a row is measured again at both commits,
/// and counts only if the verdicts are the same again.
pub(super) fn became_short(
    workspace: &Workspace,
    commit: &str,
    suite: &str,
    quick: bool,
) -> Result<Found, Failure> {
    let sources = Sources::check_out(workspace, commit).map_err(Failure::CannotRun)?;
    let own = std::env::current_exe()
        .map_err(|cause| Failure::CannotRun(format!("cannot find this program: {cause}")))?;
    let measure = |only: Option<&str>| -> Result<(Verdicts, Verdicts), Failure> {
        let arguments = arguments(suite, quick, only);
        let before = verdicts(sources.command().args(&arguments))?;
        let now = verdicts(Command::new(&own).args(&arguments))?;
        Ok((before, now))
    };
    let (before, now) = measure(None)?;
    let compared = before.keys().filter(|name| now.contains_key(*name)).count();
    let mut shorter = Vec::new();
    for name in rows_that_became_short(&before, &now) {
        eprintln!("-- became short, so it is measured again: {name}");
        let (before, now) = measure(Some(&name))?;
        if rows_that_became_short(&before, &now).contains(&name) {
            shorter.push(name);
        }
    }
    if compared == 0 {
        return Err(Failure::CannotRun(
            "the suite has no row in common with the other commit".into(),
        ));
    }
    let note = match shorter.as_slice() {
        [] => format!(" ({compared} rows compared)"),
        names => format!(" ({compared} rows compared; {})", names.join("; ")),
    };
    Ok(Found { figure: shorter.len() as f64, note, bare: None })
}

/// The sources of another commit, and the folder for what is built from them. The work tree is
/// removed at the end.
struct Sources<'a> {
    workspace: &'a Workspace,
    place: PathBuf,
    target: PathBuf,
}

impl<'a> Sources<'a> {
    fn check_out(workspace: &'a Workspace, commit: &str) -> Result<Self, String> {
        let name = commits::name(workspace, commit)?;
        let folder = workspace.target_dir.join("against");
        std::fs::create_dir_all(&folder)
            .map_err(|cause| format!("make {}: {cause}", folder.display()))?;
        let sources = Self {
            workspace,
            place: folder.join(format!("sources-{name}")),
            target: folder.join(format!("target-{name}")),
        };
        // An interrupted run may have left the work tree.
        sources.remove();
        let place = sources.place.display().to_string();
        commits::git_text(workspace, &["worktree", "add", "--detach", &place, &name])?;
        Ok(sources)
    }

    /// Returns the command that measures suites of these sources.
    fn command(&self) -> Command {
        let mut command = cargo();
        command.current_dir(&self.place).env("CARGO_TARGET_DIR", &self.target);
        // If cargo has started this program, this variable names the sources of this program.
        command.env_remove("CARGO_MANIFEST_DIR");
        command.args(["run", "--quiet", "--package", "xtask", "--"]);
        command
    }

    fn remove(&self) {
        let place = self.place.display().to_string();
        let _ = commits::git_text(self.workspace, &["worktree", "remove", "--force", &place]);
        let _ = commits::git_text(self.workspace, &["worktree", "prune"]);
    }
}

impl Drop for Sources<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

fn arguments(suite: &str, quick: bool, only: Option<&str>) -> Vec<String> {
    let mut arguments = vec!["acceptance".to_owned(), suite.to_owned()];
    if quick {
        arguments.push("--quick".to_owned());
    }
    if let Some(row) = only {
        arguments.extend(["--only".to_owned(), row.to_owned()]);
    }
    arguments
}

/// Runs a suite and returns its verdicts. The exit status shows only whether all rows are ok, so a
/// table counts whatever the status is.
fn verdicts(command: &mut Command) -> Result<Verdicts, Failure> {
    let program = Path::new(command.get_program()).display().to_string();
    let words: Vec<_> =
        command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    eprintln!("-- {program} {}", words.join(" "));
    let output = run(command)?;
    let verdicts = verdicts_in(&String::from_utf8_lossy(&output.stdout));
    if verdicts.is_empty() {
        let suite = words.join(" ");
        return Err(Failure::CannotRun(format!(
            "`{suite}` gives no table: {}",
            last_line(&output)
        )));
    }
    Ok(verdicts)
}

/// Reads the table that a suite prints: `row | measured | bound | verdict`.
fn verdicts_in(table: &str) -> Verdicts {
    let rows = table.lines().skip_while(|line| !line.starts_with("row | ")).skip(1);
    rows.filter_map(|line| {
        let (name, rest) = line.split_once(" | ")?;
        let (_, verdict) = rest.rsplit_once(" | ")?;
        let verdict = match verdict {
            VERDICT_OK => Verdict::Ok,
            verdict if verdict.starts_with(VERDICT_SHORT) => Verdict::Short,
            _ => Verdict::Unknown,
        };
        Some((name.to_owned(), verdict))
    })
    .collect()
}

fn rows_that_became_short(before: &Verdicts, now: &Verdicts) -> Vec<String> {
    let became_short = |name: &&String| {
        before.get(*name) == Some(&Verdict::Ok) && now.get(*name) == Some(&Verdict::Short)
    };
    now.keys().filter(became_short).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
row | measured | bound | verdict
speed | 1.2 x (1.1 to 1.3) | at least 1 x | ok
rate | 0.9 x | at least 1 x | short (for the record)
lost | - | at most 0 of them | cannot run here: nothing | here
verbs: 1 ok, 1 short, 1 cannot run here
";

    #[test]
    fn a_table_gives_the_verdict_of_each_row() {
        let verdicts = verdicts_in(BEFORE);
        assert_eq!(verdicts.len(), 3);
        assert_eq!(verdicts["speed"], Verdict::Ok);
        assert_eq!(verdicts["rate"], Verdict::Short);
        assert_eq!(verdicts["lost"], Verdict::Unknown);
        assert!(verdicts_in("error: no suite").is_empty());
    }

    #[test]
    fn only_rows_that_were_ok_and_are_short_are_counted() {
        let before = verdicts_in(BEFORE);
        let slower = BEFORE.replace("| ok", "| short (for the record)");
        assert_eq!(rows_that_became_short(&before, &verdicts_in(&slower)), ["speed"]);
        assert!(rows_that_became_short(&before, &before).is_empty());
        let quicker = verdicts_in(&BEFORE.replace("| short", "| ok"));
        assert!(rows_that_became_short(&before, &quicker).is_empty());
    }
}

//! Runs tests on a copy of the sources with another value of one constant.

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ladder::{RECORDS, Rung};
use super::sources;
use crate::error::XtaskError;
use crate::workspace::{Workspace, cargo, package_name};

/// A copy of the sources, and a folder for its builds.
pub(super) struct Copy {
    root: PathBuf,
    target: PathBuf,
}

/// The result of running a group of tests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// All tests pass.
    Nothing,
    /// The sources do not compile, for example because of an assertion about a constant.
    DoesNotCompile,
    /// The tests do not end in time.
    DoesNotEnd,
    /// These tests fail.
    Fails(Vec<String>),
}

impl Copy {
    /// Copies the files that git tracks in the workspace, including uncommitted changes.
    pub(super) fn create(workspace: &Workspace) -> Result<Self, XtaskError> {
        let folder = workspace.target_dir.join("constants");
        let copy = Self { root: folder.join("sources"), target: folder.join("target") };
        let listed = Command::new("git")
            .args(["ls-files", "-z"])
            .current_dir(&workspace.root)
            .output()
            .map_err(|cause| XtaskError::Start { program: "git".into(), cause })?;
        if !listed.status.success() {
            return Err(XtaskError::Failed {
                program: "git ls-files".into(),
                status: listed.status,
            });
        }
        for name in String::from_utf8_lossy(&listed.stdout).split('\0') {
            let from = workspace.root.join(name);
            if from.is_file() {
                copy_if_changed(&from, &copy.root.join(name))?;
            }
        }
        Ok(copy)
    }

    /// Changes the value of a constant, runs `tried`, and restores the value.
    pub(super) fn with_value(
        &self,
        place: &str,
        name: &str,
        value: &str,
        tried: impl FnOnce(&Self) -> Result<Option<String>, XtaskError>,
    ) -> Result<Option<String>, XtaskError> {
        let path = self.root.join(place);
        let read = |cause| XtaskError::Read { path: path.clone(), cause };
        let write = |cause| XtaskError::Write { path: path.clone(), cause };
        let text = fs::read_to_string(&path).map_err(read)?;
        let changed = sources::with_value(&text, name, value).ok_or_else(|| XtaskError::Names {
            path: path.clone(),
            what: format!("there is no constant {name}; correct xtask/src/constants/table.rs"),
        })?;
        fs::write(&path, changed).map_err(write)?;
        let outcome = tried(self);
        fs::write(&path, text).map_err(write)?;
        outcome
    }

    /// Runs tests on the current state of the copy.
    pub(super) fn run(&self, rung: &Rung) -> Result<Said, XtaskError> {
        let package = package_name(rung.package);
        let mut words = vec!["test", "--offline", "--quiet", "--package", package.as_str()];
        words.extend(rung.targets);
        words.push("--no-run");
        if !self.cargo(&words, LIMIT)?.0.is_some_and(|status| status.success()) {
            return Ok(Said::DoesNotCompile);
        }
        words.pop();
        words.retain(|word| *word != "--quiet");
        words.push("--no-fail-fast");
        let (status, printed) = self.cargo(&words, LIMIT)?;
        let Some(status) = status else { return Ok(Said::DoesNotEnd) };
        if status.success() {
            return Ok(Said::Nothing);
        }
        let failed = failed_tests(&printed);
        let counts = failed.iter().any(|name| !RECORDS.iter().any(|record| name.contains(record)));
        Ok(if counts || failed.is_empty() { Said::Fails(failed) } else { Said::Nothing })
    }

    /// Runs cargo for at most `limit`. Returns no status if cargo did not end.
    fn cargo(
        &self,
        words: &[&str],
        limit: Duration,
    ) -> Result<(Option<ExitStatus>, String), XtaskError> {
        let start = |cause| XtaskError::Start { program: format!("cargo {words:?}"), cause };
        let mut child = cargo()
            .args(words)
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", &self.target)
            // A neutral value may leave code unused or make arithmetic overflow. With these flags
            // the compiler reports no error for this.
            .env("RUSTFLAGS", "--cap-lints=warn -Aarithmetic_overflow")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(start)?;
        let output = child.stdout.take();
        let reader = thread::spawn(move || {
            let mut text = Vec::new();
            let _ended = output.map(|mut output| output.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        let status = wait(&mut child, limit).map_err(start)?;
        Ok((status, reader.join().unwrap_or_default()))
    }
}

/// Waits until the child ends. Kills its process group if that takes longer than `limit`.
fn wait(child: &mut Child, limit: Duration) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if started.elapsed() > limit {
            let _ended =
                Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).status();
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the names of failed tests from the output of `cargo test`.
fn failed_tests(printed: &str) -> Vec<String> {
    let failed = printed.lines().filter_map(|line| {
        line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned)
    });
    failed.collect()
}

/// Copies a file only if it has changed. An unchanged file keeps its modification time, so that
/// cargo does not rebuild it.
fn copy_if_changed(from: &Path, to: &Path) -> Result<(), XtaskError> {
    let read = |cause| XtaskError::Read { path: from.to_owned(), cause };
    let write = |cause| XtaskError::Write { path: to.to_owned(), cause };
    let bytes = fs::read(from).map_err(read)?;
    if fs::read(to).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(write)?;
    }
    fs::copy(from, to).map(|_bytes| ()).map_err(write)
}

/// Time limit of a test run. Tests of one package end within two minutes, unless they loop
/// endlessly.
const LIMIT: Duration = Duration::from_mins(15);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_named() {
        let printed =
            "test a ... ok\ntest b::c ... FAILED\ntest d ... ignored\nfailures:\n    b::c\n";
        assert_eq!(failed_tests(printed), ["b::c"]);
    }

    #[test]
    fn a_command_that_does_not_end_is_killed() {
        let mut child = Command::new("sleep").arg("600").process_group(0).spawn().unwrap();
        assert_eq!(wait(&mut child, Duration::ZERO).unwrap(), None);
    }
}

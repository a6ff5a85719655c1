//! Figures of RDMA devices in one guest whose clock counts instructions. They depend on the programs
//! and not on the host or its load, so the figures of two runs differ by about one percent.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::found::Failure;
use crate::libraries;
use crate::perf_programs;
use crate::workspace::Workspace;

/// The printed figures by name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figures {
    values: HashMap<String, f64>,
    /// The reason why the script ended early, if it did.
    failure: Option<String>,
}

impl Figures {
    /// Runs `tools/guest/device-figures` in a guest, with this program of the project and its
    /// libraries.
    pub(super) fn measure(workspace: &Workspace, program: &Path) -> Result<Self, Failure> {
        let folder = workspace.target_dir.join("guest/figures");
        lay(workspace, program, &folder)
            .map_err(|(path, cause)| Failure::CannotRun(format!("{}: {cause}", path.display())))?;
        eprintln!("-- cargo xtask guest run {} -- {SCRIPT}", MACHINE.join(" "));
        let own = std::env::current_exe()
            .map_err(|cause| Failure::CannotRun(format!("cannot find this program: {cause}")))?;
        let mut command = Command::new(own);
        command.args(["guest", "run"]).args(MACHINE).arg("--share").arg(&folder);
        let output = command.args(["--", SCRIPT]).stdin(Stdio::null()).output();
        let output = output.map_err(|cause| Failure::CannotRun(cause.to_string()))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no message");
        if output.status.code() == Some(LOST) {
            return Err(Failure::CannotRun(last.into()));
        }
        let failure = (!output.status.success()).then(|| last.to_owned());
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout), failure))
    }

    /// Parses lines `NAME NUMBER`. Other lines are ignored.
    fn parse(text: &str, failure: Option<String>) -> Self {
        let figure = |line: &str| {
            let (name, number) = line.split_once(' ')?;
            Some((name.to_owned(), number.trim().parse().ok()?))
        };
        Self { values: text.lines().filter_map(figure).collect(), failure }
    }

    /// Returns a figure.
    pub(super) fn value(&self, name: &str) -> Result<f64, Failure> {
        self.values.get(name).copied().ok_or_else(|| match &self.failure {
            Some(last) => Failure::Failed(format!("the guest printed no {name}: {last}")),
            None => Failure::Failed(format!("the guest printed no {name}")),
        })
    }
}

/// Copies what the script needs to a folder that the guest sees as `/share`. Returns the path that
/// failed with the error.
fn lay(
    workspace: &Workspace,
    program: &Path,
    folder: &Path,
) -> Result<(), (PathBuf, std::io::Error)> {
    let built = workspace.target_dir.join("release/lib/ethernot");
    let registration = perf_programs::built(&built).find(|(name, _)| *name == REGISTRATION);
    let (_, registration) = registration.ok_or_else(|| {
        let missing = std::io::Error::other("it is not built; install the headers of librdmacm");
        (built.join(REGISTRATION), missing)
    })?;
    let libraries = libraries::SHARED.iter().chain([&libraries::TOOL]);
    let libraries = libraries.map(|name| (built.join(name), format!("lib/ethernot/{name}")));
    let others = [
        (program.to_owned(), "ethernot".to_owned()),
        (registration, REGISTRATION.to_owned()),
        (workspace.root.join("tools/guest/device-figures"), "device-figures".to_owned()),
    ];
    for (from, name) in libraries.chain(others) {
        let to = folder.join(name);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(|cause| (parent.to_owned(), cause))?;
        }
        fs::copy(&from, &to).map_err(|cause| (from, cause))?;
    }
    Ok(())
}

/// The script, as the guest sees it.
const SCRIPT: &str = "/share/device-figures";

/// The program that measures registrations.
const REGISTRATION: &str = "memory-registration";

/// The guest: memory for two regions of 1 GiB, and the time that the figures take on a host that is
/// busy with ten other tasks.
const MACHINE: &[&str] = &["--clock", "instructions", "--memory", "3072", "--seconds", "1500"];

/// Exit status of `guest run` if there is no guest, or if it ended early.
const LOST: i32 = 125;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_figures_are_found_by_name_between_other_lines() {
        let figures = Figures::parse("note\nwrite-own 800.5\nwrite-siw 50.0 \n", None);
        assert_eq!(figures.value("write-own"), Ok(800.5));
        assert_eq!(figures.value("write-siw"), Ok(50.0));
    }

    #[test]
    fn a_missing_figure_fails_with_the_last_words_of_the_guest() {
        let figures = Figures::parse("write-own 800\n", Some("no device".into()));
        let failure = Failure::Failed("the guest printed no write-rxe: no device".into());
        assert_eq!(figures.value("write-rxe"), Err(failure));
    }
}

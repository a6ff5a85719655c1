//! The reason why a command of `cargo xtask guest` failed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The reason why building, starting or using a guest failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum GuestError {
    #[error("{what}; `cargo xtask guest --help` shows the usage")]
    Usage { what: String },
    #[error("no guest is built; to have one: cargo xtask guest build")]
    NotBuilt,
    #[error("missing programs: {programs}; to have them: sudo apt-get install -y {packages}")]
    Missing { programs: String, packages: String },
    #[error(
        "apt names no package for `{name}`; a guest needs the package lists of Debian for amd64 (sudo apt-get update)"
    )]
    NoPackage { name: String },
    #[error("cannot start `{program}`: {cause}")]
    Start { program: String, cause: std::io::Error },
    #[error("`{program}` failed ({status}):\n{output}")]
    Failed { program: String, status: std::process::ExitStatus, output: String },
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write { path: PathBuf, cause: std::io::Error },
    #[error("{path} is not as expected: {what}", path = path.display())]
    Content { path: PathBuf, what: String },
    #[error("a guest named `{name}` runs already; to end it: cargo xtask guest stop --name {name}")]
    RunsAlready { name: String },
    #[error("no guest named `{name}` runs; to start it: cargo xtask guest start --name {name}")]
    NotRunning { name: String },
    #[error("the guest was lost: {what}\n{console}")]
    Lost { what: String, console: String },
}

impl GuestError {
    /// Returns a function that wraps the cause of a failed read of `path`.
    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |cause| Self::Read { path: path.to_path_buf(), cause }
    }

    /// Returns a function that wraps the cause of a failed write of `path`.
    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        |cause| Self::Write { path: path.to_path_buf(), cause }
    }
}

/// Runs a command to its end and returns its standard output. On failure the error holds the last
/// lines of its output.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>, GuestError> {
    let program = command.get_program().display().to_string();
    let Output { status, stdout, stderr } = command
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| GuestError::Start { program: program.clone(), cause })?;
    if status.success() {
        return Ok(stdout);
    }
    let all = [stdout, stderr].concat();
    let output = last_lines(&String::from_utf8_lossy(&all), LINES_MAX);
    Err(GuestError::Failed { program, status, output })
}

/// Returns at most `count` lines from the end of a text.
pub(crate) fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(count)).copied().collect::<Vec<_>>().join("\n")
}

/// Number of lines of output that an error shows. The report of a crashed kernel has about 40.
pub(crate) const LINES_MAX: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_command_shows_the_end_of_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "seq 100; echo why >&2; exit 3"]);
        let Err(GuestError::Failed { output, status, .. }) = output_of(&mut command) else {
            panic!("the command succeeded");
        };
        assert_eq!(status.code(), Some(3));
        assert!(output.starts_with("62\n") && output.ends_with("100\nwhy"), "{output}");
    }
}

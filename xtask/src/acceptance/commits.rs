//! Asks git about commits.

use std::process::Command;

use super::commands::{last_line, run};
use super::found::Failure;
use crate::workspace::Workspace;

/// Returns the short hash of a commit, which stays valid when branches move.
pub(super) fn name(workspace: &Workspace, commit: &str) -> Result<String, String> {
    git(workspace, &["rev-parse", "--verify", "--short=12", &format!("{commit}^{{commit}}")])
}

/// Returns the first line of git's output.
pub(super) fn git(workspace: &Workspace, arguments: &[&str]) -> Result<String, String> {
    let text = git_text(workspace, arguments)?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Returns git's output.
pub(super) fn git_text(workspace: &Workspace, arguments: &[&str]) -> Result<String, String> {
    let output = run(Command::new("git").current_dir(&workspace.root).args(arguments))
        .map_err(cannot_run)?;
    if !output.status.success() {
        return Err(format!("git {}: {}", arguments.join(" "), last_line(&output)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the reason of a failure.
pub(super) fn cannot_run(failure: Failure) -> String {
    match failure {
        Failure::CannotRun(why) | Failure::Failed(why) => why,
    }
}

//! Builds the `ethernot` program, and runs commands to their end.

use std::path::PathBuf;
use std::process::Command;

use crate::error::XtaskError;
use crate::floor;
use crate::workspace::{Workspace, cargo};

/// Builds the `ethernot` program in the release profile. Returns its path.
pub(crate) fn build_program(workspace: &Workspace) -> Result<PathBuf, XtaskError> {
    build_program_in(workspace, "release")
}

/// Builds the `ethernot` program in a profile of the workspace. Returns its path.
pub(crate) fn build_program_in(
    workspace: &Workspace,
    profile: &str,
) -> Result<PathBuf, XtaskError> {
    let package = workspace
        .package_of_program("ethernot")
        .ok_or_else(|| XtaskError::NotBuilt { program: "ethernot".into() })?;
    let name = package.name.as_str();
    checked(&mut build(profile, &[name], &["--bin", "ethernot"]))?;
    let program = workspace.program_in(profile, "ethernot");
    floor::check([program.clone()])?;
    Ok(program)
}

/// The environment variable that `./x test` sets for [`build`].
pub(crate) const BUILD_ALL: &str = "X_BUILD_ALL";

/// Returns a command that builds `targets` of `packages` in a profile.
///
/// If [`BUILD_ALL`] is set and the profile is `dev`, the command builds the whole workspace with
/// its tests. Cargo builds a dependency once for each set of its features, and packages alone need
/// fewer features than all packages together. Without this, a test run would build many crates
/// several times.
pub(crate) fn build(profile: &str, packages: &[&str], targets: &[&str]) -> Command {
    let mut command = cargo();
    command.arg("build");
    if profile == "dev" && std::env::var_os(BUILD_ALL).is_some() {
        command.args(["--workspace", "--all-targets"]);
    } else {
        command.args(["--profile", profile]).args(targets);
        command.args(packages.iter().flat_map(|package| ["--package", package]));
    }
    command
}

/// Runs a command to its end on this terminal. Returns an error if the command fails.
pub(crate) fn checked(command: &mut Command) -> Result<(), XtaskError> {
    let program = format!("{command:?}").replace('"', "");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(XtaskError::Failed { program, status }),
        Err(cause) => Err(XtaskError::Start { program, cause }),
    }
}

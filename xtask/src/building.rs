//! Builds the `ethernot` program, and runs commands to their end.

use std::path::PathBuf;
use std::process::Command;

use crate::error::XtaskError;
use crate::floor;
use crate::workspace::{Workspace, build_for_tests, cargo};

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
    let target = ["--bin", "ethernot"];
    let mut command = if profile == "dev" {
        build_for_tests(&[name], &target)
    } else {
        let mut command = cargo();
        command.args(["build", "--profile", profile, "--package", name]).args(target);
        command
    };
    checked(&mut command)?;
    let program = workspace.program_in(profile, "ethernot");
    floor::check([program.clone()])?;
    Ok(program)
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

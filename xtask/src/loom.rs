//! `cargo xtask loom`: runs loom models of interacting threads, in every interleaving.

use std::env;

use crate::count::Count;
use crate::error::XtaskError;
use crate::workspace::{Workspace, cargo, package_name};

/// Crates with loom models. Models are in modules called `model`, which exist only under
/// `--cfg loom`.
const PACKAGES: [&str; 5] = ["page-faults", "work", "mem", "runtime", "sockets"];

/// Runs the models with a separate target folder, because with loom's atomics cargo must rebuild
/// all crates.
pub(crate) fn test(workspace: &Workspace) -> Result<Count, XtaskError> {
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" --cfg loom");
    let mut command = cargo();
    command.args(["test", "--lib", "--quiet"]);
    for package in PACKAGES {
        command.args(["--package", &package_name(package)]);
    }
    command.arg("--target-dir").arg(workspace.target_dir.join("loom"));
    command.args(["--", "model::"]).env("RUSTFLAGS", flags);
    match command.status() {
        Ok(status) if status.success() => Ok(Count::ONE_PASSED),
        Ok(_) => Ok(Count::ONE_FAILED),
        Err(cause) => Err(XtaskError::Start { program: "cargo test".into(), cause }),
    }
}

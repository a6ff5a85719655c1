//! `cargo xtask fuzz --seconds N`: every target of `fuzz/` in turn.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::XtaskError;
use crate::workspace::Workspace;

/// Shortest run of one target that is worth its build: the corpus alone takes a second or two.
const TARGET_SECONDS_MIN: u64 = 5;

/// Divides the time among the targets and runs them; fails at the end if any of them crashed.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let seconds = match arguments {
        [flag, value] if flag == "--seconds" => value.parse::<u64>().ok(),
        _ => None,
    }
    .ok_or_else(|| XtaskError::Usage { what: "fuzz needs --seconds N".into() })?;

    let targets = targets(&workspace.root)?;
    if targets.is_empty() {
        println!("skipped: no fuzz targets yet (fuzz/fuzz_targets/*.rs)");
        return Ok(ExitCode::SUCCESS);
    }
    if !is_installed() {
        eprintln!(
            "cargo-fuzz or the nightly toolchain it needs is missing. Run this, then try again:"
        );
        eprintln!(
            "  rustup toolchain install nightly --profile minimal && cargo install cargo-fuzz"
        );
        return Ok(ExitCode::FAILURE);
    }
    let each = (seconds / targets.len() as u64).max(TARGET_SECONDS_MIN);
    let mut crashed = Vec::new();
    for target in &targets {
        println!("== fuzz {target}, {each} s");
        // Not the CARGO that runs us: the proxy picks the nightly toolchain.
        let status = Command::new("cargo")
            .args(["+nightly", "fuzz", "run", target, "--"])
            .arg(format!("-max_total_time={each}"))
            .env_remove("RUSTUP_TOOLCHAIN")
            .current_dir(&workspace.root)
            .status()
            .map_err(|cause| XtaskError::Start { program: "cargo fuzz".into(), cause })?;
        if !status.success() {
            crashed.push(target.as_str());
        }
    }
    if crashed.is_empty() {
        println!("{} targets, no crash", targets.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("crashed: {} (inputs under fuzz/artifacts)", crashed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// Names of the fuzz targets, sorted.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>, XtaskError> {
    let folder = root.join("fuzz/fuzz_targets");
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(&folder)
        .map_err(|cause| XtaskError::Read { path: folder.clone(), cause })?;
    let mut names: Vec<String> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .filter_map(|path: PathBuf| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// Whether targets can be built and run.
pub(crate) fn is_installed() -> bool {
    Command::new("cargo")
        .args(["+nightly", "fuzz", "--version"])
        .env_remove("RUSTUP_TOOLCHAIN")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

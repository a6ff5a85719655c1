//! `cargo xtask fuzz --seconds N [TARGET...]`: runs the named fuzz targets of `fuzz/`, or all, one
//! after the other.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::error::XtaskError;
use crate::workspace::Workspace;

/// Shortest run of one target, in seconds. The inputs of the corpus alone take a second or two.
const TARGET_SECONDS_MIN: u64 = 5;

/// Divides the time among the targets and runs all of them. Returns a failure if one of them
/// crashed.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let (seconds, wanted) = match arguments {
        [flag, value, wanted @ ..] if flag == "--seconds" => (value.parse::<u64>().ok(), wanted),
        _ => (None, [].as_slice()),
    };
    let seconds =
        seconds.ok_or_else(|| XtaskError::Usage { what: "fuzz needs --seconds N".into() })?;

    let targets = chosen(targets(&workspace.root)?, wanted)?;
    if targets.is_empty() {
        println!("skipped: no fuzz targets yet (fuzz/fuzz_targets/*.rs)");
        return Ok(ExitCode::SUCCESS);
    }
    let Some(compiler) = Compiler::installed() else {
        eprintln!("cargo-fuzz is missing. Run this, then try again:");
        eprintln!("  cargo install cargo-fuzz");
        return Ok(ExitCode::FAILURE);
    };
    if compiler == Compiler::Stable {
        println!("no nightly toolchain: the stable one does, with RUSTC_BOOTSTRAP=1");
    }
    let started = |cause| XtaskError::Start { program: "cargo fuzz".into(), cause };
    let built = compiler.cargo_fuzz().arg("build").current_dir(&workspace.root).status();
    if !built.map_err(started)?.success() {
        eprintln!("the fuzz targets were not built");
        return Ok(ExitCode::FAILURE);
    }
    let each = (seconds / targets.len() as u64).max(TARGET_SECONDS_MIN);
    let mut crashed = Vec::new();
    for target in &targets {
        println!("== fuzz {target}, {each} s");
        let status = compiler
            .cargo_fuzz()
            .args(["run", target])
            .args(corpora(&workspace.root, target)?)
            .args(["--", &format!("-max_total_time={each}")])
            .current_dir(&workspace.root)
            .status()
            .map_err(started)?;
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

/// Returns the names of the fuzz targets, sorted.
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

/// Returns the wanted targets, or all targets if none is wanted by name.
fn chosen(targets: Vec<String>, wanted: &[String]) -> Result<Vec<String>, XtaskError> {
    if let Some(unknown) = wanted.iter().find(|name| !targets.contains(name)) {
        let what = format!("no fuzz target `{unknown}`; there are: {}", targets.join(", "));
        return Err(XtaskError::Usage { what });
    }
    let is_wanted = |target: &String| wanted.is_empty() || wanted.contains(target);
    Ok(targets.into_iter().filter(is_wanted).collect())
}

/// Returns the folders of initial inputs. New inputs are written to the first, which is not under
/// version control.
fn corpora(root: &Path, target: &str) -> Result<Vec<PathBuf>, XtaskError> {
    let found = root.join("fuzz/target/corpus").join(target);
    std::fs::create_dir_all(&found)
        .map_err(|cause| XtaskError::Write { path: found.clone(), cause })?;
    let kept = root.join("fuzz/corpus").join(target);
    Ok([found, kept].into_iter().filter(|folder| folder.is_dir()).collect())
}

/// The compiler that builds the targets. Sanitizers need an unstable flag, which a stable compiler
/// accepts only if an environment variable is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Compiler {
    Nightly,
    Stable,
}

impl Compiler {
    /// Returns the installed compiler, or `None` if cargo-fuzz is not installed.
    pub(crate) fn installed() -> Option<Self> {
        let works = |compiler: &Self| {
            let version = compiler
                .cargo_fuzz()
                .arg("--version")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            version.is_ok_and(|status| status.success())
        };
        [Self::Nightly, Self::Stable].into_iter().find(works)
    }

    /// Returns `cargo fuzz` with this compiler. Does not use the path in `CARGO`, because rustup's
    /// proxy must choose the toolchain.
    fn cargo_fuzz(self) -> Command {
        let mut command = Command::new("cargo");
        match self {
            Self::Nightly => command.arg("+nightly").env_remove("RUSTUP_TOOLCHAIN"),
            Self::Stable => command.env("RUSTC_BOOTSTRAP", "1"),
        };
        command.arg("fuzz");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_targets_run_and_all_run_by_default() {
        let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        let known = owned(&["a", "b", "c"]);
        assert_eq!(chosen(known.clone(), &[]).expect("all"), known);
        assert_eq!(chosen(known.clone(), &owned(&["c"])).expect("one"), owned(&["c"]));
        assert!(matches!(chosen(known, &owned(&["c", "d"])), Err(XtaskError::Usage { .. })));
    }
}

//! `cargo xtask check`: checks format, lints, unit tests and project rules of changed crates, in a
//! few minutes. Only `cargo xtask test` runs the other tests, builds the documentation and runs
//! third-party programs.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::count::Count;
use crate::error::XtaskError;
use crate::known_failures;
use crate::skips::Skips;
use crate::suite;
use crate::tidy;
use crate::workspace::{Package, Workspace, cargo, package_name, source_root};

/// Checks the crates that have changed since the commit in `arguments`.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let packages = match words.as_slice() {
        ["--all"] => workspace.packages.iter().collect(),
        ["--against", commit] => changed(workspace, commit)?,
        [] if changed_files("HEAD")?.is_empty() => {
            println!("nothing changed since the last commit, which is checked");
            changed(workspace, "HEAD~1")?
        }
        [] => changed(workspace, "HEAD")?,
        other => {
            let what = format!("check takes --all or --against COMMIT, not `{}`", other.join(" "));
            return Err(XtaskError::Usage { what });
        }
    };
    check(workspace, &packages)
}

fn check(workspace: &Workspace, packages: &[&Package]) -> Result<ExitCode, XtaskError> {
    let names: Vec<_> = packages.iter().map(|package| package_name(&package.name)).collect();
    let listed = if names.is_empty() { "no crate".into() } else { names.join(", ") };
    println!("of {listed}:");
    let users = users(workspace, packages);
    let skips = RefCell::new(Skips::default());
    let mut count = Count::NONE;
    let mut step = |name: &str, work: &dyn Fn() -> Result<Count, XtaskError>| {
        count.add(suite::timed(name, work)?);
        Ok(())
    };
    step("format", &|| suite::lint(cargo().args(["fmt", "--all", "--check"])))?;
    step("rules of the project", &|| tidy::test(workspace))?;
    if !names.is_empty() {
        step("lints", &|| {
            let chosen = ["clippy", "--all-targets", "--keep-going"];
            let mut command = cargo();
            command.args(chosen).args(of(&names)).args(["--", "-D", "warnings"]);
            suite::lint(&mut command)
        })?;
    }
    if !users.is_empty() {
        step("crates that use them", &|| {
            suite::lint(cargo().args(["check", "--quiet"]).args(of(&users)))
        })?;
    }
    for (package, name) in packages.iter().zip(&names) {
        let kinds = [(false, "--lib"), (true, "--bins")];
        let has = |is_program| package.targets.iter().any(|target| target.is_program == is_program);
        let chosen = kinds.into_iter().filter(|(is_program, _)| has(*is_program));
        let targets: Vec<_> = chosen.map(|(_, option)| option.to_owned()).collect();
        if targets.is_empty() {
            continue;
        }
        let title = format!("unit tests of {name}");
        let arguments = [of(std::slice::from_ref(name)), targets].concat();
        step(&title, &|| suite::run_tests(&arguments, &skips))?;
    }
    step("known failures", &|| known_failures::test(workspace, packages.iter().copied()))?;
    print!("{}", skips.into_inner());
    println!("{count}");
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments of cargo that choose these packages.
fn of(names: &[String]) -> Vec<String> {
    names.iter().flat_map(|name| ["--package".to_owned(), name.clone()]).collect()
}

/// Returns the crates that directly depend on one of `packages`. A change of `packages` can break
/// these crates.
fn users(workspace: &Workspace, packages: &[&Package]) -> Vec<String> {
    let names: Vec<_> = packages.iter().map(|package| package.name.as_str()).collect();
    let is_used = |package: &Package| {
        package.dependencies.iter().any(|used| !used.is_dev && names.contains(&used.name.as_str()))
    };
    let others =
        workspace.packages.iter().filter(|package| !names.contains(&package.name.as_str()));
    others.filter(|package| is_used(package)).map(|package| package_name(&package.name)).collect()
}

/// Returns the packages with a file that changed since `commit`. If a changed file affects every
/// package, returns all packages.
fn changed<'a>(workspace: &'a Workspace, commit: &str) -> Result<Vec<&'a Package>, XtaskError> {
    let files = changed_files(commit)?;
    let folders: Vec<&Path> =
        workspace.packages.iter().map(|package| package.folder.as_path()).collect();
    let chosen = owners(&workspace.root, &folders, &files);
    Ok(workspace
        .packages
        .iter()
        .zip(chosen)
        .filter_map(|(package, is)| is.then_some(package))
        .collect())
}

/// Returns for each package folder whether a changed file belongs to it. A file belongs to the
/// innermost folder that contains the file. Paths of files are relative to `root`.
fn owners(root: &Path, folders: &[&Path], files: &BTreeSet<String>) -> Vec<bool> {
    if files.iter().any(|file| HOLD_FOR_ALL.contains(&file.as_str())) {
        return vec![true; folders.len()];
    }
    let mut chosen = vec![false; folders.len()];
    for file in files {
        let path = root.join(file);
        let holders = folders.iter().enumerate().filter(|(_, folder)| path.starts_with(folder));
        let innermost = holders.max_by_key(|(_, folder)| folder.components().count());
        if let Some(is_chosen) = innermost.and_then(|(index, _)| chosen.get_mut(index)) {
            *is_chosen = true;
        }
    }
    chosen
}

/// Returns the paths of files that differ from `commit`, and of files that git does not track yet.
fn changed_files(commit: &str) -> Result<BTreeSet<String>, XtaskError> {
    let differ = git(&["diff", "--name-only", commit, "--"])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Ok(differ.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// Runs git at the root of the sources, and returns its output.
fn git(arguments: &[&str]) -> Result<String, XtaskError> {
    let program = format!("git {}", arguments.join(" "));
    match Command::new("git").current_dir(source_root()).args(arguments).output() {
        Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into()),
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            Err(XtaskError::Failed { program, status: output.status })
        }
        Err(cause) => Err(XtaskError::Start { program, cause }),
    }
}

/// Files that affect every crate.
const HOLD_FOR_ALL: [&str; 4] = ["Cargo.toml", "Cargo.lock", "clippy.toml", "rustfmt.toml"];

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str]) -> Vec<bool> {
        let folders = ["/r/crates/a", "/r/crates/ab", "/r/crates/a/inner"].map(Path::new);
        let files = files.iter().map(|file| (*file).to_owned()).collect();
        owners(Path::new("/r"), &folders, &files)
    }

    #[test]
    fn files_belong_to_the_innermost_package() {
        assert_eq!(chosen(&["crates/a/src/lib.rs"]), [true, false, false]);
        assert_eq!(chosen(&["crates/a/inner/x.rs", "crates/ab/y.rs"]), [false, true, true]);
    }

    #[test]
    fn documents_affect_no_package_and_the_lock_file_affects_all() {
        assert_eq!(chosen(&["docs/a.md", "README.md"]), [false; 3]);
        assert_eq!(chosen(&["docs/a.md", "Cargo.lock"]), [true; 3]);
    }

    #[test]
    fn crates_that_use_a_changed_one_are_checked_too() {
        let workspace = Workspace::load().unwrap();
        let named = |name| workspace.packages.iter().filter(move |package| package.name == name);
        let semantics: Vec<_> = named("semantics").collect();
        let users = users(&workspace, &semantics);
        assert!(users.contains(&"ethernot-engine".to_owned()), "{users:?}");
        assert!(!users.contains(&"ethernot-semantics".to_owned()), "{users:?}");
    }
}

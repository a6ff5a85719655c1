//! Builds the Python packages (`ethernot` and the simulator) with the commands that a user would
//! run. Installs them in a separate environment below the target folder, and tests them there.
//!
//! The packages are not members of the workspace. If they were, every build of the workspace would
//! build the bindings and their macros. Without Python or a network, the tests are skipped.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::building;
use crate::count::Count;
use crate::error::XtaskError;
use crate::workspace::{Workspace, cargo};

/// Packages that the environment must have to build and test the project's packages.
const TOOLS: [&str; 2] = ["maturin>=1.9,<2", "pytest"];

/// Packages that the environment has if wheels of them exist. If a package is missing, the tests
/// that use it are skipped.
const OPTIONAL: [&str; 3] = ["numpy", "pyarrow", "distributed"];

/// A package: its folder below `python`, and its names for pip and cargo.
struct Built {
    folder: &'static str,
    name: &'static str,
    package: &'static str,
    /// Minor version of the oldest Python 3 that can install the package. All later versions can
    /// install it too.
    since: u32,
}

const PACKAGES: [Built; 2] = [
    Built { folder: "", name: "ethernot-sim", package: "ethernot-sim-python", since: 9 },
    Built { folder: "ethernot", name: "ethernot", package: "ethernot-python", since: 11 },
];

/// The environment variable with the address of a server written in Rust. The tests connect to this
/// server as clients.
const SERVER_VARIABLE: &str = "ETHERNOT_KEY_VALUE";

/// Builds the packages and runs their tests. Fails if a test fails.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    let count = test(workspace)?;
    println!("{count}");
    Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Checks the bindings, builds the packages and runs their tests.
pub(crate) fn test(workspace: &Workspace) -> Result<Count, XtaskError> {
    let package = Package::new(workspace);
    if let Some(reason) = package.prepare() {
        println!("skipped: the Python package: {reason}");
        return Ok(Count::ONE_SKIPPED);
    }
    let wheels = package.empty_wheels()?;
    if !succeeds(&mut package.cargo(&["fmt", "--all", "--check"]))? {
        return Ok(Count::ONE_FAILED);
    }
    let mut count = Count::NONE;
    for built in &PACKAGES {
        count.add(package.test(workspace, built, &wheels)?);
    }
    Ok(count)
}

/// The installed package `ethernot`. Its tests can run any number of times.
pub(crate) struct Installed<'a> {
    package: Package,
    workspace: &'a Workspace,
}

/// Builds and installs the package `ethernot`. If this host cannot build or install it, returns the
/// reason as the inner error.
pub(crate) fn install(workspace: &Workspace) -> Result<Result<Installed<'_>, String>, XtaskError> {
    let package = Package::new(workspace);
    if let Some(reason) = package.prepare() {
        return Ok(Err(reason));
    }
    let wheels = package.empty_wheels()?;
    let [_, built] = &PACKAGES;
    if let Some(reason) = package.too_old(built) {
        return Ok(Err(reason));
    }
    for mut step in [package.build(built, &wheels), package.install(built, &wheels), server()] {
        if !succeeds(&mut step)? {
            return Ok(Err(format!("the package {} does not build", built.name)));
        }
    }
    Ok(Ok(Installed { package, workspace }))
}

impl Installed<'_> {
    /// Runs the tests that have one of these names.
    pub(crate) fn run(&self, names: &[&str]) -> Result<Count, XtaskError> {
        let [_, built] = &PACKAGES;
        self.package.run_tests(self.workspace, built, &["-k", &names.join(" or ")])
    }
}

struct Package {
    sources: PathBuf,
    /// Folder of the environment and of build results.
    built: PathBuf,
}

impl Package {
    fn new(workspace: &Workspace) -> Self {
        Self { sources: workspace.root.join("python"), built: workspace.target_dir.join("python") }
    }

    /// Creates the environment and downloads dependencies. If this is impossible, returns the
    /// reason.
    fn prepare(&self) -> Option<String> {
        let environment = self.built.join("venv");
        if !self.program("python").exists() {
            let mut venv = Command::new("python3");
            venv.args(["-m", "venv"]).arg(&environment);
            if !is_quiet_success(&mut venv) {
                return Some(
                    "`python3 -m venv` does not work; to have it: apt-get install python3-venv"
                        .into(),
                );
            }
        }
        let has_tools = ["maturin", "pytest"].iter().all(|name| self.program(name).exists());
        if !has_tools && !is_quiet_success(self.pip_install().args(TOOLS)) {
            return Some("pip cannot install maturin and pytest; is there a network?".into());
        }
        if !self.has_modules(&OPTIONAL) {
            let mut pip = self.pip_install();
            // Only wheels, because building these packages from source would take too long.
            pip.arg("--only-binary=:all:").args(OPTIONAL);
            if !is_quiet_success(&mut pip) {
                println!(
                    "note: pip cannot install {}; what needs them is skipped",
                    OPTIONAL.join(", ")
                );
            }
        }
        let fetched = self.cargo(&["fetch", "--quiet", "--locked"]).stdin(Stdio::null()).output();
        match fetched {
            Ok(output) if output.status.success() || is_lock_stale(&output.stderr) => None,
            _ => Some("cargo cannot fetch its dependencies; is there a network?".into()),
        }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.built.join("venv/bin").join(name)
    }

    fn pip(&self) -> Command {
        let mut pip = Command::new(self.program("python"));
        pip.args(["-m", "pip", "--disable-pip-version-check"]).stdin(Stdio::null());
        pip
    }

    fn pip_install(&self) -> Command {
        let mut pip = self.pip();
        pip.args(["install", "--quiet", "--retries", "1", "--timeout", "20"]);
        pip
    }

    /// Returns whether the environment has these modules. Does not import them, because an import
    /// takes a second.
    fn has_modules(&self, names: &[&str]) -> bool {
        let mut python = Command::new(self.program("python"));
        let script =
            "import sys, importlib.util as u; sys.exit(None in map(u.find_spec, sys.argv[1:]))";
        is_quiet_success(python.args(["-c", script]).args(names))
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo();
        command.args(arguments).current_dir(&self.sources).env("CARGO_TARGET_DIR", &self.built);
        command
    }

    /// Checks the bindings of a package, builds it and runs its tests.
    fn test(
        &self,
        workspace: &Workspace,
        built: &Built,
        wheels: &Path,
    ) -> Result<Count, XtaskError> {
        if let Some(reason) = self.too_old(built) {
            println!("skipped: {reason}");
            return Ok(Count::ONE_SKIPPED);
        }
        // Checks each package separately, because the packages use different versions of Python's
        // stable ABI.
        let lints = ["clippy", "--quiet", "--package", built.package, "--", "-D", "warnings"];
        let [built_wheel, installed] = [self.build(built, wheels), self.install(built, wheels)];
        for mut step in [self.cargo(&lints), built_wheel, installed, server()] {
            if !succeeds(&mut step)? {
                return Ok(Count::ONE_FAILED);
            }
        }
        self.run_tests(workspace, built, &[])
    }

    /// Runs those tests of an installed package that these arguments of pytest select.
    fn run_tests(
        &self,
        workspace: &Workspace,
        built: &Built,
        chosen: &[&str],
    ) -> Result<Count, XtaskError> {
        // Does not run in the folder of the sources, because Python would import the sources
        // instead of the installed package.
        let mut pytest = Command::new(self.program("pytest"));
        pytest.args(["-q", "-p", "no:cacheprovider"]).args(chosen);
        pytest.current_dir(self.sources.join(built.folder).join("tests"));
        pytest.env(SERVER_VARIABLE, workspace.target_dir.join("debug/examples/key_value"));
        let output = pytest.stderr(Stdio::inherit()).output().map_err(start_error(&pytest))?;
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}");
        let mut count = parse_summary(&text);
        if !output.status.success() && count.failed == 0 {
            count.failed = 1;
        }
        Ok(count)
    }

    /// Creates an empty folder for wheels. If the folder contained a wheel of another version, pip
    /// could install the wrong wheel.
    fn empty_wheels(&self) -> Result<PathBuf, XtaskError> {
        let wheels = self.built.join("wheels");
        if wheels.exists() {
            std::fs::remove_dir_all(&wheels)
                .map_err(|cause| XtaskError::Write { path: wheels.clone(), cause })?;
        }
        Ok(wheels)
    }

    /// Returns an error text if the environment's Python is too old for a package.
    fn too_old(&self, built: &Built) -> Option<String> {
        let is_old = self.python_minor().is_some_and(|minor| minor < built.since);
        is_old.then(|| format!("the package {} needs Python 3.{}", built.name, built.since))
    }

    /// Returns the minor version of the environment's Python.
    fn python_minor(&self) -> Option<u32> {
        let mut python = Command::new(self.program("python"));
        let output = python.args(["-c", "import sys; print(sys.version_info[1])"]).output().ok()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().ok()
    }

    fn build(&self, built: &Built, wheels: &Path) -> Command {
        let mut maturin = Command::new(self.program("maturin"));
        maturin.args(["build", "--quiet", "--locked", "--out"]).arg(wheels);
        maturin.current_dir(self.sources.join(built.folder)).env("CARGO_TARGET_DIR", &self.built);
        maturin
    }

    /// Returns the command that installs the built wheel without a network.
    fn install(&self, built: &Built, wheels: &Path) -> Command {
        let mut pip = self.pip();
        pip.args(["install", "--quiet", "--no-index", "--no-deps", "--force-reinstall"]);
        pip.arg("--find-links").arg(wheels).arg(built.name);
        pip
    }
}

/// Returns the command that builds the server to which tests connect.
fn server() -> Command {
    building::build("dev", &["ethernot"], &["--example", "key_value"])
}

/// Returns whether cargo reports that `Cargo.lock` is out of date. This is a fault of the project,
/// so the tests are not skipped; the build then reports the fault.
fn is_lock_stale(errors: &[u8]) -> bool {
    String::from_utf8_lossy(errors).contains("--locked was passed")
}

fn is_quiet_success(command: &mut Command) -> bool {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn succeeds(command: &mut Command) -> Result<bool, XtaskError> {
    command.status().map(|status| status.success()).map_err(start_error(command))
}

fn start_error(command: &Command) -> impl FnOnce(std::io::Error) -> XtaskError {
    let program = command.get_program().to_string_lossy().into_owned();
    move |cause| XtaskError::Start { program, cause }
}

/// Parses pytest's last line: `16 passed, 2 skipped in 2.29s`.
fn parse_summary(text: &str) -> Count {
    let mut count = Count::NONE;
    let summary = text.lines().rev().find(|line| line.contains(" in "));
    let counts = summary.and_then(|line| line.split(" in ").next()).unwrap_or_default();
    for part in counts.trim_matches(['=', ' ']).split(", ") {
        let Some((number, what)) = part.split_once(' ') else { continue };
        let Ok(number) = number.parse::<u64>() else { continue };
        match what {
            "passed" => count.passed += number,
            "failed" | "error" | "errors" => count.failed += number,
            "skipped" => count.skipped += number,
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_of_pytest_is_counted() {
        let count = |text| parse_summary(text);
        let passed = "......ss                        [100%]\n16 passed, 2 skipped in 2.29s\n";
        assert_eq!(count(passed), Count { passed: 16, failed: 0, skipped: 2 });
        let failed = "FAILED tests/a.py::b - in vain\n1 failed, 3 passed, 1 warning in 0.10s\n";
        assert_eq!(count(failed), Count { passed: 3, failed: 1, skipped: 0 });
        assert_eq!(count("1 error in 0.10s\n"), Count { passed: 0, failed: 1, skipped: 0 });
        assert_eq!(count("no tests ran\n"), Count::NONE);
    }

    #[test]
    fn a_stale_lock_is_distinguished_from_a_missing_network() {
        let stale = "error: cannot update the lock file /x/python/Cargo.lock because --locked was \
                     passed to prevent this\n";
        assert!(is_lock_stale(stale.as_bytes()));
        assert!(!is_lock_stale(b"error: failed to download from the registry\n"));
    }
}

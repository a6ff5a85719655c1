//! Files that cargo builds, for tests that run programs and load libraries.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the target folder of cargo. The running test program is in `PROFILE/deps` below it.
///
/// # Panics
/// If the program is elsewhere.
pub fn target_folder() -> PathBuf {
    let program = env::current_exe().expect("the kernel reports the path of a running program");
    let folder = program.ancestors().nth(3).expect("test programs are in target/PROFILE/deps");
    folder.to_owned()
}

/// Returns the folder of this build's profile, which contains programs.
///
/// # Panics
/// If the running program is not a test program.
pub fn profile_folder() -> PathBuf {
    target_folder().join(profile())
}

/// Runs `cargo run --package xtask` with these arguments; returns its output and exit status.
///
/// # Panics
/// If cargo cannot be started.
pub fn xtask(arguments: &[&str]) -> Output {
    output(&[&["run", "--quiet", "--package", "xtask", "--"], arguments].concat())
}

/// Builds the C libraries that programs load; returns their folder.
///
/// # Panics
/// If the build fails.
pub fn libraries() -> PathBuf {
    let built =
        xtask(&[&["libraries"][..], if is_release() { &["--release"] } else { &[] }].concat());
    expect_success("libraries", &built);
    profile_folder().join("lib/ethernot")
}

/// Builds a target of a package with the profile of this build, and returns the folder of the
/// profile. `target` is empty, or for example `["--example", "key_value"]`.
///
/// # Panics
/// If the build fails.
pub fn build(package: &str, target: &[&str]) -> PathBuf {
    // If the variable is set, xtask has built all targets together with all tests
    // (`building::build` of xtask).
    if env::var_os("X_BUILD_ALL").is_none() || is_release() {
        let profile: &[&str] = if is_release() { &["--release"] } else { &[] };
        let arguments = [&["build", "--quiet", "--package", package], target, profile].concat();
        expect_success(package, &output(&arguments));
    }
    profile_folder()
}

/// Fails the test with the standard error of a build that failed.
fn expect_success(what: &str, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "build {what}: {error}");
}

fn output(arguments: &[&str]) -> Output {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let run = Command::new(&cargo).args(arguments).output();
    run.unwrap_or_else(|error| panic!("{} {arguments:?}: {error}", Path::new(&cargo).display()))
}

const fn is_release() -> bool {
    !cfg!(debug_assertions)
}

const fn profile() -> &'static str {
    if is_release() { "release" } else { "debug" }
}

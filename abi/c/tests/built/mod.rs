//! Builds the files that tests of C programs need: the library, the programs, and a server in Rust.

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Returns the folder with the library, its header and its pkg-config file.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        cargo(&["run", "--quiet", "--package", "xtask", "--", "libraries"]);
        target_folder().join(profile()).join("lib/ethernot")
    })
}

/// A running server of the key-value store, in Rust.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        // The build of all tests has built the example (`building::build` of xtask).
        if env::var_os("X_BUILD_ALL").is_none() || profile() == "release" {
            cargo(&["build", "--quiet", "--package", "ethernot", "--example", "key_value"]);
        }
        let program = target_folder().join(profile()).join("examples/key_value");
        let mut process = Command::new(program)
            .args(["serve", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let output = process.stdout.as_mut().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut line).expect("it says where it is");
        let address =
            line.trim().strip_prefix("serving on [").and_then(|line| line.split([',', ']']).next());
        Self { address: address.expect("an address").to_owned(), process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have already ended. Ignore errors.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a compiler on a program or a header. If the compiler does not exist, prints this and
/// returns false.
pub(crate) fn compiles(compiler: &str, arguments: &[&str]) -> bool {
    let Ok(output) = Command::new(compiler).args(arguments).output() else {
        println!("skipped: there is no compiler `{compiler}`");
        return false;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {arguments:?}: {error}");
    true
}

/// Runs cargo with the profile of this build.
fn cargo(arguments: &[&str]) {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(arguments);
    if profile() == "release" {
        command.arg("--release");
    }
    let output = command.output().expect("cargo runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {error}");
}

const fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug" } else { "release" }
}

/// Returns the target folder, which contains the test programs in `PROFILE/deps`.
fn target_folder() -> PathBuf {
    let program = env::current_exe().expect("a program knows where it is");
    program
        .ancestors()
        .nth(3)
        .map(Path::to_owned)
        .expect("test programs lie in target/PROFILE/deps")
}

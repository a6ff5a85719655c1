//! Builds the files that tests of C programs need: the library, the programs, and a server in Rust.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Returns the folder with the library, its header and its pkg-config file.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(testbed::built::libraries)
}

/// A running server of the key-value store, in Rust.
#[derive(Debug)]
pub(crate) struct Server {
    process: Child,
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let folder = testbed::built::build("ethernot", &["--example", "key_value"]);
        let program = folder.join("examples/key_value");
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

/// Runs a compiler on a program or a header. Returns true if the compiler succeeds. If the compiler
/// does not exist, prints a message and returns false. Panics if the compiler reports an error.
pub(crate) fn compiles(compiler: &str, arguments: &[&str]) -> bool {
    let Ok(output) = Command::new(compiler).args(arguments).output() else {
        println!("skipped: there is no compiler `{compiler}`");
        return false;
    };
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{compiler} {arguments:?}: {error}");
    true
}

//! C programs written for the tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::libraries::Libraries;
use crate::network::{Network, Side};
use crate::process::Program;

/// Builds `clients/NAME.c` with the header of verbs and the library under test. Returns `None` and
/// prints the reason if there is no such header or no compiler.
///
/// # Panics
/// Panics if the program does not compile.
pub fn build_client(name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: the header of verbs is not installed (Debian's package libibverbs-dev)");
        return None;
    }
    let folder = Libraries::built().folder();
    let folder = format!("-L{}", folder.display());
    let libraries = [
        &folder,
        "-Wl,--as-needed",
        "-l:librdmacm.so.1",
        "-l:libibverbs.so.1",
        "-ldl",
        "-lm",
        "-lpthread",
    ];
    build("cc".as_ref(), &client(name), name, &libraries)
}

/// Builds `clients/NAME.c` with the C library alone. Returns `None` and prints the reason if there
/// is no compiler.
///
/// # Panics
/// Panics if the program does not compile.
pub fn build_plain_client(name: &str) -> Option<PathBuf> {
    build("cc".as_ref(), &client(name), name, &["-lpthread"])
}

/// Builds `clients/NAME.c` with the compiler of the MPI named `mpi`. Returns `None` and prints the
/// reason if there is no such compiler.
///
/// # Panics
/// Panics if the program does not compile.
pub fn build_mpi_client(compiler: &Path, mpi: &str, name: &str) -> Option<PathBuf> {
    build(compiler, &client(name), &format!("{name}-{mpi}"), &[])
}

/// Builds a program of `tools/perf` with the compiler of the MPI named `mpi`. Returns `None` and
/// prints the reason if there is no such compiler.
///
/// # Panics
/// Panics if the program does not compile.
pub fn build_mpi_tool(compiler: &Path, mpi: &str, name: &str) -> Option<PathBuf> {
    let source = format!("../../tools/perf/{name}.c");
    build(compiler, &source, &format!("{name}-{mpi}"), &["-lm"])
}

/// Runs a client of a server on loopback that stays connected after its measurement, then another
/// client of the same server: the end of a connection may be late, because its frames may be lost, and
/// the next client's request waits meanwhile. `lingering` is the name of the first client's source.
///
/// # Panics
/// Panics if a client does not compile, or if the second client is not served.
pub fn serves_behind_a_lingering_client(lingering: &str, program: &str, words: &str) {
    let Some(lingering) = build_client(lingering) else { return };
    let network = Network::Loopback;
    let client = |program: &str| Program::new(program, words).argument(&network.server_address());
    let mut first = client(&lingering.display().to_string()).start(&network, Side::Client);
    first.wait_for_output("stays connected");
    client(program).run(&network, Side::Client).expect_success();
}

fn client(name: &str) -> String {
    format!("clients/{name}.c")
}

/// Builds a program in the folder of the libraries. The path of the source is relative to the
/// folder of this crate.
fn build(compiler: &Path, source: &str, program: &str, libraries: &[&str]) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let program = Libraries::built().folder().join(program);
    if program.exists() {
        return Some(program);
    }
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-o"])
        .args([&program, &source])
        .args(libraries)
        .output();
    let Ok(output) = output else {
        println!("skipped: no compiler `{}`", compiler.display());
        return None;
    };
    let shown = source.display();
    assert!(output.status.success(), "{shown}: {}", String::from_utf8_lossy(&output.stderr));
    let for_all = Permissions::from_mode(0o755);
    fs::set_permissions(&program, for_all).expect("a program that was just built");
    Some(program)
}

/// Locked during the build of a program. Tests run in parallel, so without this lock a test could
/// start a program while another test writes the program's file.
static BUILDING: Mutex<()> = Mutex::new(());

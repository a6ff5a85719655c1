//! Programs in C that are there for the tests.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use crate::libraries::Libraries;

/// Builds `clients/NAME.c` against the header of verbs and the library under test; nothing, and a printed reason, if
/// there is no such header or no compiler.
///
/// # Panics
/// If it does not compile.
pub fn build_client(name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("skipped: the header of verbs is not installed (Debian's package libibverbs-dev)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("clients/{name}.c"));
    let folder = Libraries::built().folder();
    let _alone = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    let program = folder.join(name);
    if program.exists() {
        return Some(program);
    }
    let output = Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-O1", "-o"])
        .args([&program, &source])
        .arg(format!("-L{}", folder.display()))
        .args(["-Wl,--as-needed", "-l:libibverbs.so.1", "-l:librdmacm.so.1", "-ldl", "-lpthread"])
        .output();
    let Ok(output) = output else {
        println!("skipped: no C compiler");
        return None;
    };
    assert!(output.status.success(), "{name}.c: {}", String::from_utf8_lossy(&output.stderr));
    let for_all = Permissions::from_mode(0o755);
    fs::set_permissions(&program, for_all).expect("a program that was just built");
    Some(program)
}

/// Tests run at the same time: what one builds, another may be about to run.
static BUILDING: Mutex<()> = Mutex::new(());

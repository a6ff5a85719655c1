//! Compiles programs in C, and runs them on several ranks of this host.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU32;

use dsm::METHOD;
use dsm::launch::{Ended, Launch, Streams};

use crate::built::{compiles, libraries};

/// Compiles a C program with these further options, and returns its path. Returns `None` if there is
/// no compiler. A program that loads the library itself is not linked with it.
pub(crate) fn program(source: &str, name: &str, options: &[&str]) -> Option<PathBuf> {
    let folder = libraries();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source).display().to_string();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dsm_{name}"));
    let (include, search) =
        (format!("-I{}", folder.join("include").display()), format!("-L{}", folder.display()));
    let path = program.display().to_string();
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"];
    let rest = [&include, &source, "-o", &path, &search, "-Wl,--as-needed", "-lethernot-dsm"];
    compiles("cc", &[&strict[..], &rest, options].concat()).then_some(program)
}

/// Runs a program on ranks of this host. Returns how they ended and what they printed.
pub(crate) fn run(
    program: &Path,
    arguments: &[&str],
    size: usize,
    method: &str,
) -> (Ended, String) {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let streams = Streams { output: &mut output, errors: &mut errors };
    let launch = Launch::new(size, program)
        .arguments(arguments)
        .variable(METHOD, method)
        .variable("LD_LIBRARY_PATH", libraries());
    let ended = launch.run(streams, &AtomicU32::new(0)).expect("the ranks start");
    output.append(&mut errors);
    (ended, String::from_utf8_lossy(&output).into_owned())
}

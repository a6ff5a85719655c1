//! Programs in C on several ranks of this host, with each method.

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../c/tests/built/mod.rs"]
mod built;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicU32;

use built::{compiles, libraries};
use dsm::launch::{Ended, Launch, Streams};
use dsm::{METHOD, Method};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// Compiles a C program beside the library, and returns its path. Returns `None` if there is no
/// compiler.
fn program(source: &str) -> Option<PathBuf> {
    let folder = libraries();
    let source = Path::new(FOLDER).join(source);
    let name = source.file_stem().expect("a name").to_string_lossy().into_owned();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("dsm_{name}"));
    let (include, search) =
        (format!("-I{}", folder.join("include").display()), format!("-L{}", folder.display()));
    let (source, path) = (source.display().to_string(), program.display().to_string());
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"];
    // A program that loads the library itself is not linked with it.
    let rest = [&include, &source, "-o", &path, &search, "-Wl,--as-needed", "-lethernot-dsm"];
    compiles("cc", &[&strict[..], &rest].concat()).then_some(program)
}

/// Runs a program on ranks of this host. Returns how they ended and what they printed.
fn run(program: &Path, size: usize, method: &str) -> (Ended, String) {
    run_with(program, &[], size, method)
}

/// Runs a program with arguments.
fn run_with(program: &Path, arguments: &[&str], size: usize, method: &str) -> (Ended, String) {
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

/// Runs an example on 2 and 4 ranks with each method that works here.
fn is_right(source: &str, last_line: impl Fn(usize) -> String) {
    let Some(program) = program(source) else { return };
    let names = ["asynchronous", "synchronous", "mprotect"];
    for (method, name) in Method::ALL.into_iter().zip(names) {
        if let Err(error) = method.check() {
            println!("skipped: {name}: {error}");
            continue;
        }
        for size in [2, 4] {
            let (ended, printed) = run(&program, size, name);
            assert_eq!(ended.failure, None, "{name}, {size} ranks: {printed}");
            assert_eq!(printed.trim_end(), format!("[0] {}", last_line(size)), "{name}");
        }
    }
}

#[test]
fn a_histogram_with_a_lock_and_an_atomic_is_right_with_each_method() {
    is_right("examples/histogram.c", |_| "64000 values in 97 bins are right".into());
}

#[test]
fn a_stencil_is_right_with_each_method() {
    is_right("examples/stencil.c", |size| format!("8 steps of a grid by {size} ranks are right"));
}

#[test]
fn objects_have_their_effect_among_ranks() {
    let Some(program) = program("tests/programs/objects.c") else { return };
    let (ended, printed) = run(&program, 3, "mprotect");
    assert_eq!(ended.failure, None, "{printed}");
    assert_eq!(printed.lines().count(), 3, "{printed}");
    assert!(
        (0..3).all(|rank| printed.contains(&format!("[{rank}] all is as expected"))),
        "{printed}"
    );
}

#[test]
fn a_callback_learns_which_rank_has_died_and_later_calls_fail() {
    let Some(program) = program("tests/programs/dying.c") else { return };
    let (ended, printed) = run(&program, 3, "mprotect");
    let failure = ended.failure.expect("rank 1 has failed");
    assert!(failure.0 == 1 && failure.1.starts_with("was killed by signal 6"), "{failure:?}");
    for rank in [0, 2] {
        assert_eq!(ended.ranks[rank].status.code(), Some(3), "{printed}");
        let named = format!("[{rank}] callback: rank 1 (process ");
        assert!(printed.contains(&named), "{printed}");
        assert!(printed.contains(&format!("[{rank}] failed: rank 1 (process ")), "{printed}");
    }
}

#[test]
fn a_stream_whose_buffer_is_shared_memory_does_not_hang() {
    let Some(program) = program("tests/programs/stream.c") else { return };
    for method in ["mprotect", ""] {
        let (ended, printed) = run(&program, 2, method);
        assert_eq!(ended.failure, None, "{method}: {printed}");
        assert_eq!(printed, "[1] 3000 lines are right\n", "{method}");
    }
}

#[test]
fn libraries_that_a_running_program_loads_share_the_faults_in_any_order() {
    let Some(program) = program("tests/programs/loaded.c") else { return };
    for other in ["none", "before", "after"] {
        for method in ["mprotect", ""] {
            let (ended, printed) = run_with(&program, &[other], 2, method);
            assert_eq!(ended.failure, None, "{other}, {method}: {printed}");
            assert_eq!(printed.matches("the sum is right").count(), 2, "{other}: {printed}");
        }
    }
}

#[test]
fn pkg_config_finds_the_library() {
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", libraries().join("pkgconfig"))
        .args(["--cflags", "--libs", "ethernot-dsm"])
        .output();
    let Ok(output) = output else {
        println!("skipped: pkg-config is not installed");
        return;
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let parts = ["-lethernot-dsm", "-I", "-L"];
    assert!(parts.iter().all(|part| printed.contains(part)), "{printed}");
}

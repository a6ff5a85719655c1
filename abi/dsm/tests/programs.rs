//! Programs in C on several ranks of this host, with each method.

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../c/tests/built/mod.rs"]
mod built;
mod ranks;

use std::path::Path;
use std::process::Command;

use built::libraries;
use dsm::Method;
use ranks::{program, run};

/// Runs an example on 2 and 4 ranks with each method that works here.
fn is_right(source: &str, last_line: impl Fn(usize) -> String) {
    let name = Path::new(source).file_stem().expect("a name").to_string_lossy();
    let Some(program) = program(source, &name, &[]) else { return };
    let names = ["asynchronous", "synchronous", "mprotect"];
    for (method, name) in Method::ALL.into_iter().zip(names) {
        if let Err(error) = method.check() {
            println!("skipped: {name}: {error}");
            continue;
        }
        for size in [2, 4] {
            let (ended, printed) = run(&program, &[], size, name);
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
    let Some(program) = program("tests/programs/objects.c", "objects", &[]) else { return };
    let (ended, printed) = run(&program, &[], 3, "mprotect");
    assert_eq!(ended.failure, None, "{printed}");
    assert_eq!(printed.lines().count(), 3, "{printed}");
    assert!(
        (0..3).all(|rank| printed.contains(&format!("[{rank}] all is as expected"))),
        "{printed}"
    );
}

#[test]
fn a_callback_learns_which_rank_has_died_and_later_calls_fail() {
    let Some(program) = program("tests/programs/dying.c", "dying", &[]) else { return };
    let (ended, printed) = run(&program, &[], 3, "mprotect");
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
    let Some(program) = program("tests/programs/stream.c", "stream", &[]) else { return };
    for method in ["mprotect", ""] {
        let (ended, printed) = run(&program, &[], 2, method);
        assert_eq!(ended.failure, None, "{method}: {printed}");
        assert_eq!(printed, "[1] 3000 lines are right\n", "{method}");
    }
}

#[test]
fn libraries_that_a_running_program_loads_share_the_faults_in_any_order() {
    let Some(program) = program("tests/programs/loaded.c", "loaded", &[]) else { return };
    for other in ["none", "before", "after"] {
        for method in ["mprotect", ""] {
            let (ended, printed) = run(&program, &[other], 2, method);
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

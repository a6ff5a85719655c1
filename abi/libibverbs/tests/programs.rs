//! Programs of C and Python that load the built libraries.

mod built;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use built::folder;

const HEADER: &str = "/usr/include/infiniband/verbs.h";
const PYVERBS: &str = "/usr/share/doc/rdma-core/tests";

/// Tests of pyverbs for which a device of software has all that they need, and which have passed.
const PYVERBS_PASS_AT_LEAST: usize = 112;

#[test]
fn wrong_calls_are_refused_and_end_no_program() {
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not installed");
        return;
    }
    let output = Command::new(compiled("wrong_calls")).output().expect("the program runs");
    let text = text_of(&output);
    print!("{text}");
    assert!(output.status.success(), "{}\n{text}", output.status);
}

/// The suite of those who make the stock library, from its package.
#[test]
fn the_suite_of_pyverbs_passes() {
    if !Path::new(PYVERBS).exists() || !Path::new("/usr/lib/python3/dist-packages/pyverbs").exists()
    {
        println!("skipped: the tests of pyverbs are not installed");
        return;
    }
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pyverbs");
    let _ = std::fs::remove_dir_all(&copy);
    let done = |command: &mut Command| assert!(command.status().expect("a command").success());
    done(Command::new("cp").arg("-r").arg(PYVERBS).arg(&copy));
    done(Command::new("gunzip").arg("-r").arg(&copy));
    let libraries = ["libibverbs.so.1", "librdmacm.so.1"]
        .map(|file| folder().join(file).display().to_string())
        .join(":");
    let output = Command::new("/usr/bin/python3")
        .args(["run_tests.py", "--dev", "edge0", "-v"])
        .current_dir(&copy)
        .env("LD_PRELOAD", libraries)
        .output()
        .expect("Python runs");
    let text = text_of(&output);
    let passed = text.lines().filter(|line| line.ends_with("ok")).count();
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(passed >= PYVERBS_PASS_AT_LEAST, "{passed} passed\n{text}");
}

/// A program of the folder beside this file, linked to the built libraries.
fn compiled(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let output = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source.with_extension("c"))
        .arg(folder().join("libibverbs.so.1"))
        .arg(format!("-Wl,-rpath,{}", folder().display()))
        .output()
        .expect("a C compiler");
    assert!(output.status.success(), "{}", text_of(&output));
    program
}

fn text_of(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

//! The test suite of pyverbs.

use std::process::Command;
use std::{env, fs, process};

use programs::{Network, Program, Side, pyverbs_suite};

/// Minimum number of tests that must pass. All other tests need features that this device does not
/// have. (The kernel's software device passes 86 tests.)
const PASSED_MIN: usize = 112;

#[test]
fn the_suite_of_pyverbs_finds_no_failure() {
    let Some(suite) = pyverbs_suite() else { return };
    let folder = env::temp_dir().join(format!("ethernot-pyverbs-{}", process::id()));
    let copied = Command::new("cp").arg("-r").args([&suite, &folder]).status();
    assert!(copied.is_ok_and(|status| status.success()), "the suite is copied");
    for file in fs::read_dir(&folder).expect("its folder").flatten() {
        if file.path().extension().is_some_and(|extension| extension == "gz") {
            let status = Command::new("gunzip").arg(file.path()).status();
            assert!(status.is_ok_and(|status| status.success()), "the suite is unpacked");
        }
    }
    let suite = folder.join("run_tests.py").display().to_string();
    let ended = Program::new("/usr/bin/python3", &format!("{suite} --dev edge0 -v"))
        .run(&Network::Loopback, Side::Server);
    fs::remove_dir_all(&folder).expect("its folder is removed");
    let passed = ended.output.lines().filter(|line| line.ends_with("... ok")).count();
    println!("figure: tests of pyverbs that pass: {passed}");
    ended.expect_success();
    assert!(passed >= PASSED_MIN, "{passed} pass: {ended}");
}

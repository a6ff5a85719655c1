//! Ranks that another program starts: Open MPI's `mpirun`, and a user without rights, on this host.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output};

use dsm::METHOD;

use crate::shared::examples;

#[test]
fn ranks_of_mpirun_meet_without_a_variable() {
    let version = Command::new("mpirun").arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !version.as_ref().is_ok_and(|version| version.contains("Open MPI")) {
        println!("skipped: Open MPI's `mpirun` is not installed");
        return;
    }
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]);
    command.arg(examples().join("stencil")).env(METHOD, "mprotect");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("12 steps by 3 ranks are right"), "{printed}{errors}");
}

/// Returns a folder of a path that other users cannot enter.
fn closed_folder(path: &Path) -> Option<&Path> {
    let is_closed =
        |folder: &&Path| fs::metadata(folder).map_or(true, |found| found.mode() & 0o001 == 0);
    path.ancestors().skip(1).find(is_closed)
}

fn confined(program: &Path, method: &str) -> Output {
    let mut command = Command::new(examples().join("confined"));
    command.arg(program).env(METHOD, method).output().unwrap()
}

#[test]
fn four_ranks_run_without_rights_where_userfaultfd_is_forbidden() {
    let program = examples().join("stencil");
    if let Some(folder) = closed_folder(&program) {
        println!("skipped: user nobody cannot enter {}; to have it: chmod o+x", folder.display());
        return;
    }
    let output = confined(&program, "");
    let errors = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) {
        println!("skipped: {errors}");
        return;
    }
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("12 steps by 4 ranks are right (mprotect, "), "{printed}{errors}");
    // This shows that userfaultfd is forbidden.
    let output = confined(&program, "synchronous");
    let errors = String::from_utf8_lossy(&output.stderr);
    let forbidden = "userfaultfd: Operation not permitted (os error 1); choose another method";
    assert!(!output.status.success() && errors.contains(forbidden), "{errors}");
}

//! Ranks that another program starts: Open MPI's `mpirun`, on this host.

use std::process::Command;

use dsm::METHOD;

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
    command.arg(crate::shared::examples().join("stencil")).env(METHOD, "mprotect");
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("12 steps by 3 ranks are right"), "{printed}{errors}");
}

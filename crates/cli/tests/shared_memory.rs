//! Tests `ethernot dsm run`: the ranks of programs, which may share memory.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

fn dsm_run(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    command.args(["dsm", "run"]).args(arguments).stdin(Stdio::null());
    command
}

/// Returns an example of the crate `dsm`.
fn example(name: &str) -> String {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let built = BUILT.get_or_init(|| testbed::built::build("dsm", &["--examples"]));
    built.join("examples").join(name).to_str().unwrap().into()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sorted(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = text(bytes).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn a_stencil_is_right_with_each_method() {
    let stencil = example("stencil");
    for method in ["mprotect", "synchronous", "asynchronous"] {
        let output = dsm_run(&["-n", "3", "--method", method, "--", &stencil]).output().unwrap();
        let errors = text(&output.stderr);
        if errors.contains("accesses cannot be watched") {
            println!("skipped: {errors}");
            continue;
        }
        assert_success(&output);
        assert!(text(&output.stdout).starts_with("[0] 12 steps by 3 ranks are right ("));
    }
}

#[test]
fn a_rank_that_dies_ends_all_and_is_named() {
    let killed = example("killed");
    let output = dsm_run(&["-n", "3", "--json", "-", "--", &killed, "barrier"]).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 9));
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["failure"]["rank"], 1, "{result}");
    assert_eq!(
        (&result["ranks"][1]["signal"], &result["ranks"][2]["exit_code"]),
        (&9.into(), &70.into())
    );
    let errors = text(&output.stderr);
    assert!(errors.contains("ethernot: rank 1 was killed by signal 9 (SIGKILL)"), "{errors}");
    assert!(errors.contains("[0] ethernot dsm: rank 0 ends: rank 1 (process "), "{errors}");
}

#[test]
fn the_number_of_threads_goes_to_programs_that_name_none() {
    let script = "echo $ETHERNOT_DSM_THREADS threads";
    let output =
        dsm_run(&["-n", "2", "--threads", "3", "--", "sh", "-c", script]).output().unwrap();
    assert_success(&output);
    assert_eq!(sorted(&output.stdout), ["[0] 3 threads", "[1] 3 threads"]);
}

#[test]
fn output_errors_input_and_status_go_through() {
    let script = "read line && echo got $line; echo rank $ETHERNOT_DSM_RANK >&2; \
                  [ $ETHERNOT_DSM_RANK = 0 ] || exit 7";
    let mut command = dsm_run(&["-n", "2", "--", "sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"bytes\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(text(&output.stdout), "[0] got bytes\n");
    let expected =
        ["[0] rank 0", "[1] rank 1", "ethernot: rank 1 ended with status 7; see its output"];
    assert_eq!(sorted(&output.stderr), expected);
}

/// Starts two ranks that each start a process, and returns the command and all four processes.
fn started(script: &str) -> (std::process::Child, Vec<i32>) {
    let mut command = dsm_run(&["-n", "2", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().take(2);
    let numbers = |line: String| -> Vec<i32> {
        line.split_whitespace().skip(1).map(|word| word.parse().unwrap()).collect()
    };
    let processes = lines.flat_map(|line| numbers(line.unwrap())).collect();
    (child, processes)
}

/// Waits until processes that are killed have ended.
fn wait_for_ends(processes: &[i32]) {
    while processes.iter().copied().any(is_alive) {
        std::thread::yield_now();
    }
}

fn is_alive(process: i32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // A process that is killed may not be waited for yet.
    !state.is_empty() && !state.contains(") Z ")
}

#[test]
fn signals_end_all_ranks_and_what_they_started() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (mut child, processes) = started("sleep 1000 & echo $$ $!; wait");
        assert_eq!(processes.len(), 4);
        kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        wait_for_ends(&processes);
    }
}

#[test]
fn ranks_end_if_the_command_is_killed() {
    let (mut child, processes) = started("echo $$; exec sleep 1000");
    assert_eq!(processes.len(), 2);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_for_ends(&processes);
}

#[test]
fn hosts_are_reached_by_the_program_that_is_named() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let stand_in = folder.join("stand-in-for-ssh");
    let script = "#!/bin/sh\n[ $2 = dead ] && echo 'no route to dead' >&2 && exit 255\n\
                  echo option $1 host $2 >&2\nexec sh -c \"$3\"\n";
    std::fs::write(&stand_in, script).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&stand_in, permissions).unwrap();
    let ssh = format!("{} -x", stand_in.display());
    let stencil = example("stencil");
    let options = ["-n", "2", "--ssh", &ssh, "--hosts", "127.0.0.1,localhost", "--", &stencil];
    let output = dsm_run(&options).output().unwrap();
    assert_success(&output);
    assert!(text(&output.stdout).starts_with("[0] 12 steps by 2 ranks are right ("));
    let expected = ["[0] option -x host 127.0.0.1", "[1] option -x host localhost"];
    assert_eq!(sorted(&output.stderr), expected);

    let options = ["-n", "2", "--ssh", &ssh, "--hosts", "127.0.0.1,dead", "--", &stencil];
    let output = dsm_run(&options).output().unwrap();
    assert_eq!(output.status.code(), Some(255));
    let errors = text(&output.stderr);
    let expected = "rank 1 was not started on host dead, or lost its connection: no route to dead";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn wrong_arguments_are_refused() {
    let refused = |arguments: &[&str], part: &str| {
        let output = dsm_run(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        let errors = text(&output.stderr);
        assert!(errors.contains(part), "{errors}");
    };
    refused(&["-n", "0", "--", "true"], "1..=64");
    refused(&["-n", "65", "--", "true"], "1..=64");
    refused(&["-n", "2"], "PROGRAM");
    refused(&["--", "true"], "--ranks");
    refused(&["-n", "2", "--", "/no/such/program"], "/no/such/program: No such file");
    refused(&["-n", "2", "--method", "fast", "--", "true"], "mprotect");
    refused(&["-n", "2", "--hosts", "no.such.host.invalid", "--", "true"], "--meet ADDRESS:PORT");
    refused(&["-n", "2", "--json", "/no/such/folder/file", "--", "true"], "make its folder");
}

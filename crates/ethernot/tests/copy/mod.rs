//! A copy of a test as a process of its own, which can be killed.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The argument of this process, if it is the copy of a test.
pub(crate) fn argument() -> Option<String> {
    env::var(ARGUMENT).ok()
}

/// Starts a copy of the test `name` with an argument, and waits for what it [says](say).
pub(crate) fn start(name: &str, what: &str) -> (Child, String) {
    let mut child = command(&[], name, what).spawn().expect("a copy of this test");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let said = output.lines().map_while(Result::ok).find_map(|line| said(&line));
    (child, said.expect("the copy has ended"))
}

/// Returns the command for a copy of the test `name`, which gets an instruction. The words of `launcher` come first, such as
/// those of `taskset`.
pub(crate) fn command(launcher: &[&str], name: &str, what: &str) -> Command {
    // Tests that run in the background of a script ignore SIGINT, and so would what they start.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=INT")
        .args(launcher)
        .arg(env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ARGUMENT, what)
        .stdout(Stdio::piped());
    command
}

/// Returns what a copy [says](say) with this line, unless its test printed it.
pub(crate) fn said(line: &str) -> Option<String> {
    line.strip_prefix(SAYS).map(ToOwned::to_owned)
}

/// Says something to the process that has started this one.
pub(crate) fn say(what: &str) {
    println!("\n{SAYS}{what}");
}

/// Ends a copy by a signal, and waits until it is gone.
pub(crate) fn end(mut copy: Child, signal: Signal) {
    kill(Pid::from_raw(copy.id().cast_signed()), signal).expect("a child of ours");
    copy.wait().expect("a child");
}

/// Set for copies.
const ARGUMENT: &str = "ETHERNOT_TEST_COPY";

/// Separates what a copy says from what its test prints.
const SAYS: &str = "the copy says: ";

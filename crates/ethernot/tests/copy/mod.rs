//! Runs a copy of a test in a process that the test can kill.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Returns the argument of this process if the process is the copy of a test.
pub(crate) fn argument() -> Option<String> {
    env::var(ARGUMENT).ok()
}

/// Starts a copy of the test `name` with an argument, and waits for its first [message](say).
/// Returns the process and the message.
pub(crate) fn start(name: &str, what: &str) -> (Child, String) {
    let mut child = command(&[], name, what).spawn().expect("a copy of this test");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let said = output.lines().map_while(Result::ok).find_map(|line| said(&line));
    (child, said.expect("the copy has ended"))
}

/// Returns the command that starts a copy of the test `name` with an argument. The command begins
/// with the words in `launcher`, for example a `taskset` command.
pub(crate) fn command(launcher: &[&str], name: &str, what: &str) -> Command {
    // Background processes of a script ignore SIGINT, and their children inherit this setting.
    // Copies must not ignore SIGINT.
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

/// Returns the message if the line is a [message](say) of a copy. Returns `None` if the test in the
/// copy printed the line.
pub(crate) fn said(line: &str) -> Option<String> {
    line.strip_prefix(SAYS).map(ToOwned::to_owned)
}

/// Sends a message to the process that started this process.
pub(crate) fn say(what: &str) {
    println!("\n{SAYS}{what}");
}

/// Sends a signal to a copy, and waits until its process has ended.
pub(crate) fn end(mut copy: Child, signal: Signal) {
    kill(Pid::from_raw(copy.id().cast_signed()), signal).expect("a child of ours");
    copy.wait().expect("a child");
}

/// Environment variable that is set for copies.
const ARGUMENT: &str = "ETHERNOT_TEST_COPY";

/// Marks messages of a copy, to distinguish them from the output of its test.
const SAYS: &str = "the copy says: ";

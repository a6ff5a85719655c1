//! A copy of a test as a process of its own, which can be killed.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// What this process was told, if it is the copy of a test.
pub(crate) fn told() -> Option<String> {
    env::var(TOLD).ok()
}

/// Starts a copy of the test `name`, tells it something, and waits for what it [says](say).
pub(crate) fn start(name: &str, what: &str) -> (Child, String) {
    // Tests that run in the background of a script ignore SIGINT, and so would what they start.
    let mut child = Command::new("env")
        .arg("--default-signal=INT")
        .arg(env::current_exe().expect("this test"))
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(TOLD, what)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a copy of this test");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = output.lines().map_while(Result::ok);
    let said = lines.find_map(|line| line.strip_prefix(SAYS).map(ToOwned::to_owned));
    (child, said.expect("the copy has ended"))
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
const TOLD: &str = "ETHERNOT_TEST_COPY";

/// Tells what a copy says from what its test prints.
const SAYS: &str = "the copy says: ";

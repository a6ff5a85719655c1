//! `ethernot dsm top` beside a program on two ranks.
#![expect(clippy::disallowed_methods, reason = "waits for other processes, which signal nothing")]

use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use dsm::{MEET, RANK, SIZE};
use serde_json::Value;

/// Looks until the program is found, at most. One takes 50 ms.
const LOOKS_MAX: usize = 1000;

fn top(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    let output = command.args(["dsm", "top", "--once"]).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Starts two ranks, which end when the input of the first one ends.
fn start() -> Vec<Child> {
    let program = testbed::built::build("dsm", &["--examples"]).join("examples/false_sharing");
    // The port is free again when the socket is dropped, and rank 0 takes it at once.
    let meet = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let rank = |rank: usize| {
        let mut command = Command::new(&program);
        command.env(RANK, rank.to_string()).env(SIZE, "2").env(MEET, &meet);
        command.stdin(Stdio::piped()).spawn().expect("the example is built")
    };
    vec![rank(0), rank(1)]
}

/// Returns the report of the process.
fn report_of(found: &Value, pid: u32) -> Option<&Value> {
    found["ranks"].as_array()?.iter().find(|rank| rank["pid"] == pid)
}

/// Returns whether a rank has reported a page that both ranks change, and waits for a lock.
fn is_complete(report: &Value) -> bool {
    let pages = report["pages"].as_array();
    let is_shared = |page: &Value| {
        let places = page["allocations"].to_string();
        page["conflicts"].as_u64() > Some(0) && places.contains("examples/false_sharing.rs:")
    };
    let waits = report["waits"].as_array();
    let is_barrier = |wait: &Value| wait["kind"] == "barrier" && wait["count"].as_u64() > Some(0);
    pages.is_some_and(|pages| pages.iter().any(is_shared))
        && waits.is_some_and(|waits| waits.iter().any(is_barrier))
}

#[test]
fn the_ranks_of_a_program_are_shown_with_the_page_that_they_share_falsely() {
    let mut ranks = start();
    let pids: Vec<u32> = ranks.iter().map(Child::id).collect();
    let are_shown = (0..LOOKS_MAX).any(|_| {
        thread::sleep(Duration::from_millis(50));
        let found: Value = serde_json::from_str(&top(&["--json"])).unwrap();
        pids.iter().all(|pid| report_of(&found, *pid).is_some_and(is_complete))
    });
    let text = top(&[]);
    drop(ranks[0].stdin.take());
    for rank in &mut ranks {
        assert!(rank.wait().unwrap().success());
    }
    assert!(are_shown, "{text}");
    assert!(text.contains("false_sharing: 2 of 2 ranks are on this host"), "{text}");
    assert!(text.contains("pages that several ranks change between two barriers"), "{text}");
    assert!(pids.iter().all(|pid| text.contains(&pid.to_string())), "{text}");
}

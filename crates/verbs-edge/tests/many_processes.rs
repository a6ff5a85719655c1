//! Tests that many processes of one host can connect to each other at the same time.

#[path = "../../ethernot/tests/copy/mod.rs"]
#[expect(dead_code, reason = "copies are told more here than one line")]
mod copy;
mod ends;

use std::env;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, Command, Stdio};

use ends::{End, Name, Program, with_links};
use verbs::{CompletionStatus, Gid};

/// Number of processes, and also the number of queue pairs in each process.
/// `ETHERNOT_TEST_PROCESSES` can set another number.
const PROCESSES: usize = 8;

#[test]
fn many_processes_all_connect_to_each_other() {
    if let Some(argument) = copy::argument() {
        return be_one(&argument);
    }
    let count = env::var("ETHERNOT_TEST_PROCESSES").ok().and_then(|count| count.parse().ok());
    let count: usize = count.unwrap_or(PROCESSES);
    let mut children: Vec<Child> = (0..count).map(|index| start(index, count)).collect();
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("a pipe")).lines())
        .collect();
    let mut said = |index: usize| {
        let mut lines = outputs[index].by_ref().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(SAYS).map(ToOwned::to_owned)).expect("it says so")
    };
    let names: Vec<String> = (0..count).map(&mut said).collect();
    for child in &mut children {
        let mut input = child.stdin.take().expect("a pipe");
        for name in &names {
            writeln!(input, "{name}").expect("it listens");
        }
    }
    assert!((0..count).all(|index| said(index) == "done"));
    assert!(children.iter_mut().all(|child| child.wait().expect("a child").success()));
}

fn start(index: usize, count: usize) -> Child {
    Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "many_processes_all_connect_to_each_other", "--nocapture"])
        .env("ETHERNOT_TEST_COPY", format!("{index} {count}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a copy of this test")
}

/// Runs one of the processes. Of the queue pairs of this process, the i-th connects to process i,
/// which may be this process itself.
fn be_one(argument: &str) {
    let (index, count) = argument.split_once(' ').expect("two numbers");
    let (index, count): (usize, usize) =
        (index.parse().expect("a number"), count.parse().expect("a number"));
    let program = Program::new(&with_links("udp:127.0.0.1,shm"));
    let ends: Vec<End> = (0..count).map(|_| program.end(1)).collect();
    let numbers: Vec<String> = ends.iter().map(|end| end.queue_pair.number().to_string()).collect();
    copy::say(&numbers.join(" "));
    let mut lines = stdin().lock().lines().map_while(Result::ok);
    let gid = Gid::of([127, 0, 0, 1].into());
    let mut peers = Vec::new();
    for _ in 0..count {
        let line = lines.next().expect("as many as there are processes");
        let number = line.split(' ').nth(index).and_then(|number| number.parse().ok());
        peers.push(Name { gid, number: number.expect("a number"), psn: 1 });
    }
    for (end, peer) in ends.iter().zip(&peers) {
        end.init();
        end.receive(1, &[program.piece(64, 8)]);
        end.be_ready_to_receive(*peer);
        end.be_ready_to_send();
        end.send(2, program.piece(0, 8));
    }
    for end in &ends {
        let done = end.next(2);
        assert!(done.iter().all(|done| done.status == CompletionStatus::Success), "{done:?}");
    }
    copy::say("done");
    // Destroy the queue pairs although the peers may still be waiting for the last messages, which
    // must arrive.
    for end in &ends {
        end.queue_pair.destroy().expect("it is there");
    }
}

/// Prefix of the lines that a copy of the test writes.
const SAYS: &str = "the copy says: ";

//! Measures the latency of a message while other queue pairs wait.

#[path = "../../ethernot/tests/copy/mod.rs"]
mod copy;
mod ends;

use std::time::Instant;

use ends::{End, Name, Program, loopback};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use verbs::Gid;

/// Number of queue pairs with messages that wait until their peers post receives.
const WAITING: u32 = 4000;

/// Number of queue pairs whose peers do not respond. The test named in the next constant runs these
/// peers in another process.
const SILENT: usize = 500;
const SILENT_TEST: &str = "peers_in_another_process";

/// `MESSAGES` is the number of messages in a round, and `ROUNDS` is the number of rounds. Threads
/// of other programs disturb some rounds, so the result is that of the fastest round.
const MESSAGES: usize = 800;
const ROUNDS: usize = 7;

/// Returns the median latency of a message between two ends, in nanoseconds. The latency is the
/// time from the post until both ends have polled the completion of the message.
#[expect(clippy::disallowed_methods, reason = "it is what is measured")]
fn latency_ns([here, there]: [&Program; 2], (one, other): &(End, End)) -> f64 {
    let round = || {
        let mut times: Vec<u64> = (0..MESSAGES as u64)
            .map(|id| {
                let begun = Instant::now();
                other.receive(id, &[there.piece(0, 64)]);
                one.send(id, here.piece(0, 8));
                one.succeed(id);
                other.succeed(id);
                begun.elapsed().as_nanos() as u64
            })
            .collect();
        times.sort_unstable();
        times[MESSAGES / 2]
    };
    (0..ROUNDS).map(|_| round()).min().expect("some rounds") as f64
}

fn pair([here, there]: [&Program; 2], psn: u32) -> (End, End) {
    let (one, other) = (here.end(psn + 1), there.end(psn + 10_001));
    one.connect(other.name());
    other.connect(one.name());
    (one, other)
}

fn report(what: &str, alone_ns: f64, beside_ns: f64) {
    println!("{what}: {beside_ns} ns, and {alone_ns} ns before");
    // `xtask acceptance faults` reads the printed line.
    println!("figure: {what}: {:.3}", beside_ns / alone_ns);
}

#[test]
#[ignore = "slow: run by `./x acceptance faults`; measures"]
fn latency_beside_queue_pairs_that_wait_for_receives() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = [&programs[0], &programs[1]];
    let pairs: Vec<(End, End)> = (0..WAITING).map(|psn| pair([here, there], psn)).collect();
    let working = pair([here, there], WAITING);
    // Send a message over each pair. After that, all pairs are connected.
    for (one, other) in &pairs {
        other.receive(1, &[there.piece(0, 64)]);
        one.send(1, here.piece(0, 8));
        one.succeed(1);
        other.succeed(1);
    }
    let alone_ns = latency_ns([here, there], &working);
    for (one, _) in &pairs {
        for id in 0..64 {
            one.send(id, here.piece(0, 8));
        }
    }
    let beside_ns = latency_ns([here, there], &working);
    report("latency beside queue pairs in RNR", alone_ns, beside_ns);
}

fn names_as_text(ends: &[End]) -> String {
    let names = ends.iter().map(|end| {
        let Name { gid, number, psn } = end.name();
        format!("{} {number} {psn}", gid.address())
    });
    names.collect::<Vec<_>>().join(",")
}

fn names_of_text(text: &str) -> Vec<Name> {
    let name = |text: &str| {
        let mut parts = text.split(' ');
        let mut next = || parts.next().expect("three parts");
        let gid = Gid::of(next().parse().expect("an address"));
        let mut number = || next().parse().expect("a number");
        Name { gid, number: number(), psn: number() }
    };
    text.split(',').map(name).collect()
}

/// Runs the peers in another process. Each peer receives one message. After that, the main process
/// stops this process.
#[test]
fn peers_in_another_process() {
    let Some(argument) = copy::argument() else { return };
    let program = Program::new(&loopback());
    let ends: Vec<End> = (0..SILENT as u32).map(|psn| program.end(psn + 20_001)).collect();
    copy::say(&names_as_text(&ends));
    for (end, peer) in ends.iter().zip(names_of_text(&argument)) {
        end.init();
        end.receive(1, &[program.piece(0, 64)]);
        end.be_ready_to_receive(peer);
        end.be_ready_to_send();
    }
    loop {
        for end in &ends {
            end.poll();
        }
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance faults`; measures"]
fn latency_beside_peers_that_read_nothing() {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let [here, there] = [&programs[0], &programs[1]];
    let ends: Vec<End> = (0..SILENT as u32).map(|psn| here.end(psn + 1)).collect();
    let (child, said) = copy::start(SILENT_TEST, &names_as_text(&ends));
    for (end, peer) in ends.iter().zip(names_of_text(&said)) {
        end.connect(peer);
        end.send(1, here.piece(0, 8));
    }
    for end in &ends {
        end.succeed(1);
    }
    let working = pair([here, there], 50_000);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGSTOP).expect("a child of ours");
    let alone_ns = latency_ns([here, there], &working);
    for end in &ends {
        for id in 0..500 {
            end.send(id, here.piece(0, 8));
        }
    }
    let beside_ns = latency_ns([here, there], &working);
    report("latency beside peers that take nothing", alone_ns, beside_ns);
    copy::end(child, Signal::SIGKILL);
}

//! Compares the times of traces with those of `LogGOPSim`.
//!
//! The expected values come from an independent implementation of LogGOPSim's algorithm in another
//! language. The parameters are L = 2500, o = 1500, g = 1000, G = 6 and O = 0 ns.

use std::fmt::Write as _;

use super::super::goal::Goal;
use super::super::simulation::{HostCosts, Outcome, Simulation};
use super::{LogGp, LogGpConfiguration};

const LATENCY_NS: u64 = 2_500;
const OVERHEAD_NS: u64 = 1_500;
const GAP_NS: u64 = 1_000;
const BYTE_NS: u64 = 6;

const LOGGP: LogGpConfiguration =
    LogGpConfiguration::new(LATENCY_NS * 1_000, GAP_NS * 1_000, BYTE_NS * 1_000);

fn replay_with(loggp: LogGpConfiguration, goal: Goal) -> Outcome {
    let ranks = goal.ranks();
    let placement: Vec<u32> = (0..ranks).collect();
    let costs = HostCosts::symmetric(OVERHEAD_NS * 1_000, 0);
    Simulation::new(LogGp::new(ranks, loggp), goal, &placement, costs).run().expect("it ends")
}

fn parse(text: &str) -> Goal {
    Goal::parse("a.goal", text).expect("it is well formed")
}

/// Returns the time when the last rank finishes, in nanoseconds.
fn replay(text: &str) -> u64 {
    replay_with(LOGGP, parse(text)).completed_ps / 1_000
}

/// Returns a trace in which `program` writes the operations of each rank.
fn trace(ranks: u32, program: impl Fn(u32, &mut String)) -> String {
    let mut text = format!("num_ranks {ranks}\n");
    for rank in 0..ranks {
        let _ = writeln!(text, "rank {rank} {{");
        program(rank, &mut text);
        text.push_str("}\n");
    }
    text
}

/// Returns a broadcast over a binomial tree from rank 0. Each rank sends to its largest subtree
/// first.
fn broadcast(ranks: u32, bytes: u32) -> String {
    trace(ranks, |rank, text| {
        let own = if rank == 0 { ranks } else { rank & rank.wrapping_neg() };
        if rank > 0 {
            let _ = writeln!(text, "r: recv {bytes}b from {}", rank - own);
        }
        let mut part = own / 2;
        while part > 0 {
            let _ = writeln!(text, "s{part}: send {bytes}b to {}", rank + part);
            if rank > 0 {
                let _ = writeln!(text, "s{part} requires r");
            }
            part /= 2;
        }
    })
}

/// Returns a reduction over a binomial tree to rank 0. A rank computes after each message.
fn reduce(ranks: u32, bytes: u32, computes_ns: u32) -> String {
    trace(ranks, |rank, text| {
        let mut before = String::new();
        let mut part = 1;
        while part < ranks {
            if rank & part != 0 {
                let _ = writeln!(text, "s: send {bytes}b to {}", rank - part);
                if !before.is_empty() {
                    let _ = writeln!(text, "s requires {before}");
                }
                break;
            }
            let _ = writeln!(text, "r{part}: recv {bytes}b from {}", rank + part);
            let _ = writeln!(text, "c{part}: calc {computes_ns}\nc{part} requires r{part}");
            if !before.is_empty() {
                let _ = writeln!(text, "c{part} requires {before}");
            }
            before = format!("c{part}");
            part *= 2;
        }
    })
}

/// Returns a trace in which data passes along a chain of ranks from rank 0, piece by piece.
fn chain(ranks: u32, bytes: u32, pieces: u32) -> String {
    trace(ranks, |rank, text| {
        for piece in 0..pieces {
            if rank > 0 {
                let from = rank - 1;
                let _ = writeln!(text, "r{piece}: recv {bytes}b from {from} tag {piece}");
            }
            if rank + 1 < ranks {
                let to = rank + 1;
                let _ = writeln!(text, "s{piece}: send {bytes}b to {to} tag {piece}");
                if rank > 0 {
                    let _ = writeln!(text, "s{piece} requires r{piece}");
                }
            }
        }
    })
}

/// Returns a trace in which the pieces of all ranks travel round a ring, for `rounds` rounds.
fn ring(ranks: u32, bytes: u32, pieces: u32, rounds: u32) -> String {
    trace(ranks, |rank, text| {
        let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        for tag in 0..pieces * rounds {
            let _ = writeln!(text, "s{tag}: send {bytes}b to {right} tag {tag}");
            let _ = writeln!(text, "r{tag}: recv {bytes}b from {left} tag {tag}");
            if tag % rounds > 0 {
                let _ = writeln!(text, "s{tag} requires r{}", tag - 1);
            }
        }
    })
}

/// Returns an all-to-all. Each rank sends first to rank 0 if `is_linear`, and otherwise first to
/// the next rank.
fn all_to_all(ranks: u32, bytes: u32, is_linear: bool) -> String {
    trace(ranks, |rank, text| {
        for step in 0..ranks {
            let (to, from) = if is_linear {
                (step, step)
            } else {
                ((rank + step) % ranks, (rank + ranks - step) % ranks)
            };
            if to != rank {
                let _ = writeln!(text, "recv {bytes}b from {from}\nsend {bytes}b to {to}");
            }
        }
    })
}

fn gather(ranks: u32, bytes: u32) -> String {
    trace(ranks, |rank, text| match rank {
        0 => {
            for from in 1..ranks {
                let _ = writeln!(text, "recv {bytes}b from {from}");
            }
        }
        _ => {
            let _ = writeln!(text, "send {bytes}b to 0");
        }
    })
}

fn scatter(ranks: u32, bytes: u32) -> String {
    trace(ranks, |rank, text| match rank {
        0 => {
            for to in 1..ranks {
                let _ = writeln!(text, "send {bytes}b to {to}");
            }
        }
        _ => {
            let _ = writeln!(text, "recv {bytes}b from 0");
        }
    })
}

/// Returns a dissemination: all ranks receive the data of all ranks. The distance between partners
/// doubles in each round.
fn dissemination(ranks: u32, bytes: u32) -> String {
    trace(ranks, |rank, text| {
        let mut round = 0;
        while 1 << round < ranks {
            let (to, from) = ((rank + (1 << round)) % ranks, (rank + ranks - (1 << round)) % ranks);
            let _ = writeln!(text, "s{round}: send {bytes}b to {to} tag {round}");
            let _ = writeln!(text, "r{round}: recv {bytes}b from {from} tag {round}");
            if round > 0 {
                let _ = writeln!(text, "s{round} requires r{}", round - 1);
            }
            round += 1;
        }
    })
}

/// Returns names, traces and expected times in nanoseconds.
fn times_of_loggopsim() -> [(&'static str, String, u64); 15] {
    [
        ("a small broadcast", broadcast(16, 8), 22_168),
        ("a broadcast", broadcast(64, 1_000), 68_964),
        ("a reduction", reduce(64, 1_000, 500), 71_964),
        ("a dissemination", dissemination(64, 8), 33_252),
        ("a small ring", ring(16, 8, 1, 20), 110_840),
        ("a ring of pieces", ring(64, 500, 4, 8), 194_302),
        ("a chain", chain(16, 1_000, 10), 268_344),
        ("a small all-to-all", all_to_all(16, 8, false), 45_630),
        ("an all-to-all", all_to_all(64, 100, false), 226_610),
        ("a small linear all-to-all", all_to_all(16, 8, true), 48_130),
        ("a linear all-to-all", all_to_all(64, 1_000, true), 909_750),
        ("a small gather", gather(16, 8), 27_130),
        ("a gather", gather(64, 1_000), 476_122),
        ("a small scatter", scatter(16, 8), 26_542),
        ("a scatter", scatter(64, 1_000), 445_122),
    ]
}

/// `xtask acceptance fabric` reads the line that this test prints.
#[test]
fn traces_take_the_times_of_loggopsim() {
    let times = times_of_loggopsim();
    let found: Vec<_> = times.iter().map(|(name, text, _)| (*name, replay(text))).collect();
    let expected: Vec<_> = times.iter().map(|(name, _, time_ns)| (*name, *time_ns)).collect();
    let exact = found.iter().zip(&expected).filter(|(found, expected)| found == expected).count();
    println!("figure: LogGOPSim: {exact}");
    assert_eq!(found, expected);
}

/// `LogGOPSim` sends the data of a message longer than S immediately, and delays only the end of
/// the send. This simulator sends a request and a clearance before the data, as real
/// implementations do. At each level of a tree, two one-byte messages are therefore added. A
/// receiver handles three messages for each message of its senders.
#[test]
fn a_rendezvous_takes_two_more_messages_than_in_loggopsim() {
    let control_ns = 2 * OVERHEAD_NS + LATENCY_NS;
    let rendezvous = |text: &str| {
        let goal = parse(text).with_rendezvous_above(999).expect("tags are small");
        replay_with(LOGGP, goal).completed_ps / 1_000
    };
    // `PAIR_NS` and `CHAIN_NS` are values of LogGOPSim with S = 999, for a pair and a chain of 16
    // ranks.
    assert_eq!(rendezvous(&chain(2, 1_000, 1)), PAIR_NS + 2 * control_ns);
    assert_eq!(rendezvous(&chain(16, 1_000, 1)), CHAIN_NS + 15 * 2 * control_ns);
    // Messages of exactly S bytes are eager.
    assert_eq!(rendezvous(&gather(64, 999)), replay(&gather(64, 999)));
}

const PAIR_NS: u64 = 11_494;
const CHAIN_NS: u64 = 172_410;

/// The expected values were computed by hand. A message occupies the interfaces of its sender and
/// of its receiver for g + (k − 1) G. The receiving processor works for o after the last byte has
/// arrived.
#[test]
fn unblocked_processors_compute_while_bytes_arrive() {
    let free = LogGpConfiguration { holds_receiver: false, ..LOGGP };
    let body_ns = 999 * BYTE_NS;
    let gathered = replay_with(free, parse(&gather(64, 1_000))).completed_ps / 1_000;
    let interface_ns = GAP_NS + body_ns;
    let one_ns = 2 * OVERHEAD_NS + LATENCY_NS + body_ns;
    assert_eq!(gathered, one_ns + 62 * interface_ns);
    // The bytes of the message arrive during the 20 µs of work.
    let text =
        "num_ranks 2\nrank 0 {\nsend 1000b to 1\n}\nrank 1 {\nrecv 1000b from 0\ncalc 20000\n}\n";
    let done = |loggp| replay_with(loggp, parse(text)).completed_ps / 1_000;
    assert_eq!(done(free), 20_000 + OVERHEAD_NS);
    assert_eq!(done(LOGGP), 20_000 + OVERHEAD_NS + body_ns);
}

#[test]
fn a_trace_computes_while_a_send_waits_for_the_interface() {
    let text = "num_ranks 2\nrank 0 {\na: send 10000b to 1\nb: send 1b to 1\nc: calc 50000\nb requires \
                a\nc requires a\n}\nrank 1 {\nrecv 10000b from 0\nrecv 1b from 0\n}\n";
    // In LogGOPSim, the work lasts from 1.5 to 51.5 µs, and the second send starts at 60.994 µs.
    assert_eq!(replay(text), 66_994);
}

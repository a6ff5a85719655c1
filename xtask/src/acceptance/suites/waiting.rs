//! How threads wait. If the link limits the rate, the edge must need no more processor time than
//! TCP. If the processors are busy, the edge must be as fast as TCP. In all other cases, the edge
//! must be as fast as bare frames. Each row compares contenders whose samples alternate in one run.

use crate::acceptance::compared::{Comparison, Point, PointLocation, Quantity, Side};
use crate::acceptance::printed::Tests;
use crate::acceptance::structure::Count;
use crate::acceptance::{Bound, Probe, Row};

use super::{printed, speed, tests};

const fn row(name: &'static str, bound: Bound, probe: Probe) -> Row {
    Row { name, bound, bound_quick: None, probe }
}

const fn compared(
    name: &'static str,
    bound: Bound,
    arguments: &'static [&'static str],
    comparison: Comparison,
) -> Row {
    row(name, bound, Probe::Compared { arguments, comparison })
}

const fn side(contender: &'static str, waiting: &'static str) -> Side {
    Side { contender, waiting }
}

/// Compares the edge protocol with TCP if the threads of both poll.
const fn polled(quantity: Quantity) -> Comparison {
    let (own, other) = (side("edge", "poll"), side("tcp-poll", "poll"));
    Comparison { place: PointLocation::Bench, points: ALL, own, other, quantity }
}

/// Compares the edge protocol with TCP if the threads of both block.
const fn event(points: &'static [Point], quantity: Quantity) -> Comparison {
    let (own, other) = (side("edge", "interrupt"), side("tcp", "interrupt"));
    Comparison { place: PointLocation::Bench, points, own, other, quantity }
}

/// Compares sockets under `ethernot run --sockets` with sockets over plain TCP.
const fn preloaded(
    points: &'static [Point],
    own: &'static str,
    other: &'static str,
    quantity: Quantity,
) -> Comparison {
    let (own, other) = (side(own, ""), side(other, ""));
    Comparison { place: PointLocation::Sockets, points, own, other, quantity }
}

/// Compares streams of the edge protocol with streams of TCP or MPTCP over links of 1 Gb/s. The
/// threads of TCP and MPTCP block while they wait; `waiting` says how those of the edge protocol
/// wait.
const fn shaped(
    set_up: &'static str,
    waiting: &'static str,
    other: &'static str,
    quantity: Quantity,
) -> Comparison {
    let (own, other) = (side("edge", waiting), side(other, "interrupt"));
    Comparison { place: PointLocation::SetUp(set_up), points: STREAMS, own, other, quantity }
}

/// Compares a small write during a stream, in the mode `waiting`, with the same write when both
/// ends poll.
const fn beside(waiting: &'static str) -> Comparison {
    let (own, other) = (side("edge", waiting), side("edge", "poll"));
    let quantity = Quantity::ExtraLatency;
    Comparison { place: PointLocation::SetUp("1L-1G"), points: BESIDE, own, other, quantity }
}

/// Compares the processor time of both ends, in percent of one processor, with a bound.
const fn share(points: &'static [Point]) -> Comparison {
    let own = side("edge", "mixed");
    let quantity = Quantity::Share;
    Comparison { place: PointLocation::SetUp("1L-1G"), points, own, other: own, quantity }
}

const fn at_least(least: f64) -> Bound {
    Bound::AtLeast(least, "x")
}

const fn at_most(most: f64) -> Bound {
    Bound::AtMost(most, "x")
}

pub(super) const ROWS: &[Row] = &[
    compared(
        "polled, 2 busy loops: rates against TCP that polls",
        at_least(0.9),
        &BUSY_2,
        polled(RATE),
    ),
    compared("polled, 4 busy loops: the same", at_least(0.9), &BUSY_4, polled(RATE)),
    // Sockets that poll are compared only by latency. The latency test is the only test of
    // `ethernot bench sockets` that has contenders that poll.
    compared(
        "polled by the preload, 2 busy loops: time of a ping-pong against TCP that polls",
        at_most(1.0 / 0.9),
        &SOCKETS_BUSY_2,
        preloaded(LATENCY, "sockets-poll", "tcp-poll", Quantity::Latency),
    ),
    compared(
        "polled by the preload, 4 busy loops: the same",
        at_most(1.0 / 0.9),
        &SOCKETS_BUSY_4,
        preloaded(LATENCY, "sockets-poll", "tcp-poll", Quantity::Latency),
    ),
    compared(
        "event mode, 2 busy loops: rates against TCP that blocks",
        at_least(0.9),
        &BUSY_2,
        event(ALL, RATE),
    ),
    compared("same, median latency", at_most(1.3), &BUSY_2, event(PING_PONGS, Quantity::Latency)),
    compared("same, 99 % latency", at_most(1.3), &BUSY_2, event(PING_PONGS, Quantity::Tail)),
    compared(
        "event mode, 4 busy loops: rates against TCP that blocks",
        at_least(0.9),
        &BUSY_4,
        event(ALL, RATE),
    ),
    compared(
        "same, median latency, 4 busy loops",
        at_most(1.3),
        &BUSY_4,
        event(PING_PONGS, Quantity::Latency),
    ),
    compared(
        "same, 99 % latency, 4 busy loops",
        at_most(1.3),
        &BUSY_4,
        event(PING_PONGS, Quantity::Tail),
    ),
    compared(
        "event mode by the preload, 2 busy loops: throughput against TCP that blocks",
        at_least(0.9),
        &SOCKETS_BUSY_2,
        preloaded(THROUGHPUT, "sockets", "tcp", RATE),
    ),
    compared(
        "same, latency",
        at_most(1.3),
        &SOCKETS_BUSY_2,
        preloaded(LATENCY, "sockets", "tcp", Quantity::Latency),
    ),
    compared(
        "same, 99 % latency, preload",
        at_most(1.3),
        &SOCKETS_BUSY_2,
        preloaded(LATENCY, "sockets", "tcp", Quantity::Tail),
    ),
    compared(
        "event mode by the preload, 4 busy loops: throughput against TCP that blocks",
        at_least(0.9),
        &SOCKETS_BUSY_4,
        preloaded(THROUGHPUT, "sockets", "tcp", RATE),
    ),
    compared(
        "same, latency, 4 busy loops",
        at_most(1.3),
        &SOCKETS_BUSY_4,
        preloaded(LATENCY, "sockets", "tcp", Quantity::Latency),
    ),
    compared(
        "idle host, event mode: 8 B ping-pong against TCP that blocks",
        at_most(1.0),
        &IDLE,
        event(&[("ping-pong", 8)], Quantity::Latency),
    ),
    compared(
        "1 Gb/s, one-way and two-way, event mode: rate against TCP that blocks",
        at_least(0.99),
        &GIGABIT,
        shaped("1L-1G", "interrupt", "tcp", RATE),
    ),
    compared(
        "same, default waiting: rate",
        at_least(0.99),
        &GIGABIT,
        shaped("1L-1G", "mixed", "tcp", RATE),
    ),
    compared(
        "same, event mode: processor time of both ends",
        at_most(3.0),
        &GIGABIT,
        shaped("1L-1G", "interrupt", "tcp", Quantity::Processor),
    ),
    compared(
        "same, default waiting: processor time of both ends",
        at_most(3.0),
        &GIGABIT,
        shaped("1L-1G", "mixed", "tcp", Quantity::Processor),
    ),
    compared(
        "extra latency of a small write beside a stream of 1 Gb/s, event mode against polling",
        Bound::AtMost(100.0, "us"),
        &GIGABIT_BESIDE,
        beside("interrupt"),
    ),
    compared("same, default waiting", Bound::AtMost(100.0, "us"), &GIGABIT_BESIDE, beside("mixed")),
    compared(
        "2 x 1 Gb/s, event mode: rate against MPTCP",
        at_least(1.0),
        &TWO_GIGABITS,
        shaped("2Lu-1G", "interrupt", "mptcp", RATE),
    ),
    compared(
        "same, default waiting: rate, two links",
        at_least(1.0),
        &TWO_GIGABITS,
        shaped("2Lu-1G", "mixed", "mptcp", RATE),
    ),
    compared(
        "same, event mode: processor time of both ends, two links",
        at_most(3.0),
        &TWO_GIGABITS,
        shaped("2Lu-1G", "interrupt", "mptcp", Quantity::Processor),
    ),
    compared(
        "same, default waiting: processor time of both ends, two links",
        at_most(3.0),
        &TWO_GIGABITS,
        shaped("2Lu-1G", "mixed", "mptcp", Quantity::Processor),
    ),
    compared(
        "the paper's share of 200 %, mixed at 1 Gb/s: one-way",
        Bound::AtMost(30.0, "%"),
        &PAPER,
        share(&[("one-way", 4096), ("one-way", 16 << 10), ("one-way", 1 << 20)]),
    ),
    compared(
        "same, two-way",
        Bound::AtMost(43.0, "%"),
        &PAPER,
        share(&[("two-way", 4096), ("two-way", 16 << 10), ("two-way", 1 << 20)]),
    ),
    compared(
        "same, ping-pong",
        Bound::AtMost(35.0, "%"),
        &PAPER,
        share(&[("ping-pong", 4096), ("ping-pong", 16 << 10), ("ping-pong", 1 << 20)]),
    ),
    printed(
        "Open MPI, 4 ranks on 2 processors, Allreduce 8 B against the same over TCP, time",
        at_most(1.0),
        "allreduce of 4 ranks against TCP",
        tests("programs", "--test=open_mpi", "speeds_of_mpi"),
    ),
    printed(
        "same, Alltoall 1 KiB",
        at_most(1.0),
        "alltoall of 4 ranks against TCP",
        tests("programs", "--test=open_mpi", "speeds_of_mpi"),
    ),
    printed(
        "MPICH, 4 ranks on 2 processors, Allreduce 8 B against the same over TCP, time",
        at_most(1.0),
        "allreduce of 4 ranks against TCP (mpich)",
        MPICH,
    ),
    printed(
        "same of MPICH, Alltoall 1 KiB",
        at_most(1.0),
        "alltoall of 4 ranks against TCP (mpich)",
        MPICH,
    ),
    printed(
        "passive server, pauses of 0 to 1 ms: latency against the better of a spin of 50 us and none",
        at_most(1.1),
        "latency of a passive server against the better",
        PASSIVE,
    ),
    printed(
        "same, processor time beyond that of the better",
        Bound::AtMost(5.0, "points"),
        "processor of a passive server beyond the better",
        PASSIVE,
    ),
    row(
        "idle host, one-way 64 KiB and 1 MiB against the bare path with the same gather and copy",
        at_least(0.85),
        Probe::BareStream { arguments: &YARDSTICKS_UDP },
    ),
    row(
        "8 B ping-pong over UDP, polled, against bare UDP",
        at_most(1.4),
        Probe::Yardstick { arguments: &YARDSTICKS_UDP, to: "udp" },
    ),
    row(
        "8 B ping-pong over AF_XDP, polled, against a bare AF_XDP exchange",
        at_most(1.35),
        Probe::Yardstick { arguments: &YARDSTICKS_XDP, to: "bare-xdp" },
    ),
    compared(
        "8 B ping-pong over shared memory, polled, against a bare exchange (only told)",
        at_most(1000.0),
        &SHARED_MEMORY,
        Comparison {
            place: PointLocation::Bench,
            points: &[("ping-pong", 8)],
            own: side("shm", "poll"),
            other: side("bare-shm", "poll"),
            quantity: Quantity::Latency,
        },
    ),
    row(
        "the worst figure of speed against 5ef3e76 (`acceptance speed` has each)",
        at_least(1.0),
        Probe::AgainstEach(speed::FIGURES),
    ),
    row(
        "simulated hosts with a scheduler, loads 0 to 4: throughput by the share of processor left",
        at_least(0.9),
        Probe::Simulated {
            arguments: &["sim", "waiting", "--quick", "--json", "{json}"],
            pointer: "/worst_ratio",
        },
    ),
    row(
        "`sim reality`, calibrated on this host: worst point",
        Bound::AtMost(25.0, "%"),
        Probe::Number { arguments: &REALITY, pointer: "/worst_error_percent" },
    ),
    // The error figure excludes points whose measured samples vary too much.
    row(
        "sim reality: points too unsteady to compare",
        Bound::AtMost(0.0, "points"),
        Probe::Number { arguments: &REALITY, pointer: "/unsteady_points" },
    ),
    row(
        "lines of code that decide how threads wait, fewer than before the policy",
        Bound::AtLeast(700.0, "lines"),
        Probe::Sources(Count::WaitingLinesFewer { since: BEFORE, places: PLACES }),
    ),
    row(
        "constants of the same",
        Bound::AtLeast(20.0, "constants"),
        Probe::Sources(Count::WaitingConstantsFewer { since: BEFORE, places: PLACES }),
    ),
];

const RATE: Quantity = Quantity::Rate;

/// All points of the papers' table. The rows with busy processors use the same points.
const ALL: &[Point] = &[
    ("ping-pong", 8),
    ("ping-pong", 16 << 10),
    ("one-way", 16 << 10),
    ("one-way", 1 << 20),
    ("two-way", 16 << 10),
    ("two-way", 1 << 20),
];
const PING_PONGS: &[Point] = &[("ping-pong", 8), ("ping-pong", 16 << 10)];
const STREAMS: &[Point] =
    &[("one-way", 64 << 10), ("one-way", 1 << 20), ("two-way", 64 << 10), ("two-way", 1 << 20)];
const BESIDE: &[Point] = &[("small-beside-stream", 64 << 10), ("small-beside-stream", 1 << 20)];
const LATENCY: &[Point] = &[("latency", 8), ("latency", 16 << 10)];
const THROUGHPUT: &[Point] = &[("throughput", 16 << 10), ("throughput", 1 << 20)];

const MPICH: Tests =
    Tests { package: "programs", target: "--test=mpich", part: "speeds_of_mpi", part_quick: None };
const PASSIVE: Tests = tests("ethernot", "--test=passive", "gets_from_a_passive_server");

/// The last commit without the waiting policy. Rows about the amount of code compare with this
/// commit, because it contains the code that the policy has replaced. The speed rows compare with
/// an older commit, which does not contain that code yet.
const BEFORE: &str = "5089d955";

/// Files that decide how a thread waits, in the commit [`BEFORE`] or now.
const PLACES: &[&str] = &[
    "crates/runtime/src/arming.rs",
    "crates/runtime/src/aside.rs",
    "crates/runtime/src/looking.rs",
    "crates/runtime/src/lookout.rs",
    "crates/runtime/src/park.rs",
    "crates/runtime/src/progress_thread.rs",
    "crates/runtime/src/sleep.rs",
    "crates/runtime/src/waits.rs",
    "crates/verbs/src/completion_queue.rs",
    "crates/waiting/src/wait_policy.rs",
];

/// Arguments that run all tests while `busy` threads spin.
const fn loaded(busy: &'static str) -> [&'static str; 20] {
    [
        "bench",
        "--links",
        "1",
        "--tests",
        "ping-pong,one-way,two-way",
        "--sizes",
        "8,16K,1M",
        "--transports",
        "edge,tcp,tcp-poll",
        "--waiting",
        "poll,interrupt",
        "--interleaved",
        "--busy",
        busy,
        "--repetitions",
        "{quick:5|9}",
        "--time",
        "{quick:60|240}",
        "--json",
        "{json}",
    ]
}

const BUSY_2: [&str; 20] = loaded("2");
const BUSY_4: [&str; 20] = loaded("4");
const IDLE: [&str; 18] = [
    "bench",
    "--links",
    "1",
    "--tests",
    "ping-pong",
    "--sizes",
    "8",
    "--transports",
    "edge,tcp",
    "--waiting",
    "interrupt",
    "--interleaved",
    "--repetitions",
    "{quick:7|15}",
    "--time",
    "{quick:5|20}",
    "--json",
    "{json}",
];

const fn loaded_sockets(busy: &'static str) -> [&'static str; 18] {
    [
        "bench",
        "sockets",
        "--tests",
        "latency,throughput",
        "--sizes",
        "8,16K,1M",
        "--mtu",
        "1500",
        "--contenders",
        "tcp,tcp-poll,sockets,sockets-poll",
        "--busy",
        busy,
        "--repetitions",
        "{quick:5|9}",
        "--seconds",
        "{quick:0.2|0.4}",
        "--json",
        "{json}",
    ]
}

const SOCKETS_BUSY_2: [&str; 18] = loaded_sockets("2");
const SOCKETS_BUSY_4: [&str; 18] = loaded_sockets("4");

/// Arguments of a run over shaped links, with further arguments.
const fn over(
    set_up: &'static str,
    link: &'static str,
    tests: &'static str,
    sizes: &'static str,
    waiting: &'static str,
) -> [&'static str; 21] {
    [
        "bench",
        "multiedge",
        "--setups",
        set_up,
        "--link",
        link,
        "--policy",
        "own",
        "--tcp",
        "--tests",
        tests,
        "--sizes",
        sizes,
        "--waiting",
        waiting,
        "--repetitions",
        "{quick:5|9}",
        "--time",
        "{quick:20|90}",
        "--json",
        "{json}",
    ]
}

const GIGABIT: [&str; 21] = over("1L-1G", "udp", "one-way,two-way", "64K,1M", "mixed,interrupt");
const TWO_GIGABITS: [&str; 21] =
    over("2Lu-1G", "udp", "one-way,two-way", "64K,1M", "mixed,interrupt");
const GIGABIT_BESIDE: [&str; 21] =
    over("1L-1G", "udp", "small-beside-stream", "64K,1M", "poll,mixed,interrupt");
const PAPER: [&str; 21] =
    over("1L-1G", "packet", "ping-pong,one-way,two-way", "4K,16K,1M", "mixed");

const fn yardsticks(link: &'static str) -> [&'static str; 10] {
    [
        "bench",
        "yardsticks",
        "--link",
        link,
        "--repetitions",
        "{quick:5|9}",
        "--time",
        "{quick:6|20}",
        "--json",
        "{json}",
    ]
}

const YARDSTICKS_UDP: [&str; 10] = yardsticks("udp");
const YARDSTICKS_XDP: [&str; 10] = yardsticks("xdp");

/// Arguments of a run over shared memory. Uses loopback, because the processes must be in one
/// network namespace.
const SHARED_MEMORY: [&str; 17] = [
    "bench",
    "--loopback",
    "--links",
    "1",
    "--tests",
    "ping-pong",
    "--sizes",
    "8",
    "--transports",
    "shm,bare-shm",
    "--interleaved",
    "--repetitions",
    "{quick:5|9}",
    "--time",
    "{quick:3|10}",
    "--json",
    "{json}",
];

const REALITY: [&str; 5] = ["sim", "reality", "--quick", "--json", "{json}"];

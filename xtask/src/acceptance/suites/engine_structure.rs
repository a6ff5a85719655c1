//! Structure of the engine: writable fields and length of call paths. Also checks that the engine
//! is as fast as at an earlier commit, and that no run of the torture (random faults in the
//! simulator) fails.

use super::sources;
use crate::acceptance::structure::Count;
use crate::acceptance::{Bound, Measurement, Probe, Row};

const fn against(
    name: &'static str,
    bound: Bound,
    arguments: &'static [&'static str],
    test: &'static str,
    field: &'static str,
) -> Row {
    let of = Measurement { test, transport: "edge" };
    Row { name, bound, bound_quick: None, probe: Probe::Against { arguments, of, field } }
}

/// A row about round trips of 8 bytes, which take at most `slower_most` times as long as at another
/// commit.
pub(super) const fn ping_pong_against(slower_most: f64) -> Row {
    let name = "ping-pong 8 B, polled, against another commit (--against)";
    against(name, Bound::AtMost(slower_most, "x"), PING_PONG, "ping-pong", "latency_ns")
}

/// A row about a stream of writes of 1 MiB, which takes at most `slower_most` times as long as at
/// another commit.
pub(super) const fn one_way_against(slower_most: f64) -> Row {
    let name = "one-way 1 MiB, against another commit (--against)";
    against(name, Bound::AtLeast(1.0 / slower_most, "x"), ONE_WAY, "one-way", "bytes_per_second")
}

/// A row about many concurrent writes of 8 bytes, which take at most `slower_most` times as long as
/// at another commit.
pub(super) const fn in_flight_against(slower_most: f64) -> Row {
    let name = "8 B writes, 64 in flight, against another commit (--against)";
    let bound = Bound::AtLeast(1.0 / slower_most, "x");
    against(name, bound, IN_FLIGHT, "operation-rate", "operations_per_second")
}

pub(super) const ROWS: &[Row] = &[
    sources(
        "fields of `Engine`, `Connection` and `Path` that other files can write",
        Bound::AtMost(0.0, "fields"),
        Count::OpenFields { package: "engine", structs: &["Engine", "Connection", "Path"] },
    ),
    sources(
        "files of `engine` that import each other, largest circle",
        Bound::AtMost(3.0, "files"),
        Count::Circle { package: "engine" },
    ),
    sources(
        "named functions from the call of a write to the wire",
        Bound::AtMost(25.0, "functions"),
        Count::Hops { table: 0 },
    ),
    sources(
        "named functions from the wire to the place of its bytes",
        Bound::AtMost(18.0, "functions"),
        Count::Hops { table: 1 },
    ),
    sources("rules of protocol.md cited by code", Bound::AtLeast(100.0, "%"), Count::RulesKept),
    sources("rules of protocol.md cited by a test", Bound::AtLeast(95.0, "%"), Count::RulesTested),
    sources(
        "lines of code of `engine` and `delivery`, more than at another commit (--against)",
        Bound::AtMost(-1.0, "lines"),
        Count::LinesMore { packages: &["engine", "delivery"] },
    ),
    ping_pong_against(SLOWER_MOST),
    one_way_against(SLOWER_MOST),
    in_flight_against(SLOWER_MOST),
    Row {
        name: "torture seeds from 0, none failing",
        bound: Bound::AtLeast(50_000.0, "seeds"),
        bound_quick: Some(Bound::AtLeast(2_000.0, "seeds")),
        probe: Probe::AllSucceed {
            arguments: &[
                "sim",
                "torture",
                "--seeds",
                "{quick:0..2000|0..50000}",
                "--json",
                "{json}",
            ],
            count: "/seeds",
        },
    },
    Row {
        name: "tests of pinned seeds that fail",
        bound: Bound::AtMost(0.0, "tests"),
        bound_quick: None,
        probe: Probe::Tests { package: "fabric", chosen: "that_found_bugs_pass", in_quick: true },
    },
];

/// Highest permitted ratio of the time of an operation to its time at the earlier commit.
const SLOWER_MOST: f64 = 1.02;

/// Expands to arguments of `ethernot bench` over one link without a rate limit.
macro_rules! bench {
    ($test:literal, $size:literal) => {
        &[
            "bench",
            "--json",
            "{json}",
            "--links",
            "1",
            "--tests",
            $test,
            "--sizes",
            $size,
            "--transports",
            "edge",
            "--in-flight",
            "64",
            "--repetitions",
            "3",
            "--time",
            "2",
        ]
    };
}

const PING_PONG: &[&str] = bench!("ping-pong", "8");
const ONE_WAY: &[&str] = bench!("one-way", "1M");
const IN_FLIGHT: &[&str] = bench!("operation-rate", "8");

//! The engine as a house to work in: what is open to whom, how far one walks, and that it is as quick and as
//! safe as before.

use crate::acceptance::house::Count;
use crate::acceptance::{Bound, Measurement, Probe, Row};

const fn sources(name: &'static str, bound: Bound, count: Count) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Sources(count) }
}

pub(super) const fn against(
    name: &'static str,
    bound: Bound,
    arguments: &'static [&'static str],
    test: &'static str,
    field: &'static str,
) -> Row {
    let of = Measurement { test, transport: "edge" };
    Row { name, bound, bound_quick: None, probe: Probe::Against { arguments, of, field } }
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
    against(
        "ping-pong 8 B, polled, against another commit (--against)",
        Bound::AtMost(SLOWER_MOST, "x"),
        PING_PONG,
        "ping-pong",
        "latency_ns",
    ),
    against(
        "one-way 1 MiB, against another commit (--against)",
        Bound::AtLeast(1.0 / SLOWER_MOST, "x"),
        ONE_WAY,
        "one-way",
        "bytes_per_second",
    ),
    against(
        "8 B writes, 64 in flight, against another commit (--against)",
        Bound::AtLeast(1.0 / SLOWER_MOST, "x"),
        IN_FLIGHT,
        "operation-rate",
        "operations_per_second",
    ),
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
        probe: Probe::Tests { package: "fabric", part: "that_found_bugs_pass", in_quick: true },
    },
];

/// The time an operation takes, against that before.
const SLOWER_MOST: f64 = 1.02;

/// Arguments of `ethernot bench` over one link without a rate.
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

pub(super) const PING_PONG: &[&str] = bench!("ping-pong", "8");
pub(super) const ONE_WAY: &[&str] = bench!("one-way", "1M");
pub(super) const IN_FLIGHT: &[&str] = bench!("operation-rate", "8");

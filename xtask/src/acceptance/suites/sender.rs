//! The sending policy: compared with simpler policies, on many kinds of hosts and links.

use crate::acceptance::{Bound, Measurement, Pair, PointOf, Probe, Row, Shown};

const fn rules(
    name: &'static str,
    arguments: &'static [&'static str],
    points: &'static [PointOf],
) -> Row {
    let probe = Probe::Rules { arguments, points };
    Row { name, bound: Bound::AtLeast(0.98, "x"), bound_quick: None, probe }
}

const fn contenders(
    name: &'static str,
    bound: Bound,
    arguments: &'static [&'static str],
    test: &'static str,
    pair: Pair,
) -> Row {
    let probe = Probe::Contenders { arguments, test, pair };
    Row { name, bound, bound_quick: None, probe }
}

const fn torture(name: &'static str, arguments: &'static [&'static str]) -> Row {
    let probe = Probe::AllSucceed { arguments, count: "/seeds" };
    let bound = Bound::AtLeast(10_000.0, "seeds");
    Row { name, bound, bound_quick: Some(Bound::AtLeast(200.0, "seeds")), probe }
}

const fn at(set_up: &'static str, test: &'static str, bytes: u64) -> PointOf {
    PointOf { set_up, test, bytes }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "`ethernot sim policies`, every point: own rules against the better of MultiEdge's and turns",
        bound: Bound::AtLeast(0.99, "x"),
        bound_quick: None,
        probe: Probe::Policies {
            arguments: &["sim", "policies", "{quick:--quick|--seeds=3}", "--json", "{json}"],
        },
    },
    rules(
        "2 x 1 Gb/s one-way in order, against MultiEdge's rules",
        IN_ORDER,
        &[at("2L-1G", "one-way", 64 << 10), at("2L-1G", "one-way", 1 << 20)],
    ),
    rules(
        "2 x 1 Gb/s one-way in any order, against MultiEdge's rules",
        ANY_ORDER,
        &[at("2Lu-1G", "one-way", 64 << 10), at("2Lu-1G", "one-way", 1 << 20)],
    ),
    rules(
        "2 x 1 Gb/s two-way, against MultiEdge's rules",
        BOTH_WAYS,
        &[at("2L-1G", "two-way", 1 << 20), at("2Lu-1G", "two-way", 1 << 20)],
    ),
    rules(
        "1 Gb/s of 20 us and 1 Gb/s of 2 ms, one-way, against MultiEdge's rules",
        DELAYED,
        &[at("1G/20us+1G/2ms", "one-way", 64 << 10), at("1G/20us+1G/2ms", "one-way", 1 << 20)],
    ),
    rules(
        "10 and 1 Gb/s, one-way, against MultiEdge's rules",
        UNLIKE_FAST,
        &[at("10G+1G", "one-way", 1 << 20)],
    ),
    rules(
        "10 Gb/s at MTU 1500, one-way and two-way, against MultiEdge's rules",
        TEN_GIGABIT,
        &[at("1L-10G", "one-way", 1 << 20), at("1L-10G", "two-way", 1 << 20)],
    ),
    contenders(
        "ping-pong 4 KiB to 256 KiB against busy-polled TCP, worst size",
        Bound::AtMost(1.25, "x"),
        POLLED,
        "ping-pong",
        Pair { own: ("edge", 1), other: ("tcp-poll", 1), field: "latency_ns", unit: MICROSECONDS },
    ),
    contenders(
        "two links without a rate against one, one-way, worst size",
        Bound::AtLeast(0.97, "x"),
        TWO_LINKS,
        "one-way",
        Pair { own: ("edge", 2), other: ("edge", 1), field: "bytes_per_second", unit: GIGABITS },
    ),
    contenders(
        "same, latency of a ping-pong, worst size",
        Bound::AtMost(1.05, "x"),
        TWO_LINKS,
        "ping-pong",
        Pair { own: ("edge", 2), other: ("edge", 1), field: "latency_ns", unit: MICROSECONDS },
    ),
    Row {
        name: "constants that somebody chose for the sending policy",
        bound: Bound::AtMost(57.0, "constants"),
        bound_quick: None,
        probe: Probe::Constants,
    },
    torture("torture seeds from 0, none failing", FIRST_SEEDS),
    torture("torture seeds from a billion, none failing", FAR_SEEDS),
    torture("torture seeds from 2^62, none failing", FARTHEST_SEEDS),
    Row {
        name: "planted bugs not found within 2000 seeds",
        bound: Bound::AtMost(0.0, "bugs"),
        bound_quick: None,
        probe: Probe::Tests { package: "fabric", chosen: "planted", in_quick: false },
    },
    Row {
        name: "ping-pong 8 B, polled, against another commit (--against)",
        bound: Bound::AtMost(1.02, "x"),
        bound_quick: None,
        probe: Probe::Against {
            arguments: SMALL,
            of: Measurement { test: "ping-pong", transport: "edge" },
            field: "latency_ns",
        },
    },
    Row {
        name: "one-way 1 MiB, against another commit (--against)",
        bound: Bound::AtLeast(0.98, "x"),
        bound_quick: None,
        probe: Probe::Against {
            arguments: LARGE,
            of: Measurement { test: "one-way", transport: "edge" },
            field: "bytes_per_second",
        },
    },
];

/// Expands to arguments of `ethernot bench multiedge` for set-ups, tests and sizes.
macro_rules! multiedge {
    ($setups:literal, $tests:literal, $sizes:literal) => {
        &[
            "bench",
            "multiedge",
            "--bare",
            "--json",
            "{json}",
            "--setups",
            $setups,
            "--tests",
            $tests,
            "--sizes",
            $sizes,
            "--policy",
            "both",
            "--repetitions",
            "{quick:5|9}",
            "--time",
            "{quick:5|30}",
        ]
    };
}

const IN_ORDER: &[&str] = multiedge!("2L-1G", "one-way", "64K,1M");
const ANY_ORDER: &[&str] = multiedge!("2Lu-1G", "one-way", "64K,1M");
const BOTH_WAYS: &[&str] = multiedge!("2L-1G,2Lu-1G", "two-way", "1M");
const DELAYED: &[&str] = multiedge!("1G/20us+1G/2ms", "one-way", "64K,1M");
const UNLIKE_FAST: &[&str] = multiedge!("10G+1G", "one-way", "1M");
const TEN_GIGABIT: &[&str] = multiedge!("1L-10G", "one-way,two-way", "1M");

/// Expands to arguments of `ethernot bench` over links without a rate limit.
macro_rules! bench {
    ($links:literal, $tests:literal, $sizes:literal, $transports:literal, $repetitions:literal, $time:literal) => {
        &[
            "bench",
            "--json",
            "{json}",
            "--links",
            $links,
            "--tests",
            $tests,
            "--sizes",
            $sizes,
            "--transports",
            $transports,
            "--repetitions",
            $repetitions,
            "--time",
            $time,
        ]
    };
}

const POLLED: &[&str] =
    bench!("1", "ping-pong", "4K,16K,64K,256K", "edge,tcp-poll", "{quick:5|11}", "{quick:8|40}");
const TWO_LINKS: &[&str] =
    bench!("2", "ping-pong,one-way", "4K,64K,1M", "edge", "{quick:5|11}", "{quick:10|60}");
const SMALL: &[&str] = bench!("1", "ping-pong", "8", "edge", "3", "2");
const LARGE: &[&str] = bench!("1", "one-way", "1M", "edge", "3", "2");

/// Expands to arguments of `ethernot sim torture`.
macro_rules! seeds {
    ($seeds:literal) => {
        &["sim", "torture", "--seeds", $seeds, "--json", "{json}"]
    };
}

const FIRST_SEEDS: &[&str] = seeds!("{quick:0..200|0..10000}");
const FAR_SEEDS: &[&str] = seeds!("{quick:1000000000..1000000200|1000000000..1000010000}");
const FARTHEST_SEEDS: &[&str] = seeds!(
    "{quick:4611686018427387904..4611686018427388104|4611686018427387904..4611686018427397904}"
);

const MICROSECONDS: Shown = Shown { field: "latency_ns", scale: 1e-3, unit: "us" };
const GIGABITS: Shown = Shown { field: "bytes_per_second", scale: 8e-9, unit: "Gb/s" };

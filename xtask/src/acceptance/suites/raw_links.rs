//! Raw Ethernet, `AF_XDP` and many unequal links, on shaped virtual Ethernet.

use crate::acceptance::{Bound, Figure, Measurement, PointFigure, PointOf, Probe, Row, Shown};

/// A row about a point of `ethernot bench multiedge`.
const fn row(
    name: &'static str,
    bound: Bound,
    arguments: &'static [&'static str],
    point: PointOf,
    figure: PointFigure,
) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Point { arguments, point, figure } }
}

const fn yardstick(
    name: &'static str,
    most: f64,
    arguments: &'static [&'static str],
    to: &'static str,
) -> Row {
    let probe = Probe::Yardstick { arguments, to };
    Row { name, bound: Bound::AtMost(most, "x"), bound_quick: None, probe }
}

const fn one_way(set_up: &'static str) -> PointOf {
    PointOf { set_up, test: "one-way", bytes: 1 << 20 }
}

const fn two_way(set_up: &'static str) -> PointOf {
    PointOf { set_up, test: "two-way", bytes: 1 << 20 }
}

const DISORDER: PointFigure = PointFigure::Field("out_of_order_percent");
const EXTRA: PointFigure = PointFigure::Field("extra_frame_percent");

const fn percent(least: f64) -> Bound {
    Bound::AtLeast(least, "%")
}

pub(super) const ROWS: &[Row] = &[
    yardstick(
        "ping-pong 8 B, AF_XDP polled, against a bare AF_XDP exchange of equal size",
        1.5,
        XDP_SMALL,
        "bare-xdp",
    ),
    yardstick("same, against ucx_perftest ucp_put_lat over TCP", 0.35, XDP_SMALL, "ucx-tcp"),
    yardstick("same, against sockperf ping-pong over TCP", 0.1, XDP_SMALL, "sockperf-tcp"),
    yardstick(
        "ping-pong 8 B, packet link, against a bare AF_PACKET exchange of equal size",
        1.4,
        PACKET_SMALL,
        "bare-packet",
    ),
    row(
        "1L-1G one-way 1 MiB, payload of the links' rate",
        percent(95.0),
        GIGABIT,
        one_way("1L-1G"),
        PointFigure::Share,
    ),
    row(
        "2L-1G one-way 1 MiB, payload of the links' rate",
        percent(95.0),
        GIGABIT,
        one_way("2L-1G"),
        PointFigure::Share,
    ),
    row(
        "2Lu-1G one-way 1 MiB, payload of the links' rate",
        percent(95.0),
        GIGABIT,
        one_way("2Lu-1G"),
        PointFigure::Share,
    ),
    row(
        "2L-1G two-way 1 MiB, payload of the links' rate",
        percent(95.0),
        GIGABIT,
        two_way("2L-1G"),
        PointFigure::Share,
    ),
    row(
        "2Lu-1G two-way 1 MiB, payload of the links' rate",
        percent(95.0),
        GIGABIT,
        two_way("2Lu-1G"),
        PointFigure::Share,
    ),
    row(
        "1L-10G one-way 1 MiB, MTU 9000",
        percent(97.0),
        TEN_GIGABIT,
        one_way("1L-10G-9000"),
        PointFigure::Share,
    ),
    row(
        "1L-10G one-way 1 MiB, MTU 1500",
        percent(92.0),
        TEN_GIGABIT,
        one_way("1L-10G"),
        PointFigure::Share,
    ),
    row(
        "1L-10G two-way 1 MiB, MTU 9000",
        percent(85.0),
        TEN_GIGABIT,
        two_way("1L-10G-9000"),
        PointFigure::Share,
    ),
    row(
        "1L-10G two-way 1 MiB, MTU 1500",
        percent(85.0),
        TEN_GIGABIT,
        two_way("1L-10G"),
        PointFigure::Share,
    ),
    row(
        "1G+100M one-way 1 MiB, payload of the sum",
        percent(95.0),
        UNLIKE,
        one_way("1G+100M"),
        PointFigure::Share,
    ),
    row(
        "10G+1G one-way 1 MiB, payload of the sum",
        percent(95.0),
        UNLIKE_FAST,
        one_way("10G+1G"),
        PointFigure::Share,
    ),
    row(
        "1G/20us+1G/2ms one-way 1 MiB, payload of the sum",
        percent(95.0),
        DELAYED,
        one_way("1G/20us+1G/2ms"),
        PointFigure::ShareWithDelay { without: "2L-1G" },
    ),
    row("extra frames, 2Lu-1G one-way", Bound::AtMost(2.0, "%"), GIGABIT, one_way("2Lu-1G"), EXTRA),
    row(
        "extra frames, 1G+100M one-way",
        Bound::AtMost(2.0, "%"),
        UNLIKE,
        one_way("1G+100M"),
        EXTRA,
    ),
    row(
        "out of order, 2L-1G one-way",
        Bound::AtMost(15.0, "%"),
        GIGABIT,
        one_way("2L-1G"),
        DISORDER,
    ),
    failover("one of two links cut: writes lost or corrupted", "", 0.0, &["lost", "corrupted"]),
    failover("one of two links cut: below 80 % of the remaining rate", "ms", 50.0, &["gap_ms"]),
    failover("one of two links cut: back after restoration", "ms", 1000.0, &["back_ms"]),
    Row {
        name: "two processes, shm link, 8 B ping-pong",
        bound: Bound::AtMost(500.0, "ns"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SHARED_MEMORY_SMALL,
            of: Measurement { test: "ping-pong", transport: "shm" },
            figure: Figure::Median { shown: NANOSECONDS, beside: None },
        },
    },
    Row {
        name: "two processes, shm link, 1 MiB stream against memcpy",
        bound: Bound::AtLeast(0.8, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SHARED_MEMORY_LARGE,
            of: Measurement { test: "one-way", transport: "shm" },
            figure: Figure::RatioTo { transport: "memcpy", of: "throughput", shown: RATE },
        },
    },
    row(
        "1 % loss on a 1 Gb/s link: goodput against no loss",
        Bound::AtLeast(0.95, "x"),
        LOSSY,
        one_way("1L-1G-loss1"),
        PointFigure::ThroughputTo { set_up: "1L-1G", contender: "edge" },
    ),
    row(
        "same, against kernel TCP under 1 % loss",
        Bound::AtLeast(1.0, "x"),
        LOSSY,
        one_way("1L-1G-loss1"),
        PointFigure::ThroughputTo { set_up: "1L-1G-loss1", contender: "tcp" },
    ),
    row(
        "5 % loss on a 1 Gb/s link: goodput against no loss",
        Bound::AtLeast(0.85, "x"),
        LOSSY,
        one_way("1L-1G-loss5"),
        PointFigure::ThroughputTo { set_up: "1L-1G", contender: "edge" },
    ),
    row(
        "same, against kernel TCP under 5 % loss",
        Bound::AtLeast(1.0, "x"),
        LOSSY,
        one_way("1L-1G-loss5"),
        PointFigure::ThroughputTo { set_up: "1L-1G-loss5", contender: "tcp" },
    ),
    Row {
        name: "simulated day of link churn without a violation",
        bound: Bound::AtLeast(24.0, "h"),
        bound_quick: Some(Bound::AtLeast(0.0, "h")),
        probe: Probe::AllSucceed { arguments: CHURN, count: "/hours" },
    },
];

const fn failover(
    name: &'static str,
    unit: &'static str,
    most: f64,
    fields: &'static [&'static str],
) -> Row {
    Row {
        name,
        bound: Bound::AtMost(most, unit),
        bound_quick: None,
        probe: Probe::WorstCut { arguments: FAILOVER, fields },
    }
}

const XDP_SMALL: &[&str] =
    &["bench", "yardsticks", "--link", "xdp", "--repetitions", "{quick:3|7}", "--json", "{json}"];
const PACKET_SMALL: &[&str] = &[
    "bench",
    "yardsticks",
    "--link",
    "packet",
    "--repetitions",
    "{quick:3|7}",
    "--json",
    "{json}",
];
const GIGABIT: &[&str] = &[
    "bench",
    "multiedge",
    "--bare",
    "--json",
    "{json}",
    "--setups",
    "1L-1G,2L-1G,2Lu-1G",
    "--tests",
    "one-way,two-way",
    "--sizes",
    "1M",
    "--policy",
    "both",
    "--repetitions",
    "{quick:7|9}",
    "--time",
    "{quick:16|60}",
];
const TEN_GIGABIT: &[&str] = &[
    "bench",
    "multiedge",
    "--bare",
    "--json",
    "{json}",
    "--setups",
    "1L-10G,1L-10G-9000",
    "--tests",
    "one-way,two-way",
    "--sizes",
    "1M",
    "--policy",
    "own",
    "--repetitions",
    "{quick:7|9}",
    "--time",
    "{quick:16|60}",
];
const UNLIKE: &[&str] = &[
    "bench",
    "multiedge",
    "--bare",
    "--json",
    "{json}",
    "--setups",
    "1G+100M",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "both",
    "--repetitions",
    "{quick:7|9}",
    "--time",
    "{quick:16|60}",
];
const UNLIKE_FAST: &[&str] = &[
    "bench",
    "multiedge",
    "--bare",
    "--json",
    "{json}",
    "--setups",
    "10G+1G",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "both",
    "--repetitions",
    "{quick:7|9}",
    "--time",
    "{quick:16|60}",
];
const DELAYED: &[&str] = &[
    "bench",
    "multiedge",
    "--bare",
    "--json",
    "{json}",
    "--setups",
    "2L-1G,1G/20us+1G/2ms",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "both",
    "--repetitions",
    "{quick:5|7}",
    "--time",
    "{quick:10|40}",
];
const LOSSY: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--setups",
    "1L-1G,1L-1G-loss1,1L-1G-loss5",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "own",
    "--repetitions",
    "{quick:5|7}",
    "--time",
    "{quick:10|40}",
];
const FAILOVER: &[&str] = &["bench", "failover", "--phase", "{quick:0.8|1.5}", "--json", "{json}"];
/// Arguments of a run over shared memory. Uses loopback, because the processes must be in one
/// network namespace.
const SHARED_MEMORY_SMALL: &[&str] = &[
    "bench",
    "--loopback",
    "--links",
    "1",
    "--tests",
    "ping-pong",
    "--sizes",
    "8",
    "--transports",
    "shm",
    "--repetitions",
    "{quick:5|9}",
    "--time",
    "{quick:5|20}",
    "--json",
    "{json}",
];
const SHARED_MEMORY_LARGE: &[&str] = &[
    "bench",
    "--loopback",
    "--links",
    "1",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--transports",
    "shm,memcpy",
    "--repetitions",
    "{quick:5|9}",
    "--time",
    "{quick:8|30}",
    "--json",
    "{json}",
];
const NANOSECONDS: Shown = Shown { field: "latency_ns", scale: 1.0, unit: "ns" };
const RATE: Shown = Shown { field: "bytes_per_second", scale: 8e-9, unit: "Gb/s" };
const CHURN: &[&str] = &["sim", "churn", "--hours", "{quick:1|24}", "--json", "{json}"];

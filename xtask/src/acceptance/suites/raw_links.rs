//! Raw Ethernet, `AF_XDP` and many unequal links, on shaped virtual Ethernet.

use crate::acceptance::{Bound, PointFigure, PointOf, Probe, Row};

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

const fn one_way(set_up: &'static str) -> PointOf {
    PointOf { set_up, test: "one-way", bytes: 1 << 20 }
}

const fn two_way(set_up: &'static str) -> PointOf {
    PointOf { set_up, test: "two-way", bytes: 1 << 20 }
}

const PING_PONG: PointOf = PointOf { set_up: "direct", test: "ping-pong", bytes: 8 };
const DISORDER: PointFigure = PointFigure::Field("out_of_order_percent");
const EXTRA: PointFigure = PointFigure::Field("extra_frame_percent");

const fn percent(least: f64) -> Bound {
    Bound::AtLeast(least, "%")
}

pub(super) const ROWS: &[Row] = &[
    row(
        "ping-pong 8 B, AF_XDP polled, against a bare AF_XDP exchange of equal size",
        Bound::AtMost(1.5, "x"),
        XDP_SMALL,
        PING_PONG,
        PointFigure::RatioTo("bare-xdp"),
    ),
    row(
        "same, against ucx_perftest ucp_put_lat over TCP",
        Bound::AtMost(0.35, "x"),
        XDP_SMALL,
        PING_PONG,
        PointFigure::RatioTo("ucx-tcp"),
    ),
    row(
        "same, against sockperf ping-pong over TCP",
        Bound::AtMost(0.1, "x"),
        XDP_SMALL,
        PING_PONG,
        PointFigure::RatioTo("sockperf-tcp"),
    ),
    row(
        "ping-pong 8 B, packet link, against a bare AF_PACKET exchange of equal size",
        Bound::AtMost(1.4, "x"),
        PACKET_SMALL,
        PING_PONG,
        PointFigure::RatioTo("bare-packet"),
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
        one_way("1L-10G-jumbo"),
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
        two_way("1L-10G-jumbo"),
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
        PointFigure::Share,
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
    failover("one of two links cut: writes lost or corrupted", "", 0.0, "/worst/bad_operations"),
    failover("one of two links cut: below 80 % of the remaining rate", "ms", 50.0, "/worst/gap_ms"),
    failover("one of two links cut: back after restoration", "ms", 1000.0, "/worst/back_ms"),
    Row {
        name: "two processes, shm link, 8 B ping-pong",
        bound: Bound::AtMost(500.0, "ns"),
        bound_quick: None,
        probe: Probe::Number { arguments: SHARED_MEMORY, pointer: "/ping_pong_ns" },
    },
    Row {
        name: "two processes, shm link, 1 MiB stream against memcpy",
        bound: Bound::AtLeast(0.8, "x"),
        bound_quick: None,
        probe: Probe::Number { arguments: SHARED_MEMORY, pointer: "/stream_to_memcpy" },
    },
    row(
        "1 % loss on a 1 Gb/s link: goodput against no loss",
        Bound::AtLeast(0.95, "x"),
        LOSSY,
        one_way("1L-1G-loss1"),
        PointFigure::RatioTo("1L-1G-wire"),
    ),
    row(
        "same, against kernel TCP under 1 % loss",
        Bound::AtLeast(1.0, "x"),
        LOSSY,
        one_way("1L-1G-loss1"),
        PointFigure::RatioTo("tcp"),
    ),
    row(
        "5 % loss on a 1 Gb/s link: goodput against no loss",
        Bound::AtLeast(0.85, "x"),
        LOSSY,
        one_way("1L-1G-loss5"),
        PointFigure::RatioTo("1L-1G-wire"),
    ),
    row(
        "same, against kernel TCP under 5 % loss",
        Bound::AtLeast(1.0, "x"),
        LOSSY,
        one_way("1L-1G-loss5"),
        PointFigure::RatioTo("tcp"),
    ),
    Row {
        name: "simulated day of link churn without a violation",
        bound: Bound::AtLeast(24.0, "h"),
        bound_quick: Some(Bound::AtLeast(0.0, "h")),
        probe: Probe::AllSucceed { arguments: CHURN, count: "/hours" },
    },
];

const fn failover(name: &'static str, unit: &'static str, most: f64, pointer: &'static str) -> Row {
    Row {
        name,
        bound: Bound::AtMost(most, unit),
        bound_quick: None,
        probe: Probe::Number { arguments: FAILOVER, pointer },
    }
}

const XDP_SMALL: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--link",
    "xdp",
    "--set-ups",
    "direct",
    "--tests",
    "ping-pong",
    "--sizes",
    "8",
    "--policy",
    "own",
    "--yardsticks",
    "--repetitions",
    "{quick:3|5}",
];
const PACKET_SMALL: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--link",
    "packet",
    "--set-ups",
    "direct",
    "--tests",
    "ping-pong",
    "--sizes",
    "8",
    "--policy",
    "own",
    "--yardsticks",
    "--repetitions",
    "{quick:3|5}",
];
const GIGABIT: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "1L-1G,2L-1G,2Lu-1G",
    "--tests",
    "one-way,two-way",
    "--sizes",
    "1M",
    "--policy",
    "own,multiedge",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const TEN_GIGABIT: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "1L-10G,1L-10G-jumbo",
    "--tests",
    "one-way,two-way",
    "--sizes",
    "1M",
    "--policy",
    "own",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const UNLIKE: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "1G+100M",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "own,multiedge",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const UNLIKE_FAST: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "10G+1G",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "own,multiedge",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const DELAYED: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "1G/20us+1G/2ms",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "own,multiedge",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const LOSSY: &[&str] = &[
    "bench",
    "multiedge",
    "--json",
    "{json}",
    "--set-ups",
    "1L-1G-wire,1L-1G-loss1,1L-1G-loss5",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--policy",
    "own",
    "--repetitions",
    "{quick:3|5}",
    "--seconds",
    "{quick:0.3|1}",
];
const FAILOVER: &[&str] = &["bench", "failover", "{quick:--quick|--mtu=1500}", "--json", "{json}"];
const SHARED_MEMORY: &[&str] = &["bench", "shm", "--json", "{json}"];
const CHURN: &[&str] = &["sim", "churn", "--hours", "{quick:1|24}", "--json", "{json}"];

//! Compares every speed figure with one fixed commit. Comparisons with the previous commit would
//! not show many small losses that add up.

use crate::acceptance::against::{At, Figure};
use crate::acceptance::{Bound, Measurement, Probe, Row};

/// The commit at which these figures were best.
pub(super) const SINCE: &str = "5ef3e76d";

/// A row about one of [`FIGURES`].
const fn row(name: &'static str, figure: &'static [Figure]) -> Row {
    let bound = Bound::AtLeast(1.0, "x");
    Row { name, bound, bound_quick: None, probe: Probe::AgainstEach(figure) }
}

const fn figure(
    name: &'static str,
    arguments: &'static [&'static str],
    of: Measurement,
    field: &'static str,
) -> Figure {
    let at = At::Entry(of, field);
    Figure { name, arguments, at, more_is_better: true }
}

const fn latency(name: &'static str, arguments: &'static [&'static str], at: At) -> Figure {
    Figure { name, arguments, at, more_is_better: false }
}

const fn of(test: &'static str, transport: &'static str) -> Measurement {
    Measurement { test, transport }
}

pub(super) const UDP: &[Figure] =
    &[latency("ping-pong 8 B udp", &PING_PONG, At::Entry(of("ping-pong", "edge"), "latency_ns"))];
const SHM: &[Figure] =
    &[latency("ping-pong 8 B shm", &SHARED, At::Entry(of("ping-pong", "shm"), "latency_ns"))];
const XDP: &[Figure] =
    &[latency("ping-pong 8 B xdp", &EXPRESS, At::Pointer("/latency_ns/edge/median"))];
const ONE_WAY_64K: &[Figure] =
    &[figure("one-way 64 KiB", &ONE_WAY_SMALL, of("one-way", "edge"), RATE)];
pub(super) const ONE_WAY_1M: &[Figure] =
    &[figure("one-way 1 MiB", &ONE_WAY_LARGE, of("one-way", "edge"), RATE)];
const TWO_WAY_64K: &[Figure] =
    &[figure("two-way 64 KiB", &TWO_WAY_SMALL, of("two-way", "edge"), RATE)];
const TWO_WAY_1M: &[Figure] =
    &[figure("two-way 1 MiB", &TWO_WAY_LARGE, of("two-way", "edge"), RATE)];
const MESSAGES: &[Figure] = &[figure(
    "messages of 8 B a second",
    &OPERATIONS,
    of("operation-rate", "edge"),
    "operations_per_second",
)];

/// All speed figures, measured alternately for both commits.
pub(super) const FIGURES: &[Figure] = &[
    UDP[0],
    SHM[0],
    XDP[0],
    ONE_WAY_64K[0],
    ONE_WAY_1M[0],
    TWO_WAY_64K[0],
    TWO_WAY_1M[0],
    MESSAGES[0],
];

pub(super) const ROWS: &[Row] = &[
    row("ping-pong 8 B over UDP, polled: time at 5ef3e76 against now", UDP),
    row("ping-pong 8 B over shared memory, polled: the same", SHM),
    row("ping-pong 8 B over AF_XDP, polled: the same", XDP),
    row("one-way 64 KiB, polled: rate now against 5ef3e76", ONE_WAY_64K),
    row("one-way 1 MiB, polled: the same", ONE_WAY_1M),
    row("two-way 64 KiB, polled: the same", TWO_WAY_64K),
    row("two-way 1 MiB, polled: the same", TWO_WAY_1M),
    row("messages of 8 B a second, 64 in flight: the same", MESSAGES),
    // The commit [`SINCE`] has no libraries for verbs programs, so no row compares verbs programs
    // with that commit. The speed of verbs programs depends on the figures above.
    perftest(
        "ib_write_lat 8 B against the native ping-pong in turn, latency",
        Bound::AtMost(1.3, "x"),
        "latency of writes against native",
        "latency_of_writes",
    ),
    perftest(
        "ib_write_bw 64 KiB against iperf3 over TCP in turn, rate",
        Bound::AtLeast(1.2, "x"),
        "throughput of writes of 64 KiB against TCP",
        "throughput_of_writes",
    ),
    perftest(
        "ib_write_bw 1 MiB, the same",
        Bound::AtLeast(1.2, "x"),
        "throughput of writes of 1 MiB against TCP",
        "throughput_of_writes",
    ),
    perftest(
        "ib_write_bw 8 B, messages a second",
        Bound::AtLeast(0.7, "million/s"),
        "rate of small writes",
        "rate_of_small_writes",
    ),
];

const fn perftest(
    name: &'static str,
    bound: Bound,
    figure: &'static str,
    part: &'static str,
) -> Row {
    super::printed(name, bound, figure, super::tests("programs", "--test=speeds", part))
}

const RATE: &str = "bytes_per_second";

/// A figure of `ethernot bench` on one link. Both ends poll, and each round takes a few seconds.
const fn bench(
    path: &'static [&'static str; 2],
    test: &'static str,
    bytes: &'static str,
    transport: &'static str,
) -> [&'static str; 17] {
    let [links, number] = *path;
    [
        "bench",
        links,
        number,
        "--mtu",
        "1500",
        "--tests",
        test,
        "--sizes",
        bytes,
        "--transports",
        transport,
        "--repetitions",
        "5",
        "--time",
        "{quick:1|3}",
        "--json",
        "{json}",
    ]
}

const ONE_LINK: &[&str; 2] = &["--links", "1"];
const PING_PONG: [&str; 17] = bench(ONE_LINK, "ping-pong", "8", "edge");
const ONE_WAY_SMALL: [&str; 17] = bench(ONE_LINK, "one-way", "64K", "edge");
const ONE_WAY_LARGE: [&str; 17] = bench(ONE_LINK, "one-way", "1M", "edge");
const TWO_WAY_SMALL: [&str; 17] = bench(ONE_LINK, "two-way", "64K", "edge");
const TWO_WAY_LARGE: [&str; 17] = bench(ONE_LINK, "two-way", "1M", "edge");
const OPERATIONS: [&str; 17] = bench(ONE_LINK, "operation-rate", "8", "edge");

/// Arguments of a run over shared memory. Uses loopback, because the processes must be in one
/// network namespace.
const SHARED: [&str; 16] = [
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
    "5",
    "--time",
    "{quick:1|3}",
    "--json",
    "{json}",
];
const EXPRESS: [&str; 10] = [
    "bench",
    "yardsticks",
    "--link",
    "xdp",
    "--repetitions",
    "5",
    "--time",
    "{quick:1|3}",
    "--json",
    "{json}",
];

//! Unmodified RDMA programs over the libraries: that they run, and how fast.

use super::{printed, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// Tests of programs of which none may fail.
const fn none_fails(name: &'static str, chosen: &'static str, in_quick: bool) -> Row {
    super::none_fails(name, "programs", chosen, in_quick)
}

pub(super) const ROWS: &[Row] = &[
    printed(
        "names of rdma-core 44 that the library lacks",
        Bound::AtMost(0.0, "names"),
        "names that are missing",
        tests("libibverbs-abi", "--test=names", "no_name_of_the_systems_libraries_is_missing"),
    ),
    printed(
        "symbols that installed clients do not find (`ldd -r`)",
        Bound::AtMost(0.0, "symbols"),
        "symbols that clients do not find",
        tests("libibverbs-abi", "--test=names", "programs_and_modules_of_the_system_load"),
    ),
    none_fails("ibv_devices, ibv_devinfo -v, ibv_asyncwatch", "--test=devices", true),
    none_fails(
        "ibv_rc/uc/ud/srq_pingpong, polled and with events, 1 B to 1 MiB, each GID, loopback and namespaces",
        "--test=pingpongs",
        true,
    ),
    none_fails(
        "perftest: write, read, send, atomic, bandwidth and latency, RC, UC, UD, -a -e -b -q 16 --use-srq",
        "--test=perftest",
        false,
    ),
    printed(
        "tests of pyverbs' own suite that pass, none failing",
        Bound::AtLeast(105.0, "tests"),
        "tests of pyverbs that pass",
        tests("programs", "--test=pyverbs", "the_suite_of_pyverbs"),
    ),
    printed(
        "ib_send_lat 8 B against the native ping-pong, medians, between namespaces, in turn",
        Bound::AtMost(1.25, "x"),
        "latency of sends against native",
        tests("programs", "--test=speeds", "latency_of_sends"),
    ),
    printed(
        "ib_write_lat 8 B against the same",
        Bound::AtMost(1.3, "x"),
        "latency of writes against native",
        tests("programs", "--test=speeds", "latency_of_writes"),
    ),
    printed(
        "same, 99.9 %",
        Bound::AtMost(300.0, "us"),
        "latency of writes, 99.9 %",
        tests("programs", "--test=speeds", "latency_of_writes"),
    ),
    printed(
        "ib_write_bw 64 KiB against iperf3 over TCP, between the same namespaces, in turn",
        Bound::AtLeast(1.2, "x"),
        "throughput of writes of 64 KiB against TCP",
        tests("programs", "--test=speeds", "throughput_of_writes"),
    ),
    printed(
        "same, 1 MiB",
        Bound::AtLeast(1.2, "x"),
        "throughput of writes of 1 MiB against TCP",
        tests("programs", "--test=speeds", "throughput_of_writes"),
    ),
    printed(
        "ib_write_bw 8 B, one queue pair, UDP",
        Bound::AtLeast(0.7, "million/s"),
        "rate of small writes",
        tests("programs", "--test=speeds", "rate_of_small_writes"),
    ),
    none_fails(
        "64 processes of 64 queue pairs, fork, unloading, exit, kill -9 in mid-transfer, signals",
        "--test=processes",
        true,
    ),
    Row {
        name: "eight programs over links that lose 1 %, repeat 1 % and reorder 5 %: runs, none failing",
        bound: Bound::AtLeast(160.0, "runs"),
        bound_quick: None,
        probe: Probe::Printed {
            tests: Tests {
                package: "programs",
                target: "--test=faults",
                part: "eight_programs_pass_twenty_times",
                part_quick: None,
            },
            name: "runs over links with faults",
        },
    },
];

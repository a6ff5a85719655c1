//! Faults that were found from outside, of engine, verbs, the API, discovery and the simulator: that they
//! are mended and stay so. Each part has its rows under its name.

use super::{none_fails, printed, reproducible, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// How long calls over the byte stream take against the same over TCP, which is only told.
const fn streamed(name: &'static str, figure: &'static str) -> Row {
    let bound = Bound::AtMost(1000.0, "x");
    printed(name, bound, figure, tests("ethernot", "--test=stream_against_tcp", "calls_over"))
}

pub(super) const ROWS: &[Row] = &[
    // Engine and queue pairs.
    printed(
        "verbs: latency beside 4000 queue pairs in RNR, to that before they wait",
        Bound::AtMost(1.5, "x"),
        "latency beside queue pairs in RNR",
        tests("verbs", "--test=latency_beside", "beside_queue_pairs"),
    ),
    printed(
        "verbs: latency beside 500 peers that take nothing, to that before work is posted to them",
        Bound::AtMost(1.5, "x"),
        "latency beside peers that take nothing",
        tests("verbs", "--test=latency_beside", "beside_peers"),
    ),
    none_fails(
        "verbs: queue pairs that wait for receives, and one that works",
        "verbs",
        "--test=waiting_pairs",
        true,
    ),
    Row {
        name: "verbs: last messages of 64 B lost before a disconnect, destroy or exit, UDP and shm, of 1000 each (quick: 50)",
        bound: Bound::AtMost(0.0, "messages"),
        bound_quick: None,
        probe: Probe::Printed {
            tests: Tests {
                package: "verbs",
                target: "--test=last_messages",
                part: "a_thousand_last_messages",
                part_quick: Some("last_messages_before"),
            },
            name: "last messages lost before an end",
        },
    },
    // The API.
    none_fails(
        "hyper and tonic over the byte stream, two namespaces: every answer whole",
        "ethernot",
        "--test=stream_against_tcp",
        true,
    ),
    streamed(
        "same, hyper, 64 B both ways: time against TCP (only told)",
        "hyper over the stream, 64 B both ways, time against TCP",
    ),
    streamed(
        "same, hyper, 1 MiB both ways: time against TCP (only told)",
        "hyper over the stream, 1048576 B both ways, time against TCP",
    ),
    streamed(
        "same, tonic, 64 B both ways: time against TCP (only told)",
        "tonic over the stream, 64 B both ways, time against TCP",
    ),
    streamed(
        "same, tonic, 1 MiB both ways: time against TCP (only told)",
        "tonic over the stream, 1048576 B both ways, time against TCP",
    ),
    // The simulator.
    reproducible(
        "simulator: equal senders into a full buffer, mean share over 20 seeds off from equal",
        Bound::AtMost(5.0, "%"),
        "equal senders off a half",
        tests("interconnect", "--test=transport", "equal_senders_have_equal_shares"),
    ),
    reproducible(
        "simulator: networks on which two seeds have the same result, of 5",
        Bound::AtMost(0.0, "networks"),
        "equal results of two seeds",
        tests("interconnect", "--test=transport", "results_depend_on_the_seed"),
    ),
    // Being found, and found out.
    none_fails(
        "Mooncake and NIXL from wheels, two namespaces, no settings: by RDMA, no line of error",
        "programs",
        "--test=transfer_engines",
        true,
    ),
    none_fails(
        "files of a device by tools, links and `..`, netlink of RDMA",
        "ethernot-cli",
        "--test=verbs_programs tell",
        true,
    ),
    none_fails(
        "captures of programs over links, shared memory and the connection manager: tshark decodes every frame",
        "ethernot-cli",
        "--test=verbs_programs captured::",
        true,
    ),
    none_fails("the suite of pyverbs", "programs", "--test=pyverbs", true),
    none_fails(
        "several devices: interfaces, programs, connection manager, statistics, capture",
        "ethernot-cli",
        "--test=verbs_programs devices::",
        true,
    ),
    none_fails(
        "package, tree and tarball, built for the GNU C library 2.28, on a host with nothing else",
        "programs",
        "--test=packages",
        true,
    ),
];

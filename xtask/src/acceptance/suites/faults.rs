//! Checks that faults which users reported in the engine, verbs, the API, discovery and the
//! simulator do not return. The comments between the rows name these parts.

use super::speed::{ONE_WAY_1M, UDP};
use super::{as_quick, none_fails, printed, reproducible, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::repeated::Tests as Repeated;
use crate::acceptance::{Bound, Probe, Row};

/// A row about the time of calls over the byte stream divided by the time of calls over TCP. Every
/// plausible ratio meets the bound, so the row only records the ratio.
const fn streamed(name: &'static str, figure: &'static str) -> Row {
    let bound = Bound::AtMost(1000.0, "x");
    printed(name, bound, figure, tests("ethernot", "--test=stream_against_tcp", "calls_over"))
}

/// A row about tests that run 100 times, or 5 times in a quick run.
const fn repeated(name: &'static str, tests: Repeated) -> Row {
    let probe = Probe::Repeated { tests, times_quick: 5, times_full: 100 };
    Row { name, bound: Bound::AtMost(0.0, "runs that fail"), bound_quick: None, probe }
}

/// A row about seeds of the torture (random faults in the simulator), none of which may fail.
const fn torture(name: &'static str, arguments: &'static [&'static str]) -> Row {
    Row {
        name,
        bound: Bound::AtLeast(50_000.0, "seeds"),
        bound_quick: Some(Bound::AtLeast(500.0, "seeds")),
        probe: Probe::AllSucceed { arguments, count: "/seeds" },
    }
}

/// A figure of perftest compared with the commit of `--against`.
pub(super) const fn perftest_against(figure: &'static str) -> Probe {
    let tests = Tests {
        package: "programs",
        target: "--test=speeds",
        part: "writes_against_another_commit",
        part_quick: None,
    };
    Probe::AgainstPrinted { tests, name: figure }
}

/// A row about the torture of connections.
pub(super) const fn torture_of_transfers() -> Row {
    let arguments = &["sim", "torture", "--seeds", SEEDS, "--json", "{json}"];
    torture("torture seeds, none failing", arguments)
}

/// A row about the torture of queue pairs.
pub(super) const fn torture_of_pairs() -> Row {
    let arguments = &["sim", "torture", "--queue-pairs", "--seeds", SEEDS, "--json", "{json}"];
    torture("torture seeds of queue pairs, none failing", arguments)
}

/// The commit in which these faults were found.
pub(super) const BEFORE: &str = "5089d955";

const SEEDS: &str = "{quick:0..500|0..50000}";

pub(super) const ROWS: &[Row] = &[
    // Tests that contain the programs with which users showed the faults.
    repeated(
        "100 times: queue pairs that wait, receives of several pieces, strangers",
        Repeated::Cargo {
            package: "verbs-edge",
            targets: &["--test=waiting_pairs", "--test=strangers"],
            names: &[
                "queue_pairs_waiting_for_receives_block_no_other_from_sending",
                "receives_with_several_sges_do_not_block_messages_with_sges",
                "the_claimed_address_of_a_greeting_is_ignored",
            ],
        },
    ),
    repeated(
        "100 times: armed queues, public fields, last messages before `_exit`, programs in C",
        Repeated::Cargo {
            package: "programs",
            targets: &["--test=processes"],
            names: &[
                "queues_armed_with_pending_completions_raise_events",
                "acknowledged_events_are_counted_in_public_fields",
                "work_posted_right_before_an_exit_without_handlers_arrives",
            ],
        },
    ),
    repeated(
        "100 times: Mooncake finds the device and uses it",
        Repeated::Cargo {
            package: "programs",
            targets: &["--test=transfer_engines"],
            names: &["mooncake_discovers_and_uses_the_device"],
        },
    ),
    repeated(
        "100 times: the Rust API, dropped regions and endpoints, forks, shut-down and silent peers, room, messages",
        Repeated::Cargo {
            package: "ethernot",
            targets: &[
                "--test=dropped_regions",
                "--test=failures",
                "--test=messages",
                "--test=misuse",
                "--test=room",
            ],
            names: &[
                "a_read_continues_after_its_region_is_dropped",
                "a_write_and_a_message_continue_after_their_regions_are_dropped",
                "connecting_to_a_peer_that_never_accepts_times_out",
                "a_message_longer_than_its_receive_ends_the_connection",
                "messages_of_any_length_are_sent_and_received_without_registration",
                "an_endpoint_that_was_shut_down_makes_no_connection",
                "a_forked_child_drops_memory_while_a_thread_of_its_parent_uses_the_table",
                "more_tasks_than_there_is_room_for_all_post_eventually",
                "dropping_the_last_endpoint_does_not_wait_for_a_silent_peer",
            ],
        },
    ),
    repeated(
        "100 times: a client that computes keeps its connection",
        Repeated::Cargo {
            package: "engine",
            targets: &["--test=keep_alive"],
            names: &[
                "a_client_that_computes_after_a_read_keeps_its_connection_as_an_idle_client_does",
            ],
        },
    ),
    repeated(
        "100 times: Python, memory that is collected, attempts that are given up, Ctrl-C",
        Repeated::Python {
            names: &[
                "test_memory_of_a_cancelled_task_is_freed",
                "test_memory_outlives_its_views_and_its_registration",
                "test_connecting_and_accepting_can_be_cancelled",
                "test_ctrl_c_interrupts_a_wait",
                "test_ctrl_c_interrupts_connecting_and_accepting",
            ],
        },
    ),
    repeated(
        "100 times: two equal senders of the simulator",
        Repeated::Cargo {
            package: "interconnect",
            targets: &["--test=transport"],
            names: &["equal_senders_have_equal_shares_of_a_full_buffer"],
        },
    ),
    // The torture (random faults in the simulator) finds bugs that are planted in the engine.
    none_fails(
        "planted bugs not found within 2000 seeds: records without shares, numbers used again, strangers that are believed",
        "fabric",
        "torture::planted",
        false,
    ),
    // Rows about the engine and queue pairs.
    printed(
        "verbs: latency beside 4000 queue pairs in RNR, to that before they wait",
        Bound::AtMost(1.5, "x"),
        "latency beside queue pairs in RNR",
        tests("verbs-edge", "--test=latency_beside", "beside_queue_pairs"),
    ),
    printed(
        "verbs: latency beside 500 peers that take nothing, to that before work is posted to them",
        Bound::AtMost(1.5, "x"),
        "latency beside peers that take nothing",
        tests("verbs-edge", "--test=latency_beside", "beside_peers"),
    ),
    none_fails(
        "verbs: queue pairs that wait for receives, and one that works",
        "verbs-edge",
        "--test=waiting_pairs",
        true,
    ),
    Row {
        name: "verbs: last messages of 64 B lost before a disconnect, destroy or exit, UDP and shm, of 1000 each (quick: 50)",
        bound: Bound::AtMost(0.0, "messages"),
        bound_quick: None,
        probe: Probe::Printed {
            tests: Tests {
                package: "verbs-edge",
                target: "--test=last_messages",
                part: "a_thousand_last_messages",
                part_quick: Some("last_messages_before"),
            },
            name: "last messages lost before an end",
        },
    },
    // Rows about the public API.
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
    // Rows about the simulator.
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
    // Rows about discovery: how programs find devices, and what they can read about devices.
    none_fails(
        "Mooncake and NIXL from wheels, two namespaces, no settings: by RDMA, no line of error",
        "programs",
        "--test=transfer_engines",
        true,
    ),
    none_fails(
        "files of a device by tools, links and `..`, netlink of RDMA",
        "ethernot-cli",
        "--test=verbs_programs describe",
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
    // Rows about speed, compared with the commit in which the faults were found.
    as_quick("8 B ping-pong over UDP, polled, against another commit", Probe::AgainstEach(UDP)),
    as_quick("one-way 1 MiB, polled, against another commit", Probe::AgainstEach(ONE_WAY_1M)),
    as_quick(
        "ib_write_lat 8 B against another commit",
        perftest_against("speed of ib_write_lat against another commit"),
    ),
    as_quick(
        "ib_write_bw 64 KiB against another commit",
        perftest_against("speed of ib_write_bw of 64 KiB against another commit"),
    ),
    as_quick(
        "ib_write_bw 1 MiB against another commit",
        perftest_against("speed of ib_write_bw of 1 MiB against another commit"),
    ),
    // The random faults include stuck queue pairs, many peers, false data from hosts that are not
    // peers, and frames that drivers reject. These rows are last, because each of them takes an
    // hour on two processors.
    torture_of_transfers(),
    torture_of_pairs(),
];

//! Queue pairs: whether they follow the rules of verbs, and the cost of these rules.

use super::engine_structure::{in_flight_against, one_way_against, ping_pong_against};
use super::{printed, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "torture in queue-pair mode, seeds from 0, none failing",
        bound: Bound::AtLeast(50_000.0, "seeds"),
        bound_quick: Some(Bound::AtLeast(500.0, "seeds")),
        probe: Probe::AllSucceed {
            arguments: &[
                "sim",
                "torture",
                "--queue-pairs",
                "--seeds",
                "{quick:0..500|0..50000}",
                "--json",
                "{json}",
            ],
            count: "/seeds",
        },
    },
    Row {
        name: "planted bugs not found within 2000 seeds",
        bound: Bound::AtMost(0.0, "bugs"),
        bound_quick: None,
        probe: Probe::Tests { package: "fabric", chosen: "torture::planted", in_quick: false },
    },
    printed(
        "bad key at operation k of 100 in flight, two links, 5 % loss: k-1 succeed, one remote access error, rest flushed",
        Bound::AtLeast(1000.0, "seeds"),
        "bad keys in their order",
        tests("engine", "--test=queue_pairs", "a_bad_key_fails_its_operation_and_no_earlier_one"),
    ),
    Row {
        name: "message delivered, connection destroyed at once by the receiver: the sender's completions are successes",
        bound: Bound::AtLeast(10_000.0, "times"),
        bound_quick: Some(Bound::AtLeast(1000.0, "times")),
        probe: Probe::Printed {
            tests: Tests {
                package: "engine",
                target: "--test=closing",
                part: "a_receiver_that_closes_at_once_after_the_last_message_fails_none_of_ten_thousand",
                part_quick: Some(
                    "a_receiver_that_closes_at_once_after_the_last_message_does_not_fail_it",
                ),
            },
            name: "delivered before the close",
        },
    },
    printed(
        "one shared receive queue, 1000 connections, bursts beyond its receives: starved connections and lost messages",
        Bound::AtMost(0.0, "of them"),
        "starved or lost",
        tests("engine", "--test=queue_pairs", "no_connection_of_a_thousand_starves"),
    ),
    printed(
        "same, never empty: time against receives of each connection's own, two engines in one thread",
        Bound::AtMost(1.2, "x"),
        "shared against own receives",
        tests("engine", "--test=speeds", "shared_receives_against_own_ones"),
    ),
    printed(
        "1 MiB from 16 uneven pieces against one piece, throughput, UDP over loopback, one thread",
        Bound::AtLeast(0.9, "x"),
        "sixteen pieces against one",
        tests("runtime", "--test=speeds", "sixteen_uneven_pieces_against_one"),
    ),
    printed(
        "peer killed while idle: noticed over UDP between namespaces",
        Bound::AtMost(1000.0, "ms"),
        "killed peer noticed over UDP",
        tests("ethernot", "--test=killed_far", "idle_queue_pairs_end_when_their_peer"),
    ),
    printed(
        "same, over shared memory",
        Bound::AtMost(1000.0, "ms"),
        "killed peer noticed over shared memory",
        tests("ethernot", "--test=shm", "an_idle_connection_over_memory_ends_when"),
    ),
    printed(
        "a thread that polled and spins on memory, a processor free: 8 B writes seen, 99.9 %",
        Bound::AtMost(200.0, "us"),
        "writes seen by a thread that spins",
        tests("runtime", "--test=spinning", "writes_are_seen_by_a_spinning_thread"),
    ),
    printed(
        "completion queue of a million entries: memory touched when made",
        Bound::AtMost(65_536.0, "B"),
        "memory of a queue of a million",
        tests("work", "--lib", "a_queue_of_a_million_takes_no_memory"),
    ),
    printed(
        "10 000 posts to 16 connections of which one is blocked: time of the other 15 against none blocked",
        Bound::AtMost(1.05, "x"),
        "fifteen beside a blocked one",
        tests("runtime", "--test=sources", "fifteen_connections_beside_a_blocked_one"),
    ),
    printed(
        "datagrams of 64 B sent by one thread through the runtime, UDP over loopback, another receives",
        Bound::AtLeast(1.0, "million/s"),
        "datagrams sent",
        tests("runtime", "--test=datagrams", "datagrams_that_one_thread_sends"),
    ),
    Row {
        name: "fuzzing of the decoder of datagrams and of the engine with them without a crash",
        bound: Bound::AtLeast(20.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz {
            targets: &["decode_datagram", "engine_frames"],
            seconds_quick: 20,
            seconds_full: 1200,
        },
    },
    ping_pong_against(SLOWER_MOST),
    one_way_against(SLOWER_MOST),
    in_flight_against(SLOWER_MOST),
];

/// Highest permitted ratio of the time of an operation to its time at the earlier commit.
const SLOWER_MOST: f64 = 1.03;

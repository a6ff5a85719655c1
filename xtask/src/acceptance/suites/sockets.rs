//! Unmodified programs with ordinary sockets: whether they work over the edge, and how much faster
//! they are.

use super::{none_fails, printed, sources, tests};
use crate::acceptance::entries::Step;
use crate::acceptance::printed::Tests;
use crate::acceptance::repeated::Tests as Repeated;
use crate::acceptance::structure::Count;
use crate::acceptance::{Bound, Probe, Row};

/// Expands to a quantity of a case of `ethernot bench programs`. The case counts only if the
/// counters of the library prove that the connections used the expected transport.
macro_rules! case {
    ($name:literal, $quantity:literal) => {
        [
            Step::At("/cases"),
            Step::Entry(&[("name", $name), ("is_proven", "true")]),
            Step::At("/figures"),
            Step::Entry(&[("quantity", $quantity)]),
        ]
    };
}
pub(super) const ROWS: &[Row] = &[
    printed(
        "every order of up to 14 events at two ends that move: states without a byte lost, twice or late, and both ends agree",
        Bound::AtLeast(1_000_000.0, "states"),
        "states of two ends that move, after up to 14 events",
        tests("sockets", "--lib", "over_fourteen_events"),
    ),
    printed(
        "every order of events on the way home, of three bytes each way: states without a byte lost or twice",
        Bound::AtLeast(1_000_000.0, "states"),
        "states of the way home",
        tests("sockets", "--lib", "explored"),
    ),
    none_fails(
        "planted faults of a move and of the way home are found",
        "sockets",
        "--lib planted_faults_break_the_rules",
        true,
    ),
    sources(
        "functions from `send(2)` to `sendmsg`",
        Bound::AtMost(45.0, "functions"),
        Count::Hops { table: 3 },
    ),
    runs(
        "{apache prefork, worker, event; nginx; python; node; java} × {curl, wrk, ab, python, java, node} × {neither, both, one with the library}: runs",
        [192.0, 8.0],
        "runs of servers and clients of HTTP",
        "--test=sockets_http",
        Some("a_few"),
    ),
    runs(
        "{redis, memcached, iperf3, gmond} × {redis-cli, redis-benchmark, memccp, memcslap, iperf3, python, curl} × the same: runs",
        [36.0, 6.0],
        "runs of services and their clients",
        "--test=sockets_services",
        Some("with_the_library"),
    ),
    printed(
        "nginx reload under load: reloads of which every answer is whole",
        Bound::AtLeast(100.0, "reloads"),
        "reloads of nginx of which every answer is whole",
        tests("programs", "--test=sockets_busy", "again_and_again"),
    ),
    printed(
        "storms of 10 000 short connections, ab -c 50, both ends: none hangs, none is short",
        Bound::AtLeast(10.0, "storms"),
        "storms of which every answer is whole",
        tests("programs", "--test=sockets_busy", "storms"),
    ),
    none_fails(
        "nginx reload, redis BGSAVE under load, prefork with 8 children, java",
        "programs",
        "--test=sockets_busy",
        true,
    ),
    none_fails(
        "what programs see: loops, reads, writes, ends in every order, forks, descriptors, threads",
        "programs",
        "--test=sockets_conformance",
        true,
    ),
    Row {
        name: "small programs that showed faults, a hundred times each: runs in which one differs from TCP",
        bound: Bound::AtMost(0.0, "runs that fail"),
        bound_quick: None,
        probe: Probe::Repeated {
            tests: Repeated::Cargo {
                package: "sockets-abi",
                targets: &["--test=programs"],
                names: &[
                    "a_signal_handler_ends_a_wait_in_every_wait_mode",
                    "signal_handlers_may_exit_write_close_and_jump",
                    "a_connection_can_be_queried_during_its_move",
                    "a_connected_socket_stays_in_its_earlier_epoll_sets",
                    "internal_writes_of_the_c_library_and_its_child_programs_match_tcp",
                    "a_program_continues_after_a_failed_exec",
                    "system_calls_by_number_match_calls_by_name",
                    "a_descriptor_closed_by_system_call_is_the_next_file_with_its_number",
                    "a_program_daemonizes_with_its_connection",
                    "a_child_without_the_connection_of_its_parent_reads_no_other_bytes",
                    "a_waiting_thread_gets_no_bytes_of_the_next_connection_with_its_descriptor",
                ],
            },
            times_quick: 2,
            times_full: 100,
        },
    },
    program(
        "sockperf ping-pong 14 B, polling, against blocking TCP",
        Bound::AtMost(0.15, "x"),
        &case!("sockperf-poll", "latency_p50_us"),
    ),
    program(
        "same, event mode",
        Bound::AtMost(1.0, "x"),
        &case!("sockperf-event", "latency_p50_us"),
    ),
    program("iperf3, one stream", Bound::AtLeast(1.2, "x"), &case!("iperf3-1", "bytes_per_second")),
    program("same, four streams", Bound::AtLeast(1.0, "x"), &case!("iperf3-4", "bytes_per_second")),
    program(
        "wrk on a file of 16 KiB: requests/s",
        Bound::AtLeast(1.2, "x"),
        &case!("wrk-16K", "per_second"),
    ),
    program(
        "same, 16 KiB, 99 % latency",
        Bound::AtMost(1.0, "x"),
        &case!("wrk-16K", "latency_p99_us"),
    ),
    program(
        "wrk on a file of 256 KiB: requests/s",
        Bound::AtLeast(1.2, "x"),
        &case!("wrk-256K", "per_second"),
    ),
    program(
        "same, 256 KiB, 99 % latency",
        Bound::AtMost(1.0, "x"),
        &case!("wrk-256K", "latency_p99_us"),
    ),
    program("redis-benchmark GET", Bound::AtLeast(1.3, "x"), &case!("redis-get-1", "per_second")),
    program("same, SET", Bound::AtLeast(1.3, "x"), &case!("redis-set-1", "per_second")),
    program(
        "same, GET, pipeline 16",
        Bound::AtLeast(1.0, "x"),
        &case!("redis-get-16", "per_second"),
    ),
    program(
        "same, SET, pipeline 16",
        Bound::AtLeast(1.0, "x"),
        &case!("redis-set-16", "per_second"),
    ),
    program(
        "gmond's answer in 245 small writes: gathers/s",
        Bound::AtLeast(1.0, "x"),
        &case!("gmond", "per_second"),
    ),
    connection(
        "connection time seen by connect()",
        Bound::AtMost(1.1, "x"),
        &[
            Step::At("/rows"),
            CONNECTION_OVER_EDGE,
            Step::At("/ratios"),
            Step::Entry(&[("to", "tcp")]),
        ],
        "/value/mean",
    ),
    connection(
        "upgrade complete",
        Bound::AtMost(300.0, "us"),
        &[Step::At("/rows"), CONNECTION_OVER_EDGE],
        "/upgrade_us/mean",
    ),
    program(
        "cost of the library where the peer has none: throughput",
        Bound::AtLeast(0.97, "x"),
        &case!("iperf3-client-only", "bytes_per_second"),
    ),
    program(
        "same, latency, peer without it",
        Bound::AtMost(1.03, "x"),
        &case!("sockperf-client-only", "latency_p50_us"),
    ),
    program(
        "cost of the library outside the allow-list: throughput",
        Bound::AtLeast(0.97, "x"),
        &case!("iperf3-left-alone", "bytes_per_second"),
    ),
    program(
        "same, latency, outside the allow-list",
        Bound::AtMost(1.03, "x"),
        &case!("sockperf-left-alone", "latency_p50_us"),
    ),
    program(
        "what is not moved, library on the client only: iperf3, bytes/s",
        RATE,
        &case!("iperf3-client-only", "bytes_per_second"),
    ),
    program(
        "same, library on the server only",
        RATE,
        &case!("iperf3-server-only", "bytes_per_second"),
    ),
    program("same, both ends, default", RATE_BOTH, &case!("iperf3-default", "bytes_per_second")),
    program(
        "redis -P1, library on the client only: requests/s",
        RATE,
        &case!("redis-get-1-client-only", "per_second"),
    ),
    program(
        "same, redis, library on the server only",
        RATE,
        &case!("redis-get-1-server-only", "per_second"),
    ),
    program(
        "same, redis, both ends, default",
        RATE_BOTH,
        &case!("redis-get-1-default", "per_second"),
    ),
    program(
        "fresh connection, one request, library on the client only: median",
        TIME,
        &case!("fresh-client-only", "latency_p50_us"),
    ),
    program("same, fresh, client only, 95 %", TIME, &case!("fresh-client-only", "latency_p95_us")),
    program(
        "same, fresh, server only: median",
        TIME,
        &case!("fresh-server-only", "latency_p50_us"),
    ),
    program("same, fresh, server only, 95 %", TIME, &case!("fresh-server-only", "latency_p95_us")),
    program(
        "same, fresh, both ends, default: median",
        TIME_BOTH,
        &case!("fresh-default", "latency_p50_us"),
    ),
    program(
        "same, fresh, both ends, default, 95 %",
        TIME_BOTH,
        &case!("fresh-default", "latency_p95_us"),
    ),
    program(
        "ab -c 50 without keep-alive, library on the client only: requests/s",
        RATE,
        &case!("ab-client-only", "per_second"),
    ),
    program("same, ab, library on the server only", RATE, &case!("ab-server-only", "per_second")),
    program("same, ab, both ends, default", RATE_BOTH, &case!("ab-default", "per_second")),
    runs(
        "10 pairs × 20 under 1 % loss: runs",
        [200.0, 200.0],
        "runs of servers and clients under loss",
        "--test=sockets_loss",
        None,
    ),
    printed(
        "kill -9 of each side: the other has ECONNRESET after",
        Bound::AtMost(1.0, "s"),
        "seconds until the peer of a killed process is told",
        tests("programs", "--test=sockets_death", "a_killed_process"),
    ),
    Row {
        name: "SIGSTOP of a peer for 60 s, link down for 60 s, of streams and idle: goes on, every byte right",
        bound: Bound::AtLeast(9.0, "silences"),
        bound_quick: None,
        probe: Probe::Printed {
            tests: Tests {
                package: "programs",
                target: "--test=sockets_silence",
                part: "silences_of_a_minute",
                part_quick: None,
            },
            name: "silences of a minute that connections outlast",
        },
    },
    none_fails(
        "the same for 12 s; killed in a silence; TCP_USER_TIMEOUT",
        "programs",
        "--test=sockets_silence",
        true,
    ),
    none_fails(
        "1100 idle peers, a peer that takes no answers, one that joins nothing: others are served",
        "sockets",
        "--test=connections shares",
        true,
    ),
    printed(
        "throughput of others beside 1100 idle peers and one that takes no answers, of that without",
        Bound::AtLeast(0.9, "x"),
        "throughput beside peers that take nothing",
        tests("sockets", "--test=connections", "others_are_as_fast"),
    ),
    none_fails(
        "600 connections under ulimit -n 1024 on either side, and 40 under 64: all are served",
        "programs",
        "--test=sockets_limits served",
        true,
    ),
    Row {
        name: "processes that one server serves at the same time, as far as there is memory for them",
        bound: Bound::AtLeast(4096.0, "processes"),
        bound_quick: None,
        probe: Probe::Printed {
            tests: Tests {
                package: "programs",
                target: "--test=sockets_limits",
                part: "thousands_of_processes",
                part_quick: None,
            },
            name: "processes that one server serves at the same time",
        },
    },
    printed(
        "1000 connections, both ends, idle after a question and an answer: resident memory of an end",
        Bound::AtMost(24.0, "KiB"),
        "resident memory of an idle connection, KiB",
        tests("sockets", "--test=connections", "idle_connections"),
    ),
    none_fails(
        "UDP blocked by a firewall: stays on TCP, and the log says why",
        "programs",
        "--test=sockets_death a_network_without_datagrams",
        true,
    ),
];

/// A row about runs of unmodified programs, none of which may fail. The numbers of runs are for a
/// full run and for a quick run.
const fn runs(
    name: &'static str,
    [least, least_quick]: [f64; 2],
    figure: &'static str,
    target: &'static str,
    part_quick: Option<&'static str>,
) -> Row {
    let tests = Tests { package: "programs", target, part: "", part_quick };
    Row {
        name,
        bound: Bound::AtLeast(least, "runs"),
        bound_quick: Some(Bound::AtLeast(least_quick, "runs")),
        probe: Probe::Printed { tests, name: figure },
    }
}

/// A row about the speed of unmodified programs compared with kernel TCP, measured alternately.
const fn program(name: &'static str, bound: Bound, steps: &'static [Step]) -> Row {
    let arguments = &["bench", "programs", "--repetitions", "{quick:3|10}", "--json", "{json}"];
    let probe = Probe::Entry { arguments, steps, pointer: "/ratio/median" };
    Row { name, bound, bound_quick: None, probe }
}

/// Bound of a time: at most 1.05 times the time over TCP. The next constant is the corresponding
/// bound of a rate.
const TIME: Bound = Bound::AtMost(1.05, "x");
const RATE: Bound = Bound::AtLeast(0.952, "x");

/// Bound of a time: at most 1.1 times the time over TCP. The next constant is the corresponding
/// bound of a rate.
const TIME_BOTH: Bound = Bound::AtMost(1.1, "x");
const RATE_BOTH: Bound = Bound::AtLeast(0.909, "x");

/// A row about the time of connecting, measured by `ethernot bench sockets`.
const fn connection(
    name: &'static str,
    bound: Bound,
    steps: &'static [Step],
    pointer: &'static str,
) -> Row {
    let arguments = &[
        "bench",
        "sockets",
        "--tests",
        "connection",
        "--contenders",
        "tcp,sockets",
        "--mtu",
        "1500",
        "--repetitions",
        "{quick:5|10}",
        "--json",
        "{json}",
    ];
    Row { name, bound, bound_quick: None, probe: Probe::Entry { arguments, steps, pointer } }
}

const CONNECTION_OVER_EDGE: Step = Step::Entry(&[("test", "connection"), ("contender", "sockets")]);

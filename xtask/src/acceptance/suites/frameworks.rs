//! The connection manager and the frameworks that use it: whether unmodified programs run, their
//! speed, and the installed files.

use super::{printed, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Row};

/// Tests that also run in a quick run.
const fn short(target: &'static str, part: &'static str) -> Tests {
    tests("programs", target, part)
}

/// Tests that take minutes.
const fn long(target: &'static str, part: &'static str) -> Tests {
    Tests { package: "programs", target, part, part_quick: None }
}

/// A row about tests, none of which may fail. Short tests also run in a quick run.
const fn none_fails(name: &'static str, chosen: &'static str, in_quick: bool) -> Row {
    super::none_fails(name, "programs", chosen, in_quick)
}

pub(super) const ROWS: &[Row] = &[
    none_fails(
        "rping -v -C 1000, ucmatose, udaddy, mckey, cmtime, rdma_client and rdma_server",
        "--test=connection_manager",
        true,
    ),
    none_fails("rstream, rcopy, riostream", "--test=rsockets", true),
    printed(
        "cmtime, 1000 connections: each",
        Bound::AtMost(200.0, "us"),
        "connections of cmtime",
        short("--test=connection_manager", "a_thousand_connections_of_cmtime"),
    ),
    none_fails(
        "perftest with -R, RC and UD",
        "--test=connection_manager perftest_connected_by_the_connection_manager",
        true,
    ),
    none_fails("qperf -cm 1 rc_*, ud_*", "--test=qperf", false),
    none_fails("fio over rdma with verify=crc32c", "--test=fio", false),
    none_fails("fi_pingpong, verbs msg and verbs;ofi_rxm rdm", "--test=libfabric", false),
    none_fails(
        "ucx_perftest over rc_verbs and ud_verbs: tag, put, get, atomics, between namespaces and -l",
        "--test=ucx",
        false,
    ),
    none_fails(
        "Open MPI 4 (mtl ofi), 2 and 4 ranks on two namespaces: results equal to TCP's",
        "--test=open_mpi",
        false,
    ),
    none_fails("same, Open MPI 5 (ucx; over ofi its end may fail)", "--test=open_mpi_5", false),
    none_fails("same, MPICH (ofi and ucx)", "--test=mpich", false),
    none_fails(
        "ethernot run under mpirun, mpiexec and srun, before and behind them, on two hosts",
        "--test=launching",
        true,
    ),
    printed(
        "MPI ping-pong 1 B against the same Open MPI over TCP, latency",
        Bound::AtMost(LATENCY_MOST, "x"),
        "latency of MPI against TCP, 1 B",
        short("--test=open_mpi", "speeds_of_mpi"),
    ),
    printed(
        "same, 1 MiB, throughput",
        Bound::AtLeast(THROUGHPUT_LEAST, "x"),
        "throughput of MPI against TCP, 1 MiB",
        short("--test=open_mpi", "speeds_of_mpi"),
    ),
    printed(
        "Allreduce 8 B, 4 ranks, against the same Open MPI over TCP, time",
        Bound::AtMost(ALLREDUCE_MOST, "x"),
        "allreduce of 4 ranks against TCP",
        short("--test=open_mpi", "speeds_of_mpi"),
    ),
    printed(
        "MPI ping-pong 1 B against the same MPICH over TCP, latency",
        Bound::AtMost(LATENCY_MOST, "x"),
        "latency of MPI against TCP, 1 B (mpich)",
        long("--test=mpich", "speeds_of_mpi"),
    ),
    printed(
        "same of MPICH, 1 MiB, throughput",
        Bound::AtLeast(THROUGHPUT_LEAST, "x"),
        "throughput of MPI against TCP, 1 MiB (mpich)",
        long("--test=mpich", "speeds_of_mpi"),
    ),
    printed(
        "Allreduce 8 B, 4 ranks, against the same MPICH over TCP, time",
        Bound::AtMost(ALLREDUCE_MOST, "x"),
        "allreduce of 4 ranks against TCP (mpich)",
        long("--test=mpich", "speeds_of_mpi"),
    ),
    printed(
        "seven rdma_cm programs, 20 times each, over links that lose, repeat and reorder: runs, none failing",
        Bound::AtLeast(140.0, "runs"),
        "runs of rdma_cm programs over links with faults",
        long("--test=connection_faults", "programs_pass_twenty_times"),
    ),
    printed(
        "same of fi_pingpong, Open MPI ping-pong and alltoall",
        Bound::AtLeast(60.0, "runs"),
        "runs of frameworks over links with faults",
        long("--test=open_mpi", "frameworks_pass_twenty_times"),
    ),
    printed(
        "same of ucx_perftest tag and put, MPICH ping-pong",
        Bound::AtLeast(60.0, "runs"),
        "runs of frameworks over links with faults",
        long("--test=ucx", "frameworks_pass_twenty_times"),
    ),
    printed(
        "DISCONNECTED after kill -9 of an idle peer",
        Bound::AtMost(1.0, "s"),
        "until the peer of a killed process is told",
        short("--test=connection_manager", "a_killed_idle_peer_is_reported"),
    ),
    printed(
        "10 000 connects and disconnects: descriptors that are left",
        Bound::AtMost(0.0, "descriptors"),
        "descriptors that 10 000 connections leave",
        long("--test=connection_manager", "ten_thousand_connections_leave_nothing"),
    ),
    printed(
        // The bound is the amount by which the heap of a process varies: 117 bytes for each of the
        // 9000 connections that count. A leaked id would take more than 416 bytes per connection.
        "same, memory that is left beyond what the heap varies by",
        Bound::AtMost(1024.0, "KiB"),
        "KiB that 10 000 connections leave",
        long("--test=connection_manager", "ten_thousand_connections_leave_nothing"),
    ),
    none_fails(
        "no listener, rejected, too long, in use, destroyed, never acknowledged, never accepted, killed in the middle",
        "--test=connection_faults",
        false,
    ),
    none_fails(".deb and `./x install` in a clean root, then rping", "--test=packages", true),
];

/// Highest permitted ratio of the time of a one-byte round trip to the time over TCP.
const LATENCY_MOST: f64 = 0.5;

/// Lowest permitted ratio of the rate of messages of 1 MiB to the rate over TCP.
const THROUGHPUT_LEAST: f64 = 1.2;

/// Highest permitted ratio of the time of an allreduce of one number per rank to the time over TCP.
const ALLREDUCE_MOST: f64 = 0.7;

//! Unmodified RDMA programs with the libraries: whether they run, and how fast.

use super::{printed, tests};
use crate::acceptance::entries::Step;
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// A row about tests of programs, none of which may fail.
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

/// Expands to the steps to the ratio of one contender to another, at a point in the results of
/// `ethernot bench verbs`.
macro_rules! ratio {
    ($point:literal, $to:literal) => {
        ratio!($point, "edge0-polling", $to)
    };
    ($point:literal, $of:literal, $to:literal) => {
        [
            Step::At("/points"),
            Step::Entry(&[("name", $point)]),
            Step::At("/contenders"),
            Step::Entry(&[("name", $of)]),
            Step::At("/ratios"),
            Step::Entry(&[("to", $to)]),
        ]
    };
}

/// Expands to the command that runs a test of `ethernot bench verbs` with these sizes and further
/// arguments.
macro_rules! measured {
    ($test:literal, $sizes:literal $(, $more:literal)*) => {
        &[
            "bench", "verbs", "--quick", "--tests", $test, "--sizes", $sizes, "--runs",
            "{quick:3|10}", "--seconds", "{quick:0.05|0.2}", "--json", "{json}" $(, $more)*
        ]
    };
}

/// Expands to the steps to an availability curve of messages of 256 KiB, the size that the paper
/// shows.
macro_rules! curve {
    ($curve:literal) => {
        [Step::At("/availability/curves"), Step::Entry(&[("name", $curve)])]
    };
}

/// Expands to the steps to the ratio of a curve to the curve of the same program over TCP.
macro_rules! curve_ratio {
    ($curve:literal, $to:literal) => {
        [
            Step::At("/availability/curves"),
            Step::Entry(&[("name", $curve)]),
            Step::At("/ratios"),
            Step::Entry(&[("to", $to)]),
        ]
    };
}

/// Expands to the steps to the entry of a region of touched memory in a result.
macro_rules! region {
    ($name:literal) => {
        [Step::At("/registration/points"), Step::Entry(&[("name", $name)])]
    };
}

/// The measurements that a paper made of an iWARP adapter, repeated with this project's device.
pub(super) const PAPER_001: &[Row] = &[
    super::none_fails(
        "iwarp-perf and tcp-perf: every test, operation and manner moves the bytes that were sent; bad input; killed peers",
        "programs",
        "--test=perf_tools",
        true,
    ),
    apart(
        "iwarp-perf against perftest: 8 B latency, ib_write_lat, apart",
        "iwarp-perf and ib_write_lat, apart",
        "latency_beside_perftest",
    ),
    apart(
        "same, bandwidth at 1 MiB, W = 64, ib_write_bw, apart",
        "iwarp-perf and ib_write_bw, apart",
        "bandwidth_beside_perftest",
    ),
    bandwidth(
        "bandwidth 64 KiB one way, W = 16, verbs against tcp-perf",
        Bound::AtLeast(1.2, "x"),
        &ratio!("bandwidth-write-65536-16", "tcp-polling"),
        "/value/median",
    ),
    bandwidth(
        "bandwidth 1 MiB one way, W = 16, verbs against tcp-perf",
        Bound::AtLeast(1.2, "x"),
        &ratio!("bandwidth-write-1048576-16", "tcp-polling"),
        "/value/median",
    ),
    bandwidth(
        "both ways, 64 KiB, the sum, against tcp-perf both ways",
        Bound::AtLeast(1.0, "x"),
        &ratio!("both-ways-write-65536-16", "tcp-polling"),
        "/value/median",
    ),
    bandwidth(
        "both ways, 1 MiB, the sum, against tcp-perf both ways",
        Bound::AtLeast(1.0, "x"),
        &ratio!("both-ways-write-1048576-16", "tcp-polling"),
        "/value/median",
    ),
    bandwidth(
        "CPU time of both programs a GB, 1 MiB, W = 16, verbs against TCP",
        Bound::AtMost(0.9, "x"),
        &ratio!("bandwidth-write-1048576-16", "tcp-polling"),
        "/cpu/median",
    ),
    latency(
        "latency 8 B against polling tcp-perf",
        Bound::AtMost(1.4, "x"),
        &ratio!("latency-write-8-1", "tcp-polling"),
    ),
    latency(
        "same, against blocking tcp-perf",
        Bound::AtMost(0.25, "x"),
        &ratio!("latency-write-8-1", "tcp-events"),
    ),
    unsteered(
        "latency 8 B, packets processed on the sender's CPU, against polling tcp-perf",
        Bound::AtMost(1.4, "x"),
        &ratio!("latency-write-8-1", "tcp-polling"),
    ),
    unsteered(
        "the same, against blocking tcp-perf",
        Bound::AtMost(0.25, "x"),
        &ratio!("latency-write-8-1", "tcp-events"),
    ),
    super::none_fails(
        "ethernot bench verbs, comb, memory-registration, comb-mpi, mpi-perf: every test and carrier; bad input",
        "programs",
        "--test=bench_verbs --test=comb --test=memory_registration --test=mpi_tools",
        true,
    ),
    super::none_fails(
        "ethernot bench verbs: availability, registration, MPI; an interrupted run leaves no rank",
        "programs",
        "--test=bench_verbs -- --ignored",
        false,
    ),
    super::none_fails(
        "comb, iwarp-perf, tcp-perf: a silent peer",
        "programs",
        "--test=perf_tools --test=comb -- --ignored silent",
        false,
    ),
    super::none_fails(
        "guest with the kernel's rxe and siw: iwarp-perf, comb, memory-registration and tcp-perf run",
        "programs",
        "--test=perf_tools_in_guest",
        false,
    ),
    availability(
        "COMB, nothing sent: availability",
        Bound::AtLeast(0.99, "of the CPU"),
        &curve!("silent-262144-edge0"),
        "/silent_availability/median",
    ),
    Row {
        name: "COMB, availability and other CPU time of that host: points where the sum is 1 ± 0.05",
        bound: Bound::AtLeast(0.9, "of points"),
        bound_quick: None,
        probe: Probe::Number { arguments: AVAILABILITY, pointer: "/availability/accounting/share" },
    },
    availability(
        "COMB polling, 256 KiB: bandwidth at availability 0.5, Open MPI over the device against over TCP",
        Bound::AtLeast(1.5, "x"),
        &curve_ratio!("polling-262144-open-mpi-edge0", "open-mpi-tcp"),
        "/value/median",
    ),
    availability(
        "same, MPICH over the device against over TCP",
        Bound::AtLeast(1.5, "x"),
        &curve_ratio!("polling-262144-mpich-edge0", "mpich-tcp"),
        "/value/median",
    ),
    availability(
        "COMB post-work-wait, 256 KiB, verbs: wait after work longer than the transfer, as a share of it",
        Bound::AtMost(0.1, "of the transfer"),
        &curve!("post-work-wait-262144-edge0"),
        "/wait_share/median",
    ),
    availability(
        "same, Open MPI over the device: wait at the longest interval against the shortest",
        Bound::AtMost(0.2, "x"),
        &curve!("post-work-wait-262144-open-mpi-edge0"),
        "/wait_ratio/median",
    ),
    availability(
        "same, MPICH",
        Bound::AtMost(0.2, "x"),
        &curve!("post-work-wait-262144-mpich-edge0"),
        "/wait_ratio/median",
    ),
    registration(
        "registration, the largest region (1 GiB; quick: 64 MiB) against 4 KiB",
        Bound::AtMost(1.5, "x"),
        GROWTH,
        "/register/median",
    ),
    registration("same, deregistration", Bound::AtMost(1.5, "x"), GROWTH, "/deregister/median"),
    registration(
        "the honest sum, register and move 1 MiB of touched memory, against the move alone",
        Bound::AtMost(1.3, "x"),
        &region!("touched-1048576-1-1"),
        "/sum_to_move/median",
    ),
    registration(
        "same, 64 MiB",
        Bound::AtMost(1.3, "x"),
        &region!("touched-67108864-1-1"),
        "/sum_to_move/median",
    ),
    mpi(
        "MPI overhead, bandwidth at 64 KiB, W = 16, of verbs: Open MPI",
        &ratio!("mpi-bandwidth-write-65536-16", "open-mpi-edge0", "edge0-polling"),
    ),
    mpi(
        "same, 1 MiB",
        &ratio!("mpi-bandwidth-write-1048576-16", "open-mpi-edge0", "edge0-polling"),
    ),
    mpi(
        "same, 64 KiB: MPICH",
        &ratio!("mpi-bandwidth-write-65536-16", "mpich-edge0", "edge0-polling"),
    ),
    mpi(
        "same, 1 MiB: MPICH",
        &ratio!("mpi-bandwidth-write-1048576-16", "mpich-edge0", "edge0-polling"),
    ),
    printed(
        "iwarp-perf under 1 % loss, twenty times: measurements whose data are right",
        Bound::AtLeast(80.0, "runs"),
        "runs of iwarp-perf under loss whose data are right",
        slow("twenty_times_under_loss"),
    ),
    printed(
        "comb under 1 % loss, twenty times: measurements whose data are right",
        Bound::AtLeast(40.0, "runs"),
        "runs of comb under loss whose data are right",
        Tests { target: "--test=comb", ..slow("twenty_times_under_loss") },
    ),
];

/// A row about two figures that may differ by 10 %: the larger figure divided by the smaller figure
/// is at most 1.11.
const fn apart(name: &'static str, figure: &'static str, part: &'static str) -> Row {
    printed(name, Bound::AtMost(1.11, "x"), figure, slow(part))
}

/// Tests that take too long for a quick run.
const fn slow(part: &'static str) -> Tests {
    Tests { package: "programs", target: "--test=perf_tools", part, part_quick: None }
}

const fn bandwidth(
    name: &'static str,
    bound: Bound,
    steps: &'static [Step],
    pointer: &'static str,
) -> Row {
    let arguments = measured!("bandwidth", "64K,1M", "--windows", "16");
    Row { name, bound, bound_quick: None, probe: Probe::Entry { arguments, steps, pointer } }
}

const fn latency(name: &'static str, bound: Bound, steps: &'static [Step]) -> Row {
    let arguments = measured!("latency", "8");
    let probe = Probe::Entry { arguments, steps, pointer: "/value/median" };
    Row { name, bound, bound_quick: None, probe }
}

/// Returns a row like [`latency`], with the kernel's own choice of the CPU that processes a packet.
const fn unsteered(name: &'static str, bound: Bound, steps: &'static [Step]) -> Row {
    let arguments = measured!("latency", "8", "--steering", "off");
    let probe = Probe::Entry { arguments, steps, pointer: "/value/median" };
    Row { name, bound, bound_quick: None, probe }
}

const AVAILABILITY: &[&str] = &[
    "bench",
    "verbs",
    "--quick",
    "--tests",
    "availability",
    "--sizes",
    "256K",
    "--runs",
    "{quick:1|3}",
    "--seconds",
    "{quick:0.25|1}",
    "--json",
    "{json}",
];

const REGISTRATION: &[&str] = &[
    "bench",
    "verbs",
    "--quick",
    "--tests",
    "registration",
    "--sizes",
    "{quick:4K,1M,64M|4K,1M,64M,1G}",
    "--runs",
    "{quick:1|3}",
    "--seconds",
    "0.2",
    "--json",
    "{json}",
];

/// The cost of the largest region of touched memory divided by the cost of the smallest.
const GROWTH: &[Step] = &[Step::At("/registration/growth"), Step::Entry(&[("memory", "touched")])];

const fn availability(
    name: &'static str,
    bound: Bound,
    steps: &'static [Step],
    pointer: &'static str,
) -> Row {
    let probe = Probe::Entry { arguments: AVAILABILITY, steps, pointer };
    Row { name, bound, bound_quick: None, probe }
}

const fn registration(
    name: &'static str,
    bound: Bound,
    steps: &'static [Step],
    pointer: &'static str,
) -> Row {
    let probe = Probe::Entry { arguments: REGISTRATION, steps, pointer };
    Row { name, bound, bound_quick: None, probe }
}

/// A row about MPI's bandwidth divided by the bandwidth of verbs: the overhead of MPI may be at
/// most 20 %.
const fn mpi(name: &'static str, steps: &'static [Step]) -> Row {
    let arguments = measured!("mpi", "64K,1M", "--windows", "16");
    let probe = Probe::Entry { arguments, steps, pointer: "/value/median" };
    Row { name, bound: Bound::AtLeast(0.8, "x"), bound_quick: None, probe }
}

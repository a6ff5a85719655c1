//! The rows of the interconnect simulator.

use super::{Bound, Probe, Row, printed};

/// Rows about a published study, theory, speed, reproducible results, and other simulators.
pub(super) const FABRIC: &[Row] = &[
    paper(
        "Table 1, cells to the printed digit",
        Bound::AtLeast(12.0, "of 12"),
        "/summary/table1_exact",
    ),
    paper("Table 2, minima exact", Bound::AtLeast(20.0, "of 21"), "/summary/minima_exact"),
    paper(
        "Table 2, Myrinet, RMS log error",
        Bound::AtMost(7.5, "%"),
        "/summary/rms_log_error_percent/myrinet",
    ),
    paper(
        "Table 2, Avici, RMS log error",
        Bound::AtMost(9.0, "%"),
        "/summary/rms_log_error_percent/avici",
    ),
    paper(
        "Table 2, Gigabit Ethernet, RMS log error",
        Bound::AtMost(9.5, "%"),
        "/summary/rms_log_error_percent/ethernet",
    ),
    paper(
        "Table 2, cells within 10 %",
        Bound::AtLeast(67.0, "of 84"),
        "/summary/cells_within_10_percent",
    ),
    paper(
        "statements on Figures 5 and 6 that come out, or are explained",
        Bound::AtLeast(18.0, "of 18"),
        "/summary/statements_explained",
    ),
    paper("cost totals exact", Bound::AtLeast(3.0, "of 3"), "/summary/cost_totals_exact"),
    paper("findings on the cost table", Bound::AtLeast(2.0, "findings"), "/summary/findings"),
    paper("the whole study, one processor", Bound::AtMost(1.0, "s"), "/seconds"),
    speed(
        "fat tree with ECMP, load 0.5, 1024 hosts",
        Bound::AtLeast(10.0, "million packet-hops/s"),
        "/fat tree, 1024 hosts/millions_per_second",
    ),
    speed(
        "fat tree with ECMP, load 0.5, 8192 hosts",
        Bound::AtLeast(8.0, "million packet-hops/s"),
        "/fat tree, 8192 hosts/millions_per_second",
    ),
    speed(
        "same, memory of tables and queues",
        Bound::AtMost(1024.0, "B a port"),
        "/fat tree, 8192 hosts/bytes_per_port",
    ),
    speed(
        "credit flits on a 16 x 16 torus, uniform 0.2",
        Bound::AtLeast(5.0, "million flit-hops/s"),
        "/16 x 16 torus of flits/millions_per_second",
    ),
    speed(
        "GOAL replay, LogGP fidelity, without reading the trace",
        Bound::AtLeast(2.0, "million messages/s"),
        "/GOAL, 1024 ranks, LogGP/millions_per_second",
    ),
    Row {
        name: "queues, tandem, torus, LogGP and max-min shares against theory, worst",
        bound: Bound::AtMost(2.0, "%"),
        bound_quick: None,
        probe: Probe::Number {
            arguments: &["sim", "theory", "--json", "{json}"],
            pointer: "/worst_error_percent",
        },
    },
    speed(
        "real engine, ghost payloads, 1024 hosts",
        Bound::AtLeast(1.0, "million packets/s"),
        "/real engine, 1024 hosts/millions_per_second",
    ),
    speed(
        "real engine, memory of 4096 hosts",
        Bound::AtMost(1024.0, "MiB"),
        "/real engine, 4096 hosts/resident_mebibytes",
    ),
    speed(
        "same, memory of a connection end",
        Bound::AtMost(1024.0, "B"),
        "/real engine, memory/bytes_per_connection_end",
    ),
    speed(
        "same, memory of a host",
        Bound::AtMost(8192.0, "B"),
        "/real engine, memory/bytes_per_host",
    ),
    Row {
        name: "engine on shaped links against the same simulated, worst point",
        bound: Bound::AtMost(10.0, "%"),
        bound_quick: None,
        probe: Probe::Number {
            arguments: &["sim", "reality", "{quick:--quick|--time=60}", "--json", "{json}"],
            pointer: "/worst_error_percent",
        },
    },
    speed(
        "identical hashes with 1, 2 and 4 threads",
        Bound::AtLeast(3.0, "of 3"),
        "/divided/equal_hashes",
    ),
    printed(
        "times of traces as LogGOPSim has them, to the nanosecond",
        Bound::AtLeast(12.0, "of 15"),
        "LogGOPSim",
        lib("the_times_of_loggopsim"),
    ),
    printed(
        "routers of BookSim2, latency below 0.9 of saturation against the reference, worst point",
        Bound::AtMost(3.0, "%"),
        "router latency",
        ROUTERS,
    ),
    printed(
        "same, load of saturation, worst network",
        Bound::AtMost(5.0, "%"),
        "router saturation",
        printed::Tests { part_quick: None, ..ROUTERS },
    ),
    printed(
        "flows of each link equal in packets and in fluids under ECMP",
        Bound::AtLeast(20.0, "of 20 configurations"),
        "equal flows",
        file("--test=fidelities", "packets_and_fluids_use_the_same_links"),
    ),
    printed(
        "frames marked above a step (M/D/1) and lost (M/D/1/K) at each switch latency and with inert keys, worst",
        Bound::AtMost(2.0, "%"),
        "buffers",
        file("--test=buffers", ""),
    ),
    printed(
        "flows on ways of ECMP as balls into bins, 100 seeds, of the 99 % interval",
        Bound::AtMost(1.0, "x"),
        "balls into bins",
        lib("balls_into_bins"),
    ),
    printed(
        "commands of docs/simulator.md and its examples that do not work",
        Bound::AtMost(0.0, "commands"),
        "documented commands that fail",
        printed::Tests {
            package: "ethernot-cli",
            ..file("--test=documentation", "every_command_of_the_page")
        },
    ),
];

/// Tests that compare with a reference. All points take minutes, so a quick run measures fewer.
const ROUTERS: printed::Tests = printed::Tests {
    part_quick: Some("latencies_equal_those_of_the_reference"),
    ..file("--test=routers", "those_of_the_reference")
};

const fn paper(name: &'static str, bound: Bound, pointer: &'static str) -> Row {
    let arguments = &["sim", "paper", "sandia1999", "--json", "{json}"];
    Row { name, bound, bound_quick: None, probe: Probe::Number { arguments, pointer } }
}

const fn speed(name: &'static str, bound: Bound, pointer: &'static str) -> Row {
    let arguments = &["sim", "speed", "--repetitions", "{quick:3|7}", "--json", "{json}"];
    Row { name, bound, bound_quick: None, probe: Probe::Number { arguments, pointer } }
}

const fn printed(
    name: &'static str,
    bound: Bound,
    figure: &'static str,
    tests: printed::Tests,
) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Printed { tests, name: figure } }
}

const fn lib(part: &'static str) -> printed::Tests {
    file("--lib", part)
}

/// Tests of the simulator that also run in a quick run.
const fn file(target: &'static str, part: &'static str) -> printed::Tests {
    printed::Tests { package: "interconnect", target, part, part_quick: Some(part) }
}

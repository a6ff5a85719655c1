//! The rows of the interconnect simulator.

use super::{Bound, Probe, Row};

/// A published study, theory, speed and determinism.
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
];

const fn paper(name: &'static str, bound: Bound, pointer: &'static str) -> Row {
    let arguments = &["sim", "paper", "sandia1999", "--json", "{json}"];
    Row { name, bound, bound_quick: None, probe: Probe::Number { arguments, pointer } }
}

const fn speed(name: &'static str, bound: Bound, pointer: &'static str) -> Row {
    let arguments = &["sim", "speed", "--repetitions", "{quick:3|7}", "--json", "{json}"];
    Row { name, bound, bound_quick: None, probe: Probe::Number { arguments, pointer } }
}

//! The suites: bounds, and the commands that measure the figures.

mod dsm;
mod engine_structure;
mod faults;
mod frameworks;
mod iwarp;
mod queue_pairs;
mod raw_links;
mod rust_api;
mod sender;
mod sockets;
mod speed;
mod verbs;
mod waiting;
mod workspace_structure;

use super::printed::Tests;
use super::structure::Count;
use super::{Bound, Figure, Measurement, Probe, Row, Shown, Suite};

/// A row about the largest figure of this name that tests print.
const fn printed(name: &'static str, bound: Bound, figure: &'static str, tests: Tests) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Printed { tests, name: figure } }
}

/// Like [`printed`], for a figure that is equal on all machines.
const fn reproducible(name: &'static str, bound: Bound, figure: &'static str, tests: Tests) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Reproducible { tests, name: figure } }
}

/// A row about a speed figure, compared with the commit of `--against`. The bound requires equal
/// speed, apart from noise.
const fn as_quick(name: &'static str, probe: Probe) -> Row {
    Row { name, bound: Bound::AtLeast(0.98, "x"), bound_quick: None, probe }
}

/// A row about a count in the sources.
const fn sources(name: &'static str, bound: Bound, count: Count) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Sources(count) }
}

/// Tests that also run in a quick run.
const fn tests(package: &'static str, target: &'static str, part: &'static str) -> Tests {
    Tests { package, target, part, part_quick: Some(part) }
}

/// A row about the rows of a suite that are ok at the commit of `--against` and short here.
const fn verdicts(name: &'static str, suite: &'static str) -> Row {
    let bound = Bound::AtMost(0.0, "rows");
    Row { name, bound, bound_quick: None, probe: Probe::Verdicts(suite) }
}

/// A row about tests, none of which may fail.
const fn none_fails(
    name: &'static str,
    package: &'static str,
    chosen: &'static str,
    in_quick: bool,
) -> Row {
    let probe = Probe::Tests { package, chosen, in_quick };
    Row { name, bound: Bound::AtMost(0.0, "tests that fail"), bound_quick: None, probe }
}

pub(super) const SUITES: &[Suite] = &[
    Suite { name: "dsm", rows: dsm::ROWS, against: Some(dsm::BEFORE) },
    Suite { name: "edge-engine", rows: EDGE_ENGINE, against: None },
    Suite { name: "engine-house", rows: engine_structure::ROWS, against: Some("HEAD~1") },
    Suite { name: "fabric", rows: super::fabric_rows::FABRIC, against: None },
    Suite { name: "faults", rows: faults::ROWS, against: Some(faults::BEFORE) },
    Suite { name: "frameworks", rows: frameworks::ROWS, against: None },
    Suite { name: "house", rows: workspace_structure::ROWS, against: Some("HEAD~1") },
    Suite { name: "iwarp", rows: iwarp::ROWS, against: Some(iwarp::BEFORE) },
    Suite { name: "paper-001", rows: verbs::PAPER_001, against: None },
    Suite { name: "papers", rows: PAPERS, against: None },
    Suite { name: "queue-pairs", rows: queue_pairs::ROWS, against: None },
    Suite { name: "raw-links", rows: raw_links::ROWS, against: None },
    Suite { name: "rust-api", rows: rust_api::ROWS, against: None },
    Suite { name: "sender", rows: sender::ROWS, against: None },
    Suite { name: "sockets", rows: sockets::ROWS, against: None },
    Suite { name: "speed", rows: speed::ROWS, against: Some(speed::SINCE) },
    Suite { name: "verbs", rows: verbs::ROWS, against: None },
    Suite { name: "waiting", rows: waiting::ROWS, against: Some(speed::SINCE) },
    Suite { name: "words", rows: WORDS, against: None },
];

/// Rows about the words in comments, documents and names.
const WORDS: &[Row] = &[
    sources(
        "words in comments and documents that the glossary replaces",
        Bound::AtMost(0.0, "words"),
        Count::Words,
    ),
    sources(
        "names in code and of files with words that the glossary replaces",
        Bound::AtMost(0.0, "names"),
        Count::Names,
    ),
    sources(
        "public functions whose documentation has no verb first, or names no errors",
        Bound::AtMost(0.0, "functions"),
        Count::BareDocs,
    ),
    sources(
        "lines of Markdown over 120 columns, and paragraphs over 6 lines",
        Bound::AtMost(0.0, "places"),
        Count::LongMarkdown,
    ),
    sources(
        "public names that went away and are not in the changelog: Rust and C API, symbols, options, variables, JSON",
        Bound::AtMost(0.0, "names"),
        Count::PublicNamesGone { since: BEFORE_WORDS },
    ),
    none_fails(
        "bytes of the protocols: golden frames and captures",
        "wire-edge",
        "--lib --tests",
        true,
    ),
    none_fails("exit statuses, help and JSON of the command", "ethernot-cli", "--tests", false),
];

/// The last commit before names and texts were rewritten in the words of the glossary.
const BEFORE_WORDS: &str = "ce957ccb";

/// Rows that compare the edge engine over UDP with TCP and bare UDP on the same path, by medians.
const EDGE_ENGINE: &[Row] = &[
    Row {
        name: "one-way writes of 1 MiB, one UDP link, against TCP one-way",
        bound: Bound::AtLeast(1.2, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: LARGE,
            of: ONE_WAY,
            figure: Figure::RatioTo { transport: "tcp", of: "throughput", shown: RATE },
        },
    },
    Row {
        name: "same, CPU seconds per GB (both sides) against TCP",
        bound: Bound::AtMost(1.0, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: LARGE,
            of: ONE_WAY,
            figure: Figure::RatioTo { transport: "tcp", of: "cpu", shown: CPU },
        },
    },
    Row {
        name: "ping-pong 8 B, polled, against bare polled UDP of the same packet size",
        bound: Bound::AtMost(1.25, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: PING_PONG,
            figure: Figure::RatioTo { transport: "udp", of: "latency", shown: LATENCY },
        },
    },
    Row {
        name: "ping-pong 8 B, polled, against blocking TCP",
        bound: Bound::AtMost(0.25, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: PING_PONG,
            figure: Figure::RatioTo { transport: "tcp", of: "latency", shown: LATENCY },
        },
    },
    Row {
        name: "8 B writes, 64 in flight, one thread a side",
        bound: Bound::AtLeast(1.5, "million operations/s"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: OPERATION_RATE,
            figure: Figure::Median { shown: OPERATIONS, beside: None },
        },
    },
    Row {
        name: "same, against bare sendto datagrams",
        bound: Bound::AtLeast(5.0, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: OPERATION_RATE,
            figure: Figure::RatioTo { transport: "udp", of: "throughput", shown: OPERATIONS },
        },
    },
    Row {
        name: "10 000 connections of one endpoint: memory per idle connection",
        bound: Bound::AtMost(4096.0, "B"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: MANY_CONNECTIONS,
            figure: Figure::Larger("bytes_per_idle_connection", "client_bytes_per_idle_connection"),
        },
    },
    Row {
        name: "10 000 connections of one endpoint: 8 B ping-pong on one, against one alone",
        bound: Bound::AtMost(1.2, "x"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: MANY_CONNECTIONS,
            figure: Figure::Counter("slowdown"),
        },
    },
    Row {
        name: "connection set-up, sequential, one endpoint, median",
        bound: Bound::AtMost(100.0, "us"),
        bound_quick: None,
        probe: Probe::Bench {
            arguments: SMALL,
            of: CONNECTION_SETUP,
            figure: Figure::Median { shown: LATENCY, beside: Some("tcp") },
        },
    },
    Row {
        name: "torture seeds, none failing",
        bound: Bound::AtLeast(50_000.0, "seeds"),
        bound_quick: Some(Bound::AtLeast(500.0, "seeds")),
        probe: Probe::AllSucceed {
            arguments: &[
                "sim",
                "torture",
                "--seeds",
                "{quick:0..500|0..50000}",
                "--json",
                "{json}",
            ],
            count: "/seeds",
        },
    },
    Row {
        name: "simulated 1 MB write, 1 Gb/s + 100 Mb/s, against the fast link alone",
        bound: Bound::AtMost(0.93, "x"),
        bound_quick: None,
        probe: Probe::Ratio {
            arguments: SCENARIO,
            pointer: "/scenarios/1 MB, 1 Gb~1s + 100 Mb~1s/time_ns",
            to: "/scenarios/1 MB, 1 Gb~1s/time_ns",
        },
    },
    Row {
        name: "1 % loss on a simulated 1 Gb/s, 50 us link: goodput against no loss",
        bound: Bound::AtLeast(0.93, "x"),
        bound_quick: None,
        probe: Probe::Ratio {
            arguments: SCENARIO,
            pointer: "/scenarios/16 MB, 1 Gb~1s, 1 % loss/goodput_bits_per_second",
            to: "/scenarios/16 MB, 1 Gb~1s/goodput_bits_per_second",
        },
    },
    Row {
        name: "fuzzing of each decoder and of handle_frame without a crash",
        bound: Bound::AtLeast(30.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz { targets: &[], seconds_quick: 20, seconds_full: 1800 },
    },
];

/// Arguments of a run that measures large messages.
const LARGE: &[&str] = &[
    "bench",
    "--json",
    "{json}",
    "--links",
    "1",
    "--tests",
    "one-way",
    "--sizes",
    "1M",
    "--transports",
    "edge,tcp",
    "--repetitions",
    "{quick:5|10}",
    "--time",
    "{quick:10|40}",
];

/// Arguments of a run that measures small messages and connections.
const SMALL: &[&str] = &[
    "bench",
    "--json",
    "{json}",
    "--links",
    "1",
    "--tests",
    "ping-pong,operation-rate,connection-setup,many-connections",
    "--sizes",
    "8",
    "--connections",
    "10000",
    "--repetitions",
    "{quick:5|10}",
    "--time",
    "{quick:15|60}",
];

const SCENARIO: &[&str] = &["sim", "scenario", "--json", "{json}"];

const ONE_WAY: Measurement = Measurement { test: "one-way", transport: "edge" };
const PING_PONG: Measurement = Measurement { test: "ping-pong", transport: "edge" };
const OPERATION_RATE: Measurement = Measurement { test: "operation-rate", transport: "edge" };
const MANY_CONNECTIONS: Measurement = Measurement { test: "many-connections", transport: "edge" };
const CONNECTION_SETUP: Measurement = Measurement { test: "connection-setup", transport: "edge" };

const RATE: Shown = Shown { field: "bytes_per_second", scale: 8e-9, unit: "Gb/s" };
const CPU: Shown = Shown { field: "cpu_seconds_per_gigabyte", scale: 1.0, unit: "s/GB" };
const LATENCY: Shown = Shown { field: "latency_ns", scale: 1e-3, unit: "us" };
const OPERATIONS: Shown =
    Shown { field: "operations_per_second", scale: 1e-6, unit: "million operations/s" };

/// Rows about `ethernot paper`, which shows five papers on one page.
const PAPERS: &[Row] = &[
    paper("figures and tables listed", Bound::AtLeast(34.0, "items"), "/summary/items"),
    paper(
        "items that were measured, of those with a command",
        Bound::AtLeast(100.0, "%"),
        "/summary/items_measured_percent",
    ),
    paper(
        "reasons \"not known\", of all values",
        Bound::AtMost(10.0, "%"),
        "/summary/not_known_percent",
    ),
    none_fails(
        "printed values beside the reference, and where they stand",
        "papers",
        "--tests",
        true,
    ),
    none_fails(
        "Sandia's part against `sim paper sandia1999`, to the last digit",
        "ethernot-cli",
        "--bin ethernot papers_command",
        true,
    ),
    none_fails("the page shows every printed value", "report", "--lib papers", true),
    none_fails(
        "one paper killed at 20 moments and called again: items lost or invented",
        "ethernot-cli",
        "--test papers a_paper",
        true,
    ),
    none_fails(
        "all papers, quick, killed at 20 moments and called again: items lost or invented",
        "ethernot-cli",
        "--test papers all_papers -- --ignored",
        false,
    ),
];

const fn paper(name: &'static str, bound: Bound, pointer: &'static str) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Number { arguments: PAPER, pointer } }
}

const PAPER: &[&str] = &[
    "paper",
    "all",
    "{quick:--quick|--since=7d}",
    "--results",
    "target/paper-results",
    "--json",
    "{json}",
];

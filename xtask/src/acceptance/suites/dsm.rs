//! Shared memory over Ethernet: the operations Patch and Swap, and the DSM that stands on them.
//! Rows that cannot run yet name what is missing.

use super::{none_fails, printed, tests};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// A row about something that is not measured yet.
const fn missing(name: &'static str, bound: Bound, what: &'static str) -> Row {
    Row { name, bound, bound_quick: None, probe: Probe::Missing(what) }
}

/// A row about a slow test that prints the ratio of two speeds.
const fn ratio(name: &'static str, least: f64, figure: &'static str) -> Row {
    let (package, target, part) = ("runtime", "--test=speeds", "patches_against_writes");
    let tests = Tests { package, target, part, part_quick: None };
    printed(name, Bound::AtLeast(least, "x"), figure, tests)
}

const NO_FAILURE: Bound = Bound::AtMost(0.0, "that fail");

/// A row about the cost of the first write to a page that is watched.
const fn first_write(name: &'static str, most: f64, figure: &'static str) -> Row {
    let (package, target) = ("page-faults", "--test=speeds");
    let part = "first_writes_against_a_minor_fault";
    let tests = Tests { package, target, part, part_quick: Some(part) };
    printed(name, Bound::AtMost(most, "x"), figure, tests)
}

/// A row about the speed at which NumPy reads shared memory that another process has written.
const fn numpy(name: &'static str, least: f64, figure: &'static str) -> Row {
    let (package, target, part) =
        ("dsm", "--test=numpy_speed", "reads_by_numpy_against_native_reads");
    let tests = Tests { package, target, part, part_quick: Some(part) };
    printed(name, Bound::AtLeast(least, "x"), figure, tests)
}

/// The last commit before the edge protocol had patches.
pub(super) const BEFORE: &str = "872e0c49";

const NO_MEASUREMENT: &str = "not built yet: the modes are there, and no test compares their times";
const NO_DSM: &str = "not measured yet: the crate dsm runs, but has no tests of speed";

pub(super) const ROWS: &[Row] = &[
    Row {
        name: "Patch against the oracle in the torture, mixed with all other operations; seeds, none failing",
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
        name: "planted bugs, ten of them in Patch and Swap, not found within 2000 seeds",
        bound: Bound::AtMost(0.0, "bugs"),
        bound_quick: None,
        probe: Probe::Tests { package: "fabric", chosen: "torture::planted", in_quick: false },
    },
    ratio(
        "Patch of 64 scattered words in a page against 64 writes",
        10.0,
        "64 scattered words by a patch against writes",
    ),
    ratio(
        "Patch of a whole page against a write of it",
        0.6,
        "whole page by a patch against a write",
    ),
    Row {
        name: "suites verbs, frameworks, queue-pairs, rust-api and sockets: rows that became short",
        bound: Bound::AtMost(0.0, "rows"),
        bound_quick: None,
        probe: Probe::Verdicts(&["verbs", "frameworks", "queue-pairs", "rust-api", "sockets"]),
    },
    missing(
        "copies over shared memory with two of our libraries loaded, against one",
        Bound::AtLeast(0.97, "x"),
        "not built yet: no test loads two libraries and measures",
    ),
    none_fails(
        "random race-free programs against sequential memory, in virtual time, 2 to 64 nodes, 20 000 seeds",
        "dsm-protocol",
        "--release --lib twenty_thousand_seeds_pass -- --ignored",
        false,
    ),
    none_fails(
        "planted bugs of the protocol not found",
        "dsm-protocol",
        "--lib every_planted_fault_is_found",
        true,
    ),
    missing("same programs, real processes, each back-end: 500 programs each", NO_FAILURE, NO_DSM),
    none_fails(
        "race detector: programs with one planted race that are not found, and reports without a race",
        "dsm-protocol",
        "--lib the_race_detector",
        true,
    ),
    first_write(
        "first write to an own page, asynchronous write protection, against a minor fault",
        1.5,
        "first write, asynchronous, against a minor fault",
    ),
    first_write(
        "same, synchronous write protection",
        8.0,
        "first write, synchronous, against a minor fault",
    ),
    first_write("same, mprotect", 10.0, "first write, mprotect, against a minor fault"),
    missing(
        "finding and encoding the difference of a page, one word, every second, all: against copying it",
        Bound::AtMost(8.0, "x"),
        "not built yet: `encode_patch` compares word by word, and no test measures it",
    ),
    missing(
        "fetch of an absent page, whole fault, against a native read of 4 KiB",
        Bound::AtMost(2.0, "x"),
        NO_DSM,
    ),
    missing(
        "lock handed from node to node, waiter polling, against the latency of 8 B",
        Bound::AtMost(4.0, "x"),
        NO_DSM,
    ),
    missing("barrier of 2 nodes against the latency of 8 B", Bound::AtMost(3.0, "x"), NO_DSM),
    missing("barrier of 8 nodes against the latency of 8 B", Bound::AtMost(8.0, "x"), NO_DSM),
    missing("stencil on 2 nodes against 2 threads", Bound::AtLeast(0.6, "x"), NO_DSM),
    missing("same, against 1 thread", Bound::AtLeast(1.2, "x"), NO_DSM),
    numpy(
        "NumPy: two processes exchange halves of 64 MiB, against native reads of 4 KiB (after `./x python`)",
        0.5,
        "NumPy against native reads",
    ),
    numpy("same, with a hint", 0.8, "NumPy with a hint against native reads"),
    none_fails(
        "programs in C on 2 and 4 ranks, each method",
        "ethernot-dsm-c",
        "--test=programs",
        true,
    ),
    none_fails("bad input of programs in C", "ethernot-dsm-c", "--test=misuse", true),
    none_fails(
        "the header of C is current, C11 and C++17 take it",
        "ethernot-dsm-c",
        "--test=header",
        true,
    ),
    missing(
        "protocol against self-invalidation and blind fetch, FFT on 16 nodes in virtual time",
        Bound::AtLeast(1.0, "x"),
        NO_MEASUREMENT,
    ),
    missing("same, a kernel with many locks", Bound::AtLeast(1.5, "x"), NO_MEASUREMENT),
    missing(
        "region of 4 GiB, 1 % touched: memory against what was touched",
        Bound::AtMost(3.0, "x"),
        NO_DSM,
    ),
    missing("same, mappings of a userfaultfd back-end", Bound::AtMost(4.0, "mappings"), NO_DSM),
    printed(
        "node killed in a barrier, in a lock, in a diff: until all others end and name it",
        Bound::AtMost(2.0, "s"),
        "seconds from the death of a rank to the end of all others",
        tests("dsm", "--test=ranks", "a_rank_killed"),
    ),
    missing(
        "as nobody, in a container without userfaultfd, on a laptop with `-n 4`",
        NO_FAILURE,
        NO_DSM,
    ),
    Row {
        name: "fuzzing of Patch frames in the decoder and in the engine without a crash",
        bound: Bound::AtLeast(20.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz {
            targets: &["decode_frame", "engine_frames"],
            seconds_quick: 20,
            seconds_full: 1200,
        },
    },
    missing(
        "fuzzing of the state machine under lying peers",
        Bound::AtLeast(20.0, "min"),
        "not built yet: no fuzz target; seeds with lying peers run with the tests of the crate",
    ),
];

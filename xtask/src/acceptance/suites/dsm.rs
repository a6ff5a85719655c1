//! Shared memory over Ethernet: the operations Patch and Swap, and the DSM that stands on them.

use super::{none_fails, printed, reproducible, tests, verdicts};
use crate::acceptance::printed::Tests;
use crate::acceptance::{Bound, Probe, Row};

/// A row about a slow test that prints the ratio of two speeds.
const fn ratio(name: &'static str, least: f64, figure: &'static str) -> Row {
    let (package, target, part) = ("runtime", "--test=speeds", "patches_against_writes");
    let tests = Tests { package, target, part, part_quick: None };
    printed(name, Bound::AtLeast(least, "x"), figure, tests)
}

/// A row about a slow test with processes that prints a figure.
const fn processes(
    name: &'static str,
    bound: Bound,
    part: &'static str,
    figure: &'static str,
) -> Row {
    let (package, target) = ("dsm", "--test=processes");
    printed(name, bound, figure, Tests { package, target, part, part_quick: Some(part) })
}

/// A row about the cost of finding and encoding what has changed on a page.
const fn changes(name: &'static str, figure: &'static str) -> Row {
    let (package, target) = ("dsm", "--lib");
    let part = "finding_and_encoding_changes_against_copying";
    let tests = Tests { package, target, part, part_quick: Some(part) };
    printed(name, Bound::AtMost(8.0, "x"), figure, tests)
}

/// A row about times of kernels in virtual time.
const fn kernel(name: &'static str, least: f64, figure: &'static str) -> Row {
    let (package, target, part) = ("dsm-protocol", "--lib", "kernels::");
    let tests = Tests { package, target, part, part_quick: Some(part) };
    reproducible(name, Bound::AtLeast(least, "x"), figure, tests)
}

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
        "Patch of 64 scattered words in each of 64 pages against 64 writes in each",
        10.0,
        "64 scattered words of each of 64 pages by patches against writes",
    ),
    ratio(
        "same, one page alone, so that both take a round trip",
        10.0,
        "64 scattered words by a patch against writes",
    ),
    ratio(
        "Patch of a whole page against a write of it",
        0.6,
        "whole page by a patch against a write",
    ),
    verdicts("suite verbs: rows that became short", "verbs"),
    verdicts("suite frameworks: rows that became short", "frameworks"),
    verdicts("suite queue-pairs: rows that became short", "queue-pairs"),
    verdicts("suite rust-api: rows that became short", "rust-api"),
    verdicts("suite sockets: rows that became short", "sockets"),
    printed(
        "copies over shared memory with two of our libraries loaded, against one",
        Bound::AtLeast(0.97, "x"),
        "copies with two libraries against one",
        tests("ethernot-dsm-c", "--test=two_libraries", "copies_with_two_libraries_against_one"),
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
    none_fails(
        "same programs, 2 to 8 processes on this host, each back-end: 500 programs each",
        "dsm",
        "--release --test processes many_programs_see_one_memory_with_each_method -- --ignored",
        false,
    ),
    none_fails(
        "same, two hosts, two links with 1 % loss, one of them cut: 500 programs",
        "dsm",
        "--release --test processes many_programs_see_one_memory_over -- --ignored",
        false,
    ),
    printed(
        "same, synchronous write protection in a guest with Linux 6.1",
        Bound::AtLeast(500.0, "programs"),
        "random programs that are right in a guest, synchronous",
        Tests {
            package: "dsm",
            target: "--test=processes",
            part: "many_programs_see_one_memory_in_a_guest",
            part_quick: None,
        },
    ),
    none_fails(
        "same, few programs of each kind",
        "dsm",
        "--test processes programs_see_one_memory",
        true,
    ),
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
    changes(
        "finding and encoding the changes of a page in the cache, one word, every second, all: against copying it",
        "changes of a page in the cache against a copy",
    ),
    changes("same, pages of 16 MiB in turn", "changes of a page of 16 MiB against a copy"),
    processes(
        "fetch of an absent page, whole fault, against a native read of 4 KiB",
        Bound::AtMost(2.0, "x"),
        "fetches_of_pages_against_reads",
        "fetch of an absent page against a native read",
    ),
    processes(
        "lock handed from node to node, waiter polling, against the latency of 8 B",
        Bound::AtMost(4.0, "x"),
        "locks_against_writes",
        "lock from node to node against a write",
    ),
    processes(
        "barrier of 2 nodes against the latency of 8 B",
        Bound::AtMost(3.0, "x"),
        "barriers_of_two_against_writes",
        "barrier of 2 nodes against a write",
    ),
    processes(
        "barrier of 8 nodes against the latency of 8 B; needs 8 processors",
        Bound::AtMost(8.0, "x"),
        "barriers_of_eight_against_writes",
        "barrier of 8 nodes against a write",
    ),
    processes(
        "stencil of 2048 x 2048 doubles on 2 nodes against 2 threads",
        Bound::AtLeast(0.6, "x"),
        "a_stencil_against_threads",
        "stencil against threads",
    ),
    processes(
        "same, against 1 thread",
        Bound::AtLeast(1.2, "x"),
        "a_stencil_against_threads",
        "stencil against one thread",
    ),
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
    kernel(
        "self-invalidation and blind fetch against notices, transposes on 16 nodes in virtual time",
        1.0,
        "transpose in other modes against notices",
    ),
    kernel(
        "self-invalidation against notices, a kernel with many locks",
        1.5,
        "many locks with self-invalidation against notices",
    ),
    processes(
        "region of 4 GiB, 1 % touched: memory against what was touched",
        Bound::AtMost(3.0, "x"),
        "memory_of_a_large_region",
        "memory against what was touched",
    ),
    processes(
        "same, mappings of a userfaultfd back-end",
        Bound::AtMost(4.0, "mappings"),
        "memory_of_a_large_region",
        "mappings of the region",
    ),
    printed(
        "node killed in a barrier, in a lock, in a diff: until all others end and name it",
        Bound::AtMost(2.0, "s"),
        "seconds from the death of a rank to the end of all others",
        tests("dsm", "--test=ranks", "a_rank_killed"),
    ),
    none_fails(
        "four ranks on this host as nobody, with userfaultfd forbidden by seccomp",
        "dsm",
        "--test=ranks four_ranks_run_without_rights",
        true,
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
    Row {
        name: "fuzzing of the state machine under lying peers, and of greetings, without a crash",
        bound: Bound::AtLeast(20.0, "min"),
        bound_quick: Some(Bound::AtLeast(20.0 / 60.0, "min")),
        probe: Probe::Fuzz {
            targets: &["dsm_node", "dsm_greeting"],
            seconds_quick: 20,
            seconds_full: 1200,
        },
    },
];

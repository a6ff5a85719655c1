//! Tests the harness with an engine that keeps its guarantees, and with engines that break them.

use super::plain::{Bug, PlainEngine};
use super::{Options, Report, run_range_with, run_with};
use crate::oracle::Violation;

#[test]
fn engine_that_keeps_its_promises_passes() {
    let make = |_, tuning| PlainEngine::new(&tuning, Bug::None);
    let tally = run_range_with(0..200, &Options::default(), &make, &mut |_| {});
    for report in &tally.failures {
        println!("{report}");
    }
    assert!(tally.failures.is_empty(), "{} of 200 seeds fail", tally.failures.len());
    assert!(tally.completed > 5_000 && tally.delivered > 500, "{tally:?}");
}

#[test]
fn same_seed_gives_the_same_trace() {
    let options = Options { twice: false, ..Options::default() };
    let make = |_, tuning| PlainEngine::new(&tuning, Bug::None);
    let (first, second) = (run_with(3, &options, &make), run_with(3, &options, &make));
    assert_eq!(first.trace_hash, second.trace_hash);
    assert_ne!(first.trace_hash, run_with(4, &options, &make).trace_hash);
}

#[test]
fn broken_promises_are_detected() {
    for (bug, expected) in [
        (Bug::PlacesDuplicates, "byte"),
        (Bug::PlacesEarly, "byte"),
        (Bug::RepeatsAtomics, "atomic"),
        (Bug::CompletesTwice, "completion"),
        (Bug::NeverCompletes, "completion"),
        (Bug::SwapsCompletions, "completion"),
        (Bug::CompletesTooSoon, "byte"),
        (Bug::AltersImmediates, "delivery"),
        (Bug::WritesBeyond, "guard bytes"),
        (Bug::GivesUp, "although nothing ended it"),
        (Bug::WritesAfterEnd, "changed after"),
        (Bug::Hoards, "limit"),
        (Bug::FallsSilent, "ended by Unreachable although"),
        (Bug::ReadsStale, "read"),
    ] {
        let report = first_failure(bug, expected);
        let text = report.map(|report| report.to_string());
        assert!(text.is_some(), "{bug:?} is not noticed as {expected:?}");
    }
}

#[test]
fn a_run_that_depends_on_more_than_its_seed_is_detected() {
    let lives = std::cell::Cell::new(0_u8);
    let make = |_, mut tuning: crate::host::Tuning| {
        lives.set(lives.get().wrapping_add(1));
        tuning.entropy[0] ^= lives.get();
        PlainEngine::new(&tuning, Bug::None)
    };
    let report = run_with(1, &Options::default(), &make);
    let violation = report.failure.map(|failure| failure.violation);
    assert!(matches!(violation, Some(Violation::NotDeterministic { .. })), "{violation:?}");
}

#[test]
fn a_failure_prints_the_command_that_reproduces_it() {
    let report = first_failure(Bug::FallsSilent, "ended by Unreachable although")
        .expect("silence is noticed");
    let command = format!("ethernot sim torture --seeds {}..{}", report.seed, report.seed + 1);
    let text = report.to_string();
    assert!(text.contains(&command) && text.contains("last events"), "{text}");
}

/// Returns the report of the first seed that fails with this text.
fn first_failure(bug: Bug, expected: &str) -> Option<Report> {
    let options = Options { twice: false, compare_interval_turns: 16, ..Options::default() };
    let make = |_, tuning| PlainEngine::new(&tuning, bug);
    (0..300).map(|seed| run_with(seed, &options, &make)).find(|report| {
        report
            .failure
            .as_ref()
            .is_some_and(|failure| failure.violation.to_string().contains(expected))
    })
}

#[test]
#[ignore = "slow: run by hand, with --nocapture; prints each seed"]
fn each_seed() {
    let make = |_, tuning| PlainEngine::new(&tuning, Bug::None);
    let options = Options { twice: false, ..Options::default() };
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let count = std::env::var("COUNT").ok().and_then(|count| count.parse().ok()).unwrap_or(20);
    let is_real = std::env::var("REAL").is_ok();
    for seed in first..first + count {
        let real = || super::run(seed, &options);
        let report = if is_real { real() } else { run_with(seed, &options, &make) };
        println!("{report}");
    }
}

//! Torture runs on hosts with busy processors. There are zero to four busy threads per processor.

use fabric::torture::{self, Options};

fn check(load: u8, queue_pairs: bool) {
    let options = Options { load: Some(load), queue_pairs, twice: false, ..Options::default() };
    let tally = torture::run_range(0..SEEDS, &options, &mut |_| {});
    for report in &tally.failures {
        println!("{report}");
    }
    assert!(tally.failures.is_empty(), "{} of {SEEDS} seeds fail", tally.failures.len());
}

#[test]
fn engines_keep_their_promises_without_load() {
    check(0, false);
}

#[test]
fn engines_keep_their_promises_beside_one_thread_for_each_processor() {
    check(1, false);
}

#[test]
fn engines_keep_their_promises_beside_two_threads_for_each_processor() {
    check(2, false);
}

#[test]
fn engines_keep_their_promises_beside_four_threads_for_each_processor() {
    check(4, false);
}

#[test]
fn queue_pairs_keep_their_promises_beside_four_threads_for_each_processor() {
    check(4, true);
}

#[test]
fn a_seed_repeats_itself_under_load() {
    let options = Options { load: Some(4), ..Options::default() };
    for seed in 0..4 {
        let report = torture::run(seed, &options);
        assert!(report.failure.is_none(), "{report}");
    }
}

#[test]
fn a_load_changes_the_trace() {
    let hash = |load| {
        let options = Options { load, twice: false, ..Options::default() };
        torture::run(1, &options).trace_hash
    };
    let hashes = [None, Some(0), Some(4)].map(hash);
    assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2], "{hashes:?}");
}

const SEEDS: u64 = 40;

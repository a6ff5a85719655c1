//! Torture: two streams with random settings, work, cuts, delays and breaks, in virtual time.

use super::world::{Chances, World};
use crate::planted::{Planted, plant};

/// Number of seeds of a run in every build.
const SEEDS: u64 = 300;

/// Number of seeds in which a planted fault must be found.
const SEEDS_OF_FAULT: u64 = 400;

/// What can happen in the run of a seed.
fn chances(seed: u64) -> Chances {
    Chances { faults: seed % 2 == 1, sleepy: seed % 5 == 2 }
}

fn run(seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        let run = World::new(seed, chances(seed)).run();
        run.map_err(|failure| format!("seed {seed}: {failure}"))?;
    }
    Ok(())
}

#[test]
fn random_work_over_any_cut_is_placed_and_completed_exactly_once() {
    assert_eq!(run(0..SEEDS), Ok(()));
}

#[test]
#[ignore = "slow: run by `./x acceptance iwarp`"]
fn twenty_thousand_seeds_pass() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    assert_eq!(run(0..seeds.unwrap_or(20_000)), Ok(()));
}

#[test]
fn every_planted_fault_is_found() {
    let faults = [
        Planted::LosesCompletion,
        Planted::IgnoresCrc,
        Planted::PlacesUnchecked,
        Planted::ForgetsTail,
        Planted::SpeaksFirst,
        Planted::IgnoresFence,
        Planted::IgnoresOrd,
        Planted::ForgetsLast,
        Planted::RepeatsByte,
        Planted::ForgetsNudge,
        Planted::CompletesReadEarly,
    ];
    for fault in faults {
        plant(Some(fault));
        let found = (0..SEEDS_OF_FAULT).any(|seed| World::new(seed, chances(seed)).run().is_err());
        plant(None);
        assert!(found, "{fault:?} is not found");
    }
}

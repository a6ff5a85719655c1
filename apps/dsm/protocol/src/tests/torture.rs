//! Torture: random programs without races, on random settings, against one memory.

use super::program::{Shape, program};
use super::random::Random;
use super::world::{Settings, Summary, World};
use crate::config::{Coherence, Config};
use crate::diff::PAGE_WORDS;
use crate::identity::Rank;
use crate::node_state::Counters;
use crate::planted::{Planted, plant};
use crate::races::Race;

/// Number of seeds of a run in every build.
const SEEDS: u64 = 300;

/// Number of seeds in which a planted fault must be found.
const SEEDS_OF_FAULT: u64 = 1_000;

/// Returns the run of a seed.
fn settings(seed: u64) -> Settings {
    let mut random = Random::new(seed);
    let nodes = match random.below(40) {
        0 => 64,
        1..4 => 9 + random.below(24) as u8,
        4..12 => 5 + random.below(4) as u8,
        _ => 2 + random.below(3) as u8,
    };
    let is_large = nodes > 8;
    let notes_writes = random.pick(&[0, 0, 0xff, 0x55]);
    let shape = Shape {
        nodes,
        threads: if is_large { 1 } else { 1 + random.below(3) as u16 },
        pages: 1 + random.below(8) as u32,
        phases: if is_large { 2 } else { 2 + random.below(5) },
        steps: if is_large { 2 } else { 2 + random.below(4) },
        only_barriers: random.one_in(6),
        has_race: false,
    };
    let config = Config {
        threads: shape.threads,
        log_entries: random.pick(&[4, 16, 64, 1024]),
        coherence: if random.one_in(10) { Coherence::SelfInvalidation } else { Coherence::Notices },
        fetch_pages: if random.one_in(8) { 8 } else { 1 },
        history: random.one_in(2),
        migrate_after: random.pick(&[0, 1, 3]),
        races: notes_writes == 0 && random.one_in(6),
        ..Config::new(Rank(0), nodes, shape.pages)
    };
    let death = random
        .one_in(12)
        .then(|| (random.below(usize::from(nodes)) as u8, random.below(400_000) as u64));
    let read_ahead = random.pick(&[1, 2, 256]);
    let pages_in_flight = random.pick(&[1, 2, 4, 256]);
    let config = Config { read_ahead, pages_in_flight, ..config };
    let notes_once = random.one_in(2);
    Settings { seed, shape, config, death, lies_one_in: 0, notes_writes, notes_once, timing: None }
}

fn run_one(settings: Settings) -> Result<Summary, String> {
    World::new(settings).run().map_err(|failure| format!("seed {}: {failure}", settings.seed))
}

/// Runs seeds. Returns the counters of all nodes.
fn run(seeds: std::ops::Range<u64>) -> Result<Vec<Counters>, String> {
    let mut counters = Vec::new();
    for seed in seeds {
        let summary = run_one(settings(seed))?;
        if !summary.races.is_empty() {
            return Err(format!("seed {seed}: reported {:?}", summary.races));
        }
        counters.extend(summary.counters);
    }
    Ok(counters)
}

//= dsm-protocol.md: fetch.3
//= dsm-protocol.md: acquire.2
#[test]
fn random_programs_without_races_see_one_memory_and_use_every_mechanism() {
    let counters = run(0..SEEDS).unwrap_or_else(|failure| panic!("{failure}"));
    let uses: [fn(&Counters) -> u64; 8] = [
        |counters| counters.fetches,
        |counters| counters.prefetches,
        |counters| counters.stale_fetches,
        |counters| counters.patches,
        |counters| counters.invalidations,
        |counters| counters.overruns,
        |counters| counters.handovers,
        |counters| counters.moves,
    ];
    for (index, count) in uses.into_iter().enumerate() {
        assert!(counters.iter().map(count).sum::<u64>() > 20, "mechanism {index} is hardly used");
    }
}

/// In this run, a node that became the home of a page at a barrier posted changes of other nodes as its
/// own.
//= dsm-protocol.md: move.4
#[test]
fn a_new_home_posts_no_changes_of_nodes_that_have_left_the_barrier() {
    run_one(settings(1735)).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn twenty_thousand_seeds_pass() {
    let seeds = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let counters = run(0..seeds.unwrap_or(20_000)).unwrap_or_else(|failure| panic!("{failure}"));
    let fetches: u64 = counters.iter().map(|counters| counters.fetches).sum();
    println!("{} nodes ran, and fetched {fetches} pages", counters.len());
}

/// Each fault breaks one of these rules.
//= dsm-protocol.md: log.3
//= dsm-protocol.md: log.2
//= dsm-protocol.md: interval.1
//= dsm-protocol.md: interval.2
//= dsm-protocol.md: interval.3
//= dsm-protocol.md: lock.4
//= dsm-protocol.md: acquire.1
//= dsm-protocol.md: acquire.3
//= dsm-protocol.md: move.5
//= dsm-protocol.md: barrier.2
//= dsm-protocol.md: fetch.4
//= dsm-protocol.md: share.1
//= dsm-protocol.md: home.3
//= dsm-protocol.md: diff.3
//= dsm-protocol.md: atomic.2
//= dsm-protocol.md: noted.1
//= dsm-protocol.md: noted.2
//= dsm-protocol.md: noted.3
//= dsm-protocol.md: noted.4
#[test]
fn every_planted_fault_is_found() {
    let faults = [
        Planted::LosesNotice,
        Planted::MakesTwinLate,
        Planted::HandsOverEarly,
        Planted::ForgetsClock,
        Planted::ForgetsMove,
        Planted::LeavesRoundOut,
        Planted::IgnoresPatches,
        Planted::UsesStaleFetch,
        Planted::HidesSharer,
        Planted::DropsChanges,
        Planted::KeepsLostClaim,
        Planted::UnfencedPatch,
        Planted::IgnoresOverwritten,
        Planted::HidesAtomic,
        Planted::ForgetsNotedWrites,
        Planted::ForgetsPost,
    ];
    for fault in faults {
        plant(Some(fault));
        let found = (0..SEEDS_OF_FAULT).find(|seed| run_one(settings(*seed)).is_err());
        plant(None);
        assert!(found.is_some(), "{fault:?} is not found");
    }
}

/// Programs with a planted race, and programs without one, that the race detector sees.
const RACY_PROGRAMS: u64 = 200;

/// Returns the run of a seed with the race detector.
fn racy_settings(seed: u64, has_race: bool) -> Settings {
    let mut settings = settings(seed);
    settings.shape.nodes = settings.shape.nodes.min(8);
    settings.shape.has_race = has_race;
    settings.config.nodes = settings.shape.nodes;
    settings.config.races = true;
    settings.notes_writes = 0;
    settings.config.coherence = Coherence::Notices;
    settings.death = None;
    settings
}

//= dsm-protocol.md: race.1
#[test]
fn the_race_detector_finds_planted_races() {
    let mut found = 0;
    for seed in 0..RACY_PROGRAMS {
        let settings = racy_settings(seed, true);
        let raced = program(seed, settings.shape).race.expect("the program has a race");
        let races = run_one(settings).expect("all other words are right").races;
        let word = |race: &Race| race.page.index() * PAGE_WORDS + usize::from(race.word);
        assert!(races.iter().all(|race| word(race) == raced), "seed {seed}: {races:?}");
        found += u64::from(!races.is_empty());
    }
    println!("planted races found: {found} of {RACY_PROGRAMS}");
    assert!(found * 100 >= RACY_PROGRAMS * 95, "{found} of {RACY_PROGRAMS}");
}

#[test]
fn the_race_detector_reports_nothing_without_a_race() {
    for seed in 0..RACY_PROGRAMS {
        let summary = run_one(racy_settings(seed, false)).expect("the program has no race");
        assert_eq!(summary.races, [], "seed {seed}");
    }
}

/// Runs whose arrivals are falsified.
const LYING_RUNS: u64 = 300;

//= dsm-protocol.md: end.1
#[test]
fn peers_that_lie_end_a_node_or_are_survived_without_a_panic() {
    let mut ended = 0;
    for seed in 0..LYING_RUNS {
        let mut settings = settings(seed);
        settings.shape.nodes = settings.shape.nodes.min(8);
        settings.config.nodes = settings.shape.nodes;
        settings.death = None;
        settings.lies_one_in = 20 + (seed % 7) as usize * 50;
        // A lie may give a thread wrong data, or keep it waiting: only a panic is a fault here.
        match World::new(settings).run() {
            Ok(summary) => ended += u64::from(summary.failures.iter().any(Option::is_some)),
            Err(misuse) => println!("seed {seed}: {misuse}"),
        }
    }
    println!("lies ended a node in {ended} of {LYING_RUNS} runs");
    assert!(ended > LYING_RUNS / 2, "lies were noticed in {ended} runs");
}

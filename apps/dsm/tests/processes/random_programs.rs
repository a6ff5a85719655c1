//! Random programs without data races, on several processes, against one memory that all of them
//! have mapped: on this host, and on two hosts whose links lose frames and are cut.

use std::env;
use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dsm::Method;
use testbed::pair::{Direction, NamespacePair};
use testbed::switched::LinkShape;

use crate::ranks::{Loopback, Place, Ranks, TwoHosts};

/// The example that runs one program as one rank.
pub(crate) const EXAMPLE: &str = "random_program";

/// Programs of each method in every run of the tests.
const FEW: Range<u64> = 0..10;

/// Programs of each method in the slow tests.
const MANY: u64 = 500;

/// Time until a program that has not ended hangs. Most take less than a second.
const LIMIT: Duration = Duration::from_mins(1);

/// The methods, by their values of the variable that chooses one.
const METHODS: [(Method, &str); 3] = [
    (Method::Asynchronous, "asynchronous"),
    (Method::Synchronous, "synchronous"),
    (Method::Protection, "mprotect"),
];

#[test]
fn programs_see_one_memory_with_asynchronous_write_protection() {
    run_all(&Loopback, &METHODS[..1], FEW, || {});
}

#[test]
fn programs_see_one_memory_with_synchronous_write_protection() {
    run_all(&Loopback, &METHODS[1..2], FEW, || {});
}

#[test]
fn programs_see_one_memory_with_mprotect() {
    run_all(&Loopback, &METHODS[2..], FEW, || {});
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn many_programs_see_one_memory_with_each_method() {
    run_all(&Loopback, &METHODS, many(), || {});
}

/// The part of the test above that a guest runs.
#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn many_programs_see_one_memory_with_synchronous_write_protection() {
    run_all(&Loopback, &METHODS[1..2], many(), || {});
}

#[test]
fn programs_see_one_memory_over_two_links_that_lose_frames_and_are_cut() {
    // Connections begin on the first link. On a busy host, they may find the second link only after
    // the cut.
    over_links(0..3, |_| 2);
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn many_programs_see_one_memory_over_two_links_that_lose_frames_and_are_cut() {
    over_links(many(), |seed| 1 + (seed % 2) as u32);
}

/// Returns the seeds of a slow test. The variable `SEEDS` has other ones, such as `17..18`.
pub(crate) fn many() -> Range<u64> {
    let Ok(text) = env::var("SEEDS") else { return 0..MANY };
    let bounds =
        text.split_once("..").and_then(|(start, end)| Some(start.parse().ok()?..end.parse().ok()?));
    bounds.expect("SEEDS is a range, such as 17..18")
}

/// Runs the programs of seeds with methods. Calls `disturb` when the ranks of a program have met.
fn run_all(place: &impl Place, methods: &[(Method, &str)], seeds: Range<u64>, disturb: impl Fn()) {
    for (method, name) in methods {
        if let Err(error) = method.check() {
            println!("skipped: {error}");
            continue;
        }
        let count = seeds.end - seeds.start;
        for seed in seeds.clone() {
            let ranks = ranks_of(seed);
            let memory = SharedFile::new();
            let file = memory.0.display().to_string();
            let pause = place.pause().as_millis().to_string();
            let arguments = [seed.to_string(), ranks.to_string(), file, pause];
            let mut started = Ranks::start(place, EXAMPLE, &arguments, ranks, name);
            if started.first_line().trim() == "joined" {
                disturb();
            }
            if let Err(what) = started.finish(LIMIT) {
                panic!("seed {seed}, {ranks} ranks, {name}:\n{what}");
            }
        }
        println!("figure: random programs that are right, {name}: {count}");
    }
}

/// Returns the number of ranks of a seed: most have few, so that their threads run at once.
fn ranks_of(seed: u64) -> usize {
    [2, 3, 2, 4, 2, 5, 3, 8][(seed % 8) as usize]
}

/// A file in memory, which is removed at the end.
struct SharedFile(PathBuf);

impl SharedFile {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(env::temp_dir().join(format!("ethernot-dsm-{}-{number}", process::id())))
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        // There is none if no rank has started.
        let _missing = fs::remove_file(&self.0);
    }
}

/// Cuts a link, or repairs it, and waits until that is done.
fn cut(hosts: &TwoHosts, link: u32, is_cut: bool) {
    let both = [Direction::ToServer, Direction::ToClient];
    let lever = hosts.pair().prepare_cut(link, &both, is_cut);
    lever
        .and_then(|mut lever| lever.pull().and_then(|_| lever.finish()))
        .expect("the switches exist");
}

/// Runs the programs of seeds on two hosts with two links between them, through switches that lose
/// one frame in a hundred. When the ranks have met, the link that `cut_of` returns is cut.
fn over_links(seeds: Range<u64>, cut_of: impl Fn(u64) -> u32) {
    let link = LinkShape { loss_percent: 1.0, ..LinkShape::of_rate(1_000_000_000) };
    let Some(hosts) = TwoHosts::new(|| NamespacePair::create_switched(&[link, link], 1500)) else {
        return;
    };
    for seed in seeds {
        let link = cut_of(seed);
        let methods = &METHODS[(seed % 3) as usize..][..1];
        run_all(&hosts, methods, seed..seed + 1, || cut(&hosts, link, true));
        cut(&hosts, link, false);
    }
}

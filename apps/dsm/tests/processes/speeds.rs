//! Figures of the shared memory on processes of this host: each against what it stands on, measured
//! in turn in one run.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::thread;
use std::time::Duration;

use dsm::Method;
use testbed::pair::NamespacePair;

use crate::ranks::{Loopback, Place, Ranks, TwoHosts};

const LIMIT: Duration = Duration::from_mins(4);

/// Number of starts of a measurement on a link. If the kernel lets two ranks share a processor although
/// another is idle, a rank that polls keeps its peer from running: a fetch then takes 90 µs instead of
/// 30 µs. That lasts for many fetches, often for a whole run.
const STARTS: usize = 5;

/// Begins the line with a figure, which `./x acceptance` reads.
const FIGURE: &str = "figure: ";

/// Runs the ranks of a measurement once. Returns what they print.
fn run(place: &impl Place, what: &str, ranks: usize, method: &str) -> String {
    let started = Ranks::start(place, "figures", &[what.to_owned()], ranks, method);
    match started.finish(LIMIT) {
        Ok(outputs) => {
            outputs.iter().map(|output| String::from_utf8_lossy(&output.stdout)).collect()
        }
        Err(text) => panic!("{what}, {ranks} ranks, {method}:\n{text}"),
    }
}

/// Measures on a link, with the first method that works here, as programs use it. Prints what the ranks
/// print, over [`STARTS`] starts, and the median of each of their figures.
fn measure_on_a_link(what: &str, ranks: usize) {
    let Some(hosts) = TwoHosts::new(|| NamespacePair::create(1, 1500)) else { return };
    let mut figures: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..STARTS {
        for line in run(&hosts, what, ranks, "").lines() {
            let Some(figure) = line.strip_prefix(FIGURE) else {
                println!("{line}");
                continue;
            };
            let (name, value) = figure.rsplit_once(": ").expect("a figure has a name");
            let value = value.parse().expect("a figure is a number");
            figures.entry(name.to_owned()).or_default().push(value);
        }
    }
    for (name, mut values) in figures {
        assert_eq!(values.len(), STARTS, "{name}");
        values.sort_by(f64::total_cmp);
        println!("{name}, {STARTS} starts: {values:?}");
        println!("{FIGURE}{name}: {}", values[STARTS / 2]);
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn fetches_of_pages_against_reads() {
    measure_on_a_link("fetch", 2);
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn locks_against_writes() {
    measure_on_a_link("lock", 2);
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn barriers_of_two_against_writes() {
    measure_on_a_link("barrier", 2);
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn barriers_of_eight_against_writes() {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    if processors < 8 {
        println!(
            "skipped: 8 ranks that wait by polling need 8 processors, and this host has {processors}"
        );
        return;
    }
    measure_on_a_link("barrier", 8);
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn a_stencil_against_threads() {
    print!("{}", run(&Loopback, "stencil", 2, ""));
}

#[test]
#[ignore = "slow: run by `./x acceptance dsm`; measures"]
fn memory_of_a_large_region_against_what_was_touched() {
    for (method, name) in
        [(Method::Asynchronous, "asynchronous"), (Method::Synchronous, "synchronous")]
    {
        if let Err(error) = method.check() {
            println!("skipped: {error}");
            continue;
        }
        print!("{}", run(&Loopback, "sparse", 2, name));
    }
}

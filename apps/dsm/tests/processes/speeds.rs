//! Figures of the shared memory on processes of this host: each against what it stands on, measured
//! in turn in one run.

use std::num::NonZero;
use std::thread;
use std::time::Duration;

use dsm::Method;
use testbed::pair::NamespacePair;

use crate::ranks::{Loopback, Place, Ranks, TwoHosts};

const LIMIT: Duration = Duration::from_mins(4);

/// Prints what the ranks of a measurement print.
fn measure(place: &impl Place, what: &str, ranks: usize, method: &str) {
    let started = Ranks::start(place, "figures", &[what.to_owned()], ranks, method);
    match started.finish(LIMIT) {
        Ok(outputs) => {
            for output in outputs {
                print!("{}", String::from_utf8_lossy(&output.stdout));
            }
        }
        Err(text) => panic!("{what}, {ranks} ranks, {method}:\n{text}"),
    }
}

/// Measures with the first method that works here, as programs use it.
fn measure_on_a_link(what: &str, ranks: usize) {
    let Some(hosts) = TwoHosts::new(|| NamespacePair::create(1, 1500)) else { return };
    measure(&hosts, what, ranks, "");
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
    measure(&Loopback, "stencil", 2, "");
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
        measure(&Loopback, "sparse", 2, name);
    }
}

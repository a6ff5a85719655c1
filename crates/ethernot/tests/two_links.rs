//! Measures the cost of a second link if neither link limits the rate.
#![forbid(unsafe_code)]

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::collections::VecDeque;
use std::time::Instant;

use ethernot::{Endpoint, EndpointBuilder, OperationOptions, Rights};
use pair::{BYTES, LIMIT, Pair, loopback};

/// Number of reads in a round.
const READS: usize = 300;
const IN_FLIGHT: usize = 4;
const ROUNDS: usize = 15;

/// Compares reads of 1 MiB over two UDP links on loopback with reads over one link. The two
/// variants alternate after each round. Run this test alone:
///
/// ```sh
/// cargo test --release -p ethernot --test two_links -- --ignored --nocapture
/// ```
#[test]
#[ignore = "slow: run by hand, alone in its process; measures"]
fn reads_over_two_links_against_one() {
    let two = || -> EndpointBuilder { loopback().bind("127.0.0.2:0") };
    let rights = Rights::REMOTE_READ | Rights::LOCAL_WRITE;
    let pairs = [Pair::build(loopback(), loopback(), rights), Pair::build(two(), two(), rights)];
    assert_eq!(links(&pairs[1].client.endpoint), 2);
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let [one, two] = [0, 1].map(|index| seconds(&pairs[index]));
            one / two
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("from {:.3} to {:.3}", ratios[0], ratios[ROUNDS - 1]);
    println!("figure: reads of 1 MiB over two links against one: {:.3}", ratios[ROUNDS / 2]);
}

fn links(endpoint: &Endpoint) -> usize {
    endpoint.links().expect("not forked").len()
}

/// Returns the duration of a round in seconds.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn seconds(pair: &Pair) -> f64 {
    let began = Instant::now();
    let mut reads = VecDeque::with_capacity(IN_FLIGHT);
    for posted in 0..READS + IN_FLIGHT {
        if posted >= IN_FLIGHT {
            let read: ethernot::OperationHandle =
                reads.pop_front().expect("an operation is in flight");
            assert_eq!(read.wait(Some(LIMIT)), Ok(0));
        }
        if posted < READS {
            let (client, region) = (&pair.client.connection, &pair.client.region);
            let read = client.read(region, 0, &pair.remote, 0, BYTES, OperationOptions::NONE);
            reads.push_back(read.expect("it is posted"));
        }
    }
    began.elapsed().as_secs_f64()
}

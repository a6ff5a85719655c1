//! Measures the resources that idle moved connections use.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::pair::Pair;

/// Number of connections. This process has both ends of each connection.
const CONNECTIONS: u64 = 1000;

#[test]
#[ignore = "slow: run by `./x acceptance sockets`; alone in its process"]
fn idle_connections_use_little_memory() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_NOFILE, most, most).expect("it is allowed");
    let pair = Pair::new();
    // The first connection allocates memory that all connections share, so exclude it from the
    // measurement.
    let _first = pair.moved();
    let before = resident_kib();
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let (client, server) = pair.moved();
            client.send_all(b"question");
            server.expect(b"question");
            server.send_all(b"answer");
            client.expect(b"answer");
            (client, server)
        })
        .collect();
    let each = resident_kib().saturating_sub(before) as f64 / (2 * CONNECTIONS) as f64;
    drop(all);
    // `xtask acceptance sockets` reads this line.
    println!("figure: resident memory of an idle connection, KiB: {each:.1}");
}

/// Returns the resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.expect("a number of KiB")
}

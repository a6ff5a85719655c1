//! Programs that need many of the descriptors they may have: all of their connections are served, on whichever way.

use programs::{Counters, Loaded, Network, Program, Side, Stage, are_installed};

/// So many connections at once between two programs, each of which may have so many descriptors: all are served. What
/// the client counted.
#[track_caller]
fn served(connections: u32, limit: u32, moving: &str) -> Option<Counters> {
    let plain = served_with(Loaded::Neither, connections, limit, moving);
    plain.and_then(|_| served_with(Loaded::Both, connections, limit, moving))
}

#[track_caller]
fn served_with(loaded: Loaded, connections: u32, limit: u32, moving: &str) -> Option<Counters> {
    if !are_installed(&["python3", "prlimit"]) {
        return None;
    }
    let stage = Stage::new(&Network::Loopback, loaded)?;
    let stage = stage.variable("ETHERNOT_SOCKETS_MOVE", moving);
    let file = stage.file("many.py", include_str!("../clients/sockets_many.py"));
    let port = stage.free_port();
    let side = |role: &str| {
        let words = format!("--nofile={limit}:{limit} python3 {}", file.display());
        let program = Program::new("prlimit", &words).argument(&role);
        program.argument(&stage.address()).argument(&port)
    };
    let mut server = stage.start(&side("server"), Side::Server);
    server.wait_for_listener(port);
    let client = side("client").argument(&connections).argument(&ROUNDS);
    let client = stage.run(&client, Side::Client);
    let server = server.stop();
    let wanted = format!("connected {connections} of {connections}, failed: []");
    assert!(client.expect_success().contains(&wanted), "{loaded:?} {moving}: {client}\n{server}");
    let counters = stage.counters(Side::Client);
    println!("{loaded:?} {moving}: {counters:?}");
    Some(counters)
}

/// Connections that stayed on TCP for want of descriptors.
fn without_descriptors(counters: &Counters) -> u64 {
    let is_it = |(reason, _): &&(String, u64)| reason == "descriptors";
    counters.reasons.iter().find(is_it).map_or(0, |(_, count)| *count)
}

#[test]
fn a_process_with_64_descriptors_serves_more_than_half_of_them_carry() {
    // What moves at its first use has its descriptors before the program has all of its own.
    for (connections, moving) in [(40, "when-it-pays"), (24, "always")] {
        let Some(counters) = served(connections, 64, moving) else { return };
        assert!(without_descriptors(&counters) > 0, "{moving}: {counters:?}");
    }
}

#[test]
fn a_process_with_64_descriptors_moves_as_many_as_half_of_them_carry() {
    for moving in ["when-it-pays", "always"] {
        let Some(counters) = served(10, 64, moving) else { return };
        let is_right = counters.moved > 0 && without_descriptors(&counters) > 0;
        assert!(is_right && counters.moved <= 10, "{moving}: {counters:?}");
    }
}

#[test]
fn six_hundred_connections_are_served_with_1024_descriptors_on_either_side() {
    let Some(counters) = served(600, 1024, "when-it-pays") else { return };
    assert!(without_descriptors(&counters) > 0, "{counters:?}");
    let Some(counters) = served(600, 1024, "always") else { return };
    assert!(counters.moved > 0 && without_descriptors(&counters) > 0, "{counters:?}");
}

/// Requests of each connection: enough for it to move.
const ROUNDS: u32 = 40;

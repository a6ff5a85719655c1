//! Programs that use nearly all descriptors that they may have. The server must serve all
//! connections, whether they move or stay on TCP.

use std::time::Duration;

use programs::{
    Counters, Loaded, Network, Program, Side, Stage, are_installed, build_plain_client,
};

/// Runs two programs, each limited to `limit` descriptors, with `connections` simultaneous
/// connections. Checks that all connections are served. Returns the client's counters.
#[track_caller]
fn served(connections: u32, limit: u32, moving: &str) -> Option<Counters> {
    served_for(ROUNDS, connections, limit, moving)
}

/// Does the same as [`served`], with this number of rounds on each connection.
#[track_caller]
fn served_for(rounds: u32, connections: u32, limit: u32, moving: &str) -> Option<Counters> {
    let plain = served_with(Loaded::Neither, rounds, connections, limit, moving);
    plain.and_then(|_| served_with(Loaded::Both, rounds, connections, limit, moving))
}

#[track_caller]
fn served_with(
    loaded: Loaded,
    rounds: u32,
    connections: u32,
    limit: u32,
    moving: &str,
) -> Option<Counters> {
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
    let client = side("client").argument(&connections).argument(&rounds);
    let client = stage.run(&client, Side::Client);
    let server = server.stop();
    let wanted = format!("connected {connections} of {connections}, failed: []");
    assert!(client.expect_success().contains(&wanted), "{loaded:?} {moving}: {client}\n{server}");
    let counters = stage.counters(Side::Client);
    println!("{loaded:?} {moving}: {counters:?}");
    Some(counters)
}

/// Returns the number of connections that stayed on TCP because descriptors were scarce.
fn without_descriptors(counters: &Counters) -> u64 {
    let is_it = |(reason, _): &&(String, u64)| reason == "descriptors";
    counters.reasons.iter().find(is_it).map_or(0, |(_, count)| *count)
}

#[test]
fn a_process_with_64_descriptors_serves_connections_without_moving_all() {
    // With `always`, a connection moves at its first use. Then the library opens descriptors before
    // the program has opened all descriptors that it needs.
    for (connections, moving) in [(40, "when-it-pays"), (24, "always")] {
        let Some(counters) = served(connections, 64, moving) else { return };
        assert!(without_descriptors(&counters) > 0, "{moving}: {counters:?}");
    }
}

#[test]
fn a_process_with_64_descriptors_moves_some_of_ten_connections() {
    for moving in ["when-it-pays", "always"] {
        let mut rounds = ROUNDS;
        let counters = loop {
            let Some(counters) = served_for(rounds, 10, 64, moving) else { return };
            // On a busy host, all connections may end before the first one has moved. Then repeat
            // the test with more rounds on each connection.
            if counters.moved > 0 || rounds > 16 * ROUNDS {
                break counters;
            }
            rounds *= 4;
        };
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

/// The test starts 4096 processes, or as many as fit into memory, which connect to one server at
/// the same time.
#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn thousands_of_processes_are_served() {
    let Some(program) = build_plain_client("sockets_peers") else { return };
    let Some(stage) = Stage::new(&Network::Loopback, Loaded::Both) else { return };
    let stage = stage.variable("ETHERNOT_SOCKETS_MOVE", "when-it-pays");
    let processes = (available_bytes() / PROCESS_BYTES).min(4096);
    let port = stage.free_port();
    let side = |role: &str| {
        let program = Program::new(&program.display().to_string(), role);
        program.argument(&stage.address()).argument(&port)
    };
    let mut server = stage.start(&side("server"), Side::Server);
    server.wait_for_listener(port);
    let client = side("client").argument(&processes).argument(&ROUNDS_TO_MOVE);
    let client = stage.start(&client, Side::Client).finish_within(PROCESSES_LIMIT);
    let wanted = format!("served {processes} of {processes}");
    assert!(client.expect_success().contains(&wanted), "{client}");
    let server_counters = stage.counters(Side::Server);
    server.stop();
    println!("{server_counters:?}");
    println!("figure: processes that one server serves at the same time: {processes}");
}

/// Returns the memory in bytes that the kernel reports as available to programs.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// Time limit for all processes to connect: much more time than they need on a host with one
/// processor.
const PROCESSES_LIMIT: Duration = Duration::from_mins(15);

/// Memory in bytes that one client process needs if its connection has moved: twice the memory of
/// both sides, including shared memory.
const PROCESS_BYTES: u64 = 16 << 20;

/// Round trips of each process: more than a connection makes before it moves by default.
const ROUNDS_TO_MOVE: u32 = 60;

/// Requests on each connection: enough for it to move.
const ROUNDS: u32 = 40;

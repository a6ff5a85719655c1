//! Programs that connect through the connection manager: the examples of rdma-core, and perftest
//! with `-R`.

use std::time::Instant;

use programs::{
    Ends, Finished, Meeting, Network, Program, Running, Side, are_installed, build_client,
    expect_both,
};

/// Runs a server and its client, on both networks.
fn runs(port: u16, programs: [&str; 2], server: &str, client: &str, ends: Ends) {
    if !are_installed(&programs) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        Meeting { programs, server, client, ends }.run(&network, port, &[]);
    }
}

#[test]
fn rping() {
    let programs = ["rping", "rping"];
    let server = "-s -a ADDRESS -p PORT -C 1000";
    runs(23_000, programs, server, "-c -a ADDRESS -p PORT -v -C 1000", Ends::ByItself);
    // With `-q`, the program changes the states of its queue pairs itself.
    let server = "-s -a ADDRESS -p PORT -C 100 -q";
    runs(23_001, programs, server, "-c -a ADDRESS -p PORT -C 100 -q", Ends::ByItself);
}

#[test]
fn ucmatose() {
    let programs = ["ucmatose", "ucmatose"];
    let both = "-p PORT -c 20 -C 10 -S 1000";
    runs(23_010, programs, both, &format!("{both} -s ADDRESS"), Ends::ByItself);
    // With `-m`, connection identifiers move from one event channel to another.
    let both = "-p PORT -c 4 -m";
    runs(23_011, programs, both, &format!("{both} -s ADDRESS"), Ends::ByItself);
}

#[test]
fn udaddy() {
    // udaddy always uses port 7174.
    let both = "-c 4 -C 10 -S 100";
    runs(7174, ["udaddy", "udaddy"], both, &format!("{both} -s ADDRESS"), Ends::ByItself);
}

#[test]
fn mckey() {
    if !are_installed(&["mckey"]) {
        return;
    }
    // Use namespaces, because each side binds its own address.
    let Some(network) = Network::namespaces() else { return };
    let address = network.server_address();
    let receives = Program::new("mckey", &format!("-m 239.83.2.1 -b {address} -C 10"));
    let mut receives = receives.start(&network, Side::Server);
    // 0xefff is the port on which datagrams to groups arrive.
    receives.wait_for_manager_port(0xefff);
    let client = network.client_address().expect("both sides have an address");
    let sends = format!("-m 239.83.2.1 -b {client} -s -C 10");
    let sent = Program::new("mckey", &sends).run(&network, Side::Client);
    expect_both(&[receives.finish(), sent]);
}

#[test]
fn cmtime() {
    let (server, client) = ("-p PORT -c 1000", "-s ADDRESS -p PORT -c 1000");
    runs(23_030, ["cmtime", "cmtime"], server, client, Ends::Never);
}

#[test]
fn rdma_client_and_server_complete_with_every_way_to_wait() {
    let programs = ["rdma_server", "rdma_client"];
    runs(23_040, programs, "-p PORT", "-s ADDRESS -p PORT", Ends::ByItself);
}

#[test]
fn perftest_connected_by_the_connection_manager() {
    for (number, program) in (0..).zip(["ib_write_bw", "ib_read_lat", "ib_send_bw"]) {
        let both = "-F -R -p PORT -n 500";
        let client = format!("{both} ADDRESS");
        // With `-R`, perftest also exchanges its parameters over the connection.
        runs(23_060 + number, [program; 2], both, &client, Ends::ByItself);
    }
    let both = "-F -R -c UD -s 1024 -p PORT -n 500";
    let client = format!("{both} ADDRESS");
    runs(23_065, ["ib_send_bw"; 2], both, &client, Ends::ByItself);
}

/// Runs rping's client against a server that already runs.
fn asks(network: &Network, port: u16) -> Finished {
    let address = network.server_address();
    let words = format!("-c -a {address} -p {port} -C 1");
    Program::new("rping", &words).run(network, Side::Client)
}

#[test]
fn requests_without_a_listener_are_rejected() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let asked = asks(&network, 23_070);
        assert!(!asked.is_success() && !asked.is_late, "{asked}");
        assert!(asked.output.contains("RDMA_CM_EVENT_REJECTED, error 8"), "{asked}");
    }
}

#[test]
fn a_port_belongs_to_one_process() {
    if !are_installed(&["rping"]) {
        return;
    }
    let network = Network::Loopback;
    let server = Program::new("rping", "-s -a 127.0.0.1 -p 23080 -C 1");
    let mut first = server.start(&network, Side::Server);
    first.wait_for_manager_port(23_080);
    let second = server.run(&network, Side::Server);
    assert!(!second.is_success() && !second.is_late, "{second}");
    assert!(second.output.contains("Address already in use"), "{second}");
    expect_both(&[asks(&network, 23_080), first.finish()]);
}

/// Returns the numbers that a process printed: the descriptors and the memory, in KiB, that it has
/// not released after its connections.
fn left(ended: &Finished) -> (i64, i64) {
    let line = ended.expect_success().lines().find(|line| line.starts_with("left: "));
    let words = line.unwrap_or_else(|| panic!("{ended}")).split_whitespace();
    let numbers: Vec<i64> = words.filter_map(|word| word.parse().ok()).collect();
    let [descriptors, kib] = numbers[..] else { panic!("{ended}") };
    (descriptors, kib)
}

/// Opens and closes `connections` connections. Returns the number of descriptors and the memory, in
/// KiB, that an end has not released: the higher number of the two ends. Ignores the first tenth of
/// the connections.
fn left_by(port: u16, connections: u32) -> Option<(i64, i64)> {
    let client = build_client("connections")?.display().to_string();
    let network = Network::Loopback;
    let words = |verb: &str| format!("{verb} {} {port} {connections}", network.server_address());
    let mut server = Program::new(&client, &words("serve")).start(&network, Side::Server);
    server.wait_for_manager_port(port);
    let asked = Program::new(&client, &words("ask")).run(&network, Side::Client);
    let [one, other] = [&asked, &server.finish()].map(left);
    println!("{connections} connections leave {one:?} and {other:?} (descriptors, KiB)");
    Some((one.0.max(other.0), one.1.max(other.1)))
}

#[test]
fn three_hundred_connections_leave_no_descriptor() {
    if let Some((descriptors, kib)) = left_by(23_100, 300) {
        assert_eq!(descriptors, 0);
        // If queue pairs were not released, each connection would take more than 16 KiB. The bound
        // of 8 KiB for each connection allows for tables, which never shrink.
        assert!(kib < 300 * 8, "{kib} KiB");
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; takes half a minute"]
fn ten_thousand_connections_leave_nothing() {
    if let Some((descriptors, kib)) = left_by(23_101, 10_000) {
        println!("figure: descriptors that 10 000 connections leave: {descriptors}");
        println!("figure: KiB that 10 000 connections leave: {}", kib.max(0));
    }
}

/// Starts a process that waits for connections, and a process that connects to it and stays idle.
fn idle(network: &Network, port: u16) -> Option<[Running; 2]> {
    let client = build_client("connections")?.display().to_string();
    let words = |verb: &str| format!("{verb} {} {port}", network.server_address());
    let mut server = Program::new(&client, &words("serve")).start(network, Side::Server);
    server.wait_for_manager_port(port);
    let mut idle = Program::new(&client, &words("idle")).start(network, Side::Client);
    idle.wait_for_output("idle");
    server.wait_for_output("established");
    Some([server, idle])
}

#[test]
fn a_connected_program_detects_that_its_idle_peer_was_killed() {
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let Some([mut server, idle]) = idle(&network, 23_110) else { return };
        idle.signal("KILL");
        server.wait_for_output("disconnected");
        server.finish().expect_success();
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn a_killed_idle_peer_is_reported() {
    let mut worst_s: f64 = 0.0;
    for turn in 0..5 {
        // Each round uses new hosts, because a host limits how often it reports that a program has
        // ended.
        for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
            let Some([mut server, idle]) = idle(&network, 23_120 + turn) else { return };
            idle.signal("KILL");
            let since = Instant::now();
            server.wait_for_output("disconnected");
            let took_s = since.elapsed().as_secs_f64();
            println!("{took_s:.3} s on {}", network.server_address());
            worst_s = worst_s.max(took_s);
            server.finish().expect_success();
        }
    }
    println!("figure: until the peer of a killed process is told: {worst_s:.3}");
}

/// Returns the total time of the steps of a connection in microseconds, from cmtime's output.
fn cmtime_us(ended: &Finished) -> f64 {
    let steps = ended.expect_success().lines().filter(|line| line.contains(" :"));
    let each = steps.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok());
    each.sum()
}

#[test]
#[ignore = "slow: run by `./x acceptance frameworks`; measures"]
fn a_thousand_connections_of_cmtime() {
    let programs = ["cmtime"; 2];
    if !are_installed(&programs) {
        return;
    }
    let (server, client) = ("-p PORT -c 1000", "-s ADDRESS -p PORT -c 1000");
    let meeting = Meeting { programs, server, client, ends: Ends::Never };
    let mut each_us: Vec<f64> = (0..5)
        .map(|turn| cmtime_us(&meeting.run(&Network::Loopback, 23_130 + turn, &[])))
        .collect();
    each_us.sort_by(f64::total_cmp);
    println!("{each_us:?}");
    println!("figure: connections of cmtime: {:.1}", each_us[each_us.len() / 2]);
}

#[test]
fn a_connected_program_detects_that_its_peer_was_killed() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let address = network.server_address();
        let server = Program::new("rping", &format!("-s -a {address} -p 23090 -v"));
        let mut running = server.start(&network, Side::Server);
        running.wait_for_manager_port(23_090);
        // The client never exits, so the test kills it.
        let client = Program::new("rping", &format!("-c -a {address} -p 23090"));
        let client = client.start(&network, Side::Client);
        running.wait_for_output("rdma-ping-1:");
        client.signal("KILL");
        let ended = running.finish();
        assert!(!ended.is_late, "{ended}");
        assert!(ended.output.contains("DISCONNECT"), "{ended}");
    }
}

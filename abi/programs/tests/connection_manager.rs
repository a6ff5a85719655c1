//! Programs that find each other by the connection manager: those of rdma-core, and perftest with `-R`.

use programs::{Finished, Network, Program, Side, are_installed, expect_both};

/// Runs a server and a client of it, on both networks. A server that serves for ever is ended when its client is done.
fn runs(port: u16, programs: [&str; 2], server: &str, client: &str, ends: Ends) {
    if !are_installed(&programs) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let address = network.server_address().to_string();
        let words =
            |text: &str| text.replace("ADDRESS", &address).replace("PORT", &port.to_string());
        println!("{} {}", programs[1], words(client));
        let mut running = Program::new(programs[0], &words(server)).start(&network, Side::Server);
        match ends {
            Ends::ByItselfOverTcp => running.wait_for_listener(port),
            _ => running.wait_for_door(port),
        }
        let asked = Program::new(programs[1], &words(client)).run(&network, Side::Client);
        if matches!(ends, Ends::Never) {
            asked.expect_success();
        } else {
            expect_both(&[running.finish(), asked]);
        }
    }
}

/// How a server ends.
#[derive(Clone, Copy)]
enum Ends {
    ByItself,
    /// The same, and it listens at a port of TCP.
    ByItselfOverTcp,
    Never,
}

#[test]
fn rping() {
    let programs = ["rping", "rping"];
    let server = "-s -a ADDRESS -p PORT -C 1000";
    runs(23_000, programs, server, "-c -a ADDRESS -p PORT -v -C 1000", Ends::ByItself);
    // Queue pairs that the program connects by itself.
    let server = "-s -a ADDRESS -p PORT -C 100 -q";
    runs(23_001, programs, server, "-c -a ADDRESS -p PORT -C 100 -q", Ends::ByItself);
}

#[test]
fn ucmatose() {
    let programs = ["ucmatose", "ucmatose"];
    let both = "-p PORT -c 20 -C 10 -S 1000";
    runs(23_010, programs, both, &format!("{both} -s ADDRESS"), Ends::ByItself);
    // Ids move from one channel to another.
    let both = "-p PORT -c 4 -m";
    runs(23_011, programs, both, &format!("{both} -s ADDRESS"), Ends::ByItself);
}

#[test]
fn udaddy() {
    // It is always at this port.
    let both = "-c 4 -C 10 -S 100";
    runs(7174, ["udaddy", "udaddy"], both, &format!("{both} -s ADDRESS"), Ends::ByItself);
}

#[test]
fn mckey() {
    if !are_installed(&["mckey"]) {
        return;
    }
    // Both sides bind an address, so that each has one of its own.
    let Some(network) = Network::namespaces() else { return };
    let address = network.server_address();
    let receives = Program::new("mckey", &format!("-m 239.83.2.1 -b {address} -C 10"));
    let mut receives = receives.start(&network, Side::Server);
    // What is for groups comes in there.
    receives.wait_for_door(0xefff);
    let client = network.client_address().expect("both sides have an address");
    let sends = format!("-m 239.83.2.1 -b {client} -s -C 10");
    let sent = Program::new("mckey", &sends).run(&network, Side::Client);
    expect_both(&[receives.finish(), sent]);
}

#[test]
fn cmtime() {
    let client = "-s ADDRESS -p PORT -c 100";
    runs(23_030, ["cmtime", "cmtime"], "-p PORT -c 100", client, Ends::Never);
}

#[test]
fn rdma_client_and_server_wait_for_everything() {
    let programs = ["rdma_server", "rdma_client"];
    runs(23_040, programs, "-p PORT", "-s ADDRESS -p PORT", Ends::ByItself);
}

#[test]
fn rstream() {
    let both = "-p PORT -S 65536 -C 100";
    let client = format!("{both} -s ADDRESS");
    runs(23_050, ["rstream", "rstream"], both, &client, Ends::ByItselfOverTcp);
}

#[test]
fn perftest_connected_by_the_connection_manager() {
    for (number, program) in (0..).zip(["ib_write_bw", "ib_read_lat", "ib_send_bw"]) {
        let both = "-F -R -p PORT -n 500";
        let client = format!("{both} ADDRESS");
        // It exchanges what it must over the same connection.
        runs(23_060 + number, [program; 2], both, &client, Ends::ByItself);
    }
    let both = "-F -R -c UD -s 1024 -p PORT -n 500";
    let client = format!("{both} ADDRESS");
    runs(23_065, ["ib_send_bw"; 2], both, &client, Ends::ByItself);
}

/// Runs the client of rping alone.
fn asks(network: &Network, port: u16) -> Finished {
    let address = network.server_address();
    let words = format!("-c -a {address} -p {port} -C 1");
    Program::new("rping", &words).run(network, Side::Client)
}

#[test]
fn who_asks_where_nobody_listens_is_rejected() {
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
fn a_port_is_one_process_alone() {
    if !are_installed(&["rping"]) {
        return;
    }
    let network = Network::Loopback;
    let server = Program::new("rping", "-s -a 127.0.0.1 -p 23080 -C 1");
    let mut first = server.start(&network, Side::Server);
    first.wait_for_door(23_080);
    let second = server.run(&network, Side::Server);
    assert!(!second.is_success() && !second.is_late, "{second}");
    assert!(second.output.contains("Address already in use"), "{second}");
    expect_both(&[asks(&network, 23_080), first.finish()]);
}

#[test]
fn who_is_connected_learns_that_its_peer_was_killed() {
    if !are_installed(&["rping"]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let address = network.server_address();
        let server = Program::new("rping", &format!("-s -a {address} -p 23090 -v"));
        let mut running = server.start(&network, Side::Server);
        running.wait_for_door(23_090);
        // It goes on until it is killed.
        let client = Program::new("rping", &format!("-c -a {address} -p 23090"));
        let client = client.start(&network, Side::Client);
        running.wait_for_output("rdma-ping-1:");
        client.signal("KILL");
        let ended = running.finish();
        assert!(!ended.is_late, "{ended}");
        assert!(ended.output.contains("DISCONNECT"), "{ended}");
    }
}

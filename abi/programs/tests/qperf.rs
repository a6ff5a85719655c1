//! qperf over reliable queue pairs that the connection manager connects.

use programs::{Network, Program, Side, are_installed};

/// Runs these tests of qperf, each for one second.
fn runs(port: u16, tests: &[&str]) {
    if !are_installed(&["qperf"]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let mut server =
            Program::new("qperf", &format!("-lp {port}")).start(&network, Side::Server);
        server.wait_for_listener(port);
        for test in tests {
            println!("qperf {test}");
            let words = format!("-lp {port} -t 1 {} {test}", network.server_address());
            let client = Program::new("qperf", &words).run(&network, Side::Client);
            let said = client.expect_success();
            let figures = ["latency", "bw", "msg_rate"];
            assert!(figures.iter().any(|figure| said.contains(&format!("{figure} "))), "{client}");
            // Check the output too: qperf exits with status 0 even if the other side reports
            // errors.
            assert!(!said.contains("failed") && !said.contains("server:"), "{client}");
        }
        // The server never exits, so kill it.
        drop(server);
    }
}

#[test]
fn messages() {
    runs(24_200, &["-cm 1 rc_lat", "-cm 1 rc_bw", "-cm 1 rc_bi_bw"]);
}

#[test]
fn memory() {
    let kinds = ["read_lat", "read_bw", "write_lat", "write_bw", "write_poll_lat"];
    let tests = kinds.map(|kind| format!("-cm 1 rc_rdma_{kind}"));
    runs(24_210, &tests.each_ref().map(String::as_str));
}

#[test]
fn atomics() {
    let kinds =
        ["rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add"];
    let tests = kinds.map(|kind| format!("-cm 1 {kind}"));
    runs(24_220, &tests.each_ref().map(String::as_str));
}

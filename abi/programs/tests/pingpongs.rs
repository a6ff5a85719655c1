//! The example programs of libibverbs.

use programs::{Network, Program, are_installed, expect_both};

/// Runs both sides of `program`, with the GID index `gid` on both sides.
fn pingpong(network: &Network, port: u16, program: &str, arguments: &str, gid: u32) {
    let side = Program::new(program, &format!("-p {port} -g {gid} {arguments}"));
    println!("{program} {arguments} -g {gid}");
    expect_both(&side.run_pair(&side, network, port));
}

/// Runs every kind of work request, on both networks. Each test uses its own port, because all
/// tests share one loopback interface.
fn pingpongs(port: u16, program: &str, kinds: &[&str]) {
    if !are_installed(&[program]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for kind in kinds {
            pingpong(&network, port, program, kind, 0);
        }
    }
}

#[test]
fn reliable_connections() {
    let kinds = [
        "",
        "-e",
        "-s 1 -c",
        "-s 1048576 -n 50 -c",
        "-s 1048576 -n 50 -e",
        "-m 256",
        "-N",
        "-s 4096 -r 1",
    ];
    pingpongs(21_100, "ibv_rc_pingpong", &kinds);
}

#[test]
fn unreliable_connections() {
    pingpongs(21_200, "ibv_uc_pingpong", &["", "-e", "-s 1", "-s 1048576 -n 50"]);
}

#[test]
fn datagrams() {
    pingpongs(21_300, "ibv_ud_pingpong", &["-s 1024", "-s 1", "-s 1024 -e"]);
}

#[test]
fn shared_receives() {
    pingpongs(21_400, "ibv_srq_pingpong", &["", "-e", "-q 4 -s 1", "-s 65536 -n 100"]);
}

#[test]
fn every_address_of_the_device() {
    if !are_installed(&["ibv_rc_pingpong", "ibv_devinfo"]) {
        return;
    }
    let Some(network) = Network::namespaces() else { return };
    let listing = Program::new("ibv_devinfo", "-v").run(&network, programs::Side::Server);
    let gids = listing.expect_success().matches("GID[").count() as u32;
    assert!(gids >= 1, "{listing}");
    for gid in 0..gids {
        pingpong(&network, 21_500, "ibv_rc_pingpong", "", gid);
    }
}

//! perftest, the common benchmark for RDMA.

use programs::{Network, Program, are_installed, expect_both};

/// Runs `program` with each of these arguments on both networks.
fn runs(port: u16, program: &str, kinds: &[&str]) {
    if !are_installed(&[program]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for kind in kinds {
            println!("{program} {kind}");
            let side = Program::new(program, &format!("-F -p {port} {kind}"));
            expect_both(&side.run_pair(&side, &network, port));
        }
    }
}

/// Arguments for measurements of throughput. With `-a`, sizes go up to 8 MiB, so there are fewer
/// iterations.
const BANDWIDTH: &[&str] = &["-n 1000", "-a -n 20", "-n 500 -b", "-n 500 -q 16"];
/// Arguments for measurements of latency.
const LATENCY: &[&str] = &["-n 500", "-a -n 20"];

#[test]
fn write_bw() {
    runs(22_000, "ib_write_bw", BANDWIDTH);
    runs(22_000, "ib_write_bw", &["-c UC -n 500"]);
}

#[test]
fn write_lat() {
    runs(22_010, "ib_write_lat", LATENCY);
    runs(22_010, "ib_write_lat", &["-c UC -n 500"]);
}

#[test]
fn read_bw() {
    runs(22_020, "ib_read_bw", BANDWIDTH);
    runs(22_020, "ib_read_bw", &["-n 500 -e"]);
}

#[test]
fn read_lat() {
    runs(22_030, "ib_read_lat", LATENCY);
    runs(22_030, "ib_read_lat", &["-n 500 -e"]);
}

#[test]
fn send_bw() {
    runs(22_040, "ib_send_bw", BANDWIDTH);
    runs(
        22_040,
        "ib_send_bw",
        &["-n 500 --use-srq", "-n 500 --use-srq -q 16", "-n 500 --use-srq -e", "-c UC -n 500"],
    );
}

#[test]
fn send_lat() {
    runs(22_050, "ib_send_lat", LATENCY);
    runs(22_050, "ib_send_lat", &["-n 500 -e", "-n 500 --use-srq", "-c UC -n 500"]);
}

#[test]
fn send_bw_of_datagrams() {
    let kinds = [
        "-c UD -s 1024 -n 1000",
        "-c UD -a -n 20",
        "-c UD -s 64 -n 500 -b",
        "-c UD -s 64 -n 500 -e",
        "-c UD -s 64 -n 500 -q 16",
        "-c UD -s 64 -n 500 -q 16 -b -e",
        "-c UD -s 64 -n 500 --use-srq",
        "-c UD -s 64 -n 500 -q 16 --use-srq",
    ];
    runs(22_060, "ib_send_bw", &kinds);
}

#[test]
#[ignore = "slow: run by hand, with --ignored; twenty runs"]
fn datagrams_of_many_queue_pairs_pass_twenty_times() {
    for _ in 0..20 {
        let kinds = ["-c UD -s 64 -n 500 -q 16 --use-srq", "-c UD -s 64 -n 500 -q 16 -b -e"];
        runs(22_065, "ib_send_bw", &kinds);
    }
}

#[test]
fn send_lat_of_datagrams() {
    runs(
        22_070,
        "ib_send_lat",
        &[
            "-c UD -s 64 -n 500",
            "-c UD -a -n 20",
            "-c UD -s 64 -n 500 -e",
            "-c UD -s 64 -n 500 --use-srq",
        ],
    );
}

#[test]
fn atomic_bw() {
    let kinds = ["-n 1000", "-n 500 -b", "-n 500 -q 16", "-n 500 -e", "-A CMP_AND_SWAP -n 500"];
    runs(22_080, "ib_atomic_bw", &kinds);
}

#[test]
fn atomic_lat() {
    runs(22_090, "ib_atomic_lat", &["-n 500", "-n 500 -e", "-A CMP_AND_SWAP -n 500"]);
}

//! Programs that list the RDMA devices.

use std::time::Duration;

use programs::{Network, Program, Side, are_installed};

fn networks() -> impl Iterator<Item = Network> {
    std::iter::once(Network::Loopback).chain(Network::namespaces())
}

#[test]
fn devices_are_listed() {
    if !are_installed(&["ibv_devices"]) {
        return;
    }
    for network in networks() {
        let listed = Program::new("ibv_devices", "").run(&network, Side::Server);
        assert!(listed.expect_success().contains("edge0"), "{listed}");
    }
}

#[test]
fn a_device_reports_all_its_attributes() {
    if !are_installed(&["ibv_devinfo"]) {
        return;
    }
    for network in networks() {
        let listing = Program::new("ibv_devinfo", "-v").run(&network, Side::Server);
        let text = listing.expect_success();
        for part in ["hca_id:\tedge0", "PORT_ACTIVE", "InfiniBand (0)", "Ethernet", "GID[  0]"] {
            assert!(text.contains(part), "no `{part}` in: {listing}");
        }
        let address = format!("::ffff:{}", network.server_address());
        assert!(text.contains(&address), "no `{address}` in: {listing}");
    }
}

#[test]
fn events_of_a_device_are_watched_until_interrupted() {
    if !are_installed(&["ibv_asyncwatch"]) {
        return;
    }
    let mut watching = Program::new("ibv_asyncwatch", "").start(&Network::Loopback, Side::Server);
    watching.wait_for_output("edge0");
    let ended = watching.finish_within(Duration::from_secs(2));
    assert!(ended.is_late, "it waits for events: {ended}");
    assert!(ended.output.contains("edge0"), "{ended}");
}

#[test]
fn a_device_that_does_not_start_says_why() {
    if !are_installed(&["ibv_rc_pingpong"]) {
        return;
    }
    for (device, name) in [("edge", "edge0"), ("iwarp", "iwarp0")] {
        let program = Program::new("ibv_rc_pingpong", &format!("-d {name} -g 0"))
            .variable("ETHERNOT_DEVICE", device)
            .variable("ETHERNOT_PROGRESS_PROCESSOR", NO_PROCESSOR);
        let ended = program.run(&Network::Loopback, Side::Server);
        assert!(!ended.is_success() && !ended.is_late, "{ended}");
        let begin = format!("device {name} does not start");
        for part in [&begin, NO_PROCESSOR, "Invalid argument", "taskset -pc"] {
            assert_eq!(ended.output.matches(part).count(), 1, "`{part}` in: {ended}");
        }
    }
}

/// The largest number of a processor that the kernel can be asked for. No host of a test has so
/// many.
const NO_PROCESSOR: &str = "1023";

//! Tests that the library starts no threads and opens no sockets for a program that only lists
//! devices.

use verbs::PortState;
use verbs_edge::{Settings, devices};

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("Linux tells what a process has").count()
}

/// This must be the only test in this file, because it would also count the descriptors and threads
/// of other tests.
#[test]
fn a_device_that_is_only_queried_starts_no_threads() {
    let before = [count("/proc/self/fd"), count("/proc/self/task")];
    let devices = devices(&Settings::default()).expect("this host has an address");
    let device = &devices[0].device;
    assert_eq!(device.name(), "edge0");
    assert_eq!([count("/proc/self/fd"), count("/proc/self/task")], before);
    let context = device.open().expect("it opens");
    let opened = [count("/proc/self/fd"), count("/proc/self/task")];
    let port = context.query_port(1).expect("the port is there");
    let gids = context.gids().expect("not forked");
    assert_eq!((port.state, port.gids as usize), (PortState::Active, gids.len()));
    assert!(port.active_mtu >= 256 && !gids.is_empty());
    assert_eq!([count("/proc/self/fd"), count("/proc/self/task")], opened);
    assert_eq!(opened[1], before[1], "no thread was started");
}

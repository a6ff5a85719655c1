//! Tests processes with several devices, each with its own links.

use std::fs;

use serde_json::Value;

use super::{
    Host, PING_PONG_PORT, User, ends_well, ethernot, listening, listening_for_requests, run_with,
    send, start, text, two_hosts,
};
use nix::sys::signal::Signal;

const TWO: [&str; 2] = ["--device", "rail0,rail1"];

/// Returns two hosts joined by two Ethernets: 10.9.9.0/24 and 10.9.8.0/24.
fn two_hosts_with_two_rails(programs: &[&str]) -> Option<[Host; 2]> {
    let hosts = two_hosts(programs)?;
    hosts[0].connect_to(&hosts[1], "edge1");
    for (number, host) in (1..).zip(&hosts) {
        host.ip(&format!("address add 10.9.8.{number}/24 dev edge1"));
    }
    Some(hosts)
}

#[test]
fn each_device_has_an_interface_of_its_own() {
    let Some([host, _peer]) = two_hosts_with_two_rails(&["ibv_devinfo", "ls"]) else { return };
    let printed = text(&run_with(&host, &TWO, &["ibv_devinfo", "-v"]).stdout);
    let guids: Vec<_> = printed.lines().filter(|line| line.contains("node_guid")).collect();
    assert!(guids.len() == 2 && guids[0] != guids[1], "{printed}");
    for (device, address) in [("rail0", "::ffff:10.9.9.1"), ("rail1", "::ffff:10.9.8.1")] {
        let (_, about) = printed.split_once(device).expect("it is listed");
        let about = about.split_once("hca_id").map_or(about, |(about, _)| about);
        let gids: Vec<_> = about.lines().filter(|line| line.contains("GID[")).collect();
        assert!(gids.len() == 1 && gids[0].contains(address), "{device}: {printed}");
    }
    let script = "cat /sys/class/infiniband/*/ports/1/gid_attrs/ndevs/0; \
                  cat /sys/class/infiniband_verbs/uverbs?/ibdev";
    let output = run_with(&host, &TWO, &["sh", "-c", script]);
    let lines = ["edge0", "edge1", "rail0", "rail1"];
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), lines, "{output:?}");
}

#[test]
fn link_lists_assign_links_to_devices() {
    let Some([host, _peer]) = two_hosts_with_two_rails(&["ibv_devinfo"]) else { return };
    let seen = |links: &str| {
        let options = [&TWO[..], &["--links", links]].concat();
        run_with(&host, &options, &["ibv_devinfo", "-v"])
    };
    let printed = text(&seen("edge1//edge0").stdout);
    let gids: Vec<_> = printed.lines().filter(|line| line.contains("GID[")).collect();
    assert!(gids[0].contains("10.9.8.1") && gids[1].contains("10.9.9.1"), "{printed}");
    let refused = text(&seen("edge0//edge1//shm").stderr);
    assert!(refused.contains("3 lists of links for 2 devices"), "{refused}");
    let options = ["--device", "a,b,c"];
    let refused = text(&run_with(&host, &options, &["ibv_devinfo"]).stderr);
    assert!(
        refused.contains("2 interfaces leave this host, but each of 3 devices needs one"),
        "{refused}"
    );
}

#[test]
fn programs_use_the_device_that_they_name_and_the_other_is_idle() {
    let Some([client, server]) = two_hosts_with_two_rails(&["ibv_rc_pingpong"]) else { return };
    let counted = |host: &Host, interface: &str| -> u64 {
        let path = format!("/sys/class/net/{interface}/statistics/tx_bytes");
        let shown = host.ip(&format!("-s -j link show {interface}"));
        let report: Value = serde_json::from_str(&shown).expect(&path);
        report[0]["stats64"]["tx"]["bytes"].as_u64().expect(&path)
    };
    for (device, used, idle) in [("rail0", "edge0", "edge1"), ("rail1", "edge1", "edge0")] {
        let before = [used, idle].map(|interface| counted(&client, interface));
        let program = ["ibv_rc_pingpong", "-d", device, "-g", "0", "-n", "300"];
        let serving = start(&server, User::Root, &TWO, &program);
        listening(&server, PING_PONG_PORT);
        let asking = [&program[..], &["10.9.9.2"]].concat();
        ends_well(start(&client, User::Root, &TWO, &asking));
        ends_well(serving);
        let sent = [used, idle].map(|interface| counted(&client, interface));
        let [by_used, by_idle] = [sent[0] - before[0], sent[1] - before[1]];
        // The device that is used carries 300 messages of 4096 bytes. The other interface may carry
        // only the TCP connection to the peer.
        assert!(by_used > 1_000_000 && by_idle < 100_000, "{device}: {by_used} and {by_idle}");
    }
}

#[test]
fn the_connection_manager_uses_the_device_with_the_address() {
    let Some([client, server]) = two_hosts_with_two_rails(&["rping"]) else { return };
    for address in ["10.9.9.2", "10.9.8.2"] {
        let serving = ["rping", "-s", "-C", "20", "-p", "18515"];
        let serving = start(&server, User::Root, &TWO, &serving);
        // Waits for the second device, because it listens last. The text is 10.9.8.2:18515 in the
        // kernel's notation.
        super::until(|| {
            let sockets = || fs::read_to_string("/proc/thread-self/net/udp").unwrap();
            server.run(move || sockets().contains(" 0208090A:4853 "))
        });
        let asking = ["rping", "-c", "-a", address, "-C", "20", "-p", "18515"];
        ends_well(start(&client, User::Root, &TWO, &asking));
        ends_well(serving);
    }
}

#[test]
fn statistics_and_captures_cover_all_devices() {
    let Some([host, _peer]) = two_hosts_with_two_rails(&["rping"]) else { return };
    let file = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("devices.pcapng");
    // A server of the connection manager opens all devices.
    let options = [&TWO[..], &["--pcap", file.to_str().unwrap()]].concat();
    let server = start(&host, User::Root, &options, &["rping", "-s", "-p", "18515"]);
    listening_for_requests(&host, PING_PONG_PORT);
    super::until(|| {
        let output = host.run(|| ethernot(User::Root, &["stat", "--json"]).output().unwrap());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let names = report["devices"].as_array().unwrap().iter();
        let mut names: Vec<_> = names.map(|device| device["device"].as_str().unwrap()).collect();
        names.sort_unstable();
        names == ["rail0", "rail1"]
    });
    send(&server, Signal::SIGTERM);
    drop(server);
    let captured = fs::read(&file).unwrap();
    for name in ["link 10.9.9.1", "link 10.9.8.1"] {
        let is_there = captured.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(is_there, "{name} is no interface of the capture");
    }
    fs::remove_file(&file).unwrap();
}

//! Tests captures of stock programs with tshark and the project's dissector. Also needs `tshark`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, process};

use super::{Host, User, ends_well, listening, listening_for_requests, start, text, two_hosts};

#[test]
fn every_frame_of_a_capture_is_decoded_for_every_kind_of_link() {
    let both = ["link 10.9.8.2", "link 10.9.9.2"];
    ping_pong_with("links", "10.9.9.2", Place::TwoHosts, |seen| {
        seen.iter().filter_map(|name| name.split(':').next()).eq(both)
    });
}

#[test]
fn datagrams_are_decoded_without_a_handshake() {
    ping_pong("datagrams", "ibv_ud_pingpong", "10.9.9.2", Place::TwoHosts, EXCHANGES[0]);
}

#[test]
fn connections_of_the_connection_manager_are_decoded() {
    let server = ["rping", "-s", "-C", "50", "-p", "18515"];
    let client = ["rping", "-c", "-a", "10.9.9.2", "-C", "50", "-p", "18515"];
    captured("manager", &server, &client, listening_for_requests, Place::TwoHosts);
}

#[test]
fn frames_in_shared_memory_are_captured_with_those_of_links() {
    ping_pong_with("memory", "10.9.9.1", Place::OneHost, |seen| seen.contains("shared memory"));
}

#[derive(Clone, Copy, Eq, PartialEq)]
enum Place {
    /// Two hosts joined by two Ethernets.
    TwoHosts,
    OneHost,
}

/// Runs ping-pongs until `has_all` accepts the interfaces with frames. A connection begins with one
/// link. On a busy host, a short ping-pong may end before the connection has its other links.
fn ping_pong_with(
    name: &str,
    address: &str,
    place: Place,
    has_all: impl Fn(&BTreeSet<String>) -> bool,
) {
    let mut last = BTreeSet::new();
    for exchanges in EXCHANGES {
        let Some(seen) = ping_pong(name, "ibv_rc_pingpong", address, place, exchanges) else {
            return;
        };
        if has_all(&seen) {
            return;
        }
        last = seen;
    }
    panic!("only these interfaces have frames: {last:?}");
}

/// Runs a ping-pong of `exchanges` messages as [`captured`] does. `address` is the server's
/// address.
fn ping_pong(
    name: &str,
    program: &str,
    address: &str,
    place: Place,
    exchanges: &str,
) -> Option<BTreeSet<String>> {
    let server = [program, "-g", "0", "-n", exchanges];
    captured(name, &server, &[&server[..], &[address]].concat(), listening, place)
}

/// Runs a server and a client, captures the frames of both, and checks that tshark decodes every
/// frame. Returns the interfaces with frames in the server's file. If this is not possible here,
/// prints the reason and returns `None`.
fn captured(
    name: &str,
    server: &[&str],
    client: &[&str],
    wait: fn(&Host, u16),
    place: Place,
) -> Option<BTreeSet<String>> {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: tshark is not installed");
        return None;
    }
    let hosts = two_hosts(&server[..1])?;
    hosts[0].connect_to(&hosts[1], "edge1");
    for (number, host) in (1..).zip(&hosts) {
        host.ip(&format!("address add 10.9.8.{number}/24 dev edge1"));
    }
    let [asking, serving] = match place {
        Place::TwoHosts => [&hosts[0], &hosts[1]],
        Place::OneHost => [&hosts[0], &hosts[0]],
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let files = ["server", "client"]
        .map(|end| folder.join(format!("{name}-{end}-{}.pcapng", process::id())));
    let [of_server, of_client] = files.each_ref().map(|file| file.to_str().unwrap());
    let running = start(serving, User::Root, &["--pcap", of_server], server);
    wait(serving, PORT);
    let asked = start(asking, User::Root, &["--pcap", of_client], client);
    ends_well(asked);
    ends_well(running);
    let [interfaces, _of_client] = files.each_ref().map(|file| decoded(file));
    for file in &files {
        fs::remove_file(file).unwrap();
    }
    Some(interfaces)
}

/// Checks that tshark decodes every frame of a file without an error. tshark looks at the bytes
/// before it looks at the ports, which it may know of another protocol. Returns the interfaces with
/// frames.
fn decoded(file: &Path) -> BTreeSet<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/ethernot.lua");
    let columns =
        ["frame.interface_name", "frame.protocols", "_ws.expert.message", "_ws.malformed"];
    let output = Command::new("tshark")
        .args(["-n", "-o", "udp.try_heuristic_first:TRUE", "-X"])
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "separator=;"])
        .args(columns.iter().flat_map(|column| ["-e", column]))
        .output()
        .unwrap();
    let complaints = text(&output.stderr);
    assert!(output.status.success() && !complaints.contains("Lua"), "tshark: {complaints}");
    let printed = text(&output.stdout);
    let rows: Vec<Vec<&str>> = printed.lines().map(|row| row.split(';').collect()).collect();
    assert!(rows.len() > 40, "{} frames in {}", rows.len(), file.display());
    let plain: Vec<_> = rows.iter().filter(|row| !row[1].contains(":ethernot")).collect();
    assert!(plain.is_empty(), "{} of {} are not decoded: {:?}", plain.len(), rows.len(), plain[0]);
    for row in &rows {
        assert_eq!(row[2..], ["", ""], "{row:?}");
    }
    rows.iter().map(|row| row[0].to_owned()).collect()
}

/// Server ports of the ping-pongs and of the other programs.
const PORT: u16 = super::PING_PONG_PORT;

/// Numbers of messages of a ping-pong. The first is enough on an idle host.
const EXCHANGES: [&str; 3] = ["200", "2000", "10000"];

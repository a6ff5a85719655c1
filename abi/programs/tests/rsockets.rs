//! Programs of rdma-core that use the `rsocket` API.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use programs::{Network, Program, Side, are_installed, build_client, expect_both};

/// Runs a server and a client with the same arguments, on both networks.
fn runs(port: u16, program: &str, kinds: &[&str]) {
    if !are_installed(&[program]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for kind in kinds {
            println!("{program} {kind}");
            let both = Program::new(program, &format!("-p {port} {kind}"));
            let mut server = both.start(&network, Side::Server);
            server.wait_for_listener(port);
            let client = both.argument(&"-s").argument(&network.server_address());
            let client = client.run(&network, Side::Client);
            let ended = [server.finish(), client];
            expect_both(&ended);
            let complaint = ["data verification failed", "rio", "rsend:", "rrecv:"];
            let said = ended.map(|ended| ended.output).concat();
            assert!(!complaint.iter().any(|complaint| said.contains(complaint)), "{said}");
            // Each side prints one line per test.
            assert!(said.contains("custom") || said.contains("_lat"), "{said}");
        }
    }
}

#[test]
fn rstream() {
    let kinds = [
        "-S 65536 -C 100 -I 2",
        "-S 1000 -C 100 -I 10 -T b -T v",
        "-S 1000 -C 100 -I 10 -T a -T v",
        "-S 4096 -C 20 -I 10 -T n -T v",
        "-S 4096 -C 20 -I 10 -T f -T b",
        "-S 4096 -C 20 -I 10 -T r",
        "-S 4096 -C 20 -I 10 -k 10",
    ];
    runs(24_000, "rstream", &kinds);
}

#[test]
fn riostream() {
    let kinds = [
        "-S 64 -C 1 -I 200 -T v",
        "-S 65536 -C 20 -I 5 -T b -T v",
        "-S 1000 -C 100 -I 5 -T a -T v",
        "-S 1000 -C 100 -I 5 -T a -T b -T v",
        "-S 3000001 -C 3 -I 2 -T n -T v -B 65536",
        "-S 4096 -C 50 -I 2 -i 0",
    ];
    runs(24_010, "riostream", &kinds);
}

#[test]
fn writes_to_mapped_memory_are_visible_before_later_sends() {
    let Some(client) = build_client("socket_mappings") else { return };
    let client = Program::new(&client.display().to_string(), "");
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let client = client.clone().argument(&network.server_address());
        let ended = client.run(&network, Side::Server);
        assert!(ended.expect_success().contains("done"), "{ended}");
    }
}

/// A file, or the path of a new file, in a folder to which both sides may write.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ethernot-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).expect("rights");
        Self(folder)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn rcopy() {
    if !are_installed(&["rcopy"]) {
        return;
    }
    let scratch = Scratch::new("rcopy");
    let [from, to] = ["from", "to"].map(|name| scratch.0.join(name));
    // The file is larger than any buffer, and not a whole number of pages.
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    fs::write(&from, &bytes).expect("a file");
    fs::set_permissions(&from, Permissions::from_mode(0o666)).expect("rights");
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let mut server = Program::new("rcopy", "-p 24020").start(&network, Side::Server);
        server.wait_for_listener(24_020);
        let words =
            format!("{} {}:{} -p 24020", from.display(), network.server_address(), to.display());
        let client = Program::new("rcopy", &words).run(&network, Side::Client);
        client.expect_success();
        assert!(fs::read(&to).expect("the copy") == bytes, "the copy differs");
        fs::remove_file(&to).expect("the copy");
        // The server never exits, so kill it.
        drop(server);
    }
}

#[test]
fn udpong() {
    if !are_installed(&["udpong"]) {
        return;
    }
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        for kind in ["-T e -T b", "-T e -T n", "-T e -T a", "-T b"] {
            println!("udpong {kind}");
            let server = format!("-p 24030 -b {} {kind}", network.server_address());
            let mut server = Program::new("udpong", &server).start(&network, Side::Server);
            server.wait_for_datagrams(24_030);
            let client = Program::new("udpong", "-p 24030 -S 1000 -C 200");
            let client = client.argument(&"-s").argument(&network.server_address());
            let client = kind.split(' ').fold(client, |client, word| client.argument(&word));
            let client = client.run(&network, Side::Client);
            let said = client.expect_success();
            assert!(said.contains("custom"), "{said}");
            // The server never exits, so kill it.
            drop(server);
        }
    }
}

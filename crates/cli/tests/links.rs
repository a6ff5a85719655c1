//! Tests invalid links on the command line: each error names the problem and the remedy.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use ethernot::Endpoint;
use nix::unistd::geteuid;
use testbed::host::Host;

#[test]
fn without_rights_raw_links_name_the_capability_and_how_to_get_it() {
    if !geteuid().is_root() {
        println!("skipped: only root can become somebody without rights");
        return;
    }
    let Some([host, _peer]) = Host::pair() else { return };
    for (links, right) in
        [("packet:edge0", "CAP_NET_RAW"), ("xdp:edge0", "cap_bpf"), ("edge0", "CAP_NET_RAW")]
    {
        let program = env!("CARGO_BIN_EXE_ethernot");
        let output = run(
            &host,
            "setpriv",
            &[
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                program,
                "serve",
                "--links",
                links,
            ],
        );
        let Some(output) = output else { return };
        if matches!(output.status.code(), Some(126 | 127)) {
            println!("skipped: others may not run this program: {}", error(&output));
            return;
        }
        let error = error(&output);
        assert_eq!(output.status.code(), Some(1), "{links}: {error}");
        for part in ["edge0", right, "setcap"] {
            assert!(error.contains(part), "{links}: {error}");
        }
    }
}

#[test]
fn an_interface_that_is_down_or_without_address_is_reported() {
    let Some([host, _peer]) = Host::pair() else { return };
    fails(&host, "udp:edge0", &["edge0", "no IP address", "packet:edge0", "ip address add"]);
    host.ip("link set edge0 down");
    fails(&host, "packet:edge0", &["edge0", "down", "ip link set edge0 up"]);
    fails(&host, "xdp:edge0", &["edge0", "down", "ip link set edge0 up"]);
}

#[test]
fn the_error_names_a_port_in_use() {
    let Some([host, _peer]) = Host::pair() else { return };
    let holder = endpoint(&host, "packet:edge0:7000").unwrap();
    fails(&host, "packet:edge0:7000", &["7000", "edge0", "in use"]);
    drop(holder);
    host.ip("address add 10.9.9.1/24 dev edge0");
    let _holder = endpoint(&host, "udp:edge0:7000").unwrap();
    fails(&host, "udp:10.9.9.1:7000", &["10.9.9.1:7000", "in use"]);
}

#[test]
fn a_foreign_xdp_program_is_named_and_left_attached() {
    let Some([host, _peer]) = Host::pair() else { return };
    let Ok(holder) = endpoint(&host, "xdp:edge0") else {
        println!("skipped: this kernel has no XDP links");
        return;
    };
    let before = host.ip("-d link show edge0");
    let report = run(&host, env!("CARGO_BIN_EXE_ethernot"), &["doctor", "edge0"]).unwrap();
    let report = String::from_utf8_lossy(&report.stdout).into_owned();
    for part in ["taken", "xdp:edge0", "is attached", "sudo ip link set dev edge0 xdp"] {
        assert!(report.contains(part), "{report}");
    }
    fails(&host, "xdp:edge0/port=9", &["edge0", "has an XDP program already", "bpftool net show"]);
    assert_eq!(before, host.ip("-d link show edge0"));
    drop(holder);
    fails(&host, "xdp:edge0:64", &["edge0", "no queue 64"]);
}

#[test]
fn connecting_across_different_vlans_fails_with_a_reason() {
    let Some([client, server]) = Host::pair() else { return };
    client.ip("address add 10.9.9.1/24 dev edge0");
    server.ip("address add 10.9.9.2/24 dev edge0");
    let program = env!("CARGO_BIN_EXE_ethernot");
    let mut command = Command::new(program);
    command.args(["serve", "--listen", "10.9.9.2:7471", "--links", "packet:edge0/vlan=7"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut serving = server.run(move || command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let arguments = [
        "bench",
        "--peer",
        "10.9.9.2",
        "--links",
        "packet:edge0/vlan=8",
        "--transports",
        "edge",
        "--tests",
        "ping-pong",
        "--sizes",
        "8",
        "--repetitions",
        "1",
        "--time",
        "0.1",
        "--no-pinning",
    ];
    let output = run(&client, program, &arguments).unwrap();
    serving.kill().unwrap();
    serving.wait().unwrap();
    let error = error(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("02:00:00:00:00:02") && error.contains("VLAN"), "{error}");
}

/// Makes an endpoint on a host.
fn endpoint(host: &Host, links: &'static str) -> Result<Endpoint, String> {
    host.run(move || Endpoint::with_links(links).map_err(|error| error.to_string()))
}

/// Checks that the server refuses `links` with an error that contains all `parts`.
fn fails(host: &Host, links: &str, parts: &[&str]) {
    let program = env!("CARGO_BIN_EXE_ethernot");
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--links", links];
    let output = run(host, program, &arguments).unwrap();
    let error = error(&output);
    assert_eq!(output.status.code(), Some(1), "{links}: {error}");
    assert!(parts.iter().all(|part| error.contains(part)), "{links}: {error}");
}

/// Runs a program in a host's namespace. Prints the reason and returns `None` if the program is not
/// installed.
fn run(host: &Host, program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    let outcome = host.run(move || command.output());
    if let Err(error) = &outcome {
        println!("skipped: {program}: {error}");
    }
    outcome.ok()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

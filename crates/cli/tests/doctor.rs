//! Tests `ethernot doctor` as a user runs it, with and without privileges.

use std::process::{Command, Output, Stdio};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::geteuid;
use serde_json::Value;

#[test]
fn interfaces_and_their_links_are_listed_in_json_and_in_a_table() {
    let output = doctor(&["--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["format"], "ethernot-doctor-1");
    assert_eq!(report["usable"], true);
    let loopback = interface(&report, "lo");
    assert_eq!(loopback["links"]["udp"]["possible"], true);
    assert!(report["host"].as_array().unwrap().iter().any(|finding| finding["name"] == "kernel"));
    let table = text(&doctor(&["lo"]).stdout);
    assert!(table.contains("interface") && table.contains("127.0.0.1/8"), "{table}");
}

#[test]
fn without_rights_the_doctor_works_and_names_the_command_that_grants_them() {
    if !geteuid().is_root() {
        println!("skipped: only root can become somebody without rights");
        return;
    }
    let program = env!("CARGO_BIN_EXE_ethernot");
    let arguments =
        ["--reuid=65534", "--regid=65534", "--clear-groups", program, "doctor", "lo", "--json"];
    let output = match command("setpriv", &arguments).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: setpriv (util-linux): {error}");
            return;
        }
    };
    if output.status.code() == Some(127) || output.status.code() == Some(126) {
        println!("skipped: others may not run this program: {}", text(&output.stderr));
        return;
    }
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let links = &interface(&report, "lo")["links"];
    assert_eq!(links["udp"]["possible"], true);
    for (kind, capability) in [("packet", "CAP_NET_RAW"), ("xdp", "CAP_NET_ADMIN")] {
        let verdict = &links[kind];
        assert_eq!(verdict["possible"], false, "{verdict}");
        assert!(verdict["obstacle"].as_str().unwrap().contains(capability), "{verdict}");
        let remedy = verdict["remedy"].as_str().unwrap();
        assert!(remedy.starts_with("sudo setcap cap_net_raw"), "{remedy}");
        assert!(remedy.contains(program), "{remedy}");
    }
}

#[test]
fn a_host_without_any_usable_interface_ends_in_failure() {
    in_namespace(|| {
        // The loopback interface of a new namespace is down.
        let output = doctor(&["--json"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("no link is possible"));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let udp = &interface(&report, "lo")["links"]["udp"];
        assert_eq!(udp["remedy"], "sudo ip link set lo up");
    });
}

#[test]
fn each_missing_capability_of_an_interface_is_reported() {
    in_namespace(|| {
        ip("link add edge0 type veth peer name edge1");
        ip("link set edge0 mtu 9000");
        ip("link set edge0 up");
        let report: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
        let edge0 = interface(&report, "edge0");
        assert_eq!((&edge0["state"], &edge0["mtu_bytes"]), (&"no carrier".into(), &9000.into()));
        assert_eq!((&edge0["driver"], &edge0["kind"]), (&"veth".into(), &"veth".into()));
        ip("link set edge1 up");
        ip("address add 10.9.9.1/24 dev edge1");
        let report: Value = serde_json::from_slice(&doctor(&["--json"]).stdout).unwrap();
        let edge1 = interface(&report, "edge1");
        for kind in ["udp", "packet"] {
            assert_eq!(edge1["links"][kind]["possible"], true, "{edge1}");
        }
        assert_eq!(edge1["addresses"].as_array().unwrap()[0], "10.9.9.1/24");
    });
}

#[test]
fn the_doctor_changes_nothing() {
    in_namespace(|| {
        ip("link add edge0 type veth peer name edge1");
        ip("link set edge0 up");
        ip("link set edge1 up");
        ip("address add 10.9.9.1/24 dev edge0");
        let state = || {
            ["-d link", "address", "route", "-6 route"].map(|what| {
                let arguments: Vec<_> = what.split(' ').collect();
                text(&command("ip", &arguments).output().unwrap().stdout)
            })
        };
        // Wait until the kernel has configured the link-local addresses of the interfaces, because
        // that changes their state.
        until(|| !state()[1].contains("tentative") && state()[1].contains("fe80"));
        let before = state();
        doctor(&[]);
        assert_eq!(before, state());
    });
}

#[test]
fn the_error_for_an_unknown_interface_lists_the_existing_ones() {
    let output = doctor(&["nosuch0"]);
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("nosuch0") && error.contains("lo"), "{error}");
}

#[test]
fn the_help_has_an_example() {
    let help = text(&doctor(&["--help"]).stdout);
    assert!(help.contains("Examples") && help.contains("--json"), "{help}");
}

fn interface<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["interfaces"].as_array().unwrap();
    all.iter().find(|interface| interface["name"] == name).unwrap()
}

fn doctor(arguments: &[&str]) -> Output {
    let arguments: Vec<_> = ["doctor"].into_iter().chain(arguments.iter().copied()).collect();
    command(env!("CARGO_BIN_EXE_ethernot"), &arguments).output().unwrap()
}

fn command(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs `test` in a new network namespace, which is removed with its thread.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            println!("skipped: a network namespace needs root ({error})");
            return;
        }
        if command("ip", &["-V"]).output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return;
        }
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn ip(arguments: &str) {
    let arguments: Vec<_> = arguments.split(' ').collect();
    let status = command("ip", &arguments).status().unwrap();
    assert!(status.success(), "ip {arguments:?}");
}

/// Waits until `condition` holds, for at most about 20 seconds.
fn until(condition: impl Fn() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        thread::park_timeout(std::time::Duration::from_millis(10));
    }
    panic!("the condition did not become true in time");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

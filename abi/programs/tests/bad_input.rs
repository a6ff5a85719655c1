//! Results of wrong verbs calls and of work requests that must fail. The manual pages describe the
//! expected results.

use std::path::Path;

use programs::{Network, Program, Side, build_client};

#[test]
fn wrong_calls_and_wrong_work_fail_as_verbs_specifies() {
    let Some(client) = build_client("bad") else { return };
    let client = client.display().to_string();
    let network = Network::Loopback;
    let names = Program::new(&client, "list").run(&network, Side::Server);
    let mut wrong = Vec::new();
    for name in names.expect_success().lines() {
        let ended = Program::new(&client, name).run(&network, Side::Server);
        if !ended.is_success() {
            wrong.push(ended.to_string());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_calls_are_refused_and_crash_no_program() {
    let Some(client) = build_client("wrong_calls") else { return };
    let client = client.display().to_string();
    let ended = Program::new(&client, "").run(&Network::Loopback, Side::Server);
    print!("{}", ended.expect_success());
}

/// If a program uses more than it requested, it fails on a strict device, as on an adapter.
#[test]
fn a_strict_device_grants_exactly_the_requested_sizes() {
    let Some(client) = build_client("strict") else { return };
    let client = client.display().to_string();
    for network in std::iter::once(Network::Loopback).chain(Network::namespaces()) {
        let lenient = Program::new(&client, "lenient").run(&network, Side::Server);
        assert!(lenient.expect_success().contains("done"), "{lenient}");
        let strict = Program::new(&client, "strict").variable("ETHERNOT_STRICT", "1");
        let strict = strict.run(&network, Side::Server);
        assert!(strict.expect_success().contains("done"), "{strict}");
    }
}

#[test]
fn signals_end_blocking_calls() {
    let Some(client) = build_client("interrupted") else { return };
    let client = Program::new(&client.display().to_string(), "");
    let ended = client.run(&Network::Loopback, Side::Client);
    assert!(ended.expect_success().contains("done"), "{ended}");
}

/// `ibv_modify_qp` ignores attributes that are not in its mask.
#[test]
fn attributes_outside_the_mask_may_be_uninitialised() {
    let Some(client) = build_client("uninitialised") else { return };
    if !Path::new("/usr/bin/valgrind").exists() {
        return println!("skipped: valgrind is not installed (Debian's package valgrind)");
    }
    let checked = format!("--error-exitcode=9 {}", client.display());
    let ended = Program::new("valgrind", &checked).run(&Network::Loopback, Side::Server);
    assert!(!ended.output.contains("ibv_modify_qp"), "{ended}");
    print!("{}", ended.expect_success());
}

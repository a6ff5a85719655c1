//! Runs the RDMA devices of Linux in the guest that `cargo xtask guest build` has built. If none is
//! built, the tests are skipped.

use std::process::{Command, Output};

/// Runs `xtask guest` with these arguments. If there is no guest to run, prints why and returns
/// `None`.
fn guest(arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = command.arg("guest").args(arguments).output().expect("xtask starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = errors.strip_prefix("xtask: ").filter(|reason| {
        ["no guest is built", "missing programs"].iter().any(|start| reason.starts_with(start))
    });
    match reason {
        Some(reason) => {
            println!("skipped: {}", reason.trim());
            None
        }
        None => Some(output),
    }
}

/// Fails unless the command succeeded and printed five pings on both sides, at least once.
fn assert_pings(output: &Output) {
    let [text, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(0), "{text}{errors}");
    for number in 0..5 {
        let ping = format!("ping data: rdma-ping-{number}:");
        assert!(text.matches(&ping).count() >= 2, "{ping}\n{text}{errors}");
    }
}

#[test]
fn siw_in_two_namespaces_of_a_guest_exchanges_pings() {
    // siw's passive side sometimes sleeps through the first message, and both ends then wait for ever.
    let script = "veth-pair siw && rdma link && \
        ping() { timeout 60 ip netns exec peer rping -s -v -a 10.77.0.2 -C 5 & await-listener && \
        timeout 60 rping -c -v -a 10.77.0.2 -C 5 && wait $!; } && { ping || ping || ping || ping; }";
    let Some(output) = guest(&["run", "--", script]) else { return };
    assert_pings(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("link siw-veth0/1 state ACTIVE"), "{text}");
    assert!(text.contains("link siw-veth1/1 state ACTIVE"), "{text}");
}

#[test]
fn rxe_in_two_guests_exchanges_pings() {
    let script = "$B 'rping -s -v -a 10.88.0.2 -C 5' & \
        $B await-listener && $A 'rdma link && rping -c -v -a 10.88.0.2 -C 5' && wait $!";
    let Some(output) = guest(&["pair", "--device", "rxe", "--", script]) else { return };
    assert_pings(&output);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("link rxe0/1 state ACTIVE"), "{text}");
}

#[test]
fn the_exit_status_and_both_outputs_of_a_command_are_returned() {
    let Some(output) = guest(&["run", "--", "printf out; printf err >&2; exit 42"]) else { return };
    assert_eq!(output.status.code(), Some(42));
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out"[..], &b"err"[..]));
}

#[test]
fn a_command_beyond_its_limit_is_killed() {
    let Some(output) = guest(&["run", "--seconds", "1", "--", "echo begun; sleep 1000"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(124));
    assert_eq!(output.stdout, b"begun\n");
}

#[test]
fn a_guest_that_crashes_is_reported_with_its_last_messages() {
    let Some(output) = guest(&["run", "--", "echo c > /proc/sysrq-trigger; sleep 1000"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(125));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("the guest was lost") && errors.contains("sysrq"), "{errors}");
}

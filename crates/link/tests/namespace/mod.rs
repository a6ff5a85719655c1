//! A network namespace for one test, with a pair of interfaces.

use std::process::Command;
use std::thread;

/// Runs `test` in a new namespace with two connected interfaces `edge0` (10.9.9.1) and `edge1`
/// (10.9.8.1). The namespace ends with the thread.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        // SAFETY: the call takes no pointers, and only this thread changes its namespace.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            println!("skipped: a network namespace needs root");
            return;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return;
        }
        make_interfaces();
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Creates the pair of interfaces.
pub(crate) fn make_interfaces() {
    ip("link add edge0 type veth peer name edge1");
    ip("address add 10.9.9.1/24 dev edge0");
    ip("address add 10.9.8.1/24 dev edge1");
    ip("link set edge0 up");
    ip("link set edge1 up");
    await_carrier(Carrier::Up);
}

/// Runs `ip` and returns whether it succeeded.
pub(crate) fn may(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().unwrap().status.success()
}

pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

/// Waits until `edge0` is up or down, because the kernel reports a changed carrier with a delay.
pub(crate) fn await_carrier(wanted: Carrier) {
    loop {
        let output = Command::new("ip").args(["-o", "link", "show", "edge0"]).output().unwrap();
        let is_up = String::from_utf8_lossy(&output.stdout).contains("state UP");
        if is_up == (wanted == Carrier::Up) {
            return;
        }
    }
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Carrier {
    Up,
    Down,
}

//! A network namespace for one test, with a pair of interfaces.

use std::process::Command;

pub(crate) use testbed::host::ip;

/// Runs `test` in a new namespace with two connected interfaces `edge0` (10.9.9.1) and `edge1`
/// (10.9.8.1). The namespace ends with the thread.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    testbed::host::in_namespace(|| {
        make_interfaces();
        test();
    });
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

//! Tests `ethernot bench sockets` as a user runs it. Tests with namespaces need root.
#![expect(clippy::disallowed_methods, reason = "waits for another process, which signals nothing")]

mod shared;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bench::sockets::{self, Contender, Report, Test};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::can_make_namespaces;
use testbed::namespace::NAMESPACE_DIRECTORY;

const QUICK: [&str; 10] = [
    "bench",
    "sockets",
    "--contenders",
    "tcp,tcp-poll",
    "--sizes",
    "64",
    "--clients",
    "4",
    "--seconds",
    "0.02",
];

#[test]
fn every_test_of_the_papers_has_a_figure_over_loopback() {
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sockets.html");
    let page_name = page.to_str().unwrap();
    let more = ["--loopback", "--repetitions", "3", "--json", "-", "--html", page_name];
    let output = run(&QUICK, &more);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Report = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found.format, sockets::FORMAT);
    for test in Test::ALL {
        let row = found.rows.iter().find(|row| row.test == test).unwrap();
        let value = row.value().unwrap();
        assert!(value.mean > 0.0 && value.min <= value.max && row.samples.len() == 3, "{row:?}");
        let clients = if test.has_clients() { 4 } else { 1 };
        assert_eq!((row.clients, row.contender), (clients, Contender::Tcp));
        assert!(row.samples.iter().all(|sample| sample.moved == 0));
    }
    let poll = found.rows.iter().find(|row| row.contender == Contender::TcpPoll).unwrap();
    assert!(poll.test == Test::Latency && poll.ratio_to(Contender::Tcp).is_some());
    let text = fs::read_to_string(&page).unwrap();
    // Fails only on an I/O error.
    let _ = fs::remove_file(&page);
    assert!(text.contains("<svg") && text.contains("hot-spot") && text.ends_with("</html>\n"));
}

#[test]
fn several_hosts_are_created_and_removed() {
    if !can_make_namespaces() {
        return;
    }
    let running = start(&QUICK, &["--tests", "hot-spot,fan-in,fan-out", "--repetitions", "1"]);
    let pid = running.id();
    let output = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("MTU 1500") && text.contains("MTU 9000"), "{text}");
    assert_eq!(namespaces_of(pid), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_run_leaves_nothing_behind() {
    if !can_make_namespaces() {
        return;
    }
    let mut running = start(&QUICK, &["--tests", "hot-spot", "--repetitions", "1000"]);
    let pid = running.id();
    while namespaces_of(pid).len() < 5 && running.try_wait().unwrap().is_none() {
        thread::sleep(Duration::from_millis(10));
    }
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_eq!(namespaces_of(pid), Vec::<PathBuf>::new());
    let left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    let own = format!("ethernot-sockets-{pid}-");
    let left: Vec<_> =
        left.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn bad_input_is_refused_with_the_value_and_the_choices() {
    let refused: [(&[&str], &[&str]); 6] = [
        (&["--tests", "speed"], &["speed", "hot-spot", "connection"]),
        (&["--contenders", "udp"], &["udp", "tcp-poll", "native"]),
        (&["--clients", "65"], &["65", "--clients"]),
        (&["--clients", "0"], &["0", "--clients"]),
        (&["--mtu", "10"], &["10", "68..=65535"]),
        (&["--sizes", "17M"], &["17M", "16 M"]),
    ];
    for (arguments, wanted) in refused {
        let output = run(&["bench", "sockets"], arguments);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(wanted.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
    }
}

fn run(arguments: &[&str], more: &[&str]) -> Output {
    start(arguments, more).wait_with_output().unwrap()
}

fn start(arguments: &[&str], more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_ethernot"))
        .args(arguments)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Returns the namespaces that process `pid` has made.
fn namespaces_of(pid: u32) -> Vec<PathBuf> {
    let entries = fs::read_dir(NAMESPACE_DIRECTORY).into_iter().flatten().flatten();
    let prefix = format!("ethernot-bench-{pid}-");
    let of_run = entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix));
    of_run.map(|entry| entry.path()).collect()
}

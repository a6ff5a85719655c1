//! Tests the command as a user runs it, over loopback and in network namespaces.
#![expect(clippy::disallowed_methods, reason = "waits for other processes, which signal nothing")]

mod shared;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use bench::reality::{Quantity, Report};
use bench::results::{Measurement, PathKind, Results};
use bench::transport::{Test, Waiting};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use shared::can_make_namespaces;
use testbed::cleanup;
use testbed::namespace::NAMESPACE_DIRECTORY;

#[test]
fn every_test_of_every_transport_runs_over_loopback() {
    let results = results(&[
        "--loopback",
        "--connections",
        "100",
        "--sizes",
        "8,100K",
        "--repetitions",
        "3",
        "--time",
        "1",
        "--json",
        "-",
    ]);
    assert_eq!(results.path.kind, PathKind::Loopback);
    for (test, transport) in [
        (Test::PingPong, "udp"),
        (Test::OneWay, "tcp"),
        (Test::TwoWay, "tcp-poll"),
        (Test::TwoWay, "tcp"),
        (Test::OperationRate, "udp"),
        (Test::ConnectionSetup, "tcp"),
        (Test::ConnectionSetup, "tcp-poll"),
    ] {
        let mut found = results.results.iter();
        let found = found.find(|m| m.test == test && m.transport == transport).unwrap();
        assert_eq!(found.samples.len(), 3);
        assert!(found.samples.iter().all(|sample| sample.seconds > 0.0 && sample.operations > 0));
        assert_eq!(found.latency_ns.is_some(), test.is_about_latency());
        assert_eq!(found.ratio_to("tcp").is_some(), transport != "tcp");
    }
}

#[test]
fn a_run_in_namespaces_leaves_none_behind() {
    if !can_make_namespaces() {
        return;
    }
    let output = ethernot(&[
        "bench",
        "--tests",
        "ping-pong,one-way",
        "--sizes",
        "8,64K",
        "--transports",
        "tcp,udp",
        "--links",
        "3",
        "--mtu",
        "9000",
        "--repetitions",
        "1",
        "--time",
        "0.2",
        "--json",
        "-",
    ])
    .spawn()
    .unwrap();
    let pid = output.id();
    let output = output.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results: Results = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((results.path.links, results.path.mtu), (3, Some(9000)));
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
}

#[test]
fn an_interrupt_removes_namespaces_and_processes() {
    if !can_make_namespaces() {
        return;
    }
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut child = endless_run();
        let pid = child.id();
        until(|| !children_of(pid).is_empty());
        signal_to(&child, signal);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130), "{signal}");
        assert_eq!(namespaces_of(pid), Vec::<String>::new(), "{signal}");
        until(|| children_of(pid).is_empty());
    }
}

#[test]
fn busy_threads_end_with_their_run_however_the_run_ends() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let arguments = "bench --loopback --links 1 --tests one-way --sizes 8 --transports tcp \
                         --repetitions 1000 --busy 1";
        let arguments: Vec<_> = arguments.split_whitespace().collect();
        let mut child = ethernot(&arguments).spawn().unwrap();
        let pid = child.id();
        until(|| !busy_children_of(pid).is_empty());
        signal_to(&child, signal);
        child.wait().unwrap();
        until(|| busy_children_of(pid).is_empty());
    }
}

#[test]
fn results_show_the_wait_mode_and_the_busy_threads() {
    let results = results(&[
        "--loopback",
        "--links",
        "1",
        "--tests",
        "ping-pong,two-way,small-beside-stream",
        "--sizes",
        "4K",
        "--transports",
        "edge,tcp,tcp-poll",
        "--waiting",
        "poll,mixed,interrupt",
        "--busy",
        "1",
        "--repetitions",
        "1",
        "--time",
        "1",
        "--json",
        "-",
    ]);
    assert_eq!(results.settings.busy, 1);
    let waitings = |test, transport: &str| {
        let of = results.results.iter().filter(|m| m.test == test && m.transport == transport);
        of.map(|m| m.waiting).collect::<Vec<_>>()
    };
    for test in [Test::PingPong, Test::TwoWay] {
        assert_eq!(waitings(test, "edge"), Waiting::ALL);
        assert_eq!(waitings(test, "tcp"), [Waiting::Interrupt]);
        assert_eq!(waitings(test, "tcp-poll"), [Waiting::Poll]);
    }
    assert_eq!(waitings(Test::SmallBesideStream, "edge"), Waiting::ALL);
    assert_eq!(waitings(Test::SmallBesideStream, "tcp"), []);
    let sleeps = |m: &&Measurement| m.waiting != Waiting::Poll;
    for measured in results.results.iter().filter(sleeps) {
        let slept = measured.samples.iter().all(|sample| sample.voluntary_switches > 0);
        assert!(slept, "{}", measured.label());
    }
}

#[test]
fn a_killed_run_is_cleaned_up_by_the_next() {
    if !can_make_namespaces() {
        return;
    }
    let mut child = endless_run();
    let pid = child.id();
    until(|| !children_of(pid).is_empty());
    signal_to(&child, Signal::SIGKILL);
    child.wait().unwrap();
    until(|| children_of(pid).is_empty());
    // Also accept that a run of a concurrent test removes the namespaces before this test does.
    until(|| {
        cleanup::remove_leftovers();
        namespaces_of(pid).is_empty()
    });
}

#[test]
fn a_peer_is_measured_like_a_child() {
    let mut server = ethernot(&["serve", "--listen", "127.0.0.1:0", "--json"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let address = line["listening"].as_str().unwrap();
    let results = results(&[
        "--peer",
        address,
        "--tests",
        "two-way,ping-pong",
        "--sizes",
        "8",
        "--repetitions",
        "1",
        "--time",
        "0.2",
        "--json",
        "-",
    ]);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(results.path.kind, PathKind::Peer);
    // Two tests over three transports, and the ping-pong over bare UDP.
    assert_eq!(results.results.len(), 7);
}

#[test]
fn saved_results_are_shown_from_their_file() {
    let directory = std::env::temp_dir().join(format!("ethernot-test-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let [json, html] = ["r.json", "r.html"].map(|name| directory.join(name));
    let [json_name, html_name] = [&json, &html].map(|path| path.to_str().unwrap());
    let bench = run(&[
        "bench",
        "--loopback",
        "--tests",
        "one-way",
        "--sizes",
        "1K",
        "--repetitions",
        "1",
        "--time",
        "0.2",
        "--json",
        json_name,
    ]);
    assert!(bench.status.success(), "{}", text(&bench.stderr));
    let report = run(&["report", json_name]);
    assert_eq!(text(&report.stdout), text(&bench.stdout));
    assert!(run(&["report", json_name, "--html", html_name]).status.success());
    assert!(fs::read_to_string(&html).unwrap().contains("<svg"));
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn errors_name_the_mistake_and_a_remedy() {
    for (arguments, status, parts) in [
        (&["bench", "--loopback", "--transports", "pigeon"][..], 1, ["pigeon", "tcp-poll"]),
        (&["bench", "--sizes", "many"], 2, ["many", "number of bytes"]),
        (&["bench", "--tests", "none"], 2, ["none", "two-way"]),
        (&["bench", "--waiting", "sleep"], 2, ["sleep", "interrupt"]),
        (&["bench", "--busy", "17"], 2, ["17", "16"]),
        (&["bench", "multiedge", "--busy=-1"], 2, ["-1", "--busy"]),
        (&["bench", "--peer", "127.0.0.1:1"], 1, ["127.0.0.1:1", "ethernot serve"]),
        (&["bench", "--peer", "no such host"], 1, ["no such host", "HOST:PORT"]),
        (&["bench", "--json", "/no/such/directory/x"], 1, ["/no/such/directory/x", "No such"]),
        (&["bench", "--peer", "127.0.0.1", "--links", "2"], 1, ["--links", "eth0,packet:eth1"]),
        (&["bench", "--links", "eth0"], 1, ["--peer", "ethernot serve"]),
        (
            &["bench", "--peer", "127.0.0.1", "--links", "lo,"],
            2,
            ["character 4", "a name is missing"],
        ),
        (
            &["bench", "--peer", "127.0.0.1", "--links", "nosuch0"],
            1,
            ["nosuch0", "this host has lo"],
        ),
        (&["serve", "--links", "udp:l0"], 1, ["l0", "did you mean \"lo\"?"]),
        (&["serve", "--links", "xpd:lo:0"], 2, ["xpd", "did you mean \"xdp\"?"]),
        (&["serve", "--links", "packet:lo/vlan=5000"], 2, ["vlan=5000", "4094"]),
        (&["serve", "--links", "udp:192.0.2.1"], 1, ["192.0.2.1", "ip address"]),
        (&["serve", "--listen", "192.0.2.1:1"], 1, ["192.0.2.1:1", "--listen"]),
        (&["report", "/no/such/file"], 1, ["/no/such/file", "No such"]),
        (&["report", "/dev/null"], 1, ["/dev/null", "ethernot bench --json"]),
    ] {
        let output = run(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{arguments:?}: {error}");
    }
}

#[test]
fn the_help_of_every_command_has_examples() {
    let mut commands = vec![vec![]];
    let mut seen = 0;
    while let Some(command) = commands.pop() {
        let output = run(&[&command[..], &["--help"]].concat());
        let help = text(&output.stdout);
        assert!(output.status.success());
        assert!(help.contains("\nExamples:\n"), "{command:?}: {help}");
        let subcommands = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
        let subcommands = subcommands.lines().take_while(|line| !line.is_empty());
        for line in subcommands.filter(|line| line.starts_with("  ") && !line.starts_with("   ")) {
            let name = line.split_whitespace().next().unwrap().to_owned();
            let name: &str = name.leak();
            commands.push([&command[..], &[name]].concat());
        }
        // A command with subcommands prints no results. A command that replaces itself by another
        // program prints no results either.
        let prints_no_results = matches!(command[..], [] | ["sim" | "run" | "dsm"]);
        assert!(help.contains("--json") || prints_no_results, "{command:?}: {help}");
        seen += 1;
    }
    assert!(seen >= 20, "{seen} commands");
}

/// Runs `ethernot bench` with `arguments`, which must select JSON output, and parses the results.
fn results(arguments: &[&str]) -> Results {
    let arguments: Vec<_> = ["bench"].into_iter().chain(arguments.iter().copied()).collect();
    let output = run(&arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn run(arguments: &[&str]) -> Output {
    ethernot(arguments).spawn().unwrap().wait_with_output().unwrap()
}

fn ethernot(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn endless_run() -> Child {
    ethernot(&["bench", "--tests", "one-way", "--sizes", "8", "--repetitions", "1000"])
        .spawn()
        .unwrap()
}

fn signal_to(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn simulation_is_compared_with_reality() {
    if !can_make_namespaces() {
        let output = ethernot(&["sim", "reality"]).output().unwrap();
        let error = text(&output.stderr);
        assert!(
            !output.status.success()
                && (error.contains("needs root") || error.contains("namespace"))
        );
        return;
    }
    let arguments = "sim reality --setups 1L-100M --tests ping-pong,one-way --sizes 8,64K \
                     --repetitions 1 --time 1 --json -";
    let output = ethernot(&arguments.split_whitespace().collect::<Vec<_>>()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Report = serde_json::from_slice(&output.stdout).unwrap();
    let [found] = report.setups.as_slice() else { panic!("one set-up was asked for") };
    let curves: Vec<_> = found.curves.iter().map(|curve| (curve.test, curve.quantity)).collect();
    let latency = (Test::PingPong, Quantity::Latency);
    assert_eq!(curves, [latency, (Test::OneWay, Quantity::Throughput)]);
    for point in found.curves.iter().flat_map(|curve| &curve.points) {
        assert!(point.real.median > 0.0 && point.simulated > 0.0, "{point:?}");
    }
    assert!(report.calibration.points.len() >= 8 && report.worst_error_percent.is_finite());
}

fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMESPACE_DIRECTORY) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("ethernot-bench-{pid}-"))).collect()
}

/// Returns the processes with busy threads that process `pid` has started.
fn busy_children_of(pid: u32) -> Vec<String> {
    let wanted = [',', '}'].map(|end| format!("\"parent\":{pid}{end}"));
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| read(&entry.path().join("cmdline")));
    let is_wanted = |c: &String| wanted.iter().any(|wanted| c.contains(wanted));
    commands.filter(|c| is_wanted(c) && c.contains("\"busy\"")).collect()
}

/// Returns the client processes that process `pid` has started. A run starts its clients last.
fn children_of(pid: u32) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let commands = entries.filter_map(|entry| read(&entry.path().join("cmdline")));
    let wanted = [',', '}'].map(|end| format!("\"parent\":{pid}{end}"));
    let is_wanted = |c: &String| wanted.iter().any(|wanted| c.contains(wanted));
    commands.filter(|c| is_wanted(c) && c.contains("shares_host")).collect()
}

fn read(path: &Path) -> Option<String> {
    fs::read(path).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Waits until `condition` holds, for at most about half a minute.
fn until(condition: impl Fn() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("the condition did not become true in time");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

//! Tests stock RDMA programs under `ethernot run`, between two hosts, which are network namespaces.
//! Needs root and the programs.

#[path = "verbs_programs/captured.rs"]
mod captured;

#[path = "verbs_programs/devices.rs"]
mod devices;

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::host::{Host, until};

#[test]
fn every_user_sees_the_device() {
    let Some([host, _peer]) = two_hosts(&["ibv_devinfo"]) else { return };
    for user in [User::Root, User::Unprivileged] {
        let Some(output) = run(&host, user, &["ibv_devinfo"]) else { return };
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{}", text(&output.stderr));
        for part in ["edge0", "PORT_ACTIVE", "Ethernet"] {
            assert!(printed.contains(part), "{printed}");
        }
    }
    let output = run_with(&host, &["--device", "fast7"], &["ibv_devinfo"]);
    assert!(text(&output.stdout).contains("fast7"), "{}", text(&output.stderr));
}

#[test]
fn nested_runs_use_the_inner_device() {
    let Some([host, _peer]) = two_hosts(&["ibv_devinfo"]) else { return };
    let this = env!("CARGO_BIN_EXE_ethernot");
    let output = run(&host, User::Root, &[this, "run", "--device", "inner0", "ibv_devinfo"]);
    let output = output.unwrap();
    assert!(text(&output.stdout).contains("inner0"), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn programs_see_the_device_files_and_the_host_does_not() {
    let Some([host, _peer]) = two_hosts(&["sh"]) else { return };
    let script = "cd /; test -c /dev/infiniband/uverbs0 && : < /dev/infiniband/uverbs0 && \
                  cat /sys/class/infiniband/edge0/ports/1/gid_attrs/types/0 \
                  /sys/class/infiniband/edge0/ports/1/gid_attrs/ndevs/0 && \
                  ls /sys/class/infiniband/edge0/device/net && \
                  realpath /sys/class/infiniband/edge0/device && stat -c %F /dev/infiniband/uverbs0";
    for user in [User::Root, User::Unprivileged] {
        // The shell and its children open the files, so the preloaded functions must work in both.
        let Some(output) = run(&host, user, &["sh", "-c", script]) else { return };
        let printed = text(&output.stdout);
        assert_eq!(
            printed.lines().collect::<Vec<_>>(),
            [
                "RoCE v2",
                "edge0",
                "edge0",
                "/sys/devices/virtual/infiniband/edge0/device",
                "character special file"
            ],
            "{}",
            text(&output.stderr)
        );
    }
    assert!(!PathBuf::from("/sys/class/infiniband/edge0").exists());
}

#[test]
fn files_describe_a_device_without_hardware_to_tools() {
    let Some([host, _peer]) = two_hosts(&["find", "readlink"]) else { return };
    let script = "cd /; device=/sys/class/infiniband/edge0; readlink $device; realpath $device/../..; \
                  ls -l $device | sed 's/.*edge0 -> /-> /'; ls -ld $device/ | cut -c1-10; \
                  find $device/ports -name 'st*' -type f; find /sys/class/infiniband -type l; \
                  find $device -maxdepth 0; find -H /sys/class/infiniband_verbs/uverbs0 -name ibdev; \
                  ls -R $device/device | head -n 2; cat $device/device/numa_node; \
                  cat $device/ports/1/counters/port_xmit_data; ls $device/ports/1/hw_counters | head -n 1";
    let output = run(&host, User::Root, &["sh", "-c", script]).unwrap();
    assert_eq!(text(&output.stderr), "");
    let expected = [
        "../../devices/virtual/infiniband/edge0",
        "/sys/devices/virtual",
        "-> ../../devices/virtual/infiniband/edge0",
        "dr-xr-xr-x",
        "/sys/class/infiniband/edge0/ports/1/state",
        "/sys/class/infiniband/edge0",
        "/sys/class/infiniband/edge0",
        "/sys/class/infiniband_verbs/uverbs0/ibdev",
        "/sys/class/infiniband/edge0/device:",
        "local_cpus",
        "-1",
        "0",
        "closed_by_peer",
    ];
    assert_eq!(text(&output.stdout).lines().collect::<Vec<_>>(), expected);
}

#[test]
fn answers_to_the_tool_rdma_describe_the_device() {
    let Some([host, _peer]) = two_hosts(&["sh"]) else { return };
    let output = run(&host, User::Root, &["rdma", "link", "show", "-j"]).unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report[0]["ifname"], &report[0]["netdev"]), (&"edge0".into(), &"edge0".into()));
    assert_eq!(report[0]["state"], "ACTIVE");
}

#[test]
fn netlink_describes_the_device() {
    // The installed tool, which uses netlink. The project's script of the same name does not use
    // netlink.
    const TOOL: &str = "/usr/bin/rdma";
    let Some([host, _peer]) = two_hosts(&[TOOL]) else { return };
    let output = run(&host, User::Root, &[TOOL, "-j", "link"]).unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report[0]["ifname"], &report[0]["netdev"]), (&"edge0".into(), &"edge0".into()));
    assert_eq!((&report[0]["state"], &report[0]["port"]), (&"ACTIVE".into(), &1.into()));
    let output = run(&host, User::Root, &[TOOL, "dev", "show", "edge0"]).unwrap();
    assert_eq!(text(&output.stderr), "");
    let read = run(&host, User::Root, &["cat", "/sys/class/infiniband/edge0/node_guid"]).unwrap();
    let printed = text(&output.stdout);
    let guid = format!("node_guid {}", text(&read.stdout).trim());
    assert!(printed.starts_with("0: edge0: node_type ca ") && printed.contains(&guid), "{printed}");
}

#[test]
fn ib_write_bw_measures_between_two_hosts_as_any_user() {
    for user in [User::Root, User::Unprivileged] {
        let program = ["ib_write_bw", "-d", "edge0", "-s", "65536", "-n", "500"];
        measure(user, &[], &program);
    }
}

#[test]
fn ib_send_lat_measures_over_a_link_that_loses_frames() {
    let faults = ["--faults", "loss=0.01,dup=0.01,reorder=0.05"];
    measure(User::Root, &faults, &["ib_send_lat", "-d", "edge0", "-n", "500"]);
}

#[test]
fn ucx_finds_the_device() {
    let Some([host, _peer]) = two_hosts(&["ucx_info"]) else { return };
    let output = run(&host, User::Root, &["ucx_info", "-d"]).unwrap();
    let printed = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for part in ["Memory domain: edge0", "Transport: rc_verbs", "Device: edge0:1"] {
        assert!(printed.contains(part), "{printed}");
    }
}

#[test]
fn frames_are_captured_for_wireshark_to_the_last() {
    let Some([client, server]) = two_hosts(&["ibv_rc_pingpong"]) else { return };
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("ping-pong.pcapng");
    let option = file.to_str().unwrap().to_owned();
    let program = ["ibv_rc_pingpong", "-g", "0", "-n", "100"];
    let serving = start(&server, User::Root, &["--pcap", &option], &program);
    listening(&server, PING_PONG_PORT);
    let asking = start(&client, User::Root, &[], &[&program[..], &["10.9.9.2"]].concat());
    ends_well(asking);
    ends_well(serving);
    // A message of 4096 bytes and its answer, a hundred times.
    let captured = fs::metadata(&file).unwrap().len();
    assert!(captured > 2 * 100 * 4096, "{captured} bytes");
}

#[test]
fn stat_shows_running_programs_to_their_user_until_they_end() {
    let Some([host, _peer]) = two_hosts(&["ibv_rc_pingpong"]) else { return };
    let stat = |user| {
        let output = host.run(move || ethernot(user, &["stat", "--json"]).output().unwrap());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let devices = |report: &Value| report["devices"].as_array().unwrap().clone();
    assert_eq!(devices(&stat(User::Root)), [Value::Null; 0]);
    let program = ["ibv_rc_pingpong", "-g", "0", "-n", "1000000000"];
    let server = start(&host, User::Root, &[], &program);
    listening(&host, PING_PONG_PORT);
    let client = start(&host, User::Root, &[], &[&program[..], &["10.9.9.1"]].concat());
    let sent = || -> Vec<u64> {
        let found = devices(&stat(User::Root));
        let pairs = found.iter().filter_map(|device| device["queue_pairs"].as_array()?.first());
        let connected = pairs.filter(|pair| pair["is_connected"] == true);
        connected.map(|pair| pair["bytes_sent"].as_u64().unwrap()).collect()
    };
    until(|| sent().len() == 2 && sent().iter().all(|&bytes| bytes > 0));
    let before = sent();
    until(|| sent().iter().zip(&before).all(|(now, before)| now > before));
    let report = devices(&stat(User::Root));
    for (one, other) in [(0, 1), (1, 0)] {
        let pair = |at: usize| &report[at]["queue_pairs"][0];
        assert_eq!(report[one]["program"], "ibv_rc_pingpong");
        assert_eq!((&pair(one)["service"], &pair(one)["state"]), (&"RC".into(), &"RTS".into()));
        assert_eq!(pair(one)["peer"]["number"], pair(other)["number"]);
        assert_eq!(pair(one)["peer"]["address"], "10.9.9.1");
    }
    let table = host.run(|| ethernot(User::Root, &["stat"]).output().unwrap());
    assert!(text(&table.stdout).contains("ibv_rc_pingpong"), "{}", text(&table.stdout));
    if can_be_run_by_others() {
        let report = stat(User::Unprivileged);
        assert_eq!((devices(&report).len(), &report["of_other_users"]), (0, &2.into()));
    }
    // A stopped process does not delay the reports of the others.
    send(&server, Signal::SIGSTOP);
    let report = stat(User::Root);
    assert_eq!((devices(&report).len(), report["silent"].as_array().unwrap().len()), (1, 1));
    for child in [server, client] {
        send(&child, Signal::SIGKILL);
        drop(child);
    }
    until(|| devices(&stat(User::Root)).is_empty());
    let left = host.run(|| fs::read_to_string("/proc/thread-self/net/unix").unwrap());
    assert!(!left.contains("ethernot"), "{left}");
}

/// The user who runs a program.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum User {
    Root,
    Unprivileged,
}

/// Runs a test of perftest on two hosts to its end.
fn measure(user: User, options: &[&str], program: &[&str]) {
    let Some([client, server]) = two_hosts(&program[..1]) else { return };
    if user == User::Unprivileged && !can_be_run_by_others() {
        return;
    }
    let serving = start(&server, user, options, program);
    listening(&server, PERFTEST_PORT);
    let measuring = start(&client, user, options, &[program, &["10.9.9.2"]].concat());
    let printed = ends_well(measuring);
    assert!(printed.contains("#bytes"), "{printed}");
    ends_well(serving);
}

/// Returns two hosts joined by an Ethernet. Prints the reason and returns `None` if hosts cannot be
/// made or a program is missing.
fn two_hosts(programs: &[&str]) -> Option<[Host; 2]> {
    for program in programs {
        let found = Command::new("sh").args(["-c", "command -v \"$0\"", program]).output().unwrap();
        if !found.status.success() {
            println!("skipped: {program} is not installed (ibverbs-utils, perftest, ucx-utils)");
            return None;
        }
    }
    let hosts = Host::pair()?;
    for (number, host) in (1..).zip(&hosts) {
        host.ip(&format!("address add 10.9.9.{number}/24 dev edge0"));
    }
    Some(hosts)
}

/// Returns the folder of the libraries, which are built once for all tests.
fn libraries() -> &'static str {
    static FOLDER: OnceLock<String> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let chore = ["run", "--quiet", "--package", "xtask", "--", "libraries"];
        let output = Command::new(cargo).args(chore).output().expect("cargo");
        let error = text(&output.stderr);
        assert!(output.status.success(), "cargo xtask libraries: {error}");
        text(&output.stdout).trim().to_owned()
    })
}

/// Returns a command that runs `ethernot` as `user`.
fn ethernot(user: User, arguments: &[&str]) -> Command {
    let program = env!("CARGO_BIN_EXE_ethernot");
    let mut command = match user {
        User::Root => Command::new(program),
        User::Unprivileged => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=65534", "--regid=65534", "--clear-groups", program]);
            command
        }
    };
    command.args(arguments).stdin(Stdio::null()).env("ETHERNOT_LIBRARIES", libraries());
    command
}

/// Returns whether other users can read the files of this build; prints the reason if not.
fn can_be_run_by_others() -> bool {
    let output = ethernot(User::Unprivileged, &["run", "--", "true"]).output();
    let can = output.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: others may not run what was built here, or setpriv is not installed");
    }
    can
}

/// Runs a program to its end. Prints the reason and returns `None` if this user cannot run it.
fn run(host: &Host, user: User, program: &[&str]) -> Option<Output> {
    if user == User::Unprivileged && !can_be_run_by_others() {
        return None;
    }
    let mut command = ethernot(user, &["run", "--"]);
    command.args(program);
    Some(host.run(move || command.output().unwrap()))
}

fn run_with(host: &Host, options: &[&str], program: &[&str]) -> Output {
    let mut command = ethernot(User::Root, &["run"]);
    command.args(options).arg("--").args(program);
    host.run(move || command.output().unwrap())
}

fn start(host: &Host, user: User, options: &[&str], program: &[&str]) -> Running {
    let mut command = ethernot(user, &["run"]);
    command.args(options).arg("--").args(program).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(host.run(move || command.spawn().unwrap()))
}

/// Waits until a program listens on TCP port `port`.
fn listening(host: &Host, port: u16) {
    has_socket(host, "tcp", "0A", move |at| at == port);
}

/// Waits until a program has opened two UDP ports: `port` of the connection manager, and a port
/// from 0xf000 upwards, by which a process reserves its queue-pair numbers. A process opens the
/// second port last.
fn listening_for_requests(host: &Host, port: u16) {
    has_socket(host, "udp", "07", move |at| at == port);
    has_socket(host, "udp", "07", |at| at >= 0xf000);
}

/// Waits until a host has a socket of `protocol` in the state `state` at a port that `is_wanted`
/// accepts.
fn has_socket(
    host: &Host,
    protocol: &'static str,
    state: &'static str,
    is_wanted: impl Fn(u16) -> bool + Copy + Send + 'static,
) {
    until(|| {
        host.run(move || {
            let is_it = |line: &str| {
                let mut words = line.split_whitespace().skip(1);
                let port = words.next().and_then(|at| at.rsplit_once(':'));
                let port = port.and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
                port.is_some_and(is_wanted) && words.nth(1) == Some(state)
            };
            ["", "6"].into_iter().any(|family| {
                let path = format!("/proc/thread-self/net/{protocol}{family}");
                fs::read_to_string(path).unwrap_or_default().lines().any(is_it)
            })
        })
    });
}

/// A process that is killed on drop, so that it also ends if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a process, which must succeed. Returns its output.
fn ends_well(mut running: Running) -> String {
    let child = &mut running.0;
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
    let status = child.wait().unwrap();
    assert!(status.success(), "{status}: {printed}");
    printed
}

fn send(running: &Running, signal: Signal) {
    kill(Pid::from_raw(running.0.id().cast_signed()), signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const PERFTEST_PORT: u16 = 18515;
const PING_PONG_PORT: u16 = 18515;

//! Tests that interfaces have their earlier state after a run that ends normally, and after a run
//! that is killed. Other programs must then be able to use the interfaces. Needs root: each test
//! has two hosts, which are network namespaces.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command, Stdio};

use ethernot::Endpoint;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::host::{Host, until};

#[test]
fn udp_links_leave_nothing_behind() {
    links_leave_nothing_behind("udp:edge0");
}

#[test]
fn packet_links_leave_nothing_behind() {
    links_leave_nothing_behind("packet:edge0");
}

#[test]
fn packet_links_in_a_vlan_leave_nothing_behind() {
    links_leave_nothing_behind("packet:edge0/vlan=7");
}

#[test]
fn xdp_links_leave_nothing_behind() {
    links_leave_nothing_behind("xdp:edge0:0");
}

#[test]
fn shared_memory_leaves_nothing_behind() {
    let Some([host, _peer]) = Host::pair() else { return };
    if let Err(error) = host.run(|| Endpoint::with_links("shm").map(drop)) {
        println!("skipped: {error}");
        return;
    }
    host.ip("address add 10.9.9.2/24 dev edge0");
    let before = state(&host);
    for end in [End::Itself, End::Interrupt, End::Kill] {
        run(&host, &host, "udp:edge0,shm", end);
        until(|| state(&host) == before);
    }
}

/// How a run ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Itself,
    Interrupt,
    Kill,
}

fn links_leave_nothing_behind(links: &str) {
    let Some([client, server]) = Host::pair() else { return };
    client.ip("address add 10.9.9.1/24 dev edge0");
    server.ip("address add 10.9.9.2/24 dev edge0");
    reach(&client, &server);
    let before = [state(&client), state(&server)];
    for end in [End::Itself, End::Interrupt, End::Kill] {
        run(&client, &server, links, end);
        for (host, before) in [&client, &server].into_iter().zip(&before) {
            // The kernel removes some state shortly after the end of the process.
            until(|| state(host).iter().zip(before).all(|(now, before)| now == before));
        }
        reach(&client, &server);
    }
}

/// Runs a measurement over `links`, and ends the run in the way `end`.
fn run(client: &Host, server: &Host, links: &str, end: End) {
    let mut serving =
        start(server, &["serve", "--listen", "10.9.9.2:0", "--json", "--links", links]);
    let mut line = String::new();
    BufReader::new(serving.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split('"').nth(3).unwrap_or_default().to_owned();
    let long = if end == End::Itself { ("1", "0.2") } else { ("1000", "1000") };
    let mut measuring = start(
        client,
        &[
            "bench",
            "--peer",
            &address,
            "--links",
            links,
            "--tests",
            "ping-pong",
            "--transports",
            "edge",
            "--sizes",
            "8",
            "--repetitions",
            long.0,
            "--time",
            long.1,
            "--no-pinning",
        ],
    );
    if end == End::Itself {
        let status = measuring.wait().unwrap();
        let mut error = String::new();
        measuring.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(status.success(), "{links}: {error}");
    } else {
        until(|| is_in_use(client, links) || has_ended(&measuring));
        assert!(!has_ended(&measuring), "{links}: it ended by itself");
        let signal = if end == End::Kill { Signal::SIGKILL } else { Signal::SIGINT };
        send(&measuring, signal);
        measuring.wait().unwrap();
    }
    send(&serving, if end == End::Kill { Signal::SIGKILL } else { Signal::SIGINT });
    serving.wait().unwrap();
}

/// Returns the parts of a host's state that a run could change, except the neighbour table, because
/// any traffic changes this table.
fn state(host: &Host) -> Vec<String> {
    host.run(|| {
        let mut found = Vec::new();
        for command in [
            "ip -d link",
            "ip -d address",
            "ip route show table all",
            "ip -6 route show table all",
            "ip rule",
            "tc qdisc show",
            "tc filter show dev edge0",
            "tc filter show dev edge0 ingress",
            "tc filter show dev edge0 egress",
        ] {
            let mut words = command.split(' ');
            let output = Command::new(words.next().unwrap()).args(words).output();
            let text = output.map_or_else(|error| error.to_string(), |output| text(&output.stdout));
            found.push(format!("{command}\n{text}"));
        }
        found.push(sockets());
        let left = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        let left = left.filter_map(|entry| entry.file_name().into_string().ok());
        let left: Vec<_> = left.filter(|name| name.contains("ethernot")).collect();
        found.push(format!("/dev/shm {left:?}"));
        found
    })
}

/// Returns the abstract sockets and the sockets of our links on the calling thread's host.
fn sockets() -> String {
    let read =
        |file| fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let unix = read("unix");
    let mut names: Vec<_> =
        unix.lines().filter_map(|line| line.split('@').nth(1).map(str::to_owned)).collect();
    names.sort();
    let count = |file| read(file).lines().skip(1).count();
    format!("abstract {names:?}, udp {}, packet {}", count("udp"), count("packet"))
}

/// Returns whether the links of a run exist.
fn is_in_use(host: &Host, links: &str) -> bool {
    let is_udp = !links.contains("packet") && !links.contains("xdp");
    host.run(move || {
        let sockets = sockets();
        if is_udp { !sockets.contains("udp 0") } else { !sockets.contains("abstract []") }
    })
}

/// Checks that TCP connections between the hosts are possible.
fn reach(client: &Host, server: &Host) {
    let listener = server.run(|| TcpListener::bind("10.9.9.2:0").unwrap());
    let address = listener.local_addr().unwrap();
    let mut sent = client.run(move || TcpStream::connect(address).unwrap());
    let (mut received, _) = listener.accept().unwrap();
    sent.write_all(b"others").unwrap();
    drop(sent);
    let mut received_text = String::new();
    received.read_to_string(&mut received_text).unwrap();
    assert_eq!(received_text, "others");
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

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

fn start(host: &Host, arguments: &[&str]) -> Running {
    // Starts the program by `env`, which restores the default action of SIGINT. If a script runs
    // the test in the background, the test ignores SIGINT, and the program would inherit this.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_ethernot")]);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running(host.run(move || command.spawn().unwrap()))
}

fn has_ended(child: &Child) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn send(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

//! Tests of endpoints on raw Ethernet, over packet links. They need root. Each test has its own
//! network namespace, which is removed when the test's thread ends.
#![expect(clippy::disallowed_methods, reason = "the clock bounds a test that fails")]

mod copy;

use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use ethernot::{
    Buffer, Capture, CaptureClock, ConnectOptions, Connection, Endpoint, Link, LinkState,
    MemoryRegion, OperationOptions, PacketConfig, PacketError, PacketLink, RemoteRegion, Rights,
};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;

/// Limit of waits. It is far longer than any step of a test, and only limits the time of a failing
/// test.
const LIMIT: Duration = Duration::from_secs(30);

const BYTES: u64 = 1 << 20;

#[test]
fn memory_is_written_and_read_in_tagged_and_untagged_frames_of_all_sizes() {
    for (vlan, mtu) in [(None, 1500), (Some(100), 1500), (None, 9000), (Some(7), 9000)] {
        in_namespace(move || {
            ip(&format!("link set edge0 mtu {mtu}"));
            ip(&format!("link set edge1 mtu {mtu}"));
            let config = |end: &str| PacketConfig::new(end).vlan(vlan);
            let pair = Pair::new(&[config("edge0")], &[config("edge1")]);
            for seed in 0..20 {
                pair.write_and_verify(seed);
            }
            pair.read_and_verify(21);
            pair.await_frames(mtu - 12);
            pair.write_and_verify(22);
        });
    }
}

#[test]
fn ends_with_different_mtus_agree_on_a_deliverable_frame_size() {
    in_namespace(|| {
        ip("link set edge0 mtu 9000");
        let pair = Pair::of("edge0", "edge1");
        for seed in 0..5 {
            pair.write_and_verify(seed);
        }
        pair.read_and_verify(6);
        pair.await_frames(1488);
    });
    // The handshake runs over the first link, so it does not show the ends the MTU of the second
    // link. They must find out that frames from `edge2` to `edge3` must be smaller than the MTU of
    // `edge2`.
    in_namespace(|| {
        add_pair("edge2", "edge3");
        for end in ["edge0", "edge1", "edge2"] {
            ip(&format!("link set {end} mtu 9000"));
        }
        let configs = |ends: [&str; 2]| ends.map(PacketConfig::new);
        let pair = Pair::new(&configs(["edge0", "edge2"]), &configs(["edge1", "edge3"]));
        pair.await_links(2);
        for seed in 0..20 {
            pair.write_and_verify(seed);
        }
    });
}

#[test]
fn a_transfer_continues_when_the_mtu_changes() {
    in_namespace(|| {
        for end in ["edge0", "edge1"] {
            ip(&format!("link set {end} mtu 9000"));
        }
        let pair = Pair::of("edge0", "edge1");
        pair.write_and_verify(0);
        pair.await_frames(8988);
        // In the first case, the MTU of both ends becomes smaller. In the second case, only one end
        // gets a smaller MTU, and this end cannot notify the sender.
        for (first, second, frame_bytes) in [("edge0", Some("edge1"), 1488), ("edge1", None, 1388)]
        {
            let mtu = frame_bytes + 12;
            pair.while_writing(|| {
                for end in [Some(first), second].into_iter().flatten() {
                    ip(&format!("link set {end} mtu {mtu}"));
                }
            });
            pair.write_and_verify(1);
        }
    });
}

#[test]
fn a_transfer_continues_over_the_other_link_when_one_fails_or_is_removed() {
    in_namespace(|| {
        add_pair("edge2", "edge3");
        let configs = |ends: [&str; 2]| ends.map(PacketConfig::new);
        let pair = Pair::new(&configs(["edge0", "edge2"]), &configs(["edge1", "edge3"]));
        pair.await_links(2);
        pair.while_writing(|| ip("link set edge3 down"));
        pair.await_links(1);
        pair.while_writing(|| ip("link set edge3 up"));
        pair.await_links(2);
        pair.while_writing(|| ip("link delete edge0"));
        pair.await_links(1);
        pair.while_writing(|| add_pair("edge0", "edge1"));
        pair.await_links(2);
        pair.write_and_verify(9);
    });
}

#[test]
fn a_transfer_survives_foreign_frames_with_our_ethertype() {
    in_namespace(|| {
        let pair = Pair::of("edge0", "edge1");
        let links = pair.server.links().expect("not forked");
        let stop = AtomicBool::new(false);
        // At the same time, a second endpoint on each interface sends traffic on a port that the
        // first endpoint does not use. A third endpoint does the same with a VLAN.
        let config = |end: &str, vlan| PacketConfig::new(end).vlan(vlan);
        thread::scope(|scope| {
            for vlan in [None, Some(5)] {
                let stop = &stop;
                scope.spawn(move || {
                    let other = Pair::new(&[config("edge0", vlan)], &[config("edge1", vlan)]);
                    let mut seed = 0;
                    while !stop.load(Ordering::Relaxed) {
                        other.write_and_verify(seed);
                        seed += 1;
                    }
                });
            }
            for seed in 0..50 {
                pair.write_and_verify(seed);
            }
            stop.store(true, Ordering::Relaxed);
        });
        for (link, _) in links {
            let counted = pair.server.link_statistics(link).expect("not forked").expect("a link");
            assert_eq!(counted.receive_checksum_errors, 0, "{counted:?}");
            assert_eq!(counted.receive_not_ours, 0, "the filter keeps them away: {counted:?}");
        }
    });
}

#[test]
fn interfaces_with_one_address_serve_one_connection() {
    // For each case: the ports of the server's two interfaces, and the number of links that the
    // connection must have. The interfaces have the same MAC address. If they also have the same
    // port, the connection can use only one of them at a time.
    for (ports, links) in [([0, 0], 2), ([7471, 7472], 2), ([7471, 7471], 1)] {
        in_namespace(move || {
            add_pair("edge2", "edge3");
            ip("link set edge2 address 02:00:00:00:00:00");
            ip("link set edge3 address 02:00:00:00:00:01");
            let configs =
                |ends: [(&str, u16); 2]| ends.map(|(end, port)| PacketConfig::new(end).port(port));
            let server = configs([("edge1", ports[0]), ("edge3", ports[1])]);
            let pair = Pair::new(&configs([("edge0", 0), ("edge2", 0)]), &server);
            pair.await_links(links);
            for seed in 0..10 {
                pair.write_and_verify(seed);
                pair.read_and_verify(!seed);
            }
            pair.while_writing(|| ip("link set edge3 down"));
            pair.await_links(1);
            pair.while_writing(|| ip("link set edge3 up"));
            pair.await_links(links);
        });
    }
}

#[test]
fn connecting_to_a_station_with_our_own_address_fails() {
    in_namespace(|| {
        ip("link set edge1 address 02:00:00:00:00:00");
        let [client, server] = ["edge0", "edge1"].map(|end| endpoint(&[PacketConfig::new(end)]));
        let _listener = server.listen(7).expect("the service is free");
        let links = server.links().expect("not forked");
        let options = ConnectOptions::new().service(7).limit(Some(Duration::from_secs(1)));
        let outcome = client.connect_with(links[0].1.to_string(), options);
        assert!(outcome.is_err());
        let counters = || server.link_statistics(links[0].0).expect("not forked").expect("a link");
        let started = Instant::now();
        while counters().receive_own_station == 0 {
            assert!(started.elapsed() < LIMIT, "{:?}", counters());
        }
        assert_eq!(counters().receive_frames, 0);
        // Both endpoints still work with peers that they can reach.
        ip("link set edge1 address 02:00:00:00:00:01");
        let pair = Pair::connect(client, endpoint(&[PacketConfig::new("edge1")]));
        pair.write_and_verify(3);
    });
}

#[test]
fn the_interface_is_restored_however_the_process_ends() {
    if let Some(interface) = copy::argument() {
        let link = open_when_free(&PacketConfig::new(interface).port(PORT));
        let _endpoint = Endpoint::builder().link(Box::new(link)).build().expect("an endpoint");
        copy::say("ready");
        loop {
            thread::park();
        }
    }
    in_namespace(|| {
        let before = state();
        for signal in [Signal::SIGKILL, Signal::SIGINT, Signal::SIGTERM] {
            let name = "the_interface_is_restored_however_the_process_ends";
            let (holder, _ready) = copy::start(name, "edge0");
            let config = PacketConfig::new("edge0").port(PORT);
            let error = PacketLink::open(&config).expect_err("the port is in use");
            assert!(matches!(error, PacketError::PortTaken { port: PORT, .. }), "{error}");
            copy::end(holder, signal);
            assert_eq!(state(), before, "after {signal}");
            open_when_free(&config);
        }
        drop(Pair::of("edge0", "edge1"));
        assert_eq!(state(), before);
    });
}

#[test]
fn a_capture_of_a_real_run_is_dissected_without_errors() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: tshark is not installed");
        return;
    }
    for vlan in [None, Some(100)] {
        let folder = env::temp_dir().join(format!("ethernot-packet-{}", process::id()));
        fs::create_dir_all(&folder).expect("a folder for the capture");
        let file = folder.join("run.pcapng");
        let of_run = file.clone();
        in_namespace(move || {
            let config = |end: &str| PacketConfig::new(end).vlan(vlan);
            let link = PacketLink::open(&config("edge0")).expect("a link");
            let link = Capture::create(link, &of_run, CaptureClock::Wall).expect("a capture");
            let client = Endpoint::builder().link(Box::new(link)).build().expect("an endpoint");
            let pair = Pair::connect(client, endpoint(&[config("edge1")]));
            pair.write_and_verify(1);
            pair.read_and_verify(2);
            pair.close();
        });
        if file.exists() {
            for row in dissect(&file) {
                let [ethertype, vlan_seen, kind, checksum, complaint] = &row;
                assert_eq!(ethertype, "0x88b5", "{row:?}");
                assert_eq!(vlan_seen.parse().ok(), vlan, "{row:?}");
                assert_eq!((kind.as_str(), checksum.as_str()), ("1", "good"), "{row:?}");
                assert_eq!(complaint, "", "{row:?}");
            }
        }
        fs::remove_dir_all(&folder).expect("the folder is ours");
    }
}

/// Returns for each frame: `EtherType`, VLAN, kind of the envelope, whether the envelope's checksum
/// is correct, and the errors that the dissector reports.
fn dissect(file: &Path) -> Vec<[String; 5]> {
    let script =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/ethernot.lua");
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=l"])
        .args(["-e", "eth.type", "-e", "vlan.etype", "-e", "vlan.id"])
        .args(["-e", "ethernot.envelope.envelope_kind", "-e", "ethernot.envelope.checksum.status"])
        .args(["-e", "_ws.expert.message", "-e", "_ws.malformed"])
        .output()
        .expect("tshark runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaints.contains("Lua"), "tshark: {complaints}");
    let printed = String::from_utf8(output.stdout).expect("tshark prints UTF-8");
    let rows: Vec<_> = printed
        .lines()
        .map(|line| {
            let columns: Vec<&str> = line.splitn(6, '|').collect();
            let [outer, inner, vlan, kind, checksum, complaint] = columns[..] else {
                panic!("{line}")
            };
            let ethertype = if inner.is_empty() { outer } else { inner };
            [ethertype, vlan, kind, checksum, complaint.trim_matches('|')].map(str::to_owned)
        })
        .collect();
    assert!(rows.len() > 1000, "{} frames", rows.len());
    rows
}

/// A client and a server on raw Ethernet, and a connection between them.
struct Pair {
    client: Endpoint,
    server: Endpoint,
    connection: Connection,
    accepted: Connection,
    /// The client's memory.
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    /// The server's memory, and the description of this memory that the client has.
    target: Arc<Buffer>,
    _target_region: MemoryRegion,
    remote: RemoteRegion,
}

impl Pair {
    fn of(client: &str, server: &str) -> Self {
        Self::new(&[PacketConfig::new(client)], &[PacketConfig::new(server)])
    }

    fn new(client: &[PacketConfig], server: &[PacketConfig]) -> Self {
        Self::connect(endpoint(client), endpoint(server))
    }

    fn connect(client: Endpoint, server: Endpoint) -> Self {
        let rights = [Rights::LOCAL_WRITE, Rights::REMOTE_READ, Rights::REMOTE_WRITE]
            .into_iter()
            .fold(Rights::NONE, Rights::union);
        let memory = |endpoint: &Endpoint| {
            let buffer = Buffer::new(BYTES);
            let region = endpoint.register(Arc::clone(&buffer), rights).expect("memory");
            (buffer, region)
        };
        let (buffer, region) = memory(&client);
        let (target, target_region) = memory(&server);
        let listener = server.listen(7).expect("the service is free");
        let peers: Vec<String> =
            server.links().expect("not forked").iter().map(|(_, peer)| peer.to_string()).collect();
        let (accepted, connection) = thread::scope(|scope| {
            let accepted = scope.spawn(|| {
                let request = listener.accept(Some(LIMIT)).expect("a request");
                request.accept(&target_region.remote().to_bytes()).expect("the peer is there")
            });
            let options = ConnectOptions::new().service(7).limit(Some(LIMIT));
            let connection = client.connect_with(peers.join(","), options).expect("accepted");
            (accepted.join().expect("accepted"), connection)
        });
        let remote = RemoteRegion::from_bytes(&connection.peer_data()).expect("a region");
        Self {
            client,
            server,
            connection,
            accepted,
            buffer,
            region,
            target,
            _target_region: target_region,
            remote,
        }
    }

    /// Fills the client's memory, copies all of it to the server's memory, and compares both.
    fn write_and_verify(&self, seed: u8) {
        fill(&self.buffer, seed);
        fill(&self.target, !seed);
        let none = OperationOptions::NONE;
        let write = self.connection.write(&self.region, 0, &self.remote, 0, BYTES, none);
        write.expect("posted").wait(Some(LIMIT)).expect("written");
        assert!(bytes(&self.target) == bytes(&self.buffer), "memories differ, seed {seed}");
    }

    fn read_and_verify(&self, seed: u8) {
        fill(&self.target, seed);
        fill(&self.buffer, !seed);
        let none = OperationOptions::NONE;
        let read = self.connection.read(&self.region, 0, &self.remote, 0, BYTES, none);
        read.expect("posted").wait(Some(LIMIT)).expect("read");
        assert!(bytes(&self.target) == bytes(&self.buffer), "memories differ, seed {seed}");
    }

    /// Calls `something` while another thread writes to memory repeatedly.
    fn while_writing(&self, something: impl FnOnce() + Send) {
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                something();
                is_done.store(true, Ordering::Relaxed);
            });
            let (mut seed, mut after) = (0_u8, 0);
            while after < 3 {
                after += u8::from(is_done.load(Ordering::Relaxed));
                self.write_and_verify(seed);
                seed = seed.wrapping_add(1);
            }
        });
    }

    /// Waits until the client's frames have this size, in bytes.
    fn await_frames(&self, frame_bytes: u16) {
        let started = Instant::now();
        let mut seed = 0_u8;
        loop {
            let info = self.connection.info().expect("not forked").expect("a connection");
            let sizes: Vec<u16> = info.paths.iter().map(|path| path.frame_bytes).collect();
            if sizes == [frame_bytes] {
                return;
            }
            assert!(started.elapsed() < LIMIT, "frames of {sizes:?} bytes, not {frame_bytes}");
            self.write_and_verify(seed);
            seed = seed.wrapping_add(1);
        }
    }

    /// Waits until `count` links of the connection carry data.
    fn await_links(&self, count: usize) {
        let started = Instant::now();
        loop {
            let info = self.connection.info().expect("not forked").expect("a connection");
            let up = info.paths.iter().filter(|path| path.state == LinkState::Up).count();
            if up == count {
                return;
            }
            assert!(started.elapsed() < LIMIT, "{up} links are up, not {count}: {info:?}");
            self.write_and_verify(up as u8);
        }
    }

    fn close(self) {
        self.connection.close(b"enough").expect("not forked");
        self.accepted.wait_closed(Some(LIMIT)).expect("closed");
        self.client.shutdown(Some(LIMIT)).expect("not forked");
        self.server.shutdown(Some(LIMIT)).expect("not forked");
    }
}

fn endpoint(configs: &[PacketConfig]) -> Endpoint {
    let builder = configs.iter().fold(Endpoint::builder(), |builder, config| {
        let link: Box<dyn Link> = Box::new(PacketLink::open(config).expect("a link"));
        builder.link(link)
    });
    builder.build().expect("an endpoint")
}

/// Opens a link on a port that becomes free after a short time. Another test may start a program at
/// this moment. The program inherits all descriptors of this process, and closes them only when it
/// starts to run. Until then, the port is in use.
fn open_when_free(config: &PacketConfig) -> PacketLink {
    let started = Instant::now();
    loop {
        match PacketLink::open(config) {
            Err(PacketError::PortTaken { .. }) if started.elapsed() < LIMIT => {}
            opened => return opened.expect("the port is free"),
        }
    }
}

fn fill(buffer: &Buffer, seed: u8) {
    let bytes: Vec<u8> =
        (0..BYTES).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect();
    buffer.write(0, &bytes);
}

fn bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    buffer.read(0, &mut bytes);
    bytes
}

/// Runs `test` in a new namespace with the interfaces `edge0` and `edge1`, which are connected to
/// each other.
fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
            println!("skipped: a network namespace needs root ({error})");
            return;
        }
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return;
        }
        add_pair("edge0", "edge1");
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Adds two interfaces that are connected to each other. Their addresses depend only on their
/// names.
fn add_pair(first: &str, second: &str) {
    let station = |name: &str| format!("02:00:00:00:00:0{}", name.trim_start_matches("edge"));
    let (a, b) = (station(first), station(second));
    ip(&format!("link add {first} address {a} type veth peer name {second} address {b}"));
    for end in [first, second] {
        ip(&format!("link set {end} up"));
    }
    for end in [first, second] {
        let started = Instant::now();
        while !output("ip", &["-o", "link", "show", end]).contains("state UP") {
            assert!(started.elapsed() < LIMIT, "{end} has no carrier");
        }
    }
}

/// Returns those properties of all interfaces that a link could change. The output has no counters.
fn state() -> [String; 2] {
    [output("ip", &["-d", "link"]), output("tc", &["qdisc"])]
}

fn ip(arguments: &str) {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    output("ip", &arguments);
}

fn output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().expect("it is installed");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {complaints}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const PORT: u16 = 4711;

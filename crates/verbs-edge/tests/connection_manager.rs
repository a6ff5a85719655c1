//! Tests of connection-manager ids on the edge engine, on loopback. Two devices act as two
//! processes.

#[path = "../../ethernot/tests/copy/mod.rs"]
mod copy;
mod ends;
mod ids;

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ends::{End, Program, loopback};
use ids::{Process, saying};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rdma_cm::{AcceptOptions, ConnectOptions, EventChannel, EventKind, Id, ManagedHost, PortSpace};
use verbs::{CompletionStatus, QueuePairState};
use verbs_edge::{DeviceKind, DeviceSettings, Settings, devices};

/// Sends a message in each direction.
fn talk(client: &Process, server: &Process, here: &End, there: &End) {
    client.program.buffer.write(0, b"hello there");
    there.receive(1, &[server.program.piece(64, 64)]);
    here.receive(3, &[client.program.piece(128, 64)]);
    here.send(2, client.program.piece(0, 11));
    here.succeed(2);
    there.succeed(1);
    assert_eq!(server.program.bytes(64, 11), b"hello there");
    there.send(4, server.program.piece(64, 11));
    there.succeed(4);
    here.succeed(3);
    assert_eq!(client.program.bytes(128, 11), b"hello there");
}

/// Returns a process that captures its frames, and the path of the capture file.
fn captured(name: &str) -> (Process, PathBuf) {
    let name = format!("connection-manager-{name}-{}.pcapng", std::process::id());
    let path = std::env::temp_dir().join(name);
    (Process::with(&Settings { pcap: Some(path.clone()), ..loopback() }), path)
}

/// Drops the process, and then returns whether its capture file contains a greeting. Queue pairs
/// exchange greetings only if they connect without ids. If there is no greeting, the queue pairs
/// have taken over the connection of the ids.
fn have_met_by_themselves(process: Process, path: &Path) -> bool {
    drop(process);
    let bytes = std::fs::read(path).expect("it was written");
    std::fs::remove_file(path).expect("the same");
    let contains = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    assert!(contains(b"EVCM"), "the request is in it");
    contains(b"EVQP")
}

/// Connects two ids. Returns both ends of the connection; the requester's end is the first.
fn connect(client: &Process, server: &Process, to: SocketAddr) -> [(Arc<Id>, End); 2] {
    let (asks, here) = client.resolved(to);
    asks.connect(&saying(b"from here")).expect("it asks");
    let request = server.got(EventKind::ConnectRequest);
    assert!(request.private_data.starts_with(b"from here\0"));
    let asked = Arc::clone(&request.id);
    let there = server.program.end(0);
    asked.take_queue_pair(&there.queue_pair).expect("it is in RESET");
    let options = Some(saying(b"from there"));
    asked.accept(&AcceptOptions { options, queue_key: None }).expect("it accepts");
    let answer = client.got(EventKind::Established);
    assert!(answer.private_data.starts_with(b"from there\0"));
    server.got(EventKind::Established);
    [(asks, here), (asked, there)]
}

/// Disconnects the requester, and destroys both ends.
fn disconnect(client: &Process, server: &Process, ends: [(Arc<Id>, End); 2]) {
    let [(asks, here), (asked, there)] = ends;
    asks.disconnect().expect("there is a connection");
    client.got(EventKind::Disconnected);
    server.got(EventKind::Disconnected);
    for (id, end) in [(asks, here), (asked, there)] {
        id.release_queue_pair();
        end.queue_pair.destroy().expect("nothing uses it");
        end.queue.destroy().expect("the same");
        id.destroy().expect("once");
    }
}

#[test]
fn ids_connect_their_queue_pairs() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (listener, to) = server.listener();
    let ends = connect(&client, &server, to);
    // The connection must outlive the listening port.
    listener.destroy().expect("once");
    talk(&client, &server, &ends[0].1, &ends[1].1);
    assert_eq!(ends[1].0.remote(), ends[0].0.local());
    disconnect(&client, &server, ends);
}

#[test]
fn a_process_connects_to_itself() {
    let process = Process::new();
    let (_listener, to) = process.listener();
    let (asks, _here) = process.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&process.got(EventKind::ConnectRequest).id);
    let there = process.program.end(0);
    asked.take_queue_pair(&there.queue_pair).expect("it is in RESET");
    asked.accept(&AcceptOptions::default()).expect("it accepts");
    let kinds = [(); 2].map(|()| process.channel.get().expect("there will be an event"));
    for event in kinds {
        assert_eq!(event.kind, EventKind::Established);
        event.acknowledge();
    }
}

#[test]
fn connecting_without_a_listener_fails() {
    let [client, server] = [(); 2].map(|()| Process::new());
    // At this port, no id listens.
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let (asks, end) = client.resolved(free.expect("a port"));
    asks.connect(&saying(b"")).expect("it asks");
    assert_eq!(client.got(EventKind::Rejected).status, 8);
    assert_eq!(end.queue_pair.state(), QueuePairState::Error);
    // An id listens at the port, but in another port space. So the request must be rejected too.
    let listener = Id::new(&server.host, &server.channel, PortSpace::Ib, None).expect("an id");
    listener.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    listener.listen(0).expect("it listens");
    let (asks, _end) = client.resolved(listener.local().expect("an address"));
    asks.connect(&saying(b"")).expect("it asks");
    assert_eq!(client.got(EventKind::Rejected).status, 8);
}

#[test]
fn a_rejection_carries_its_reason() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let (asks, _end) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    server.got(EventKind::ConnectRequest).id.reject(b"not you").expect("it waits");
    let refused = client.got(EventKind::Rejected);
    assert_eq!(refused.status, 28);
    assert!(refused.private_data.starts_with(b"not you\0"));
}

#[test]
fn a_request_ends_when_the_requester_abandons_it() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let (asks, _end) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    asks.destroy().expect("once");
    // The requester's id is gone. So either accepting the request must fail, or an event must
    // report later that there is no connection.
    if asked.accept(&AcceptOptions::default()).is_ok() {
        let event = server.channel.get().expect("there will be an event");
        let ended = [EventKind::Rejected, EventKind::Unreachable, EventKind::Disconnected];
        assert!(ended.contains(&event.kind), "{event:?}");
        event.acknowledge();
    }
}

#[test]
fn a_port_is_claimed_while_a_listener_uses_it() {
    let server = Process::new();
    let (listener, at) = server.listener();
    assert!(UdpSocket::bind(at).is_err());
    let other = Process::new().id();
    assert!(other.bind(at).is_err());
    listener.destroy().expect("once");
    drop(UdpSocket::bind(at).expect("it is free"));
}

#[test]
fn closed_connections_leak_nothing() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let descriptors = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let ends = connect(&client, &server, to);
    disconnect(&client, &server, ends);
    let before = descriptors();
    for _ in 0..100 {
        let ends = connect(&client, &server, to);
        disconnect(&client, &server, ends);
    }
    // The bound must leave room for descriptors that other tests of this process open at the same
    // time.
    assert!(descriptors() < before + 50, "{before} and {}", descriptors());
}

//= protocol.md: cm.3, cm.4
#[test]
fn a_request_shortly_before_the_listener_opens_is_accepted() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let at = port.expect("a port");
    let (asks, _end) = client.resolved(at);
    asks.connect(&saying(b"")).expect("it asks");
    let listener = server.id();
    listener.bind(at).expect("it is free");
    listener.listen(0).expect("it listens");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    // The request waits until the program of the server answers it.
    asked.reject(b"").expect("it waits");
    assert_eq!(client.got(EventKind::Rejected).status, 28);
    // Destroy an id while its request waits to be repeated. This request must not be repeated.
    listener.destroy().expect("once");
    let (asks, _end) = client.resolved(at);
    asks.connect(&saying(b"")).expect("it asks");
    asks.destroy().expect("once");
}

//= protocol.md: cm.5
#[test]
fn queue_pairs_take_over_the_connection_that_carried_the_request() {
    let ((client, path), server) = (captured("taken"), Process::new());
    let (_listener, to) = server.listener();
    let ends = connect(&client, &server, to);
    talk(&client, &server, &ends[0].1, &ends[1].1);
    disconnect(&client, &server, ends);
    assert!(!have_met_by_themselves(client, &path));
}

//= protocol.md: cm.5
#[test]
fn a_queue_pair_created_after_the_request_finds_its_peer() {
    let ((client, path), server) = (captured("later"), Process::new());
    let (_listener, to) = server.listener();
    let asks = client.bare(to);
    let here = client.program.end(0);
    let external = (false, here.queue_pair.number());
    asks.connect(&ConnectOptions { external, ..saying(b"") }).expect("it asks");
    asks.take_queue_pair(&here.queue_pair).expect("it is in RESET");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    let there = server.pair_of(&asked);
    asked.accept(&AcceptOptions::default()).expect("it accepts");
    client.got(EventKind::Established);
    server.got(EventKind::Established);
    talk(&client, &server, &here, &there);
    disconnect(&client, &server, [(asks, here), (asked, there)]);
    assert!(have_met_by_themselves(client, &path));
}

//= protocol.md: cm.5
#[test]
fn a_queue_pair_connected_by_the_program_finds_its_peer() {
    let ((client, path), server) = (captured("external"), Process::new());
    let (_listener, to) = server.listener();
    let (asks, here) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    let there = server.program.end(0);
    let states =
        [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend];
    for state in states {
        let change = asked.modification(state).expect("the peer is known");
        there.queue_pair.modify(&change).expect("it is allowed");
    }
    let external = (false, there.queue_pair.number());
    let options = Some(ConnectOptions { external, ..saying(b"") });
    asked.accept(&AcceptOptions { options, queue_key: None }).expect("it accepts");
    client.got(EventKind::Established);
    server.got(EventKind::Established);
    talk(&client, &server, &here, &there);
    disconnect(&client, &server, [(asks, here), (asked, there)]);
    assert!(have_met_by_themselves(client, &path));
}

#[test]
fn a_queue_pair_takes_over_a_connection_in_its_own_domain() {
    let [client, mut server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let (asks, here) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    server.program = Program::of(Arc::clone(&server.program.context));
    let there = server.pair_of(&asked);
    asked.accept(&AcceptOptions::default()).expect("it accepts");
    client.got(EventKind::Established);
    server.got(EventKind::Established);
    talk(&client, &server, &here, &there);
}

#[test]
fn disconnecting_after_flushed_work_reports_the_end() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let [(asks, here), (_asked, _there)] = connect(&client, &server, to);
    here.receive(7, &[client.program.piece(0, 64)]);
    here.go(QueuePairState::Error);
    assert_eq!(here.next(1)[0].status, CompletionStatus::Flushed);
    server.got(EventKind::Disconnected);
    // `bare` reads the client's next events, which must belong to another id. So no event has
    // reported the end of the connection yet.
    client.bare(to);
    asks.disconnect().expect("there was a connection");
    client.got(EventKind::Disconnected);
}

#[test]
fn a_peer_that_exits_before_its_answer_is_processed_is_reported() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let (asks, here) = client.resolved(to);
    here.receive(1, &[client.program.piece(0, 64)]);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    let there = server.pair_of(&asked);
    asked.accept(&AcceptOptions::default()).expect("it accepts");
    server.got(EventKind::Established);
    asked.disconnect().expect("there is a connection");
    server.got(EventKind::Disconnected);
    client.got(EventKind::Established);
    client.got(EventKind::Disconnected);
    here.send(2, client.program.piece(0, 11));
    assert_eq!(here.next(1)[0].status, CompletionStatus::TransportRetryExceeded);
    assert_eq!(there.queue_pair.state(), QueuePairState::Error);
}

#[test]
fn work_for_a_killed_peer_fails_only_after_the_disconnect_event() {
    let name = "work_for_a_killed_peer_fails_only_after_the_disconnect_event";
    if copy::argument().is_some() {
        let server = Process::new();
        let (_listener, to) = server.listener();
        copy::say(&to.to_string());
        let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
        let there = server.pair_of(&asked);
        for id in 0..8 {
            there.receive(id, &[server.program.piece(0, 64)]);
        }
        asked.accept(&AcceptOptions::default()).expect("it accepts");
        server.got(EventKind::Established);
        loop {
            std::thread::park();
        }
    }
    let client = Process::new();
    let (child, to) = copy::start(name, "");
    let (asks, here) = client.resolved(to.parse().expect("an address"));
    asks.connect(&saying(b"")).expect("it asks");
    client.got(EventKind::Established);
    here.send(1, client.program.piece(0, 11));
    here.succeed(1);
    let stopped = Pid::from_raw(child.id().cast_signed());
    kill(stopped, Signal::SIGSTOP).expect("a child of ours");
    waitpid(stopped, Some(WaitPidFlag::WUNTRACED)).expect("it stops");
    here.send(2, client.program.piece(0, 11));
    copy::end(child, Signal::SIGKILL);
    client.got(EventKind::Disconnected);
    // The event must arrive before the work fails, so that the program can abandon its work first.
    assert_eq!(here.poll(), []);
    asks.disconnect().expect("there was a connection");
    assert_eq!(here.next(1)[0].status, CompletionStatus::Flushed);
}

#[test]
fn an_id_that_listens_on_all_addresses_listens_on_each_device_of_the_process() {
    let links = ends::with_links("udp:127.0.0.2").links;
    let others = vec![DeviceSettings { kind: DeviceKind::Edge, name: "second0".into(), links }];
    let devices = devices(&Settings { others, ..loopback() }).expect("the settings are good");
    let host = ManagedHost::new(devices.clone());
    let channel = EventChannel::new(&host).expect("a channel");
    let listener = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
    listener.bind(([0; 4], 0).into()).expect("a port that is free at both devices");
    listener.listen(0).expect("it listens");
    let port = listener.local().expect("an address").port();
    let client = Process::new();
    for (ip, managed) in [[127, 0, 0, 1], [127, 0, 0, 2]].into_iter().zip(&devices) {
        let (asks, _end) = client.resolved((ip, port).into());
        asks.connect(&saying(b"")).expect("it asks");
        let request = channel.get().expect("there will be an event");
        assert_eq!(request.kind, EventKind::ConnectRequest);
        request.acknowledge();
        let device = request.id.device().expect("a device");
        assert!(Arc::ptr_eq(&device, &managed.device), "{device:?} has the request to {ip:?}");
        request.id.reject(b"").expect("it is pending");
        client.got(EventKind::Rejected);
        asks.destroy().expect("once");
    }
    // Both devices release the port.
    listener.destroy().expect("once");
    UdpSocket::bind(SocketAddr::from(([0; 4], port))).expect("the port is free");
}

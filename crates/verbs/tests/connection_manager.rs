//! Ids over the edge engine, on loopback: two devices stand for two processes.

mod ends;

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use ends::{End, Program, loopback};
use verbs::Device;
use verbs::cm::{
    AcceptOptions, ConnectOptions, Event, EventChannel, EventKind, Host, Id, PortSpace,
};

/// A process: its device, what it has of verbs, and the channel by which it is told of its ids.
struct Process {
    program: Program,
    host: Arc<Host>,
    channel: Arc<EventChannel>,
}

impl Process {
    fn new() -> Self {
        let program = Program::new(&loopback());
        let device: Arc<Device> = Arc::clone(program.context.device());
        let host = Host::new(vec![device]);
        let channel = EventChannel::new(&host).expect("a channel");
        Self { program, host, channel }
    }

    fn id(&self) -> Arc<Id> {
        Id::new(&self.host, &self.channel, PortSpace::Tcp, None).expect("an id")
    }

    fn listener(&self) -> (Arc<Id>, SocketAddr) {
        let id = self.id();
        id.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        id.listen(0).expect("it listens");
        let at = id.local().expect("an address");
        (id, at)
    }

    /// The next event, which must be of this kind.
    fn got(&self, kind: EventKind) -> Event {
        let event = self.channel.get().expect("there will be an event");
        assert_eq!(event.kind, kind, "{event:?}");
        event.acknowledge();
        event
    }

    /// An id that knows the way, with a queue pair.
    fn resolved(&self, to: SocketAddr) -> (Arc<Id>, End) {
        let id = self.id();
        id.resolve_address(None, to).expect("it is looked for");
        self.got(EventKind::AddressResolved);
        id.resolve_route().expect("it is looked for");
        self.got(EventKind::RouteResolved);
        let end = self.program.end(0);
        id.take_queue_pair(&end.queue_pair).expect("it is in RESET");
        (id, end)
    }
}

fn saying(private_data: &[u8]) -> ConnectOptions {
    let private_data = private_data.to_vec();
    ConnectOptions { private_data, retries: 7, not_ready_retries: 7, ..Default::default() }
}

/// Both ends of a connection, the one that asked first.
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

/// The connection ends, as one end says.
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
    // The port is not needed any more.
    listener.destroy().expect("once");
    client.program.buffer.write(0, b"hello there");
    ends[1].1.receive(1, &[server.program.piece(64, 64)]);
    ends[0].1.send(2, client.program.piece(0, 11));
    ends[0].1.succeed(2);
    ends[1].1.succeed(1);
    assert_eq!(server.program.bytes(64, 11), b"hello there");
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
fn who_asks_where_nobody_listens_is_told_so() {
    let [client, server] = [(); 2].map(|()| Process::new());
    // Nobody has the port.
    let free = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let (asks, end) = client.resolved(free.expect("a port"));
    asks.connect(&saying(b"")).expect("it asks");
    assert_eq!(client.got(EventKind::Rejected).status, 8);
    assert_eq!(end.queue_pair.state(), verbs::QueuePairState::Error);
    // Somebody has it, for something else.
    let listener = Id::new(&server.host, &server.channel, PortSpace::Ib, None).expect("an id");
    listener.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    listener.listen(0).expect("it listens");
    let (asks, _end) = client.resolved(listener.local().expect("an address"));
    asks.connect(&saying(b"")).expect("it asks");
    assert_eq!(client.got(EventKind::Rejected).status, 8);
}

#[test]
fn a_refusal_says_why() {
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
fn a_request_is_over_when_who_asks_gives_it_up() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let (_listener, to) = server.listener();
    let (asks, _end) = client.resolved(to);
    asks.connect(&saying(b"")).expect("it asks");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    asks.destroy().expect("once");
    // Nobody tells whom it has asked: an answer finds nobody, within a bounded time.
    if asked.accept(&AcceptOptions::default()).is_ok() {
        let event = server.channel.get().expect("there will be an event");
        let ended = [EventKind::Rejected, EventKind::Unreachable, EventKind::Disconnected];
        assert!(ended.contains(&event.kind), "{event:?}");
        event.acknowledge();
    }
}

#[test]
fn a_port_is_claimed_for_as_long_as_somebody_listens() {
    let server = Process::new();
    let (listener, at) = server.listener();
    assert!(UdpSocket::bind(at).is_err());
    let other = Process::new().id();
    assert!(other.bind(at).is_err());
    listener.destroy().expect("once");
    drop(UdpSocket::bind(at).expect("it is free"));
}

#[test]
fn connections_that_came_and_went_leave_nothing_behind() {
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
    // Other tests run beside this one and have some of their own.
    assert!(descriptors() < before + 50, "{before} and {}", descriptors());
}

//= protocol.md: cm.3, cm.4
#[test]
fn who_asks_a_moment_before_somebody_listens_is_heard() {
    let [client, server] = [(); 2].map(|()| Process::new());
    let port = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let at = port.expect("a port");
    let (asks, _end) = client.resolved(at);
    asks.connect(&saying(b"")).expect("it asks");
    let listener = server.id();
    listener.bind(at).expect("it is free");
    listener.listen(0).expect("it listens");
    let asked = Arc::clone(&server.got(EventKind::ConnectRequest).id);
    // It waits for as long as the program does.
    asked.reject(b"").expect("it waits");
    assert_eq!(client.got(EventKind::Rejected).status, 28);
    // An id that is destroyed while it waits to ask again is forgotten.
    listener.destroy().expect("once");
    let (asks, _end) = client.resolved(at);
    asks.connect(&saying(b"")).expect("it asks");
    asks.destroy().expect("once");
}

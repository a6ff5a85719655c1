//! Tests with peers of the connection manager that send forged messages. Such a peer may cause the
//! failure of an id that is connected to it, but must have no other effect.

mod ends;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use delivery::{Instant, LinkId};
use ends::{Program, loopback};
use engine::{ConnectRequest, Engine, Event, Terms};
use link::UdpConfig;
use links::Opener;
use mem::{MemoryAccess, ProtectionDomain};
use rdma_cm::{
    ConnectOptions, End, EventChannel, EventKind, Id, ManagedHost, PortSpace, Refusal, Reply,
    Request,
};
use runtime::{Hooks, Runtime, RuntimeConfig};
use verbs::{Gid, QueuePairState, QueuePairType};
use verbs_edge::devices;
use wire_edge::PeerAddr;
use work::{CompletionQueue, Queues};

const SERVICE: u32 = 0x5244_434d;

/// A peer that accepts every request. `forge` returns the private data of the peer's reply to a
/// request.
struct Forger {
    forge: fn(Request) -> Vec<u8>,
    /// Whether the peer's requests and replies say that the connection is a queue pair.
    has_feature: bool,
    queues: Queues,
    seen: Mutex<Vec<Request>>,
    /// Rejections of the peer's own requests.
    refusals: Mutex<Vec<Refusal>>,
}

struct Peer {
    at: SocketAddr,
    forger: Arc<Forger>,
    runtime: Runtime,
}

struct Shared(Arc<Forger>);

impl Hooks for Shared {
    fn on_event(&self, engine: &mut Engine, _: &MemoryAccess<'_>, now: Instant, event: Event) {
        if let Event::Closed { private_data, .. } = &event
            && let Some(refusal) = Refusal::decode(private_data)
        {
            self.0.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(refusal);
        }
        if let Event::Requested { connection, private_data, .. } = event {
            let request = Request::decode(&private_data).expect("it is one");
            self.0.seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
            let reply = (self.0.forge)(request);
            let (domain, queues) = (ProtectionDomain::NONE, self.0.queues.clone());
            let terms = self.0.terms();
            let accepted = engine.accept_under(now, connection, domain, queues, &terms, &reply);
            accepted.expect("the request is still pending");
        }
    }
}

impl Forger {
    fn terms(&self) -> Terms {
        Terms::default().queue_pair(self.has_feature)
    }
}

impl Peer {
    fn new(forge: fn(Request) -> Vec<u8>) -> Self {
        Self::with_feature(true, forge)
    }

    fn with_feature(has_feature: bool, forge: fn(Request) -> Vec<u8>) -> Self {
        let queues = Queues::from(Arc::new(CompletionQueue::new(1)));
        let forger = Arc::new(Forger {
            forge,
            has_feature,
            queues,
            seen: Mutex::default(),
            refusals: Mutex::default(),
        });
        let opener = Opener { udp: UdpConfig::default(), port: 0 };
        let link = opener.open_named("udp:127.0.0.1").expect("loopback is there");
        let config = RuntimeConfig::from_entropy().expect("there is entropy");
        let hooks = Box::new(Shared(Arc::clone(&forger)));
        let runtime = Runtime::start(config, vec![link], hooks).expect("it starts");
        runtime.control(|engine, _, _| engine.listen(SERVICE)).expect("not forked");
        let addresses = runtime.link_addresses().expect("not forked");
        let at = addresses[0].1.to_socket().expect("a UDP link");
        Self { at, forger, runtime }
    }

    /// Sends a request of the peer to a listener at `to`.
    fn ask(&self, to: SocketAddr, request: &Request) {
        let (queues, terms) = (self.forger.queues.clone(), self.forger.terms());
        let private_data = request.encode();
        let ask = move |engine: &mut Engine, _: &MemoryAccess<'_>, now| {
            let request = ConnectRequest {
                paths: vec![(LinkId(0), PeerAddr::from(to))],
                service: SERVICE,
                private_data,
                domain: ProtectionDomain::NONE,
                queues,
                terms,
            };
            engine.connect(now, request).expect("there is a link");
        };
        self.runtime.control(ask).expect("not forked");
    }
}

/// Returns a correct reply to a request. Tests falsify some of its fields.
fn fitting(request: &Request) -> Reply {
    let end = End {
        number: 0x123,
        psn: 7,
        gid: Gid::of([127, 0, 0, 1].into()),
        takes_over: true,
        ..request.end
    };
    Reply { end, private_data: Vec::new() }
}

/// Sends a request of an id to the peer. Returns the kind and the status of the event that the id
/// gets. If `has_queue_pair` is true, the id has a queue pair.
fn outcome(peer: &Peer, has_queue_pair: bool) -> (EventKind, i32) {
    let managed = devices(&loopback()).expect("the settings are good").remove(0);
    let program = Program::of(managed.device.open().expect("it opens"));
    let host = ManagedHost::new(vec![managed]);
    let channel = EventChannel::new(&host).expect("a channel");
    let next = || {
        let event = channel.get().expect("there will be an event");
        event.acknowledge();
        (event.kind, event.status)
    };
    let id = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
    id.resolve_address(None, peer.at).expect("it is looked for");
    assert_eq!(next().0, EventKind::AddressResolved);
    id.resolve_route().expect("it is looked for");
    assert_eq!(next().0, EventKind::RouteResolved);
    let end = program.end(0);
    if has_queue_pair {
        id.take_queue_pair(&end.queue_pair).expect("it is in RESET");
    }
    let external = (false, end.queue_pair.number());
    let options = ConnectOptions { external, retries: 7, ..ConnectOptions::default() };
    id.connect(&options).expect("it asks");
    let event = next();
    let state = end.queue_pair.state();
    let there = Gid::of(peer.at.ip());
    match event.0 {
        EventKind::Established => {
            assert_eq!(state, QueuePairState::ReadyToSend);
            assert_eq!(end.queue_pair.attributes().path.gid, there);
        }
        EventKind::Rejected => assert_eq!(state, QueuePairState::Error),
        _ => assert_eq!(state, QueuePairState::Reset),
    }
    if event.0 == EventKind::ConnectResponse {
        let change = id.modification(QueuePairState::ReadyToReceive).expect("the peer is known");
        assert_eq!(change.attributes.path.gid, there);
        id.establish().expect("the peer has accepted");
    }
    if event.0 != EventKind::Rejected {
        id.disconnect().expect("there is a connection");
        assert_eq!(next().0, EventKind::Disconnected);
    }
    id.release_queue_pair();
    end.queue_pair.destroy().expect("nothing uses it");
    id.destroy().expect("once");
    event
}

//= protocol.md: cm.5
#[test]
fn a_matching_reply_connects_the_queue_pair_over_its_own_connection() {
    let peer = Peer::new(|request| fitting(&request).encode());
    assert_eq!(outcome(&peer, true), (EventKind::Established, 0));
    let seen = peer.forger.seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(seen.len() == 1 && seen[0].end.takes_over);
}

//= protocol.md: cm.5
#[test]
fn a_reply_cannot_take_over_a_connection_that_was_not_offered() {
    let peer = Peer::new(|request| {
        assert!(!request.end.takes_over);
        fitting(&request).encode()
    });
    assert_eq!(outcome(&peer, false), (EventKind::ConnectResponse, 0));
}

//= protocol.md: cm.5
#[test]
fn a_reply_cannot_take_over_a_connection_without_the_queue_pair_feature() {
    let peer = Peer::with_feature(false, |request| fitting(&request).encode());
    assert_eq!(outcome(&peer, true), (EventKind::Rejected, 5));
}

/// Returns the GID of another host.
fn elsewhere() -> Gid {
    Gid::of([127, 0, 0, 5].into())
}

//= protocol.md: cm.6
#[test]
fn the_source_address_of_a_reply_counts_and_not_the_claimed_one() {
    let forge: fn(Request) -> Vec<u8> = |request| {
        let mut reply = fitting(&request);
        reply.end.gid = elsewhere();
        reply.encode()
    };
    assert_eq!(outcome(&Peer::new(forge), true), (EventKind::Established, 0));
    assert_eq!(outcome(&Peer::new(forge), false), (EventKind::ConnectResponse, 0));
}

/// Creates a listener, and a peer that sends a request to it. The request claims the GID of another
/// host and offers a takeover.
fn ask_with_a_lie(has_feature: bool) -> (Peer, Arc<Id>, Arc<EventChannel>) {
    let host = ManagedHost::new(devices(&loopback()).expect("the settings are good"));
    let channel = EventChannel::new(&host).expect("a channel");
    let listener = Id::new(&host, &channel, PortSpace::Tcp, None).expect("an id");
    listener.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    listener.listen(0).expect("it listens");
    let to = listener.local().expect("an address");
    let peer = Peer::with_feature(has_feature, |_| Vec::new());
    let end = End {
        number: 0x123,
        psn: 7,
        queue_key: 0,
        gid: elsewhere(),
        service: QueuePairType::Reliable,
        flow_control: true,
        is_shared: false,
        takes_over: true,
        responder_resources: 1,
        initiator_depth: 1,
        retries: 7,
        not_ready_retries: 7,
        not_ready_timer: 12,
    };
    let (space, port, to_gid) = (PortSpace::Tcp, to.port(), Gid::of(to.ip()));
    let private_data = Vec::new();
    peer.ask(to, &Request { space, port, source_port: 7, to: to_gid, end, private_data });
    (peer, listener, channel)
}

//= protocol.md: cm.6
#[test]
fn the_source_address_of_a_request_counts_and_not_the_claimed_one() {
    let (peer, _listener, channel) = ask_with_a_lie(true);
    let event = channel.get().expect("there will be an event");
    event.acknowledge();
    assert_eq!(event.kind, EventKind::ConnectRequest);
    let remote = event.id.remote().expect("it is known");
    assert_eq!(remote, (peer.at.ip(), 7).into());
    let change = event.id.modification(QueuePairState::ReadyToReceive).expect("it is known");
    assert_eq!(change.attributes.path.gid, Gid::of(peer.at.ip()));
}

//= protocol.md: cm.5
#[test]
fn a_request_cannot_take_over_a_connection_without_the_queue_pair_feature() {
    let (peer, _listener, _channel) = ask_with_a_lie(false);
    let refused = loop {
        let mut refusals = peer.forger.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refusal) = refusals.pop() {
            break refusal;
        }
        drop(refusals);
        std::thread::yield_now();
    };
    assert_eq!(refused.reason, 5);
}

//= protocol.md: cm.1, cm.5
#[test]
fn an_invalid_reply_or_one_of_another_type_is_ignored() {
    let garbage: fn(Request) -> Vec<u8> = |_| vec![1; 50];
    let request: fn(Request) -> Vec<u8> = |request| request.encode();
    let other: fn(Request) -> Vec<u8> = |request| {
        let mut reply = fitting(&request);
        reply.end.service = QueuePairType::Datagram;
        reply.encode()
    };
    let timer: fn(Request) -> Vec<u8> = |request| {
        let mut reply = fitting(&request);
        reply.end.not_ready_timer = 32;
        reply.encode()
    };
    for forge in [garbage, request, other, timer] {
        assert_eq!(outcome(&Peer::new(forge), true), (EventKind::Rejected, 5));
    }
}

//! Tests redirect ports with two processes. The client process sends its request to a redirect port
//! of the server process, which answers with the address of the service.

mod pair;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use engine::{ConnectRequest, Event, Terms};
use link::{AuxiliarySocket, Slots, UdpConfig, UdpError};
use mem::{Buffer, Rights};
use pair::Side;
use runtime::{AuxiliaryError, Doorbell, Interest, Readiness, RuntimeConfig};
use semantics::{CompletionKind, Operation, OperationFlags, Receive, Request, Source};
use wire_edge::{Moved, PeerAddr, QueuePairNumber};

/// Number of a service. The server listens for it, and the client asks for it at the redirect port.
const SERVICE: u32 = 0x0106_1234;

const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Environment variable that passes the address of the redirect port to the other process.
const REDIRECT_PORT: &str = "ETHERNOT_TEST_REDIRECT_PORT";

/// Creates an endpoint, and claims a slot (a part of the queue pair numbers of the host) for it.
/// Also returns the number of the slot.
fn in_a_slot(random: u16) -> (Side, u16) {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = false;
    let claimed = Slots::default().claim(&[LOCAL], random, &UdpConfig::default());
    let mut claimed = claimed.expect("a free slot");
    let link = claimed.links.pop().expect("one for each address");
    (Side::on(Box::new(link), config), claimed.slot)
}

//= protocol.md: moved.2, moved.3, slot.1
#[test]
fn another_process_connects_through_a_redirect_port() {
    let (server, slot) = in_a_slot(7);
    server.runtime.control(|engine, _, _| engine.listen(SERVICE)).expect("not forked");
    let number = QueuePairNumber::at(slot, 5).expect("a number");
    let there = PeerAddr::from(Slots::default().address_of(LOCAL, number));
    assert_eq!(server.runtime.link_addresses().expect("not forked")[0].1, there);
    let moved = Moved { address: there, service: SERVICE };
    let redirect_port =
        server.runtime.open_redirect_port((LOCAL, 0).into(), vec![(SERVICE, moved)]);
    let redirect_port = redirect_port.expect("a free port");
    let taken = server.runtime.open_redirect_port(redirect_port, Vec::new());
    assert!(
        matches!(taken, Err(AuxiliaryError::Socket(UdpError::AddressInUse { .. }))),
        "{taken:?}"
    );

    let mut client = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "connecting_process", "--nocapture"])
        .env(REDIRECT_PORT, redirect_port.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("another process");
    let requested = next(&server, |event| match event {
        Event::Requested { connection, service: SERVICE, .. } => Some(connection),
        _ => None,
    });
    // Connections continue after the redirect port is closed.
    assert_eq!(server.runtime.close_redirect_port(redirect_port), Ok(true));
    assert_eq!(server.runtime.close_redirect_port(redirect_port), Ok(false));
    drop(AuxiliarySocket::bind(redirect_port).expect("it is free"));
    let (domain, queue) = (server.domain, Arc::clone(&server.queue));
    let buffer = Buffer::new(4096);
    let memory = server.runtime.memory();
    let region = memory.register(domain, Arc::clone(&buffer), Rights::LOCAL_WRITE);
    let region = region.expect("it is registered").id;
    let accepted = server.runtime.control(move |engine, memory, now| {
        engine.accept(now, requested, domain, queue, b"").expect("accepted");
        let receive = Receive { region, offset: 0, length: 64, context: 1 };
        engine.post_receive(memory, requested, receive)
    });
    accepted.expect("not forked").expect("posted");
    let queue = &server.queue;
    let done = server.runtime.wait(Interest::Completion(queue), None, || queue.poll());
    let done = done.expect("not forked").expect("a message");
    assert_eq!((done.kind, done.bytes, done.result), (CompletionKind::Receive, 10, Ok(())));
    let mut bytes = [0; 10];
    buffer.read(0, &mut bytes);
    assert_eq!(&bytes, b"redirected");
    // The client process ends when the server has acknowledged its message.
    while client.try_wait().expect("a child").is_none() {
        server.runtime.drive().expect("not forked");
    }
    assert!(client.wait().expect("a child").success());
}

/// The code of the other process. Does nothing when run as a normal test.
#[test]
fn connecting_process() {
    let Ok(redirect_port) = std::env::var(REDIRECT_PORT) else { return };
    let redirect_port: SocketAddr = redirect_port.parse().expect("an address");
    let (client, _) = in_a_slot(7);
    let (link, _) = client.runtime.link_addresses().expect("not forked")[0];
    let request = ConnectRequest {
        paths: vec![(link, PeerAddr::from(redirect_port))],
        service: SERVICE,
        private_data: Vec::new(),
        domain: client.domain,
        queues: Arc::clone(&client.queue).into(),
        terms: Terms::default(),
    };
    let handle = client.runtime.control(move |engine, _, now| engine.connect(now, request));
    let handle = handle.expect("not forked").expect("it is asked for");
    next(&client, |event| matches!(event, Event::Established { .. }).then_some(()));
    let mut bytes = [0; 64];
    bytes[..10].copy_from_slice(b"redirected");
    let operation = Operation {
        request: Request::Send { source: Source::Inline(bytes) },
        length: 10,
        flags: OperationFlags { signalled: true, ..OperationFlags::default() },
        immediate: None,
        context: 1,
        status: None,
    };
    let queue = &client.queue;
    client.runtime.post(handle, queue, &operation, Doorbell::Ring).expect("posted");
    let done = client.runtime.wait(Interest::Completion(queue), None, || queue.poll());
    assert_eq!(done.expect("not forked").expect("a completion").result, Ok(()));
}

/// Returns the next event of the wanted kind.
fn next<R>(side: &Side, wanted: impl Fn(Event) -> Option<R>) -> R {
    let found = side.runtime.wait(Interest::News, None, || side.next_event().and_then(&wanted));
    found.expect("not forked").expect("no limit")
}

#[test]
fn a_redirect_port_needs_an_address_of_this_host() {
    let (side, _) = in_a_slot(9);
    let elsewhere = SocketAddr::from(([203, 0, 113, 1], 0));
    let opened = side.runtime.open_redirect_port(elsewhere, Vec::new());
    assert!(
        matches!(opened, Err(AuxiliaryError::Socket(UdpError::NoSuchAddress { .. }))),
        "{opened:?}"
    );
}

#[test]
fn keys_reserved_for_auxiliary_sockets_are_refused() {
    let (side, _) = in_a_slot(11);
    let socket = UdpSocket::bind((LOCAL, 0)).expect("a socket on loopback");
    let watch = |key| side.runtime.watch_descriptor(socket.as_fd(), key, Readiness::READABLE);
    assert!(watch(1 << 63).is_err() && watch(u64::MAX).is_err());
    watch((1 << 63) - 1).expect("it is watched");
    assert!(side.runtime.unwatch_descriptor(socket.as_fd()));
}

//! Runtimes on one host, and connections between them.
#![allow(dead_code, reason = "not every test uses everything")]

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use engine::{ConnectRequest, ConnectionHandle, Event};
use link::{Link, UdpConfig, UdpLink};
use mem::{ProtectionDomain, Region};
use runtime::{Runtime, RuntimeConfig};
use semantics::{CompletionQueue, Operation, OperationFlags, Request, Source};
use wire_edge::PeerAddr;

pub(crate) struct Side {
    pub(crate) runtime: Runtime,
    events: Arc<Mutex<Vec<Event>>>,
    /// Completion queue of this side's connections for which a test gives no other queue.
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) domain: ProtectionDomain,
}

impl Side {
    pub(crate) fn new(progress_thread: bool) -> Self {
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = progress_thread;
        Self::with(config)
    }

    pub(crate) fn with(config: RuntimeConfig) -> Self {
        let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
        Self::on(Box::new(udp.expect("a socket on loopback")), config)
    }

    pub(crate) fn on(link: Box<dyn Link>, config: RuntimeConfig) -> Self {
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let note = move |event| sink.lock().expect("no thread panics").push(event);
        let runtime = Runtime::start(config, vec![link], Box::new(note)).expect("it starts");
        let domain = runtime.memory().allocate_domain();
        Self { runtime, events, queue: Arc::new(CompletionQueue::new(256)), domain }
    }

    /// Accepts a request. Completions of the connection go to the queue of this side.
    pub(crate) fn accept(&self, connection: ConnectionHandle) {
        let (domain, queue) = (self.domain, Arc::clone(&self.queue));
        let accepted = self
            .runtime
            .control(move |engine, _, now| engine.accept(now, connection, domain, queue, b""));
        accepted.expect("not forked").expect("it is accepted");
    }

    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut events = self.events.lock().expect("no thread panics");
        if events.is_empty() { None } else { Some(events.remove(0)) }
    }
}

/// Connects `client` to `server`. Returns the connection at the client.
pub(crate) fn connect(client: &Side, server: &Side) -> ConnectionHandle {
    connect_with(client, server, &client.queue)
}

/// Requests a connection. Its completions go to `queue`.
pub(crate) fn ask(
    client: &Runtime,
    domain: ProtectionDomain,
    peer: PeerAddr,
    queue: &Arc<CompletionQueue>,
) -> ConnectionHandle {
    let (link, _) = client.link_addresses().expect("not forked")[0];
    let request = ConnectRequest {
        paths: vec![(link, peer)],
        service: 0,
        private_data: Vec::new(),
        domain,
        queues: Arc::clone(queue).into(),
        terms: engine::Terms::default(),
    };
    let connected = client.control(move |engine, _, now| engine.connect(now, request));
    connected.expect("not forked").expect("it is asked for")
}

/// Connects. Completions at the client go to `queue`.
pub(crate) fn connect_with(
    client: &Side,
    server: &Side,
    queue: &Arc<CompletionQueue>,
) -> ConnectionHandle {
    let (_, peer) = server.runtime.link_addresses().expect("not forked")[0];
    server.runtime.control(|engine, _, _| engine.listen(0)).expect("not forked");
    let handle = ask(&client.runtime, client.domain, peer, queue);
    loop {
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        if let Some(Event::Requested { connection, .. }) = server.next_event() {
            server.accept(connection);
        }
        if let Some(Event::Established { .. }) = client.next_event() {
            return handle;
        }
    }
}

/// Returns an operation that writes eight bytes of value 5 to the start of `target`, and that has a
/// completion.
pub(crate) fn small_write(target: Region) -> Operation {
    Operation {
        request: Request::Write {
            source: Source::Inline([5; 64]),
            key: target.key,
            address: target.start,
        },
        length: 8,
        flags: OperationFlags { signalled: true, ..OperationFlags::default() },
        immediate: None,
        context: 0,
        status: None,
    }
}

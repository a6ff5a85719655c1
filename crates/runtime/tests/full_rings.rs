//! Processes of one host that share memory with several others.

use std::sync::{Arc, Mutex};

use engine::{ConnectRequest, ConnectionHandle, Event};
use link::{Link, ShmLink};
use mem::{Buffer, ProtectionDomain, Region, Rights};
use runtime::{Doorbell, Runtime, RuntimeConfig};
use semantics::{CompletionQueue, Operation, OperationFlags, Request, Source};

struct Side {
    runtime: Runtime,
    events: Arc<Mutex<Vec<Event>>>,
    queue: Arc<CompletionQueue>,
    domain: ProtectionDomain,
    region: Region,
}

impl Side {
    fn new() -> Self {
        let links: Vec<Box<dyn Link>> = vec![Box::new(ShmLink::open().expect("shared memory"))];
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let note = move |event| sink.lock().expect("nobody panics").push(event);
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = false;
        // However slow this host is, nobody counts as unreachable in the test.
        config.engine.silence_budget_ns = 3_600_000_000_000;
        let runtime = Runtime::start(config, links, Box::new(note)).expect("it starts");
        let domain = runtime.memory().allocate_domain();
        let buffer = Buffer::new(BYTES);
        let region = runtime.memory().register(domain, buffer, Rights::REMOTE_WRITE);
        let region = region.expect("it is registered");
        Self { runtime, events, queue: Arc::new(CompletionQueue::new(256)), domain, region }
    }

    fn next_event(&self) -> Option<Event> {
        let mut events = self.events.lock().expect("nobody panics");
        if events.is_empty() { None } else { Some(events.remove(0)) }
    }

    fn post(&self, to: ConnectionHandle, peer: &Self, source: Source, length: u32, context: u64) {
        let region = peer.region;
        let write = Operation {
            request: Request::Write { source, key: region.key, address: region.start },
            length,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context,
            status: None,
        };
        self.runtime.post(to, &self.queue, &write, Doorbell::Ring).expect("there is room");
    }
}

fn connect(client: &Side, server: &Side) -> ConnectionHandle {
    let (_, peer) = server.runtime.link_addresses().expect("not forked")[0];
    let (link, _) = client.runtime.link_addresses().expect("not forked")[0];
    let request = ConnectRequest {
        paths: vec![(link, peer)],
        service: 0,
        private_data: Vec::new(),
        domain: client.domain,
        queue: Arc::clone(&client.queue),
    };
    server.runtime.control(|engine, _, _| engine.listen(0)).expect("not forked");
    let connected = client.runtime.control(move |engine, _, now| engine.connect(now, request));
    let handle = connected.expect("not forked").expect("it is asked for");
    let domain = server.domain;
    loop {
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        if let Some(Event::Requested { connection, .. }) = server.next_event() {
            let queue = Arc::clone(&server.queue);
            let accepted = server
                .runtime
                .control(move |engine, _, now| engine.accept(now, connection, domain, queue, b""));
            accepted.expect("not forked").expect("it is accepted");
        }
        if let Some(Event::Established { .. }) = client.next_event() {
            return handle;
        }
    }
}

/// The ring to one that is stopped fills. All others are served meanwhile.
#[test]
fn a_process_that_is_stopped_holds_up_no_other() {
    let (client, stopped, other) = (Side::new(), Side::new(), Side::new());
    let to_stopped = connect(&client, &stopped);
    let to_other = connect(&client, &other);
    // Through the rings, as memory of this size is not lent.
    let source = Buffer::new(SOURCE_BYTES);
    let source = client.runtime.memory().register(client.domain, source, Rights::NONE);
    let source = Source::Region { region: source.expect("it is registered").id, offset: 0 };
    for context in 0..32 {
        client.post(to_stopped, &stopped, source, SOURCE_BYTES as u32, context);
    }
    let (link, _) = client.runtime.link_addresses().expect("not forked")[0];
    let full = || {
        let statistics = client.runtime.link_statistics(link).expect("not forked");
        statistics.expect("the link is there").send_full
    };
    while full() == 0 {
        client.runtime.drive().expect("not forked");
    }
    for context in 100..200 {
        let before = full();
        client.post(to_other, &other, source, SOURCE_BYTES as u32, context);
        let mut completion = None;
        while completion.is_none() {
            client.runtime.drive().expect("not forked");
            other.runtime.drive().expect("not forked");
            completion = client.queue.poll();
        }
        let completion = completion.expect("it was waited for");
        assert_eq!((completion.context, completion.result), (context, Ok(())));
        assert!(full() > before, "the ring to the stopped one is full still");
    }
}

const BYTES: u64 = 1 << 16;

/// Below what is lent.
const SOURCE_BYTES: u64 = 40_000;

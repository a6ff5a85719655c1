//! After set-up, writing and polling allocate nothing, on either side and on any thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use engine::{ConnectRequest, ConnectionHandle, Event};
use link::{Link, UdpConfig, UdpLink};
use mem::{Buffer, ProtectionDomain, Rights};
use runtime::{Doorbell, Runtime, RuntimeConfig};
use semantics::{CompletionQueue, Operation, OperationFlags, Request, Source};

/// Counts what it passes on.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Side {
    runtime: Runtime,
    events: Arc<Mutex<Vec<Event>>>,
    queue: Arc<CompletionQueue>,
    domain: ProtectionDomain,
}

impl Side {
    fn new(progress_thread: bool) -> Self {
        let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
        let links: Vec<Box<dyn Link>> = vec![Box::new(udp.expect("a socket on loopback"))];
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let note = move |event| sink.lock().expect("nobody panics").push(event);
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = progress_thread;
        let runtime = Runtime::start(config, links, Box::new(note)).expect("it starts");
        let domain = runtime.memory().allocate_domain();
        Self { runtime, events, queue: Arc::new(CompletionQueue::new(256)), domain }
    }

    fn next_event(&self) -> Option<Event> {
        let mut events = self.events.lock().expect("nobody panics");
        if events.is_empty() { None } else { Some(events.remove(0)) }
    }
}

/// Connects `client` to `server`; returns the connection at the client.
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

/// Does `count` writes of `length` bytes with up to 64 under way, polling on both sides.
fn write_many(sides: [&Side; 2], to: ConnectionHandle, write: Operation, count: u64) {
    let [client, server] = sides;
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 64 {
            let bell = if posted % 2 == 0 { Doorbell::Later } else { Doorbell::Ring };
            let result = client.runtime.post(to, &client.queue, &write, bell);
            result.expect("there is room for 64");
            posted += 1;
        }
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        while let Some(completion) = client.queue.poll() {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
    }
}

/// One test in this file: what others do at the same time would be counted too.
#[test]
fn ten_thousand_writes_allocate_nothing() {
    for progress_thread in [false, true] {
        let (client, server) = (Side::new(progress_thread), Side::new(progress_thread));
        let handle = connect(&client, &server);
        let (target, source) = (Buffer::new(1 << 16), Buffer::new(1 << 16));
        let memory = server.runtime.memory();
        let region = memory.register(server.domain, target, Rights::REMOTE_WRITE);
        let region = region.expect("it is registered");
        let source = client.runtime.memory().register(client.domain, source, Rights::NONE);
        let source = source.expect("it is registered");
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        let write = |source, length| Operation {
            request: Request::Write { source, key: region.key, address: region.start },
            length,
            flags,
            immediate: None,
            context: 1,
            status: None,
        };
        let small = write(Source::Inline([5; 64]), 8);
        let large = write(Source::Region { region: source.id, offset: 0 }, 40_000);
        let sides = [&client, &server];
        // Path MTU, rates and rings find their sizes.
        write_many(sides, handle, small, 2000);
        write_many(sides, handle, large, 2000);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        assert!(before > 0, "nothing is counted");
        write_many(sides, handle, small, 8000);
        write_many(sides, handle, large, 2000);
        let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
        assert_eq!(allocations, 0, "with a progress thread: {progress_thread}");
    }
}

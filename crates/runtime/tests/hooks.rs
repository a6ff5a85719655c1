//! Tests what hooks may do, and when the runtime calls them.

mod pair;

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

use delivery::Instant;
use engine::{ConnectRequest, ConnectionHandle, Engine, Event, Terms};
use link::{UdpConfig, UdpLink};
use mem::{Buffer, MemoryAccess, ProtectionDomain, RegionId, Rights};
use pair::{ask, small_write};
use runtime::{Doorbell, Hooks, Readiness, Runtime, RuntimeConfig};
use semantics::{
    CompletionQueue, Operation, OperationFlags, Queues, Receive, Request, SharedReceives, Source,
};
use work::Arm;

/// Accepts every request at once.
struct Accepting {
    domain: Arc<OnceLock<ProtectionDomain>>,
    accepted: Arc<AtomicU32>,
}

impl Hooks for Accepting {
    fn on_event(&self, engine: &mut Engine, _: &MemoryAccess<'_>, now: Instant, event: Event) {
        if let Event::Requested { connection, .. } = event {
            let domain = *self.domain.get().expect("it is set before anybody listens");
            let queue = Arc::new(CompletionQueue::new(16));
            let accepted = engine.accept(now, connection, domain, queue, b"");
            accepted.expect("the request is there");
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn an_application_that_only_polls_accepts_connections() {
    let (server, accepted) = accepting();
    let client = start(Box::new(drop::<Event>));
    connect(&client, &server, &Arc::new(CompletionQueue::new(16)));
    assert_eq!(accepted.load(Ordering::Relaxed), 1);
}

/// Enters the engine from within the hook. This works only if the runtime calls the hook outside of
/// the engine.
struct Noting {
    runtime: Arc<OnceLock<Arc<Runtime>>>,
    fired: Arc<Mutex<Vec<Arc<CompletionQueue>>>>,
}

impl Hooks for Noting {
    fn on_event(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: Event) {}

    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        let runtime = self.runtime.get().expect("nothing fires before");
        runtime.control(|_, _, _| ()).expect("not forked");
        self.fired.lock().expect("no thread panics").extend_from_slice(queues);
    }
}

#[test]
fn fired_queues_are_reported_once_outside_the_engine() {
    let (server, _) = accepting();
    let domain = server.memory().allocate_domain();
    let itself = Arc::new(OnceLock::new());
    let fired = Arc::new(Mutex::new(Vec::new()));
    let hooks = Noting { runtime: Arc::clone(&itself), fired: Arc::clone(&fired) };
    let client = itself.get_or_init(|| Arc::new(start(Box::new(hooks))));
    let queue = Arc::new(CompletionQueue::with_events(16));
    let connection = connect(client, &server, &queue);
    assert!(queue.arm(Arm::Next));
    // The key is from another domain than that of the connection, so the write fails. The error is
    // a completion as well.
    let region = server.memory().register(domain, Buffer::new(64), Rights::REMOTE_WRITE);
    let region = region.expect("it is registered");
    let write = small_write(region);
    for _ in 0..2 {
        client.post(connection, &queue, &write, Doorbell::Ring).expect("it is posted");
    }
    while queue.len() < 2 {
        client.drive().expect("not forked");
        server.drive().expect("not forked");
    }
    let fired = fired.lock().expect("no thread panics");
    assert!(matches!(&**fired, [one] if Arc::ptr_eq(one, &queue)), "{fired:?}");
}

/// Reads the byte that arrives, and sends it to the test.
struct Reading {
    stream: UnixStream,
    read: Mutex<Sender<(u64, u8)>>,
}

impl Hooks for Reading {
    fn on_event(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: Event) {}

    fn on_descriptor(
        &self,
        _: &mut Engine,
        _: &MemoryAccess<'_>,
        _: Instant,
        key: u64,
        ready: Readiness,
    ) {
        assert_eq!(ready, Readiness::READABLE);
        let mut byte = [0];
        (&self.stream).read_exact(&mut byte).expect("it is ready");
        self.read.lock().expect("no thread panics").send((key, byte[0])).expect("it is awaited");
    }
}

#[test]
fn the_thread_that_serves_the_links_reports_other_descriptors() {
    for progress_thread in [true, false] {
        let (ours, theirs) = UnixStream::pair().expect("two sockets");
        let (read, awaited) = channel();
        let watched = ours.try_clone().expect("a descriptor");
        let hooks = Reading { stream: ours, read: Mutex::new(read) };
        let runtime = start_with(Box::new(hooks), progress_thread);
        let watching = runtime.watch_descriptor(watched.as_fd(), 7, Readiness::READABLE);
        watching.expect("it is watched");
        for byte in 0..100 {
            (&theirs).write_all(&[byte]).expect("there is room");
            let come = || {
                if progress_thread {
                    return Some(awaited.recv().expect("it is there"));
                }
                runtime.drive().expect("not forked");
                awaited.try_recv().ok()
            };
            assert_eq!(std::iter::repeat_with(come).flatten().next(), Some((7, byte)));
        }
        assert!(runtime.unwatch_descriptor(watched.as_fd()));
    }
}

/// Requests that the runtime calls `on_due` at a certain time, and reports the call to the test.
struct Due {
    at_ns: AtomicU64,
    called: Mutex<Sender<Instant>>,
}

struct DueHooks(Arc<Due>);

impl Hooks for DueHooks {
    fn on_event(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: Event) {}

    fn due(&self) -> Instant {
        Instant(self.0.at_ns.load(Ordering::Relaxed))
    }

    fn on_due(&self, _: &mut Engine, _: &MemoryAccess<'_>, now: Instant) {
        self.0.at_ns.store(u64::MAX, Ordering::Relaxed);
        self.0.called.lock().expect("no thread panics").send(now).expect("it is awaited");
    }
}

#[test]
fn a_machine_is_called_at_its_requested_time() {
    let (called, awaited) = channel();
    let due = Arc::new(Due { at_ns: AtomicU64::new(u64::MAX), called: Mutex::new(called) });
    let runtime = start_with(Box::new(DueHooks(Arc::clone(&due))), true);
    for pause_ns in [0, 1, 3_000_000] {
        let hooks = Arc::clone(&due);
        let set = move |_: &mut Engine, _: &MemoryAccess<'_>, now: Instant| {
            let at = now.after_ns(pause_ns);
            hooks.at_ns.store(at.0, Ordering::Relaxed);
            at
        };
        let at = runtime.control(set).expect("not forked");
        // Only the time `at` ends the sleep of the progress thread. The call must not come before
        // `at`.
        assert!(awaited.recv().expect("it is called") >= at);
        assert!(awaited.try_recv().is_err(), "once");
    }
}

/// Accepts every request for a connection, and takes its receives from a shared queue.
struct Sharing {
    domain: OnceLock<ProtectionDomain>,
    receives: Arc<SharedReceives>,
    below: Mutex<Vec<Arc<SharedReceives>>>,
}

struct SharingHooks(Arc<Sharing>);

impl Hooks for SharingHooks {
    fn on_event(&self, engine: &mut Engine, _: &MemoryAccess<'_>, now: Instant, event: Event) {
        let Event::Requested { connection, .. } = event else { return };
        let domain = *self.0.domain.get().expect("it is set before anybody listens");
        let queue = Arc::new(CompletionQueue::new(16));
        let queues = Queues::of_queue_pair(Arc::clone(&queue), queue);
        let shared_receives = Some(Arc::clone(&self.0.receives));
        let terms = Terms::default().queue_pair(true).shared_receives(shared_receives);
        let accepted = engine.accept_under(now, connection, domain, queues, &terms, b"");
        accepted.expect("the request is there");
    }

    fn on_below_limit(&self, queues: &[Arc<SharedReceives>]) {
        self.0.below.lock().expect("no thread panics").extend_from_slice(queues);
    }
}

#[test]
fn a_low_number_of_receives_is_reported_once() {
    let receives = Arc::new(SharedReceives::new(8));
    let (domain, below) = (OnceLock::new(), Mutex::default());
    let hooks = Arc::new(Sharing { domain, receives: Arc::clone(&receives), below });
    let server = start(Box::new(SharingHooks(Arc::clone(&hooks))));
    hooks.domain.get_or_init(|| server.memory().allocate_domain());
    server.control(|engine, _, _| engine.listen(0)).expect("not forked");
    for context in 0..4 {
        let receive = Receive { region: RegionId::NONE, offset: 0, length: 0, context };
        assert_eq!(receives.post(receive), Ok(false));
    }
    let armed = Arc::clone(&receives);
    let is_below = server.control(move |_, _, _| armed.arm_limit(3)).expect("not forked");
    assert!(!is_below, "four are left");
    let client = start(Box::new(drop::<Event>));
    let queue = Arc::new(CompletionQueue::new(16));
    let (_, peer) = server.link_addresses().expect("not forked")[0];
    let (link, _) = client.link_addresses().expect("not forked")[0];
    let request = ConnectRequest {
        paths: vec![(link, peer)],
        service: 0,
        private_data: Vec::new(),
        domain: client.memory().allocate_domain(),
        queues: Queues::of_queue_pair(Arc::clone(&queue), Arc::clone(&queue)),
        terms: Terms::default().queue_pair(true),
    };
    let asked = client.control(move |engine, _, now| engine.connect(now, request));
    let connection = asked.expect("not forked").expect("it is asked for");
    let is_established = move |engine: &mut Engine, _: &MemoryAccess<'_>, _| {
        engine.info(connection).is_some_and(|info| info.established)
    };
    while !client.control(is_established).expect("not forked") {
        server.drive().expect("not forked");
    }
    for sent in 1..=4 {
        let send = Operation {
            request: Request::Send { source: Source::Inline([0; 64]) },
            length: 0,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context: sent,
            status: None,
        };
        client.post(connection, &queue, &send, Doorbell::Ring).expect("it is posted");
        while queue.is_empty() {
            client.drive().expect("not forked");
            server.drive().expect("not forked");
        }
        assert!(queue.poll().expect("it is there").result.is_ok());
        let below = hooks.below.lock().expect("no thread panics");
        assert_eq!(below.len(), usize::from(sent >= 2), "two are left after the second");
        assert!(below.iter().all(|one| Arc::ptr_eq(one, &receives)));
    }
}

/// Starts a runtime that accepts every connection. Also returns the number of connections that it
/// has accepted.
fn accepting() -> (Runtime, Arc<AtomicU32>) {
    let (domain, accepted) = (Arc::new(OnceLock::new()), Arc::new(AtomicU32::new(0)));
    let hooks = Accepting { domain: Arc::clone(&domain), accepted: Arc::clone(&accepted) };
    let server = start(Box::new(hooks));
    domain.get_or_init(|| server.memory().allocate_domain());
    server.control(|engine, _, _| engine.listen(0)).expect("not forked");
    (server, accepted)
}

/// Connects. Both sides only poll. Completions at the client go to `queue`.
fn connect(client: &Runtime, server: &Runtime, queue: &Arc<CompletionQueue>) -> ConnectionHandle {
    let (_, peer) = server.link_addresses().expect("not forked")[0];
    let handle = ask(client, client.memory().allocate_domain(), peer, queue);
    let is_established = move |engine: &mut Engine, _: &MemoryAccess<'_>, _| {
        engine.info(handle).is_some_and(|info| info.established)
    };
    while !client.control(is_established).expect("not forked") {
        server.drive().expect("not forked");
    }
    handle
}

fn start(hooks: Box<dyn Hooks>) -> Runtime {
    start_with(hooks, false)
}

fn start_with(hooks: Box<dyn Hooks>, progress_thread: bool) -> Runtime {
    let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = progress_thread;
    let links = vec![Box::new(udp.expect("a socket on loopback")) as _];
    Runtime::start(config, links, hooks).expect("it starts")
}

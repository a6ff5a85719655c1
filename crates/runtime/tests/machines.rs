//! Tests machines: protocols that the threads of a runtime drive beside the engine.

mod pair;

use std::any::Any;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use delivery::Instant;
use engine::{Engine, Event};
use link::{UdpConfig, UdpLink};
use mem::MemoryAccess;
use pair::Side;
use runtime::{
    Descriptors, Hooks, Interest, Machine, MachineError, Polling, Posted, Progress, Readiness,
    Rest, Runtime, RuntimeConfig, SourceDoorbell, WorkSource,
};
use semantics::{Completion, CompletionKind, CompletionQueue, Owner, Push};
use work::Arm;

/// More bytes than the buffers of both sockets hold, so that the streams become full.
const ECHOED: usize = 8 << 20;

/// The key under which each machine watches its stream. Equal keys of different machines do not
/// collide.
const KEY: u64 = 5;

/// A byte stream. It either echoes the bytes that arrive, or counts them and reports a completion
/// for each [`ECHOED`] bytes.
struct Stream {
    socket: TcpStream,
    descriptors: Option<Descriptors>,
    echoes: bool,
    to_send: Vec<u8>,
    came: usize,
    is_readable: bool,
    queue: Arc<CompletionQueue>,
    fired: Vec<Arc<CompletionQueue>>,
}

impl Stream {
    fn new(socket: TcpStream, queue: Option<&Arc<CompletionQueue>>) -> Self {
        socket.set_nonblocking(true).expect("a socket");
        Self {
            socket,
            descriptors: None,
            echoes: queue.is_none(),
            to_send: Vec::new(),
            came: 0,
            is_readable: false,
            queue: queue.map_or_else(|| Arc::new(CompletionQueue::new(1)), Arc::clone),
            fired: Vec::new(),
        }
    }

    fn watch(&self) {
        let ready = Readiness { readable: true, writable: !self.to_send.is_empty() };
        let descriptors = self.descriptors.as_ref().expect("it is attached");
        descriptors.watch(self.socket.as_fd(), KEY, ready).expect("it is watched");
    }

    fn read(&mut self) -> usize {
        let mut bytes = vec![0; 1 << 16];
        let count = match self.socket.read(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            read => read.expect("a stream"),
        };
        bytes.truncate(count);
        if self.echoes {
            self.to_send.extend(bytes);
            return count;
        }
        assert!(bytes.iter().all(|&byte| byte == 7));
        self.came += count;
        if self.came >= ECHOED {
            self.came -= ECHOED;
            if self.queue.push(&completion()) == Push::Fired {
                self.fired.push(Arc::clone(&self.queue));
            }
        }
        count
    }
}

impl Machine for Stream {
    fn attached(&mut self, descriptors: Descriptors) {
        self.descriptors = Some(descriptors);
        self.watch();
    }

    fn turn(&mut self, _now: Instant, _memory: &MemoryAccess<'_>) -> Progress {
        let read = if std::mem::take(&mut self.is_readable) { self.read() } else { 0 };
        let mut written = 0;
        if !self.to_send.is_empty() {
            match self.socket.write(&self.to_send) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                count => written = count.expect("a stream"),
            }
            self.to_send.drain(..written);
            self.watch();
        }
        Progress { worked: read + written > 0, ..Progress::NONE }
    }

    fn on_descriptor(&mut self, key: u64, ready: Readiness) {
        assert_eq!(key, KEY);
        self.is_readable |= ready.readable;
    }

    fn take_fired(&mut self, fired: &mut Vec<Arc<CompletionQueue>>) {
        fired.append(&mut self.fired);
    }

    fn close(&mut self, _now: Instant) {}

    fn is_closing(&self) -> bool {
        false
    }
}

/// Watches a descriptor, records each report for it, and returns the progress that the test has
/// set.
struct Noting {
    watched: Option<UnixStream>,
    sender: Sender<u64>,
    progress: Progress,
    /// Number of further turns in which the machine reports that it has more to do.
    more: u32,
    turns: Arc<AtomicU32>,
    /// Nanoseconds after which the machine wants its next turn; 0 if it wants none. A thread
    /// outside of the engine sets this.
    asked_for: Arc<AtomicU64>,
}

impl Noting {
    fn new(watched: Option<UnixStream>) -> (Box<Self>, Receiver<u64>) {
        let (sender, heard) = channel();
        let turns = Arc::new(AtomicU32::new(0));
        let machine = Self {
            watched,
            sender,
            progress: Progress::NONE,
            more: 0,
            turns,
            asked_for: Arc::new(AtomicU64::new(0)),
        };
        (Box::new(machine), heard)
    }
}

impl Machine for Noting {
    fn attached(&mut self, descriptors: Descriptors) {
        if let Some(watched) = &self.watched {
            let watch = |key| descriptors.watch(watched.as_fd(), key, Readiness::READABLE);
            assert!(watch(1 << 32).is_err() && watch(u64::MAX).is_err());
            watch(KEY).expect("it is watched");
        }
    }

    fn turn(&mut self, now: Instant, _memory: &MemoryAccess<'_>) -> Progress {
        self.turns.fetch_add(1, Ordering::Relaxed);
        let asked_for = self.asked_for.swap(0, Ordering::Relaxed);
        if asked_for != 0 {
            self.progress.due = now.after_ns(asked_for);
        } else if self.progress.due <= now {
            self.progress.due = Instant::NEVER;
            self.sender.send(now.0).expect("it is awaited");
        }
        let more = self.more > 0;
        self.more = self.more.saturating_sub(1);
        let news = std::mem::take(&mut self.progress.news);
        Progress { more, news, ..self.progress }
    }

    fn on_descriptor(&mut self, key: u64, ready: Readiness) {
        assert_eq!(ready, Readiness::READABLE);
        if let Some(watched) = &self.watched {
            watched.set_nonblocking(true).expect("a socket");
            if (&mut &*watched).read_exact(&mut [0]).is_ok() {
                // The test may have ended before the last turn, which runs when its endpoint is
                // dropped.
                let _unheard = self.sender.send(key);
            }
        }
    }

    fn close(&mut self, _now: Instant) {}

    fn is_closing(&self) -> bool {
        false
    }
}

fn completion() -> Completion {
    Completion {
        context: 1,
        owner: Owner::default(),
        kind: CompletionKind::Receive,
        result: Ok(()),
        bytes: 0,
        immediate: None,
        solicited: false,
        value: 0,
    }
}

/// Creates a side whose threads sleep at once when they wait.
fn sleepy(progress_thread: bool) -> Side {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = progress_thread;
    config.polling = Polling::NEVER;
    Side::with(config)
}

fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let ours = TcpStream::connect(listener.local_addr().expect("it is bound"));
    (ours.expect("it is there"), listener.accept().expect("it was asked for").0)
}

/// Sends bytes from `client` to `server`, which echoes them. `wait` waits for a completion.
fn echo(client: &Runtime, server: &Runtime, wait: impl Fn(&Arc<CompletionQueue>)) {
    let (ours, theirs) = streams();
    let queue = Arc::new(CompletionQueue::new(4));
    let asker =
        client.attach_machine(Box::new(Stream::new(ours, Some(&queue)))).expect("it is attached");
    let answerer =
        server.attach_machine(Box::new(Stream::new(theirs, None))).expect("it is attached");
    for _ in 0..2 {
        let ask = |stream: &mut Stream, _: &MemoryAccess<'_>, _| {
            stream.to_send.resize(ECHOED, 7);
        };
        client.with_machine(asker, ask).expect("it is attached");
        wait(&queue);
    }
    let back: Box<dyn Any> = client.detach_machine(asker).expect("it is attached");
    let back: Box<Stream> = back.downcast().expect("it is a stream");
    assert_eq!((back.came, back.to_send.len()), (0, 0));
    server.detach_machine(answerer).expect("it is attached");
}

#[test]
fn machines_of_two_runtimes_talk_while_both_are_polled() {
    let (client, server) = (Side::new(false), Side::new(false));
    echo(&client.runtime, &server.runtime, |queue| {
        while queue.poll().is_none() {
            client.runtime.drive().expect("not forked");
            server.runtime.drive().expect("not forked");
        }
    });
}

#[test]
fn a_sleeping_application_is_woken() {
    // Without a progress thread, the thread of the application sleeps on the links itself.
    for progress_thread in [true, false] {
        let (client, server) = (sleepy(progress_thread), sleepy(true));
        echo(&client.runtime, &server.runtime, |queue| {
            let done = client.runtime.wait(Interest::Completion(queue), None, || queue.poll());
            done.expect("not forked").expect("a completion");
        });
    }
}

/// A source whose work a [`Worker`] does.
#[derive(Default)]
struct Orders {
    doorbell: SourceDoorbell,
    /// Number of orders that the worker has not seen.
    waiting: AtomicU32,
    /// Number of orders that a ring has shown to the worker.
    noted: AtomicU32,
    done: AtomicU32,
}

impl WorkSource for Orders {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        true
    }

    fn is_of_machine(&self) -> bool {
        true
    }

    fn post(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: u32) -> Posted {
        let count = self.waiting.swap(0, Ordering::Relaxed);
        self.noted.fetch_add(count, Ordering::Relaxed);
        Posted { count, rest: Rest::Nothing }
    }
}

/// Does the orders that were noted.
struct Worker(Arc<Orders>);

impl Machine for Worker {
    fn turn(&mut self, _now: Instant, _memory: &MemoryAccess<'_>) -> Progress {
        let noted = self.0.noted.swap(0, Ordering::Relaxed);
        self.0.done.fetch_add(noted, Ordering::Relaxed);
        Progress { worked: noted > 0, ..Progress::NONE }
    }

    fn on_descriptor(&mut self, _key: u64, _ready: Readiness) {}

    fn close(&mut self, _now: Instant) {}

    fn is_closing(&self) -> bool {
        false
    }
}

#[test]
fn a_machine_does_the_work_of_a_source_before_the_ring_returns() {
    let side = Side::new(false);
    let orders = Arc::new(Orders::default());
    let id = side.runtime.attach_machine(Box::new(Worker(Arc::clone(&orders))));
    id.expect("it is attached");
    let source: Arc<dyn WorkSource> = orders.clone();
    for count in 1..=20 {
        orders.waiting.fetch_add(1, Ordering::Relaxed);
        side.runtime.ring(&source).expect("not forked");
        assert_eq!(orders.done.load(Ordering::Relaxed), count);
    }
    orders.waiting.fetch_add(1, Ordering::Relaxed);
    side.runtime.send_out(&source).expect("not forked");
    assert_eq!(orders.done.load(Ordering::Relaxed), 21);
}

#[test]
fn a_machine_does_work_that_was_handed_over_before_the_thread_inside_leaves() {
    let side = Side::new(false);
    let orders = Arc::new(Orders::default());
    let id = side.runtime.attach_machine(Box::new(Worker(Arc::clone(&orders))));
    let id = id.expect("it is attached");
    let rung: Arc<dyn WorkSource> = orders.clone();
    let runtime = &side.runtime;
    let (enter, entered) = channel();
    let (leave, may_leave) = channel::<()>();
    std::thread::scope(|scope| {
        // The other thread is inside the engine during the ring, so the ring only leaves the
        // source among the doorbells.
        scope.spawn(move || {
            let stay = move |_: &mut Worker, _: &MemoryAccess<'_>, _| {
                enter.send(()).expect("it is awaited");
                may_leave.recv().expect("it may leave");
            };
            runtime.with_machine(id, stay).expect("it is attached");
        });
        entered.recv().expect("it enters");
        orders.waiting.fetch_add(1, Ordering::Relaxed);
        runtime.ring(&rung).expect("not forked");
        assert_eq!(orders.done.load(Ordering::Relaxed), 0);
        leave.send(()).expect("it waits");
    });
    assert_eq!(orders.done.load(Ordering::Relaxed), 1, "the thread inside has made the turn");
}

/// Sends to the test the queues that fired and the keys of ready descriptors.
struct Hooked(Mutex<Sender<Arc<CompletionQueue>>>, Mutex<Sender<u64>>);

impl Hooks for Hooked {
    fn on_event(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: Event) {}

    fn on_descriptor(
        &self,
        _: &mut Engine,
        _: &MemoryAccess<'_>,
        _: Instant,
        key: u64,
        _: Readiness,
    ) {
        self.1.lock().expect("no thread panics").send(key).expect("it is awaited");
    }

    fn on_completions(&self, queues: &[Arc<CompletionQueue>]) {
        let fired = self.0.lock().expect("no thread panics");
        for queue in queues {
            fired.send(Arc::clone(queue)).expect("it is awaited");
        }
    }
}

/// Starts a runtime. Also returns the queues that fired and the keys that the runtime reported to
/// its hooks.
fn hooked(progress_thread: bool) -> (Runtime, Receiver<Arc<CompletionQueue>>, Receiver<u64>) {
    let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
    let links = vec![Box::new(udp.expect("a socket on loopback")) as _];
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = progress_thread;
    let ((fired, awaited), (notified, heard)) = (channel(), channel());
    let hooks = Hooked(Mutex::new(fired), Mutex::new(notified));
    (Runtime::start(config, links, Box::new(hooks)).expect("it starts"), awaited, heard)
}

#[test]
fn fired_queues_of_a_machine_are_reported() {
    let ((client, fired, _), server) = (hooked(true), sleepy(true));
    let (ours, theirs) = streams();
    let queue = Arc::new(CompletionQueue::with_events(4));
    let asker =
        client.attach_machine(Box::new(Stream::new(ours, Some(&queue)))).expect("it is attached");
    server.runtime.attach_machine(Box::new(Stream::new(theirs, None))).expect("it is attached");
    assert!(queue.arm(Arm::Next));
    let ask = |stream: &mut Stream, _: &MemoryAccess<'_>, _| stream.to_send.resize(ECHOED, 7);
    client.with_machine(asker, ask).expect("it is attached");
    assert!(Arc::ptr_eq(&fired.recv().expect("it fires"), &queue));
    assert_eq!(queue.len(), 1);
}

#[test]
fn threads_that_sleep_without_descriptors_honor_a_time_set_by_a_call() {
    let side = sleepy(true);
    let (machine, times) = Noting::new(None);
    let id = side.runtime.attach_machine(machine).expect("it is attached");
    for _ in 0..20 {
        let set = |machine: &mut Noting, _: &MemoryAccess<'_>, now: Instant| {
            machine.progress.due = now.after_ns(1_000_000);
            machine.progress.due
        };
        let due = side.runtime.with_machine(id, set).expect("it is attached");
        // The application sleeps in `recv` and makes no call of the runtime. So the progress thread
        // must make the turn at `due`.
        assert!(times.recv().expect("its time comes") >= due.0);
    }
    let set = |machine: &mut Noting, _: &MemoryAccess<'_>, now: Instant| {
        machine.progress.due = now.after_ns(1_000_000);
    };
    side.runtime.stop();
    side.runtime.with_machine(id, set).expect("it is attached");
    let come = side.runtime.wait(Interest::News, None, || times.try_recv().ok());
    come.expect("not forked").expect("its time comes");
}

#[test]
fn a_sleeping_thread_is_woken_when_a_machine_requests_an_earlier_call() {
    let side = sleepy(true);
    let (machine, times) = Noting::new(None);
    let asked_for = Arc::clone(&machine.asked_for);
    side.runtime.attach_machine(machine).expect("it is attached");
    for _ in 0..20 {
        asked_for.store(1_000_000, Ordering::Relaxed);
        side.runtime.drive().expect("not forked");
        times.recv().expect("its time comes");
    }
}

#[test]
fn threads_waiting_for_events_get_those_of_a_machine() {
    let side = sleepy(true);
    let (machine, _) = Noting::new(None);
    let id = side.runtime.attach_machine(machine).expect("it is attached");
    let (sender, hears) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut looks = 0;
            // The thread polls at least once before it sleeps, and again after each wake-up.
            let heard = side.runtime.wait(Interest::News, None, || {
                looks += 1;
                sender.send(looks).expect("it is awaited");
                (looks == 100).then_some(())
            });
            heard.expect("not forked");
        });
        let set_news = |machine: &mut Noting, _: &MemoryAccess<'_>, _| machine.progress.news = true;
        while hears.recv().expect("it looks") < 100 {
            side.runtime.with_machine(id, set_news).expect("it is attached");
        }
    });
}

#[test]
fn a_machine_with_more_work_is_driven_again_at_once() {
    let side = Side::new(false);
    let (machine, _times) = Noting::new(None);
    let turns = Arc::clone(&machine.turns);
    let id = side.runtime.attach_machine(machine).expect("it is attached");
    let before = turns.load(Ordering::Relaxed);
    let add = |machine: &mut Noting, _: &MemoryAccess<'_>, _| machine.more = 3;
    side.runtime.with_machine(id, add).expect("it is attached");
    assert!(turns.load(Ordering::Relaxed) - before >= 4);
}

#[test]
fn machines_and_hooks_get_only_their_own_events_under_the_same_key() {
    let (runtime, _, hooks) = hooked(false);
    let pairs = [(); 3].map(|()| UnixStream::pair().expect("two sockets"));
    let mut heard = Vec::new();
    for (ours, _) in &pairs[..2] {
        let (machine, hears) = Noting::new(Some(ours.try_clone().expect("a descriptor")));
        runtime.attach_machine(machine).expect("it is attached");
        heard.push(hears);
    }
    heard.push(hooks);
    let watched = pairs[2].0.as_fd();
    runtime.watch_descriptor(watched, KEY, Readiness::READABLE).expect("it is watched");
    for (index, (_, theirs)) in pairs.iter().enumerate() {
        (&mut &*theirs).write_all(b"x").expect("there is room");
        let come = || {
            runtime.drive().expect("not forked");
            heard[index].try_recv().ok()
        };
        assert_eq!(std::iter::repeat_with(come).flatten().next(), Some(KEY));
        for (_, others) in heard.iter().enumerate().filter(|(other, _)| *other != index) {
            assert!(others.try_recv().is_err());
        }
    }
    assert!(runtime.unwatch_descriptor(watched));
}

#[test]
fn a_machine_detached_with_a_ready_descriptor_gets_its_event_when_reattached() {
    let side = Side::new(false);
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let (machine, heard) = Noting::new(Some(ours));
    let turns = Arc::clone(&machine.turns);
    let first = side.runtime.attach_machine(machine).expect("it is attached");
    // The machine may or may not read this byte before it is detached.
    (&theirs).write_all(b"x").expect("there is room");
    let back: Box<dyn Any> = side.runtime.detach_machine(first).expect("it is attached");
    let back: Box<Noting> = back.downcast().expect("it is the same");
    while heard.try_recv().is_ok() {}
    (&theirs).write_all(b"y").expect("there is room");
    let before = turns.load(Ordering::Relaxed);
    let watched = back.watched.as_ref().expect("it watches one");
    assert!(!side.runtime.unwatch_descriptor(watched.as_fd()), "the descriptor is still watched");
    for _ in 0..100 {
        side.runtime.drive().expect("not forked");
    }
    assert_eq!(turns.load(Ordering::Relaxed), before);
    assert!(heard.try_recv().is_err());
    let none = side.runtime.with_machine(first, |_: &mut Noting, _, _| ());
    assert!(matches!(none, Err(MachineError::NotThere)), "{none:?}");
    assert!(matches!(side.runtime.detach_machine(first), Err(MachineError::NotThere)));

    let second = side.runtime.attach_machine(back).expect("it is attached");
    assert_ne!(first, second);
    let wrong = side.runtime.with_machine(second, |_: &mut Stream, _, _| ());
    assert!(matches!(wrong, Err(MachineError::NotThere)), "{wrong:?}");
    let come = || {
        side.runtime.drive().expect("not forked");
        heard.try_recv().ok()
    };
    assert_eq!(std::iter::repeat_with(come).flatten().next(), Some(KEY));
}

#[test]
fn an_endpoint_accepts_sixteen_machines() {
    let side = Side::new(false);
    let attach = || side.runtime.attach_machine(Noting::new(None).0);
    let attached: Vec<_> = (0..16).map(|_| attach().expect("there is room")).collect();
    assert!(matches!(attach(), Err(MachineError::NoneLeft)));
    side.runtime.detach_machine(attached[3]).expect("it is attached");
    attach().expect("there is room");
}

//! Tests endpoints in forked children, and the notification of peers at the end of a process.

mod pair;

use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use delivery::Instant;
use engine::{Closed, Event};
use mem::{Buffer, MemoryAccess, Rights};
use pair::{Side, ask, connect, small_write};
use runtime::{Descriptors, Doorbell, Machine, Progress, Readiness, Runtime};

/// Creates two endpoints in the child and writes from the first to the second. Returns whether the
/// write succeeds.
fn serves_itself() -> bool {
    let (client, server) = (Side::new(true), Side::new(true));
    let connection = connect(&client, &server);
    let buffer = Buffer::new(64);
    let region =
        server.runtime.memory().register(server.domain, buffer.clone(), Rights::REMOTE_WRITE);
    let region = region.expect("it is registered");
    let write = small_write(region);
    let posted = client.runtime.post(connection, &client.queue, &write, Doorbell::Ring);
    posted.expect("it is posted");
    loop {
        client.runtime.drive().expect("not forked");
        if let Some(done) = client.queue.poll() {
            return done.result.is_ok() && buffer.load_u8(7) == 5;
        }
    }
}

/// Forks a child whose exit status is 0 if `work` returns true. A timer ends a child that hangs.
fn in_child(work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the allocator works in a child, and the child ends without the parent's exit
    // handlers.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: sets a timer of the process.
            unsafe { libc::alarm(60) };
            let is_true = work();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!is_true)) }
        }
        child => {
            assert!(child > 0, "no process could be made");
            child
        }
    }
}

/// Makes the tests of this file run one at a time. Otherwise a child of one test would inherit the
/// open resources of another test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status_of(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is writable until the call returns.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_child_opens_its_own_endpoints_whatever_the_parents_threads_do() {
    let _alone = alone();
    let has_ended = AtomicBool::new(false);
    let side = Side::new(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                side.runtime.control(|_, _, _| ()).expect("not forked");
            }
        });
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                drop(Side::new(false));
            }
        });
        for _ in 0..10 {
            assert_eq!(status_of(in_child(serves_itself)), 0);
        }
        has_ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_child_does_not_keep_the_addresses_of_its_parent_in_use() {
    let _alone = alone();
    let side = Side::new(false);
    // Also watch 100 descriptors that belong to no link.
    let others: Vec<_> = (0..100)
        .map(|key| {
            let other = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
            let watching = side.runtime.watch_descriptor(other.as_fd(), key, Readiness::READABLE);
            watching.expect("it is watched");
            other
        })
        .collect();
    let mut addresses = vec![address_of(&side.runtime)];
    addresses.extend(others.iter().map(|other| other.local_addr().expect("it is bound")));
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let child = in_child(|| {
        // The child shows that it runs, and then waits until the parent has tried to bind the
        // addresses again.
        (&theirs).write_all(b"x").is_ok() && (&theirs).read_exact(&mut [0]).is_ok()
    });
    (&ours).read_exact(&mut [0]).expect("the child runs");
    for other in &others {
        assert!(side.runtime.unwatch_descriptor(other.as_fd()));
    }
    drop((side, others));
    let again: Result<Vec<_>, _> = addresses.iter().map(UdpSocket::bind).collect();
    (&ours).write_all(b"x").expect("the child runs still");
    assert_eq!(status_of(child), 0);
    again.expect("the address is free when the endpoint is gone");
}

/// A protocol that sends a goodbye after a delay when it is closed.
struct Polite {
    stream: UnixStream,
    /// Time at which the goodbye is sent.
    due: Instant,
    is_closing: bool,
}

impl Polite {
    fn new(stream: UnixStream) -> Self {
        Self { stream, due: Instant::NEVER, is_closing: false }
    }
}

impl Machine for Polite {
    fn attached(&mut self, descriptors: Descriptors) {
        let watching = descriptors.watch(self.stream.as_fd(), 1, Readiness::READABLE);
        watching.expect("it is watched");
    }

    fn turn(&mut self, now: Instant, _memory: &MemoryAccess<'_>) -> Progress {
        if self.due <= now {
            self.stream.write_all(b"bye").expect("there is room");
            (self.due, self.is_closing) = (Instant::NEVER, false);
        }
        Progress { due: self.due, ..Progress::NONE }
    }

    fn on_descriptor(&mut self, _key: u64, _ready: Readiness) {}

    fn close(&mut self, now: Instant) {
        (self.due, self.is_closing) = (now.after_ns(1_000_000), true);
    }

    fn is_closing(&self) -> bool {
        self.is_closing
    }
}

#[test]
fn a_machine_can_notify_its_peers_when_the_process_exits() {
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let child = in_child(|| {
        let side = Side::new(false);
        side.runtime.attach_machine(Box::new(Polite::new(theirs))).expect("it is attached");
        // SAFETY: ends the process with the exit handlers of this library; drops nothing.
        unsafe { libc::exit(0) }
    });
    assert_eq!(status_of(child), 0);
    let mut heard = [0; 3];
    ours.set_nonblocking(true).expect("a socket");
    (&ours).read_exact(&mut heard).expect("the exit handler has written");
    assert_eq!(&heard, b"bye");
}

#[test]
fn a_child_does_not_keep_descriptors_watched_by_its_parent_open() {
    let _alone = alone();
    let (ours, theirs) = UnixStream::pair().expect("two sockets");
    let (wait, go) = UnixStream::pair().expect("two sockets");
    let side = Side::new(false);
    side.runtime.attach_machine(Box::new(Polite::new(theirs))).expect("it is attached");
    let child = in_child(|| (&wait).read_exact(&mut [0]).is_ok());
    drop(side);
    // The child still runs.
    assert_eq!((&ours).read(&mut [0]).expect("a stream"), 0);
    (&go).write_all(b"x").expect("the child waits");
    assert_eq!(status_of(child), 0);
}

#[test]
fn the_end_of_a_process_is_reported_to_its_peers() {
    let _alone = alone();
    let server = Side::new(false);
    let (_, peer) = server.runtime.link_addresses().expect("not forked")[0];
    server.runtime.control(|engine, _, _| engine.listen(0)).expect("not forked");
    let child = in_child(|| {
        let client = Side::new(true);
        let handle = ask(&client.runtime, client.domain, peer, &client.queue);
        let is_established = move |engine: &mut engine::Engine, _: &MemoryAccess<'_>, _| {
            engine.info(handle).is_some_and(|info| info.established)
        };
        while !client.runtime.control(is_established).expect("not forked") {}
        // SAFETY: ends the process with the exit handlers of this library; drops nothing.
        unsafe { libc::exit(0) }
    });
    let mut status = 0;
    let mut closed = None;
    let look = |closed: &mut Option<Closed>| {
        server.runtime.drive().expect("not forked");
        match server.next_event() {
            Some(Event::Requested { connection, .. }) => server.accept(connection),
            Some(Event::Closed { reason, .. }) => *closed = Some(reason),
            _ => {}
        }
    };
    // SAFETY: `status` is writable until the call returns.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        look(&mut closed);
    }
    assert_eq!(status, 0);
    // The child has ended, so all its datagrams have arrived. Process them.
    (0..100).for_each(|_| look(&mut closed));
    assert_eq!(closed, Some(Closed::ByPeer));
}

fn address_of(runtime: &Runtime) -> SocketAddr {
    let (_, address) = runtime.link_addresses().expect("not forked")[0];
    address.to_socket().expect("a UDP link")
}

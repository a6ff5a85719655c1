//! Models two threads in every interleaving: a thread that reads, writes or begins to watch, and
//! the thread inside the engine. Checks the readiness that the kernel reports for the program's
//! descriptor. To run the models:
//!
//! ```sh
//! ./x loom
//! ```
//!
//! With `--cfg loom_mutation` in RUSTFLAGS, a writer that found no room checks for room before it
//! sets `is_full`. With this fault, `a_writer_that_found_no_room_sees_new_room` must
//! fail.

use std::os::unix::net::UnixStream;

use loom::sync::Arc;
use loom::thread;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::*;
use crate::atomics::AtomicU64;

struct Shared {
    end: End,
    program: OwnedFd,
    /// Number of bytes that have arrived. In a model of a writer: number of bytes of room that
    /// became free.
    came: AtomicU64,
    /// Number of these bytes that the program has used.
    gone: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Self> {
        let (tcp, _peer) = UnixStream::pair().expect("a pair");
        let (program, library) = pair(tcp.as_fd()).expect("a pair");
        let end = End::default();
        end.install(library);
        Arc::new(Self { end, program, came: AtomicU64::new(0), gone: AtomicU64::new(0) })
    }

    fn has_some(&self) -> bool {
        self.came.load(Ordering::SeqCst) > self.gone.load(Ordering::SeqCst)
    }

    /// Does the same as `Stream::on_arrived`.
    fn arrive(&self) {
        self.come();
        self.end.on_arrived(|| self.has_some());
    }

    /// Adds a byte. Called by the thread that runs the engine.
    fn come(&self) {
        let came = self.came.load(Ordering::Relaxed);
        self.came.store(came + 1, Ordering::SeqCst);
    }

    /// Reads all bytes, like `Connection::receive`.
    fn drain(&self) {
        self.gone.store(self.came.load(Ordering::SeqCst), Ordering::SeqCst);
        self.end.on_read(self.program.as_fd(), || self.has_some());
    }

    fn is(&self, events: PollFlags) -> bool {
        let mut entries = [PollFd::new(self.program.as_fd(), events)];
        poll(&mut entries, PollTimeout::ZERO).is_ok_and(|count| count > 0)
    }
}

#[test]
fn a_program_that_begins_to_watch_sees_new_arrivals() {
    loom::model(|| {
        let shared = Shared::new();
        let program = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.end.watch();
                shared.end.on_arrived(|| shared.has_some());
            })
        };
        shared.arrive();
        program.join().expect("no panic");
        assert!(shared.is(PollFlags::POLLIN), "a byte has arrived, but the program sleeps forever");
    });
}

#[test]
fn a_writer_that_found_no_room_sees_new_room() {
    loom::model(|| {
        let shared = Shared::new();
        let program = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let fd = shared.program.as_fd();
                shared.end.on_full(fd, || shared.has_some());
            })
        };
        shared.come();
        shared.end.on_room();
        program.join().expect("no panic");
        assert!(shared.is(PollFlags::POLLOUT), "the ring has room, but the program sleeps forever");
    });
}

#[test]
fn a_program_that_reads_all_bytes_sees_the_next_arrival() {
    loom::model(|| {
        let shared = Shared::new();
        shared.end.watch();
        shared.arrive();
        let program = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drain())
        };
        shared.arrive();
        program.join().expect("no panic");
        let is_readable = shared.is(PollFlags::POLLIN);
        assert!(is_readable || !shared.has_some(), "the program sleeps forever");
        shared.drain();
        assert!(!shared.is(PollFlags::POLLIN), "the program wakes up without a reason");
    });
}

#[test]
fn an_arrival_after_a_read_raises_an_edge() {
    loom::model(|| {
        let shared = Shared::new();
        shared.end.watch_edges();
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a set");
        let edges = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 1);
        epoll.add(&shared.program, edges).expect("a descriptor of our own");
        let is_notified = || {
            let mut events = [EpollEvent::empty()];
            epoll.wait(&mut events, EpollTimeout::ZERO).expect("a set") > 0
        };
        shared.arrive();
        assert!(is_notified());
        let engine = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.arrive();
                shared.arrive();
            })
        };
        // After a short read, the program waits for the next edge.
        shared.drain();
        engine.join().expect("no panic");
        assert!(
            is_notified() || !shared.has_some(),
            "bytes have arrived, but the descriptor reports no edge"
        );
    });
}

//! The readiness that the kernel reports when a program polls the descriptor of a moved connection.
//!
//! The program's descriptor is one end of a Unix socket pair, and the library has the other end.
//! Through its end, the library makes the kernel report the state of the stream:
//!
//! - While the stream is readable, an unread byte is at the program's end.
//! - While the send ring is full, the socket pair is full.
//! - When the peer has ended its direction, the socket pair is shut down.
//! - When the connection is lost, the program's end is hung up.
//!
//! Therefore `epoll` (level-triggered, edge-triggered and one-shot), `poll` and `select` work in
//! the kernel.

#[cfg(all(test, loom))]
mod model;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, getsockopt, recv, send, setsockopt,
    shutdown, socketpair, sockopt,
};

use crate::atomics::{AtomicBool, Mutex, lock};
use crate::transport::non_blocking::is_non_blocking;

/// The events for which a stream is ready, with the meanings of `poll`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Readiness {
    /// `POLLIN`: a read would return at once.
    pub readable: bool,
    /// `POLLOUT`: a write would transfer some bytes at once.
    pub writable: bool,
    /// `POLLRDHUP`: the peer will send no more bytes.
    pub peer_ended: bool,
    /// `POLLHUP`: both sides have ended their directions.
    pub hung_up: bool,
    /// `POLLERR`: the connection was reset.
    pub error: bool,
}

/// The library's end of the socket pair. The program's descriptor is the other end.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The socket; `None` before the move, and after the stream was reset.
    socket: Mutex<Option<Arc<OwnedFd>>>,
    /// True if the program may wait for the descriptor in the kernel.
    is_watched: AtomicBool,
    /// True if the program uses edge-triggered waits (`EPOLLET`). In that case the library must
    /// report each arrival.
    reports_edges: AtomicBool,
    /// True if the socket pair is full, because the send ring was full.
    is_full: AtomicBool,
    inside: Mutex<Inside>,
}

/// The bytes that the library keeps in the socket pair.
#[derive(Debug, Default)]
struct Inside {
    /// Number of unread bytes at the program's end. They make this end readable.
    tokens: usize,
    /// Number of bytes in the socket pair that make the program's end unwritable.
    filling: usize,
    /// True if readiness is no longer reported, because the pair carries the bytes of the stream,
    /// or because the stream has ended.
    is_silent: bool,
    is_hung_up: bool,
    /// True if the program is closing its last descriptor number. The number may soon refer to
    /// another file.
    is_closing: bool,
}

/// Creates the socket pair for a stream. Returns the program's end and the library's end. The
/// program's end blocks if the TCP socket blocks. One byte stays unread in the library's end, so
/// that closing the library's end causes an error at the program's end.
pub(crate) fn pair(tcp: BorrowedFd<'_>) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (program, library) = socketpair(AddressFamily::Unix, SockType::Stream, None, flags)?;
    if !is_non_blocking(tcp) {
        fcntl(&program, FcntlArg::F_SETFL(OFlag::empty()))?;
    }
    // The buffer is so small that one or two more messages make the program's end unwritable.
    setsockopt(&program, sockopt::SndBuf, &LEAST_BYTES)?;
    send(program.as_raw_fd(), &[0; KEPT_BYTES], MsgFlags::MSG_NOSIGNAL)?;
    Ok((program, library))
}

impl End {
    /// Stores the library's end when the connection moves.
    pub(crate) fn install(&self, socket: OwnedFd) {
        *lock(&self.socket) = Some(Arc::new(socket));
    }

    /// Returns the library's end. Returns `None` before the move, and after the stream was reset.
    pub(crate) fn socket(&self) -> Option<Arc<OwnedFd>> {
        lock(&self.socket).clone()
    }

    /// Starts to report the stream's readiness to the kernel.
    pub(crate) fn watch(&self) {
        self.is_watched.store(true, Ordering::SeqCst);
    }

    /// Starts to report each arrival to the kernel.
    pub(crate) fn watch_edges(&self) {
        self.reports_edges.store(true, Ordering::SeqCst);
        self.watch();
    }

    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::SeqCst)
    }

    /// Makes the program's end readable after an arrival. Does nothing if the stream is not
    /// readable.
    pub(crate) fn on_arrived(&self, is_readable: impl FnOnce() -> bool) {
        if self.is_watched() {
            self.make_readable(is_readable);
        }
    }

    #[cold]
    fn make_readable(&self, is_readable: impl FnOnce() -> bool) {
        let Some(socket) = self.socket() else { return };
        let mut inside = lock(&self.inside);
        let is_new = inside.tokens == 0
            || (self.reports_edges.load(Ordering::Relaxed) && inside.tokens < TOKENS_MAX);
        // This check misses no arrival, because a thread that has read all bytes removes tokens
        // only under this lock.
        if is_new && !inside.is_silent && is_readable() {
            inside.tokens += send_some(socket.as_fd(), &[0]);
        }
    }

    /// Makes the program's end `program` unreadable after a read that left no bytes.
    #[inline]
    pub(crate) fn on_read(&self, program: BorrowedFd<'_>, is_readable: impl FnOnce() -> bool) {
        if self.is_watched() {
            self.make_unreadable(program, is_readable);
        }
    }

    fn make_unreadable(&self, program: BorrowedFd<'_>, is_readable: impl FnOnce() -> bool) {
        let mut inside = lock(&self.inside);
        if inside.tokens != 0 && inside.may_use_program() && !is_readable() {
            inside.take_tokens(program);
        }
    }

    /// Makes the program's end unwritable after a write that found no room. Does nothing if there
    /// is room again.
    #[cold]
    pub(crate) fn on_full(&self, program: BorrowedFd<'_>, has_room: impl FnOnce() -> bool) {
        let mut inside = lock(&self.inside);
        if !inside.may_use_program() || inside.filling != 0 {
            return;
        }
        // Set the flag before the check. Then either this thread sees the new room, or `on_room`
        // sees the flag.
        let has_room = if cfg!(loom_mutation) {
            let has_room = has_room();
            self.is_full.store(true, Ordering::SeqCst);
            has_room
        } else {
            self.is_full.store(true, Ordering::SeqCst);
            has_room()
        };
        if has_room {
            self.is_full.store(false, Ordering::SeqCst);
            return;
        }
        inside.filling += send_some(program, &[0; FILLING_BYTES]);
        // Send one more byte in a separate message. When the library empties the pair, it reads the
        // oldest bytes first, so that this last byte stays unread. The byte occupies only a small
        // buffer in the kernel, so it does not keep the program's end unwritable.
        inside.filling += send_some(program, &[0; KEPT_BYTES]);
    }

    /// Makes the program's end writable after the send ring has freed room.
    #[inline]
    pub(crate) fn on_room(&self) {
        if self.is_full.load(Ordering::SeqCst) {
            self.empty();
        }
    }

    #[cold]
    fn empty(&self) {
        let Some(socket) = self.socket() else { return };
        let mut inside = lock(&self.inside);
        self.is_full.store(false, Ordering::SeqCst);
        if !inside.is_silent {
            inside.take_filling(socket.as_fd());
        }
    }

    /// Reports the end of the peer's direction: the program's end stays readable, and a read there
    /// returns the end of the stream.
    pub(crate) fn on_end(&self) {
        let Some(socket) = self.socket() else { return };
        let inside = lock(&self.inside);
        if !inside.is_silent {
            // The pair may already be closed, so ignore errors.
            let _closed = shutdown(socket.as_raw_fd(), Shutdown::Write);
        }
    }

    /// Hangs up the program's end, because the stream has ended.
    pub(crate) fn hang_up(&self) {
        let Some(socket) = self.socket() else { return };
        let mut inside = lock(&self.inside);
        inside.is_silent = true;
        if !inside.is_hung_up {
            inside.is_hung_up = true;
            let _closed = shutdown(socket.as_raw_fd(), Shutdown::Both);
        }
    }

    /// Hangs up the program's end and causes an error there, because the stream was reset.
    pub(crate) fn reset(&self) {
        {
            let mut inside = lock(&self.inside);
            inside.is_silent = true;
            inside.is_hung_up |= self.socket().is_some();
        }
        // Because of the unread byte, closing the socket causes an error at the program's end.
        drop(lock(&self.socket).take());
    }

    /// Clears the error at the program's end `program`, so that the kernel does not report it a
    /// second time. Called after a call has returned the connection's error to the program.
    pub(crate) fn on_error_reported(program: BorrowedFd<'_>) {
        // Reading the error clears it.
        let _taken = getsockopt(&program, sockopt::SocketError);
    }

    /// Switches the pair to relaying: it then carries the bytes of the stream. Removes the bytes
    /// that report readiness, which requires a descriptor of the program's end. Returns false if
    /// the stream has ended.
    pub(crate) fn relay(&self, program: BorrowedFd<'_>) -> bool {
        let Some(socket) = self.socket() else { return false };
        let mut inside = lock(&self.inside);
        if inside.is_silent {
            return false;
        }
        inside.take_tokens(program);
        inside.filling += KEPT_BYTES;
        inside.take_filling(socket.as_fd());
        inside.is_silent = true;
        // Other processes now write to the program's end. So make its send buffer as large as that
        // of an ordinary socket.
        let _as_it_was = setsockopt(&program, sockopt::SndBuf, &RELAY_BYTES);
        true
    }

    /// Stops reading and writing at the program's last descriptor number, because the program is
    /// about to close it.
    pub(crate) fn on_closing(&self) {
        lock(&self.inside).is_closing = true;
    }

    /// Stops reporting readiness, because the TCP socket is about to replace the program's end.
    pub(crate) fn retire(&self) {
        lock(&self.inside).is_silent = true;
    }

    /// Wakes threads that sleep on the pair, after another descriptor has replaced the program's
    /// end in the descriptor table.
    pub(crate) fn wake(&self) {
        if let Some(socket) = self.socket() {
            send_some(socket.as_fd(), &[0]);
        }
    }

    /// Returns true if all copies of the program's end are closed, in all processes.
    pub(crate) fn is_abandoned(&self) -> bool {
        let Some(socket) = self.socket() else { return lock(&self.inside).is_hung_up };
        let mut entries = [PollFd::new(socket.as_fd(), PollFlags::empty())];
        let count = poll(&mut entries, PollTimeout::ZERO).unwrap_or(0);
        count > 0 && entries[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

impl Inside {
    /// Returns true if the library may read and write at the program's end to report readiness.
    const fn may_use_program(&self) -> bool {
        !self.is_silent && !self.is_closing
    }

    fn take_tokens(&mut self, program: BorrowedFd<'_>) {
        let mut bytes = [0; TOKENS_MAX];
        let count = self.tokens.min(TOKENS_MAX);
        self.tokens -= receive_some(program, &mut bytes[..count]);
    }

    fn take_filling(&mut self, library: BorrowedFd<'_>) {
        let mut bytes = [0; FILLING_BYTES];
        while self.filling > 0 {
            let count = self.filling.min(FILLING_BYTES);
            match receive_some(library, &mut bytes[..count]) {
                // The program has already read the bytes.
                0 => self.filling = 0,
                taken => self.filling -= taken,
            }
        }
    }
}

fn send_some(socket: BorrowedFd<'_>, bytes: &[u8]) -> usize {
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    send(socket.as_raw_fd(), bytes, flags).unwrap_or(0)
}

fn receive_some(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> usize {
    recv(socket.as_raw_fd(), bytes, MsgFlags::MSG_DONTWAIT).unwrap_or(0)
}

/// Maximum number of unread bytes (tokens) at the program's end. While a program has not yet
/// handled 128 arrivals, it needs no report of another arrival.
const TOKENS_MAX: usize = 128;

/// Size of the send buffer of the program's end, in bytes. The kernel doubles this value.
const LEAST_BYTES: usize = 4096;

/// Number of bytes that always stay unread in the library's end.
const KEPT_BYTES: usize = 1;

/// Size of the message that makes the program's end unwritable, in bytes. The kernel reports a Unix
/// socket as writable while at most a quarter of its send buffer is in use. This message uses more
/// than a quarter of the doubled [`LEAST_BYTES`].
const FILLING_BYTES: usize = 2048;

/// Size of the send buffer of the program's end in a relay, in bytes.
const RELAY_BYTES: usize = 256 * 1024;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

    use super::*;

    struct World {
        program: OwnedFd,
        end: End,
        readable: Cell<bool>,
    }

    impl World {
        fn new() -> Self {
            let (tcp, _peer) = std::os::unix::net::UnixStream::pair().expect("a pair");
            let (program, library) = pair(tcp.as_fd()).expect("a pair");
            let end = End::default();
            end.install(library);
            end.watch();
            Self { program, end, readable: Cell::new(false) }
        }

        fn arrive(&self) {
            self.readable.set(true);
            self.end.on_arrived(|| self.readable.get());
        }

        fn drain(&self) {
            self.readable.set(false);
            self.end.on_read(self.program.as_fd(), || self.readable.get());
        }

        fn polled(&self) -> PollFlags {
            let wanted = PollFlags::POLLIN | PollFlags::POLLOUT;
            let mut entries = [PollFd::new(self.program.as_fd(), wanted)];
            poll(&mut entries, PollTimeout::ZERO).expect("a poll");
            entries[0].revents().expect("known flags")
        }

        fn epoll(&self, flags: EpollFlags) -> Epoll {
            let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a set");
            set.add(&self.program, EpollEvent::new(flags, 1)).expect("added");
            set
        }
    }

    fn events(set: &Epoll) -> EpollFlags {
        let mut events = [EpollEvent::empty()];
        match set.wait(&mut events, EpollTimeout::ZERO).expect("a wait") {
            0 => EpollFlags::empty(),
            _ => events[0].events(),
        }
    }

    #[test]
    fn the_descriptor_is_readable_while_the_stream_is() {
        let world = World::new();
        assert_eq!(world.polled(), PollFlags::POLLOUT);
        world.arrive();
        world.arrive();
        assert_eq!(world.polled(), PollFlags::POLLIN | PollFlags::POLLOUT);
        world.end.on_read(world.program.as_fd(), || true);
        assert!(world.polled().contains(PollFlags::POLLIN), "something is left");
        world.drain();
        assert_eq!(world.polled(), PollFlags::POLLOUT);
    }

    /// A descriptor number that the program is about to close may soon belong to another
    /// connection. If a thread still read or wrote at that number, it would take or add bytes
    /// there.
    #[test]
    fn no_bytes_are_read_or_written_at_a_descriptor_that_is_about_to_be_closed() {
        let world = World::new();
        world.arrive();
        world.end.on_closing();
        world.drain();
        assert!(world.polled().contains(PollFlags::POLLIN), "the byte is there still");
        world.end.on_full(world.program.as_fd(), || false);
        assert!(world.polled().contains(PollFlags::POLLOUT));
    }

    #[test]
    fn the_descriptor_is_unwritable_while_the_send_ring_is_full() {
        let world = World::new();
        world.end.on_full(world.program.as_fd(), || true);
        assert_eq!(world.polled(), PollFlags::POLLOUT, "room was made meanwhile");
        for _ in 0..3 {
            world.end.on_full(world.program.as_fd(), || false);
            world.end.on_full(world.program.as_fd(), || false);
            assert_eq!(world.polled(), PollFlags::empty());
            world.end.on_room();
            assert_eq!(world.polled(), PollFlags::POLLOUT);
        }
    }

    #[test]
    fn level_triggered_sets_report_repeatedly() {
        let world = World::new();
        let set = world.epoll(EpollFlags::EPOLLIN);
        world.arrive();
        assert_eq!((events(&set), events(&set)), (EpollFlags::EPOLLIN, EpollFlags::EPOLLIN));
        world.drain();
        assert_eq!(events(&set), EpollFlags::empty());
    }

    #[test]
    fn edge_triggered_sets_report_each_arrival_once() {
        let world = World::new();
        world.end.watch_edges();
        let set = world.epoll(EpollFlags::EPOLLIN | EpollFlags::EPOLLET);
        for _ in 0..300 {
            world.arrive();
            assert_eq!(events(&set), EpollFlags::EPOLLIN);
            assert_eq!(events(&set), EpollFlags::empty());
            if world.end.inside.lock().expect("no panic").tokens > 100 {
                world.drain();
            }
        }
        world.drain();
        assert_eq!(world.polled(), PollFlags::POLLOUT);
    }

    #[test]
    fn edge_triggered_sets_report_new_room() {
        let world = World::new();
        let set = world.epoll(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET);
        assert_eq!(events(&set), EpollFlags::EPOLLOUT);
        world.end.on_full(world.program.as_fd(), || false);
        assert_eq!(events(&set), EpollFlags::empty());
        world.end.on_room();
        assert_eq!(events(&set), EpollFlags::EPOLLOUT);
        assert_eq!(events(&set), EpollFlags::empty());
    }

    #[test]
    fn rearmed_one_shot_sets_report_remaining_readiness() {
        let world = World::new();
        let set = world.epoll(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT);
        world.arrive();
        assert_eq!(events(&set), EpollFlags::EPOLLIN);
        world.arrive();
        assert_eq!(events(&set), EpollFlags::empty());
        let again = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        set.modify(&world.program, &mut EpollEvent::new(again, 1)).expect("modified");
        assert_eq!(events(&set), EpollFlags::EPOLLIN);
    }

    #[test]
    fn the_end_of_the_peer_stays_reported() {
        let world = World::new();
        let set = world.epoll(EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP);
        world.end.on_end();
        let both = EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        assert_eq!((events(&set), events(&set)), (both, both));
        assert!(world.polled().contains(PollFlags::POLLOUT), "this side may still write");
    }

    #[test]
    fn an_ended_stream_is_hung_up() {
        let world = World::new();
        world.end.hang_up();
        assert!(world.polled().contains(PollFlags::POLLHUP | PollFlags::POLLIN));
    }

    #[test]
    fn a_reset_stream_is_hung_up_and_reports_its_error_once() {
        let world = World::new();
        world.end.on_full(world.program.as_fd(), || false);
        world.end.on_room();
        world.end.reset();
        assert!(world.end.is_abandoned());
        assert!(
            world.polled().contains(PollFlags::POLLHUP | PollFlags::POLLIN | PollFlags::POLLERR)
        );
        End::on_error_reported(world.program.as_fd());
        assert!(world.polled().contains(PollFlags::POLLHUP | PollFlags::POLLIN));
        assert!(!world.polled().contains(PollFlags::POLLERR));
    }

    #[test]
    fn readiness_bytes_are_not_relayed() {
        let world = World::new();
        world.arrive();
        world.end.on_full(world.program.as_fd(), || false);
        assert!(world.end.relay(world.program.as_fd()));
        let library = world.end.socket().expect("it is there");
        for socket in [library.as_fd(), world.program.as_fd()] {
            assert_eq!(receive_some(socket, &mut [0; 10]), 0);
        }
    }

    #[test]
    fn the_last_close_is_detected() {
        let world = World::new();
        let other = world.program.try_clone().expect("a descriptor");
        let World { program, end, .. } = world;
        drop(program);
        assert!(!end.is_abandoned());
        drop(other);
        assert!(end.is_abandoned());
    }
}

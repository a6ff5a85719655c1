//! The calls that a program makes on one connection.

use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use delivery::Instant;
use nix::errno::Errno;
use nix::unistd::dup3;
use runtime::{Mark, Readiness as DescriptorReadiness};

use crate::calls::descriptor_table::DescriptorTable;
use crate::calls::expected::Expects;
use crate::calls::tcp::{Reading, Writing};
use crate::calls::waiting::Waits;
use crate::counters;
use crate::lock::lock;
use crate::migration::life::{Course, Life};
use crate::migration::machine::{Action, Event, Phase};
use crate::reasons::Reason;
use crate::settings::Role;
use crate::transport::held::HoldsBytes;
use crate::transport::non_blocking::{is_non_blocking, set_non_blocking};
use crate::transport::readiness::{End, Readiness, pair};
use crate::transport::state::{Bit, Direction};
use crate::transport::stream::{Stream, StreamParts};
use crate::transport::stream_doorbell::StreamDescriptor;
use crate::wire::SwitchMarker;

/// The route that the bytes of a connection take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// TCP, and perhaps the edge later. The library makes the program's calls, because the bytes
    /// may contain a switch marker.
    Undecided,
    /// The edge.
    Moved,
    /// TCP, permanently. The program's calls go to the kernel.
    Left(Reason),
}

/// Numbers of bytes queued in a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Queued {
    /// Bytes received but not yet read: `SIOCINQ`.
    pub received: u64,
    /// Bytes written but not yet acknowledged: `SIOCOUTQ`.
    pub unsent: u64,
}

/// A TCP connection of the program that may move or has moved.
pub struct Connection {
    token: u64,
    role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    descriptors: Arc<dyn DescriptorTable>,
    pub(crate) endpoint: Arc<dyn Waits>,
    life: Arc<Life>,
    began: counters::Beginning,
    /// The program is about to close the connection. Its descriptor number may soon name another
    /// file.
    is_closing: AtomicBool,
    /// Raised when a waiting thread of the program should check the connection again.
    pub(crate) mark: Arc<Mark>,
    /// The stream, created when the connection begins to move.
    stream: OnceLock<Arc<Stream>>,
    /// The way in which TCP is read while the route is undecided.
    pub(crate) reading: Mutex<Reading>,
    /// The way in which TCP is written while the route is undecided.
    pub(crate) writing: Mutex<Writing>,
    options: Mutex<Options>,
    /// Sends the offer of this side to the peer.
    offer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The connection table knows that bytes have gone over the connection.
    has_reported_bytes: AtomicBool,
}

/// Options that the program has set, kept for the stream.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    no_delay: bool,
    cork: bool,
    is_watched: bool,
    reports_edges: bool,
    is_relayed: bool,
}

impl Connection {
    pub(crate) fn new(
        token: u64,
        role: Role,
        local: SocketAddr,
        peer: SocketAddr,
        descriptors: Arc<dyn DescriptorTable>,
        endpoint: Arc<dyn Waits>,
    ) -> Arc<Self> {
        counters::note_begun();
        Arc::new(Self {
            token,
            role,
            local,
            peer,
            descriptors,
            endpoint,
            life: Arc::new(Life::new(role)),
            began: counters::Beginning::now(),
            is_closing: AtomicBool::new(false),
            mark: Arc::new(Mark::new()),
            stream: OnceLock::new(),
            reading: Mutex::new(Reading::Plain),
            writing: Mutex::default(),
            options: Mutex::default(),
            offer: OnceLock::new(),
            has_reported_bytes: AtomicBool::new(false),
        })
    }

    /// Returns the token by which [`DescriptorTable`] knows the connection.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Returns whether this end connected or accepted.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns this side's address in TCP.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's address in TCP.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Stores the function that sends the offer of this connection. Later calls have no effect.
    pub(crate) fn offered(&self, send: impl Fn() + Send + Sync + 'static) {
        self.offer.get_or_init(|| Box::new(send));
    }

    //= sockets-protocol.md: offer.3
    /// Sends the offer to the peer's rendezvous socket, unless another process shares the
    /// connection.
    pub(crate) fn send_offer(&self) {
        if let Some(send) = self.offer.get().filter(|_| !self.descriptors.is_shared(self.token)) {
            send();
        }
    }

    /// Returns whether bytes went over the connection while it was undecided.
    pub(crate) fn has_bytes(&self) -> bool {
        self.has_reported_bytes.load(Ordering::SeqCst)
    }

    //= sockets-protocol.md: offer.3, offer.4
    /// Records that bytes went over the connection, in either direction.
    #[inline]
    pub(crate) fn on_bytes(&self, are_from_peer: bool) {
        if self.role == Role::Accepting && !self.has_reported_bytes.load(Ordering::Relaxed) {
            self.on_first_bytes(are_from_peer);
        }
    }

    #[cold]
    fn on_first_bytes(&self, are_from_peer: bool) {
        if !self.has_reported_bytes.swap(true, Ordering::SeqCst) {
            self.endpoint.on_first_bytes(self.token);
        }
        // The peer's program has begun to use the connection, so the peer's rendezvous socket
        // should be open.
        if are_from_peer {
            self.send_offer();
        }
    }

    /// Leaves the connection to TCP, if it has not begun to move.
    pub(crate) fn leave(&self, reason: Reason) {
        let _none_of_the_table = self.on(Event::Stay(reason), Instant(0));
    }

    /// Keeps the connection on TCP, if it has not begun to move. Called when the program needs
    /// something that only TCP has, or passes the connection to another process. Returns false if
    /// the move has begun.
    pub fn stay(&self, reason: Reason) -> bool {
        self.leave(reason);
        self.is_left()
    }

    /// Returns the phase of the move.
    pub(crate) fn phase(&self) -> Phase {
        self.life.phase()
    }

    /// Returns when [`Event::Time`] is due.
    pub(crate) fn due(&self) -> Instant {
        self.life.due()
    }

    /// Handles an event. Performs the actions that concern only this connection, and returns the
    /// actions that the connection table must perform.
    pub(crate) fn on(&self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = self.life.on(event, now);
        actions.retain(|action| match action {
            Action::Await => {
                lock(&self.reading).await_marker();
                false
            }
            Action::Watch => {
                lock(&self.reading).watch();
                false
            }
            Action::ShutTcp => {
                self.shut_tcp();
                false
            }
            Action::Leave(reason) => {
                self.on_left(*reason);
                false
            }
            _ => true,
        });
        actions
    }

    /// Performs the actions `Leave` and `Watch` of those returned by [`Connection::on`]. The kernel
    /// has already shut TCP down or closed it.
    fn leave_if(&self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Leave(reason) => self.on_left(*reason),
                Action::Watch => lock(&self.reading).watch(),
                _ => {}
            }
        }
    }

    /// Returns whether writes of the program must wait until the switch marker is in TCP.
    pub(crate) fn is_held(&self) -> bool {
        self.life.course() == Course::TcpHeld
    }

    /// Returns whether the program has shut down writing while the route was undecided.
    pub(crate) fn writes_no_more(&self) -> bool {
        self.life.writes_no_more()
    }

    /// Shuts TCP down in the directions that the program has shut. The program's call has already
    /// returned.
    fn shut_tcp(&self) {
        let Some(how) = self.life.shut() else { return };
        if let Some(stream) = self.stream.get() {
            let _closed = shutdown_by_kernel(stream.socket().as_fd(), how);
        } else if let Some(tcp) = self.descriptors.duplicate(self.token) {
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
    }

    /// Leaves the connection to the kernel, for this reason.
    fn on_left(&self, reason: Reason) {
        // Pending calls may now read all bytes that TCP has.
        *lock(&self.reading) = Reading::Plain;
        if let Some(stream) = self.stream.get() {
            // The socket may be watched, because a switch marker waited for room in TCP.
            stream.doorbell.unwatch(stream.socket().as_fd());
            if self.life.is_closed() && stream.state.set(Bit::Released) {
                stream.doorbell.mark();
            }
        }
        self.mark.raise();
        self.descriptors.decided(self.token);
        self.endpoint.on_left(self.token);
        counters::note_decided();
        counters::note_left(self.role, self.local, self.peer, reason);
    }

    /// Creates the stream of the connection. From now on only this crate reads TCP, and searches it
    /// for the switch marker.
    pub(crate) fn make_stream(&self, parts: StreamParts) -> Result<Arc<Stream>, Reason> {
        let expected = parts.expected;
        let tcp = self.descriptors.duplicate(self.token).ok_or(Reason::Closed)?;
        let mut reading = lock(&self.reading);
        let stream = Stream::new(parts, tcp, Arc::clone(&self.mark), Arc::clone(&self.life));
        if self.stream.set(Arc::clone(&stream)).is_err() {
            return Err(Reason::Misbehaved);
        }
        *reading = Reading::Expecting(expected, Expects::new());
        drop(reading);
        let options = *lock(&self.options);
        stream.sending.set_no_delay(options.no_delay);
        stream.sending.set_corked(options.cork);
        Ok(stream)
    }

    //= sockets-protocol.md: join.6
    /// Searches TCP for the peer's switch marker after the group is lost, while the program uses
    /// TCP. Returns the event for the connection. Called by the engine, which never waits for a
    /// thread of the program.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let stream = self.stream.get().filter(|_| self.phase() == Phase::Unanswered)?;
        match self.reading.try_lock() {
            Ok(_reading) => stream.look_for_marker(),
            Err(_in_call) => Some(Event::MarkerEarly),
        }
    }

    /// Returns whether this side echoes the switch marker that it expects, because it does not know
    /// the one that the peer expects.
    pub(crate) fn is_echoing(&self) -> bool {
        self.life.is_echoing()
    }

    /// Tries to write a switch marker into the TCP connection. On success the stream
    /// [opens](Stream::open) and the connection has moved. Without `peer_ring` the connection
    /// returns to TCP at once. Returns the actions that the connection table must perform.
    pub(crate) fn write_marker(
        &self,
        marker: SwitchMarker,
        peer_ring: Option<u32>,
        now: Instant,
    ) -> Vec<Action> {
        let Some(stream) = self.stream.get().filter(|_| self.phase() == Phase::Switching) else {
            return Vec::new();
        };
        // The engine never waits for a thread of the program.
        let locks = (self.reading.try_lock(), self.writing.try_lock());
        let (Ok(mut reading), Ok(mut writing)) = locks else {
            drop(locks);
            return self.on(Event::InCall, now);
        };
        let program = match self.try_write_marker(stream, &mut writing, marker) {
            Ok(program) => program,
            Err(event) => {
                drop((reading, writing));
                return self.on(event, now);
            }
        };
        // Opening takes the bytes out of TCP before any thread reads the stream.
        stream.open(peer_ring.filter(|_| !self.life.has_ended_tcp()));
        let actions = self.on(Event::MarkerWritten, now);
        // If the connection is relayed, the relay needs a descriptor of the program's end of the
        // pair.
        let kept = program.try_clone().ok();
        counters::note_decided();
        counters::note_moved(self.role, self.local, self.peer, self.began);
        // If the program has closed the connection, or its process ends, there is no descriptor to
        // replace.
        let is_there = !self.life.is_closed() && self.descriptors.put(self.token, program);
        // From now on the stream removes the switch marker from the bytes, so the kernel does not
        // report it at the program's descriptor.
        *reading = Reading::Plain;
        if let Some(how) = self.life.shut() {
            // A stream that has just opened has not returned to TCP, so this shuts the stream.
            let _on_the_group = Self::shut_stream(stream, how);
        }
        drop((reading, writing));
        self.mark.raise();
        self.on_switched(stream, kept.filter(|_| is_there), is_there);
        actions
    }

    /// Writes the switch marker. Returns the program's end of the socket pair that replaces the TCP
    /// socket, or the event that says why the marker is not written.
    fn try_write_marker(
        &self,
        stream: &Arc<Stream>,
        writing: &mut Writing,
        marker: SwitchMarker,
    ) -> Result<OwnedFd, Event> {
        // Wait for the peer's switch marker: it proves that the process that joined owns the TCP
        // connection.
        if self.role == Role::Connecting && !stream.is_marker_there() {
            // The marker cannot come if the program has closed the connection without reading: TCP
            // then resets it.
            let is_unread = self.life.is_closed() && stream.tcp.has_unread();
            return Err(if is_unread || stream.is_marker_lost() {
                Event::MarkerFails(Reason::Closed)
            } else {
                Event::MarkerEarly
            });
        }
        let no_descriptors = Event::MarkerFails(Reason::Descriptors);
        let tcp = stream.socket();
        let (program, library) = pair(tcp.as_fd()).map_err(|_none| no_descriptors)?;
        // Use a high descriptor number for the library's end, because programs do not use those. If
        // the program has closed its own descriptors, its bytes still go to the peer, followed by
        // the end.
        let high = match self.descriptors.duplicate(self.token) {
            None => library,
            Some(mut high) => {
                dup3(&library, &mut high, nix::fcntl::OFlag::O_CLOEXEC)
                    .map_err(|_none| no_descriptors)?;
                high
            }
        };
        //= sockets-protocol.md: join.7
        // The peer accepts the end of TCP in place of the switch marker.
        let has_ended = self.life.has_ended_tcp();
        match if has_ended { Ok(true) } else { writing.write_marker(tcp.as_fd(), marker) } {
            Ok(true) => {}
            // The peer waits for the switch marker, so nothing else may be written before it. TCP
            // is full, so the program could not write either.
            Ok(false) => {
                let wanted = DescriptorReadiness { readable: false, writable: true };
                stream
                    .doorbell
                    .watch(StreamDescriptor::Tcp, tcp.as_fd(), wanted)
                    .map_err(|_none| no_descriptors)?;
                return Err(Event::MarkerWaits { has_begun: writing.has_begun() });
            }
            Err(_) => return Err(Event::MarkerFails(Reason::Closed)),
        }
        stream.end.install(high);
        Ok(program)
    }

    /// Starts watching the library's end of the pair, and applies the options that the program had
    /// set. If `is_there` is false, the program has no descriptor of the pair.
    fn on_switched(&self, stream: &Arc<Stream>, program: Option<OwnedFd>, is_there: bool) {
        // The library's end of a broken stream is hung up, which would look as if the program had
        // closed its last descriptor.
        if let Some(end) = stream.end.socket().filter(|_| !stream.state.is_broken()) {
            let wanted = DescriptorReadiness::default();
            if stream.doorbell.watch(StreamDescriptor::End, end.as_fd(), wanted).is_err() {
                stream.reset();
            }
        }
        // A thread that sets one of these options later sees the new route and applies the option
        // itself.
        let options = *lock(&self.options);
        if options.reports_edges {
            stream.end.watch_edges();
        } else if options.is_watched {
            stream.end.watch();
        }
        match program {
            Some(program) if options.is_relayed => stream.start_relay(program.as_fd()),
            _ if is_there => stream.notify_arrival(),
            _ => drop(stream.abandon()),
        }
    }

    /// Rings the doorbell when the peer's switch marker has been seen in TCP, because the answer of
    /// this side may wait for the marker. The caller must hold no locks.
    pub(crate) fn on_marker_seen(&self) {
        if let Some(stream) = self.stream.get() {
            stream.doorbell.ring();
        }
    }

    /// Returns the stream of a moved connection, `None` for any other.
    #[inline]
    pub(crate) fn moved(&self) -> Option<&Arc<Stream>> {
        match self.life.course() {
            Course::Edge | Course::Returning | Course::GoingHome => self.stream.get(),
            Course::Tcp | Course::TcpHeld | Course::Kernel(_) => None,
        }
    }

    /// Shuts down directions, as `shutdown` does.
    ///
    /// # Errors
    /// The errors of `shutdown`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        let Some(stream) = self.moved().filter(|stream| !stream.relay.is_on()) else {
            return self.shutdown_tcp(fd, how);
        };
        if stream.state.is_broken() {
            return Err(Errno::ENOTCONN);
        }
        let result = Self::shut_stream(stream, how);
        stream.doorbell.ring();
        self.endpoint.raise(&self.mark);
        result
    }

    /// Shuts down directions of a connection that has not moved or is relayed.
    fn shutdown_tcp(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        // The lock keeps a switch marker from being written during this call; none can be written
        // after the end of TCP.
        let writing = lock(&self.writing);
        if self.moved().is_some_and(|stream| !stream.relay.is_on()) {
            drop(writing);
            return self.shutdown(fd, how);
        }
        let actions = self.life.on_untimed(Event::Shut(how.into()));
        let is_deferred = self.route() == Route::Undecided && actions.is_empty();
        let result = if is_deferred { Ok(()) } else { shutdown_by_kernel(fd, how) };
        drop(writing);
        self.leave_if(&actions);
        result
    }

    /// Shuts down directions of a stream. If the stream has meanwhile returned to TCP, shuts them
    /// down in TCP.
    fn shut_stream(stream: &Stream, how: Shutdown) -> Result<(), Errno> {
        if how != Shutdown::Read {
            // `come_home` locks `writers`, too, so it sees all bytes written before.
            let _writers = lock(&stream.writers);
            if stream.state.shut(Direction::Write) {
                stream.sending.push();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Write)?;
            }
        }
        if how != Shutdown::Write {
            if stream.state.shut(Direction::Read) {
                // As in TCP, reads of this side then return the end.
                stream.end.on_end();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Read)?;
            }
        }
        Ok(())
    }

    /// Returns the route that the bytes take.
    #[inline]
    pub fn route(&self) -> Route {
        match self.life.course() {
            Course::Tcp | Course::TcpHeld => Route::Undecided,
            Course::Edge | Course::Returning | Course::GoingHome => Route::Moved,
            Course::Kernel(reason) => Route::Left(reason),
        }
    }

    /// Returns whether the program's calls go to the kernel while the library relays the bytes.
    #[inline]
    pub fn is_relayed(&self) -> bool {
        self.moved().is_some_and(|stream| stream.relay.is_on())
    }

    /// Relays bytes between the program's descriptor and the stream, so that the kernel can handle
    /// the program's calls. This is needed if another process is to use the descriptor, or a
    /// function that this library does not interpose. `fd` is any descriptor of the connection. If
    /// the connection has not moved yet, the relay starts when it moves.
    pub fn relay(&self, fd: BorrowedFd<'_>) {
        lock(&self.options).is_relayed = true;
        // The moving thread sets the route before it reads this option.
        if let Some(stream) = self.moved() {
            stream.start_relay(fd);
            stream.doorbell.ring();
            self.endpoint.raise(&self.mark);
        }
    }

    /// Returns a moved connection to TCP, and waits at most `limit` for that. The program's
    /// descriptor numbers then name the TCP socket, and the kernel handles all calls. Returns false
    /// if the connection cannot return, or has not returned within the limit; it may return later.
    pub fn go_home(&self, limit: Duration) -> bool {
        let Some(stream) = self.moved() else { return self.is_left() };
        if !stream.begin_home() {
            return self.is_left();
        }
        stream.doorbell.ring();
        let mut ready = || self.life.course() != Course::GoingHome;
        let _timed_out = self.endpoint.wait_beside(&self.mark, &mut [], Some(limit), &mut ready);
        self.is_left()
    }

    /// Returns whether the return to TCP has begun and is not complete.
    pub fn is_going_home(&self) -> bool {
        self.life.course() == Course::GoingHome
    }

    /// Completes the return to TCP: replaces the program's descriptors by the TCP socket, which has
    /// all bytes of the stream. Returns false if a thread of the program is within a call or no
    /// descriptor can be allocated; the caller tries again. Called by the engine.
    pub(crate) fn come_home(&self) -> bool {
        let Some(stream) = self.moved() else { return true };
        let locks = (stream.writers.try_lock(), stream.readers.try_lock(), self.reading.try_lock());
        let (Ok(_writers), Ok(_readers), Ok(_reading)) = locks else { return false };
        let tcp = stream.socket();
        let Ok(own) = tcp.try_clone() else { return false };
        for direction in stream.state.come_home() {
            let how = match direction {
                Direction::Write => Shutdown::Write,
                Direction::Read => Shutdown::Read,
            };
            // The peer may have closed the TCP connection, so errors are ignored.
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
        if let Some(end) = self.descriptors.duplicate(self.token) {
            set_non_blocking(tcp.as_fd(), is_non_blocking(end.as_fd()));
        }
        // Retire the pair first: once the numbers name the TCP socket, the library must not read or
        // write there.
        stream.end.retire();
        // If the program has closed the connection, there is no descriptor to replace.
        let is_there = !self.life.is_closed() && self.descriptors.put(self.token, own);
        let _none = self.life.on_untimed(Event::Arrived);
        stream.on_home();
        self.descriptors.decided(self.token);
        if is_there {
            counters::note_home(self.role, self.local, self.peer);
        }
        self.mark.raise();
        true
    }

    pub(crate) fn is_left(&self) -> bool {
        matches!(self.life.course(), Course::Kernel(_))
    }

    /// Returns the events for which a moved connection is ready.
    pub fn readiness(&self) -> Readiness {
        self.moved().map(|stream| stream.readiness()).unwrap_or_default()
    }

    /// Keeps the kernel informed of the stream's readiness from now on. Called before the program
    /// waits for the descriptor in the kernel.
    pub fn watch(&self) {
        self.watch_as(false);
    }

    /// Does what [`Connection::watch`] does, for edge-triggered sets (`EPOLLET`), which report each arrival.
    pub fn watch_edges(&self) {
        self.watch_as(true);
    }

    fn watch_as(&self, reports_edges: bool) {
        {
            let mut options = lock(&self.options);
            options.is_watched = true;
            options.reports_edges |= reports_edges;
        }
        let Some(stream) = self.moved() else { return };
        if reports_edges {
            stream.end.watch_edges();
        } else if !stream.end.is_watched() {
            stream.end.watch();
        } else {
            return;
        }
        stream.end.on_arrived(|| stream.is_readable());
    }

    /// Returns the numbers of bytes queued in the stream; 0 if the connection has not moved.
    pub fn queued(&self) -> Queued {
        self.moved().map_or_else(Queued::default, |stream| Queued {
            received: stream.received(),
            unsent: stream.sending.unacknowledged(),
        })
    }

    /// Returns the pending error of a moved connection, as `SO_ERROR` does, and clears it.
    pub fn take_error(&self, fd: BorrowedFd<'_>) -> Option<Errno> {
        let error = self.moved().and_then(|stream| stream.take_error());
        error.inspect(|_| End::on_error_reported(fd))
    }

    /// Sets `TCP_NODELAY`.
    pub fn set_no_delay(&self, on: bool) {
        lock(&self.options).no_delay = on;
        if let Some(stream) = self.stream.get() {
            stream.sending.set_no_delay(on);
            if on && self.moved().is_some() {
                stream.push();
            }
        }
    }

    /// Sets `TCP_CORK`.
    pub fn set_cork(&self, on: bool) {
        lock(&self.options).cork = on;
        if let Some(stream) = self.stream.get() {
            stream.sending.set_corked(on);
            if !on && self.moved().is_some() {
                stream.push();
            }
        }
    }

    /// Returns the TCP socket of a moved connection, on which queries for addresses and options are
    /// made.
    pub fn tcp(&self) -> Option<Arc<OwnedFd>> {
        self.moved().map(|stream| stream.socket())
    }

    /// Handles readiness of the library's end of the pair. If the program has closed its last
    /// descriptor by a call that the library does not see, reports that to the descriptor table,
    /// because the numbers may name other files by now.
    pub(crate) fn on_end_ready(&self) {
        if self.stream.get().is_some_and(|stream| stream.state.has(Bit::Released)) {
            self.descriptors.closed(self.token);
        }
    }

    /// Ends the connection with its process, as if the program had closed its descriptors. A
    /// connection that has not begun to move stays on TCP. A connection that is moving completes
    /// the move, because the peer may have moved its direction.
    pub(crate) fn end(&self) {
        {
            // The thread that moves the connection holds this lock, too.
            let _reading = lock(&self.reading);
            let _none = self.life.on_untimed(Event::ProcessEnds);
        }
        if let Some(stream) = self.moved() {
            stream.abandon();
        }
        if let Some(stream) = self.stream.get() {
            stream.doorbell.ring();
        }
    }

    /// Returns whether the process can end without losing bytes of the connection.
    pub(crate) fn is_out(&self) -> bool {
        match self.moved() {
            Some(stream) => stream.is_out(),
            None => !matches!(self.phase(), Phase::Joining | Phase::Switching),
        }
    }

    /// See [`Stream::end_tcp`].
    pub(crate) fn end_tcp(&self) {
        if let Some(stream) = self.moved() {
            stream.end_tcp();
        }
    }

    /// Prepares for the close of the program's last descriptor of the connection. Pending calls of
    /// other threads fail with `EBADF`, because the number may soon name another file.
    pub fn closing(&self) {
        {
            // Calls check the flag under these locks before they use the number.
            let _locks = (lock(&self.reading), lock(&self.writing));
            self.is_closing.store(true, Ordering::SeqCst);
        }
        if let Some(stream) = self.moved() {
            stream.end.on_closing();
        }
        self.endpoint.raise(&self.mark);
    }

    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Ends the connection in this process, after the program has closed its last descriptor. Bytes
    /// that the program has written still go to the peer. If `SO_LINGER` asks for it, waits until
    /// the peer has them.
    pub fn released(&self) {
        let actions = {
            // The thread that moves the connection holds this lock, too. It either sees the close,
            // or has created the stream found below.
            let _reading = lock(&self.reading);
            self.life.on_untimed(Event::Closed)
        };
        self.leave_if(&actions);
        let Some(stream) = self.moved() else {
            if let Some(stream) = self.stream.get() {
                // The peer may have moved its direction. This side's end is sent once that is
                // decided.
                stream.doorbell.ring();
            }
            return;
        };
        // If other processes still have descriptors, the library's end is notified when they have
        // closed them.
        if !stream.end.is_abandoned() || stream.has_more_to_relay() {
            return;
        }
        stream.unwatch_end();
        let is_ending = stream.abandon();
        stream.doorbell.ring();
        let linger = stream.linger().filter(|linger| linger.l_onoff != 0 && linger.l_linger > 0);
        if let Some(linger) = linger.filter(|_| is_ending) {
            let limit = Duration::from_secs(linger.l_linger as u64);
            let mut ready = || stream.state.is_broken() || stream.state.has(Bit::EndAcknowledged);
            let _closed = self.endpoint.wait_beside(&self.mark, &mut [], Some(limit), &mut ready);
        }
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("token", &self.token)
            .field("role", &self.role)
            .field("route", &self.route())
            .finish_non_exhaustive()
    }
}

/// Passes on the result of a call on a moved connection. Marks an error as reported, so that the
/// kernel does not report it again.
#[inline]
pub(super) fn returned(fd: BorrowedFd<'_>, result: Result<usize, Errno>) -> Result<usize, Errno> {
    result.inspect_err(|error| {
        if *error != Errno::EAGAIN {
            End::on_error_reported(fd);
        }
    })
}

fn shutdown_by_kernel(fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
    use nix::sys::socket::Shutdown as How;
    let how = match how {
        Shutdown::Read => How::Read,
        Shutdown::Write => How::Write,
        Shutdown::Both => How::Both,
    };
    nix::sys::socket::shutdown(fd.as_raw_fd(), how)
}

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
    /// TCP, and perhaps the edge later. The library makes the kernel calls for the program, because
    /// the bytes may contain a switch marker, which the program must not see.
    Undecided,
    /// The edge. The library handles the program's calls.
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

/// A TCP connection of the program that is undecided or has moved.
pub struct Connection {
    token: u64,
    role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    descriptors: Arc<dyn DescriptorTable>,
    pub(crate) endpoint: Arc<dyn Waits>,
    life: Arc<Life>,
    began: counters::Beginning,
    /// True from the moment at which the program begins to close the connection. From then on, the
    /// library does not use the descriptor number, because the number may soon refer to another
    /// file.
    is_closing: AtomicBool,
    /// Raised when a waiting thread of the program must check the connection again.
    pub(crate) mark: Arc<Mark>,
    /// The stream, created when the connection begins to move.
    stream: OnceLock<Arc<Stream>>,
    /// The mode in which the library reads TCP while the route is undecided.
    pub(crate) reading: Mutex<Reading>,
    /// The state of writes to TCP while the route is undecided.
    pub(crate) writing: Mutex<Writing>,
    options: Mutex<Options>,
    /// Sends the offer of this side to the peer.
    offer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// True if the connection table knows that the connection has carried bytes.
    has_reported_bytes: AtomicBool,
}

/// Socket options that the program has set. The library applies them to the stream when the
/// connection moves.
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

    /// Returns the token that identifies the connection in calls of [`DescriptorTable`].
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Returns the role of this end: connecting or accepting.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns this side's TCP address and port.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's TCP address and port.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Stores the function that sends the offer of this connection. Later calls have no effect.
    pub(crate) fn offered(&self, send: impl Fn() + Send + Sync + 'static) {
        self.offer.get_or_init(|| Box::new(send));
    }

    //= sockets-protocol.md: offer.3
    /// Sends the offer to the peer's rendezvous socket. Does nothing while another process shares
    /// the socket of the connection.
    pub(crate) fn send_offer(&self) {
        if let Some(send) = self.offer.get().filter(|_| !self.descriptors.is_shared(self.token)) {
            send();
        }
    }

    /// Returns true if the connection carried bytes while it was undecided.
    pub(crate) fn has_bytes(&self) -> bool {
        self.has_reported_bytes.load(Ordering::SeqCst)
    }

    //= sockets-protocol.md: offer.3, offer.4
    /// Records that the connection has carried bytes, in either direction.
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
        // The peer's program has used the connection, so the peer's rendezvous socket is probably
        // open.
        if are_from_peer {
            self.send_offer();
        }
    }

    /// Leaves the connection to TCP. Does nothing if the move has begun.
    pub(crate) fn leave(&self, reason: Reason) {
        let _none_of_the_table = self.on(Event::Stay(reason), Instant(0));
    }

    /// Leaves the connection to TCP, because the program needs a feature that only TCP has, or
    /// passes the connection to another process. Returns false and changes nothing if the move has
    /// begun.
    pub fn stay(&self, reason: Reason) -> bool {
        self.leave(reason);
        self.is_left()
    }

    /// Returns the phase of the move.
    pub(crate) fn phase(&self) -> Phase {
        self.life.phase()
    }

    /// Returns the time at which [`Event::Time`] is due.
    pub(crate) fn due(&self) -> Instant {
        self.life.due()
    }

    /// Handles an event. Performs the actions that concern only this connection. Returns the other
    /// actions, which the connection table must perform.
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

    /// Performs the actions `Leave` and `Watch` if [`Connection::on`] returned them, and skips all
    /// other actions. The kernel has already shut TCP down or closed the socket, so the other
    /// actions would have no effect.
    fn leave_if(&self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Leave(reason) => self.on_left(*reason),
                Action::Watch => lock(&self.reading).watch(),
                _ => {}
            }
        }
    }

    /// Returns true if the program's writes must wait until the switch marker is in TCP.
    pub(crate) fn is_held(&self) -> bool {
        self.life.course() == Course::TcpHeld
    }

    /// Returns true if the program shut down writing while the route was undecided.
    pub(crate) fn writes_no_more(&self) -> bool {
        self.life.writes_no_more()
    }

    /// Shuts TCP down in the directions that the program shut down during the move. At that time,
    /// the library only recorded the shutdown and returned to the program.
    fn shut_tcp(&self) {
        let Some(how) = self.life.shut() else { return };
        if let Some(stream) = self.stream.get() {
            let _closed = shutdown_by_kernel(stream.socket().as_fd(), how);
        } else if let Some(tcp) = self.descriptors.duplicate(self.token) {
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
    }

    /// Leaves the connection to the kernel, and counts it under `reason`.
    fn on_left(&self, reason: Reason) {
        // Pending calls may now read every byte that TCP has.
        *lock(&self.reading) = Reading::Plain;
        if let Some(stream) = self.stream.get() {
            // The runtime may still be watching the socket, because a switch marker waited for room
            // in TCP.
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

    /// Creates the stream of the connection. After this call the library reads TCP for the program,
    /// and searches the bytes for the switch marker.
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
    /// Searches TCP for the peer's switch marker after the group was lost. The program uses TCP
    /// during the search. Returns the event that the connection must handle. Returns `None` if the
    /// search is not necessary or must continue later. The engine calls this method, and must not
    /// wait for a thread of the program.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let stream = self.stream.get().filter(|_| self.phase() == Phase::Unanswered)?;
        match self.reading.try_lock() {
            Ok(_reading) => stream.look_for_marker(),
            Err(_in_call) => Some(Event::MarkerEarly),
        }
    }

    /// Returns true if this side writes an echo: the switch marker that this side itself expects.
    /// This side writes an echo if it does not know the switch marker that the peer expects
    /// (join.6).
    pub(crate) fn is_echoing(&self) -> bool {
        self.life.is_echoing()
    }

    /// Tries to write a switch marker into the TCP connection. On success, [opens](Stream::open)
    /// the stream and moves the connection. If `peer_ring` is `None`, the connection then returns
    /// to TCP at once. Returns the actions that the connection table must perform.
    pub(crate) fn write_marker(
        &self,
        marker: SwitchMarker,
        peer_ring: Option<u32>,
        now: Instant,
    ) -> Vec<Action> {
        let Some(stream) = self.stream.get().filter(|_| self.phase() == Phase::Switching) else {
            return Vec::new();
        };
        // The engine must not wait for a thread of the program, so it only tries the locks.
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
        // Open the stream first: this takes the remaining bytes out of TCP before any thread reads
        // the stream.
        stream.open(peer_ring.filter(|_| !self.life.has_ended_tcp()));
        let actions = self.on(Event::MarkerWritten, now);
        // If the connection is relayed, the relay needs a descriptor of the program's end of the
        // socket pair.
        let kept = program.try_clone().ok();
        counters::note_decided();
        counters::note_moved(self.role, self.local, self.peer, self.began);
        // No descriptor is left to replace if the program has closed the connection or its process
        // ends.
        let is_there = !self.life.is_closed() && self.descriptors.put(self.token, program);
        // The stream now removes the switch marker from the bytes. The kernel therefore no longer
        // reports the marker at the program's descriptor.
        *reading = Reading::Plain;
        if let Some(how) = self.life.shut() {
            // A stream that has just opened cannot have returned to TCP, so this call shuts the
            // stream down, and not TCP.
            let _on_the_group = Self::shut_stream(stream, how);
        }
        drop((reading, writing));
        self.mark.raise();
        self.on_switched(stream, kept.filter(|_| is_there), is_there);
        actions
    }

    /// Writes the switch marker. Returns the program's end of the socket pair that replaces the TCP
    /// socket. If the marker was not written, returns the event that states the cause.
    fn try_write_marker(
        &self,
        stream: &Arc<Stream>,
        writing: &mut Writing,
        marker: SwitchMarker,
    ) -> Result<OwnedFd, Event> {
        // Wait for the peer's switch marker. It proves that the process that joined also owns the
        // TCP connection.
        if self.role == Role::Connecting && !stream.is_marker_there() {
            // If the program has closed the connection before it read all bytes, the kernel resets
            // the connection, and the marker never arrives.
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
        // Use a high descriptor number for the library's end, because programs do not use high
        // numbers. If the program has closed its own descriptors, use `library` itself: the stream
        // still sends the program's bytes and the end of the stream to the peer.
        let high = match self.descriptors.duplicate(self.token) {
            None => library,
            Some(mut high) => {
                dup3(&library, &mut high, nix::fcntl::OFlag::O_CLOEXEC)
                    .map_err(|_none| no_descriptors)?;
                high
            }
        };
        //= sockets-protocol.md: join.7
        // If TCP has ended, write no switch marker: the peer accepts the end of TCP instead.
        let has_ended = self.life.has_ended_tcp();
        match if has_ended { Ok(true) } else { writing.write_marker(tcp.as_fd(), marker) } {
            Ok(true) => {}
            // TCP is full. Wait for room, because the peer expects the switch marker before any
            // other byte. The program could not write to a full TCP socket either.
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

    /// Starts to watch the library's end of the socket pair, and applies the options that the
    /// program has set. `is_there` is false if the program has no descriptor of the pair.
    fn on_switched(&self, stream: &Arc<Stream>, program: Option<OwnedFd>, is_there: bool) {
        // The library's end of a broken stream is hung up. If the runtime watched it, the hang-up
        // would look as if the program had closed its last descriptor.
        if let Some(end) = stream.end.socket().filter(|_| !stream.state.is_broken()) {
            let wanted = DescriptorReadiness::default();
            if stream.doorbell.watch(StreamDescriptor::End, end.as_fd(), wanted).is_err() {
                stream.reset();
            }
        }
        // If a thread sets one of these options later, that thread sees the new route and applies
        // the option.
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

    /// Rings the doorbell after a thread has found the peer's switch marker in TCP, because this
    /// side's answer may wait for the marker. The caller must hold no locks.
    pub(crate) fn on_marker_seen(&self) {
        if let Some(stream) = self.stream.get() {
            stream.doorbell.ring();
        }
    }

    /// Returns the stream of a moved connection; `None` for any other connection.
    #[inline]
    pub(crate) fn moved(&self) -> Option<&Arc<Stream>> {
        match self.life.course() {
            Course::Edge | Course::Returning | Course::GoingHome => self.stream.get(),
            Course::Tcp | Course::TcpHeld | Course::Kernel(_) => None,
        }
    }

    /// Shuts down directions of the connection, like `shutdown`.
    ///
    /// # Errors
    /// Returns the errors of `shutdown`.
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

    /// Shuts down directions of a connection that has not moved, or that is relayed.
    fn shutdown_tcp(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        // Hold this lock from the check to the shutdown. Otherwise another thread could try to
        // write a switch marker after TCP was shut down for writing, and would fail.
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

    /// Shuts down directions of a stream. If the stream has returned to TCP, shuts the directions
    /// down in TCP.
    fn shut_stream(stream: &Stream, how: Shutdown) -> Result<(), Errno> {
        if how != Shutdown::Read {
            // `come_home` also locks `writers`, so it sees all bytes that were written before this
            // call.
            let _writers = lock(&stream.writers);
            if stream.state.shut(Direction::Write) {
                stream.sending.push();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Write)?;
            }
        }
        if how != Shutdown::Write {
            if stream.state.shut(Direction::Read) {
                // As in TCP, the program's later reads return the end of the stream.
                stream.end.on_end();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Read)?;
            }
        }
        Ok(())
    }

    /// Returns the route of the connection.
    #[inline]
    pub fn route(&self) -> Route {
        match self.life.course() {
            Course::Tcp | Course::TcpHeld => Route::Undecided,
            Course::Edge | Course::Returning | Course::GoingHome => Route::Moved,
            Course::Kernel(reason) => Route::Left(reason),
        }
    }

    /// Returns true if the connection is relayed: the kernel handles the program's calls, and the
    /// library carries the bytes between the descriptor and the stream.
    #[inline]
    pub fn is_relayed(&self) -> bool {
        self.moved().is_some_and(|stream| stream.relay.is_on())
    }

    /// Relays bytes between the program's descriptor and the stream, so that the kernel can handle
    /// the program's calls. A relay is needed if another process will use the descriptor, or if the
    /// program uses a function that this library does not interpose. `fd` is any descriptor of the
    /// connection. If the connection has not moved yet, the relay starts when the connection moves.
    pub fn relay(&self, fd: BorrowedFd<'_>) {
        lock(&self.options).is_relayed = true;
        // This thread sets `is_relayed` before it reads the route. The thread that moves the
        // connection sets the route before it reads `is_relayed`. Therefore at least one of the two
        // threads starts the relay.
        if let Some(stream) = self.moved() {
            stream.start_relay(fd);
            stream.doorbell.ring();
            self.endpoint.raise(&self.mark);
        }
    }

    /// Returns a moved connection to TCP. Waits at most `limit` for the return. After the return,
    /// the program's descriptor numbers refer to the TCP socket, and the kernel handles all calls.
    /// Returns false if the connection cannot return, or if `limit` passed first. In the second
    /// case the return may complete later.
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

    /// Returns true if the return to TCP has begun and is not complete.
    pub fn is_going_home(&self) -> bool {
        self.life.course() == Course::GoingHome
    }

    /// Completes the return to TCP: replaces the program's descriptors with the TCP socket, which
    /// has all bytes of the stream. Returns false if a thread of the program is within a call, or
    /// if no descriptor number is free. The caller, the engine, then retries later.
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
            // The peer may have closed the TCP connection, so ignore errors.
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
        if let Some(end) = self.descriptors.duplicate(self.token) {
            set_non_blocking(tcp.as_fd(), is_non_blocking(end.as_fd()));
        }
        // Retire the socket pair first. After `put`, the numbers refer to the TCP socket, where the
        // library must not read or write.
        stream.end.retire();
        // No descriptor is left to replace if the program has closed the connection.
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

    /// Makes the kernel's readiness of the descriptor follow the stream's readiness. Called before
    /// the program waits for the descriptor in the kernel.
    pub fn watch(&self) {
        self.watch_as(false);
    }

    /// Does the same as [`Connection::watch`] for edge-triggered epoll sets (`EPOLLET`), which
    /// report each arrival of bytes.
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

    /// Returns the numbers of bytes queued in the stream; both are 0 if the connection has not
    /// moved.
    pub fn queued(&self) -> Queued {
        self.moved().map_or_else(Queued::default, |stream| Queued {
            received: stream.received(),
            unsent: stream.sending.unacknowledged(),
        })
    }

    /// Returns the pending error of a moved connection, like `SO_ERROR`, and clears it.
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

    /// Returns the TCP socket of a moved connection. Queries for addresses and options go to this
    /// socket.
    pub fn tcp(&self) -> Option<Arc<OwnedFd>> {
        self.moved().map(|stream| stream.socket())
    }

    /// Handles readiness of the library's end of the socket pair. The program may have closed its
    /// last descriptor by a call that the library does not interpose. In that case the descriptor
    /// numbers may already refer to other files, so this method notifies the descriptor table.
    pub(crate) fn on_end_ready(&self) {
        if self.stream.get().is_some_and(|stream| stream.state.has(Bit::Released)) {
            self.descriptors.closed(self.token);
        }
    }

    /// Ends the connection because its process ends, as if the program had closed its descriptors.
    /// If the move has not begun, the connection stays on TCP. If the move has begun, it completes,
    /// because the peer may already have moved its direction to the edge.
    pub(crate) fn end(&self) {
        {
            // The thread that moves the connection also holds this lock, so the connection does not
            // move during this event.
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

    /// Returns true if the process can end without losing bytes of the connection.
    pub(crate) fn is_out(&self) -> bool {
        match self.moved() {
            Some(stream) => stream.is_out(),
            None => !matches!(self.phase(), Phase::Joining | Phase::Switching),
        }
    }

    /// Calls [`Stream::end_tcp`] if the connection has moved.
    pub(crate) fn end_tcp(&self) {
        if let Some(stream) = self.moved() {
            stream.end_tcp();
        }
    }

    /// Prepares for the close of the program's last descriptor of the connection. Pending calls of
    /// other threads fail with `EBADF`. Without this, these calls could use the descriptor number
    /// after it refers to another file.
    pub fn closing(&self) {
        {
            // Calls check `is_closing` under these locks before they use the number.
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

    /// Ends the connection in this process, after the program has closed its last descriptor. The
    /// stream still sends the bytes that the program has written. If `SO_LINGER` is set, waits
    /// until the peer has acknowledged them.
    pub fn released(&self) {
        let actions = {
            // The thread that moves the connection also holds this lock. Either that thread sees
            // the close, or it has created the stream that is found below.
            let _reading = lock(&self.reading);
            self.life.on_untimed(Event::Closed)
        };
        self.leave_if(&actions);
        let Some(stream) = self.moved() else {
            if let Some(stream) = self.stream.get() {
                // The peer may already have moved its direction to the edge. When the route is
                // decided, the stream reports to the peer that this side has closed the connection.
                stream.doorbell.ring();
            }
            return;
        };
        // If other processes still have descriptors, the library's end of the socket pair becomes
        // ready when the last process closes its descriptor. The stream ends at that time.
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
/// kernel does not report the same error a second time.
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

//! The calls of a program on one descriptor.

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

/// The route of the bytes of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// TCP, perhaps the edge later. This crate makes the calls, because a switch marker may be among the bytes.
    Undecided,
    /// The edge.
    Moved,
    /// TCP for good: calls go to the kernel.
    Left(Reason),
}

/// Queued bytes of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Queued {
    /// Bytes received and not read yet: `SIOCINQ`.
    pub received: u64,
    /// Bytes written and not acknowledged yet: `SIOCOUTQ`.
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
    /// The program is about to close it. Its descriptor number may then stand for something else.
    is_closing: AtomicBool,
    /// Raised when a waiting thread of the program should check again.
    pub(crate) mark: Arc<Mark>,
    /// Made when the connection begins to move.
    stream: OnceLock<Arc<Stream>>,
    /// How TCP is read while the route is undecided.
    pub(crate) reading: Mutex<Reading>,
    /// How TCP is written while the route is undecided.
    pub(crate) writing: Mutex<Writing>,
    options: Mutex<Options>,
    /// Sends the offer that this side has made.
    offer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The connection table was notified that bytes have gone over the connection.
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

    /// Returns the token by which [`DescriptorTable`] knows it.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Returns which end it is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// Returns this side's address, as TCP has it.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the peer's address, as TCP has it.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Stores how to send the offer that was made for it. Only the first call counts.
    pub(crate) fn offered(&self, send: impl Fn() + Send + Sync + 'static) {
        self.offer.get_or_init(|| Box::new(send));
    }

    //= sockets-protocol.md: offer.3
    /// Sends its offer to the peer's rendezvous socket, unless another process has the connection as well.
    pub(crate) fn send_offer(&self) {
        if let Some(send) = self.offer.get().filter(|_| !self.descriptors.is_shared(self.token)) {
            send();
        }
    }

    /// Whether bytes went over it while it was undecided.
    pub(crate) fn has_bytes(&self) -> bool {
        self.has_reported_bytes.load(Ordering::SeqCst)
    }

    //= sockets-protocol.md: offer.3, offer.4
    /// Records that bytes went over it, in either direction.
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
        // The peer's program has begun to use the connection, so its rendezvous socket should be open.
        if are_from_peer {
            self.send_offer();
        }
    }

    /// Leaves it to TCP, if it has not begun to move.
    pub(crate) fn leave(&self, reason: Reason) {
        let _none_of_the_table = self.on(Event::Stay(reason), Instant(0));
    }

    /// Keeps it on TCP, if it has not begun to move: the program asks for something that only TCP has, or passes it to
    /// another process. Returns false if the move has begun.
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

    /// Handles an event. Performs the actions that concern only the connection, and returns those that are left for the
    /// connection table.
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

    /// Performs those actions of [`Connection::on`] that remain after the kernel has shut TCP down or closed it.
    fn leave_if(&self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Leave(reason) => self.on_left(*reason),
                Action::Watch => lock(&self.reading).watch(),
                _ => {}
            }
        }
    }

    /// Whether writes of the program wait until the switch marker is in TCP.
    pub(crate) fn is_held(&self) -> bool {
        self.life.course() == Course::TcpHeld
    }

    /// Whether the program has shut down writing while the route was undecided.
    pub(crate) fn writes_no_more(&self) -> bool {
        self.life.writes_no_more()
    }

    /// Shuts TCP down as the program has asked. The program has the result already.
    fn shut_tcp(&self) {
        let Some(how) = self.life.shut() else { return };
        if let Some(stream) = self.stream.get() {
            let _closed = shutdown_by_kernel(stream.socket().as_fd(), how);
        } else if let Some(tcp) = self.descriptors.duplicate(self.token) {
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
    }

    /// Leaves the connection to the kernel.
    fn on_left(&self, reason: Reason) {
        // Pending calls see all that TCP has.
        *lock(&self.reading) = Reading::Plain;
        if let Some(stream) = self.stream.get() {
            // A switch marker may have waited for room in TCP.
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

    /// Makes its stream. From now on only this crate reads TCP, and looks for the switch marker.
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
    /// Looks for the peer's switch marker while the program uses TCP and the group is lost. Returns the event for the
    /// connection. Called inside the engine, where no thread waits for a thread of the program.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let stream = self.stream.get().filter(|_| self.phase() == Phase::Unanswered)?;
        match self.reading.try_lock() {
            Ok(_reading) => stream.look_for_marker(),
            Err(_in_call) => Some(Event::MarkerEarly),
        }
    }

    /// Whether this side writes its own switch marker back, because it does not know the peer's.
    pub(crate) fn is_echoing(&self) -> bool {
        self.life.is_echoing()
    }

    /// Tries to write a switch marker into the TCP connection. On success the stream [opens](Stream::open) and the
    /// connection has moved. Without `peer_ring` it goes home at once. The caller performs the remaining actions in the
    /// connection table.
    pub(crate) fn write_marker(
        &self,
        marker: SwitchMarker,
        peer_ring: Option<u32>,
        now: Instant,
    ) -> Vec<Action> {
        let Some(stream) = self.stream.get().filter(|_| self.phase() == Phase::Switching) else {
            return Vec::new();
        };
        // Inside the engine no thread waits for a thread of the program.
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
        // The stream takes in what TCP has before anything reads the stream.
        stream.open(peer_ring.filter(|_| !self.life.has_ended_tcp()));
        let actions = self.on(Event::MarkerWritten, now);
        // A relayed connection needs a descriptor of the program's end.
        let kept = program.try_clone().ok();
        counters::note_decided();
        counters::note_moved(self.role, self.local, self.peer, self.began);
        // A connection that the program has closed, or whose process ends, has no descriptor left.
        let is_there = !self.life.is_closed() && self.descriptors.put(self.token, program);
        // From now on the stream looks for the switch marker, and the kernel does not count it at the program's
        // descriptor.
        *reading = Reading::Plain;
        if let Some(how) = self.life.shut() {
            // A stream that opens is not home.
            let _on_the_group = Self::shut_stream(stream, how);
        }
        drop((reading, writing));
        self.mark.raise();
        self.on_switched(stream, kept.filter(|_| is_there), is_there);
        actions
    }

    /// Writes the switch marker. Returns the program's end of the socket pair that replaces the TCP socket, or the
    /// event that says what failed.
    fn try_write_marker(
        &self,
        stream: &Arc<Stream>,
        writing: &mut Writing,
        marker: SwitchMarker,
    ) -> Result<OwnedFd, Event> {
        // The peer's switch marker proves that the process that joined owns the TCP connection, so it must come first.
        if self.role == Role::Connecting && !stream.is_marker_there() {
            // If the program never reads the bytes before the switch marker, TCP resets the connection.
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
        // Copy to a high number, which programs do not use. If the program has closed its own descriptors, its bytes
        // still go to the peer, and then the end.
        let high = match self.descriptors.duplicate(self.token) {
            None => library,
            Some(mut high) => {
                dup3(&library, &mut high, nix::fcntl::OFlag::O_CLOEXEC)
                    .map_err(|_none| no_descriptors)?;
                high
            }
        };
        //= sockets-protocol.md: join.7
        // The peer takes the end of TCP as the switch marker.
        let has_ended = self.life.has_ended_tcp();
        match if has_ended { Ok(true) } else { writing.write_marker(tcp.as_fd(), marker) } {
            Ok(true) => {}
            // The peer waits for the switch marker, so nothing else may be written before it. TCP is full, so the
            // program could not write either.
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

    /// Applies to the program's end of the pair, if it exists, what the program had set on the TCP socket.
    fn on_switched(&self, stream: &Arc<Stream>, program: Option<OwnedFd>, is_there: bool) {
        // A broken stream is hung up, which would look like the last close by the program.
        if let Some(end) = stream.end.socket().filter(|_| !stream.state.is_broken()) {
            let wanted = DescriptorReadiness::default();
            if stream.doorbell.watch(StreamDescriptor::End, end.as_fd(), wanted).is_err() {
                stream.reset();
            }
        }
        // A thread that sets one of these options afterwards finds the new route.
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

    /// Notes that the peer's switch marker is in TCP, as the answer of this side may wait for it. Called without locks.
    pub(crate) fn on_marker_seen(&self) {
        if let Some(stream) = self.stream.get() {
            stream.doorbell.ring();
        }
    }

    /// Returns its stream, once it has moved.
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
    /// As of `shutdown`.
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

    /// Handles `shutdown` of a connection that has not moved or is relayed.
    fn shutdown_tcp(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        // No switch marker can be written after the end of TCP, or while this call is in progress.
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

    /// Shuts directions of a stream. If the stream has come home meanwhile, shuts them in TCP.
    fn shut_stream(stream: &Stream, how: Shutdown) -> Result<(), Errno> {
        if how != Shutdown::Read {
            // `come_home` holds this lock, so it sees all bytes written before.
            let _writers = lock(&stream.writers);
            if stream.state.shut(Direction::Write) {
                stream.sending.push();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Write)?;
            }
        }
        if how != Shutdown::Write {
            if stream.state.shut(Direction::Read) {
                // As in TCP, this side reads the end.
                stream.end.on_end();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Read)?;
            }
        }
        Ok(())
    }

    /// Returns the route of its bytes.
    #[inline]
    pub fn route(&self) -> Route {
        match self.life.course() {
            Course::Tcp | Course::TcpHeld => Route::Undecided,
            Course::Edge | Course::Returning | Course::GoingHome => Route::Moved,
            Course::Kernel(reason) => Route::Left(reason),
        }
    }

    /// Whether the program's calls go to the kernel and the library relays the bytes.
    #[inline]
    pub fn is_relayed(&self) -> bool {
        self.moved().is_some_and(|stream| stream.relay.is_on())
    }

    /// Relays bytes between the program's descriptor and the stream, so that the kernel can handle the program's calls:
    /// another process is to use the descriptor, or a function that this library does not interpose. `fd` is any
    /// descriptor of the connection. A connection that has not moved is relayed as soon as it has.
    pub fn relay(&self, fd: BorrowedFd<'_>) {
        lock(&self.options).is_relayed = true;
        // The moving thread sets the route before it reads this option.
        if let Some(stream) = self.moved() {
            stream.start_relay(fd);
            stream.doorbell.ring();
            self.endpoint.raise(&self.mark);
        }
    }

    /// Brings a moved connection back to TCP and waits for `limit` at most. The TCP socket is then at the program's
    /// numbers, and the kernel does the rest. Returns false if the connection cannot go home, or has not arrived within
    /// the limit; it may arrive later.
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

    /// Whether it is going home.
    pub fn is_going_home(&self) -> bool {
        self.life.course() == Course::GoingHome
    }

    /// Puts the TCP socket at the program's numbers, after all bytes of the stream have gone to TCP. Returns false if a
    /// thread of the program is within a call or no descriptor is left; the caller tries again. Called inside the
    /// engine.
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
            // The peer may have closed it.
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
        if let Some(end) = self.descriptors.duplicate(self.token) {
            set_non_blocking(tcp.as_fd(), is_non_blocking(end.as_fd()));
        }
        // The library neither writes to the program's numbers nor reads there once they are TCP.
        stream.end.retire();
        // A connection that the program has closed has no descriptor left.
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

    /// Returns what it is ready for.
    pub fn readiness(&self) -> Readiness {
        self.moved().map(|stream| stream.readiness()).unwrap_or_default()
    }

    /// Lets the kernel report readiness from now on: the program is about to wait for the descriptor there. From
    /// now on the kernel knows what the stream is ready for.
    pub fn watch(&self) {
        self.watch_as(false);
    }

    /// Does the same as [`Connection::watch`] for edge-triggered sets (`EPOLLET`), which report each arrival.
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

    /// Returns how many bytes are queued.
    pub fn queued(&self) -> Queued {
        self.moved().map_or_else(Queued::default, |stream| Queued {
            received: stream.received(),
            unsent: stream.sending.unacknowledged(),
        })
    }

    /// Returns the value of `SO_ERROR` of a moved connection, once: the cause of a reset.
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

    /// Returns the TCP socket of a moved connection, which answers queries for addresses and options.
    pub fn tcp(&self) -> Option<Arc<OwnedFd>> {
        self.moved().map(|stream| stream.socket())
    }

    /// The library's end of the pair was ready. The program may have closed its last descriptor by a call that the
    /// library does not see, and its numbers may stand for something else.
    pub(crate) fn on_end_ready(&self) {
        if self.stream.get().is_some_and(|stream| stream.state.has(Bit::Released)) {
            self.descriptors.closed(self.token);
        }
    }

    /// Ends the connection with its process, as if the program had closed its descriptors. A connection that has not
    /// begun to move stays on TCP. One that is moving goes on, because the peer may have moved its direction.
    pub(crate) fn end(&self) {
        {
            // The moving thread holds the same lock.
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

    /// Whether the process can end without losing bytes of it.
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

    /// Prepares for the close of the last of its descriptors by the program. Pending calls of other threads fail
    /// with `EBADF`, because the number may then stand for something else.
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

    /// Ends the connection in this process, whose program has closed the last of its descriptors. Bytes that it has
    /// written still go to the peer. If `SO_LINGER` asks for it, this waits for them.
    pub fn released(&self) {
        let actions = {
            // The moving thread holds the same lock: either it sees the close, or the stream is found below.
            let _reading = lock(&self.reading);
            self.life.on_untimed(Event::Closed)
        };
        self.leave_if(&actions);
        let Some(stream) = self.moved() else {
            if let Some(stream) = self.stream.get() {
                // The peer may have moved its direction. The end goes to it once that is decided.
                stream.doorbell.ring();
            }
            return;
        };
        // Other processes may still have it. Then the library's end is notified when they have closed it, too.
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

/// Passes on the result of a call on a moved connection. The kernel must not report the same error again.
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

//! What the calls of a program on one descriptor do.

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

/// Which way the bytes of a connection take.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// TCP, and perhaps the edge later. Calls are made by this crate, since a switch marker may be among the bytes.
    Undecided,
    /// The edge.
    Moved,
    /// TCP for good: calls go to the kernel.
    Left(Reason),
}

/// Bytes of a stream that wait.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Queued {
    /// Received and not yet read: `SIOCINQ`.
    pub received: u64,
    /// Written and not yet known to be at the peer: `SIOCOUTQ`.
    pub unsent: u64,
}

/// A TCP connection of the program that may move, or has.
pub struct Connection {
    token: u64,
    role: Role,
    local: SocketAddr,
    peer: SocketAddr,
    descriptors: Arc<dyn DescriptorTable>,
    pub(crate) endpoint: Arc<dyn Waits>,
    life: Arc<Life>,
    began: counters::Beginning,
    /// The program is about to close it: its number may be that of something else from then on.
    is_closing: AtomicBool,
    /// Raised when a thread of the program that waits should look again.
    pub(crate) mark: Arc<Mark>,
    /// Made when it begins to move.
    stream: OnceLock<Arc<Stream>>,
    /// How TCP is read while it is undecided.
    pub(crate) reading: Mutex<Reading>,
    /// How TCP is written to while it is undecided.
    pub(crate) writing: Mutex<Writing>,
    options: Mutex<Options>,
    /// Sends the offer that this side has made.
    offer: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// The connection table was notified that the connection has carried bytes.
    has_reported_bytes: AtomicBool,
}

/// What the program has set, kept for the stream.
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

    /// What [`DescriptorTable`] knows it by.
    pub const fn token(&self) -> u64 {
        self.token
    }

    /// Which end it is.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// This side's address, as TCP has it.
    pub const fn local(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address, as TCP has it.
    pub const fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// An offer was made of it, which this sends. Once.
    pub(crate) fn offered(&self, send: impl Fn() + Send + Sync + 'static) {
        self.offer.get_or_init(|| Box::new(send));
    }

    //= sockets-protocol.md: offer.3
    /// Sends the offer that was made of it to where the peer's rendezvous socket is, unless another process has it as well.
    pub(crate) fn send_offer(&self) {
        if let Some(send) = self.offer.get().filter(|_| !self.descriptors.is_shared(self.token)) {
            send();
        }
    }

    /// Whether bytes have gone over it while it was undecided.
    pub(crate) fn has_bytes(&self) -> bool {
        self.has_reported_bytes.load(Ordering::SeqCst)
    }

    //= sockets-protocol.md: offer.3, offer.4
    /// Bytes have gone over it, from the peer or to it.
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
        // The peer's program has begun to use the connection, so its rendezvous socket is open by now.
        if are_from_peer {
            self.send_offer();
        }
    }

    /// It is left to TCP, if it has not begun to move.
    pub(crate) fn leave(&self, reason: Reason) {
        let _none_of_the_table = self.on(Event::Stay(reason), Instant(0));
    }

    /// The program asks for what only TCP has, or gives it to another process: it stays on TCP if nothing of a move has
    /// begun. False if it is too late for that.
    pub fn stay(&self, reason: Reason) -> bool {
        self.leave(reason);
        self.is_left()
    }

    /// Where it is.
    pub(crate) fn phase(&self) -> Phase {
        self.life.phase()
    }

    /// When [`Event::Time`] is wanted.
    pub(crate) fn due(&self) -> Instant {
        self.life.due()
    }

    /// Handles an event: carries out the actions that concern the connection, and returns those that are left to the connection table.
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

    /// The part of [`Connection::on`] that is left when the kernel has shut TCP down, or has closed it.
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

    /// Whether the program has said so while the way of the bytes was undecided.
    pub(crate) fn writes_no_more(&self) -> bool {
        self.life.writes_no_more()
    }

    /// Shuts TCP down as the program has asked, who has the result already.
    fn shut_tcp(&self) {
        let Some(how) = self.life.shut() else { return };
        if let Some(stream) = self.stream.get() {
            let _closed = shutdown_by_kernel(stream.socket().as_fd(), how);
        } else if let Some(tcp) = self.descriptors.duplicate(self.token) {
            let _closed = shutdown_by_kernel(tcp.as_fd(), how);
        }
    }

    /// The kernel has it.
    fn on_left(&self, reason: Reason) {
        // Calls that are under way are shown all that TCP has.
        *lock(&self.reading) = Reading::Plain;
        if let Some(stream) = self.stream.get() {
            // A switch marker may have waited for room.
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

    /// Makes its stream. From now on TCP is read by this crate only, which looks for the switch marker.
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
    /// Looks whether the peer's switch marker has come, while the program uses TCP and the group is lost: what the
    /// connection is to learn of that. Inside the engine, where no thread waits for one of the program.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let stream = self.stream.get().filter(|_| self.phase() == Phase::Unanswered)?;
        match self.reading.try_lock() {
            Ok(_reading) => stream.look_for_marker(),
            Err(_in_call) => Some(Event::MarkerEarly),
        }
    }

    /// Whether the switch marker of this side is written back: that of the peer is not known.
    pub(crate) fn is_echoing(&self) -> bool {
        self.life.is_echoing()
    }

    /// Tries to write a switch marker into the TCP connection, behind which the stream [opens](Stream::open): the
    /// connection has moved then. Without a ring of the peer it goes home at once. The caller
    /// completes the remaining steps in the connection table.
    pub(crate) fn write_marker(
        &self,
        marker: SwitchMarker,
        peer_ring: Option<u32>,
        now: Instant,
    ) -> Vec<Action> {
        let Some(stream) = self.stream.get().filter(|_| self.phase() == Phase::Switching) else {
            return Vec::new();
        };
        // Inside the engine no thread waits for one of the program.
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
        // What TCP has is in the stream before anything asks the stream.
        stream.open(peer_ring.filter(|_| !self.life.has_ended_tcp()));
        let actions = self.on(Event::MarkerWritten, now);
        // It is needed again if the connection is to be relayed.
        let kept = program.try_clone().ok();
        counters::note_decided();
        counters::note_moved(self.role, self.local, self.peer, self.began);
        // One that is closed is there for no program, nor is any when the process ends.
        let is_there = !self.life.is_closed() && self.descriptors.put(self.token, program);
        // The stream looks for the switch marker, and the kernel counts it no more at the program's descriptor.
        *reading = Reading::Plain;
        if let Some(how) = self.life.shut() {
            // A stream that opens has not come home.
            let _on_the_group = Self::shut_stream(stream, how);
        }
        drop((reading, writing));
        self.mark.raise();
        self.on_switched(stream, kept.filter(|_| is_there), is_there);
        actions
    }

    /// Writes the switch marker: the program's end of the pair that is to take the place of the TCP socket, or what is
    /// in the way.
    fn try_write_marker(
        &self,
        stream: &Arc<Stream>,
        writing: &mut Writing,
        marker: SwitchMarker,
    ) -> Result<OwnedFd, Event> {
        // Who joins must be who holds the TCP connection: that side's switch marker came first.
        if self.role == Role::Connecting && !stream.is_marker_there() {
            // What stands before the switch marker is read by no program: TCP resets such a connection.
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
        // A number that programs do not come across. Where the program has closed its own, what it has written goes
        // on to the peer all the same, and then the end.
        let high = match self.descriptors.duplicate(self.token) {
            None => library,
            Some(mut high) => {
                dup3(&library, &mut high, nix::fcntl::OFlag::O_CLOEXEC)
                    .map_err(|_none| no_descriptors)?;
                high
            }
        };
        //= sockets-protocol.md: join.7
        // The peer takes the end of TCP for the switch marker.
        let has_ended = self.life.has_ended_tcp();
        match if has_ended { Ok(true) } else { writing.write_marker(tcp.as_fd(), marker) } {
            Ok(true) => {}
            // The peer waits: nothing else is written before the switch marker. The program could not write now anyway.
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

    /// The program's descriptor is the end of a pair, if it is there at all: what the program had asked of TCP holds there
    /// too.
    fn on_switched(&self, stream: &Arc<Stream>, program: Option<OwnedFd>, is_there: bool) {
        // One that has broken off is hung up, which would be taken for the program's last close.
        if let Some(end) = stream.end.socket().filter(|_| !stream.state.is_broken()) {
            let wanted = DescriptorReadiness::default();
            if stream.doorbell.watch(StreamDescriptor::End, end.as_fd(), wanted).is_err() {
                stream.reset();
            }
        }
        // Who sets one of these sees the route, or is seen here.
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

    /// The peer's switch marker is in TCP: what this side answers may wait for it. Outside of locks.
    pub(crate) fn on_marker_seen(&self) {
        if let Some(stream) = self.stream.get() {
            stream.doorbell.ring();
        }
    }

    /// Its stream, once it has moved.
    #[inline]
    pub(crate) fn moved(&self) -> Option<&Arc<Stream>> {
        match self.life.course() {
            Course::Edge | Course::Returning | Course::GoingHome => self.stream.get(),
            Course::Tcp | Course::TcpHeld | Course::Kernel(_) => None,
        }
    }

    /// As `shutdown`.
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

    /// The same of one that has not moved, or is relayed.
    fn shutdown_tcp(&self, fd: BorrowedFd<'_>, how: Shutdown) -> Result<(), Errno> {
        // No switch marker can be written behind the end of TCP, nor while this is under way.
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

    /// Shuts directions of a stream. Those of one that has come home meanwhile are shut in TCP.
    fn shut_stream(stream: &Stream, how: Shutdown) -> Result<(), Errno> {
        if how != Shutdown::Read {
            // Coming home holds the lock, so that it sees all that was written before.
            let _writers = lock(&stream.writers);
            if stream.state.shut(Direction::Write) {
                stream.sending.push();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Write)?;
            }
        }
        if how != Shutdown::Write {
            if stream.state.shut(Direction::Read) {
                // As of TCP: it is at its end for this side.
                stream.end.on_end();
            } else {
                shutdown_by_kernel(stream.socket().as_fd(), Shutdown::Read)?;
            }
        }
        Ok(())
    }

    /// Which way its bytes take.
    #[inline]
    pub fn route(&self) -> Route {
        match self.life.course() {
            Course::Tcp | Course::TcpHeld => Route::Undecided,
            Course::Edge | Course::Returning | Course::GoingHome => Route::Moved,
            Course::Kernel(reason) => Route::Left(reason),
        }
    }

    /// Whether the calls of the program go to the kernel, and bytes are carried behind.
    #[inline]
    pub fn is_relayed(&self) -> bool {
        self.moved().is_some_and(|stream| stream.relay.is_on())
    }

    /// Has bytes carried between the program's descriptor and the stream, so that the program's calls may go to the
    /// kernel: another process is to use the descriptor, or something that this crate does not stand before. `fd` is any
    /// descriptor of it. Before the connection has moved, it is relayed from then on, if it does.
    pub fn relay(&self, fd: BorrowedFd<'_>) {
        lock(&self.options).is_relayed = true;
        // Who moves it has set the route before it looks at this.
        if let Some(stream) = self.moved() {
            stream.start_relay(fd);
            stream.doorbell.ring();
            self.endpoint.raise(&self.mark);
        }
    }

    /// Brings a connection that has moved back to TCP, for at most `limit`, and lets the kernel do the rest: the TCP socket
    /// is at the program's numbers then. False if it cannot come home, or has not by then: it may come later.
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

    /// Whether it goes home.
    pub fn is_going_home(&self) -> bool {
        self.life.course() == Course::GoingHome
    }

    /// All bytes of its stream are in TCP: the TCP socket takes the place of the program's end. False if a thread of the
    /// program is inside a call, or no descriptor is left: to be tried again. Inside the engine.
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
        // Nothing is written to the program's numbers, nor read there, once TCP has them.
        stream.end.retire();
        // One that is closed is there for no program.
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

    /// What it is ready for.
    pub fn readiness(&self) -> Readiness {
        self.moved().map(|stream| stream.readiness()).unwrap_or_default()
    }

    /// The program is about to have the kernel tell it when the descriptor is ready: from now on the kernel knows.
    pub fn watch(&self) {
        self.watch_as(false);
    }

    /// The same where it is told of edges (`EPOLLET`): of each arrival.
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

    /// Bytes that wait.
    pub fn queued(&self) -> Queued {
        self.moved().map_or_else(Queued::default, |stream| Queued {
            received: stream.received(),
            unsent: stream.sending.unacknowledged(),
        })
    }

    /// What `SO_ERROR` is to say once it has moved: the reason of a reset, once.
    pub fn take_error(&self, fd: BorrowedFd<'_>) -> Option<Errno> {
        let error = self.moved().and_then(|stream| stream.take_error());
        error.inspect(|_| End::on_error_reported(fd))
    }

    /// `TCP_NODELAY`.
    pub fn set_no_delay(&self, on: bool) {
        lock(&self.options).no_delay = on;
        if let Some(stream) = self.stream.get() {
            stream.sending.set_no_delay(on);
            if on && self.moved().is_some() {
                stream.push();
            }
        }
    }

    /// `TCP_CORK`.
    pub fn set_cork(&self, on: bool) {
        lock(&self.options).cork = on;
        if let Some(stream) = self.stream.get() {
            stream.sending.set_corked(on);
            if !on && self.moved().is_some() {
                stream.push();
            }
        }
    }

    /// The TCP socket, once the connection has moved: it answers what the program asks of addresses and options.
    pub fn tcp(&self) -> Option<Arc<OwnedFd>> {
        self.moved().map(|stream| stream.socket())
    }

    /// The library's end has told the stream something: perhaps that the program has closed the last descriptor by a call
    /// that nothing saw, so that its numbers may be something else by now.
    pub(crate) fn on_end_ready(&self) {
        if self.stream.get().is_some_and(|stream| stream.state.has(Bit::Released)) {
            self.descriptors.closed(self.token);
        }
    }

    /// The process is about to end: as if the program had closed its descriptors.
    /// One that has not begun to move does not any more; one that moves goes on, as the peer may have moved its direction.
    pub(crate) fn end(&self) {
        {
            // Who moves it holds the same lock.
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

    /// Nothing of it is lost when the process ends now.
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

    /// The program is about to close the last of its descriptors. Calls of other threads that are still under way fail with
    /// `EBADF`, because the number may belong to something else from then on.
    pub fn closing(&self) {
        {
            // Calls look at it under the same locks before they use the number.
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

    /// The program has closed the last of its descriptors in this process. What it has written goes on to the peer;
    /// if `SO_LINGER` says so, this waits for that.
    pub fn released(&self) {
        let actions = {
            // Who moves it holds the same lock: either it sees that this is closed, or is seen below.
            let _reading = lock(&self.reading);
            self.life.on_untimed(Event::Closed)
        };
        self.leave_if(&actions);
        let Some(stream) = self.moved() else {
            if let Some(stream) = self.stream.get() {
                // The peer may have moved its direction: only when that is decided it can be told of the end.
                stream.doorbell.ring();
            }
            return;
        };
        // Other processes may have it still: then the library's end tells when they have closed it, too.
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

/// What a call of the program on a moved connection is told; an error is so once.
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

//! A test world: the two ends of one TCP connection through the kernel, with rings, and a network
//! that carries the link group.

mod doorbell;
mod going_home_tests;
mod lost_joins_tests;
mod peeking_tests;
mod watching_tests;

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use delivery::Instant;
use mem::Buffer;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use runtime::{Mark, Readiness};

use crate::calls::connection::Connection;
use crate::calls::descriptor_table::DescriptorTable;
use crate::calls::flags::{ReceiveFlags, SendFlags};
use crate::calls::waiting::{Waited, Waits};
use crate::lock::lock;
use crate::migration::machine::{ANSWER_WITHIN_NS, Action, Event, Phase};
use crate::reasons::Reason;
use crate::settings::Role;
use crate::transport::held::HeldStreams;
use crate::transport::ring::RingPart;
use crate::transport::stream::{HomeProgress, Out, Stream, StreamParts};
use crate::transport::stream_doorbell::StreamDescriptor;
use crate::wire::{Refusal, SwitchMarker};
use crate::world::doorbell::TestDoorbell;

/// The two ends of a connection that has moved or may move.
pub(crate) struct World {
    pub(crate) ends: [TestEnd; 2],
    network: Arc<Network>,
}

/// One end, and the program's descriptor.
pub(crate) struct TestEnd {
    pub(crate) connection: Arc<Connection>,
    descriptors: Arc<OneDescriptor>,
    /// The TCP socket that the program had before the move.
    pub(crate) tcp: TcpStream,
    memory: [Arc<Buffer>; 2],
    doorbell: TestDoorbell,
}

/// A stream, the memory of its rings, and its connection.
type Known = (Arc<Stream>, [Arc<Buffer>; 2], Arc<Connection>);

/// The link group between the streams. Carries the bytes and messages that the streams post, when
/// a test calls `carry`.
#[derive(Default)]
pub(crate) struct Network {
    streams: Mutex<Vec<Known>>,
    held: HeldStreams,
    /// While true, arrived data is not acknowledged.
    pub(crate) is_slow: AtomicBool,
    unacknowledged: Mutex<Vec<(usize, u32)>>,
    /// True if the group is lost. A lost group carries nothing.
    is_lost: AtomicBool,
    /// Number of times that threads of the program have raised the mark of a connection.
    raised: AtomicUsize,
}

/// The descriptor table of a program with one descriptor.
struct OneDescriptor {
    tcp: Mutex<Option<TcpStream>>,
    /// The descriptor that has replaced the TCP socket; `None` before the move.
    put: Mutex<Option<Arc<OwnedFd>>>,
}

impl DescriptorTable for OneDescriptor {
    fn duplicate(&self, _token: u64) -> Option<OwnedFd> {
        lock(&self.tcp).as_ref()?.try_clone().ok().map(OwnedFd::from)
    }

    fn put(&self, _token: u64, end: OwnedFd) -> bool {
        *lock(&self.put) = Some(Arc::new(end));
        lock(&self.tcp).is_some()
    }

    fn is_shared(&self, _token: u64) -> bool {
        false
    }

    fn decided(&self, _token: u64) {}

    fn closed(&self, _token: u64) {}
}

impl Network {
    /// Carries everything that the streams post, until no stream has more to post.
    pub(crate) fn carry(&self) {
        let streams = lock(&self.streams);
        let mut has_more = streams.len() == 2;
        while has_more {
            has_more = false;
            for (index, (from, memory, connection)) in streams.iter().enumerate() {
                let (to, into, _) = &streams[1 - index];
                from.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
                from.on_descriptor(StreamDescriptor::End, Readiness::default());
                if from.go_home() == HomeProgress::Arrived {
                    assert!(connection.come_home(), "no thread is inside a call");
                    has_more = true;
                }
                while let Some(out) = from.next(Instant(0)) {
                    has_more = true;
                    self.deliver(index, out, from, memory, to, into);
                }
                if !self.is_slow.load(Ordering::Relaxed) {
                    let mut unacknowledged = lock(&self.unacknowledged);
                    for (_, length) in unacknowledged.extract_if(.., |(owner, _)| *owner == index) {
                        from.on_acknowledged(length);
                        has_more = true;
                    }
                }
            }
        }
    }

    fn deliver(
        &self,
        index: usize,
        out: Out,
        from: &Stream,
        memory: &[Arc<Buffer>; 2],
        to: &Stream,
        into: &[Arc<Buffer>; 2],
    ) {
        if self.is_lost.load(Ordering::Relaxed) {
            return;
        }
        match out {
            Out::Data { at, length, to: offset } => {
                let mut bytes = vec![0; length as usize];
                memory[0].read(at.into(), &mut bytes);
                into[1].write(offset.into(), &bytes);
                to.on_arrived(offset, length).expect("it follows");
                lock(&self.unacknowledged).push((index, length));
            }
            Out::Credit(consumed) => to.on_credit(consumed).expect("plausible"),
            Out::End(bytes) => {
                to.on_end(bytes).expect("plausible");
                from.on_end_acknowledged();
            }
            Out::Reset => to.on_reset(),
            Out::Home => to.on_peer_home(),
        }
    }
}

impl Waits for Network {
    fn on_left(&self, _token: u64) {}
    fn on_first_bytes(&self, _token: u64) {}

    fn drive(&self) {
        self.carry();
    }

    fn wait_beside(
        &self,
        _mark: &Arc<Mark>,
        _others: &mut [libc::pollfd],
        _limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        for _ in 0..1000 {
            self.carry();
            if ready() {
                return Ok(Waited::Ready);
            }
        }
        Ok(Waited::TimedOut)
    }

    fn raise(&self, mark: &Mark) {
        self.raised.fetch_add(1, Ordering::Relaxed);
        mark.raise();
    }

    fn held(&self) -> &HeldStreams {
        &self.held
    }
}

impl World {
    /// Creates two ends of a TCP connection over the loopback interface. The first end has called
    /// `connect`.
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let connecting = TcpStream::connect(address).expect("it listens");
        let (accepted, _) = listener.accept().expect("a connection");
        let network = Arc::new(Network::default());
        let mut roles = [Role::Connecting, Role::Accepting].into_iter();
        let ends = [connecting, accepted].map(|tcp| {
            tcp.set_nonblocking(true).expect("a socket");
            // Without this option, tests would wait for timers of the kernel.
            tcp.set_nodelay(true).expect("a socket");
            let own = tcp.try_clone().expect("a descriptor");
            let descriptors =
                Arc::new(OneDescriptor { tcp: Mutex::new(Some(own)), put: Mutex::default() });
            let (local, peer) = (tcp.local_addr(), tcp.peer_addr());
            let connection = Connection::new(
                1,
                roles.next().expect("two"),
                local.expect("an address"),
                peer.expect("an address"),
                Arc::clone(&descriptors) as Arc<dyn DescriptorTable>,
                Arc::clone(&network) as Arc<dyn Waits>,
            );
            let memory = [(); 2].map(|()| Buffer::new(RING.into()));
            TestEnd { connection, descriptors, tcp, memory, doorbell: TestDoorbell::default() }
        });
        Self { ends, network }
    }

    /// Creates a connection that has moved.
    pub(crate) fn moved() -> Self {
        let world = Self::new();
        for step in 0..MOVE_STEPS {
            assert!(world.move_on(step), "nothing is shut down");
        }
        world.network.carry();
        world
    }

    /// Takes one step of a move. In step 0 the connecting end begins. In step 1 the accepting end
    /// begins and writes its switch marker. In step 2 the connecting end writes its switch marker.
    /// Returns false if an end has shut down and cannot move. In that case notifies the other end,
    /// and both ends stay on TCP.
    pub(crate) fn move_on(&self, step: usize) -> bool {
        let can_move = match step {
            0 | 1 => self.begin(step),
            _ => true,
        };
        match step {
            _ if !can_move => {
                for end in &self.ends {
                    drop(end.connection.on(Event::Refused(Refusal::Closed), Instant(0)));
                }
                lock(&self.network.streams).clear();
            }
            0 => {}
            1 => self.write_marker(1),
            _ => self.write_marker(0),
        }
        can_move
    }

    /// Makes an end begin to move. Returns false if the end stays on TCP.
    fn begin(&self, index: usize) -> bool {
        let TestEnd { connection, memory, doorbell, .. } = &self.ends[index];
        let events = match connection.role() {
            Role::Connecting => &[Event::Begin, Event::Offer, Event::GroupUp][..],
            Role::Accepting => &[Event::Begin, Event::Join],
        };
        let actions = events.iter().map(|event| connection.on(*event, Instant(0)));
        if !actions.flatten().any(|action| action == Action::MakeStream) {
            return false;
        }
        let [send, receive] = memory.each_ref().map(|memory| RingPart {
            memory: Arc::clone(memory),
            offset: 0,
            bytes: RING,
        });
        let echo = (index == 1).then_some(MARKERS[0]);
        let (expected, doorbell) = (MARKERS[index], Box::new(doorbell.clone()));
        let parts = StreamParts { send, receive, expected, echo, doorbell };
        let Ok(stream) = connection.make_stream(parts) else { return false };
        let known = (stream, memory.clone(), Arc::clone(connection));
        lock(&self.network.streams).push(known);
        true
    }

    fn write_marker(&self, index: usize) {
        assert_eq!(self.try_write_marker(index), Phase::OnEdge);
    }

    fn try_write_marker(&self, index: usize) -> Phase {
        let connection = &self.ends[index].connection;
        // This event has no effect at the accepting end.
        drop(connection.on(Event::Joined, Instant(0)));
        if connection.is_echoing() {
            drop(connection.write_marker(MARKERS[index], None, Instant(0)));
        } else {
            drop(connection.write_marker(MARKERS[1 - index], Some(RING), Instant(0)));
        }
        connection.phase()
    }

    /// Writes over TCP until TCP has no room. Returns the bytes written. The value of each byte is
    /// its position modulo 251.
    fn fill(&self, index: usize) -> Vec<u8> {
        let (mut written, mut refused) = (Vec::new(), 0);
        loop {
            let bytes: Vec<u8> =
                (written.len()..).take(60_000).map(|at| (at % 251) as u8).collect();
            match self.send(index, &bytes) {
                Ok(count) => written.extend_from_slice(&bytes[..count]),
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    refused += 1;
                    if refused > 20 {
                        return written;
                    }
                    // Wait, because the kernel may send queued bytes or enlarge its buffers.
                    poll(&mut [], PollTimeout::from(1_u8)).expect("a moment");
                }
            }
        }
    }

    /// Creates a connection whose first answer fills TCP, so that end 1's marker waits for room. If
    /// the kernel of a busy host frees room late, the marker does not wait. In that case retries.
    fn with_waiting_marker() -> (Self, Vec<u8>) {
        let attempt = |_| {
            let world = Self::new();
            let first = world.fill(1);
            assert!(world.move_on(0) && world.begin(1));
            (world.try_write_marker(1) == Phase::Switching).then_some((world, first))
        };
        (0..100).find_map(attempt).expect("TCP without room")
    }

    /// Reads `length` bytes, in reads of any size.
    fn receive_all(&self, index: usize, length: usize) -> Vec<u8> {
        let (mut read, mut refused) = (Vec::new(), 0);
        while read.len() < length {
            match self.receive(index, length - read.len()) {
                Ok(bytes) => read.extend(bytes),
                Err(error) => {
                    assert_eq!(error, Errno::EAGAIN);
                    refused += 1;
                    assert!(refused < 1_000_000, "{} of {length} bytes arrived", read.len());
                }
            }
        }
        read
    }

    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Makes an end begin its return to TCP. Returns true if it does.
    fn begin_home(&self, index: usize) -> bool {
        let streams = lock(&self.network.streams);
        let connection = &self.ends[index].connection;
        let stream = streams.iter().find(|(.., of)| Arc::ptr_eq(of, connection));
        stream.is_some_and(|(stream, ..)| !connection.is_left() && stream.begin_home())
    }

    /// Marks the group as lost, and notifies one end.
    fn lose_group(&self, index: usize) {
        self.network.is_lost.store(true, Ordering::Relaxed);
        lock(&self.network.unacknowledged).clear();
        let streams = lock(&self.network.streams);
        let connection = &self.ends[index].connection;
        let Some((stream, ..)) = streams.iter().find(|(.., of)| Arc::ptr_eq(of, connection)) else {
            return;
        };
        if connection.moved().is_some() {
            stream.on_group_lost();
        } else {
            stream.on_group_lost_early();
            drop(connection.on(Event::GroupLost, Instant(0)));
        }
    }

    /// Sends bytes like a non-blocking program.
    pub(crate) fn send(&self, index: usize, bytes: &[u8]) -> Result<usize, Errno> {
        let flags = SendFlags { dont_wait: true, ..SendFlags::default() };
        self.ends[index].call(|connection, fd| connection.send(fd, &[IoSlice::new(bytes)], flags))
    }

    /// Receives bytes like a non-blocking program.
    pub(crate) fn receive(&self, index: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0; length];
        let flags = ReceiveFlags { dont_wait: true, ..ReceiveFlags::default() };
        let count = self.ends[index].call(|connection, fd| {
            connection.receive(fd, &mut [IoSliceMut::new(&mut bytes)], flags)
        })?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// Closes the program's descriptor at one end.
    pub(crate) fn close(&self, index: usize) {
        let descriptors = &self.ends[index].descriptors;
        drop((lock(&descriptors.put).take(), lock(&descriptors.tcp).take()));
        self.ends[index].connection.released();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Clear the list, because the network and the connections own each other.
        lock(&self.network.streams).clear();
    }
}

impl TestEnd {
    /// Calls `work` with the connection and the program's descriptor.
    pub(crate) fn call<R>(&self, work: impl FnOnce(&Connection, BorrowedFd<'_>) -> R) -> R {
        let put = lock(&self.descriptors.put).clone();
        match put {
            Some(end) => work(&self.connection, end.as_fd()),
            None => work(&self.connection, self.tcp.as_fd()),
        }
    }

    /// Returns a copy of the program's descriptor. A test uses it for kernel calls, like another
    /// process.
    pub(crate) fn kernel(&self) -> std::os::unix::net::UnixStream {
        let put = lock(&self.descriptors.put).clone().expect("it has moved");
        put.try_clone().expect("a descriptor").into()
    }
}

/// Size of each ring in bytes.
pub(crate) const RING: u32 = 16 * 1024;

/// Number of steps of a move in [`World::move_on`].
pub(crate) const MOVE_STEPS: usize = 3;

const MARKERS: [SwitchMarker; 2] =
    [SwitchMarker(*b"0000000000000001"), SwitchMarker(*b"0000000000000002")];

#[test]
fn bytes_from_tcp_come_before_those_from_the_ring() {
    let world = World::new();
    let mut expected = Vec::new();
    for step in 0..=MOVE_STEPS {
        let bytes = format!("step {step}: 000000000000000");
        assert_eq!(world.send(0, bytes.as_bytes()), Ok(bytes.len()));
        assert_eq!(world.send(1, bytes.as_bytes()), Ok(bytes.len()));
        expected.extend_from_slice(bytes.as_bytes());
        if step < MOVE_STEPS {
            world.move_on(step);
        }
    }
    for index in 0..2 {
        let mut read = Vec::new();
        while read.len() < expected.len() {
            match world.receive(index, 10) {
                Ok(bytes) => read.extend(bytes),
                Err(error) => assert_eq!(error, Errno::EAGAIN),
            }
        }
        assert_eq!(read, expected);
        assert_eq!(world.receive(index, 1), Err(Errno::EAGAIN));
    }
}

//= sockets-protocol.md: join.3
#[test]
fn a_connection_whose_first_answer_fills_tcp_moves_when_there_is_room() {
    let (world, first) = World::with_waiting_marker();
    // The switch marker waits for room in TCP. The program's next bytes must follow the marker, so
    // they wait, too.
    assert_eq!(world.receive_all(0, first.len()), first);
    assert_eq!(world.send(1, b"more"), Err(Errno::EAGAIN));
    world.write_marker(1);
    world.write_marker(0);
    assert_eq!(world.send(1, b"more"), Ok(4));
    assert_eq!(world.receive_all(0, 4), b"more");
}

//= sockets-protocol.md: join.3
#[test]
fn a_program_continues_on_tcp_after_the_marker_was_abandoned() {
    let (world, first) = World::with_waiting_marker();
    let later = Instant(0).after_ns(ANSWER_WITHIN_NS / 2);
    let waits = Event::MarkerWaits { has_begun: false };
    let given_up = world.ends[1].connection.on(waits, later);
    assert!(given_up.contains(&Action::SendRefused(Refusal::Busy)));
    drop(world.ends[0].connection.on(Event::Refused(Refusal::Busy), later));
    assert_eq!(world.receive_all(0, first.len()), first);
    assert_eq!(world.send(1, b"more"), Ok(4));
    assert_eq!(world.receive_all(0, 4), b"more");
}

#[test]
fn the_end_follows_the_bytes_and_the_other_direction_stays_open() {
    let world = World::moved();
    assert_eq!(world.send(0, b"question"), Ok(8));
    let shut = |connection: &Connection, fd: BorrowedFd<'_>| {
        connection.shutdown(fd, std::net::Shutdown::Write)
    };
    assert_eq!(world.ends[0].call(shut), Ok(()));
    assert_eq!(world.send(0, b"more"), Err(Errno::EPIPE));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"question".as_slice()));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"".as_slice()));
    assert!(world.ends[1].connection.readiness().peer_ended);
    assert_eq!(world.send(1, b"answer"), Ok(6));
    world.close(1);
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"answer".as_slice()));
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"".as_slice()));
    world.close(0);
    world.network.carry();
    assert!(lock(&world.network.streams).iter().all(|(stream, ..)| stream.has_ended()));
}

#[test]
fn after_a_reset_received_bytes_are_read_and_then_the_error_once() {
    let world = World::moved();
    assert_eq!(world.send(0, b"unread"), Ok(6));
    assert_eq!(world.send(1, b"last"), Ok(4));
    world.network.carry();
    world.close(1);
    world.network.carry();
    assert!(world.ends[0].connection.readiness().error);
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"last".as_slice()));
    assert_eq!(world.receive(0, 100), Err(Errno::ECONNRESET));
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"".as_slice()));
    assert_eq!(world.send(0, b"more"), Err(Errno::EPIPE));
    world.close(0);
    world.network.carry();
    assert!(lock(&world.network.streams).iter().all(|(stream, ..)| stream.has_ended()));
}

#[test]
fn rings_are_reused_only_when_no_call_uses_them() {
    let world = World::moved();
    assert_eq!(world.send(1, b"unread"), Ok(6));
    world.network.carry();
    world.close(1);
    world.network.carry();
    let (stream, ..) = lock(&world.network.streams)[0].clone();
    for lock_of_call in [&stream.readers, &stream.writers] {
        let inside = lock(lock_of_call);
        if !stream.has_ended() {
            world.close(0);
            world.network.carry();
        }
        assert!(stream.has_ended() && !stream.retire());
        drop(inside);
    }
    assert!(stream.retire());
    let mut late = [0; 10];
    let read = stream.read(&mut [IoSliceMut::new(&mut late)], 0, false);
    assert!(!matches!(read, Ok(1..)), "the ring may contain bytes of another stream: {read:?}");
}

#[test]
fn an_error_that_cuts_a_call_short_is_returned_by_the_next_call() {
    let world = World::moved();
    let stream = Arc::clone(&lock(&world.network.streams)[0].0);
    stream.on_lost();
    // Each call has already transferred one byte. The stream must keep its error for the next call.
    assert!(stream.write(&[IoSlice::new(b"ab")], 1).is_err());
    assert!(stream.read(&mut [IoSliceMut::new(&mut [0; 2])], 1, false).is_err());
    assert_eq!(world.send(0, b"c"), Err(Errno::ECONNRESET));
    assert_eq!(world.send(0, b"c"), Err(Errno::EPIPE));
}

#[test]
fn a_write_to_a_closed_connection_is_reset() {
    let world = World::moved();
    world.close(1);
    world.network.carry();
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"".as_slice()));
    assert_eq!(world.send(0, b"lost"), Ok(4));
    world.network.carry();
    assert_eq!(world.send(0, b"more"), Err(Errno::EPIPE));
}

#[test]
fn tcp_detects_the_death_of_the_peer() {
    let mut world = World::moved();
    assert_eq!(world.send(1, b"last"), Ok(4));
    world.network.carry();
    // Do what the kernel does when a process is killed: shut the socket down.
    let (stream, ..) = lock(&world.network.streams).pop().expect("two");
    let tcp = TcpStream::from(stream.socket().try_clone().expect("a descriptor"));
    tcp.shutdown(std::net::Shutdown::Both).expect("connected");
    world.ends[1].tcp.flush().expect("nothing to do");
    for (stream, ..) in lock(&world.network.streams).iter() {
        stream.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
    }
    assert_eq!(world.receive(0, 100).as_deref(), Ok(b"last".as_slice()));
    assert_eq!(world.receive(0, 100), Err(Errno::ECONNRESET));
}

#[test]
fn bytes_held_back_as_a_marker_are_readable_after_the_connection_is_left_to_tcp() {
    let world = World::new();
    assert!(world.move_on(0));
    assert_eq!(world.send(1, &MARKERS[0].0[..3]), Ok(3));
    assert_eq!(world.receive(0, 100), Err(Errno::EAGAIN));
    drop(world.ends[0].connection.on(Event::Refused(Refusal::Busy), Instant(0)));
    assert_eq!(world.receive(0, 100).as_deref(), Ok(&MARKERS[0].0[..3]));
}

/// Bytes that may begin a marker stay in a buffer of the kernel. The kernel must still accept later
/// bytes.
#[test]
fn bytes_follow_those_that_may_be_the_marker() {
    const SENT: usize = 1 << 20;
    let held = SwitchMarker::BYTES - 1;
    for round in 0..40 {
        let world = World::new();
        assert!(world.move_on(0));
        let bytes = vec![MARKERS[0].0[0]; 60_000];
        let (mut sent, mut received) = (0, 0);
        while received + held < SENT {
            while sent < SENT {
                let length = (1 + sent * 7 % (500 * (round + 1))).min(SENT - sent);
                let Ok(count) = world.send(1, &bytes[..length]) else { break };
                sent += count;
            }
            while let Ok(bytes) = world.receive(0, 60_000) {
                received += bytes.len();
            }
        }
    }
}

/// A program that polls and reads a few bytes each time must receive all bytes, although bytes that
/// may be the switch marker stay in the kernel.
#[test]
fn bytes_follow_those_that_may_be_the_marker_for_a_polling_program() {
    const SENT: usize = 8 << 20;
    for read_length in [8192, 100_000, 300_000, 1 << 20] {
        let world = World::new();
        assert!(world.move_on(0));
        let bytes = vec![MARKERS[0].0[0]; 1 << 20];
        let (mut sent, mut received, mut looks) = (0, 0, 0);
        while received + SwitchMarker::BYTES - 1 < SENT {
            while sent < SENT {
                let length = bytes.len().min(SENT - sent);
                let Ok(count) = world.send(1, &bytes[..length]) else { break };
                sent += count;
            }
            if world.ends[0].call(Connection::has_nothing_to_read) {
                looks += 1;
                assert!(looks < 10_000, "{received} of {sent} bytes arrived");
                poll(&mut [], PollTimeout::from(1_u8)).expect("a moment");
            } else if let Ok(bytes) = world.receive(0, read_length) {
                received += bytes.len();
            }
        }
    }
}

/// After a short read, a program with edge-triggered epoll expects an event for the next bytes.
#[test]
fn a_read_that_takes_bytes_from_tcp_raises_an_edge() {
    let world = World::new();
    assert!(world.move_on(0) && world.move_on(1));
    let events = world.ends[1].call(|connection, fd| {
        connection.watch_edges();
        let set = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).expect("a set");
        let wanted = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        set.add(fd, EpollEvent::new(wanted, 1)).expect("added");
        move || set.wait(&mut [EpollEvent::empty()], EpollTimeout::ZERO).expect("a wait")
    });
    assert_eq!(world.send(0, b"one"), Ok(3));
    world.network.carry();
    assert_eq!(events(), 1);
    // These bytes stay in TCP until the program reads.
    assert_eq!(world.send(0, b"two"), Ok(3));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"one".as_slice()));
    assert_eq!(events(), 1);
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"two".as_slice()));
}

#[test]
fn a_closing_connection_either_begins_to_move_or_is_left_to_tcp() {
    for _ in 0..500 {
        let world = World::new();
        let start = std::sync::Barrier::new(2);
        let begins = std::thread::scope(|scope| {
            let begins = scope.spawn(|| {
                start.wait();
                world.begin(0)
            });
            start.wait();
            world.ends[0].connection.released();
            begins.join().expect("no panic")
        });
        assert_eq!(world.ends[0].connection.is_left(), !begins);
    }
}

#[test]
fn a_process_that_ends_after_its_connection_causes_no_reset() {
    for is_seen_by_tcp in [false, true] {
        let world = World::moved();
        assert_eq!(world.send(1, b"last"), Ok(4));
        world.close(1);
        world.network.carry();
        let streams = lock(&world.network.streams).clone();
        if is_seen_by_tcp {
            let tcp = streams[1].0.socket().try_clone().expect("a descriptor");
            TcpStream::from(tcp).shutdown(std::net::Shutdown::Both).expect("connected");
            streams[0].0.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
        } else {
            streams[0].0.on_lost();
        }
        let readiness = world.ends[0].connection.readiness();
        assert!(readiness.peer_ended && !readiness.error && !readiness.hung_up);
        assert_eq!(world.receive(0, 100).as_deref(), Ok(b"last".as_slice()));
        assert_eq!(world.receive(0, 100).as_deref(), Ok(b"".as_slice()));
        assert_eq!(world.send(0, b"more"), Err(Errno::EPIPE));
        world.close(0);
        world.network.carry();
        assert!(streams[0].0.has_ended());
    }
}

/// A read may find the end of TCP before the engine has handled the peer's End, which was sent
/// first.
#[test]
fn a_read_does_not_see_the_end_of_tcp() {
    let world = World::moved();
    let stream = Arc::clone(&lock(&world.network.streams)[0].0);
    world.ends[1].tcp.shutdown(std::net::Shutdown::Both).expect("connected");
    stream.pump(false);
    assert!(!stream.state.is_broken());
    stream.on_descriptor(StreamDescriptor::Tcp, Readiness::READABLE);
    assert!(stream.state.is_broken());
}

#[test]
fn a_connection_closed_during_its_move_ends_in_order() {
    for index in 0..2 {
        let world = World::new();
        assert_eq!(world.send(0, b"zero"), Ok(4));
        assert_eq!(world.receive(1, 100).as_deref(), Ok(b"zero".as_slice()));
        assert!(world.move_on(0));
        assert_eq!(world.send(index, b"last"), Ok(4));
        if index == 0 {
            assert!(world.move_on(1));
            world.close(0);
            assert!(world.move_on(2));
        } else {
            assert!(world.move_on(1) && world.move_on(2));
            world.close(1);
        }
        world.network.carry();
        assert_eq!(world.receive(1 - index, 100).as_deref(), Ok(b"last".as_slice()));
        assert_eq!(world.receive(1 - index, 100).as_deref(), Ok(b"".as_slice()));
        assert!(!world.ends[1 - index].connection.readiness().error);
        world.close(1 - index);
        world.network.carry();
        assert!(lock(&world.network.streams).iter().all(|(stream, ..)| stream.has_ended()));
    }
}

#[test]
fn another_process_reads_and_writes_the_descriptor_of_a_relayed_connection() {
    let world = World::moved();
    world.ends[0].connection.watch();
    assert_eq!(world.send(1, b"before"), Ok(6));
    world.network.carry();
    world.ends[0].call(Connection::relay);
    let mut kernel = world.ends[0].kernel();
    let mut bytes = [0; 6];
    kernel.read_exact(&mut bytes).expect("bytes");
    assert_eq!(&bytes, b"before");
    let long: Vec<u8> = (0..100_000_u32).map(|at| (at % 253) as u8).collect();
    let (mut written, mut read) = (0, Vec::new());
    while read.len() < long.len() {
        written += kernel.write(&long[written..]).unwrap_or(0);
        read.extend(world.receive(1, 5000).unwrap_or_default());
    }
    assert_eq!(read, long);
    let (mut sent, mut read) = (0, Vec::new());
    while read.len() < long.len() {
        sent += world.send(1, &long[sent..]).unwrap_or(0);
        world.network.held.push_all();
        world.network.carry();
        let mut bytes = [0; 5000];
        let count = kernel.read(&mut bytes).unwrap_or(0);
        read.extend_from_slice(&bytes[..count]);
    }
    assert_eq!(read, long);
    kernel.write_all(b"bye").expect("room");
    drop(kernel);
    world.close(0);
    world.network.carry();
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"bye".as_slice()));
    assert_eq!(world.receive(1, 100).as_deref(), Ok(b"".as_slice()));
}

#[test]
fn a_blocking_read_returns_all_requested_bytes() {
    let world = World::moved();
    let long: Vec<u8> = (0..5 * RING).map(|at| (at % 253) as u8).collect();
    let mut read = Vec::new();
    let mut sent = 0;
    while read.len() < long.len() {
        sent += world.send(0, &long[sent..]).unwrap_or(0);
        let mut bytes = vec![0; (sent - read.len()).max(1)];
        let flags = ReceiveFlags { wait_all: true, ..ReceiveFlags::default() };
        // The descriptor is non-blocking, so the call returns the bytes that have arrived.
        let count = world.ends[1].call(|connection, fd| {
            connection.receive(fd, &mut [IoSliceMut::new(&mut bytes)], flags)
        });
        read.extend_from_slice(&bytes[..count.unwrap_or(0)]);
    }
    assert_eq!(read, long);
}

/// A thread within a call notices that the connection was left to TCP. The thread must continue to
/// wait for TCP.
#[test]
fn a_call_continues_to_wait_for_tcp_on_a_connection_left_to_tcp() {
    let world = World::new();
    world.ends[0].connection.leave(Reason::NoOffer);
    let received = world.ends[0].call(|connection, fd| {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).expect("it blocks");
        connection.receive(fd, &mut [IoSliceMut::new(&mut [0])], ReceiveFlags::default())
    });
    assert_eq!(received, Err(Errno::EAGAIN), "the network has timed out");
}

#[test]
fn a_write_that_times_out_leaves_the_descriptor_unwritable() {
    let world = World::moved();
    let bytes = vec![1; 4 * RING as usize];
    let sent = world.ends[0].call(|connection, fd| {
        fcntl(fd, FcntlArg::F_SETFL(OFlag::empty())).expect("it blocks");
        connection.send(fd, &[IoSlice::new(&bytes)], SendFlags::default())
    });
    assert!(sent.expect("a part of it") < bytes.len());
    let kernel = world.ends[0].kernel();
    let mut entries = [PollFd::new(kernel.as_fd(), PollFlags::POLLOUT)];
    assert_eq!(poll(&mut entries, PollTimeout::ZERO), Ok(0));
}

/// A step of the programs or of the network.
#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize, usize),
    Receive(usize, usize),
    Move,
    Carry,
    /// Starts or stops delaying acknowledgements.
    Slow(bool),
    Shut(usize),
    /// An end begins its return to TCP.
    Home(usize),
    /// An end notices that the group is lost.
    Lose(usize),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    use proptest::prelude::*;
    let step = prop_oneof![
        4 => (0_usize..2, 1_usize..9000).prop_map(|(index, length)| Step::Send(index, length)),
        4 => (0_usize..2, 1_usize..9000).prop_map(|(index, length)| Step::Receive(index, length)),
        1 => Just(Step::Move),
        2 => Just(Step::Carry),
        1 => any::<bool>().prop_map(Step::Slow),
    ];
    let of_end = prop_oneof![
        (0_usize..2).prop_map(Step::Shut),
        (0_usize..2).prop_map(Step::Home),
        (0_usize..2).prop_map(Step::Lose),
    ];
    let rare = (0_usize..80, of_end);
    (proptest::collection::vec(step, 1..80), proptest::collection::vec(rare, 0..4)).prop_map(
        |(mut steps, rare)| {
            for (at, step) in rare {
                steps.insert(at.min(steps.len()), step);
            }
            steps
        },
    )
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]
    #[test]
    fn bytes_arrive_once_in_order_however_a_connection_moves(steps in steps()) {
        let world = World::new();
        let (mut moved, mut written, mut read) = (0, [0_usize; 2], [0_usize; 2]);
        let mut is_shut = [false; 2];
        let byte = |index: usize, at: usize| (at * 31 / 7 + index * 101) as u8;
        let receive = |read: &mut [usize; 2], index: usize, length| {
            let bytes = world.receive(index, length);
            for got in bytes.as_deref().unwrap_or_default() {
                assert_eq!(*got, byte(1 - index, read[index]));
                read[index] += 1;
            }
            bytes
        };
        for step in steps {
            match step {
                Step::Send(index, length) => {
                    let bytes: Vec<u8> =
                        (written[index]..).take(length).map(|at| byte(index, at)).collect();
                    written[index] += world.send(index, &bytes).unwrap_or(0);
                }
                Step::Receive(index, length) => drop(receive(&mut read, index, length)),
                Step::Move if moved < MOVE_STEPS => {
                    moved = if world.move_on(moved) { moved + 1 } else { usize::MAX };
                }
                Step::Carry => world.network().carry(),
                Step::Slow(is_slow) => world.network.is_slow.store(is_slow, Ordering::Relaxed),
                Step::Shut(index) => {
                    let how = std::net::Shutdown::Write;
                    let shut = world.ends[index].call(|connection, fd| connection.shutdown(fd, how));
                    // As in TCP, a second shutdown may fail, and so may a shutdown after the end.
                    let may_fail = is_shut[index];
                    proptest::prop_assert!(shut == Ok(()) || may_fail, "{shut:?}");
                    is_shut[index] = true;
                }
                Step::Home(index) => drop(world.begin_home(index)),
                Step::Lose(index) if moved == MOVE_STEPS => {
                    world.network().carry();
                    world.lose_group(index);
                }
                Step::Move | Step::Lose(_) => {}
            }
        }
        world.network.is_slow.store(false, Ordering::Relaxed);
        while (1..MOVE_STEPS).contains(&moved) {
            moved = if world.move_on(moved) { moved + 1 } else { usize::MAX };
        }
        for _ in 0..200 {
            for index in 0..2 {
                drop(receive(&mut read, index, 20_000));
                world.network.held.push_all();
            }
        }
        proptest::prop_assert_eq!([read[1], read[0]], written);
        for index in 0..2 {
            let at_end = if is_shut[1 - index] { Ok(Vec::new()) } else { Err(Errno::EAGAIN) };
            proptest::prop_assert_eq!(world.receive(index, 1), at_end);
        }
    }
}

#[test]
fn an_end_deferred_during_the_move_is_delivered() {
    let world = World::new();
    let shut = |connection: &Connection, fd: BorrowedFd<'_>| {
        connection.shutdown(fd, std::net::Shutdown::Write)
    };
    // The switch marker must not wait for the acknowledgement of earlier bytes.
    world.ends[0].tcp.set_nodelay(false).expect("a socket");
    assert_eq!(world.send(0, b"a"), Ok(1));
    assert!(world.move_on(0) && world.move_on(1));
    assert_eq!(world.send(0, b"b"), Ok(1));
    assert_eq!(world.ends[0].call(shut), Ok(()));
    assert!(world.move_on(2));
    let mut read = Vec::new();
    while read.len() < 2 {
        read.extend(world.receive(1, 1).unwrap_or_default());
    }
    assert_eq!(world.receive(1, 1), Ok(Vec::new()));
}

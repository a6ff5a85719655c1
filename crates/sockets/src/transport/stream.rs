//! One moved connection: what goes between its rings and the link group.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use delivery::Instant;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, Shutdown, getsockopt, send, setsockopt, shutdown, sockopt};
use runtime::{Mark, Readiness as DescriptorReadiness};
use thiserror::Error;

use crate::counters;
use crate::lock::lock;
use crate::migration::homing::{HomeStep, Homing, Record};
use crate::migration::life::{Course, Life};
use crate::migration::machine::Event;
use crate::reasons::Reason;
use crate::transport::held::{HeldFlag, HoldsBytes};
use crate::transport::readiness::{End, Readiness};
use crate::transport::receiving::ReceiveHalf;
use crate::transport::relay::Relay;
use crate::transport::ring::RingPart;
use crate::transport::ring::{Ring, RingSize};
use crate::transport::sending::{Segment, SendHalf};
use crate::transport::state::{Bit, State};
use crate::transport::stream_doorbell::StreamDescriptor;
use crate::transport::stream_doorbell::StreamDoorbell;
use crate::transport::tcp_part::{Awaited, Pumped, TcpPart};
use crate::wire::SwitchMarker;

/// What a stream is made of, when it begins to move.
pub(crate) struct StreamParts {
    /// What the program writes waits here until the peer has it.
    pub(crate) send: RingPart,
    /// Here the peer writes.
    pub(crate) receive: RingPart,
    /// What the peer writes into the TCP connection when its bytes come by the ring.
    pub(crate) expected: SwitchMarker,
    /// What the peer writes instead if it cannot learn of that: the switch marker that this side writes.
    pub(crate) echo: Option<SwitchMarker>,
    /// How it calls for its group.
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
}

/// What a stream has for the group to post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Out {
    /// Bytes to write to the peer's ring: they wrap around in neither ring.
    Data {
        /// Offset in the send ring.
        at: u32,
        /// Bytes, at least one.
        length: u32,
        /// Offset in the peer's ring.
        to: u32,
    },
    /// So much was consumed in all.
    Credit(u64),
    /// No more than so many bytes come in all.
    End(u64),
    /// The connection is reset.
    Reset,
    /// No more bytes come by the group: the stream goes home.
    Home,
}

/// The peer's data is not what a peer may send.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Misbehaved {
    /// Bytes not where they follow, or more than there is room for.
    #[error("{length} bytes at {at} of the ring, which do not follow or have no room")]
    Data {
        /// Offset in the ring.
        at: u32,
        /// Bytes.
        length: u32,
    },
    /// More credit than was sent, or less than before.
    #[error("credit for {0} bytes, which is more than was sent or less than before")]
    Credit(u64),
    /// An end elsewhere than after the last byte, or a second one.
    #[error("an end after {0} bytes, which is not where the data ends")]
    End(u64),
}

/// One moved connection, or one about to move. What is called `on_*`, and `next`, is called inside the engine.
///
/// The program's threads and whoever is inside the engine need no common lock for bytes: see [`SendHalf`] and
/// [`ReceiveHalf`]. What the program's threads do is in `calls.rs`.
pub(crate) struct Stream {
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
    /// Raised when a thread of the program that waits should look again.
    pub(crate) mark: Arc<Mark>,
    pub(crate) sending: SendHalf,
    pub(crate) receiving: ReceiveHalf,
    /// The program's threads take it to write, and to read.
    pub(crate) writers: Mutex<()>,
    pub(crate) readers: Mutex<()>,
    pub(crate) tcp: TcpPart,
    pub(crate) end: End,
    pub(crate) relay: Relay,
    pub(crate) state: State,
    life: Arc<Life>,
    /// What the program is told once, of a connection that was reset; 0 for nothing.
    error: AtomicI32,
    is_held: HeldFlag,
    /// The way home, once it has begun.
    homing: Mutex<Option<Homing>>,
    /// The peer's record, until the way home has begun here.
    peer_record: Mutex<Option<Record>>,
}

/// How far the way home has come.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeProgress {
    /// It has not begun, or goes on when something comes.
    Waits,
    /// A thread of the program is inside a call, out of which it comes at once.
    InCall,
    /// All that is left is to put the TCP socket in its place.
    Arrived,
}

impl Stream {
    /// One that expects its switch marker from now on, on this TCP socket; it sends nothing by the group before
    /// [`Stream::open`].
    ///
    /// # Panics
    /// If a ring is not one.
    pub(crate) fn new(
        parts: StreamParts,
        tcp: OwnedFd,
        mark: Arc<Mark>,
        life: Arc<Life>,
    ) -> Arc<Self> {
        let StreamParts { send, receive, expected, echo, doorbell } = parts;
        let [send, receive] = [send, receive].map(|RingPart { memory, offset, bytes }| {
            let size = RingSize::new(bytes);
            assert!(size.is_some(), "no ring has {bytes} bytes");
            size.map(|size| Ring::new(memory, offset, size))
        });
        let (Some(send), Some(receive)) = (send, receive) else { unreachable!("asserted above") };
        Arc::new(Self {
            doorbell,
            mark,
            sending: SendHalf::new(send),
            receiving: ReceiveHalf::new(receive),
            writers: Mutex::new(()),
            readers: Mutex::new(()),
            tcp: TcpPart::new(tcp, expected, echo),
            end: End::default(),
            relay: Relay::default(),
            state: State::default(),
            life,
            error: AtomicI32::new(0),
            is_held: HeldFlag::default(),
            homing: Mutex::default(),
            peer_record: Mutex::default(),
        })
    }

    /// The peer's ring has so many bytes, and this side's switch marker is in the TCP connection: bytes go by the
    /// group. Without a ring none do: the stream is about to go home.
    pub(crate) fn open(&self, peer_ring: Option<u32>) {
        if let Some(peer_ring) = peer_ring {
            let Some(size) = RingSize::new(peer_ring) else {
                self.fail();
                return;
            };
            self.sending.open(size);
        } else {
            self.tcp.give_up_ring();
        }
        self.state.set(Bit::Open);
        if !self.watch_tcp(DescriptorReadiness::READABLE) {
            self.fail();
            return;
        }
        self.pump(false);
        self.notify_arrival();
        self.doorbell.mark();
    }

    fn watch_tcp(&self, wanted: DescriptorReadiness) -> bool {
        self.doorbell.watch(StreamDescriptor::Tcp, self.tcp.socket().as_fd(), wanted).is_ok()
    }

    fn unwatch_tcp(&self) {
        self.doorbell.unwatch(self.tcp.socket().as_fd());
    }

    /// Whether the peer's switch marker is among the bytes that TCP has. They stay there.
    pub(crate) fn is_marker_there(&self) -> bool {
        self.tcp.is_marker_there()
    }

    //= sockets-protocol.md: join.6
    /// Looks for the peer's switch marker while the program reads TCP, and returns the event for the connection. If TCP
    /// has no bytes, the stream is notified when some come.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let awaited = self.tcp.look_for_marker();
        if awaited == Awaited::Nothing {
            // Without this it is noticed when the program reads.
            self.watch_tcp(DescriptorReadiness::READABLE);
        } else {
            self.unwatch_tcp();
        }
        match awaited {
            Awaited::There => Some(Event::MarkerCame),
            Awaited::BehindBytes => Some(Event::MarkerEarly),
            Awaited::Nothing | Awaited::Never => None,
        }
    }

    /// Whether the peer's switch marker never comes: TCP has ended without it.
    pub(crate) fn is_marker_lost(&self) -> bool {
        self.tcp.look_for_marker() == Awaited::Never
    }

    /// The group is lost before the stream has opened.
    pub(crate) fn on_group_lost_early(&self) {
        self.state.set(Bit::GroupLost);
    }

    /// What to post next, if anything. What was given is under way until it is acknowledged or was not posted.
    #[inline]
    pub(crate) fn next(&self, _now: Instant) -> Option<Out> {
        let state = &self.state;
        if state.is_broken() {
            return self.next_reset();
        }
        if state.has(Bit::GroupLost) {
            return None;
        }
        if self.leaves_edge() {
            return state.set(Bit::HomePosted).then_some(Out::Home);
        }
        if self.is_ringless() {
            return None;
        }
        if let Some(consumed) = self.receiving.next_credit() {
            return Some(Out::Credit(consumed));
        }
        if let Some(Segment { at, length, to }) = self.sending.next() {
            return Some(Out::Data { at, length, to });
        }
        let is_ending = state.has(Bit::WriteShut) && state.has(Bit::Open);
        // Nothing is added to what was written once writing is shut.
        (is_ending && self.sending.is_posted() && state.set(Bit::EndPosted))
            .then(|| Out::End(self.sending.written()))
    }

    /// Whether no byte goes by the group: the stream is about to go home, and its peer takes none.
    #[inline]
    fn is_ringless(&self) -> bool {
        self.state.has(Bit::Ringless)
    }

    fn next_reset(&self) -> Option<Out> {
        let is_due = self.state.has(Bit::ResetDue) && !self.state.has(Bit::Lost);
        (is_due && self.state.set(Bit::ResetPosted)).then_some(Out::Reset)
    }

    /// The engine had no room for what [`Stream::next`] gave: it comes again.
    pub(crate) fn not_posted(&self, out: Out) {
        match out {
            Out::Data { length, .. } => self.sending.take_back(length),
            Out::Credit(_) => self.receiving.take_back(),
            Out::End(_) => self.state.clear(Bit::EndPosted),
            Out::Reset => self.state.clear(Bit::ResetPosted),
            Out::Home => self.state.clear(Bit::HomePosted),
        }
    }

    /// The oldest data under way, so many bytes, is placed at the peer.
    #[inline]
    pub(crate) fn on_acknowledged(&self, length: u32) {
        counters::add_sent(length.into());
        self.sending.on_acknowledged(length);
        self.mark.raise();
        if !self.sending.is_posted() {
            // What was held back until now may go.
            self.doorbell.mark();
        }
        self.on_relay_change();
    }

    /// The peer's process has the end.
    pub(crate) fn on_end_acknowledged(&self) {
        self.state.set(Bit::EndAcknowledged);
        self.mark.raise();
    }

    /// The peer has written to the ring here.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Misbehaved> {
        let arrived = self.receiving.on_arrived(at, length);
        arrived.map_err(|_| Misbehaved::Data { at, length })?;
        counters::add_received(length.into());
        if self.state.has(Bit::Released) {
            // Nobody will read it: the peer is to know, as of a TCP connection.
            self.reset();
            return Ok(());
        }
        self.notify_arrival();
        Ok(())
    }

    /// The peer has consumed so much in all.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<(), Misbehaved> {
        let has_record = || lock(&self.homing).as_ref().is_some_and(Homing::has_record);
        if self.leaves_edge() && has_record() {
            // The record says what the peer's program has taken; bytes behind that go by TCP, whatever comes later.
            return Ok(());
        }
        if self.sending.on_credit(consumed).map_err(|_| Misbehaved::Credit(consumed))? {
            self.doorbell.mark();
            self.mark.raise();
            if self.has_room() {
                self.end.on_room();
            }
            self.on_relay_change();
        }
        Ok(())
    }

    /// The peer sends no more than this in all.
    pub(crate) fn on_end(&self, bytes: u64) -> Result<(), Misbehaved> {
        self.receiving.on_end(bytes).map_err(|_| Misbehaved::End(bytes))?;
        self.mark.raise();
        if self.tcp.is_switched() {
            self.end.on_end();
        }
        self.on_relay_change();
        Ok(())
    }

    //= sockets-protocol.md: data.5
    /// The peer has reset the connection.
    pub(crate) fn on_reset(&self) {
        self.break_off(&[Bit::PeerReset, Bit::ResetDue]);
        self.doorbell.mark();
    }

    /// The group is lost, or the peer misbehaved: nothing comes or goes any more.
    pub(crate) fn on_lost(&self) {
        self.state.set(Bit::GroupLost);
        self.on_peer_lost(&[Bit::Lost]);
    }

    //= sockets-protocol.md: home.4
    /// The group is lost. The stream goes home, if both ends have come so far that they can.
    pub(crate) fn on_group_lost(&self) {
        self.state.set(Bit::GroupLost);
        // The peer's process has ended in order. A record would be answered with a reset, which the program would get
        // instead of the end.
        let has_peer_ended = self.receiving.has_end() && self.tcp.is_at_end();
        if self.leaves_edge() || (!has_peer_ended && self.can_go_home()) {
            self.life.on_untimed(Event::Return);
            self.doorbell.mark();
        } else {
            self.on_lost();
        }
    }

    /// The process ends. Its peer has all bytes and the end: it learns by TCP that nothing else follows, before it learns
    /// that the group is lost.
    pub(crate) fn end_tcp(&self) {
        if self.state.has(Bit::EndAcknowledged) && !self.leaves_edge() {
            let _closed = shutdown(self.tcp.socket().as_raw_fd(), Shutdown::Write);
        }
    }

    /// Whether nothing goes by the group any more, as it goes home or is there.
    #[inline]
    pub(crate) fn leaves_edge(&self) -> bool {
        matches!(self.life.course(), Course::GoingHome | Course::Kernel(_))
    }

    /// Whether the kernel does the rest.
    pub(crate) fn is_home(&self) -> bool {
        self.life.course() == Course::Kernel(Reason::Home)
    }

    /// Whether it is at a place from which a way leads home, perhaps after the program has read what came by TCP. If
    /// the group is lost that may be before the peer's switch marker has come. A stream that ends in order has no need
    /// to, but follows its peer, which may not have known that.
    fn can_go_home(&self) -> bool {
        let end_bit =
            if self.state.has(Bit::GroupLost) { Bit::EndAcknowledged } else { Bit::EndPosted };
        let is_ending = self.state.has(end_bit) && self.receiving.has_end();
        self.state.has(Bit::Open)
            && (self.tcp.is_switched() || self.state.has(Bit::GroupLost))
            && !self.state.is_broken()
            && !self.relay.is_on()
            && (!is_ending || lock(&self.peer_record).is_some())
    }

    /// Begins the way home: no bytes go by the group any more, and the program's calls wait until it is home. False if it
    /// cannot. Outside of the engine.
    pub(crate) fn begin_home(&self) -> bool {
        let _writers = lock(&self.writers);
        let _readers = lock(&self.readers);
        self.begin_home_locked()
    }

    /// The caller holds the locks of readers and writers.
    fn begin_home_locked(&self) -> bool {
        if self.leaves_edge() {
            return true;
        }
        if !self.can_go_home() || !self.tcp.is_read() {
            return false;
        }
        let written = self.sending.written();
        let homing = if self.life.has_ended_tcp() {
            Homing::without_record(written)
        } else {
            Homing::new(self.receiving.consumed(), written)
        };
        *lock(&self.homing) = Some(homing);
        self.life.on_untimed(Event::LeaveEdge);
        self.doorbell.mark();
        true
    }

    /// Goes on with the way home. Inside the engine, where no thread waits for one of the program.
    pub(crate) fn go_home(&self) -> HomeProgress {
        let course = self.life.course();
        if !matches!(course, Course::Returning | Course::GoingHome) {
            return HomeProgress::Waits;
        }
        if course == Course::Returning {
            let (Ok(_writers), Ok(_readers)) = (self.writers.try_lock(), self.readers.try_lock())
            else {
                return HomeProgress::InCall;
            };
            if !self.begin_home_locked() {
                if self.state.has(Bit::GroupLost) && !self.can_go_home() {
                    self.on_lost();
                }
                return HomeProgress::Waits;
            }
        }
        if let Some(record) = lock(&self.peer_record).take() {
            let (known, posted) = (self.sending.consumed(), self.sending.posted());
            let taken_in =
                lock(&self.homing).as_mut().map(|homing| homing.on_record(record, known, posted));
            if taken_in.is_some_and(|taken_in| taken_in.is_err()) {
                self.fail();
                return HomeProgress::Waits;
            }
        }
        match self.write_home() {
            Ok(HomeStep::Home) => HomeProgress::Arrived,
            Ok(_) => HomeProgress::Waits,
            // The peer's process has ended, perhaps in order, or its host is out of reach.
            Err(error) => {
                self.fail_as(error);
                self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                HomeProgress::Waits
            }
        }
    }

    /// Writes to TCP what there is to write, and waits for what is missing: what that is.
    fn write_home(&self) -> Result<HomeStep, Errno> {
        let mut homing = lock(&self.homing);
        let Some(homing) = homing.as_mut() else { return Ok(HomeStep::Wait) };
        let tcp = self.tcp.socket();
        let mut bytes = vec![0; HOME_BYTES];
        loop {
            let step = homing.step();
            let out = match &step {
                HomeStep::Record(record, done) => &record[*done..],
                HomeStep::Bytes(from) => {
                    let length = self.sending.again(*from, &mut bytes);
                    &bytes[..length]
                }
                HomeStep::Wait | HomeStep::Home => {
                    // Small pieces would wait for an acknowledgement.
                    push_tcp(tcp.as_fd());
                    // Behind the peer's record is what the kernel hands out.
                    let wanted =
                        DescriptorReadiness { readable: !homing.has_record(), writable: false };
                    self.watch_tcp(wanted);
                    return Ok(step);
                }
            };
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            match send(tcp.as_raw_fd(), out, flags) {
                Ok(count) => homing.on_sent(count),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let wanted =
                        DescriptorReadiness { readable: !homing.has_record(), writable: true };
                    self.watch_tcp(wanted);
                    return Ok(step);
                }
                Err(error) => return Err(error),
            }
        }
    }

    //= sockets-protocol.md: home.5
    /// The peer is gone before it was home: what has come by the group is read from the ring after all.
    fn break_off_home(&self) {
        self.life.on_untimed(Event::PeerLost);
    }

    /// The TCP socket has taken the place of the program's end, or the program has closed it.
    pub(crate) fn on_home(&self) {
        self.unwatch_tcp();
        self.unwatch_end();
        if let Some(end) = self.end.socket() {
            self.tcp.let_go(end);
        }
        self.end.wake();
        self.doorbell.mark();
        self.mark.raise();
    }

    //= sockets-protocol.md: home.3
    /// The peer posts nothing more: its ring is free when it is home here, too.
    pub(crate) fn on_peer_home(&self) {
        self.state.set(Bit::PeerHome);
        self.doorbell.mark();
    }

    /// The peer's process is gone, or out of reach. As of TCP, one that has ended its direction, and has all of this one,
    /// may go: what it has sent is read up to the end.
    fn on_peer_lost(&self, why: &[Bit]) {
        self.break_off_home();
        let has_both_ends = self.receiving.has_end() && self.sending.unacknowledged() == 0;
        if !has_both_ends || self.state.has(Bit::Broken) {
            return self.break_off(why);
        }
        for bit in why {
            self.state.set(*bit);
        }
        self.mark.raise();
        if self.state.has(Bit::WriteShut) && !self.relay.is_on() {
            self.unwatch_end();
            self.end.hang_up();
        }
        self.on_relay_change();
        if self.tcp.is_switched() {
            self.stop_tcp();
        }
    }

    /// A descriptor that is watched for the stream is ready.
    pub(crate) fn on_descriptor(&self, which: StreamDescriptor, ready: DescriptorReadiness) {
        if self.is_home() {
            return;
        }
        match which {
            StreamDescriptor::Tcp => {
                if ready.writable && !self.state.has(Bit::Open) {
                    // The switch marker may be tried again.
                    self.unwatch_tcp();
                    self.doorbell.mark();
                }
                if ready.readable && !self.state.has(Bit::Open) {
                    // The switch marker may have come.
                    self.unwatch_tcp();
                    self.doorbell.mark();
                }
                if ready.writable && self.leaves_edge() {
                    self.doorbell.mark();
                }
                if ready.readable && self.state.has(Bit::Open) {
                    self.pump(true);
                    self.notify_arrival();
                }
            }
            StreamDescriptor::End if self.end.is_abandoned() && !self.has_more_to_relay() => {
                self.unwatch_end();
                self.abandon();
            }
            StreamDescriptor::End => self.on_relay_change(),
        }
    }

    /// Both ends were exchanged, or it was reset, and nothing is under way: the group takes its rings back.
    pub(crate) fn has_ended(&self) -> bool {
        let state = &self.state;
        if self.is_home() {
            let is_quiet = state.has(Bit::HomePosted)
                && state.has(Bit::PeerHome)
                && self.sending.is_all_acknowledged();
            return is_quiet || state.has(Bit::GroupLost);
        }
        if !state.has(Bit::Released) {
            return false;
        }
        let is_reset_pending = state.has(Bit::GroupLost) && state.is_broken();
        if state.has(Bit::Lost) || !state.has(Bit::Open) || is_reset_pending {
            return true;
        }
        let is_quiet = self.sending.is_all_acknowledged();
        let is_reset = state.has(Bit::ResetPosted) && state.has(Bit::PeerReset);
        let is_ended = state.has(Bit::EndAcknowledged) && self.receiving.has_end();
        is_quiet && (is_reset || is_ended)
    }

    /// It is over: its rings may go to another stream from now on. False while a thread of the program is inside a call,
    /// as one may be when another closes the descriptor: it may be copying from a ring or to it. Inside the engine, where no
    /// thread waits for one of the program.
    pub(crate) fn retire(&self) -> bool {
        let locks = (self.writers.try_lock(), self.readers.try_lock());
        let is_free = matches!(locks, (Ok(_), Ok(_)));
        if is_free {
            self.state.set(Bit::Retired);
        }
        is_free
    }

    /// The peer has all that it will ever get of it, or is gone.
    pub(crate) fn is_out(&self) -> bool {
        let state = &self.state;
        // Who has closed TCP after its own end had this one, or has ended since.
        let is_closed =
            state.has(Bit::EndPosted) && state.has(Bit::TcpDone) && self.receiving.has_end();
        self.has_ended()
            || state.is_broken()
            || state.has(Bit::EndAcknowledged)
            || self.is_home()
            || is_closed
    }

    /// What it is ready for.
    pub(crate) fn readiness(&self) -> Readiness {
        let is_broken = self.state.is_broken();
        let peer_ended = self.receiving.has_end() || is_broken;
        Readiness {
            readable: self.is_readable(),
            writable: self.has_room() || is_broken || self.state.has(Bit::WriteShut),
            peer_ended,
            hung_up: self.state.is_broken_off() || (peer_ended && self.state.has(Bit::WriteShut)),
            error: self.error.load(Ordering::SeqCst) != 0,
        }
    }

    /// Whether a read returns at once.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        if self.leaves_edge() {
            return false;
        }
        if !self.tcp.has_ended() {
            return self.tcp.available() > 0
                || self.state.is_broken_off()
                || self.state.has(Bit::ReadShut);
        }
        self.receiving.available() > 0
            || self.receiving.is_at_end()
            || self.state.is_broken_off()
            || self.state.has(Bit::ReadShut)
    }

    /// Whether there is as much room as makes a write worth while.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sending.room() >= self.sending.capacity() / 4 && !self.leaves_edge()
    }

    /// Takes what the program is told once.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        match self.error.swap(0, Ordering::SeqCst) {
            0 => None,
            error => Some(Errno::from_raw(error)),
        }
    }

    /// The connection is reset by this side: the peer is told.
    pub(crate) fn reset(&self) {
        if !self.state.has(Bit::ResetDue) {
            self.break_off(&[Bit::ResetDue]);
            self.doorbell.mark();
        }
    }

    /// The error that the program gets when this fails, if the kernel knows more than that it was reset.
    fn fail_as(&self, error: Errno) {
        if matches!(error, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH) {
            let _first =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The peer is not what it says, or has died.
    fn fail(&self) {
        self.break_off(&[Bit::ResetDue, Bit::PeerReset]);
        self.doorbell.mark();
    }

    /// Nothing comes or goes from now on, for this reason: the program is told.
    fn break_off(&self, why: &[Bit]) {
        self.break_off_home();
        let is_first = self.state.set(Bit::Broken);
        let has_end = self.receiving.has_end();
        if is_first && !(has_end && self.state.has(Bit::EndAcknowledged)) {
            // As TCP: one that has had the peer's end is told that nobody reads.
            let error = if has_end { Errno::EPIPE } else { Errno::ECONNRESET };
            let known =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
            if known.is_ok() && self.state.has(Bit::Open) {
                counters::note_reset(self.tcp.socket().as_fd());
            }
        }
        // Who sees that it is broken off finds the error: without one it would be the end.
        for bit in why {
            self.state.set(*bit);
        }
        self.mark.raise();
        self.on_relay_change();
        self.unwatch_end();
        if self.error.load(Ordering::SeqCst) == 0 {
            self.end.hang_up();
        } else {
            self.end.reset();
        }
        self.stop_tcp();
        if self.tcp.is_switched() {
            // Closing it is to say the same to whoever looks at it.
            let _closed = setsockopt(&*self.tcp.socket(), sockopt::Linger, &NO_LINGER);
        }
    }

    pub(crate) fn unwatch_end(&self) {
        if let Some(end) = self.end.socket() {
            self.doorbell.unwatch(end.as_fd());
        }
    }

    fn stop_tcp(&self) {
        if self.state.has(Bit::Open) && self.state.set(Bit::TcpDone) {
            self.unwatch_tcp();
        }
    }

    /// Something has come, or may have: whoever waits for it is told.
    #[inline]
    pub(crate) fn notify_arrival(&self) {
        self.mark.raise();
        if self.end.is_watched() {
            self.end.on_arrived(|| self.is_readable());
        }
        self.on_relay_change();
    }

    //= sockets-protocol.md: marker.2
    /// Reads what TCP has brought. Also outside of the engine, where its end is not seen: the peer's End, which comes before
    /// it, may not have been looked at. Who watches TCP tells of it again.
    pub(crate) fn pump(&self, sees_end: bool) {
        if self.state.has(Bit::TcpDone) {
            return;
        }
        let was_switched = self.tcp.is_switched();
        let pumped = self.tcp.pump();
        if self.tcp.has_no_ring() {
            self.state.set(Bit::Ringless);
        }
        match pumped {
            Pumped::All => {}
            // Watched again when the program has read.
            Pumped::Full => self.unwatch_tcp(),
            Pumped::Record(record) => self.on_record(record),
            Pumped::Closed | Pumped::Reset if !sees_end => {}
            Pumped::Failed(error) => {
                self.fail_as(error);
                self.fail();
            }
            Pumped::Closed | Pumped::Reset
                if self.tcp.is_switched() && self.receiving.has_end() =>
            {
                self.stop_tcp();
                // The peer may close when it has this side's end, and has sent its own. Otherwise its process has ended.
                if !self.state.has(Bit::EndPosted) {
                    self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                    self.doorbell.mark();
                }
            }
            // One that is relayed cannot go home.
            Pumped::Closed if !self.relay.is_on() && self.tcp.end_without_marker() => {
                self.state.set(Bit::Ringless);
                self.on_record(Record { taken: 0 });
            }
            Pumped::Closed | Pumped::Reset | Pumped::BehindMarker => self.fail(),
        }
        if !was_switched && self.tcp.is_switched() && self.receiving.has_end() {
            self.end.on_end();
        }
    }

    /// The program has read of the prefix: takes more bytes out of TCP, which is an arrival as any other.
    pub(crate) fn on_prefix_read(&self) {
        if !self.tcp.is_switched() && !self.state.has(Bit::TcpDone) {
            self.watch_tcp(DescriptorReadiness::READABLE);
            self.pump(false);
            // The link group has seen nothing of these bytes. A program that waits for edges has had a short read.
            self.end.on_arrived(|| self.is_readable());
        }
        if self.life.course() == Course::Returning {
            self.doorbell.mark();
        }
    }

    //= sockets-protocol.md: home.2
    /// The peer goes home, and so does this side. What follows in TCP stays there.
    fn on_record(&self, record: Record) {
        *lock(&self.peer_record) = Some(record);
        self.unwatch_tcp();
        self.life.on_untimed(Event::Return);
        self.doorbell.mark();
    }

    /// No descriptor of the program is left, in any process. True if the peer is sent the end, false if it is reset.
    pub(crate) fn abandon(&self) -> bool {
        if !self.state.set(Bit::Released) || self.state.is_broken() {
            self.doorbell.mark();
            return false;
        }
        let linger = self.linger();
        let is_unread = self.tcp.available() > 0 || self.receiving.available() > 0;
        if is_unread || linger.is_some_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0) {
            self.reset();
            return false;
        }
        self.state.set(Bit::WriteShut);
        self.sending.push();
        self.doorbell.mark();
        true
    }

    /// What `SO_LINGER` says.
    pub(crate) fn linger(&self) -> Option<libc::linger> {
        getsockopt(&*self.tcp.socket(), sockopt::Linger).ok()
    }

    /// The TCP socket.
    pub(crate) fn socket(&self) -> Arc<OwnedFd> {
        self.tcp.socket()
    }
}

impl HoldsBytes for Stream {
    fn is_held(&self) -> &HeldFlag {
        &self.is_held
    }

    fn push(&self) {
        if self.sending.push() {
            self.doorbell.ring();
        }
    }

    fn push_inside(&self) {
        if self.sending.push() {
            self.doorbell.mark();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.state.has(Bit::Open) {
            counters::note_closed();
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sending, receiving, state, .. } = self;
        f.debug_struct("Stream")
            .field("sending", sending)
            .field("receiving", receiving)
            .field("state", state)
            .finish_non_exhaustive()
    }
}

/// Sends what TCP holds back for more to come. What the program has asked for is as it was afterwards.
fn push_tcp(tcp: BorrowedFd<'_>) {
    if getsockopt(&tcp, sockopt::TcpNoDelay) == Ok(false) {
        // A connection that is gone has nothing to send.
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &true);
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &false);
    }
}

/// Bytes that are written to TCP at a time on the way home: a page.
const HOME_BYTES: usize = 4096;

/// Closing sends a reset.
const NO_LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

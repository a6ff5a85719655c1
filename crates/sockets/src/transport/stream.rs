//! One moved connection, between its rings and the link group.

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

/// The parts that a stream is made of.
pub(crate) struct StreamParts {
    /// Memory of the send ring.
    pub(crate) send: RingPart,
    /// Memory of the receive ring.
    pub(crate) receive: RingPart,
    /// The switch marker that the peer writes into the TCP connection.
    pub(crate) expected: SwitchMarker,
    /// The switch marker that this side writes. The peer writes it back if it does not know the expected one.
    pub(crate) echo: Option<SwitchMarker>,
    /// Notifies the endpoint.
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
}

/// What a stream has to post.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Out {
    /// Bytes to write to the peer's ring. They wrap around in neither ring.
    Data {
        /// Offset in the send ring.
        at: u32,
        /// Bytes: at least one.
        length: u32,
        /// Offset in the peer's ring.
        to: u32,
    },
    /// Credit: the total number of bytes that were consumed.
    Credit(u64),
    /// The stream ends after this number of bytes.
    End(u64),
    /// The connection is reset.
    Reset,
    /// No more bytes go by the group: the stream goes home.
    Home,
}

/// The peer has sent what no peer may send.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Misbehaved {
    /// Bytes that do not follow the last ones, or for which there is no room.
    #[error(
        "{length} bytes at offset {at} of the ring, which do not follow the last ones or have no room"
    )]
    Data {
        /// Offset in the ring.
        at: u32,
        /// Bytes.
        length: u32,
    },
    /// Credit for more bytes than were sent, or less credit than before.
    #[error("credit for {0} bytes, which is more than was sent or less than before")]
    Credit(u64),
    /// An end that is not behind the last byte, or a second end.
    #[error("an end after {0} bytes, which is not where the data ends")]
    End(u64),
}

/// A connection that has moved or is moving. Methods named `on_*` and `next` are called inside the engine.
///
/// The program's threads and the thread inside the engine share no lock for bytes: see [`SendHalf`] and
/// [`ReceiveHalf`]. The calls of the program's threads are in `calls.rs`.
pub(crate) struct Stream {
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
    /// Raised when a waiting thread of the program should check again.
    pub(crate) mark: Arc<Mark>,
    pub(crate) sending: SendHalf,
    pub(crate) receiving: ReceiveHalf,
    /// Held by the program's threads while they write, and while they read.
    pub(crate) writers: Mutex<()>,
    pub(crate) readers: Mutex<()>,
    pub(crate) tcp: TcpPart,
    pub(crate) end: End,
    pub(crate) relay: Relay,
    pub(crate) state: State,
    life: Arc<Life>,
    /// The error of a connection that was reset, until the program gets it; 0 for none.
    error: AtomicI32,
    is_held: HeldFlag,
    /// The progress of going home, once it has begun.
    homing: Mutex<Option<Homing>>,
    /// The peer's record, until this end goes home.
    peer_record: Mutex<Option<Record>>,
}

/// Progress of going home.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeProgress {
    /// It has not begun, or continues when something comes.
    Waits,
    /// A thread of the program is within a call, and will return at once.
    InCall,
    /// Only the TCP socket has to be put in place.
    Arrived,
}

impl Stream {
    /// Creates a stream that expects its switch marker on this TCP socket. It sends nothing by the group before
    /// [`Stream::open`].
    ///
    /// # Panics
    /// If the size of a ring is invalid.
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

    /// Opens the stream: this side's switch marker is in the TCP connection, and bytes go by the group. `peer_ring` is
    /// the size of the peer's ring. Without it no bytes go by the group, and the stream is about to go home.
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
            // Without this, the marker is noticed when the program reads.
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

    /// Whether the peer's switch marker will never come, because TCP has ended without it.
    pub(crate) fn is_marker_lost(&self) -> bool {
        self.tcp.look_for_marker() == Awaited::Never
    }

    /// Records that the group is lost before the stream has opened.
    pub(crate) fn on_group_lost_early(&self) {
        self.state.set(Bit::GroupLost);
    }

    /// Returns what to post next, if anything. It counts as posted, unless [`Stream::not_posted`] returns it.
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
        // Once writing is shut, no bytes are added.
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

    /// The engine had no room for what [`Stream::next`] returned. It is due again.
    pub(crate) fn not_posted(&self, out: Out) {
        match out {
            Out::Data { length, .. } => self.sending.take_back(length),
            Out::Credit(_) => self.receiving.take_back(),
            Out::End(_) => self.state.clear(Bit::EndPosted),
            Out::Reset => self.state.clear(Bit::ResetPosted),
            Out::Home => self.state.clear(Bit::HomePosted),
        }
    }

    /// The oldest `length` bytes in flight are in the peer's ring.
    #[inline]
    pub(crate) fn on_acknowledged(&self, length: u32) {
        counters::add_sent(length.into());
        self.sending.on_acknowledged(length);
        self.mark.raise();
        if !self.sending.is_posted() {
            // Bytes that were held back may be sent now.
            self.doorbell.mark();
        }
        self.on_relay_change();
    }

    /// The peer's process has the End.
    pub(crate) fn on_end_acknowledged(&self) {
        self.state.set(Bit::EndAcknowledged);
        self.mark.raise();
    }

    /// The peer has written to the receive ring.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Misbehaved> {
        let arrived = self.receiving.on_arrived(at, length);
        arrived.map_err(|_| Misbehaved::Data { at, length })?;
        counters::add_received(length.into());
        if self.state.has(Bit::Released) {
            // The program will not read the bytes. As in TCP, the peer gets a reset.
            self.reset();
            return Ok(());
        }
        self.notify_arrival();
        Ok(())
    }

    /// The peer has consumed this number of bytes in all.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<(), Misbehaved> {
        let has_record = || lock(&self.homing).as_ref().is_some_and(Homing::has_record);
        if self.leaves_edge() && has_record() {
            // The record says how much the peer's program has taken. All later bytes go by TCP.
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

    /// The peer sends no more than this number of bytes in all.
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

    /// The group is lost without a way home, or the peer has broken a rule: breaks the stream.
    pub(crate) fn on_lost(&self) {
        self.state.set(Bit::GroupLost);
        self.on_peer_lost(&[Bit::Lost]);
    }

    //= sockets-protocol.md: home.4
    /// The group is lost. The stream goes home if it can.
    pub(crate) fn on_group_lost(&self) {
        self.state.set(Bit::GroupLost);
        // The peer's process has ended in order. It would answer a record with a reset, and the program would get that
        // instead of the end.
        let has_peer_ended = self.receiving.has_end() && self.tcp.is_at_end();
        if self.leaves_edge() || (!has_peer_ended && self.can_go_home()) {
            self.life.on_untimed(Event::Return);
            self.doorbell.mark();
        } else {
            self.on_lost();
        }
    }

    /// The process ends, and the peer has all bytes and the End. Ends TCP, so that the peer sees the end of TCP before
    /// it loses the group.
    pub(crate) fn end_tcp(&self) {
        if self.state.has(Bit::EndAcknowledged) && !self.leaves_edge() {
            let _closed = shutdown(self.tcp.socket().as_raw_fd(), Shutdown::Write);
        }
    }

    /// Whether nothing goes by the group any more, because the stream goes home or is home.
    #[inline]
    pub(crate) fn leaves_edge(&self) -> bool {
        matches!(self.life.course(), Course::GoingHome | Course::Kernel(_))
    }

    /// Whether the kernel handles the connection again.
    pub(crate) fn is_home(&self) -> bool {
        self.life.course() == Course::Kernel(Reason::Home)
    }

    /// Whether the stream can go home now, or when the program has read what came by TCP. If the group is lost, it can
    /// even before the peer's switch marker has come. A stream that ends in order need not go home, but follows a peer
    /// that goes home because it did not know that.
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

    /// Begins to go home: no bytes go by the group any more, and the program's calls wait until the stream is home.
    /// Returns false if it cannot. Outside the engine.
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

    /// Continues to go home. Inside the engine, where no thread waits for a thread of the program.
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
            // The peer's process has ended, perhaps in order, or its host is unreachable.
            Err(error) => {
                self.fail_as(error);
                self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                HomeProgress::Waits
            }
        }
    }

    /// Writes to TCP what is due, and watches for what is missing. Returns the next step.
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
                    // Small segments would wait for an acknowledgement.
                    push_tcp(tcp.as_fd());
                    // Bytes behind the peer's record are for the kernel to return.
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
    /// The peer is lost before it was home. The program reads what has come by the group from the ring after all.
    fn break_off_home(&self) {
        self.life.on_untimed(Event::PeerLost);
    }

    /// The TCP socket has replaced the program's end, or the program has closed it.
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
    /// The peer posts nothing more. The ring is free when this end is home, too.
    pub(crate) fn on_peer_home(&self) {
        self.state.set(Bit::PeerHome);
        self.doorbell.mark();
    }

    /// The peer's process has ended or is unreachable. As in TCP, a peer may vanish after it has ended its direction
    /// and has acknowledged this one: what it has sent is read up to the end.
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

    /// A watched descriptor of the stream is ready.
    pub(crate) fn on_descriptor(&self, which: StreamDescriptor, ready: DescriptorReadiness) {
        if self.is_home() {
            return;
        }
        match which {
            StreamDescriptor::Tcp => {
                if ready.writable && !self.state.has(Bit::Open) {
                    // Retry the switch marker.
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

    /// Whether the stream has ended: both Ends were exchanged, or it was reset, and nothing is in flight. Then the
    /// group takes its rings back.
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

    /// Retires an ended stream, whose rings may then go to another stream. Returns false while a thread of the program
    /// is within a call, as one may be when another closes the descriptor: it may be copying from or to a ring. Inside
    /// the engine, where no thread waits for a thread of the program.
    pub(crate) fn retire(&self) -> bool {
        let locks = (self.writers.try_lock(), self.readers.try_lock());
        let is_free = matches!(locks, (Ok(_), Ok(_)));
        if is_free {
            self.state.set(Bit::Retired);
        }
        is_free
    }

    /// Whether the peer has all that it will ever get, or is lost.
    pub(crate) fn is_out(&self) -> bool {
        let state = &self.state;
        // The peer has ended and then closed TCP: it had this side's End, or has ended since.
        let is_closed =
            state.has(Bit::EndPosted) && state.has(Bit::TcpDone) && self.receiving.has_end();
        self.has_ended()
            || state.is_broken()
            || state.has(Bit::EndAcknowledged)
            || self.is_home()
            || is_closed
    }

    /// Returns what it is ready for.
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

    /// Whether there is enough room for a write to be worth while.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sending.room() >= self.sending.capacity() / 4 && !self.leaves_edge()
    }

    /// Takes the error that the program gets once.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        match self.error.swap(0, Ordering::SeqCst) {
            0 => None,
            error => Some(Errno::from_raw(error)),
        }
    }

    /// Resets the connection from this side. The peer gets a Reset.
    pub(crate) fn reset(&self) {
        if !self.state.has(Bit::ResetDue) {
            self.break_off(&[Bit::ResetDue]);
            self.doorbell.mark();
        }
    }

    /// Sets the error for the program, if the kernel knows more than that the connection was reset.
    fn fail_as(&self, error: Errno) {
        if matches!(error, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH) {
            let _first =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// The peer has broken the protocol, or has died: breaks the stream.
    fn fail(&self) {
        self.break_off(&[Bit::ResetDue, Bit::PeerReset]);
        self.doorbell.mark();
    }

    /// Breaks the stream for a reason. The program gets an error.
    fn break_off(&self, why: &[Bit]) {
        self.break_off_home();
        let is_first = self.state.set(Bit::Broken);
        let has_end = self.receiving.has_end();
        if is_first && !(has_end && self.state.has(Bit::EndAcknowledged)) {
            // As in TCP: after the peer's end, the error is that the peer does not read.
            let error = if has_end { Errno::EPIPE } else { Errno::ECONNRESET };
            let known =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
            if known.is_ok() && self.state.has(Bit::Open) {
                counters::note_reset(self.tcp.socket().as_fd());
            }
        }
        // A thread that sees a reason finds the error. Without it the thread would take the reason for the end.
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
            // Closing the TCP socket then resets TCP, too.
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

    /// Something has arrived or may have. Wakes threads that wait for it.
    #[inline]
    pub(crate) fn notify_arrival(&self) {
        self.mark.raise();
        if self.end.is_watched() {
            self.end.on_arrived(|| self.is_readable());
        }
        self.on_relay_change();
    }

    //= sockets-protocol.md: marker.2
    /// Reads what TCP has. Outside the engine the end of TCP is ignored (`sees_end`), because the peer's End, which
    /// precedes it, may not have been handled. TCP is watched and reports the end again.
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
                // The peer may close TCP after it has this side's End and has sent its own. Otherwise its process has
                // ended.
                if !self.state.has(Bit::EndPosted) {
                    self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                    self.doorbell.mark();
                }
            }
            // A relayed stream cannot go home.
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

    /// The program has read bytes of the TCP part. Takes more bytes out of TCP; they count as an arrival.
    pub(crate) fn on_prefix_read(&self) {
        if !self.tcp.is_switched() && !self.state.has(Bit::TcpDone) {
            self.watch_tcp(DescriptorReadiness::READABLE);
            self.pump(false);
            // The group does not report these bytes. A program that waits for edges has had a short read.
            self.end.on_arrived(|| self.is_readable());
        }
        if self.life.course() == Course::Returning {
            self.doorbell.mark();
        }
    }

    //= sockets-protocol.md: home.2
    /// The peer goes home, and so does this side. What follows the record stays in TCP.
    fn on_record(&self, record: Record) {
        *lock(&self.peer_record) = Some(record);
        self.unwatch_tcp();
        self.life.on_untimed(Event::Return);
        self.doorbell.mark();
    }

    /// No descriptor of the program is left in any process. Returns true if the peer gets the End, false if it gets a
    /// Reset.
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

    /// Returns `SO_LINGER`.
    pub(crate) fn linger(&self) -> Option<libc::linger> {
        getsockopt(&*self.tcp.socket(), sockopt::Linger).ok()
    }

    /// Returns the TCP socket.
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

/// Flushes what TCP holds back for more. The program's own setting is restored.
fn push_tcp(tcp: BorrowedFd<'_>) {
    if getsockopt(&tcp, sockopt::TcpNoDelay) == Ok(false) {
        // A closed connection has nothing to send.
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &true);
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &false);
    }
}

/// Bytes that are written to TCP at a time while a stream goes home: a page.
const HOME_BYTES: usize = 4096;

/// Makes a close send a reset.
const NO_LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

//! A stream: one connection that has moved from TCP to the edge, or is moving. It has two rings on
//! a link group.

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

/// The parts from which a stream is created.
pub(crate) struct StreamParts {
    /// The send ring.
    pub(crate) send: RingPart,
    /// The receive ring.
    pub(crate) receive: RingPart,
    /// The switch marker that this side chose and expects in TCP. The peer writes it.
    pub(crate) expected: SwitchMarker,
    /// The switch marker that this side writes. If the link group is lost before the peer learns
    /// `expected`, the peer cannot write `expected`. It then writes this marker, as an echo.
    pub(crate) echo: Option<SwitchMarker>,
    /// Wakes the endpoint when the stream has something to post.
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
}

/// An item that a stream posts to its link group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Out {
    /// Bytes to write to the peer's ring. The range does not wrap around in either ring.
    Data {
        /// Offset in the send ring.
        at: u32,
        /// Number of bytes, at least one.
        length: u32,
        /// Offset in the peer's ring.
        to: u32,
    },
    /// Credit: the number of bytes that the program has consumed since the stream began.
    Credit(u64),
    /// End: this direction ends. The value is the number of bytes sent since the stream began.
    End(u64),
    /// Reset: the connection is reset.
    Reset,
    /// Home: this side returns its end to TCP, and sends no more bytes over the link group.
    Home,
}

/// An action of the peer that the protocol forbids.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Misbehaved {
    /// Bytes that do not begin where the last write ended, or that exceed the room in the ring.
    #[error(
        "{length} bytes at offset {at} of the ring, which do not follow the bytes before them or do not fit"
    )]
    Data {
        /// Offset of the bytes in the ring.
        at: u32,
        /// Number of bytes.
        length: u32,
    },
    /// A credit for more bytes than this side has sent, or for fewer bytes than an earlier credit.
    #[error(
        "credit for {0} bytes, which is more than the sent bytes or less than the credit before"
    )]
    Credit(u64),
    /// An End whose number differs from the number of bytes received, or a second End.
    #[error("an end of the stream after {0} bytes, but the data has another length")]
    End(u64),
}

/// A connection that has moved or is moving. A caller of `next` or of a method named `on_*` must
/// hold the lock of the engine. The comments of the methods state exceptions.
///
/// To transfer bytes, the program's threads and the thread inside the engine share no lock: see
/// [`SendHalf`] and [`ReceiveHalf`]. The calls of the program's threads are in
/// `reads_and_writes.rs`.
pub(crate) struct Stream {
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
    /// Raised when a waiting thread of the program must check the stream again.
    pub(crate) mark: Arc<Mark>,
    pub(crate) sending: SendHalf,
    pub(crate) receiving: ReceiveHalf,
    /// The program's threads lock `writers` while they write, and `readers` while they read.
    pub(crate) writers: Mutex<()>,
    pub(crate) readers: Mutex<()>,
    pub(crate) tcp: TcpPart,
    pub(crate) end: End,
    pub(crate) relay: Relay,
    pub(crate) state: State,
    life: Arc<Life>,
    /// The error number of a reset connection until a call returns it to the program. 0 means no
    /// error.
    error: AtomicI32,
    is_held: HeldFlag,
    /// The progress of the return to TCP; `None` before the return begins.
    homing: Mutex<Option<Homing>>,
    /// The record that the peer wrote into TCP when it began to return to TCP: the number of bytes
    /// that its program has read. This end handles the record when it returns to TCP itself.
    peer_record: Mutex<Option<Record>>,
}

/// The progress of a stream that returns to TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeProgress {
    /// The return has not begun, or waits for an event.
    Waits,
    /// A thread of the program is in a call that reads or writes this stream, so the return cannot
    /// begin. That call does not block and ends soon. The caller must retry after a short time.
    InCall,
    /// All bytes are in TCP. The TCP socket must still replace the program's end of the socket
    /// pair.
    Arrived,
}

impl Stream {
    /// Creates a stream that expects its switch marker on the socket `tcp`. The stream sends
    /// nothing over the link group before [`Stream::open`].
    ///
    /// # Panics
    /// Panics if the size of a ring is invalid.
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

    /// Opens the stream after this side has written its switch marker into TCP. The program's later
    /// bytes go over the link group. `peer_ring` is the size of the peer's ring. If `peer_ring` is
    /// `None`, no bytes go over the group, and the stream is about to return to TCP.
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

    /// Returns true if TCP's receive queue contains the peer's switch marker. Leaves the bytes in
    /// the queue.
    pub(crate) fn is_marker_there(&self) -> bool {
        self.tcp.is_marker_there()
    }

    //= sockets-protocol.md: join.6
    /// Searches TCP's receive queue for the peer's switch marker, while the program still reads
    /// TCP. Returns the event that the connection must handle, or `None`. If the queue has no
    /// bytes, watches the socket, so that the runtime notifies the stream when bytes arrive.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let awaited = self.tcp.look_for_marker();
        if awaited == Awaited::Nothing {
            // Without the watch, the library would find the marker only when the program reads.
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

    /// Returns true if the peer's switch marker will never arrive, because TCP has ended without
    /// it.
    pub(crate) fn is_marker_lost(&self) -> bool {
        self.tcp.look_for_marker() == Awaited::Never
    }

    /// Records that the group was lost before the stream opened.
    pub(crate) fn on_group_lost_early(&self) {
        self.state.set(Bit::GroupLost);
    }

    /// Returns the next item that the caller must post, or `None` if there is none. If the caller
    /// cannot post the item, the caller must call [`Stream::not_posted`].
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
        // The program cannot write after it has shut down writing, so the number of bytes written
        // is final.
        (is_ending && self.sending.is_posted() && state.set(Bit::EndPosted))
            .then(|| Out::End(self.sending.written()))
    }

    /// Returns true if no bytes may go to the peer's ring, because the stream is about to return to
    /// TCP.
    #[inline]
    fn is_ringless(&self) -> bool {
        self.state.has(Bit::Ringless)
    }

    fn next_reset(&self) -> Option<Out> {
        (self.is_reset_due() && self.state.set(Bit::ResetPosted)).then_some(Out::Reset)
    }

    fn is_reset_due(&self) -> bool {
        self.state.has(Bit::ResetDue) && !self.state.has_any(&[Bit::Lost, Bit::ResetPosted])
    }

    /// Makes `out`, which [`Stream::next`] returned, due a second time. Called if the engine had no
    /// room for it.
    pub(crate) fn not_posted(&self, out: Out) {
        match out {
            Out::Data { length, .. } => self.sending.take_back(length),
            Out::Credit(_) => self.receiving.take_back(),
            Out::End(_) => self.state.clear(Bit::EndPosted),
            Out::Reset => self.state.clear(Bit::ResetPosted),
            Out::Home => self.state.clear(Bit::HomePosted),
        }
    }

    /// Handles an acknowledgement: the oldest `length` bytes in flight have arrived in the peer's
    /// ring.
    #[inline]
    pub(crate) fn on_acknowledged(&self, length: u32) {
        counters::add_sent(length.into());
        self.sending.on_acknowledged(length);
        self.mark.raise();
        if !self.sending.is_posted() {
            // Bytes that waited for this acknowledgement may now be sent.
            self.doorbell.mark();
        }
        self.on_relay_change();
    }

    /// Handles the acknowledgement of End: the peer's process has received it.
    pub(crate) fn on_end_acknowledged(&self) {
        self.state.set(Bit::EndAcknowledged);
        self.mark.raise();
    }

    /// Handles a write by the peer to the receive ring.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Misbehaved> {
        let arrived = self.receiving.on_arrived(at, length);
        arrived.map_err(|_| Misbehaved::Data { at, length })?;
        counters::add_received(length.into());
        if self.state.has(Bit::Released) {
            // The program has closed the connection and will not read the bytes. As in TCP, reset
            // the connection.
            self.reset();
            return Ok(());
        }
        self.notify_arrival();
        Ok(())
    }

    /// Handles a credit: the peer's program has consumed `consumed` bytes since the stream began.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<(), Misbehaved> {
        let has_record = || lock(&self.homing).as_ref().is_some_and(Homing::has_record);
        if self.leaves_edge() && has_record() {
            // Ignore the credit. When the peer began its return to TCP, it already reported the
            // final number of consumed bytes, and all later bytes go by TCP.
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

    /// Handles End from the peer. `bytes` is the number of bytes that the peer has sent since the
    /// stream began.
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
    /// Handles Reset from the peer.
    pub(crate) fn on_reset(&self) {
        self.break_off(&[Bit::PeerReset, Bit::ResetDue]);
        self.doorbell.mark();
    }

    /// Breaks the stream. There are two causes: the group is lost and the stream cannot return to
    /// TCP, or the peer has violated the protocol.
    pub(crate) fn on_lost(&self) {
        self.state.set(Bit::GroupLost);
        self.on_peer_lost(&[Bit::Lost]);
    }

    //= sockets-protocol.md: home.4
    /// Handles the loss of the group. The stream returns to TCP if it can. Otherwise the stream
    /// breaks.
    pub(crate) fn on_group_lost(&self) {
        self.state.set(Bit::GroupLost);
        // If the peer's process has ended normally, do not return to TCP. This end would write into
        // TCP how many bytes its program has read. The kernel of the peer would answer with a
        // reset, and the program would get this reset instead of the end of the stream.
        let has_peer_ended = self.receiving.has_end() && self.tcp.is_at_end();
        if self.leaves_edge() || (!has_peer_ended && self.can_go_home()) {
            self.life.on_untimed(Event::Return);
            self.doorbell.mark();
        } else {
            self.on_lost();
        }
    }

    /// Shuts TCP down for writing if the peer has all bytes and the End. Called when the process
    /// ends, so that the peer sees the end of TCP before the loss of the group.
    pub(crate) fn end_tcp(&self) {
        if self.state.has(Bit::EndAcknowledged) && !self.leaves_edge() {
            let _closed = shutdown(self.tcp.socket().as_raw_fd(), Shutdown::Write);
        }
    }

    /// Returns true if the link group carries no more bytes of this stream, because the stream is
    /// returning to TCP or has returned.
    #[inline]
    pub(crate) fn leaves_edge(&self) -> bool {
        matches!(self.life.course(), Course::GoingHome | Course::Kernel(_))
    }

    /// Returns true if the stream has returned to TCP: the kernel handles the connection again.
    pub(crate) fn is_home(&self) -> bool {
        self.life.course() == Course::Kernel(Reason::Home)
    }

    /// Returns true if the stream can return to TCP, either now or after the program has read the
    /// bytes that came by TCP. If the group is lost, the stream can return even before the peer's
    /// switch marker has arrived. If both directions are ending, the stream returns only if the
    /// peer has begun its own return. The peer may have done this before it received this side's
    /// End.
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

    /// Begins the return to TCP. From then on, the link group carries no bytes, and the program's
    /// calls wait until the return is complete. Returns false if the stream cannot return. Must not
    /// be called by the engine.
    pub(crate) fn begin_home(&self) -> bool {
        let _writers = lock(&self.writers);
        let _readers = lock(&self.readers);
        self.begin_home_locked()
    }

    /// Does the same as [`Stream::begin_home`] for a caller that holds the locks `readers` and
    /// `writers`.
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

    /// Continues the return to TCP. Called by the engine, which must not wait for a thread of the
    /// program.
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
                } else if self.relay.is_on() && lock(&self.peer_record).is_some() {
                    // A relay is permanent. Without the reset, the peer's program would wait for
                    // this side's record for ever.
                    self.reset();
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
            // The peer's process has ended, perhaps normally, or the peer's host is unreachable.
            Err(error) => {
                self.fail_as(error);
                self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                HomeProgress::Waits
            }
        }
    }

    /// Writes into TCP the record (how many bytes the program has read), and then the bytes that
    /// the peer's program has not read. Then watches TCP for the peer's record or for room. Returns
    /// the step that remains.
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
                    // Without this push, TCP would hold small segments back until the peer
                    // acknowledges earlier ones.
                    push_tcp(tcp.as_fd());
                    // After the peer's record has arrived, do not read TCP: later bytes stay there,
                    // and the kernel returns them to the program.
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
    /// Stops the return to TCP, because the peer was lost before the return was complete. The
    /// program then reads from the ring the bytes that came over the link group.
    fn break_off_home(&self) {
        self.life.on_untimed(Event::PeerLost);
    }

    /// Finishes the return to TCP. Before this call, the TCP socket has replaced the program's end
    /// of the pair, or the program has closed that end.
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
    /// Handles Home from the peer: the peer posts no more operations for this stream. The rings are
    /// free when this end has also returned to TCP.
    pub(crate) fn on_peer_home(&self) {
        self.state.set(Bit::PeerHome);
        self.doorbell.mark();
    }

    /// Handles the loss of the peer: its process has ended or is unreachable. The peer may have
    /// ended its direction and acknowledged all bytes of this side. In that case the program can
    /// still read to the end, as in TCP.
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

    /// Handles readiness of a descriptor that the runtime watches for the stream.
    pub(crate) fn on_descriptor(&self, which: StreamDescriptor, ready: DescriptorReadiness) {
        if self.is_home() {
            return;
        }
        match which {
            StreamDescriptor::Tcp => {
                if ready.writable && !self.state.has(Bit::Open) {
                    // TCP has room, so retry writing the switch marker.
                    self.unwatch_tcp();
                    self.doorbell.mark();
                }
                if ready.readable && !self.state.has(Bit::Open) {
                    // The switch marker may have arrived.
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

    /// Returns true if the stream has ended and nothing is in flight. A stream has ended if both
    /// sides have sent End, or if it was reset. The group can then reuse the rings.
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

    /// Retires an ended stream, so that its rings can go to another stream. Returns false if a
    /// thread of the program is within a call, because that thread may be copying from or to a
    /// ring. Called by the engine, which must not wait for a thread of the program.
    pub(crate) fn retire(&self) -> bool {
        let locks = (self.writers.try_lock(), self.readers.try_lock());
        let is_free = matches!(locks, (Ok(_), Ok(_)));
        if is_free {
            self.state.set(Bit::Retired);
        }
        is_free
    }

    /// Returns true if the peer has all bytes that it will ever get, or if the peer is lost.
    pub(crate) fn is_out(&self) -> bool {
        let state = &self.state;
        // True if the peer has sent End and closed TCP. A peer closes TCP only after it has
        // received this side's End, or when its process ends. In both cases it needs no more bytes.
        let is_closed =
            state.has(Bit::EndPosted) && state.has(Bit::TcpDone) && self.receiving.has_end();
        self.has_ended()
            || state.is_broken()
            || state.has(Bit::EndAcknowledged)
            || self.is_home()
            || is_closed
    }

    /// Returns the events for which the stream is ready.
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

    /// Returns true if a read would return at once.
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

    /// Returns true if a quarter of the ring is free. With less room, the program's writes would be
    /// too small.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sending.room() >= self.sending.capacity() / 4 && !self.leaves_edge()
    }

    /// Returns the error of the stream and clears it, because TCP also reports an error only once.
    pub(crate) fn take_error(&self) -> Option<Errno> {
        match self.error.swap(0, Ordering::SeqCst) {
            0 => None,
            error => Some(Errno::from_raw(error)),
        }
    }

    /// Resets the connection, and sends Reset to the peer.
    pub(crate) fn reset(&self) {
        if !self.state.has(Bit::ResetDue) {
            self.break_off(&[Bit::ResetDue]);
            self.doorbell.mark();
        }
    }

    /// Stores `error` for the program if it is a timeout or an unreachable host or network. Other
    /// errors mean only that the connection was reset.
    fn fail_as(&self, error: Errno) {
        if matches!(error, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH) {
            let _first =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Breaks the stream, because the peer has violated the protocol or its process has ended.
    fn fail(&self) {
        self.break_off(&[Bit::ResetDue, Bit::PeerReset]);
        self.doorbell.mark();
    }

    /// Breaks the stream and sets the bits `why`. If at least one direction had not ended, the
    /// program gets an error.
    fn break_off(&self, why: &[Bit]) {
        self.break_off_home();
        let is_first = self.state.set(Bit::Broken);
        let has_end = self.receiving.has_end();
        if is_first && !(has_end && self.state.has(Bit::EndAcknowledged)) {
            // As in TCP: after the peer has ended its direction, a write fails with `EPIPE`.
            let error = if has_end { Errno::EPIPE } else { Errno::ECONNRESET };
            let known =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
            if known.is_ok() && self.state.has(Bit::Open) {
                counters::note_reset(self.tcp.socket().as_fd());
            }
        }
        // Set the bits after the error. Otherwise a thread could see a bit without an error, and
        // report the end of the stream.
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
            // With this option, closing the TCP socket resets the TCP connection.
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

    /// Wakes threads that wait for bytes or for the end of the stream.
    #[inline]
    pub(crate) fn notify_arrival(&self) {
        self.mark.raise();
        if self.end.is_watched() {
            self.end.on_arrived(|| self.is_readable());
        }
        self.on_relay_change();
    }

    //= sockets-protocol.md: marker.2
    /// Reads the bytes that TCP has. If `sees_end` is false, ignores the end of TCP. A caller that
    /// does not hold the lock of the engine passes false, because the engine may not have handled
    /// the peer's End, which was sent first. TCP stays watched, so the runtime reports the end of
    /// TCP again.
    pub(crate) fn pump(&self, sees_end: bool) {
        if self.state.has(Bit::TcpDone) {
            return self.unwatch_tcp();
        }
        let was_switched = self.tcp.is_switched();
        let pumped = self.tcp.pump();
        if self.tcp.has_no_ring() {
            self.state.set(Bit::Ringless);
        }
        match pumped {
            Pumped::All => {}
            // A read can watch the socket again at the same time as another thread stops watching
            // it. Without this, later bytes or the end of TCP would keep a thread awake.
            Pumped::Complete => self.unwatch_tcp(),
            Pumped::Full => self.unwatch_until_read(),
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
                // The peer closes TCP after it has received this side's End and has sent its own.
                // Therefore, if this side has sent no End, the peer's process has ended.
                if !self.state.has(Bit::EndPosted) {
                    self.on_peer_lost(&[Bit::ResetDue, Bit::PeerReset]);
                    self.doorbell.mark();
                }
            }
            // A relayed stream cannot return to TCP.
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

    /// Stops watching TCP, because the maximum number of bytes is stored. The program's next read
    /// watches TCP again.
    fn unwatch_until_read(&self) {
        self.unwatch_tcp();
        // The program may have read the stored bytes before this thread stopped watching. Then this
        // thread has undone the watch of that read, and a thread that waits for more bytes would
        // wait for ever.
        if !self.tcp.is_full() {
            self.watch_tcp(DescriptorReadiness::READABLE);
        }
    }

    /// Called after the program has read bytes that came by TCP. Takes more bytes out of TCP, and
    /// reports them like an arrival. The calling thread holds the lock `readers`, so it must check
    /// [`Stream::is_service_due`] after it has released the lock.
    pub(crate) fn on_prefix_read(&self) {
        if !self.tcp.is_switched() && !self.state.has(Bit::TcpDone) {
            self.watch_tcp(DescriptorReadiness::READABLE);
            self.pump(false);
            // The link group does not report these bytes, because they came by TCP. After a short
            // read, a program with `EPOLLET` waits for an event, so report the bytes here.
            self.end.on_arrived(|| self.is_readable());
        }
    }

    /// Returns true if the engine must serve the stream after a read of bytes that came by TCP:
    /// the stream can now return to TCP, or it must send Reset. The engine does not notice such a
    /// read, so the reading thread must ring the doorbell.
    pub(crate) fn is_service_due(&self) -> bool {
        let may_leave_edge = || self.life.course() == Course::Returning && self.tcp.is_read();
        self.is_reset_due() || may_leave_edge()
    }

    //= sockets-protocol.md: home.2
    /// Handles the peer's record, with which the peer begins its return to TCP: this side returns,
    /// too. Bytes after the record stay in TCP.
    fn on_record(&self, record: Record) {
        *lock(&self.peer_record) = Some(record);
        self.unwatch_tcp();
        self.life.on_untimed(Event::Return);
        self.doorbell.mark();
    }

    /// Ends the stream after all processes have closed their descriptors of it. Returns true if
    /// this side sends End, and false if it sends Reset.
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

    /// Returns the value of `SO_LINGER`.
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

/// Makes TCP send the small segments that it holds back. Then restores the program's setting.
fn push_tcp(tcp: BorrowedFd<'_>) {
    if getsockopt(&tcp, sockopt::TcpNoDelay) == Ok(false) {
        // A closed connection has nothing to send, so ignore errors.
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &true);
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &false);
    }
}

/// Number of bytes that a stream writes to TCP at a time while it returns to TCP: one page.
const HOME_BYTES: usize = 4096;

/// Value of `SO_LINGER` with which a close resets the connection.
const NO_LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

//! A stream: one moved connection, with its two rings on a link group.

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
    /// The switch marker that the peer writes into the TCP connection, and for which this side
    /// waits.
    pub(crate) expected: SwitchMarker,
    /// The switch marker that this side writes. The peer echoes it if it does not know `expected`.
    pub(crate) echo: Option<SwitchMarker>,
    /// Wakes the endpoint when the stream has something to post.
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
}

/// Something that a stream posts to its link group.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Out {
    /// Bytes to write to the peer's ring. The range wraps around in neither ring.
    Data {
        /// Offset in the send ring.
        at: u32,
        /// Number of bytes, at least one.
        length: u32,
        /// Offset in the peer's ring.
        to: u32,
    },
    /// Credit: the total number of bytes that the program has consumed.
    Credit(u64),
    /// The end of this direction, after this total number of bytes.
    End(u64),
    /// The connection is reset.
    Reset,
    /// This side returns to TCP ("goes home"): it sends no more bytes over the link group.
    Home,
}

/// An action of the peer that the protocol forbids.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub(crate) enum Misbehaved {
    /// Bytes that do not follow the last ones, or for which the ring has no room.
    #[error(
        "{length} bytes at offset {at} of the ring, which do not follow the last ones or have no room"
    )]
    Data {
        /// Offset in the ring.
        at: u32,
        /// Number of bytes.
        length: u32,
    },
    /// Credit for more bytes than were sent, or less credit than before.
    #[error("credit for {0} bytes, which is more than was sent or less than before")]
    Credit(u64),
    /// An end at another position than the last byte received, or a second end.
    #[error("an end after {0} bytes, which is not where the data ends")]
    End(u64),
}

/// A connection that has moved or is moving. `next` and the methods named `on_*` are called inside
/// the engine, unless their comments say otherwise.
///
/// The program's threads and the thread inside the engine share no lock for bytes: see [`SendHalf`] and
/// [`ReceiveHalf`]. The calls of the program's threads are in `calls.rs`.
pub(crate) struct Stream {
    pub(crate) doorbell: Box<dyn StreamDoorbell>,
    /// Raised when a waiting thread of the program should check the stream again.
    pub(crate) mark: Arc<Mark>,
    pub(crate) sending: SendHalf,
    pub(crate) receiving: ReceiveHalf,
    /// `writers` is locked by the program's threads while they write, `readers` while they read.
    pub(crate) writers: Mutex<()>,
    pub(crate) readers: Mutex<()>,
    pub(crate) tcp: TcpPart,
    pub(crate) end: End,
    pub(crate) relay: Relay,
    pub(crate) state: State,
    life: Arc<Life>,
    /// The error number of a reset connection until the program receives it; 0 for none.
    error: AtomicI32,
    is_held: HeldFlag,
    /// The progress of the return to TCP, once that has begun.
    homing: Mutex<Option<Homing>>,
    /// The record that the peer wrote into TCP when it began to return. Taken when this end
    /// returns.
    peer_record: Mutex<Option<Record>>,
}

/// Progress of the return to TCP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum HomeProgress {
    /// The return has not begun, or waits for an event.
    Waits,
    /// A thread of the program is within a call. The caller tries again soon, because the call
    /// returns at once.
    InCall,
    /// All bytes are in TCP. The TCP socket must still replace the program's end of the socket
    /// pair.
    Arrived,
}

impl Stream {
    /// Creates a stream that expects its switch marker on the socket `tcp`. It sends nothing over
    /// the link group before [`Stream::open`].
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

    /// Opens the stream, once this side's switch marker is in the TCP connection: bytes now go over
    /// the link group. `peer_ring` is the size of the peer's ring. If it is `None`, no bytes go
    /// over the group, and the stream is about to return to TCP.
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

    /// Returns whether the bytes in TCP's receive queue contain the peer's switch marker. Leaves
    /// them there.
    pub(crate) fn is_marker_there(&self) -> bool {
        self.tcp.is_marker_there()
    }

    //= sockets-protocol.md: join.6
    /// Searches TCP's receive queue for the peer's switch marker while the program reads TCP.
    /// Returns the event for the connection. If TCP has no bytes, watches the socket, so that the
    /// stream is notified when some arrive.
    pub(crate) fn look_for_marker(&self) -> Option<Event> {
        let awaited = self.tcp.look_for_marker();
        if awaited == Awaited::Nothing {
            // Without the watch, the marker would be noticed only when the program reads.
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

    /// Returns whether the peer's switch marker will never come, because TCP has ended without it.
    pub(crate) fn is_marker_lost(&self) -> bool {
        self.tcp.look_for_marker() == Awaited::Never
    }

    /// Records that the group is lost before the stream has opened.
    pub(crate) fn on_group_lost_early(&self) {
        self.state.set(Bit::GroupLost);
    }

    /// Returns what to post next, if anything. The caller posts it or passes it to
    /// [`Stream::not_posted`].
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
        // Once writing is shut, the program adds no bytes, so the number of bytes written is final.
        (is_ending && self.sending.is_posted() && state.set(Bit::EndPosted))
            .then(|| Out::End(self.sending.written()))
    }

    /// Returns whether the peer accepts no bytes over the link group, because it is about to return
    /// to TCP.
    #[inline]
    fn is_ringless(&self) -> bool {
        self.state.has(Bit::Ringless)
    }

    fn next_reset(&self) -> Option<Out> {
        let is_due = self.state.has(Bit::ResetDue) && !self.state.has(Bit::Lost);
        (is_due && self.state.set(Bit::ResetPosted)).then_some(Out::Reset)
    }

    /// Makes `out`, returned by [`Stream::next`], due again. Called if the engine had no room for
    /// it.
    pub(crate) fn not_posted(&self, out: Out) {
        match out {
            Out::Data { length, .. } => self.sending.take_back(length),
            Out::Credit(_) => self.receiving.take_back(),
            Out::End(_) => self.state.clear(Bit::EndPosted),
            Out::Reset => self.state.clear(Bit::ResetPosted),
            Out::Home => self.state.clear(Bit::HomePosted),
        }
    }

    /// Handles an acknowledgement: the oldest `length` bytes in flight are in the peer's ring.
    #[inline]
    pub(crate) fn on_acknowledged(&self, length: u32) {
        counters::add_sent(length.into());
        self.sending.on_acknowledged(length);
        self.mark.raise();
        if !self.sending.is_posted() {
            // Bytes that were coalesced until the acknowledgement may be sent now.
            self.doorbell.mark();
        }
        self.on_relay_change();
    }

    /// Handles the acknowledgement of the End: the peer's process has it.
    pub(crate) fn on_end_acknowledged(&self) {
        self.state.set(Bit::EndAcknowledged);
        self.mark.raise();
    }

    /// Handles a write of the peer to the receive ring.
    #[inline]
    pub(crate) fn on_arrived(&self, at: u32, length: u32) -> Result<(), Misbehaved> {
        let arrived = self.receiving.on_arrived(at, length);
        arrived.map_err(|_| Misbehaved::Data { at, length })?;
        counters::add_received(length.into());
        if self.state.has(Bit::Released) {
            // The program has closed the connection and will not read the bytes. As in TCP, the
            // peer gets a reset.
            self.reset();
            return Ok(());
        }
        self.notify_arrival();
        Ok(())
    }

    /// Handles credit: the peer has consumed `consumed` bytes in total.
    pub(crate) fn on_credit(&self, consumed: u64) -> Result<(), Misbehaved> {
        let has_record = || lock(&self.homing).as_ref().is_some_and(Homing::has_record);
        if self.leaves_edge() && has_record() {
            // The record says how many bytes the peer's program has read. All later bytes go over
            // TCP.
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

    /// Handles the End of the peer, which sends `bytes` bytes in total.
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
    /// Handles a reset by the peer.
    pub(crate) fn on_reset(&self) {
        self.break_off(&[Bit::PeerReset, Bit::ResetDue]);
        self.doorbell.mark();
    }

    /// Breaks the stream, because the group is lost and the stream cannot return to TCP, or because
    /// the peer has violated the protocol.
    pub(crate) fn on_lost(&self) {
        self.state.set(Bit::GroupLost);
        self.on_peer_lost(&[Bit::Lost]);
    }

    //= sockets-protocol.md: home.4
    /// Handles the loss of the group. The stream returns to TCP if it can; otherwise it breaks.
    pub(crate) fn on_group_lost(&self) {
        self.state.set(Bit::GroupLost);
        // If the peer's process has ended in order, it would answer a record with a reset, and the
        // program would get the reset instead of the end.
        let has_peer_ended = self.receiving.has_end() && self.tcp.is_at_end();
        if self.leaves_edge() || (!has_peer_ended && self.can_go_home()) {
            self.life.on_untimed(Event::Return);
            self.doorbell.mark();
        } else {
            self.on_lost();
        }
    }

    /// Ends the sending direction of TCP if the peer has all bytes and the End. Called when the
    /// process ends, so that the peer sees the end of TCP before it loses the group.
    pub(crate) fn end_tcp(&self) {
        if self.state.has(Bit::EndAcknowledged) && !self.leaves_edge() {
            let _closed = shutdown(self.tcp.socket().as_raw_fd(), Shutdown::Write);
        }
    }

    /// Returns whether the link group carries no more bytes, because the stream is returning to TCP
    /// or has returned.
    #[inline]
    pub(crate) fn leaves_edge(&self) -> bool {
        matches!(self.life.course(), Course::GoingHome | Course::Kernel(_))
    }

    /// Returns whether the stream has returned to TCP, so that the kernel handles the connection
    /// again.
    pub(crate) fn is_home(&self) -> bool {
        self.life.course() == Course::Kernel(Reason::Home)
    }

    /// Returns whether the stream can return to TCP, now or after the program has read the bytes
    /// that came by TCP. If the group is lost, it can return even before the peer's switch marker
    /// has come. A stream whose both directions are ending need not return. It still follows a peer
    /// that returns because the peer does not know of the end.
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

    /// Begins the return to TCP: the link group carries no more bytes, and the program's calls wait
    /// until the return is complete. Returns false if the stream cannot return. Must not be called
    /// by the engine.
    pub(crate) fn begin_home(&self) -> bool {
        let _writers = lock(&self.writers);
        let _readers = lock(&self.readers);
        self.begin_home_locked()
    }

    /// Does what [`Stream::begin_home`] does. The caller holds the locks of readers and writers.
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

    /// Continues the return to TCP. Called by the engine, which never waits for a thread of the
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

    /// Writes the record and the unread bytes to TCP, and watches for the peer's record or for
    /// room. Returns the step that remains.
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
                    // Without the push, TCP would hold small segments until an acknowledgement.
                    push_tcp(tcp.as_fd());
                    // Bytes behind the peer's record stay in TCP, where the kernel returns them to
                    // the program.
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
    /// Stops the return to TCP, because the peer was lost before it returned. The program then
    /// reads from the ring what came over the link group.
    fn break_off_home(&self) {
        self.life.on_untimed(Event::PeerLost);
    }

    /// Finishes the return to TCP, after the TCP socket has replaced the program's end of the pair
    /// or the program has closed that end.
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
    /// Handles the peer's Home: the peer posts nothing more. The rings are free once this end has
    /// returned, too.
    pub(crate) fn on_peer_home(&self) {
        self.state.set(Bit::PeerHome);
        self.doorbell.mark();
    }

    /// Handles the loss of the peer: its process has ended or is unreachable. If the peer had ended
    /// its direction and acknowledged all bytes, the program can still read all of its bytes up to
    /// the end, as in TCP.
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

    /// Handles readiness of a watched descriptor of the stream.
    pub(crate) fn on_descriptor(&self, which: StreamDescriptor, ready: DescriptorReadiness) {
        if self.is_home() {
            return;
        }
        match which {
            StreamDescriptor::Tcp => {
                if ready.writable && !self.state.has(Bit::Open) {
                    // Retry writing the switch marker.
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

    /// Returns whether the stream has ended: both Ends were exchanged or the stream was reset, and
    /// nothing is in flight. The group can then reuse its rings.
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

    /// Retires an ended stream, whose rings may then go to another stream. Returns false while a
    /// thread of the program is within a call, because that thread may be copying from or to a
    /// ring. Called by the engine, which never waits for a thread of the program.
    pub(crate) fn retire(&self) -> bool {
        let locks = (self.writers.try_lock(), self.readers.try_lock());
        let is_free = matches!(locks, (Ok(_), Ok(_)));
        if is_free {
            self.state.set(Bit::Retired);
        }
        is_free
    }

    /// Returns whether the peer has all bytes that it will ever get, or is lost.
    pub(crate) fn is_out(&self) -> bool {
        let state = &self.state;
        // The peer has sent its End and closed TCP: it had this side's End first, or its process
        // has ended.
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

    /// Returns whether a read would return at once.
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

    /// Returns whether a quarter of the ring is free, so that a write is worth while.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.sending.room() >= self.sending.capacity() / 4 && !self.leaves_edge()
    }

    /// Returns the error of the stream and clears it, because the program gets it only once.
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

    /// Stores `error` for the program, if it says more than that the connection was reset.
    fn fail_as(&self, error: Errno) {
        if matches!(error, Errno::ETIMEDOUT | Errno::EHOSTUNREACH | Errno::ENETUNREACH) {
            let _first =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Breaks the stream, because the peer has violated the protocol or has died.
    fn fail(&self) {
        self.break_off(&[Bit::ResetDue, Bit::PeerReset]);
        self.doorbell.mark();
    }

    /// Breaks the stream and sets the bits `why`. Unless both directions had ended, the program
    /// gets an error.
    fn break_off(&self, why: &[Bit]) {
        self.break_off_home();
        let is_first = self.state.set(Bit::Broken);
        let has_end = self.receiving.has_end();
        if is_first && !(has_end && self.state.has(Bit::EndAcknowledged)) {
            // As in TCP: once the peer has ended its direction, a write fails with `EPIPE`.
            let error = if has_end { Errno::EPIPE } else { Errno::ECONNRESET };
            let known =
                self.error.compare_exchange(0, error as i32, Ordering::SeqCst, Ordering::SeqCst);
            if known.is_ok() && self.state.has(Bit::Open) {
                counters::note_reset(self.tcp.socket().as_fd());
            }
        }
        // Set the bits after the error: a thread that saw a bit without an error would report the
        // end of the stream.
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
            // With this option, closing the TCP socket also resets the TCP connection.
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
    /// Reads the bytes that TCP has. Unless `sees_end` is set, ignores the end of TCP: outside the
    /// engine the peer's End, which was sent first, may not have been handled yet. TCP is still
    /// watched, so the end is reported again.
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
            // The socket is watched again when the program has read.
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
                // The peer closes TCP after it has this side's End and has sent its own. If this
                // side has sent no End, the peer's process has ended.
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

    /// Handles a read of the TCP part, in the program's thread: takes more bytes out of TCP, and reports them
    /// as an arrival.
    pub(crate) fn on_prefix_read(&self) {
        if !self.tcp.is_switched() && !self.state.has(Bit::TcpDone) {
            self.watch_tcp(DescriptorReadiness::READABLE);
            self.pump(false);
            // The link group does not report these bytes, and a program with `EPOLLET` waits for an
            // event after its short read.
            self.end.on_arrived(|| self.is_readable());
        }
        if self.life.course() == Course::Returning {
            self.doorbell.mark();
        }
    }

    //= sockets-protocol.md: home.2
    /// Handles the peer's record: the peer returns to TCP, so this side returns, too. Bytes behind
    /// the record stay in TCP.
    fn on_record(&self, record: Record) {
        *lock(&self.peer_record) = Some(record);
        self.unwatch_tcp();
        self.life.on_untimed(Event::Return);
        self.doorbell.mark();
    }

    /// Ends the stream after all processes have closed their descriptors of it. Returns true if the
    /// peer gets the End, false if it gets a Reset.
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

/// Makes TCP send the small segments that it holds back. Restores the program's own setting.
fn push_tcp(tcp: BorrowedFd<'_>) {
    if getsockopt(&tcp, sockopt::TcpNoDelay) == Ok(false) {
        // A closed connection has nothing to send, so errors are ignored.
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &true);
        let _gone = setsockopt(&tcp, sockopt::TcpNoDelay, &false);
    }
}

/// Number of bytes written to TCP at a time while a stream returns to TCP: one page.
const HOME_BYTES: usize = 4096;

/// Value of `SO_LINGER` that makes a close send a reset.
const NO_LINGER: libc::linger = libc::linger { l_onoff: 1, l_linger: 0 };

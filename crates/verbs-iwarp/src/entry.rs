//! One stream of the machine: its socket, its protocol state and its queue pair.

mod connecting;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use delivery::Instant;
use iwarp::{
    Config, Counters, EndCause, Event, Gather, Kind, Part, PeerKind, SetupFault, Status, Stream,
};
use link::tcp::{StreamPart, StreamWriter, TcpStream};
use link::{CapturedConnection, Direction, StreamFaults};
use mem::MemoryAccess;
use nix::errno::Errno;
use rdma_cm::{Caller, Over};
use runtime::{Descriptors, Readiness};
use verbs::statistics::{QueuePairReport, StreamPeerKind, StreamReport};
use verbs::{Ending, QueuePair};
use work::{Completion, CompletionQueue, Owner, Push};

use crate::capture::{Ends, StreamCapture};
use crate::ends::reply_of;
use crate::half_open::HalfOpen;
use crate::journal::Journal;
use crate::leaving::Leaving;
use crate::memory::{MemoryOwner, TurnMemory};
use crate::parting::Parting;
use crate::ping_pong::PingPong;
use crate::reading::{BEHIND_BYTES, Read, read_captured, read_once};
use crate::receive_wait::ReceiveWait;
use crate::source::QueuePairSource;
use crate::work::{completion_of_receive, completion_of_send, pull};

/// What the streams of a machine use in turn.
pub(crate) struct Tools {
    /// Received bytes, before the stream has looked at them.
    buffer: Box<[u8]>,
    gather: Gather,
    writer: StreamWriter,
    pub(crate) journal: Journal,
    /// `None` if nothing is captured.
    capture: Option<StreamCapture>,
    /// `None` if no faults are injected.
    faults: Option<StreamFaults>,
    /// Completion queues that were armed and have got a completion.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
}

impl Tools {
    pub(crate) fn new(
        journal: Journal,
        capture: Option<StreamCapture>,
        faults: Option<StreamFaults>,
    ) -> Self {
        Self {
            journal,
            capture,
            faults,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            gather: Gather::new(),
            writer: StreamWriter::new(),
            fired: Vec::new(),
        }
    }
}

/// A stream with its socket.
pub(crate) struct Entry {
    /// Identifies the stream, and owns its completions.
    owner: Owner,
    /// `None` before an initiator connects, and while it pauses between two attempts.
    socket: Option<TcpStream>,
    phase: Phase,
    source: Option<Arc<QueuePairSource>>,
    /// Whom to notify of what becomes of the connection.
    caller: Option<Arc<dyn Caller>>,
    /// Whether the socket is watched for room to write.
    watches_room: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// Whether the last reading stored bytes in their region directly.
    has_read_directly: bool,
    /// Whether sends of the queue pair wait for room in the stream.
    has_waiting_sends: bool,
    /// Whether the caller knows that the connection is established.
    is_established: bool,
    /// The address of the peer.
    peer: SocketAddr,
    /// The connection in the capture; `None` if it has no bytes there yet.
    captured: Option<CapturedConnection>,
    /// Number of the listening port that accepted the connection. `None` for an initiator.
    port: Option<usize>,
    /// Counts the connection among those of its port whose peers have not sent a request yet.
    half_open: Option<HalfOpen>,
    /// What an initiator asks for. `None` for a responder.
    asking: Option<Asking>,
    /// What the stream had done when it ended.
    parted: Counters,
    /// Watches whether the peer's host acknowledges what was written. `None` if nothing was written
    /// since the last acknowledgement that was seen.
    silence: Option<SilenceWatch>,
    /// When the last bytes of the peer arrived.
    heard_at: Instant,
    /// Set once this side ends the stream.
    leaving: Option<Leaving>,
    ping_pong: PingPong,
    /// Set while a message of the peer waits for a receive. Nothing is read then.
    receive_wait: Option<ReceiveWait>,
    /// Until when an injected fault delays the next reading.
    delayed_until: Option<Instant>,
    /// Whether the socket is watched for bytes.
    watches_bytes: bool,
}

/// Watches whether the host of a peer is still there.
#[derive(Clone, Copy, Debug)]
struct SilenceWatch {
    /// When the first of the bytes was written. The kernel's own figure counts from the last
    /// acknowledgement, which may be long ago on a stream that was idle.
    since: Instant,
    look_at: Instant,
}

/// What an initiator asks for.
pub(crate) struct Asking {
    /// The address of this side, with port 0.
    pub(crate) from: SocketAddr,
    /// The address of the peer.
    pub(crate) to: SocketAddr,
    /// The settings of the stream, without the segment size.
    pub(crate) config: Config,
    pub(crate) private_data: Vec<u8>,
    /// Number of attempts so far that found no program.
    pub(crate) tries: u32,
}

/// Where a stream is in its life.
enum Phase {
    /// The initiator connects at this time, because no program listened at the last attempt.
    Pausing { until: Instant },
    /// TCP connects, until this time at the latest.
    Connecting { until: Instant },
    /// TCP is connected.
    Open(Box<Stream>),
    /// The stream has ended.
    Parting(Parting),
}

/// What a turn of a stream found.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Whether anything happened.
    pub(crate) worked: bool,
    /// Whether there is more to do at once.
    pub(crate) more: bool,
    /// Whether a caller was notified.
    pub(crate) has_news: bool,
    /// Whether the stream carries messages from now on.
    pub(crate) established: bool,
    /// Whether the stream has ended because the peer broke a rule.
    pub(crate) broke_rule: bool,
    /// A request of the peer that waits for an answer.
    pub(crate) request: Option<Asked>,
    /// The stream has ended and its socket can be closed.
    pub(crate) has_ended: bool,
    /// The stream has a new socket, which is to be watched.
    pub(crate) connects: bool,
    /// The socket of a failed attempt, which is to be watched no more.
    pub(crate) paused: Option<TcpStream>,
}

/// A request of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) private_data: Vec<u8>,
    pub(crate) ird: Option<u16>,
    pub(crate) ord: Option<u16>,
}

impl Entry {
    /// Creates the entry of an initiator, which connects in its first turn.
    pub(crate) fn asking(
        owner: Owner,
        asking: Asking,
        source: Arc<QueuePairSource>,
        caller: Arc<dyn Caller>,
    ) -> Self {
        let phase = Phase::Pausing { until: Instant(0) };
        let mut entry = Self::new(owner, None, asking.to, phase, None);
        (entry.source, entry.caller) = (Some(source), Some(caller));
        entry.asking = Some(asking);
        entry
    }

    /// Creates the entry of a responder.
    pub(crate) fn accepted(
        owner: Owner,
        (socket, peer): (TcpStream, SocketAddr),
        config: Config,
        now: Instant,
        port: usize,
        half_open: HalfOpen,
    ) -> Self {
        let phase = Phase::Open(Box::new(Stream::respond(config, now)));
        let entry = Self::new(owner, Some(socket), peer, phase, Some(port));
        Self { half_open: Some(half_open), ..entry }
    }

    fn new(
        owner: Owner,
        socket: Option<TcpStream>,
        peer: SocketAddr,
        phase: Phase,
        port: Option<usize>,
    ) -> Self {
        let ping_pong =
            if port.is_none() { PingPong::of_initiator() } else { PingPong::of_responder() };
        Self {
            owner,
            socket,
            phase,
            source: None,
            caller: None,
            watches_room: true,
            is_readable: true,
            is_writable: true,
            has_read_directly: false,
            has_waiting_sends: false,
            is_established: false,
            peer,
            captured: None,
            port,
            half_open: None,
            asking: None,
            parted: Counters::default(),
            silence: None,
            heard_at: Instant(0),
            leaving: None,
            ping_pong,
            receive_wait: None,
            delayed_until: None,
            watches_bytes: true,
        }
    }

    pub(crate) const fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) const fn socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref()
    }

    pub(crate) fn set_caller(&mut self, caller: Arc<dyn Caller>) {
        self.caller = Some(caller);
    }

    /// Forgets whom to notify. Rejects a request that waits for an answer.
    pub(crate) fn forget_caller(&mut self) {
        self.caller = None;
        if self.source.is_none() {
            self.reject(&[]);
        }
    }

    /// Returns the number of the listening port that accepted the connection. `None` for an
    /// initiator.
    pub(crate) const fn port(&self) -> Option<usize> {
        self.port
    }

    /// Returns the address of this side, while TCP is connected.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.socket.as_ref()?.local_address().ok()
    }

    /// Returns the address of the peer.
    pub(crate) const fn peer(&self) -> SocketAddr {
        self.peer
    }

    const fn watched(&self) -> Readiness {
        Readiness { readable: self.watches_bytes, writable: self.watches_room }
    }

    /// Watches the socket, for room as well if there are bytes to write.
    pub(crate) fn watch(&self, descriptors: &Descriptors, key: u64) -> io::Result<()> {
        let ready = self.watched();
        self.socket.as_ref().map_or(Ok(()), |socket| descriptors.watch(socket.as_fd(), key, ready))
    }

    /// Changes the watch of a watched socket.
    pub(crate) fn change_watch(&self, descriptors: &Descriptors, key: u64) -> io::Result<()> {
        let ready = self.watched();
        self.socket.as_ref().map_or(Ok(()), |socket| descriptors.change(socket.as_fd(), key, ready))
    }

    /// Releases memory that a burst has left.
    pub(crate) fn release_buffers(&mut self) {
        if let Phase::Open(stream) = &mut self.phase {
            stream.release_buffers();
        }
    }

    /// Returns what the stream has done so far.
    pub(crate) fn counters(&self) -> Counters {
        match &self.phase {
            Phase::Open(stream) => stream.counters(),
            Phase::Parting(_) => self.parted,
            Phase::Pausing { .. } | Phase::Connecting { .. } => Counters::default(),
        }
    }

    /// Returns the statistics of the queue pair, or `None` if the stream has none or has ended.
    pub(crate) fn report(&self) -> Option<QueuePairReport> {
        let (Phase::Open(stream), Some(source)) = (&self.phase, &self.source) else { return None };
        let (counters, terms) = (stream.counters(), stream.terms());
        let stream = self.local_address().filter(|_| self.is_established);
        let stream = stream.map(|local| StreamReport {
            local,
            peer: self.peer,
            is_initiator: self.port.is_none(),
            revision: terms.revision.number(),
            has_crc: terms.crc,
            sends_markers: terms.sends_markers,
            receives_markers: terms.receives_markers,
            takes_long_fpdus: terms.long_fpdus,
            peer_kind: match terms.peer {
                PeerKind::Ethernot => StreamPeerKind::Ours,
                PeerKind::Siw => StreamPeerKind::Siw,
                PeerKind::Unknown => StreamPeerKind::Other,
            },
        });
        Some(QueuePairReport {
            is_connected: self.is_established,
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            frames_sent: counters.fpdus_sent,
            frames_received: counters.fpdus_received,
            stream,
            ..QueuePairReport::of(source.queue_pair())
        })
    }

    /// Returns the time at which the stream wants its next turn.
    pub(crate) fn due(&self) -> Instant {
        match &self.phase {
            Phase::Open(stream) => {
                let look_at = self.silence.map_or(Instant::NEVER, |silence| silence.look_at);
                let leaves_at = self.leaving.map_or(Instant::NEVER, |leaving| leaving.until());
                let timeout = stream.next_timeout().unwrap_or(Instant::NEVER);
                let waits = self.receive_wait.map_or(Instant::NEVER, |wait| wait.due());
                let delayed = self.delayed_until.unwrap_or(Instant::NEVER);
                let late = self.ping_pong.due().min(delayed);
                timeout.min(look_at).min(leaves_at).min(late).min(waits)
            }
            Phase::Pausing { until } | Phase::Connecting { until } => *until,
            Phase::Parting(parting) => parting.due(),
        }
    }

    /// Accepts the request of the peer: moves the queue pair to RTS, and answers. Returns false if
    /// the queue pair is not in INIT any more, or if no request waits.
    pub(crate) fn accept(
        &mut self,
        source: &Arc<QueuePairSource>,
        private_data: &[u8],
        (ird, ord): (u16, u16),
    ) -> bool {
        let Phase::Open(stream) = &mut self.phase else { return false };
        if stream.accept(private_data, ird, ord).is_err() {
            return false;
        }
        self.source = Some(Arc::clone(source));
        let (reads_max, peer_reads_max) = self.reads();
        source.queue_pair().on_connected(reads_max, peer_reads_max)
    }

    /// Returns what both ends have agreed on: the numbers of reads in flight of this end and of the
    /// peer.
    fn reads(&self) -> (u8, u8) {
        let Phase::Open(stream) = &self.phase else { return (0, 0) };
        let terms = stream.terms();
        let byte = |reads: u16| u8::try_from(reads).unwrap_or(u8::MAX);
        (byte(terms.ord), byte(terms.ird))
    }

    /// Rejects the request of the peer.
    pub(crate) fn reject(&mut self, private_data: &[u8]) {
        if let Phase::Open(stream) = &mut self.phase {
            // If no request waits any more, the peer is gone and needs no answer.
            let _gone = stream.reject(private_data);
        }
        self.caller = None;
    }

    /// Closes the stream: flushes its work, and sends the end of the stream behind what TCP has
    /// taken. After this call, the stream accesses no memory of the queue pair.
    pub(crate) fn close(&mut self, now: Instant, access: &MemoryAccess<'_>, tools: &mut Tools) {
        self.leaving = Some(Leaving::at_once(now));
        self.abort(now, access, tools, &mut Found::default());
    }

    /// Ends the connection for a program that disconnects. The stream first carries out the sends
    /// that were posted before, and then the queue pair is in ERR and all other work is flushed.
    /// The next turn makes the first step.
    pub(crate) fn disconnect(&mut self, now: Instant) {
        if self.leaving.is_none() {
            let first_untaken =
                self.source.as_ref().map_or(0, |source| source.queue_pair().next_send_number());
            self.leaving = Some(Leaving::after_sends(first_untaken, now));
        }
    }

    /// Returns whether both ends have not agreed on the connection yet.
    fn is_setting_up(&self) -> bool {
        match &self.phase {
            Phase::Open(stream) => !stream.carries_messages() && !stream.has_ended(),
            Phase::Pausing { .. } | Phase::Connecting { .. } => true,
            Phase::Parting(_) => false,
        }
    }

    /// Returns whether a queue pair has the stream.
    pub(crate) const fn has_queue_pair(&self) -> bool {
        self.source.is_some()
    }

    /// Returns whether a read of the queue pair is outstanding, so that bytes of the peer are
    /// expected.
    pub(crate) fn awaits_answers(&self) -> bool {
        matches!(&self.phase, Phase::Open(stream) if stream.awaits_answers())
    }

    /// Returns whether the peer is still to be notified of the end of the stream, or has not ended
    /// its side yet.
    pub(crate) const fn is_closing(&self) -> bool {
        self.leaving.is_some() || matches!(self.phase, Phase::Parting(_))
    }

    /// Ends the stream, and flushes its work.
    fn abort(
        &mut self,
        now: Instant,
        access: &MemoryAccess<'_>,
        tools: &mut Tools,
        found: &mut Found,
    ) {
        match &mut self.phase {
            Phase::Open(stream) => {
                let mut memory = memory_of(self.owner, self.source.as_deref(), access);
                stream.close(&mut memory);
            }
            Phase::Pausing { .. } | Phase::Connecting { .. } => {
                self.phase = Phase::Parting(Parting::unconnected(now));
            }
            Phase::Parting(_) => {}
        }
        self.handle_events(now, tools, found);
        self.push_waiting(tools);
        if let Some(source) = self.source.take() {
            source.set_stream(None);
        }
    }

    /// Handles what has arrived, takes posted work, and writes.
    pub(crate) fn turn(
        &mut self,
        now: Instant,
        access: &MemoryAccess<'_>,
        tools: &mut Tools,
    ) -> Found {
        let mut found = Found::default();
        if self.leaving.is_some() && self.is_setting_up() {
            self.abort(now, access, tools, &mut found);
        }
        if matches!(self.phase, Phase::Pausing { until } if until <= now) {
            self.connect(now, &tools.journal, &mut found);
        }
        if matches!(self.phase, Phase::Connecting { .. }) {
            self.speak(now, &tools.journal, &mut found);
        }
        match self.phase {
            Phase::Pausing { .. } | Phase::Connecting { .. } => return found,
            Phase::Parting(parting) => {
                found.has_ended = parting.has_ended(now) || self.has_parted(tools);
                self.end_sending(now, found.has_ended, tools);
                return found;
            }
            Phase::Open(_) => {}
        }
        if self.receive_wait.is_some() {
            self.wait_for_receive(now, access, &mut found);
        }
        if self.takes_reading(now, tools) && self.read(access, tools, &mut found) {
            self.heard_at = now;
            self.wait_for_receive(now, access, &mut found);
            let answered = self.ping_pong.on_bytes(now);
            self.push_send(tools, answered);
        }
        if self.ping_pong.due() <= now {
            let late = self.ping_pong.on_time(now);
            self.push_send(tools, late);
            found.worked = true;
        }
        if self.due() <= now
            && let Phase::Open(stream) = &mut self.phase
        {
            stream.handle_timeout(now);
            self.look_for_silence(now);
            found.worked = true;
        }
        self.handle_events(now, tools, &mut found);
        self.pull(access);
        if self.is_writable {
            self.write(now, access, tools, &mut found);
            self.handle_events(now, tools, &mut found);
        }
        if self.has_waiting_sends && self.is_writable {
            // The completions have made room.
            found.more |= self.pull(access);
        }
        self.leave(now, access, tools, &mut found);
        let Phase::Open(stream) = &self.phase else { return found };
        let (is_idle, may_close) = (stream.is_idle(), stream.may_close());
        if is_idle && self.source.as_ref().is_some_and(|source| source.takes_drain()) {
            self.push_waiting(tools);
            if let Some(source) = &self.source {
                source.queue_pair().on_drained();
            }
        }
        if may_close {
            self.part(now, tools, &mut found);
        }
        found
    }

    /// Returns whether to read now: if there may be bytes, no message waits for a receive, and no
    /// injected fault delays the reading.
    fn takes_reading(&mut self, now: Instant, tools: &mut Tools) -> bool {
        if !self.is_readable || self.receive_wait.is_some() {
            return false;
        }
        if let Some(faults) = &mut tools.faults {
            if self.delayed_until.is_none() {
                self.delayed_until = faults.delay_ns().map(|ns| now.after_ns(ns));
            }
            if self.delayed_until.is_some_and(|until| now < until) {
                return false;
            }
            self.delayed_until = None;
        }
        self.is_readable = false;
        true
    }

    /// Looks for a receive if a message of the peer waits for one. Ends the stream if the message has
    /// waited for too long.
    fn wait_for_receive(&mut self, now: Instant, access: &MemoryAccess<'_>, found: &mut Found) {
        let Phase::Open(stream) = &mut self.phase else { return };
        let Some(source) = self.source.as_ref().filter(|_| stream.waits_for_receive()) else {
            self.receive_wait = None;
            return;
        };
        // The program rings for receives that it posts from now on.
        source.set_wants_receives(true);
        let mut memory = memory_of(self.owner, Some(source), access);
        stream.handle_receives(&mut memory);
        if stream.waits_for_receive() {
            let wait = self.receive_wait.get_or_insert_with(|| ReceiveWait::begin(now));
            if wait.due() > now || wait.goes_on(now) {
                return;
            }
            stream.give_up_waiting(&mut memory);
        }
        source.set_wants_receives(false);
        self.receive_wait = None;
        // While the message waited, nothing was read.
        (self.is_readable, found.worked, found.more) = (true, true, true);
    }

    /// Ends a stream that this side ends, as soon as its work is carried out or the peer has taken
    /// nothing for too long.
    fn leave(
        &mut self,
        now: Instant,
        access: &MemoryAccess<'_>,
        tools: &mut Tools,
        found: &mut Found,
    ) {
        let (Some(leaving), Phase::Open(stream)) = (&mut self.leaving, &self.phase) else {
            return;
        };
        let is_late = leaving.is_late(stream, now);
        let is_done = stream.is_idle() && !self.has_waiting_sends;
        if (is_done || is_late) && !stream.has_ended() {
            self.abort(now, access, tools, found);
        }
        if is_late && matches!(&self.phase, Phase::Open(stream) if !stream.may_close()) {
            self.part(now, tools, found);
        }
    }

    /// Begins the end of the connection after the last byte of the stream.
    fn part(&mut self, now: Instant, tools: &mut Tools, found: &mut Found) {
        let Phase::Open(stream) = &self.phase else { return };
        self.parted = stream.counters();
        self.phase = Phase::Parting(Parting::new(stream.terms().peer, self.heard_at, now));
        self.end_sending(now, false, tools);
        self.half_open = None;
        (self.is_readable, self.is_writable, found.more) = (true, true, true);
    }

    /// Ends this side of the connection if it is time, or if the connection has ended.
    fn end_sending(&mut self, now: Instant, has_ended: bool, tools: &mut Tools) {
        let Phase::Parting(parting) = &mut self.phase else { return };
        if !parting.takes_end(now, has_ended) {
            return;
        }
        if let Some(capture) = &mut tools.capture {
            capture.ended(&mut self.captured, Direction::Outbound);
        }
        // This fails if the connection has ended already; the next reading then finds the end.
        let _ended = self.socket.as_ref().map(TcpStream::end_sending);
    }

    /// Reads and forgets what the peer still sends. Returns whether its side has ended, too.
    fn has_parted(&mut self, tools: &mut Tools) -> bool {
        if !std::mem::take(&mut self.is_readable) {
            return false;
        }
        let Some(socket) = &self.socket else { return true };
        let mut left = TURN_BYTES;
        while left > 0 {
            match socket.read(&mut tools.buffer) {
                Ok(None) => return false,
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(count)) => left = left.saturating_sub(count),
            }
        }
        // The watch reports what is left, after the other streams have had their turns.
        false
    }

    /// Reads and handles what has arrived. Returns whether bytes have arrived.
    fn read(&mut self, access: &MemoryAccess<'_>, tools: &mut Tools, found: &mut Found) -> bool {
        let (Phase::Open(stream), Some(socket)) = (&mut self.phase, &self.socket) else {
            return false;
        };
        let mut memory = memory_of(self.owner, self.source.as_deref(), access);
        let mut left = TURN_BYTES;
        while left > 0 && !stream.waits_for_receive() {
            let room = if self.has_read_directly { BEHIND_BYTES } else { BUFFER_BYTES };
            let cut = tools.faults.as_mut().and_then(|faults| faults.cut(room));
            let buffer = tools.buffer.get_mut(..cut.unwrap_or(room)).unwrap_or_default();
            let read = match &mut tools.capture {
                None if cut.is_some() => {
                    read_captured(socket, stream, &mut memory, buffer, &mut |_| ())
                }
                None => read_once(socket, stream, &mut memory, buffer),
                Some(capture) => {
                    let ends = ends_of(socket, self.peer, self.port);
                    let mut note = |bytes: &[u8]| capture.received(&mut self.captured, ends, bytes);
                    read_captured(socket, stream, &mut memory, buffer, &mut note)
                }
            };
            match read {
                Ok(None) => return left < TURN_BYTES,
                Ok(Some(Read { bytes: 0, .. })) => {
                    found.worked = true;
                    if let Some(capture) = &mut tools.capture {
                        capture.ended(&mut self.captured, Direction::Inbound);
                    }
                    stream.handle_end();
                    return true;
                }
                Ok(Some(Read { bytes, is_direct, is_full })) => {
                    found.worked = true;
                    self.has_read_directly = is_direct;
                    left = left.saturating_sub(bytes);
                    if !is_full {
                        // The kernel had no more. It reports what arrives from now on.
                        return true;
                    }
                }
                Err(_) => {
                    found.worked = true;
                    if let Some(capture) = &mut tools.capture {
                        capture.reset(&mut self.captured);
                    }
                    stream.handle_reset();
                    return true;
                }
            }
        }
        // Let the other streams read before this one goes on.
        (self.is_readable, found.more) = (true, true);
        left < TURN_BYTES
    }

    /// Passes posted sends to the stream. Returns whether the stream has taken any.
    fn pull(&mut self, access: &MemoryAccess<'_>) -> bool {
        let (Phase::Open(stream), Some(source)) = (&mut self.phase, &self.source) else {
            return false;
        };
        let end = self.leaving.map_or(u64::MAX, |leaving| leaving.first_untaken);
        let pulled = pull(source.queue_pair(), stream, access, end);
        self.has_waiting_sends = pulled.waits;
        pulled.any
    }

    fn write(
        &mut self,
        now: Instant,
        access: &MemoryAccess<'_>,
        tools: &mut Tools,
        found: &mut Found,
    ) {
        let (Phase::Open(stream), Some(socket)) = (&mut self.phase, &self.socket) else { return };
        let mut memory = memory_of(self.owner, self.source.as_deref(), access);
        let Tools { gather, writer, capture, faults, .. } = tools;
        let mut left = TURN_BYTES;
        while left > 0 {
            stream.poll_transmit(&mut memory, gather);
            if gather.is_empty() {
                return;
            }
            let bytes = gather.bytes();
            let part_of = |part: &Part| match part {
                Part::Bytes(range) => bytes.get(range.clone()).map(StreamPart::Own),
                Part::Memory { piece, access } => {
                    memory.slice(*piece, *access).map(StreamPart::Registered)
                }
            };
            let parts = || gather.parts().iter().map_while(part_of);
            let total = gather.total();
            let cut = faults.as_mut().and_then(|faults| faults.cut(total)).unwrap_or(usize::MAX);
            let Ok(written) = writer.write_at_most(socket, parts(), cut) else {
                found.worked = true;
                if let Some(capture) = capture {
                    capture.reset(&mut self.captured);
                }
                return stream.handle_reset();
            };
            let written = written.unwrap_or(0);
            if let Some(capture) = capture.as_mut().filter(|_| written > 0) {
                let ends = ends_of(socket, self.peer, self.port);
                capture.sent(&mut self.captured, ends, parts(), written);
            }
            stream.handle_written(now, written, gather);
            if written > 0 {
                found.worked = true;
                self.silence
                    .get_or_insert(SilenceWatch { since: now, look_at: now.after_ns(SILENCE_NS) });
            }
            if written < total {
                self.is_writable = false;
                return;
            }
            left = left.saturating_sub(written);
        }
        found.more = true;
    }

    /// Ends the stream if the peer's host has acknowledged nothing for too long. A peer that is
    /// stopped or slow is not silent, because its kernel answers.
    fn look_for_silence(&mut self, now: Instant) {
        let Some(watch) = self.silence.filter(|watch| watch.look_at <= now) else { return };
        let silent = self.socket.as_ref().and_then(|socket| socket.silence().ok()).flatten();
        let Some(silent) = silent else {
            self.silence = None;
            return;
        };
        let silent_ns = u64::try_from(silent.as_nanos()).unwrap_or(u64::MAX);
        let silent_ns = silent_ns.min(now.since_ns(watch.since));
        if silent_ns >= SILENCE_NS {
            self.silence = None;
            if let Phase::Open(stream) = &mut self.phase {
                stream.handle_reset();
            }
            return;
        }
        let left_ns = (SILENCE_NS - silent_ns).max(SILENCE_LOOK_NS);
        self.silence = Some(SilenceWatch { look_at: now.after_ns(left_ns), ..watch });
    }

    /// Adapts the watch of the socket after a turn. Returns whether it must change.
    pub(crate) fn wants_other_watch(&mut self) -> bool {
        let is_connecting = matches!(self.phase, Phase::Connecting { .. });
        let wants_room = !self.is_writable || is_connecting;
        let wants_bytes = self.receive_wait.is_none() && self.delayed_until.is_none();
        let changes = (wants_room, wants_bytes) != (self.watches_room, self.watches_bytes);
        (self.watches_room, self.watches_bytes) = (wants_room, wants_bytes);
        changes
    }

    fn handle_events(&mut self, now: Instant, tools: &mut Tools, found: &mut Found) {
        loop {
            let Phase::Open(stream) = &mut self.phase else { return };
            let Some(event) = stream.poll_event() else { return };
            let is_last = stream.is_idle();
            found.worked = true;
            match event {
                Event::Completed { id, kind, status, bytes } => {
                    let completion = completion_of_send(self.owner, id, kind, status, bytes);
                    if kind == Kind::Write && status == Status::Success && is_last {
                        let earlier = self.ping_pong.take();
                        self.push_send(tools, earlier);
                        let completion = self.ping_pong.on_completed(now, completion);
                        self.push_send(tools, completion);
                    } else {
                        self.push_waiting(tools);
                        self.push(tools, &completion, false);
                    }
                }
                Event::ReceiveCompleted { id, status, bytes, solicited, invalidated } => {
                    let completion = completion_of_receive(
                        self.owner,
                        id,
                        status,
                        bytes,
                        solicited,
                        invalidated,
                    );
                    self.push(tools, &completion, true);
                }
                Event::Request { private_data, ird, ord } => {
                    self.half_open = None;
                    found.request = Some(Asked { private_data, ird, ord });
                }
                Event::Established { private_data } => {
                    tools.journal.established(self.peer, &stream.terms());
                    found.established = true;
                    self.establish(private_data, found);
                }
                Event::Rejected { private_data } => {
                    let status = -(Errno::ECONNRESET as i32);
                    self.notify_of_end(Over::Refused { status, private_data }, found);
                }
                Event::Ended { cause } => {
                    tools.journal.ended(self.peer, &cause, stream.blamed());
                    found.broke_rule = cause.rule().is_some();
                    self.push_waiting(tools);
                    self.end(now, cause, found);
                }
            }
        }
    }

    /// Pushes the completion of a write that waits for an answer.
    fn push_waiting(&mut self, tools: &mut Tools) {
        let waiting = self.ping_pong.on_other();
        self.push_send(tools, waiting);
    }

    fn push_send(&self, tools: &mut Tools, completion: Option<Completion>) {
        if let Some(completion) = completion {
            self.push(tools, &completion, false);
        }
    }

    fn push(&self, tools: &mut Tools, completion: &Completion, is_receive: bool) {
        let Some(source) = &self.source else { return };
        let queues = source.queue_pair().queues();
        let queue = if is_receive { queues.receive } else { queues.send };
        match queue.push(completion) {
            Push::Added => {}
            Push::Fired => tools.fired.push(queue),
            Push::NoRoom => source.queue_pair().on_ended(Ending::Overrun),
        }
    }

    fn establish(&mut self, private_data: Vec<u8>, found: &mut Found) {
        self.is_established = true;
        found.has_news = true;
        let (Some(source), Some(caller)) = (self.source.clone(), self.caller.clone()) else {
            return;
        };
        if self.port.is_some() {
            return caller.on_established();
        }
        let reads @ (reads_max, peer_reads_max) = self.reads();
        let queue_pair = source.queue_pair();
        // If this is too late, the program has ended the queue pair, whose wire closes the stream.
        if queue_pair.on_connected(reads_max, peer_reads_max) {
            caller.on_accepted(reply_of(queue_pair, private_data, reads));
        }
    }

    fn end(&mut self, now: Instant, cause: EndCause, found: &mut Found) {
        // A proxy between the ends accepts first, and closes if no program listens behind it.
        let is_unanswered = matches!(cause, EndCause::Reset | EndCause::Setup(SetupFault::Closed));
        if !self.is_established && is_unanswered && self.tries_again(now, found) {
            return;
        }
        if let Some(source) = self.source.take() {
            source.set_stream(None);
            let queue_pair: &QueuePair = source.queue_pair();
            match cause {
                EndCause::ClosedHere if self.leaving.is_some_and(|leaving| !leaving.notifies) => {}
                EndCause::Peer(_) => queue_pair.on_ended(Ending::PeerMisbehaved),
                _ => queue_pair.on_ended(Ending::Flushed),
            }
        }
        self.leaving.get_or_insert(Leaving::at_once(now));
        let over = if self.is_established {
            Over::Disconnected
        } else {
            match cause {
                EndCause::Setup(SetupFault::NoReply | SetupFault::NoRequest) => Over::Unreachable,
                EndCause::Setup(
                    SetupFault::Closed | SetupFault::NotEnhanced | SetupFault::Revision(_),
                )
                | EndCause::Rejected
                | EndCause::Reset => {
                    let status = -(Errno::ECONNRESET as i32);
                    Over::Refused { status, private_data: Vec::new() }
                }
                EndCause::Setup(_) => Over::Failed { status: -(Errno::EINVAL as i32) },
                _ => Over::Disconnected,
            }
        };
        self.notify_of_end(over, found);
    }

    /// Notifies the caller once that the connection has ended.
    fn notify_of_end(&mut self, over: Over, found: &mut Found) {
        if let Some(caller) = self.caller.take() {
            found.has_news = true;
            caller.on_over(over);
        }
    }
}

/// Returns the ends of a stream.
fn ends_of(socket: &TcpStream, peer: SocketAddr, port: Option<usize>) -> Ends {
    Ends { local: socket.local_address().ok(), peer, is_initiator: port.is_none() }
}

/// Returns the memory that the stream with this owner reaches.
fn memory_of<'a>(
    owner: Owner,
    source: Option<&'a QueuePairSource>,
    access: &'a MemoryAccess<'a>,
) -> TurnMemory<'a> {
    let of_source = |source: &'a QueuePairSource| MemoryOwner {
        queue_pair: source.queue_pair(),
        domain: source.domain(),
        receive_domain: source.receive_domain(),
        connection: owner.bits(),
    };
    TurnMemory::new(access, source.map(of_source))
}

/// Returns the segment size of a socket in bytes, for the length of FPDUs.
pub(crate) fn segment_bytes(socket: &TcpStream) -> u16 {
    let bytes = socket.segment_bytes().unwrap_or(SEGMENT_BYTES_ASSUMED);
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// Segment size if the kernel does not say one: that of Ethernet with timestamps.
const SEGMENT_BYTES_ASSUMED: u32 = 1448;

/// Length of the common buffer for received bytes. A reading takes what the kernel has collected
/// meanwhile, which is rarely more.
const BUFFER_BYTES: usize = 256 << 10;

/// Bytes that a stream reads, and that it writes, before the other streams have their turns.
const TURN_BYTES: usize = 256 << 10;

/// Time without an acknowledgement after which a peer's host counts as lost, in nanoseconds. A
/// second below the 30 s that adapters have by default for TCP, so that a program knows of the loss
/// within them.
const SILENCE_NS: u64 = 29_000_000_000;

/// Shortest time between two looks at the acknowledgements, in nanoseconds.
const SILENCE_LOOK_NS: u64 = 100_000_000;

//! One stream of the machine: its socket, its protocol state and its queue pair.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use delivery::Instant;
use iwarp::{Config, EndCause, Event, Gather, Part, SetupFault, Stream};
use link::tcp::{StreamPart, StreamWriter, TcpStream};
use mem::MemoryAccess;
use nix::errno::Errno;
use rdma_cm::{Caller, Over};
use runtime::{Descriptors, Readiness};
use verbs::{Ending, QueuePair};
use work::{Completion, CompletionQueue, Owner, Push};

use crate::ends::reply_of;
use crate::memory::{MemoryOwner, TurnMemory};
use crate::source::QueuePairSource;
use crate::work::{completion_of_receive, completion_of_send, pull};

/// What the streams of a machine use in turn.
pub(crate) struct Tools {
    /// Received bytes, before the stream has looked at them.
    buffer: Box<[u8]>,
    gather: Gather,
    writer: StreamWriter,
    /// Completion queues that were armed and have got a completion.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
}

impl Tools {
    pub(crate) fn new() -> Self {
        Self {
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
    socket: TcpStream,
    phase: Phase,
    source: Option<Arc<QueuePairSource>>,
    /// Whom to notify of what becomes of the connection.
    caller: Option<Arc<dyn Caller>>,
    /// Whether the socket is watched for room to write.
    watches_room: bool,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
    /// Whether sends of the queue pair wait for room in the stream.
    has_waiting_sends: bool,
    /// Whether the caller knows that the connection is established.
    is_established: bool,
    /// Number of the listening port that accepted the connection. `None` for an initiator.
    port: Option<usize>,
}

/// Where a stream is in its life.
enum Phase {
    /// TCP connects. The stream will ask the peer with this private data.
    Connecting { config: Config, private_data: Vec<u8> },
    /// TCP is connected.
    Open(Box<Stream>),
    /// The stream has ended. What the peer still sends is read and forgotten until it ends its side
    /// or the time has come. If the socket were closed with unread bytes, the kernel would reset
    /// the connection, and the peer could lose what was sent last.
    Parting { until: Instant },
}

/// What a turn of a stream found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Whether anything happened.
    pub(crate) worked: bool,
    /// Whether there is more to do at once.
    pub(crate) more: bool,
    /// Whether a caller was notified.
    pub(crate) has_news: bool,
    /// A request of the peer that waits for an answer.
    pub(crate) request: Option<Asked>,
    /// The stream has ended and its socket can be closed.
    pub(crate) has_ended: bool,
}

/// A request of a peer.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) private_data: Vec<u8>,
    pub(crate) ird: Option<u16>,
    pub(crate) ord: Option<u16>,
}

impl Entry {
    /// Creates the entry of an initiator, whose socket connects.
    pub(crate) fn connecting(
        owner: Owner,
        socket: TcpStream,
        config: Config,
        private_data: Vec<u8>,
        source: Arc<QueuePairSource>,
        caller: Arc<dyn Caller>,
    ) -> Self {
        let phase = Phase::Connecting { config, private_data };
        let mut entry = Self::new(owner, socket, phase, None);
        (entry.source, entry.caller) = (Some(source), Some(caller));
        entry
    }

    /// Creates the entry of a responder.
    pub(crate) fn accepted(
        owner: Owner,
        socket: TcpStream,
        config: Config,
        now: Instant,
        port: usize,
    ) -> Self {
        let phase = Phase::Open(Box::new(Stream::respond(config, now)));
        Self::new(owner, socket, phase, Some(port))
    }

    fn new(owner: Owner, socket: TcpStream, phase: Phase, port: Option<usize>) -> Self {
        Self {
            owner,
            socket,
            phase,
            source: None,
            caller: None,
            watches_room: true,
            is_readable: true,
            is_writable: true,
            has_waiting_sends: false,
            is_established: false,
            port,
        }
    }

    pub(crate) const fn owner(&self) -> Owner {
        self.owner
    }

    pub(crate) const fn socket(&self) -> &TcpStream {
        &self.socket
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
        self.socket.local_address().ok()
    }

    /// Returns the address of the peer, while TCP is connected.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        self.socket.peer_address().ok()
    }

    /// Watches the socket, for room as well if there are bytes to write.
    pub(crate) fn watch(&self, descriptors: &Descriptors, key: u64) -> io::Result<()> {
        let ready = Readiness { readable: true, writable: self.watches_room };
        descriptors.watch(self.socket.as_fd(), key, ready)
    }

    /// Returns the time at which the stream wants its next turn.
    pub(crate) fn due(&self) -> Instant {
        match &self.phase {
            Phase::Connecting { .. } => Instant::NEVER,
            Phase::Open(stream) => stream.next_timeout().unwrap_or(Instant::NEVER),
            Phase::Parting { until } => *until,
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
        match &mut self.phase {
            Phase::Open(stream) => {
                let mut memory = memory_of(self.owner, self.source.as_deref(), access);
                stream.close(&mut memory);
            }
            Phase::Connecting { .. } => self.phase = Phase::Parting { until: now },
            Phase::Parting { .. } => {}
        }
        self.handle_events(tools, &mut Found::default());
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
        if matches!(self.phase, Phase::Connecting { .. }) {
            self.connect(now, &mut found);
        }
        match self.phase {
            Phase::Connecting { .. } => return found,
            Phase::Parting { until } => {
                found.has_ended = until <= now || self.has_parted(tools);
                return found;
            }
            Phase::Open(_) => {}
        }
        if std::mem::take(&mut self.is_readable) {
            self.read(access, tools, &mut found);
        }
        if self.due() <= now
            && let Phase::Open(stream) = &mut self.phase
        {
            stream.handle_timeout(now);
            found.worked = true;
        }
        self.handle_events(tools, &mut found);
        self.pull(access);
        if self.is_writable {
            self.write(now, access, tools, &mut found);
            self.handle_events(tools, &mut found);
        }
        if self.has_waiting_sends && self.is_writable {
            // The completions have made room.
            found.more |= self.pull(access);
        }
        let Phase::Open(stream) = &self.phase else { return found };
        if stream.is_idle()
            && let Some(source) = self.source.as_ref().filter(|source| source.takes_drain())
        {
            source.queue_pair().on_drained();
        }
        if stream.may_close() {
            self.part(now, &mut found);
        }
        found
    }

    /// Ends this side of the connection after the last byte of the stream.
    fn part(&mut self, now: Instant, found: &mut Found) {
        // This fails if the connection has ended already; the next reading then finds the end.
        let _ended = self.socket.end_sending();
        self.phase = Phase::Parting { until: now.after_ns(PARTING_NS) };
        (self.is_readable, self.is_writable, found.more) = (true, true, true);
    }

    /// Reads and forgets what the peer still sends. Returns whether its side has ended, too.
    fn has_parted(&mut self, tools: &mut Tools) -> bool {
        if !std::mem::take(&mut self.is_readable) {
            return false;
        }
        loop {
            match self.socket.read(&mut tools.buffer) {
                Ok(None) => return false,
                Ok(Some(0)) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
    }

    /// Begins to speak on a socket that is connected now.
    fn connect(&mut self, now: Instant, found: &mut Found) {
        if !std::mem::take(&mut self.is_writable) {
            return;
        }
        let Phase::Connecting { config, private_data } = &self.phase else { return };
        let ended = match self.socket.take_error() {
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        if let Some(error) = ended {
            return self.fail_to_connect(now, &error, found);
        }
        if self.socket.peer_address().is_err() {
            // TCP has not connected yet; the socket is watched for it.
            return;
        }
        let config = Config { mss: segment_bytes(&self.socket), ..*config };
        let stream = Stream::initiate(config, private_data, now);
        match stream {
            Ok(stream) => {
                self.phase = Phase::Open(Box::new(stream));
                self.is_writable = true;
                found.worked = true;
            }
            Err(_too_long) => {
                let error = io::Error::from_raw_os_error(Errno::EINVAL as i32);
                self.fail_to_connect(now, &error, found);
            }
        }
    }

    fn fail_to_connect(&mut self, now: Instant, error: &io::Error, found: &mut Found) {
        let status = -error.raw_os_error().unwrap_or(Errno::EIO as i32);
        let over = match -status {
            refused if refused == Errno::ECONNREFUSED as i32 => {
                Over::Refused { status, private_data: Vec::new() }
            }
            late if late == Errno::ETIMEDOUT as i32 => Over::Unreachable,
            _ => Over::Failed { status },
        };
        if let Some(source) = self.source.take() {
            source.set_stream(None);
        }
        self.notify_of_end(over, found);
        self.phase = Phase::Parting { until: now };
        (found.worked, found.more) = (true, true);
    }

    fn read(&mut self, access: &MemoryAccess<'_>, tools: &mut Tools, found: &mut Found) {
        let Phase::Open(stream) = &mut self.phase else { return };
        let mut memory = memory_of(self.owner, self.source.as_deref(), access);
        let mut left = TURN_BYTES;
        while left > 0 {
            match read_once(&self.socket, stream, &mut memory, &mut tools.buffer) {
                Ok(None) => return,
                Ok(Some(0)) => {
                    found.worked = true;
                    return stream.handle_end();
                }
                Ok(Some(count)) => {
                    found.worked = true;
                    left = left.saturating_sub(count);
                }
                Err(_) => {
                    found.worked = true;
                    return stream.handle_reset();
                }
            }
        }
        // Let the other streams read before this one goes on.
        (self.is_readable, found.more) = (true, true);
    }

    /// Passes posted sends to the stream. Returns whether sends wait for room.
    fn pull(&mut self, access: &MemoryAccess<'_>) -> bool {
        if let (Phase::Open(stream), Some(source)) = (&mut self.phase, &self.source) {
            self.has_waiting_sends = pull(source.queue_pair(), stream, access);
        }
        self.has_waiting_sends
    }

    fn write(
        &mut self,
        now: Instant,
        access: &MemoryAccess<'_>,
        tools: &mut Tools,
        found: &mut Found,
    ) {
        let Phase::Open(stream) = &mut self.phase else { return };
        let mut memory = memory_of(self.owner, self.source.as_deref(), access);
        let Tools { gather, writer, .. } = tools;
        let mut left = TURN_BYTES;
        while left > 0 {
            stream.poll_transmit(&mut memory, gather);
            if gather.is_empty() {
                return;
            }
            let bytes = gather.bytes();
            let parts = gather.parts().iter().map_while(|part| match part {
                Part::Bytes(range) => bytes.get(range.clone()).map(StreamPart::Own),
                Part::Memory { piece, access } => {
                    memory.slice(*piece, *access).map(StreamPart::Registered)
                }
            });
            let total = gather.total();
            let Ok(written) = writer.write(&self.socket, parts) else {
                found.worked = true;
                return stream.handle_reset();
            };
            let written = written.unwrap_or(0);
            stream.handle_written(now, written, gather);
            found.worked |= written > 0;
            if written < total {
                self.is_writable = false;
                return;
            }
            left = left.saturating_sub(written);
        }
        found.more = true;
    }

    /// Adapts the watch of the socket after a turn. Returns whether it must change.
    pub(crate) fn wants_other_watch(&mut self) -> bool {
        let is_connecting = matches!(self.phase, Phase::Connecting { .. });
        let wants_room = !self.is_writable || is_connecting;
        let changes = wants_room != self.watches_room;
        self.watches_room = wants_room;
        changes
    }

    fn handle_events(&mut self, tools: &mut Tools, found: &mut Found) {
        loop {
            let Phase::Open(stream) = &mut self.phase else { return };
            let Some(event) = stream.poll_event() else { return };
            found.worked = true;
            match event {
                Event::Completed { id, kind, status, bytes } => {
                    let completion = completion_of_send(self.owner, id, kind, status, bytes);
                    self.push(tools, &completion, false);
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
                    found.request = Some(Asked { private_data, ird, ord });
                }
                Event::Established { private_data } => self.establish(private_data, found),
                Event::Rejected { private_data } => {
                    let status = -(Errno::ECONNRESET as i32);
                    self.notify_of_end(Over::Refused { status, private_data }, found);
                }
                Event::Ended { cause } => self.end(cause, found),
            }
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

    fn end(&mut self, cause: EndCause, found: &mut Found) {
        if let Some(source) = self.source.take() {
            source.set_stream(None);
            let queue_pair: &QueuePair = source.queue_pair();
            match cause {
                EndCause::ClosedHere => {}
                EndCause::Peer(_) => queue_pair.on_ended(Ending::PeerMisbehaved),
                _ => queue_pair.on_ended(Ending::Flushed),
            }
        }
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

/// Reads what the kernel has, in one call: into its region if the rest of a long FPDU is next, and
/// otherwise into the buffer. Passes the bytes to the stream. Returns their number, `Some(0)` at the
/// end of the connection, and `None` if nothing has arrived.
fn read_once(
    socket: &TcpStream,
    stream: &mut Stream,
    memory: &mut TurnMemory<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<usize>> {
    let direct = stream.direct_sink().filter(|direct| direct.piece.bytes >= DIRECT_BYTES_MIN);
    let sink = direct.and_then(|direct| memory.sink(direct.piece, direct.access));
    let read = match &sink {
        Some(sink) => socket.read_into(sink, buffer)?,
        None => socket.read(buffer)?,
    };
    let Some(count) = read else { return Ok(None) };
    let placed = sink.map_or(0, |sink| sink.len() as usize).min(count);
    if placed > 0 {
        stream.handle_placed(placed as u32);
    }
    if let Some(rest) = buffer.get(..count - placed).filter(|rest| !rest.is_empty()) {
        stream.handle_received(rest, memory);
    }
    Ok(Some(count))
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

/// Rest of an FPDU, in bytes, from which on it is read into its region directly. For less, the
/// second element of the reading costs more than the copy.
const DIRECT_BYTES_MIN: u32 = 8 << 10;

/// Time for which an ended stream waits until the peer ends its side, too, in nanoseconds.
const PARTING_NS: u64 = 2_000_000_000;

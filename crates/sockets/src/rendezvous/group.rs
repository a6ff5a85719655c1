//! A link group: an edge connection between two processes, and the resources that its streams
//! share.

use std::collections::{HashSet, VecDeque};

use engine::{ConnectionHandle, Engine};
use mem::{MemoryAccess, MemoryTable, ProtectionDomain, RegionId, RegisterError};
use semantics::{INLINE_BYTES_MAX, Operation, OperationFlags, PostError, Receive, Request, Source};
use thiserror::Error;
use wire_edge::PeerAddr;

use crate::transport::arena::{Arena, RECEIVE_BUFFERS, ReceiveBuffers, Rings};
use crate::wire::{Incarnation, Message, RingLocation, StreamNumber};

/// A link group.
pub(crate) struct Group {
    handle: ConnectionHandle,
    domain: ProtectionDomain,
    /// The incarnation of the peer's process: the random number that identifies one run of its
    /// endpoint.
    pub(crate) peer: Incarnation,
    /// Address of the peer's endpoint.
    pub(crate) at: PeerAddr,
    pub(crate) is_established: bool,
    /// True if the peer has violated the protocol.
    pub(crate) is_condemned: bool,
    pub(crate) arena: Arena,
    receive_buffers: ReceiveBuffers,
    /// Messages that the engine had no room for, each with its context. They are posted before any
    /// operation of a stream.
    outbox: VecDeque<(Message, u64)>,
    /// Tokens of the connections that wait until the group is established.
    pub(crate) joiners: Vec<u64>,
    /// The streams of the group.
    streams: HashSet<StreamNumber>,
    /// True if the group had a stream at any time since the last [`Group::look`].
    is_used: bool,
}

impl Group {
    pub(crate) fn new(
        memory: &MemoryTable,
        handle: ConnectionHandle,
        domain: ProtectionDomain,
        peer: Incarnation,
        at: PeerAddr,
    ) -> Result<Self, RegisterError> {
        let receive_buffers = ReceiveBuffers::new(memory, domain)?;
        Ok(Self {
            handle,
            domain,
            peer,
            at,
            is_established: false,
            is_condemned: false,
            arena: Arena::new(domain),
            receive_buffers,
            outbox: VecDeque::new(),
            joiners: Vec::new(),
            streams: HashSet::new(),
            is_used: false,
        })
    }

    pub(crate) const fn handle(&self) -> ConnectionHandle {
        self.handle
    }

    /// Adds a stream.
    pub(crate) fn add_stream(&mut self, number: StreamNumber) {
        self.streams.insert(number);
        self.is_used = true;
    }

    /// Removes a stream and frees its rings. Returns memory that the caller must deregister after
    /// it has released the lock of the engine, or `None`.
    #[must_use]
    pub(crate) fn remove_stream(
        &mut self,
        number: StreamNumber,
        rings: &Rings,
    ) -> Option<DeferredDeregistration> {
        self.streams.remove(&number);
        self.give_back(rings)
    }

    /// Frees rings that no stream uses. Returns regions that the caller must deregister after it
    /// has released the lock of the engine, or `None`.
    #[must_use]
    pub(crate) fn give_back(&mut self, rings: &Rings) -> Option<DeferredDeregistration> {
        let regions = self.arena.give_back(rings)?;
        Some(DeferredDeregistration { domain: None, regions: regions.to_vec() })
    }

    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamNumber> {
        self.streams.iter().copied()
    }

    //= sockets-protocol.md: group.6
    /// Checks whether the group is in use. Returns the time until the next check, in nanoseconds.
    /// Returns `None` if the caller must close the group, because it had no stream since the last
    /// check. The first check is [`JOIN_WITHIN_NS`] after the group was created.
    pub(crate) fn look(&mut self) -> Option<u64> {
        let was_used = std::mem::replace(&mut self.is_used, !self.streams.is_empty());
        (was_used || !self.joiners.is_empty()).then_some(IDLE_NS)
    }

    /// Posts all receive buffers.
    pub(crate) fn post_receive_buffers(&self, engine: &mut Engine, memory: &MemoryAccess<'_>) {
        for buffer in 0..RECEIVE_BUFFERS {
            self.post_receive_buffer(engine, memory, buffer);
        }
    }

    /// Posts a receive buffer again, after its message was read.
    pub(crate) fn post_receive_buffer(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        buffer: u32,
    ) {
        let (region, offset, length) = self.receive_buffers.location(buffer);
        let context = Context::ReceiveBuffer(buffer).bits();
        let receive = Receive { region, offset, length, context };
        // The engine has room for all receive buffers. It refuses a receive buffer only if the
        // connection has ended.
        let _closed = engine.post_receive(memory, self.handle, receive);
    }

    /// Copies the message out of a receive buffer.
    pub(crate) fn read_message(&self, buffer: u32, bytes: u32) -> ([u8; 64], usize) {
        self.receive_buffers.read(buffer, bytes)
    }

    /// Posts a message. If the engine has no room, queues the message. Returns the number of
    /// messages posted.
    pub(crate) fn send(
        &mut self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        message: Message,
        context: Context,
    ) -> u32 {
        self.outbox.push_back((message, context.bits()));
        self.flush(engine, memory)
    }

    /// Posts queued messages. Returns the number of messages posted.
    pub(crate) fn flush(&mut self, engine: &mut Engine, memory: &MemoryAccess<'_>) -> u32 {
        let mut posted = 0;
        while let Some((message, context)) = self.outbox.front() {
            let operation = message_operation(message, *context);
            match engine.post(memory, self.handle, &operation) {
                Ok(_) => {
                    self.outbox.pop_front();
                    posted += 1;
                }
                // The connection has ended, so the peer cannot receive these messages.
                Err(PostError::NotConnected) if self.is_established => self.outbox.clear(),
                Err(_) => break,
            }
        }
        posted
    }

    /// Returns true if messages are queued because the engine had no room.
    pub(crate) fn is_held_up(&self) -> bool {
        !self.outbox.is_empty()
    }

    //= sockets-protocol.md: message.5
    /// Checks the number of queued messages. Without a limit, a peer that sends requests and does
    /// not receive the answers would use up the memory.
    pub(crate) fn check_outbox(&self) -> Result<(), TakesNoAnswers> {
        let limit = MESSAGES_MAX + MESSAGES_OF_STREAM * self.streams.len();
        let waiting = self.outbox.len();
        if waiting <= limit { Ok(()) } else { Err(TakesNoAnswers(waiting)) }
    }

    /// Posts data of a stream.
    pub(crate) fn write(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        data: &Write,
    ) -> Result<(), PostError> {
        let (region, offset) = data.from;
        let operation = Operation {
            request: Request::Write {
                source: Source::Region { region, offset },
                key: data.ring.key,
                address: data.ring.address + u64::from(data.to),
            },
            length: data.length,
            flags: OperationFlags { signalled: true, notify: true, ..OperationFlags::default() },
            immediate: Some(data.peer.0),
            context: Context::Data(data.number).bits(),
            status: None,
        };
        engine.post(memory, self.handle, &operation).map(|_| ())
    }

    /// Ends the group. Returns the group's memory, which the caller must deregister after it has
    /// released the lock of the engine.
    pub(crate) fn into_deregistration(self) -> DeferredDeregistration {
        let mut regions: Vec<_> = self.arena.regions().collect();
        regions.push(self.receive_buffers.region());
        DeferredDeregistration { domain: Some(self.domain), regions }
    }
}

/// The error for a peer that sends requests and does not receive the answers.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("{0} answers are pending, because the peer does not receive them")]
pub(crate) struct TakesNoAnswers(usize);

/// A remote write of stream data into the peer's ring.
pub(crate) struct Write {
    /// Region and offset of the first byte.
    pub(crate) from: (RegionId, u64),
    pub(crate) length: u32,
    pub(crate) ring: RingLocation,
    /// Offset in the peer's ring.
    pub(crate) to: u32,
    /// The number of the stream at this end (`number`) and at the peer (`peer`).
    pub(crate) number: StreamNumber,
    pub(crate) peer: StreamNumber,
}

/// Memory of a group that must be deregistered by a thread that does not hold the lock of the
/// engine.
pub(crate) struct DeferredDeregistration {
    /// The protection domain of the group. `None` if the group has not ended and still uses the
    /// domain. [`Self::run`] releases the domain after it has deregistered the regions.
    domain: Option<ProtectionDomain>,
    regions: Vec<RegionId>,
}

impl DeferredDeregistration {
    /// Deregisters the memory. The caller must not hold the lock of the engine.
    pub(crate) fn run(self, memory: &MemoryTable) {
        for region in self.regions {
            // This cannot fail: the region is registered, and only the group uses it.
            let _known = memory.deregister(region);
        }
        if let Some(domain) = self.domain {
            let _empty = memory.release_domain(domain);
        }
    }
}

/// The purpose of an operation or receive. It determines how the library handles the completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Context {
    /// A write of data for a stream.
    Data(StreamNumber),
    /// A message whose completion needs no handling.
    Message,
    /// The last message for a stream: End or Reset.
    Last(StreamNumber),
    /// The receive buffer with this number.
    ReceiveBuffer(u32),
}

impl Context {
    pub(crate) const fn bits(self) -> u64 {
        let (kind, number) = match self {
            Self::Data(number) => (0, number.0),
            Self::Message => (1, 0),
            Self::Last(number) => (2, number.0),
            Self::ReceiveBuffer(buffer) => (3, buffer),
        };
        kind << 32 | number as u64
    }

    pub(crate) const fn of_bits(bits: u64) -> Self {
        let number = bits as u32;
        match bits >> 32 {
            0 => Self::Data(StreamNumber(number)),
            2 => Self::Last(StreamNumber(number)),
            3 => Self::ReceiveBuffer(number),
            _ => Self::Message,
        }
    }
}

fn message_operation(message: &Message, context: u64) -> Operation {
    let mut bytes = Vec::with_capacity(INLINE_BYTES_MAX);
    message.encode(&mut bytes);
    let mut inline = [0; INLINE_BYTES_MAX];
    for (to, from) in inline.iter_mut().zip(&bytes) {
        *to = *from;
    }
    Operation {
        request: Request::Send { source: Source::Inline(inline) },
        length: bytes.len() as u32,
        flags: OperationFlags { signalled: true, notify: true, ..OperationFlags::default() },
        immediate: None,
        context,
        status: None,
    }
}

/// Maximum number of queued messages of a group, in addition to those for its streams. This is
/// enough for the refusals of all joins that a busy client has in flight. The messages take 64 KiB.
const MESSAGES_MAX: usize = 1024;

/// Maximum number of queued messages for each stream: the answer to the join, a credit for each
/// quarter of a ring and one for the rest, End and Reset.
const MESSAGES_OF_STREAM: usize = 8;

/// The time until the first check of a group, in nanoseconds. The peer requested the group because
/// it is going to join a connection, so Join follows within a round trip.
pub(crate) const JOIN_WITHIN_NS: u64 = 10_000_000_000;

/// The interval between checks of a group, in nanoseconds. A group without streams is closed after
/// one to two intervals. So a client that connects once a minute finds its group open, and a group
/// with a failed host is removed.
const IDLE_NS: u64 = 60_000_000_000;

const _: () = assert!(crate::wire::MESSAGE_BYTES_MAX <= INLINE_BYTES_MAX);

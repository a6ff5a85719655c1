//! The connections of a rank to all ranks, as the transport of its machine.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use dsm_protocol::{Answer, Area, Arrival, Landing, Operation, Rank, Reason, Ticket};
use ethernot::{
    Closed, Completion, CompletionKind, CompletionQueue, Connection, Endpoint, MemoryRegion,
    OperationError, OperationFlags, OperationRefusal, PostError, RegisterError, RemoteRegion,
    Request, Source, SubmitError,
};

use crate::landings::{LandingPlace, Landings};
use crate::local::Local;
use crate::staging::{Place, Staging};

/// The registered memory of a peer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PeerMemory {
    pub(crate) frames: RemoteRegion,
    pub(crate) control: RemoteRegion,
    /// The master copies of the pages. Only the race detector needs them.
    pub(crate) masters: Option<RemoteRegion>,
}

/// A peer. Operations wait in the backlog until it is connected, and while its connection takes no
/// more.
#[derive(Debug, Default)]
struct Peer {
    link: Option<(Arc<Connection>, PeerMemory)>,
    backlog: VecDeque<Waiting>,
    /// Whether the peer needs nothing of this rank any more.
    has_left: bool,
    has_died: bool,
}

/// An operation that is not posted yet, or is in flight.
#[derive(Debug)]
struct Waiting {
    ticket: u64,
    is_fenced: bool,
    what: What,
    place: Place,
    /// Where the bytes of a read of several pages arrive, if not in the frames.
    landing: Option<LandingPlace>,
    length: u32,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read { area: Area, address: u64, landing: Landing },
    Write { area: Area, address: u64, notification: Option<u32> },
    Patch { area: Area, address: u64 },
    FetchAdd { area: Area, address: u64, operand: u64 },
    CompareSwap { area: Area, address: u64, expected: u64, desired: u64 },
    Swap { area: Area, address: u64, operand: u64 },
    Send,
    Goodbye,
}

/// The connections of a rank.
#[derive(Debug)]
pub(crate) struct Network {
    me: Rank,
    queue: Arc<CompletionQueue>,
    frames: Arc<MemoryRegion>,
    masters: Option<MemoryRegion>,
    local: Local,
    peers: Vec<Peer>,
    staging: Staging,
    receives: Staging,
    landings: Option<Landings>,
    /// Whether a run of pages has arrived since [`Network::poll`] has last reported nothing.
    has_landed: bool,
    /// The places of posted receives, by the number that their completions have.
    posted: Vec<Place>,
    flights: HashMap<u64, (usize, Waiting)>,
    arrivals: VecDeque<(Arrival, Vec<u8>)>,
    /// Bit `r` is set if the next [`Network::flush`] posts operations of the backlog of rank `r`.
    unsent: u64,
    started: Instant,
}

impl Network {
    pub(crate) fn new(
        (me, size): (Rank, usize),
        endpoint: &Endpoint,
        queue: &Arc<CompletionQueue>,
        frames: &Arc<MemoryRegion>,
        masters: Option<MemoryRegion>,
        (local, landings): (Local, Option<Landings>),
    ) -> Result<Self, RegisterError> {
        Ok(Self {
            me,
            queue: Arc::clone(queue),
            frames: Arc::clone(frames),
            masters,
            local,
            peers: (0..size).map(|_| Peer::default()).collect(),
            staging: Staging::new(endpoint)?,
            receives: Staging::new(endpoint)?,
            landings,
            has_landed: false,
            posted: Vec::new(),
            flights: HashMap::new(),
            arrivals: VecDeque::new(),
            unsent: 0,
            started: Instant::now(),
        })
    }

    pub(crate) const fn local(&self) -> &Local {
        &self.local
    }

    /// Adds the connection to a peer, and posts what waits for it.
    ///
    /// # Errors
    /// The error of posting a receive.
    pub(crate) fn connect(
        &mut self,
        rank: usize,
        connection: Arc<Connection>,
        memory: PeerMemory,
    ) -> Result<(), PostError> {
        for _ in 0..RECEIVES {
            let place = self.receives.take(MESSAGE_BYTES_MAX)?;
            self.posted.push(place);
            match self.post_receive(&connection, rank, self.posted.len() - 1) {
                // The end of a connection is reported apart.
                Err(PostError::Closed(_)) => break,
                posted => posted?,
            }
        }
        if let Some(peer) = self.peers.get_mut(rank) {
            peer.link = Some((connection, memory));
        }
        self.drain(rank);
        Ok(())
    }

    fn post_receive(
        &self,
        connection: &Connection,
        rank: usize,
        index: usize,
    ) -> Result<(), PostError> {
        let Some(place) = self.posted.get(index) else { return Ok(()) };
        let context = RECEIVE | (rank as u64) << 32 | index as u64;
        let (region, offset) = self.receives.region(place);
        connection.post_receive(region, offset, MESSAGE_BYTES_MAX as u32, context)
    }

    /// Sends all peers the message that this rank needs nothing of them any more.
    pub(crate) fn say_goodbye(&mut self) {
        let me = self.me.index();
        for rank in (0..self.peers.len()).filter(|rank| *rank != me) {
            let ticket = GOODBYE | rank as u64;
            let (what, place, landing) = (What::Goodbye, Place::None, None);
            let goodbye = Waiting { ticket, is_fenced: false, what, place, landing, length: 0 };
            self.submit(rank, goodbye);
        }
    }

    /// Returns whether the machine has arrivals to handle that no completion announces.
    pub(crate) fn has_arrivals(&self) -> bool {
        !self.arrivals.is_empty()
    }

    /// Returns whether no operation of this rank is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.flights.is_empty()
            && self.arrivals.is_empty()
            && self.peers.iter().all(|peer| peer.backlog.is_empty() || peer.has_died)
    }

    /// Returns whether all peers have said goodbye.
    pub(crate) fn is_alone(&self) -> bool {
        let others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != self.me.index());
        others.into_iter().all(|(_, peer)| peer.has_left)
    }

    /// Handles the end of a connection.
    pub(crate) fn handle_end(&mut self, rank: usize, closed: Closed) {
        let Some(peer) = self.peers.get_mut(rank) else { return };
        if peer.has_died {
            return;
        }
        peer.has_died = true;
        peer.backlog.clear();
        self.flights.retain(|_, (other, _)| *other != rank);
        if !peer.has_left {
            let reason = match closed {
                Closed::Here | Closed::ByPeer | Closed::Refused(_) => Reason::Closed,
                Closed::PeerRefused(_) | Closed::PeerMisbehaved(_) | Closed::LocalMemory => {
                    Reason::Failed
                }
                _ => Reason::Silent,
            };
            let died = Arrival::Died { rank: Rank(rank as u8), reason };
            self.arrivals.push_back((died, Vec::new()));
        }
    }

    /// Handles a completion of the queue.
    pub(crate) fn handle(&mut self, completion: &Completion) {
        if completion.context & RECEIVE != 0 && completion.kind == CompletionKind::Receive {
            self.handle_message(completion);
            return;
        }
        if completion.kind == CompletionKind::Notification {
            let from = self.rank_of(completion);
            if let (Some(from), Some(notification)) = (from, completion.immediate) {
                let notified = Arrival::Notified { from, notification };
                self.arrivals.push_back((notified, Vec::new()));
            }
            return;
        }
        let Some((rank, flight)) = self.flights.remove(&completion.context) else { return };
        let answer = match completion.result {
            Ok(()) => match flight.what {
                What::FetchAdd { .. } | What::CompareSwap { .. } | What::Swap { .. } => {
                    Some(Answer::Value(completion.value))
                }
                _ => Some(Answer::Done),
            },
            Err(OperationError::RemoteAccess(_) | OperationError::MessageTooLong) => {
                Some(Answer::Refused)
            }
            // The connection has ended, which is reported apart.
            Err(_) => None,
        };
        let mut bytes = Vec::new();
        if answer == Some(Answer::Done)
            && let What::Read { landing: Landing::Buffer, .. } = flight.what
        {
            bytes = self.staging.read(&flight.place, flight.length as usize);
        }
        self.staging.give_back(&flight.place);
        if let (Some(place), Some(landings)) = (flight.landing, &mut self.landings) {
            if let (Some(Answer::Done), What::Read { landing: Landing::Frame(first), .. }) =
                (answer, flight.what)
            {
                landings.write(place, first, flight.length as usize);
                self.has_landed = true;
            }
            landings.give_back(place);
        }
        // The completion has made room.
        self.unsent |= 1 << rank;
        if let Some(answer) = answer.filter(|_| flight.ticket & GOODBYE == 0) {
            let ticket = Ticket(flight.ticket);
            self.arrivals.push_back((Arrival::Completed { ticket, answer }, bytes));
        }
    }

    fn handle_message(&mut self, completion: &Completion) {
        if completion.result.is_err() {
            return;
        }
        let rank = (completion.context >> 32 & 0xff) as usize;
        let index = completion.context as u32 as usize;
        let Some(place) = self.posted.get(index) else { return };
        let bytes = self.receives.read(place, completion.bytes as usize);
        if let Some((connection, _)) = self.peers.get(rank).and_then(|peer| peer.link.clone()) {
            // If this fails, the connection has ended, which is reported apart.
            let _ended = self.post_receive(&connection, rank, index);
        }
        if completion.immediate == Some(GOODBYE_IMMEDIATE) {
            if let Some(peer) = self.peers.get_mut(rank) {
                peer.has_left = true;
            }
            return;
        }
        let received = Arrival::Received { from: Rank(rank as u8) };
        self.arrivals.push_back((received, bytes));
    }

    fn rank_of(&self, completion: &Completion) -> Option<Rank> {
        let is_owner = |peer: &Peer| {
            peer.link.as_ref().is_some_and(|(connection, _)| connection.owner() == completion.owner)
        };
        self.peers.iter().position(is_owner).map(|rank| Rank(rank as u8))
    }

    /// Appends an operation to the backlog of a peer. [`Network::flush`] posts it.
    fn submit(&mut self, rank: usize, waiting: Waiting) {
        let Some(peer) = self.peers.get_mut(rank) else { return };
        if peer.has_died {
            self.staging.give_back(&waiting.place);
            return;
        }
        peer.backlog.push_back(waiting);
        self.unsent |= 1 << rank;
    }

    /// Posts the operations that the machine has begun since the last call, so that the operations
    /// of one step of the machine share system calls.
    ///
    /// Also tries again to post those that were refused because all connections together had too
    /// many. The completion that makes room may belong to another peer, and the peer that waits may
    /// have no operation in flight.
    pub(crate) fn flush(&mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        for rank in (0..self.peers.len()).filter(|rank| unsent >> rank & 1 == 1) {
            self.drain(rank);
        }
        if let Some(landings) = &mut self.landings {
            landings.allocate();
        }
    }

    /// Posts the operations that wait for a peer, as many as its connection takes. The last one sends
    /// the others, too.
    fn drain(&mut self, rank: usize) {
        loop {
            let Some(peer) = self.peers.get_mut(rank) else { return };
            let Some((connection, memory)) = &peer.link else { return };
            let Some(waiting) = peer.backlog.front() else { return };
            let operation =
                waiting.operation(memory, &self.staging, (&self.frames, self.masters.as_ref()));
            let is_last = peer.backlog.len() == 1;
            let posted = if is_last {
                connection.post(&operation)
            } else {
                connection.post_later(&operation)
            };
            match posted {
                Err(PostError::Submit(
                    SubmitError::Busy(_)
                    | SubmitError::Post(
                        OperationRefusal::CompletionQueueFull(_)
                        | OperationRefusal::NoOperationLeft(_),
                    ),
                )) => {
                    self.unsent |= 1 << rank;
                    return;
                }
                Err(PostError::Closed(_)) => {
                    for waiting in peer.backlog.drain(..) {
                        self.staging.give_back(&waiting.place);
                    }
                    return;
                }
                Ok(()) | Err(_) => {}
            }
            let Some(waiting) = peer.backlog.pop_front() else { return };
            if posted.is_ok() {
                self.flights.insert(waiting.ticket, (rank, waiting));
            } else {
                self.staging.give_back(&waiting.place);
                let refused =
                    Arrival::Completed { ticket: Ticket(waiting.ticket), answer: Answer::Refused };
                self.arrivals.push_back((refused, Vec::new()));
            }
        }
    }
}

impl Network {
    pub(crate) fn post(
        &mut self,
        peer: Rank,
        ticket: Ticket,
        is_fenced: bool,
        operation: &Operation<'_>,
    ) {
        if peer == self.me {
            self.perform_here(ticket, operation);
            return;
        }
        let (what, bytes, length) = match *operation {
            Operation::Read { area, address, length, landing } => {
                (What::Read { area, address, landing }, None, length as usize)
            }
            Operation::Write { area, address, bytes, notification } => {
                (What::Write { area, address, notification }, Some(bytes), bytes.len())
            }
            Operation::Patch { area, address, payload } => {
                (What::Patch { area, address }, Some(payload), payload.len())
            }
            Operation::FetchAdd { area, address, operand } => {
                (What::FetchAdd { area, address, operand }, None, 8)
            }
            Operation::CompareSwap { area, address, expected, desired } => {
                (What::CompareSwap { area, address, expected, desired }, None, 8)
            }
            Operation::Swap { area, address, operand } => {
                (What::Swap { area, address, operand }, None, 8)
            }
            Operation::Send { message } => (What::Send, Some(message), message.len()),
        };
        let lands_here = matches!(what, What::Read { landing: Landing::Buffer, .. });
        let place = match bytes {
            Some(bytes) => self.staging.take_for(bytes),
            None if lands_here => self.staging.take(length),
            None => Ok(Place::None),
        };
        let Ok(place) = place else {
            let refused = Arrival::Completed { ticket, answer: Answer::Refused };
            self.arrivals.push_back((refused, Vec::new()));
            return;
        };
        let landing = match (what, &mut self.landings) {
            (What::Read { landing: Landing::Frame(first), .. }, Some(landings)) => {
                landings.take(first, length)
            }
            _ => None,
        };
        let (ticket, length) = (ticket.0, length as u32);
        self.submit(peer.index(), Waiting { ticket, is_fenced, what, place, landing, length });
    }

    fn perform_here(&mut self, ticket: Ticket, operation: &Operation<'_>) {
        let mut bytes = Vec::new();
        if let Operation::Send { message } = operation {
            let received = Arrival::Received { from: self.me };
            self.arrivals.push_back((received, message.to_vec()));
        }
        let answer = self.local.perform(operation, &mut bytes);
        self.arrivals.push_back((Arrival::Completed { ticket, answer }, bytes));
    }

    /// Returns the next arrival. If there is none, flushes. Does not drive the endpoint.
    ///
    /// Also reports nothing after a run of pages, although more completions may be in the queue: first
    /// the thread drives the endpoint, so that peers that wait for pages of this rank do not wait for
    /// all runs that have arrived.
    pub(crate) fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<Arrival> {
        loop {
            if let Some((arrival, bytes)) = self.arrivals.pop_front() {
                *buffer = bytes;
                return Some(arrival);
            }
            if !std::mem::take(&mut self.has_landed)
                && let Some(completion) = self.queue.poll()
            {
                self.handle(&completion);
                continue;
            }
            self.flush();
            if self.arrivals.is_empty() {
                return None;
            }
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}

impl Waiting {
    /// Returns the operation to post.
    fn operation(
        &self,
        peer: &PeerMemory,
        staging: &Staging,
        (frames, masters): (&MemoryRegion, Option<&MemoryRegion>),
    ) -> ethernot::Operation {
        let remote = |area, address: u64| {
            let region = match area {
                Area::Control => peer.control,
                Area::Frames => peer.frames,
                Area::Masters => peer.masters.unwrap_or(peer.frames),
            };
            // The peer checks the range.
            (region.key, region.address.wrapping_add(address))
        };
        let source = staging.source(&self.place);
        let sink = None;
        let (request, immediate) = match self.what {
            What::Read { area, address, landing } => {
                let (key, address) = remote(area, address);
                let place = self.landing.map(|place| (place.region, place.offset));
                let (sink, sink_offset) = match landing {
                    Landing::Frame(page) => {
                        place.unwrap_or((frames.region().id, page.index() as u64 * 4096))
                    }
                    Landing::Master(page) => {
                        (masters.unwrap_or(frames).region().id, page.index() as u64 * 4096)
                    }
                    Landing::Buffer => match source {
                        Source::Region { region, offset } => (region, offset),
                        Source::Inline(_) => (frames.region().id, 0),
                    },
                };
                (Request::Read { sink, sink_offset, key, address }, None)
            }
            What::Write { area, address, notification } => {
                let (key, address) = remote(area, address);
                (Request::Write { source, key, address }, notification)
            }
            What::Patch { area, address } => {
                let (key, address) = remote(area, address);
                (Request::Patch { source, key, address }, None)
            }
            What::FetchAdd { area, address, operand } => {
                let (key, address) = remote(area, address);
                (Request::FetchAdd { key, address, operand, sink }, None)
            }
            What::CompareSwap { area, address, expected, desired } => {
                let (key, address) = remote(area, address);
                let (compare, swap) = (expected, desired);
                (Request::CompareSwap { key, address, compare, swap, sink }, None)
            }
            What::Swap { area, address, operand } => {
                let (key, address) = remote(area, address);
                (Request::Swap { key, address, value: operand, sink }, None)
            }
            What::Send => (Request::Send { source }, None),
            What::Goodbye => (Request::Send { source }, Some(GOODBYE_IMMEDIATE)),
        };
        let flags = OperationFlags {
            fence_before: self.is_fenced,
            notify: immediate.is_some(),
            signalled: true,
            ..OperationFlags::default()
        };
        let (length, context) = (self.length, self.ticket);
        ethernot::Operation { request, length, flags, immediate, context, status: None }
    }
}

/// Bit of the context of a receive. The rank is in bits 32 to 39, the place in the low bits.
const RECEIVE: u64 = 1 << 63;

/// Bit of the ticket of a goodbye. The machine's tickets count from 0.
const GOODBYE: u64 = 1 << 62;

/// The immediate of a goodbye. Messages of the machine have none.
const GOODBYE_IMMEDIATE: u32 = 0x6b79_6531;

/// Receives for each peer.
const RECEIVES: usize = 32;

/// The longest message: a clock of 64 ranks and 64 notices, or a bitmap, behind 16 bytes.
const MESSAGE_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests;

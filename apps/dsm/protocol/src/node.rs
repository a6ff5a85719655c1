//! The machine of one node.

use std::collections::{BTreeMap, VecDeque};

use crate::barrier_state::Barrier;
use crate::clock::Clock;
use crate::config::Config;
use crate::error::{CallError, Failure, Fault, Misuse};
use crate::identity::{PageNumber, Rank, ThreadNumber};
use crate::layout::{Layout, MAGIC};
use crate::lock_table::LockTable;
use crate::memory::{Access, Host};
use crate::message::Message;
use crate::node_state::{
    Acquire, Counters, Fetch, Inspection, Interval, Part, Pending, Run, Search, Stage,
};
use crate::objects::Objects;
use crate::page_table::{PageTable, State};
use crate::profile::{PageCosts, Profile};
use crate::races::{Detector, Race};
use crate::stream::Stream;
use crate::transport::{Answer, Area, Arrival, Landing, Operation, Reason, Ticket};

/// The machine of one node. See the [crate's documentation](crate) for how to drive it.
#[derive(Debug)]
pub struct Node {
    pub(crate) config: Config,
    pub(crate) layout: Layout,
    pub(crate) pages: PageTable,
    /// The notices that this node has applied; at its own rank, those that it has published.
    pub(crate) clock: Clock,
    pub(crate) threads: Vec<Stage>,
    /// When each thread began its last call, in nanoseconds.
    pub(crate) started: Vec<u64>,
    pending: BTreeMap<Ticket, (Rank, Pending)>,
    next_ticket: u64,
    pub(crate) fetches: BTreeMap<PageNumber, Fetch>,
    /// Parts of prefetched ranges whose homes are being looked up, by number.
    pub(crate) parts: BTreeMap<u64, Part>,
    pub(crate) next_part: u64,
    /// Pages that the next read fetches.
    pub(crate) run: Option<Run>,
    /// Runs whose reads wait until earlier ones have completed.
    pub(crate) queued: VecDeque<Run>,
    /// Pages of runs whose reads are in flight.
    pub(crate) reading: u32,
    /// How each thread reads.
    pub(crate) streams: Vec<Stream>,
    pub(crate) interval: Interval,
    pub(crate) acquires: BTreeMap<u64, Acquire>,
    pub(crate) next_acquire: u64,
    pub(crate) locks: LockTable,
    pub(crate) objects: Objects,
    /// Reader-writer locks that threads of this node hold, and whether alone.
    pub(crate) read_write_locks: BTreeMap<(u64, ThreadNumber), bool>,
    pub(crate) barrier: Barrier,
    pub(crate) inspection: Inspection,
    /// The last search of the driver for the holder of a lock.
    pub(crate) search: Option<Search>,
    pub(crate) detector: Detector,
    pub(crate) races: VecDeque<Race>,
    pub(crate) counters: Counters,
    pub(crate) profile: Profile,
    failure: Option<Failure>,
    /// Changed words of a page; kept, so that a diff allocates nothing.
    pub(crate) words: Vec<u8>,
    /// The payload of a Patch; kept for the same reason.
    pub(crate) payload: Vec<u8>,
    /// Pages that the application has written; kept for the same reason.
    pub(crate) written: Vec<PageNumber>,
    /// Pages that have been fetched; kept for the same reason.
    pub(crate) fetched: Vec<PageNumber>,
    message: Vec<u8>,
    arrived: Vec<u8>,
}

impl Node {
    /// Creates a node, whose control memory and frames are zero, and asks the peers whether they
    /// have the same settings.
    ///
    /// # Errors
    /// [`Misuse::Settings`] if a number of `config` is out of its range, or if the memory notes
    /// writes and the race detector is on.
    pub fn new(config: Config, host: &mut dyn Host) -> Result<Self, Misuse> {
        if !config.is_valid() || config.races && host.notes_writes() {
            return Err(Misuse::Settings);
        }
        let nodes = config.nodes as usize;
        let layout = Layout::new(config.nodes, config.pages, config.log_entries);
        for (address, word) in layout.header() {
            host.store(address, word);
        }
        let mut node = Self {
            config,
            layout,
            pages: PageTable::new(config.pages),
            clock: Clock::zero(nodes),
            threads: vec![Stage::Idle; config.threads as usize],
            started: vec![0; config.threads as usize],
            pending: BTreeMap::new(),
            next_ticket: 0,
            fetches: BTreeMap::new(),
            parts: BTreeMap::new(),
            next_part: 0,
            run: None,
            queued: VecDeque::new(),
            reading: 0,
            streams: vec![Stream::default(); config.threads as usize],
            interval: Interval::default(),
            acquires: BTreeMap::new(),
            next_acquire: 0,
            locks: LockTable::default(),
            objects: Objects::new(nodes),
            read_write_locks: BTreeMap::new(),
            barrier: Barrier::new(nodes),
            inspection: Inspection::default(),
            search: None,
            detector: Detector::default(),
            races: VecDeque::new(),
            counters: Counters::default(),
            profile: Profile::default(),
            failure: None,
            words: Vec::new(),
            payload: Vec::new(),
            written: Vec::new(),
            fetched: Vec::new(),
            message: Vec::new(),
            arrived: Vec::new(),
        };
        for rank in node.peers() {
            node.read_control(host, rank, 0, 16, Pending::Header);
        }
        Ok(node)
    }

    /// Handles all arrivals. Call it when the transport has some, and then [`Node::take`] for each
    /// thread that waits.
    pub fn poll(&mut self, host: &mut dyn Host) {
        let mut bytes = std::mem::take(&mut self.arrived);
        while self.failure.is_none() {
            let Some(arrival) = host.poll(&mut bytes) else { break };
            let handled =
                self.handle(host, arrival, &bytes).and_then(|()| self.advance_barrier(host));
            if let Err(failure) = handled {
                self.fail(host, failure);
            }
        }
        self.arrived = bytes;
        self.flush_run(host);
    }

    /// Returns the result of the call of a thread, once the call has ended: the former value for
    /// atomics, otherwise 0.
    pub fn take(&mut self, thread: ThreadNumber) -> Option<Result<u64, CallError>> {
        let stage = self.threads.get_mut(thread.index())?;
        let Stage::Done(result) = *stage else { return None };
        *stage = Stage::Idle;
        Some(result)
    }

    /// Returns whether [`Node::take`] has a result for a thread.
    pub fn has_ended_calls(&self) -> bool {
        self.threads.iter().any(|stage| matches!(stage, Stage::Done(_)))
    }

    /// Returns since when a thread waits in a call, in nanoseconds of the transport's time.
    pub fn waits_since(&self, thread: ThreadNumber) -> Option<u64> {
        let stage = self.threads.get(thread.index())?;
        let waits = !matches!(stage, Stage::Idle | Stage::Done(_));
        self.started.get(thread.index()).copied().filter(|_| waits)
    }

    /// Returns the next race that this node's detector has found. Races are found on the node that
    /// has the page's directory entry.
    pub fn poll_race(&mut self) -> Option<Race> {
        self.races.pop_front()
    }

    /// Returns what ended the node, if it has ended.
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Returns the counters.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the pages that have cost something, with their costs.
    pub fn page_costs(&self) -> impl Iterator<Item = (PageNumber, PageCosts)> {
        self.profile.costs()
    }

    /// Returns the home of a page, as far as this node knows.
    pub fn home_of(&self, page: PageNumber) -> Option<Rank> {
        self.pages.get(page).home
    }

    /// Returns what the application may do with a page.
    pub fn access(&self, page: PageNumber) -> Access {
        match self.pages.get(page).state {
            State::Absent => Access::None,
            State::Clean => Access::Read,
            State::Dirty | State::Open => Access::Write,
        }
    }

    /// Returns the layout of the control memory.
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    pub(crate) const fn me(&self) -> Rank {
        self.config.rank
    }

    /// Returns the ranks of all other nodes.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.me();
        (0..self.config.nodes).map(Rank).filter(move |rank| *rank != me)
    }

    /// Returns the area that has a page at its home.
    pub(crate) const fn area(&self) -> Area {
        if self.config.races { Area::Masters } else { Area::Frames }
    }

    /// Returns the node that manages the objects at an address.
    pub(crate) const fn manager(&self, address: u64) -> Rank {
        let mixed = (address >> 2).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Rank((mixed % self.config.nodes as u64) as u8)
    }

    /// Posts an operation.
    pub(crate) fn post(
        &mut self,
        host: &mut dyn Host,
        peer: Rank,
        fence: bool,
        pending: Pending,
        operation: Operation<'_>,
    ) {
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.pending.insert(ticket, (peer, pending));
        host.post(peer, ticket, fence, operation);
    }

    /// Posts a read of a peer's control memory.
    pub(crate) fn read_control(
        &mut self,
        host: &mut dyn Host,
        peer: Rank,
        address: u64,
        length: u32,
        pending: Pending,
    ) {
        let landing = Landing::Buffer;
        let read = Operation::Read { area: Area::Control, address, length, landing };
        self.post(host, peer, false, pending, read);
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, host: &mut dyn Host, to: Rank, message: &Message) {
        let mut bytes = std::mem::take(&mut self.message);
        message.encode(&mut bytes);
        self.post(host, to, false, Pending::None, Operation::Send { message: &bytes });
        self.message = bytes;
    }

    /// Ends the call of a thread.
    pub(crate) fn finish(&mut self, thread: ThreadNumber, result: Result<u64, CallError>) {
        if let Some(stage) = self.threads.get_mut(thread.index()) {
            *stage = Stage::Done(result);
        }
    }

    pub(crate) fn set_stage(&mut self, thread: ThreadNumber, stage: Stage) {
        if let Some(own) = self.threads.get_mut(thread.index()) {
            *own = stage;
        }
    }

    //= dsm-protocol.md: end.2
    /// Ends the node: every waiting thread gets the failure, and every peer learns which node has
    /// died.
    pub(crate) fn fail(&mut self, host: &mut dyn Host, failure: Failure) {
        if self.failure.is_some() {
            return;
        }
        self.failure = Some(failure);
        for stage in &mut self.threads {
            if !matches!(stage, Stage::Idle | Stage::Done(_)) {
                *stage = Stage::Done(Err(failure.into()));
            }
        }
        let (rank, reason) = match failure {
            Failure::Died { rank, reason } => (rank, reason),
            Failure::Protocol { rank, .. } => (rank, Reason::Failed),
            Failure::Misuse(_) => (self.me(), Reason::Failed),
        };
        for peer in self.peers().filter(|peer| *peer != rank) {
            self.send(host, peer, &Message::Dead { rank, reason });
        }
    }

    //= dsm-protocol.md: end.1
    fn handle(
        &mut self,
        host: &mut dyn Host,
        arrival: Arrival,
        bytes: &[u8],
    ) -> Result<(), Failure> {
        match arrival {
            Arrival::Completed { ticket, answer } => {
                let Some((peer, pending)) = self.pending.remove(&ticket) else { return Ok(()) };
                self.completed(host, peer, pending, answer, bytes)
                    .map_err(|fault| Failure::Protocol { rank: peer, fault })
            }
            Arrival::Notified { from, notification } => self
                .handle_barrier_slot(host, from, notification)
                .map_err(|fault| Failure::Protocol { rank: from, fault }),
            Arrival::Received { from } => {
                let protocol = |fault| Failure::Protocol { rank: from, fault };
                let message = Message::decode(bytes, self.config.nodes as usize)
                    .ok_or(protocol(Fault::Message))?;
                if let Message::Dead { rank, reason } = message {
                    return Err(Failure::Died { rank, reason });
                }
                self.handle_message(host, from, message).map_err(protocol)
            }
            Arrival::Died { rank, reason } => Err(Failure::Died { rank, reason }),
        }
    }

    fn completed(
        &mut self,
        host: &mut dyn Host,
        peer: Rank,
        pending: Pending,
        answer: Answer,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        if answer == Answer::Refused {
            return Err(Fault::Refused);
        }
        let value = || match answer {
            Answer::Value(value) => Ok(value),
            Answer::Done | Answer::Refused => Err(Fault::Completion),
        };
        let word = || word_at(bytes, 0).ok_or(Fault::Completion);
        match pending {
            Pending::None => Ok(()),
            Pending::Header => self.check_header(bytes),
            Pending::Lookup(page) => self.handle_lookup(host, page, word()?),
            Pending::Claim(page) => self.handle_claim(host, page, value()?),
            Pending::Homes { first, count } => self.handle_homes(first, count, bytes),
            Pending::Part { part, first, count } => {
                self.handle_part(host, part, (first, count), bytes)
            }
            Pending::Fetch { first, count } => self.handle_fetched(host, first, count, bytes),
            Pending::Patch(page) => {
                self.handle_patched(host, page);
                Ok(())
            }
            Pending::Log { acquire, position, count } => {
                self.handle_log(host, acquire, position, count, bytes)
            }
            Pending::Published { acquire, position } => {
                self.handle_published(host, acquire, position, word()?)
            }
            Pending::Position(thread) => self.handle_position(host, thread, peer, word()?),
            Pending::InspectPosition => {
                self.handle_inspected_position(host, peer, word()?);
                Ok(())
            }
            Pending::InspectLog { position, count } => {
                self.handle_inspected_log(peer, position, count, bytes)
            }
            Pending::Atomic { thread, page } => {
                self.handle_atomic(host, thread, page, value()?);
                Ok(())
            }
            Pending::Moves => self.handle_moves(host, peer, bytes),
            Pending::MoveLookup(page) => self.handle_move_lookup(host, page, word()?),
            Pending::MoveRead(page, from) => {
                self.claim_move(host, page, Some(from));
                Ok(())
            }
            Pending::MoveClaim(page, former) => {
                self.handle_move_claim(host, page, former, value()?)
            }
        }
    }

    //= dsm-protocol.md: control.2
    fn check_header(&self, bytes: &[u8]) -> Result<(), Fault> {
        let [(_, magic), (_, settings), _] = self.layout.header();
        let found = word_at(bytes, 0).ok_or(Fault::Completion)?;
        let found_settings = word_at(bytes, 1).ok_or(Fault::Completion)?;
        debug_assert_eq!(magic, MAGIC);
        if found != magic {
            return Err(Fault::Header(found));
        }
        if found_settings == settings { Ok(()) } else { Err(Fault::Header(found_settings)) }
    }
}

/// Returns the 8 bytes with this index.
pub(crate) fn word_at(bytes: &[u8], index: usize) -> Option<u64> {
    bytes.as_chunks::<8>().0.get(index).map(|word| u64::from_le_bytes(*word))
}

//! A network in virtual time: operations are delayed, unfenced ones change places, and large ones
//! are performed in two parts.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::memory::Memory;
use super::random::Random;
use crate::diff::{self, Bitmap, PAGE_BYTES, PageBytes};
use crate::identity::{PageNumber, Rank};
use crate::memory::{Access, Control, Pages};
use crate::transport::{Answer, Area, Arrival, Landing, Operation, Reason, Ticket, Transport};

/// What happens at a time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum Event {
    /// A part of an operation is performed at its target.
    Perform { flight: u64, part: u8 },
    /// The requester learns the result.
    Complete { flight: u64 },
    /// A node handles its arrivals.
    Poll(u8),
    /// A thread takes a step.
    Step { rank: u8, thread: u16 },
    /// A node dies.
    Die(u8),
    /// A node learns that another has died.
    Learn { rank: u8, dead: u8 },
}

/// An operation with its bytes.
#[derive(Debug)]
enum Owned {
    Read { area: Area, address: u64, length: u32, landing: Landing },
    Write { area: Area, address: u64, bytes: Vec<u8>, notification: Option<u32> },
    Patch { area: Area, address: u64, payload: Vec<u8> },
    Atomic { area: Area, address: u64, update: Update },
    Send { message: Vec<u8> },
}

#[derive(Clone, Copy, Debug)]
enum Update {
    Add(u64),
    CompareSwap(u64, u64),
    Swap(u64),
}

#[derive(Debug)]
struct Flight {
    from: Rank,
    to: Rank,
    ticket: Ticket,
    operation: Owned,
    answer: Answer,
    found: Vec<u8>,
}

/// How the bytes of arrivals are falsified.
pub(super) struct Lies {
    pub(super) random: Random,
    /// One in so many arrivals is false.
    pub(super) one_in: usize,
}

/// Costs of a network that loses and reorders nothing, for comparisons of times. In nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// From the end of a frame's transmission until the target has handled it.
    pub(super) latency: u64,
    /// A thousand bytes on the link of a node.
    pub(super) kilobyte: u64,
    /// What the application computes with each word that it reads or writes: the rest of the page
    /// belongs to it.
    pub(super) access: u64,
    /// What a call or a fault costs its thread.
    pub(super) call: u64,
}

/// The network and the memories of all nodes.
pub(super) struct Network {
    pub(super) now: u64,
    pub(super) memories: Vec<Memory>,
    pub(super) dead: Vec<bool>,
    pub(super) lies: Option<Lies>,
    pub(super) timing: Option<Timing>,
    /// The number of reads that nodes have posted.
    pub(super) posted_reads: u64,
    /// The bytes of reads of pages that are in flight, and the most that ever were.
    pub(super) read_bytes: (u32, u32),
    /// When the link of each node has sent what it has to send. Only for times.
    free_at: Vec<u64>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    random: Random,
    flights: BTreeMap<u64, Flight>,
    next_flight: u64,
    inboxes: Vec<VecDeque<(Arrival, Vec<u8>)>>,
    is_polled: Vec<bool>,
    /// When the last operation between two nodes is performed, and when the last message arrives.
    last: Vec<(u64, u64)>,
}

impl Network {
    pub(super) fn new(memories: Vec<Memory>, seed: u64) -> Self {
        let nodes = memories.len();
        Self {
            now: 0,
            memories,
            dead: vec![false; nodes],
            lies: None,
            timing: None,
            posted_reads: 0,
            read_bytes: (0, 0),
            free_at: vec![0; nodes],
            events: BinaryHeap::new(),
            order: 0,
            random: Random::new(seed),
            flights: BTreeMap::new(),
            next_flight: 0,
            inboxes: vec![VecDeque::new(); nodes],
            is_polled: vec![false; nodes],
            last: vec![(0, 0); nodes * nodes],
        }
    }

    pub(super) fn schedule(&mut self, delay: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + delay, self.order, event)));
    }

    pub(super) fn next_event(&mut self) -> Option<Event> {
        let Reverse((time, _, event)) = self.events.pop()?;
        self.now = time;
        Some(event)
    }

    /// Returns a delay in nanoseconds: most are similar, some are long.
    pub(super) fn delay(&mut self) -> u64 {
        let most = if self.random.one_in(8) { 30_000 } else { 2_000 };
        500 + self.random.below(most) as u64
    }

    /// Returns the time that an access takes the application.
    pub(super) fn access_delay(&mut self) -> u64 {
        self.timing.map_or_else(|| self.delay() / 4, |timing| timing.access)
    }

    /// Returns the time from the end of a call until its thread goes on.
    pub(super) fn call_delay(&mut self) -> u64 {
        self.timing.map_or_else(|| self.delay() / 8, |timing| timing.call)
    }

    /// Returns the delay of so many bytes that `from` sends.
    fn transfer_delay(&mut self, from: Rank, bytes: usize, timing: Timing) -> u64 {
        let start = self.free_at[from.index()].max(self.now);
        let end = start + (bytes + FRAME_BYTES) as u64 * timing.kilobyte / 1000;
        self.free_at[from.index()] = end;
        end + timing.latency - self.now
    }

    pub(super) fn push(&mut self, rank: Rank, arrival: Arrival, bytes: Vec<u8>) {
        if self.dead[rank.index()] {
            return;
        }
        self.inboxes[rank.index()].push_back((arrival, bytes));
        if !std::mem::replace(&mut self.is_polled[rank.index()], true) {
            let delay = if self.timing.is_some() { 0 } else { self.random.below(400) as u64 };
            self.schedule(delay, Event::Poll(rank.0));
        }
    }

    fn post(&mut self, from: Rank, to: Rank, ticket: Ticket, fence: bool, operation: Owned) {
        if self.dead[to.index()] || self.dead[from.index()] {
            return;
        }
        if let Owned::Read { length, landing, .. } = operation {
            self.posted_reads += 1;
            let (now, most) = &mut self.read_bytes;
            *now += if landing == Landing::Buffer { 0 } else { length };
            *most = (*most).max(*now);
        }
        let pair = from.index() * self.memories.len() + to.index();
        let (last, last_message) = self.last[pair];
        let timing = self.timing.filter(|_| from != to);
        let mut delay = match timing {
            Some(timing) => self.transfer_delay(from, operation.bytes(), timing),
            None if self.timing.is_some() => 0,
            None => self.delay(),
        };
        if fence {
            delay = delay.max((last + 1).saturating_sub(self.now));
        }
        let is_message = matches!(operation, Owned::Send { .. });
        if is_message {
            delay = delay.max((last_message + 1).saturating_sub(self.now));
        }
        let second = if self.timing.is_some() || self.random.one_in(2) {
            0
        } else {
            self.random.below(3_000) as u64
        };
        let end = self.now + delay + second;
        self.last[pair].0 = last.max(end);
        if is_message {
            self.last[pair].1 = end;
        }
        let flight = self.next_flight;
        self.next_flight += 1;
        let (answer, found) = (Answer::Done, Vec::new());
        self.flights.insert(flight, Flight { from, to, ticket, operation, answer, found });
        self.schedule(delay, Event::Perform { flight, part: 0 });
        self.schedule(delay + second, Event::Perform { flight, part: 1 });
    }

    /// Performs one of the two parts of an operation.
    pub(super) fn perform(&mut self, flight: u64, part: u8) {
        let Some(mut found) = self.flights.remove(&flight) else { return };
        if self.dead[found.to.index()] {
            return;
        }
        let answer = found.perform(&mut self.memories[found.to.index()], part);
        if answer == Answer::Refused || part == 1 && found.answer != Answer::Refused {
            found.answer = answer;
        }
        if part == 1 {
            let from = found.from;
            if found.answer != Answer::Refused {
                match &mut found.operation {
                    Owned::Write { notification: Some(value), .. } => {
                        let notified = Arrival::Notified { from, notification: *value };
                        self.push(found.to, notified, Vec::new());
                    }
                    Owned::Send { message } => {
                        let message = std::mem::take(message);
                        self.push(found.to, Arrival::Received { from }, message);
                    }
                    _ => {}
                }
            }
            let (from, to, bytes) = (found.from, found.to, found.found.len());
            let delay = match self.timing {
                Some(timing) if from != to => self.transfer_delay(to, bytes, timing),
                Some(_) => 0,
                None => self.delay(),
            };
            self.schedule(delay, Event::Complete { flight });
        }
        self.flights.insert(flight, found);
    }

    /// Reports the result of an operation to its requester.
    pub(super) fn complete(&mut self, flight: u64) {
        let Some(found) = self.flights.remove(&flight) else { return };
        let Flight { from, ticket, operation, answer, found, .. } = found;
        if self.dead[from.index()] {
            return;
        }
        let mut bytes = Vec::new();
        if let Owned::Read { landing, length, .. } = operation {
            self.read_bytes.0 -= if landing == Landing::Buffer { 0 } else { length };
            let memory = &mut self.memories[from.index()];
            let page = |page: PageNumber| page.index() as u64 * PAGE_BYTES as u64;
            let target = match landing {
                Landing::Frame(number) => memory.bytes(Area::Frames, page(number), found.len()),
                Landing::Master(number) => memory.bytes(Area::Masters, page(number), found.len()),
                Landing::Buffer => None,
            };
            match target {
                Some(target) => target.copy_from_slice(&found),
                None => bytes = found,
            }
        }
        self.push(from, Arrival::Completed { ticket, answer }, bytes);
    }
}

impl Owned {
    /// Returns the bytes that the request carries.
    const fn bytes(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            Self::Patch { payload, .. } => payload.len(),
            Self::Send { message } => message.len(),
            Self::Read { .. } | Self::Atomic { .. } => 0,
        }
    }
}

/// Bytes of the headers of a frame.
const FRAME_BYTES: usize = 90;

impl Flight {
    fn perform(&mut self, memory: &mut Memory, part: u8) -> Answer {
        match &self.operation {
            Owned::Read { area, address, length, .. } => {
                let length = *length as usize;
                let Some(bytes) = memory.bytes(*area, *address, length) else {
                    return Answer::Refused;
                };
                self.found.resize(length, 0);
                let range = half(length, part);
                self.found[range.clone()].copy_from_slice(&bytes[range]);
                Answer::Done
            }
            Owned::Write { area, address, bytes, .. } => {
                let Some(target) = memory.bytes(*area, *address, bytes.len()) else {
                    return Answer::Refused;
                };
                let range = half(bytes.len(), part);
                target[range.clone()].copy_from_slice(&bytes[range]);
                Answer::Done
            }
            Owned::Patch { area, address, payload } => {
                let words = diff::decode(payload).expect("nodes encode diffs as they should");
                let Some(target) = memory.bytes(*area, *address, PAGE_BYTES) else {
                    return Answer::Refused;
                };
                for (word, bytes) in words.iter().filter(|(word, _)| word % 2 == part as usize) {
                    target[word * 4..word * 4 + 4].copy_from_slice(bytes);
                }
                Answer::Done
            }
            Owned::Atomic { area, address, update } if part == 1 => {
                let Some(word) = memory.word(*area, *address) else { return Answer::Refused };
                let former = u64::from_le_bytes(*word);
                let new = match *update {
                    Update::Add(operand) => former.wrapping_add(operand),
                    Update::CompareSwap(expected, desired) if former == expected => desired,
                    Update::CompareSwap(..) => former,
                    Update::Swap(operand) => operand,
                };
                *word = new.to_le_bytes();
                Answer::Value(former)
            }
            Owned::Atomic { .. } | Owned::Send { .. } => Answer::Done,
        }
    }
}

/// Returns the bytes of a part: halves of whole words.
fn half(length: usize, part: u8) -> std::ops::Range<usize> {
    let middle = length / 16 * 8;
    if part == 0 { 0..middle } else { middle..length }
}

/// What the machine of a node sees.
pub(super) struct Port<'a> {
    pub(super) network: &'a mut Network,
    pub(super) me: Rank,
}

impl Port<'_> {
    fn memory(&mut self) -> &mut Memory {
        &mut self.network.memories[self.me.index()]
    }
}

impl Transport for Port<'_> {
    fn post(&mut self, peer: Rank, ticket: Ticket, fence: bool, operation: Operation<'_>) {
        let atomic = |area, address, update| Owned::Atomic { area, address, update };
        let owned = match operation {
            Operation::Read { area, address, length, landing } => {
                Owned::Read { area, address, length, landing }
            }
            Operation::Write { area, address, bytes, notification } => {
                Owned::Write { area, address, bytes: bytes.to_vec(), notification }
            }
            Operation::Patch { area, address, payload } => {
                Owned::Patch { area, address, payload: payload.to_vec() }
            }
            Operation::FetchAdd { area, address, operand } => {
                atomic(area, address, Update::Add(operand))
            }
            Operation::CompareSwap { area, address, expected, desired } => {
                atomic(area, address, Update::CompareSwap(expected, desired))
            }
            Operation::Swap { area, address, operand } => {
                atomic(area, address, Update::Swap(operand))
            }
            Operation::Send { message } => Owned::Send { message: message.to_vec() },
        };
        self.network.post(self.me, peer, ticket, fence, owned);
    }

    fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<Arrival> {
        let inbox = &mut self.network.inboxes[self.me.index()];
        let Some((mut arrival, mut bytes)) = inbox.pop_front() else {
            self.network.is_polled[self.me.index()] = false;
            return None;
        };
        if let Some(lies) = &mut self.network.lies
            && lies.random.one_in(lies.one_in)
        {
            lie(&mut lies.random, &mut arrival, &mut bytes);
        }
        *buffer = bytes;
        Some(arrival)
    }

    fn now(&self) -> u64 {
        self.network.now
    }
}

/// Falsifies an arrival.
fn lie(random: &mut Random, arrival: &mut Arrival, bytes: &mut Vec<u8>) {
    let number = if random.one_in(2) { random.next() } else { random.below(4) as u64 };
    match arrival {
        Arrival::Completed { answer: Answer::Value(value), .. } => *value = number,
        Arrival::Completed { answer, .. } if random.one_in(4) => {
            *answer = random.pick(&[Answer::Refused, Answer::Value(number)]);
        }
        Arrival::Notified { notification, .. } => *notification ^= 1 << random.below(32),
        Arrival::Died { reason, .. } => *reason = Reason::Closed,
        _ => {}
    }
    if random.one_in(4) {
        bytes.truncate(random.below(bytes.len() + 1));
    } else if !bytes.is_empty() {
        let place = random.below(bytes.len());
        bytes[place] = if random.one_in(2) { number as u8 } else { bytes[place] ^ 1 };
    }
}

impl Pages for Port<'_> {
    fn notes_writes(&self) -> bool {
        self.network.memories[self.me.index()].notes_writes
    }

    fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        self.memory().take_written(pages);
    }

    fn protect(&mut self, page: PageNumber, access: Access) {
        self.memory().protect(page, access);
    }

    fn clear(&mut self, page: PageNumber) {
        *self.memory().frame(page) = [0; PAGE_BYTES];
    }

    fn make_twin(&mut self, page: PageNumber) {
        self.memory().make_twin(page);
    }

    fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap {
        self.memory().diff(page, words)
    }

    fn drop_twin(&mut self, page: PageNumber) {
        self.memory().drop_twin(page);
    }

    fn merge(&mut self, page: PageNumber, bytes: &PageBytes) {
        self.memory().merge(page, bytes);
    }
}

impl Control for Port<'_> {
    fn load(&self, address: u64) -> u64 {
        let memory = &self.network.memories[self.me.index()];
        memory.load(address)
    }

    fn store(&mut self, address: u64, value: u64) {
        let word = self.memory().word(Area::Control, address);
        *word.expect("the layout has the word") = value.to_le_bytes();
    }
}

//! One side of a connection, as its application sees it.

use std::collections::{BTreeSet, VecDeque};

use delivery::Instant;
use wire_edge::PatchRecord;

use crate::host::{
    Action, Completion, CompletionKind, ConnectionHandle, Fault, Flags, HostEngine, Operation,
    Refusal, Region,
};
use crate::oracle::{DirectionModel, Posted, TargetMemory, WORD_BYTES};
use crate::random::Random;
use crate::torture::gates::{Gate, Passage};
use crate::torture::plan::TrafficPlan;
use crate::world::World;

/// The stage of a connection on one side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Stage {
    Connecting,
    Open,
    Closed,
}

/// One side of a connection, with its memory.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) host: usize,
    /// Number of restarts of the host before this end was created.
    pub(crate) life: u32,
    pub(crate) generation: u32,
    pub(crate) connection: ConnectionHandle,
    pub(crate) stage: Stage,
    /// Whether an event has happened that allows this connection to end.
    pub(crate) excused: bool,
    /// Memory for the sources of writes and sends, and for the results of reads and atomics.
    pub(crate) local: Region,
    /// Memory of receives, in slots of equal size.
    pub(crate) inbox: Region,
    /// Memory that the peer writes and reads.
    pub(crate) target: Region,
    /// Memory for the atomics of the peer. No other peer uses it.
    pub(crate) cells: Region,
    /// Key with which the peer accesses the target, and the state of this key.
    pub(super) gate: Gate,
    /// Whether the local memory was deregistered. `lost_inbox` says the same about the memory of
    /// receives.
    pub(crate) lost_local: bool,
    pub(crate) lost_inbox: bool,
    /// The model of the operations that this side posts.
    pub(crate) model: DirectionModel,
    /// Values of the other side's cells after all operations that this side has posted.
    pub(crate) cell_values: [u64; CELLS],
    pub(crate) ring: Ring,
    /// Slots of posted receives that have not completed, in order.
    pub(crate) receives: VecDeque<u32>,
    next_slot: u32,
    /// Number of outstanding additions to counters that several connections share.
    pub(crate) shared_outstanding: u64,
    /// Number of restarts of the peer's host before this connection was made. The connection uses
    /// the counters that the host had at that time.
    pub(crate) counter_life: u32,
    /// Whether this side has posted the probe. The probe is an operation that proves that the
    /// connection works after all faults have ended.
    pub(crate) probed: bool,
    /// Numbers of operations whose access was invalid when they were posted, or became invalid
    /// later.
    pub(crate) rogues: Vec<u64>,
    /// Numbers of operations that must fail.
    pub(crate) hopeless: BTreeSet<u64>,
    /// Numbers of failed operations, each with its fault.
    pub(crate) faults: Vec<(u64, Fault)>,
}

/// The memory at the other side that operations of an end use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Remote {
    pub(crate) target: Region,
    pub(crate) cells: Region,
    pub(crate) counters: Region,
}

/// An operation to post, with the data that the model needs.
#[derive(Debug)]
pub(crate) struct Drawn {
    pub(crate) operation: Operation,
    pub(crate) posted: Posted,
    /// Whether the operation adds to a counter that several connections share.
    pub(crate) shared: bool,
    /// Whether the operation has a wrong key, so that it must never be performed.
    rogue: bool,
    /// Whether the peer may deny the operation.
    doubtful: bool,
    /// Whether the operation must fail.
    hopeless: bool,
    cell: Option<(usize, u64)>,
}

impl End {
    /// Registers memory for a new end at `host`.
    pub(crate) fn new<E: HostEngine>(
        world: &mut World<E>,
        host: usize,
        life: u32,
        generation: u32,
        traffic: &TrafficPlan,
    ) -> Self {
        let engine = world.engine_mut(host);
        let local_bytes = LOCAL_BYTES.max(traffic.length_bytes_max);
        let local = engine.register(local_bytes);
        let inbox = engine.register(RECEIVE_SLOTS * slot_bytes(traffic));
        let target = engine.register(target_bytes(traffic));
        Self {
            host,
            life,
            generation,
            connection: ConnectionHandle(u64::MAX),
            stage: Stage::Connecting,
            excused: false,
            local,
            inbox,
            target,
            gate: Gate::of_region(target),
            lost_local: false,
            lost_inbox: false,
            cells: engine.register(CELLS as u32 * 8),
            model: DirectionModel::new(target_bytes(traffic)),
            cell_values: [0; CELLS],
            ring: Ring::new(local_bytes),
            receives: VecDeque::new(),
            next_slot: 0,
            shared_outstanding: 0,
            counter_life: 0,
            probed: false,
            rogues: Vec::new(),
            hopeless: BTreeSet::new(),
            faults: Vec::new(),
        }
    }

    /// Chooses a random operation; returns `None` if there is no room for one now.
    pub(crate) fn draw(
        &mut self,
        random: &mut Random,
        traffic: &TrafficPlan,
        remote: &Remote,
    ) -> Option<Drawn> {
        let total: u32 = traffic.weights.iter().sum();
        let mut choice = random.below(u64::from(total)) as u32;
        let mut kind = 0;
        while choice >= traffic.weights[kind] {
            choice -= traffic.weights[kind];
            kind += 1;
        }
        let flags = Flags {
            fence_before: random.chance_ppm(traffic.fence_before_ppm),
            fence_after: random.chance_ppm(traffic.fence_after_ppm),
            strict: random.chance_ppm(traffic.strict_ppm),
            signalled: !random.chance_ppm(traffic.unsignalled_ppm),
        };
        match kind {
            0 => self.draw_write(random, traffic, remote, flags),
            1 => {
                let (offset, length) = draw_range(random, traffic);
                self.assemble(Action::Read, flags, remote.target, offset, length, None, None)
            }
            2 if random.chance_ppm(300_000) => {
                let counter = random.below(COUNTERS as u64) as u32;
                let action = Action::FetchAdd { operand: 1 };
                let mut drawn =
                    self.assemble(action, flags, remote.counters, counter * 8, 8, None, None)?;
                drawn.shared = true;
                drawn.operation.flags.signalled = true;
                drawn.posted.flags.signalled = true;
                Some(drawn)
            }
            2 => self.draw_atomic(random, flags, remote, false),
            3 => self.draw_atomic(random, flags, remote, true),
            5 => self.draw_patch(random, traffic, remote, flags),
            6 => self.draw_swap(random, flags, remote),
            _ => {
                let length = draw_length(random, slot_bytes(traffic));
                let immediate = draw_immediate(random, traffic);
                self.assemble(Action::Send, flags, remote.target, 0, length, immediate, None)
            }
        }
    }

    /// Returns a strict, signalled write of 8 bytes that is ordered after all earlier operations.
    pub(crate) fn draw_probe(&mut self, remote: &Remote) -> Option<Drawn> {
        let flags = Flags { fence_before: true, fence_after: false, strict: true, signalled: true };
        self.assemble(Action::Write, flags, remote.target, 0, 8, None, None)
    }

    /// Returns an operation on a window over the target, or on the target's former key.
    pub(super) fn draw_own(&mut self, action: Action, key: u32, address: u64) -> Option<Drawn> {
        let flags = Flags { signalled: true, ..Flags::default() };
        let remote = Region { key, address, ..self.target };
        let mut drawn = self.assemble(action, flags, remote, 0, 0, None, None)?;
        drawn.operation.local = self.target;
        Some(drawn)
    }

    /// Posts an operation that was chosen.
    pub(crate) fn post<E: HostEngine>(
        &mut self,
        world: &mut World<E>,
        random: &mut Random,
        drawn: Drawn,
    ) -> Result<bool, Refusal> {
        let Drawn { mut operation, mut posted, shared, rogue, doubtful, hopeless, cell } = drawn;
        let now = world.now();
        let engine = world.engine_mut(self.host);
        if operation.action.carries() && !self.lost_local {
            let length = match operation.action {
                Action::Patch => posted.words.len() * WORD_BYTES as usize,
                _ => operation.length_bytes as usize,
            };
            posted.content.resize(length, 0);
            random.fill(&mut posted.content);
            let records = records(&posted.words, &posted.content);
            let is_patch = operation.action == Action::Patch;
            let bytes = if is_patch { &records } else { &posted.content };
            engine.write_memory(self.local, operation.local_offset, bytes);
        }
        if rogue {
            // The model must not expect any effect of an operation with a wrong key, because the
            // peer must not perform any part of it.
            posted.content.clear();
            posted.words.clear();
            posted.length_bytes = 0;
        }
        operation.context = self.model.next_number();
        match engine.post(now, self.connection, &operation) {
            Ok(()) => {}
            Err(Refusal::Full) => {
                self.ring.take_back(operation.length_bytes);
                return Ok(false);
            }
            Err(refusal) => return Err(refusal),
        }
        if let Some((cell, value)) = cell {
            self.cell_values[cell] = value;
        }
        self.shared_outstanding += u64::from(shared);
        let number = self.model.post(posted);
        if rogue || doubtful {
            self.rogues.push(number);
        }
        if hopeless {
            self.hopeless.insert(number);
        }
        Ok(true)
    }

    /// Posts receives until `ahead` receives are outstanding.
    pub(crate) fn post_receives<E: HostEngine>(
        &mut self,
        world: &mut World<E>,
        traffic: &TrafficPlan,
        ahead: u32,
    ) -> Result<(), Refusal> {
        let now = world.now();
        let length = slot_bytes(traffic);
        while !self.lost_inbox && (self.receives.len() as u32) < ahead.min(RECEIVE_SLOTS) {
            let slot = self.next_slot % RECEIVE_SLOTS;
            let engine = world.engine_mut(self.host);
            let outcome = engine.post_receive(
                now,
                self.connection,
                self.inbox,
                slot * length,
                length,
                u64::from(self.next_slot),
            );
            match outcome {
                Ok(()) => {}
                Err(Refusal::Full) => return Ok(()),
                Err(refusal) => return Err(refusal),
            }
            self.receives.push_back(self.next_slot);
            self.next_slot += 1;
        }
        Ok(())
    }

    /// Removes the receive that `found` completes, and returns the offset of its slot. Returns
    /// `None` if another receive had to complete before it.
    pub(crate) fn take_receive(
        &mut self,
        found: &Completion,
        traffic: &TrafficPlan,
    ) -> Option<u32> {
        if found.kind != CompletionKind::Receive {
            return Some(0);
        }
        let slot = self.receives.pop_front()?;
        (u64::from(slot) == found.context).then_some(slot % RECEIVE_SLOTS * slot_bytes(traffic))
    }

    fn draw_write(
        &mut self,
        random: &mut Random,
        traffic: &TrafficPlan,
        remote: &Remote,
        flags: Flags,
    ) -> Option<Drawn> {
        let immediate = draw_immediate(random, traffic);
        let mut flags = flags;
        let (mut offset, mut length) = draw_range(random, traffic);
        for _ in 0..DRAWS_MAX {
            if !self.model.conflicts(&[(offset, offset + length)], flags) {
                break;
            }
            (offset, length) = draw_range(random, traffic);
        }
        // If every tried range conflicts with an outstanding write, the operation gets a fence.
        // Without it, the result would be undefined.
        flags.fence_before |= self.model.conflicts(&[(offset, offset + length)], flags);
        self.assemble(Action::Write, flags, remote.target, offset, length, immediate, None)
    }

    /// Chooses random words of an area of the target. They lie close together or far apart.
    fn draw_patch(
        &mut self,
        random: &mut Random,
        traffic: &TrafficPlan,
        remote: &Remote,
        flags: Flags,
    ) -> Option<Drawn> {
        let immediate = draw_immediate(random, traffic);
        let mut flags = Flags { strict: false, ..flags };
        let room = u64::from(target_bytes(traffic) / WORD_BYTES);
        let area = random.below(room + 1) as u32;
        let (mut words, mut word) = (Vec::new(), random.below(64) as u32);
        let count = draw_length(random, traffic.length_bytes_max.min(PATCH_BYTES_MAX)) / WORD_BYTES;
        let step = random.pick(&[1, 1, 2, 40, 2_000]);
        while words.len() < count as usize && u64::from(area + word) < room {
            words.push(word);
            word += 1 + random.below(step) as u32;
        }
        let ranges: Vec<(u32, u32)> = words
            .iter()
            .map(|word| ((area + word) * WORD_BYTES, (area + word + 1) * WORD_BYTES))
            .collect();
        flags.fence_before |= self.model.conflicts(&ranges, flags);
        let zeros = vec![0; words.len() * WORD_BYTES as usize];
        let (offset, length) = (area * WORD_BYTES, records(&words, &zeros).len() as u32);
        let target = remote.target;
        let mut drawn =
            self.assemble(Action::Patch, flags, target, offset, length, immediate, None)?;
        drawn.posted.words = words;
        Some(drawn)
    }

    fn draw_swap(&mut self, random: &mut Random, flags: Flags, remote: &Remote) -> Option<Drawn> {
        let cell = random.below(CELLS as u64) as usize;
        let (before, value) = (self.cell_values[cell], random.next_u64());
        let (action, offset) = (Action::Swap { value }, cell as u32 * 8);
        let mut drawn =
            self.assemble(action, flags, remote.cells, offset, 8, None, Some(before))?;
        drawn.cell = Some((cell, value));
        Some(drawn)
    }

    fn draw_atomic(
        &mut self,
        random: &mut Random,
        flags: Flags,
        remote: &Remote,
        swaps: bool,
    ) -> Option<Drawn> {
        let cell = random.below(CELLS as u64) as usize;
        let before = self.cell_values[cell];
        let (action, after) = if swaps {
            let matches = random.chance_ppm(700_000);
            let swap = random.next_u64();
            let compare = if matches { before } else { before.wrapping_add(1) };
            (Action::CompareSwap { compare, swap }, if matches { swap } else { before })
        } else {
            let operand = random.next_u64();
            (Action::FetchAdd { operand }, before.wrapping_add(operand))
        };
        let mut drawn =
            self.assemble(action, flags, remote.cells, cell as u32 * 8, 8, None, Some(before))?;
        drawn.cell = Some((cell, after));
        Some(drawn)
    }

    #[expect(clippy::too_many_arguments, reason = "the facts of one operation, used once")]
    fn assemble(
        &mut self,
        action: Action,
        flags: Flags,
        remote: Region,
        offset: u32,
        length_bytes: u32,
        immediate: Option<u32>,
        returns: Option<u64>,
    ) -> Option<Drawn> {
        let local_offset = self.ring.take(length_bytes)?;
        let operation = Operation {
            action,
            local: self.local,
            local_offset,
            length_bytes,
            key: remote.key,
            address: remote.address + u64::from(offset),
            immediate,
            flags,
            context: 0,
        };
        let posted = Posted {
            action,
            flags,
            offset: if action == Action::Send { 0 } else { offset },
            length_bytes,
            immediate,
            invalidates: None,
            content: Vec::new(),
            words: Vec::new(),
            local_offset,
            returns,
        };
        let (shared, cell) = (false, None);
        let (rogue, doubtful, hopeless) = (false, false, false);
        Some(Drawn { operation, posted, shared, rogue, doubtful, hopeless, cell })
    }
}

impl Drawn {
    /// If the application could stall without another completion, makes the operation signalled.
    /// The memory of an operation that is not signalled is free only when a later signalled
    /// operation completes.
    pub(crate) fn report_before_stall(&mut self, outstanding: u64, depth: u32) {
        let report = outstanding + 2 > u64::from(depth)
            || self.operation.length_bytes > UNREPORTED_BYTES_MAX
            || outstanding > UNREPORTED_OPERATIONS_MAX;
        self.operation.flags.signalled |= report;
        self.posted.flags.signalled |= report;
    }

    /// Returns whether the operation already has a wrong key.
    pub(super) const fn is_rogue(&self) -> bool {
        self.rogue
    }

    /// Makes a message invalidate the peer's key.
    pub(super) const fn end_key(&mut self, key: u32) {
        self.operation.action = Action::SendInvalidate;
        self.operation.key = key;
        self.operation.immediate = None;
        self.posted.action = Action::SendInvalidate;
        self.posted.immediate = None;
        self.posted.invalidates = Some(key);
    }

    /// Records what may happen to the operation. The state of the peer's key determines what may
    /// happen.
    pub(super) const fn pass(&mut self, passage: Passage) {
        match passage {
            Passage::Free => {}
            Passage::Doubtful => self.doubtful = true,
            Passage::Late => self.make_hopeless(false),
            Passage::Denied => self.make_hopeless(true),
        }
    }

    /// Records that the operation must fail with a completion. If `entirely` is true, the peer must
    /// not perform any part of the operation; otherwise it may perform a part.
    pub(super) const fn make_hopeless(&mut self, entirely: bool) {
        self.doubtful = true;
        self.hopeless = true;
        self.rogue |= entirely;
        self.operation.flags.signalled = true;
        self.posted.flags.signalled = true;
    }

    /// Gives a write a wrong key. The key belongs to no region, or to a region that the write must
    /// not access.
    pub(crate) fn make_rogue(&mut self, forbidden: Option<Region>) {
        self.rogue = true;
        self.operation.key ^= 0x5a5a_5a5a;
        if let Some(region) = forbidden {
            (self.operation.key, self.operation.address) = (region.key, region.address);
        }
        self.operation.immediate = None;
        self.posted.immediate = None;
    }
}

/// Read access to a region of a host.
pub(crate) struct View<'a, E> {
    pub(crate) engine: &'a E,
    pub(crate) region: Region,
}

impl<E: HostEngine> TargetMemory for View<'_, E> {
    fn read(&self, offset: u32, into: &mut [u8]) {
        self.engine.read_memory(self.region, offset, into);
    }
}

/// A ring buffer. Areas of memory are freed in the order in which they were allocated.
#[derive(Debug)]
pub(crate) struct Ring {
    size: u32,
    /// Start of the next area.
    head: u32,
    /// Start and end of each allocated area, oldest first.
    pieces: VecDeque<(u32, u32)>,
}

impl Ring {
    pub(crate) const fn new(size: u32) -> Self {
        Self { size, head: 0, pieces: VecDeque::new() }
    }

    /// Allocates an area of `bytes`, aligned to 8. Returns `None` if there is no room.
    pub(crate) fn take(&mut self, bytes: u32) -> Option<u32> {
        let rounded = bytes.next_multiple_of(8).max(8);
        let oldest = self.pieces.front().map(|&(start, _)| start);
        let start = match oldest {
            None if rounded <= self.size => 0,
            Some(oldest) if self.head > oldest => {
                if self.size - self.head >= rounded {
                    self.head
                } else if rounded < oldest {
                    0
                } else {
                    return None;
                }
            }
            Some(oldest) if oldest - self.head > rounded => self.head,
            None | Some(_) => return None,
        };
        self.head = start + rounded;
        self.pieces.push_back((start, self.head));
        Some(start)
    }

    /// Frees the newest area, because it was not needed.
    pub(crate) fn take_back(&mut self, _bytes: u32) {
        self.pieces.pop_back();
        self.head = self.pieces.back().map_or(0, |&(_, end)| end);
    }

    /// Frees the oldest area.
    pub(crate) fn release(&mut self) {
        self.pieces.pop_front();
    }
}

/// Returns the size of the region that the peer writes, in bytes.
pub(crate) fn target_bytes(traffic: &TrafficPlan) -> u32 {
    traffic.target_bytes.max(traffic.length_bytes_max)
}

/// Returns the time of an application's next poll.
pub(crate) fn next_look(now: Instant, random: &mut Random, traffic: &TrafficPlan) -> Instant {
    // Sleeps are usually short, and sometimes long.
    let most_ns =
        if random.chance_ppm(100_000) { traffic.sleep_ns_max * 4 } else { traffic.sleep_ns_max };
    now.after_ns(random.between(500, most_ns))
}

/// Returns the size of one receive in bytes.
pub(super) fn slot_bytes(traffic: &TrafficPlan) -> u32 {
    traffic.length_bytes_max.min(SLOT_BYTES_MAX)
}

/// Returns a random length. The length is usually small, but can be up to `most`.
fn draw_length(random: &mut Random, most: u32) -> u32 {
    let most = u64::from(most);
    let length = match random.below(16) {
        0 => 0,
        1..=6 => random.between(1, most.min(64)),
        7..=10 => random.between(1, most.min(1_500)),
        11..=13 => random.between(1, most.min(8_192)),
        14 => random.between(1, most.min(65_536)),
        _ => random.between(1, most),
    };
    length as u32
}

/// Encodes words of an area as the records of a patch. `content` contains the words.
fn records(words: &[u32], content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = content;
    for block in words.chunk_by(|one, next| one / 32 == next / 32) {
        let bitmap = block.iter().fold(0, |bitmap, word| bitmap | 1 << (word % 32));
        let record = PatchRecord { block: (block[0] / 32) as u16, bitmap };
        out.extend_from_slice(&record.encode());
        let (own, others) = rest.split_at(block.len() * WORD_BYTES as usize);
        out.extend_from_slice(own);
        rest = others;
    }
    out
}

fn draw_range(random: &mut Random, traffic: &TrafficPlan) -> (u32, u32) {
    let length = draw_length(random, traffic.length_bytes_max);
    let room = target_bytes(traffic) - length;
    (random.between(0, u64::from(room)) as u32, length)
}

fn draw_immediate(random: &mut Random, traffic: &TrafficPlan) -> Option<u32> {
    random.chance_ppm(traffic.immediate_ppm).then(|| random.next_u64() as u32)
}

/// Number of each side's atomic cells, which only one peer uses. `COUNTERS` is the number of a
/// host's counters, which all peers share.
pub(crate) const CELLS: usize = 4;
pub(crate) const COUNTERS: usize = 2;

/// `UNREPORTED_BYTES_MAX` is the maximum length of an operation that is not signalled, in bytes.
/// `UNREPORTED_OPERATIONS_MAX` is the maximum number of such operations. With these limits, half of
/// the local memory remains free.
const UNREPORTED_BYTES_MAX: u32 = 2 << 10;
const UNREPORTED_OPERATIONS_MAX: u64 = LOCAL_BYTES as u64 / 2 / UNREPORTED_BYTES_MAX as u64 - 1;

/// Number of receives that fit in an inbox.
pub(super) const RECEIVE_SLOTS: u32 = 32;
const SLOT_BYTES_MAX: u32 = 4 << 10;

/// Maximum size of the words of a patch, in bytes. With their records they take at most half of the
/// local memory.
const PATCH_BYTES_MAX: u32 = 10 << 10;

/// Local memory of each end in bytes; enough for some tens of average operations.
const LOCAL_BYTES: u32 = 64 << 10;

/// Maximum number of ranges that are tried for an operation. If all of them conflict with
/// outstanding writes, the operation gets a fence.
const DRAWS_MAX: u32 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_never_hands_out_a_byte_twice() {
        let mut random = Random::new(1);
        let mut ring = Ring::new(1_000);
        let mut out: VecDeque<(u32, u32)> = VecDeque::new();
        for _ in 0..10_000 {
            if random.chance_ppm(500_000) {
                let bytes = random.between(0, 300) as u32;
                if let Some(start) = ring.take(bytes) {
                    assert!(start + bytes <= 1_000);
                    for &(other, end) in &out {
                        assert!(start + bytes <= other || end <= start);
                    }
                    out.push_back((start, start + bytes));
                    if random.chance_ppm(100_000) {
                        ring.take_back(bytes);
                        out.pop_back();
                    }
                }
            } else if out.pop_front().is_some() {
                ring.release();
            }
        }
    }

    #[test]
    fn a_whole_ring_can_be_one_piece() {
        let mut ring = Ring::new(64);
        assert_eq!(ring.take(64), Some(0));
        assert_eq!(ring.take(1), None);
        ring.release();
        assert_eq!(ring.take(64), Some(0));
    }
}

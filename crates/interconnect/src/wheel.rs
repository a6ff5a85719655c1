//! The queue of future events: a wheel of buckets with an overflow heap.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use mem::prefetch;

/// Something that will happen: `subject` (a packet, a message, a tag) reaches `place` (a link, a
/// host, a timer) at `time_ps`.
///
/// The order of events is the order of their contents, so it does not depend on when they were
/// scheduled. Models choose places such that no two events are equal.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Event {
    /// Virtual time, in picoseconds since the start.
    pub time_ps: u64,
    /// Where it happens; breaks ties of time.
    pub place: u32,
    /// What it happens to; breaks ties of place.
    pub subject: u32,
}

impl Event {
    /// As one number, whose order is that of events: comparing it needs no branch.
    #[inline]
    const fn key(&self) -> u128 {
        (self.time_ps as u128) << 64 | (self.place as u128) << 32 | self.subject as u128
    }
}

impl Ord for Event {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Event {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }

    #[inline]
    fn lt(&self, other: &Self) -> bool {
        self.key() < other.key()
    }
}

/// Future events, earliest first.
///
/// Time is cut into slots of a power of two of picoseconds, and a ring of buckets holds the events
/// of the slots ahead; a bitmap of occupied buckets lets a sparse run skip the empty ones. Only the
/// slot that is being drained is sorted, so that an event costs an append and its share of a sort
/// of a few neighbours: a third of what a binary heap costs at thousands of events. Buckets are
/// chains of small blocks from a common store, in which the block that became vacant last is used
/// first: the memory that is touched is that of the events there are, not that of the fullest slots
/// of a whole turn. Events beyond the ring wait in a heap and come into the ring as it turns. When
/// slots are crowded, so that sorting them would cost more than appending, they are made narrower.
#[derive(Debug)]
pub struct Wheel {
    /// Events of the slot being drained, latest first.
    current: Vec<Event>,
    /// Number of the slot being drained: its time divided by the width of a slot.
    current_slot: u64,
    /// Unsorted events of the slots after the current one: the last block of each bucket, and in the
    /// low bits how many events it has beside one; [`NONE`] of an empty one. Slot n is in bucket n modulo
    /// their count, a power of two.
    buckets: Vec<u32>,
    /// One bit per bucket: whether it holds events.
    occupied: Vec<u64>,
    /// Events that will be put into their buckets before the next turn: while very many are there, the memory of a
    /// bucket is far away, and this way no event waits for it.
    staged: Vec<Event>,
    blocks: Vec<Block>,
    /// The block before each one, as in `buckets`; of a vacant one, the next vacant one.
    before: Vec<u32>,
    /// The block that became vacant last; [`NONE`] if there is none.
    vacant: u32,
    /// Events at least a whole turn ahead when they were pushed, or that were then and have not
    /// come into the ring yet: always beyond it.
    overflow: BinaryHeap<Reverse<Event>>,
    slot_shift: u32,
    /// Crowded slots seen of late, less those that were not.
    crowded: u32,
    /// So many make slots narrower; doubled whenever that is of no use.
    crowded_max: u32,
    now_ps: u64,
    len: usize,
}

/// Some events of a slot, filled from its end: a line of the caches.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([Event; BLOCK]);

impl Wheel {
    /// Creates an empty wheel whose slots are at most `slot_ps` wide. Half the shortest time between scheduling an
    /// event and its happening is a good choice.
    pub fn new(slot_ps: u64) -> Self {
        Self {
            current: Vec::new(),
            current_slot: 0,
            buckets: vec![NONE; BUCKETS],
            occupied: vec![0; BUCKETS / WORD_BITS],
            staged: Vec::new(),
            blocks: Vec::new(),
            before: Vec::new(),
            vacant: NONE,
            overflow: BinaryHeap::new(),
            slot_shift: slot_ps.max(1).ilog2(),
            crowded: 0,
            crowded_max: CROWDED_TURNS,
            now_ps: 0,
            len: 0,
        }
    }

    /// Returns the time of the event popped last, in picoseconds.
    #[inline]
    pub const fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// Returns the number of events that have not happened yet.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing will happen any more.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules an event; now, if its time has passed.
    #[inline]
    pub fn push(&mut self, mut event: Event) {
        event.time_ps = event.time_ps.max(self.now_ps);
        self.len += 1;
        let slot = event.time_ps >> self.slot_shift;
        // Of the current slot and of earlier ones this is more than any ring has.
        let further = slot.wrapping_sub(self.current_slot).wrapping_sub(1);
        if further < self.buckets.len() as u64 - 1 {
            if self.len > VAST {
                self.stage(slot, event);
            } else {
                self.push_in_ring(slot, event);
            }
        } else {
            self.push_elsewhere(slot, event);
        }
    }

    /// Schedules an event for the slot that is being drained, or for later than the ring reaches.
    #[inline(never)]
    fn push_elsewhere(&mut self, slot: u64, event: Event) {
        if slot > self.current_slot {
            self.overflow.push(Reverse(event));
            return;
        }
        let at = self.current.partition_point(|other| *other > event);
        self.current.insert(at, event);
    }

    /// Takes the next event; advances the clock to it.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        if self.current.is_empty() {
            self.turn();
        }
        self.pop_due()
    }

    /// Takes the next event of the slot that is being drained; advances the clock to it.
    #[inline]
    pub fn pop_due(&mut self) -> Option<Event> {
        let event = self.current.pop()?;
        self.now_ps = event.time_ps;
        self.len -= 1;
        Some(event)
    }

    /// Takes the next event as [`Wheel::pop_due`] does, if it happens before `end_ps`.
    #[inline]
    pub fn pop_due_before(&mut self, end_ps: u64) -> Option<Event> {
        self.current.last().filter(|event| event.time_ps < end_ps)?;
        self.pop_due()
    }

    /// Whether an event is due at this time whose place is below another.
    #[inline]
    pub fn has_due_before(&self, place: u32) -> bool {
        let next = self.current.last();
        next.is_some_and(|event| event.time_ps == self.now_ps && event.place < place)
    }

    /// Returns the events of the slot that is being drained, latest first.
    pub fn due(&self) -> &[Event] {
        &self.current
    }

    /// Returns events of the slot that will be drained next, some at a time and in no order, as far as they are
    /// known. A fabric can prefetch what they need. None while there are few events.
    pub fn ahead(&self) -> impl Iterator<Item = &[Event]> {
        let bucket = if self.is_deep() { self.next_occupied(self.current_slot) } else { None };
        let mask = self.buckets.len() - 1;
        let last = bucket.map_or(NONE, |slot| self.buckets[slot as usize & mask]);
        self.chain(last)
    }

    /// Whether the events do not stay in the first cache by themselves.
    #[inline]
    const fn is_deep(&self) -> bool {
        self.len > DEEP
    }

    /// Has the blocks of the slot after the next brought near: the next ones are, since the last turn.
    #[inline]
    fn fetch_ahead(&self) {
        let mask = self.buckets.len() - 1;
        let next = self.next_occupied(self.current_slot);
        let Some(slot) = next.and_then(|slot| self.next_occupied(slot)) else { return };
        let mut last = self.buckets[slot as usize & mask];
        while let Some(block) = self.blocks.get((last >> BLOCK_SHIFT) as usize) {
            prefetch(block);
            last = self.before[(last >> BLOCK_SHIFT) as usize];
        }
    }

    /// Returns the time of the next event, in picoseconds. It does not turn the wheel: what is scheduled later for
    /// times before that event then still goes into the ring.
    pub fn next_ps(&self) -> Option<u64> {
        if let Some(event) = self.current.last() {
            return Some(event.time_ps);
        }
        let staged = self.staged.iter().map(|event| event.time_ps).min();
        let in_ring = self.next_occupied(self.current_slot).and_then(|slot| {
            let bucket = slot as usize & (self.buckets.len() - 1);
            self.chain(self.buckets[bucket]).flatten().map(|event| event.time_ps).min()
        });
        // What overflows is beyond the ring.
        let beyond = || self.overflow.peek().map(|Reverse(event)| event.time_ps);
        in_ring.into_iter().chain(staged).min().or_else(beyond)
    }

    /// Has the place of an event brought near, where it is put later.
    #[inline]
    fn stage(&mut self, slot: u64, event: Event) {
        let bucket = slot as usize & (self.buckets.len() - 1);
        if let Some(block) = self.blocks.get((self.buckets[bucket] >> BLOCK_SHIFT) as usize) {
            prefetch(block);
        }
        self.staged.push(event);
        if self.staged.len() == STAGED_MAX {
            self.unstage();
        }
    }

    /// Puts staged events where they belong.
    fn unstage(&mut self) {
        let mut staged = std::mem::take(&mut self.staged);
        for event in staged.drain(..) {
            self.push_in_ring(event.time_ps >> self.slot_shift, event);
        }
        self.staged = staged;
    }

    #[inline]
    fn push_in_ring(&mut self, slot: u64, event: Event) {
        let bucket = slot as usize & (self.buckets.len() - 1);
        let mut last = self.buckets[bucket];
        if last & LAST == LAST {
            last = self.take_block(last);
            self.occupied[bucket / WORD_BITS] |= 1 << (bucket % WORD_BITS);
        } else {
            last += 1;
        }
        self.buckets[bucket] = last;
        self.blocks[(last >> BLOCK_SHIFT) as usize].0[first_of(last)] = event;
    }

    /// An empty block at the end of a chain: the place of its first event.
    #[inline]
    fn take_block(&mut self, before: u32) -> u32 {
        let block = self.vacant;
        if let Some(link) = self.before.get_mut(block as usize) {
            self.vacant = std::mem::replace(link, before);
            return block << BLOCK_SHIFT;
        }
        self.add_block(before)
    }

    #[cold]
    fn add_block(&mut self, before: u32) -> u32 {
        self.blocks.push(Block::default());
        self.before.push(before);
        (self.blocks.len() as u32 - 1) << BLOCK_SHIFT
    }

    /// The events of the bucket of which this is the last block, block by block.
    fn chain(&self, mut last: u32) -> impl Iterator<Item = &[Event]> {
        std::iter::from_fn(move || {
            let block = (last >> BLOCK_SHIFT) as usize;
            let events = &self.blocks.get(block)?.0[first_of(last)..];
            last = self.before[block];
            Some(events)
        })
    }

    /// Moves the events of a bucket to the end of a list, those pushed last first: what was pushed in
    /// the order of events, as in step, needs no sorting.
    #[inline]
    fn empty_into(&mut self, bucket: usize, events: &mut Vec<Event>) {
        let mut last = std::mem::replace(&mut self.buckets[bucket], NONE);
        self.occupied[bucket / WORD_BITS] &= !(1 << (bucket % WORD_BITS));
        while last != NONE {
            let block = last >> BLOCK_SHIFT;
            let Block(own) = &self.blocks[block as usize];
            if last & LAST == LAST {
                events.extend_from_slice(own);
            } else {
                events.extend_from_slice(&own[first_of(last)..]);
            }
            last = std::mem::replace(&mut self.before[block as usize], self.vacant);
            self.vacant = block;
        }
    }

    /// Moves on to the next slot that has events, if the one that was drained is empty and there is
    /// another. Whether any event is due then.
    pub fn turn(&mut self) -> bool {
        self.unstage();
        if self.current.is_empty() && self.crowded >= self.crowded_max {
            self.narrow();
        }
        // With narrower slots, some may be due in that of the clock itself.
        if !self.current.is_empty() {
            return true;
        }
        let next = match (self.next_occupied(self.current_slot), self.overflow.peek()) {
            (Some(slot), _) => slot,
            (None, Some(Reverse(event))) => event.time_ps >> self.slot_shift,
            (None, None) => return false,
        };
        self.current_slot = next;
        self.refill();
        let bucket = next as usize & (self.buckets.len() - 1);
        let mut events = std::mem::take(&mut self.current);
        self.empty_into(bucket, &mut events);
        sort_latest_first(&mut events);
        self.current = events;
        if self.is_deep() {
            self.fetch_ahead();
        }
        self.crowded = if self.current.len() > CROWD {
            self.crowded + 1
        } else {
            self.crowded.saturating_sub(1)
        };
        true
    }

    /// Moves what the ring reaches by now from the heap into it.
    fn refill(&mut self) {
        while let Some(Reverse(event)) = self.overflow.peek().copied() {
            let slot = event.time_ps >> self.slot_shift;
            if slot - self.current_slot >= self.buckets.len() as u64 {
                break;
            }
            self.overflow.pop();
            self.push_in_ring(slot, event);
        }
    }

    /// Halves the width of slots. If then too much would lie beyond the ring, where it costs more
    /// than sorting saves, the ring gets twice as many; if it has as many as it may, nothing is done.
    /// Only while no slot is being drained.
    fn narrow(&mut self) {
        self.crowded = 0;
        let count = self.buckets.len();
        let start = self.current_slot as usize;
        let far = (count / 2..count).map(|ahead| (start + ahead) & (count - 1));
        let far: usize =
            far.map(|bucket| self.chain(self.buckets[bucket]).map(<[_]>::len).sum::<usize>()).sum();
        let is_short = far + self.overflow.len() > self.len / 16;
        if self.slot_shift == 0 || is_short && count == BUCKETS_MAX {
            self.crowded_max = self.crowded_max.saturating_mul(2);
            return;
        }
        let mut events = Vec::with_capacity(self.len);
        for bucket in 0..count {
            self.empty_into(bucket, &mut events);
        }
        if is_short {
            self.buckets.resize(2 * count, NONE);
            self.occupied.resize(2 * count / WORD_BITS, 0);
        }
        self.slot_shift -= 1;
        self.current_slot = self.now_ps >> self.slot_shift;
        self.len -= events.len();
        for event in events {
            self.push(event);
        }
        self.unstage();
        self.refill();
    }

    /// The first slot after this one, of those in the ring, that has a bucket with events.
    fn next_occupied(&self, after: u64) -> Option<u64> {
        let count = self.buckets.len();
        let start = (after as usize & (count - 1)) + 1;
        let words = self.occupied.len();
        let first = start / WORD_BITS;
        let mut mask = u64::MAX << (start % WORD_BITS);
        for step in 0..=words {
            let index = (first + step) & (words - 1);
            let found = self.occupied[index] & mask;
            if found != 0 {
                let bucket = index * WORD_BITS + found.trailing_zeros() as usize;
                let ahead = (bucket + count - start) & (count - 1);
                return Some(after + 1 + ahead as u64);
            }
            mask = u64::MAX;
        }
        None
    }
}

/// A great many events at a time are of ranks in step and come in a few runs, which a stable sort merges.
#[inline]
fn sort_latest_first(events: &mut [Event]) {
    if events.len() > STEP {
        events.sort_by(|a, b| b.cmp(a));
    } else {
        events.sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// Where the event that was pushed last is in its block.
#[inline]
const fn first_of(last: u32) -> usize {
    (LAST - (last & LAST)) as usize
}

/// Sorting more events than this costs more than going through a few more slots.
const CROWD: usize = 32;
/// So many in a slot are more than happen to fall together.
const STEP: usize = 4 * CROWD;
/// Not at the first crowd: events of a synchronised workload fall together, and no width parts them.
const CROWDED_TURNS: u32 = 8;

/// Enough that what a network schedules (serialisation and latency, some microseconds) falls into
/// the ring when slots are as wide as a few nanoseconds: 8192 × 0.5 ns = 4 µs; the heads of the
/// buckets, 4 B each, stay in the first cache.
const BUCKETS: usize = 8192;
/// More when thousands of hosts crowd narrow slots; their heads still leave most of the second cache.
const BUCKETS_MAX: usize = 16_384;
const WORD_BITS: usize = 64;
/// So many events, 64 KiB, and what they happen to do not stay in the first cache.
const DEEP: usize = 4096;
/// Events of a block.
const BLOCK: usize = 1 << BLOCK_SHIFT;
const BLOCK_SHIFT: u32 = 2;
/// So many events, half a megabyte, and what they happen to do not stay in the second cache either.
const VAST: usize = 32_768;
/// Events whose memory is being fetched at a time.
const STAGED_MAX: usize = 32;
/// Events of a full block beside one.
const LAST: u32 = BLOCK as u32 - 1;
/// No block; its low bits are those of one that is full.
const NONE: u32 = u32::MAX;
const _: () = assert!(size_of::<Block>() == 64 && NONE & LAST == LAST);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn events_come_in_the_order_of_their_contents() {
        let mut random = Random::new(1);
        let mut events: Vec<Event> = (0..20_000)
            .map(|subject| {
                let reach = [1 << 6, 1 << 14, 1 << 24, 1 << 36][random.below(4) as usize];
                Event { time_ps: random.below(reach), place: random.below(3) as u32, subject }
            })
            .collect();
        let mut wheel = Wheel::new(1_000);
        for event in &events {
            wheel.push(*event);
        }
        assert_eq!(wheel.len(), events.len());
        events.sort_unstable();
        let popped: Vec<Event> = std::iter::from_fn(|| wheel.pop()).collect();
        assert_eq!(popped, events);
        assert!(wheel.is_empty());
    }

    /// The wheel agrees with a heap while events are scheduled from others, near and far.
    #[test]
    fn events_scheduled_on_the_way_come_in_order() {
        let mut random = Random::new(2);
        let (mut wheel, mut heap) = (Wheel::new(64), BinaryHeap::new());
        for subject in 0..100 {
            let event = Event { time_ps: random.below(1_000), place: 0, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
        for subject in 100..50_000 {
            let Reverse(expected) = heap.pop().expect("one is pushed for each popped");
            assert_eq!(wheel.pop(), Some(expected));
            let reach = [1, 100, 10_000, 1_000_000, 100_000_000][random.below(5) as usize];
            let time_ps = wheel.now_ps() + random.below(reach);
            // Places grow, so that nothing is scheduled before what has happened at this time.
            let event = Event { time_ps, place: subject, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
    }

    /// Narrowing the slots of a crowded wheel loses and misplaces nothing.
    #[test]
    fn crowded_slots_become_narrower() {
        let mut random = Random::new(3);
        let (mut wheel, mut heap) = (Wheel::new(1 << 20), BinaryHeap::new());
        for subject in 0..20_000 {
            let event = Event { time_ps: random.below(1 << 24), place: 0, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
        for subject in 20_000..200_000 {
            let Reverse(expected) = heap.pop().expect("one is pushed for each popped");
            assert_eq!(wheel.pop(), Some(expected));
            let time_ps = wheel.now_ps() + random.below(1 << 24);
            let event = Event { time_ps, place: subject, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
        assert!(wheel.slot_shift < 18, "{}", wheel.slot_shift);
    }

    /// More events than there may be before some are put into their buckets later: the order and the
    /// time of the next one are the same.
    #[test]
    fn very_many_events_come_in_order() {
        let mut random = Random::new(5);
        let (mut wheel, mut heap) = (Wheel::new(1 << 10), BinaryHeap::<Reverse<Event>>::new());
        let count = 2 * VAST as u32;
        for subject in 0..5 * count {
            if subject >= count {
                let Reverse(expected) = heap.pop().expect("one is pushed for each popped");
                assert_eq!(wheel.next_ps(), Some(expected.time_ps));
                assert_eq!(wheel.pop(), Some(expected));
            }
            let reach = [1 << 10, 1 << 20, 1 << 20, 1 << 30][random.below(4) as usize];
            let time_ps = wheel.now_ps() + random.below(reach);
            let event = Event { time_ps, place: subject, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
        while let Some(Reverse(expected)) = heap.pop() {
            assert_eq!(wheel.pop(), Some(expected));
        }
        assert!(wheel.is_empty());
    }

    /// Windows of time take the same events in the same order as popping them all.
    #[test]
    fn events_before_a_time_are_those_and_in_order() {
        let mut random = Random::new(4);
        let (mut whole, mut windows) = (Wheel::new(64), Wheel::new(64));
        for subject in 0..5_000 {
            let reach = [1_000, 1_000_000, 1_000_000_000][random.below(3) as usize];
            let time_ps = random.below(reach);
            let event = Event { time_ps, place: 0, subject };
            whole.push(event);
            windows.push(event);
        }
        while let Some(start_ps) = windows.next_ps() {
            let end_ps = start_ps + random.below(100_000) + 1;
            while windows.next_ps().is_some_and(|time_ps| time_ps < end_ps) {
                windows.turn();
                let Some(event) = windows.pop_due_before(end_ps) else { break };
                assert!(event.time_ps < end_ps);
                assert_eq!(whole.pop(), Some(event));
                if random.below(8) == 0 {
                    let time_ps = end_ps + random.below(10_000_000);
                    let event = Event { time_ps, place: 1, subject: event.subject };
                    whole.push(event);
                    windows.push(event);
                }
            }
            assert!(windows.next_ps().is_none_or(|time_ps| time_ps >= end_ps));
        }
        assert!(whole.is_empty());
    }

    #[test]
    fn what_is_late_happens_now() {
        let mut wheel = Wheel::new(10);
        wheel.push(Event { time_ps: 500, place: 0, subject: 0 });
        wheel.pop();
        wheel.push(Event { time_ps: 3, place: 0, subject: 1 });
        assert_eq!(wheel.pop(), Some(Event { time_ps: 500, place: 0, subject: 1 }));
        assert_eq!(wheel.now_ps(), 500);
    }
}

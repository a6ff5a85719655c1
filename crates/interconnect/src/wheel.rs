//! The queue of future events: a timing wheel of buckets, and a heap for events beyond the wheel.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use mem::prefetch;

/// A future event: at `time_ps`, `subject` (a packet, a message or a tag) reaches `place` (a link,
/// a host or a timer).
///
/// Events are ordered by their contents, so the order does not depend on the time of scheduling.
/// Models choose places such that no two events are equal.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Event {
    /// Virtual time, in picoseconds since the start.
    pub time_ps: u64,
    /// Place of the event. If two events have equal times, the lower place comes first.
    pub place: u32,
    /// Subject of the event. If two events have equal times and places, the lower subject comes
    /// first.
    pub subject: u32,
}

impl Event {
    /// Returns the event as one number. The numbers have the same order as the events and are
    /// compared without a branch.
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

/// A queue of future events, earliest first.
///
/// * Time is divided into slots. The width of a slot is a power of two, in picoseconds.
/// * A ring of buckets holds the events of the next slots. A bitmap of occupied buckets lets a run
///   with few events skip empty buckets.
/// * Only the slot being processed is sorted. An event costs an append, and a part of the cost of
///   sorting its slot. Together this is a third of the cost in a binary heap with thousands of
///   events.
/// * Buckets are chains of small blocks from a common store. The store reuses the most recently
///   freed block first. The memory in use is therefore proportional to the number of pending
///   events. With an array per bucket, each array would keep the size of the fullest slot so far.
/// * Events beyond the ring wait in a heap. They move into the ring when the ring reaches their
///   slots.
/// * If slots have so many events that sorting costs more than appending, slots become narrower.
#[derive(Debug)]
pub struct Wheel {
    /// Events of the slot being processed, latest first.
    current: Vec<Event>,
    /// Number of the slot being processed: its time divided by the width of a slot.
    current_slot: u64,
    /// For each bucket, a block number and a count, or [`NONE`] if the bucket is empty. The block
    /// is the last block of the bucket. The low bits are the number of events in that block minus
    /// one. Slot n uses bucket n modulo the number of buckets, which is a power of two. Events in
    /// buckets are not sorted.
    buckets: Vec<u32>,
    /// For each bucket, one bit that says whether the bucket has events.
    occupied: Vec<u64>,
    /// Events to be moved into their buckets before the wheel turns to the next slot. If there are
    /// very many events, buckets are not in the caches. With this list, the wheel can fetch the
    /// memory of many buckets at the same time.
    staged: Vec<Event>,
    blocks: Vec<Block>,
    /// For each block, the previous block of its chain, in the form of `buckets`. For a vacant
    /// block, the next vacant block.
    before: Vec<u32>,
    /// The most recently freed block; [`NONE`] if no block is vacant.
    vacant: u32,
    /// Events that were scheduled at least a whole turn of the ring ahead. The ring has not reached
    /// their slots yet.
    overflow: BinaryHeap<Reverse<Event>>,
    slot_shift: u32,
    /// Number of crowded slots minus number of other slots, among recent slots; at least 0.
    crowded: u32,
    /// Value of `crowded` at which slots become narrower. This value doubles whenever narrower
    /// slots do not help.
    crowded_max: u32,
    now_ps: u64,
    len: usize,
}

/// Events of one slot, in one cache line. The block is filled from its end.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Block([Event; BLOCK]);

impl Wheel {
    /// Creates an empty wheel whose slots are at most `slot_ps` wide. A good width is half of the
    /// shortest usual time from scheduling an event until the event happens.
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

    /// Returns the time of the latest event popped, in picoseconds.
    #[inline]
    pub const fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// Returns the number of events that have not happened yet.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no events remain.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Schedules an event. If the time of the event has passed, the event happens now.
    #[inline]
    pub fn push(&mut self, mut event: Event) {
        event.time_ps = event.time_ps.max(self.now_ps);
        self.len += 1;
        let slot = event.time_ps >> self.slot_shift;
        // For the current slot and earlier slots, the subtraction wraps to a number that is larger
        // than the size of any ring.
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

    /// Schedules an event that is in the slot being processed, or beyond the ring.
    #[inline(never)]
    fn push_elsewhere(&mut self, slot: u64, event: Event) {
        if slot > self.current_slot {
            self.overflow.push(Reverse(event));
            return;
        }
        let at = self.current.partition_point(|other| *other > event);
        self.current.insert(at, event);
    }

    /// Removes and returns the next event, and sets the clock to its time.
    #[inline]
    pub fn pop(&mut self) -> Option<Event> {
        if self.current.is_empty() {
            self.turn();
        }
        self.pop_due()
    }

    /// Removes and returns the next event of the slot being processed, and sets the clock to its
    /// time.
    #[inline]
    pub fn pop_due(&mut self) -> Option<Event> {
        let event = self.current.pop()?;
        self.now_ps = event.time_ps;
        self.len -= 1;
        Some(event)
    }

    /// Removes and returns the next event of the slot being processed, and sets the clock to its
    /// time. Returns `None` if the event is not before `end_ps`.
    #[inline]
    pub fn pop_due_before(&mut self, end_ps: u64) -> Option<Event> {
        self.current.last().filter(|event| event.time_ps < end_ps)?;
        self.pop_due()
    }

    /// Returns whether there is an event at the current time with a place below `place`.
    #[inline]
    pub fn has_due_before(&self, place: u32) -> bool {
        let next = self.current.last();
        next.is_some_and(|event| event.time_ps == self.now_ps && event.place < place)
    }

    /// Returns the events of the slot being processed, latest first.
    pub fn due(&self) -> &[Event] {
        &self.current
    }

    /// Returns the events of the next slot that are known so far, in chunks and without order. A
    /// fabric can prefetch the state that these events need. Returns no events if the wheel has so
    /// few that prefetching does not help.
    pub fn ahead(&self) -> impl Iterator<Item = &[Event]> {
        let bucket = if self.is_deep() { self.next_occupied(self.current_slot) } else { None };
        let mask = self.buckets.len() - 1;
        let last = bucket.map_or(NONE, |slot| self.buckets[slot as usize & mask]);
        self.chain(last)
    }

    /// Returns whether the events are too many for the first-level cache.
    #[inline]
    const fn is_deep(&self) -> bool {
        self.len > DEEP
    }

    /// Prefetches the blocks of the slot after the next slot. The previous call has prefetched the
    /// blocks of the next slot.
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

    /// Returns the time of the next event, in picoseconds. This call does not advance to the slot
    /// of that event. An event that is scheduled later for an earlier time can therefore still
    /// enter the ring.
    pub fn next_ps(&self) -> Option<u64> {
        if let Some(event) = self.current.last() {
            return Some(event.time_ps);
        }
        let staged = self.staged.iter().map(|event| event.time_ps).min();
        let in_ring = self.next_occupied(self.current_slot).and_then(|slot| {
            let bucket = slot as usize & (self.buckets.len() - 1);
            self.chain(self.buckets[bucket]).flatten().map(|event| event.time_ps).min()
        });
        // Events in the heap are later than all events in the ring.
        let beyond = || self.overflow.peek().map(|Reverse(event)| event.time_ps);
        in_ring.into_iter().chain(staged).min().or_else(beyond)
    }

    /// Adds an event to the staged events, and prefetches the block of its bucket.
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

    /// Moves the staged events into their buckets.
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

    /// Adds an empty block to a chain. Returns the position of the block's first event.
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

    /// Returns the events of a bucket, block by block. `last` is the bucket's last block.
    fn chain(&self, mut last: u32) -> impl Iterator<Item = &[Event]> {
        std::iter::from_fn(move || {
            let block = (last >> BLOCK_SHIFT) as usize;
            let events = &self.blocks.get(block)?.0[first_of(last)..];
            last = self.before[block];
            Some(events)
        })
    }

    /// Moves the events of a bucket to the end of a list, in the reverse order of scheduling. If
    /// ranks work in lockstep, their events are scheduled in order, and the reversed list needs no
    /// sorting.
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

    /// Advances to the next slot with events, if the current slot is empty and such a slot exists.
    /// Returns whether an event is due after this.
    pub fn turn(&mut self) -> bool {
        self.unstage();
        if self.current.is_empty() && self.crowded >= self.crowded_max {
            self.narrow();
        }
        // After slots have become narrower, the slot of the current time can contain events.
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

    /// Moves events from the heap into the ring, if the ring has reached their slots.
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

    /// Halves the width of slots. The caller must not be processing a slot. With narrower slots,
    /// more events are beyond the ring. If these events cost more than sorting saves, this function
    /// also doubles the number of buckets. If the width or the number of buckets cannot be changed
    /// further, this function leaves both unchanged.
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

    /// Returns the first slot after `after`, within the ring, whose bucket has events.
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

/// Sorts events, latest first. If one slot has very many events, ranks that work in lockstep have
/// scheduled them. The events then consist of a few sorted runs, which a stable sort merges.
#[inline]
fn sort_latest_first(events: &mut [Event]) {
    if events.len() > STEP {
        events.sort_by(|a, b| b.cmp(a));
    } else {
        events.sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// Returns the index of the most recently added event within its block.
#[inline]
const fn first_of(last: u32) -> usize {
    (LAST - (last & LAST)) as usize
}

/// Number of events that makes a slot crowded. To sort a slot with more events costs more than to
/// visit a few more slots with fewer events each.
const CROWD: usize = 32;
/// Number of events in one slot that does not occur by chance. If a slot has at least this number
/// of events, ranks that work in lockstep have scheduled them.
const STEP: usize = 4 * CROWD;
/// Number of crowded slots after which slots become narrower. A single crowded slot is not enough:
/// a synchronised workload has many events at the same time, and narrower slots cannot separate
/// these events.
const CROWDED_TURNS: u32 = 8;

/// Number of buckets. A network schedules events a few microseconds ahead (serialisation and
/// latency). With slots of 0.5 ns, the ring covers 8192 × 0.5 ns = 4 µs, so these events are within
/// the ring. `buckets` takes 4 B for each bucket and stays in the first-level cache.
const BUCKETS: usize = 8192;
/// Maximum number of buckets. The wheel uses this maximum if thousands of hosts crowd narrow slots.
/// `buckets` then has 64 KiB, and still leaves most of the second-level cache free.
const BUCKETS_MAX: usize = 16_384;
const WORD_BITS: usize = 64;
/// Number of events (64 KiB) that, together with the state they need, exceed the first-level cache.
const DEEP: usize = 4096;
/// Number of events in a block.
const BLOCK: usize = 1 << BLOCK_SHIFT;
const BLOCK_SHIFT: u32 = 2;
/// Number of events (half a megabyte) that, together with the state they need, exceed the
/// second-level cache.
const VAST: usize = 32_768;
/// Maximum number of staged events. The memory of all staged events is fetched at the same time.
const STAGED_MAX: usize = 32;
/// Number of events in a full block minus one.
const LAST: u32 = BLOCK as u32 - 1;
/// Means that a bucket has no block. The low bits of this value equal those of a full block, so
/// that adding an event starts a new block.
const NONE: u32 = u32::MAX;
const _: () = assert!(size_of::<Block>() == 64 && NONE & LAST == LAST);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn simultaneous_events_are_ordered_by_their_contents() {
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

    /// While events schedule further events, near and far, the wheel returns events in the same
    /// order as a heap.
    #[test]
    fn events_scheduled_during_the_run_stay_in_order() {
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
            // Each event has a larger place than all earlier ones. Therefore no event is scheduled
            // before an event that has already happened at the same time.
            let event = Event { time_ps, place: subject, subject };
            wheel.push(event);
            heap.push(Reverse(event));
        }
    }

    /// When crowded slots become narrower, the wheel loses no event and returns the events in
    /// order.
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

    /// If there are very many events, the wheel stages new events. Staging changes neither the
    /// order of events nor the time of the next event.
    #[test]
    fn very_many_events_stay_in_order() {
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

    /// Popping the events in windows of time gives the same order as popping all events at once.
    #[test]
    fn events_before_a_time_are_returned_completely_and_in_order() {
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
    fn a_late_event_happens_now() {
        let mut wheel = Wheel::new(10);
        wheel.push(Event { time_ps: 500, place: 0, subject: 0 });
        wheel.pop();
        wheel.push(Event { time_ps: 3, place: 0, subject: 1 });
        assert_eq!(wheel.pop(), Some(Event { time_ps: 500, place: 0, subject: 1 }));
        assert_eq!(wheel.now_ps(), 500);
    }
}

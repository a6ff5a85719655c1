//! Records of the packets in flight on one link, and the pool that provides memory for the records.

use wire_edge::PacketNumber;

use crate::rate::SendStamp;
use crate::time::Instant;

/// The kind of a packet, for loss detection and congestion control.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PacketClass {
    /// A pure acknowledgement. It has a number, does not count against the window, and is never
    /// reported as acknowledged or lost.
    Unacknowledged,
    /// A packet that counts against the window. If it is declared lost, its content is
    /// retransmitted.
    Data,
    /// A path-MTU probe. It is handled like data, but its loss does not count as congestion.
    MtuProbe,
}

/// A packet that was sent and has not been acknowledged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<T> {
    pub(crate) content: T,
    pub(crate) sent_at: Instant,
    /// State of the rate estimator at the time when the packet was sent.
    pub(crate) stamp: SendStamp,
    /// Expected time for queueing and sending the packet on the link, in nanoseconds.
    pub(crate) wait_ns: u32,
    /// Low 32 bits of the packet number. They are unambiguous, because the numbers in flight differ
    /// by far less than 2^31.
    pub(crate) packet: u32,
    /// Size of the frame, in bytes; at most 65507.
    pub(crate) bytes: u16,
    pub(crate) kind: Kind,
    next: u16,
    previous: u16,
}

/// The kind of packet for which a record stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    /// A packet in flight with its content.
    Data,
    /// A packet in flight with its content. Its loss is no sign of congestion.
    MtuProbe,
    /// A packet that was declared lost, without content. If it is acknowledged, the loss was
    /// spurious.
    Lost,
    /// A packet without content, because a later probe carries its content. The sender does not
    /// know yet whether this packet arrived.
    Retired,
}

/// Largest number of records without content. At 5 % loss, two round trips of 640 packets each lose
/// 64 packets. With 64 records, the handling of an acknowledgement takes less than 200 ns longer.
pub(crate) const GHOSTS_MAX: u16 = 64;

/// Number of slots for probes, which may exceed the window: two for each of 16 probe timeouts with
/// backoff.
const PROBE_SLOTS: usize = 32;

/// Number of records for which a vector that is allocated on demand has room at first. They take
/// 896 bytes.
const RECORDS_AT_FIRST: usize = 16;

/// Stands for no slot.
const NONE: u16 = u16::MAX;

const _: () = assert!(size_of::<Record<[u64; 2]>>() == 56);

/// Memory for the records of links that have packets in flight.
///
/// A link of a connection takes one vector of records with its first packet, and returns the vector
/// when no packet is in flight. So an idle link uses no vector. If no prepared vector is left, the
/// pool allocates a small vector, which grows with the packets in flight and is freed after use.
/// This vector starts small, because otherwise ten thousand links with one frame each would use a
/// gigabyte.
#[derive(Debug)]
pub struct SentPool<T> {
    free: Vec<Vec<Record<T>>>,
    halves: usize,
    records: usize,
}

impl<T: Copy> SentPool<T> {
    /// Default number of packets that one link of a connection may have in flight. 4096 full
    /// Ethernet frames are 6 MB, the product of 100 Gb/s and 490 µs.
    pub const RECORDS: usize = 4096;

    /// Smallest number of records for each link.
    pub const RECORDS_MIN: usize = 256;

    /// Creates a pool for `halves` links at the same time. Each link may have up to `records`
    /// packets in flight.
    ///
    /// # Panics
    /// Panics if `records` is not between [`Self::RECORDS_MIN`] and 32768.
    pub fn new(halves: usize, records: usize) -> Self {
        assert!((Self::RECORDS_MIN..=32768).contains(&records));
        Self { free: (0..halves).map(|_| Vec::with_capacity(records)).collect(), halves, records }
    }

    /// Returns the number of free prepared vectors.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Vec<Record<T>> {
        self.free.pop().unwrap_or_else(Self::allocate)
    }

    #[cold]
    fn allocate() -> Vec<Record<T>> {
        Vec::with_capacity(RECORDS_AT_FIRST)
    }

    fn give(&mut self, mut records: Vec<Record<T>>) {
        records.clear();
        if self.free.len() < self.halves && records.capacity() >= self.records {
            self.free.push(records);
        }
    }
}

/// A linked list of slots.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u16,
    tail: u16,
    len: u16,
}

impl List {
    const EMPTY: Self = Self { head: NONE, tail: NONE, len: 0 };
}

/// The records of one link. They are the slots of one vector, on three linked lists.
///
/// The list *in flight* is in the order of packet numbers. The list of *ghosts* (records without
/// content, see [`Kind`]) is in the order in which they lost their content. The third list has the
/// free slots.
///
/// To handle an acknowledgement, the sender walks the list in flight up to the largest acknowledged
/// number. So the cost is proportional to the number of newly acknowledged packets plus the number
/// of missing packets before them. A ring indexed by packet number would be worse: after an old
/// missing packet, the sender would walk all later packets again with each acknowledgement, and
/// pure acknowledgements would fill the ring.
#[derive(Debug)]
pub(crate) struct SentPackets<T> {
    /// The slots. The vector is empty and has no capacity while no packet is recorded.
    records: Vec<Record<T>>,
    flight: List,
    ghosts: List,
    free: u16,
}

impl<T: Copy> SentPackets<T> {
    pub(crate) const fn new() -> Self {
        Self { records: Vec::new(), flight: List::EMPTY, ghosts: List::EMPTY, free: NONE }
    }

    /// Records a packet in flight, after all other packets.
    pub(crate) fn push(
        &mut self,
        pool: &mut SentPool<T>,
        packet: PacketNumber,
        record: NewRecord<T>,
    ) {
        if self.records.capacity() == 0 {
            self.records = pool.take();
        }
        let record = Record {
            content: record.content,
            sent_at: record.sent_at,
            stamp: record.stamp,
            wait_ns: record.wait_ns,
            packet: packet.truncate(),
            bytes: record.bytes,
            kind: record.kind,
            next: NONE,
            previous: NONE,
        };
        let slot = self.slot_for(record);
        Self::append(&mut self.records, &mut self.flight, slot);
    }

    /// Returns true if no packet is in flight and no lost packet is remembered.
    pub(crate) const fn is_at_rest(&self) -> bool {
        self.flight.len == 0 && self.ghosts.len == 0
    }

    /// Returns the memory to the pool if no record is left.
    pub(crate) fn release_if_empty(&mut self, pool: &mut SentPool<T>) {
        if self.flight.len == 0 && self.ghosts.len == 0 && self.records.capacity() > 0 {
            pool.give(core::mem::take(&mut self.records));
            self.free = NONE;
        }
    }

    /// Removes a packet from the list in flight, together with its record.
    pub(crate) fn remove(&mut self, slot: u16) -> Record<T> {
        Self::unlink(&mut self.records, &mut self.flight, slot);
        self.free_slot(slot)
    }

    /// Removes a ghost.
    pub(crate) fn remove_ghost(&mut self, slot: u16) -> Record<T> {
        Self::unlink(&mut self.records, &mut self.ghosts, slot);
        self.free_slot(slot)
    }

    /// Moves a packet from the list in flight to the list of ghosts (records without content). The
    /// record of the packet loses its content and gets the kind `kind`. Returns the old record with
    /// the content.
    pub(crate) fn remember(&mut self, slot: u16, kind: Kind) -> Record<T> {
        if self.ghosts.len >= GHOSTS_MAX {
            self.remove_ghost(self.ghosts.head);
        }
        let record = self.records[slot as usize];
        Self::unlink(&mut self.records, &mut self.flight, slot);
        self.records[slot as usize].kind = kind;
        Self::append(&mut self.records, &mut self.ghosts, slot);
        record
    }

    pub(crate) fn forget_ghosts(&mut self) {
        while self.ghosts.len > 0 {
            self.remove_ghost(self.ghosts.head);
        }
    }

    pub(crate) fn set_kind(&mut self, slot: u16, kind: Kind) {
        self.records[slot as usize].kind = kind;
    }

    pub(crate) fn record(&self, slot: u16) -> &Record<T> {
        &self.records[slot as usize]
    }

    pub(crate) fn oldest(&self) -> Option<u16> {
        Self::some(self.flight.head)
    }

    pub(crate) fn newest(&self) -> Option<u16> {
        Self::some(self.flight.tail)
    }

    pub(crate) fn oldest_ghost(&self) -> Option<u16> {
        Self::some(self.ghosts.head)
    }

    /// Returns the slot after `slot` on the list that contains `slot`; `None` at the end of the
    /// list.
    pub(crate) fn after(&self, slot: u16) -> Option<u16> {
        Self::some(self.records[slot as usize].next)
    }

    /// Returns the number of packets that may still be sent, if there are `records` slots in total.
    pub(crate) fn room(&self, records: usize) -> usize {
        records
            .saturating_sub(self.flight.len as usize)
            .saturating_sub(GHOSTS_MAX as usize + PROBE_SLOTS)
    }

    /// Returns the number of packets in flight.
    pub(crate) fn len(&self) -> u16 {
        self.flight.len
    }

    fn slot_for(&mut self, record: Record<T>) -> u16 {
        if self.free != NONE {
            let slot = self.free;
            self.free = self.records[slot as usize].next;
            self.records[slot as usize] = record;
            return slot;
        }
        let slot = self.records.len();
        assert!(slot < NONE as usize, "the window bounds the packets in flight");
        self.records.push(record);
        slot as u16
    }

    fn free_slot(&mut self, slot: u16) -> Record<T> {
        let record = self.records[slot as usize];
        self.records[slot as usize].next = self.free;
        self.free = slot;
        record
    }

    fn append(records: &mut [Record<T>], list: &mut List, slot: u16) {
        records[slot as usize].next = NONE;
        records[slot as usize].previous = list.tail;
        if list.tail == NONE {
            list.head = slot;
        } else {
            records[list.tail as usize].next = slot;
        }
        list.tail = slot;
        list.len += 1;
    }

    fn unlink(records: &mut [Record<T>], list: &mut List, slot: u16) {
        let Record { next, previous, .. } = records[slot as usize];
        if previous == NONE {
            list.head = next;
        } else {
            records[previous as usize].next = next;
        }
        if next == NONE {
            list.tail = previous;
        } else {
            records[next as usize].previous = previous;
        }
        list.len -= 1;
    }

    const fn some(slot: u16) -> Option<u16> {
        if slot == NONE { None } else { Some(slot) }
    }
}

/// The data that [`SentPackets::push`] records about a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRecord<T> {
    pub(crate) content: T,
    pub(crate) sent_at: Instant,
    pub(crate) stamp: SendStamp,
    pub(crate) wait_ns: u32,
    pub(crate) bytes: u16,
    pub(crate) kind: Kind,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(packets: &mut SentPackets<u64>, pool: &mut SentPool<u64>, number: u64) {
        let record = NewRecord {
            content: number,
            sent_at: Instant(number),
            stamp: SendStamp::default(),
            wait_ns: 0,
            bytes: 100,
            kind: Kind::Data,
        };
        packets.push(pool, PacketNumber(number), record);
    }

    fn contents(packets: &SentPackets<u64>) -> Vec<u64> {
        let mut slot = packets.oldest();
        let mut contents = Vec::new();
        while let Some(at) = slot {
            contents.push(packets.record(at).content);
            slot = packets.after(at);
        }
        contents
    }

    #[test]
    fn order_of_packet_numbers_survives_the_reuse_of_slots() {
        let (mut packets, mut pool) = (SentPackets::new(), SentPool::new(1, 256));
        for number in 0..5 {
            push(&mut packets, &mut pool, number);
        }
        let second = packets.after(packets.oldest().unwrap()).unwrap();
        assert_eq!(packets.remove(second).content, 1);
        packets.remove(packets.newest().unwrap());
        push(&mut packets, &mut pool, 5);
        push(&mut packets, &mut pool, 6);
        assert_eq!(contents(&packets), [0, 2, 3, 5, 6]);
    }

    #[test]
    fn memory_is_allocated_with_the_first_packet_and_freed_after_the_last() {
        let (mut packets, mut pool) = (SentPackets::new(), SentPool::new(2, 256));
        assert_eq!(pool.available(), 2);
        push(&mut packets, &mut pool, 0);
        assert_eq!(pool.available(), 1);
        packets.remember(packets.oldest().unwrap(), Kind::Lost);
        packets.release_if_empty(&mut pool);
        assert_eq!(pool.available(), 1, "a ghost keeps the memory");
        packets.forget_ghosts();
        packets.release_if_empty(&mut pool);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn ghosts_are_bounded_and_the_oldest_is_dropped_first() {
        let (mut packets, mut pool) = (SentPackets::new(), SentPool::new(1, 256));
        for number in 0..u64::from(GHOSTS_MAX) + 3 {
            push(&mut packets, &mut pool, number);
            packets.remember(packets.oldest().unwrap(), Kind::Lost);
        }
        assert_eq!(packets.ghosts.len, GHOSTS_MAX);
        assert_eq!(packets.record(packets.oldest_ghost().unwrap()).content, 3);
    }
}

//! A ring of work requests. Any thread posts requests; the thread inside the engine takes them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Work requests by number. Numbers start at 0 and never wrap. Threads post a request, take it
/// (begin to carry it out) and retire it (free its slot).
///
/// Only one thread at a time performs each step:
/// * A posting thread holds a posting lock of the queue pair.
/// * The taking thread is the thread inside the engine.
/// * The retiring thread is the polling thread, which holds the poll lock of the completion queue.
///
/// A slot belongs to the posting thread until `posted` exceeds the number of its request. Then the
/// slot belongs to the taking thread until the request is retired. Therefore no thread ever waits
/// for the lock of a slot. The lock is needed only because the compiler cannot check this rule.
#[derive(Debug)]
pub(crate) struct WorkRing<S> {
    /// Slots. The low bits of a request's number are the index of its slot. The number of slots is
    /// a power of two.
    slots: Box<[Mutex<S>]>,
    /// The program's identifiers of the requests, by slot. They are stored outside the slots,
    /// because the polling thread reads the identifier of each request but seldom its slot.
    ids: Box<[AtomicU64]>,
    capacity: u64,
    posted: Position,
    taken: Position,
    retired: Position,
    /// Number of retired requests whose places stay occupied until [`WorkRing::release_places`].
    held: AtomicU64,
}

/// A counter. Each counter has its own cache line, because different threads write the counters.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position(AtomicU64);

impl<S> WorkRing<S> {
    /// Creates a ring of `capacity` slots.
    pub(crate) fn new(capacity: u32, mut make: impl FnMut() -> S) -> Self {
        let slots = if capacity == 0 { 0 } else { capacity.next_power_of_two() };
        Self {
            slots: (0..slots).map(|_| Mutex::new(make())).collect(),
            ids: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            capacity: capacity.into(),
            posted: Position::default(),
            taken: Position::default(),
            retired: Position::default(),
            held: AtomicU64::new(0),
        }
    }

    /// Returns the number that the next posted request will get.
    #[inline]
    pub(crate) fn posted(&self) -> u64 {
        // This load must be `SeqCst`, so that a thread that flushes and a thread that posts do not
        // miss each other; see `post_to`.
        self.posted.0.load(Ordering::SeqCst)
    }

    /// Returns the number of the oldest untaken request.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    /// Returns the number of the oldest request that is not retired.
    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.0.load(Ordering::Acquire)
    }

    /// Returns the slot in which to post the request with this number. Returns `None` if the ring
    /// is full.
    #[inline]
    pub(crate) fn slot_to_post(&self, number: u64) -> Option<MutexGuard<'_, S>> {
        let held = self.held.load(Ordering::Relaxed);
        (number - self.retired() + held < self.capacity).then(|| self.slot(number))?
    }

    /// Returns the slot of the request with this number.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> Option<MutexGuard<'_, S>> {
        let slot = self.slots.get(self.place(number))?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores the identifier of a request that is about to be posted.
    #[inline]
    pub(crate) fn set_id(&self, number: u64, id: u64) {
        if let Some(kept) = self.ids.get(self.place(number)) {
            kept.store(id, Ordering::Relaxed);
        }
    }

    /// Returns the identifier of a request that is posted and not retired.
    #[inline]
    pub(crate) fn id(&self, number: u64) -> u64 {
        self.ids.get(self.place(number)).map_or(0, |id| id.load(Ordering::Relaxed))
    }

    /// Marks all requests below `number` as posted.
    ///
    /// After this, the caller checks whether the queue pair is being flushed. A thread that begins
    /// to flush first records this, and then checks which requests are posted. So at least one of
    /// the two threads sees the change by the other, and the requests are flushed.
    #[inline]
    pub(crate) fn post_to(&self, number: u64) {
        self.posted.0.store(number, Ordering::SeqCst);
    }

    /// Marks all requests below `number` as taken.
    #[inline]
    pub(crate) fn take_to(&self, number: u64) {
        self.taken.0.store(number, Ordering::Release);
    }

    /// Marks all requests below `number` as retired.
    #[inline]
    pub(crate) fn retire_to(&self, number: u64) {
        self.retired.0.store(number, Ordering::Release);
    }

    /// Makes the place of the request that was retired last stay occupied until
    /// [`WorkRing::release_places`]. Only the retiring thread may call this function.
    pub(crate) fn hold_place(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees the places of all retired requests.
    #[inline]
    pub(crate) fn release_places(&self) {
        self.held.store(0, Ordering::Relaxed);
    }

    /// Returns whether the request with this number is posted and not retired.
    #[inline]
    pub(crate) fn is_outstanding(&self, number: u64) -> bool {
        (self.retired()..self.posted()).contains(&number)
    }

    /// Drops all requests. During this call, no other thread may post, take or retire.
    pub(crate) fn clear(&self) {
        let posted = self.posted();
        self.take_to(posted);
        self.retire_to(posted);
        self.release_places();
    }

    #[inline]
    fn place(&self, number: u64) -> usize {
        number as usize & self.slots.len().wrapping_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completed_work_makes_room_when_its_slots_are_released() {
        let ring = WorkRing::new(2, || 0);
        ring.post_to(2);
        ring.take_to(2);
        ring.retire_to(2);
        ring.hold_place();
        assert!(ring.slot_to_post(2).is_some() && ring.slot_to_post(3).is_none());
        ring.release_places();
        assert!(ring.slot_to_post(3).is_some());
    }

    #[test]
    fn a_ring_holds_no_more_work_than_its_size() {
        let ring = WorkRing::new(3, || 0);
        for number in 0..3 {
            *ring.slot_to_post(number).expect("there is room") = number;
            ring.set_id(number, 10 + number);
            ring.post_to(number + 1);
        }
        assert!(ring.slot_to_post(3).is_none());
        ring.take_to(2);
        ring.retire_to(2);
        assert!(ring.is_outstanding(2) && !ring.is_outstanding(1) && !ring.is_outstanding(3));
        assert_eq!((ring.id(2), *ring.slot(2).expect("a slot")), (12, 2));
        assert!(ring.slot_to_post(4).is_some());
        assert!(ring.slot_to_post(5).is_none());
        ring.clear();
        assert_eq!((ring.posted(), ring.taken(), ring.retired()), (3, 3, 3));
    }

    #[test]
    fn a_ring_of_size_zero_has_no_room() {
        let ring = WorkRing::new(0, || 0);
        assert!(ring.slot_to_post(0).is_none() && ring.slot(0).is_none());
        assert_eq!(ring.id(0), 0);
    }
}

//! A queue of work: a ring that any thread posts to, and the thread inside the engine takes from.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Work by its number, which counts from 0 for ever.
///
/// One thread at a time posts (it holds a lock of the queue pair for that), one at a time takes (it is inside the
/// engine), and one at a time retires (it polls, and holds the lock of the completion queue). A slot belongs to who
/// posts until `posted` passes it, then to who takes, and comes back when it is retired. So no thread ever waits for the
/// lock of a slot; it is there for the compiler.
#[derive(Debug)]
pub(crate) struct WorkRing<S> {
    /// A power of two of them, by the low bits of the number.
    slots: Box<[Mutex<S>]>,
    /// Identifiers by place: what who polls needs most often.
    ids: Box<[AtomicU64]>,
    capacity: u64,
    posted: Position,
    taken: Position,
    retired: Position,
    /// Places of work that has ended and does not make room yet.
    held: AtomicU64,
}

/// Each is written by another thread.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Position(AtomicU64);

impl<S> WorkRing<S> {
    /// A ring of so many slots.
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

    /// The number of the next work that is posted.
    #[inline]
    pub(crate) fn posted(&self) -> u64 {
        // Who ends work and who posts it must not miss each other: see `post_to`.
        self.posted.0.load(Ordering::SeqCst)
    }

    /// The number of the oldest work that was not taken.
    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.taken.0.load(Ordering::Acquire)
    }

    /// The number of the oldest work that is not over.
    #[inline]
    pub(crate) fn retired(&self) -> u64 {
        self.retired.0.load(Ordering::Acquire)
    }

    /// The slot of work that is to have this number, if there is room for it.
    #[inline]
    pub(crate) fn slot_to_post(&self, number: u64) -> Option<MutexGuard<'_, S>> {
        let held = self.held.load(Ordering::Relaxed);
        (number - self.retired() + held < self.capacity).then(|| self.slot(number))?
    }

    /// The slot of work.
    #[inline]
    pub(crate) fn slot(&self, number: u64) -> Option<MutexGuard<'_, S>> {
        let slot = self.slots.get(self.place(number))?;
        Some(slot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes the identifier of work that is about to be posted.
    #[inline]
    pub(crate) fn set_id(&self, number: u64, id: u64) {
        if let Some(kept) = self.ids.get(self.place(number)) {
            kept.store(id, Ordering::Relaxed);
        }
    }

    /// The identifier of work that was posted and is not retired.
    #[inline]
    pub(crate) fn id(&self, number: u64) -> u64 {
        self.ids.get(self.place(number)).map_or(0, |id| id.load(Ordering::Relaxed))
    }

    /// All work below `number` is posted. The caller looks afterwards whether work is flushed here, and the thread that
    /// decides that looks afterwards what is posted.
    #[inline]
    pub(crate) fn post_to(&self, number: u64) {
        self.posted.0.store(number, Ordering::SeqCst);
    }

    /// All work below `number` is taken.
    #[inline]
    pub(crate) fn take_to(&self, number: u64) {
        self.taken.0.store(number, Ordering::Release);
    }

    /// All work below `number` has ended.
    #[inline]
    pub(crate) fn retire_to(&self, number: u64) {
        self.retired.0.store(number, Ordering::Release);
    }

    /// The work that was retired last makes no room before [`WorkRing::release_places`]. Only the thread that retires calls
    /// this.
    pub(crate) fn hold_place(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    /// All work that was retired makes room.
    #[inline]
    pub(crate) fn release_places(&self) {
        self.held.store(0, Ordering::Relaxed);
    }

    /// Whether this is the number of work that is not over.
    #[inline]
    pub(crate) fn is_outstanding(&self, number: u64) -> bool {
        (self.retired()..self.posted()).contains(&number)
    }

    /// Forgets all work. No thread posts, takes or retires meanwhile.
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
    fn work_that_is_over_makes_room_when_its_places_are_released() {
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
    fn a_ring_holds_as_much_work_as_it_has_room_for_and_no_more() {
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
    fn a_ring_of_nothing_has_no_room() {
        let ring = WorkRing::new(0, || 0);
        assert!(ring.slot_to_post(0).is_none() && ring.slot(0).is_none());
        assert_eq!(ring.id(0), 0);
    }
}

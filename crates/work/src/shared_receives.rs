//! A queue of receives that several connections share.

#[cfg(all(test, loom))]
mod model;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, AtomicUsize, fence};
use std::collections::VecDeque;
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

#[cfg(not(loom))]
use crossbeam_queue::ArrayQueue;
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicUsize, fence};
#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
use mem::RegionId;

#[cfg(loom)]
use self::seen_by_loom::ArrayQueue;
use crate::completion::Owner;
use crate::error::PostError;
use crate::limits::SHARED_RECEIVES_MAX;
use crate::operation::Receive;
use crate::pieces::{Piece, PieceList, StoredPieces};

/// A bounded queue of receives for any number of connections of one endpoint: the shared receive
/// queue of verbs.
///
/// Any thread may post a receive, without a lock. When a message needs a receive, the thread inside
/// the engine takes the oldest receive. If the queue is empty, a connection whose wire supports
/// this waits. When receives are posted, the connection that has waited longest gets the first
/// receive.
#[derive(Debug)]
pub struct SharedReceives {
    posted: ArrayQueue<UntakenReceive>,
    /// Memory for lists of pieces (scatter/gather entries). When a receive with a list has been
    /// taken, a later post reuses the memory.
    spare: ArrayQueue<Box<StoredPieces>>,
    /// Number of connections that wait for a receive.
    waiting: AtomicUsize,
    /// Number of users without a connection, such as datagram ports, that wait for a receive.
    wanting: AtomicUsize,
    /// Number of receives in `Rare::returned`.
    returned: AtomicUsize,
    /// Number of receives below which the engine reports an event. 0 means no event.
    limit: AtomicU32,
    rare: Mutex<Rare>,
}

/// State that only the thread inside the engine uses, and only if receives are scarce or a
/// connection has ended.
#[derive(Debug, Default)]
struct Rare {
    /// Receives that ended connections had taken but not consumed. These receives are older than
    /// those in `posted`.
    returned: VecDeque<UntakenReceive>,
    /// Connections that wait, in the order in which they began to wait.
    waiters: VecDeque<Owner>,
}

/// Reason why a shared queue cannot provide a receive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unfit {
    /// The queue is empty, or connections wait for all receives in it.
    NoReceive,
    /// The oldest receive is too short.
    TooShort,
}

/// A receive that no message has taken.
#[derive(Debug)]
struct UntakenReceive {
    receive: Receive,
    /// The pieces (scatter/gather entries) for the message, if there are several.
    pieces: Option<Box<StoredPieces>>,
}

impl SharedReceives {
    /// Creates a queue with room for `capacity` receives. Clamps the capacity to 1 to
    /// [`SHARED_RECEIVES_MAX`].
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, SHARED_RECEIVES_MAX);
        Self {
            posted: ArrayQueue::new(capacity),
            spare: ArrayQueue::new(capacity),
            waiting: AtomicUsize::new(0),
            wanting: AtomicUsize::new(0),
            returned: AtomicUsize::new(0),
            limit: AtomicU32::new(0),
            rare: Mutex::default(),
        }
    }

    /// Posts a buffer for a message. Does not check the memory. It is checked when a message
    /// arrives.
    ///
    /// Returns true if a connection or another user waits for a receive. The caller must then
    /// ensure two things:
    /// * The thread inside the engine calls [`SharedReceives::next_ready`].
    /// * Users that [want](SharedReceives::begin_wanting) a receive try again.
    ///
    /// # Errors
    /// Returns [`PostError::ReceiveQueueFull`] if the queue is full.
    pub fn post(&self, receive: Receive) -> Result<bool, PostError> {
        self.push(UntakenReceive { receive, pieces: None })
    }

    /// Posts a list of pieces (scatter/gather entries) for a message, like
    /// [`SharedReceives::post`]. The message fills the pieces one after the other.
    ///
    /// # Errors
    /// Returns [`PostError::ReceiveQueueFull`] if the queue is full.
    pub fn post_list(&self, list: PieceList<'_>, context: u64) -> Result<bool, PostError> {
        let receive = Receive { region: RegionId::NONE, offset: 0, length: list.length(), context };
        self.push(UntakenReceive { receive, pieces: Some(self.keep(list)) })
    }

    /// Records that a user without a connection lacks a receive. Until
    /// [`SharedReceives::end_wanting`], every call of [`SharedReceives::post`] returns true.
    /// Returns whether a receive is already available. Only the thread inside the engine may call
    /// this.
    #[must_use]
    pub fn begin_wanting(&self) -> bool {
        self.wanting.fetch_add(1, SeqCst);
        // Pairs with the fence in `push`.
        fence(SeqCst);
        self.left() > 0
    }

    /// Ends the effect of [`SharedReceives::begin_wanting`], because the user no longer lacks a
    /// receive.
    pub fn end_wanting(&self) {
        self.wanting.fetch_sub(1, SeqCst);
    }

    /// Returns the number of receives that no message has taken.
    pub fn len(&self) -> usize {
        self.posted.len() + self.returned.load(Relaxed)
    }

    /// Returns whether the queue holds no receive.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the maximum number of receives that the queue can hold.
    pub fn capacity(&self) -> usize {
        self.posted.capacity()
    }

    /// Arms the limit. As soon as the queue has fewer than `limit` receives,
    /// [`SharedReceives::falls_below_limit`] returns true, once. A limit of 0 disarms the limit.
    ///
    /// If the queue already has fewer receives, returns true and does not arm the limit. Otherwise
    /// returns false. Only the thread inside the engine may call this.
    #[must_use]
    pub fn arm_limit(&self, limit: u32) -> bool {
        self.limit.store(limit, Relaxed);
        self.falls_below_limit()
    }

    /// Removes and returns the connection that has waited longest, if there is a receive for it.
    /// The caller then lets this connection [take](SharedReceives::take_waited_for) the receive.
    /// The caller repeats both calls until this function returns `None`.
    pub fn next_ready(&self) -> Option<Owner> {
        if self.waiting.load(SeqCst) == 0 || self.is_empty() {
            return None;
        }
        let mut rare = self.rare();
        let owner = rare.waiters.pop_front();
        self.waiting.store(rare.waiters.len(), SeqCst);
        owner
    }

    //= protocol.md: datagram.4
    /// Makes `place` fill the oldest receive with `bytes` bytes that belong to no connection.
    /// `place` gets the context and the pieces of the receive. Does not use receives for which
    /// connections wait. Only the thread inside the engine may call this.
    ///
    /// # Errors
    /// Returns [`Unfit`] if no receive can be used. All receives are then unchanged.
    pub fn fill<R>(
        &self,
        bytes: usize,
        place: impl FnOnce(u64, &[Piece]) -> R,
    ) -> Result<R, Unfit> {
        let entry = if self.left() > 0 { self.take_entry() } else { None };
        let Some(entry) = entry else { return Err(Unfit::NoReceive) };
        let Receive { region, offset, length, context } = entry.receive;
        if bytes > length as usize {
            self.put_back(entry);
            return Err(Unfit::TooShort);
        }
        let Some(pieces) = entry.pieces else {
            return Ok(place(context, &[Piece { region, offset, length }]));
        };
        let placed = place(context, pieces.list().pieces());
        // If `spare` is full, the push fails, and the memory of the list is freed.
        let _ = self.spare.push(pieces);
        Ok(placed)
    }

    /// Returns the number of receives that remain after each waiting connection has got one.
    pub fn left(&self) -> usize {
        self.len().saturating_sub(self.waiting.load(Relaxed))
    }

    /// Takes the oldest receive. `keep` gets the receive, and the list if the receive has one, and
    /// returns what the caller keeps of it. Returns `None` if the waiting connections need all
    /// receives.
    ///
    /// Allocates nothing, and takes no lock while no connection waits. Only the thread inside the
    /// engine may call this.
    #[inline]
    pub fn take<R>(&self, keep: impl FnOnce(Receive, Option<PieceList<'_>>) -> R) -> Option<R> {
        if self.waiting.load(Relaxed) > 0 && self.left() == 0 {
            return None;
        }
        self.take_waited_for(keep)
    }

    /// Takes the oldest receive, like [`SharedReceives::take`], for a connection that has waited
    /// for it. Returns `None` if the queue is empty.
    #[inline]
    pub fn take_waited_for<R>(
        &self,
        keep: impl FnOnce(Receive, Option<PieceList<'_>>) -> R,
    ) -> Option<R> {
        let UntakenReceive { receive, pieces } = self.take_entry()?;
        let Some(pieces) = pieces else { return Some(keep(receive, None)) };
        let kept = keep(receive, Some(pieces.list()));
        // If `spare` is full, the push fails, and the memory of the list is freed.
        let _ = self.spare.push(pieces);
        Some(kept)
    }

    /// Makes `owner` wait for a receive. `owner` must not be waiting yet. If a receive has become
    /// available, changes nothing and returns false. Only the thread inside the engine may call
    /// this.
    #[cold]
    pub fn wait(&self, owner: Owner) -> bool {
        let mut rare = self.rare();
        rare.waiters.push_back(owner);
        self.waiting.store(rare.waiters.len(), SeqCst);
        // A thread that posts a receive first adds the receive to the queue, and then checks for
        // waiters. If its check came before this function added the waiter, its receive is in the
        // queue, and `len` below counts it.
        fence(SeqCst);
        if self.len() < rare.waiters.len() {
            return true;
        }
        rare.waiters.pop_back();
        self.waiting.store(rare.waiters.len(), SeqCst);
        false
    }

    /// Returns whether the queue holds fewer receives than the armed limit. If so, disarms the
    /// limit. The thread inside the engine calls this after it has taken a receive.
    #[inline]
    pub fn falls_below_limit(&self) -> bool {
        let limit = self.limit.load(Relaxed);
        let falls = limit != 0 && self.len() < limit as usize;
        if falls {
            self.limit.store(0, Relaxed);
        }
        falls
    }

    /// Returns a receive that an ended connection had taken but not consumed to the front of the
    /// queue. `list` is the list of the receive, if it has one. If there are several such receives,
    /// the caller returns the youngest first. Only the thread inside the engine may call this.
    #[cold]
    pub fn give_back(&self, receive: Receive, list: Option<PieceList<'_>>) {
        self.put_back(UntakenReceive { receive, pieces: list.map(|list| self.keep(list)) });
    }

    /// Records that a connection, which has ended, no longer waits for a receive. Returns true if
    /// other connections wait and there is a receive for at least one of them. Only the thread
    /// inside the engine may call this.
    #[cold]
    pub fn end_waiting(&self, owner: Owner) -> bool {
        let mut rare = self.rare();
        rare.waiters.retain(|waiter| *waiter != owner);
        self.waiting.store(rare.waiters.len(), SeqCst);
        !rare.waiters.is_empty() && !self.is_empty()
    }

    /// Returns a receive to the front of the queue.
    fn put_back(&self, entry: UntakenReceive) {
        let mut rare = self.rare();
        rare.returned.push_front(entry);
        self.returned.store(rare.returned.len(), SeqCst);
    }

    fn push(&self, entry: UntakenReceive) -> Result<bool, PostError> {
        if self.posted.push(entry).is_err() {
            return Err(PostError::ReceiveQueueFull(self.capacity() as u32));
        }
        // Pairs with the fences in `wait` and `begin_wanting`.
        fence(SeqCst);
        Ok(self.waiting.load(SeqCst) > 0 || self.wanting.load(SeqCst) > 0)
    }

    #[inline]
    fn take_entry(&self) -> Option<UntakenReceive> {
        let is_plain = self.waiting.load(Relaxed) == 0 && self.returned.load(Relaxed) == 0;
        if is_plain { self.posted.pop() } else { self.take_in_want() }
    }

    #[cold]
    fn take_in_want(&self) -> Option<UntakenReceive> {
        let mut rare = self.rare();
        let back = rare.returned.pop_front();
        self.returned.store(rare.returned.len(), SeqCst);
        back.or_else(|| self.posted.pop())
    }

    fn keep(&self, list: PieceList<'_>) -> Box<StoredPieces> {
        let mut kept = self.spare.pop().unwrap_or_else(|| Box::new(StoredPieces::EMPTY));
        kept.store(list);
        kept
    }

    fn rare(&self) -> MutexGuard<'_, Rare> {
        self.rare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces `ArrayQueue` under loom, with the functions that this file uses. Loom does not model
/// the atomics of `ArrayQueue`, so the replacement uses a mutex and an atomic count that loom
/// models.
#[cfg(loom)]
mod seen_by_loom {
    use std::collections::VecDeque;

    use loom::sync::Mutex;
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::atomic::Ordering::Relaxed;

    #[derive(Debug)]
    pub(super) struct ArrayQueue<T> {
        entries: Mutex<VecDeque<T>>,
        count: AtomicUsize,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(super) fn new(capacity: usize) -> Self {
            let entries = Mutex::new(VecDeque::new());
            Self { entries, count: AtomicUsize::new(0), capacity }
        }

        pub(super) fn push(&self, entry: T) -> Result<(), T> {
            let mut entries = self.entries.lock().expect("no thread panics");
            if entries.len() == self.capacity {
                return Err(entry);
            }
            entries.push_back(entry);
            self.count.store(entries.len(), Relaxed);
            Ok(())
        }

        pub(super) fn pop(&self) -> Option<T> {
            let mut entries = self.entries.lock().expect("no thread panics");
            let entry = entries.pop_front();
            self.count.store(entries.len(), Relaxed);
            entry
        }

        pub(super) fn len(&self) -> usize {
            self.count.load(Relaxed)
        }

        pub(super) const fn capacity(&self) -> usize {
            self.capacity
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn receive(context: u64) -> Receive {
        Receive { region: RegionId::NONE, offset: 0, length: 0, context }
    }

    /// Keeps the context of a taken receive.
    fn context(receive: Receive, _list: Option<PieceList<'_>>) -> u64 {
        receive.context
    }

    #[test]
    fn a_message_does_not_wait_for_a_receive_posted_during_its_check() {
        let shared = SharedReceives::new(4);
        let (first, second) = (Owner::new(0, 1), Owner::new(1, 1));
        let receive = receive(5);
        // A message finds no receive. Before its connection begins to wait, a receive is posted.
        assert!(shared.take(context).is_none());
        assert_eq!(shared.post(receive), Ok(false));
        assert!(!shared.wait(first));
        assert_eq!(shared.take(context), Some(5));
        assert!(shared.wait(first) && shared.wait(second));
        assert_eq!(shared.post(receive), Ok(true));
        assert_eq!(shared.next_ready(), Some(first));
    }

    #[test]
    fn a_queue_has_at_least_one_slot_and_refuses_receives_beyond_its_capacity() {
        assert_eq!(SharedReceives::new(0).capacity(), 1);
        let shared = SharedReceives::new(1);
        assert_eq!(shared.post(receive(5)), Ok(false));
        assert_eq!(shared.post(receive(5)), Err(PostError::ReceiveQueueFull(1)));
    }

    #[test]
    fn a_taken_receive_has_the_pieces_that_were_posted() {
        let shared = SharedReceives::new(2);
        let pieces = [7, 0, 9].map(|length| Piece { length, ..Piece::NOTHING });
        let list = PieceList::new(&pieces).expect("a list");
        assert_eq!(shared.post_list(list, 1), Ok(false));
        let taken = shared.take(|receive, list| {
            let pieces = list.expect("it has pieces").pieces().to_vec();
            (receive.context, receive.length, pieces)
        });
        assert_eq!(taken, Some((1, 16, pieces.to_vec())));
        assert_eq!(shared.take(context), None);
    }

    #[test]
    fn a_receive_that_is_given_back_is_taken_again_first() {
        let shared = SharedReceives::new(3);
        let pieces = [Piece { length: 4, ..Piece::NOTHING }];
        let list = PieceList::new(&pieces).expect("a list");
        for context in 1..=3 {
            assert_eq!(shared.post_list(list, context), Ok(false));
        }
        let taken = [(); 2].map(|()| shared.take(|receive, _| receive).expect("it was posted"));
        for receive in taken.into_iter().rev() {
            shared.give_back(receive, Some(list));
        }
        assert_eq!(shared.len(), 3);
        let length = |receive: Receive, list: Option<PieceList<'_>>| {
            (receive.context, list.map(|list| list.length()))
        };
        for context in 1..=3 {
            assert_eq!(shared.take(length), Some((context, Some(4))));
        }
    }

    #[test]
    fn crossing_the_limit_is_reported_once() {
        let shared = SharedReceives::new(3);
        assert!(shared.arm_limit(1), "the queue is empty");
        for context in 1..=3 {
            assert_eq!(shared.post(receive(context)), Ok(false));
        }
        assert!(!shared.arm_limit(2));
        let crosses = [(); 3].map(|()| {
            assert!(shared.take(context).is_some());
            shared.falls_below_limit()
        });
        assert_eq!(crosses, [false, true, false]);
    }
}

//! The completion queue.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
#[cfg(not(loom))]
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
use std::sync::Arc;
#[cfg(not(loom))]
use std::sync::OnceLock;

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
use thiserror::Error;

use crate::completion::Completion;
use crate::completion::{STAMP_SHIFT, TAKES_PLACE, WORDS};
use crate::limits::COMPLETIONS_MAX;
#[cfg(loom)]
use crate::ring::OnceLock;
use crate::ring::{CHUNK_SLOTS, Ring, Seen};

/// A bounded queue of completions. The thread inside the engine fills the queue, and any thread may
/// empty it.
///
/// Several connections may fill one queue, with completions of operations, receives and
/// notifications. The queue allocates memory for the completions in it, not for its capacity, and
/// never frees that memory.
///
/// Completions are stored in a ring. If the ring is full, later completions go to a new ring of
/// twice the size, and the old ring gets no more completions. So the queue allocates a new ring
/// only when it contains more completions than ever before.
///
/// There are two ways to fill a queue:
///
/// * [`CompletionQueue::push`] uses no reserved room. If there is no room, the queue is overrun,
///   and the connections that use the queue end. Verbs programs use this way, so they must not post
///   more work than the queue has room for.
/// * [`CompletionQueue::keep_promise`] uses a place that [`CompletionQueue::promise`] has reserved
///   when the work was posted. The post fails if the queue has no room, so the queue is never
///   overrun.
///
/// Only the thread inside the engine may call functions that fill the queue, reserve room or change
/// its size. At most one thread is inside the engine at a time. That thread sees all changes by the
/// threads that were inside before.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Rings. Each has twice the slots of the ring before it. The queue allocates a ring when it
    /// needs one.
    rings: [OnceLock<Ring>; RINGS],
    taking: Taking,
    filling: Filling,
    /// The kind of completion that the application waits for: the number of an [`Arm`], or 0 if the
    /// queue is not armed. `None` if the queue cannot be armed.
    armed: Option<AtomicU8>,
    /// Features that most queues do not use.
    more: Option<Box<More>>,
}

/// Optional features of a queue.
#[derive(Debug, Default)]
struct More {
    /// A limit, below the capacity of the queue, for some kinds of completion.
    depth: Option<Depth>,
    /// The clock that stamps completions.
    clock: Option<Clock>,
}

/// A function that returns nanoseconds since a fixed time.
type Clock = fn() -> u64;

/// A limit for the completions for which `takes_place` returns true, and counts of these
/// completions. The program has set the limit as the depth of its queue.
struct Depth {
    entries: AtomicUsize,
    takes_place: Box<dyn Fn(&Completion) -> bool + Send + Sync>,
    /// Number of completions pushed so far that count against the depth.
    added: AtomicU64,
    /// Number of completions polled so far that count against the depth.
    taken: AtomicU64,
    /// Number of completions that were polled, but still count against the depth because the
    /// program has not received them yet.
    kept: AtomicUsize,
}

/// State that polling threads write.
#[derive(Debug)]
#[repr(align(64))]
struct Taking {
    /// Number of completions polled so far. This is also the position of the oldest completion in
    /// the queue.
    head: AtomicU64,
    /// Index of the ring with the oldest completion, or of an earlier ring that is already empty.
    ring: AtomicUsize,
}

/// State that the thread inside the engine writes.
#[derive(Debug)]
#[repr(align(64))]
struct Filling {
    /// Number of completions pushed so far. This is also the position of the next completion.
    tail: AtomicU64,
    /// A copy of `Taking::head` that may be out of date. The thread inside the engine loads
    /// `Taking::head` itself only if the copy shows no room, because the load is expensive: other
    /// threads write that field.
    head: AtomicU64,
    /// Index of the ring that gets the next completions.
    ring: AtomicUsize,
    capacity: AtomicUsize,
    /// Number of places reserved for later completions.
    promised: AtomicUsize,
    overrun: AtomicBool,
    /// Position after the last completion that is solicited or has failed. The engine updates this
    /// position only on a queue that can be armed.
    solicited_tail: AtomicU64,
    /// Number of the endpoint that fills the queue; 0 if no endpoint has claimed the queue yet.
    endpoint: AtomicU64,
    /// Number of slots of the first ring.
    first_slots: u64,
}

/// The completion queues of a connection, and whether the engine reserves room in them.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Queue for completions of operations.
    pub send: Arc<CompletionQueue>,
    /// Queue for completions of receives and for notifications. This may be the same queue as
    /// `send`.
    pub receive: Arc<CompletionQueue>,
    /// Whether the engine reserves room when the application posts work.
    ///
    /// * If true, a post fails if the queue has no room, and a notification waits until there is
    ///   room.
    /// * If false, work without a completion (unsignalled work) needs no room. An application that
    ///   posts more signalled work than the queue has room for overruns the queue.
    pub promises: bool,
}

impl Queues {
    /// Creates the queues of a queue pair. The engine reserves no room in them.
    pub const fn of_queue_pair(send: Arc<CompletionQueue>, receive: Arc<CompletionQueue>) -> Self {
        Self { send, receive, promises: false }
    }
}

impl From<Arc<CompletionQueue>> for Queues {
    /// Uses one queue for the completions of operations and of receives. The engine reserves room
    /// in it.
    fn from(queue: Arc<CompletionQueue>) -> Self {
        Self { send: Arc::clone(&queue), receive: queue, promises: true }
    }
}

/// Maximum number of rings. If the first ring has one slot, and each further ring has twice as many
/// as the ring before it, then the last ring has [`COMPLETIONS_MAX`] slots.
const RINGS: usize = COMPLETIONS_MAX.ilog2() as usize + 1;

/// The result of adding a completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Push {
    /// The completion is in the queue.
    Added,
    /// The completion is in the queue, and an application waits for it. The caller must wake the
    /// application. The queue is no longer armed.
    Fired,
    /// The queue has no room for the completion, and the completion was not added. If the function
    /// was [`CompletionQueue::push`], the queue is now [overrun](CompletionQueue::is_overrun).
    NoRoom,
}

/// The kind of completion for which an application waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Arm {
    /// A completion of a message or write whose sender asked to wake the application, or a
    /// completion with an error.
    Solicited = 1,
    /// The next completion of any kind.
    Next = 2,
}

/// Why the capacity of a queue could not be changed. The queue keeps its old capacity.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ResizeError {
    /// The number of completions in the queue and of reserved places together is above the
    /// requested capacity.
    #[error(
        "{capacity} places are too few for the {held} completions that are there or were promised a place; poll \
         it first"
    )]
    TooSmall {
        /// Requested capacity.
        capacity: usize,
        /// Number of completions in the queue and of reserved places.
        held: usize,
    },
    /// The requested capacity is above [`COMPLETIONS_MAX`].
    #[error(
        "{0} places are more than a completion queue can have ({COMPLETIONS_MAX}); make several"
    )]
    TooLarge(usize),
}

impl CompletionQueue {
    /// Creates a queue with room for `capacity` completions. `capacity` is from 1 to
    /// [`COMPLETIONS_MAX`]. The queue cannot be armed.
    pub fn new(capacity: usize) -> Self {
        Self::make(capacity, None)
    }

    /// Creates a queue that can be [armed](CompletionQueue::arm). Each push to such a queue takes
    /// some nanoseconds longer.
    pub fn with_events(capacity: usize) -> Self {
        Self::make(capacity, Some(AtomicU8::new(0)))
    }

    fn make(capacity: usize, armed: Option<AtomicU8>) -> Self {
        let capacity = capacity.clamp(1, COMPLETIONS_MAX);
        Self {
            rings: core::array::from_fn(|_| OnceLock::new()),
            taking: Taking { head: AtomicU64::new(0), ring: AtomicUsize::new(0) },
            filling: Filling {
                tail: AtomicU64::new(0),
                head: AtomicU64::new(0),
                ring: AtomicUsize::new(0),
                capacity: AtomicUsize::new(capacity),
                promised: AtomicUsize::new(0),
                overrun: AtomicBool::new(false),
                solicited_tail: AtomicU64::new(0),
                endpoint: AtomicU64::new(0),
                first_slots: (capacity as u64).next_power_of_two().min(CHUNK_SLOTS),
            },
            armed,
            more: None,
        }
    }

    /// Sets a limit of `entries` for those completions in the queue for which `takes_place` returns
    /// true. Other completions do not count. A push that exceeds the limit makes the queue
    /// [overrun](CompletionQueue::is_overrun). The thread inside the engine calls `takes_place`.
    ///
    /// ```
    /// # use work::{Completion, CompletionKind, CompletionQueue, Owner, Push};
    /// let queue = CompletionQueue::new(8).with_depth(1, |completion| completion.context > 0);
    /// let of = |context| Completion {
    ///     context,
    ///     owner: Owner::default(),
    ///     kind: CompletionKind::Send,
    ///     result: Ok(()),
    ///     bytes: 0,
    ///     immediate: None,
    ///     solicited: false,
    ///     value: 0,
    /// };
    /// assert_eq!([0, 1, 0, 2].map(|context| queue.push(&of(context))), [Push::Added, Push::Added, Push::Added, Push::NoRoom]);
    /// assert!(queue.is_overrun());
    /// ```
    #[must_use]
    pub fn with_depth(
        mut self,
        entries: usize,
        takes_place: impl Fn(&Completion) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.more.get_or_insert_default().depth = Some(Depth {
            entries: AtomicUsize::new(entries),
            takes_place: Box::new(takes_place),
            added: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            kept: AtomicUsize::new(0),
        });
        self
    }

    /// Makes each push store the time of `clock`, in nanoseconds, with the completion.
    /// [`CompletionQueue::poll_stamped`] returns this time.
    ///
    /// ```
    /// # use work::{Completion, CompletionKind, CompletionQueue, Owner};
    /// let queue = CompletionQueue::new(8).with_clock(|| 1 << 60);
    /// let done = Completion {
    ///     context: 7,
    ///     owner: Owner::default(),
    ///     kind: CompletionKind::Send,
    ///     result: Ok(()),
    ///     bytes: 0,
    ///     immediate: None,
    ///     solicited: false,
    ///     value: 0,
    /// };
    /// let _ = queue.push(&done);
    /// assert_eq!(queue.poll_stamped(), Some((done, 1 << 60)));
    /// ```
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> u64) -> Self {
        self.more.get_or_insert_default().clock = Some(clock);
        self
    }

    /// Returns the time of the queue's clock, in nanoseconds. Returns `None` if the queue has no
    /// clock.
    pub fn now_ns(&self) -> Option<u64> {
        Some(self.more.as_ref()?.clock?())
    }

    fn depth(&self) -> Option<&Depth> {
        self.more.as_ref()?.depth.as_ref()
    }

    /// Changes the limit that [`CompletionQueue::with_depth`] has set. Does nothing if there is no
    /// such limit.
    pub fn set_depth(&self, entries: usize) {
        if let Some(depth) = self.depth() {
            depth.entries.store(entries, Relaxed);
        }
    }

    /// Sets the number of polled completions that still count against the
    /// [depth](CompletionQueue::with_depth), because the program has not received them yet.
    pub fn set_kept(&self, count: usize) {
        if let Some(depth) = self.depth() {
            depth.kept.store(count, Relaxed);
        }
    }

    /// Makes the queue [overrun](CompletionQueue::is_overrun). The caller uses this function if it
    /// finds that there is no room for a completion which it has not passed to the queue.
    pub fn overrun(&self) {
        self.filling.overrun.store(true, Relaxed);
    }

    /// Removes and returns the oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Completion> {
        Some(Completion::unpack(self.take()?))
    }

    /// Removes the oldest completion, and returns it with the time of its push in nanoseconds. If
    /// the queue has no [clock](CompletionQueue::with_clock), the time is 0. The time is wrong if
    /// the completion was in the queue for more than nine hours.
    pub fn poll_stamped(&self) -> Option<(Completion, u64)> {
        let words = self.take()?;
        let stamp = words[WORDS - 1] >> STAMP_SHIFT;
        // The stamp contains only the low bits of the time. The push happened at the most recent
        // past time that has these low bits.
        let ago_ns = |now_ns: u64| now_ns.wrapping_sub(stamp) & (u64::MAX >> STAMP_SHIFT);
        let at_ns = self.now_ns().map_or(0, |now_ns| now_ns.saturating_sub(ago_ns(now_ns)));
        Some((Completion::unpack(words), at_ns))
    }

    #[inline]
    fn take(&self) -> Option<[u64; WORDS]> {
        loop {
            // Load `taking.ring` before `taking.head`. A thread increases `taking.ring` only after
            // it has loaded a head beyond that ring, and the head never decreases. So the head
            // loaded here is not before the ring loaded here.
            let index = self.taking.ring.load(Acquire);
            let ring = self.rings[index].get()?;
            let head = self.taking.head.load(Acquire);
            match ring.read(head) {
                Seen::Words(words) => {
                    let taken = self.taking.head.compare_exchange(head, head + 1, AcqRel, Relaxed);
                    // The filling thread reuses a slot only after the head has passed that slot. If
                    // the exchange succeeds, the head was still at this slot, so the words that
                    // this thread has read are intact.
                    if taken.is_ok() {
                        if let Some(depth) = self.depth() {
                            depth.on_taken(&words);
                        }
                        return Some(words);
                    }
                }
                Seen::Newer => {}
                Seen::Nothing if ring.ends_before(head) => {
                    let _ = self.taking.ring.compare_exchange(index, index + 1, AcqRel, Relaxed);
                }
                Seen::Nothing => return None,
            }
        }
    }

    /// Returns the number of completions that were not polled yet.
    pub fn len(&self) -> usize {
        let head = self.taking.head.load(Acquire);
        self.filling.tail.load(Acquire).saturating_sub(head) as usize
    }

    /// Returns whether all completions were polled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the queue contains a solicited or failed completion that was not polled yet.
    /// Returns false if the queue cannot be armed. This function may miss a completion that is
    /// added after [`CompletionQueue::arm`], but the push of such a completion returns
    /// [`Push::Fired`].
    pub fn has_solicited(&self) -> bool {
        let head = self.taking.head.load(Acquire);
        self.filling.solicited_tail.load(Acquire) > head
    }

    /// Returns the capacity: the maximum number of completions in the queue and reserved places
    /// together.
    pub fn capacity(&self) -> usize {
        self.filling.capacity.load(Relaxed)
    }

    /// Returns whether a completion was lost because the queue had no room. After that, the queue
    /// accepts no more completions, but the completions in the queue can still be polled.
    pub fn is_overrun(&self) -> bool {
        self.filling.overrun.load(Relaxed)
    }

    /// Returns the bytes of memory allocated so far.
    pub fn bytes(&self) -> usize {
        let rings: usize = self.rings.iter().filter_map(OnceLock::get).map(Ring::bytes).sum();
        size_of::<Self>() + rings
    }

    /// Arms the queue: the next push of a completion of kind `what` returns [`Push::Fired`], once.
    /// Completions that are already in the queue do not fire, so the caller must poll after arming
    /// and before waiting. Returns false if the queue was created without events.
    #[must_use]
    pub fn arm(&self, what: Arm) -> bool {
        let Some(armed) = &self.armed else { return false };
        // If the queue is already armed for completions of any kind, keep that setting, because it
        // includes solicited completions.
        armed.fetch_max(what as u8, AcqRel);
        // This fence pairs with the fence in `fires`.
        fence(SeqCst);
        true
    }

    /// Reverses [`CompletionQueue::arm`]. Returns false if the queue is not armed. If the caller
    /// had armed the queue, false means that another thread has added a completion and received
    /// [`Push::Fired`]. That thread has notified the application, or is about to do so.
    ///
    /// ```
    /// # use work::{Arm, CompletionQueue};
    /// let queue = CompletionQueue::with_events(8);
    /// assert!(queue.arm(Arm::Next));
    /// assert!(queue.disarm());
    /// assert!(!queue.disarm());
    /// ```
    #[must_use]
    pub fn disarm(&self) -> bool {
        self.armed.as_ref().is_some_and(|armed| armed.swap(0, AcqRel) != 0)
    }

    /// Claims the queue for the endpoint with the number `endpoint`, which must not be 0. Returns
    /// false if another endpoint has claimed the queue. Two endpoints cannot fill one queue,
    /// because only one thread at a time may fill it, and the threads of two endpoints run at the
    /// same time.
    #[must_use]
    pub fn claim(&self, endpoint: u64) -> bool {
        let claimed = self.filling.endpoint.compare_exchange(0, endpoint, Relaxed, Relaxed);
        claimed.is_ok() || claimed == Err(endpoint)
    }

    /// Returns whether another endpoint has claimed the queue.
    #[inline]
    pub fn is_foreign_to(&self, endpoint: u64) -> bool {
        ![0, endpoint].contains(&self.filling.endpoint.load(Relaxed))
    }

    /// Adds a completion for which no place is reserved. If there is no room, the queue is overrun,
    /// and this function returns [`Push::NoRoom`].
    #[inline]
    pub fn push(&self, completion: &Completion) -> Push {
        let pushed = self.offer(completion);
        if pushed == Push::NoRoom {
            self.filling.overrun.store(true, Relaxed);
        }
        pushed
    }

    /// Adds a completion if there is room that is not reserved. If there is no such room, returns
    /// [`Push::NoRoom`], and the queue does not become overrun.
    #[inline]
    pub fn offer(&self, completion: &Completion) -> Push {
        if self.is_overrun() || !self.has_room() {
            return Push::NoRoom;
        }
        let mut words = completion.pack();
        match &self.more {
            Some(more) if !more.admit(completion, &mut words) => Push::NoRoom,
            _ => self.add(completion, words),
        }
    }

    /// Reserves a place for a later completion. Returns false if the queue is overrun, or if all
    /// places are used or reserved.
    #[inline]
    #[must_use]
    pub fn promise(&self) -> bool {
        let has_room = !self.is_overrun() && self.has_room();
        let promised = self.filling.promised.load(Relaxed);
        self.filling.promised.store(promised + usize::from(has_room), Relaxed);
        has_room
    }

    /// Releases a reserved place.
    #[inline]
    pub fn withdraw(&self) {
        let promised = self.filling.promised.load(Relaxed);
        assert!(promised > 0, "a completion place is used that nobody was promised");
        self.filling.promised.store(promised - 1, Relaxed);
    }

    /// Adds a completion for which a place was reserved.
    #[inline]
    pub fn keep_promise(&self, completion: &Completion) -> Push {
        self.withdraw();
        let mut words = completion.pack();
        if let Some(more) = &self.more {
            more.stamp(&mut words);
        }
        self.add(completion, words)
    }

    /// Changes the capacity of the queue. If no place of the queue is ever reserved, any thread may
    /// call this function. In that case, the filling thread may use the old capacity for a moment
    /// longer.
    ///
    /// # Errors
    /// * Returns [`ResizeError::TooSmall`] if the number of completions in the queue and of
    ///   reserved places together is above the new capacity.
    /// * Returns [`ResizeError::TooLarge`] if the new capacity is above [`COMPLETIONS_MAX`].
    pub fn resize(&self, capacity: usize) -> Result<(), ResizeError> {
        let held = self.len() + self.filling.promised.load(Relaxed);
        if capacity < held.max(1) {
            return Err(ResizeError::TooSmall { capacity, held });
        }
        if capacity > COMPLETIONS_MAX {
            return Err(ResizeError::TooLarge(capacity));
        }
        self.filling.capacity.store(capacity, Relaxed);
        Ok(())
    }

    /// Returns whether the queue has a free place: a place that is not used and not reserved.
    #[inline]
    fn has_room(&self) -> bool {
        let places = self.capacity().saturating_sub(self.filling.promised.load(Relaxed));
        self.holds_less_than(places as u64)
    }

    /// Returns whether fewer than `count` completions are in the queue.
    #[inline]
    fn holds_less_than(&self, count: u64) -> bool {
        let tail = self.filling.tail.load(Relaxed);
        if tail - self.filling.head.load(Relaxed) < count {
            return true;
        }
        let head = self.taking.head.load(Acquire);
        self.filling.head.store(head, Relaxed);
        tail - head < count
    }

    /// Adds a completion, whose packed form is `words`. The caller has checked that there is room.
    #[inline]
    fn add(&self, completion: &Completion, words: [u64; WORDS]) -> Push {
        let tail = self.filling.tail.load(Relaxed);
        self.ring_to_fill(tail).write(tail, words);
        self.filling.tail.store(tail + 1, Release);
        let Some(armed) = &self.armed else { return Push::Added };
        let is_solicited = completion.solicited || completion.result.is_err();
        if is_solicited {
            self.filling.solicited_tail.store(tail + 1, Release);
        }
        if fires(armed, is_solicited) { Push::Fired } else { Push::Added }
    }

    /// Returns the ring with room for the completion at `tail`.
    #[inline]
    fn ring_to_fill(&self, tail: u64) -> &Ring {
        let index = self.filling.ring.load(Relaxed);
        let slots = self.filling.first_slots << index;
        if self.holds_less_than(slots) {
            return self.rings[index].get_or_init(|| Ring::new(slots));
        }
        self.begin_ring(index, tail)
    }

    /// Ends the full ring `index`, and begins the next ring, which has twice as many slots. There
    /// is always a next ring, because the last ring never gets full: no queue has more places than
    /// the last ring has slots.
    #[cold]
    fn begin_ring(&self, index: usize, tail: u64) -> &Ring {
        let slots = self.filling.first_slots << (index + 1);
        let next = self.rings[index + 1].get_or_init(|| Ring::new(slots));
        if let Some(full) = self.rings[index].get() {
            full.end_at(tail);
        }
        self.filling.ring.store(index + 1, Relaxed);
        next
    }
}

impl More {
    /// Adds the stamp to the words of a completion. If the completion counts against the depth,
    /// also marks the words. Returns false if the completion would exceed the depth.
    #[cold]
    fn admit(&self, completion: &Completion, words: &mut [u64; WORDS]) -> bool {
        self.stamp(words);
        self.depth.as_ref().is_none_or(|depth| depth.admit(completion, words))
    }

    fn stamp(&self, words: &mut [u64; WORDS]) {
        if let Some(clock) = self.clock {
            words[WORDS - 1] |= clock() << STAMP_SHIFT;
        }
    }
}

impl Depth {
    /// Marks the words of a completion if it counts against the depth. Returns false if the
    /// completion counts and would exceed the depth.
    fn admit(&self, completion: &Completion, words: &mut [u64; WORDS]) -> bool {
        if !(self.takes_place)(completion) {
            return true;
        }
        let added = self.added.load(Relaxed);
        let held =
            added.saturating_sub(self.taken.load(Acquire)) as usize + self.kept.load(Relaxed);
        if held >= self.entries.load(Relaxed) {
            return false;
        }
        self.added.store(added + 1, Relaxed);
        words[WORDS - 1] |= TAKES_PLACE;
        true
    }

    /// Records that a completion with these words was polled.
    #[cold]
    fn on_taken(&self, words: &[u64; WORDS]) {
        if words[WORDS - 1] & TAKES_PLACE != 0 {
            self.taken.fetch_add(1, AcqRel);
        }
    }
}

impl core::fmt::Debug for Depth {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Depth").field("entries", &self.entries).finish_non_exhaustive()
    }
}

/// Returns whether an application waits for the completion that was just added. If so, also disarms
/// the queue.
///
/// No completion is missed. The filling thread first writes the completion and then reads `armed`.
/// A waiting thread first writes `armed` in [`CompletionQueue::arm`] and then polls the queue. Each
/// thread has a fence between its two steps, so at least one of the two threads sees the write of
/// the other.
#[inline]
fn fires(armed: &AtomicU8, is_solicited: bool) -> bool {
    if !cfg!(loom_mutation) {
        fence(SeqCst);
    }
    let counts = |mark: u8| mark == Arm::Next as u8 || mark == Arm::Solicited as u8 && is_solicited;
    counts(armed.load(Relaxed)) && armed.swap(0, AcqRel) != 0
}

//! The queue completions go to.

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

use crate::Completion;
use crate::completion::{STAMP_SHIFT, TAKES_PLACE, WORDS};
use crate::limits::COMPLETIONS_MAX;
#[cfg(loom)]
use crate::ring::OnceLock;
use crate::ring::{CHUNK_SLOTS, Ring, Seen};

/// A bounded queue of completions: the thread inside the engine fills it, any thread empties it.
///
/// Any number of connections fill one queue, with what they asked for and with what they were sent.
/// Memory is taken for what the queue holds, not for what it may hold, and kept: completions go to a ring,
/// and when that is full to a new one twice as large, as soon as the first is empty for good. Nothing is
/// allocated while a queue holds no more than it once did.
///
/// There are two ways to fill it. [`CompletionQueue::push`] promises nothing: if it finds no room the queue is
/// overrun, an error that ends the connections that use it, and so a program of verbs must not post more than
/// it has room for. An application that would rather be refused when it posts has a place
/// [promised](CompletionQueue::promise) for each completion.
///
/// Only the thread inside the engine may call what fills the queue, promises, or changes its size: a
/// program enters the engine for that. It is one at a time, and what one has done the next one sees.
#[derive(Debug)]
pub struct CompletionQueue {
    /// Each with twice the slots of the one before. Made when needed.
    rings: [OnceLock<Ring>; RINGS],
    taking: Taking,
    filling: Filling,
    /// Which completion the application waits for, a number of [`Arm`]; 0 if for none. Nothing if it never
    /// does.
    armed: Option<AtomicU8>,
    /// What most queues have not.
    more: Option<Box<More>>,
}

/// What a queue may have beside.
#[derive(Debug, Default)]
struct More {
    /// Fewer places for some completions.
    depth: Option<Depth>,
    /// Completions are stamped with its time.
    clock: Option<Clock>,
}

/// Nanoseconds since some moment.
type Clock = fn() -> u64;

/// Which completions take a place of the depth that a program asked for, and how many there are.
struct Depth {
    entries: AtomicUsize,
    takes_place: Box<dyn Fn(&Completion) -> bool + Send + Sync>,
    /// Those that were put in so far.
    added: AtomicU64,
    /// Those that were polled so far.
    taken: AtomicU64,
    /// Those that were polled and keep their place.
    kept: AtomicUsize,
}

/// What those who take completions write.
#[derive(Debug)]
#[repr(align(64))]
struct Taking {
    /// Completions taken so far: the position of the oldest one that is there.
    head: AtomicU64,
    /// A ring that has not ended before the oldest completion, or that was left a moment ago.
    ring: AtomicUsize,
}

/// What the thread inside the engine writes.
#[derive(Debug)]
#[repr(align(64))]
struct Filling {
    /// Completions put in so far: the position of the next.
    tail: AtomicU64,
    /// The head when it was last looked at, which costs more than all the rest: it is another thread's.
    head: AtomicU64,
    /// The ring that is filled.
    ring: AtomicUsize,
    capacity: AtomicUsize,
    /// Places promised to completions to come.
    promised: AtomicUsize,
    overrun: AtomicBool,
    /// The position after the last completion that is solicited or has failed. Only counted in a queue that can be armed.
    solicited_tail: AtomicU64,
    /// The one endpoint that fills it; 0 if none has yet.
    endpoint: AtomicU64,
    /// Slots of the first ring.
    first_slots: u64,
}

/// Where the completions of a connection go, and under which terms.
#[derive(Clone, Debug)]
pub struct Queues {
    /// Those of operations.
    pub send: Arc<CompletionQueue>,
    /// Those of receives and notifications; may be the same.
    pub receive: Arc<CompletionQueue>,
    /// Places are promised: posting is refused when there is none, and notifications wait. Otherwise nothing is
    /// promised, work that is not signalled takes no place, and who posts more than there is room for overruns the
    /// queue.
    pub promises: bool,
}

impl Queues {
    /// Makes the queues of a queue pair, in which no places are promised.
    pub const fn of_queue_pair(send: Arc<CompletionQueue>, receive: Arc<CompletionQueue>) -> Self {
        Self { send, receive, promises: false }
    }
}

impl From<Arc<CompletionQueue>> for Queues {
    /// One queue for both directions, whose places are promised.
    fn from(queue: Arc<CompletionQueue>) -> Self {
        Self { send: Arc::clone(&queue), receive: queue, promises: true }
    }
}

/// Rings, each twice the one before, from one slot to [`COMPLETIONS_MAX`].
const RINGS: usize = COMPLETIONS_MAX.ilog2() as usize + 1;

/// What became of a completion.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Push {
    /// It is in the queue.
    Added,
    /// It is in the queue, and the application waits for it: wake it. The queue is not armed any more.
    Fired,
    /// There is no room; nothing was changed but what [`CompletionQueue::is_overrun`] says.
    NoRoom,
}

/// For which completion an application waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Arm {
    /// For one whose sender asked that it be woken, or that failed.
    Solicited = 1,
    /// For the next, whichever it is.
    Next = 2,
}

/// Why a queue cannot have another size. It is as it was.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum ResizeError {
    /// It holds more than would fit.
    #[error(
        "{capacity} places are too few for the {held} completions that are there or were promised a place; poll \
         it first"
    )]
    TooSmall {
        /// What was asked for.
        capacity: usize,
        /// Completions in the queue, and places promised.
        held: usize,
    },
    /// No queue is as large.
    #[error(
        "{0} places are more than a completion queue can have ({COMPLETIONS_MAX}); make several"
    )]
    TooLarge(usize),
}

impl CompletionQueue {
    /// Creates a queue of `capacity` completions, at least 1 and at most [`COMPLETIONS_MAX`], which no thread waits
    /// for.
    pub fn new(capacity: usize) -> Self {
        Self::make(capacity, None)
    }

    /// Creates a queue that can be [armed](CompletionQueue::arm). It costs the filling thread some nanoseconds a
    /// completion.
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

    /// Limits the completions of which `takes_place` says so to `entries`, whatever other completions there are. One more
    /// [overruns](CompletionQueue::is_overrun) the queue. The thread inside the engine calls `takes_place`.
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

    /// Stamps completions with the time of a clock, in nanoseconds, when they are put in:
    /// [`CompletionQueue::poll_stamped`] returns it.
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

    /// Returns the time of the clock of the queue in nanoseconds, if it has one.
    pub fn now_ns(&self) -> Option<u64> {
        Some(self.more.as_ref()?.clock?())
    }

    fn depth(&self) -> Option<&Depth> {
        self.more.as_ref()?.depth.as_ref()
    }

    /// Changes the limit that [`CompletionQueue::with_depth`] set. Without one it does nothing.
    pub fn set_depth(&self, entries: usize) {
        if let Some(depth) = self.depth() {
            depth.entries.store(entries, Relaxed);
        }
    }

    /// Sets how many completions that were polled still take a place of the [depth](CompletionQueue::with_depth),
    /// because the program has not got them yet.
    pub fn set_kept(&self, count: usize) {
        if let Some(depth) = self.depth() {
            depth.kept.store(count, Relaxed);
        }
    }

    /// Marks the queue as [overrun](CompletionQueue::is_overrun): a completion had no place that did not come this way.
    pub fn overrun(&self) {
        self.filling.overrun.store(true, Relaxed);
    }

    /// Takes the oldest completion.
    #[inline]
    pub fn poll(&self) -> Option<Completion> {
        Some(Completion::unpack(self.take()?))
    }

    /// Takes the oldest completion, and the time when it was put in: 0 if the queue has no
    /// [clock](CompletionQueue::with_clock). It may have been there for nine hours at most.
    pub fn poll_stamped(&self) -> Option<(Completion, u64)> {
        let words = self.take()?;
        let stamp = words[WORDS - 1] >> STAMP_SHIFT;
        // The stamp is what there is room for of the time: that is not later than now.
        let ago_ns = |now_ns: u64| now_ns.wrapping_sub(stamp) & (u64::MAX >> STAMP_SHIFT);
        let at_ns = self.now_ns().map_or(0, |now_ns| now_ns.saturating_sub(ago_ns(now_ns)));
        Some((Completion::unpack(words), at_ns))
    }

    #[inline]
    fn take(&self) -> Option<[u64; WORDS]> {
        loop {
            // In this order: a thread that left a ring had seen a head beyond it, and the head only grows.
            let index = self.taking.ring.load(Acquire);
            let ring = self.rings[index].get()?;
            let head = self.taking.head.load(Acquire);
            match ring.read(head) {
                Seen::Words(words) => {
                    let taken = self.taking.head.compare_exchange(head, head + 1, AcqRel, Relaxed);
                    // The filling thread changes no slot at or after the head: nothing was written meanwhile.
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

    /// Returns the number of completions that wait to be polled.
    pub fn len(&self) -> usize {
        let head = self.taking.head.load(Acquire);
        self.filling.tail.load(Acquire).saturating_sub(head) as usize
    }

    /// Whether nothing waits to be polled.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a completion that is solicited or has failed waits to be polled. Always false if the queue was made without
    /// events. After [`CompletionQueue::arm`], a completion that this misses fires.
    pub fn has_solicited(&self) -> bool {
        let head = self.taking.head.load(Acquire);
        self.filling.solicited_tail.load(Acquire) > head
    }

    /// Returns the most completions that the queue holds, promised places included.
    pub fn capacity(&self) -> usize {
        self.filling.capacity.load(Relaxed)
    }

    /// Whether a completion was lost because there was no room. The queue takes no completions after that; those
    /// that are in it can be polled.
    pub fn is_overrun(&self) -> bool {
        self.filling.overrun.load(Relaxed)
    }

    /// Returns the bytes of memory allocated so far.
    pub fn bytes(&self) -> usize {
        let rings: usize = self.rings.iter().filter_map(OnceLock::get).map(Ring::bytes).sum();
        size_of::<Self>() + rings
    }

    /// Reports the next completion of that kind by [`Push::Fired`], once. Completions that are in the queue until
    /// then may not count, so poll afterwards, before waiting. False if the queue was made without events.
    #[must_use]
    pub fn arm(&self, what: Arm) -> bool {
        let Some(armed) = &self.armed else { return false };
        // Who waits for any completion waits for a solicited one as well.
        armed.fetch_max(what as u8, AcqRel);
        // See `fires`.
        fence(SeqCst);
        true
    }

    /// Takes back what [`CompletionQueue::arm`] did. False if it was not armed, or [`Push::Fired`] has been said of a completion
    /// already: then the thread that added it is about to notify.
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

    /// Takes the queue for an endpoint, a number not 0. False if it is that of another: it is filled by one
    /// thread at a time, and two endpoints are two.
    #[must_use]
    pub fn claim(&self, endpoint: u64) -> bool {
        let claimed = self.filling.endpoint.compare_exchange(0, endpoint, Relaxed, Relaxed);
        claimed.is_ok() || claimed == Err(endpoint)
    }

    /// Whether another endpoint than this fills it.
    #[inline]
    pub fn is_foreign_to(&self, endpoint: u64) -> bool {
        ![0, endpoint].contains(&self.filling.endpoint.load(Relaxed))
    }

    /// Adds a completion that was promised nothing. If there is no room the queue is overrun.
    #[inline]
    pub fn push(&self, completion: &Completion) -> Push {
        let pushed = self.offer(completion);
        if pushed == Push::NoRoom {
            self.filling.overrun.store(true, Relaxed);
        }
        pushed
    }

    /// Adds a completion if there is a place that was promised to no operation. That there is none is no error.
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

    /// Promises a place; false when all are taken or promised.
    #[inline]
    #[must_use]
    pub fn promise(&self) -> bool {
        let has_room = !self.is_overrun() && self.has_room();
        let promised = self.filling.promised.load(Relaxed);
        self.filling.promised.store(promised + usize::from(has_room), Relaxed);
        has_room
    }

    /// Takes a promise back.
    #[inline]
    pub fn withdraw(&self) {
        let promised = self.filling.promised.load(Relaxed);
        assert!(promised > 0, "a completion place is used that nobody was promised");
        self.filling.promised.store(promised - 1, Relaxed);
    }

    /// Adds a completion for which a place was promised.
    #[inline]
    pub fn keep_promise(&self, completion: &Completion) -> Push {
        self.withdraw();
        let mut words = completion.pack();
        if let Some(more) = &self.more {
            more.stamp(&mut words);
        }
        self.add(completion, words)
    }

    /// Makes the queue larger or smaller. Where no place is promised, any thread may: a thread that fills it
    /// meanwhile finds room by the one size or the other.
    ///
    /// # Errors
    /// [`ResizeError::TooSmall`] if it holds more than that, [`ResizeError::TooLarge`].
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

    /// Whether there is a place that is neither taken nor promised.
    #[inline]
    fn has_room(&self) -> bool {
        let places = self.capacity().saturating_sub(self.filling.promised.load(Relaxed));
        self.holds_less_than(places as u64)
    }

    /// Whether fewer completions than that are in the queue.
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

    /// Adds a completion for which there is room, as these words.
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

    /// The ring with room for what comes at `tail`.
    #[inline]
    fn ring_to_fill(&self, tail: u64) -> &Ring {
        let index = self.filling.ring.load(Relaxed);
        let slots = self.filling.first_slots << index;
        if self.holds_less_than(slots) {
            return self.rings[index].get_or_init(|| Ring::new(slots));
        }
        self.begin_ring(index, tail)
    }

    /// Leaves a ring that is full for the next. As it has more slots than completions are in the queue, and
    /// no queue holds more than its capacity, the last one is never full.
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
    /// Adds to the words of a completion what is noted of it. False if it finds no place.
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
    /// Marks the words of a completion if it takes a place. False if it finds none.
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

    /// A completion of these words was polled.
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

/// Whether the application waits for the completion that was just added; it waits for no other then.
///
/// Why none is missed: here a completion is written before the mark is read, there (in
/// [`CompletionQueue::arm`]) the mark is written before the queue is polled. With a fence between the two on both
/// sides, at least one sees what the other wrote.
#[inline]
fn fires(armed: &AtomicU8, is_solicited: bool) -> bool {
    if !cfg!(loom_mutation) {
        fence(SeqCst);
    }
    let counts = |mark: u8| mark == Arm::Next as u8 || mark == Arm::Solicited as u8 && is_solicited;
    counts(armed.load(Relaxed)) && armed.swap(0, AcqRel) != 0
}

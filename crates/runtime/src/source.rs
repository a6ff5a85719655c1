//! Work that waits in the application until the engine takes it, and the doorbells that announce
//! it.

#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(not(loom))]
use crossbeam_queue::ArrayQueue;
use delivery::Instant;
use engine::Engine;
use mem::MemoryAccess;

#[cfg(loom)]
use self::locked::ArrayQueue;

/// A queue in which work of an application waits until the engine has room for it, for example the
/// send queue of a queue pair.
///
/// A thread that has added work [rings](crate::Runtime::ring) the doorbell, and the thread inside
/// the engine takes the work. The source limits its own length, so ringing never fails. If the
/// engine takes no work from a source, other sources are not blocked.
///
/// The runtime may drop a source inside the engine, so its `Drop` must not call the runtime.
pub trait WorkSource: Send + Sync {
    /// Returns the doorbell of this source. Each source has its own.
    fn doorbell(&self) -> &SourceDoorbell;

    /// Returns whether all work that the engine took from the source has completed.
    fn is_idle(&self) -> bool;

    /// Returns whether the work is urgent. This matters if another thread is inside the engine when
    /// a thread rings the doorbell. If the work is urgent, the ringing thread waits a moment until
    /// the engine is free. Otherwise it hands the work over to the thread inside.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Returns whether a [`Machine`](crate::Machine) does this source's work. Its
    /// [`WorkSource::post`] then only notes which work waits, where the machine finds the note. The
    /// machine gets a turn afterwards, before the thread that rang the doorbell leaves the engine.
    fn is_of_machine(&self) -> bool {
        false
    }

    /// Posts up to `limit` pieces of work, oldest first. The engine's driver calls this inside the
    /// engine, so an implementation must not call the runtime.
    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted;
}

/// The result of taking work from a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Posted {
    /// Number of pieces of work that the engine took from the source. If the source has raised a
    /// [`Mark`](crate::Mark), this number must be at least 1. With 0, the runtime would treat the
    /// turn as a turn without work, and would not wake the threads that wait for the mark.
    pub count: u32,
    /// Whether work is left in the source.
    pub rest: Rest,
}

/// Whether work is left in a source.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Rest {
    /// No work is left, or all work that is left must wait until the doorbell is rung again.
    Nothing,
    /// Work is left for which the engine has no room. The engine asks the source again after each
    /// turn with work. If a thread makes room in another way, for example by polling a completion
    /// queue, it must ring the doorbell.
    Blocked,
    /// Work is left because the limit was reached.
    More,
}

/// When to send the work for which a thread has rung the doorbell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RingAction {
    /// Send it at once.
    Now,
    /// Send it with the next poll, or together with work that is added later.
    Deferred,
    /// Send it at once, together with the deferred work.
    Flush,
}

impl RingAction {
    /// Returns whether ringing the doorbell counts as a poll, given this decision. Only a ring that
    /// flushes deferred work counts: the ringing thread has added much work without a poll, and
    /// will probably poll when it has added all its work. Until then, the application must still
    /// count as polling.
    pub(crate) fn counts_as_poll(self) -> bool {
        self == Self::Flush
    }
}

/// The doorbell of a [`WorkSource`].
#[derive(Debug, Default)]
pub struct SourceDoorbell {
    /// True if the source is in the ring of [`Doorbells`], or the thread that set this flag is
    /// about to put the source there.
    is_rung: AtomicBool,
    /// How many times a thread has rung the doorbell and deferred the work, since the engine last
    /// took work from the source.
    deferred: AtomicU32,
    /// True if the source is in [`Sources::waiting`]. Only the thread inside the engine changes
    /// this flag.
    is_waiting: AtomicBool,
}

impl SourceDoorbell {
    /// Creates a doorbell that was never rung.
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides when to send the work for which a thread rings the doorbell. If no work of the
    /// source is outstanding, or the application does not poll, the work is sent at once. Otherwise
    /// the work may wait for the next poll, which sends all deferred work in one batch.
    pub(crate) fn ring_action(&self, is_idle: bool, polls: impl FnOnce() -> bool) -> RingAction {
        if is_idle || !polls() {
            return RingAction::Now;
        }
        let deferred = self.deferred.load(Ordering::Relaxed);
        if deferred + 1 < RUNG_AT_ONCE { RingAction::Deferred } else { RingAction::Flush }
    }

    /// Returns whether the source already waits in [`Doorbells`].
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung.load(Ordering::Relaxed)
    }

    pub(crate) fn defer(&self) {
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sources whose doorbells were rung while another thread was inside the engine, and sources with
/// deferred work. Each source is in the ring at most once.
#[derive(Debug)]
pub(crate) struct Doorbells<S: ?Sized> {
    ring: ArrayQueue<Arc<S>>,
}

impl<S: ?Sized> Doorbells<S> {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { ring: ArrayQueue::new(capacity) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Puts a source into the ring, if it is not there already. While the ring is full, calls
    /// `full`, in which a thread should [take](Doorbells::take) sources.
    pub(crate) fn put(&self, source: &Arc<S>, doorbell: &SourceDoorbell, mut full: impl FnMut()) {
        // If the flag is already set, another thread puts the source into the ring. The thread that
        // takes the source sees the work of both threads.
        if doorbell.is_rung.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut source = Arc::clone(source);
        while let Err(back) = self.ring.push(source) {
            source = back;
            full();
        }
    }

    /// Takes a source out of the ring. The calling thread sees all work that was added before a
    /// thread rang the doorbell of the source. A thread that rings the doorbell after this call
    /// puts the source into the ring again.
    pub(crate) fn take(&self, doorbell: impl FnOnce(&S) -> &SourceDoorbell) -> Option<Arc<S>> {
        let source = self.ring.pop()?;
        let doorbell = doorbell(&source);
        doorbell.is_rung.swap(false, Ordering::AcqRel);
        Some(source)
    }
}

/// Sources with work left, in the order in which the engine asks them again.
#[derive(Default)]
pub(crate) struct Sources {
    waiting: VecDeque<Arc<dyn WorkSource>>,
    /// True if a source had more work than the limit allowed.
    has_more: bool,
}

impl Sources {
    /// Returns whether to ask the waiting sources for work again. `has_happened`: the current turn
    /// did work, which may have made room.
    pub(crate) fn are_due(&self, has_happened: bool) -> bool {
        !self.waiting.is_empty() && (has_happened || self.has_more)
    }

    /// Returns whether the next turn should take more work.
    pub(crate) const fn has_more(&self) -> bool {
        self.has_more
    }

    /// Makes the next turn ask the waiting sources. The driver calls this when work has left the
    /// engine without the arrival of a frame, because this makes room, too.
    pub(crate) fn ask_again(&mut self) {
        self.has_more |= !self.waiting.is_empty();
    }

    /// Takes work from one source. Returns the number of pieces.
    pub(crate) fn pull(
        &mut self,
        source: &Arc<dyn WorkSource>,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
    ) -> u32 {
        let doorbell = source.doorbell();
        doorbell.deferred.store(0, Ordering::Relaxed);
        let Posted { count, rest } = source.post(engine, memory, now, PULLED_MAX);
        self.has_more |= rest == Rest::More;
        if rest != Rest::Nothing && !doorbell.is_waiting.swap(true, Ordering::Relaxed) {
            self.waiting.push_back(Arc::clone(source));
        }
        count
    }

    /// Returns the number of waiting sources.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes work from each waiting source once. Returns the total number of pieces.
    pub(crate) fn pull_again(
        &mut self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
    ) -> u32 {
        self.has_more = false;
        let mut count = 0;
        for _ in 0..self.waiting.len() {
            let Some(source) = self.waiting.pop_front() else { break };
            source.doorbell().is_waiting.store(false, Ordering::Relaxed);
            count += self.pull(&source, engine, memory, now);
        }
        count
    }
}

impl fmt::Debug for dyn WorkSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkSource").field("bell", self.doorbell()).finish_non_exhaustive()
    }
}

/// Number of rings of a doorbell, without a poll in between, after which the deferred work is sent
/// without waiting for the next poll. One system call sends about as many small pieces of work.
const RUNG_AT_ONCE: u32 = 16;

/// Maximum number of pieces of work taken from one source before the engine takes work from the
/// next source.
const PULLED_MAX: u32 = 256;

/// Capacity of [`Doorbells`], in sources. When the ring is full, a thread that rings a doorbell
/// waits until the thread inside the engine has taken some sources, which happens in each turn.
pub(crate) const DOORBELLS: usize = 1024;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn an_idle_source_rings_at_once() {
        let doorbell = SourceDoorbell::new();
        assert_eq!(doorbell.ring_action(true, || true), RingAction::Now);
        assert_eq!(doorbell.ring_action(false, || true), RingAction::Deferred);
    }

    #[test]
    fn work_of_an_application_that_does_not_poll_is_sent_at_once() {
        let doorbell = SourceDoorbell::new();
        assert_eq!(doorbell.ring_action(false, || true), RingAction::Deferred);
        assert_eq!(doorbell.ring_action(false, || false), RingAction::Now);
    }

    #[test]
    fn the_sixteenth_work_request_rings_the_doorbell() {
        let doorbell = SourceDoorbell::new();
        let is_later = || doorbell.ring_action(false, || true) == RingAction::Deferred;
        let deferred = std::iter::from_fn(|| is_later().then(|| doorbell.defer()));
        assert_eq!(deferred.count(), 15);
        assert_eq!(doorbell.ring_action(false, || true), RingAction::Flush);
        doorbell.deferred.store(0, Ordering::Relaxed);
        assert_eq!(doorbell.ring_action(false, || true), RingAction::Deferred, "work was taken");
    }

    /// Simulates an application that polls, adds a hundred pieces of work, and polls again, like
    /// perftest. Returns how many times the runtime sends work between the two polls. Adding a
    /// piece takes `piece_ns`, and a sleep costs `sleep_cost_ns`.
    fn sent_in_a_row_of_a_hundred(piece_ns: u64, sleep_cost_ns: u64) -> u32 {
        let (doorbell, mut looked_at, mut sent) = (SourceDoorbell::new(), 0, 0);
        for now in (1..=100).map(|piece| piece * piece_ns) {
            match doorbell.ring_action(false, || now - looked_at < sleep_cost_ns) {
                RingAction::Deferred => doorbell.defer(),
                ring_action => {
                    sent += 1;
                    doorbell.deferred.store(0, Ordering::Relaxed);
                    if ring_action.counts_as_poll() {
                        looked_at = now;
                    }
                }
            }
        }
        sent
    }

    #[test]
    fn consecutive_work_requests_are_sent_in_batches_of_sixteen_on_hosts_of_any_speed() {
        // On the measured host, adding a piece takes 0.6 µs. The loop covers hosts that are up to 4
        // times as fast or up to 4 times as slow.
        for quarters in [1, 2, 4, 8, 16] {
            let (piece_ns, sleep_cost_ns) = (150 * quarters, 11_250 * quarters);
            assert_eq!(sent_in_a_row_of_a_hundred(piece_ns, sleep_cost_ns), 6, "{piece_ns} ns");
        }
    }

    #[test]
    fn slowly_posted_work_requests_are_sent_one_by_one() {
        assert!(sent_in_a_row_of_a_hundred(10_000, 45_000) > 90);
    }

    #[test]
    fn a_source_is_listed_once_among_the_doorbells() {
        let (doorbells, doorbell) = (Doorbells::new(4), Arc::new(SourceDoorbell::new()));
        for _ in 0..10 {
            doorbells.put(&doorbell, &doorbell, || panic!("there is room"));
        }
        assert!(doorbells.take(|doorbell| doorbell).is_some());
        assert!(doorbells.is_empty());
        doorbells.put(&doorbell, &doorbell, || panic!("there is room"));
        assert!(!doorbells.is_empty(), "it was rung again");
    }

    #[test]
    fn a_source_without_room_is_added_when_another_is_taken() {
        let doorbells = Doorbells::new(1);
        let sources = [(); 2].map(|()| Arc::new(SourceDoorbell::new()));
        doorbells.put(&sources[0], &sources[0], || panic!("there is room"));
        let mut taken = Vec::new();
        doorbells
            .put(&sources[1], &sources[1], || taken.extend(doorbells.take(|doorbell| doorbell)));
        taken.extend(doorbells.take(|doorbell| doorbell));
        assert!(taken.iter().zip(&sources).all(|(one, other)| Arc::ptr_eq(one, other)));
        assert_eq!(taken.len(), 2);
    }
}

/// Model: two threads add work and ring the doorbell, in every interleaving. To run it:
///
/// ```sh
/// ./x loom
/// ```
#[cfg(all(test, loom))]
mod model {
    use loom::sync::atomic::AtomicUsize;
    use loom::thread;

    use super::*;
    use crate::cell::ProgressCell;

    struct Work {
        doorbell: SourceDoorbell,
        waiting: AtomicUsize,
    }

    struct Shared {
        cell: ProgressCell<usize>,
        doorbells: Doorbells<Work>,
        source: Arc<Work>,
    }

    impl Shared {
        /// Takes the same steps as [`crate::Runtime::ring`].
        fn add_and_ring(&self) {
            let source = &self.source;
            source.waiting.fetch_add(1, Ordering::Relaxed);
            if let Some(mut inside) = self.cell.try_enter() {
                inside.with(|done| *done += source.waiting.swap(0, Ordering::Relaxed));
                inside.drive(8, |done| self.turn(done));
            } else {
                self.doorbells.put(source, &source.doorbell, || unreachable!("there is room"));
                self.cell.drive(8, |done| self.turn(done));
            }
        }

        fn turn(&self, done: &mut usize) -> bool {
            while let Some(source) = self.doorbells.take(|source| &source.doorbell) {
                *done += source.waiting.swap(0, Ordering::Relaxed);
            }
            false
        }
    }

    #[test]
    fn no_work_is_left_behind_after_a_doorbell() {
        loom::model(|| {
            let work = Work { doorbell: SourceDoorbell::new(), waiting: AtomicUsize::new(0) };
            let shared = Arc::new(Shared {
                cell: ProgressCell::new(0),
                doorbells: Doorbells::new(1),
                source: Arc::new(work),
            });
            let other = Arc::clone(&shared);
            let thread = thread::spawn(move || {
                other.add_and_ring();
                other.add_and_ring();
            });
            shared.add_and_ring();
            thread.join().expect("no panic");
            let mut inside = shared.cell.try_enter().expect("everybody has left");
            assert_eq!(inside.with(|done| *done), 3, "left behind");
            inside.abandon();
        });
    }
}

#[cfg(loom)]
mod locked {
    use loom::sync::Mutex;
    use std::collections::VecDeque;

    /// A queue with a lock. It replaces the lock-free ring, because loom cannot model that ring.
    #[derive(Debug)]
    pub(super) struct ArrayQueue<T> {
        content: Mutex<VecDeque<T>>,
        capacity: usize,
    }

    impl<T> ArrayQueue<T> {
        pub(super) fn new(capacity: usize) -> Self {
            Self { content: Mutex::new(VecDeque::new()), capacity }
        }

        pub(super) fn is_empty(&self) -> bool {
            self.content.lock().expect("no panic").is_empty()
        }

        pub(super) fn push(&self, item: T) -> Result<(), T> {
            let mut content = self.content.lock().expect("no panic");
            if content.len() == self.capacity {
                return Err(item);
            }
            content.push_back(item);
            Ok(())
        }

        pub(super) fn pop(&self) -> Option<T> {
            self.content.lock().expect("no panic").pop_front()
        }
    }
}

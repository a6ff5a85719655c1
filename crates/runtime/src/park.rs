//! How threads wait, and which threads wake them.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, Thread, ThreadId};
use std::time::Duration;

use semantics::{CompletionQueue, OperationStatus, StatusTable};
use waiting::Spinning;

use crate::mark::{Call, Mark};
use crate::sleep::{Descriptor, Sleeper};

/// How threads wait. The setting applies to threads of the application that wait for an operation,
/// and to threads that serve peers, such as the progress thread.
///
/// A thread spins for a while, and then sleeps until something arrives. A frame that arrives during
/// the sleep is delayed by the wake-up, which takes several times as long as serving a frame.
///
/// | | a thread that serves peers | a thread that waits for an operation |
/// |---|---|---|
/// | [`Polling::ADAPTIVE`], the default | spins if spinning costs less than sleeping | the same, by its own measurements |
/// | [`Polling::for_at_most`] | spins for the given time after the last work | the same |
/// | [`Polling::ALWAYS`] | spins for ever: one processor for each endpoint | the same |
/// | [`Polling::NEVER`] | sleeps at once | the same |
///
/// While the application polls, no other thread spins. `docs/waiting.md` describes the whole
/// policy, `docs/passive-servers.md` what each setting costs and gains.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Polling {
    spinning: Spinning,
}

impl Default for Polling {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

impl Polling {
    /// Spins for as long as a sleep costs, if spinning has cost less than sleeping at once.
    /// Otherwise sleeps at once. The runtime measures both costs. If a peer sends its next request
    /// soon, the thread is still awake. If an endpoint is idle or rarely serves requests, it uses
    /// no processor time for spinning. The progress thread measures the cost of a sleep. Without a
    /// progress thread, the runtime assumes 30 µs.
    pub const ADAPTIVE: Self = Self { spinning: Spinning::Learned };
    /// Spins for ever, with two exceptions. Meant for measurements, and for hosts with a processor
    /// for each spinning thread. The first exception: the progress thread sleeps if the last poll
    /// of the application was at most 100 ms ago. The second: a polling thread sleeps if the peer
    /// is silent and other threads need its processor.
    pub const ALWAYS: Self = Self { spinning: Spinning::AtMost(u64::MAX) };
    /// Sleeps at once: for programs that share the processor.
    pub const NEVER: Self = Self::for_at_most(Duration::ZERO);

    /// Sleeps after `time` without work. If an endpoint has work more often than once in `time`,
    /// its thread never sleeps and uses one processor. If the endpoint has work less often, the
    /// thread spins for `time` after each burst of frames.
    pub const fn for_at_most(time: Duration) -> Self {
        let ns = time.as_nanos();
        let ns = if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 };
        Self { spinning: Spinning::AtMost(ns) }
    }

    pub(crate) const fn spinning(self) -> Spinning {
        self.spinning
    }
}

/// The condition for which a thread waits. The runtime wakes the thread when the condition may have
/// become true. Except for [`Interest::Mark`], it also wakes the thread at any event of a
/// connection.
#[derive(Clone, Copy, Debug)]
pub enum Interest<'a> {
    /// Events of connections: a request, an establishment, an end.
    News,
    /// The queue is not empty.
    Completion(&'a Arc<CompletionQueue>),
    /// The operation or receive with this slot of the status table has finished.
    Status(u32),
    /// Any report to the application: a completion, a finished operation or receive, an event of a
    /// connection.
    Anything,
    /// The mark was raised. Events of connections do not wake the thread: a hook that handles such
    /// events must raise the mark.
    Mark(&'a Arc<Mark>),
}

/// An [`Interest`] without references, for the list of waiters.
#[derive(Debug)]
enum KeptInterest {
    News,
    Completion(Arc<CompletionQueue>),
    Status(u32),
    /// The count of reports to the application has changed from this value.
    MoreThan(u64),
    /// The mark was raised after its count had this value.
    Mark(Arc<Mark>, u64),
}

impl KeptInterest {
    /// Converts an interest. `reports` is the number of reports to the application so far.
    fn of(interest: Interest<'_>, reports: u64) -> Self {
        match interest {
            Interest::News => Self::News,
            Interest::Completion(queue) => Self::Completion(Arc::clone(queue)),
            Interest::Status(slot) => Self::Status(slot),
            Interest::Anything => Self::MoreThan(reports),
            Interest::Mark(mark) => Self::Mark(Arc::clone(mark), mark.raised()),
        }
    }

    fn is_met(&self, news: bool, status: &StatusTable, reports: u64) -> bool {
        match self {
            Self::News => news,
            Self::Completion(queue) => news || !queue.is_empty(),
            Self::Status(slot) => {
                news || !matches!(status.status(*slot), OperationStatus::Pending { .. })
            }
            Self::MoreThan(seen) => news || reports != *seen,
            Self::Mark(mark, seen) => mark.raised() != *seen,
        }
    }

    /// Records that the thread is about to check for what it waits for, so that reports before this
    /// check do not wake the thread again.
    fn look(&mut self, reports: u64) {
        match self {
            Self::MoreThan(seen) => *seen = reports,
            Self::Mark(mark, seen) => *seen = mark.raised(),
            Self::News | Self::Completion(_) | Self::Status(_) => {}
        }
    }
}

/// The blocked threads and tasks, and the event that each of them waits for.
///
/// While no thread is blocked, this list costs one load per turn with work.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Length of `list`, readable without the lock.
    blocked: AtomicUsize,
    list: Mutex<Vec<Waiter>>,
    /// The number that the next task in the list gets.
    tasks: AtomicU64,
    /// True if a thread is on watch: it sleeps on the descriptors of the links.
    watch: AtomicBool,
    /// Descriptors that wake threads which sleep on descriptors of their own; kept for reuse.
    spare: Mutex<Vec<Arc<Descriptor>>>,
}

#[derive(Debug)]
struct Waiter {
    target: WakeTarget,
    interest: KeptInterest,
    /// True if this thread is on watch: it sleeps on the links, so other threads wake it by
    /// `Sleeper::call`.
    on_watch: bool,
}

#[derive(Debug)]
enum WakeTarget {
    Thread(Thread),
    /// A thread that sleeps on descriptors of its own and on this descriptor. To wake the thread,
    /// other threads raise this descriptor.
    Beside(ThreadId, Arc<Descriptor>, Call),
    /// A task with its number.
    Task(Waker, u64),
}

impl WakeTarget {
    fn is_thread(&self, id: ThreadId) -> bool {
        match self {
            Self::Thread(thread) => thread.id() == id,
            Self::Beside(thread, ..) => *thread == id,
            Self::Task(..) => false,
        }
    }
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            blocked: AtomicUsize::new(0),
            tasks: AtomicU64::new(0),
            list: Mutex::new(Vec::with_capacity(WAITERS_EXPECTED)),
            watch: AtomicBool::new(false),
            spare: Mutex::default(),
        }
    }

    /// Adds the calling thread. After this call, the thread must check once more for what it waits
    /// for.
    pub(crate) fn enlist(&self, interest: Interest<'_>, reports: u64) {
        self.add(WakeTarget::Thread(thread::current()), interest, reports);
    }

    /// Adds a task, and returns a number that identifies it. After this call, the task must check
    /// once more for what it waits for. A wake-up removes the task from the list.
    pub(crate) fn enlist_task(&self, waker: &Waker, interest: Interest<'_>, reports: u64) -> u64 {
        let number = self.tasks.fetch_add(1, Ordering::Relaxed);
        self.add(WakeTarget::Task(waker.clone(), number), interest, reports);
        number
    }

    /// Removes a task, if it is still in the list.
    pub(crate) fn delist_task(&self, number: u64) {
        let mut list = self.list();
        let is_it = |waiter: &Waiter| matches!(waiter.target, WakeTarget::Task(_, other) if other == number);
        let found = list.iter().position(is_it).map(|index| list.swap_remove(index));
        self.blocked.store(list.len(), Ordering::SeqCst);
        drop(list);
        drop(found);
    }

    /// Adds the calling thread, which sleeps on descriptors of its own. While the thread is not on
    /// watch, it must also sleep on the returned descriptor. When that descriptor is readable, the
    /// thread must call [`Waiters::heed`].
    pub(crate) fn enlist_beside(
        &self,
        interest: Interest<'_>,
        reports: u64,
    ) -> io::Result<Arc<Descriptor>> {
        let spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let descriptor = spare.map_or_else(|| Descriptor::new().map(Arc::new), Ok)?;
        let me = thread::current().id();
        self.add(
            WakeTarget::Beside(me, Arc::clone(&descriptor), Call::default()),
            interest,
            reports,
        );
        Ok(descriptor)
    }

    /// Answers a call: makes the descriptor that woke the calling thread unreadable. The thread
    /// then checks again for what it waits for.
    pub(crate) fn heed(&self, descriptor: &Descriptor, reports: u64) {
        Call::heed(
            || descriptor.lower(),
            |done| {
                let me = thread::current().id();
                for waiter in self.list().iter_mut().filter(|waiter| waiter.target.is_thread(me)) {
                    waiter.interest.look(reports);
                    if let WakeTarget::Beside(_, _, call) = &mut waiter.target {
                        done(call);
                    }
                }
            },
        );
    }

    fn add(&self, target: WakeTarget, interest: Interest<'_>, reports: u64) {
        let interest = KeptInterest::of(interest, reports);
        let mut list = self.list();
        list.push(Waiter { target, interest, on_watch: false });
        // This store pairs with `ProgressCell::pass`. When another thread leaves the cell, either
        // it sees this waiter, or the waiter sees its work.
        self.blocked.store(list.len(), Ordering::SeqCst);
    }

    /// Removes the calling thread. If no thread is on watch, wakes another blocked thread to take
    /// the watch. The reason: the thread that gave up the watch may have chosen the calling thread,
    /// which now leaves, as its successor. Returns false if no thread is left to take the watch.
    pub(crate) fn delist(&self) -> bool {
        let me = thread::current().id();
        let mut list = self.list();
        let found = list.iter().position(|waiter| waiter.target.is_thread(me));
        let found = found.map(|index| list.swap_remove(index));
        self.blocked.store(list.len(), Ordering::SeqCst);
        drop(list);
        if let Some(Waiter { target: WakeTarget::Beside(_, descriptor, call), .. }) = found {
            // The list no longer contains the entry, so no thread raises the descriptor any more.
            if call.is_pending() {
                descriptor.lower();
            }
            self.spare.lock().unwrap_or_else(PoisonError::into_inner).push(descriptor);
        }
        self.is_watched() || self.call_another()
    }

    /// Records whether the calling thread is on watch.
    pub(crate) fn set_on_watch(&self, on_watch: bool) {
        let me = thread::current().id();
        for waiter in self.list().iter_mut().filter(|waiter| waiter.target.is_thread(me)) {
            waiter.on_watch = on_watch;
        }
    }

    /// Returns whether threads or tasks are blocked. The caller must have left the cell.
    #[inline]
    pub(crate) fn are_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) != 0
    }

    /// Wakes the threads whose interest is met. If there is `news` (an event of a connection),
    /// wakes all threads except those that wait for a mark ([`Interest::Mark`]). Removes tasks from
    /// the list and queues them, so that a thread wakes them outside of the engine. Returns true if
    /// the calling thread itself is on watch and its interest is met. The caller must then check
    /// for what it waits for before it sleeps.
    pub(crate) fn wake(
        &self,
        news: bool,
        status: &StatusTable,
        reports: u64,
        sleeper: &Sleeper,
    ) -> bool {
        let mut must_look = false;
        let mut list = self.list();
        list.retain_mut(|waiter| {
            if !waiter.interest.is_met(news, status, reports) {
                return true;
            }
            if waiter.on_watch {
                if waiter.target.is_thread(thread::current().id()) {
                    must_look = true;
                } else {
                    sleeper.call();
                }
                return true;
            }
            match &mut waiter.target {
                WakeTarget::Thread(thread) => thread.unpark(),
                WakeTarget::Beside(_, descriptor, call) => call.call(|| descriptor.raise()),
                WakeTarget::Task(waker, _) => {
                    status.wakeups().add(waker.clone());
                    return false;
                }
            }
            true
        });
        self.blocked.store(list.len(), Ordering::SeqCst);
        must_look
    }

    /// Makes the calling thread the thread on watch, which sleeps on the links. Returns false if
    /// another thread is on watch.
    pub(crate) fn take_watch(&self) -> bool {
        !self.watch.swap(true, Ordering::SeqCst)
    }

    /// Returns whether a thread is on watch.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.load(Ordering::SeqCst)
    }

    /// Gives up the watch and wakes another blocked thread to take it. Returns false if no other
    /// thread is blocked.
    pub(crate) fn leave_watch(&self) -> bool {
        self.give_up_watch();
        self.call_another()
    }

    /// Gives up the watch. The calling thread must then call [`Waiters::delist`], which wakes a
    /// successor.
    pub(crate) fn give_up_watch(&self) {
        self.watch.store(false, Ordering::SeqCst);
    }

    fn call_another(&self) -> bool {
        if self.blocked.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let me = thread::current().id();
        let mut list = self.list();
        let mut others = list.iter_mut().filter(|waiter| !waiter.target.is_thread(me));
        others.any(|waiter| {
            match &mut waiter.target {
                WakeTarget::Thread(thread) => thread.unpark(),
                WakeTarget::Beside(_, descriptor, call) => call.call(|| descriptor.raise()),
                WakeTarget::Task(..) => return false,
            }
            true
        })
    }

    fn list(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of blocked threads up to which the list allocates no memory.
const WAITERS_EXPECTED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thread_sleeps_on_the_links() {
        let waiters = Waiters::new();
        assert!(waiters.take_watch());
        assert!(!waiters.take_watch());
        assert!(!waiters.leave_watch(), "no thread could take over the links");
        assert!(waiters.take_watch());
    }

    #[test]
    fn an_event_wakes_a_blocked_thread_which_removes_itself_from_the_list() {
        let waiters = Arc::new(Waiters::new());
        let status = StatusTable::new(1);
        let sleeper = Sleeper::new().expect("an eventfd");
        let blocked = Arc::clone(&waiters);
        let thread = thread::spawn(move || {
            blocked.enlist(Interest::News, 0);
            thread::park();
            blocked.delist();
        });
        while waiters.blocked.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        assert!(!waiters.wake(true, &status, 0, &sleeper), "another thread waits");
        thread.join().expect("no panic");
        assert_eq!(waiters.blocked.load(Ordering::SeqCst), 0);
    }
    #[test]
    fn a_thread_on_watch_is_not_notified_by_itself_but_must_check() {
        let (waiters, status) = (Waiters::new(), StatusTable::new(1));
        let sleeper = Sleeper::new().expect("an eventfd");
        waiters.enlist(Interest::News, 0);
        assert!(waiters.take_watch());
        waiters.set_on_watch(true);
        assert!(!waiters.wake(false, &status, 0, &sleeper), "nothing has come");
        assert!(waiters.wake(true, &status, 0, &sleeper));
        assert!(!sleeper.sleep(Some(1)), "it called itself");
        waiters.delist();
        assert!(!waiters.wake(true, &status, 0, &sleeper));
    }

    #[test]
    fn a_chosen_watcher_that_leaves_hands_the_watch_over() {
        let waiters = Arc::new(Waiters::new());
        assert!(waiters.take_watch());
        let (enter, entered) = std::sync::mpsc::channel();
        let threads = [(); 2].map(|()| {
            let (leave, may_leave) = std::sync::mpsc::channel::<()>();
            let (blocked, enter) = (Arc::clone(&waiters), enter.clone());
            let thread = thread::spawn(move || {
                blocked.enlist(Interest::News, 0);
                enter.send(()).expect("it is awaited");
                // The event for which this thread waits has happened, so the thread does not take
                // the watch.
                may_leave.recv().expect("it may");
                blocked.delist()
            });
            (leave, thread)
        });
        for _ in &threads {
            entered.recv().expect("it is blocked");
        }
        assert!(waiters.leave_watch(), "one of the threads must take over");
        let found = threads.map(|(leave, thread)| {
            leave.send(()).expect("it waits");
            thread.join().expect("no panic")
        });
        assert_eq!(found, [true, false], "the last thread hands the links to the progress thread");
    }
}

//! How threads wait, and who wakes them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, Thread, ThreadId};

use semantics::{CompletionQueue, OperationStatus, StatusTable};

use crate::sleep::Sleeper;

/// How a thread waits: it polls for a while, then yields the processor a few times, then blocks.
///
/// One knob, because the best setting depends on one thing: whether there is a processor to spare.
///
/// It is also how long threads that serve peers look on for more after they last had something to do, the
/// progress thread among them, unless the application polls meanwhile. So reads and writes of peers that
/// follow one another within that time are served without the sleep and wakeup that take several times as
/// long as serving them. It costs an endpoint that is used at least so often one processor, and every
/// burst of frames that comes alone this much time of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Polling {
    /// How long to poll before yielding and blocking, in microseconds; `u32::MAX` for ever.
    pub spin_us: u32,
}

impl Polling {
    /// Never blocks: for measurements and for processors of one's own. The progress thread does not sleep
    /// either unless the application polls; where it always does, there need be none.
    pub const ALWAYS: Self = Self { spin_us: u32::MAX };
    /// Blocks at once: for programs that share the processor.
    pub const NEVER: Self = Self { spin_us: 0 };

    pub(crate) const fn spin_ns(self) -> u64 {
        if self.spin_us == u32::MAX { u64::MAX } else { self.spin_us as u64 * 1000 }
    }
}

impl Default for Polling {
    /// 50 µs with at least 4 processors: longer than a round trip between two hosts and the sleep
    /// and wakeup it avoids. 10 µs with fewer, where polling takes the processor away from the peer
    /// or the kernel that one waits for.
    fn default() -> Self {
        let processors = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { spin_us: if processors >= 4 { 50 } else { 10 } }
    }
}

/// What a thread waits for; it is woken when that may have come, and at any news of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Interest<'a> {
    /// News of connections: a request, an establishment, an end.
    News,
    /// The queue is no longer empty.
    Completion(&'a Arc<CompletionQueue>),
    /// What this slot of the status table follows is finished.
    Status(u32),
    /// Anything that the application is told of: completions, finished operations and receives, news.
    Anything,
}

/// An [`Interest`] that can be kept.
#[derive(Debug)]
enum KeptInterest {
    News,
    Completion(Arc<CompletionQueue>),
    Status(u32),
    /// More than this was told.
    MoreThan(u64),
}

/// Threads and tasks that are blocked, and what would make them continue.
///
/// Costs nobody anything while nobody is blocked: one load per turn with work.
#[derive(Debug)]
pub(crate) struct Waiters {
    /// Length of `list`, to be read without the lock.
    blocked: AtomicUsize,
    list: Mutex<Vec<Waiter>>,
    /// Tasks so far.
    tasks: AtomicU64,
    /// A thread sleeps on the links.
    watch: AtomicBool,
}

#[derive(Debug)]
struct Waiter {
    who: Who,
    interest: KeptInterest,
    /// It is the one that sleeps on the links, so it is woken by a call.
    on_watch: bool,
}

#[derive(Debug)]
enum Who {
    Thread(Thread),
    /// A task, and its number.
    Task(Waker, u64),
}

impl Who {
    fn is_thread(&self, id: ThreadId) -> bool {
        matches!(self, Self::Thread(thread) if thread.id() == id)
    }
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            blocked: AtomicUsize::new(0),
            tasks: AtomicU64::new(0),
            list: Mutex::new(Vec::with_capacity(WAITERS_EXPECTED)),
            watch: AtomicBool::new(false),
        }
    }

    /// Adds the calling thread; whatever it waits for must be looked at once more afterwards.
    pub(crate) fn enlist(&self, interest: Interest<'_>, told: u64) {
        self.add(Who::Thread(thread::current()), interest, told);
    }

    /// Adds a task, as [`Waiters::enlist`] does a thread; it is taken off when it is to be woken. Returns its number.
    pub(crate) fn enlist_task(&self, waker: &Waker, interest: Interest<'_>, told: u64) -> u64 {
        let number = self.tasks.fetch_add(1, Ordering::Relaxed);
        self.add(Who::Task(waker.clone(), number), interest, told);
        number
    }

    /// Takes a task off; it may be gone already.
    pub(crate) fn delist_task(&self, number: u64) {
        let mut list = self.list();
        let is_it = |waiter: &Waiter| matches!(waiter.who, Who::Task(_, other) if other == number);
        let found = list.iter().position(is_it).map(|index| list.swap_remove(index));
        self.blocked.store(list.len(), Ordering::SeqCst);
        drop(list);
        drop(found);
    }

    fn add(&self, who: Who, interest: Interest<'_>, told: u64) {
        let interest = match interest {
            Interest::News => KeptInterest::News,
            Interest::Completion(queue) => KeptInterest::Completion(Arc::clone(queue)),
            Interest::Status(slot) => KeptInterest::Status(slot),
            Interest::Anything => KeptInterest::MoreThan(told),
        };
        let mut list = self.list();
        list.push(Waiter { who, interest, on_watch: false });
        // With `ProgressCell::pass` after it, either whoever leaves the cell sees this thread, or this
        // one sees what that thread has done.
        self.blocked.store(list.len(), Ordering::SeqCst);
    }

    /// Takes the calling thread off.
    pub(crate) fn delist(&self) {
        let me = thread::current().id();
        let mut list = self.list();
        list.retain(|waiter| !waiter.who.is_thread(me));
        self.blocked.store(list.len(), Ordering::SeqCst);
    }

    /// Notes whether the calling thread is about to sleep on the links.
    pub(crate) fn set_on_watch(&self, on_watch: bool) {
        let me = thread::current().id();
        for waiter in self.list().iter_mut().filter(|waiter| waiter.who.is_thread(me)) {
            waiter.on_watch = on_watch;
        }
    }

    /// Whether threads are blocked. To be called after leaving the cell.
    #[inline]
    pub(crate) fn are_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) != 0
    }

    /// Wakes the threads whose interest is met; all of them, if there is `news` of a connection.
    /// Tasks are only passed on to be woken outside of the engine, and taken off.
    pub(crate) fn wake(&self, news: bool, status: &StatusTable, told: u64, sleeper: &Sleeper) {
        let mut list = self.list();
        list.retain(|waiter| {
            let is_met = match &waiter.interest {
                KeptInterest::News => false,
                KeptInterest::Completion(queue) => !queue.is_empty(),
                KeptInterest::Status(slot) => {
                    !matches!(status.status(*slot), OperationStatus::Pending { .. })
                }
                KeptInterest::MoreThan(seen) => told != *seen,
            };
            if !(news || is_met) {
                return true;
            }
            match &waiter.who {
                Who::Thread(_) if waiter.on_watch => sleeper.call(),
                Who::Thread(thread) => thread.unpark(),
                Who::Task(waker, _) => {
                    status.wakeups().add(waker.clone());
                    return false;
                }
            }
            true
        });
        self.blocked.store(list.len(), Ordering::SeqCst);
    }

    /// Takes the place of the one thread that sleeps on the links, if it is free.
    pub(crate) fn take_watch(&self) -> bool {
        !self.watch.swap(true, Ordering::SeqCst)
    }

    /// Whether a thread sleeps on the links.
    pub(crate) fn is_watched(&self) -> bool {
        self.watch.load(Ordering::SeqCst)
    }

    /// Gives the place up, and wakes another blocked thread to take it. False if there is none.
    pub(crate) fn leave_watch(&self) -> bool {
        self.watch.store(false, Ordering::SeqCst);
        if self.blocked.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let me = thread::current().id();
        let list = self.list();
        let successor = list.iter().find_map(|waiter| match &waiter.who {
            Who::Thread(thread) if thread.id() != me => Some(thread),
            _ => None,
        });
        if let Some(thread) = successor {
            thread.unpark();
        }
        successor.is_some()
    }

    fn list(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Blocked threads at a time for which no allocation is needed.
const WAITERS_EXPECTED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_thread_sleeps_on_the_links() {
        let waiters = Waiters::new();
        assert!(waiters.take_watch());
        assert!(!waiters.take_watch());
        assert!(!waiters.leave_watch(), "nobody could take over");
        assert!(waiters.take_watch());
    }

    #[test]
    fn a_blocked_thread_is_woken_by_news_and_takes_itself_off() {
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
        waiters.wake(true, &status, 0, &sleeper);
        thread.join().expect("no panic");
        assert_eq!(waiters.blocked.load(Ordering::SeqCst), 0);
    }
}

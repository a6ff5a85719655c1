//! Tasks that wait for changes that no event announces: room for an operation, or the last
//! acknowledgement of a close.
//!
//! Each report to the application wakes these tasks, as it does other tasks. Without a report, a
//! task is woken to check again after a millisecond. If only peers and time can change what the
//! task waits for, the millisecond starts when frames arrive or a timer runs, so that such tasks do
//! not wake an idle process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use delivery::Instant;

use crate::driver::{Driver, RuntimeHost};
use crate::park::Interest;
use crate::runtime::{Runtime, lock};
use crate::tasks::Enlisted;

/// What can change the state for which a task checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChangedBy {
    /// Only peers and time; for example the acknowledgement of an operation.
    Peers,
    /// The application as well; for example room in a queue that it polls.
    Application,
}

/// Tasks that check again soon.
#[derive(Debug, Default)]
pub(crate) struct Lookers {
    /// Woken at [`Driver::lookers_due`], which is set.
    tasks: Mutex<Vec<Waker>>,
    /// Woken after peers or time have changed something.
    of_peers: Mutex<Vec<Waker>>,
    /// `of_peers` is not empty.
    has_of_peers: AtomicBool,
}

impl Runtime {
    /// Wakes a task as [`Runtime::enlist_task`] does for each report to the application. For
    /// changes that no event announces, also wakes it at most a millisecond later, or, with
    /// [`ChangedBy::Peers`], a millisecond after frames arrived or a timer ran. The task must check
    /// once more after this call.
    pub fn enlist_looker(&self, waker: &Waker, changed_by: ChangedBy) -> Enlisted {
        let enlisted = self.enlist_task(waker, Interest::Anything);
        let shared = &self.shared;
        let lookers = &shared.host.lookers;
        if changed_by == ChangedBy::Peers {
            lock(&lookers.of_peers).push(waker.clone());
            // The check that must follow enters the engine, and later turns see this flag.
            lookers.has_of_peers.store(true, Ordering::SeqCst);
            return enlisted;
        }
        lock(&lookers.tasks).push(waker.clone());
        shared.run_later(Box::new(|driver, _host, now, _memory| {
            driver.lookers_due = driver.lookers_due.min(now.after_ns(LOOK_NS));
        }));
        shared.drive_inline();
        enlisted
    }
}

impl Driver {
    /// Records that frames have arrived or that a timer has run.
    #[inline]
    pub(crate) fn note_change(&mut self, host: &RuntimeHost, now: Instant) {
        if host.lookers.has_of_peers.load(Ordering::Relaxed) {
            self.lookers_due = self.lookers_due.min(now.after_ns(LOOK_NS));
        }
    }

    /// Wakes the tasks, as soon as the calling thread has left the engine.
    #[cold]
    pub(crate) fn wake_lookers(&mut self, host: &RuntimeHost) {
        self.lookers_due = Instant::NEVER;
        let lookers = &host.lookers;
        lookers.has_of_peers.store(false, Ordering::SeqCst);
        for tasks in [&lookers.tasks, &lookers.of_peers] {
            for task in std::mem::take(&mut *lock(tasks)) {
                host.status.wakeups().add(task);
            }
        }
    }
}

/// Longest wait of a task for a change that no event announces, in nanoseconds, as for a thread.
const LOOK_NS: u64 = 1_000_000;

//! Tasks that wait for changes which cause no event, such as room for an operation, or the last
//! acknowledgement of a close.
//!
//! Each report to the application wakes these tasks, like other tasks. If there is no report, the
//! runtime wakes a task after a millisecond, so that the task checks again. If only peers and time
//! can change the awaited state, the millisecond starts when frames arrive or a timer runs. Such
//! tasks therefore do not wake an idle process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use delivery::Instant;

use crate::driver::{Driver, RuntimeHost};
use crate::park::Interest;
use crate::runtime::{Runtime, lock};
use crate::tasks::Enlisted;

/// The sources of changes to the state for which a task checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChangedBy {
    /// Only peers and time change the state. Example: the acknowledgement of an operation.
    Peers,
    /// Peers, time and the application change the state. Example: room in a queue that the
    /// application polls.
    Application,
}

/// The tasks that wait for changes which cause no event.
#[derive(Debug, Default)]
pub(crate) struct Lookers {
    /// Tasks to wake at [`Driver::lookers_due`], which is already set.
    tasks: Mutex<Vec<Waker>>,
    /// Tasks to wake a millisecond after frames have arrived or a timer has run.
    of_peers: Mutex<Vec<Waker>>,
    /// True if `of_peers` is not empty.
    has_of_peers: AtomicBool,
}

impl Runtime {
    /// Arranges that the runtime wakes a task at the next report to the application, like
    /// [`Runtime::enlist_task`]. If there is no report, wakes the task anyway, at most a
    /// millisecond after this call. With [`ChangedBy::Peers`], that millisecond starts when frames
    /// arrive or a timer runs. After this call, the task must check once more for the change that
    /// it waits for.
    pub fn enlist_looker(&self, waker: &Waker, changed_by: ChangedBy) -> Enlisted {
        let enlisted = self.enlist_task(waker, Interest::Anything);
        let shared = &self.shared;
        let lookers = &shared.host.lookers;
        if changed_by == ChangedBy::Peers {
            lock(&lookers.of_peers).push(waker.clone());
            // After this call, the task checks its condition inside the engine, so later turns see
            // this flag.
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

    /// Queues the tasks whose time to wake up has come. The calling thread wakes them when it has
    /// left the engine.
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

/// Interval in nanoseconds at which a task or thread checks for a change that causes no event.
const LOOK_NS: u64 = 1_000_000;

//! Tasks that wait for something that nothing announces: room for an operation, or the last acknowledgement of a close.
//!
//! Each notification of the application wakes them, as it does other tasks; without one they look a millisecond later: after
//! frames have come or a timer has run, if nothing else changes what they wait for, so that they do not wake an idle process.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use delivery::Instant;

use crate::driver::{Driver, Host};
use crate::park::Interest;
use crate::runtime::{Runtime, lock};
use crate::tasks::Enlisted;

/// What changes that for which a task looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ChangedBy {
    /// Only peers and time, as the acknowledgement of an operation.
    Peers,
    /// The application, too, as room in a queue that it polls.
    Application,
}

/// Tasks that look again soon.
#[derive(Debug, Default)]
pub(crate) struct Lookers {
    /// They look at a time that is set.
    tasks: Mutex<Vec<Waker>>,
    /// They look after peers or time have changed something.
    of_peers: Mutex<Vec<Waker>>,
    /// There are such.
    has_of_peers: AtomicBool,
}

impl Runtime {
    /// Wakes a task as [`Runtime::enlist_task`] does for each notification of the application, and a millisecond
    /// later at the latest, or a millisecond after peers or time may have changed what it waits for; it must look
    /// once more afterwards. For what nothing announces.
    pub fn enlist_looker(&self, waker: &Waker, changed_by: ChangedBy) -> Enlisted {
        let enlisted = self.enlist_task(waker, Interest::Anything);
        let shared = &self.shared;
        let lookers = &shared.host.lookers;
        if changed_by == ChangedBy::Peers {
            lock(&lookers.of_peers).push(waker.clone());
            // The look that must follow goes through the engine, and turns after that see it.
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
    /// Frames have come, or a timer has run.
    #[inline]
    pub(crate) fn note_change(&mut self, host: &Host, now: Instant) {
        if host.lookers.has_of_peers.load(Ordering::Relaxed) {
            self.lookers_due = self.lookers_due.min(now.after_ns(LOOK_NS));
        }
    }

    /// Wakes the tasks whose time has come, when the calling thread has left the engine.
    #[cold]
    pub(crate) fn wake_lookers(&mut self, host: &Host) {
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

/// How long a task waits for what nothing announces, as a thread does.
const LOOK_NS: u64 = 1_000_000;

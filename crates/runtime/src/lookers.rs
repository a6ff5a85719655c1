//! Tasks that wait for something that nothing announces: room for an operation, or the last acknowledgement of a close.
//!
//! Each notification of the application wakes them, as it does other tasks; without one they look a millisecond later.

use std::sync::Mutex;
use std::task::Waker;

use delivery::Instant;

use crate::driver::{Driver, Host};
use crate::park::Interest;
use crate::runtime::{Runtime, lock};
use crate::tasks::Enlisted;

/// Tasks that look again soon.
#[derive(Debug, Default)]
pub(crate) struct Lookers {
    tasks: Mutex<Vec<Waker>>,
}

impl Runtime {
    /// Has a task woken as [`Runtime::enlist_task`] does for each notification of the application, and in a millisecond
    /// at the latest; it must look once more afterwards. For what nothing announces.
    pub fn enlist_looker(&self, waker: &Waker) -> Enlisted {
        let enlisted = self.enlist_task(waker, Interest::Anything);
        let shared = &self.shared;
        lock(&shared.host.lookers.tasks).push(waker.clone());
        shared.run_later(Box::new(|driver, _host, now, _memory| {
            driver.lookers_due = driver.lookers_due.min(now.after_ns(LOOK_NS));
        }));
        shared.drive_inline();
        enlisted
    }
}

impl Driver {
    /// Wakes the tasks whose time has come, when the calling thread has left the engine.
    #[cold]
    pub(crate) fn wake_lookers(&mut self, host: &Host) {
        self.lookers_due = Instant::NEVER;
        for task in std::mem::take(&mut *lock(&host.lookers.tasks)) {
            host.status.wakeups().add(task);
        }
    }
}

/// How long a task waits for what nothing announces, as a thread does.
const LOOK_NS: u64 = 1_000_000;

//! What the watchdog knows of threads, and what it reports.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Instant;

use dsm_protocol::{PageNumber, Rank, ThreadNumber};

/// A thread for which other threads wait, while it makes no call or waits at another object; or a
/// thread that has waited for a lock for long.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StallReport {
    pub(crate) thread: usize,
    pub(crate) page: Option<StalePage>,
    pub(crate) text: String,
}

/// A page that a thread reads, although another rank has changed it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct StalePage {
    pub(crate) address: usize,
    pub(crate) writer: usize,
}

impl StallReport {
    /// Returns the number of the thread on its rank.
    pub const fn thread(&self) -> usize {
        self.thread
    }

    /// Returns the address of a page that the thread reads, and the rank that has changed it since
    /// this rank last acquired: the thread probably waits for this change, which it never sees.
    pub const fn page(&self) -> Option<(usize, usize)> {
        match self.page {
            Some(StalePage { address, writer }) => Some((address, writer)),
            None => None,
        }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// What the watchdog knows.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) threads: Vec<Seen>,
    pub(crate) stage: Stage,
    /// Since when other threads wait for this rank.
    pub(crate) awaited_since: Option<Instant>,
    pub(crate) next_look: Instant,
    /// A thread that has waited for long, and its lock, whose holder is being searched.
    pub(crate) wanted: Option<(ThreadNumber, u64)>,
}

/// What the watchdog knows of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The number that the kernel has given the thread.
    pub(crate) task: libc::pid_t,
    /// When its last call ended. A fault is no call.
    pub(crate) left: Option<Instant>,
    pub(crate) fault: Option<(PageNumber, Instant)>,
    pub(crate) is_reported: bool,
}

#[derive(Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Quiet,
    /// The logs of other ranks are read.
    Inspects,
    /// The pages of this list that are only read are hidden.
    Hides { since: Instant, changed: BTreeMap<PageNumber, Rank> },
}

impl Watch {
    pub(crate) fn new(threads: u16) -> Self {
        Self {
            threads: vec![Seen::default(); threads.into()],
            stage: Stage::Quiet,
            awaited_since: None,
            next_look: Instant::now(),
            wanted: None,
        }
    }

    /// Notes that a call of the calling thread has ended.
    pub(crate) fn left(&mut self, thread: ThreadNumber) {
        if let Some(seen) = self.threads.get_mut(thread.index()) {
            seen.meet();
            seen.left = Some(Instant::now());
            seen.is_reported = false;
        }
    }

    /// Notes that a fault of the calling thread has ended.
    pub(crate) fn faulted(&mut self, thread: ThreadNumber, page: PageNumber) {
        if let Some(seen) = self.threads.get_mut(thread.index()) {
            seen.meet();
            let now = Instant::now();
            seen.left.get_or_insert(now);
            seen.fault = Some((page, now));
        }
    }
}

impl Seen {
    /// Learns the number of the calling thread. A number of ours may pass from thread to thread, but
    /// only while the former one makes no call.
    fn meet(&mut self) {
        TASK.with(|task| {
            if task.get() == 0 {
                // SAFETY: the call has no arguments, and cannot fail.
                task.set(unsafe { libc::gettid() });
            }
            self.task = task.get();
        });
    }
}

thread_local! {
    /// The number that the kernel has given this thread; 0 if it is not known yet.
    static TASK: Cell<libc::pid_t> = const { Cell::new(0) };
}

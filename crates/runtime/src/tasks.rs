//! Ways to wait without blocking a thread: a descriptor that becomes readable, and tasks with a
//! waker.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::fork::Forked;
use crate::park::Interest;
use crate::runtime::{Runtime, Shared};
use crate::waits::Spin;

/// The time for which a waiting task polls, like a thread that spins before it blocks
/// ([`Polling`](crate::Polling)). During this time the task wakes itself at once after each poll,
/// so that other tasks run between its polls.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpinBudget {
    /// The part of the wait in which the task polls; `None` before the wait has begun.
    spin: Option<Spin>,
    /// True if the budget was not used up when the task last read the clock.
    lasts: bool,
    polls: u8,
}

impl SpinBudget {
    /// Returns whether to poll again, after a poll that found nothing. Reads the clock only at
    /// every [`POLLS_PER_CLOCK`]th poll, because a reading costs as much as waking the task.
    #[inline]
    fn lasts(&mut self, shared: &Shared) -> bool {
        self.polls = self.polls.wrapping_add(1);
        if self.lasts && !self.polls.is_multiple_of(POLLS_PER_CLOCK) {
            return true;
        }
        let spin = self.spin.get_or_insert_with(|| Spin::begin(shared, None));
        self.lasts = spin.goes_on(shared);
        self.lasts
    }

    /// Records that the awaited event has occurred.
    #[inline]
    fn found(&mut self, shared: &Shared) {
        if let Some(spin) = self.spin.take() {
            spin.came(shared, !self.lasts);
        }
    }
}

/// The entry of a task in the list of waiters. Dropping it removes the entry.
#[derive(Debug)]
pub struct Enlisted {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Enlisted {
    fn drop(&mut self) {
        self.shared.host.waiters.delist_task(self.number);
    }
}

impl Runtime {
    /// Polls `ready`, makes progress and polls `ready` again. If neither poll returns a value,
    /// arranges a wake-up of the task:
    ///
    /// * While its `spin_budget` lasts, the task wakes itself at once.
    /// * After that, an event wakes the task. For this, `enlist` gets the waker, and must make sure
    ///   that every event after the call of `enlist` wakes the task.
    ///
    /// If the runtime has no progress thread, the task polls for the whole wait.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll_wait<R>(
        &self,
        context: &Context<'_>,
        spin_budget: &mut SpinBudget,
        mut ready: impl FnMut() -> Option<R>,
        enlist: impl FnOnce(&Waker),
    ) -> Poll<Result<R, Forked>> {
        let shared = &*self.shared;
        shared.home.check()?;
        if let Some(result) = ready() {
            spin_budget.found(shared);
            return Poll::Ready(Ok(result));
        }
        shared.drive_inline();
        if let Some(result) = ready() {
            spin_budget.found(shared);
            return Poll::Ready(Ok(result));
        }
        if spin_budget.lasts(shared) || !shared.has_thread {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        enlist(context.waker());
        // If a thread finished work before it could see that this task waits, `ready` below sees
        // that work.
        shared.cell.pass();
        if let Some(result) = ready() {
            return Poll::Ready(Ok(result));
        }
        self.leave_links()?;
        Poll::Pending
    }

    /// Arranges that an event of `interest` wakes a task. The task must check once more after this
    /// call.
    pub fn enlist_task(&self, waker: &Waker, interest: Interest<'_>) -> Enlisted {
        let host = &self.shared.host;
        let number = host.waiters.enlist_task(waker, interest, host.arming.reports());
        Enlisted { shared: Arc::clone(&self.shared), number }
    }

    /// Returns the descriptor that [`Runtime::arm`] arms. Only one thread or task at a time may
    /// wait for it to become readable.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.host.descriptor.as_fd()
    }

    /// Arms the descriptor, so that it becomes readable at the next report to the application. A
    /// report is a completion, a finished operation or receive with a slot, or an event of a
    /// connection. Returns false, without arming, in two cases:
    ///
    /// * There was a report since the last call. The caller must handle it first.
    /// * The runtime has no progress thread.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn arm(&self) -> Result<bool, Forked> {
        let shared = &*self.shared;
        shared.home.check()?;
        shared.demand_sound();
        if !shared.has_thread {
            return Ok(false);
        }
        self.drain()?;
        let is_armed = shared.host.arming.arm(|| shared.cell.pass());
        if is_armed {
            self.leave_links()?;
        }
        Ok(is_armed)
    }

    /// Makes the descriptor unreadable again.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn drain(&self) -> Result<(), Forked> {
        self.shared.home.check()?;
        self.shared.host.descriptor.lower();
        Ok(())
    }
}

/// Number of polls of a task for each reading of the clock.
const POLLS_PER_CLOCK: u8 = 4;

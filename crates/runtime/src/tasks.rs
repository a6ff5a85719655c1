//! Waiting without a thread: by a descriptor, and of tasks that wakers wake.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::fork::Forked;
use crate::park::Interest;
use crate::runtime::{Runtime, Shared};
use crate::waits::Spin;

/// For how long a task that waits still polls, as a thread does before it blocks ([`Polling`](crate::Polling)): it has
/// itself woken at once meanwhile, so that others have their turn in between.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    /// Of the part of the wait in which it polls; the wait itself has begun when there is one.
    spin: Option<Spin>,
    /// At the last look at the clock there was time left.
    lasts: bool,
    polls: u8,
}

impl Patience {
    /// Whether to poll on, after a look that found nothing. The clock, which costs as much as waking the task, is asked
    /// now and then.
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

    /// What the task waits for has come.
    #[inline]
    fn found(&mut self, shared: &Shared) {
        if let Some(spin) = self.spin.take() {
            spin.came(shared, !self.lasts);
        }
    }
}

/// A task on the list of those that wait; dropped, it is taken off.
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
    /// Looks whether `ready` returns something, makes progress and looks again. If there is nothing, the task is woken
    /// when it should look again: at once for as long as its `patience` lasts, and then by the thread that finds what
    /// it waits for. `enlist` arranges that: it gets the waker, and what comes afterwards must wake it.
    ///
    /// Where no thread serves the endpoint while the application does not, a task polls for as long as it waits.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    #[inline]
    pub fn poll_wait<R>(
        &self,
        context: &Context<'_>,
        patience: &mut Patience,
        mut ready: impl FnMut() -> Option<R>,
        enlist: impl FnOnce(&Waker),
    ) -> Poll<Result<R, Forked>> {
        let shared = &*self.shared;
        shared.home.check()?;
        if let Some(result) = ready() {
            patience.found(shared);
            return Poll::Ready(Ok(result));
        }
        shared.drive_inline();
        if let Some(result) = ready() {
            patience.found(shared);
            return Poll::Ready(Ok(result));
        }
        if patience.lasts(shared) || !shared.has_thread {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        enlist(context.waker());
        // What was done before it could be seen that this task waits, is seen below.
        shared.cell.pass();
        if let Some(result) = ready() {
            return Poll::Ready(Ok(result));
        }
        self.leave_links()?;
        Poll::Pending
    }

    /// Wakes a task when something has come that is of interest; it must look once more afterwards.
    pub fn enlist_task(&self, waker: &Waker, interest: Interest<'_>) -> Enlisted {
        let host = &self.shared.host;
        let number = host.waiters.enlist_task(waker, interest, host.arming.reports());
        Enlisted { shared: Arc::clone(&self.shared), number }
    }

    /// Returns the descriptor that is readable after what [`Runtime::arm`] waits for. It belongs to one that waits
    /// at a time.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.host.descriptor.as_fd()
    }

    /// Makes the descriptor readable when something is reported to the application from now on: a completion, an
    /// operation or a receive with a slot that is finished, news of a connection. False if something was reported since
    /// the last call, which is to be looked at first, or if no thread serves the endpoint while the application sleeps.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
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

    /// Makes the descriptor readable no more.
    ///
    /// # Errors
    /// [`Forked`] in a child process after `fork`.
    pub fn drain(&self) -> Result<(), Forked> {
        self.shared.home.check()?;
        self.shared.host.descriptor.lower();
        Ok(())
    }
}

/// Polls of a task from one look at the clock to the next.
const POLLS_PER_CLOCK: u8 = 4;

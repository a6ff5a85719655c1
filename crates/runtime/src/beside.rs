//! Waits for the engine and for descriptors of the application, until the first of them is ready.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use delivery::Instant;
use thiserror::Error;

use crate::cell::Drive;
use crate::fork::Forked;
use crate::mark::Mark;
use crate::park::Interest;
use crate::runtime::{PARK_NS_MAX, Runtime, Shared};
use crate::sleep::{Descriptor, Others, Slept};
use crate::waits::{Looking, Spin};

/// The reason why a [`Runtime::wait_beside`] ended without an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waited {
    /// `ready` returned true. Some descriptors may be ready as well.
    Ready,
    /// This number of descriptors is ready. The field `revents` of each shows the events for which
    /// it is ready.
    Descriptors(usize),
    /// The time limit has passed.
    TimedOut,
}

/// The error with which [`Runtime::wait_beside`] stopped waiting.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// A signal handler ran while the thread slept (`EINTR`).
    #[error("a signal handler ran; wait again if its signal should not end the wait")]
    Interrupted,
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
    /// The kernel refuses to wait, for one of two reasons: the process has no free descriptor for
    /// wake-ups of this thread, or the caller passed more descriptors than a process may have.
    #[error("cannot wait for descriptors (raise their limit with `ulimit -n`?)")]
    System(#[source] io::Error),
}

impl From<io::Error> for WaitError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::Interrupted => Self::Interrupted,
            _ => Self::System(error),
        }
    }
}

impl Runtime {
    /// Waits until `ready` returns true or one of `others` is ready, for at most `limit`. With a
    /// limit of `None`, waits for ever. With a limit of zero, checks each condition once. Calls
    /// `ready` after every turn of this thread, and when an event of `interest` may have occurred.
    ///
    /// The thread spins according to [`Polling`](crate::Polling). Then it sleeps on the links and
    /// the descriptors together, so that the first of them that is ready wakes the thread. If
    /// another thread already sleeps on the links, this thread sleeps only on its descriptors. That
    /// other thread then wakes this thread for events of the engine.
    ///
    /// # Errors
    /// Returns [`WaitError::Interrupted`] if a signal handler ran while the thread slept. If a
    /// handler ran while the thread spun, the wait continues, with one exception: signals that
    /// [`Others::with_signals`] unblocks always end the wait. [`WaitError`] describes the other
    /// errors.
    pub fn wait_beside(
        &self,
        interest: Interest<'_>,
        others: &mut Others<'_>,
        limit: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Waited, WaitError> {
        let shared = &*self.shared;
        shared.home.check()?;
        if ready() {
            return Ok(Waited::Ready);
        }
        let mut spin = Spin::begin(shared, limit);
        // If there are descriptors, drive the engine at least once before the sleep. Otherwise a
        // thread whose descriptors are always ready might never read the links.
        let looks = !(others.are_none() && spin.sleeps_at_once(shared));
        let mut goes_on = looks;
        while goes_on {
            shared.drive_inline();
            if ready() {
                spin.found(shared);
                return Ok(Waited::Ready);
            }
            if spin.looks().is_multiple_of(LOOKS_PER_POLL)
                && let count @ 1.. = others.poll()?
            {
                spin.found(shared);
                return Ok(Waited::Descriptors(count));
            }
            goes_on = spin.goes_on(shared);
        }
        if spin.has_ended() {
            return Ok(Waited::TimedOut);
        }
        let waited = shared.block_beside(interest, others, spin.deadline(), looks, ready);
        if matches!(waited, Ok(Waited::Ready | Waited::Descriptors(_))) {
            spin.came(shared, true);
        }
        waited
    }

    /// Raises a mark and wakes the threads that wait for it. The caller must be outside of the
    /// engine, and must hold no lock that these threads take.
    pub fn raise(&self, mark: &Mark) {
        mark.raise();
        if self.check_process().is_err() {
            return;
        }
        // A thread that goes to sleep also calls `pass`. So either this thread sees that thread in
        // the list of waiters, or that thread sees the raised mark.
        self.shared.cell.pass();
        if self.shared.host.waiters.are_blocked() {
            self.shared.host.wake_waiters(false);
        }
    }
}

impl Shared {
    /// Blocks like [`Shared::block`], but also waits for `others`.
    #[cold]
    fn block_beside(
        &self,
        interest: Interest<'_>,
        others: &mut Others<'_>,
        deadline: Instant,
        has_looked: bool,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Waited, WaitError> {
        let call = self.host.waiters.enlist_beside(interest, self.host.arming.reports())?;
        // If another thread finished work before it could see this thread in the list of waiters,
        // `ready` below sees that work.
        self.cell.pass();
        let result = self.sleep_beside(&call, others, deadline, has_looked, &mut ready);
        self.delist();
        result
    }

    fn sleep_beside(
        &self,
        call: &Arc<Descriptor>,
        others: &mut Others<'_>,
        deadline: Instant,
        has_looked: bool,
        ready: &mut impl FnMut() -> bool,
    ) -> Result<Waited, WaitError> {
        let mut has_looked = has_looked;
        loop {
            if ready() {
                return Ok(Waited::Ready);
            }
            self.demand_sound();
            let left_ns = deadline.since_ns(self.host.clock.now());
            if left_ns == 0 {
                return Ok(Waited::TimedOut);
            }
            if self.host.waiters.take_watch() {
                self.host.waiters.set_on_watch(true);
                let result = self.watch_beside(others, deadline, ready);
                self.give_up_watch();
                return result;
            }
            if !has_looked {
                has_looked = true;
                self.drive_inline();
                continue;
            }
            match others.sleep(call, left_ns.min(PARK_NS_MAX))? {
                Slept::Others(count) => return Ok(Waited::Descriptors(count)),
                Slept::Come => self.host.waiters.heed(call, self.host.arming.reports()),
                Slept::Limit | Slept::Not | Slept::Interval => {}
            }
        }
    }

    /// Watches the links like [`Shared::watch_until`], but also waits for `others`. Like that
    /// method, checks before the first sleep.
    fn watch_beside(
        &self,
        others: &mut Others<'_>,
        deadline: Instant,
        ready: &mut impl FnMut() -> bool,
    ) -> Result<Waited, WaitError> {
        if ready() {
            return Ok(Waited::Ready);
        }
        let mut looking = Looking::default();
        let mut outcome = Drive::Drove;
        let mut looks = 0_u32;
        while self.host.clock.now() < deadline {
            match outcome {
                Drive::Drove if self.spins_on_watch() => std::hint::spin_loop(),
                Drive::Drove => {
                    let slept = self.sleep_on_links_beside(Some(deadline), others)?;
                    if let Slept::Others(count) = slept {
                        return Ok(Waited::Descriptors(count));
                    }
                    self.on_slept(&mut looking, slept);
                }
                Drive::HandedOver => self.make_way(),
                Drive::Exhausted => {}
            }
            outcome = self.look(&mut looking).0;
            if ready() {
                return Ok(Waited::Ready);
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS_PER_POLL)
                && let count @ 1.. = others.poll()?
            {
                return Ok(Waited::Descriptors(count));
            }
        }
        Ok(Waited::TimedOut)
    }
}

/// Number of turns of a spinning thread between two polls of its descriptors. A poll is a system
/// call, and a poll in each turn would halve the rate of turns.
const LOOKS_PER_POLL: u32 = 8;

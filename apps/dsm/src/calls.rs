//! Calls of threads: they begin in the machine, and wait for its answer.

use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dsm_protocol::{Access, Call, CallError, Misuse, PageNumber, ThreadNumber};

use crate::core::{Core, Inside, State};
use crate::driver::Wait;
use crate::error::Error;
use crate::misuse::MisusedCall;
use crate::pins::PageRange;

impl Core {
    /// Makes a call of this thread. Returns its result: the former value for atomics, otherwise 0.
    ///
    /// Costs no system call if the machine answers at once and posts nothing, with one exception: the
    /// release of a lock polls the endpoint. Otherwise the thread waits ([`Core::wait`]).
    pub(crate) fn call(&self, call: Call) -> Result<u64, Error> {
        self.call_then(call, |state, thread| state.watch.left(thread))
    }

    /// Makes a page accessible.
    pub(crate) fn call_for_page(&self, call: Call, page: PageNumber) -> Result<(), Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let changes = self.lock().host.memory.changes();
        let wanted = if matches!(call, Call::ReadFault(_)) { Access::Read } else { Access::Write };
        self.call_then(call, |state, thread| {
            state.watch.faulted(thread, page);
            // If the machine had nothing to change, the page is accessible for the machine, but not
            // mapped.
            let allowed = state.node.access(page);
            let is_allowed = allowed == Access::Write || allowed == wanted;
            if state.host.memory.changes() == changes && is_allowed {
                state.host.memory.map_again(page.index()..page.index() + 1, allowed);
            }
        })?;
        Ok(())
    }

    /// Makes a call that makes pages accessible and keeps them so, and maps them: system calls do not
    /// fault, and so cannot ask for pages that the kernel has taken out of the view.
    pub(crate) fn call_and_map(&self, call: Call, pages: PageRange) -> Result<(), Error> {
        let PageRange { first, count } = pages;
        self.call_then(call, |state, thread| {
            state.watch.left(thread);
            let State { node, host, .. } = state;
            let accesses = (first.0..first.0 + count).map(|page| node.access(PageNumber(page)));
            let mut start = first.index();
            // The system call that maps pages takes a run of them.
            for run in accesses.collect::<Vec<_>>().chunk_by(PartialEq::eq) {
                let pages = start..start + run.len();
                start = pages.end;
                host.memory.map_again(pages, run[0]);
            }
        })?;
        Ok(())
    }

    fn call_then(
        &self,
        call: Call,
        at_end: impl FnOnce(&mut State, ThreadNumber),
    ) -> Result<u64, Error> {
        if self.is_forked() {
            return Err(Error::Forked);
        }
        let thread = self.thread()?;
        let _inside = Inside::enter();
        // A node that waits for the lock gets it only if its request has arrived.
        let releases_lock = matches!(call, Call::Unlock(_)) && !self.connections.is_empty();
        let has_driven = releases_lock && self.endpoint.drive().is_ok();
        let mut state = self.lock();
        if has_driven && !self.queue.is_empty() {
            self.advance(&mut state);
        }
        let State { node, host, .. } = &mut *state;
        node.start(host, thread, call).map_err(|misuse| self.misused(misuse))?;
        state.host.network.flush();
        let mut wait: Option<Wait> = None;
        loop {
            // The call may have sent messages to this rank.
            if state.host.network.has_arrivals() && state.node.failure().is_none() {
                self.advance(&mut state);
            }
            if let Some(result) = state.node.take(thread) {
                // The call may have ended calls of other threads.
                self.wake_if_ended(&state);
                if let Some(wait) = &wait {
                    state.waits.add(call, wait.time());
                    self.end_wait(&state);
                }
                if result.is_ok() {
                    at_end(&mut state, thread);
                }
                // A page that the kernel does not change would fault again and again.
                if state.host.memory.has_error() {
                    self.advance(&mut state);
                    return self.failed(state);
                }
                return self.result(state, result);
            }
            if state.failure.is_some() && state.node.failure().is_none() {
                return self.failed(state);
            }
            state = self.wait(state, wait.get_or_insert_with(Wait::begin));
        }
    }

    /// Returns whether another rank waits for a lock that this rank holds. Handles the requests that
    /// have arrived.
    pub(crate) fn is_lock_awaited(&self, lock: u64) -> bool {
        if self.is_forked() {
            return false;
        }
        let _inside = Inside::enter();
        let has_driven = self.endpoint.drive().is_ok();
        let mut state = self.lock();
        if has_driven && !self.queue.is_empty() {
            self.advance(&mut state);
        }
        state.node.is_lock_awaited(lock)
    }

    /// Sleeps until the machine has made progress, for at most `limit`.
    pub(crate) fn sleep<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = match limit {
            None => self.progress.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => {
                let woken = self.progress.wait_timeout(state, limit);
                woken.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleepers -= 1;
        state
    }

    fn result(
        &self,
        mut state: MutexGuard<'_, State>,
        result: Result<u64, CallError>,
    ) -> Result<u64, Error> {
        match result {
            Ok(value) => Ok(value),
            Err(CallError::Misuse(misuse)) => Err(self.misused(misuse).into()),
            Err(CallError::Failure(_)) => {
                self.advance(&mut state);
                self.failed(state)
            }
        }
    }

    fn misused(&self, misuse: Misuse) -> MisusedCall {
        MisusedCall::new(misuse, self.rank, &self.places)
    }

    /// Fails the rank in a thread that cannot go on. Returns if the program handles failures.
    pub(crate) fn fail_here(&self, reason: String) {
        let mut state = self.lock();
        self.fail(&mut state, reason);
        self.wake_if_ended(&state);
        // The program learns the failure otherwise, too.
        let _failed = self.failed(state);
    }

    /// Returns the failure to a program that handles it. Otherwise waits until the progress thread
    /// ends the process.
    fn failed(&self, state: MutexGuard<'_, State>) -> Result<u64, Error> {
        let failure = state.failure.clone();
        drop(state);
        match failure.filter(|_| self.on_failure.is_some()) {
            Some(failure) => Err(failure.into()),
            None => loop {
                thread::park();
            },
        }
    }
}

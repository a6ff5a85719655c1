//! Calls of threads: they begin in the machine, and wait for its answer.

use std::sync::{MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use dsm_protocol::{Access, Call, CallError, Misuse, PageNumber, ThreadNumber};

use crate::core::{Core, Inside, State};
use crate::error::Error;
use crate::misuse::MisusedCall;
use crate::pins::PageRange;

impl Core {
    /// Makes a call of this thread. Returns its result: the former value for atomics, otherwise 0.
    ///
    /// Costs no system call if the machine answers at once. Otherwise the thread polls for [`SPIN`],
    /// and then sleeps until the progress thread has the answer.
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
                state.host.memory.map_again(page, allowed);
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
            for page in (first.0..first.0 + count).map(PageNumber) {
                state.host.memory.map_again(page, state.node.access(page));
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
        let mut state = self.lock();
        let State { node, host, .. } = &mut *state;
        node.start(host, thread, call).map_err(|misuse| self.misused(misuse))?;
        let mut awake_until = None;
        loop {
            if let Some(result) = state.node.take(thread) {
                // The call may have ended calls of other threads, or sent messages to this rank.
                if state.sleepers > 0 || state.host.network.has_arrivals() {
                    self.advance(&mut state);
                }
                if let Some(awake_until) = awake_until {
                    let waited = (Instant::now() + SPIN).saturating_duration_since(awake_until);
                    state.waits.add(call, waited);
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
            let now = Instant::now();
            if now < *awake_until.get_or_insert(now + SPIN) {
                self.advance(&mut state);
            } else {
                state = self.sleep(state, None);
            }
        }
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

/// How long a thread polls before it sleeps. A page comes from a rank that is awake within 20 µs.
const SPIN: Duration = Duration::from_micros(60);

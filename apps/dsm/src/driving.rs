//! Who drives the endpoint: a thread that waits in a call, otherwise the progress thread.
//!
//! A thread that waits in a call drives the endpoint itself, so that an answer reaches it without
//! another thread. At most one thread does so. The other threads that wait sleep until their calls
//! have ended, or until no thread drives the endpoint.
//!
//! Meanwhile the progress thread stays away from the endpoint. If it slept there, each frame would
//! wake it, and it would take a processor from the threads that wait.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{Awaited, WaitError};

use crate::aside::{Times, Watched};
use crate::core::{Core, State};
use crate::driver::{Driver, Wait};

impl Core {
    /// Waits until the machine may have made progress. The calling thread drives the endpoint until
    /// then, unless another thread does so.
    pub(crate) fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        wait: &Wait,
    ) -> MutexGuard<'a, State> {
        let driver = &self.driver;
        self.wake_if_ended(&state);
        if driver.is_present() {
            return self.sleep(state, None);
        }
        driver.has_news.store(false, Ordering::SeqCst);
        driver.is_present.store(true, Ordering::SeqCst);
        driver.changes.fetch_add(1, Ordering::Relaxed);
        drop(state);
        let is_shut_down = self.drive(wait);
        let mut state = self.lock();
        driver.is_present.store(false, Ordering::SeqCst);
        driver.changes.fetch_add(1, Ordering::Relaxed);
        self.advance(&mut state);
        if is_shut_down {
            // Without this sleep, the thread would spin until the process ends.
            state = self.sleep(state, Some(LOOK_AGAIN));
        }
        state
    }

    /// Drives the endpoint until a completion arrives or another thread ends a call: polls for
    /// as long as [`Times`] says, and then sleeps for at most [`LOOK_AGAIN`]. Returns whether the
    /// endpoint is shut down.
    fn drive(&self, wait: &Wait) -> bool {
        let Driver { sleeps, has_news, .. } = &self.driver;
        while self.endpoint.drive().is_ok() && Times::CHOSEN.polls(wait.time()) {
            if !self.queue.is_empty() || has_news.load(Ordering::SeqCst) {
                return false;
            }
        }
        sleeps.store(true, Ordering::SeqCst);
        let awaited = [Awaited::Completions(&self.queue), Awaited::Flag(has_news)];
        let found = self.endpoint.wait_any(&awaited, Some(LOOK_AGAIN));
        sleeps.store(false, Ordering::SeqCst);
        !matches!(found, Ok(_) | Err(WaitError::TimedOut { .. }))
    }

    /// Wakes the threads that wait, if a call has ended or the rank has failed.
    pub(crate) fn wake_if_ended(&self, state: &State) {
        if !state.node.has_ended_calls() && state.failure.is_none() {
            return;
        }
        if state.sleepers > 0 {
            self.progress.notify_all();
        }
        let Driver { sleeps, has_news, .. } = &self.driver;
        if self.driver.is_present() {
            has_news.store(true, Ordering::SeqCst);
            // If the thread is about to sleep, it sees the flag.
            if sleeps.load(Ordering::SeqCst) {
                self.endpoint.wake();
            }
        }
    }

    /// Ends the wait of a thread whose call has ended: another thread takes its place.
    pub(crate) fn end_wait(&self, state: &State) {
        if state.sleepers > 0 && !self.driver.is_present() {
            self.progress.notify_one();
        }
        self.driver.end_wait();
    }

    /// Keeps the progress thread away from the endpoint while threads that wait in calls drive it,
    /// or did so since the last look, but for at most [`LOOK_AGAIN`]. Takes no lock, which would delay
    /// the calls.
    pub(crate) fn stand_aside(&self, watched: &mut Watched) {
        let Driver { sleeps, is_awaited, changes, .. } = &self.driver;
        let began = Instant::now();
        loop {
            let changes = changes.load(Ordering::Relaxed);
            let is_needed = watched.needs_progress(changes, self.driver.is_present());
            let aside = began.elapsed();
            let left = LOOK_AGAIN.saturating_sub(aside);
            if is_needed || left.is_zero() {
                return;
            }
            // A thread that sleeps wakes this thread when its call ends. A thread that polls saves
            // this system call.
            is_awaited.store(true, Ordering::SeqCst);
            let pause = if sleeps.load(Ordering::SeqCst) {
                left
            } else {
                is_awaited.store(false, Ordering::SeqCst);
                left.min(Times::CHOSEN.pause(aside))
            };
            thread::park_timeout(pause);
            is_awaited.store(false, Ordering::SeqCst);
        }
    }
}

/// Time between two looks for failures that other threads have found, and for ends of connections.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(20);

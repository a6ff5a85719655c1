//! The progress thread of a rank: it serves the machine while no other thread does, and ends the
//! process if a rank has failed.

use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{Awaited, Closed, Occurred, WaitError};

use crate::aside::Watched;
use crate::core::{Core, Inside};
use crate::driving::LOOK_AGAIN;
use crate::failure::{RankFailure, STATUS_FAILED, without_memory};

/// Starts the progress thread.
pub(crate) fn start(core: &'static Core) -> io::Result<()> {
    let builder = thread::Builder::new().name("dsm-progress".into());
    builder.spawn(move || core.serve_or_end()).map(drop)
}

impl Core {
    /// Serves the machine. If this panics, ends the process: threads that sleep would never wake.
    fn serve_or_end(&self) {
        if panic::catch_unwind(AssertUnwindSafe(|| self.serve())).is_err() {
            eprintln!("ethernot dsm: rank {} ends: its progress thread has panicked", self.rank);
            // SAFETY: as in `end`.
            unsafe { libc::_exit(STATUS_FAILED) }
        }
    }

    /// Serves the machine until the rank leaves or fails. While a thread that waits in a call does
    /// so, only looks for failures, clients and stalls.
    ///
    /// Takes completions only under the lock: two threads that each took one before they lock could
    /// hand messages of a peer to the machine in another order.
    fn serve(&self) {
        let _inside = Inside::enter();
        let mut connections: Vec<_> = self.connections.iter().collect();
        self.driver.successor.get_or_init(thread::current);
        let mut watched = Watched::default();
        loop {
            let ends = connections.iter().map(|(_, connection)| Awaited::End(connection));
            let driven = Awaited::Flag(&self.driver.is_present);
            let awaited: Vec<_> = [Awaited::Completions(&self.queue)]
                .into_iter()
                .chain(ends)
                .chain([driven])
                .collect();
            let found = self.endpoint.wait_any(&awaited, Some(LOOK_AGAIN));
            let mut state = self.lock();
            match found {
                Ok((index, Occurred::End(closed, _))) if index > 0 => {
                    // What the peer sent before the end comes first.
                    self.advance(&mut state);
                    if matches!(closed, Closed::LocalMemory) {
                        self.fail(&mut state, self.lost_memory());
                    }
                    let (rank, _) = connections.remove(index - 1);
                    state.host.network.handle_end(*rank, closed);
                    self.advance(&mut state);
                }
                Ok(_) | Err(WaitError::TimedOut { .. }) => {}
                Err(_) if state.has_left => {
                    let failure = state.failure.clone();
                    drop(state);
                    if let Some(failure) = failure {
                        self.end(&failure);
                    }
                    return;
                }
                Err(error) => self.fail(&mut state, format!("cannot wait for peers: {error}")),
            }
            if !self.driver.is_present() {
                self.advance(&mut state);
            }
            let races = state.races.take(&self.heap);
            let now = Instant::now();
            let stalls = self.watch(&mut state, now);
            self.answer_clients(&mut state, now);
            state.host.network.flush();
            if !races.is_empty() || !stalls.is_empty() {
                drop(state);
                self.report_races(&races);
                self.report_stalls(&stalls);
                state = self.lock();
            }
            // A program that handles failures may have left already, because a call has failed.
            if let Some(failure) = state.failure.clone() {
                drop(state);
                self.end(&failure);
                return;
            }
            if state.has_left {
                return;
            }
            drop(state);
            self.stand_aside(&mut watched);
        }
    }

    /// Returns why the endpoint could not access memory of this rank.
    fn lost_memory(&self) -> String {
        match self.view.pages().missing() {
            Some(missing) => without_memory(&missing),
            None => without_memory(&NO_PAGE),
        }
    }

    /// Ends the rank: lets the other ranks know, then calls the program or ends the process.
    fn end(&self, failure: &RankFailure) {
        let deadline = Instant::now() + PASS_ON;
        loop {
            // This fails only in a forked child, which has no such thread.
            let _forked = self.endpoint.drive();
            let mut state = self.lock();
            let mut bytes = Vec::new();
            while state.host.network.poll(&mut bytes).is_some() {}
            if state.host.network.is_idle() || Instant::now() > deadline {
                break;
            }
            drop(self.sleep(state, Some(Duration::from_millis(1))));
        }
        if let Some(handler) = &self.on_failure {
            handler(failure);
        } else {
            eprintln!("ethernot dsm: rank {} ends: {failure}", self.rank);
            // SAFETY: `_exit` ends the process without handlers of exits, which could wait for
            // threads that wait for this rank's machine.
            unsafe { libc::_exit(STATUS_FAILED) }
        }
        self.progress.notify_all();
    }
}

/// Why memory that is mapped cannot be accessed.
const NO_PAGE: &str = "the host has no page for a part of it; use less memory, or let the host provide \
                       more (`vm.overcommit_memory`)";

/// How long a rank that ends waits until the others know why.
const PASS_ON: Duration = Duration::from_millis(200);

//! The machine of this rank behind its lock, and what threads share.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dsm_protocol::{Call, Node, PageNumber, ThreadNumber};
use ethernot::{CompletionQueue, Connection, Endpoint, MemoryRegion};
use page_faults::{Access, MissingMemory, PageFaults, PageView, Pages};

use crate::driver::Driver;
use crate::error::Error;
use crate::failure::{RankFailure, STATUS_FAILED, without_memory};
use crate::heap::Heap;
use crate::host::Host;
use crate::options::{OnFailure, OnRace, OnStall};
use crate::races::Races;
use crate::stalls::Watch;
use crate::statistics::{Statistics, Waits};
use crate::thread_numbers;

/// A rank. It lives until the process ends.
pub(crate) struct Core {
    /// The number of the process that has joined, by which a forked child is noticed.
    pub(crate) process: u32,
    pub(crate) rank: usize,
    pub(crate) size: usize,
    pub(crate) threads: u16,
    pub(crate) endpoint: Endpoint,
    pub(crate) queue: Arc<CompletionQueue>,
    /// The connections to all other ranks.
    pub(crate) connections: Vec<(usize, Arc<Connection>)>,
    /// Where each rank runs, for messages to people.
    pub(crate) places: Vec<String>,
    pub(crate) view: PageView,
    pub(crate) state: Mutex<State>,
    /// Notified when calls have ended, or no thread drives the endpoint, and threads sleep.
    pub(crate) progress: Condvar,
    pub(crate) driver: Driver,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) on_race: Option<OnRace>,
    /// How long a thread may make no call while others wait for it, until this is reported.
    pub(crate) watchdog: Option<Duration>,
    pub(crate) on_stall: Option<OnStall>,
    pub(crate) heap: Heap,
    /// The address at which the ranks have met, and when.
    pub(crate) meet: String,
    pub(crate) joined: Instant,
    /// Keeps the control memory registered.
    pub(crate) _control: MemoryRegion,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) node: Node,
    pub(crate) host: Host,
    /// Threads that sleep until the machine makes progress, other than the one that drives the
    /// endpoint.
    pub(crate) sleepers: usize,
    pub(crate) failure: Option<RankFailure>,
    /// Whether the rank has left, so that its progress thread ends.
    pub(crate) has_left: bool,
    pub(crate) races: Races,
    pub(crate) watch: Watch,
    pub(crate) waits: Waits,
    pub(crate) statistics: Statistics,
}

/// Hands the faults of the view to the rank, once there is one.
pub(crate) struct FaultsOf(pub(crate) Arc<OnceLock<&'static Core>>);

thread_local! {
    /// Whether this thread is inside of a call of the crate.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Marks that the thread is inside of a call, until it is dropped.
pub(crate) struct Inside;

impl Inside {
    pub(crate) fn enter() -> Self {
        IS_INSIDE.set(true);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

impl Core {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the calling thread. A thread gets one when it first uses the memory.
    pub(crate) fn thread(&self) -> Result<ThreadNumber, Error> {
        thread_numbers::own(self.threads)
    }

    /// Lets the machine handle its arrivals, sends what it posts, and wakes threads if calls have
    /// ended. Does not drive the endpoint to find more arrivals.
    pub(crate) fn advance(&self, state: &mut State) {
        let State { node, host, races, .. } = state;
        node.poll(host);
        while let Some(race) = node.poll_race() {
            races.add(race);
        }
        if state.failure.is_none() {
            let place = |rank: usize| self.places.get(rank).cloned().unwrap_or_default();
            let own = |reason| RankFailure::own(self.rank, place(self.rank), reason);
            let error = state.host.memory.take_error();
            let by_memory = error.map(|error| own(without_memory(&error)));
            let by_node = || Some(RankFailure::new(state.node.failure()?, self.rank, place));
            state.failure = by_memory.or_else(by_node);
        }
        state.host.network.flush();
        self.wake_if_ended(state);
    }

    /// Ends the rank because of an error of its own.
    pub(crate) fn fail(&self, state: &mut State, reason: String) {
        let place = self.places.get(self.rank).cloned().unwrap_or_default();
        state.failure.get_or_insert_with(|| RankFailure::own(self.rank, place, reason));
    }

    /// Makes a page accessible for the calling thread. Returns false if the access is an error.
    fn handle_fault(&self, page: usize, access: Access) -> bool {
        if self.is_forked() {
            self.complain(&Error::Forked.to_string());
            return false;
        }
        if IS_INSIDE.get() {
            self.complain("shared memory was accessed inside of a call of the shared memory");
            return false;
        }
        if self.lock().has_left {
            self.complain(
                "shared memory was accessed after `finalize`; call `finalize` at the end",
            );
            return false;
        }
        let page = PageNumber(page as u32);
        let call = match access {
            Access::Read => Call::ReadFault(page),
            Access::Write => Call::WriteFault(page),
        };
        match self.call_for_page(call, page) {
            Ok(()) => true,
            Err(error) => {
                self.complain(&error.to_string());
                false
            }
        }
    }

    /// Fails the rank, because memory of the region is missing. Returns if the calling thread is to get
    /// the signal of its access.
    fn handle_missing(&self, missing: &MissingMemory) {
        if self.is_forked() {
            self.complain(&Error::Forked.to_string());
            return;
        }
        if matches!(missing, MissingMemory::View { .. }) && !IS_INSIDE.get() {
            // The program has accessed the memory, so this thread does not hold the lock.
            if !self.lock().has_left {
                self.fail_here(without_memory(missing));
            }
            self.complain(&without_memory(missing));
            return;
        }
        // This thread may hold the lock, and cannot go on without the memory. So the process ends at
        // once, even if the program handles failures.
        let place = self.places.get(self.rank).cloned().unwrap_or_default();
        let failure = RankFailure::own(self.rank, place, without_memory(missing));
        print(&format!("ethernot dsm: rank {} ends: {failure}\n", self.rank));
        // SAFETY: `_exit` ends the process without handlers of exits, which could wait for the lock.
        unsafe { libc::_exit(STATUS_FAILED) }
    }

    /// Returns whether this process is a child of the one that has joined. A child must not take the
    /// lock, because a thread of the parent may have held it during the fork.
    pub(crate) fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    /// Prints a message without the lock of standard error, for the same reason.
    fn complain(&self, what: &str) {
        print(&format!("ethernot dsm: rank {}: {what}\n", self.rank));
    }
}

impl PageFaults for FaultsOf {
    fn on_fault(&self, _pages: &Pages, page: usize, access: Access) -> bool {
        self.0.get().is_some_and(|core| core.handle_fault(page, access))
    }

    fn on_missing(&self, missing: &MissingMemory) {
        if let Some(core) = self.0.get() {
            core.handle_missing(missing);
        }
    }
}

/// Writes a text to standard error without its lock.
fn print(text: &str) {
    // SAFETY: the buffer has this length. If the call fails, nothing can be said.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

//! Machines: protocols that the threads of the runtime drive beside the engine.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use delivery::Instant;
use mem::MemoryAccess;
use semantics::CompletionQueue;
use thiserror::Error;

use crate::auxiliary::{Auxiliary, READY_MAX, Readiness};
use crate::fork::Forked;
use crate::runtime::Shared;

/// A protocol with sockets of its own.
///
/// The thread that makes a turn calls these methods, inside the engine. The methods must be quick,
/// must not wait, and must not call the runtime.
pub trait Machine: Any + Send {
    /// Handles attachment to a runtime. The machine uses `descriptors` to watch descriptors until
    /// it is detached.
    fn attached(&mut self, descriptors: Descriptors) {
        let _ = descriptors;
    }

    /// Reads, writes and runs timers, for a bounded time. Each turn of the engine calls this once,
    /// after [`Machine::on_descriptor`]. A call with nothing to do must therefore cost almost
    /// nothing.
    fn turn(&mut self, now: Instant, memory: &MemoryAccess<'_>) -> Progress;

    /// Handles a ready descriptor that the machine [watches](Descriptors::watch) under this key.
    /// The runtime calls this in each turn while the descriptor is ready, and may call it once more
    /// after the machine has unwatched the descriptor.
    fn on_descriptor(&mut self, key: u64, ready: Readiness);

    /// Handles that the runtime polls the watched descriptors in this turn, or sleeps on them after
    /// it. The machine therefore need not try descriptors that were not reported as ready. The
    /// runtime calls this before [`Machine::turn`].
    fn on_polled(&mut self) {}

    /// Moves those completion queues to `fired` whose armed condition was met since the last call.
    /// The runtime calls this after each turn.
    fn take_fired(&mut self, fired: &mut Vec<Arc<CompletionQueue>>) {
        let _ = fired;
    }

    /// Prepares for the end of the process. The machine notifies its peers in the turns that
    /// follow.
    fn close(&mut self, now: Instant);

    /// Returns whether the machine still has to notify a peer after [`Machine::close`]. The end of
    /// the process waits for the notification, for at most 100 ms.
    fn is_closing(&self) -> bool;
}

/// The result of a machine's turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// True if the turn changed something for which other threads may wait.
    pub worked: bool,
    /// True if there is more to do, so that the next turn should follow at once.
    pub more: bool,
    /// True if there are events of connections. The runtime then wakes the threads that wait for
    /// [`Interest::News`](crate::Interest::News).
    pub news: bool,
    /// Latest time at which the machine wants its next turn, if no descriptor is ready before.
    pub due: Instant,
}

impl Progress {
    /// The machine has nothing to do until a descriptor is ready.
    pub const NONE: Self = Self { worked: false, more: false, news: false, due: Instant::NEVER };
}

/// Identifies a machine of a runtime. Identifiers are not reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MachineId(u32);

impl MachineId {
    /// Returns the key in the common epoll set for the machine's own `key`.
    const fn common_key(self, key: u64) -> u64 {
        MACHINE_KEYS | (self.0 as u64) << KEY_BITS | key
    }
}

/// The reason why an operation on a machine failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The runtime already has the maximum number of machines, or has used all identifiers.
    #[error("the endpoint already has {MACHINES_MAX} further protocols, the maximum")]
    NoneLeft,
    /// The machine was detached, or has another type.
    #[error("the endpoint has no such protocol")]
    NotThere,
    /// The epoll set cannot be created.
    #[error("cannot make an epoll set (raise the limit of descriptors with `ulimit -n`?)")]
    Watch(#[source] io::Error),
    /// The caller is a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Watches descriptors for one machine. Must not be used after the machine is detached.
#[derive(Clone, Debug)]
pub struct Descriptors {
    shared: Weak<Shared>,
    id: MachineId,
}

impl Descriptors {
    /// Watches a descriptor, and reports to the machine under `key` when the descriptor is ready.
    /// If the descriptor is already watched, replaces the key and the readiness. Call
    /// [`Descriptors::unwatch`] before you close the descriptor. Keys are below 2^32; each machine
    /// has its own keys.
    ///
    /// # Errors
    /// Returns the error of the system call that failed, `InvalidInput` for a larger key, or
    /// `NotConnected` if the runtime has ended.
    pub fn watch(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        if key >> KEY_BITS != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let shared = self.shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        // A forked child shares the epoll set with its parent, so it would change the set of the
        // parent.
        shared.home.check().map_err(io::Error::other)?;
        // The epoll set exists already, so a sleeping thread polls it.
        shared.host.sleeper.auxiliary.watch(fd, self.id.common_key(key), ready)
    }

    /// Changes for what a watched descriptor is reported. `key` is the key under which it is watched.
    /// Costs one system call, whatever the number of watched descriptors.
    ///
    /// # Errors
    /// Returns `ENOENT` if the descriptor is not watched, or an error of [`Descriptors::watch`].
    pub fn change(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        if key >> KEY_BITS != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let shared = self.shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        shared.home.check().map_err(io::Error::other)?;
        shared.host.sleeper.auxiliary.change(fd, self.id.common_key(key), ready)
    }

    /// Stops reporting a descriptor to the machine. Returns false if it was not watched.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        shared.home.check().is_ok() && shared.host.sleeper.auxiliary.unwatch(fd)
    }
}

/// The machines of an endpoint, at most [`MACHINES_MAX`].
pub(crate) struct Machines {
    attached: Vec<(MachineId, Box<dyn Machine>)>,
    /// Number of machines attached so far.
    count: u32,
    /// Number of ready descriptors of machines since the last call of [`Machines::on_polled`].
    ready: usize,
    /// Earliest time at which a machine wants its next turn.
    due: Instant,
    /// Completion queues that the runtime has to report.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
}

impl Machines {
    pub(crate) const fn new() -> Self {
        Self { attached: Vec::new(), count: 0, ready: 0, due: Instant::NEVER, fired: Vec::new() }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.attached.is_empty()
    }

    #[inline]
    pub(crate) const fn due(&self) -> Instant {
        self.due
    }

    pub(crate) fn attach(
        &mut self,
        shared: Weak<Shared>,
        machine: Box<dyn Machine>,
    ) -> Result<MachineId, MachineError> {
        let id = MachineId(self.count);
        if self.attached.len() >= MACHINES_MAX || id.0 > ID_MAX {
            return Err(MachineError::NoneLeft);
        }
        self.count += 1;
        let mut machine = machine;
        machine.attached(Descriptors { shared, id });
        self.attached.push((id, machine));
        Ok(id)
    }

    /// Removes a machine and unwatches its descriptors.
    pub(crate) fn detach(
        &mut self,
        watched: &Auxiliary,
        id: MachineId,
    ) -> Result<Box<dyn Machine>, MachineError> {
        let index = self.attached.iter().position(|(other, _)| *other == id);
        let index = index.ok_or(MachineError::NotThere)?;
        watched.unwatch_keys(id.common_key(0)..=id.common_key(KEY_MAX));
        if self.attached.len() == 1 {
            self.due = Instant::NEVER;
        }
        Ok(self.attached.remove(index).1)
    }

    pub(crate) fn get<M: Machine>(&mut self, id: MachineId) -> Result<&mut M, MachineError> {
        let machine = self.attached.iter_mut().find(|(other, _)| *other == id);
        let machine = machine.map(|(_, machine)| &mut **machine as &mut dyn Any);
        machine.and_then(|machine| machine.downcast_mut()).ok_or(MachineError::NotThere)
    }

    /// Passes a ready descriptor to the machine that watches it under this key of the epoll set.
    pub(crate) fn on_descriptor(&mut self, common_key: u64, ready: Readiness) {
        self.ready += 1;
        let key = common_key & KEY_MAX;
        let found = self.attached.iter_mut().find(|(id, _)| id.common_key(key) == common_key);
        if let Some((_, machine)) = found {
            machine.on_descriptor(key, ready);
        }
    }

    /// Announces to each machine a poll that found `ready` descriptors, unless others may be ready,
    /// too. Returns whether to poll again in another turn at once.
    ///
    /// A machine says itself whether it has more to do, and its descriptors end the next sleep while
    /// they are ready. Another poll after each of its messages would only cost a system call.
    pub(crate) fn on_polled(&mut self, ready: usize) -> bool {
        let of_machines = std::mem::take(&mut self.ready);
        if ready >= READY_MAX as usize {
            return true;
        }
        for (_, machine) in &mut self.attached {
            machine.on_polled();
        }
        ready > of_machines
    }

    /// Makes a turn of each machine. Returns the combined results.
    #[cold]
    pub(crate) fn turn(&mut self, now: Instant, memory: &MemoryAccess<'_>) -> Progress {
        let mut all = Progress::NONE;
        for (_, machine) in &mut self.attached {
            let Progress { worked, more, news, due } = machine.turn(now, memory);
            all.worked |= worked;
            all.more |= more;
            all.news |= news;
            all.due = all.due.min(due);
            machine.take_fired(&mut self.fired);
        }
        // If a machine wants its next turn earlier than before, the sleeping thread must wake up,
        // because its timeout may be later.
        all.worked |= all.news || all.due < self.due;
        self.due = all.due;
        all
    }

    pub(crate) fn close(&mut self, now: Instant) {
        for (_, machine) in &mut self.attached {
            machine.close(now);
        }
    }

    pub(crate) fn are_closing(&self) -> bool {
        self.attached.iter().any(|(_, machine)| machine.is_closing())
    }
}

/// Maximum number of machines at one time. The limit is low, because each turn calls every machine.
const MACHINES_MAX: usize = 16;

/// First key of machines. Lower keys belong to auxiliary sockets and to watched descriptors.
pub(crate) const MACHINE_KEYS: u64 = 3 << 62;

/// Number of low bits of a key that the machine chooses. The 30 bits above these bits identify the
/// machine.
const KEY_BITS: u32 = 32;
const KEY_MAX: u64 = (1 << KEY_BITS) - 1;
const ID_MAX: u32 = (1 << (62 - KEY_BITS)) - 1;

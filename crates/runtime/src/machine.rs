//! Machines: protocols other than the engine's, which the same threads drive beside it.

use std::any::Any;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

use delivery::Instant;
use mem::MemoryAccess;
use semantics::CompletionQueue;
use thiserror::Error;

use crate::auxiliary::{Auxiliary, Readiness};
use crate::fork::Forked;
use crate::runtime::Shared;

/// A protocol with sockets of its own.
///
/// Its methods are called inside the engine, by any thread that makes turns. They must be quick,
/// must not wait, and must not call the runtime.
pub trait Machine: Any + Send {
    /// Attaches the machine, which watches descriptors by means of `descriptors` until it is
    /// detached.
    fn attached(&mut self, descriptors: Descriptors) {
        let _ = descriptors;
    }

    /// Reads, writes and runs timers, for a bounded time. It is called once in each turn of the
    /// engine, after [`Machine::on_descriptor`], so a turn with nothing to do must cost almost
    /// nothing.
    fn turn(&mut self, now: Instant, memory: &MemoryAccess<'_>) -> Progress;

    /// Handles a descriptor that the machine [watches](Descriptors::watch) under this key and that
    /// is ready. It is called in each turn while the descriptor is ready. A descriptor that the
    /// machine has just unwatched may be reported once more.
    fn on_descriptor(&mut self, key: u64, ready: Readiness);

    /// Moves completion queues that were armed, and that reached what they were armed for since the
    /// last call, to `fired`. It is called after each turn.
    fn take_fired(&mut self, fired: &mut Vec<Arc<CompletionQueue>>) {
        let _ = fired;
    }

    /// Prepares for the end of the process: in the turns that follow, the machine notifies its
    /// peers.
    fn close(&mut self, now: Instant);

    /// Whether there is still a peer to notify after [`Machine::close`]. The end of the process
    /// waits for that, for at most 100 ms.
    fn is_closing(&self) -> bool;
}

/// The result of a machine's turn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// The turn changed something that other threads may wait for.
    pub worked: bool,
    /// There is more to do: the next turn should follow at once.
    pub more: bool,
    /// There are events of connections: threads that wait for
    /// [`Interest::News`](crate::Interest::News) are woken.
    pub news: bool,
    /// When the machine wants its next turn at the latest, if no descriptor is ready before.
    pub due: Instant,
}

impl Progress {
    /// There was nothing to do, and there will be nothing until a descriptor is ready.
    pub const NONE: Self = Self { worked: false, more: false, news: false, due: Instant::NEVER };
}

/// Identifies a machine of a runtime. Identifiers are not reused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MachineId(u32);

impl MachineId {
    /// Returns the key in the epoll set for the machine's `key`.
    const fn common_key(self, key: u64) -> u64 {
        MACHINE_KEYS | (self.0 as u64) << KEY_BITS | key
    }
}

/// Why an operation on a machine failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The runtime has as many machines as it may have, or has used all identifiers.
    #[error("the endpoint has {MACHINES_MAX} protocols beside its own, the most there can be")]
    NoneLeft,
    /// The machine was detached, or is of another type.
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
    /// Reports to the machine, under `key`, when a descriptor is ready. For a descriptor that is
    /// already watched, replaces the key and the readiness. The descriptor must be
    /// [unwatched](Descriptors::unwatch) before it is closed. Keys are below 2^32; each machine has
    /// its own.
    ///
    /// # Errors
    /// The error of the system call that failed, `InvalidInput` for a larger key, or `NotConnected` if
    /// the runtime has ended.
    pub fn watch(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        if key >> KEY_BITS != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let shared = self.shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        // A forked child would change the epoll set of its parent.
        shared.home.check().map_err(io::Error::other)?;
        // The set exists already, so a sleeping thread polls it.
        shared.host.sleeper.auxiliary.watch(fd, self.id.common_key(key), ready)
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
    /// Machines attached so far.
    count: u32,
    /// When the first machine wants its next turn.
    due: Instant,
    /// Completion queues to report.
    pub(crate) fired: Vec<Arc<CompletionQueue>>,
}

impl Machines {
    pub(crate) const fn new() -> Self {
        Self { attached: Vec::new(), count: 0, due: Instant::NEVER, fired: Vec::new() }
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

    /// Passes a descriptor that is ready to the machine that watches it under this key of the epoll
    /// set.
    pub(crate) fn on_descriptor(&mut self, common_key: u64, ready: Readiness) {
        let key = common_key & KEY_MAX;
        let found = self.attached.iter_mut().find(|(id, _)| id.common_key(key) == common_key);
        if let Some((_, machine)) = found {
            machine.on_descriptor(key, ready);
        }
    }

    /// Makes a turn of each machine. Returns the results combined.
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
        // A sleeping thread may have armed a later time.
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

/// Most machines at one time: each takes part in each turn.
const MACHINES_MAX: usize = 16;

/// First key of machines. The runtime's own keys below are those of auxiliary sockets.
pub(crate) const MACHINE_KEYS: u64 = 3 << 62;

/// Low bits of a key that the machine chooses; 30 bits are left to identify the machine.
const KEY_BITS: u32 = 32;
const KEY_MAX: u64 = (1 << KEY_BITS) - 1;
const ID_MAX: u32 = (1 << (62 - KEY_BITS)) - 1;

//! Machines: other protocols than the engine's, driven beside it by the same threads.

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
/// Its methods are called inside the engine, by whichever thread makes turns: they must be quick, must not
/// wait, and must not call the runtime.
pub trait Machine: Any + Send {
    /// Attaches the machine, which has descriptors watched by `descriptors` until it is detached.
    fn attached(&mut self, descriptors: Descriptors) {
        let _ = descriptors;
    }

    /// Reads, writes, runs timers: what there is to do, within reason. It is called once in each turn of the
    /// engine, after [`Machine::on_descriptor`], so a turn with nothing to do must cost next to nothing.
    fn turn(&mut self, now: Instant, memory: &MemoryAccess<'_>) -> Progress;

    /// Handles a descriptor that the machine has [watched](Descriptors::watch) under this key and that is ready; it
    /// is called in each turn for as long as the descriptor is ready. One that the machine has just unwatched may
    /// be reported once more.
    fn on_descriptor(&mut self, key: u64, ready: Readiness);

    /// Moves completion queues that were armed, and have got what they were armed for since the last call, to
    /// `fired`. It is called after each turn.
    fn take_fired(&mut self, fired: &mut Vec<Arc<CompletionQueue>>) {
        let _ = fired;
    }

    /// Prepares for the end of the process: the machine notifies its peers, in the turns that follow.
    fn close(&mut self, now: Instant);

    /// Whether after [`Machine::close`] there is still a peer to notify. The end of the process waits for that, for 100
    /// ms at most.
    fn is_closing(&self) -> bool;
}

/// What came of a turn of a machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress {
    /// Something has changed that others may wait for.
    pub worked: bool,
    /// More waits: the next turn is to follow at once.
    pub more: bool,
    /// There is news of connections: threads that wait for [`Interest::News`](crate::Interest::News) are woken.
    pub news: bool,
    /// When it wants its next turn at the latest, should no descriptor be ready before.
    pub due: Instant,
}

impl Progress {
    /// There was nothing to do, and nothing will be until a descriptor is ready.
    pub const NONE: Self = Self { worked: false, more: false, news: false, due: Instant::NEVER };
}

/// Which machine of a runtime. No later one of the runtime has the same.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct MachineId(u32);

impl MachineId {
    /// The key in the common set of what the machine calls `key`.
    const fn common_key(self, key: u64) -> u64 {
        MACHINE_KEYS | (self.0 as u64) << KEY_BITS | key
    }
}

/// Why nothing could be done with a machine.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The runtime has as many as it may, or has had.
    #[error("the endpoint has {MACHINES_MAX} protocols beside its own, the most there can be")]
    NoneLeft,
    /// It was detached, or is of another type.
    #[error("the endpoint has no such protocol")]
    NotThere,
    /// Descriptors cannot be watched.
    #[error("cannot make an epoll set (raise the limit of descriptors with `ulimit -n`?)")]
    Watch(#[source] io::Error),
    /// In a forked child.
    #[error(transparent)]
    Forked(#[from] Forked),
}

/// Has descriptors of one machine watched. It is of no use when the machine is detached, and must not be used
/// then.
#[derive(Clone, Debug)]
pub struct Descriptors {
    shared: Weak<Shared>,
    id: MachineId,
}

impl Descriptors {
    /// Reports to the machine, under `key`, when a descriptor is ready, or changes what it is watched for. It must be
    /// [unwatched](Descriptors::unwatch) before it is closed. Keys are below 2^32, and those of other machines are
    /// others.
    ///
    /// # Errors
    /// The error of the system call that failed.
    pub fn watch(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        if key >> KEY_BITS != 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let shared = self.shared.upgrade().ok_or(io::ErrorKind::NotConnected)?;
        // A child would change the parent's set.
        shared.home.check().map_err(io::Error::other)?;
        // Who sleeps knows the set, which was made before.
        shared.host.sleeper.auxiliary.watch(fd, self.id.common_key(key), ready)
    }

    /// Stops reporting a descriptor to the machine; false if it was not watched.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) -> bool {
        let Some(shared) = self.shared.upgrade() else { return false };
        shared.home.check().is_ok() && shared.host.sleeper.auxiliary.unwatch(fd)
    }
}

/// The machines of an endpoint, at most [`MACHINES_MAX`].
pub(crate) struct Machines {
    attached: Vec<(MachineId, Box<dyn Machine>)>,
    /// How many there have been.
    count: u32,
    /// When the first of them wants its next turn.
    due: Instant,
    /// Queues to report.
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

    /// Takes a machine away; its descriptors are not watched any more.
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

    /// A descriptor is ready that is watched under this key of the common set.
    pub(crate) fn on_descriptor(&mut self, common_key: u64, ready: Readiness) {
        let key = common_key & KEY_MAX;
        let found = self.attached.iter_mut().find(|(id, _)| id.common_key(key) == common_key);
        if let Some((_, machine)) = found {
            machine.on_descriptor(key, ready);
        }
    }

    /// Each has its turn; what came of all of them.
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
        // A thread may be asleep until a later time.
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

/// Machines at a time: each takes part in each turn.
const MACHINES_MAX: usize = 16;

/// Keys from here on are those of machines; the runtime's own before that are of doors.
pub(crate) const MACHINE_KEYS: u64 = 3 << 62;

/// Bits of a key that are the machine's; 30 are left to say which machine.
const KEY_BITS: u32 = 32;
const KEY_MAX: u64 = (1 << KEY_BITS) - 1;
const ID_MAX: u32 = (1 << (62 - KEY_BITS)) - 1;

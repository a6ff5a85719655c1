//! Maps the identifiers in completions to queue pairs, and the device's queues to the queues of
//! this crate.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use work::Owner;
use work::SharedReceives;

use crate::async_event::{AsyncEventKind, EventElement};
use crate::attributes::PortState;
use crate::completion_queue::CompletionQueue;
use crate::device::Context;
use crate::queue_pair::QueuePair;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Finds queue pairs and other objects of verbs by the identifiers that a wire uses for them. A
/// wire is the transport protocol that carries the work of queue pairs, such as the edge protocol.
#[derive(Debug, Default)]
pub struct Registry {
    owners: RwLock<HashMap<u64, Arc<QueuePair>>>,
    /// The queue pairs of the device, by their numbers.
    numbers: RwLock<HashMap<u32, Weak<QueuePair>>>,
    /// Number that is incremented when an owner is removed.
    version: AtomicU64,
    queues: RwLock<HashMap<usize, Weak<CompletionQueue>>>,
    receives: RwLock<HashMap<usize, Weak<SharedReceiveQueue>>>,
    contexts: Mutex<Vec<Weak<Context>>>,
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Registers `owner` for the queue pair: completions with this owner belong to the queue pair.
    /// A queue pair may have several owners. The wire (the transport) must call this function
    /// before a completion with the owner can arrive.
    pub fn own(&self, owner: Owner, queue_pair: &Arc<QueuePair>) {
        queue_pair.add_owner(owner);
        write(&self.owners).insert(owner.bits(), Arc::clone(queue_pair));
    }

    /// Raises the events of completion queues that were armed and now have a matching completion.
    /// The caller must be outside the engine.
    pub fn on_completions(&self, queues: &[Arc<work::CompletionQueue>]) {
        for queue in queues {
            let found = read(&self.queues).get(&name(queue)).and_then(Weak::upgrade);
            if let Some(queue) = found {
                queue.on_completion();
            }
        }
    }

    /// Reports that a shared queue has fewer receives than its limit. May be called inside the
    /// engine.
    pub fn on_below_limit(&self, receives: &Arc<SharedReceives>) {
        let found = read(&self.receives).get(&name(receives)).and_then(Weak::upgrade);
        if let Some(queue) = found {
            queue.on_below_limit();
        }
    }

    /// Reports that the port is up or down. May be called inside the engine.
    pub fn on_port(&self, state: PortState) {
        let kind = match state {
            PortState::Active => AsyncEventKind::PortActive,
            PortState::Down => AsyncEventKind::PortError,
        };
        self.raise(kind, &EventElement::Port(1));
    }

    /// Reports that the table of GIDs has changed.
    pub fn on_gids_changed(&self) {
        self.raise(AsyncEventKind::GidChange, &EventElement::Port(1));
    }

    /// Reports that the device has failed.
    pub fn on_device_failed(&self) {
        self.raise(AsyncEventKind::DeviceFatal, &EventElement::Device);
    }

    fn raise(&self, kind: AsyncEventKind, element: &EventElement) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| {
            let context = context.upgrade();
            if let Some(context) = &context {
                context.raise(kind, element.clone());
            }
            context.is_some()
        });
    }

    /// Calls `visit` for every queue pair that has an owner. If a queue pair has several owners,
    /// calls `visit` once for each of them. During this call, no thread can add or remove an owner.
    pub fn visit_queue_pairs(&self, visit: impl FnMut(&Arc<QueuePair>)) {
        read(&self.owners).values().for_each(visit);
    }

    /// Returns the queue pair of the device with this number. Returns `None` if there is no such
    /// queue pair, or if it was destroyed.
    pub fn by_number(&self, number: u32) -> Option<Arc<QueuePair>> {
        read(&self.numbers).get(&number).and_then(Weak::upgrade)
    }

    pub(crate) fn add_queue_pair(&self, queue_pair: &Arc<QueuePair>) {
        write(&self.numbers).insert(queue_pair.number(), Arc::downgrade(queue_pair));
    }

    pub(crate) fn remove_queue_pair(&self, queue_pair: &QueuePair) {
        write(&self.numbers).remove(&queue_pair.number());
    }

    /// Returns the completion queues of the device.
    pub fn completion_queues(&self) -> Vec<Arc<CompletionQueue>> {
        read(&self.queues).values().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn add_context(&self, context: &Arc<Context>) {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.retain(|context| context.strong_count() > 0);
        contexts.push(Arc::downgrade(context));
    }

    pub(crate) fn add_queue(&self, queue: &Arc<CompletionQueue>) {
        write(&self.queues).insert(name(queue.work()), Arc::downgrade(queue));
    }

    pub(crate) fn remove_queue(&self, queue: &CompletionQueue) {
        write(&self.queues).remove(&name(queue.work()));
    }

    pub(crate) fn add_receives(&self, queue: &Arc<SharedReceiveQueue>) {
        write(&self.receives).insert(name(queue.receives()), Arc::downgrade(queue));
    }

    pub(crate) fn remove_receives(&self, queue: &SharedReceiveQueue) {
        write(&self.receives).remove(&name(queue.receives()));
    }

    /// Returns a number that changes whenever an owner is removed. A cache of owners stores this
    /// number. If the number has changed, an owner in the cache may be invalid.
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the queue pair of an owner.
    pub(crate) fn find(&self, owner: Owner) -> Option<Arc<QueuePair>> {
        read(&self.owners).get(&owner.bits()).cloned()
    }

    /// Unregisters these owners. The library drops completions for these owners that arrive later.
    pub fn disown(&self, owners: &[Owner]) {
        if owners.is_empty() {
            return;
        }
        let mut known = write(&self.owners);
        for owner in owners {
            known.remove(&owner.bits());
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }
}

/// Returns the memory address of a shared object. This address identifies the object.
fn name<T>(object: &Arc<T>) -> usize {
    Arc::as_ptr(object).addr()
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

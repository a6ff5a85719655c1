//! The work of a queue pair, and how its doorbell reaches the machine of the streams.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use delivery::Instant;
use engine::Engine;
use mem::{MemoryAccess, ProtectionDomain};
use runtime::{Posted, Rest, SourceDoorbell, WorkSource};
use verbs::{Error, QueuePair};

/// A queue pair of the device, as the machine and the calls of the program share it.
pub(crate) struct QueuePairSource {
    queue_pair: Arc<QueuePair>,
    domain: ProtectionDomain,
    receive_domain: ProtectionDomain,
    doorbell: SourceDoorbell,
    rung: Arc<RungStreams>,
    /// The stream that carries the queue pair; [`NO_STREAM`] if none does.
    stream: AtomicU64,
    /// Whether the program waits until no send is in flight.
    drains: AtomicBool,
    /// Whether a message of the peer waits for a receive.
    wants_receives: AtomicBool,
}

impl QueuePairSource {
    /// # Errors
    /// Returns the errors of [`QueuePair::domain`].
    pub(crate) fn new(queue_pair: &Arc<QueuePair>, rung: &Arc<RungStreams>) -> Result<Self, Error> {
        Ok(Self {
            queue_pair: Arc::clone(queue_pair),
            domain: queue_pair.domain()?,
            receive_domain: queue_pair.receive_domain()?,
            doorbell: SourceDoorbell::new(),
            rung: Arc::clone(rung),
            stream: AtomicU64::new(NO_STREAM),
            drains: AtomicBool::new(false),
            wants_receives: AtomicBool::new(false),
        })
    }

    pub(crate) const fn queue_pair(&self) -> &Arc<QueuePair> {
        &self.queue_pair
    }

    pub(crate) const fn domain(&self) -> ProtectionDomain {
        self.domain
    }

    /// Returns the domain in which the memory of receives is resolved. It differs from that of the
    /// queue pair if a shared receive queue has another one.
    pub(crate) const fn receive_domain(&self) -> ProtectionDomain {
        self.receive_domain
    }

    /// Returns the stream that carries the queue pair.
    pub(crate) fn stream(&self) -> Option<u64> {
        let stream = self.stream.load(Ordering::Acquire);
        (stream != NO_STREAM).then_some(stream)
    }

    /// Sets the stream that carries the queue pair, or none.
    pub(crate) fn set_stream(&self, stream: Option<u64>) {
        self.stream.store(stream.unwrap_or(NO_STREAM), Ordering::Release);
    }

    /// Requests that the queue pair is notified as soon as no send is in flight.
    pub(crate) fn drain(&self) {
        self.drains.store(true, Ordering::Relaxed);
    }

    /// Sets whether a message of the peer waits for a receive.
    pub(crate) fn set_wants_receives(&self, wants: bool) {
        self.wants_receives.store(wants, Ordering::SeqCst);
    }

    /// Returns whether a message of the peer waits for a receive. If the answer comes too early, the
    /// machine finds the receive at its next look.
    pub(crate) fn wants_receives(&self) -> bool {
        self.wants_receives.load(Ordering::SeqCst)
    }

    /// Returns whether the program waits until no send is in flight, and forgets it.
    pub(crate) fn takes_drain(&self) -> bool {
        self.drains.load(Ordering::Relaxed) && self.drains.swap(false, Ordering::Relaxed)
    }
}

impl WorkSource for QueuePairSource {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        self.queue_pair.is_idle()
    }

    fn is_urgent(&self) -> bool {
        self.queue_pair.has_first_send()
    }

    fn is_of_machine(&self) -> bool {
        true
    }

    fn post(&self, _: &mut Engine, _: &MemoryAccess<'_>, _: Instant, _: u32) -> Posted {
        if let Some(stream) = self.stream() {
            self.rung.add(stream);
        }
        // Count one piece of work, so that the runtime counts the turn as a turn with work.
        Posted { count: 1, rest: Rest::Nothing }
    }
}

/// The streams whose doorbells were rung since the last turn of the machine. Only the thread inside
/// the engine uses the list, so its lock is always free.
#[derive(Debug, Default)]
pub(crate) struct RungStreams {
    list: Mutex<Vec<u64>>,
}

impl RungStreams {
    fn add(&self, stream: u64) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
    }

    /// Moves the streams to `into`.
    pub(crate) fn take(&self, into: &mut Vec<u64>) {
        into.append(&mut self.list.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Value of [`QueuePairSource::stream`] if no stream carries the queue pair.
const NO_STREAM: u64 = u64::MAX;

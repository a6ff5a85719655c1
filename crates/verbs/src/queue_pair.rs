//! Queue pairs.

mod ending;
mod inline_memory;
mod modify;
mod posting;
mod slots;
mod transitions;
mod wire_side;
mod work_ring;

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};

use work::Owner;

use crate::acknowledged::Unacknowledged;
use crate::async_event::{AsyncEventKind, EventElement};
use crate::attributes::{
    DeviceAttributes, QueuePairAttributes, QueuePairLimits, QueuePairState, Strictness,
};
use crate::completion_queue::{CompletionQueue, MARKS};
use crate::device::Context;
use crate::error::Error;
use crate::protection_domain::ProtectionDomain;
use crate::provider::{Provider, Wire};
use crate::services::QueuePairType;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::uses::Uses;

pub(crate) use self::ending::Side;
use self::inline_memory::InlineMemory;
pub use self::modify::{AttributeMask, Modification, QueuePairQuery};
pub(crate) use self::posting::check_pieces;
use self::posting::{Carried, Posting};
pub use self::posting::{ReceivePosting, SendPosting};
pub use self::slots::Inline;
use self::slots::{ReceiveSlot, SendSlot};
pub use self::wire_side::{TakenReceive, TakenSend};
use self::work_ring::WorkRing;

/// Parameters of a new queue pair.
#[derive(Clone, Debug)]
pub struct QueuePairInit {
    /// Transport service.
    pub service: QueuePairType,
    /// Completion queue of sends.
    pub send_queue: Arc<CompletionQueue>,
    /// Completion queue of receives. This may be the same queue as `send_queue`.
    pub receive_queue: Arc<CompletionQueue>,
    /// Shared receive queue, if the queue pair uses one.
    pub shared_queue: Option<Arc<SharedReceiveQueue>>,
    /// Minimum sizes. [`QueuePair::limits`] returns the actual sizes.
    pub limits: QueuePairLimits,
    /// Whether every send generates a completion, also those without the flag
    /// `SendFlags::signalled`.
    pub signals_all: bool,
}

/// A queue pair.
pub struct QueuePair {
    this: Weak<Self>,
    domain: Arc<ProtectionDomain>,
    number: u32,
    service: QueuePairType,
    carried: Carried,
    limits: QueuePairLimits,
    signals_all: bool,
    send_queue: Arc<CompletionQueue>,
    receive_queue: Arc<CompletionQueue>,
    shared: Option<Arc<SharedReceiveQueue>>,
    uses: Uses,
    /// The [`QueuePairState`] as a number.
    state: AtomicU8,
    attributes: Mutex<QueuePairAttributes>,
    /// Locked during a transition, so that only one transition runs at a time.
    modifying: Mutex<()>,
    sends: WorkRing<SendSlot>,
    receives: WorkRing<ReceiveSlot>,
    posting_sends: Mutex<Posting>,
    posting_receives: Mutex<Posting>,
    inline: InlineMemory,
    wire: RwLock<Option<Box<dyn Wire>>>,
    owners: Mutex<Vec<Owner>>,
    /// Multicast groups that the queue pair has joined.
    groups: Mutex<Vec<crate::attributes::Gid>>,
    end: ending::End,
    events: Unacknowledged,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

impl QueuePair {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        init: &QueuePairInit,
    ) -> Result<Arc<Self>, Error> {
        let context = domain.context();
        let attributes = context.device().attributes();
        check_init(context, attributes, init)?;
        context
            .begin("queue pairs", attributes.queue_pairs_max, |counts| &mut counts.queue_pairs)?;
        let result = UsedObjects::take(domain, init).and_then(|held| {
            let made = Self::make(domain, init);
            if made.is_err() {
                held.let_go();
            }
            made
        });
        result.inspect_err(|_| context.end(|counts| &mut counts.queue_pairs))
    }

    fn make(domain: &Arc<ProtectionDomain>, init: &QueuePairInit) -> Result<Arc<Self>, Error> {
        let provider = domain.context().provider();
        let (table, memory_domain) = domain.memory()?;
        let number = provider.reserve_number(init.service)?;
        let limits = limits_of(provider.attributes(), init);
        let made = Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            domain: Arc::clone(domain),
            number,
            service: init.service,
            carried: Carried::by(provider.attributes(), init.service),
            limits,
            signals_all: init.signals_all,
            send_queue: Arc::clone(&init.send_queue),
            receive_queue: Arc::clone(&init.receive_queue),
            shared: init.shared_queue.clone(),
            uses: Uses::default(),
            state: AtomicU8::new(QueuePairState::Reset as u8),
            attributes: Mutex::default(),
            modifying: Mutex::default(),
            sends: WorkRing::new(limits.sends, || SendSlot::new(limits.send_pieces)),
            receives: WorkRing::new(limits.receives, || ReceiveSlot::new(limits.receive_pieces)),
            posting_sends: Mutex::default(),
            posting_receives: Mutex::default(),
            inline: InlineMemory::new(table, memory_domain, limits),
            wire: RwLock::new(None),
            owners: Mutex::default(),
            groups: Mutex::default(),
            end: ending::End::default(),
            events: Unacknowledged::default(),
            user: AtomicUsize::new(0),
        });
        let wire = provider.wire(&made).inspect_err(|_| provider.release_number(number))?;
        *made.wire.write().unwrap_or_else(PoisonError::into_inner) = Some(wire);
        for queue in [&made.send_queue, &made.receive_queue] {
            queue.enlist(&made);
        }
        provider.registry().add_queue_pair(&made);
        Ok(made)
    }

    /// Returns the queue pair number. Peers use it as the queue pair's address.
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the transport service.
    pub const fn service(&self) -> QueuePairType {
        self.service
    }

    /// Returns the actual sizes of the queues.
    pub const fn limits(&self) -> QueuePairLimits {
        self.limits
    }

    /// Returns whether every send generates a completion.
    pub const fn signals_all(&self) -> bool {
        self.signals_all
    }

    /// Returns the state.
    #[inline]
    pub fn state(&self) -> QueuePairState {
        QueuePairState::of_number(self.state.load(Ordering::SeqCst))
    }

    /// Returns the protection domain.
    pub const fn protection_domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the context that the queue pair belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.domain.context()
    }

    /// Returns the completion queue of sends.
    pub const fn send_queue(&self) -> &Arc<CompletionQueue> {
        &self.send_queue
    }

    /// Returns the completion queue of receives.
    pub const fn receive_queue(&self) -> &Arc<CompletionQueue> {
        &self.receive_queue
    }

    /// Returns the shared receive queue, if the queue pair uses one.
    pub const fn shared_queue(&self) -> Option<&Arc<SharedReceiveQueue>> {
        self.shared.as_ref()
    }

    /// Unregisters all completion owners of this queue pair. The library drops completions for
    /// these owners that arrive later.
    pub fn disown(&self) {
        let owners = std::mem::take(&mut *lock(&self.owners));
        self.provider().registry().disown(&owners);
    }

    /// Joins a multicast group if `is_member` is true, otherwise leaves it.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the GID is not a multicast address.
    /// * Returns [`Error::Invalid`] if the queue pair does not carry datagrams.
    /// * Returns [`Error::Invalid`] if the queue pair is to leave a group that it has not joined.
    /// * Returns the errors of the wire, the transport that carries the work of the queue pair.
    pub fn set_membership(
        &self,
        group: crate::attributes::Gid,
        is_member: bool,
    ) -> Result<(), Error> {
        self.provider().check()?;
        if self.service != QueuePairType::Datagram || !group.is_group() {
            return Err(Error::Invalid("only queue pairs for datagrams are in groups".into()));
        }
        let mut groups = lock(&self.groups);
        let at = groups.iter().position(|known| *known == group);
        match (at, is_member) {
            (Some(_), true) => return Ok(()),
            (None, false) => {
                return Err(Error::Invalid("the queue pair is not in the group".into()));
            }
            _ => {}
        }
        self.with_wire(|wire| wire.set_membership(group, is_member)).unwrap_or(Ok(()))?;
        match at {
            None => groups.push(group),
            Some(at) => drop(groups.swap_remove(at)),
        }
        Ok(())
    }

    /// Destroys the queue pair. Waits until the program has acknowledged every event of the queue
    /// pair that the program has read.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the queue pair is already destroyed.
    /// * Returns [`Error::Busy`] if the queue pair is in a multicast group.
    /// * Returns [`Error::NoDevice`] in a forked child.
    pub fn destroy(&self) -> Result<(), Error> {
        self.provider().check()?;
        if !lock(&self.groups).is_empty() {
            return Err(Error::Busy("the queue pair is in a group".into()));
        }
        self.uses.destroy("queue pair")?;
        let _modifying = lock(&self.modifying);
        self.send_out();
        self.enter(QueuePairState::Reset);
        let wire = self.wire.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(wire) = wire {
            wire.close();
        }
        self.purge();
        self.disown();
        self.inline.release();
        self.context().forget_events(|element| {
            matches!(element, EventElement::QueuePair(of) if std::ptr::eq(Arc::as_ptr(of), self))
        });
        self.events.wait();
        for queue in [&self.send_queue, &self.receive_queue] {
            queue.strike(self);
        }
        self.provider().registry().remove_queue_pair(self);
        self.provider().release_number(self.number);
        UsedObjects::of(self).let_go();
        self.context().end(|counts| &mut counts.queue_pairs);
        Ok(())
    }

    /// Returns the strictness of the device.
    pub fn strictness(&self) -> Strictness {
        self.provider().attributes().strictness
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        self.domain.context().provider()
    }

    pub(crate) const fn async_events(&self) -> &Unacknowledged {
        &self.events
    }

    pub(crate) fn add_owner(&self, owner: Owner) {
        lock(&self.owners).push(owner);
    }

    fn enter(&self, state: QueuePairState) {
        self.state.store(state as u8, Ordering::SeqCst);
    }

    fn with_wire<R>(&self, call: impl FnOnce(&dyn Wire) -> R) -> Option<R> {
        let wire = self.wire.read().unwrap_or_else(PoisonError::into_inner);
        wire.as_deref().map(call)
    }

    fn lock_attributes(&self) -> MutexGuard<'_, QueuePairAttributes> {
        lock(&self.attributes)
    }

    fn raise(&self, kind: AsyncEventKind) {
        if let Some(this) = self.this.upgrade() {
            self.context().raise(kind, EventElement::QueuePair(this));
        }
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, service, state) = (self.number, self.service, self.state());
        f.debug_struct("QueuePair")
            .field("number", &number)
            .field("service", &service)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

/// The objects that a queue pair references.
struct UsedObjects<'a> {
    domain: &'a ProtectionDomain,
    send_queue: &'a CompletionQueue,
    receive_queue: &'a CompletionQueue,
    shared: Option<&'a SharedReceiveQueue>,
    /// Number of places in the completion queue of sends for completions that the program does not
    /// receive.
    unreported_sends: u32,
}

impl<'a> UsedObjects<'a> {
    fn of(queue_pair: &'a QueuePair) -> Self {
        Self {
            domain: &queue_pair.domain,
            send_queue: &queue_pair.send_queue,
            receive_queue: &queue_pair.receive_queue,
            shared: queue_pair.shared.as_deref(),
            unreported_sends: unreported_sends(queue_pair.service, queue_pair.limits.sends),
        }
    }

    /// Adds a user to each object that the new queue pair references. On an error, adds a user to
    /// none of the objects.
    fn take(domain: &'a ProtectionDomain, init: &'a QueuePairInit) -> Result<Self, Error> {
        let (send_queue, receive_queue) = (&*init.send_queue, &*init.receive_queue);
        let held = Self {
            domain,
            send_queue,
            receive_queue,
            shared: init.shared_queue.as_deref(),
            unreported_sends: unreported_sends(init.service, init.limits.sends),
        };
        let mut begun = Vec::new();
        for (uses, what) in held.uses() {
            if let Err(error) = uses.begin_of(what) {
                begun.into_iter().for_each(Uses::end);
                return Err(error);
            }
            begun.push(uses);
        }
        send_queue.attach(held.unreported_sends);
        receive_queue.attach(MARKS);
        Ok(held)
    }

    fn let_go(&self) {
        self.send_queue.detach(self.unreported_sends);
        self.receive_queue.detach(MARKS);
        for (uses, _) in self.uses() {
            uses.end();
        }
    }

    fn uses(&self) -> impl Iterator<Item = (&'a Uses, &'static str)> + use<'a> {
        let shared = self.shared.map(|shared| (shared.uses(), "shared receive queue"));
        [
            (self.domain.uses(), "protection domain"),
            (self.send_queue.uses(), "completion queue"),
            (self.receive_queue.uses(), "completion queue"),
        ]
        .into_iter()
        .chain(shared)
    }
}

/// Returns the number of places in a completion queue for completions of sends that the program
/// does not receive. Each datagram needs such a place, because the device reports the completion of
/// every datagram, and this completion stays in the queue until the program polls.
fn unreported_sends(service: QueuePairType, sends: u32) -> u32 {
    if service == QueuePairType::Datagram { sends.max(MARKS) } else { MARKS }
}

fn check_init(
    context: &Arc<Context>,
    attributes: &DeviceAttributes,
    init: &QueuePairInit,
) -> Result<(), Error> {
    if !attributes.services.has(init.service) {
        let (name, transport) = (&attributes.name, attributes.transport());
        let what = format!(
            "{:?} queue pairs on {name}, a device with the transport {transport}",
            init.service
        );
        return Err(Error::NotSupported(what));
    }
    let limits = &init.limits;
    let max = attributes.work_requests_max;
    for (what, wanted, max) in [
        ("send work requests", limits.sends, max),
        ("receive work requests", limits.receives, max),
        ("pieces of a send", limits.send_pieces, attributes.pieces_max),
        ("pieces of a receive", limits.receive_pieces, attributes.pieces_max),
        ("inline bytes", limits.inline, attributes.inline_max),
    ] {
        if wanted > max {
            return Err(Error::Invalid(format!("{wanted} {what}: the device has {max}")));
        }
    }
    for queue in [&init.send_queue, &init.receive_queue] {
        if !Arc::ptr_eq(queue.context(), context) {
            return Err(Error::Invalid("the completion queue is of another context".into()));
        }
    }
    let Some(shared) = &init.shared_queue else { return Ok(()) };
    if !Arc::ptr_eq(shared.domain().context(), context) {
        return Err(Error::Invalid("the shared receive queue is of another context".into()));
    }
    Ok(())
}

/// Returns the actual sizes. Each is the size that the program asked for, with three exceptions:
/// the numbers of entries are at least 1, a queue pair with a shared receive queue has no receives
/// of its own, and a lenient device gives its maximum of inline bytes.
fn limits_of(attributes: &DeviceAttributes, init: &QueuePairInit) -> QueuePairLimits {
    let mut limits = init.limits;
    if init.shared_queue.is_some() {
        (limits.receives, limits.receive_pieces) = (0, 0);
    }
    limits.send_pieces = limits.send_pieces.max(1);
    limits.receive_pieces = limits.receive_pieces.max(1);
    if attributes.strictness == Strictness::Lenient {
        limits.inline = attributes.inline_max;
    }
    limits
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

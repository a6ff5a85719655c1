//! Devices and their contexts.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::async_event::{AsyncEvent, AsyncEventKind, EventElement};
use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes};
use crate::completion_channel::CompletionChannel;
use crate::completion_queue::CompletionQueue;
use crate::error::Error;
use crate::event_queue::EventQueue;
use crate::expected_waits::ExpectedWaits;
use crate::protection_domain::ProtectionDomain;
use crate::provider::Provider;
use crate::uses::Uses;

/// A device.
pub struct Device {
    provider: Arc<dyn Provider>,
}

impl Device {
    /// Creates the device of a provider.
    ///
    /// # Panics
    /// Panics if the provider's attributes contradict each other. That is a fault of the provider.
    pub fn new(provider: Arc<dyn Provider>) -> Arc<Self> {
        let attributes = provider.attributes();
        assert!(attributes.message_bytes_max <= work::OPERATION_BYTES_MAX);
        assert!(attributes.read_pieces_max <= attributes.pieces_max);
        Arc::new(Self { provider })
    }

    /// Returns the provider of the device.
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Returns the limits and abilities of the device.
    pub fn attributes(&self) -> &DeviceAttributes {
        self.provider.attributes()
    }

    /// Returns the name of the device.
    pub fn name(&self) -> &str {
        &self.attributes().name
    }

    /// Opens the device.
    ///
    /// # Errors
    /// * Returns [`Error::NoDevice`] in a forked child.
    /// * Returns [`Error::System`] if the process can open no more file descriptors.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        self.provider.check()?;
        let context = Arc::new(Context {
            device: Arc::clone(self),
            uses: Uses::default(),
            events: EventQueue::new()?,
            counts: Mutex::default(),
            waits: ExpectedWaits::default(),
            user: AtomicUsize::new(0),
        });
        self.provider.registry().add_context(&context);
        Ok(context)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    uses: Uses,
    events: EventQueue<AsyncEvent>,
    counts: Mutex<Counts>,
    waits: ExpectedWaits,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

/// Number of objects of each kind in a context.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) domains: u32,
    pub(crate) completion_queues: u32,
    pub(crate) queue_pairs: u32,
    pub(crate) shared_queues: u32,
    pub(crate) regions: u32,
    pub(crate) windows: u32,
    pub(crate) address_handles: u32,
}

impl Context {
    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn provider(&self) -> &dyn Provider {
        &*self.device.provider
    }

    /// Returns how the program waits for events of this context's completion queues.
    pub(crate) const fn waits(&self) -> &ExpectedWaits {
        &self.waits
    }

    /// Closes the context.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if objects of the context exist.
    pub fn close(&self) -> Result<(), Error> {
        self.provider().check()?;
        self.uses.destroy("device context")
    }

    /// Returns the current attributes of the port.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the port does not exist.
    pub fn query_port(&self, port: u8) -> Result<PortAttributes, Error> {
        self.provider().check()?;
        check_port(port)?;
        Ok(self.provider().port())
    }

    /// Returns the GID table of the port.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn gids(&self) -> Result<Vec<GidEntry>, Error> {
        self.provider().check()?;
        Ok(self.provider().gids())
    }

    /// Returns one entry of the port's GID table.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the port or the index does not exist.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<GidEntry, Error> {
        check_port(port)?;
        let gids = self.gids()?;
        let entry = gids.into_iter().find(|entry| entry.index == index);
        entry.ok_or_else(|| Error::Invalid(format!("there is no GID with index {index}")))
    }

    /// Returns the partition key at `index`. The table has one entry, at index 0, or none if the
    /// transport has no partitions.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the port or the index does not exist.
    pub fn query_partition_key(&self, port: u8, index: u16) -> Result<u16, Error> {
        check_port(port)?;
        if index >= self.device.attributes().transport().partition_keys() {
            return Err(Error::Invalid(format!("there is no partition key with index {index}")));
        }
        Ok(DEFAULT_PARTITION_KEY)
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// Returns [`Error::NoRoom`] if the device has its maximum number of domains.
    pub fn allocate_domain(self: &Arc<Self>) -> Result<Arc<ProtectionDomain>, Error> {
        ProtectionDomain::new(self)
    }

    /// Creates a completion channel.
    ///
    /// # Errors
    /// Returns [`Error::System`] if the process can open no more file descriptors.
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<CompletionChannel>, Error> {
        CompletionChannel::new(self)
    }

    /// Creates a completion queue of at least `entries` entries. Its events go to `channel`, if
    /// there is one.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the size is out of range.
    /// * Returns [`Error::NoRoom`] if the device has its maximum number of completion queues.
    pub fn create_completion_queue(
        self: &Arc<Self>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
    ) -> Result<Arc<CompletionQueue>, Error> {
        CompletionQueue::new(self, entries, channel, None)
    }

    /// Creates a completion queue like [`Context::create_completion_queue`] that also records the
    /// arrival time of each completion. [`crate::WorkCompletion::at_ns`] contains this time.
    /// `clock` returns the current time in nanoseconds.
    ///
    /// # Errors
    /// Returns the errors of [`Context::create_completion_queue`].
    pub fn create_stamped_completion_queue(
        self: &Arc<Self>,
        entries: u32,
        channel: Option<&Arc<CompletionChannel>>,
        clock: fn() -> u64,
    ) -> Result<Arc<CompletionQueue>, Error> {
        CompletionQueue::new(self, entries, channel, Some(clock))
    }

    /// Returns a descriptor that is readable if an asynchronous event is queued.
    pub fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.events.descriptor()
    }

    /// Dequeues the oldest asynchronous event. Waits for an event unless the descriptor is
    /// non-blocking.
    ///
    /// # Errors
    /// * Returns [`Error::Again`] if no event is queued and the descriptor is non-blocking.
    /// * Returns [`Error::System`] if a signal interrupts the wait.
    pub fn get_event(&self) -> Result<AsyncEvent, Error> {
        self.provider().check()?;
        self.events.get(|event| event.element.on_taken(), |_ready| ())
    }

    /// Acknowledges an asynchronous event.
    pub fn acknowledge_event(&self, event: &AsyncEvent) {
        event.element.acknowledge();
    }

    /// Queues an asynchronous event.
    pub(crate) fn raise(&self, kind: AsyncEventKind, element: EventElement) {
        self.events.push(AsyncEvent { kind, element });
    }

    /// Drops unread events of an object that is being destroyed.
    pub(crate) fn forget_events(&self, is_of: impl Fn(&EventElement) -> bool) {
        self.events.retain(|event| !is_of(&event.element));
    }

    /// Counts a new object of this context. Returns an error if the limit for such objects is
    /// reached.
    pub(crate) fn begin(
        &self,
        what: &str,
        max: u32,
        count: impl FnOnce(&mut Counts) -> &mut u32,
    ) -> Result<(), Error> {
        self.provider().check()?;
        self.uses.begin_of("device context")?;
        let mut counts = self.counts();
        let count = count(&mut counts);
        if *count >= max {
            drop(counts);
            self.uses.end();
            return Err(Error::NoRoom(format!("all {max} {what} are in use")));
        }
        *count += 1;
        Ok(())
    }

    /// Subtracts a destroyed object from the count of its kind.
    pub(crate) fn end(&self, count: impl FnOnce(&mut Counts) -> &mut u32) {
        *count(&mut self.counts()) -= 1;
        self.uses.end();
    }

    /// Returns the counter of the objects that use this context. A channel adds itself to this
    /// counter directly and not by `Context::begin`, because the number of channels has no limit.
    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks a port number. A device has only port 1.
pub(crate) fn check_port(port: u8) -> Result<(), Error> {
    if port == 1 {
        Ok(())
    } else {
        Err(Error::Invalid(format!("port {port}: there is port 1 only")))
    }
}

/// Returns the value that the C API stores with an object.
pub(crate) fn cookie(user: &AtomicUsize) -> usize {
    user.load(Ordering::Acquire)
}

/// Partition key of the default partition, of which every port is a member.
const DEFAULT_PARTITION_KEY: u16 = 0xffff;

//! Protection domains. A domain determines which memory a queue pair may access.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use mem::MemoryTable;

use crate::access::AccessFlags;
use crate::address_handle::AddressHandle;
use crate::attributes::{AddressVectorAttributes, GidEntry};
use crate::device::Context;
use crate::error::Error;
use crate::memory_region::MemoryRegion;
use crate::memory_window::{MemoryWindow, WindowType};
use crate::queue_pair::{QueuePair, QueuePairInit};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::uses::Uses;

/// A protection domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    context: Arc<Context>,
    uses: Uses,
    /// The domain in the device's memory table. The library creates it on first use, because this
    /// starts the device.
    memory: Mutex<Option<mem::ProtectionDomain>>,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        let max = context.device().attributes().domains_max;
        context.begin("protection domains", max, |counts| &mut counts.domains)?;
        let context = Arc::clone(context);
        let memory = Mutex::new(None);
        Ok(Arc::new(Self { context, uses: Uses::default(), memory, user: AtomicUsize::new(0) }))
    }

    /// Returns the context that the domain belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) const fn uses(&self) -> &Uses {
        &self.uses
    }

    /// Returns the memory table and this domain's identifier in it.
    pub(crate) fn memory(&self) -> Result<(Arc<MemoryTable>, mem::ProtectionDomain), Error> {
        let table = self.context.provider().memory()?;
        let mut domain = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(domain) = *domain {
            return Ok((table, domain));
        }
        let made = table.allocate_domain();
        if made == mem::ProtectionDomain::NONE {
            return Err(Error::NoRoom("all protection domains are in use".into()));
        }
        *domain = Some(made);
        Ok((table, made))
    }

    /// Deallocates the domain.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if objects use the domain.
    pub fn deallocate(&self) -> Result<(), Error> {
        self.context.provider().check()?;
        self.uses.destroy("protection domain")?;
        let domain = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(domain) = domain {
            let table = self.context.provider().memory()?;
            // This fails only if the domain has regions. It has none, because each region counts as
            // a user, and with users `destroy` would have failed.
            let _ = table.release_domain(domain);
        }
        self.context.end(|counts| &mut counts.domains);
        Ok(())
    }

    /// Registers the `length` bytes at `address` of this process. Peers use `remote_address` as the
    /// address of the first byte.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if flags contradict each other or the range is invalid.
    /// * Returns [`Error::NotSupported`] if unknown flags are set.
    /// * Returns [`Error::NoRoom`] if a limit is reached.
    /// * Returns [`Error::System`] with `EFAULT` if the memory is not mapped.
    pub fn register(
        self: &Arc<Self>,
        address: usize,
        length: u64,
        remote_address: u64,
        access: AccessFlags,
    ) -> Result<Arc<MemoryRegion>, Error> {
        MemoryRegion::new(self, address, length, remote_address, access)
    }

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    /// * Returns [`Error::NotSupported`] if the device has no memory windows.
    /// * Returns [`Error::NoRoom`] if the device has its maximum number of windows.
    pub fn allocate_window(self: &Arc<Self>, kind: WindowType) -> Result<Arc<MemoryWindow>, Error> {
        MemoryWindow::new(self, kind)
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if a size exceeds the device's limit.
    /// * Returns [`Error::NoRoom`] if the device has its maximum number of shared receive queues.
    pub fn create_shared_queue(
        self: &Arc<Self>,
        receives: u32,
        pieces: u32,
    ) -> Result<Arc<SharedReceiveQueue>, Error> {
        SharedReceiveQueue::new(self, receives, pieces)
    }

    /// Creates a queue pair in the state RESET.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if a size exceeds the device's limit.
    /// * Returns [`Error::NoRoom`] if the device has its maximum number of queue pairs.
    /// * Returns [`Error::NotSupported`] if the device does not have the transport service.
    pub fn create_queue_pair(
        self: &Arc<Self>,
        init: &QueuePairInit,
    ) -> Result<Arc<QueuePair>, Error> {
        QueuePair::new(self, init)
    }

    /// Creates an address handle.
    ///
    /// # Errors
    /// * Returns [`Error::NotSupported`] if the device has no datagrams.
    /// * Returns [`Error::Invalid`] if the address has no GID, or if its source GID index is not in
    ///   the table.
    pub fn create_address_handle(
        self: &Arc<Self>,
        to: &AddressVectorAttributes,
    ) -> Result<Arc<AddressHandle>, Error> {
        AddressHandle::new(self, to)
    }

    /// Returns the entry at `index` of this side's GID table.
    pub(crate) fn gid_at(&self, index: u8) -> Result<GidEntry, Error> {
        self.context.query_gid(1, index.into())
    }
}

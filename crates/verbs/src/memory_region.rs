//! Memory regions.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mem::{MemoryTable, Region, RegisterError};

use crate::access::AccessFlags;
use crate::error::Error;
use crate::protection_domain::ProtectionDomain;
use crate::registration;
use crate::uses::Uses;

/// A memory region.
#[derive(Debug)]
pub struct MemoryRegion {
    uses: Uses,
    table: Arc<MemoryTable>,
    current: Mutex<Current>,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

/// Attributes of a region; re-registration may change each of them.
#[derive(Clone, Debug)]
struct Current {
    domain: Arc<ProtectionDomain>,
    region: Region,
    address: usize,
    access: AccessFlags,
}

impl MemoryRegion {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        address: usize,
        length: u64,
        remote_address: u64,
        access: AccessFlags,
    ) -> Result<Arc<Self>, Error> {
        let max = domain.context().device().attributes().regions_max;
        domain.context().begin("memory regions", max, |counts| &mut counts.regions)?;
        let made = domain.uses().begin_of("protection domain").and_then(|()| {
            insert(domain, address, length, remote_address, access)
                .inspect_err(|_| domain.uses().end())
        });
        let (table, region) =
            made.inspect_err(|_| domain.context().end(|counts| &mut counts.regions))?;
        let current = Current { domain: Arc::clone(domain), region, address, access };
        Ok(Arc::new(Self {
            uses: Uses::default(),
            table,
            current: Mutex::new(current),
            user: AtomicUsize::new(0),
        }))
    }

    /// Returns the protection domain.
    pub fn domain(&self) -> Arc<ProtectionDomain> {
        Arc::clone(&self.current().domain)
    }

    /// Returns the key of the region, which is both its `lkey` and its `rkey`.
    pub fn key(&self) -> u32 {
        self.current().region.key.0
    }

    /// Returns the address at which the region begins in this process.
    pub fn address(&self) -> usize {
        self.current().address
    }

    /// Returns the address that work requests and peers use for the region's first byte.
    pub fn remote_address(&self) -> u64 {
        self.current().region.start
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a length in bytes, not a collection")]
    pub fn len(&self) -> u64 {
        self.current().region.len
    }

    /// Returns the access rights.
    pub fn access(&self) -> AccessFlags {
        self.current().access
    }

    /// Changes those attributes of the region that are set in `change`. The key stays the same.
    /// When the call returns, neither peers nor work requests of this side can access the old
    /// memory with the old rights.
    ///
    /// # Errors
    /// * Returns the errors of [`ProtectionDomain::register`].
    /// * Returns [`Error::Busy`] if windows are bound to the region.
    ///
    /// After an error, the region is unchanged.
    pub fn reregister(&self, change: &Reregistration<'_>) -> Result<(), Error> {
        let mut current = self.current();
        current.domain.context().provider().check()?;
        let domain = change.domain.unwrap_or(&current.domain);
        let access = change.access.unwrap_or(current.access);
        let remote_offset = current.region.start.wrapping_sub(current.address as u64);
        let (address, length) = change.range.unwrap_or((current.address, current.region.len));
        let remote_address = if change.range.is_some() {
            first_address(address, access)
        } else {
            remote_offset.wrapping_add(address as u64)
        };
        let rights = access.of_region()?;
        check_length(domain, length)?;
        let domain = Arc::clone(domain);
        domain.uses().begin_of("protection domain")?;
        let (table, id) = (&self.table, current.region.id);
        let changed = domain.memory().and_then(|(_, name)| {
            registration::change(table, id, name, address, length, remote_address, rights)
                .map_err(|error| of_registration(&error))
        });
        let region = changed.inspect_err(|_| domain.uses().end())?;
        current.domain.uses().end();
        *current = Current { domain, region, address, access };
        Ok(())
    }

    /// Deregisters the region. After the call, the library does not access the region's memory.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if windows are bound to the region.
    pub fn deregister(&self) -> Result<(), Error> {
        let current = self.current();
        current.domain.context().provider().check()?;
        self.uses.destroy("memory region")?;
        if let Err(error) = self.deregister_now(current.region.id)
            && matches!(error, Error::Busy(_))
        {
            self.uses.revive();
            return Err(error);
        }
        current.domain.uses().end();
        current.domain.context().end(|counts| &mut counts.regions);
        Ok(())
    }

    fn deregister_now(&self, region: mem::RegionId) -> Result<(), Error> {
        self.table.deregister(region).map_err(|error| of_registration(&error))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes of a re-registration. Attributes that are `None` keep their values.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reregistration<'a> {
    /// New protection domain, of the same device.
    pub domain: Option<&'a Arc<ProtectionDomain>>,
    /// New memory: address and length in bytes.
    pub range: Option<(usize, u64)>,
    /// New access rights.
    pub access: Option<AccessFlags>,
}

fn insert(
    domain: &ProtectionDomain,
    address: usize,
    length: u64,
    remote_address: u64,
    access: AccessFlags,
) -> Result<(Arc<MemoryTable>, Region), Error> {
    let rights = access.of_region()?;
    check_length(domain, length)?;
    let (table, name) = domain.memory()?;
    let region = registration::register(&table, name, address, length, remote_address, rights)
        .map_err(|error| of_registration(&error))?;
    Ok((table, region))
}

fn check_length(domain: &ProtectionDomain, length: u64) -> Result<(), Error> {
    let max = domain.context().device().attributes().region_bytes_max;
    if length > max {
        return Err(Error::Invalid(format!("{length} bytes: a region has at most {max}")));
    }
    Ok(())
}

/// Returns the address that peers use for the first byte of a region if the program does not choose
/// that address.
pub const fn first_address(address: usize, access: AccessFlags) -> u64 {
    if access.contains(AccessFlags::ZERO_BASED) { 0 } else { address as u64 }
}

/// Translates an error of the memory table into an error of verbs.
pub(crate) fn of_registration(error: &RegisterError) -> Error {
    let what = error.to_string();
    match error {
        RegisterError::Unreadable { .. } | RegisterError::Unwritable { .. } => {
            Error::System { what, number: nix::libc::EFAULT }
        }
        RegisterError::TableFull { .. } | RegisterError::TooManyWindows => Error::NoRoom(what),
        RegisterError::WindowsBound { .. } | RegisterError::DomainBusy { .. } => Error::Busy(what),
        _ => Error::Invalid(what),
    }
}

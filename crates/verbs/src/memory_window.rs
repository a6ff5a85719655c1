//! Memory windows: parts of regions that are opened and shut by work requests.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use wire_edge::RemoteKey;

use crate::access::AccessFlags;
use crate::attributes::QueuePairType;
use crate::error::Error;
use crate::memory_region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::QueuePair;
use crate::uses::Uses;
use crate::work_request::SendOpcode;

/// The types of windows (IBA volume 1, 10.6.7.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowType {
    /// Bound by a call, which chooses the key; every queue pair of the domain reaches it.
    One,
    /// Bound by a work request that says the key; the queue pair reaches it on which it was bound.
    Two,
}

/// A memory window.
#[derive(Debug)]
pub struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    kind: WindowType,
    /// The key that was posted last.
    key: AtomicU32,
    uses: Uses,
    /// Whatever the surface keeps with it.
    pub user: AtomicUsize,
}

/// What a window shall be.
#[derive(Clone, Copy, Debug)]
pub struct WindowBinding<'a> {
    /// The region; `None` to bind it to nothing, as a length of 0 does.
    pub region: Option<&'a MemoryRegion>,
    /// First address, as the region names it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// What peers may do.
    pub access: AccessFlags,
    /// The key, of a window of type 2: all but its low 8 bits are those that it has.
    pub key: Option<u32>,
}

impl MemoryWindow {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        kind: WindowType,
    ) -> Result<Arc<Self>, Error> {
        domain.uses().begin_of("protection domain")?;
        let max = domain.context().device().attributes().windows_max;
        let begun = domain.context().begin("memory windows", max, |counts| &mut counts.windows);
        if let Err(error) = begun {
            domain.uses().end();
            return Err(error);
        }
        Ok(Arc::new(Self {
            domain: Arc::clone(domain),
            kind,
            key: AtomicU32::new(new_key()),
            uses: Uses::default(),
            user: AtomicUsize::new(0),
        }))
    }

    /// Returns its domain.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns its type.
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the key that it has when all that was posted is done.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Returns the work request that binds it so, to be posted to `queue_pair`; once it is posted, call
    /// [`MemoryWindow::on_posted`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the binding contradicts the window, the region or the queue pair.
    pub fn bind(
        &self,
        queue_pair: &QueuePair,
        binding: &WindowBinding<'_>,
    ) -> Result<SendOpcode, Error> {
        let invalid = |what: &str| Err(Error::Invalid(what.into()));
        self.domain.context().provider().check()?;
        if queue_pair.service() == QueuePairType::Datagram {
            return invalid("windows are bound on connected queue pairs");
        }
        if !Arc::ptr_eq(queue_pair.protection_domain(), &self.domain) {
            return invalid("the window is of another protection domain than the queue pair");
        }
        binding.access.of_window()?;
        let replaced = self.key();
        let key = match (self.kind, binding.key) {
            (WindowType::One, None) => next_key(replaced),
            (WindowType::Two, Some(key)) if key >> 8 == replaced >> 8 => key,
            (WindowType::One, Some(_)) => return invalid("a window of type 1 chooses its key"),
            (WindowType::Two, None) => return invalid("a window of type 2 is bound with a key"),
            (WindowType::Two, Some(_)) => {
                return invalid("only the low 8 bits of a window's key may change");
            }
        };
        let region_key = match binding.region.filter(|_| binding.length > 0) {
            Some(region) => self.check_region(region, binding)?,
            None if binding.length > 0 => return invalid("a window needs a region"),
            None => 0,
        };
        Ok(SendOpcode::BindWindow {
            kind: self.kind,
            replaced,
            key,
            region_key,
            address: binding.address,
            length: binding.length,
            access: binding.access.0,
        })
    }

    fn check_region(
        &self,
        region: &MemoryRegion,
        binding: &WindowBinding<'_>,
    ) -> Result<u32, Error> {
        let invalid = |what: &str| Err(Error::Invalid(what.into()));
        if !Arc::ptr_eq(&region.domain(), &self.domain) {
            return invalid("the window is of another protection domain than the region");
        }
        if !region.access().contains(AccessFlags::WINDOW_BIND) {
            return invalid("the region was not registered for windows");
        }
        let changing = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC);
        if binding.access.intersects(changing)
            && !region.access().contains(AccessFlags::LOCAL_WRITE)
        {
            return invalid("a window that peers change needs a region that may be written to");
        }
        let offset = binding.address.checked_sub(region.remote_address());
        let is_inside = offset
            .and_then(|offset| offset.checked_add(binding.length))
            .is_some_and(|end| end <= region.len());
        if is_inside { Ok(region.key()) } else { invalid("the window is not within its region") }
    }

    /// Records that the work request that [`MemoryWindow::bind`] made was posted.
    pub fn on_posted(&self, request: &SendOpcode) {
        if let SendOpcode::BindWindow { key, .. } = request {
            self.key.store(*key, Ordering::Release);
        }
    }

    /// Deallocates the window; it opens nothing any more.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it was.
    pub fn deallocate(&self) -> Result<(), Error> {
        self.domain.context().provider().check()?;
        self.uses.destroy("memory window")?;
        let table = self.domain.context().provider().memory()?;
        // Work that was posted and not begun may bind it still; the key is of no other window.
        table.unbind(RemoteKey(self.key()));
        self.domain.context().end(|counts| &mut counts.windows);
        self.domain.uses().end();
        Ok(())
    }
}

/// Returns the key after this one, of the same window.
pub const fn next_key(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// The first key of a window: the upper 24 bits are its own, and hard to guess. That a region has the key is unlikely
/// and found when the window is bound.
fn new_key() -> u32 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // An odd factor and a fixed sum map 24 bits to 24 bits, so no two of 16 million windows have the same.
    let mut hasher = STATE.get_or_init(RandomState::new).build_hasher();
    hasher.write_u8(0);
    let secret = hasher.finish();
    let (factor, sum) = (secret as u32 | 1, (secret >> 32) as u32);
    number.wrapping_mul(factor).wrapping_add(sum) << 8 | 1
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_windows_have_the_same_keys() {
        let keys: HashSet<u32> = (0..10_000).map(|_| new_key() >> 8).collect();
        assert_eq!(keys.len(), 10_000);
    }

    #[test]
    fn the_next_key_differs_in_its_low_byte_only() {
        assert_eq!(next_key(0x1234_56ff), 0x1234_5600);
        assert_eq!(next_key(0x1234_5600), 0x1234_5601);
    }
}

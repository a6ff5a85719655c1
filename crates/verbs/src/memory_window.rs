//! Memory windows. A work request binds a window to a part of a region, and so makes this part
//! accessible to peers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use wire_edge::RemoteKey;

use crate::access::AccessFlags;
use crate::error::Error;
use crate::memory_region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::QueuePair;
use crate::services::{Operation, QueuePairType};
use crate::uses::Uses;
use crate::work_request::SendOpcode;

/// Types of memory windows (IBA volume 1, 10.6.7.2).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WindowType {
    /// Type 1: a call binds the window and chooses its key. The peers of all queue pairs of the
    /// protection domain can access the window.
    One,
    /// Type 2: a work request binds the window and contains its key. Only the peer of the queue
    /// pair to which the program posted this work request can access the window.
    Two,
}

/// A memory window.
#[derive(Debug)]
pub struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    kind: WindowType,
    /// The key in the last posted bind.
    key: AtomicU32,
    uses: Uses,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

/// Parameters of a bind.
#[derive(Clone, Copy, Debug)]
pub struct WindowBinding<'a> {
    /// The memory region. If there is no region or the length is 0, the request unbinds the window.
    pub region: Option<&'a MemoryRegion>,
    /// Address of the window's first byte. It is an address that peers use for the region.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights of peers.
    pub access: AccessFlags,
    /// New key of a window of type 2. It may differ from the present key only in the low 8 bits.
    /// `None` for a window of type 1.
    pub key: Option<u32>,
}

impl MemoryWindow {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        kind: WindowType,
    ) -> Result<Arc<Self>, Error> {
        let attributes = domain.context().device().attributes();
        if !attributes.services.all_operations().contains(Operation::BindWindow) {
            let what = format!("memory windows on {}", attributes.name);
            return Err(Error::NotSupported(what));
        }
        domain.uses().begin_of("protection domain")?;
        let max = attributes.windows_max;
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

    /// Returns the protection domain.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the type.
    pub const fn kind(&self) -> WindowType {
        self.kind
    }

    /// Returns the key that the window will have when all posted work is complete.
    pub fn key(&self) -> u32 {
        self.key.load(Ordering::Acquire)
    }

    /// Returns the work request that binds the window. The caller posts this work request to
    /// `queue_pair`, and then calls [`MemoryWindow::on_posted`].
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the binding contradicts the window, the region or the queue
    /// pair.
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
            return invalid("the window and the queue pair belong to different protection domains");
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
            return invalid("the window and the region belong to different protection domains");
        }
        if !region.access().contains(AccessFlags::WINDOW_BIND) {
            return invalid("the region was not registered for windows");
        }
        let changing = AccessFlags::REMOTE_WRITE.union(AccessFlags::REMOTE_ATOMIC);
        if binding.access.intersects(changing)
            && !region.access().contains(AccessFlags::LOCAL_WRITE)
        {
            return invalid(
                "a window with remote write or atomic access needs a region with local write access",
            );
        }
        let offset = binding.address.checked_sub(region.remote_address());
        let is_inside = offset
            .and_then(|offset| offset.checked_add(binding.length))
            .is_some_and(|end| end <= region.len());
        if is_inside { Ok(region.key()) } else { invalid("the window is not within its region") }
    }

    /// Records that the caller has posted the work request that [`MemoryWindow::bind`] returned.
    pub fn on_posted(&self, request: &SendOpcode) {
        if let SendOpcode::BindWindow { key, .. } = request {
            self.key.store(*key, Ordering::Release);
        }
    }

    /// Deallocates the window. Peers cannot access memory through it any more.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the window is already deallocated.
    pub fn deallocate(&self) -> Result<(), Error> {
        self.domain.context().provider().check()?;
        self.uses.destroy("memory window")?;
        let table = self.domain.context().provider().memory()?;
        // If a bind is posted but has not begun, it can still bind the window after this call. This
        // harms no other window, because no other window has the same key.
        table.unbind(RemoteKey(self.key()));
        self.domain.context().end(|counts| &mut counts.windows);
        self.domain.uses().end();
        Ok(())
    }
}

/// Returns the next key of the same window. Increments the low 8 bits of `key`.
pub const fn next_key(key: u32) -> u32 {
    key & !0xff | (key + 1) & 0xff
}

/// Returns the first key of a window. The upper 24 bits are unique to the window and hard to guess.
/// It is unlikely that a region has the same key. If a region has it, a bind of the window fails.
fn new_key() -> u32 {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    static MADE: AtomicU32 = AtomicU32::new(0);
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    // With an odd factor, `number * factor + sum` maps each number of 24 bits to a different number
    // of 24 bits. Therefore 16 million windows have different keys.
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

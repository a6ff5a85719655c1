//! Memory windows: parts of regions with their own keys. Binding and ending a window need no
//! registration.

use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

use wire_edge::RemoteKey;

use super::{MemoryTable, ProtectionDomain, WHOLE_ADDRESS_SPACE_KEY};
use crate::error::{AccessError, RegisterError};
use crate::rights::Rights;
use crate::slot::RegionId;

/// A part of a region that has its own key for peers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// The region that contains the window.
    pub region: RegionId,
    /// Offset of the window in the region, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The address that peers use for the first byte of the window.
    pub remote_start: u64,
    /// Rights of peers in the window, independent of the rights of peers in the region. If the
    /// rights allow changes, the region must have [`Rights::LOCAL_WRITE`].
    pub rights: Rights,
    /// The connections that may use the key.
    pub reach: Reach,
}

/// The connections that may use the key of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reach {
    /// Every connection of the region's domain.
    Domain,
    /// One connection, identified by a number that is unique among all connections.
    Connection(u64),
}

/// The windows of a table.
///
/// A lock protects the windows. A lookup takes the lock only if no region has the key, and a window
/// was ever bound.
#[derive(Debug, Default)]
pub(super) struct Windows {
    by_key: HashMap<RemoteKey, Window>,
    by_region: HashMap<RegionId, u32>,
}

impl Windows {
    fn insert(&mut self, key: RemoteKey, window: Window) {
        self.by_key.insert(key, window);
        *self.by_region.entry(window.region).or_default() += 1;
    }

    fn remove(&mut self, key: RemoteKey) -> Option<Window> {
        let window = self.by_key.remove(&key)?;
        if let Some(count) = self.by_region.get_mut(&window.region) {
            *count -= 1;
            if *count == 0 {
                self.by_region.remove(&window.region);
            }
        }
        Some(window)
    }
}

impl MemoryTable {
    /// Binds a window to a key that the program chooses.
    ///
    /// # Errors
    /// Returns one of these errors:
    ///
    /// * [`RegisterError::KeyInUse`] if a region or window has the key, or the key is reserved;
    /// * [`RegisterError::UnknownRegion`] or [`RegisterError::ForeignRegion`] if there is no such
    ///   region;
    /// * [`RegisterError::OutsideRegion`] if the window is not within the region;
    /// * [`RegisterError::Wraps`] if the remote addresses exceed the address space;
    /// * [`RegisterError::WindowRights`] if peers could change bytes that this side may not change;
    /// * [`RegisterError::TooManyWindows`] if the limit is reached.
    pub fn bind(&self, key: RemoteKey, window: Window) -> Result<(), RegisterError> {
        let Window { region, offset, len, remote_start, rights, .. } = window;
        self.check_region(region)?;
        if remote_start.checked_add(len).is_none() {
            return Err(RegisterError::Wraps { start: remote_start, len });
        }
        // While this thread holds the lock, the region cannot end and no new region can get the
        // key.
        let _registry = self.registry();
        let unknown = RegisterError::UnknownRegion { region };
        let slot = self.slots.get(region.index()).ok_or(unknown)?;
        let state = slot.state();
        if !state.is_live(region.generation()) || state.is_revoked() {
            return Err(unknown);
        }
        let region_bytes = slot.len.load(Ordering::Relaxed);
        if offset.checked_add(len).is_none_or(|end| end > region_bytes) {
            return Err(RegisterError::OutsideRegion { offset, len, region_bytes });
        }
        if !state.rights().contains(own_rights(rights)) {
            return Err(RegisterError::WindowRights { wanted: rights, granted: state.rights() });
        }
        let mut windows = self.windows_mut();
        if windows.by_key.contains_key(&key) || self.is_key_of_region(key) {
            return Err(RegisterError::KeyInUse { key });
        }
        if windows.by_key.len() >= WINDOWS_MAX {
            return Err(RegisterError::TooManyWindows);
        }
        windows.insert(key, window);
        self.has_windows.store(true, Ordering::Release);
        Ok(())
    }

    /// Ends a window by its key, for all peers. Accesses that the engine has already validated may
    /// continue until the end of the turn. If the engine has already accepted a peer's read, it may
    /// still send the answer.
    pub fn unbind(&self, key: RemoteKey) -> Option<Window> {
        self.windows_mut().remove(key)
    }

    /// Ends a window on behalf of one end of a connection. The window must be bound for this
    /// connection, and its region must belong to the connection's domain.
    ///
    /// # Errors
    /// Returns [`AccessError::InvalidKey`] if there is no such window.
    pub fn invalidate(
        &self,
        domain: ProtectionDomain,
        connection: u64,
        key: RemoteKey,
    ) -> Result<Window, AccessError> {
        let unknown = AccessError::InvalidKey { name: u64::from(key.0) };
        let mut windows = self.windows_mut();
        let window = *windows.by_key.get(&key).ok_or(unknown)?;
        let is_own = window.reach == Reach::Connection(connection)
            && self.domain_of_region(window.region) == Some(domain);
        if !is_own {
            return Err(unknown);
        }
        windows.remove(key).ok_or(unknown)
    }

    /// Returns the window that a connection reaches under this key.
    #[cold]
    pub(crate) fn find_window(
        &self,
        domain: ProtectionDomain,
        connection: u64,
        key: RemoteKey,
    ) -> Option<Window> {
        if !self.has_windows.load(Ordering::Acquire) {
            return None;
        }
        let window = *self.windows().by_key.get(&key)?;
        let reaches = [Reach::Domain, Reach::Connection(connection)].contains(&window.reach);
        (reaches && self.domain_of_region(window.region) == Some(domain)).then_some(window)
    }

    /// Fails if windows are bound to the region. The caller must hold the registry's lock.
    pub(super) fn check_without_windows(&self, region: RegionId) -> Result<(), RegisterError> {
        match self.windows().by_region.get(&region) {
            None => Ok(()),
            Some(&windows) => Err(RegisterError::WindowsBound { region, windows }),
        }
    }

    /// Ends all windows of a region. The caller must hold the registry's lock.
    pub(super) fn unbind_all(&self, region: RegionId) {
        if !self.has_windows.load(Ordering::Acquire) {
            return;
        }
        let mut windows = self.windows_mut();
        windows.by_key.retain(|_, window| window.region != region);
        windows.by_region.remove(&region);
    }

    /// Returns whether a window has the key.
    pub(super) fn is_key_of_window(&self, key: RemoteKey) -> bool {
        self.has_windows.load(Ordering::Acquire) && self.windows().by_key.contains_key(&key)
    }

    /// Returns whether a region has the key, or the key is reserved.
    fn is_key_of_region(&self, key: RemoteKey) -> bool {
        if [RemoteKey(0), WHOLE_ADDRESS_SPACE_KEY].contains(&key) {
            return true;
        }
        let opened = self.open_key(key);
        let slot = self.slots.get(opened.index);
        slot.is_some_and(|slot| slot.state().is_live_key(opened.generation))
    }

    fn domain_of_region(&self, region: RegionId) -> Option<ProtectionDomain> {
        let slot = self.slots.get(region.index())?;
        slot.state().is_live(region.generation()).then(|| self.domain_of(slot))
    }

    fn windows(&self) -> RwLockReadGuard<'_, Windows> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows_mut(&self) -> RwLockWriteGuard<'_, Windows> {
        self.windows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the rights that the owner of a region needs for a window with `rights`. If a peer
/// changes bytes through a window, the owner's endpoint writes these bytes for the peer, so the
/// owner needs [`Rights::LOCAL_WRITE`].
pub(crate) const fn own_rights(rights: Rights) -> Rights {
    if rights.intersects(Rights::CHANGING) { Rights::LOCAL_WRITE } else { Rights::NONE }
}

/// Largest number of windows of a table. It equals the largest number of regions.
const WINDOWS_MAX: usize = super::TableLimits::REGIONS_MAX as usize;

#[cfg(test)]
mod tests;

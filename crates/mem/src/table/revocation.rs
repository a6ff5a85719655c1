//! Revocation of regions: peers can no longer use a revoked region, but pending local work can.

use super::MemoryTable;
use crate::error::RegisterError;
use crate::gate::TurnGate;
use crate::slot::RegionId;
use crate::slot::{Slot, SlotState};

impl MemoryTable {
    /// Returns whether the table keeps the memory of a region alive. The table does so if the
    /// region is a [`Buffer`](crate::Buffer). Other memory belongs to the program, which may unmap
    /// it when [`MemoryTable::deregister`] has returned.
    pub fn keeps_alive(&self, region: RegionId) -> bool {
        let registry = self.registry();
        let owner = registry.owners.get(region.index() as usize);
        let is_live = self.check_region(region).and_then(|()| self.live_state(region)).is_ok();
        is_live && owner.is_some_and(Option::is_some)
    }

    /// Revokes a region: its key and its windows become invalid. Local work can use the region
    /// until [`MemoryTable::deregister`].
    ///
    /// A turn in progress may already have validated a peer's access.
    /// [`MemoryTable::wait_for_accesses`] waits for such turns.
    ///
    /// # Errors
    /// Returns [`RegisterError::UnknownRegion`] if the region has ended,
    /// [`RegisterError::ForeignRegion`] if the region belongs to another table.
    pub fn revoke(&self, region: RegionId) -> Result<(), RegisterError> {
        self.check_region(region)?;
        let _registry = self.registry();
        let state = self.live_state(region)?;
        self.unbind_all(region);
        if let Some(slot) = self.slots.get(region.index()) {
            slot.set_state(state.revoked());
        }
        Ok(())
    }

    /// Returns when every access that began before the call has ended. After that, peers cannot
    /// reach regions that were [revoked](MemoryTable::revoke) before the call. If the calling
    /// thread is inside an access, returns at once, because the thread would wait for itself.
    pub fn wait_for_accesses(&self) {
        if !TurnGate::inside_this_thread() {
            self.gate.wait();
        }
    }

    /// Returns the state of a region that has not ended. The caller must hold the registry's lock.
    fn live_state(&self, region: RegionId) -> Result<SlotState, RegisterError> {
        let state = self.slots.get(region.index()).map(Slot::state);
        let state = state.filter(|state| state.is_live(region.generation()));
        state.ok_or(RegisterError::UnknownRegion { region })
    }
}

#[cfg(test)]
mod tests {
    use wire_edge::RemoteKey;

    use super::*;
    use crate::buffer::Buffer;
    use crate::error::AccessError;
    use crate::rights::Rights;
    use crate::table::{ProtectionDomain, Reach, Region, TableLimits, Window};

    fn table() -> (MemoryTable, ProtectionDomain) {
        let table = MemoryTable::new(TableLimits::default(), [1, 2]);
        let domain = table.allocate_domain();
        (table, domain)
    }

    fn everything() -> Rights {
        Rights::LOCAL_WRITE | Rights::REMOTE
    }

    #[test]
    fn a_revoked_region_is_inaccessible_to_peers_and_still_usable_by_its_owner() {
        let (table, domain) = table();
        let buffer = Buffer::new(64);
        let region = table.register(domain, buffer.clone(), everything()).unwrap();
        let granted = |want| table.access().resolve(domain, region.key, region.start, 8, want);
        let before = [Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC]
            .map(|want| (want, granted(want).unwrap()));
        table.revoke(region.id).unwrap();

        let gone = AccessError::InvalidKey { name: region.id.to_raw() };
        let access = table.access();
        for (want, target) in &before {
            assert!(matches!(granted(*want), Err(AccessError::InvalidKey { .. })));
            assert_eq!(access.resolve_again(target, region.start, 8).unwrap_err(), gone);
        }
        assert_eq!(access.source_of(&before[0].1, 0, 8).unwrap_err(), gone);
        assert_eq!(access.place(&before[1].1, 0, &[1]).unwrap_err(), gone);
        assert_eq!(access.fetch_add(&before[2].1, 1).unwrap_err(), gone);

        let own = access.resolve_local(region.id, 0, 8, Rights::LOCAL_WRITE).unwrap();
        access.place(&own, 0, &[7]).unwrap();
        assert_eq!(access.source(region.id, 0, 8).unwrap().len, 8);
        drop(access);
        assert_eq!((buffer.load_u8(0), table.regions()), (7, 1));
        table.deregister(region.id).unwrap();
        assert_eq!(table.regions(), 0);
    }

    #[test]
    fn windows_of_a_revoked_region_end_and_new_ones_are_refused() {
        let (table, domain) = table();
        let Region { id, .. } = table.register(domain, Buffer::new(64), everything()).unwrap();
        let other = table.register(domain, Buffer::new(64), everything()).unwrap();
        let window = |region| Window {
            region,
            offset: 0,
            len: 8,
            remote_start: 0,
            rights: Rights::REMOTE_READ,
            reach: Reach::Domain,
        };
        let keys = [RemoteKey(1001), RemoteKey(1002), RemoteKey(1003)];
        table.bind(keys[0], window(id)).unwrap();
        table.bind(keys[1], window(other.id)).unwrap();
        table.revoke(id).unwrap();
        let reads =
            |key| table.access().resolve_for(domain, 0, key, 0, 8, Rights::REMOTE_READ).is_ok();
        assert_eq!(keys.map(reads), [false, true, false]);
        let unknown = RegisterError::UnknownRegion { region: id };
        assert_eq!(table.bind(keys[2], window(id)), Err(unknown));
        table.deregister(id).unwrap();
    }

    #[test]
    fn only_memory_of_buffers_is_kept_alive() {
        let (table, domain) = table();
        let buffer = Buffer::new(64);
        // SAFETY: the buffer outlives the table's use of it.
        let raw = unsafe { table.register_raw(domain, buffer.as_ptr(), 64, Rights::NONE) }.unwrap();
        let kept = table.register(domain, buffer, Rights::NONE).unwrap();
        assert!(table.keeps_alive(kept.id) && !table.keeps_alive(raw.id));
        table.deregister(kept.id).unwrap();
        assert!(!table.keeps_alive(kept.id) && !table.keeps_alive(RegionId::NONE));
        let unknown = RegisterError::UnknownRegion { region: kept.id };
        assert_eq!(table.revoke(kept.id), Err(unknown));
        let foreign = RegisterError::ForeignRegion { region: RegionId::NONE };
        assert_eq!(table.revoke(RegionId::NONE), Err(foreign));
    }
}

//! The table of protection domains and regions: registration and deregistration.

mod revocation;
mod windows;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use wire_edge::{KeyedPermutation, RemoteKey};

use crate::access::MemoryAccess;
use crate::buffer::Buffer;
use crate::error::RegisterError;
use crate::gate::TurnGate;
use crate::ghost::{self, GhostPlacement};
use crate::payload::Payload;
use crate::rights::Rights;
use crate::slot::RegionId;
use crate::slot::{
    GrowingArray, KEY_GENERATION_BITS, KEY_GENERATION_MASK, KEY_SLOT_BITS, Slot, SlotKind,
    SlotState,
};
use crate::{fault, probe};

use windows::Windows;
pub(crate) use windows::own_rights;
pub use windows::{Reach, Window};

/// The protection domains and memory regions of one endpoint, shared between application threads
/// and the engine.
///
/// A region's key is the encryption of its table index and generation, so a peer cannot guess keys
/// that it was not given. Looking up a key takes a few nanoseconds of arithmetic and one cache
/// line. Lookups take no lock, because the table rewrites an entry only after every access that
/// could read the entry has ended.
#[derive(Debug)]
pub struct MemoryTable {
    /// Number of this table, unique in the process. Identifiers of domains and regions contain this
    /// number.
    number: u32,
    limits: TableLimits,
    permutation: KeyedPermutation,
    slots: GrowingArray<Slot>,
    /// For each domain index, the raw [`RegionId`] of the domain's whole-address-space region; 0 if
    /// there is none.
    whole_address_spaces: GrowingArray<AtomicU64>,
    gate: TurnGate,
    registry: Mutex<Registry>,
    ghosts: Mutex<Vec<GhostPlacement>>,
    /// The windows. A thread that needs both locks takes the lock of the registry first.
    windows: RwLock<Windows>,
    /// Set when the first window is bound.
    has_windows: AtomicBool,
}

impl MemoryTable {
    /// Creates an empty table. The table encrypts its region keys with `key`, which should be
    /// random.
    pub fn new(limits: TableLimits, key: [u64; 2]) -> Self {
        let limits = TableLimits {
            regions_max: limits.regions_max.min(TableLimits::REGIONS_MAX),
            domains_max: limits.domains_max.min(TableLimits::DOMAINS_MAX),
        };
        Self {
            number: NEXT_TABLE.fetch_add(1, Ordering::Relaxed),
            limits,
            permutation: KeyedPermutation::new(key),
            slots: GrowingArray::new(limits.regions_max),
            whole_address_spaces: GrowingArray::new(limits.domains_max),
            gate: TurnGate::new(),
            registry: Mutex::new(Registry::default()),
            ghosts: Mutex::new(Vec::new()),
            windows: RwLock::default(),
            has_windows: AtomicBool::new(false),
        }
    }

    /// Returns the limits in force.
    pub const fn limits(&self) -> TableLimits {
        self.limits
    }

    /// Allocates a protection domain. If all domains are in use, returns
    /// [`ProtectionDomain::NONE`], in which registrations and lookups fail.
    pub fn allocate_domain(&self) -> ProtectionDomain {
        let mut registry = self.registry();
        let known = registry.domains.len() as u32;
        let must_reuse = known >= self.limits.domains_max;
        if must_reuse || registry.free_domains.len() >= QUARANTINE {
            let Some(index) = registry.free_domains.pop_front() else {
                return ProtectionDomain::NONE;
            };
            let domain = &mut registry.domains[index as usize];
            domain.allocated = true;
            return domain.name;
        }
        let name = ProtectionDomain { table: self.number, name: known };
        registry.domains.push(Domain { name, allocated: true, regions: 0 });
        name
    }

    /// Releases a domain. After this call, no connection may use the domain.
    ///
    /// # Errors
    /// Returns [`RegisterError::DomainBusy`] if the domain has regions,
    /// [`RegisterError::UnknownDomain`] if the domain was already released,
    /// [`RegisterError::ForeignDomain`] if the domain belongs to another table.
    pub fn release_domain(&self, domain: ProtectionDomain) -> Result<(), RegisterError> {
        self.check_domain(domain)?;
        let mut registry = self.registry();
        let entry = registry.domain(domain)?;
        if entry.regions != 0 {
            return Err(RegisterError::DomainBusy { domain, regions: entry.regions });
        }
        entry.allocated = false;
        entry.name = domain.successor();
        registry.free_domains.push_back(domain.index());
        Ok(())
    }

    /// Checks that the domain belongs to this table or is [`ProtectionDomain::NONE`].
    ///
    /// # Errors
    /// Returns [`RegisterError::ForeignDomain`] if the domain belongs to another endpoint.
    pub fn check_domain(&self, domain: ProtectionDomain) -> Result<(), RegisterError> {
        let is_own = domain.table == self.number || domain == ProtectionDomain::NONE;
        if is_own { Ok(()) } else { Err(RegisterError::ForeignDomain { domain }) }
    }

    /// Checks that the region was registered in this table. The region may have ended.
    ///
    /// # Errors
    /// Returns [`RegisterError::ForeignRegion`] if the region was registered at another endpoint.
    pub fn check_region(&self, region: RegionId) -> Result<(), RegisterError> {
        let is_own = region.table() == self.number;
        if is_own { Ok(()) } else { Err(RegisterError::ForeignRegion { region }) }
    }

    /// Registers a buffer, and keeps the buffer allocated while the region exists. During that
    /// time, the library may lend the whole memory of the buffer to processes of this host over
    /// shared memory (see [`Buffer`]).
    ///
    /// # Errors
    /// Returns one of these errors:
    ///
    /// * [`RegisterError::TableFull`] if all regions are in use;
    /// * [`RegisterError::UnknownDomain`] or [`RegisterError::ForeignDomain`] if this table has no
    ///   such domain;
    /// * [`RegisterError::ReadOnly`] if the rights allow changes to a read-only buffer.
    pub fn register(
        &self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let range = Range { memory: buffer.as_ptr(), start: buffer.address(), len: buffer.len() };
        self.insert(domain, range, rights, SlotKind::Range, Some(buffer))
    }

    /// Registers the byte range `part` of a buffer. Peers use `remote_start` as the address of the
    /// first byte of the part, and cannot reach the rest of the buffer. The registration of a part
    /// does not permit the library to lend the buffer to processes of this host (see [`Buffer`]).
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register`]. Also returns
    /// [`RegisterError::OutsideBuffer`] if `part` exceeds the buffer, and [`RegisterError::Wraps`]
    /// if the remote addresses exceed the address space.
    pub fn register_part(
        &self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        part: core::ops::Range<u64>,
        remote_start: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let (start, end, buffer_bytes) = (part.start, part.end, buffer.len());
        if start > end || end > buffer_bytes {
            return Err(RegisterError::OutsideBuffer { start, end, buffer_bytes });
        }
        let len = end - start;
        if remote_start.checked_add(len).is_none() {
            return Err(RegisterError::Wraps { start: remote_start, len });
        }
        let memory = buffer.as_ptr().wrapping_add(start as usize);
        let range = Range { memory, start: remote_start, len };
        self.insert(domain, range, rights, SlotKind::Range, Some(buffer))
    }

    /// Registers a buffer like [`MemoryTable::register`], but peers use `remote_start` as the
    /// address of its first byte. With 0, their addresses are offsets in the buffer.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register`]. Also returns [`RegisterError::Wraps`] if
    /// the remote addresses exceed the address space.
    pub fn register_as(
        &self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        remote_start: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let len = buffer.len();
        if remote_start.checked_add(len).is_none() {
            return Err(RegisterError::Wraps { start: remote_start, len });
        }
        let range = Range { memory: buffer.as_ptr(), start: remote_start, len };
        self.insert(domain, range, rights, SlotKind::Range, Some(buffer))
    }

    /// Registers `len` bytes of foreign memory at `start`, after an access to each of its pages.
    ///
    /// The access makes the kernel load the page. If a right allows changes, the access also makes
    /// the kernel allocate memory for the page.
    ///
    /// The first registration installs a handler of `SIGSEGV` and `SIGBUS`, which passes on all
    /// signals that do not concern registered memory. After that, the program must not unload the
    /// shared library that contains this crate.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register`]. Also returns [`RegisterError::Wraps`],
    /// [`RegisterError::Unreadable`] or [`RegisterError::Unwritable`] if the range cannot be
    /// accessed in the way that the rights require.
    ///
    /// # Safety
    /// Until [`MemoryTable::deregister`] has returned (or the table is dropped), the memory must
    /// stay mapped and as accessible as it is now. During that time, the program must not use an
    /// exclusive Rust reference to the memory. If `rights` permit changes, it must not use a shared
    /// reference either.
    pub unsafe fn register_raw(
        &self,
        domain: ProtectionDomain,
        start: *mut u8,
        len: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        // SAFETY: the caller upholds the contract of `register_raw`, which is also that of
        // `register_raw_as`.
        unsafe {
            self.register_raw_as(domain, start, len, start.expose_provenance() as u64, rights)
        }
    }

    /// Registers memory like [`MemoryTable::register_raw`], but peers use `remote_start` as the
    /// address of its first byte. With 0, their addresses are offsets in the memory.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register_raw`].
    ///
    /// # Safety
    /// The contract of [`MemoryTable::register_raw`] applies.
    pub unsafe fn register_raw_as(
        &self,
        domain: ProtectionDomain,
        start: *mut u8,
        len: u64,
        remote_start: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let range = Range { memory: start, start: remote_start, len };
        self.insert_raw(domain, range, rights, probe::check_range)
    }

    /// Registers memory like [`MemoryTable::register_raw_as`], but in a time that does not depend
    /// on the length. The whole range must be mapped, but this function checks the rights only on
    /// the first and the last page. The first use of any other page costs a page fault. If such a
    /// page does not permit an access, the access fails, like an access to a page that was unmapped
    /// after registration.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register_raw`].
    ///
    /// # Safety
    /// The contract of [`MemoryTable::register_raw`] applies.
    pub unsafe fn register_raw_lazily(
        &self,
        domain: ProtectionDomain,
        start: *mut u8,
        len: u64,
        remote_start: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let range = Range { memory: start, start: remote_start, len };
        self.insert_raw(domain, range, rights, probe::check_ends)
    }

    //= protocol.md: feature.2
    /// Registers every address of the process under [`WHOLE_ADDRESS_SPACE_KEY`], once per domain.
    ///
    /// The kernel copies to and from this region, and each copy costs a system call. An access to
    /// an unmapped address therefore causes an error and not a signal. Peers that use the domain
    /// get the power of a debugger: they can break the program in any way. Like a write to
    /// `/proc/self/mem`, this is outside the guarantees of safe Rust. Use this region only in
    /// trusted clusters.
    ///
    /// The kernel cannot perform atomics with a check, so this crate probes the page before an
    /// atomic. The program may unmap the page in the nanoseconds between the probe and the atomic.
    /// If the thread does not catch faults, the program then gets the signal.
    ///
    /// # Errors
    /// Returns [`RegisterError`]; each variant names one cause.
    pub fn register_whole_address_space(
        &self,
        domain: ProtectionDomain,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        probe::check_fault_safe_copies()?;
        fault::install();
        PROMISES_ARE_KEPT.store(false, Ordering::SeqCst);
        let range = Range { memory: core::ptr::null_mut(), start: 0, len: u64::MAX };
        self.insert(domain, range, rights, SlotKind::WholeAddressSpace, None)
    }

    /// Registers a ghost region: `len` addresses from `start` that have no memory. A placement in
    /// this region is only logged, and [`MemoryTable::drain_ghosts`] returns the log. A payload
    /// that is sent from this region is identified by its address.
    ///
    /// Use ghost regions only for engines whose frames never reach a link driver, because a driver
    /// would read from the address. Atomics on a ghost region fail.
    ///
    /// # Errors
    /// Returns [`RegisterError`]; each variant names one cause.
    pub fn register_ghost(
        &self,
        domain: ProtectionDomain,
        start: u64,
        len: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        if start.checked_add(len).is_none() {
            return Err(RegisterError::Wraps { start, len });
        }
        let range = Range { memory: core::ptr::null_mut(), start, len };
        self.insert(domain, range, rights, SlotKind::Ghost, None)
    }

    /// Appends to `into` the placements in ghost regions that were made since the last call, in
    /// order.
    pub fn drain_ghosts(&self, into: &mut Vec<GhostPlacement>) {
        into.append(&mut self.ghosts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn log_ghost(&self, address: u64, bytes: Payload<'_>) {
        let placement =
            GhostPlacement { address, len: bytes.len() as u32, stamp: ghost::read_stamp(bytes) };
        self.ghosts.lock().unwrap_or_else(PoisonError::into_inner).push(placement);
    }

    /// Ends a region. Returns when every engine turn that could have seen the region has ended.
    /// After that, no thread of this library accesses the region's memory.
    ///
    /// Fails if the calling thread is inside an access, because the thread would wait for its own
    /// access to end.
    ///
    /// # Errors
    /// Returns one of these errors:
    ///
    /// * [`RegisterError::InsideAccess`] if the calling thread is inside an access;
    /// * [`RegisterError::UnknownRegion`] if the region has ended;
    /// * [`RegisterError::ForeignRegion`] if the region belongs to another table;
    /// * [`RegisterError::WindowsBound`] if windows are bound to the region.
    pub fn deregister(&self, region: RegionId) -> Result<(), RegisterError> {
        self.check_region(region)?;
        if TurnGate::inside_this_thread() {
            return Err(RegisterError::InsideAccess { region });
        }
        let owner = self.mark_dead(region)?;
        self.gate.wait();
        self.registry().free_slots.push_back(region.index());
        drop(owner);
        Ok(())
    }

    /// Changes the memory, the rights or the domain of a region of foreign memory, with the checks
    /// of [`MemoryTable::register_raw_lazily`]. The region keeps its key, but gets another
    /// [`RegionId`]. So pending work with the old identifier cannot reach the new memory. Returns
    /// when every engine turn that could have seen the old state has ended.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::register_raw`] and [`MemoryTable::deregister`]. After
    /// an error, the region is unchanged.
    ///
    /// # Safety
    /// The contract of [`MemoryTable::register_raw`] applies.
    pub unsafe fn change_raw_lazily(
        &self,
        region: RegionId,
        domain: ProtectionDomain,
        start: *mut u8,
        len: u64,
        remote_start: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        self.check_region(region)?;
        if TurnGate::inside_this_thread() {
            return Err(RegisterError::InsideAccess { region });
        }
        let range = Range { memory: start, start: remote_start, len };
        check_raw(range, rights, probe::check_ends)?;
        self.check_domain(domain)?;
        // Count the region first, so that no thread can release the domain before the change is
        // complete.
        self.registry().domain(domain)?.regions += 1;
        let owner = self.mark_dead(region).inspect_err(|_| {
            if let Ok(domain) = self.registry().domain(domain) {
                domain.regions -= 1;
            }
        })?;
        self.gate.wait();
        drop(owner);
        // No other call can use the entry, because it is not in the free list.
        let slot = self.slots.get(region.index()).ok_or(RegisterError::UnknownRegion { region })?;
        let generation = same_key_generation(region.generation());
        let state = SlotState::live(generation, rights, SlotKind::Range);
        slot.set(range, domain, state);
        self.registry().regions += 1;
        let id = RegionId::new(self.number, region.index(), generation);
        Ok(Region { id, key: self.key_of(id, state), start: remote_start, len, rights })
    }

    /// Returns the number of registered regions.
    pub fn regions(&self) -> u32 {
        self.registry().regions
    }

    /// Begins an access. An engine begins one access per turn, and drops it at the end of the turn,
    /// because deregistration waits for the turns in progress. Never blocks. Accesses may be
    /// nested. Costs two atomic additions.
    #[inline]
    pub fn access(&self) -> MemoryAccess<'_> {
        MemoryAccess::new(self, self.gate.enter())
    }

    #[inline]
    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    #[inline]
    pub(crate) const fn gate(&self) -> &TurnGate {
        &self.gate
    }

    #[inline]
    pub(crate) fn slot(&self, index: u32) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Decrypts `key`. This function is not inlined, so that the code of lookups with an unchanged
    /// key stays small.
    #[inline(never)]
    pub(crate) const fn open_key(&self, key: RemoteKey) -> OpenedKey {
        let plain = self.permutation.decrypt(key.0);
        OpenedKey {
            key,
            index: plain >> KEY_GENERATION_BITS,
            generation: plain & KEY_GENERATION_MASK,
        }
    }

    /// Returns the whole-address-space region of `domain`, if it has one.
    pub(crate) fn whole_address_space(&self, domain: ProtectionDomain) -> Option<RegionId> {
        if domain.table != self.number {
            return None;
        }
        match self.whole_address_spaces.get(domain.index())?.load(Ordering::SeqCst) {
            0 => None,
            raw => Some(RegionId::from_raw(self.number, raw)),
        }
    }

    //= protocol.md: name.2
    pub(crate) fn key_of(&self, region: RegionId, state: SlotState) -> RemoteKey {
        if state.is_whole_address_space() {
            return WHOLE_ADDRESS_SPACE_KEY;
        }
        let generation = region.generation() & KEY_GENERATION_MASK;
        RemoteKey(self.permutation.encrypt(region.index() << KEY_GENERATION_BITS | generation))
    }

    /// Inserts a region of memory that the library did not allocate.
    fn insert_raw(
        &self,
        domain: ProtectionDomain,
        range: Range,
        rights: Rights,
        check: fn(u64, u64, bool) -> Result<(), RegisterError>,
    ) -> Result<Region, RegisterError> {
        check_raw(range, rights, check)?;
        self.insert(domain, range, rights, SlotKind::Range, None)
    }

    fn insert(
        &self,
        domain: ProtectionDomain,
        range: Range,
        rights: Rights,
        kind: SlotKind,
        owner: Option<Arc<Buffer>>,
    ) -> Result<Region, RegisterError> {
        self.check_domain(domain)?;
        if let Some(buffer) = &owner {
            if !buffer.is_writable() && rights.intersects(Rights::CHANGING) {
                return Err(RegisterError::ReadOnly { wanted: rights });
            }
            if buffer.home().is_foreign() {
                check_raw(range, rights, probe::check_ends)?;
            }
        }
        let mut registry = self.registry();
        registry.domain(domain)?;
        let whole = match kind {
            SlotKind::Range | SlotKind::Ghost => None,
            SlotKind::WholeAddressSpace => {
                let entry = self.whole_address_spaces.get_or_grow(domain.index());
                let entry = entry.ok_or(RegisterError::UnknownDomain { domain })?;
                if entry.load(Ordering::SeqCst) != 0 {
                    return Err(RegisterError::WholeAddressSpaceTwice { domain });
                }
                Some(entry)
            }
        };
        let full = RegisterError::TableFull { regions_max: self.limits.regions_max };
        let index = registry.take_slot(self.limits.regions_max).ok_or(full)?;
        let slot = self.slots.get_or_grow(index).ok_or(full)?;

        let generation = self.next_generation(index, slot.state().generation());
        let state = SlotState::live(generation, rights, kind);
        slot.set(range, domain, state);

        let id = RegionId::new(self.number, index, generation);
        if let Some(entry) = whole {
            entry.store(id.to_raw(), Ordering::SeqCst);
        }
        registry.domain(domain)?.regions += 1;
        registry.regions += 1;
        registry.owners[index as usize] = owner.map(|buffer| Owner::new(buffer, range.len));
        Ok(Region { id, key: self.key_of(id, state), start: range.start, len: range.len, rights })
    }

    //= protocol.md: name.2
    /// Returns the first generation after `last` that is not 0 and whose key is free: neither
    /// reserved nor used by a window.
    fn next_generation(&self, index: u32, last: u32) -> u32 {
        let mut generation = last;
        loop {
            generation = generation.wrapping_add(1);
            let state = SlotState::live(generation, Rights::NONE, SlotKind::Range);
            let key = self.key_of(RegionId::new(self.number, index, generation), state);
            let is_free = ![RemoteKey(0), WHOLE_ADDRESS_SPACE_KEY].contains(&key)
                && !self.is_key_of_window(key);
            if generation != 0 && is_free {
                return generation;
            }
        }
    }

    /// Makes the region invisible to lookups from this moment on. Returns the owner that keeps the
    /// region's memory alive.
    fn mark_dead(&self, region: RegionId) -> Result<Option<Owner>, RegisterError> {
        let mut registry = self.registry();
        let unknown = RegisterError::UnknownRegion { region };
        let slot = self.slots.get(region.index()).ok_or(unknown)?;
        let state = slot.state();
        if !state.is_live(region.generation()) {
            return Err(unknown);
        }
        self.check_without_windows(region)?;
        let domain = self.domain_of(slot);
        if state.is_whole_address_space()
            && let Some(entry) = self.whole_address_spaces.get(domain.index())
        {
            entry.store(0, Ordering::SeqCst);
        }
        slot.set_state(SlotState::dead(region.generation()));
        registry.domain(domain)?.regions -= 1;
        registry.regions -= 1;
        Ok(registry.owners[region.index() as usize].take())
    }

    /// Returns the domain of a live entry.
    #[inline]
    pub(crate) fn domain_of(&self, slot: &Slot) -> ProtectionDomain {
        ProtectionDomain { table: self.number, name: slot.domain.load(Ordering::Relaxed) }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Fills an entry that no access can see, and then makes the entry visible.
    fn set(&self, range: Range, domain: ProtectionDomain, state: SlotState) {
        self.memory.store(range.memory, Ordering::Relaxed);
        self.start.store(range.start, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.domain.store(domain.name, Ordering::Relaxed);
        self.set_state(state);
    }
}

/// Returns the next generation after `last` that has the same key. Never returns 0.
const fn same_key_generation(last: u32) -> u32 {
    let next = last.wrapping_add(1 << KEY_GENERATION_BITS);
    if next == 0 { 1 << KEY_GENERATION_BITS } else { next }
}

/// Checks memory that the library did not allocate. `check` gets the address and the length of the
/// memory, and whether the rights permit writes.
fn check_raw(
    range: Range,
    rights: Rights,
    check: fn(u64, u64, bool) -> Result<(), RegisterError>,
) -> Result<(), RegisterError> {
    let (address, len) = (range.memory.expose_provenance() as u64, range.len);
    for start in [address, range.start] {
        if start.checked_add(len).is_none() {
            return Err(RegisterError::Wraps { start, len });
        }
    }
    check(address, len, rights.intersects(Rights::CHANGING))?;
    fault::install();
    Ok(())
}

/// Size limits of a [`MemoryTable`]. The memory use of a table depends on its registered regions
/// and not on these limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct TableLimits {
    /// Number of memory regions, at most [`TableLimits::REGIONS_MAX`]. Each takes 64 bytes.
    pub regions_max: u32,
    /// Number of protection domains, at most [`TableLimits::DOMAINS_MAX`].
    pub domains_max: u32,
}

impl TableLimits {
    /// Number of regions that the 20 bits of a remote key can distinguish.
    pub const REGIONS_MAX: u32 = 1 << KEY_SLOT_BITS;
    /// Number of domains that the 20 bits of a domain's index can distinguish. The index of
    /// [`ProtectionDomain::NONE`] is not included.
    pub const DOMAINS_MAX: u32 = (1 << DOMAIN_INDEX_BITS) - 1;

    /// Sets [`regions_max`](field@TableLimits::regions_max).
    #[must_use]
    pub const fn regions_max(mut self, regions: u32) -> Self {
        self.regions_max = regions;
        self
    }

    /// Sets [`domains_max`](field@TableLimits::domains_max).
    #[must_use]
    pub const fn domains_max(mut self, domains: u32) -> Self {
        self.domains_max = domains;
        self
    }
}

impl Default for TableLimits {
    /// Returns the limits of the largest table.
    fn default() -> Self {
        Self { regions_max: Self::REGIONS_MAX, domains_max: Self::DOMAINS_MAX }
    }
}

/// Identifies a protection domain. A connection reaches only the regions of its own domain. Domains
/// of two endpoints are never equal.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct ProtectionDomain {
    /// Number of the table to which the domain belongs.
    table: u32,
    name: u32,
}

impl ProtectionDomain {
    /// No domain: registration in it fails.
    pub const NONE: Self = Self { table: u32::MAX, name: u32::MAX };

    const fn index(self) -> u32 {
        self.name & DOMAIN_INDEX_MASK
    }

    /// Returns the identifier of the next domain at this index. It differs from all earlier
    /// identifiers, so an old identifier does not match the new domain.
    const fn successor(self) -> Self {
        Self { name: self.name.wrapping_add(1 << DOMAIN_INDEX_BITS), ..self }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({}.{})", self.index(), self.name >> DOMAIN_INDEX_BITS)
    }
}

/// The description of a registered region for its owner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// Identifies the region in this process.
    pub id: RegionId,
    /// The key by which peers name the region.
    pub key: RemoteKey,
    /// The address that peers use for the first byte of the region.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The rights of the owner and of peers.
    pub rights: Rights,
}

/// A remote key and its decrypted parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedKey {
    pub(crate) key: RemoteKey,
    /// Index of the slot.
    pub(crate) index: u32,
    /// The low [`KEY_GENERATION_BITS`] bits of the region's generation.
    pub(crate) generation: u32,
}

impl OpenedKey {
    /// Key 0, which is reserved. Its index belongs to no slot.
    pub(crate) const NOTHING: Self = Self { key: RemoteKey(0), index: u32::MAX, generation: 0 };
}

/// State that only registration uses.
#[derive(Debug, Default)]
struct Registry {
    domains: Vec<Domain>,
    /// Indices of released domains, oldest first.
    free_domains: VecDeque<u32>,
    /// For each slot index, the owner that keeps the memory alive. The length of this vector is the
    /// number of slots that were ever used.
    owners: Vec<Option<Owner>>,
    /// Free slots that no access can see, oldest first.
    free_slots: VecDeque<u32>,
    regions: u32,
}

impl Registry {
    fn domain(&mut self, domain: ProtectionDomain) -> Result<&mut Domain, RegisterError> {
        let entry = self.domains.get_mut(domain.index() as usize);
        entry
            .filter(|entry| entry.allocated && entry.name == domain)
            .ok_or(RegisterError::UnknownDomain { domain })
    }

    /// Returns a slot for a new region. If at least [`QUARANTINE`] slots are free, or if no unused
    /// slot is left, returns the slot that has been free longest. Otherwise returns an unused slot.
    fn take_slot(&mut self, regions_max: u32) -> Option<u32> {
        let used = self.owners.len() as u32;
        if used >= regions_max || self.free_slots.len() >= QUARANTINE {
            return self.free_slots.pop_front();
        }
        self.owners.push(None);
        Some(used)
    }
}

/// Keeps the memory of a region alive.
#[derive(Debug)]
struct Owner {
    buffer: Arc<Buffer>,
    is_whole: bool,
}

impl Owner {
    /// Makes the owner of a region of `len` bytes.
    fn new(buffer: Arc<Buffer>, len: u64) -> Self {
        let is_whole = len == buffer.len();
        if is_whole {
            buffer.on_registered();
        }
        Self { buffer, is_whole }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if self.is_whole {
            self.buffer.on_deregistered();
        }
    }
}

#[derive(Debug)]
struct Domain {
    /// The identifier of the domain. If the domain is not allocated, this is the identifier of the
    /// next domain at this index.
    name: ProtectionDomain,
    allocated: bool,
    regions: u32,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    memory: *mut u8,
    start: u64,
    len: u64,
}

/// The key of whole-address-space regions (`docs/protocol.md`, 2.3).
pub const WHOLE_ADDRESS_SPACE_KEY: RemoteKey = RemoteKey(u32::MAX);

/// Minimum number of free slots for a reuse. With fewer free slots, a new region gets a slot that
/// was never used. With at least as many, it gets the slot that has been free longest. The key of a
/// slot repeats after 2^12 uses of the slot. So a key repeats after 2^10 · 2^12 = 4 million
/// registrations at the earliest. If the table is at its limit, new regions reuse slots earlier.
const QUARANTINE: usize = 1 << 10;

/// Number of low bits of a domain's identifier that contain its index. The bits above count the
/// earlier uses of the index.
const DOMAIN_INDEX_BITS: u32 = 20;

const DOMAIN_INDEX_MASK: u32 = (1 << DOMAIN_INDEX_BITS) - 1;

/// Returns whether the program has promised to keep all payload mapped that endpoints of this
/// process pass to their links. Registering a whole address space ends the promise.
///
/// If this returns true, a driver that holds a [`FaultGuard`](crate::FaultGuard) may read payload
/// itself. Otherwise the driver must let the kernel read the payload. The kernel refuses to read
/// memory of devices, where a read may have side effects.
#[inline]
pub fn is_payload_promised() -> bool {
    PROMISES_ARE_KEPT.load(Ordering::Relaxed)
}

/// The number of the next table. It wraps after 2^32 tables in one process.
static NEXT_TABLE: AtomicU32 = AtomicU32::new(0);

/// False after the registration of a whole address space. All tables of the process share this
/// flag, because a driver does not know to which table a payload belongs.
static PROMISES_ARE_KEPT: AtomicBool = AtomicBool::new(true);

#[cfg(test)]
mod tests;

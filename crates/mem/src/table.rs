//! The table of domains and regions: registration and its undoing.

mod revocation;
mod windows;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use wire_edge::{KeyedPermutation, RemoteKey};

use crate::access::MemoryAccess;
use crate::gate::TurnGate;
use crate::ghost::{self, GhostPlacement};
use crate::slot::{
    GrowingArray, KEY_GENERATION_BITS, KEY_GENERATION_MASK, KEY_SLOT_BITS, Slot, SlotKind,
    SlotState,
};
use crate::{Buffer, Payload, RegionId, RegisterError, Rights, fault, probe};

use windows::Windows;
pub(crate) use windows::own_rights;
pub use windows::{Reach, Window};

/// The protection domains and memory regions of one endpoint, shared between application threads
/// and the engine.
///
/// A region's key is an encrypted table index and generation, so that looking a key up is a few
/// nanoseconds of arithmetic and one cache line, while a peer cannot guess the keys that it was not given.
/// Lookups take no lock: they read table entries that are only rewritten when no access can hold
/// them any more.
#[derive(Debug)]
pub struct MemoryTable {
    /// Distinguishes it from the other tables of the process: names carry it.
    number: u32,
    limits: TableLimits,
    permutation: KeyedPermutation,
    slots: GrowingArray<Slot>,
    /// By domain index, the raw [`RegionId`] of the domain's whole-address-space region, or 0.
    whole_address_spaces: GrowingArray<AtomicU64>,
    gate: TurnGate,
    registry: Mutex<Registry>,
    ghosts: Mutex<Vec<GhostPlacement>>,
    /// Locked after the registry, if both are.
    windows: RwLock<Windows>,
    /// A window was bound once.
    has_windows: AtomicBool,
}

impl MemoryTable {
    /// Creates an empty table whose keys are drawn with `key`, which should be random.
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

    /// Allocates a protection domain. When all are in use it is [`ProtectionDomain::NONE`], in which nothing can be
    /// registered and nothing is found.
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

    /// Releases a domain. No connection may use it any more.
    ///
    /// # Errors
    /// [`RegisterError::DomainBusy`] while it has regions, [`RegisterError::UnknownDomain`] if it was released,
    /// [`RegisterError::ForeignDomain`] if it is of another table.
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

    /// Whether the domain is of this table (or none at all), and not of another endpoint.
    ///
    /// # Errors
    /// [`RegisterError::ForeignDomain`] if it is of another endpoint.
    pub fn check_domain(&self, domain: ProtectionDomain) -> Result<(), RegisterError> {
        let is_own = domain.table == self.number || domain == ProtectionDomain::NONE;
        if is_own { Ok(()) } else { Err(RegisterError::ForeignDomain { domain }) }
    }

    /// Whether the region was registered in this table, now or once, and not at another endpoint.
    ///
    /// # Errors
    /// [`RegisterError::ForeignRegion`] if it was registered at another endpoint.
    pub fn check_region(&self, region: RegionId) -> Result<(), RegisterError> {
        let is_own = region.table() == self.number;
        if is_own { Ok(()) } else { Err(RegisterError::ForeignRegion { region }) }
    }

    /// Registers a buffer, which lives at least as long as the region. While it is registered, processes of
    /// the host that it is sent to over shared memory may be lent all of it (see [`Buffer`]).
    ///
    /// # Errors
    /// [`RegisterError::TableFull`] if all regions are in use, [`RegisterError::UnknownDomain`] or
    /// [`RegisterError::ForeignDomain`] if there is no such domain in this table, [`RegisterError::ReadOnly`] if the rights
    /// let bytes change that must not.
    pub fn register(
        &self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        let range = Range { memory: buffer.as_ptr(), start: buffer.address(), len: buffer.len() };
        self.insert(domain, range, rights, SlotKind::Range, Some(buffer))
    }

    /// Registers the bytes `part` of a buffer, counted from its start; peers name the first of them by
    /// the address `remote_start`. The rest of the buffer is out of everyone's reach; so it is not lent to
    /// processes of the host (see [`Buffer`]).
    ///
    /// # Errors
    /// As for [`MemoryTable::register`], and [`RegisterError::OutsideBuffer`] if `part` is not within the buffer,
    /// [`RegisterError::Wraps`] if the remote addresses go beyond the address space.
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

    /// Registers a buffer as [`MemoryTable::register`] does, but peers name the first byte by the address
    /// `remote_start` (0 for offsets that begin at zero).
    ///
    /// # Errors
    /// As for [`MemoryTable::register`], and [`RegisterError::Wraps`] if the remote addresses go beyond the
    /// address space.
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

    /// Registers `len` bytes of foreign memory at `start`, after touching each of its pages once.
    ///
    /// Touching faults the pages in, and gives each its own memory if a right lets bytes change. The
    /// first registration installs a handler of `SIGSEGV` and `SIGBUS`, which passes on what is not
    /// about registered memory; a shared library that contains this crate must not be unloaded then.
    ///
    /// # Errors
    /// As for [`MemoryTable::register`], and [`RegisterError::Wraps`], [`RegisterError::Unreadable`] or
    /// [`RegisterError::Unwritable`] if the range cannot be accessed as the rights need.
    ///
    /// # Safety
    /// Until [`MemoryTable::deregister`] has returned (or the table is dropped) the memory stays
    /// mapped and accessible as it is now, and no Rust reference to it is used whose rules an access
    /// under `rights` would break.
    pub unsafe fn register_raw(
        &self,
        domain: ProtectionDomain,
        start: *mut u8,
        len: u64,
        rights: Rights,
    ) -> Result<Region, RegisterError> {
        // SAFETY: the same contract.
        unsafe {
            self.register_raw_as(domain, start, len, start.expose_provenance() as u64, rights)
        }
    }

    /// Registers memory as [`MemoryTable::register_raw`] does, but peers name the first byte by the address
    /// `remote_start` (0 for offsets that begin at zero).
    ///
    /// # Errors
    /// As for [`MemoryTable::register_raw`].
    ///
    /// # Safety
    /// As for [`MemoryTable::register_raw`].
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

    /// Registers memory as [`MemoryTable::register_raw_as`] does, but takes the same time for any length: the range
    /// must be mapped, and the rights are tried on its first and its last page only. Pages are faulted in when they
    /// are first used, at the price of a fault each. A page between that cannot be accessed as the rights need is
    /// an error of the access, as if it had been unmapped later.
    ///
    /// # Errors
    /// As for [`MemoryTable::register_raw`].
    ///
    /// # Safety
    /// As for [`MemoryTable::register_raw`].
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
    /// Copies go through the kernel, at the price of a system call each, and an address at which
    /// nothing is mapped is an error instead of a signal. Peers that use the domain get the power of
    /// a debugger, with which they can break the program in any way; like writing to
    /// `/proc/self/mem`, that is outside of what Rust's safety speaks about. For trusted clusters
    /// only.
    ///
    /// Atomics have no form that the kernel checks: the page is probed first. If a program unmaps it in
    /// the nanoseconds between, and faults are not caught on the thread, it gets the signal.
    ///
    /// # Errors
    /// [`RegisterError`], one variant for each cause.
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

    /// Registers `len` addresses from `start` that have no bytes: what is placed there is only noted
    /// down, for [`MemoryTable::drain_ghosts`], and what is sent from there is known by its address.
    ///
    /// For engines whose frames never reach a link driver, as a driver would read from the address.
    /// Atomics are refused.
    ///
    /// # Errors
    /// [`RegisterError`], one variant for each cause.
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

    /// Moves what was placed in ghost regions since the last call behind `into`, in the order in which
    /// it was placed.
    pub fn drain_ghosts(&self, into: &mut Vec<GhostPlacement>) {
        into.append(&mut self.ghosts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn log_ghost(&self, address: u64, bytes: Payload<'_>) {
        let placement =
            GhostPlacement { address, len: bytes.len() as u32, stamp: ghost::read_stamp(bytes) };
        self.ghosts.lock().unwrap_or_else(PoisonError::into_inner).push(placement);
    }

    /// Ends a region. Returns when no engine turn that could have seen it is in progress: from then
    /// on its memory is not touched.
    ///
    /// Fails inside an access of the same thread, whose end it would wait for.
    ///
    /// # Errors
    /// [`RegisterError::InsideAccess`] as said, [`RegisterError::UnknownRegion`] if the region has ended,
    /// [`RegisterError::ForeignRegion`] if it is of another table, [`RegisterError::WindowsBound`] while windows are bound to
    /// it.
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

    /// Changes the memory, the rights or the domain of a region of foreign memory: it is like
    /// [`MemoryTable::register_raw_lazily`], but the region keeps its key. It has another name on this side, so that work
    /// which was begun with the old one does not reach what is there now. Returns when no engine turn is in progress
    /// that could have seen the region as it was.
    ///
    /// # Errors
    /// As for [`MemoryTable::register_raw`] and [`MemoryTable::deregister`]; the region is as it was.
    ///
    /// # Safety
    /// As for [`MemoryTable::register_raw`].
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
        // Counted before, so that the domain stays.
        self.registry().domain(domain)?.regions += 1;
        let owner = self.mark_dead(region).inspect_err(|_| {
            if let Ok(domain) = self.registry().domain(domain) {
                domain.regions -= 1;
            }
        })?;
        self.gate.wait();
        drop(owner);
        // No call takes the entry: it is not among the free ones.
        let slot = self.slots.get(region.index()).ok_or(RegisterError::UnknownRegion { region })?;
        let generation = same_key_generation(region.generation());
        let state = SlotState::live(generation, rights, SlotKind::Range);
        slot.set(range, domain, state);
        self.registry().regions += 1;
        let id = RegionId::new(self.number, region.index(), generation);
        Ok(Region { id, key: self.key_of(id, state), start: remote_start, len, rights })
    }

    /// Returns the number of regions registered now.
    pub fn regions(&self) -> u32 {
        self.registry().regions
    }

    /// Begins an access, to be taken once per engine turn and dropped at its end: what is
    /// deregistered stays untouched only after the turns in progress have ended. Never blocks, and
    /// may be nested. Costs two atomic additions.
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

    /// What `key` stands for. Out of line, so that lookups of the last key stay small.
    #[inline(never)]
    pub(crate) const fn open_key(&self, key: RemoteKey) -> OpenedKey {
        let plain = self.permutation.decrypt(key.0);
        OpenedKey {
            key,
            index: plain >> KEY_GENERATION_BITS,
            generation: plain & KEY_GENERATION_MASK,
        }
    }

    /// The whole-address-space region of `domain`, if it has one.
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

    /// Inserts memory that is not the library's.
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
    /// The generation after `last` that is not 0 and whose key is neither reserved nor that of a window.
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

    /// Makes the region invisible to accesses that begin now; returns what keeps it alive.
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

    /// The domain of a live entry.
    #[inline]
    pub(crate) fn domain_of(&self, slot: &Slot) -> ProtectionDomain {
        ProtectionDomain { table: self.number, name: slot.domain.load(Ordering::Relaxed) }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Fills an entry that no access sees, and shows it.
    fn set(&self, range: Range, domain: ProtectionDomain, state: SlotState) {
        self.memory.store(range.memory, Ordering::Relaxed);
        self.start.store(range.start, Ordering::Relaxed);
        self.len.store(range.len, Ordering::Relaxed);
        self.domain.store(domain.name, Ordering::Relaxed);
        self.set_state(state);
    }
}

/// The next generation whose key is that of `last`; never 0.
const fn same_key_generation(last: u32) -> u32 {
    let next = last.wrapping_add(1 << KEY_GENERATION_BITS);
    if next == 0 { 1 << KEY_GENERATION_BITS } else { next }
}

/// Looks at memory that is not the library's, by `check` of its address and length and of whether it is written to.
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

/// How much a [`MemoryTable`] may hold. Memory is used for what is registered, not for the limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct TableLimits {
    /// Memory regions, at most [`TableLimits::REGIONS_MAX`]. 64 bytes each.
    pub regions_max: u32,
    /// Protection domains, at most [`TableLimits::DOMAINS_MAX`].
    pub domains_max: u32,
}

impl TableLimits {
    /// As many regions as 20 bits of a remote key can distinguish.
    pub const REGIONS_MAX: u32 = 1 << KEY_SLOT_BITS;
    /// As many domains as 20 bits of their name can distinguish, less the one of
    /// [`ProtectionDomain::NONE`].
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
    /// The largest table.
    fn default() -> Self {
        Self { regions_max: Self::REGIONS_MAX, domains_max: Self::DOMAINS_MAX }
    }
}

/// Names a protection domain: connections of a domain reach the regions of the same domain and no
/// others. The domains of two endpoints are never the same.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct ProtectionDomain {
    /// Of the table it belongs to.
    table: u32,
    name: u32,
}

impl ProtectionDomain {
    /// No domain: nothing can be registered in it.
    pub const NONE: Self = Self { table: u32::MAX, name: u32::MAX };

    const fn index(self) -> u32 {
        self.name & DOMAIN_INDEX_MASK
    }

    /// The next domain at the same index, so that an old name is not mistaken for it.
    const fn successor(self) -> Self {
        Self { name: self.name.wrapping_add(1 << DOMAIN_INDEX_BITS), ..self }
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({}.{})", self.index(), self.name >> DOMAIN_INDEX_BITS)
    }
}

/// A registered region, as its owner knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Region {
    /// Its name on this side.
    pub id: RegionId,
    /// Its name for peers.
    pub key: RemoteKey,
    /// The address of the first byte, as peers name it.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// What may be done to it.
    pub rights: Rights,
}

/// A remote key and what it decrypts to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenedKey {
    pub(crate) key: RemoteKey,
    /// Of the slot.
    pub(crate) index: u32,
    /// The low [`KEY_GENERATION_BITS`] bits of the region's generation.
    pub(crate) generation: u32,
}

impl OpenedKey {
    /// Key 0, which names nothing: there is no such slot.
    pub(crate) const NOTHING: Self = Self { key: RemoteKey(0), index: u32::MAX, generation: 0 };
}

/// What only registration looks at.
#[derive(Debug, Default)]
struct Registry {
    domains: Vec<Domain>,
    /// Indices of released domains, oldest first.
    free_domains: VecDeque<u32>,
    /// By slot index, what keeps the memory alive. As long as the slots ever used.
    owners: Vec<Option<Owner>>,
    /// Slots that no access can see any more, oldest first.
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

    /// A slot for a new region: one never used, or the one free for longest once enough are.
    fn take_slot(&mut self, regions_max: u32) -> Option<u32> {
        let used = self.owners.len() as u32;
        if used >= regions_max || self.free_slots.len() >= QUARANTINE {
            return self.free_slots.pop_front();
        }
        self.owners.push(None);
        Some(used)
    }
}

/// What keeps the memory of a region alive.
#[derive(Debug)]
struct Owner {
    buffer: Arc<Buffer>,
    is_whole: bool,
}

impl Owner {
    /// Of a region of `len` bytes.
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
    /// The name of the domain, or of the next one at this index if it is not allocated.
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

/// The key of the region that is the whole address space (`docs/protocol.md`, 2.3).
pub const WHOLE_ADDRESS_SPACE_KEY: RemoteKey = RemoteKey(u32::MAX);

/// Free entries that pile up before the oldest is used again. A slot's key repeats after 2^12 uses,
/// so a key comes back after 2^10 · 2^12 = 4 million registrations at the earliest, as long as the
/// limit of the table does not force an earlier reuse.
const QUARANTINE: usize = 1 << 10;

/// A domain's name is its index, and above it how often the index was used before.
const DOMAIN_INDEX_BITS: u32 = 20;

const DOMAIN_INDEX_MASK: u32 = (1 << DOMAIN_INDEX_BITS) - 1;

/// Whether all payload that an endpoint of this process hands to its links lies in memory that the
/// program has promised to keep mapped: none has ever offered its whole address space.
///
/// A driver may then read payload itself while it holds a [`FaultGuard`](crate::FaultGuard).
/// Otherwise it leaves that to the kernel, which refuses the memory of devices, too, where a read may
/// have effects.
#[inline]
pub fn is_payload_promised() -> bool {
    PROMISES_ARE_KEPT.load(Ordering::Relaxed)
}

/// Numbers of tables come back after four thousand million of them, in one process.
static NEXT_TABLE: AtomicU32 = AtomicU32::new(0);

/// One for the process: drivers see payload of any table.
static PROMISES_ARE_KEPT: AtomicBool = AtomicBool::new(true);

#[cfg(test)]
mod tests;

//! The table of domains and regions: registration and its undoing.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire_edge::{KeyedPermutation, RemoteKey};

use crate::access::MemoryAccess;
use crate::gate::TurnGate;
use crate::ghost::{self, GhostPlacement};
use crate::slot::{
    GrowingArray, KEY_GENERATION_BITS, KEY_GENERATION_MASK, KEY_SLOT_BITS, Slot, SlotKind,
    SlotState,
};
use crate::{Buffer, Payload, RegionId, RegisterError, Rights, fault, probe};

/// The protection domains and memory regions of one endpoint, shared between application threads
/// and the engine.
///
/// A region's key is an encrypted table index and generation, so that looking a key up is a few
/// nanoseconds of arithmetic and one cache line, while a peer cannot guess the keys it was not told.
/// Lookups take no lock: they read table entries that are only rewritten when no access can hold
/// them any more.
#[derive(Debug)]
pub struct MemoryTable {
    limits: TableLimits,
    permutation: KeyedPermutation,
    slots: GrowingArray<Slot>,
    /// By domain index, the raw [`RegionId`] of the domain's whole-address-space region, or 0.
    whole_address_spaces: GrowingArray<AtomicU64>,
    gate: TurnGate,
    registry: Mutex<Registry>,
    ghosts: Mutex<Vec<GhostPlacement>>,
}

impl MemoryTable {
    /// An empty table whose keys are drawn with `key`, which should be random.
    pub fn new(limits: TableLimits, key: [u64; 2]) -> Self {
        let limits = TableLimits {
            regions_max: limits.regions_max.min(TableLimits::REGIONS_MAX),
            domains_max: limits.domains_max.min(TableLimits::DOMAINS_MAX),
        };
        Self {
            limits,
            permutation: KeyedPermutation::new(key),
            slots: GrowingArray::new(limits.regions_max),
            whole_address_spaces: GrowingArray::new(limits.domains_max),
            gate: TurnGate::new(),
            registry: Mutex::new(Registry::default()),
            ghosts: Mutex::new(Vec::new()),
        }
    }

    /// The limits in force.
    pub const fn limits(&self) -> TableLimits {
        self.limits
    }

    /// A new protection domain. When all are in use it is [`ProtectionDomain::NONE`], in which
    /// nothing can be registered and nothing is found.
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
        let name = ProtectionDomain(known);
        registry.domains.push(Domain { name, allocated: true, regions: 0 });
        name
    }

    /// Gives a domain back. No connection may use it any more.
    pub fn release_domain(&self, domain: ProtectionDomain) -> Result<(), RegisterError> {
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

    /// Registers a buffer, which lives at least as long as the region.
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
    /// the address `remote_start`. The rest of the buffer is out of everyone's reach.
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

    /// Like [`MemoryTable::register`], but peers name the first byte by the address `remote_start`
    /// (0 for offsets that begin at zero).
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

    /// Like [`MemoryTable::register_raw`], but peers name the first byte by the address
    /// `remote_start` (0 for offsets that begin at zero).
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
        let address = start.expose_provenance() as u64;
        for start in [address, remote_start] {
            if start.checked_add(len).is_none() {
                return Err(RegisterError::Wraps { start, len });
            }
        }
        probe::check_range(address, len, rights.intersects(Rights::CHANGING))?;
        fault::install();
        let range = Range { memory: start, start: remote_start, len };
        self.insert(domain, range, rights, SlotKind::Range, None)
    }

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
    pub fn deregister(&self, region: RegionId) -> Result<(), RegisterError> {
        if TurnGate::inside_this_thread() {
            return Err(RegisterError::InsideAccess { region });
        }
        let owner = self.mark_dead(region)?;
        self.gate.wait();
        self.registry().free_slots.push_back(region.index());
        drop(owner);
        Ok(())
    }

    /// Regions registered now.
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
        match self.whole_address_spaces.get(domain.index())?.load(Ordering::SeqCst) {
            0 => None,
            raw => Some(RegionId::from_raw(raw)),
        }
    }

    pub(crate) fn key_of(&self, region: RegionId, state: SlotState) -> RemoteKey {
        if state.is_whole_address_space() {
            return WHOLE_ADDRESS_SPACE_KEY;
        }
        let generation = region.generation() & KEY_GENERATION_MASK;
        RemoteKey(self.permutation.encrypt(region.index() << KEY_GENERATION_BITS | generation))
    }

    fn insert(
        &self,
        domain: ProtectionDomain,
        range: Range,
        rights: Rights,
        kind: SlotKind,
        owner: Option<Arc<Buffer>>,
    ) -> Result<Region, RegisterError> {
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

        slot.memory.store(range.memory, Ordering::Relaxed);
        slot.start.store(range.start, Ordering::Relaxed);
        slot.len.store(range.len, Ordering::Relaxed);
        slot.domain.store(domain.0, Ordering::Relaxed);
        let generation = self.next_generation(index, slot.state().generation());
        let state = SlotState::live(generation, rights, kind);
        slot.set_state(state);

        let id = RegionId::new(index, generation);
        if let Some(entry) = whole {
            entry.store(id.to_raw(), Ordering::SeqCst);
        }
        registry.domain(domain)?.regions += 1;
        registry.regions += 1;
        registry.owners[index as usize] = owner;
        Ok(Region { id, key: self.key_of(id, state), start: range.start, len: range.len, rights })
    }

    /// The generation after `last` that is not 0 and whose key is not reserved.
    fn next_generation(&self, index: u32, last: u32) -> u32 {
        let mut generation = last;
        loop {
            generation = generation.wrapping_add(1);
            let state = SlotState::live(generation, Rights::NONE, SlotKind::Range);
            let key = self.key_of(RegionId::new(index, generation), state);
            if generation != 0 && key != RemoteKey(0) && key != WHOLE_ADDRESS_SPACE_KEY {
                return generation;
            }
        }
    }

    /// Makes the region invisible to accesses that begin now; returns what keeps it alive.
    fn mark_dead(&self, region: RegionId) -> Result<Option<Arc<Buffer>>, RegisterError> {
        let mut registry = self.registry();
        let unknown = RegisterError::UnknownRegion { region };
        let slot = self.slots.get(region.index()).ok_or(unknown)?;
        let state = slot.state();
        if !state.is_live(region.generation()) {
            return Err(unknown);
        }
        let domain = ProtectionDomain(slot.domain.load(Ordering::Relaxed));
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

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much a [`MemoryTable`] may hold. Memory is used for what is registered, not for the limits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TableLimits {
    /// Memory regions, at most [`TableLimits::REGIONS_MAX`]. 64 bytes each.
    pub regions_max: u32,
    /// Protection domains, at most [`TableLimits::DOMAINS_MAX`].
    pub domains_max: u32,
}

impl TableLimits {
    /// As many regions as 20 bits of a remote key can tell apart.
    pub const REGIONS_MAX: u32 = 1 << KEY_SLOT_BITS;
    /// As many domains as 20 bits of their name can tell apart, less the one of
    /// [`ProtectionDomain::NONE`].
    pub const DOMAINS_MAX: u32 = (1 << DOMAIN_INDEX_BITS) - 1;
}

impl Default for TableLimits {
    /// The largest table.
    fn default() -> Self {
        Self { regions_max: Self::REGIONS_MAX, domains_max: Self::DOMAINS_MAX }
    }
}

/// Names a protection domain: connections of a domain reach the regions of the same domain and no
/// others.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
pub struct ProtectionDomain(pub(crate) u32);

impl ProtectionDomain {
    /// No domain: nothing can be registered in it.
    pub const NONE: Self = Self(u32::MAX);

    /// As a number that tells domains apart, for an interface that wants one.
    pub const fn to_raw(self) -> u32 {
        self.0
    }

    const fn index(self) -> u32 {
        self.0 & DOMAIN_INDEX_MASK
    }

    /// The next domain at the same index, so that an old name is not mistaken for it.
    const fn successor(self) -> Self {
        Self(self.0.wrapping_add(1 << DOMAIN_INDEX_BITS))
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProtectionDomain({}.{})", self.index(), self.0 >> DOMAIN_INDEX_BITS)
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
    owners: Vec<Option<Arc<Buffer>>>,
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

/// One for the process: drivers see payload of any table.
static PROMISES_ARE_KEPT: AtomicBool = AtomicBool::new(true);

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;
    #[cfg(not(miri))]
    use crate::mapping::Mapping;
    use crate::{AccessError, copy};

    #[test]
    fn deregister_waits_for_an_access_that_began_before() {
        let (table, domain) = table();
        let region = table.register(domain, Buffer::new(64), Rights::LOCAL_WRITE).unwrap();
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let access = table.access();
            let target = access.resolve_local(region.id, 0, 64, Rights::LOCAL_WRITE).unwrap();
            let waiter = scope.spawn(|| {
                table.deregister(region.id).unwrap();
                assert!(ended.load(Ordering::SeqCst), "the wait ended before the access");
            });
            while !table.gate.is_waited_for() && !waiter.is_finished() {
                thread::yield_now();
            }
            let stale = Err(AccessError::InvalidKey { name: region.id.to_raw() });
            assert_eq!(access.place(&target, 0, &[1]), stale);
            ended.store(true, Ordering::SeqCst);
            drop(access);
            waiter.join().unwrap();
        });
    }

    #[test]
    fn memory_is_not_touched_after_deregister_while_turns_go_on() {
        const PLACERS: usize = 2;
        const BYTES: usize = 256;
        let rounds = if cfg!(miri) { 5 } else { 200 };
        let (table, domain) = table();
        let buffer = Buffer::new(BYTES as u64);
        // The key and the name of the region that placers use, changed without waiting for them.
        let current = [AtomicU64::new(0), AtomicU64::new(0)];
        let stop = AtomicBool::new(false);
        let placed = AtomicU64::new(0);
        let mut touched = false;
        thread::scope(|scope| {
            for _ in 0..PLACERS {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let key = RemoteKey(current[0].load(Ordering::Relaxed) as u32);
                        let id = RegionId::from_raw(current[1].load(Ordering::Relaxed));
                        let (start, len) = (buffer.address(), BYTES as u64);
                        let access = table.access();
                        let remote = access.resolve(domain, key, start, len, Rights::REMOTE_READ);
                        let remote = remote.and_then(|at| access.source_of(&at, 0, BYTES as u32));
                        let local = access.source(id, 0, BYTES as u32);
                        for slice in [remote, local].into_iter().flatten() {
                            // The longest that a turn can hold on to what it was given.
                            thread::yield_now();
                            let bytes = [0xff; BYTES];
                            // SAFETY: the buffer outlives the threads.
                            unsafe { copy::copy(slice.start.cast_mut(), bytes.as_ptr(), BYTES) };
                            placed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            for _ in 0..rounds {
                let region = table.register(domain, buffer.clone(), Rights::ALL).unwrap();
                current[0].store(u64::from(region.key.0), Ordering::Relaxed);
                current[1].store(region.id.to_raw(), Ordering::Relaxed);
                let before = placed.load(Ordering::Relaxed);
                while placed.load(Ordering::Relaxed) == before {
                    thread::yield_now();
                }
                table.deregister(region.id).unwrap();
                buffer.write(0, &[0; BYTES]);
                for _ in 0..3 {
                    thread::yield_now();
                    let mut bytes = [0; BYTES];
                    buffer.read(0, &mut bytes);
                    touched |= bytes != [0; BYTES];
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!touched, "bytes changed after the end of their region");
    }

    #[test]
    fn a_buffer_lives_until_its_region_ends() {
        let (table, domain) = table();
        let buffer = Buffer::new(64);
        let region = table.register(domain, buffer.clone(), Rights::NONE).unwrap();
        assert_eq!(Arc::strong_count(&buffer), 2);
        table.deregister(region.id).unwrap();
        assert_eq!(Arc::strong_count(&buffer), 1);
    }

    #[test]
    fn deregister_inside_an_access_is_refused_instead_of_waiting_for_itself() {
        let (table, domain) = table();
        let region = table.register(domain, Buffer::new(64), Rights::NONE).unwrap().id;
        let access = table.access();
        assert_eq!(table.deregister(region), Err(RegisterError::InsideAccess { region }));
        drop(access);
        assert_eq!(table.deregister(region), Ok(()));
        assert_eq!(table.deregister(region), Err(RegisterError::UnknownRegion { region }));
    }

    #[test]
    fn a_full_table_refuses_and_takes_again_what_became_free() {
        let limits = TableLimits { regions_max: 3, domains_max: 4 };
        let table = MemoryTable::new(limits, [1, 2]);
        let domain = table.allocate_domain();
        let register = || table.register(domain, Buffer::new(8), Rights::NONE);
        let regions: Vec<_> = (0..3).map(|_| register().unwrap()).collect();
        assert_eq!(register(), Err(RegisterError::TableFull { regions_max: 3 }));
        table.deregister(regions[1].id).unwrap();
        let region = register().unwrap();
        assert_eq!(region.id.index(), regions[1].id.index());
        assert_ne!(region.id, regions[1].id);
        assert_ne!(region.key, regions[1].key);
        assert_eq!(table.regions(), 3);
    }

    #[test]
    fn reserved_keys_are_never_handed_out() {
        let limits = TableLimits { regions_max: 1, domains_max: 1 };
        for reserved in [0, u32::MAX] {
            // A key whose permutation takes slot 0 to the reserved key in some generation.
            let (seed, generation) = (0..)
                .find_map(|seed| {
                    let plain = KeyedPermutation::new([seed, 0]).decrypt(reserved);
                    (plain <= KEY_GENERATION_MASK && plain > 0).then_some((seed, plain))
                })
                .unwrap();
            let table = MemoryTable::new(limits, [seed, 0]);
            let next = table.next_generation(0, generation - 1);
            assert!(next > generation, "generation {generation} was not skipped");
        }
    }

    #[test]
    fn released_domains_are_gone_and_their_names_do_not_come_back() {
        let limits = TableLimits { regions_max: 8, domains_max: 2 };
        let table = MemoryTable::new(limits, [1, 2]);
        let (first, second) = (table.allocate_domain(), table.allocate_domain());
        assert_ne!(first, second);
        assert_eq!(table.allocate_domain(), ProtectionDomain::NONE);
        let register = |domain| table.register(domain, Buffer::new(8), Rights::NONE);
        let none = Err(RegisterError::UnknownDomain { domain: ProtectionDomain::NONE });
        assert_eq!(register(ProtectionDomain::NONE), none);

        let region = register(first).unwrap();
        let busy = RegisterError::DomainBusy { domain: first, regions: 1 };
        assert_eq!(table.release_domain(first), Err(busy));
        table.deregister(region.id).unwrap();
        assert_eq!(table.release_domain(first), Ok(()));
        let unknown = RegisterError::UnknownDomain { domain: first };
        assert_eq!(table.release_domain(first), Err(unknown));
        assert_eq!(register(first), Err(unknown));
        let third = table.allocate_domain();
        assert_eq!(third.index(), first.index());
        assert_ne!(third, first);
        assert_eq!(register(first), Err(unknown));
        assert!(register(third).is_ok());
    }

    #[test]
    fn ranges_that_wrap_are_refused() {
        let (table, domain) = table();
        let register = |start: u64, len| {
            let start = core::ptr::without_provenance_mut(start as usize);
            // SAFETY: every call below is refused, or registers no byte.
            unsafe { table.register_raw(domain, start, len, Rights::NONE) }
        };
        for (start, len) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX - 4095, 4096)] {
            assert_eq!(register(start, len), Err(RegisterError::Wraps { start, len }));
        }
        assert!(register(u64::MAX, 0).is_ok());
    }

    #[test]
    #[cfg(not(miri))]
    fn memory_that_is_not_mapped_is_refused_by_its_address() {
        let (table, domain) = table();
        let mapping = Mapping::new(3);
        mapping.protect_page(2, libc::PROT_READ);
        let (start, len) = (mapping.address(), 3 * Mapping::PAGE as u64);
        let register = |rights| {
            // SAFETY: the mapping outlives the table's accesses, of which there are none.
            unsafe { table.register_raw(domain, mapping.start(), len, rights) }
        };
        for rights in [Rights::LOCAL_WRITE, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
            let address = start + 2 * Mapping::PAGE as u64;
            assert_eq!(register(rights), Err(RegisterError::Unwritable { start, len, address }));
        }
        let region = register(Rights::REMOTE_READ).unwrap();
        table.deregister(region.id).unwrap();
        mapping.unmap_page(1);
        let address = start + Mapping::PAGE as u64;
        let refused = Err(RegisterError::Unreadable { start, len, address });
        assert_eq!(register(Rights::REMOTE_READ), refused);
        assert_eq!(table.regions(), 0);
    }

    #[test]
    fn a_known_region_needs_no_second_look_up_for_as_long_as_it_lives() {
        let (table, domain) = table();
        let rights = Rights::REMOTE_WRITE;
        let region = table.register(domain, Buffer::new(64), rights).unwrap();
        let access = table.access();
        let resolve = |address, len| access.resolve(domain, region.key, address, len, rights);
        let known = resolve(region.start, 0).unwrap();
        for (address, len) in [(region.start + 8, 56), (region.start, 65), (region.start - 1, 1)] {
            let (again, anew) = (access.resolve_again(&known, address, len), resolve(address, len));
            assert_eq!(again.map(|target| target.address()), anew.map(|target| target.address()));
        }
        drop(access);
        table.deregister(region.id).unwrap();
        assert!(table.access().resolve_again(&known, region.start, 8).is_err());
    }

    #[test]
    fn one_memory_under_two_names_is_known_by_its_address() {
        let (table, domain) = table();
        let buffer = Buffer::new(64);
        let rights = Rights::REMOTE_WRITE;
        let plain = table.register(domain, Arc::clone(&buffer), rights).unwrap();
        let named = table.register_as(domain, Arc::clone(&buffer), 0, rights);
        let wraps = table.register_as(domain, Arc::clone(&buffer), u64::MAX - 62, rights);
        assert_eq!(wraps, Err(RegisterError::Wraps { start: u64::MAX - 62, len: 64 }));
        let access = table.access();
        for (region, address) in [(plain, plain.start + 8), (named.unwrap(), 8)] {
            let target = access.resolve(domain, region.key, address, 8, rights).unwrap();
            assert_eq!(access.memory_address(&target), Ok(buffer.address() + 8));
        }
    }

    #[test]
    fn a_part_of_a_buffer_has_its_own_bounds_and_addresses() {
        let (table, domain) = table();
        let buffer = Buffer::new(64);
        let register = |part, start| {
            table.register_part(domain, Arc::clone(&buffer), part, start, Rights::ALL)
        };
        let region = register(8..24, 0x1000).unwrap();
        let access = table.access();
        let resolve =
            |address, len| access.resolve(domain, region.key, address, len, Rights::REMOTE_WRITE);
        access.place(&resolve(0x1000, 16).unwrap(), 0, &[7; 16]).unwrap();
        for (address, len) in [(0xfff, 1), (0x1000, 17), (0x1010, 1)] {
            assert!(resolve(address, len).is_err());
        }
        let mut bytes = [0; 64];
        buffer.read(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 7) == (8..24).contains(&at)));
        let (start, buffer_bytes) = (60, 64);
        let outside = Err(RegisterError::OutsideBuffer { start, end: 65, buffer_bytes });
        assert_eq!(register(60..65, 0), outside);
        assert!(matches!(register(0..8, u64::MAX), Err(RegisterError::Wraps { .. })));
    }

    #[test]
    fn the_table_is_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<MemoryTable>();
        shared::<crate::Target>();
    }

    fn table() -> (MemoryTable, ProtectionDomain) {
        let table = MemoryTable::new(TableLimits::default(), [0x5eed, 0xfeed]);
        let domain = table.allocate_domain();
        (table, domain)
    }
}

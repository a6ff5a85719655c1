//! Deferred deregistration: if operations use a region when its owner drops it, the region stays
//! until the last of these operations has ended.
//!
//! The runtime does not count the operations that use a region, because counting would make each
//! operation slower. Instead, it searches all pending work for the dropped regions: at once if
//! there is little work, otherwise at intervals.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use delivery::Instant;
use engine::Engine;
use mem::{MemoryTable, RegionId, RegisterError};

use crate::driver::{Driver, RuntimeHost};
use crate::fork::HomeProcess;
use crate::runtime::{Runtime, Shared, lock};
use crate::turn_access::TurnAccess;

/// Revokes and deregisters memory regions of a runtime. This handle does not keep the runtime
/// alive.
#[derive(Clone, Debug)]
pub struct Regions {
    table: Arc<MemoryTable>,
    shared: Weak<Shared>,
    home: HomeProcess,
}

impl Runtime {
    /// Returns a handle that revokes and deregisters memory regions of this runtime.
    pub fn regions(&self) -> Regions {
        let shared = &self.shared;
        let (table, home) = (Arc::clone(&shared.host.memory), shared.home);
        Regions { table, shared: Arc::downgrade(shared), home }
    }
}

impl Regions {
    /// Returns the table of memory regions.
    pub const fn table(&self) -> &Arc<MemoryTable> {
        &self.table
    }

    /// Revokes a region: when this returns, peers have no access to the region. If the table [keeps
    /// the region's memory alive](MemoryTable::keeps_alive), operations of this side continue to
    /// use the region. Otherwise this call deregisters the region.
    ///
    /// Does nothing in a forked child.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::deregister`].
    pub fn revoke(&self, region: RegionId) -> Result<(), RegisterError> {
        if self.home.check().is_err() {
            return Ok(());
        }
        if !self.table.keeps_alive(region) {
            return self.table.deregister(region);
        }
        self.table.revoke(region)?;
        self.table.wait_for_accesses();
        Ok(())
    }

    /// Deregisters a region. If operations or receives use the region, and the table keeps the
    /// region's memory alive, this call only revokes the region. The runtime then deregisters the
    /// region when the last of these operations and receives has ended.
    ///
    /// Does nothing in a forked child.
    ///
    /// # Errors
    /// Returns the errors of [`MemoryTable::deregister`].
    pub fn release(&self, region: RegionId) -> Result<(), RegisterError> {
        if self.home.check().is_err() {
            return Ok(());
        }
        let shared = self.shared.upgrade().filter(|shared| !shared.cell.is_poisoned());
        let Some(shared) = shared.filter(|_| self.table.keeps_alive(region)) else {
            return self.table.deregister(region);
        };
        self.table.revoke(region)?;
        if shared.finds_unused(region) && self.table.deregister(region).is_ok() {
            return Ok(());
        }
        shared.host.retired.add(region);
        shared.run_later(Box::new(|driver, host, now, memory| {
            driver.take_retired(host, now, memory);
        }));
        shared.drive_inline();
        self.table.wait_for_accesses();
        Ok(())
    }
}

impl Shared {
    /// Returns true if a short search shows that no pending work uses the region. Returns false if
    /// another thread is inside the engine, or if there is much pending work.
    fn finds_unused(&self, region: RegionId) -> bool {
        let Some(mut inside) = self.cell.try_enter() else { return false };
        let is_unused = inside.with(|driver| driver.finds_unused(&self.host, region));
        self.leave(inside, false);
        is_unused
    }
}

/// Exchange of dropped regions between threads outside the engine and the thread inside. The thread
/// inside searches pending work for the regions, and returns those that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Retired {
    added: Mutex<Vec<RegionId>>,
    /// Regions that pending work does not use any more.
    ended: Mutex<Vec<RegionId>>,
    /// True if `ended` is not empty.
    has_ended: AtomicBool,
}

impl Retired {
    fn add(&self, region: RegionId) {
        lock(&self.added).push(region);
    }

    /// Returns whether [`Retired::deregister`] has something to do.
    #[inline]
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Deregisters regions that pending work does not use any more. The calling thread must have
    /// left the engine.
    #[cold]
    pub(crate) fn deregister(&self, table: &MemoryTable) {
        self.has_ended.store(false, Ordering::Relaxed);
        let ended = std::mem::take(&mut *lock(&self.ended));
        for region in ended {
            if let Err(RegisterError::InsideAccess { .. }) = table.deregister(region) {
                // The calling thread itself has access to memory now, and deregistration waits for
                // all accesses to end. Try again later.
                self.end(std::iter::once(region));
            }
        }
    }

    fn end(&self, regions: impl Iterator<Item = RegionId>) {
        lock(&self.ended).extend(regions);
        self.has_ended.store(true, Ordering::Release);
    }
}

/// Dropped regions that pending work used at the last search.
#[derive(Debug)]
pub(crate) struct Retiring {
    regions: HashSet<RegionId>,
    look_at: Instant,
    /// Nanoseconds from the last search to the next.
    interval_ns: u64,
}

impl Default for Retiring {
    fn default() -> Self {
        Self { regions: HashSet::new(), look_at: Instant::NEVER, interval_ns: 0 }
    }
}

impl Retiring {
    /// Returns the time of the next search.
    #[inline]
    pub(crate) const fn look_at(&self) -> Instant {
        self.look_at
    }

    /// Takes over the newly dropped regions, and searches the pending work for all dropped regions.
    /// `visit_others` visits the regions of work that the engine has not taken yet.
    fn look(
        &mut self,
        retired: &Retired,
        engine: &Engine,
        now: Instant,
        visit_others: impl FnOnce(&mut dyn FnMut(RegionId)),
    ) {
        let added = std::mem::take(&mut *lock(&retired.added));
        let has_new = !added.is_empty();
        self.regions.extend(added);
        let mut used = HashSet::new();
        let mut visited = u64::from(engine.visited_count());
        let mut visit = |region| {
            visited += 1;
            if self.regions.contains(&region) {
                used.insert(region);
            }
        };
        engine.visit_regions(&mut visit);
        visit_others(&mut visit);
        let before = std::mem::replace(&mut self.regions, used);
        if before.len() > self.regions.len() {
            retired.end(before.into_iter().filter(|region| !self.regions.contains(region)));
        }
        self.interval_ns = if has_new { 0 } else { self.interval_ns.saturating_mul(2) };
        let least_ns = (visited * NS_PER_VISIT).max(LOOK_NS);
        self.interval_ns = self.interval_ns.clamp(least_ns, LOOK_NS_MAX.max(least_ns));
        self.look_at =
            if self.regions.is_empty() { Instant::NEVER } else { now.after_ns(self.interval_ns) };
    }

    /// Returns all regions for deregistration, even regions that operations use, because the engine
    /// does no more work.
    pub(crate) fn give_up(&mut self, retired: &Retired) {
        retired.end(self.regions.drain().chain(std::mem::take(&mut *lock(&retired.added))));
        self.look_at = Instant::NEVER;
    }
}

impl Driver {
    /// Searches the pending work for regions that were dropped.
    #[cold]
    pub(crate) fn take_retired(
        &mut self,
        host: &RuntimeHost,
        now: Instant,
        memory: &TurnAccess<'_>,
    ) {
        // Take the submissions first, so that the search also covers operations that threads handed
        // over before they dropped a region.
        self.take_submissions(host, memory);
        let Self { retiring, held, engine, .. } = self;
        retiring.look(&host.retired, engine, now, |visit| held.visit_regions(visit));
    }

    /// Returns true if a short search shows that no pending work uses the region.
    #[cold]
    fn finds_unused(&mut self, host: &RuntimeHost, region: RegionId) -> bool {
        if self.engine.visited_count() > VISITED_AT_ONCE {
            return false;
        }
        self.take_submissions(host, &TurnAccess::new(&host.memory));
        let mut is_used = false;
        let mut visit = |found| is_used |= found == region;
        self.engine.visit_regions(&mut visit);
        self.held.visit_regions(&mut visit);
        !is_used
    }
}

/// Maximum number of records and connections that a call searches for a region immediately.
/// Searching them takes about a microsecond.
const VISITED_AT_ONCE: u32 = 64;

/// Shortest interval in nanoseconds between searches for regions in use. A small operation ends in
/// this time.
const LOOK_NS: u64 = 1_000_000;

/// Longest interval in nanoseconds between searches while the same regions stay in use. If a peer
/// is silent, regions may stay in use for seconds.
const LOOK_NS_MAX: u64 = 128_000_000;

/// Minimum of the interval between searches, in nanoseconds per record that a search visits.
/// Visiting a record takes about 10 ns, so searches take at most 1 % of the time.
const NS_PER_VISIT: u64 = 1_000;

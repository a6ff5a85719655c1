//! The pages of a view, and which accesses to them fault.

use core::ops::Range;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::frames::TwoMappings;
use super::kernel::{self, PageMap, UserFaults};
use super::missing::{first_gap, mappings};
use crate::error::{MissingMemory, ViewError};
use crate::options::{Method, PAGE_BYTES, ViewOptions};
use crate::range::Access;

/// The pages of a view. Each page is *absent* (every access faults), *readable* (a write is seen) or
/// *writable*.
///
/// Threads may call all methods at the same time. Changes of one page follow each other.
#[derive(Debug)]
pub struct Pages {
    frames: TwoMappings,
    watch: Watch,
    /// The state of each page: [`ABSENT`], [`READABLE`] or [`WRITABLE`]. Changes only under the lock
    /// of the page's block.
    states: Box<[AtomicU8]>,
    /// Bit `p` mod 64 of word `p` / 64 is set if page `p` is guarded.
    guards: Box<[AtomicU64]>,
    /// Locks of blocks of [`BLOCK_PAGES`] pages; several blocks share a lock.
    locks: [Mutex<()>; LOCKS],
}

/// How accesses are seen, with what that needs.
#[derive(Debug)]
enum Watch {
    Asynchronous { faults: UserFaults, map: PageMap },
    Synchronous { faults: UserFaults, maps_protected: bool },
    Protection,
}

impl Pages {
    pub(super) fn new(options: &ViewOptions) -> Result<Self, ViewError> {
        let pages = options.pages;
        if pages == 0 || pages > PAGES_MAX {
            return Err(ViewError::Pages { pages, most: PAGES_MAX });
        }
        match options.method {
            Some(method) => Self::by(method, options),
            None => Self::by_any(options),
        }
    }

    fn by_any(options: &ViewOptions) -> Result<Self, ViewError> {
        let mut last = None;
        for method in Method::ALL {
            match Self::by(method, options) {
                Ok(pages) => return Ok(pages),
                Err(error @ ViewError::Method { .. }) => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        let missing = || ViewError::Pages { pages: options.pages, most: PAGES_MAX };
        Err(last.map_or_else(missing, |last| ViewError::NoMethod { last: Box::new(last) }))
    }

    fn by(method: Method, options: &ViewOptions) -> Result<Self, ViewError> {
        let bytes = options.pages * PAGE_BYTES;
        let frames = TwoMappings::new(bytes, options.address, method == Method::Protection)?;
        let watch = Watch::new(method, &frames)?;
        let states = (0..options.pages).map(|_| AtomicU8::new(ABSENT)).collect();
        let guards = (0..options.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        let locks = [const { Mutex::new(()) }; LOCKS];
        Ok(Self { frames, watch, states, guards, locks })
    }

    /// Behaves as on Linux before 6.4, which cannot map a page and protect it in one step.
    #[cfg(test)]
    pub(super) fn without_protected_maps(mut self) -> Self {
        if let Watch::Synchronous { maps_protected, .. } = &mut self.watch {
            *maps_protected = false;
        }
        self
    }

    /// Returns the start of the view, which programs access.
    pub fn view(&self) -> *mut u8 {
        self.frames.view()
    }

    /// Returns the start of the frames. They have the bytes of the view, and never fault.
    pub fn frames(&self) -> *mut u8 {
        self.frames.frames()
    }

    /// Returns the length of the view and of the frames, in bytes.
    pub fn bytes(&self) -> usize {
        self.frames.bytes()
    }

    /// Returns the number of pages.
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// Returns how accesses are seen.
    pub fn method(&self) -> Method {
        match self.watch {
            Watch::Asynchronous { .. } => Method::Asynchronous,
            Watch::Synchronous { .. } => Method::Synchronous,
            Watch::Protection => Method::Protection,
        }
    }

    /// Returns memory that is missing because the process has changed the mapping of the frames or of
    /// the view: the part with the lowest addresses. Reads the kernel's list of mappings.
    pub fn missing(&self) -> Option<MissingMemory> {
        let (view, frames) = (self.view().addr(), self.frames().addr());
        let gap = |start: usize, rights| {
            let is_guarded = |found: Range<usize>| {
                start == view && self.pages_at(&found).all(|page| self.is_guarded(page))
            };
            let whole = start..start + self.bytes();
            mappings().and_then(|list| first_gap(list, &whole, rights, is_guarded))
        };
        if let Some(gap) = gap(frames, "rw") {
            let addresses = gap.start - frames + view..gap.end - frames + view;
            return Some(MissingMemory::Frames { addresses, mapped: gap.start });
        }
        let rights = if self.method() == Method::Protection { "" } else { "rw" };
        gap(view, rights).map(|addresses| MissingMemory::View { addresses })
    }

    /// Returns why the frame of a page cannot be accessed.
    pub(super) fn missing_frame(&self, page: usize) -> MissingMemory {
        let addresses = self.bytes_at(&(page..page + 1));
        self.missing().unwrap_or(MissingMemory::Page { addresses })
    }

    /// Makes pages readable, or writable if `access` is a write. Pages that are writable stay
    /// writable. Afterwards, [`Self::take_written`] reports pages that became writable by this call.
    ///
    /// Linux before 6.4 cannot map a page as readable by userfaultfd without a moment in which a
    /// write is not seen. There, this method makes such pages writable.
    ///
    /// # Errors
    /// [`ViewError::Range`] if pages are outside the view, [`ViewError::Missing`] if the process has
    /// changed a mapping, [`ViewError::Mappings`] or [`ViewError::Change`] if the kernel refuses the
    /// change for another reason. Some pages may have changed then.
    pub fn map(&self, pages: Range<usize>, access: Access) -> Result<(), ViewError> {
        self.check(&pages)?;
        for block in blocks(pages) {
            let _lock = self.lock(&block);
            for (state, run) in self.runs(block) {
                self.map_run(state, run, access)?;
            }
        }
        Ok(())
    }

    /// Allocates the frames of pages by one system call, so that writes to the frames cause no faults
    /// of the kernel. A hint: does nothing before Linux 5.14, and for pages outside of the view.
    pub fn allocate(&self, pages: Range<usize>) {
        if self.check(&pages).is_ok() {
            let start = self.frames().addr() + pages.start * PAGE_BYTES;
            // If the kernel refuses, the first write to each page allocates it.
            let _refused = kernel::allocate(start..start + pages.len() * PAGE_BYTES);
        }
    }

    /// Replaces the frames of pages by one system call. Frames that do not exist yet are not filled
    /// with zeros first, as they are when they are written through their mapping. The bytes are placed
    /// in any order.
    ///
    /// # Errors
    /// The error of the kernel, for example if the host has no memory, or if pages are outside of the
    /// view. Some bytes may be placed then.
    ///
    /// # Safety
    /// `from` must point to the bytes of as many pages.
    pub unsafe fn write_frames(&self, pages: Range<usize>, from: *const u8) -> io::Result<()> {
        self.check(&pages).map_err(io::Error::other)?;
        // SAFETY: the caller upholds this.
        unsafe { self.frames.write(from, pages.len() * PAGE_BYTES, pages.start * PAGE_BYTES) }
    }

    /// Guards pages: afterwards each write to them is a fault of this process, until
    /// [`Self::unguard`], even if the page is writable or its writes are noted. Costs one system
    /// call. Each range that is guarded apart from others needs up to two mappings of the kernel. Does
    /// nothing with [`Method::Protection`], with which each first write is a fault anyway.
    ///
    /// Returns false if the process has too many mappings. Then the pages are not guarded.
    ///
    /// # Errors
    /// Those of [`Self::map`].
    pub fn guard(&self, pages: Range<usize>) -> Result<bool, ViewError> {
        self.check(&pages)?;
        if self.method() == Method::Protection {
            return Ok(true);
        }
        // A thread that faults looks at the bits to find out why.
        self.set_guards(&pages, true);
        match self.allow(&pages, libc::PROT_READ) {
            Ok(()) => Ok(true),
            // The kernel may have changed some of the pages.
            Err(ViewError::Mappings { .. }) => self.unguard(pages).map(|()| false),
            Err(error) => Err(error),
        }
    }

    /// Ends the guard of pages. Their accesses are seen as before.
    ///
    /// # Errors
    /// Those of [`Self::map`].
    pub fn unguard(&self, pages: Range<usize>) -> Result<(), ViewError> {
        self.check(&pages)?;
        if self.method() == Method::Protection {
            return Ok(());
        }
        self.allow(&pages, libc::PROT_READ | libc::PROT_WRITE)?;
        self.set_guards(&pages, false);
        Ok(())
    }

    /// Returns whether a page is guarded.
    pub(super) fn is_guarded(&self, page: usize) -> bool {
        let word = self.guards.get(page / 64).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (page % 64) & 1 == 1
    }

    fn set_guards(&self, pages: &Range<usize>, are_guarded: bool) {
        for page in pages.clone() {
            let Some(word) = self.guards.get(page / 64) else { continue };
            let bit = 1 << (page % 64);
            if are_guarded {
                word.fetch_or(bit, Ordering::AcqRel);
            } else {
                word.fetch_and(!bit, Ordering::AcqRel);
            }
        }
    }

    /// Makes pages absent. What was written stays in the frames, but [`Self::take_written`] does not
    /// report it any more.
    ///
    /// # Errors
    /// Those of [`Self::map`].
    pub fn unmap(&self, pages: Range<usize>) -> Result<(), ViewError> {
        self.check(&pages)?;
        for block in blocks(pages) {
            let _lock = self.lock(&block);
            for (state, run) in self.runs(block) {
                if state != ABSENT {
                    self.set(&run, ABSENT);
                    self.remove(&run)?;
                }
            }
        }
        Ok(())
    }

    /// Appends to `written` each range of pages that were written since they became readable, or
    /// since the last such call, and makes these pages readable. Pages that became writable by
    /// [`Self::map`] count as written. Pages that were not written may be among them, but none is
    /// left out. After the call, the frames have all bytes that were written before it.
    ///
    /// # Errors
    /// Those of [`Self::map`].
    pub fn take_written(
        &self,
        pages: Range<usize>,
        written: &mut Vec<Range<usize>>,
    ) -> Result<(), ViewError> {
        self.check(&pages)?;
        for block in blocks(pages) {
            let _lock = self.lock(&block);
            if let Watch::Asynchronous { map, .. } = &self.watch {
                self.take_noted(map, block, written)?;
                continue;
            }
            for (state, run) in self.runs(block) {
                if state == WRITABLE {
                    self.set(&run, READABLE);
                    self.protect(&run)?;
                    written.push(run);
                }
            }
        }
        Ok(())
    }

    /// Takes the writes that the kernel has noted for the pages of a block.
    fn take_noted(
        &self,
        map: &PageMap,
        block: Range<usize>,
        written: &mut Vec<Range<usize>>,
    ) -> Result<(), ViewError> {
        let bytes = self.bytes_at(&block);
        let scanned = map.take_written(bytes.clone(), |found| {
            let pages = self.pages_at(&found);
            self.set(&pages, READABLE);
            written.push(pages);
        });
        // The kernel takes pages out of the view if it needs memory, and forgets then that they
        // were written.
        let searched = scanned.and_then(|()| {
            map.unmapped(bytes, |unmapped| {
                for (state, run) in self.runs(self.pages_at(&unmapped)) {
                    if state != ABSENT {
                        self.set(&run, ABSENT);
                        written.push(run);
                    }
                }
            })
        });
        searched.map_err(|source| self.refused("scan", &block, source))
    }

    /// Makes pages of one state accessible.
    fn map_run(&self, state: u8, run: Range<usize>, access: Access) -> Result<(), ViewError> {
        let wants_write = access == Access::Write || state == WRITABLE;
        let next = match &self.watch {
            Watch::Asynchronous { faults, map } => {
                // A page that is not absent may still be missing, because the kernel has taken it
                // out of the view. Whether it was written is forgotten then, so let it count as
                // written.
                let is_protected = !wants_write && state == ABSENT;
                if state == ABSENT || run.len() == 1 {
                    self.map_frames(faults, &run, is_protected)?;
                } else {
                    self.map_missing(faults, map, &run)?;
                }
                self.permit_writes(faults, state, &run, wants_write)?;
                if wants_write { WRITABLE } else { READABLE }
            }
            Watch::Synchronous { faults, maps_protected } => {
                let is_protected = !wants_write && *maps_protected;
                self.map_frames(faults, &run, is_protected)?;
                // A page that was mapped may be protected, and one that was missing is not.
                self.permit_writes(faults, state, &run, !is_protected)?;
                if is_protected { READABLE } else { WRITABLE }
            }
            Watch::Protection => {
                let write = if wants_write { libc::PROT_WRITE } else { 0 };
                self.allow(&run, libc::PROT_READ | write)?;
                if wants_write { WRITABLE } else { READABLE }
            }
        };
        self.set(&run, next);
        Ok(())
    }

    /// Maps those of the pages that are missing in the view. The kernel maps pages by one system call
    /// only until it finds one that is mapped, so a scan finds the missing ones first.
    fn map_missing(
        &self,
        faults: &UserFaults,
        map: &PageMap,
        run: &Range<usize>,
    ) -> Result<(), ViewError> {
        let mut missing = Vec::new();
        map.unmapped(self.bytes_at(run), |unmapped| missing.push(self.pages_at(&unmapped)))
            .map_err(|source| self.refused("scan", run, source))?;
        missing.iter().try_for_each(|pages| self.map_frames(faults, pages, false))
    }

    /// Permits writes to pages of one state, which are mapped. A page that was mapped before has kept
    /// its protection.
    fn permit_writes(
        &self,
        faults: &UserFaults,
        state: u8,
        run: &Range<usize>,
        wants_write: bool,
    ) -> Result<(), ViewError> {
        if !wants_write || state != READABLE {
            return Ok(());
        }
        let permitted = faults.write_protect(self.bytes_at(run), false);
        permitted.map_err(|source| self.refused("permit writes", run, source))
    }

    /// Maps pages by userfaultfd.
    fn map_frames(
        &self,
        faults: &UserFaults,
        run: &Range<usize>,
        is_protected: bool,
    ) -> Result<(), ViewError> {
        let bytes = self.bytes_at(run);
        let mut tries = 0;
        loop {
            match faults.map(bytes.clone(), is_protected) {
                Ok(()) => break,
                // The file does not have a page yet, or the kernel has taken it out of memory.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) && tries < TRIES_MAX => {
                    tries += 1;
                    self.fill(run);
                }
                Err(source) => return Err(self.refused("map", run, source)),
            }
        }
        Ok(())
    }

    /// Makes sure that the file has these pages. A page without bytes would not be mapped.
    fn fill(&self, run: &Range<usize>) {
        for page in run.clone() {
            // SAFETY: the page is in the mapping of the frames. Programs write the byte at the same
            // time, so its value is not used, and the compiler must not reason about it.
            unsafe { self.frames().add(page * PAGE_BYTES).read_volatile() };
        }
    }

    /// Lets the next write to pages be seen.
    fn protect(&self, run: &Range<usize>) -> Result<(), ViewError> {
        match &self.watch {
            Watch::Asynchronous { faults, .. } | Watch::Synchronous { faults, .. } => {
                let protected = faults.write_protect(self.bytes_at(run), true);
                protected.map_err(|source| self.refused("protect", run, source))
            }
            Watch::Protection => self.allow(run, libc::PROT_READ),
        }
    }

    /// Lets the next access to pages fault.
    fn remove(&self, run: &Range<usize>) -> Result<(), ViewError> {
        match &self.watch {
            Watch::Asynchronous { .. } | Watch::Synchronous { .. } => {
                let forgotten = kernel::forget(self.bytes_at(run));
                forgotten.map_err(|source| self.refused("unmap", run, source))
            }
            Watch::Protection => self.allow(run, libc::PROT_NONE),
        }
    }

    fn allow(&self, run: &Range<usize>, rights: i32) -> Result<(), ViewError> {
        kernel::protect(self.bytes_at(run), rights).map_err(|source| {
            let is_full = source.raw_os_error() == Some(libc::ENOMEM);
            match self.refused("mprotect", run, source) {
                ViewError::Change { .. } if is_full => {
                    ViewError::Mappings { method: self.method(), pages: self.count() }
                }
                error => error,
            }
        })
    }

    /// Describes a change that the kernel has refused.
    fn refused(&self, step: &'static str, run: &Range<usize>, source: io::Error) -> ViewError {
        match self.missing() {
            Some(missing) => missing.into(),
            None => ViewError::Change { step, start: run.start, end: run.end, source },
        }
    }

    /// Returns the runs of consecutive pages with equal states, which are all guarded or all not: the
    /// kernel maps pages of one mapping at a time. The caller may change the states of runs that it
    /// has got.
    fn runs(&self, pages: Range<usize>) -> impl Iterator<Item = (u8, Range<usize>)> {
        let mut start = pages.start;
        let state = |page: usize| {
            let state = self.states.get(page)?.load(Ordering::Relaxed);
            Some((state, self.is_guarded(page)))
        };
        core::iter::from_fn(move || {
            let first = state(start).filter(|_| start < pages.end)?;
            let end = (start..pages.end).find(|&page| state(page) != Some(first));
            let run = start..end.unwrap_or(pages.end);
            start = run.end;
            Some((first.0, run))
        })
    }

    fn set(&self, run: &Range<usize>, state: u8) {
        for place in self.states.iter().take(run.end).skip(run.start) {
            place.store(state, Ordering::Relaxed);
        }
    }

    fn lock(&self, block: &Range<usize>) -> MutexGuard<'_, ()> {
        let lock = &self.locks[block.start / BLOCK_PAGES % LOCKS];
        lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, pages: &Range<usize>) -> Result<(), ViewError> {
        if pages.start <= pages.end && pages.end <= self.count() {
            return Ok(());
        }
        Err(ViewError::Range { start: pages.start, end: pages.end, pages: self.count() })
    }

    fn bytes_at(&self, run: &Range<usize>) -> Range<usize> {
        let start = self.view().addr() + run.start * PAGE_BYTES;
        start..start + run.len() * PAGE_BYTES
    }

    fn pages_at(&self, bytes: &Range<usize>) -> Range<usize> {
        let page = |address: usize| (address - self.view().addr()) / PAGE_BYTES;
        page(bytes.start)..page(bytes.end)
    }
}

impl Method {
    /// Checks whether the kernel has what the method needs, and lets this process use it. Tries the
    /// method on a view of its own.
    ///
    /// # Errors
    /// The error that making a view by this method gives.
    pub fn check(self) -> Result<(), ViewError> {
        Pages::new(&ViewOptions { pages: 2, address: None, method: Some(self) }).map(|_pages| ())
    }
}

impl Watch {
    /// Prepares a method for the view, and tries on its first page whether the kernel has what the
    /// method needs.
    fn new(method: Method, frames: &TwoMappings) -> Result<Self, ViewError> {
        let step = |step| move |source| ViewError::Method { method, step, source };
        let start = frames.view().addr();
        let open = |features| -> Result<UserFaults, ViewError> {
            let faults = UserFaults::open(features).map_err(step("userfaultfd"))?;
            let registered = faults.register(start..start + frames.bytes());
            registered.map_err(step("registration with userfaultfd"))?;
            // SAFETY: the byte is in the mapping of the frames, which no other code knows yet.
            unsafe { frames.frames().read_volatile() };
            Ok(faults)
        };
        let page = start..start + PAGE_BYTES;
        let watch = match method {
            Method::Protection => return Ok(Self::Protection),
            Method::Asynchronous => {
                let faults = open(kernel::FEATURE_ASYNCHRONOUS)?;
                faults.map(page.clone(), true).map_err(step("mapping of a page"))?;
                let map = PageMap::open().map_err(step("/proc/self/pagemap"))?;
                let scanned = map
                    .take_written(page.clone(), |_| {})
                    .and_then(|()| map.unmapped(page.clone(), |_| {}));
                scanned.map_err(step("scan of written pages"))?;
                Self::Asynchronous { faults, map }
            }
            Method::Synchronous => {
                let faults = open(0)?;
                let mapped = faults.map(page.clone(), true);
                let maps_protected = match mapped {
                    Ok(()) => true,
                    Err(error) if error.raw_os_error() == Some(libc::EINVAL) => false,
                    Err(source) => return Err(step("mapping of a page")(source)),
                };
                if !maps_protected {
                    faults.map(page.clone(), false).map_err(step("mapping of a page"))?;
                }
                let protected = faults.write_protect(page.clone(), true);
                protected.map_err(step("write protection"))?;
                Self::Synchronous { faults, maps_protected }
            }
        };
        kernel::forget(page).map_err(step("unmapping of a page"))?;
        Ok(watch)
    }
}

/// Divides a range of pages at the borders of blocks.
fn blocks(pages: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = pages.start;
    core::iter::from_fn(move || {
        let end = (start / BLOCK_PAGES + 1) * BLOCK_PAGES;
        let block = start..end.min(pages.end);
        start = block.end;
        (!block.is_empty()).then_some(block)
    })
}

const ABSENT: u8 = 0;
const READABLE: u8 = 1;
const WRITABLE: u8 = 2;

/// Number of pages that change under one lock: 16 MiB. A scan of so many pages takes some ten
/// microseconds, which another thread may have to wait.
const BLOCK_PAGES: usize = 4096;

/// Number of locks.
const LOCKS: usize = 64;

/// Largest number of pages of a view: 16 TiB, an eighth of the addresses of a program.
const PAGES_MAX: usize = 1 << 32;

/// Number of times that a page is read again because the kernel has taken it out of memory.
const TRIES_MAX: u32 = 8;

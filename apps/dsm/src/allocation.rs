//! Memory of the region: shared allocations, which all ranks make in the same order, and local ones,
//! which a rank makes alone.

use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::Pod;
use dsm_protocol::{Call, PageNumber};

use crate::core::Core;
use crate::error::Error;
use crate::handle::Dsm;
use crate::slice::DsmSlice;

/// The address of the region in all processes.
pub(crate) const REGION: usize = 0x2000_0000_0000;

/// The homes of the pages of an allocation. The home of a page has all changes of it: its own
/// accesses cost nothing, and those of other ranks cost a transfer.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Home {
    /// Each page belongs to the rank that first writes it; with asynchronous write protection, to
    /// the rank that first touches it.
    #[default]
    FirstWrite,
    /// All pages belong to a rank.
    Rank(usize),
    /// The pages belong to the ranks in turn.
    Interleaved,
    /// The pages are split into equal blocks, one for each rank.
    Blocks,
}

/// Options of [`Dsm::alloc_with`].
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[must_use]
pub struct Allocation {
    align: usize,
    home: Home,
}

impl Allocation {
    /// Returns the defaults: those of [`Dsm::alloc`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the alignment in bytes: a power of two.
    pub const fn align(mut self, bytes: usize) -> Self {
        self.align = bytes;
        self
    }

    /// Sets the homes of the pages. The allocation then begins at a page, and is a point at which
    /// all ranks wait for each other.
    pub const fn home(mut self, home: Home) -> Self {
        self.home = home;
        self
    }
}

/// An allocation that was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocated {
    /// Offset in the region.
    pub(crate) start: u64,
    pub(crate) bytes: u64,
    /// The line of the program.
    #[expect(dead_code, reason = "reports that name allocations follow")]
    pub(crate) place: &'static Location<'static>,
}

/// The memory of the region that is in use.
#[derive(Debug)]
pub(crate) struct Heap(Mutex<Uses>);

#[derive(Debug)]
struct Uses {
    shared: Space,
    /// The memory of this rank alone.
    local: Space,
    /// By time. Shared allocations ascend, and so do local ones.
    made: Vec<Allocated>,
}

/// A part of the region, by offsets. `next` is between the other two.
#[derive(Debug)]
struct Space {
    next: u64,
    end: u64,
    /// The option that makes the part larger.
    option: &'static str,
}

impl Heap {
    /// `shared` bytes are for shared allocations. Those of the local allocations of each rank
    /// follow: `local` bytes for each.
    pub(crate) fn new(shared: u64, local: u64, rank: usize) -> Self {
        let start = shared + local * rank as u64;
        Self(Mutex::new(Uses {
            shared: Space { next: 0, end: shared, option: "Options::region_bytes" },
            local: Space { next: start, end: start + local, option: "Options::local_bytes" },
            made: Vec::new(),
        }))
    }

    /// Returns how many bytes the shared allocations have so far.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.uses().shared.next
    }

    /// Returns the allocation that has the byte at an offset.
    #[cfg_attr(not(test), expect(dead_code, reason = "reports that name allocations follow"))]
    pub(crate) fn find(&self, offset: u64) -> Option<Allocated> {
        let has = |made: &&Allocated| (made.start..made.start + made.bytes).contains(&offset);
        self.uses().made.iter().find(has).copied()
    }

    /// Returns the allocations that have bytes of a page.
    #[cfg_attr(not(test), expect(dead_code, reason = "reports that name allocations follow"))]
    pub(crate) fn of_page(&self, page: PageNumber) -> Vec<Allocated> {
        let (start, end) = (u64::from(page.0) * PAGE, u64::from(page.0) * PAGE + PAGE);
        let has = |made: &&Allocated| made.start < end && start < made.start + made.bytes;
        self.uses().made.iter().filter(has).copied().collect()
    }

    fn take(
        &self,
        part: impl FnOnce(&mut Uses) -> &mut Space,
        bytes: u64,
        align: u64,
        place: &'static Location<'static>,
    ) -> Result<u64, Error> {
        let mut uses = self.uses();
        let Space { next, end, option } = part(&mut uses);
        let (old, end, option) = (*next, *end, *option);
        let start = next.checked_next_multiple_of(align);
        let taken = start.and_then(|start| Some((start, start.checked_add(bytes)?)));
        let Some((start, after)) = taken.filter(|(_, after)| *after <= end) else {
            return Err(Error::NoRoom { wanted: bytes, left: end.saturating_sub(old), option });
        };
        *next = after;
        uses.made.push(Allocated { start, bytes, place });
        Ok(start)
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Core {
    /// Allocates `count` elements, which are zero. Returns the address of the first one.
    #[track_caller]
    pub(crate) fn allocate<T: Pod>(&self, count: usize) -> Result<*mut T, Error> {
        let bytes = bytes_of::<T>(count);
        let align = natural_align::<T>(bytes);
        let start = self.heap.take(|uses| &mut uses.shared, bytes, align, Location::caller())?;
        Ok(self.at(start))
    }

    fn at<T>(&self, offset: u64) -> *mut T {
        self.view.pages().view().wrapping_add(offset as usize).cast()
    }

    /// Makes this rank the home of its part of some pages, and waits until all ranks have done so.
    fn place(&self, start: u64, bytes: u64, home: Home) -> Result<(), Error> {
        let (first, end) = ((start / PAGE) as u32, (start + bytes).div_ceil(PAGE) as u32);
        let (rank, size) = (self.rank as u32, self.size as u32);
        let count = end - first;
        let claim = |first: u32, count: u32, step: u32| {
            self.call(Call::Claim { first: PageNumber(first), count, step }).map(drop)
        };
        match home {
            Home::FirstWrite => return Ok(()),
            Home::Rank(home) if home == self.rank => claim(first, count, 1)?,
            Home::Rank(_) => {}
            Home::Interleaved if rank < count => claim(first + rank, count - rank, size)?,
            Home::Interleaved => {}
            Home::Blocks => {
                let part =
                    |rank: u32| (u64::from(count) * u64::from(rank) / u64::from(size)) as u32;
                let (from, to) = (part(rank), part(rank + 1));
                claim(first + from, to - from, 1)?;
            }
        }
        let address = PLACED | (REGION as u64 + start);
        self.call(Call::Barrier { address, count: size }).map(drop)
    }
}

impl Dsm {
    /// Allocates `count` elements, which are zero. All ranks must make the same allocations in the
    /// same order; each then gets the same address. Elements of 1 KiB and more in total begin at a
    /// page.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full.
    #[track_caller]
    pub fn alloc<T: Pod>(&self, count: usize) -> Result<DsmSlice<'_, T>, Error> {
        Ok(DsmSlice::new(self.core().allocate(count)?, count))
    }

    /// Allocates elements as [`Self::alloc`] does, with an alignment, or with pages whose homes are
    /// given. One thread of each rank must make this call.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the region is full, [`Error::Allocation`] if there is no such alignment
    /// or rank, [`Error::Failed`] if a rank has failed.
    #[track_caller]
    pub fn alloc_with<T: Pod>(
        &self,
        count: usize,
        allocation: Allocation,
    ) -> Result<DsmSlice<'_, T>, Error> {
        let core = self.core();
        let Allocation { align, home } = allocation;
        if align > 1 && !align.is_power_of_two() {
            let problem = format!("an alignment of {align} bytes; choose a power of two");
            return Err(Error::Allocation(problem));
        }
        if let Home::Rank(rank) = home
            && rank >= core.size
        {
            let problem = format!("the home rank {rank}; choose a rank below {}", core.size);
            return Err(Error::Allocation(problem));
        }
        let bytes = bytes_of::<T>(count);
        let paged = if home == Home::FirstWrite { 1 } else { PAGE };
        let align = natural_align::<T>(bytes).max(align as u64).max(paged);
        let start = core.heap.take(|uses| &mut uses.shared, bytes, align, Location::caller())?;
        core.place(start, bytes, home)?;
        Ok(DsmSlice::new(core.at(start), count))
    }

    /// Allocates elements on this rank alone, from the memory of [`Options::local_bytes`]. The other
    /// ranks can use them as soon as they learn the address, by [`Self::slice_at`].
    ///
    /// [`Options::local_bytes`]: crate::Options::local_bytes
    ///
    /// # Errors
    /// [`Error::NoRoom`] if the memory is full.
    #[track_caller]
    pub fn alloc_local<T: Pod>(&self, count: usize) -> Result<DsmSlice<'_, T>, Error> {
        let bytes = bytes_of::<T>(count);
        let align = natural_align::<T>(bytes);
        let heap = &self.core().heap;
        let start = heap.take(|uses| &mut uses.local, bytes, align, Location::caller())?;
        Ok(DsmSlice::new(self.core().at(start), count))
    }

    /// Returns the elements at an address, which another rank has allocated.
    ///
    /// # Errors
    /// [`Error::Outside`] if they are not in the region, [`Error::Allocation`] if the address is not
    /// aligned.
    pub fn slice_at<T: Pod>(&self, address: usize, count: usize) -> Result<DsmSlice<'_, T>, Error> {
        let end = address.saturating_add(bytes_of::<T>(count) as usize);
        let offset = self.core().offset(address..end)?;
        if !address.is_multiple_of(align_of::<T>()) {
            let problem = format!("elements at {address:#x}, which need another alignment");
            return Err(Error::Allocation(problem));
        }
        Ok(DsmSlice::new(self.core().at(offset as u64), count))
    }
}

fn bytes_of<T>(count: usize) -> u64 {
    (size_of::<T>() as u64).saturating_mul(count as u64)
}

fn natural_align<T>(bytes: u64) -> u64 {
    if bytes >= PAGED_FROM {
        PAGE.max(align_of::<T>() as u64)
    } else {
        LINE.max(align_of::<T>() as u64)
    }
}

/// Bytes from which an allocation begins at a page, so that it shares no page with others.
const PAGED_FROM: u64 = 1024;

const PAGE: u64 = 4096;

/// Smaller allocations begin at a cache line, so that they share no word.
const LINE: u64 = 64;

/// Bit of the number of the barrier at which the ranks meet after they have claimed pages. So it
/// differs from the address of the allocation, which the program may use for a lock.
const PLACED: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    fn take(heap: &Heap, bytes: u64, align: u64) -> Result<u64, String> {
        let taken = heap.take(|uses| &mut uses.shared, bytes, align, Location::caller());
        taken.map_err(|error| error.to_string())
    }

    #[test]
    fn allocations_are_aligned_and_found_by_their_bytes() {
        let heap = Heap::new(3 * PAGE, 0, 0);
        assert_eq!(take(&heap, 10, 64), Ok(0));
        assert_eq!(take(&heap, 10, 64), Ok(64));
        assert_eq!(take(&heap, PAGE, PAGE), Ok(PAGE));
        assert_eq!(heap.find(70).unwrap().start, 64);
        assert!(heap.find(80).is_none());
        assert_eq!(heap.of_page(PageNumber(0)).len(), 2);
        assert_eq!(heap.of_page(PageNumber(1)).len(), 1);
        assert_eq!(heap.shared_bytes(), 2 * PAGE);
    }

    #[test]
    fn a_full_region_names_what_is_left_and_the_option() {
        let heap = Heap::new(PAGE, 100, 2);
        assert_eq!(take(&heap, 64, 64), Ok(0));
        let text = take(&heap, PAGE, 64).unwrap_err();
        assert!(text.contains("4096 bytes") && text.contains("4032 bytes that are left"), "{text}");
        assert!(text.contains("Options::region_bytes"), "{text}");
        assert!(take(&heap, u64::MAX, 64).is_err());
        assert_eq!(take(&heap, PAGE - 64, 64), Ok(64));
    }

    #[test]
    fn each_rank_has_its_own_local_memory_behind_the_shared_one() {
        for rank in 0..3 {
            let heap = Heap::new(PAGE, 2 * PAGE, rank);
            let local = |bytes| heap.take(|uses| &mut uses.local, bytes, 64, Location::caller());
            assert_eq!(local(2 * PAGE).unwrap(), PAGE + 2 * PAGE * rank as u64);
            let text = local(1).unwrap_err().to_string();
            assert!(text.contains("Options::local_bytes"), "{text}");
        }
    }
}

//! Memory of the region: shared allocations, which all ranks make in the same order, and local ones,
//! which a rank makes alone.

use std::panic::Location;

use bytemuck::Pod;
use dsm_protocol::{Call, PageNumber};

use crate::core::Core;
use crate::error::Error;
use crate::handle::Dsm;
use crate::heap::{PAGE, REGION};
use crate::slice::DsmSlice;

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
    /// Largest alignment in bytes: 1 GiB. The region begins at a multiple of it.
    pub const ALIGN_MAX: usize = 1 << 30;

    /// Returns the defaults: those of [`Dsm::alloc`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the alignment in bytes: a power of two up to [`Self::ALIGN_MAX`].
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

impl Core {
    /// Allocates `count` elements, which are zero. Returns the address of the first one.
    #[track_caller]
    pub(crate) fn allocate<T: Pod>(&self, count: usize) -> Result<*mut T, Error> {
        let bytes = bytes_of::<T>(count);
        let align = natural_align::<T>(bytes);
        let start = self.heap.take_shared(bytes, align, Location::caller())?;
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
            Home::Interleaved if rank < count => claim(first + rank, count - rank, size)?,
            // All pages belong to other ranks.
            Home::Rank(_) | Home::Interleaved => {}
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
        if align > 1 && (!align.is_power_of_two() || align > Allocation::ALIGN_MAX) {
            let problem =
                format!("an alignment of {align} bytes; choose a power of two up to 1 GiB");
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
        let start = core.heap.take_shared(bytes, align, Location::caller())?;
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
        let start = heap.take_local(bytes, align, Location::caller())?;
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

/// Smaller allocations begin at a cache line, so that they share no word.
const LINE: u64 = 64;

/// Bit of the number of the barrier at which the ranks meet after they have claimed pages. So it
/// differs from the address of the allocation, which the program may use for a lock.
const PLACED: u64 = 1 << 62;

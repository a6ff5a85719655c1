//! Pages that are fetched ahead of their use, that stay accessible for system calls, or whose home
//! is known or moves.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use dsm_protocol::diff::PAGE_BYTES;
use dsm_protocol::{Call, PageNumber, Rank};
use page_faults::Access;

use crate::core::Core;
use crate::error::Error;
use crate::handle::Dsm;
use crate::slice::DsmSlice;

/// Pages of the region, by the first one and their number.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PageRange {
    pub(crate) first: PageNumber,
    pub(crate) count: u32,
}

impl Dsm {
    /// Returns the addresses of the shared region. They are the same on all ranks.
    pub fn region(&self) -> Range<usize> {
        self.core().region()
    }

    /// Begins to fetch the pages of elements, so that later accesses need not wait.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn prefetch<T: Pod>(&self, elements: DsmSlice<'_, T>) -> Result<(), Error> {
        self.prefetch_range(elements.addresses())
    }

    /// Begins to fetch the pages of addresses.
    ///
    /// # Errors
    /// [`Error::Outside`] if the addresses are not in the region, [`Error::Failed`] if a rank has
    /// failed.
    pub fn prefetch_range(&self, addresses: Range<usize>) -> Result<(), Error> {
        let PageRange { first, count } = self.core().pages(addresses)?;
        self.core().call(Call::Prefetch { first, count }).map(drop)
    }

    /// Fetches the pages of elements, and keeps them accessible until the guard is dropped, so that
    /// system calls may use them. With [`Access::Write`], they may be written by system calls, too.
    ///
    /// Without a pin, a system call fails with `EFAULT` if a page is not present, because the kernel
    /// raises no fault for its own accesses.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn pin<'a, T: Pod>(
        &'a self,
        elements: DsmSlice<'a, T>,
        access: Access,
    ) -> Result<DsmPin<'a, T>, Error> {
        self.pin_range(elements.addresses(), access)?;
        Ok(DsmPin { core: self.core(), elements, access, thread: PhantomData })
    }

    /// Fetches the pages of addresses, and keeps them accessible until [`Self::unpin_range`] ends
    /// this for the same addresses.
    ///
    /// # Errors
    /// [`Error::Outside`] if the addresses are not in the region, [`Error::Failed`] if a rank has
    /// failed.
    pub fn pin_range(&self, addresses: Range<usize>, access: Access) -> Result<(), Error> {
        let pages = self.core().pages(addresses)?;
        self.core().pin(pages, access)
    }

    /// Ends a pin of addresses.
    ///
    /// # Errors
    /// [`Error::Misuse`] if a page is not pinned, [`Error::Outside`] if the addresses are not in the
    /// region, [`Error::Failed`] if a rank has failed.
    pub fn unpin_range(&self, addresses: Range<usize>) -> Result<(), Error> {
        let PageRange { first, count } = self.core().pages(addresses)?;
        self.core().call(Call::Unpin { first, count }).map(drop)
    }

    /// Ends the interval: all that this rank has written is at the homes of the pages, and other
    /// ranks see it after [`Self::acquire`], or after an acquire of what this rank releases later.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn release(&self) -> Result<(), Error> {
        self.core().call(Call::Release).map(drop)
    }

    /// Applies all that other ranks have released: this rank sees it from now on.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn acquire(&self) -> Result<(), Error> {
        self.core().call(Call::Acquire).map(drop)
    }

    /// Returns the home of the page at an address, if this rank knows it. The home of a page has all
    /// changes, and its accesses cost nothing.
    ///
    /// # Errors
    /// [`Error::Outside`] if the address is not in the region.
    pub fn home_of(&self, address: usize) -> Result<Option<usize>, Error> {
        let PageRange { first, .. } = self.core().pages(address..address.saturating_add(1))?;
        Ok(self.core().lock().node.home_of(first).map(Rank::index))
    }

    /// Moves the homes of the pages of elements to a rank, at the next barrier of all threads. A
    /// rank may ask for 63 pages at each barrier; further ones wait for the following barriers.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there is no such rank, [`Error::Failed`] if a rank has failed.
    pub fn migrate<T: Pod>(&self, elements: DsmSlice<'_, T>, rank: usize) -> Result<(), Error> {
        let to = Rank(u8::try_from(rank).unwrap_or(u8::MAX));
        let PageRange { first, count } = self.core().pages(elements.addresses())?;
        for page in (first.0..first.0 + count).map(PageNumber) {
            self.core().call(Call::Migrate { page, to })?;
        }
        Ok(())
    }
}

impl Core {
    /// Returns the addresses of the region.
    pub(crate) fn region(&self) -> Range<usize> {
        let pages = self.view.pages();
        let start = pages.view().addr();
        start..start + pages.bytes()
    }

    /// Returns the offset of addresses in the region.
    pub(crate) fn offset(&self, addresses: Range<usize>) -> Result<usize, Error> {
        let region = self.region();
        let is_inside = addresses.start <= addresses.end
            && region.start <= addresses.start
            && addresses.end <= region.end;
        if is_inside {
            Ok(addresses.start - region.start)
        } else {
            Err(Error::Outside { addresses, region })
        }
    }

    /// Returns the pages of addresses.
    pub(crate) fn pages(&self, addresses: Range<usize>) -> Result<PageRange, Error> {
        let bytes = addresses.len();
        let start = self.offset(addresses)?;
        Ok(pages_of(start, bytes))
    }

    /// Pins pages for the calling thread.
    fn pin(&self, pages: PageRange, access: Access) -> Result<(), Error> {
        let PageRange { first, count } = pages;
        // All pages are on their way while the pin waits for the first of them.
        self.call(Call::Prefetch { first, count })?;
        let is_written = access == Access::Write;
        self.call_and_map(Call::Pin { first, count, is_written }, pages)
    }
}

/// Returns the pages of `bytes` bytes from the offset `start` on.
const fn pages_of(start: usize, bytes: usize) -> PageRange {
    let first = start / PAGE_BYTES;
    let end = if bytes == 0 { first } else { (start + bytes).div_ceil(PAGE_BYTES) };
    PageRange { first: PageNumber(first as u32), count: (end - first) as u32 }
}

/// Elements that system calls may use. Dropping it ends this.
#[must_use = "dropping the guard ends the pin"]
pub struct DsmPin<'a, T: Pod> {
    core: &'a Core,
    elements: DsmSlice<'a, T>,
    access: Access,
    /// The thread that pinned the elements ends the pin, because a thread has a number of its own.
    thread: PhantomData<*const ()>,
}

impl<T: Pod> fmt::Debug for DsmPin<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { elements, access, .. } = self;
        write!(formatter, "DsmPin({elements:?}, {access:?})")
    }
}

impl<T: Pod> DsmPin<'_, T> {
    /// Returns the address of the first element.
    pub const fn as_ptr(&self) -> *const T {
        self.elements.as_ptr()
    }

    /// Returns the address of the first element, to be written.
    ///
    /// # Panics
    /// If the elements were pinned for reads.
    pub fn as_mut_ptr(&mut self) -> *mut T {
        assert_eq!(self.access, Access::Write, "the elements are pinned for reads; pin for writes");
        self.elements.as_ptr()
    }

    /// Returns the elements.
    ///
    /// # Safety
    /// While the reference is in use, no thread of any rank may write the elements.
    pub unsafe fn as_slice(&self) -> &[T] {
        // SAFETY: the caller upholds it.
        unsafe { self.elements.as_slice() }
    }

    /// Returns the elements, to be changed.
    ///
    /// # Safety
    /// While the reference is in use, no other thread of any rank may access the elements.
    ///
    /// # Panics
    /// If the elements were pinned for reads.
    pub unsafe fn as_mut_slice(&mut self) -> &mut [T] {
        assert_eq!(self.access, Access::Write, "the elements are pinned for reads; pin for writes");
        // SAFETY: the caller upholds it.
        unsafe { self.elements.as_mut_slice() }
    }
}

impl<T: Pod> Drop for DsmPin<'_, T> {
    fn drop(&mut self) {
        if let Ok(PageRange { first, count }) = self.core.pages(self.elements.addresses()) {
            // If this fails, a rank has failed, and the next call says so.
            let _failed = self.core.call(Call::Unpin { first, count });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_of_bytes_are_all_that_they_touch() {
        let found = |start, bytes| {
            let PageRange { first, count } = pages_of(start, bytes);
            (first.0, count)
        };
        assert_eq!(found(0, 0), (0, 0));
        assert_eq!(found(5000, 0), (1, 0));
        assert_eq!(found(0, 1), (0, 1));
        assert_eq!(found(4095, 1), (0, 1));
        assert_eq!(found(4095, 2), (0, 2));
        assert_eq!(found(4096, 4096), (1, 1));
    }
}

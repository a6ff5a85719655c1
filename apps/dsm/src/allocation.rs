//! Memory of the region, which all ranks allocate in the same order.

use std::sync::atomic::Ordering;

use bytemuck::Pod;

use crate::core::Core;
use crate::error::Error;

/// The address of the region in all processes.
pub(crate) const REGION: usize = 0x2000_0000_0000;

impl Core {
    /// Allocates `count` elements, which are zero. Returns the address of the first one.
    pub(crate) fn allocate<T: Pod>(&self, count: usize) -> Result<*mut T, Error> {
        let region = self.view.pages().bytes() as u64;
        let bytes = (size_of::<T>() as u64).saturating_mul(count as u64);
        let align = if bytes >= PAGED_FROM { PAGE } else { LINE.max(align_of::<T>() as u64) };
        let end = |start: u64| start.checked_next_multiple_of(align)?.checked_add(bytes);
        let next = |allocated| end(allocated).filter(|end| *end <= region);
        let taken = self.allocated.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        match taken {
            Ok(start) => {
                let offset = start.next_multiple_of(align) as usize;
                Ok(self.view.pages().view().wrapping_add(offset).cast())
            }
            Err(allocated) => {
                Err(Error::NoRoom { wanted: bytes, left: region.saturating_sub(allocated) })
            }
        }
    }
}

/// Bytes from which an allocation begins at a page, so that it shares no page with others.
const PAGED_FROM: u64 = 1024;

const PAGE: u64 = 4096;

/// Smaller allocations begin at a cache line, so that they share no word.
const LINE: u64 = 64;

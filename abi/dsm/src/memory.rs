//! Memory of the region.

use std::ffi::c_void;

use dsm::{Access, Allocation, Home};

use crate::created;
use crate::failure::{Failure, Result, call};
use crate::outputs::{has_place, put};
use crate::rank::dsm;

/// The allocation begins at a page and shares no page with others, whatever its size.
pub const ETHERNOT_DSM_OWN_PAGES: u32 = 1;

/// The pages of the allocation belong to the ranks in turn. Accesses of a rank to its pages cost
/// nothing. All ranks wait for each other in such an allocation.
pub const ETHERNOT_DSM_INTERLEAVED: u32 = 2;

/// The allocation is split into equal blocks, one for each rank. As with `ETHERNOT_DSM_INTERLEAVED`,
/// all ranks wait for each other.
pub const ETHERNOT_DSM_BLOCKS: u32 = 4;

/// Allocates memory of the region, which is zero. All ranks must make the same allocations in the
/// same order; each then gets the same address. Allocations of 1 KiB and more begin at a page.
/// `alignment` is a power of two up to 1 GiB, or 0. Without a flag, each page belongs to the rank that first
/// writes it. There is no call that frees memory: the region returns to the system when the process
/// ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_alloc(
    bytes: usize,
    flags: u32,
    alignment: usize,
    memory: *mut *mut c_void,
) -> Result {
    call(|| {
        has_place(memory)?;
        let has_own_pages = flags & ETHERNOT_DSM_OWN_PAGES != 0;
        let home = match flags & !ETHERNOT_DSM_OWN_PAGES {
            0 => Home::FirstWrite,
            ETHERNOT_DSM_INTERLEAVED => Home::Interleaved,
            ETHERNOT_DSM_BLOCKS => Home::Blocks,
            _ => {
                let text = format!(
                    "flags {flags:#x} are unknown; use ETHERNOT_DSM_OWN_PAGES, with ETHERNOT_DSM_INTERLEAVED or \
                     ETHERNOT_DSM_BLOCKS or neither, or 0"
                );
                return Err(Failure::new(Result::Invalid, text));
            }
        };
        let (bytes, alignment) = if has_own_pages {
            (bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes), alignment.max(PAGE_BYTES))
        } else {
            (bytes, alignment)
        };
        created::check_allocates()?;
        if home != Home::FirstWrite {
            created::check_together("this allocation", "allocate without the flag")?;
        }
        let allocation = Allocation::new().align(alignment).home(home);
        let start = dsm()?.alloc_with::<u8>(bytes, allocation)?.as_ptr();
        // SAFETY: null was rejected above, and the program upholds that there is room. No lock is
        // held.
        unsafe { put(memory, start.cast()) };
        Ok(())
    })
}

/// Allocates memory on this rank alone, from the memory of the option `local_bytes`. Other ranks can
/// use it as soon as they learn the address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_alloc_local(
    bytes: usize,
    memory: *mut *mut c_void,
) -> Result {
    call(|| {
        has_place(memory)?;
        let start = dsm()?.alloc_local::<u8>(bytes)?.as_ptr();
        // SAFETY: null was rejected above, and the program upholds that there is room. No lock is
        // held.
        unsafe { put(memory, start.cast()) };
        Ok(())
    })
}

/// Returns the address and the length in bytes of the region. Each pointer may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_region(start: *mut *mut c_void, bytes: *mut u64) -> Result {
    call(|| {
        let region = dsm()?.region();
        if !start.is_null() {
            let pointer = std::ptr::with_exposed_provenance_mut(region.start);
            // SAFETY: null is excluded, and the program upholds that there is room. No lock is held.
            unsafe { put(start, pointer) };
        }
        if !bytes.is_null() {
            // SAFETY: as above.
            unsafe { put(bytes, region.len() as u64) };
        }
        Ok(())
    })
}

/// Begins to fetch the pages of `bytes` bytes from `start` on, so that later accesses need not wait.
/// Does not wait for them. Has no effect on what the program reads.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_prefetch(start: *const c_void, bytes: usize) -> Result {
    call(|| Ok(dsm()?.prefetch_range(addresses(start, bytes))?))
}

/// Fetches the pages of `bytes` bytes from `start` on, and keeps them accessible until
/// `ethernot_dsm_unpin`, so that system calls may use them: those that read the memory, and if
/// `is_written` is not 0, those that write it.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_pin(start: *const c_void, bytes: usize, is_written: i32) -> Result {
    let access = if is_written == 0 { Access::Read } else { Access::Write };
    call(|| Ok(dsm()?.pin_range(addresses(start, bytes), access)?))
}

/// Ends a pin of the same bytes, on any thread.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_unpin(start: *const c_void, bytes: usize) -> Result {
    call(|| Ok(dsm()?.unpin_range(addresses(start, bytes))?))
}

fn addresses(start: *const c_void, bytes: usize) -> std::ops::Range<usize> {
    start.addr()..start.addr().saturating_add(bytes)
}

const PAGE_BYTES: usize = 4096;

//! Checks whether memory can be accessed. The checks ask the kernel, or access the memory by
//! instructions whose faults are caught.

use core::sync::atomic::AtomicU32;

use crate::copy;
use crate::error::{AccessError, RegisterError};
use crate::fault;

/// Checks that every page of the range is readable, and if `write` is set, also writable. Loads all
/// pages, so that the first placement does not cause page faults.
///
/// Usually one `madvise` call checks the range. If that call fails, for example on Linux before
/// 5.14 or for memory of devices, checks each page separately. This also finds the address for the
/// error.
pub(crate) fn check_range(start: u64, len: u64, write: bool) -> Result<(), RegisterError> {
    if len == 0 || cfg!(miri) {
        return Ok(());
    }
    let page_bytes = page_bytes();
    let first_page = start - start % page_bytes;
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: populating does not change the content of a page, and the kernel checks the range.
    let populated = unsafe {
        let page = core::ptr::without_provenance_mut(first_page as usize);
        libc::madvise(page, (start - first_page + len) as usize, advice)
    };
    if populated == 0 {
        return Ok(());
    }
    let last_page = (start + (len - 1)) / page_bytes * page_bytes;
    let mut page = first_page;
    loop {
        check_page(start, len, page, write)?;
        if page == last_page {
            return Ok(());
        }
        page += page_bytes;
    }
}

/// Checks that the range is mapped, and that its first and last page are readable, and if `write`
/// is set, also writable. Loads no other pages.
///
/// Costs one system call for a range of more than two pages, and none for a shorter range. If faults
/// are not caught, costs one more for each of the two pages.
pub(crate) fn check_ends(start: u64, len: u64, write: bool) -> Result<(), RegisterError> {
    if len == 0 || cfg!(miri) {
        return Ok(());
    }
    let page_bytes = page_bytes();
    let (first, last) = (start / page_bytes, (start + (len - 1)) / page_bytes);
    // The checks of the first and the last page also show whether these are mapped.
    if last - first > 1 {
        check_mapped(start, len, (first, last))?;
    }
    check_page(start, len, first * page_bytes, write)?;
    if last == first { Ok(()) } else { check_page(start, len, last * page_bytes, write) }
}

/// Checks that one page of a range is readable, and if `write` is set, also writable. `page` is the
/// address of the page.
fn check_page(start: u64, len: u64, page: u64, write: bool) -> Result<(), RegisterError> {
    // Every processor with Linux can read a page that it can write.
    if write && is_writable(page) {
        return Ok(());
    }
    let address = page.max(start);
    if !is_readable(address) {
        return Err(RegisterError::Unreadable { start, len, address });
    }
    if write { Err(RegisterError::Unwritable { start, len, address }) } else { Ok(()) }
}

/// Checks that all pages of a range are mapped. `ends` are the numbers of its first and last page.
fn check_mapped(start: u64, len: u64, ends: (u64, u64)) -> Result<(), RegisterError> {
    let page_bytes = page_bytes();
    let (first, last) = ends;
    let is_mapped = |page: u64| is_mapped(first * page_bytes, (page - first + 1) * page_bytes);
    if is_mapped(last) {
        return Ok(());
    }
    // Search for the first page that is not mapped.
    let (mut low, mut high) = (first, last);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_mapped(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Err(RegisterError::Unreadable { start, len, address: start.max(low * page_bytes) })
}

/// Returns whether every address of these pages is mapped. The kernel looks only at its list of
/// mappings. It reads no pages and schedules no write-back.
fn is_mapped(page: u64, len: u64) -> bool {
    // SAFETY: the kernel checks the range, and asynchronous write-back does not change content.
    let result = unsafe {
        let page = core::ptr::without_provenance_mut(page as usize);
        libc::msync(page, len as usize, libc::MS_ASYNC)
    };
    result == 0
}

/// Checks that the kernel lets this process copy its own memory without faults.
pub(crate) fn check_fault_safe_copies() -> Result<(), RegisterError> {
    let witness = 7_u8;
    let address = (&raw const witness).expose_provenance() as u64;
    let mut byte = [0];
    match copy::read_fault_safe(address, &mut byte) {
        Ok(()) => Ok(()),
        Err(AccessError::Kernel { errno, .. }) => Err(RegisterError::NoFaultSafeCopies { errno }),
        Err(_) => Err(RegisterError::NoFaultSafeCopies { errno: libc::EFAULT }),
    }
}

/// Returns whether the byte at `address` can be read.
fn is_readable(address: u64) -> bool {
    if !fault::is_caught() {
        return is_readable_by_kernel(address);
    }
    // SAFETY: faults are caught.
    unsafe { fault::read_byte(core::ptr::with_exposed_provenance(address as usize)).is_some() }
}

fn is_readable_by_kernel(address: u64) -> bool {
    copy::read_fault_safe(address, &mut [0]).is_ok()
}

/// Returns whether the word at `address` can be written. `address` must be a multiple of 8. Loads
/// the page of the word. Adds zero to the word atomically.
pub(crate) fn is_writable(address: u64) -> bool {
    if !fault::is_caught() {
        return is_writable_by_kernel(address);
    }
    // SAFETY: faults are caught, so the memory may be missing. Adding zero atomically changes
    // nothing, also for threads that write to the word at the same time.
    unsafe {
        fault::fetch_add(core::ptr::with_exposed_provenance_mut(address as usize), 0).is_some()
    }
}

/// Returns whether the word at `address` can be written. `address` must be a multiple of 4. Loads
/// the page of the word.
///
/// Makes a futex call whose side effect is that the kernel ORs zero into the word atomically. If
/// the word cannot be written, the call returns an error. No other system call writes to memory
/// without the danger of changing a byte. If a thread waits on this word as a futex, the call may
/// wake the thread. This does no harm, because every futex waiter must expect spurious wake-ups.
fn is_writable_by_kernel(address: u64) -> bool {
    /// A futex on which no thread waits.
    static NONE: AtomicU32 = AtomicU32::new(0);
    let or_zero = libc::FUTEX_OP(libc::FUTEX_OP_OR, 0, libc::FUTEX_OP_CMP_EQ, 0x5a5);
    // SAFETY: the kernel checks the address, and the operation changes nothing.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            NONE.as_ptr(),
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            core::ptr::null::<libc::timespec>(),
            core::ptr::without_provenance::<u32>(address as usize),
            or_zero,
        )
    };
    result >= 0
}

fn page_bytes() -> u64 {
    // SAFETY: reads a system constant.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::mapping::Mapping;

    #[test]
    fn a_writable_range_passes_and_keeps_its_bytes() {
        let mapping = Mapping::new(4);
        mapping.fill(0x5c);
        assert_eq!(check_range(mapping.address() + 5, 3 * 4096, true), Ok(()));
        for is_writable in [is_writable, is_writable_by_kernel] {
            assert!(is_writable(mapping.address()));
        }
        for is_readable in [is_readable, is_readable_by_kernel] {
            assert!(is_readable(mapping.address()) && !is_readable(0));
        }
        assert!(mapping.bytes().iter().all(|&byte| byte == 0x5c));
    }

    #[test]
    fn a_hole_is_named_by_its_address() {
        let mapping = Mapping::new(4);
        mapping.unmap_page(2);
        let (start, len) = (mapping.address() + 100, 3 * 4096);
        let address = mapping.address() + 2 * 4096;
        let refused = Err(RegisterError::Unreadable { start, len, address });
        assert_eq!(check_range(start, len, false), refused);
        assert_eq!(check_range(start, len, true), refused);
        assert_eq!(check_range(start, 4096, true), Ok(()));
    }

    #[test]
    fn the_first_byte_of_the_range_is_named_if_its_page_is_missing() {
        let mapping = Mapping::new(1);
        mapping.unmap_page(0);
        let start = mapping.address() + 100;
        let refused = Err(RegisterError::Unreadable { start, len: 8, address: start });
        assert_eq!(check_range(start, 8, false), refused);
    }

    #[test]
    fn a_read_only_page_passes_for_reading_only() {
        let mapping = Mapping::new(3);
        mapping.protect_page(1, libc::PROT_READ);
        let (start, len) = (mapping.address(), 3 * 4096);
        assert_eq!(check_range(start, len, false), Ok(()));
        let address = start + 4096;
        assert_eq!(
            check_range(start, len, true),
            Err(RegisterError::Unwritable { start, len, address })
        );
        assert!(!is_writable(address) && !is_writable_by_kernel(address));
        assert!(is_readable(address) && is_readable_by_kernel(address));
    }

    #[test]
    fn a_page_beyond_the_end_of_its_file_is_refused() {
        // SAFETY: the name is a C string.
        let file = unsafe { libc::memfd_create(c"short".as_ptr(), 0) };
        if file < 0 {
            println!("skipped: no memory files here");
            return;
        }
        let (access, bytes) = (libc::PROT_READ | libc::PROT_WRITE, 2 * 4096);
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe {
            libc::ftruncate(file, 4096);
            libc::mmap(core::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0)
        };
        assert_ne!(start, libc::MAP_FAILED);
        let (start, len) = (start.expose_provenance() as u64, bytes as u64);
        let address = start + 4096;
        for write in [false, true] {
            assert_eq!(check_range(start, 4096, write), Ok(()));
            let refused = Err(RegisterError::Unreadable { start, len, address });
            assert_eq!(check_range(start, len, write), refused);
        }
        // SAFETY: the mapping and the file belong to this test.
        unsafe {
            libc::munmap(core::ptr::with_exposed_provenance_mut(start as usize), bytes);
            libc::close(file);
        }
    }

    #[test]
    fn only_the_ends_of_a_range_are_probed() {
        let mapping = Mapping::new(4);
        let (start, len) = (mapping.address() + 8, 4 * 4096 - 8);
        assert_eq!(check_ends(start, len, true), Ok(()));
        assert_eq!(resident(&mapping), [true, false, false, true]);
        mapping.protect_page(2, libc::PROT_READ);
        assert_eq!(check_ends(start, len, true), Ok(()));
        for page in [3, 0] {
            mapping.protect_page(page, libc::PROT_READ);
            let address = start.max(mapping.address() + page as u64 * 4096);
            let refused = RegisterError::Unwritable { start, len, address };
            assert_eq!(check_ends(start, len, true), Err(refused));
            assert_eq!(check_ends(start, len, false), Ok(()));
        }
        mapping.unmap_page(0);
        let refused = RegisterError::Unreadable { start, len, address: start };
        assert_eq!(check_ends(start, len, false), Err(refused));
    }

    #[test]
    fn holes_are_found_at_any_position() {
        // Use a child process. It has only one thread, so no other test can map memory in the hole.
        // SAFETY: the child makes system calls only, and ends by one.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let are_found = (0..5).all(is_hole_found);
            // SAFETY: the child process is not used afterwards.
            unsafe { libc::_exit(i32::from(!are_found)) }
        }
        assert!(child > 0, "the kernel refuses a process");
        let mut status = -1;
        // SAFETY: `status` may be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a hole was not found, or not where it is");
    }

    fn is_hole_found(hole: u64) -> bool {
        let mapping = Mapping::new(5);
        let page = mapping.address() + hole * 4096;
        // SAFETY: the page belongs to this test.
        unsafe { libc::munmap(core::ptr::without_provenance_mut(page as usize), 4096) };
        let (start, len) = (mapping.address() + 8, 5 * 4096 - 16);
        let refused = RegisterError::Unreadable { start, len, address: start.max(page) };
        [false, true].into_iter().all(|write| check_ends(start, len, write) == Err(refused))
    }

    /// Returns, for each page, whether the page is in memory.
    fn resident(mapping: &Mapping) -> [bool; 4] {
        let mut pages = [0_u8; 4];
        // SAFETY: the mapping has four pages, and the array has a byte for each.
        let result = unsafe { libc::mincore(mapping.start().cast(), 4 * 4096, pages.as_mut_ptr()) };
        assert_eq!(result, 0);
        pages.map(|page| page & 1 != 0)
    }

    #[test]
    fn the_ends_of_the_address_space_are_refused() {
        for write in [false, true] {
            assert!(check_ends(0, 8, write).is_err());
            assert!(check_ends(u64::MAX - 8, 8, write).is_err());
            assert!(check_ends(0x8000_0000_0000_0000, 1, write).is_err());
        }
        assert!(check_range(0, 8, false).is_err());
        assert!(check_range(u64::MAX - 8, 8, false).is_err());
        assert!(check_range(u64::MAX - 7, 8, true).is_err());
        assert!(check_range(0x8000_0000_0000_0000, 1, false).is_err());
    }
}

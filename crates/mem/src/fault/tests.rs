use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::copy::copy_tail;
use crate::error::AccessError;
use crate::mapping::Mapping;
use crate::rights::Rights;
use crate::table::{MemoryTable, TableLimits};

#[test]
fn ranges_of_all_lengths_are_copied() {
    let Some(guard) = guard() else { return };
    let source: Vec<u8> = (0..9000_u32).map(|at| (at * 7 + at / 256) as u8).collect();
    for len in (0..300).chain([511, 1452, 4096, 8962]) {
        for start in [0, 1, 31] {
            let mut target = vec![0xa5; len + 2];
            // SAFETY: `target` is a byte longer on both sides.
            let copied =
                unsafe { guard.copy(target[1..].as_mut_ptr(), source[start..].as_ptr(), len) };
            assert_eq!(copied, len);
            assert_eq!(target[1..=len], source[start..start + len]);
            assert_eq!((target[0], target[len + 1]), (0xa5, 0xa5), "len {len}, start {start}");
        }
    }
}

#[test]
fn a_copy_ends_before_a_page_without_access() {
    let Some(guard) = guard() else { return };
    let mapping = Mapping::new(3);
    mapping.fill(7);
    mapping.protect_page(1, libc::PROT_NONE);
    for before in [0, 1, 63, 64, 1000, Mapping::PAGE] {
        let mut target = vec![0; before + 300];
        // SAFETY: the start lies in the mapping, and the copy has the length of `target`.
        let copied = unsafe {
            let from = mapping.start().add(Mapping::PAGE - before);
            guard.copy(target.as_mut_ptr(), from, target.len())
        };
        assert_eq!(copied, before);
        assert!(target[..before].iter().all(|&byte| byte == 7));
        assert!(target[before..].iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_copy_ends_before_a_page_that_is_unmapped() {
    let Some(guard) = guard() else { return };
    let mapping = Mapping::new(2);
    // SAFETY: the page belongs to the test's own mapping, and no reference to it exists.
    let copied = unsafe {
        libc::munmap(mapping.start().add(Mapping::PAGE).cast(), Mapping::PAGE);
        guard.copy([0; 1500].as_mut_ptr(), mapping.start().add(Mapping::PAGE - 200), 1500)
    };
    // Another test may have mapped the page in the meantime.
    assert!(copied == 200 || copied == 1500, "{copied}");
    core::mem::forget(mapping);
}

#[test]
fn addresses_that_can_never_be_mapped_copy_nothing() {
    let Some(guard) = guard() else { return };
    for address in [0, 64, 1_usize << 47, 1 << 63, usize::MAX - 8] {
        let from = core::ptr::without_provenance(address);
        // SAFETY: the target has 8 bytes.
        assert_eq!(unsafe { guard.copy([0; 8].as_mut_ptr(), from, 8) }, 0, "{address:#x}");
    }
}

#[test]
fn a_copy_ends_before_the_end_of_the_file() {
    let Some(guard) = guard() else { return };
    let file = FileMapping::new(2, 4096);
    let mut target = vec![1; 4000];
    // SAFETY: the start lies in the mapping, and `target` has 4000 bytes.
    let copied =
        unsafe { guard.copy(target.as_mut_ptr(), file.start.add(Mapping::PAGE - 100), 4000) };
    assert_eq!(copied, 100);
}

#[test]
fn placing_bytes_in_missing_memory_does_not_crash() {
    if guard().is_none() {
        return;
    }
    let mapping = Mapping::new(2);
    mapping.fill(1);
    mapping.protect_page(1, libc::PROT_READ);
    let bytes = [9; 64];
    // SAFETY: both addresses lie in the mapping, and faults are caught.
    unsafe {
        let end = mapping.start().add(Mapping::PAGE);
        assert_eq!(copy(end.sub(10), bytes.as_ptr(), 64), 10);
        for (behind, width) in [(8, 8), (4, 4), (2, 2), (1, 1)] {
            // The body ends at the end of the page, and the last word is in the next page.
            let (to, len) = (end.sub(3), 3 + behind);
            assert_eq!(copy_tail(to, bytes.as_ptr(), len), 3, "a word of {width} bytes");
        }
        assert_eq!(fetch_add(end, 5), None);
        assert_eq!(compare_swap(end, 0x0101_0101_0101_0101, 5), None);
        assert_eq!(fetch_add(mapping.start(), 1), Some(0x0101_0101_0101_0101));
        assert_eq!(
            compare_swap(mapping.start(), 0x0101_0101_0101_0102, 3),
            Some(0x0101_0101_0101_0102)
        );
        assert_eq!(compare_swap(mapping.start(), 9, 4), Some(3));
    }
    assert!(mapping.bytes()[Mapping::PAGE..].iter().all(|&byte| byte == 1));
}

#[test]
fn registered_memory_that_was_unmapped_is_an_error_with_the_address() {
    if guard().is_none() {
        return;
    }
    let mapping = Mapping::new(2);
    let table = MemoryTable::new(TableLimits::default(), [1, 2]);
    let domain = table.allocate_domain();
    let bytes = 2 * Mapping::PAGE as u64;
    // SAFETY: the test deliberately unmaps the memory while it is registered. The access must then
    // fail with an error.
    let region =
        unsafe { table.register_raw(domain, mapping.start(), bytes, Rights::ALL) }.unwrap();
    mapping.unmap_page(1);
    let access = table.access();
    let hole = region.start + Mapping::PAGE as u64;
    let target = |want| access.resolve(domain, region.key, hole - 8, 24, want).unwrap();
    let unmapped = AccessError::Unmapped { address: hole };

    let written = target(Rights::REMOTE_WRITE);
    assert_eq!(access.place(&written, 0, &[9; 24]), Err(unmapped));
    assert_eq!(access.place_tail(&written, 0, &[9; 24]), Err(unmapped));
    assert_eq!(access.place_tail(&written, 0, &[9; 16]), Err(unmapped));
    assert_eq!(access.place_tail(&written, 0, &[9; 8]), Ok(()));
    let mut out = [0; 24];
    assert_eq!(access.copy_from(&target(Rights::REMOTE_READ), 0, &mut out), Err(unmapped));
    assert_eq!(out[..8], [9; 8]);
    assert_eq!(access.copy_out(region.id, Mapping::PAGE as u64 - 8, &mut out), Err(unmapped));
    let word = access.resolve(domain, region.key, hole, 8, Rights::REMOTE_ATOMIC).unwrap();
    assert_eq!(access.fetch_add(&word, 1), Err(unmapped));
    assert_eq!(access.compare_swap(&word, 0, 1), Err(unmapped));
}

#[test]
fn overlapping_ranges_are_copied_like_separate_ones() {
    let mut bytes: Vec<u8> = (0..100).collect();
    let start = bytes.as_mut_ptr();
    // SAFETY: both ranges are in `bytes`, which no other code uses during the copies.
    unsafe {
        assert_eq!(copy(start.add(1), start, 50), 50);
        assert_eq!(copy(start.add(60), start.add(70), 30), 30);
    }
    let expected: Vec<u8> =
        [0].into_iter().chain(0..50).chain(51..60).chain(70..100).chain(90..100).collect();
    assert_eq!(bytes, expected);
}

/// If a fault were not caught, it would end the process.
#[test]
fn memory_may_be_mapped_and_unmapped_while_threads_copy() {
    const PAGES: usize = 3;
    const COPIES: u32 = 10_000;
    if guard().is_none() {
        return;
    }
    let mapping = Mapping::new(PAGES);
    let start = mapping.address() as usize;
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let copiers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(move || {
                    let guard = FaultGuard::acquire().expect("nobody replaces the handler here");
                    let mut target = vec![0; PAGES * Mapping::PAGE];
                    for _ in 0..COPIES {
                        let from = core::ptr::with_exposed_provenance(start);
                        // SAFETY: the copy has the length of `target`.
                        let copied = unsafe { guard.copy(target.as_mut_ptr(), from, target.len()) };
                        // Another thread may unmap the page during the copy.
                        assert!(copied <= target.len(), "{copied}");
                    }
                })
            })
            .collect();
        let has_ended = &has_ended;
        scope.spawn(move || {
            while !has_ended.load(Ordering::Relaxed) {
                for page in 0..PAGES {
                    remap(start + page * Mapping::PAGE, libc::PROT_NONE);
                    thread::yield_now();
                    remap(start + page * Mapping::PAGE, libc::PROT_READ);
                }
            }
        });
        // Stop the other thread before unwrapping a result. Otherwise a panic would make the scope
        // wait for that thread for ever.
        let ends: Vec<_> = copiers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        has_ended.store(true, Ordering::Relaxed);
        for end in ends {
            end.unwrap();
        }
    });
}

#[test]
fn a_thread_that_blocks_the_signals_is_refused() {
    if guard().is_none() {
        return;
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        // Use a new thread, because a thread always checks at its first call whether it blocks the
        // signals.
        let blocker = thread::spawn(move || {
            // SAFETY: the set is initialised before its use. The mask belongs to this thread.
            unsafe {
                let mut set = core::mem::zeroed();
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, signal);
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, core::ptr::null_mut());
            }
            FaultGuard::acquire().is_none()
        });
        assert!(blocker.join().unwrap(), "signal {signal}");
    }
    assert!(thread::spawn(|| FaultGuard::acquire().is_some()).join().unwrap());
}

/// Returns a guard. If the processor does not support guards, prints that the test is skipped.
fn guard() -> Option<FaultGuard> {
    let guard = FaultGuard::acquire();
    if guard.is_none() {
        assert!(!std::arch::is_x86_feature_detected!("ermsb"), "the handler is not in force");
        println!("skipped: this processor has no quick `rep movsb`");
    }
    guard
}

/// Replaces the page with a fresh one.
fn remap(address: usize, access: libc::c_int) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: the page belongs to the caller, and no reference to it exists.
    let result = unsafe {
        let address = core::ptr::with_exposed_provenance_mut(address);
        libc::mmap(address, Mapping::PAGE, access, flags, -1, 0)
    };
    assert_ne!(result, libc::MAP_FAILED);
}

/// A mapping of more pages than its file has.
struct FileMapping {
    start: *mut u8,
    bytes: usize,
}

impl FileMapping {
    fn new(pages: usize, bytes_of_file: libc::off_t) -> Self {
        let bytes = pages * Mapping::PAGE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the name is a C string, and the kernel chooses an unused address.
        let start = unsafe {
            let file = libc::memfd_create(c"short".as_ptr(), 0);
            assert!(file >= 0, "no memory files here");
            assert_eq!(libc::ftruncate(file, bytes_of_file), 0);
            let start = libc::mmap(core::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file, 0);
            libc::close(file);
            start
        };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), bytes }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value and is not used afterwards.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

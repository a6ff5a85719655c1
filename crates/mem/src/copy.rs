//! Copies between the engine's memory and foreign memory.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::error::AccessError;
use crate::fault::{self, Word};
use crate::payload::Payload;

/// Copies `len` bytes. The ranges may overlap.
///
/// # Safety
/// `from` must be readable and `to` must be writable for `len` bytes. One of the two ranges may be
/// foreign memory, to which no Rust reference may exist. Other threads may access the foreign bytes
/// during the copy.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) {
    if cfg!(miri) {
        // SAFETY: the caller promises this.
        unsafe { core::ptr::copy(from, to, len) }
    } else {
        // SAFETY: `MEMMOVE` is initialised and never changes. The caller promises the rest.
        unsafe {
            let memmove = (&raw const MEMMOVE).read_volatile();
            memmove(to.cast(), from.cast(), len);
        }
    }
}

//= protocol.md: relaxed.2
/// Copies `len` bytes, but stores the last bytes after all others and with release semantics. The
/// last bytes are the widest naturally aligned word of at most 8 bytes at the end of the range.
/// Returns the number of copied bytes, like [`fault::copy`].
///
/// # Safety
/// The contract of [`fault::copy`] applies.
#[inline]
pub(crate) unsafe fn copy_tail(to: *mut u8, from: *const u8, len: usize) -> usize {
    let width = tail_width(to as usize, len);
    let body = len - width;
    // SAFETY: `body + width` is `len`, and `tail_width` made the end of the body a multiple of
    // `width`, so each word is aligned. The source may also be foreign memory. It is read as bytes,
    // which need no alignment. The read is volatile, so the compiler draws no conclusions from it.
    unsafe {
        // If the range is a single word, skip the copy of the body. Small operations often write
        // single words, and this saves a call.
        if body > 0 {
            let copied = fault::copy(to, from, body);
            if copied < body {
                return copied;
            }
        }
        let (to, from) = (to.add(body), from.add(body));
        let is_stored = match width {
            8 => u64::from_ne_bytes(from.cast::<[u8; 8]>().read_volatile()).store(to),
            4 => u32::from_ne_bytes(from.cast::<[u8; 4]>().read_volatile()).store(to),
            2 => u16::from_ne_bytes(from.cast::<[u8; 2]>().read_volatile()).store(to),
            1 => from.read_volatile().store(to),
            _ => true,
        };
        if is_stored { len } else { body }
    }
}

/// Returns the largest power of two up to 8 that is at most `len` and divides the address of the
/// range's end. Returns 0 for an empty range.
#[inline]
fn tail_width(start: usize, len: usize) -> usize {
    let aligned = 1 << (start.wrapping_add(len) | 8).trailing_zeros();
    match len {
        0 => 0,
        1..8 => aligned.min(1 << len.ilog2()),
        _ => aligned,
    }
}

/// Stores words of four bytes: if bit i of `bitmap` is set, stores the next word of `words` in word
/// i from `to`. Each word is one store. The last one has release semantics.
///
/// # Safety
/// `to` must be aligned to 4, and each named word must be writable. `words` must be readable for
/// four bytes for each bit.
pub(crate) unsafe fn store_words(to: *mut u8, bitmap: u32, words: *const u8) {
    let (mut left, mut from) = (bitmap, words);
    while left != 0 {
        let bit = left.trailing_zeros() as usize;
        left &= left - 1;
        let order = if left == 0 { Ordering::Release } else { Ordering::Relaxed };
        // SAFETY: the caller promises that the word is valid and aligned, and that a word can be
        // read. The read is volatile and has no alignment, as in `copy_tail`. The reference to the
        // atomic tolerates other accesses, and ends with the statement.
        unsafe {
            let word = u32::from_ne_bytes(from.cast::<[u8; 4]>().read_volatile());
            AtomicU32::from_ptr(to.add(4 * bit).cast()).store(word, order);
            from = from.add(4);
        }
    }
}

//= protocol.md: answer.4
/// Adds `operand` to the word atomically and returns the old value.
///
/// # Safety
/// The word at `address` must be aligned to 8 and writable.
#[inline]
pub(crate) unsafe fn fetch_add(address: *mut u8, operand: u64) -> u64 {
    // SAFETY: the caller promises that the word is valid. The reference to the atomic tolerates
    // other writers, and ends with the statement.
    unsafe { AtomicU64::from_ptr(address.cast()).fetch_add(operand, Ordering::SeqCst) }
}

/// Stores `swap` if the word equals `compare`, atomically. Returns the old value.
///
/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(crate) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> u64 {
    // SAFETY: the caller promises that the word is valid. The reference to the atomic tolerates
    // other writers, and ends with this function.
    let word = unsafe { AtomicU64::from_ptr(address.cast()) };
    match word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
        Ok(held) | Err(held) => held,
    }
}

/// Stores `value` in the word atomically. Returns the old value.
///
/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(crate) unsafe fn swap(address: *mut u8, value: u64) -> u64 {
    // SAFETY: the caller promises that the word is valid. The reference to the atomic tolerates
    // other writers, and ends with the statement.
    unsafe { AtomicU64::from_ptr(address.cast()).swap(value, Ordering::SeqCst) }
}

/// Copies to an address of this process through the kernel. If the memory is missing, the kernel
/// returns an error instead of raising a signal.
///
/// If this function returns an error, it has written all bytes below the address in the error.
#[cold]
pub(crate) fn write_fault_safe(address: u64, bytes: Payload<'_>) -> Result<(), AccessError> {
    through_kernel(address, bytes.len(), |done| {
        let left = bytes.slice(done..bytes.len());
        let local = libc::iovec { iov_base: left.as_ptr().cast_mut().cast(), iov_len: left.len() };
        let remote = foreign(address + done as u64, left.len());
        // SAFETY: `local` describes `bytes`, which the kernel reads. The kernel checks `remote`. It
        // accesses `remote` like another process, for example by a write to `/proc/self/mem`.
        unsafe {
            libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        }
    })
}

/// Copies like [`write_fault_safe`], but writes the last byte after all other bytes.
///
/// Only one byte is written last, and not a word, because the kernel promises no order among the
/// bytes of one copy.
#[cold]
pub(crate) fn write_tail_fault_safe(address: u64, bytes: Payload<'_>) -> Result<(), AccessError> {
    let Some(body) = bytes.len().checked_sub(1) else { return Ok(()) };
    write_fault_safe(address, bytes.slice(0..body))?;
    fence(Ordering::SeqCst);
    write_fault_safe(address + body as u64, bytes.slice(body..bytes.len()))
}

/// Writes words like [`store_words`], but by copies through the kernel: one for each run of
/// adjacent words. The last word is copied after all others.
///
/// # Errors
/// Returns the errors of [`write_fault_safe`]. All words below the address in the error are
/// written.
#[cold]
pub(crate) fn write_words_fault_safe(
    address: u64,
    bitmap: u32,
    words: Payload<'_>,
) -> Result<(), AccessError> {
    let last = 1 << (31 - bitmap.leading_zeros().min(31));
    let mut done = 0;
    for part in [bitmap & !last, bitmap & last] {
        let mut left = part;
        while left != 0 {
            let first = left.trailing_zeros();
            let count = (left >> first).trailing_ones();
            let end = done + 4 * count as usize;
            write_fault_safe(address + u64::from(4 * first), words.slice(done..end))?;
            done = end;
            left = left.checked_shr(first + count).map_or(0, |rest| rest << (first + count));
        }
        fence(Ordering::SeqCst);
    }
    Ok(())
}

/// Copies from an address of this process through the kernel. If the memory is missing, the kernel
/// returns an error instead of raising a signal.
#[cold]
pub(crate) fn read_fault_safe(address: u64, out: &mut [u8]) -> Result<(), AccessError> {
    let len = out.len();
    through_kernel(address, len, |done| {
        let local = libc::iovec { iov_base: out[done..].as_mut_ptr().cast(), iov_len: len - done };
        let remote = foreign(address + done as u64, len - done);
        // SAFETY: `local` describes `out`, which is borrowed exclusively. The kernel checks
        // `remote`.
        unsafe {
            libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
        }
    })
}

/// Repeats `copy(done)` until all bytes are copied. The repetition is necessary, because a call
/// that stops before a missing page returns the number of copied bytes. Only the next call returns
/// the error.
fn through_kernel(
    address: u64,
    len: usize,
    mut copy: impl FnMut(usize) -> isize,
) -> Result<(), AccessError> {
    let mut done = 0;
    while done < len {
        let address = address + done as u64;
        match usize::try_from(copy(done)) {
            Ok(0) => return Err(AccessError::Unmapped { address }),
            Ok(copied) => done += copied,
            Err(_) => match std::io::Error::last_os_error().raw_os_error().unwrap_or(0) {
                libc::EINTR => {}
                libc::EFAULT => return Err(AccessError::Unmapped { address }),
                errno => return Err(AccessError::Kernel { address, errno }),
            },
        }
    }
    Ok(())
}

fn foreign(address: u64, len: usize) -> libc::iovec {
    let base = core::ptr::without_provenance_mut::<c_void>(address as usize);
    libc::iovec { iov_base: base, iov_len: len }
}

type Memmove = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

/// The C library's `memmove`. Code reads this variable with a volatile read before each call, so
/// the compiler does not know which function the code calls. The compiler can then conclude nothing
/// about the copied bytes. This costs one load and an indirect call, about 1 ns.
static MEMMOVE: Memmove = libc::memmove;

#[cfg(test)]
mod tests {
    use super::*;

    //= protocol.md: relaxed.2
    #[test]
    fn the_tail_is_the_widest_aligned_word_that_ends_the_range() {
        for start in 0..16_usize {
            for len in 0..40_usize {
                let width = tail_width(start, len);
                let widest = [8, 4, 2, 1]
                    .into_iter()
                    .find(|w| *w <= len && (start + len).is_multiple_of(*w));
                assert_eq!(width, widest.unwrap_or(0), "start {start}, len {len}");
            }
        }
    }

    #[test]
    fn words_are_stored_at_their_bits_and_nowhere_else() {
        let mut random = 1_u64;
        for round in 0..300_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bitmap = match round {
                0 => u32::MAX,
                1 => 1 << 31,
                2 => 1,
                _ => (random >> 32) as u32 & (random >> 16) as u32,
            };
            // The words are at an odd address, as the payload of a frame may be.
            let source: Vec<u8> = (0..=4 * bitmap.count_ones() as u8).map(|i| i | 1).collect();
            let mut expected = [0_u32; 32];
            let words = source[1..].as_chunks::<4>().0;
            let named = (0..32).filter(|bit| bitmap & 1 << bit != 0);
            for (bit, word) in named.zip(words) {
                expected[bit] = u32::from_ne_bytes(*word);
            }
            let mut stored = [[0_u32; 32]; 3];
            let to: [*mut u8; 3] = stored.each_mut().map(|block| block.as_mut_ptr().cast());
            let from = source[1..].as_ptr();
            // SAFETY: each block has 32 words, and there is a word for each bit.
            let left = unsafe {
                store_words(to[0], bitmap, from);
                if bitmap == 0 { 0 } else { fault::store_words(to[1], bitmap, from) }
            };
            assert_eq!(left, 0);
            assert_eq!(stored[..2], [expected; 2], "{bitmap:#x}");
            if !cfg!(miri) {
                let address = stored[2].as_mut_ptr().expose_provenance() as u64;
                let payload = Payload::from(&source[1..]);
                assert_eq!(write_words_fault_safe(address, bitmap, payload), Ok(()));
                assert_eq!(stored[2], expected, "{bitmap:#x}");
            }
        }
    }

    #[test]
    fn a_tail_copy_copies_all_bytes() {
        let source: Vec<u8> = (1..=64).collect();
        for start in 0..16_usize {
            for len in 0..40_usize {
                let mut words = [0_u64; 8];
                let base = words.as_mut_ptr().cast::<u8>();
                // SAFETY: start + len is below 64, the size of `words`.
                let copied = unsafe { copy_tail(base.add(start), source.as_ptr(), len) };
                assert_eq!(copied, len);
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes[start..start + len], source[..len]);
                assert!(bytes[..start].iter().chain(&bytes[start + len..]).all(|&b| b == 0));
            }
        }
    }
}

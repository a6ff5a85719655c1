//! Copies of shared memory by whole words, which other threads and the network may change meanwhile.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use bytemuck::Pod;
use dsm_protocol::diff::{PAGE_BYTES, PageBytes};

/// Copies a page. Costs 512 loads; each word of 8 bytes is old or new.
///
/// # Safety
/// `page` must point to a mapped page, which is aligned.
#[expect(clippy::cast_ptr_alignment, reason = "pages are aligned")]
pub(crate) unsafe fn load_page(page: *const u8, into: &mut PageBytes) {
    for (index, bytes) in into.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: the word is in the page, and the page is aligned.
        let word = unsafe { AtomicU64::from_ptr(page.cast::<u64>().add(index).cast_mut()) };
        *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// Fills a page with zeros.
///
/// # Safety
/// As for [`load_page`].
#[expect(clippy::cast_ptr_alignment, reason = "pages are aligned")]
pub(crate) unsafe fn clear_page(page: *mut u8) {
    for index in 0..PAGE_BYTES / 8 {
        // SAFETY: the word is in the page, and the page is aligned.
        let word = unsafe { AtomicU64::from_ptr(page.cast::<u64>().add(index)) };
        word.store(0, Ordering::Relaxed);
    }
}

/// Replaces one word of 4 bytes of a page.
///
/// # Safety
/// As for [`load_page`]; `word` must be below 1024.
#[expect(clippy::cast_ptr_alignment, reason = "pages are aligned")]
pub(crate) unsafe fn store_word(page: *mut u8, word: usize, bytes: [u8; 4]) {
    // SAFETY: the word is in the page, and the page is aligned.
    let place = unsafe { AtomicU32::from_ptr(page.cast::<u32>().add(word)) };
    place.store(u32::from_ne_bytes(bytes), Ordering::Relaxed);
}

/// Copies an element. Elements of 1, 2, 4 and 8 bytes are never torn.
///
/// # Safety
/// `from` must point to an element, which is aligned and mapped. It may change meanwhile.
#[inline]
pub(crate) unsafe fn load<T: Pod>(from: *const T) -> T {
    let mut value = T::zeroed();
    let from = from.cast_mut();
    let bytes = bytemuck::bytes_of_mut(&mut value);
    let is_aligned = |size: usize| align_of::<T>().is_multiple_of(size);
    // SAFETY: the caller upholds that the element is mapped; its alignment is checked.
    unsafe {
        match size_of::<T>() {
            2 if is_aligned(2) => {
                let word = AtomicU16::from_ptr(from.cast()).load(Ordering::Relaxed);
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            4 if is_aligned(4) => {
                let word = AtomicU32::from_ptr(from.cast()).load(Ordering::Relaxed);
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            8 if is_aligned(8) => {
                let word = AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed);
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
            _ => {
                for (index, byte) in bytes.iter_mut().enumerate() {
                    *byte =
                        AtomicU8::from_ptr(from.cast::<u8>().add(index)).load(Ordering::Relaxed);
                }
            }
        }
    }
    value
}

/// Replaces an element. Elements of 1, 2, 4 and 8 bytes are never torn.
///
/// # Safety
/// As for [`load`].
#[inline]
pub(crate) unsafe fn store<T: Pod>(into: *mut T, value: T) {
    let bytes = bytemuck::bytes_of(&value);
    let is_aligned = |size: usize| align_of::<T>().is_multiple_of(size);
    // SAFETY: as in `load`.
    unsafe {
        match *bytes {
            [a, b] if is_aligned(2) => {
                let word = u16::from_ne_bytes([a, b]);
                AtomicU16::from_ptr(into.cast()).store(word, Ordering::Relaxed);
            }
            [a, b, c, d] if is_aligned(4) => {
                let word = u32::from_ne_bytes([a, b, c, d]);
                AtomicU32::from_ptr(into.cast()).store(word, Ordering::Relaxed);
            }
            _ if is_aligned(8) && bytes.len() == 8 => {
                let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
                AtomicU64::from_ptr(into.cast()).store(u64::from_le(word), Ordering::Relaxed);
            }
            _ => {
                for (index, byte) in bytes.iter().enumerate() {
                    let place = AtomicU8::from_ptr(into.cast::<u8>().add(index));
                    place.store(*byte, Ordering::Relaxed);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<T: Pod + PartialEq + std::fmt::Debug>(value: T) {
        let mut place = T::zeroed();
        // SAFETY: the place is a variable of this function.
        unsafe {
            store(&raw mut place, value);
            assert_eq!(load(&raw const place), value);
        }
    }

    #[test]
    fn elements_of_every_size_come_back() {
        comes_back(0x5a_u8);
        comes_back(0x1234_u16);
        comes_back(-5_i32);
        comes_back(0.25_f64);
        comes_back([1.5_f32, 2.5]);
        comes_back([7_u64, 8, 9]);
    }
}

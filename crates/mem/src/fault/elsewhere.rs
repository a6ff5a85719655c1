//! Replacements for targets on which faults cannot be caught. On these targets, the parent module
//! never installs the handler and never calls the functions of this file. The functions exist only
//! to make the parent module compile.

use crate::copy;

pub(super) const fn ticks() -> u64 {
    u64::MAX
}

pub(super) const fn install() {}

pub(super) const fn is_installed() -> bool {
    false
}

pub(super) const fn copies_fast() -> bool {
    false
}

pub(super) const fn catches_here() -> bool {
    false
}

/// # Safety
/// The contract of [`copy::copy`] applies.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // SAFETY: the caller promises this.
    unsafe { copy::copy(to, from, len) }
    len
}

/// # Safety
/// The word at `to` must be aligned and writable.
pub(super) unsafe fn store<W>(to: *mut u8, word: W) -> bool {
    // SAFETY: the caller promises this.
    unsafe { to.cast::<W>().write_volatile(word) }
    true
}

/// # Safety
/// The contract of [`copy::store_words`] applies.
pub(super) unsafe fn store_words(to: *mut u8, bitmap: u32, words: *const u8) -> u32 {
    // SAFETY: the caller promises this.
    unsafe { copy::store_words(to, bitmap, words) }
    0
}

/// # Safety
/// The contract of [`copy::fetch_add`] applies.
#[expect(clippy::unnecessary_wraps, reason = "as where memory may be missing")]
pub(super) unsafe fn swap(address: *mut u8, value: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    Some(unsafe { copy::swap(address, value) })
}

/// # Safety
/// The contract of [`copy::fetch_add`] applies.
#[expect(clippy::unnecessary_wraps, reason = "as where memory may be missing")]
pub(super) unsafe fn fetch_add(address: *mut u8, operand: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    Some(unsafe { copy::fetch_add(address, operand) })
}

/// # Safety
/// The contract of [`copy::compare_swap`] applies.
#[expect(clippy::unnecessary_wraps, reason = "as where memory may be missing")]
pub(super) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    Some(unsafe { copy::compare_swap(address, compare, swap) })
}

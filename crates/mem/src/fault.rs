//! Copies that stop at unmapped memory, instead of ending the process by a signal.
//!
//! A program may unmap registered memory without notice. A copy by the kernel (`process_vm_readv`)
//! reports such memory as an error. But each such call takes more than a microsecond, because the
//! kernel looks up and pins each page. In this module, ordinary instructions copy, and the process's
//! handler of `SIGSEGV` and `SIGBUS` ([`page_faults`]) catches their faults. Only a few instructions
//! access foreign memory, and this module claims their faults. If one of these instructions faults,
//! the handler ends the copy.
//!
//! # When faults are caught
//!
//! This module catches faults on x86-64, but not under Miri. It catches those of copies only where
//! `rep movsb` is fast (ERMS: Intel since 2012, AMD since 2020), and those of single words
//! everywhere. It installs the handler when the handler is first needed: at the first call of
//! [`FaultGuard::acquire`], or at the first registration of memory that is not a
//! [`Buffer`](crate::Buffer) (buffers stay mapped). After that, two actions of a program disable
//! the handler:
//!
//! * The program installs its own handler for the whole process.
//! * A thread blocks `SIGSEGV` or `SIGBUS`. If a fault raises a blocked signal, the kernel ends the
//!   process.
//!
//! This crate is not notified of such an action, so [`FaultGuard::acquire`] checks whether the
//! handler is effective. If it is not, the caller gets no guard and lets the kernel copy. The check
//! costs three to five system calls, which are too many for each batch of frames. Therefore a thread
//! repeats the check only after 2^17 ticks of the processor's clock, 26 to 131 µs. Between a check
//! and a copy, a program may both disable the handler and unmap registered memory. It then gets the
//! signal that its own access would raise.
//!
//! This crate does not unblock the signals. That would take one more system call before and after
//! each turn on an application thread. It could also take a pending signal away from a `sigwait` of
//! the program. This crate does not reinstall the handler either, because the later choice of the
//! program has priority.
//!
//! Placement of received bytes makes no such check. If the handler is not effective, a placement in
//! missing memory raises the signal. A check would not help, because the only alternative is too
//! slow: a copy by the kernel for each frame.
//!
//! # Several copies of this crate
//!
//! Each shared object that contains this crate claims the faults of its own instructions. All copies
//! use one handler.
//!
//! # Unloading
//!
//! After the installation, a program must not unload a shared library that contains this crate, as
//! [`page_faults`] says.

use core::cell::Cell;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::copy;

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
mod elsewhere;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod x86_64;
#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
use elsewhere as processor;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
use x86_64 as processor;

/// Proof that this thread catches the faults of copies. Acquire it again for each batch of copies.
#[derive(Debug)]
pub struct FaultGuard {
    /// Makes the type `!Send`, because each thread blocks signals separately.
    on_this_thread: PhantomData<*const ()>,
}

impl FaultGuard {
    /// Installs the handler if necessary, and checks at intervals whether the handler is effective.
    /// If it is not, returns `None`; in this case only the kernel can copy safely.
    #[inline]
    pub fn acquire() -> Option<Self> {
        let copies = is_caught() && processor::copies_fast();
        copies.then_some(Self { on_this_thread: PhantomData })
    }

    /// Copies `len` bytes and returns the number of copied bytes. If memory is missing, this number
    /// is less than `len`.
    ///
    /// If other threads change bytes during the copy, these bytes may be torn.
    ///
    /// # Safety
    /// `to` must be writable for `len` bytes. No Rust reference to these bytes may exist, except
    /// the reference from which `to` was derived. The ranges must not overlap. `from` may be any
    /// address.
    #[inline]
    #[must_use]
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> usize {
        // SAFETY: the caller promises this.
        unsafe { processor::copy(to, from, len) }
    }
}

/// Installs the handler if necessary, and checks at intervals whether it is effective on this
/// thread. If it is, a fault of a word or of a copy by [`FaultGuard`]'s instruction is caught.
#[inline]
pub(crate) fn is_caught() -> bool {
    let now = processor::ticks();
    let last = LOOK.get();
    let is_fresh = now.wrapping_sub(last.at) < LOOK_TICKS;
    if is_fresh { last.is_caught } else { look(now) }
}

#[cold]
fn look(now: u64) -> bool {
    install();
    let is_caught = processor::catches_here();
    LOOK.set(Look { at: now, is_caught });
    is_caught
}

/// Reads a byte. Returns `None` if memory is missing.
///
/// # Safety
/// Faults must be caught, as [`is_caught`] says. `address` may be any address.
pub(crate) unsafe fn read_byte(address: *const u8) -> Option<u8> {
    let mut byte = 0;
    // SAFETY: the target has one byte. The caller promises that faults of the source are caught.
    let copied = unsafe { processor::copy(&raw mut byte, address, 1) };
    (copied == 1).then_some(byte)
}

/// Installs the handler, once per process, if the processor supports it.
pub(crate) fn install() {
    processor::install();
}

/// Copies `len` bytes and returns the number of copied bytes. If memory is missing and faults are
/// caught, this number is less than `len`.
///
/// # Safety
/// The contract of [`copy::copy`] applies, but memory may be missing if faults are caught.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // The processor copies upwards. If the target begins within the source, an upward copy would
    // overwrite source bytes before it copies them.
    let begins_within = to.addr().wrapping_sub(from.addr()) < len;
    // SAFETY: the caller promises this.
    unsafe {
        if processor::copies_fast() && !begins_within {
            return processor::copy(to, from, len);
        }
        copy::copy(to, from, len);
    }
    len
}

/// A word that is stored with release semantics. If memory is missing and faults are caught, the
/// store returns false.
pub(crate) trait Word: Copy {
    /// # Safety
    /// `to` must be aligned for the word, and writable. If faults are caught, memory may be
    /// missing.
    unsafe fn store(self, to: *mut u8) -> bool;
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl Word for $word {
            #[inline]
            unsafe fn store(self, to: *mut u8) -> bool {
                // SAFETY: the caller promises that `to` is valid. The reference to the atomic
                // tolerates other accesses, and ends with the statement.
                unsafe {
                    if processor::is_installed() {
                        return processor::store(to, self);
                    }
                    <$atomic>::from_ptr(to.cast()).store(self, Ordering::Release);
                }
                true
            }
        }
    };
}

word!(u8, AtomicU8);
word!(u16, AtomicU16);
word!(u32, AtomicU32);
word!(u64, AtomicU64);

/// Stores words of four bytes: if bit i of `bitmap` is set, stores the next word of `words` in word
/// i from `to`. Each word is one store, and the last one has release semantics. If memory is
/// missing and faults are caught, stops. Returns the bits of the words that were not stored.
///
/// # Safety
/// `to` must be aligned to 4, and each named word must be writable. `words` must be readable for
/// four bytes for each bit. If faults are caught, the memory of the named words may be missing.
#[inline]
pub(crate) unsafe fn store_words(to: *mut u8, bitmap: u32, words: *const u8) -> u32 {
    // SAFETY: the caller promises this.
    unsafe {
        if processor::is_installed() {
            return processor::store_words(to, bitmap, words);
        }
        copy::store_words(to, bitmap, words);
    }
    0
}

/// Adds `operand` to the word atomically and returns the old value. Returns `None` if memory is
/// missing and faults are caught.
///
/// # Safety
/// The word at `address` must be aligned to 8, and writable. If faults are caught, memory may be
/// missing.
#[inline]
pub(crate) unsafe fn fetch_add(address: *mut u8, operand: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    unsafe {
        if processor::is_installed() {
            return processor::fetch_add(address, operand);
        }
        Some(copy::fetch_add(address, operand))
    }
}

/// Stores `swap` if the word equals `compare`, atomically, and returns the old value. Returns
/// `None` if memory is missing and faults are caught.
///
/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(crate) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    unsafe {
        if processor::is_installed() {
            return processor::compare_swap(address, compare, swap);
        }
        Some(copy::compare_swap(address, compare, swap))
    }
}

/// Stores `value` in the word atomically and returns the old value. Returns `None` if memory is
/// missing and faults are caught.
///
/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(crate) unsafe fn swap(address: *mut u8, value: u64) -> Option<u64> {
    // SAFETY: the caller promises this.
    unsafe {
        if processor::is_installed() {
            return processor::swap(address, value);
        }
        Some(copy::swap(address, value))
    }
}

/// The result of a thread's last check whether faults are caught.
#[derive(Clone, Copy)]
struct Look {
    /// Time of the check, in ticks.
    at: u64,
    is_caught: bool,
}

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(Look { at: 0, is_caught: false }) };
}

/// Ticks of the processor's clock after which a thread repeats the check. There are 1 to 5 ticks
/// per nanosecond.
const LOOK_TICKS: u64 = 1 << 17;

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod tests;

//! Copies that stop at unmapped memory instead of ending the process.
//!
//! A program may unmap registered memory without notice. The kernel can copy such memory and report
//! an error (`process_vm_readv`), but that takes more than a microsecond a call, because it looks
//! up and holds each page. Here the processor copies, and a handler catches the fault. Only a
//! handful of instructions touch foreign memory, and the handler of `SIGSEGV` and `SIGBUS` knows
//! their addresses. When one of them faults, the handler makes it give up. It passes every other
//! signal to the handler that was installed before.
//!
//! # When faults are caught
//!
//! On x86-64 with a fast `rep movsb` (ERMS: Intel since 2012, AMD since 2020), and not under Miri.
//! The handler is installed at its first use: by [`FaultGuard::acquire`], or when a program
//! registers memory other than a [`Buffer`](crate::Buffer) (buffers stay mapped). Two things
//! disable it afterwards:
//!
//! * The program installs its own handler, for the whole process.
//! * A thread blocks `SIGSEGV` or `SIGBUS`. The kernel ends the process if a fault raises a blocked
//!   signal.
//!
//! The process gets no notification of either, so [`FaultGuard::acquire`] checks. A caller that it
//! refuses lets the kernel copy. The check costs three system calls, too many for each batch of
//! frames, so a thread repeats it only after 2^17 ticks of the processor's clock, 26 to 131 µs. A
//! program that disables the handler and unmaps registered memory, both between a check and a copy,
//! gets the signal that its own access would raise.
//!
//! This crate does not unblock the signals: that would take one more system call before and after
//! each turn on an application thread, and would steal a pending signal from a `sigwait`. It does
//! not reinstall the handler either, because the program's later choice has priority.
//!
//! Placing never checks: where faults are not caught, it raises the signal. A check would not help,
//! because the only alternative, a copy by the kernel for each frame, is too slow.
//!
//! # Several copies
//!
//! Each shared object that contains this crate has its own handler. The handler that was installed
//! last passes on foreign faults. The other copies recognize it by a mark, so their handlers remain
//! effective behind it.
//!
//! # Unloading
//!
//! The handler stays installed until the process ends, because handlers installed later may have
//! stored its address to call it. So a shared library that contains this crate must not be unloaded
//! once the handler is installed.

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
    /// Installs the handler if necessary, and checks from time to time whether it is effective.
    /// Returns `None` if it is not; then only the kernel can copy safely.
    #[inline]
    pub fn acquire() -> Option<Self> {
        let now = processor::ticks();
        let look = LOOK.get();
        let is_fresh = now.wrapping_sub(look.at) < LOOK_TICKS;
        let is_caught = if is_fresh { look.is_caught } else { Self::look(now) };
        is_caught.then_some(Self { on_this_thread: PhantomData })
    }

    /// Copies `len` bytes and returns the number of copied bytes, which is less than `len` if
    /// memory is missing.
    ///
    /// Bytes that other threads change meanwhile may be torn.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and no Rust reference to them exists except the one that
    /// `to` was derived from. The ranges do not overlap. `from` may be any address.
    #[inline]
    #[must_use]
    pub unsafe fn copy(&self, to: *mut u8, from: *const u8, len: usize) -> usize {
        // SAFETY: promised by the caller.
        unsafe { processor::copy(to, from, len) }
    }

    #[cold]
    fn look(now: u64) -> bool {
        install();
        let is_caught = processor::catches_here();
        LOOK.set(Look { at: now, is_caught });
        is_caught
    }
}

/// Installs the handler, once per process, if the processor supports it.
pub(crate) fn install() {
    processor::install();
}

/// Copies `len` bytes and returns the number of copied bytes, which is less than `len` if memory is
/// missing and faults are caught.
///
/// # Safety
/// The contract of [`copy::copy`], except that memory may be missing if faults are caught.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // The processor copies upwards, which is wrong if the target begins within the source.
    let begins_within = to.addr().wrapping_sub(from.addr()) < len;
    // SAFETY: promised by the caller.
    unsafe {
        if processor::is_installed() && !begins_within {
            return processor::copy(to, from, len);
        }
        copy::copy(to, from, len);
    }
    len
}

/// A word that is stored with release semantics. The store fails if memory is missing and faults
/// are caught.
pub(crate) trait Word: Copy {
    /// # Safety
    /// `to` is aligned for the word, and writable. If faults are caught, memory may be missing.
    unsafe fn store(self, to: *mut u8) -> bool;
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl Word for $word {
            #[inline]
            unsafe fn store(self, to: *mut u8) -> bool {
                // SAFETY: promised by the caller. The reference to the atomic tolerates other
                // accesses and ends with the statement.
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

/// Adds `operand` to the word atomically and returns the old value, or `None` if memory is missing
/// and faults are caught.
///
/// # Safety
/// The word at `address` is aligned to 8, and writable. If faults are caught, memory may be
/// missing.
#[inline]
pub(crate) unsafe fn fetch_add(address: *mut u8, operand: u64) -> Option<u64> {
    // SAFETY: promised by the caller.
    unsafe {
        if processor::is_installed() {
            return processor::fetch_add(address, operand);
        }
        Some(copy::fetch_add(address, operand))
    }
}

/// Stores `swap` if the word equals `compare`, atomically, and returns the old value, or `None` if
/// memory is missing and faults are caught.
///
/// # Safety
/// The contract of [`fetch_add`].
#[inline]
pub(crate) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: promised by the caller.
    unsafe {
        if processor::is_installed() {
            return processor::compare_swap(address, compare, swap);
        }
        Some(copy::compare_swap(address, compare, swap))
    }
}

/// Result of the last check.
#[derive(Clone, Copy)]
struct Look {
    /// Time of the check, in ticks.
    at: u64,
    is_caught: bool,
}

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(Look { at: 0, is_caught: false }) };
}

/// Ticks of the processor's clock, at 1 to 5 per nanosecond, after which a thread repeats the
/// check.
const LOOK_TICKS: u64 = 1 << 17;

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod tests;

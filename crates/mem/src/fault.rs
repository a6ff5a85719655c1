//! Copies that end where memory is missing, instead of ending the process.
//!
//! A program may unmap registered memory without saying so. The kernel can copy such memory with an
//! error for an answer (`process_vm_readv`), which takes more than a microsecond a call for looking
//! up and holding each page. Here the processor copies, and a fault is caught: foreign memory is
//! touched by a handful of instructions only, whose addresses a handler of `SIGSEGV` and `SIGBUS`
//! knows. When one of them faults, the handler makes it give up; every other signal goes to whom it
//! would have gone without us.
//!
//! # When faults are caught
//!
//! On x86-64 with a quick `rep movsb` (ERMS: Intel since 2012, AMD since 2020), and not under Miri.
//! The handler is installed when it is first of use: by [`FaultGuard::acquire`], or when memory is
//! registered that is not a [`Buffer`](crate::Buffer) of our own, which stays mapped. Afterwards
//! two things put it out of force:
//!
//! * The program installs a handler of its own, for the whole process.
//! * A thread blocks `SIGSEGV` or `SIGBUS`: the kernel ends the process when a fault raises a signal
//!   that is blocked.
//!
//! There is no notification of either, so that [`FaultGuard::acquire`] looks, and a caller that it refuses asks the
//! kernel to copy. Three system calls would be too much for each batch of frames; a thread looks
//! again when 2^17 ticks of the processor's clock have passed, 26 to 131 µs. A program that does one
//! of the two and also breaks its promise about registered memory, all of it between a look and a
//! copy, gets the signal that its own access would raise.
//!
//! Neither do we unblock the signals: that is one more system call before and after each turn on a
//! thread of the application, and a signal that waits there for a `sigwait` would be taken from it.
//! Nor do we install the handler again: the program's later choice counts.
//!
//! Placing does not look at all: where faults are not caught, it raises the signal. It has no other
//! way for which a look could decide, since a copy by the kernel for each frame is too slow.
//!
//! # Several copies
//!
//! Each shared object that contains this crate has a handler of its own. The one that is installed last passes on what is not
//! its own, and is known by a mark, so that the others remain in force behind it.
//!
//! # Unloading
//!
//! The handler stays for as long as the process lives: others may have noted it as the one to call
//! after theirs. A shared library that contains this crate must not be unloaded once it was used.

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

/// The knowledge that faults of copies are caught on this thread; to be asked for again for each
/// batch of copies.
#[derive(Debug)]
pub struct FaultGuard {
    /// Signals are blocked by threads.
    on_this_thread: PhantomData<*const ()>,
}

impl FaultGuard {
    /// Installs the handler if that has not been done, and looks, now and then, whether it is in
    /// force. None if it is not: then only the kernel copies safely.
    #[inline]
    pub fn acquire() -> Option<Self> {
        let now = processor::ticks();
        let look = LOOK.get();
        let is_fresh = now.wrapping_sub(look.at) < LOOK_TICKS;
        let is_caught = if is_fresh { look.is_caught } else { Self::look(now) };
        is_caught.then_some(Self { on_this_thread: PhantomData })
    }

    /// Copies `len` bytes and returns how many were copied: fewer if memory is missing behind them.
    ///
    /// Bytes that others change meanwhile may be torn.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes, and no Rust reference to them exists but those that `to`
    /// was made of. The ranges do not overlap. Of `from` nothing is required.
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

/// Installs the handler, once for the process, if this processor can do with it.
pub(crate) fn install() {
    processor::install();
}

/// Copies `len` bytes and returns how many were copied: fewer if memory is missing behind them and
/// faults are caught.
///
/// # Safety
/// As for [`copy::copy`], but if faults are caught, memory may be missing.
#[inline]
pub(crate) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    // The processor's copy goes upwards, which is wrong if the target begins within the source.
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

/// Words that are stored with release semantics, or not at all: then memory is missing and faults
/// are caught.
pub(crate) trait Word: Copy {
    /// # Safety
    /// `to` is aligned for the word, and writable; but if faults are caught, memory may be missing.
    unsafe fn store(self, to: *mut u8) -> bool;
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl Word for $word {
            #[inline]
            unsafe fn store(self, to: *mut u8) -> bool {
                // SAFETY: promised by the caller. The reference to the atomic, which tolerates other
                // accesses, ends with the statement.
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

/// Adds `operand` to the word in one step and returns what it held; none if memory is missing and
/// faults are caught.
///
/// # Safety
/// The word at `address` is aligned to 8, and writable; but if faults are caught, memory may be
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

/// Stores `swap` if the word equals `compare`, in one step, and returns what it held; none if memory
/// is missing and faults are caught.
///
/// # Safety
/// As for [`fetch_add`].
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

/// What was found the last time.
#[derive(Clone, Copy)]
struct Look {
    /// When, in ticks.
    at: u64,
    is_caught: bool,
}

thread_local! {
    static LOOK: Cell<Look> = const { Cell::new(Look { at: 0, is_caught: false }) };
}

/// Ticks of the processor's clock, which makes 1 to 5 in a nanosecond, after which a thread looks
/// again.
const LOOK_TICKS: u64 = 1 << 17;

#[cfg(test)]
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
mod tests;

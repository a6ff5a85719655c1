//! The instructions that touch foreign memory.
//!
//! Each is the first of a function of its own, entered by a call. When it faults, the handler goes on
//! at a lone `ret`, and so behind the call; what is left to do stands in RCX, which counts down as
//! the copy goes on and which the others clear when they have succeeded.
//!
//! One instruction for copies of all lengths, as it is as quick as the C library's `memmove`, which
//! makes that choice itself on this kind of processor, except between 128 and 512 bytes, where it takes
//! 10 to 20 ns more (`docs/performance-notes.md`, 31).

use core::arch::{asm, naked_asm};

mod handler;

pub(super) use handler::{catches_here, install, is_installed};

/// The processor's clock, which all processors of a host share closely enough.
#[inline]
pub(super) fn ticks() -> u64 {
    // SAFETY: reads a counter, which every x86-64 has and Linux lets programs read.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Copies upwards, and returns how many bytes were copied.
///
/// # Safety
/// The bytes of `to` may be written. A range that is not accessible in full is only allowed if
/// faults are caught.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    let left: usize;
    // SAFETY: the function uses no registers but these and needs no aligned stack; the direction flag
    // is clear as Rust requires. Races on the bytes are the processor's, which tears them.
    unsafe {
        asm!(
            "call {copy}",
            copy = sym copy_bytes,
            inout("rcx") len => left,
            inout("rdi") to => _,
            inout("rsi") from => _,
        );
    }
    len.wrapping_sub(left)
}

/// A word with an instruction that stores it.
pub(super) trait Storable {
    /// # Safety
    /// As for [`store`].
    unsafe fn store(self, to: *mut u8) -> bool;
}

/// Stores a word after everything that was stored before, as every single store of this processor
/// is, also behind a `rep movsb`; false if it faulted.
///
/// # Safety
/// The aligned word at `to` may be written, and may only be missing if faults are caught.
#[inline]
pub(super) unsafe fn store(to: *mut u8, word: impl Storable) -> bool {
    // SAFETY: promised by the caller.
    unsafe { word.store(to) }
}

/// Calls one of the functions below that touch the word at an address, with RAX and more operands of
/// `asm!`. What RAX holds then; none if the function faulted.
macro_rules! touch {
    ($function:ident, $address:expr, $rax:expr $(, $($more:tt)*)?) => {{
        let (left, held): (u64, u64);
        asm!(
            "call {function}",
            function = sym $function,
            inout("rcx") 1_u64 => left,
            in("rdi") $address,
            inout("rax") $rax => held,
            $($($more)*)?
        );
        (left == 0).then_some(held)
    }};
}

macro_rules! storable {
    ($word:ty, $function:ident) => {
        impl Storable for $word {
            #[inline]
            unsafe fn store(self, to: *mut u8) -> bool {
                // SAFETY: the function uses no other registers; `to` is promised by the caller.
                unsafe { touch!($function, to, u64::from(self)) }.is_some()
            }
        }
    };
}

storable!(u8, store_1);
storable!(u16, store_2);
storable!(u32, store_4);
storable!(u64, store_8);

/// # Safety
/// The aligned word at `address` may be changed, and may only be missing if faults are caught.
#[inline]
pub(super) unsafe fn fetch_add(address: *mut u8, operand: u64) -> Option<u64> {
    // SAFETY: the function uses no other registers; `address` is promised by the caller.
    unsafe { touch!(add_8, address, operand) }
}

/// # Safety
/// As for [`fetch_add`].
#[inline]
pub(super) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: the function uses no other registers; `address` is promised by the caller.
    unsafe { touch!(swap_8, address, compare, in("rdx") swap) }
}

/// Whether the instruction at an address is one of those that may fault.
fn may_fault(address: usize) -> bool {
    let functions: [unsafe extern "C" fn(); 7] =
        [copy_bytes, store_1, store_2, store_4, store_8, add_8, swap_8];
    functions.iter().any(|&function| function as usize == address)
}

/// Where to go on instead.
fn behind_fault() -> usize {
    give_up as unsafe extern "C" fn() as usize
}

/// Defines functions of one instruction that touches memory and some that end them. They are
/// called by nothing but the `asm!` blocks above.
macro_rules! instruction {
    ($name:ident, $($line:literal),+) => {
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(".cfi_startproc", $($line),+, "ret", ".cfi_endproc")
        }
    };
}

instruction!(copy_bytes, "rep movsb");
instruction!(store_1, "mov byte ptr [rdi], al", "xor ecx, ecx");
instruction!(store_2, "mov word ptr [rdi], ax", "xor ecx, ecx");
instruction!(store_4, "mov dword ptr [rdi], eax", "xor ecx, ecx");
instruction!(store_8, "mov qword ptr [rdi], rax", "xor ecx, ecx");
instruction!(add_8, "lock xadd qword ptr [rdi], rax", "xor ecx, ecx");
instruction!(swap_8, "lock cmpxchg qword ptr [rdi], rdx", "xor ecx, ecx");
instruction!(give_up, "nop");

//! The instructions that access foreign memory.
//!
//! Each of these instructions is the first instruction of its own function. If it faults, the
//! handler lets the thread continue at a single `ret` instruction, which returns to the caller of
//! that function. RCX then shows whether the function succeeded: a copy counts RCX down to zero,
//! the stores of words remove the bit of each stored word, and the other functions set RCX to zero
//! on success.
//!
//! Copies of all lengths use one instruction, `rep movsb`. It is usually as fast as the C library's
//! `memmove`, which uses the same instruction on such processors. Only copies of 128 to 512 bytes
//! take longer, by 10 to 20 ns (`docs/performance-notes.md`, 31).

use core::arch::{asm, naked_asm};

mod handler;

pub(super) use handler::{catches_here, copies_fast, install, is_installed};

/// Returns the value of the processor's clock. The clocks of a host's processors differ so little
/// that the difference does not matter for the intervals between checks.
#[inline]
pub(super) fn ticks() -> u64 {
    // SAFETY: reads a counter that every x86-64 processor has and that Linux lets programs read.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Copies upwards, and returns the number of copied bytes.
///
/// # Safety
/// The bytes of `to` may be written. If faults are not caught, both ranges must be fully
/// accessible.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> usize {
    let left: usize;
    // SAFETY: the function uses no other registers and needs no aligned stack. Rust guarantees that
    // the direction flag is clear. Races on the bytes happen in the processor only, which may tear
    // the bytes.
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

/// A word that one instruction stores.
pub(super) trait Storable {
    /// # Safety
    /// The contract of [`store`] applies.
    unsafe fn store(self, to: *mut u8) -> bool;
}

/// Stores a word after all earlier stores. Returns false if the store faulted. On this processor,
/// every single store follows all earlier stores, even those of a `rep movsb`.
///
/// # Safety
/// The word at `to` must be aligned and writable. If faults are caught, its memory may be missing.
#[inline]
pub(super) unsafe fn store(to: *mut u8, word: impl Storable) -> bool {
    // SAFETY: the caller promises this.
    unsafe { word.store(to) }
}

/// Stores words of four bytes: if bit i of `bitmap` is set, stores the next word of `words` in word
/// i from `to`. On this processor, the stores become visible in this order. Stops at a store that
/// faults, and returns the bits of the words that were not stored.
///
/// # Safety
/// `bitmap` must not be 0. `to` must be aligned to 4, and each named word must be writable. `words`
/// must be readable for four bytes for each bit. If faults are caught, the memory of the named
/// words may be missing.
#[inline]
pub(super) unsafe fn store_words(to: *mut u8, bitmap: u32, words: *const u8) -> u32 {
    let left: u64;
    // SAFETY: the caller promises that the words are valid. The first word is read as bytes, which
    // need no alignment. The function uses no other registers and needs no aligned stack.
    unsafe {
        let first = u32::from_ne_bytes(words.cast::<[u8; 4]>().read_volatile());
        asm!(
            "call {store}",
            store = sym store_scattered,
            inout("rcx") u64::from(bitmap) => left,
            in("rdi") to,
            inout("rsi") words => _,
            inout("rdx") u64::from(bitmap.trailing_zeros()) => _,
            inout("rax") u64::from(first) => _,
        );
    }
    left as u32
}

/// Calls one of the functions below, which access the word at an address. The arguments are the
/// function, the address, the value of RAX, and more operands of `asm!`. Evaluates to the new value
/// of RAX, or to `None` if the function faulted.
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
                // SAFETY: the function uses no other registers. The caller promises that `to` is
                // valid.
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
/// The word at `address` must be aligned and changeable. If faults are caught, its memory may be
/// missing.
#[inline]
pub(super) unsafe fn fetch_add(address: *mut u8, operand: u64) -> Option<u64> {
    // SAFETY: the function uses no other registers. The caller promises that `address` is valid.
    unsafe { touch!(add_8, address, operand) }
}

/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(super) unsafe fn compare_swap(address: *mut u8, compare: u64, swap: u64) -> Option<u64> {
    // SAFETY: the function uses no other registers. The caller promises that `address` is valid.
    unsafe { touch!(swap_8, address, compare, in("rdx") swap) }
}

/// # Safety
/// The contract of [`fetch_add`] applies.
#[inline]
pub(super) unsafe fn swap(address: *mut u8, value: u64) -> Option<u64> {
    // SAFETY: the function uses no other registers. The caller promises that `address` is valid.
    unsafe { touch!(exchange_8, address, value) }
}

/// Returns whether the instruction at an address is the first instruction of one of the functions
/// below.
fn may_fault(address: usize) -> bool {
    let functions: [unsafe extern "C" fn(); 9] = [
        copy_bytes,
        store_1,
        store_2,
        store_4,
        store_8,
        store_scattered,
        add_8,
        swap_8,
        exchange_8,
    ];
    functions.iter().any(|&function| function as usize == address)
}

/// Returns the address at which execution continues after a fault.
fn behind_fault() -> usize {
    give_up as unsafe extern "C" fn() as usize
}

/// Defines a function. Its first instruction accesses memory, and its other instructions set RCX
/// and return. Only the `asm!` blocks above call such functions.
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
// RCX holds the bits of the words that are not stored yet, RDX the number of the next word, EAX
// that word, and RSI its address. After each word, the function returns to its first instruction.
instruction!(
    store_scattered,
    "2:",
    "mov dword ptr [rdi + 4*rdx], eax",
    "lea eax, [rcx - 1]",
    "and ecx, eax",
    "jz 3f",
    "bsf edx, ecx",
    "add rsi, 4",
    "mov eax, dword ptr [rsi]",
    "jmp 2b",
    "3:"
);
instruction!(add_8, "lock xadd qword ptr [rdi], rax", "xor ecx, ecx");
instruction!(swap_8, "lock cmpxchg qword ptr [rdi], rdx", "xor ecx, ecx");
instruction!(exchange_8, "xchg qword ptr [rdi], rax", "xor ecx, ecx");
instruction!(give_up, "nop");

//! Runs a function on the stack of the code that a signal has interrupted.
//!
//! A thread may have an alternate stack for signals. It is often too small for more than a few
//! calls.

use core::arch::{asm, naked_asm};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;

type Function = unsafe extern "C" fn(*mut c_void);

/// Runs `function(argument)` below the stack pointer `interrupted` if the handler runs on another
/// stack, and here otherwise.
pub(super) fn run_on_stack_of(interrupted: usize, function: Function, argument: *mut c_void) {
    let here: usize;
    // SAFETY: reads the stack pointer only.
    unsafe { asm!("mov {}, rsp", out(reg) here, options(nomem, nostack, preserves_flags)) };
    if interrupted.checked_sub(here).is_some_and(|bytes| bytes < FRAME_BYTES_MAX) {
        // SAFETY: the caller passes a function with its argument.
        return unsafe { function(argument) };
    }
    // While the thread leaves the alternate stack, the kernel would use it from its beginning for
    // the next signal, and overwrite the frame of this one. So take it away for this time.
    // SAFETY: both structures are valid for the calls. The kernel permits the first change, because
    // the thread is not on its alternate stack then.
    unsafe {
        let mut switched = Switched { function, argument };
        let top = (interrupted - RED_ZONE_BYTES) & !(STACK_ALIGNMENT - 1);
        switch(top, Switched::run, (&raw mut switched).cast());
    }
}

/// What runs on the interrupted code's stack.
struct Switched {
    function: Function,
    argument: *mut c_void,
}

impl Switched {
    unsafe extern "C" fn run(switched: *mut c_void) {
        // SAFETY: `run_on_stack_of` passes a pointer to a value of its own. The kernel only writes
        // the old stack, which is read only after success.
        unsafe {
            let Self { function, argument } = *switched.cast::<Self>();
            let mut old = MaybeUninit::<libc::stack_t>::zeroed().assume_init();
            let mut none = old;
            none.ss_flags = libc::SS_DISABLE;
            let is_taken = libc::sigaltstack(&raw const none, &raw mut old) == 0;
            function(argument);
            if is_taken {
                // The flag says that the thread was on the stack, and must not be set.
                old.ss_flags &= !libc::SS_ONSTACK;
                libc::sigaltstack(&raw const old, ptr::null_mut());
            }
        }
    }
}

/// Calls `function(argument)` on the stack that ends at `top`.
///
/// # Safety
/// The stack must have room below `top`, which must be a multiple of 16.
#[unsafe(naked)]
unsafe extern "C" fn switch(top: usize, function: Function, argument: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        "push rbp",
        ".cfi_def_cfa_offset 16",
        ".cfi_offset rbp, -16",
        "mov rbp, rsp",
        ".cfi_def_cfa_register rbp",
        "mov rsp, rdi",
        "mov rdi, rdx",
        "call rsi",
        "mov rsp, rbp",
        "pop rbp",
        ".cfi_def_cfa rsp, 8",
        "ret",
        ".cfi_endproc",
    )
}

/// Greatest distance in bytes between the stack pointer of the interrupted code and that of the
/// handler on the same stack: the kernel's frame with all registers (12 KiB with AMX), and the
/// handler's own frames.
const FRAME_BYTES_MAX: usize = 32 << 10;

/// Bytes below its stack pointer that a function may use (System V ABI for x86-64).
const RED_ZONE_BYTES: usize = 128;

/// Alignment of the stack before a call, in bytes.
const STACK_ALIGNMENT: usize = 16;

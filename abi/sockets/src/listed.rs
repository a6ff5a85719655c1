//! Handles `execl` and similar functions. The functions here pass their variable arguments to the C
//! library unchanged.

use std::arch::naked_asm;

use libc::{c_char, c_void};

use crate::next::Next;
use crate::{connection_table, executable, processes};

/// Defines functions with variable arguments. Each function first calls `$before` with its first
/// argument. Then it jumps, with all arguments, to the function whose address `$before` has
/// returned.
macro_rules! passed_on {
    ($($symbol:literal => $before:ident;)*) => {
        $(
            const _: () = {
                #[cfg(target_arch = "x86_64")]
                #[unsafe(naked)]
                #[unsafe(export_name = $symbol)]
                unsafe extern "C" fn of_program() {
                    naked_asm!(
                        "push rdi",
                        "push rsi",
                        "push rdx",
                        "push rcx",
                        "push r8",
                        "push r9",
                        "push rax",
                        "call {before}",
                        "mov r11, rax",
                        "pop rax",
                        "pop r9",
                        "pop r8",
                        "pop rcx",
                        "pop rdx",
                        "pop rsi",
                        "pop rdi",
                        "jmp r11",
                        before = sym $before,
                    )
                }

                #[cfg(target_arch = "aarch64")]
                #[unsafe(naked)]
                #[unsafe(export_name = $symbol)]
                unsafe extern "C" fn of_program() {
                    naked_asm!(
                        "stp x29, x30, [sp, #-80]!",
                        "mov x29, sp",
                        "stp x0, x1, [sp, #16]",
                        "stp x2, x3, [sp, #32]",
                        "stp x4, x5, [sp, #48]",
                        "stp x6, x7, [sp, #64]",
                        "bl {before}",
                        "mov x16, x0",
                        "ldp x0, x1, [sp, #16]",
                        "ldp x2, x3, [sp, #32]",
                        "ldp x4, x5, [sp, #48]",
                        "ldp x6, x7, [sp, #64]",
                        "ldp x29, x30, [sp], #80",
                        "br x16",
                        before = sym $before,
                    )
                }
            };
        )*
    };
}

passed_on! {
    "ethernot_sockets_execl" => before_execl;
    "ethernot_sockets_execle" => before_execle;
    "ethernot_sockets_execlp" => before_execlp;
    "ethernot_inside_execl" => execl;
    "ethernot_inside_execle" => execle;
    "ethernot_inside_execlp" => execlp;
}

unsafe extern "C" fn before_execl(path: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a path, as `execl` requires.
    if connection_table::has_any() && unsafe { executable::begins(path) } {
        processes::replace();
    }
    execl(path)
}

unsafe extern "C" fn before_execle(path: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a path, as `execle` requires.
    if connection_table::has_any() && unsafe { executable::begins(path) } {
        processes::replace();
    }
    execle(path)
}

unsafe extern "C" fn before_execlp(file: *const c_char) -> *mut c_void {
    // SAFETY: the caller passes a name, as `execlp` requires.
    if connection_table::has_any() && unsafe { executable::begins_on_path(file) } {
        processes::replace();
    }
    execlp(file)
}

extern "C" fn execl(_path: *const c_char) -> *mut c_void {
    static NEXT: Next = Next::named("execl\0");
    NEXT.address()
}

extern "C" fn execle(_path: *const c_char) -> *mut c_void {
    static NEXT: Next = Next::named("execle\0");
    NEXT.address()
}

extern "C" fn execlp(_file: *const c_char) -> *mut c_void {
    static NEXT: Next = Next::named("execlp\0");
    NEXT.address()
}

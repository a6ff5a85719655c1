//! Handles `dprintf` and similar functions, which write to a descriptor inside the C library.

use std::arch::naked_asm;

use libc::{c_char, c_int, c_void, size_t, ssize_t};

use crate::answering::{Answering, answering};
use crate::next::{call_next, fail, set_errno};
use crate::table::is_known;

/// A `va_list` as an argument of a function. Both supported architectures pass its address.
type List = *mut c_void;

#[unsafe(export_name = "ethernot_sockets_vdprintf")]
unsafe extern "C" fn vdprintf_of_program(fd: c_int, format: *const c_char, list: List) -> c_int {
    let print = |text: *mut *mut c_char| {
        call_next!(
            vasprintf(text: *mut *mut c_char, format: *const c_char, list: List) -> c_int, else -1
        )
    };
    // SAFETY: the caller passes the arguments that the C function requires.
    if let Some(answer) = unsafe { printed(fd, print) } {
        return answer;
    }
    call_next!(vdprintf(fd: c_int, format: *const c_char, list: List) -> c_int, else -1)
}

#[unsafe(export_name = "ethernot_sockets___vdprintf_chk")]
unsafe extern "C" fn vdprintf_chk_of_program(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: List,
) -> c_int {
    let print = |text: *mut *mut c_char| {
        call_next!(
            __vasprintf_chk(text: *mut *mut c_char, flag: c_int, format: *const c_char, list: List)
                -> c_int,
            else -1
        )
    };
    // SAFETY: the caller passes the arguments that the C function requires.
    if let Some(answer) = unsafe { printed(fd, print) } {
        return answer;
    }
    call_next!(
        __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: List) -> c_int, else -1
    )
}

#[unsafe(export_name = "ethernot_inside_vdprintf")]
unsafe extern "C" fn vdprintf_of_ours(fd: c_int, format: *const c_char, list: List) -> c_int {
    call_next!(vdprintf(fd: c_int, format: *const c_char, list: List) -> c_int, else -1)
}

#[unsafe(export_name = "ethernot_inside___vdprintf_chk")]
unsafe extern "C" fn vdprintf_chk_of_ours(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    list: List,
) -> c_int {
    call_next!(
        __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: List) -> c_int, else -1
    )
}

/// Writes a text to a connection. Returns `None` if the C library must write the text.
///
/// # Safety
/// `print` must store a text that the C library has allocated, and return the length of the text or
/// a negative number.
unsafe fn printed(fd: c_int, print: impl FnOnce(*mut *mut c_char) -> c_int) -> Option<c_int> {
    if !is_known(fd) {
        return None;
    }
    match answering(fd) {
        Answering::Kernel => return None,
        Answering::NoDescriptor => return Some(fail(libc::EBADF, -1)),
        Answering::Trial(_) | Answering::Connection(_) => {}
    }
    let mut text = std::ptr::null_mut::<c_char>();
    let length = print(&raw mut text);
    let Ok(size) = usize::try_from(length) else { return Some(length) };
    // SAFETY: the text has `size` bytes.
    let result = unsafe { written(fd, text, size) };
    let error = crate::next::errno();
    // SAFETY: the C library has allocated the text, and nothing else refers to it.
    unsafe { libc::free(text.cast()) };
    set_errno(error);
    Some(if result { length } else { -1 })
}

/// Writes a text. Returns true if all bytes were written.
///
/// # Safety
/// `text` must point to `size` bytes.
unsafe fn written(fd: c_int, text: *const c_char, size: usize) -> bool {
    unsafe extern "C" {
        #[link_name = "ethernot_sockets_write"]
        fn write_of_program(fd: c_int, from: *const c_void, size: size_t) -> ssize_t;
    }
    let mut done = 0;
    while done < size {
        // SAFETY: the caller guarantees `size` bytes at `text`.
        let count = unsafe { write_of_program(fd, text.add(done).cast(), size - done) };
        match usize::try_from(count) {
            Ok(count @ 1..) => done += count,
            _ => return false,
        }
    }
    true
}

/// The register that passes the first argument after `$named` named arguments.
#[cfg(target_arch = "x86_64")]
macro_rules! list_register {
    (2) => {
        "rdx"
    };
    (3) => {
        "rcx"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! list_register {
    (2) => {
        "x2"
    };
    (3) => {
        "x3"
    };
}

/// Defines a function with variable arguments. It builds a `va_list` of the arguments after the
/// first `$named` ones. Then it calls `$handler` with the named arguments and the list.
macro_rules! variadic {
    ($($symbol:literal, $named:tt, $handler:literal;)*) => {
        $(
            const _: () = {
                #[cfg(target_arch = "x86_64")]
                #[unsafe(naked)]
                #[unsafe(export_name = $symbol)]
                unsafe extern "C" fn of_program() -> c_int {
                    // The list is at the stack pointer. The registers are saved 32 bytes above it,
                    // in the layout that the ABI requires for a `va_list`.
                    naked_asm!(
                        "sub rsp, 216",
                        "mov [rsp + 32], rdi",
                        "mov [rsp + 40], rsi",
                        "mov [rsp + 48], rdx",
                        "mov [rsp + 56], rcx",
                        "mov [rsp + 64], r8",
                        "mov [rsp + 72], r9",
                        "test al, al",
                        "je 2f",
                        "movaps [rsp + 80], xmm0",
                        "movaps [rsp + 96], xmm1",
                        "movaps [rsp + 112], xmm2",
                        "movaps [rsp + 128], xmm3",
                        "movaps [rsp + 144], xmm4",
                        "movaps [rsp + 160], xmm5",
                        "movaps [rsp + 176], xmm6",
                        "movaps [rsp + 192], xmm7",
                        "2:",
                        "mov dword ptr [rsp], {registers}",
                        "mov dword ptr [rsp + 4], 48",
                        "lea rax, [rsp + 224]",
                        "mov [rsp + 8], rax",
                        "lea rax, [rsp + 32]",
                        "mov [rsp + 16], rax",
                        concat!("mov ", list_register!($named), ", rsp"),
                        concat!("call ", $handler),
                        "add rsp, 216",
                        "ret",
                        registers = const 8 * $named,
                    )
                }

                #[cfg(target_arch = "aarch64")]
                #[unsafe(naked)]
                #[unsafe(export_name = $symbol)]
                unsafe extern "C" fn of_program() -> c_int {
                    // Offsets from the stack pointer: general registers at 16, vector registers at
                    // 80, the list at 208.
                    naked_asm!(
                        "stp x29, x30, [sp, #-240]!",
                        "mov x29, sp",
                        "stp x0, x1, [sp, #16]",
                        "stp x2, x3, [sp, #32]",
                        "stp x4, x5, [sp, #48]",
                        "stp x6, x7, [sp, #64]",
                        "stp q0, q1, [sp, #80]",
                        "stp q2, q3, [sp, #112]",
                        "stp q4, q5, [sp, #144]",
                        "stp q6, q7, [sp, #176]",
                        "add x9, sp, #240",
                        "str x9, [sp, #208]",
                        "add x9, sp, #80",
                        "str x9, [sp, #216]",
                        "add x9, sp, #208",
                        "str x9, [sp, #224]",
                        "mov w9, #-{registers}",
                        "str w9, [sp, #232]",
                        "mov w9, #-128",
                        "str w9, [sp, #236]",
                        concat!("add ", list_register!($named), ", sp, #208"),
                        concat!("bl ", $handler),
                        "ldp x29, x30, [sp], #240",
                        "ret",
                        registers = const 8 * (8 - $named),
                    )
                }
            };
        )*
    };
}

variadic! {
    "ethernot_sockets_dprintf", 2, "ethernot_sockets_vdprintf";
    "ethernot_sockets___dprintf_chk", 3, "ethernot_sockets___vdprintf_chk";
    "ethernot_inside_dprintf", 2, "ethernot_inside_vdprintf";
    "ethernot_inside___dprintf_chk", 3, "ethernot_inside___vdprintf_chk";
}

// Functions that programs need in addition to `library.S` and `files.S`: the start of the program, and mathematics.

#include "names.h"

    .text

// The C library has newer versions of these functions since 2.29.
OLDER(exp, FIRST)
OLDER(exp2, FIRST)
OLDER(log, FIRST)
OLDER(log2, FIRST)
OLDER(pow, FIRST)

// Before 2.34, each program contained a function that calls the constructors before `main`, and passed its address to
// `__libc_start_main`. A newer C library also calls this function if the address is given. If the address is null, it finds
// the constructors itself.
    hidden __libc_start_main
__libc_start_main:
#if defined(__x86_64__)
    lea ethernot_begin(%rip), %rcx
#else
    adrp x3, ethernot_begin
    add x3, x3, :lo12:ethernot_begin
#endif
    JUMP ethernot_older___libc_start_main AT_CALL
    .size __libc_start_main, . - __libc_start_main
    .symver ethernot_older___libc_start_main, __libc_start_main@FIRST

// Calls each function in the array of constructors with the arguments of `main`.
    .hidden __init_array_start
    .hidden __init_array_end
    hidden ethernot_begin
ethernot_begin:
#if defined(__x86_64__)
    push %rbx
    push %rbp
    push %r12
    push %r13
    push %r14
    mov %edi, %r12d
    mov %rsi, %r13
    mov %rdx, %r14
    lea __init_array_start(%rip), %rbx
    lea __init_array_end(%rip), %rbp
1:  cmp %rbp, %rbx
    jae 2f
    mov %r12d, %edi
    mov %r13, %rsi
    mov %r14, %rdx
    call *(%rbx)
    add $8, %rbx
    jmp 1b
2:  pop %r14
    pop %r13
    pop %r12
    pop %rbp
    pop %rbx
    ret
#else
    stp x29, x30, [sp, #-64]!
    mov x29, sp
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    str x23, [sp, #48]
    mov w19, w0
    mov x20, x1
    mov x21, x2
    adrp x22, __init_array_start
    add x22, x22, :lo12:__init_array_start
    adrp x23, __init_array_end
    add x23, x23, :lo12:__init_array_end
1:  cmp x22, x23
    b.hs 2f
    mov w0, w19
    mov x1, x20
    mov x2, x21
    ldr x3, [x22], #8
    blr x3
    b 1b
2:  ldr x23, [sp, #48]
    ldp x21, x22, [sp, #32]
    ldp x19, x20, [sp, #16]
    ldp x29, x30, [sp], #64
    ret
#endif
    .size ethernot_begin, . - ethernot_begin

    .section .note.GNU-stack, "", %progbits

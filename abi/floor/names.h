// Macros that bind a function of the C library to an older symbol version than the one that the linker would choose.

#if defined(__x86_64__)
#define JUMP jmp
#define AT_CALL @PLT
#define VERSION(of_x86_64, of_aarch64) of_x86_64
#elif defined(__aarch64__)
#define JUMP b
#define AT_CALL
#define VERSION(of_x86_64, of_aarch64) of_aarch64
#else
#error "say how a function is called on this architecture, and which versions its C library began with"
#endif

    .macro hidden name
    .p2align 4
    .globl \name
    .hidden \name
    .type \name, %function
    .endm

// Defines `name` as a function that calls the C library's function in the given symbol version. It calls by a jump, so that
// the C library's function finds the return address of the original caller. `dlsym` depends on this address.
#define OLDER(name, version) \
    hidden name; \
name: \
    JUMP ethernot_older_##name AT_CALL; \
    .size name, . - name; \
    .symver ethernot_older_##name, name@version

#define FIRST VERSION(GLIBC_2.2.5, GLIBC_2.17)

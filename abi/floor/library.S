// Functions that the C library has moved or added since 2.28. A library or program that is linked with this file also runs
// with C library 2.28.

#include "names.h"

    .text

// Functions that were in libpthread before 2.34.
OLDER(pthread_attr_getguardsize, FIRST)
OLDER(pthread_attr_getstack, FIRST)
OLDER(pthread_attr_setstacksize, FIRST)
OLDER(pthread_create, FIRST)
OLDER(pthread_detach, FIRST)
OLDER(pthread_getattr_np, FIRST)
OLDER(pthread_join, FIRST)
OLDER(pthread_key_create, FIRST)
OLDER(pthread_key_delete, FIRST)
OLDER(pthread_setaffinity_np, VERSION(GLIBC_2.3.4, GLIBC_2.17))
OLDER(pthread_setname_np, VERSION(GLIBC_2.12, GLIBC_2.17))
OLDER(pthread_setspecific, FIRST)
OLDER(pthread_sigmask, FIRST)
OLDER(sem_init, FIRST)
OLDER(sem_post, FIRST)
OLDER(sem_wait, FIRST)

// Functions that were in libdl before 2.34.
OLDER(dlsym, FIRST)
OLDER(dlvsym, FIRST)

// The C library has `gettid` since 2.30.
    hidden gettid
gettid:
#if defined(__x86_64__)
    mov $186, %eax
    syscall
    ret
#else
    mov x8, #178
    svc #0
    ret
#endif
    .size gettid, . - gettid

// The C library has this function since 2.29. Rust's standard library does not call it if its address is zero.
    .globl posix_spawn_file_actions_addchdir_np
    .hidden posix_spawn_file_actions_addchdir_np
    .set posix_spawn_file_actions_addchdir_np, 0

    .section .note.GNU-stack, "", %progbits

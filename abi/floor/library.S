// Names that the C library moved or added after 2.28, for libraries and programs: what is linked with this file starts where
// the C library is as old as that.

#include "names.h"

    .text

// In libpthread until 2.34.
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

// In libdl until 2.34.
OLDER(dlsym, FIRST)
OLDER(dlvsym, FIRST)

// Since 2.30.
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

// Since 2.29. Rust's standard library does without where its address is zero.
    .globl posix_spawn_file_actions_addchdir_np
    .hidden posix_spawn_file_actions_addchdir_np
    .set posix_spawn_file_actions_addchdir_np, 0

    .section .note.GNU-stack, "", %progbits

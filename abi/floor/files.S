// Names of 2.33: before, the C library had these functions with a version of the structure in front of the arguments. Not for
// a library that puts its own functions before them.

#include "names.h"

    .text

#define WITH_VERSION(name, older) \
    hidden name; \
name: \
    SHIFT; \
    JUMP older AT_CALL; \
    .size name, . - name

#if defined(__x86_64__)
#define SHIFT mov %rsi, %rdx; mov %rdi, %rsi; mov $1, %edi
#else
#define SHIFT mov x2, x1; mov x1, x0; mov w0, #0
#endif

WITH_VERSION(stat, __xstat)
WITH_VERSION(stat64, __xstat64)
WITH_VERSION(lstat, __lxstat)
WITH_VERSION(lstat64, __lxstat64)

// The descriptor has 32 bits.
WITH_VERSION(fstat, __fxstat)
WITH_VERSION(fstat64, __fxstat64)

    .section .note.GNU-stack, "", %progbits

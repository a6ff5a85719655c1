// Functions on files that the C library exports since 2.33. An older C library has functions with other names, which take
// the version of the structure as an additional first argument. The functions here call those. A library that defines these
// functions itself must not link this file.

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

// The macro moves 64 bits of the first argument. The C library uses only the 32 bits of the descriptor.
WITH_VERSION(fstat, __fxstat)
WITH_VERSION(fstat64, __fxstat64)

    .section .note.GNU-stack, "", %progbits

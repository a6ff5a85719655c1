/* SPDX-License-Identifier: Apache-2.0
 *
 * A stream of the C library whose buffer is shared memory: the C library accesses absent pages while it has the lock of
 * the stream. Nothing may hang. */
#define _GNU_SOURCE
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 16 * 4096, LINES = 3000 };

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "%s: not as expected; last error: %s\n", what, ethernot_dsm_last_error());
        exit(1);
    }
}

int main(void)
{
    static char written[BYTES], expected[BYTES];
    void *buffer = NULL;
    size_t length = 0;
    expect(ethernot_dsm_init(NULL) == ETHERNOT_DSM_RESULT_OK, "init");
    expect(ethernot_dsm_alloc(BYTES, 0, 0, &buffer) == ETHERNOT_DSM_RESULT_OK, "alloc");
    /* Rank 0 is the home, so the pages are absent on the others. */
    if (ethernot_dsm_rank() == 0)
        memset(buffer, 1, BYTES);
    expect(ethernot_dsm_barrier() == ETHERNOT_DSM_RESULT_OK, "barrier");
    if (ethernot_dsm_rank() == 1) {
        FILE *stream = tmpfile();
        expect(stream != NULL && setvbuf(stream, buffer, _IOFBF, BYTES) == 0, "a stream with this buffer");
        for (int line = 0; line < LINES; line++) {
            expect(fprintf(stream, "line %d\n", line) > 0, "print");
            length += (size_t)sprintf(expected + length, "line %d\n", line);
        }
        expect(fflush(stream) == 0, "flush");
        expect(pread(fileno(stream), written, sizeof written, 0) == (ssize_t)length, "the length of the file");
        expect(memcmp(written, expected, length) == 0, "the lines of the file");
        printf("%d lines are right\n", LINES);
    }
    expect(ethernot_dsm_finalize() == ETHERNOT_DSM_RESULT_OK, "finalize");
    return 0;
}

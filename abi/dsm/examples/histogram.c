/* SPDX-License-Identifier: Apache-2.0
 *
 * A histogram: the ranks take blocks of a sequence by an atomic, count their values, and add their counts to shared
 * ones under a lock. Rank 0 compares the result with a sequential one.
 *
 *     cc histogram.c -o histogram $(pkg-config --cflags --libs ethernot-dsm)
 *     ethernot dsm run -n 4 -- ./histogram */
#include <ethernot_dsm.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS 64
#define BLOCK 1000
#define BINS 97

static int rank, size;

static void check(ethernot_dsm_result result, const char *what)
{
    if (result != ETHERNOT_DSM_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_dsm_result_name(result), ethernot_dsm_last_error());
        exit(1);
    }
}

static void *shared(size_t bytes)
{
    void *memory = NULL;
    check(ethernot_dsm_alloc(bytes, 0, 0, &memory), "alloc");
    return memory;
}

/* Returns the bin of a value of the sequence. */
static size_t bin(uint64_t at)
{
    return (size_t)(at * at % BINS);
}

static void histogram(void)
{
    uint64_t *next = shared(sizeof *next);
    uint64_t *counts = shared(BINS * sizeof *counts);
    uint64_t block = 0;
    for (;;) {
        uint64_t own[BINS] = {0};
        check(ethernot_dsm_atomic_add(next, 1, &block), "take a block");
        if (block >= BLOCKS)
            break;
        for (uint64_t at = block * BLOCK; at < (block + 1) * BLOCK; at++)
            own[bin(at)]++;
        check(ethernot_dsm_lock(counts), "lock");
        for (size_t at = 0; at < BINS; at++)
            counts[at] += own[at];
        check(ethernot_dsm_unlock(counts), "unlock");
    }
    check(ethernot_dsm_barrier(), "barrier");
    if (rank == 0) {
        uint64_t expected[BINS] = {0};
        for (uint64_t at = 0; at < BLOCKS * BLOCK; at++)
            expected[bin(at)]++;
        if (memcmp(expected, counts, sizeof expected) != 0) {
            fprintf(stderr, "the histogram is wrong\n");
            exit(1);
        }
        printf("%d values in %d bins are right\n", BLOCKS * BLOCK, BINS);
    }
}

int main(void)
{
    check(ethernot_dsm_init(NULL), "join");
    rank = ethernot_dsm_rank();
    size = ethernot_dsm_size();
    histogram();
    check(ethernot_dsm_finalize(), "leave");
    return 0;
}

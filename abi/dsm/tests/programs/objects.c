/* SPDX-License-Identifier: Apache-2.0
 *
 * Each call has its effect among ranks, and outputs may be in the region. */
#define _GNU_SOURCE
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check(ethernot_dsm_result result, const char *what)
{
    if (result != ETHERNOT_DSM_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_dsm_result_name(result), ethernot_dsm_last_error());
        exit(1);
    }
}

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "%s: not as expected; last error: %s\n", what, ethernot_dsm_last_error());
        exit(1);
    }
}

static void *shared(size_t bytes, uint32_t flags, size_t alignment)
{
    void *memory = NULL;
    check(ethernot_dsm_alloc(bytes, flags, alignment, &memory), "alloc");
    return memory;
}

/* Memory of the region is where its alignment and flags say, and zero. */
static void allocations(void)
{
    void *start = NULL;
    uint64_t bytes = 0;
    check(ethernot_dsm_region(&start, &bytes), "region");
    expect((uintptr_t)start == UINT64_C(0x200000000000) && bytes == (256u << 20) + 3 * 4096, "the region");
    char *first = shared(8, 0, 0), *page = shared(8, ETHERNOT_DSM_OWN_PAGES, 0), *next = shared(8, 0, 0);
    char *aligned = shared(100, 0, 1 << 16);
    expect((uintptr_t)page % 4096 == 0 && next - page >= 4096 && page - first >= 64, "own pages");
    expect((uintptr_t)aligned % (1 << 16) == 0 && aligned[99] == 0, "alignment");
}

/* Atomics of all ranks add up. Some outputs are in the region. */
static void atomics(int rank, int size)
{
    uint64_t *word = shared(sizeof *word, 0, 0), *other = shared(sizeof *other, 0, 0);
    uint64_t *formers = shared(size * 4096, 0, 0), *former = formers + rank * 512, value = 0;
    for (int at = 0; at < 50; at++) {
        check(ethernot_dsm_atomic_add(word, 2, former), "add");
        expect(*former % 2 == 0 && *former < 100u * size, "the former value");
    }
    for (;;) {
        check(ethernot_dsm_atomic_load(other, &value), "load");
        check(ethernot_dsm_atomic_compare_swap(other, value, value + 3, former), "compare and swap");
        if (*former == value)
            break;
    }
    check(ethernot_dsm_barrier(), "barrier");
    check(ethernot_dsm_atomic_load(word, former), "load");
    check(ethernot_dsm_atomic_load(other, &value), "load");
    expect(*former == 100u * size && value == 3u * size, "sums of all ranks");
    check(ethernot_dsm_barrier(), "barrier");
    if (rank == 0) {
        check(ethernot_dsm_atomic_store(word, 7), "store");
        check(ethernot_dsm_atomic_swap(word, 8, &value), "swap");
        expect(value == 7, "a swap returns the former value");
        check(ethernot_dsm_atomic_add(word, 1, NULL), "add without an output");
    }
    check(ethernot_dsm_barrier(), "barrier");
    check(ethernot_dsm_atomic_load(word, &value), "load");
    expect(value == 9, "the last value");
}

static void locks(int rank, int size)
{
    long *count = shared(sizeof *count, 0, 0);
    for (int at = 0; at < 20; at++) {
        check(ethernot_dsm_lock(count), "lock");
        *count += rank + 1;
        check(ethernot_dsm_unlock(count), "unlock");
    }
    check(ethernot_dsm_barrier(), "barrier");
    expect(*count == 20L * size * (size + 1) / 2, "the count under a lock");
    check(ethernot_dsm_lock(count), "lock");
    expect(ethernot_dsm_lock(count) == ETHERNOT_DSM_RESULT_MISUSE, "a lock that this thread holds");
    check(ethernot_dsm_unlock(count), "unlock");
    expect(ethernot_dsm_unlock(count) == ETHERNOT_DSM_RESULT_MISUSE, "a lock that was unlocked twice");
    check(ethernot_dsm_barrier(), "barrier");
}

static void prefetched(int rank, int size)
{
    enum { BYTES = 64 * 4096 };
    char *bytes = shared(BYTES, 0, 0);
    ethernot_dsm_counters before = {.size = sizeof before}, after = {.size = sizeof after};
    if (rank == 0)
        for (int at = 0; at < BYTES; at++)
            bytes[at] = (char)(at % 101);
    check(ethernot_dsm_barrier(), "barrier");
    check(ethernot_dsm_read_counters(&before), "counters");
    if (rank == size - 1)
        check(ethernot_dsm_prefetch(bytes, BYTES), "prefetch");
    for (int at = 0; at < BYTES; at++)
        expect(bytes[at] == (char)(at % 101), "the bytes of rank 0");
    check(ethernot_dsm_read_counters(&after), "counters");
    if (rank == size - 1)
        expect(after.prefetches - before.prefetches >= BYTES / 4096 / 2, "pages that no thread waited for");
    check(ethernot_dsm_barrier(), "barrier");
}

/* A queue of one place: a producer and consumers, with a condition variable, a semaphore and an event. */
static void waits(int rank, int size)
{
    struct {
        long value, taken;
        char items, done, readers;
    } *place = shared(sizeof *place, 0, 0);
    if (rank == 0) {
        for (long at = 1; at < size; at++) {
            check(ethernot_dsm_lock(place), "lock");
            while (place->value != 0)
                check(ethernot_dsm_condition_wait(&place->taken, place), "wait");
            place->value = at;
            check(ethernot_dsm_condition_broadcast(&place->taken), "broadcast");
            check(ethernot_dsm_unlock(place), "unlock");
            check(ethernot_dsm_semaphore_give(&place->items, 1), "give");
        }
        check(ethernot_dsm_event_wait(&place->done), "wait for the event");
    } else {
        check(ethernot_dsm_semaphore_take(&place->items), "take");
        check(ethernot_dsm_lock(place), "lock");
        while (place->value == 0)
            check(ethernot_dsm_condition_wait(&place->taken, place), "wait");
        place->taken += place->value;
        place->value = 0;
        int is_last = place->taken == size * (size - 1L) / 2;
        check(ethernot_dsm_condition_signal(&place->taken), "signal");
        check(ethernot_dsm_unlock(place), "unlock");
        if (is_last)
            check(ethernot_dsm_event_set(&place->done), "set the event");
    }
    check(ethernot_dsm_read_lock(&place->readers), "read lock");
    check(ethernot_dsm_barrier_at(&place->readers + 1, (uint32_t)size), "barrier of all readers");
    check(ethernot_dsm_read_write_unlock(&place->readers), "unlock");
    check(ethernot_dsm_write_lock(&place->readers), "write lock");
    place->taken++;
    check(ethernot_dsm_read_write_unlock(&place->readers), "unlock");
    check(ethernot_dsm_barrier(), "barrier");
    expect(place->taken == size * (size - 1L) / 2 + size, "what all ranks have taken and added");
    check(ethernot_dsm_event_clear(&place->done), "clear the event");
}

/* Memory of one rank, memory with given homes, and system calls on pinned memory. */
static void places(int rank, int size)
{
    char **mine = shared(size * sizeof *mine, 0, 0);
    char *blocks = shared(size * 4096, ETHERNOT_DSM_BLOCKS, 0), *turns = shared(size * 4096, ETHERNOT_DSM_INTERLEAVED, 0);
    void *local = NULL;
    check(ethernot_dsm_alloc_local(100, &local), "alloc_local");
    mine[rank] = local;
    strcpy(mine[rank], "a local text");
    blocks[rank * 4096] = turns[rank * 4096] = (char)(rank + 1);
    check(ethernot_dsm_barrier(), "barrier");
    for (int other = 0; other < size; other++) {
        expect(strcmp(mine[other], "a local text") == 0, "local memory of each rank");
        expect(blocks[other * 4096] == other + 1 && turns[other * 4096] == other + 1, "memory with given homes");
    }
    check(ethernot_dsm_barrier(), "barrier");
    if (rank == 1)
        memset(blocks, 'x', size * 4096);
    check(ethernot_dsm_barrier(), "barrier");
    FILE *file = tmpfile();
    expect(file != NULL, "a file");
    check(ethernot_dsm_pin(blocks, size * 4096, 0), "pin");
    expect(write(fileno(file), blocks, size * 4096) == size * 4096, "a system call reads pinned memory");
    check(ethernot_dsm_unpin(blocks, size * 4096), "unpin");
    if (rank == 0) {
        check(ethernot_dsm_pin(turns, 4096, 1), "pin");
        expect(pread(fileno(file), turns, 4096, 0) == 4096 && turns[77] == 'x', "a system call writes pinned memory");
        check(ethernot_dsm_unpin(turns, 4096), "unpin");
    }
    check(ethernot_dsm_barrier(), "barrier");
    expect(turns[4095] == 'x', "what the system call has written");
    fclose(file);
}

int main(void)
{
    ethernot_dsm_options options = {.size = sizeof options, .local_bytes = 4096};
    check(ethernot_dsm_init(&options), "join");
    int rank = ethernot_dsm_rank(), size = ethernot_dsm_size();
    expect(size == 3 && rank >= 0 && rank < size, "rank and size");
    expect(ethernot_dsm_method_in_use() == ETHERNOT_DSM_METHOD_MPROTECT, "the method of the environment");
    allocations();
    atomics(rank, size);
    locks(rank, size);
    prefetched(rank, size);
    waits(rank, size);
    places(rank, size);
    check(ethernot_dsm_finalize(), "leave");
    expect(ethernot_dsm_barrier() == ETHERNOT_DSM_RESULT_NOT_JOINED, "a call after the rank has left");
    printf("all is as expected\n");
    return 0;
}

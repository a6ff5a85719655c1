/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions that rank 0 starts on other ranks: what they find, and wrong calls. The argument names what is tried. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <ethernot_dsm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LARGE (64u << 20)
#define RANKS_MAX 64

#ifdef CALLS_BY_NAME
/* The library does not see that the program uses these functions. */
static ethernot_dsm_result create(void (*function)(void))
{
    ethernot_dsm_result (*found)(void (*)(void)) = NULL;
    void *address = dlsym(RTLD_DEFAULT, "ethernot_dsm_create");
    memcpy(&found, &address, sizeof found);
    return found(function);
}
#else
#define create ethernot_dsm_create
#endif

struct shared {
    int rank_of[RANKS_MAX];
    int sums[RANKS_MAX];
    int count;
};

static int initialized = 5, zeroed = 6, later, calls;
static struct shared *shared;
static int *pointer = &initialized;
static unsigned char large[LARGE];
static const char *name = "constant";
static int (*convert)(const char *) = atoi;

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "rank %d: %s: not as expected; last error: %s\n", ethernot_dsm_rank(), what,
                ethernot_dsm_last_error());
        exit(1);
    }
}

static void check(ethernot_dsm_result result, const char *what)
{
    expect(result == ETHERNOT_DSM_RESULT_OK, what);
}

static void work(void)
{
    int rank = ethernot_dsm_rank();
    expect(initialized == 50 && zeroed == 0 && *pointer == 50, "variables");
    expect(large[0] == 1 && large[LARGE / 2] == 2 && large[LARGE - 1] == 3 && large[1] == 0, "the large array");
    expect(strcmp(name, "changed") == 0 && convert("12") == 12, "pointers");
    calls++;
    /* Each process has its own variables from now on. */
    zeroed = rank;
    check(ethernot_dsm_lock(shared), "lock");
    shared->rank_of[shared->count++] = rank;
    check(ethernot_dsm_unlock(shared), "unlock");
    check(ethernot_dsm_barrier_at(&shared->count, (uint32_t)ethernot_dsm_size()), "barrier");
    for (int at = 0; at < ethernot_dsm_size(); at++)
        shared->sums[rank] += shared->rank_of[at] + 1;
    zeroed = 0;
    printf("rank %d has worked, call %d, later %d\n", rank, calls, later);
    fflush(stdout);
}

static void wrong(void)
{
    void *memory = NULL;
    expect(ethernot_dsm_alloc(8, 0, 0, &memory) == ETHERNOT_DSM_RESULT_MISUSE, "alloc");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    expect(ethernot_dsm_barrier() == ETHERNOT_DSM_RESULT_MISUSE, "barrier");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    expect(create(wrong) == ETHERNOT_DSM_RESULT_MISUSE, "create on another rank");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    expect(ethernot_dsm_finalize() == ETHERNOT_DSM_RESULT_MISUSE, "finalize in a function");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    check(ethernot_dsm_event_wait(&shared->count), "wait");
}

static void round_of_work(void)
{
    int size = ethernot_dsm_size();
    shared->count = 0;
    memset(shared->sums, 0, sizeof shared->sums);
    for (int other = 1; other < size; other++)
        check(create(work), "create");
    work();
    check(ethernot_dsm_wait_created(), "wait");
    for (int rank = 0; rank < size; rank++)
        expect(shared->sums[rank] == size * (size + 1) / 2, "sums");
}

static void wrong_calls(void)
{
    expect(create(NULL) == ETHERNOT_DSM_RESULT_INVALID, "no function");
    expect(create((void (*)(void))(uintptr_t)shared) == ETHERNOT_DSM_RESULT_INVALID, "no code");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    check(create(wrong), "create");
    expect(create(wrong) == ETHERNOT_DSM_RESULT_MISUSE, "no idle rank");
    fprintf(stderr, "%s\n", ethernot_dsm_last_error());
    check(ethernot_dsm_event_set(&shared->count), "set");
}

int main(int argc, char **argv)
{
    ethernot_dsm_options options = {.size = sizeof options, .creates = 1};
    void *memory = NULL;
    const char *tried = argc > 1 ? argv[1] : "work";
    if (strcmp(tried, "equal") == 0) {
        check(ethernot_dsm_init(NULL), "init");
        expect(create(work) == ETHERNOT_DSM_RESULT_MISUSE, "create without the option");
        fprintf(stderr, "%s\n", ethernot_dsm_last_error());
        check(ethernot_dsm_finalize(), "finalize");
        return 0;
    }
    check(ethernot_dsm_init(&options), "init");
    expect(ethernot_dsm_rank() == 0, "only rank 0 comes here");
    check(ethernot_dsm_alloc(sizeof *shared, 0, 0, &memory), "alloc");
    shared = memory;
    initialized = 50;
    zeroed = 0;
    large[0] = 1;
    large[LARGE / 2] = 2;
    large[LARGE - 1] = 3;
    name = "changed";
    if (strcmp(tried, "wrong") == 0) {
        wrong_calls();
    } else {
        round_of_work();
        later = 1;
        round_of_work();
    }
    check(ethernot_dsm_finalize(), "finalize");
    printf("all is as expected\n");
    return 0;
}

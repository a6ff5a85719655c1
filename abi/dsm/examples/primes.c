/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts primes. Rank 0 starts a function on each other rank; the ranks take blocks of numbers by an atomic.
 *
 *     cc primes.c -o primes $(pkg-config --cflags --libs ethernot-dsm)
 *     ethernot dsm run -n 4 -- ./primes 100000 */
#include <ethernot_dsm.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK 500u

static uint64_t limit = 20000; /* Set before the functions begin, so all ranks have it. */

static struct shared {
    uint64_t next;
    uint64_t primes;
} *shared; /* Points to the region. */

static void check(ethernot_dsm_result result, const char *what)
{
    if (result != ETHERNOT_DSM_RESULT_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, ethernot_dsm_result_name(result), ethernot_dsm_last_error());
        exit(1);
    }
}

static int is_prime(uint64_t number)
{
    for (uint64_t divisor = 2; divisor * divisor <= number; divisor++)
        if (number % divisor == 0)
            return 0;
    return number > 1;
}

static void work(void)
{
    uint64_t first = 0, found = 0;
    for (;;) {
        check(ethernot_dsm_atomic_add(&shared->next, BLOCK, &first), "take a block");
        if (first >= limit)
            break;
        for (uint64_t number = first; number < first + BLOCK && number < limit; number++)
            found += (uint64_t)is_prime(number);
    }
    check(ethernot_dsm_atomic_add(&shared->primes, found, &first), "add");
}

int main(int argc, char **argv)
{
    ethernot_dsm_options options = {.size = sizeof options, .creates = 1};
    void *memory = NULL;
    uint64_t primes = 0, expected = 0;
    check(ethernot_dsm_init(&options), "init");
    if (argc > 1)
        limit = strtoull(argv[1], NULL, 10);
    check(ethernot_dsm_alloc(sizeof *shared, 0, 0, &memory), "alloc");
    shared = memory;
    for (int other = 1; other < ethernot_dsm_size(); other++)
        check(ethernot_dsm_create(work), "create");
    work();
    check(ethernot_dsm_wait_created(), "wait");
    check(ethernot_dsm_atomic_load(&shared->primes, &primes), "load");
    for (uint64_t number = 0; number < limit; number++)
        expected += (uint64_t)is_prime(number);
    check(ethernot_dsm_finalize(), "finalize");
    printf("%" PRIu64 " primes below %" PRIu64 " are %s\n", primes, limit, primes == expected ? "right" : "wrong");
    return primes != expected;
}

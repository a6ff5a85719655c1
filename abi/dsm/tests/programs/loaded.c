/* SPDX-License-Identifier: Apache-2.0
 *
 * A program that loads the library while it runs, alone or with the other library for C programs, which handles faults
 * as well: `before` or `after` the program joins. */
#include <dlfcn.h>
#include <ethernot.h>
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = 64 * 512 };

static void expect(int is_right, const char *what)
{
    if (!is_right) {
        fprintf(stderr, "%s: not as expected\n", what);
        exit(1);
    }
}

static void *load(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return library;
}

#define FUNCTION(library, name) __typeof__(name) *own_##name = (__typeof__(name) *)dlsym(library, #name)

/* Loads the other library, and opens an endpoint with memory, which needs its handler of faults. */
static void load_other(void)
{
    void *library = load("libethernot.so.0");
    FUNCTION(library, ethernot_endpoint_open);
    FUNCTION(library, ethernot_memory_allocate);
    ethernot_endpoint *endpoint = NULL;
    ethernot_memory *memory = NULL;
    ethernot_endpoint_options options = {.size = sizeof options, .address = "127.0.0.1:0"};
    expect(own_ethernot_endpoint_open(&options, &endpoint) == ETHERNOT_RESULT_OK, "an endpoint");
    expect(own_ethernot_memory_allocate(endpoint, 4096, 0, &memory) == ETHERNOT_RESULT_OK, "memory");
}

int main(int count, char **arguments)
{
    const char *other = count > 1 ? arguments[1] : "";
    void *memory = NULL;
    long sum = 0;
    if (strcmp(other, "before") == 0)
        load_other();
    void *library = load("libethernot-dsm.so.0");
    FUNCTION(library, ethernot_dsm_init);
    FUNCTION(library, ethernot_dsm_rank);
    FUNCTION(library, ethernot_dsm_size);
    FUNCTION(library, ethernot_dsm_alloc);
    FUNCTION(library, ethernot_dsm_barrier);
    FUNCTION(library, ethernot_dsm_finalize);
    expect(own_ethernot_dsm_init(NULL) == ETHERNOT_DSM_RESULT_OK, "init");
    if (strcmp(other, "after") == 0)
        load_other();
    expect(own_ethernot_dsm_alloc(NUMBERS * sizeof(long), 0, 0, &memory) == ETHERNOT_DSM_RESULT_OK, "alloc");
    long *numbers = memory;
    for (int at = own_ethernot_dsm_rank(); at < NUMBERS; at += own_ethernot_dsm_size())
        numbers[at] = at;
    expect(own_ethernot_dsm_barrier() == ETHERNOT_DSM_RESULT_OK, "barrier");
    for (int at = 0; at < NUMBERS; at++)
        sum += numbers[at];
    expect(sum == (long)NUMBERS * (NUMBERS - 1) / 2, "the numbers of all ranks");
    printf("the sum is right\n");
    expect(own_ethernot_dsm_finalize() == ETHERNOT_DSM_RESULT_OK, "finalize");
    return 0;
}

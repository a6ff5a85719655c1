/* SPDX-License-Identifier: Apache-2.0
 *
 * Rank 1 dies while the others wait in a barrier. They learn it by a callback, and from the result of the barrier. */
#include <ethernot_dsm.h>
#include <stdio.h>
#include <stdlib.h>

static void on_failure(uint32_t rank, const char *place, const char *reason, void *context)
{
    printf("callback: rank %u (%s) %s\n", rank, place, reason);
    fflush(stdout);
    *(volatile int *)context = 1;
}

int main(void)
{
    static volatile int is_called;
    ethernot_dsm_options options = {.size = sizeof options, .on_failure = on_failure, .context = (void *)&is_called};
    if (ethernot_dsm_init(&options) != ETHERNOT_DSM_RESULT_OK || ethernot_dsm_barrier() != ETHERNOT_DSM_RESULT_OK) {
        fprintf(stderr, "%s\n", ethernot_dsm_last_error());
        return 1;
    }
    if (ethernot_dsm_rank() == 1)
        abort();
    if (ethernot_dsm_barrier() != ETHERNOT_DSM_RESULT_FAILED)
        return 2;
    printf("failed: %s\n", ethernot_dsm_last_error());
    if (ethernot_dsm_lock(&options) != ETHERNOT_DSM_RESULT_FAILED || ethernot_dsm_finalize() != ETHERNOT_DSM_RESULT_FAILED)
        return 2;
    while (!is_called) {
    }
    return 3;
}

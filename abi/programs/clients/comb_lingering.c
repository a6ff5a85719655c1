/* comb, but the client stays connected after the measurement until it is killed. */
#define _GNU_SOURCE
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <unistd.h>

static int linger(void)
{
	puts("stays connected");
	fflush(stdout);
	return pause();
}

#define rdma_disconnect(id) ((void)(id), linger())
#include "../../../tools/perf/comb.c"

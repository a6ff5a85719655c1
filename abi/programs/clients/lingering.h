/* Makes a program of tools/perf stay connected, after its measurement, until it is killed. The
 * including file includes the source of the program after this header. */
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

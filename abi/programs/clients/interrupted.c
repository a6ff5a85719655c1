/* After a signal handler without SA_RESTART, blocking calls return EINTR, like read(2). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define CHECK(is_so) do { if (!(is_so)) { perror(#is_so); exit(1); } } while (0)

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

int main(void)
{
	/* The timer fires repeatedly, so that some signals arrive during a blocking call. */
	struct itimerval timer = { .it_value.tv_usec = 3000, .it_interval.tv_usec = 3000 };
	struct sigaction action = { .sa_handler = handle };
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct rdma_event_channel *events = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct ibv_async_event news;
	struct ibv_cq *queue;
	void *context;

	CHECK(devices && devices[0] && events);
	struct ibv_context *device = ibv_open_device(devices[0]);
	CHECK(device);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(device);
	CHECK(channel);
	CHECK(ibv_create_cq(device, 1, NULL, channel, 0));
	CHECK(!sigaction(SIGALRM, &action, NULL));
	CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
	for (int i = 0; i < 20; i++) {
		CHECK(ibv_get_cq_event(channel, &queue, &context) == -1 && errno == EINTR);
		CHECK(ibv_get_async_event(device, &news) == -1 && errno == EINTR);
		CHECK(rdma_get_cm_event(events, &event) == -1 && errno == EINTR);
	}
	CHECK(handled >= 60);
	puts("done");
	return 0;
}

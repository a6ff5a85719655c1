/* A thread takes events in a loop. The main thread destroys the channel between two calls of the loop,
   and then exits with success, as in rping. The next call of the loop must not return an error, because
   the program would then exit with a failure. If a thread has destroyed the channel itself, its next
   call returns the error. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

#include "manager.h"

static sem_t acknowledged, destroyed;

static void *loop(void *argument)
{
	struct rdma_event_channel *channel = argument;
	struct rdma_cm_event *event;

	CHECK(!rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!sem_post(&acknowledged));
	CHECK(!sem_wait(&destroyed));
	rdma_get_cm_event(channel, &event);
	fputs("the call of the loop has returned\n", stderr);
	exit(1);
}

static void resolve(struct rdma_cm_id *id)
{
	struct sockaddr_in address = at("127.0.0.1", 0);
	CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 2000));
}

int main(void)
{
	struct rdma_event_channel *channel = make_channel();
	struct rdma_cm_id *id = make_id(channel, RDMA_PS_TCP);
	struct rdma_cm_event *event;
	struct timespec limit;
	pthread_t thread;

	resolve(id);
	event = take(channel);
	CHECK(!rdma_ack_cm_event(event));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	CHECK(rdma_get_cm_event(channel, &event) == -1 && errno == EINVAL);

	channel = make_channel();
	id = make_id(channel, RDMA_PS_TCP);
	CHECK(!sem_init(&acknowledged, 0, 0) && !sem_init(&destroyed, 0, 0));
	CHECK(!pthread_create(&thread, NULL, loop, channel));
	resolve(id);
	CHECK(!sem_wait(&acknowledged));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(channel);
	CHECK(!sem_post(&destroyed));
	CHECK(!clock_gettime(CLOCK_REALTIME, &limit));
	limit.tv_nsec += 100000000;
	limit.tv_sec += limit.tv_nsec / 1000000000;
	limit.tv_nsec %= 1000000000;
	CHECK(pthread_timedjoin_np(thread, NULL, &limit) == ETIMEDOUT);
	puts("done");
	return 0;
}

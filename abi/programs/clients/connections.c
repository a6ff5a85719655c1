/* Opens many connections, one after the other, and measures which resources they do not release.
 * Can also open an idle connection.
 *   connections serve ADDRESS PORT COUNT    accepts COUNT connections and exits after the last
 *   connections ask ADDRESS PORT COUNT      opens and closes COUNT connections
 *   connections idle ADDRESS PORT           opens a connection and waits until it is killed
 * Both ends print the descriptors and the memory that they have not released. The first tenth of the
 * connections does not count. */
#include "manager.h"

static long first_descriptors, first_kib;

/* Waits for TIMEWAIT_EXIT, after which a connection has no pending work, and then measures. Returns
   the id of a request that arrived during the wait. */
static struct rdma_cm_id *measure_after(struct rdma_event_channel *channel, int is_last)
{
	struct rdma_cm_id *asked = NULL;
	struct taken_event taken;
	do {
		taken = any_event(channel);
		if (taken.kind == RDMA_CM_EVENT_CONNECT_REQUEST)
			asked = taken.id;
	} while (taken.kind != RDMA_CM_EVENT_TIMEWAIT_EXIT);
	long now_descriptors = descriptors(), now_kib = resident_kib();
	if (is_last)
		printf("left: %ld descriptors, %ld KiB\n", now_descriptors - first_descriptors, now_kib - first_kib);
	fflush(stdout);
	first_descriptors = now_descriptors;
	first_kib = now_kib;
	return asked;
}

static void serve(struct sockaddr_in where, int count)
{
	struct rdma_event_channel *channel = make_channel();
	struct rdma_cm_id *listener = listening(channel, where, 0);
	for (int ended = 0; ended < count;) {
		struct taken_event taken = any_event(channel);
		switch (taken.kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			accept_with_pair(taken.id);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			printf("established\n");
			fflush(stdout);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			ended++;
			printf("disconnected\n");
			fflush(stdout);
			CHECK(rdma_disconnect(taken.id) == 0);
			if (ended == count / 10 || ended == count) {
				struct rdma_cm_id *asked = measure_after(channel, ended == count);
				if (asked)
					accept_with_pair(asked);
			}
			end_id(taken.id);
			break;
		default:
			fprintf(stderr, "%s (status %d)\n", rdma_event_str(taken.kind), taken.status);
			exit(1);
		}
	}
	end_id(listener);
	rdma_destroy_event_channel(channel);
}

static void ask(struct sockaddr_in to, int count)
{
	struct rdma_event_channel *channel = make_channel();
	for (int made = 1; made <= count; made++) {
		struct rdma_cm_id *id = asking(channel, to);
		event_of(channel, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(rdma_disconnect(id) == 0);
		event_of(channel, RDMA_CM_EVENT_DISCONNECTED);
		if (made == count / 10 || made == count)
			measure_after(channel, made == count);
		end_id(id);
	}
	rdma_destroy_event_channel(channel);
}

static void idle(struct sockaddr_in to)
{
	struct rdma_event_channel *channel = make_channel();
	asking(channel, to);
	event_of(channel, RDMA_CM_EVENT_ESTABLISHED);
	printf("idle\n");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int count, char **words)
{
	CHECK(count >= 4);
	struct sockaddr_in where = at(words[2], atoi(words[3]));
	int times = count > 4 ? atoi(words[4]) : 1;
	if (strcmp(words[1], "serve") == 0)
		serve(where, times);
	else if (strcmp(words[1], "ask") == 0)
		ask(where, times);
	else
		idle(where);
	return 0;
}

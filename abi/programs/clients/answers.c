/* Connects many times to a server, and measures how long the server's first answer takes. Uses the
 * connection manager and verbs of whatever libraries it is started with.
 *
 * usage: answers serve ADDRESS PORT COUNT
 *        answers ask ADDRESS PORT COUNT */
#include "manager.h"

enum { BYTES = 32 };

/* A connection with the memory for one message each way: the first half is sent, the second one is
 * received. */
struct connection {
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char bytes[2 * BYTES];
};

static struct connection *prepared(struct rdma_cm_id *id)
{
	struct connection *connection = calloc(1, sizeof *connection);
	CHECK(connection);
	connection->cq = ibv_create_cq(id->verbs, 4, NULL, NULL, 0);
	CHECK(connection->cq);
	struct ibv_qp_init_attr init = {
		.send_cq = connection->cq,
		.recv_cq = connection->cq,
		.cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
	connection->mr = ibv_reg_mr(id->pd, connection->bytes, sizeof connection->bytes, IBV_ACCESS_LOCAL_WRITE);
	CHECK(connection->mr);
	CHECK(post_receive(id->qp, connection->mr, BYTES, BYTES, 1) == 0);
	return connection;
}

/* Waits for both completions of a connection: of its send and of its receive. */
static void complete(struct connection *connection, int count)
{
	for (int done = 0; done < count; done++) {
		struct ibv_wc wc = next_completion(connection->cq);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "work %lu: %s\n", wc.wr_id, ibv_wc_status_str(wc.status));
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
}

static void end(struct rdma_cm_id *id, struct connection *connection)
{
	rdma_destroy_qp(id);
	CHECK(ibv_dereg_mr(connection->mr) == 0);
	CHECK(ibv_destroy_cq(connection->cq) == 0);
	CHECK(rdma_destroy_id(id) == 0);
	free(connection);
}

/* Answers the first message of a connection. */
static void answer(struct rdma_cm_id *id)
{
	struct connection *connection = id->context;
	complete(connection, 1);
	memcpy(connection->bytes, connection->bytes + BYTES, BYTES);
	CHECK(post_send(id->qp, connection->mr, 0, BYTES, 2) == 0);
	complete(connection, 1);
}

/* The next client can connect before the end of the last connection is reported. */
static void serve(struct sockaddr_in where, int count)
{
	struct rdma_event_channel *channel = make_channel();
	struct rdma_cm_id *listener = listening(channel, where, 16);
	for (int ended = 0; ended < count;) {
		struct taken_event event = any_event(channel);
		struct rdma_conn_param param = saying("welcome", 7);
		switch (event.kind) {
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			event.id->context = prepared(event.id);
			CHECK(rdma_accept(event.id, &param) == 0);
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			answer(event.id);
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			end(event.id, event.id->context);
			ended++;
			break;
		default:
			fprintf(stderr, "%s (status %d)\n", rdma_event_str(event.kind), event.status);
			exit(1);
		}
	}
	CHECK(rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(channel);
}

/* Connects once, and returns the time from the request until its answer is there. */
static uint64_t ask(struct rdma_event_channel *channel, struct sockaddr_in to, int number)
{
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, to);
	struct connection *connection = prepared(id);
	struct rdma_conn_param param = saying("hello", 5);
	CHECK(rdma_connect(id, &param) == 0);
	event_of(channel, RDMA_CM_EVENT_ESTABLISHED);
	snprintf(connection->bytes, BYTES, "request %d", number);
	uint64_t begin = now_ns();
	CHECK(post_send(id->qp, connection->mr, 0, BYTES, 2) == 0);
	complete(connection, 2);
	uint64_t wait = now_ns() - begin;
	CHECK(memcmp(connection->bytes, connection->bytes + BYTES, BYTES) == 0);
	CHECK(rdma_disconnect(id) == 0);
	event_of(channel, RDMA_CM_EVENT_DISCONNECTED);
	end(id, connection);
	return wait;
}

static int order_of_waits(const void *one, const void *other)
{
	uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
	return (a > b) - (a < b);
}

/* Prints how the waits are distributed. Sorts them. */
static void report(uint64_t *waits, int count)
{
	static const double parts[] = {0.5, 0.9, 0.95, 0.99, 0.995, 0.999};
	qsort(waits, (size_t)count, sizeof *waits, order_of_waits);
	double sum = 0;
	for (int at = 0; at < count; at++)
		sum += (double)waits[at];
	printf("%d connections, mean wait %.3f ms\n", count, sum / count / 1e6);
	for (size_t at = 0; at < sizeof parts / sizeof *parts; at++)
		printf("%g %% of the waits are below %.3f ms\n", 100 * parts[at],
		       (double)waits[(int)(parts[at] * count)] / 1e6);
	printf("figure: longest wait for the answer of siw: %.3f\n", (double)waits[count - 1] / 1e6);
}

int main(int argc, char **argv)
{
	CHECK(argc == 5);
	struct sockaddr_in where = at(argv[2], (uint16_t)atoi(argv[3]));
	int count = atoi(argv[4]);
	if (strcmp(argv[1], "serve") == 0) {
		serve(where, count);
		return 0;
	}
	struct rdma_event_channel *channel = make_channel();
	CHECK(count > 0);
	uint64_t *waits = calloc((size_t)count, sizeof *waits);
	CHECK(waits);
	for (int number = 0; number < count; number++)
		waits[number] = ask(channel, where, number);
	rdma_destroy_event_channel(channel);
	report(waits, count);
	free(waits);
	return 0;
}

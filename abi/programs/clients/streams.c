/* Measures N connections between two processes of this host: processor time of an operation, the
 * slowest connection while all are busy, and the allocated memory of an idle connection, without its
 * queue pair. All operations are RDMA reads, because a read completes when the peer has answered.
 * Usage: streams PORT N BYTES IN_FLIGHT OPERATIONS SECONDS
 *
 * First, IN_FLIGHT reads of BYTES bytes are in flight over all connections together, until
 * OPERATIONS reads have completed. Then, for SECONDS seconds, some reads are in flight on each
 * connection. */
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "manager.h"

/* Most reads in flight on one connection, and their number while all connections are busy. */
#define DEPTH 64
#define DEPTH_BUSY 8

struct shared {
	pthread_barrier_t barrier;
	struct name memory;
	/* Processor time of the peer since its start, in nanoseconds. */
	uint64_t used_ns;
};

static void meet(struct shared *shared)
{
	pthread_barrier_wait(&shared->barrier);
}

static uint64_t used_ns(void)
{
	struct rusage used;
	CHECK(getrusage(RUSAGE_SELF, &used) == 0);
	return (uint64_t)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1000000000u +
	       (uint64_t)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1000u;
}

static size_t allocated_bytes(void)
{
	struct mallinfo2 info = mallinfo2();
	return info.uordblks + info.hblkhd;
}

static void make_queue_pair_of(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

static struct rdma_conn_param with_reads(void)
{
	return (struct rdma_conn_param){.responder_resources = DEPTH, .initiator_depth = DEPTH};
}

static void serve(struct shared *shared, uint16_t port, int count, size_t bytes)
{
	struct rdma_event_channel *channel = make_channel();
	struct rdma_cm_id *listener = listening(channel, at("127.0.0.1", port), count);
	struct ibv_cq *cq = NULL;
	struct ibv_mr *mr = NULL;
	void *memory = calloc(1, bytes);
	meet(shared);
	/* The peer connects one id after the other. */
	for (int i = 0; i < count; i++) {
		struct rdma_cm_id *id = event_of(channel, RDMA_CM_EVENT_CONNECT_REQUEST).id;
		if (!mr) {
			CHECK(id->pd);
			cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
			mr = ibv_reg_mr(id->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
			CHECK(cq && mr);
			shared->memory = (struct name){.address = (uintptr_t)memory, .key = mr->rkey};
		}
		make_queue_pair_of(id, cq);
		struct rdma_conn_param param = with_reads();
		CHECK(rdma_accept(id, &param) == 0);
		event_of(channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	(void)listener;
	for (int part = 0; part < 4; part++) {
		meet(shared);
		shared->used_ns = used_ns();
		meet(shared);
	}
}

struct client {
	struct shared *shared;
	int count;
	uint32_t bytes;
	struct rdma_cm_id **ids;
	struct ibv_comp_channel *completions;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint64_t *done;
};

static void post_read(struct client *client, int stream)
{
	struct ibv_sge piece = {
		.addr = (uintptr_t)client->mr->addr, .length = client->bytes, .lkey = client->mr->lkey};
	struct ibv_send_wr *bad, request = {
		.wr_id = (uint64_t)stream,
		.sg_list = &piece,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = client->shared->memory.address, .rkey = client->shared->memory.key},
	};
	CHECK(ibv_post_send(client->ids[stream]->qp, &request, &bad) == 0);
}

/* Returns the next completions. Sleeps while there is none. */
static int completions_of(struct client *client, struct ibv_wc *completions, int room)
{
	for (;;) {
		int found = ibv_poll_cq(client->cq, room, completions);
		CHECK(found >= 0);
		if (found > 0)
			return found;
		CHECK(ibv_req_notify_cq(client->cq, 0) == 0);
		found = ibv_poll_cq(client->cq, room, completions);
		CHECK(found >= 0);
		if (found > 0)
			return found;
		struct ibv_cq *cq;
		void *context;
		CHECK(ibv_get_cq_event(client->completions, &cq, &context) == 0);
		ibv_ack_cq_events(cq, 1);
	}
}

/* Makes `operations` reads, `in_flight` at a time, over all connections in turn. */
static void read_in_turn(struct client *client, int in_flight, int operations)
{
	int posted = 0, done = 0;
	struct ibv_wc completions[64];
	for (; posted < in_flight && posted < operations; posted++)
		post_read(client, posted % client->count);
	while (done < operations) {
		int found = completions_of(client, completions, 64);
		for (int i = 0; i < found; i++) {
			CHECK(completions[i].status == IBV_WC_SUCCESS);
			done++;
			if (posted < operations)
				post_read(client, posted++ % client->count);
		}
	}
}

/* Keeps the queues of all connections full for some time. Counts the reads of each connection. */
static void read_always(struct client *client, double seconds)
{
	struct ibv_wc completions[64];
	uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
	int in_flight = 0;
	for (int stream = 0; stream < client->count; stream++)
		for (int i = 0; i < DEPTH_BUSY; i++, in_flight++)
			post_read(client, stream);
	while (in_flight > 0) {
		int found = completions_of(client, completions, 64);
		int goes_on = now_ns() < end;
		for (int i = 0; i < found; i++) {
			CHECK(completions[i].status == IBV_WC_SUCCESS);
			in_flight--;
			if (goes_on) {
				client->done[completions[i].wr_id]++;
				post_read(client, (int)completions[i].wr_id);
				in_flight++;
			}
		}
	}
}

/* Returns the processor time of both processes so far. */
static uint64_t used_by_both_ns(struct client *client)
{
	meet(client->shared);
	uint64_t own = used_ns();
	meet(client->shared);
	return own + client->shared->used_ns;
}

static void ask(struct shared *shared, uint16_t port, int count, uint32_t bytes, int in_flight, int operations,
		double seconds)
{
	struct client client = {.shared = shared, .count = count, .bytes = bytes};
	struct rdma_event_channel *channel = make_channel();
	void *memory = calloc(1, bytes);
	client.ids = calloc((size_t)count, sizeof(*client.ids));
	client.done = calloc((size_t)count, sizeof(*client.done));
	meet(shared);
	for (int i = 0; i < count; i++) {
		client.ids[i] = resolved(channel, RDMA_PS_TCP, at("127.0.0.1", port));
		if (i == 0) {
			client.completions = ibv_create_comp_channel(client.ids[0]->verbs);
			CHECK(client.completions);
			client.cq = ibv_create_cq(client.ids[0]->verbs, DEPTH + DEPTH_BUSY * count, NULL, client.completions, 0);
			client.mr = ibv_reg_mr(client.ids[0]->pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE);
			CHECK(client.cq && client.mr);
		}
		make_queue_pair_of(client.ids[i], client.cq);
	}
	size_t before = allocated_bytes();
	for (int i = 0; i < count; i++) {
		struct rdma_conn_param param = with_reads();
		CHECK(rdma_connect(client.ids[i], &param) == 0);
		event_of(channel, RDMA_CM_EVENT_ESTABLISHED);
	}
	printf("bytes of a new connection: %.0f\n", (double)(allocated_bytes() - before) / count);
	/* Every connection has been used once. */
	read_in_turn(&client, in_flight, count);
	uint64_t first_ns = used_by_both_ns(&client), begin_ns = now_ns();
	read_in_turn(&client, in_flight, operations);
	double took_us = (double)(now_ns() - begin_ns) / 1000;
	uint64_t last_ns = used_by_both_ns(&client);
	printf("processor time of an operation: %.3f us, time %.3f us\n", (double)(last_ns - first_ns) / 1000 / operations,
	       took_us / operations);
	read_always(&client, seconds);
	uint64_t least = UINT64_MAX, all = 0;
	for (int i = 0; i < count; i++) {
		least = client.done[i] < least ? client.done[i] : least;
		all += client.done[i];
	}
	printf("slowest connection against the mean: %.3f of %.0f\n", (double)least * count / (double)all,
	       (double)all / count);
	/* An idle connection releases the memory of its last reads after a second. */
	sleep(3);
	printf("bytes of an idle connection: %.0f\n", (double)(allocated_bytes() - before) / count);
	used_by_both_ns(&client);
	used_by_both_ns(&client);
}

/* Ends this process if the peer has failed, because the peer does not come to the barrier then. */
static void on_child(int number)
{
	int status;
	(void)number;
	if (waitpid(-1, &status, WNOHANG) > 0 && status != 0)
		_exit(1);
}

int main(int argc, char **argv)
{
	CHECK(argc == 7);
	uint16_t port = (uint16_t)atoi(argv[1]);
	int count = atoi(argv[2]), in_flight = atoi(argv[4]), operations = atoi(argv[5]);
	uint32_t bytes = (uint32_t)atoi(argv[3]);
	CHECK(count > 0 && in_flight <= DEPTH * count);
	struct rlimit files;
	CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
	files.rlim_cur = files.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
	struct shared *shared =
		mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pthread_barrierattr_t attributes;
	CHECK(pthread_barrierattr_init(&attributes) == 0);
	CHECK(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_barrier_init(&shared->barrier, &attributes, 2) == 0);
	signal(SIGCHLD, on_child);
	pid_t peer = fork();
	CHECK(peer >= 0);
	if (peer == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		serve(shared, port, count, bytes);
		exit(0);
	}
	ask(shared, port, count, bytes, in_flight, operations, atof(argv[6]));
	return 0;
}

/*
 * iwarp-perf: bandwidth and latency of an RDMA device.
 *
 * Bandwidth: the sender posts a window of W messages of S bytes. The receiver polls the last byte
 * of the last message and answers with 1 byte; then the next window follows. Both ways: both ends
 * do that at once, and the sum is reported. Latency: half the round-trip time of equal messages.
 *
 * Messages are RDMA writes, sends or reads. A read involves no receiver: a window of reads ends
 * when the last read has completed, and the latency of a read is its whole round trip. A write
 * raises no event at its target, and iWARP has no immediate data: with --events, a send of 1 byte
 * follows the last write of a window.
 *
 * The client decides what is measured. The private data of the connection contain the parameters
 * and the address of the memory; orders before and after each run are sends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PROGRAM "iwarp-perf"
#define MEASURED "an RDMA device"
#define EVENTS_HELP "waits for completion events instead of polling"
#define HAS_OPERATIONS
#define PORT "7471"
#define MAGIC 0x69777066u

#include "runs.h"

enum {
	CONNECT_MS = 5000,
	/* Polls between two checks of the clock and of the connection. */
	POLLS_PER_LOOK = 4096,
	INLINE_BYTES = 64,
	READS_MAX = 16,
	/* Send requests in addition to a window: its notification, an answer and an order. */
	REQUESTS_BESIDE = 4,
};

#define RECEIVES_BYTES_MAX (2ull << 30)

/* Private data of the client's request; big-endian, like everything sent over the network. */
struct hello {
	uint32_t magic, version, test, operation, events, window_max;
	uint64_t size_max, address;
	uint32_t key, reserved;
};

/* Private data of the server's answer, and of its rejection. */
struct reply {
	uint32_t magic, version, refusal, key;
	uint64_t address, limit;
};

enum refusal { ACCEPTED, OTHER_VERSION, BUSY, NO_RESOURCES, WINDOW_TOO_LARGE };

/* The work request ID: the kind of the request, plus for a receive its number. */
enum request { WINDOW_SENT = 1 << 20, ANSWER_SENT = 2 << 20, ORDER_SENT = 3 << 20, RECEIVED = 4 << 20 };
#define KIND_MASK (~((uint64_t)(1 << 20) - 1))

/* Offsets in the memory of each end. */
enum { ANSWER_IN = 0, ANSWER_OUT = 64, NOTE_OUT = 128, ORDER_OUT = 192, HEAD_BYTES = 4096 };
enum { NOTE = 'W', ANSWER = 'A' };

struct link {
	struct rdma_event_channel *cm;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	unsigned char *memory;
	uint64_t memory_bytes, region, receive_bytes;
	uint32_t receives, inline_bytes;
	struct ibv_send_wr *requests;
	struct ibv_sge *pieces;

	bool is_server, is_armed;
	struct terms terms;
	uint64_t peer_address;
	uint32_t peer_key;

	/* State of the current run. */
	struct run run;
	uint64_t windows_sent, answers_sent, orders_sent, orders_posted;
	uint64_t messages_in, notes_in, answers_in, wrong_bytes;
	struct order order;
	bool has_order, has_ended;
	/* The status of the first request that failed. It is reported after the completions before it have
	   been handled, because one of these may be the order to end. */
	enum ibv_wc_status failure;

	/* When the last progress was made, the time limit without progress, and the number of polls since. */
	double quiet_since, patience_s;
	uint64_t polls;
	unsigned unacknowledged;
};

static const struct terms *terms_of(const struct link *link)
{
	return &link->terms;
}

static uint64_t wrong_bytes(const struct link *link)
{
	return link->wrong_bytes;
}

static unsigned char *target(struct link *link)
{
	return link->memory + HEAD_BYTES;
}

static unsigned char *source(struct link *link)
{
	return target(link) + link->region;
}

/* Returns whether the receiver detects the end of a window in memory. */
static bool is_marked(const struct link *link)
{
	return link->terms.operation == WRITE && !link->terms.events;
}

static void fill(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++) {
		unsigned char *bytes = source(link) + place(&link->run, message);
		for (uint64_t offset = 0; offset < link->run.size; offset++)
			bytes[offset] = pattern(window, message, offset);
	}
}

/* Counts the bytes of a message that differ from what was sent. */
static void compare(struct link *link, const unsigned char *bytes, uint64_t window, uint64_t message)
{
	bool has_mark = is_marked(link) && message + 1 == link->run.window;
	uint64_t size = link->run.size - (has_mark ? 1 : 0);
	for (uint64_t offset = 0; offset < size; offset++)
		link->wrong_bytes += bytes[offset] != pattern(window, message, offset);
}

static void compare_window(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++)
		compare(link, target(link) + place(&link->run, message), window, message);
}

/* ---- Requests ---- */

static bool post_receive(struct link *link, uint64_t number)
{
	unsigned char *bytes = source(link) + link->region + number * link->receive_bytes;
	struct ibv_sge piece = { (uintptr_t)bytes, (uint32_t)link->receive_bytes, link->mr->lkey };
	struct ibv_recv_wr request = { .wr_id = RECEIVED | number, .sg_list = &piece, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(link->id->qp, &request, &bad);
	return !error || failed("post a receive of %" PRIu64 " bytes: %s", link->receive_bytes, strerror(error));
}

static bool post_small(struct link *link, uint64_t kind, uint64_t offset, uint32_t length)
{
	struct ibv_sge piece = { (uintptr_t)(link->memory + offset), length, link->mr->lkey };
	struct ibv_send_wr request = { .wr_id = kind, .sg_list = &piece, .num_sge = 1 }, *bad;
	request.opcode = IBV_WR_SEND;
	request.send_flags = IBV_SEND_SIGNALED | (length <= link->inline_bytes ? IBV_SEND_INLINE : 0);
	if (kind == ANSWER_SENT && is_marked(link)) {
		request.opcode = IBV_WR_RDMA_WRITE;
		request.wr.rdma.remote_addr = link->peer_address + ANSWER_IN;
		request.wr.rdma.rkey = link->peer_key;
	}
	int error = ibv_post_send(link->id->qp, &request, &bad);
	return !error || failed("post a message of %u bytes: %s", length, strerror(error));
}

static bool post_answer(struct link *link, uint64_t window)
{
	link->memory[ANSWER_OUT] = is_marked(link) ? mark(window) : ANSWER;
	return post_small(link, ANSWER_SENT, ANSWER_OUT, 1);
}

/* Builds the requests of a window. They are identical in all windows of a run. */
static void prepare_window(struct link *link)
{
	static const enum ibv_wr_opcode OPCODES[] = { IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ };
	const struct run *run = &link->run;
	bool is_read = link->terms.operation == READ;
	bool is_inline = !is_read && run->size <= link->inline_bytes;
	for (uint64_t message = 0; message < run->window; message++) {
		uint64_t at = place(run, message);
		struct ibv_send_wr *request = &link->requests[message];
		unsigned char *local = (is_read ? target(link) : source(link)) + at;
		link->pieces[message] = (struct ibv_sge){ (uintptr_t)local, (uint32_t)run->size, link->mr->lkey };
		*request = (struct ibv_send_wr){ .wr_id = WINDOW_SENT, .sg_list = &link->pieces[message], .num_sge = 1 };
		request->opcode = OPCODES[link->terms.operation];
		request->send_flags = is_inline ? IBV_SEND_INLINE : 0;
		request->next = message + 1 < run->window ? request + 1 : NULL;
		request->wr.rdma.remote_addr = link->peer_address + HEAD_BYTES + (is_read ? link->region : 0) + at;
		request->wr.rdma.rkey = link->peer_key;
	}
	struct ibv_send_wr *last = &link->requests[run->window - 1];
	if (link->terms.operation == WRITE && link->terms.events) {
		last->next = last + 1;
		last++;
		link->memory[NOTE_OUT] = NOTE;
		uintptr_t note = (uintptr_t)(link->memory + NOTE_OUT);
		link->pieces[run->window] = (struct ibv_sge){ note, 1, link->mr->lkey };
		*last = (struct ibv_send_wr){ .wr_id = WINDOW_SENT, .sg_list = &link->pieces[run->window], .num_sge = 1 };
		last->opcode = IBV_WR_SEND;
	}
	last->send_flags |= IBV_SEND_SIGNALED;
}

/* The previous window must have completed, because its memory is used again. */
static bool post_window(struct link *link, uint64_t window)
{
	if (link->run.check && link->terms.operation != READ)
		fill(link, window);
	if (is_marked(link))
		*last_byte(source(link), &link->run) = mark(window);
	struct ibv_send_wr *bad;
	int error = ibv_post_send(link->id->qp, link->requests, &bad);
	return !error || failed("post a window of %" PRIu64 " messages of %" PRIu64 " bytes: %s", link->run.window,
				link->run.size, strerror(error));
}

static void refuse(struct rdma_cm_id *id, enum refusal why, uint64_t limit)
{
	struct reply reply = { htobe32(MAGIC), htobe32(VERSION), htobe32(why), 0, 0, htobe64(limit) };
	rdma_reject(id, &reply, sizeof(reply));
}

static void refuse_as_busy(struct rdma_cm_id *id)
{
	refuse(id, BUSY, 0);
}

#include "connection-events.h"

/* ---- Receiving ---- */

static bool handle_receive(struct link *link, uint64_t number, uint32_t length)
{
	const unsigned char *bytes = source(link) + link->region + number * link->receive_bytes;
	struct order order;
	memcpy(&order, bytes, length < sizeof(order) ? length : sizeof(order));
	bool is_data = link->terms.operation == SEND && (link->terms.test != BANDWIDTH || link->is_server);
	if (link->terms.test == BOTH_WAYS && length == 1)
		is_data = false;
	if (length == sizeof(order) && be32toh(order.magic) == MAGIC) {
		link->order = order;
		link->has_order = true;
	} else if (is_data) {
		if (link->run.check)
			compare(link, bytes, link->messages_in / link->run.window, link->messages_in % link->run.window);
		link->messages_in++;
	} else if (length == 1 && bytes[0] == ANSWER) {
		link->answers_in++;
	} else if (length == 1 && bytes[0] == NOTE) {
		link->notes_in++;
	} else {
		return failed("a message of %u bytes that belongs to no run has come; is the peer another program?", length);
	}
	return post_receive(link, number);
}

/* Polls completions; returns their number, or -1. */
static int reap(struct link *link)
{
	struct ibv_wc entries[16];
	if (link->failure != IBV_WC_SUCCESS && !explain_failure(link->failure))
		return -1;
	int count = ibv_poll_cq(link->cq, 16, entries);
	if (count < 0) {
		failed("poll the completion queue: %s", strerror(errno));
		return -1;
	}
	for (int i = 0; i < count; i++) {
		const struct ibv_wc *entry = &entries[i];
		if (entry->status != IBV_WC_SUCCESS) {
			link->failure = entry->status;
			break;
		}
		switch (entry->wr_id & KIND_MASK) {
		case WINDOW_SENT:
			link->windows_sent++;
			break;
		case ANSWER_SENT:
			link->answers_sent++;
			break;
		case ORDER_SENT:
			link->orders_sent++;
			break;
		default:
			if (!handle_receive(link, entry->wr_id & ~KIND_MASK, entry->byte_len))
				return -1;
		}
	}
	return count;
}

/* Returns whether to keep waiting. When the connection has just ended, the caller polls once more,
   because the last completions precede the end. */
static bool look_at_connection(struct link *link)
{
	if (is_interrupted)
		return failed("interrupted");
	if (link->has_ended)
		return failed("the peer has closed the connection before the end of the measurement");
	take_events(link);
	return true;
}

static void begin_to_wait(struct link *link, double patience_s)
{
	link->quiet_since = 0;
	link->polls = 0;
	link->patience_s = patience_s;
}

/* Sleeps until there are completions, for at most a second. */
static bool sleep_for_events(struct link *link)
{
	if (!link->is_armed) {
		int error = ibv_req_notify_cq(link->cq, 0);
		link->is_armed = true;
		return !error || failed("ask for completion events: %s", strerror(error));
	}
	struct pollfd files[] = { { link->channel->fd, POLLIN, 0 }, { link->cm->fd, POLLIN, 0 } };
	if (poll(files, 2, 1000) < 0 && errno != EINTR)
		return failed("wait for completion events: %s", strerror(errno));
	if (files[0].revents & POLLIN) {
		struct ibv_cq *cq;
		void *context;
		if (ibv_get_cq_event(link->channel, &cq, &context))
			return failed("take a completion event: %s", strerror(errno));
		link->is_armed = false;
		if (++link->unacknowledged == 64) {
			ibv_ack_cq_events(link->cq, link->unacknowledged);
			link->unacknowledged = 0;
		}
	}
	if ((files[0].revents | files[1].revents) == 0 || files[1].revents)
		link->polls = POLLS_PER_LOOK - 1;
	return true;
}

/* One turn of a waiting loop: polls completions, and from time to time checks whether to keep
   waiting. */
static bool turn(struct link *link, bool has_progress, bool may_sleep)
{
	int count = reap(link);
	if (count < 0)
		return false;
	if (count > 0 || has_progress) {
		link->quiet_since = 0;
		return true;
	}
	if (may_sleep && !link->has_ended && !sleep_for_events(link))
		return false;
	if (++link->polls % POLLS_PER_LOOK != 0)
		return true;
	double now = now_s();
	if (link->quiet_since == 0)
		link->quiet_since = now;
	if (now - link->quiet_since > link->patience_s)
		return failed("the peer has not answered for %.0f s; is its host reachable, and does it still run?",
			      link->patience_s);
	return look_at_connection(link);
}

/* ---- Runs ---- */

static bool has_arrived(struct link *link, uint64_t window)
{
	if (is_marked(link))
		return *last_byte(target(link), &link->run) == mark(window);
	if (link->terms.operation == SEND)
		return link->messages_in >= (window + 1) * link->run.window;
	return link->notes_in > window;
}

static bool is_answered(struct link *link, uint64_t window)
{
	if (link->windows_sent <= window)
		return false;
	if (link->terms.operation == READ)
		return true;
	if (is_marked(link))
		return *(volatile unsigned char *)(link->memory + ANSWER_IN) == mark(window);
	return link->answers_in > window;
}

static void begin_run(struct link *link, const struct run *run)
{
	link->run = *run;
	link->windows_sent = link->answers_sent = 0;
	link->messages_in = link->notes_in = link->answers_in = link->wrong_bytes = 0;
	link->memory[ANSWER_IN] = 0;
	if (run->check) {
		memset(target(link), 0xff, link->region);
		if (link->terms.operation == READ)
			fill(link, 0);
	}
	*last_byte(target(link), run) = 0;
	prepare_window(link);
}

static bool run_windows(struct link *link, bool sends, bool receives)
{
	uint64_t out_end = sends ? link->run.iterations : 0, in_end = receives ? link->run.iterations : 0;
	uint64_t out = 0, in = 0;
	bool is_out = false;
	begin_to_wait(link, PATIENCE_S);
	while (out < out_end || in < in_end || link->answers_sent < in) {
		bool has_progress = false;
		if (is_out && is_answered(link, out)) {
			if (link->run.check && link->terms.operation == READ)
				compare_window(link, 0);
			is_out = false;
			out++;
			has_progress = true;
		}
		if (!is_out && out < out_end) {
			if (!post_window(link, out))
				return false;
			is_out = has_progress = true;
		}
		/* The byte of the answer in memory is reused too, so the previous answer must have completed. */
		if (in < in_end && link->answers_sent == in && has_arrived(link, in)) {
			if (link->run.check && link->terms.operation == WRITE)
				compare_window(link, in);
			if (!post_answer(link, in))
				return false;
			in++;
			has_progress = true;
		}
		if (!turn(link, has_progress, link->terms.events))
			return false;
	}
	return true;
}

static bool run_rounds(struct link *link)
{
	bool is_read = link->terms.operation == READ;
	if (is_read && link->is_server)
		return true;
	for (uint64_t round = 0; round < link->run.iterations; round++) {
		begin_to_wait(link, PATIENCE_S);
		if (!link->is_server && !post_window(link, round))
			return false;
		while (link->windows_sent < round + !link->is_server || (!is_read && !has_arrived(link, round)))
			if (!turn(link, false, link->terms.events))
				return false;
		if (link->run.check && link->terms.operation != SEND)
			compare_window(link, is_read ? 0 : round);
		if (link->is_server && !post_window(link, round))
			return false;
	}
	begin_to_wait(link, PATIENCE_S);
	while (link->windows_sent < link->run.iterations)
		if (!turn(link, false, link->terms.events))
			return false;
	return true;
}

static bool do_run(struct link *link)
{
	bool is_both = link->terms.test == BOTH_WAYS, is_read = link->terms.operation == READ;
	if (link->terms.test == LATENCY)
		return run_rounds(link);
	return run_windows(link, is_both || !link->is_server, !is_read && (is_both || link->is_server));
}

static bool send_order(struct link *link, const struct order *order)
{
	begin_to_wait(link, PATIENCE_S);
	while (link->orders_sent < link->orders_posted)
		if (!turn(link, false, false))
			return false;
	memcpy(link->memory + ORDER_OUT, order, sizeof(*order));
	link->orders_posted++;
	return post_small(link, ORDER_SENT, ORDER_OUT, sizeof(*order));
}

static bool await_order(struct link *link, double patience_s, bool may_sleep, struct order *order)
{
	begin_to_wait(link, patience_s);
	while (!link->has_order)
		if (!turn(link, false, may_sleep))
			return false;
	*order = link->order;
	link->has_order = false;
	return true;
}

/* ---- Connections ---- */

static bool set_up_memory(struct link *link)
{
	bool is_send = link->terms.operation == SEND;
	link->receive_bytes = is_send && link->terms.size_max > sizeof(struct order) ? link->terms.size_max : sizeof(struct order);
	link->receives = (uint32_t)link->terms.window_max + RECEIVES_BESIDE;
	link->region = region_bytes(link->terms.size_max, link->terms.window_max);
	/* Each receive has its own memory: a message must not overwrite an unhandled one. */
	uint64_t receive_bytes = link->receives * link->receive_bytes;
	if (receive_bytes > RECEIVES_BYTES_MAX)
		return failed("--operation send: receives for windows of %" PRIu64 " messages of %" PRIu64
			      " bytes have %" PRIu64 " bytes, at most %llu are possible; use a smaller --window",
			      link->terms.window_max, link->terms.size_max, receive_bytes, RECEIVES_BYTES_MAX);
	link->memory_bytes = HEAD_BYTES + 2 * link->region + receive_bytes;
	void *memory;
	if (posix_memalign(&memory, 4096, link->memory_bytes))
		return failed("allocate %" PRIu64 " bytes: out of memory; use smaller --sizes", link->memory_bytes);
	link->memory = memory;
	memset(memory, 0, link->memory_bytes);
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	link->mr = ibv_reg_mr(link->pd, memory, link->memory_bytes, access);
	if (!link->mr)
		return failed("register %" PRIu64 " bytes: %s; raise the limit of locked memory (ulimit -l), or use smaller --sizes",
			      link->memory_bytes, strerror(errno));
	link->requests = calloc(link->terms.window_max + 1, sizeof(*link->requests));
	link->pieces = calloc(link->terms.window_max + 1, sizeof(*link->pieces));
	return (link->requests && link->pieces) || failed("allocate requests: out of memory; use a smaller --window");
}

/* Returns in `limit` the largest window for which the device has queue entries. */
static bool window_limit(struct link *link, struct ibv_device_attr *device, uint64_t *limit)
{
	if (ibv_query_device(link->id->verbs, device))
		return failed("ask device %s what it has: %s", ibv_get_device_name(link->id->verbs->device), strerror(errno));
	uint64_t queue = device->max_qp_wr > REQUESTS_BESIDE ? (uint64_t)device->max_qp_wr - REQUESTS_BESIDE : 0;
	uint64_t completions = device->max_cqe > 16 ? (uint64_t)device->max_cqe / 2 - 8 : 0;
	*limit = queue < completions ? queue : completions;
	return true;
}

static bool set_up(struct link *link)
{
	struct ibv_context *verbs = link->id->verbs;
	const char *device = ibv_get_device_name(verbs->device);
	link->pd = ibv_alloc_pd(verbs);
	if (!link->pd)
		return failed("allocate a protection domain of %s: %s", device, strerror(errno));
	link->channel = ibv_create_comp_channel(verbs);
	if (!link->channel)
		return failed("make a completion channel of %s: %s", device, strerror(errno));
	int entries = (int)(2 * link->terms.window_max + 16);
	link->cq = ibv_create_cq(verbs, entries, NULL, link->channel, 0);
	if (!link->cq)
		return failed("make a completion queue of %d entries on %s: %s; use a smaller --window", entries, device,
			      strerror(errno));
	if (!set_up_memory(link))
		return false;
	struct ibv_qp_init_attr attributes = { .send_cq = link->cq, .recv_cq = link->cq, .qp_type = IBV_QPT_RC };
	attributes.cap.max_send_wr = (uint32_t)link->terms.window_max + REQUESTS_BESIDE;
	attributes.cap.max_recv_wr = link->receives;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
	attributes.cap.max_inline_data = INLINE_BYTES;
	if (rdma_create_qp(link->id, link->pd, &attributes)) {
		/* Some devices support no inline data. */
		attributes.cap.max_inline_data = 0;
		if (rdma_create_qp(link->id, link->pd, &attributes))
			return failed("make a queue pair for windows of %" PRIu64 " messages on %s: %s; use a smaller --window",
				      link->terms.window_max, device, strerror(errno));
	}
	link->inline_bytes = attributes.cap.max_inline_data;
	for (uint64_t number = 0; number < link->receives; number++)
		if (!post_receive(link, number))
			return false;
	return true;
}

static void tear_down(struct link *link)
{
	if (link->id && link->id->qp)
		rdma_destroy_qp(link->id);
	if (link->mr)
		ibv_dereg_mr(link->mr);
	if (link->cq) {
		ibv_ack_cq_events(link->cq, link->unacknowledged);
		ibv_destroy_cq(link->cq);
	}
	if (link->channel)
		ibv_destroy_comp_channel(link->channel);
	if (link->pd)
		ibv_dealloc_pd(link->pd);
	if (link->id)
		rdma_destroy_id(link->id);
	free(link->memory);
	free(link->requests);
	free(link->pieces);
}

static const char *refusal_text(enum refusal refusal)
{
	switch (refusal) {
	case BUSY:
		return "the server serves another client; try again when it has ended";
	case NO_RESOURCES:
		return "the server cannot have the memory or the queues; its own message says which; use smaller --sizes or --window";
	default:
		return "the server refused without a reason; is it " PROGRAM "?";
	}
}

static bool explain_refusal(const struct rdma_cm_event *event, const char *address)
{
	struct reply reply = { 0 };
	if (event->param.conn.private_data && event->param.conn.private_data_len >= sizeof(reply))
		memcpy(&reply, event->param.conn.private_data, sizeof(reply));
	if (be32toh(reply.magic) != MAGIC)
		return failed("connect to %s: refused; start the server there: " PROGRAM, address);
	if (be32toh(reply.refusal) == OTHER_VERSION)
		return failed("connect to %s: the server has version %u of the protocol, this client version %d; use the same "
			      PROGRAM " at both ends",
			      address, be32toh(reply.version), VERSION);
	if (be32toh(reply.refusal) == WINDOW_TOO_LARGE)
		return failed("connect to %s: the server's device has queues for windows of at most %" PRIu64
			      " messages; use a smaller --window",
			      address, be64toh(reply.limit));
	return failed("connect to %s: %s", address, refusal_text(be32toh(reply.refusal)));
}

#include "connection-steps.h"

static uint8_t least(int one, int other)
{
	return (uint8_t)(one < other ? one : other);
}

static bool connect_to_server(struct link *link, const struct options *options)
{
	struct ibv_device_attr device;
	uint64_t limit;
	if (!resolve(link, options) || !window_limit(link, &device, &limit))
		return false;
	if (link->terms.window_max > limit)
		return failed("--window %" PRIu64 ": the queues of %s hold windows of at most %" PRIu64 " messages",
			      link->terms.window_max, ibv_get_device_name(link->id->verbs->device), limit);
	if (!set_up(link))
		return false;
	struct hello hello = { htobe32(MAGIC), htobe32(VERSION), htobe32(link->terms.test), htobe32(link->terms.operation),
			       htobe32(link->terms.events), htobe32((uint32_t)link->terms.window_max), htobe64(link->terms.size_max),
			       htobe64((uintptr_t)link->memory), htobe32(link->mr->rkey), 0 };
	struct rdma_conn_param parameters = { .private_data = &hello, .private_data_len = sizeof(hello) };
	parameters.initiator_depth = least(device.max_qp_init_rd_atom, READS_MAX);
	parameters.responder_resources = least(device.max_qp_rd_atom, READS_MAX);
	parameters.retry_count = parameters.rnr_retry_count = 7;
	if (rdma_connect(link->id, &parameters))
		return failed("connect to %s: %s", options->address, strerror(errno));
	int limit_ms = 2 * CONNECT_MS;
	struct rdma_cm_event *event =
		await_event(link, RDMA_CM_EVENT_ESTABLISHED, limit_ms, "connect to", options->address);
	if (!event)
		return false;
	struct reply reply = { 0 };
	if (event->param.conn.private_data_len >= sizeof(reply))
		memcpy(&reply, event->param.conn.private_data, sizeof(reply));
	rdma_ack_cm_event(event);
	if (be32toh(reply.magic) != MAGIC)
		return failed("%s port %s is not " PROGRAM ": its answer has another form", options->address, options->port);
	link->peer_address = be64toh(reply.address);
	link->peer_key = be32toh(reply.key);
	return set_blocking(link->cm->fd, false);
}

/* ---- The server ---- */

/* Checks the request of a client. The client may be any program, so every field is validated. */
static enum refusal read_hello(struct link *link, const struct rdma_cm_event *event)
{
	struct hello hello = { 0 };
	if (event->param.conn.private_data && event->param.conn.private_data_len >= sizeof(hello))
		memcpy(&hello, event->param.conn.private_data, sizeof(hello));
	if (be32toh(hello.magic) != MAGIC || be32toh(hello.version) != VERSION) {
		failed("a client is not " PROGRAM " or has another version than %d; use the same " PROGRAM " at both ends", VERSION);
		return OTHER_VERSION;
	}
	link->terms.test = be32toh(hello.test);
	link->terms.operation = be32toh(hello.operation);
	link->terms.events = be32toh(hello.events);
	link->terms.window_max = be32toh(hello.window_max);
	link->terms.size_max = be64toh(hello.size_max);
	link->peer_address = be64toh(hello.address);
	link->peer_key = be32toh(hello.key);
	if (link->terms.test > LATENCY || link->terms.operation > READ || link->terms.window_max == 0 || link->terms.window_max > WINDOW_MAX ||
	    link->terms.size_max == 0 || link->terms.size_max > SIZE_MAX_BYTES) {
		failed("a client asks for test %d, operation %d, windows of %" PRIu64 " and %" PRIu64
		       " bytes, which no client of version %d does",
		       link->terms.test, link->terms.operation, link->terms.window_max, link->terms.size_max, VERSION);
		return OTHER_VERSION;
	}
	return ACCEPTED;
}

static bool accept_client(struct link *link, const struct rdma_cm_event *event)
{
	struct ibv_device_attr device;
	uint64_t limit = 0;
	enum refusal refusal = read_hello(link, event);
	if (refusal == ACCEPTED && !window_limit(link, &device, &limit))
		refusal = NO_RESOURCES;
	if (refusal == ACCEPTED && link->terms.window_max > limit) {
		failed("a client asks for windows of %" PRIu64 " messages: the queues of %s hold at most %" PRIu64,
		       link->terms.window_max, ibv_get_device_name(link->id->verbs->device), limit);
		refusal = WINDOW_TOO_LARGE;
	}
	if (refusal == ACCEPTED && !set_up(link))
		refusal = NO_RESOURCES;
	if (refusal != ACCEPTED) {
		refuse(link->id, refusal, limit);
		return false;
	}
	struct reply reply = { htobe32(MAGIC), htobe32(VERSION), htobe32(ACCEPTED), htobe32(link->mr->rkey),
			       htobe64((uintptr_t)link->memory), htobe64(limit) };
	struct rdma_conn_param parameters = { .private_data = &reply, .private_data_len = sizeof(reply) };
	parameters.initiator_depth = least(event->param.conn.initiator_depth, least(device.max_qp_init_rd_atom, READS_MAX));
	parameters.responder_resources = least(event->param.conn.responder_resources, least(device.max_qp_rd_atom, READS_MAX));
	parameters.rnr_retry_count = 7;
	return rdma_accept(link->id, &parameters) == 0 || failed("accept a client: %s", strerror(errno));
}

/* Serves a client. `next` is its request if that has arrived already, and becomes the request of the
   client after it if that arrives meanwhile. */
static bool serve_client(struct link *link, struct rdma_cm_event **next)
{
	struct rdma_cm_event *request = *next ? *next : await_client(link);
	*next = NULL;
	if (!request)
		return false;
	link->id = request->id;
	bool is_accepted = accept_client(link, request);
	rdma_ack_cm_event(request);
	if (!is_accepted || !pass_event(link, RDMA_CM_EVENT_ESTABLISHED, 2 * CONNECT_MS, "accept", "a client"))
		return false;
	if (!set_blocking(link->cm->fd, false) || !serve_runs(link))
		return false;
	*next = await_disconnection(link);
	rdma_disconnect(link->id);
	return true;
}

static bool serve(const struct options *options)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *listener = NULL;
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *own = NULL;
	if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
		return failed("use the connection manager: %s; is there an RDMA device? `ibv_devices` lists them", strerror(errno));
	const char *address = options->bind ? options->bind : "0.0.0.0";
	if (rdma_getaddrinfo(address, options->port, &hints, &own))
		return failed("find --bind %s port %s: %s; give an address of this host", address, options->port, strerror(errno));
	if (rdma_bind_addr(listener, own->ai_src_addr) || rdma_listen(listener, 4))
		return failed("listen on %s port %s: %s; use another --port, or an address of an RDMA interface for --bind", address,
			      options->port, strerror(errno));
	rdma_freeaddrinfo(own);
	printf(PROGRAM ": listening on port %s\n", options->port);
	fflush(stdout);
	struct rdma_cm_event *next = NULL;
	bool is_good;
	do {
		struct link link = { .cm = channel, .is_server = true };
		is_good = serve_client(&link, &next);
		tear_down(&link);
	} while (options->keep && !is_interrupted);
	if (next)
		refuse_request(next);
	rdma_destroy_id(listener);
	rdma_destroy_event_channel(channel);
	return is_good;
}

/* ---- The client ---- */

static const char *transport(const struct link *link)
{
	switch (link->id->verbs->device->transport_type) {
	case IBV_TRANSPORT_IB:
		return "InfiniBand";
	case IBV_TRANSPORT_IWARP:
		return "iWARP";
	default:
		return "other";
	}
}

static bool ask(const struct options *options)
{
	struct link link = { .terms = terms_asked(options) };
	link.cm = rdma_create_event_channel();
	if (!link.cm || rdma_create_id(link.cm, &link.id, NULL, RDMA_PS_TCP))
		return failed("use the connection manager: %s; is there an RDMA device? `ibv_devices` lists them", strerror(errno));
	bool is_good = connect_to_server(&link, options) &&
		       measure(&link, options, ibv_get_device_name(link.id->verbs->device), transport(&link));
	begin_to_wait(&link, 2);
	while (is_good && link.orders_sent < link.orders_posted && turn(&link, false, false))
		;
	if (link.peer_address)
		rdma_disconnect(link.id);
	tear_down(&link);
	rdma_destroy_event_channel(link.cm);
	return is_good;
}

/*
 * comb: the share of CPU time that a program keeps while messages flow both ways, over an RDMA
 * device or a TCP connection.
 *
 * `comb.h` has the method; this file has the two carriers. Over verbs, a message is a send into a
 * posted receive. Over TCP, it is a number of bytes, which non-blocking calls write and read as far
 * as the kernel's buffers allow.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PROGRAM "comb"
#define PORT "7473"
#define HAS_ADDRESSES
#define USAGE                                                                                                  \
	"  " PROGRAM " [--over O] [--port P] [--bind ADDRESS] [--keep]    serves one client, with --keep one after the other\n" \
	"  " PROGRAM " SERVER [OPTION...]                                 measures against the server at this address\n" \
	"\n"                                                                                                   \
	"  --over O         verbs or tcp, the same at both ends [verbs]\n"                                     \
	"  --port P         of the server [" PORT "]\n"                                                        \
	"  --bind ADDRESS   own address\n"                                                                     \
	"  --keep           serves on when a client has ended\n"
#define EXAMPLE "Example: `" PROGRAM "` on one host, then on another `" PROGRAM " 192.0.2.1 --sizes 256K --cpu 0`\n"

enum over { VERBS, TCP };
static const char *const OVER[] = { "verbs", "tcp", NULL };

#include "comb.h"

enum { CONNECT_MS = 5000, ORDER_RECEIVES = 2 };

#define HELLO_MAGIC 0x636f6d68u

/* The client's request and the server's confirmation: private data of the connection, or the first
   bytes over TCP. */
struct hello {
	uint32_t magic, version, refusal, queue;
	uint64_t size_max;
};

enum refusal { ACCEPTED, OTHER_VERSION, BUSY, NO_RESOURCES };

struct link {
	enum over over;
	uint64_t queue, size_max, slot_bytes, slots;
	struct run run;
	unsigned char *memory; /* receive slots, then messages to send, then an order */
	uint64_t memory_bytes, wrong, sends_posted;
	struct order order;
	bool has_order, has_ended;

	/* Verbs. */
	struct rdma_event_channel *cm;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	uint64_t sends_completed, taken_first, taken_count;
	uint64_t taken[2 * QUEUE_MAX + ORDER_RECEIVES]; /* ring of slots whose message was received */
	/* The status of the first request that failed. It is reported after the completions before it have
	   been handled, because one of these may be the order to end. */
	enum ibv_wc_status failure;

	/* TCP. */
	int file;
	uint64_t owed, sent, arrived, got;
};

static unsigned char *receive_slot(const struct link *link, uint64_t slot)
{
	return link->memory + slot * link->slot_bytes;
}

static unsigned char *send_slot(const struct link *link, uint64_t slot)
{
	return receive_slot(link, link->slots + slot % (2 * link->queue));
}

static unsigned char *order_slot(const struct link *link)
{
	return receive_slot(link, link->slots + 2 * link->queue);
}

static bool allocate(struct link *link)
{
	link->slots = 2 * link->queue + ORDER_RECEIVES;
	link->slot_bytes = link->size_max > sizeof(struct order) ? link->size_max : sizeof(struct order);
	/* Each slot begins on its own cache line. */
	link->slot_bytes = (link->slot_bytes + 63) / 64 * 64;
	link->memory_bytes = (link->slots + 2 * link->queue + 1) * link->slot_bytes;
	void *memory;
	if (posix_memalign(&memory, 4096, link->memory_bytes))
		return failed("allocate %" PRIu64 " bytes: out of memory; use smaller --sizes or a smaller --queue", link->memory_bytes);
	link->memory = memory;
	memset(memory, 0, link->memory_bytes);
	for (uint64_t slot = 0; slot < 2 * link->queue; slot++)
		fill(send_slot(link, slot), link->size_max);
	return true;
}

static void take_in(struct link *link, const unsigned char *bytes)
{
	if (link->run.check)
		link->wrong += compare(bytes, link->run.size);
}

static bool has_order(const struct link *link)
{
	return link->has_order;
}

static bool take_order(struct link *link, struct order *order)
{
	*order = link->order;
	link->has_order = false;
	return be32toh(order->magic) == ORDER_MAGIC || failed("an order of the peer is garbled; is it another program?");
}

static uint64_t wrong_bytes(const struct link *link)
{
	return link->wrong;
}

/* ---- Verbs ---- */

static bool give_slot(struct link *link, uint64_t slot)
{
	struct ibv_sge piece = { (uintptr_t)receive_slot(link, slot), (uint32_t)link->slot_bytes, link->mr->lkey };
	struct ibv_recv_wr request = { .wr_id = slot + 1, .sg_list = &piece, .num_sge = 1 }, *bad;
	int error = ibv_post_recv(link->id->qp, &request, &bad);
	return !error || failed("post a receive of %" PRIu64 " bytes: %s", link->slot_bytes, strerror(error));
}

/* Posts the receive whose message arrived first again. There is one receive for each message that
   may arrive. */
static bool post_verbs_receive(struct link *link)
{
	if (link->taken_count == 0)
		return true;
	uint64_t slot = link->taken[link->taken_first];
	link->taken_first = (link->taken_first + 1) % link->slots;
	link->taken_count--;
	return give_slot(link, slot);
}

static bool post_verbs_send(struct link *link, unsigned char *bytes, uint64_t size)
{
	struct ibv_sge piece = { (uintptr_t)bytes, (uint32_t)size, link->mr->lkey };
	struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	request.send_flags = IBV_SEND_SIGNALED;
	int error = ibv_post_send(link->id->qp, &request, &bad);
	link->sends_posted++;
	return !error || failed("post a message of %" PRIu64 " bytes: %s", size, strerror(error));
}

/* Returns 1 for a message, 0 for an order, -1 for an error. */
static int take_receive(struct link *link, uint64_t slot, uint32_t length)
{
	const unsigned char *bytes = receive_slot(link, slot);
	if (bytes[0] == ORDER_TAG && length == sizeof(struct order)) {
		memcpy(&link->order, bytes, sizeof(link->order));
		link->has_order = true;
		return give_slot(link, slot) ? 0 : -1;
	}
	if (length != link->run.size) {
		failed("a message of %u bytes that belongs to no run has come; is the peer another program?", length);
		return -1;
	}
	take_in(link, bytes);
	link->taken[(link->taken_first + link->taken_count++) % link->slots] = slot;
	return 1;
}

static void refuse(struct rdma_cm_id *id, enum refusal why)
{
	struct hello reply = { htobe32(HELLO_MAGIC), htobe32(VERSION), htobe32(why), 0, 0 };
	rdma_reject(id, &reply, sizeof(reply));
}

static void refuse_as_busy(struct rdma_cm_id *id)
{
	refuse(id, BUSY);
}

#include "connection-events.h"

static int test_verbs(struct link *link)
{
	struct ibv_wc entries[16];
	if (link->failure != IBV_WC_SUCCESS && !explain_failure(link->failure))
		return -1;
	int arrived = 0, count = ibv_poll_cq(link->cq, 16, entries);
	if (count < 0) {
		failed("poll the completion queue: %s", strerror(errno));
		return -1;
	}
	for (int i = 0; i < count; i++) {
		if (entries[i].status != IBV_WC_SUCCESS) {
			link->failure = entries[i].status;
			break;
		}
		if (entries[i].wr_id == 0) {
			link->sends_completed++;
			continue;
		}
		int taken = take_receive(link, entries[i].wr_id - 1, entries[i].byte_len);
		if (taken < 0)
			return -1;
		arrived += taken;
	}
	return arrived;
}

/* Returns whether to keep waiting. When the connection has just ended, the caller polls once more,
   because the last completions precede the end. */
static bool is_verbs_connected(struct link *link)
{
	if (link->has_ended)
		return failed("the peer has closed the connection before the end of the measurement");
	take_events(link);
	return true;
}

static bool set_up_verbs(struct link *link)
{
	struct ibv_context *verbs = link->id->verbs;
	const char *device = ibv_get_device_name(verbs->device);
	if (!allocate(link))
		return false;
	link->pd = ibv_alloc_pd(verbs);
	if (!link->pd)
		return failed("allocate a protection domain of %s: %s", device, strerror(errno));
	link->mr = ibv_reg_mr(link->pd, link->memory, link->memory_bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!link->mr)
		return failed("register %" PRIu64 " bytes: %s; raise the limit of locked memory (ulimit -l), or use smaller --sizes",
			      link->memory_bytes, strerror(errno));
	/* An answer may arrive before its own send has completed here. */
	uint32_t sends = (uint32_t)(4 * link->queue + 8);
	int entries = (int)(sends + link->slots);
	link->cq = ibv_create_cq(verbs, entries, NULL, NULL, 0);
	if (!link->cq)
		return failed("make a completion queue of %d entries on %s: %s; use a smaller --queue", entries, device, strerror(errno));
	struct ibv_qp_init_attr attributes = { .send_cq = link->cq, .recv_cq = link->cq, .qp_type = IBV_QPT_RC };
	attributes.cap = (struct ibv_qp_cap){ sends, (uint32_t)link->slots, 1, 1, 0 };
	if (rdma_create_qp(link->id, link->pd, &attributes))
		return failed("make a queue pair for %" PRIu64 " messages each way on %s: %s; use a smaller --queue", link->queue, device,
			      strerror(errno));
	for (uint64_t slot = 0; slot < link->slots; slot++)
		if (!give_slot(link, slot))
			return false;
	return true;
}

static bool explain_reply(const struct hello *reply, const char *address)
{
	if (be32toh(reply->magic) != HELLO_MAGIC)
		return failed("connect to %s: refused; start the server there: " PROGRAM, address);
	if (be32toh(reply->refusal) == OTHER_VERSION)
		return failed("connect to %s: the server has version %u of the protocol, this client version %d; use the same " PROGRAM
			      " at both ends",
			      address, be32toh(reply->version), VERSION);
	if (be32toh(reply->refusal) == BUSY)
		return failed("connect to %s: the server serves another client; try again when it has ended", address);
	return failed("connect to %s: the server cannot have the memory or the queues; its own message says which; use smaller "
		      "--sizes or a smaller --queue",
		      address);
}

static bool explain_refusal(const struct rdma_cm_event *event, const char *address)
{
	struct hello reply = { 0 };
	if (event->param.conn.private_data && event->param.conn.private_data_len >= sizeof(reply))
		memcpy(&reply, event->param.conn.private_data, sizeof(reply));
	return explain_reply(&reply, address);
}

#include "connection-steps.h"

static struct hello hello_of(const struct link *link)
{
	return (struct hello){ htobe32(HELLO_MAGIC), htobe32(VERSION), htobe32(ACCEPTED), htobe32((uint32_t)link->queue),
			       htobe64(link->size_max) };
}

static bool connect_verbs(struct link *link, const struct options *options)
{
	link->cm = rdma_create_event_channel();
	if (!link->cm || rdma_create_id(link->cm, &link->id, NULL, RDMA_PS_TCP))
		return failed("use the connection manager: %s; is there an RDMA device? `ibv_devices` lists them", strerror(errno));
	if (!resolve(link, options) || !set_up_verbs(link))
		return false;
	struct hello hello = hello_of(link);
	struct rdma_conn_param parameters = { .private_data = &hello, .private_data_len = sizeof(hello) };
	parameters.retry_count = parameters.rnr_retry_count = 7;
	if (rdma_connect(link->id, &parameters))
		return failed("connect to %s: %s", options->address, strerror(errno));
	return pass_event(link, RDMA_CM_EVENT_ESTABLISHED, 2 * CONNECT_MS, "connect to", options->address) &&
	       set_blocking(link->cm->fd, false);
}

/* Checks the request of a client. The client may be any program, so every field is validated. */
static enum refusal read_hello(struct link *link, const struct hello *hello)
{
	link->queue = be32toh(hello->queue);
	link->size_max = be64toh(hello->size_max);
	bool is_good = be32toh(hello->magic) == HELLO_MAGIC && be32toh(hello->version) == VERSION && link->queue > 0 &&
		       link->queue <= QUEUE_MAX && link->size_max > 0 && link->size_max <= SIZE_LIMIT;
	if (is_good)
		return ACCEPTED;
	failed("a client is not " PROGRAM " or has another version than %d; use the same " PROGRAM " at both ends", VERSION);
	return OTHER_VERSION;
}

static bool accept_verbs(struct link *link, struct rdma_cm_event *event)
{
	if (!event)
		return false;
	struct hello hello = { 0 };
	link->id = event->id;
	if (event->param.conn.private_data && event->param.conn.private_data_len >= sizeof(hello))
		memcpy(&hello, event->param.conn.private_data, sizeof(hello));
	rdma_ack_cm_event(event);
	enum refusal refusal = read_hello(link, &hello);
	if (refusal == ACCEPTED && !set_up_verbs(link))
		refusal = NO_RESOURCES;
	if (refusal != ACCEPTED) {
		refuse(link->id, refusal);
		return false;
	}
	struct hello reply = hello_of(link);
	struct rdma_conn_param parameters = { .private_data = &reply, .private_data_len = sizeof(reply), .rnr_retry_count = 7 };
	if (rdma_accept(link->id, &parameters))
		return failed("accept a client: %s", strerror(errno));
	return pass_event(link, RDMA_CM_EVENT_ESTABLISHED, 2 * CONNECT_MS, "accept", "a client") &&
	       set_blocking(link->cm->fd, false);
}

/* ---- TCP ---- */

static bool explain_end(ssize_t outcome)
{
	return failed("the peer has closed the connection before the end of the measurement: %s",
		      outcome == 0 ? "its program has ended" : strerror(errno));
}

/* Writes as many bytes as the kernel's buffer has room for. */
static bool flush_tcp(struct link *link)
{
	while (link->owed > 0) {
		uint64_t size = link->run.size, at = link->sent % size;
		const unsigned char *bytes = send_slot(link, link->sent / size) + at;
		uint64_t length = size - at < link->owed ? size - at : link->owed;
		ssize_t written = send(link->file, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (written < 0 && (errno == EAGAIN || errno == EINTR))
			return true;
		if (written < 0)
			return explain_end(written);
		link->owed -= (uint64_t)written;
		link->sent += (uint64_t)written;
	}
	return true;
}

static int test_tcp(struct link *link)
{
	int arrived = 0;
	if (!flush_tcp(link))
		return -1;
	while (!link->has_order && arrived < (int)(2 * link->queue)) {
		unsigned char *bytes = receive_slot(link, link->arrived % link->slots);
		bool is_order = link->run.size == 0 || (link->got > 0 && bytes[0] == ORDER_TAG);
		uint64_t size = is_order ? sizeof(struct order) : link->run.size;
		ssize_t count = recv(link->file, bytes + link->got, size - link->got, MSG_DONTWAIT);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (count <= 0) {
			explain_end(count);
			return -1;
		}
		link->got += (uint64_t)count;
		is_order = bytes[0] == ORDER_TAG;
		size = is_order ? sizeof(struct order) : link->run.size;
		uint64_t got = link->got;
		if (got < size)
			continue;
		link->got = 0;
		if (is_order) {
			memcpy(&link->order, bytes, sizeof(link->order));
			link->has_order = true;
			/* Part of the next message may follow the order in the buffer. */
			link->got = got - size;
			memmove(bytes, bytes + size, link->got);
			break;
		}
		if (link->run.size == 0) {
			failed("bytes that belong to no run have come; is the peer another program?");
			return -1;
		}
		take_in(link, bytes);
		link->arrived++;
		arrived++;
	}
	return arrived;
}

/* Writes or reads all of these bytes, within 5 seconds. */
static bool move_whole(int file, void *bytes, uint64_t size, bool is_out)
{
	double end = now_s() + CONNECT_MS / 1e3;
	for (uint64_t done = 0; done < size;) {
		struct pollfd ready = { file, is_out ? POLLOUT : POLLIN, 0 };
		int left_ms = (int)((end - now_s()) * 1e3);
		if (left_ms <= 0 || is_interrupted)
			return failed("%s", is_interrupted ? "interrupted" : "the peer has not answered for 5 s; is it the same program?");
		if (poll(&ready, 1, left_ms) <= 0)
			continue;
		unsigned char *at = (unsigned char *)bytes + done;
		ssize_t count = is_out ? send(file, at, size - done, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(file, at, size - done, MSG_DONTWAIT);
		if (count < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (count <= 0)
			return explain_end(count);
		done += (uint64_t)count;
	}
	return true;
}

static struct addrinfo *find_address(const char *address, const char *port, bool is_passive)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = is_passive ? AI_PASSIVE : 0 }, *found;
	int error = getaddrinfo(address, port, &hints, &found);
	if (!error)
		return found;
	failed("find %s%s: %s; give an address of %s", is_passive ? "--bind " : "", address ? address : "any address",
	       gai_strerror(error), is_passive ? "this host" : "the server");
	return NULL;
}

static bool connect_socket(struct link *link, const struct options *options, const struct addrinfo *found)
{
	link->file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (link->file < 0)
		return failed("make a socket: %s", strerror(errno));
	if (options->bind) {
		struct addrinfo *own = find_address(options->bind, NULL, true);
		int outcome = own ? bind(link->file, own->ai_addr, own->ai_addrlen) : -1, error = errno;
		if (own)
			freeaddrinfo(own);
		if (outcome)
			return own ? failed("--bind %s: %s; give an address of this host", options->bind, strerror(error)) : false;
	}
	struct timeval limit = { CONNECT_MS / 1000, 0 };
	setsockopt(link->file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (connect(link->file, found->ai_addr, found->ai_addrlen))
		return failed("connect to %s port %s: %s; start the server there: " PROGRAM " --over tcp", options->address,
			      options->port, errno == EINPROGRESS ? "no answer within 5 s" : strerror(errno));
	return true;
}

static bool ready_socket(struct link *link)
{
	int on = 1;
	return setsockopt(link->file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0 ||
	       failed("set TCP_NODELAY: %s", strerror(errno));
}

static bool connect_tcp(struct link *link, const struct options *options)
{
	struct addrinfo *found = find_address(options->address, options->port, false);
	bool is_good = found && connect_socket(link, options, found);
	if (found)
		freeaddrinfo(found);
	struct hello hello = hello_of(link), reply;
	if (!is_good || !ready_socket(link) || !allocate(link) || !move_whole(link->file, &hello, sizeof(hello), true) ||
	    !move_whole(link->file, &reply, sizeof(reply), false))
		return false;
	return (be32toh(reply.magic) == HELLO_MAGIC && be32toh(reply.refusal) == ACCEPTED) ||
	       explain_reply(&reply, options->address);
}

static bool accept_tcp(struct link *link, int listener)
{
	struct hello hello;
	link->file = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (link->file < 0)
		return is_interrupted ? false : failed("wait for a client: %s", strerror(errno));
	if (!ready_socket(link) || !move_whole(link->file, &hello, sizeof(hello), false))
		return false;
	enum refusal refusal = read_hello(link, &hello);
	if (refusal == ACCEPTED && !allocate(link))
		refusal = NO_RESOURCES;
	struct hello reply = hello_of(link);
	reply.refusal = htobe32(refusal);
	return move_whole(link->file, &reply, sizeof(reply), true) && refusal == ACCEPTED;
}

/* ---- Either ---- */

static bool begin_run(struct link *link, const struct run *run)
{
	link->run = *run;
	link->wrong = link->sent = link->owed = 0;
	/* Data of the last run must not look like messages of this run. */
	if (run->check && link->over == TCP)
		memset(link->memory, 0, link->slots * link->slot_bytes);
	while (link->over == VERBS && link->taken_count > 0) {
		if (run->check)
			memset(receive_slot(link, link->taken[link->taken_first]), 0, link->slot_bytes);
		if (!post_verbs_receive(link))
			return false;
	}
	return true;
}

static bool end_run(struct link *link)
{
	link->run.size = 0;
	link->run.check = false;
	return true;
}

static bool post_receive(struct link *link)
{
	return link->over == TCP || post_verbs_receive(link);
}

static bool post_send(struct link *link)
{
	if (link->over == VERBS)
		return post_verbs_send(link, send_slot(link, link->sends_posted), link->run.size);
	link->owed += link->run.size;
	return flush_tcp(link);
}

static int test(struct link *link)
{
	return link->over == TCP ? test_tcp(link) : test_verbs(link);
}

static bool are_sent(const struct link *link)
{
	return link->over == TCP ? link->owed == 0 : link->sends_completed == link->sends_posted;
}

static bool send_order(struct link *link, const struct order *order)
{
	/* The memory of the previous order is reused, so wait until it is sent. A peer that waits for an
	   order sends no messages. */
	struct patience patience = { .limit_s = PATIENCE_S };
	while (!are_sent(link)) {
		int arrived = test(link);
		if (arrived < 0 || (arrived == 0 && !has_patience(link, &patience)))
			return false;
	}
	memcpy(order_slot(link), order, sizeof(*order));
	if (link->over == TCP)
		return move_whole(link->file, order_slot(link), sizeof(*order), true);
	return post_verbs_send(link, order_slot(link), sizeof(*order));
}

static bool is_connected(struct link *link)
{
	return link->over == TCP || is_verbs_connected(link);
}

static void tear_down(struct link *link)
{
	if (link->id && link->id->qp)
		rdma_destroy_qp(link->id);
	if (link->mr)
		ibv_dereg_mr(link->mr);
	if (link->cq)
		ibv_destroy_cq(link->cq);
	if (link->pd)
		ibv_dealloc_pd(link->pd);
	if (link->id)
		rdma_destroy_id(link->id);
	if (link->file >= 0)
		close(link->file);
	free(link->memory);
}

/* Serves a client. `next` is its request if that has arrived already, and becomes the request of the
   client after it if that arrives meanwhile. */
static bool serve_client(struct link *link, int listener, struct rdma_cm_event **next)
{
	struct rdma_cm_event *request = *next;
	*next = NULL;
	bool is_good = link->over == TCP ? accept_tcp(link, listener) : accept_verbs(link, request ? request : await_client(link));
	is_good = is_good && serve_runs(link, link->queue, link->size_max);
	if (is_good && link->over == VERBS)
		*next = await_disconnection(link);
	if (link->id && link->id->qp)
		rdma_disconnect(link->id);
	tear_down(link);
	return is_good;
}

static int listen_tcp(const struct options *options)
{
	struct addrinfo *found = find_address(options->bind ? options->bind : "0.0.0.0", options->port, true);
	if (!found)
		return -1;
	int on = 1, file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool is_good = file >= 0 && setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
		       bind(file, found->ai_addr, found->ai_addrlen) == 0 && listen(file, 4) == 0;
	int error = errno;
	freeaddrinfo(found);
	if (is_good)
		return file;
	if (file >= 0)
		close(file);
	failed("listen on %s port %s: %s; use another --port, or an address of this host for --bind",
	       options->bind ? options->bind : "0.0.0.0", options->port, strerror(error));
	return -1;
}

static bool listen_verbs(const struct options *options, struct rdma_event_channel *channel, struct rdma_cm_id **listener)
{
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP }, *own = NULL;
	const char *address = options->bind ? options->bind : "0.0.0.0";
	if (!channel || rdma_create_id(channel, listener, NULL, RDMA_PS_TCP))
		return failed("use the connection manager: %s; is there an RDMA device? `ibv_devices` lists them", strerror(errno));
	if (rdma_getaddrinfo(address, options->port, &hints, &own))
		return failed("find --bind %s port %s: %s; give an address of this host", address, options->port, strerror(errno));
	bool is_good = rdma_bind_addr(*listener, own->ai_src_addr) == 0 && rdma_listen(*listener, 4) == 0;
	int error = errno;
	rdma_freeaddrinfo(own);
	return is_good || failed("listen on %s port %s: %s; use another --port, or an address of an RDMA interface for --bind", address,
				 options->port, strerror(error));
}

static bool serve(const struct options *options)
{
	struct rdma_event_channel *channel = NULL;
	struct rdma_cm_id *listener = NULL;
	struct rdma_cm_event *next = NULL;
	int file = -1;
	bool is_tcp = options->over == TCP;
	if (!is_tcp)
		channel = rdma_create_event_channel();
	bool is_good = is_tcp ? (file = listen_tcp(options)) >= 0 : listen_verbs(options, channel, &listener);
	if (is_good) {
		printf(PROGRAM ": listening on port %s\n", options->port);
		fflush(stdout);
	}
	while (is_good) {
		struct link link = { .over = (enum over)options->over, .cm = channel, .file = -1 };
		bool is_served = serve_client(&link, file, &next);
		if (!options->keep || is_interrupted) {
			is_good = is_served;
			break;
		}
	}
	if (next)
		refuse_request(next);
	if (listener)
		rdma_destroy_id(listener);
	if (channel)
		rdma_destroy_event_channel(channel);
	if (file >= 0)
		close(file);
	return is_good;
}

static bool ask(const struct options *options)
{
	struct link link = { .over = (enum over)options->over, .file = -1, .queue = options->queue };
	for (int i = 0; i < options->size_count; i++)
		link.size_max = options->sizes[i] > link.size_max ? options->sizes[i] : link.size_max;
	bool is_tcp = link.over == TCP;
	bool is_good = is_tcp ? connect_tcp(&link, options) : connect_verbs(&link, options);
	is_good = is_good && measure(&link, options, OVER[options->over],
				     is_tcp ? "kernel TCP" : ibv_get_device_name(link.id->verbs->device));
	if (link.id && link.id->qp)
		rdma_disconnect(link.id);
	tear_down(&link);
	if (link.cm)
		rdma_destroy_event_channel(link.cm);
	return is_good;
}

int main(int count, char **words)
{
	struct options options;
	catch_signals();
	if (!read_options(count, words, &options))
		return 2;
	return (options.address ? ask(&options) : serve(&options)) ? EXIT_SUCCESS : EXIT_FAILURE;
}

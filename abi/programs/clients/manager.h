/* Shared parts of the clients of the connection manager: ids, their events, and the resources of a
   process. */
#pragma once
#include <arpa/inet.h>
#include <dirent.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <sys/wait.h>

#include "pair.h"

/* Time limit for one step, in milliseconds. Every step needs less time. */
#define LIMIT_MS 80000

static inline struct sockaddr_in at(const char *address, uint16_t port)
{
	struct sockaddr_in found = {.sin_family = AF_INET, .sin_port = htons(port)};
	CHECK(inet_pton(AF_INET, address, &found.sin_addr) == 1);
	return found;
}

static inline struct rdma_event_channel *make_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel);
	return channel;
}

static inline struct rdma_cm_id *make_id(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id = NULL;
	CHECK(rdma_create_id(channel, &id, NULL, space) == 0 && id);
	return id;
}

/* Returns whether an event arrives within the given time. */
static inline int has_event_within(struct rdma_event_channel *channel, int limit_ms)
{
	struct pollfd wanted = {.fd = channel->fd, .events = POLLIN};
	return poll(&wanted, 1, limit_ms) == 1;
}

/* Returns the next event without acknowledging it. */
static inline struct rdma_cm_event *take(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = NULL;
	CHECK(has_event_within(channel, LIMIT_MS));
	CHECK(rdma_get_cm_event(channel, &event) == 0 && event);
	return event;
}

/* The content of an event. */
struct taken_event {
	enum rdma_cm_event_type kind;
	int status;
	struct rdma_cm_id *id;
	char said[256];
	int said_bytes;
};

static inline struct taken_event any_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = take(channel);
	struct taken_event taken = {.kind = event->event, .status = event->status, .id = event->id};
	const void *said = event->param.conn.private_data;
	if (said) {
		taken.said_bytes = event->param.conn.private_data_len;
		memcpy(taken.said, said, taken.said_bytes);
	}
	CHECK(rdma_ack_cm_event(event) == 0);
	return taken;
}

/* Returns the next event, which must be of the given kind. */
static inline struct taken_event event_of(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct taken_event taken = any_event(channel);
	if (taken.kind != kind) {
		fprintf(stderr, "%s (status %d) instead of %s\n", rdma_event_str(taken.kind), taken.status,
			rdma_event_str(kind));
		exit(1);
	}
	return taken;
}

static inline struct rdma_conn_param saying(const void *said, uint8_t bytes)
{
	return (struct rdma_conn_param){
		.private_data = said,
		.private_data_len = bytes,
		.responder_resources = 4,
		.initiator_depth = 4,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
}

static inline void make_pair_of(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = id->qp_type,
	};
	CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

/* Returns an id whose address and route are resolved. */
static inline struct rdma_cm_id *resolved(struct rdma_event_channel *channel, enum rdma_port_space space,
					  struct sockaddr_in to)
{
	struct rdma_cm_id *id = make_id(channel, space);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	event_of(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	event_of(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	return id;
}

/* Returns a resolved id whose queue pair has requested a connection. */
static inline struct rdma_cm_id *asking(struct rdma_event_channel *channel, struct sockaddr_in to)
{
	struct rdma_cm_id *id = resolved(channel, RDMA_PS_TCP, to);
	make_pair_of(id);
	struct rdma_conn_param param = saying("hello", 5);
	CHECK(rdma_connect(id, &param) == 0);
	return id;
}

static inline struct rdma_cm_id *listening(struct rdma_event_channel *channel, struct sockaddr_in where,
					   int backlog)
{
	struct rdma_cm_id *id = make_id(channel, RDMA_PS_TCP);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&where) == 0);
	CHECK(rdma_listen(id, backlog) == 0);
	return id;
}

/* Accepts a request. */
static inline void accept_with_pair(struct rdma_cm_id *id)
{
	struct rdma_conn_param param = saying("welcome", 7);
	make_pair_of(id);
	CHECK(rdma_accept(id, &param) == 0);
}

static inline void end_id(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

static inline int descriptors(void)
{
	int count = 0;
	DIR *folder = opendir("/proc/self/fd");
	CHECK(folder);
	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

/* Prints the open descriptors, to help find those that were not closed. */
static inline void show_descriptors(void)
{
	char path[64], what[256];
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, what, sizeof(what));
		if (length > 0)
			fprintf(stderr, "%d: %.*s\n", fd, (int)length, what);
	}
}

/* Returns the resident memory of the process, in KiB. */
static inline long resident_kib(void)
{
	long pages = 0, resident = 0;
	malloc_trim(0);
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%ld %ld", &pages, &resident) == 2);
	fclose(file);
	return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

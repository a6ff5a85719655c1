/* Results of the connection manager: for wrong calls, for peers that reject or die, and for ids
 * that the program destroys at any time. Usage: bad_manager NAME, or bad_manager list. After each
 * case the process must have as many descriptors as before the case. */
#define _GNU_SOURCE
#include <pthread.h>

#include "manager.h"

static struct rdma_event_channel *here, *there;
static struct sockaddr_in any_port;

static struct sockaddr_in port_of(struct rdma_cm_id *id)
{
	return at("127.0.0.1", ntohs(rdma_get_src_port(id)));
}

static int fails_with(int result, int number)
{
	if (result == -1 && errno == number)
		return 1;
	fprintf(stderr, "returned %d, errno %d (%s)\n", result, errno, strerror(errno));
	return 0;
}

/* Returns a port on which no program listens. */
static struct sockaddr_in free_port(void)
{
	struct rdma_cm_id *id = make_id(there, RDMA_PS_TCP);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any_port) == 0);
	struct sockaddr_in found = port_of(id);
	end_id(id);
	return found;
}

static enum ibv_qp_state state_of(struct rdma_cm_id *id)
{
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(id->qp, &attributes, IBV_QP_STATE, &init) == 0);
	return attributes.qp_state;
}

/* Two connected ids. */
struct ends {
	struct rdma_cm_id *asks, *asked;
};

static struct ends connected_at(struct rdma_cm_id *listener)
{
	struct ends both = {.asks = asking(here, port_of(listener))};
	both.asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accept_with_pair(both.asked);
	event_of(here, RDMA_CM_EVENT_ESTABLISHED);
	event_of(there, RDMA_CM_EVENT_ESTABLISHED);
	return both;
}

static void end_both(struct ends both)
{
	CHECK(rdma_disconnect(both.asks) == 0);
	event_of(here, RDMA_CM_EVENT_DISCONNECTED);
	event_of(there, RDMA_CM_EVENT_DISCONNECTED);
	end_id(both.asks);
	end_id(both.asked);
}

static void no_listener(void)
{
	struct rdma_cm_id *id = asking(here, free_port());
	struct taken_event taken = event_of(here, RDMA_CM_EVENT_REJECTED);
	CHECK(taken.status == 8 && taken.id == id);
	CHECK(state_of(id) == IBV_QPS_ERR);
	struct rdma_conn_param param = saying("", 0);
	CHECK(fails_with(rdma_connect(id, &param), EINVAL));
	CHECK(fails_with(rdma_disconnect(id), EINVAL));
	end_id(id);
}

static void refused_with_a_reason(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *id = asking(here, port_of(listener));
	struct taken_event asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(memcmp(asked.said, "hello\0", 6) == 0 && asked.said_bytes == 56);
	CHECK(rdma_reject(asked.id, "not you", 7) == 0);
	struct taken_event taken = event_of(here, RDMA_CM_EVENT_REJECTED);
	CHECK(taken.status == 28);
	CHECK(memcmp(taken.said, "not you\0", 8) == 0 && taken.said_bytes == 148);
	CHECK(state_of(id) == IBV_QPS_ERR);
	CHECK(fails_with(rdma_reject(asked.id, NULL, 0), EINVAL));
	end_id(asked.id);
	end_id(id);
	end_id(listener);
}

static void too_much_is_said(void)
{
	static const char much[256];
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *id = resolved(here, RDMA_PS_TCP, port_of(listener));
	make_pair_of(id);
	struct rdma_conn_param param = saying(much, 57);
	CHECK(fails_with(rdma_connect(id, &param), EINVAL));
	param = saying(NULL, 5);
	CHECK(fails_with(rdma_connect(id, &param), EINVAL));
	param = saying(much, 56);
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	make_pair_of(asked);
	param = saying(much, 197);
	CHECK(fails_with(rdma_accept(asked, &param), EINVAL));
	CHECK(fails_with(rdma_reject(asked, much, 149), EINVAL));
	param = saying(much, 196);
	CHECK(rdma_accept(asked, &param) == 0);
	event_of(here, RDMA_CM_EVENT_ESTABLISHED);
	event_of(there, RDMA_CM_EVENT_ESTABLISHED);
	end_both((struct ends){id, asked});
	end_id(listener);
	struct rdma_cm_id *datagrams = resolved(here, RDMA_PS_UDP, free_port());
	param = saying(much, 181);
	CHECK(fails_with(rdma_connect(datagrams, &param), EINVAL));
	param = saying(much, 180);
	CHECK(rdma_connect(datagrams, &param) == 0);
	struct taken_event taken = event_of(here, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(taken.status != 0);
	end_id(datagrams);
}

/* Another process owns the port until it exits. */
static void port_in_use(void)
{
	int ready[2], done[2];
	struct sockaddr_in taken;
	CHECK(pipe(ready) == 0 && pipe(done) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct rdma_cm_id *id = listening(make_channel(), any_port, 1);
		taken = port_of(id);
		CHECK(write(ready[1], &taken, sizeof(taken)) == sizeof(taken));
		close(done[1]);
		char end;
		_exit(read(done[0], &end, 1) != 0);
	}
	close(done[0]);
	CHECK(read(ready[0], &taken, sizeof(taken)) == sizeof(taken));
	struct rdma_cm_id *id = make_id(here, RDMA_PS_TCP);
	CHECK(fails_with(rdma_bind_addr(id, (struct sockaddr *)&taken), EADDRINUSE));
	close(done[1]);
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&taken) == 0);
	struct rdma_cm_id *other = make_id(here, RDMA_PS_TCP);
	CHECK(fails_with(rdma_bind_addr(other, (struct sockaddr *)&taken), EADDRINUSE));
	end_id(other);
	end_id(id);
	close(ready[0]);
	close(ready[1]);
}

static void port_zero(void)
{
	struct rdma_cm_id *one = listening(there, any_port, 1);
	struct rdma_cm_id *other = listening(there, at("0.0.0.0", 0), 1);
	CHECK(rdma_get_src_port(one) != 0 && rdma_get_src_port(other) != 0);
	CHECK(rdma_get_src_port(one) != rdma_get_src_port(other));
	struct rdma_cm_id *bare = make_id(there, RDMA_PS_TCP);
	CHECK(rdma_listen(bare, 1) == 0);
	CHECK(rdma_get_src_port(bare) != 0);
	end_both(connected_at(other));
	end_id(bare);
	end_id(one);
	end_id(other);
}

static void destroyed_before_it_asks(void)
{
	end_id(make_id(here, RDMA_PS_TCP));
	struct rdma_cm_id *bound = make_id(here, RDMA_PS_TCP);
	CHECK(rdma_bind_addr(bound, (struct sockaddr *)&any_port) == 0);
	end_id(bound);
	end_id(listening(there, any_port, 1));
	struct sockaddr_in to = free_port();
	struct rdma_cm_id *id = make_id(here, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	/* Destroying the id discards its event. */
	end_id(id);
	CHECK(!has_event_within(here, 0));
	end_id(resolved(here, RDMA_PS_TCP, to));
	id = resolved(here, RDMA_PS_TCP, to);
	make_pair_of(id);
	end_id(id);
	/* Destroys the id between two attempts to connect. */
	end_id(asking(here, to));
	CHECK(!has_event_within(here, 0));
}

static void destroyed_while_its_request_waits(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *asks = asking(here, port_of(listener));
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	end_id(asks);
	make_pair_of(asked);
	struct rdma_conn_param param = saying("", 0);
	/* The peer has gone without reporting this. Accepting its request must fail within a bounded
	   time. */
	if (rdma_accept(asked, &param) == 0) {
		enum rdma_cm_event_type kind = any_event(there).kind;
		CHECK(kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE);
		CHECK(state_of(asked) == IBV_QPS_ERR);
	}
	end_id(asked);
	end_id(listener);
}

static void destroyed_when_it_was_asked(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *asks = asking(here, port_of(listener));
	end_id(event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id);
	CHECK(event_of(here, RDMA_CM_EVENT_REJECTED).status == 28);
	end_id(asks);
	/* Destroys the request together with the listener, before the program has read the request's
	   event. */
	asks = asking(here, port_of(listener));
	CHECK(has_event_within(there, LIMIT_MS));
	end_id(listener);
	CHECK(event_of(here, RDMA_CM_EVENT_REJECTED).status != 0);
	CHECK(!has_event_within(there, 0));
	end_id(asks);
}

static void destroyed_when_it_has_accepted(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *asks = asking(here, port_of(listener));
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accept_with_pair(asked);
	end_id(asked);
	/* The acceptance may have arrived at the peer before the id was destroyed. If it has, the peer reports
	   ESTABLISHED and then DISCONNECTED; otherwise it reports another event. */
	enum rdma_cm_event_type kind = any_event(here).kind;
	if (kind == RDMA_CM_EVENT_ESTABLISHED)
		event_of(here, RDMA_CM_EVENT_DISCONNECTED);
	else
		CHECK(kind == RDMA_CM_EVENT_REJECTED || kind == RDMA_CM_EVENT_UNREACHABLE);
	end_id(asks);
	end_id(listener);
}

static void destroyed_when_connected_or_disconnected(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct ends both = connected_at(listener);
	end_id(both.asks);
	event_of(there, RDMA_CM_EVENT_DISCONNECTED);
	end_id(both.asked);
	both = connected_at(listener);
	end_id(both.asked);
	event_of(here, RDMA_CM_EVENT_DISCONNECTED);
	event_of(here, RDMA_CM_EVENT_TIMEWAIT_EXIT);
	CHECK(rdma_disconnect(both.asks) == 0);
	end_id(both.asks);
	/* Destroys the id first. Its queue pair must stay usable. */
	both = connected_at(listener);
	struct rdma_cm_id left = *both.asks;
	CHECK(rdma_destroy_id(both.asks) == 0);
	event_of(there, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(ibv_destroy_qp(left.qp) == 0);
	CHECK(ibv_destroy_cq(left.send_cq) == 0 && ibv_destroy_cq(left.recv_cq) == 0);
	CHECK(ibv_destroy_comp_channel(left.send_cq_channel) == 0);
	CHECK(ibv_destroy_comp_channel(left.recv_cq_channel) == 0);
	end_id(both.asked);
	end_id(listener);
}

static void *destroy(void *id)
{
	CHECK(rdma_destroy_id(id) == 0);
	return NULL;
}

static void events_without_acknowledgement(void)
{
	struct sockaddr_in to = free_port();
	struct rdma_cm_id *id = make_id(here, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	struct rdma_cm_event *event = take(here);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, destroy, id) == 0);
	/* rdma_destroy_id blocks until the program acknowledges the event. */
	struct timespec soon;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec = (soon.tv_nsec + 50000000) % 1000000000;
	soon.tv_sec += soon.tv_nsec < 50000000;
	CHECK(pthread_timedjoin_np(thread, NULL, &soon) == ETIMEDOUT);
	CHECK(rdma_ack_cm_event(event) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void more_ask_than_may_wait(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 1);
	struct rdma_cm_id *one = asking(here, port_of(listener));
	CHECK(has_event_within(there, LIMIT_MS));
	struct rdma_cm_id *other = asking(here, port_of(listener));
	struct taken_event taken = event_of(here, RDMA_CM_EVENT_REJECTED);
	CHECK(taken.id == other && taken.status == 3);
	end_id(other);
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	accept_with_pair(asked);
	event_of(here, RDMA_CM_EVENT_ESTABLISHED);
	event_of(there, RDMA_CM_EVENT_ESTABLISHED);
	end_both((struct ends){one, asked});
	end_id(listener);
}

static void no_way_leads_there(void)
{
	struct sockaddr_in to = at("0.0.0.0", 7);
	struct rdma_cm_id *id = make_id(here, RDMA_PS_TCP);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	CHECK(event_of(here, RDMA_CM_EVENT_ADDR_ERROR).status < 0);
	/* The id may be resolved again after an error. */
	to = free_port();
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 2000) == 0);
	event_of(here, RDMA_CM_EVENT_ADDR_RESOLVED);
	end_id(id);
	struct sockaddr_in nowhere = at("192.0.2.99", 0);
	id = make_id(here, RDMA_PS_TCP);
	CHECK(fails_with(rdma_bind_addr(id, (struct sockaddr *)&nowhere), ENODEV));
	CHECK(fails_with(rdma_resolve_addr(id, (struct sockaddr *)&nowhere, (struct sockaddr *)&to, 2000), ENODEV));
	struct sockaddr unknown = {.sa_family = 77};
	CHECK(fails_with(rdma_bind_addr(id, &unknown), EINVAL));
	CHECK(fails_with(rdma_resolve_route(id, 2000), EINVAL));
	end_id(id);
}

static void a_listener_closes_while_its_connections_live(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct sockaddr_in to = port_of(listener);
	struct ends both = connected_at(listener);
	end_id(listener);
	struct rdma_cm_id *late = asking(here, to);
	CHECK(event_of(here, RDMA_CM_EVENT_REJECTED).status == 8);
	end_id(late);
	CHECK(state_of(both.asks) == IBV_QPS_RTS && state_of(both.asked) == IBV_QPS_RTS);
	end_both(both);
}

/* A process that requests a connection is killed before the answer. */
static void the_initiator_is_killed(void)
{
	int port[2];
	struct sockaddr_in to;
	CHECK(pipe(port) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(read(port[0], &to, sizeof(to)) == sizeof(to));
		asking(make_channel(), to);
		for (;;)
			pause();
	}
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	to = port_of(listener);
	CHECK(write(port[1], &to, sizeof(to)) == sizeof(to));
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	make_pair_of(asked);
	struct rdma_conn_param param = saying("", 0);
	if (rdma_accept(asked, &param) == 0) {
		CHECK(event_of(there, RDMA_CM_EVENT_UNREACHABLE).status < 0);
		CHECK(state_of(asked) == IBV_QPS_ERR);
	}
	end_id(asked);
	end_id(listener);
	close(port[0]);
	close(port[1]);
}

/* A process that receives a request is killed before it answers. */
static void the_responder_is_killed(void)
{
	int port[2];
	struct sockaddr_in to;
	CHECK(pipe(port) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct rdma_event_channel *channel = make_channel();
		to = port_of(listening(channel, any_port, 4));
		CHECK(write(port[1], &to, sizeof(to)) == sizeof(to));
		event_of(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(kill(getpid(), SIGKILL) == 0);
	}
	CHECK(read(port[0], &to, sizeof(to)) == sizeof(to));
	struct rdma_cm_id *asks = asking(here, to);
	struct taken_event taken = any_event(here);
	CHECK(taken.kind == RDMA_CM_EVENT_UNREACHABLE ||
	      (taken.kind == RDMA_CM_EVENT_REJECTED && taken.status == 8));
	CHECK(state_of(asks) == IBV_QPS_ERR);
	end_id(asks);
	CHECK(waitpid(child, NULL, 0) == child);
	close(port[0]);
	close(port[1]);
}

/* The peer never accepts. The case takes a minute. */
static void no_answer(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 4);
	struct rdma_cm_id *asks = asking(here, port_of(listener));
	struct rdma_cm_id *asked = event_of(there, RDMA_CM_EVENT_CONNECT_REQUEST).id;
	CHECK(event_of(here, RDMA_CM_EVENT_UNREACHABLE).status == -ETIMEDOUT);
	CHECK(state_of(asks) == IBV_QPS_ERR);
	end_id(asks);
	end_id(asked);
	end_id(listener);
}

static const struct {
	const char *name;
	void (*run)(void);
	/* True if the case first starts a second process. The library must not be in use before the
	   fork. */
	int forks;
} CASES[] = {
	{"no_listener", no_listener, 0},
	{"refused_with_a_reason", refused_with_a_reason, 0},
	{"too_much_is_said", too_much_is_said, 0},
	{"port_in_use", port_in_use, 1},
	{"port_zero", port_zero, 0},
	{"destroyed_before_it_asks", destroyed_before_it_asks, 0},
	{"destroyed_while_its_request_waits", destroyed_while_its_request_waits, 0},
	{"destroyed_when_it_was_asked", destroyed_when_it_was_asked, 0},
	{"destroyed_when_it_has_accepted", destroyed_when_it_has_accepted, 0},
	{"destroyed_when_connected_or_disconnected", destroyed_when_connected_or_disconnected, 0},
	{"events_without_acknowledgement", events_without_acknowledgement, 0},
	{"more_ask_than_may_wait", more_ask_than_may_wait, 0},
	{"no_way_leads_there", no_way_leads_there, 0},
	{"a_listener_closes_while_its_connections_live", a_listener_closes_while_its_connections_live, 0},
	{"the_initiator_is_killed", the_initiator_is_killed, 1},
	{"the_responder_is_killed", the_responder_is_killed, 1},
	{"no_answer", no_answer, 0},
};

/* Makes the library open the descriptors that it opens once per process, so that they do not
   count. */
static void warm_up(void)
{
	struct rdma_cm_id *listener = listening(there, any_port, 1);
	end_both(connected_at(listener));
	end_id(listener);
}

int main(int count, char **words)
{
	CHECK(count == 2);
	any_port = at("127.0.0.1", 0);
	for (unsigned i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
		if (strcmp(words[1], "list") == 0) {
			printf("%s\n", CASES[i].name);
			continue;
		}
		if (strcmp(words[1], CASES[i].name) != 0)
			continue;
		/* A child process creates its own device. */
		here = make_channel();
		there = make_channel();
		if (!CASES[i].forks)
			warm_up();
		int before = descriptors();
		CASES[i].run();
		/* One more descriptor is allowed: a link may connect a socket to the peer that sends the most
		   frames. */
		if (!CASES[i].forks && descriptors() > before + 1) {
			fprintf(stderr, "%d descriptors, and %d at first\n", descriptors(), before);
			show_descriptors();
			return 1;
		}
	}
	return 0;
}

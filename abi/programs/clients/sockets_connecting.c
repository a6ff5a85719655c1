/* Programs that connect in different ways, the addresses of both ends, and many connections at once. */
#include "sockets.h"

static void show_family(const char *what, const struct sockaddr_storage *address, socklen_t length)
{
	char host[INET6_ADDRSTRLEN] = "";
	if (address->ss_family == AF_INET)
		inet_ntop(AF_INET, &((const struct sockaddr_in *)address)->sin_addr, host, sizeof host);
	else
		inet_ntop(AF_INET6, &((const struct sockaddr_in6 *)address)->sin6_addr, host, sizeof host);
	printf("%s: %d bytes, family %d, %s\n", what, (int)length, address->ss_family, host);
}

static uint16_t port_of(const struct sockaddr_storage *address)
{
	return ntohs(address->ss_family == AF_INET ? ((const struct sockaddr_in *)address)->sin_port
											  : ((const struct sockaddr_in6 *)address)->sin6_port);
}

static void show_names(int s, uint16_t server_port, bool is_server)
{
	struct sockaddr_storage own, peer;
	socklen_t own_length = sizeof own, peer_length = sizeof peer;
	CHECK(getsockname(s, (struct sockaddr *)&own, &own_length) == 0);
	CHECK(getpeername(s, (struct sockaddr *)&peer, &peer_length) == 0);
	show_family("own", &own, own_length);
	show_family("peer", &peer, peer_length);
	CHECK(port_of(is_server ? &own : &peer) == server_port);
	/* Each side compares the peer's port with the port that the peer reports about itself. */
	uint16_t mine = port_of(&own), theirs = port_of(&peer), reported;
	write_all(s, &mine, sizeof mine);
	read_all(s, &reported, sizeof reported);
	CHECK(reported == theirs);
	int value = 0;
	socklen_t length = sizeof value;
	CHECK(getsockopt(s, SOL_SOCKET, SO_TYPE, &value, &length) == 0);
	show("type", value == SOCK_STREAM);
	CHECK(getsockopt(s, SOL_SOCKET, SO_DOMAIN, &value, &length) == 0);
	show("domain", value == own.ss_family);
	CHECK(getsockopt(s, SOL_SOCKET, SO_PROTOCOL, &value, &length) == 0);
	show("protocol", value == IPPROTO_TCP);
	CHECK(getsockopt(s, SOL_SOCKET, SO_ERROR, &value, &length) == 0);
	show("error", value);
	CHECK(getsockopt(s, SOL_SOCKET, SO_ACCEPTCONN, &value, &length) == 0);
	show("listens", value);
	int on = 1;
	CHECK(setsockopt(s, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &(int){77}, sizeof(int)) == 0);
	CHECK(getsockopt(s, IPPROTO_TCP, TCP_KEEPIDLE, &value, &length) == 0);
	show("idle", value);
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	CHECK(getsockopt(s, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0);
	show("no delay", value != 0);
	CHECK(getsockopt(s, IPPROTO_TCP, TCP_MAXSEG, &value, &length) == 0);
	show("segments", value > 0);
	char congestion[32];
	length = sizeof congestion;
	show("congestion", getsockopt(s, IPPROTO_TCP, TCP_CONGESTION, congestion, &length));
}

static void names(struct context *context)
{
	int s = accepted(context);
	show_names(s, context->port, true);
	send_byte(s, 'x');
	expect(s, 'x');
	close(s);
}

static void names_client(struct context *context)
{
	int s = connected(context);
	show_names(s, context->port, false);
	send_byte(s, 'x');
	expect(s, 'x');
	expect_end(s);
}

/* Listens on an IPv6 address. If `is_mapped`, clients can also connect to an IPv4 address. The first
   connection carries the number of the port to the client. */
static void other_family(struct context *context, bool is_mapped)
{
	int s = accepted_cold(context);
	int listener = socket(AF_INET6, SOCK_STREAM, 0);
	CHECK(listener >= 0);
	CHECK(setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &(int){!is_mapped}, sizeof(int)) == 0);
	struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = is_mapped ? in6addr_any : in6addr_loopback};
	CHECK(bind(listener, (struct sockaddr *)&any, sizeof any) == 0);
	CHECK(listen(listener, 5) == 0);
	socklen_t length = sizeof any;
	CHECK(getsockname(listener, (struct sockaddr *)&any, &length) == 0);
	uint16_t port = ntohs(any.sin6_port);
	write_all(s, &port, sizeof port);
	struct context other = *context;
	other.listener = listener;
	int t = accepted(&other);
	show_names(t, port, true);
	send_byte(t, 'x');
	expect(t, 'x');
	close(t);
	close(s);
}

static void other_family_client(struct context *context, bool is_mapped)
{
	int s = connected_cold(context);
	uint16_t port;
	read_all(s, &port, sizeof port);
	struct context other = *context;
	if (is_mapped) {
		((struct sockaddr_in *)&other.address)->sin_port = htons(port);
	} else {
		struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback, .sin6_port = htons(port)};
		memcpy(&other.address, &six, sizeof six);
		other.length = sizeof six;
	}
	int t = connected(&other);
	show_names(t, port, false);
	send_byte(t, 'x');
	expect(t, 'x');
	expect_end(t);
	expect_end(s);
}

static void mapped(struct context *context)
{
	other_family(context, true);
}

static void mapped_client(struct context *context)
{
	other_family_client(context, true);
}

static void six(struct context *context)
{
	other_family(context, false);
}

static void six_client(struct context *context)
{
	other_family_client(context, false);
}

/* Non-blocking connects, with each way to wait for the result. Words sent afterwards must
   arrive. */
static void answers(struct context *context)
{
	for (int i = 0; i < 6; i++) {
		int s = accepted(context);
		expect(s, 'a');
		send_byte(s, 'b');
		expect_end(s);
		close(s);
	}
}

static void not_blocking(struct context *context)
{
	for (int i = 0; i < 6; i++) {
		int s = socket(context->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
		CHECK(s >= 0);
		int e = epoll_create1(0);
		struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
		if (i % 3 == 2)
			CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
		int result = connect(s, (struct sockaddr *)&context->address, context->length);
		CHECK(result == 0 || errno == EINPROGRESS);
		struct pollfd wait = {.fd = s, .events = POLLOUT};
		fd_set writable;
		FD_ZERO(&writable);
		FD_SET(s, &writable);
		struct timeval limit = {.tv_sec = 60};
		if (i % 3 == 0)
			CHECK(poll(&wait, 1, 60000) == 1);
		if (i % 3 == 1)
			CHECK(select(s + 1, NULL, &writable, NULL, &limit) == 1);
		if (i % 3 == 2) {
			do
				CHECK(epoll_wait(e, &event, 1, 60000) == 1);
			while (!(event.events & EPOLLOUT) || (event.events & EPOLLHUP));
		}
		int error = -1;
		socklen_t length = sizeof error;
		CHECK(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
		show("error", error);
		if (i >= 3)
			show("again", connect(s, (struct sockaddr *)&context->address, context->length));
		set_blocking(s, true);
		warm_up(context, s, false);
		send_byte(s, 'a');
		expect(s, 'b');
		CHECK(shutdown(s, SHUT_WR) == 0);
		expect_end(s);
		close(e);
		close(s);
	}
}

/* No program listens, so each way to connect must report the error. */
static void refused(struct context *context)
{
	int s = accepted_cold(context);
	close(context->listener);
	send_byte(s, 'g');
	expect_end(s);
}

static void refused_client(struct context *context)
{
	int first = connected_cold(context);
	expect(first, 'g');
	int s = socket(context->address.ss_family, SOCK_STREAM, 0);
	show("connect", connect(s, (struct sockaddr *)&context->address, context->length));
	char byte;
	show("read", read(s, &byte, 1));
	close(s);
	s = socket(context->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	int result = connect(s, (struct sockaddr *)&context->address, context->length);
	CHECK(result < 0);
	int error = errno;
	if (error == EINPROGRESS) {
		struct pollfd wait = {.fd = s, .events = POLLOUT};
		CHECK(poll(&wait, 1, 60000) == 1);
		socklen_t length = sizeof error;
		CHECK(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
	}
	printf("%s\n", strerrorname_np(error));
	close(s);
	s = socket(context->address.ss_family, SOCK_STREAM, 0);
	show("read before", read(s, &byte, 1));
	show("write before", send(s, "x", 1, MSG_NOSIGNAL));
	close(s);
	close(first);
}

/* Opens many connections at the same time. Each connection gets an answer, and then a second answer
   in another order. */
static int many_count(struct context *context)
{
	(void)context;
	return 1000;
}

static void allow_many(void)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void many(struct context *context)
{
	allow_many();
	int count = many_count(context), ended = 0;
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = context->listener};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, context->listener, &event) == 0);
	while (ended < count) {
		struct epoll_event events[64];
		int ready = epoll_wait(e, events, 64, 60000);
		CHECK(ready > 0);
		for (int i = 0; i < ready; i++) {
			int s = events[i].data.fd;
			if (s == context->listener) {
				s = accept4(s, NULL, NULL, SOCK_NONBLOCK);
				CHECK(s >= 0);
				event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP, .data.fd = s};
				CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
				continue;
			}
			char bytes[100];
			ssize_t got = read(s, bytes, sizeof bytes);
			if (got < 0) {
				CHECK(errno == EAGAIN);
			} else if (got == 0) {
				ended++;
				close(s);
			} else {
				write_all(s, bytes, (size_t)got);
			}
		}
	}
	show("ended", ended);
}

static void many_client(struct context *context)
{
	allow_many();
	int count = many_count(context);
	static int s[1000];
	for (int i = 0; i < count; i++)
		s[i] = connected_cold(context);
	for (int turn = 0; turn < 5; turn++) {
		for (int i = 0; i < count; i++) {
			int at = turn % 2 ? i * 7 % count : i;
			write_all(s[at], &at, sizeof at);
		}
		for (int i = 0; i < count; i++) {
			int got = -1;
			read_all(s[i], &got, sizeof got);
			CHECK(got == i);
		}
	}
	for (int i = 0; i < count; i++)
		CHECK(close(s[i]) == 0);
	show("connections", count);
}

/* Opens short connections one after the other, as fast as possible. Each carries a few words. */
static void short_ones(struct context *context)
{
	for (int i = 0; i < 300; i++) {
		int s = accepted_cold(context);
		char question[4] = "";
		read_all(s, question, 3);
		write_all(s, "answer", 6);
		close(s);
	}
}

static void short_ones_client(struct context *context)
{
	for (int i = 0; i < 300; i++) {
		int s = connected_cold(context);
		write_all(s, "ask", 3);
		char answer[7] = "";
		read_all(s, answer, 6);
		CHECK(strcmp(answer, "answer") == 0);
		char byte;
		CHECK(read(s, &byte, 1) == 0);
		close(s);
	}
}

/* Sends a byte of out-of-band data. The edge cannot carry it, but the connection must deliver
   it. */
static void urgent(struct context *context)
{
	int s = accepted(context);
	expect(s, 'a');
	CHECK(send(s, "!", 1, MSG_OOB) == 1);
	send_byte(s, 'b');
	expect(s, 'c');
	close(s);
}

static void urgent_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'a');
	struct pollfd wait = {.fd = s, .events = POLLPRI};
	CHECK(poll(&wait, 1, 60000) == 1);
	char byte = '?';
	show("out of band", recv(s, &byte, 1, MSG_OOB));
	printf("%c\n", byte);
	expect(s, 'b');
	send_byte(s, 'c');
	expect_end(s);
}

SUBJECTS({"names", names, names_client}, {"mapped", mapped, mapped_client}, {"six", six, six_client},
		 {"not_blocking", answers, not_blocking}, {"refused", refused, refused_client}, {"many", many, many_client},
		 {"short_ones", short_ones, short_ones_client}, {"urgent", urgent, urgent_client});

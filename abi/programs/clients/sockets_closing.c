/* Programs that end a connection, in different ways. */
#include "sockets.h"

enum { MUCH = 3 << 20 };

static void send_much(int s)
{
	static uint8_t bytes[MUCH];
	fill(bytes, MUCH, 0);
	write_all(s, bytes, MUCH);
}

static void take_much(int s)
{
	static uint8_t bytes[MUCH];
	read_all(s, bytes, MUCH);
	verify(bytes, MUCH, 0);
}

/* The server shuts down writing first and keeps reading. Then the client shuts down writing. */
static void half_closed(struct context *context)
{
	int s = accepted(context);
	send_much(s);
	show("shutdown", shutdown(s, SHUT_WR));
	show("again", shutdown(s, SHUT_WR));
	take_much(s);
	expect_end(s);
	expect_end(s);
	show("write", send(s, "x", 1, MSG_NOSIGNAL));
	close(s);
}

static void half_closed_client(struct context *context)
{
	int s = connected(context);
	take_much(s);
	expect_end(s);
	/* The opposite direction must still be open. */
	send_much(s);
	show("shutdown", shutdown(s, SHUT_WR));
	struct pollfd wait = {.fd = s, .events = POLLIN | POLLOUT};
	for (int i = 0; i < 5000 && !(wait.revents & POLLHUP); i++) {
		CHECK(poll(&wait, 1, 60000) == 1);
		usleep(1000);
	}
	printf("%s\n", wait.revents & POLLHUP ? "hup" : "no hup");
	close(s);
}

/* Closes right after writing. All bytes must arrive. */
static void closed_at_once(struct context *context)
{
	for (int i = 0; i < 5; i++) {
		int s = accepted(context);
		send_much(s);
		show("close", close(s));
	}
}

static void closed_at_once_client(struct context *context)
{
	for (int i = 0; i < 5; i++) {
		int s = connected(context);
		usleep(5000);
		take_much(s);
		expect_end(s);
		close(s);
	}
}

/* The process exits without closing the connection. */
static void exits(struct context *context)
{
	int s = accepted(context);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		send_much(s);
		_exit(0);
	}
	close(s);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	show("status", status);
	s = accepted(context);
	send_much(s);
	printf("done\n");
	fflush(stdout);
	exit(0);
}

static void exits_client(struct context *context)
{
	for (int i = 0; i < 2; i++) {
		int s = connected(context);
		take_much(s);
		expect_end(s);
		close(s);
	}
}

static void will_reset(int s)
{
	struct linger linger = {.l_onoff = 1, .l_linger = 0};
	CHECK(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
}

/* Resets three connections while the client reads, polls or writes. The client must get each reset
   once. */
static void reset(struct context *context)
{
	for (int i = 0; i < 3; i++) {
		int s = accepted(context);
		will_reset(s);
		expect(s, 'r');
		usleep(20000);
		close(s);
	}
}

static void reset_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'r');
	char byte;
	show("read", read(s, &byte, 1));
	show("then", read(s, &byte, 1));
	show("write", send(s, "x", 1, MSG_NOSIGNAL));
	close(s);
	s = connected(context);
	send_byte(s, 'r');
	struct pollfd wait = {.fd = s, .events = POLLIN};
	CHECK(poll(&wait, 1, 60000) == 1);
	printf("%s%s\n", wait.revents & POLLHUP ? "hup " : "", wait.revents & POLLERR ? "err" : "");
	int error = 0;
	socklen_t length = sizeof error;
	CHECK(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &length) == 0);
	printf("%s\n", strerrorname_np(error));
	close(s);
	s = connected(context);
	send_byte(s, 'r');
	ssize_t wrote = 0;
	for (int i = 0; i < 5000 && wrote >= 0; i++) {
		wrote = send(s, "x", 1, MSG_NOSIGNAL);
		usleep(1000);
	}
	show("write", wrote);
	close(s);
}

/* Closing a connection while data is unread resets it. */
static void unread(struct context *context)
{
	int s = accepted(context);
	char byte;
	/* Waits until the byte has arrived. */
	CHECK(recv(s, &byte, 1, MSG_PEEK) == 1);
	close(s);
}

static void unread_client(struct context *context)
{
	int s = connected(context);
	send_byte(s, 'u');
	char byte;
	show("read", read(s, &byte, 1));
	close(s);
}

/* With SO_LINGER, close blocks until all bytes are sent. */
static void lingers(struct context *context)
{
	int s = accepted(context);
	struct linger linger = {.l_onoff = 1, .l_linger = 20};
	CHECK(setsockopt(s, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
	send_much(s);
	show("close", close(s));
}

static void lingers_client(struct context *context)
{
	int s = connected(context);
	usleep(100000);
	take_much(s);
	expect_end(s);
	close(s);
}

/* After shutdown(SHUT_RD), reads return 0 although the peer keeps writing. */
static void shut_reading(struct context *context)
{
	int s = accepted(context);
	show("shutdown", shutdown(s, SHUT_RD));
	expect_end(s);
	send_byte(s, 'x');
	CHECK(shutdown(s, SHUT_RDWR) == 0);
	expect_end(s);
	close(s);
}

static void shut_reading_client(struct context *context)
{
	int s = connected(context);
	expect(s, 'x');
	expect_end(s);
	close(s);
}

/* Both sides shut down at the same time. */
static void crossed(struct context *context)
{
	int s = accepted(context);
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

static void crossed_client(struct context *context)
{
	int s = connected(context);
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

/* Every order of shutdown, close and read on both sides, many times. No byte may be lost. */
enum { ORDERS = 6, TURNS = 8 };

static void end_in_order(int s, int order, bool is_server)
{
	static uint8_t bytes[100000];
	size_t count = order % 2 ? sizeof bytes : 1;
	bool is_first = is_server == (order < ORDERS / 2);
	fill(bytes, count, 0);
	if (is_first) {
		write_all(s, bytes, count);
		if (order % 3 == 0)
			CHECK(shutdown(s, SHUT_WR) == 0);
		if (order % 3 == 2)
			CHECK(close(s) == 0);
		else
			read_all(s, bytes, 1);
		if (order % 3 == 1)
			CHECK(shutdown(s, SHUT_RDWR) == 0);
	} else {
		read_all(s, bytes, count);
		verify(bytes, count, 0);
		char byte;
		if (order % 3 == 0)
			CHECK(read(s, &byte, 1) == 0);
		if (order % 3 != 2)
			write_all(s, "x", 1);
		CHECK(read(s, &byte, 1) == 0);
	}
	if (!(is_first && order % 3 == 2))
		CHECK(close(s) == 0);
}

static void orders(struct context *context)
{
	for (int i = 0; i < ORDERS * TURNS; i++)
		end_in_order(i % 5 ? accepted_cold(context) : accepted(context), i % ORDERS, true);
}

static void orders_client(struct context *context)
{
	for (int i = 0; i < ORDERS * TURNS; i++)
		end_in_order(i % 5 ? connected_cold(context) : connected(context), i % ORDERS, false);
}

SUBJECTS({"half_closed", half_closed, half_closed_client}, {"closed_at_once", closed_at_once, closed_at_once_client},
		 {"exits", exits, exits_client}, {"reset", reset, reset_client}, {"unread", unread, unread_client},
		 {"lingers", lingers, lingers_client}, {"shut_reading", shut_reading, shut_reading_client},
		 {"crossed", crossed, crossed_client}, {"orders", orders, orders_client});

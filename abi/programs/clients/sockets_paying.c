/* Connections that last for many requests, and connections that end after a few requests. */
#include "sockets.h"

enum { REQUEST = 100, RESPONSE = 1000, CHUNK = 16 << 10, CHUNKS = 1200, TURNS = 1200, SLOW = 15 };

static void ask(int s, uint64_t turn)
{
	uint8_t request[REQUEST], response[RESPONSE];
	fill(request, sizeof request, turn * REQUEST);
	write_all(s, request, sizeof request);
	read_all(s, response, sizeof response);
	verify(response, sizeof response, turn * RESPONSE);
}

static void answer(int s, uint64_t turn)
{
	uint8_t request[REQUEST], response[RESPONSE];
	read_all(s, request, sizeof request);
	verify(request, sizeof request, turn * REQUEST);
	fill(response, sizeof response, turn * RESPONSE);
	write_all(s, response, sizeof response);
}

/* Sends `turns` requests: the first `at_once` without a pause, the others a millisecond apart. */
static void asks(int s, uint64_t turns, uint64_t at_once)
{
	for (uint64_t turn = 0; turn < turns; turn++) {
		ask(s, turn);
		if (turn >= at_once)
			usleep(1000);
	}
	close(s);
}

static void answers(int s, uint64_t turns)
{
	for (uint64_t turn = 0; turn < turns; turn++)
		answer(s, turn);
	expect_end(s);
	close(s);
}

static void server_short(struct context *context)
{
	answers(accepted_cold(context), 3);
}

static void client_short(struct context *context)
{
	asks(connected_cold(context), 3, 3);
}

static void server_turns(struct context *context)
{
	answers(accepted_cold(context), TURNS);
}

static void client_turns(struct context *context)
{
	asks(connected_cold(context), TURNS, 60);
}

static void server_again(struct context *context)
{
	server_turns(context);
	server_turns(context);
}

static void client_again(struct context *context)
{
	client_turns(context);
	client_turns(context);
}

/* Serves two connections that last. Then serves a connection that begins slowly and ends after a few
   requests. */
static void server_known(struct context *context)
{
	server_turns(context);
	server_turns(context);
	answers(accepted_cold(context), 5);
}

static void asks_slowly(int s, uint64_t turns)
{
	for (uint64_t turn = 0; turn < turns; turn++) {
		ask(s, turn);
		usleep(100000);
	}
}

static void client_known(struct context *context)
{
	client_turns(context);
	client_turns(context);
	int s = connected_cold(context);
	asks_slowly(s, 5);
	close(s);
}

/* Each connection is served by a new child process, whose library has no information about earlier
   connections. The last connection begins slowly and lasts. */
static void server_forked(struct context *context)
{
	for (int i = 0; i < 3; i++) {
		int s = accept(context->listener, NULL, NULL);
		CHECK(s >= 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			uint64_t slow = i == 2 ? SLOW : 0;
			for (uint64_t turn = 0; turn < slow; turn++)
				answer(s, turn);
			answers(s, i == 2 ? 400 : TURNS);
			exit(0);
		}
		close(s);
		int status;
		CHECK(wait(&status) == child && status == 0);
	}
}

static void client_forked(struct context *context)
{
	client_turns(context);
	client_turns(context);
	int s = connected_cold(context);
	asks_slowly(s, SLOW);
	asks(s, 400, 0);
}

/* Sends chunks of a stream, a millisecond apart. */
static void stream(int s)
{
	static uint8_t chunk[CHUNK];
	for (uint64_t i = 0; i < CHUNKS; i++) {
		fill(chunk, sizeof chunk, i * CHUNK);
		write_all(s, chunk, sizeof chunk);
		usleep(1000);
	}
}

static void take_stream(int s)
{
	static uint8_t chunk[CHUNK];
	for (uint64_t i = 0; i < CHUNKS; i++) {
		read_all(s, chunk, sizeof chunk);
		verify(chunk, sizeof chunk, i * CHUNK);
	}
}

static void server_stream(struct context *context)
{
	int s = accepted_cold(context);
	take_stream(s);
	expect_end(s);
}

static void client_stream(struct context *context)
{
	int s = connected_cold(context);
	stream(s);
	close(s);
}

static void *take_in_thread(void *s)
{
	take_stream(*(int *)s);
	return NULL;
}

/* One thread reads all the time, while another thread writes. */
static void client_threads(struct context *context)
{
	int s = connected_cold(context);
	pthread_t reader;
	CHECK(pthread_create(&reader, NULL, take_in_thread, &s) == 0);
	stream(s);
	CHECK(pthread_join(reader, NULL) == 0);
	close(s);
}

/* Echoes parts of any size, each as soon as poll reports one. */
static void server_echo(struct context *context)
{
	static uint8_t part[3 * CHUNK];
	int s = accepted_cold(context);
	struct pollfd wait = {.fd = s, .events = POLLIN};
	for (;;) {
		CHECK(poll(&wait, 1, 60000) == 1);
		ssize_t got = read(s, part, sizeof part);
		CHECK(got >= 0);
		if (got == 0)
			break;
		write_all(s, part, (size_t)got);
	}
}

/* One direction of the connection ends early, and the other direction lasts. */
static void server_half(struct context *context)
{
	int s = accepted_cold(context);
	for (uint64_t turn = 0; turn < 3; turn++)
		answer(s, turn);
	expect_end(s);
	stream(s);
	close(s);
}

static void client_half(struct context *context)
{
	int s = connected_cold(context);
	for (uint64_t turn = 0; turn < 3; turn++)
		ask(s, turn);
	CHECK(shutdown(s, SHUT_WR) == 0);
	take_stream(s);
	expect_end(s);
}

SUBJECTS({"short", server_short, client_short}, {"turns", server_turns, client_turns},
		 {"again", server_again, client_again}, {"known", server_known, client_known}, {"forked", server_forked, client_forked}, {"stream", server_stream, client_stream},
		 {"threads", server_echo, client_threads}, {"half", server_half, client_half});

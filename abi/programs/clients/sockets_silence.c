/* Sends a stream in which each byte depends on its position. The stream stops for some time and then
   continues. On SIGTERM the writing side ends the stream. */
#include "sockets.h"

static volatile sig_atomic_t is_ending;

static void on_term(int signal)
{
	(void)signal;
	is_ending = 1;
}

/* Installs a handler for SIGTERM that also interrupts blocking calls. */
static void end_at_term(void)
{
	struct sigaction action = {.sa_handler = on_term};
	CHECK(sigaction(SIGTERM, &action, NULL) == 0);
	signal(SIGPIPE, SIG_IGN);
	alarm(120);
}

/* Writes until a signal ends the stream, then checks that the other side has received every byte. */
static void writes(int s)
{
	static uint8_t part[50000];
	uint64_t at = 0, count;
	while (!is_ending) {
		size_t length = at % 49999 + 1;
		fill(part, length, at);
		ssize_t wrote = write(s, part, length);
		CHECK(wrote > 0 || (wrote < 0 && errno == EINTR));
		if (wrote > 0)
			at += (uint64_t)wrote;
		/* Leaves processor time for other programs. */
		usleep(1000);
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	read_all(s, &count, sizeof count);
	if (count != at)
		printf("%lu of %lu bytes have come\n", (unsigned long)count, (unsigned long)at);
	CHECK(count == at);
	expect_end(s);
}

/* Sets a time limit for a silent peer, and writes until the limit expires. */
static void writes_for_a_time(int s)
{
	static uint8_t part[50000];
	unsigned limit_ms = 3000;
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms) == 0);
	signal(SIGPIPE, SIG_IGN);
	for (uint64_t at = 0;;) {
		fill(part, sizeof part, at);
		ssize_t wrote = write(s, part, sizeof part);
		if (wrote < 0)
			break;
		at += (uint64_t)wrote;
		usleep(1000);
	}
	printf("writing ends: %s\n", strerrorname_np(errno));
}

/* Reads to the end and sends the number of bytes back. */
static void reads(int s)
{
	static uint8_t part[65536];
	bool is_announced = false;
	uint64_t at = 0;
	alarm(120);
	for (;;) {
		ssize_t got = read(s, part, sizeof part);
		CHECK(got >= 0);
		if (got == 0)
			break;
		verify(part, (size_t)got, at);
		at += (uint64_t)got;
		if (at > 4 << 20 && !is_announced) {
			is_announced = true;
			printf("flows\n");
			fflush(stdout);
		}
	}
	write_all(s, &at, sizeof at);
	close(s);
}

static void server_writes(struct context *context)
{
	end_at_term();
	writes(accepted(context));
}

static void client_writes(struct context *context)
{
	end_at_term();
	writes(connected(context));
}

static void client_writes_for_a_time(struct context *context)
{
	writes_for_a_time(connected(context));
}

static void server_reads(struct context *context)
{
	reads(accepted(context));
}

static void client_reads(struct context *context)
{
	reads(connected(context));
}

/* Waits for a signal, then sends one request. */
static void server_asks(struct context *context)
{
	end_at_term();
	int s = accepted(context);
	while (!is_ending)
		usleep(10000);
	send_byte(s, '?');
	expect(s, '!');
}

static void client_answers(struct context *context)
{
	int s = connected(context);
	alarm(120);
	printf("flows\n");
	fflush(stdout);
	expect(s, '?');
	send_byte(s, '!');
	expect_end(s);
}

SUBJECTS({"down", server_writes, client_reads}, {"up", server_reads, client_writes}, {"idle", server_asks, client_answers},
	 {"limited", server_reads, client_writes_for_a_time});

/* Sends a stream in which each byte depends on its position. During the stream, one side or the link
   fails. */
#include "sockets.h"

/* Writes until an error. */
static void writes(int s)
{
	static uint8_t part[50000];
	signal(SIGPIPE, SIG_IGN);
	for (uint64_t at = 0;;) {
		size_t count = at % 49999 + 1;
		fill(part, count, at);
		ssize_t wrote = write(s, part, count);
		if (wrote < 0) {
			printf("writing ends: %s\n", strerrorname_np(errno));
			return;
		}
		at += (uint64_t)wrote;
	}
}

static volatile sig_atomic_t is_asked;

static void asked(int number)
{
	(void)number;
	is_asked = 1;
}

/* Reads until an error or the end, and checks that no byte is missing or repeated. Prints a line
   after enough bytes, and another line after SIGUSR1 and enough further bytes. */
static void reads(int s)
{
	static uint8_t part[65536];
	const char *what = "flows";
	signal(SIGUSR1, asked);
	for (uint64_t at = 0, from = 0;;) {
		ssize_t got = read(s, part, sizeof part);
		if (got <= 0) {
			printf("reading ends: %s\n", got < 0 ? strerrorname_np(errno) : "end");
			return;
		}
		verify(part, (size_t)got, at);
		at += (uint64_t)got;
		if (is_asked) {
			is_asked = 0;
			from = at;
			what = "flows again";
		}
		if (what && at - from > 4 << 20) {
			printf("%s\n", what);
			fflush(stdout);
			what = NULL;
		}
	}
}

/* Polls for data that never arrives. */
static void waits(int s)
{
	struct pollfd wait = {.fd = s, .events = POLLIN};
	printf("flows\n");
	fflush(stdout);
	CHECK(poll(&wait, 1, 60000) == 1);
	char byte;
	ssize_t got = read(s, &byte, 1);
	printf("waiting ends: %s\n", got < 0 ? strerrorname_np(errno) : "end");
}

static void server_writes(struct context *context)
{
	writes(accepted(context));
}

static void client_writes(struct context *context)
{
	writes(connected(context));
}

static void server_reads(struct context *context)
{
	reads(accepted(context));
}

static void client_reads(struct context *context)
{
	reads(connected(context));
}

static void server_waits(struct context *context)
{
	waits(accepted(context));
}

static void client_waits(struct context *context)
{
	waits(connected(context));
}

SUBJECTS({"down", server_writes, client_reads}, {"up", server_reads, client_writes}, {"idle", server_waits, client_waits});

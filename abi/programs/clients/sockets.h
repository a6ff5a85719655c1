/* Shared parts of the programs that observe a connection.
 *
 * Usage: PROGRAM SUBJECT server|client ADDRESS PORT MILLISECONDS
 * SUBJECT is the test case. Before it begins, both sides exchange messages for MILLISECONDS. The output must depend on
 * the connection only, never on times or on the number of parts in which data arrives. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The line of the last check that has begun, and its file. */
static const char *volatile check_file;
static volatile int check_line;

#define CHECK(condition)                                                                                               \
	do {                                                                                                               \
		check_file = __FILE__;                                                                                         \
		check_line = __LINE__;                                                                                         \
		if (!(condition)) {                                                                                            \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));                                 \
			fflush(stdout);                                                                                            \
			_exit(1);                                                                                                  \
		}                                                                                                              \
	} while (0)

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

struct context {
	int listener; /* The server's listening socket. */
	struct sockaddr_storage address;
	socklen_t length;
	const char *host;
	uint16_t port;
	int warm_ms;
};

struct subject {
	const char *name;
	void (*server)(struct context *);
	void (*client)(struct context *);
};

extern const struct subject subjects[];
extern const size_t subject_count;

static inline int64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static inline void write_all(int s, const void *bytes, size_t count)
{
	for (size_t done = 0; done < count;) {
		ssize_t part = write(s, (const char *)bytes + done, count - done);
		CHECK(part > 0);
		done += (size_t)part;
	}
}

static inline void read_all(int s, void *bytes, size_t count)
{
	for (size_t done = 0; done < count;) {
		ssize_t part = read(s, (char *)bytes + done, count - done);
		if (part == 0)
			errno = EPIPE;
		CHECK(part > 0);
		done += (size_t)part;
	}
}

static inline void send_byte(int s, char word)
{
	write_all(s, &word, 1);
}

static inline void expect(int s, char word)
{
	char got = 0;
	read_all(s, &got, 1);
	if (got != word)
		printf("expected %c, got %02x\n", word, got);
	CHECK(got == word);
}

/* Fills memory with `count` bytes of a pseudo-random stream, starting at offset `from`. Each
   byte is a function of its offset. */
static inline void fill(void *bytes, size_t count, uint64_t from)
{
	for (size_t i = 0; i < count; i++) {
		uint64_t x = (from + i) / 4 * 0x9e3779b97f4a7c15ull;
		((uint8_t *)bytes)[i] = (uint8_t)(x >> (24 + (from + i) % 4 * 8));
	}
}

static inline void verify(const void *bytes, size_t count, uint64_t from)
{
	for (size_t i = 0; i < count; i++) {
		uint8_t right;
		fill(&right, 1, from + i);
		if (((const uint8_t *)bytes)[i] != right) {
			printf("byte %lu of the stream is wrong\n", (unsigned long)(from + i));
			fflush(stdout);
			_exit(1);
		}
	}
}

/* Prints the error of a call that returned -1; otherwise prints the result, which must not
   depend on time. */
static inline void show(const char *what, long result)
{
	if (result < 0)
		printf("%s: %s\n", what, strerrorname_np(errno));
	else
		printf("%s: %ld\n", what, result);
}

/* Both sides exchange messages, one per millisecond, for the time given on the command line. */
static inline void warm_up(struct context *context, int s, bool is_server)
{
	for (int i = 0; i < context->warm_ms; i++) {
		if (is_server) {
			expect(s, 'w');
			send_byte(s, 'W');
		} else {
			send_byte(s, 'w');
			expect(s, 'W');
			usleep(1000);
		}
	}
}

static inline int accepted_cold(struct context *context)
{
	int s = accept(context->listener, NULL, NULL);
	CHECK(s >= 0);
	return s;
}

static inline int accepted(struct context *context)
{
	int s = accepted_cold(context);
	warm_up(context, s, true);
	return s;
}

static inline int connected_cold(struct context *context)
{
	int s = socket(context->address.ss_family, SOCK_STREAM, 0);
	CHECK(s >= 0);
	CHECK(connect(s, (struct sockaddr *)&context->address, context->length) == 0);
	return s;
}

static inline int connected(struct context *context)
{
	int s = connected_cold(context);
	warm_up(context, s, false);
	return s;
}

static inline void set_blocking(int s, bool blocks)
{
	int flags = fcntl(s, F_GETFL);
	CHECK(flags >= 0);
	CHECK(fcntl(s, F_SETFL, blocks ? flags & ~O_NONBLOCK : flags | O_NONBLOCK) == 0);
}

/* Waits until the other side has closed. Fails if data arrives. */
static inline void expect_end(int s)
{
	char byte;
	show("end", read(s, &byte, 1));
}

static uint16_t port_of_context;

/* Ends a program that hangs. Prints the output so far, the place of the program, and the state of the TCP sockets with
   its port: addresses, state, and the numbers of bytes in the send and the receive queue. The program hangs in a call
   that waits, so the handler may use functions that are not safe in the handler of another signal. */
static void on_alarm(int number)
{
	printf("hangs in or after the check at %s:%d\n", check_file, check_line);
	char line[512], port[16];
	snprintf(port, sizeof port, ":%04X ", port_of_context);
	for (int version = 4; version <= 6; version += 2) {
		FILE *table = fopen(version == 4 ? "/proc/self/net/tcp" : "/proc/self/net/tcp6", "r");
		while (table != NULL && fgets(line, sizeof line, table) != NULL)
			if (strstr(line, port) != NULL)
				printf("%s", line);
		if (table != NULL)
			fclose(table);
	}
	fflush(stdout);
	signal(number, SIG_DFL);
	raise(number);
}

int main(int count, char **words)
{
	CHECK(count == 6);
	struct context context = {.host = words[3], .port = (uint16_t)atoi(words[4]), .warm_ms = atoi(words[5]), .listener = -1};
	bool is_server = strcmp(words[2], "server") == 0;
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
	CHECK(getaddrinfo(words[3], words[4], &hints, &found) == 0);
	memcpy(&context.address, found->ai_addr, found->ai_addrlen);
	context.length = found->ai_addrlen;
	freeaddrinfo(found);
	port_of_context = context.port;
	signal(SIGALRM, on_alarm);
	alarm(200);
	if (is_server) {
		context.listener = socket(context.address.ss_family, SOCK_STREAM, 0);
		CHECK(context.listener >= 0);
		int on = 1;
		CHECK(setsockopt(context.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
		CHECK(bind(context.listener, (struct sockaddr *)&context.address, context.length) == 0);
		CHECK(listen(context.listener, 1024) == 0);
	}
	for (size_t i = 0; i < subject_count; i++) {
		if (strcmp(subjects[i].name, words[1]) == 0) {
			(is_server ? subjects[i].server : subjects[i].client)(&context);
			printf("done\n");
			fflush(stdout);
			return 0;
		}
	}
	printf("no subject %s\n", words[1]);
	return 1;
}

#define SUBJECTS(...)                                                                                                  \
	const struct subject subjects[] = {__VA_ARGS__};                                                                   \
	const size_t subject_count = COUNT(subjects)

/* Threads that share a connection. */
#include "sockets.h"

enum { TOTAL = 8 << 20 };

static void *write_stream(void *argument)
{
	int s = *(int *)argument;
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	for (size_t at = 0; at < TOTAL;) {
		size_t part = at % 60013 + 1;
		part = part < TOTAL - at ? part : TOTAL - at;
		write_all(s, bytes + at, part);
		at += part;
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	return NULL;
}

static void *read_stream(void *argument)
{
	int s = *(int *)argument;
	static uint8_t part[50000];
	for (uint64_t at = 0;;) {
		ssize_t got = read(s, part, sizeof part);
		CHECK(got >= 0);
		if (got == 0) {
			show("bytes", (long)at);
			return NULL;
		}
		verify(part, (size_t)got, at);
		at += (uint64_t)got;
	}
}

/* One thread reads and one writes, on both sides. */
static void both_ways(int s)
{
	pthread_t reader, writer;
	CHECK(pthread_create(&reader, NULL, read_stream, &s) == 0);
	CHECK(pthread_create(&writer, NULL, write_stream, &s) == 0);
	CHECK(pthread_join(writer, NULL) == 0);
	CHECK(pthread_join(reader, NULL) == 0);
	close(s);
}

static void both_ways_server(struct context *context)
{
	both_ways(accepted(context));
}

static void both_ways_client(struct context *context)
{
	both_ways(connected(context));
}

static void *shut(void *argument)
{
	usleep(50000);
	CHECK(shutdown(*(int *)argument, SHUT_RDWR) == 0);
	return NULL;
}

/* If another thread shuts down the connection, a waiting thread must wake. */
static void shut_elsewhere(struct context *context)
{
	for (int i = 0; i < 3; i++) {
		int s = accepted(context);
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, shut, &s) == 0);
		struct pollfd wait = {.fd = s, .events = POLLIN};
		int e = epoll_create1(0);
		struct epoll_event event = {.events = EPOLLIN};
		if (i == 1)
			CHECK(poll(&wait, 1, 60000) == 1);
		if (i == 2) {
			CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
			CHECK(epoll_wait(e, &event, 1, 60000) == 1);
		}
		expect_end(s);
		CHECK(pthread_join(thread, NULL) == 0);
		close(e);
		close(s);
	}
}

static void shut_elsewhere_client(struct context *context)
{
	for (int i = 0; i < 3; i++) {
		int s = connected(context);
		expect_end(s);
		close(s);
	}
}

struct waiting {
	int s;
	int got;
	char byte;
};

static void *read_one(void *argument)
{
	struct waiting *waiting = argument;
	waiting->got = (int)read(waiting->s, &waiting->byte, 1);
	return NULL;
}

/* One thread closes the connection while another thread reads. POSIX permits two results of the read:
   the next bytes or an error. The read must not return the end of the stream or bytes of another
   connection. After that the descriptor must be closed. */
static void closed_elsewhere(struct context *context)
{
	struct waiting waiting = {.s = accepted(context), .got = -2};
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, read_one, &waiting) == 0);
	usleep(50000);
	int other = accepted_cold(context);
	CHECK(close(waiting.s) == 0);
	send_byte(other, 'g');
	CHECK(pthread_join(thread, NULL) == 0);
	show("is its own", waiting.got < 0 || (waiting.got == 1 && waiting.byte == 'x'));
	char byte;
	show("is closed", read(waiting.s, &byte, 1) < 0);
	close(other);
}

static void closed_elsewhere_client(struct context *context)
{
	int s = connected(context);
	int other = connected_cold(context);
	expect(other, 'g');
	/* The peer may have closed the connection already. */
	send(s, "x", 1, MSG_NOSIGNAL);
	char byte;
	show("is over", read(s, &byte, 1) <= 0);
	close(s);
	expect_end(other);
}

/* Java's way to close a connection: dup2 replaces the descriptor by another file, then a signal
   interrupts the waiting threads. */
static void on_signal(int signal)
{
	(void)signal;
}

static void closed_as_java_does(struct context *context)
{
	struct sigaction action = {.sa_handler = on_signal};
	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	CHECK(shutdown(ends[0], SHUT_RDWR) == 0);
	close(ends[1]);
	struct waiting waiting = {.s = accepted(context), .got = -2};
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, read_one, &waiting) == 0);
	usleep(50000);
	CHECK(dup2(ends[0], waiting.s) == waiting.s);
	CHECK(pthread_kill(thread, SIGUSR2) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	show("got", waiting.got);
	close(waiting.s);
}

static void closed_as_java_does_client(struct context *context)
{
	int s = connected(context);
	expect_end(s);
	close(s);
}

/* Many threads write words to one connection. No word may be split or lost. */
enum { WRITERS = 4, WORDS = 500 };

struct writer {
	int s;
	uint32_t self;
};

static void *write_words(void *argument)
{
	struct writer *writer = argument;
	for (uint32_t i = 0; i < WORDS; i++) {
		uint32_t word[2] = {writer->self, i};
		CHECK(send(writer->s, word, sizeof word, 0) == sizeof word);
	}
	return NULL;
}

static void words(struct context *context)
{
	int s = accepted(context);
	struct writer writers[WRITERS];
	pthread_t threads[WRITERS];
	for (uint32_t i = 0; i < WRITERS; i++) {
		writers[i] = (struct writer){s, i};
		CHECK(pthread_create(&threads[i], NULL, write_words, &writers[i]) == 0);
	}
	for (int i = 0; i < WRITERS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	close(s);
}

static void words_client(struct context *context)
{
	int s = connected(context);
	uint32_t next[WRITERS] = {0};
	for (int i = 0; i < WRITERS * WORDS; i++) {
		uint32_t word[2];
		read_all(s, word, sizeof word);
		CHECK(word[0] < WRITERS && word[1] == next[word[0]]);
		next[word[0]]++;
	}
	expect_end(s);
}

/* One thread accepts a connection and another thread serves it, like in memcached. */
static void *serve(void *argument)
{
	int s = *(int *)argument;
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	for (long count = 0;; count++) {
		CHECK(epoll_wait(e, &event, 1, 60000) == 1);
		char byte;
		ssize_t got = read(s, &byte, 1);
		CHECK(got >= 0);
		if (got == 0) {
			show("words", count);
			close(s);
			return NULL;
		}
		send_byte(s, byte);
	}
}

static void handed_on(struct context *context)
{
	int s = accepted(context);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, serve, &s) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static void handed_on_client(struct context *context)
{
	int s = connected(context);
	for (int i = 0; i < 300; i++) {
		send_byte(s, (char)('a' + i % 26));
		expect(s, (char)('a' + i % 26));
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
}

SUBJECTS({"both_ways", both_ways_server, both_ways_client}, {"shut_elsewhere", shut_elsewhere, shut_elsewhere_client},
		 {"closed_elsewhere", closed_elsewhere, closed_elsewhere_client},
		 {"closed_as_java_does", closed_as_java_does, closed_as_java_does_client}, {"words", words, words_client},
		 {"handed_on", handed_on, handed_on_client});

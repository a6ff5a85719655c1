/* Programs that write to a connection, in different ways. */
#include "sockets.h"

/* Reads the whole stream and prints its length. */
static void reader(struct context *context)
{
	int s = accepted(context);
	static uint8_t part[70000];
	uint64_t at = 0;
	for (;;) {
		ssize_t got = read(s, part, sizeof part);
		CHECK(got >= 0);
		if (got == 0)
			break;
		verify(part, (size_t)got, at);
		at += (uint64_t)got;
	}
	show("bytes", (long)at);
	send_byte(s, 'x');
	close(s);
}

static void finish(int s)
{
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect(s, 'x');
	expect_end(s);
	close(s);
}

/* Many small writes, as in a reply of gmond. */
static void small(struct context *context)
{
	int s = connected(context);
	uint64_t at = 0;
	for (int i = 0; i < 245; i++) {
		uint8_t part[64];
		size_t count = 10 + (size_t)(i * 7) % 34;
		fill(part, count, at);
		write_all(s, part, count);
		at += count;
	}
	finish(s);
}

/* Answers each request by small writes, with TCP_CORK set and then cleared. */
static void corked(struct context *context)
{
	int s = connected(context);
	uint64_t at = 0;
	uint8_t part[3000];
	for (int i = 0; i < 50; i++) {
		int on = 1;
		CHECK(setsockopt(s, IPPROTO_TCP, i % 2 ? TCP_CORK : TCP_NODELAY, &on, sizeof on) == 0);
		for (int k = 0; k < 5; k++) {
			size_t count = (size_t)(k * 700 + 1);
			fill(part, count, at);
			CHECK(send(s, part, count, k < 4 ? MSG_MORE : 0) == (ssize_t)count);
			at += count;
		}
		on = 0;
		CHECK(setsockopt(s, IPPROTO_TCP, i % 2 ? TCP_CORK : TCP_NODELAY, &on, sizeof on) == 0);
	}
	finish(s);
}

/* Bytes that TCP_CORK or MSG_MORE hold back must be sent after some time, although no bytes follow. */
static void held(struct context *context)
{
	int s = connected(context);
	int on = 1;
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0);
	send_byte(s, 'a');
	expect(s, 'b');
	on = 0;
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_CORK, &on, sizeof on) == 0);
	CHECK(send(s, "c", 1, MSG_MORE) == 1);
	expect(s, 'd');
	printf("nothing is held for ever\n");
	expect_end(s);
}

static void held_server(struct context *context)
{
	int s = accepted(context);
	expect(s, 'a');
	send_byte(s, 'b');
	expect(s, 'c');
	send_byte(s, 'd');
	close(s);
}

/* Gathering writes: from several buffers, with each call that can do this. */
static void gathered(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 4 << 20 };
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	for (size_t at = 0, turn = 0; at < TOTAL; turn++) {
		size_t left = TOTAL - at, first = left < 100 ? left : 100, rest = left - first < 100000 ? left - first : 100000;
		struct iovec parts[4] = {{bytes + at, first}, {NULL, 0}, {bytes + at + first, rest / 2}, {bytes + at + first + rest / 2, rest - rest / 2}};
		struct msghdr message = {.msg_iov = parts, .msg_iovlen = 4};
		ssize_t wrote;
		switch (turn % 4) {
		case 0: wrote = writev(s, parts, 4); break;
		case 1: wrote = sendmsg(s, &message, 0); break;
		case 2: wrote = sendto(s, bytes + at, first + rest, 0, NULL, 0); break;
		default: {
			/* The rarely used sendmmsg. */
			struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
										  {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = 2}}};
			int count = sendmmsg(s, messages, 2, 0);
			CHECK(count >= 1);
			wrote = (ssize_t)messages[0].msg_len + (count == 2 ? (ssize_t)messages[1].msg_len : 0);
		}
		}
		CHECK(wrote > 0);
		at += (size_t)wrote;
	}
	finish(s);
}

/* sendfile with files larger than any queue, from different offsets. */
static void files(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 5 << 20, BEFORE = 1000 };
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	FILE *file = tmpfile();
	CHECK(file && fwrite(bytes, 1, TOTAL, file) == TOTAL && fflush(file) == 0);
	int fd = fileno(file);
	/* A header, then part of the file at an explicit offset, then the rest at the file descriptor's
	   own offset. */
	CHECK(send(s, bytes, BEFORE, MSG_MORE) == BEFORE);
	off_t at = BEFORE;
	while (at < TOTAL / 2)
		CHECK(sendfile(s, fd, &at, (size_t)(TOTAL / 2 - at)) > 0);
	CHECK(lseek(fd, TOTAL / 2, SEEK_SET) == TOTAL / 2);
	long sum = 0;
	for (;;) {
		ssize_t sent = sendfile(s, fd, NULL, TOTAL);
		CHECK(sent >= 0);
		if (sent == 0)
			break;
		sum += sent;
	}
	show("rest", sum);
	show("place", (long)lseek(fd, 0, SEEK_CUR));
	finish(s);
}

/* Sends a file to a non-blocking socket, like nginx. */
static void files_at_once(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 5 << 20 };
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	FILE *file = tmpfile();
	CHECK(file && fwrite(bytes, 1, TOTAL, file) == TOTAL && fflush(file) == 0);
	set_blocking(s, false);
	off_t at = 0;
	while (at < TOTAL) {
		off_t before = at;
		ssize_t sent = sendfile(s, fileno(file), &at, (size_t)(TOTAL - at));
		if (sent < 0) {
			CHECK(errno == EAGAIN && at == before);
			CHECK(poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1, 60000) == 1);
		} else {
			CHECK(at == before + sent);
		}
	}
	set_blocking(s, true);
	finish(s);
}

/* Sends the bytes of a pipe with splice. */
static void spliced(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 1 << 20 };
	int ends[2];
	CHECK(pipe(ends) == 0);
	static uint8_t part[16384];
	for (uint64_t at = 0; at < TOTAL; at += sizeof part) {
		fill(part, sizeof part, at);
		write_all(ends[1], part, sizeof part);
		for (size_t done = 0; done < sizeof part;) {
			ssize_t moved = splice(ends[0], NULL, s, NULL, sizeof part - done, 0);
			CHECK(moved > 0);
			done += (size_t)moved;
		}
	}
	finish(s);
}

static int signals;

static void on_pipe(int signal)
{
	(void)signal;
	signals++;
}

/* Writes after the connection has ended, with each call. */
static void broken(struct context *context)
{
	struct sigaction action = {.sa_handler = on_pipe};
	CHECK(sigaction(SIGPIPE, &action, NULL) == 0);
	int s = connected(context);
	CHECK(shutdown(s, SHUT_WR) == 0);
	show("write", write(s, "x", 1));
	show("signals", signals);
	show("send without a signal", send(s, "x", 1, MSG_NOSIGNAL));
	show("signals", signals);
	show("writev", writev(s, &(struct iovec){"x", 1}, 1));
	show("signals", signals);
	expect(s, 'x');
	expect_end(s);
	close(s);
	/* In this part, the peer has closed the connection. */
	s = connected_cold(context);
	warm_up(context, s, false);
	expect(s, 'y');
	expect_end(s);
	ssize_t wrote = 0;
	for (int i = 0; i < 2000 && wrote >= 0; i++) {
		wrote = send(s, "x", 1, MSG_NOSIGNAL);
		usleep(1000);
	}
	printf("%s\n", wrote < 0 && (errno == EPIPE || errno == ECONNRESET) ? "told" : "not told");
	show("then", send(s, "x", 1, MSG_NOSIGNAL));
	show("signals", signals);
	close(s);
}

static void broken_server(struct context *context)
{
	int s = accepted(context);
	expect_end(s);
	send_byte(s, 'x');
	close(s);
	s = accepted(context);
	send_byte(s, 'y');
	close(s);
}

/* Writes that do not block, and writes that time out, while the peer does not read. */
static void limits(struct context *context)
{
	int s = connected(context);
	static uint8_t part[65536];
	uint64_t at = 0;
	ssize_t wrote;
	for (;;) {
		fill(part, sizeof part, at);
		wrote = send(s, part, sizeof part, MSG_DONTWAIT);
		if (wrote < 0)
			break;
		at += (uint64_t)wrote;
		CHECK(at < 1 << 30);
	}
	show("full", wrote);
	struct timeval limit = {.tv_usec = 50000};
	CHECK(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
	for (;;) {
		fill(part, sizeof part, at);
		wrote = write(s, part, sizeof part);
		if (wrote < 0)
			break;
		at += (uint64_t)wrote;
	}
	show("waited", wrote);
	show("writable", poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1, 0));
	int queued = 0;
	CHECK(ioctl(s, SIOCOUTQ, &queued) == 0);
	printf("%s\n", queued > 0 ? "unsent" : "nothing unsent");
	/* This connection makes the reader begin. */
	int other = connected_cold(context);
	send_byte(other, 'r');
	limit = (struct timeval){.tv_sec = 0};
	CHECK(setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) == 0);
	fill(part, sizeof part, at);
	write_all(s, part, sizeof part);
	at += sizeof part;
	CHECK(shutdown(s, SHUT_WR) == 0);
	uint64_t counted;
	read_all(s, &counted, sizeof counted);
	printf("%s\n", counted == at ? "all of it" : "another sum");
	expect_end(s);
}

static void limits_server(struct context *context)
{
	int s = accepted(context);
	int other = accepted_cold(context);
	expect(other, 'r');
	static uint8_t part[70000];
	uint64_t at = 0;
	for (;;) {
		ssize_t got = read(s, part, sizeof part);
		CHECK(got >= 0);
		if (got == 0)
			break;
		verify(part, (size_t)got, at);
		at += (uint64_t)got;
	}
	write_all(s, &at, sizeof at);
	close(s);
}

SUBJECTS({"small", reader, small}, {"corked", reader, corked}, {"held", held_server, held}, {"gathered", reader, gathered},
		 {"files", reader, files}, {"files_at_once", reader, files_at_once}, {"spliced", reader, spliced},
		 {"broken", broken_server, broken}, {"limits", limits_server, limits});

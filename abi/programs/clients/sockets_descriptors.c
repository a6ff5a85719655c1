/* Operations on descriptors: duplicating, passing, flags, stdio and closing. */
#include "sockets.h"

/* Sends words and receives the answers: the client of all test cases with a server. */
static void ask(struct context *context)
{
	int s = connected(context);
	/* Without TCP_NODELAY, Nagle's algorithm would delay the second part of each word by 40 ms. */
	int on = 1;
	CHECK(setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
	for (int i = 0; i < 200; i++) {
		uint8_t part[3000];
		size_t count = (size_t)(i * 37) % sizeof part + 1;
		fill(part, count, (uint64_t)i);
		uint32_t head = (uint32_t)count;
		write_all(s, &head, sizeof head);
		write_all(s, part, count);
		read_all(s, part, count);
		verify(part, count, (uint64_t)i);
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

/* Echoes words from descriptor `in` to descriptor `out` until the stream ends; returns their
   number. */
static long echo(int in, int out)
{
	long count = 0;
	for (;; count++) {
		uint32_t head;
		ssize_t got = recv(in, &head, sizeof head, MSG_WAITALL);
		CHECK(got == 0 || got == sizeof head);
		if (got == 0)
			return count;
		uint8_t part[3000];
		CHECK(head <= sizeof part);
		read_all(in, part, head);
		write_all(out, part, head);
	}
}

static void by_dup(struct context *context)
{
	int s = accepted(context);
	int twin = dup(s);
	CHECK(twin >= 0 && twin != s);
	close(s);
	show("answers", echo(twin, twin));
	close(twin);
}

static void by_dup2(struct context *context)
{
	int s = accepted(context);
	CHECK(dup2(s, 50) == 50);
	CHECK(dup3(s, 51, O_CLOEXEC) == 51);
	CHECK(dup2(s, s) == s);
	printf("%d %d\n", fcntl(50, F_GETFD), fcntl(51, F_GETFD));
	show("answers", echo(50, 51));
	close(50);
	close(51);
	expect_end(s);
	close(s);
}

static void by_fcntl(struct context *context)
{
	int s = accepted(context);
	int twin = fcntl(s, F_DUPFD, 70);
	int third = fcntl(s, F_DUPFD_CLOEXEC, 80);
	CHECK(twin >= 70 && third >= 80);
	printf("%d %d\n", fcntl(twin, F_GETFD), fcntl(third, F_GETFD));
	/* All descriptors share one open file description. If a flag is set through one descriptor, the
	   flag is visible through all of them. */
	set_blocking(twin, false);
	printf("%s\n", fcntl(s, F_GETFL) & O_NONBLOCK ? "shared" : "not shared");
	set_blocking(third, true);
	CHECK(close(s) == 0);
	show("answers", echo(third, twin));
	close(twin);
	close(third);
}

/* The program gives the number of a connection's descriptor to another file. The connection stays open
   under a different number. */
static void replaced(struct context *context)
{
	int s = accepted(context);
	int twin = dup(s);
	int ends[2];
	CHECK(pipe(ends) == 0);
	CHECK(dup2(ends[0], s) == s);
	write_all(ends[1], "pipe", 4);
	char word[5] = "";
	read_all(s, word, 4);
	printf("%s\n", word);
	struct stat what;
	CHECK(fstat(s, &what) == 0);
	printf("%s\n", S_ISFIFO(what.st_mode) ? "fifo" : "not a fifo");
	CHECK(fstat(twin, &what) == 0);
	printf("%s\n", S_ISSOCK(what.st_mode) ? "socket" : "not a socket");
	show("answers", echo(twin, twin));
	/* Gives the number of the connection's last descriptor to another file. */
	CHECK(dup2(ends[1], twin) == twin);
}

/* Passes descriptor `fd` through the socket `to`. */
static void pass(int to, int fd)
{
	char room[CMSG_SPACE(sizeof fd)] = "";
	struct iovec part = {.iov_base = "p", .iov_len = 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	head->cmsg_level = SOL_SOCKET;
	head->cmsg_type = SCM_RIGHTS;
	head->cmsg_len = CMSG_LEN(sizeof fd);
	memcpy(CMSG_DATA(head), &fd, sizeof fd);
	CHECK(sendmsg(to, &message, 0) == 1);
}

static int take(int from)
{
	int fd = -1;
	char byte, room[CMSG_SPACE(sizeof fd)];
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
	CHECK(recvmsg(from, &message, 0) == 1);
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	CHECK(head && head->cmsg_type == SCM_RIGHTS);
	memcpy(&fd, CMSG_DATA(head), sizeof fd);
	return fd;
}

/* Passes the connection to another process, which answers. This process closes its own descriptor. */
static void passed(struct context *context)
{
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		close(ends[0]);
		int s = take(ends[1]);
		_exit(echo(s, s) == 200 ? 0 : 1);
	}
	close(ends[1]);
	int s = accepted(context);
	pass(ends[0], s);
	close(s);
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	show("status", status);
}

/* Passes the connection to this process itself, which then has two descriptors for it. */
static void passed_to_self(struct context *context)
{
	int ends[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	int s = accepted(context);
	pass(ends[0], s);
	int twin = take(ends[1]);
	show("answers", echo(twin, s));
	close(s);
	close(twin);
}

/* Reads and writes with stdio. */
static void lines(struct context *context)
{
	int s = accepted(context);
	FILE *in = fdopen(s, "r"), *out = fdopen(dup(s), "w");
	CHECK(in && out);
	char line[200];
	long count = 0;
	while (fgets(line, sizeof line, in)) {
		fprintf(out, "%ld: %s", count, line);
		fflush(out);
		count++;
	}
	show("lines", count);
	fclose(out);
	fclose(in);
}

static void lines_client(struct context *context)
{
	int s = connected(context);
	FILE *both = fdopen(s, "r+");
	CHECK(both);
	for (int i = 0; i < 100; i++) {
		fprintf(both, "line %d\n", i * i);
		fflush(both);
		char line[200];
		CHECK(fgets(line, sizeof line, both));
		long number;
		int square;
		CHECK(sscanf(line, "%ld: line %d", &number, &square) == 2);
		CHECK(number == i && square == i * i);
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	show("end", fgetc(both));
	fclose(both);
}

/* Another thread changes O_NONBLOCK during a blocking read. The change applies only to the next
   read. */
static void *change(void *argument)
{
	int s = *(int *)argument;
	for (int i = 0; i < 400; i++) {
		set_blocking(s, i % 2);
		usleep(100);
	}
	set_blocking(s, true);
	return NULL;
}

static void changed(struct context *context)
{
	int s = accepted(context);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, change, &s) == 0);
	enum { TOTAL = 2 << 20 };
	static uint8_t bytes[TOTAL];
	size_t at = 0;
	while (at < TOTAL) {
		ssize_t got = read(s, bytes + at, TOTAL - at < 5000 ? TOTAL - at : 5000);
		CHECK(got > 0 || (got < 0 && errno == EAGAIN));
		if (got > 0)
			at += (size_t)got;
		if (got > 0 && at % 3 == 0)
			usleep(200);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	verify(bytes, TOTAL, 0);
	show("bytes", (long)at);
	expect_end(s);
	close(s);
}

static void changed_client(struct context *context)
{
	int s = connected(context);
	enum { TOTAL = 2 << 20 };
	static uint8_t bytes[TOTAL];
	fill(bytes, TOTAL, 0);
	write_all(s, bytes, TOTAL);
	close(s);
}

/* The process has no free descriptor numbers. Existing connections must keep working. */
static void exhausted(struct context *context)
{
	struct rlimit limit = {.rlim_cur = 40, .rlim_max = 40};
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	int s = accepted_cold(context);
	int taken[64], count = 0;
	while (count < 64 && (taken[count] = dup(0)) >= 0)
		count++;
	show("dup", -1);
	warm_up(context, s, true);
	show("answers", echo(s, s));
	show("socket", socket(AF_INET, SOCK_STREAM, 0));
	for (int i = 0; i < count; i++)
		close(taken[i]);
	close(s);
	s = accepted(context);
	show("answers", echo(s, s));
	close(s);
}

static void exhausted_client(struct context *context)
{
	ask(context);
	ask(context);
}

/* Like a daemon, closes all descriptors that it does not know. */
static void closes_all(struct context *context)
{
	int s = accepted(context);
	CHECK(dup2(s, 3) == 3);
	for (int fd = 4; fd < 1024; fd++)
		close(fd);
	show("answers", echo(3, 3));
	close(3);
}

static void closes_range(struct context *context)
{
	int s = accepted(context);
	CHECK(dup2(s, 3) == 3);
	CHECK(close_range(4, ~0u, 0) == 0);
	show("answers", echo(3, 3));
	close(3);
}

SUBJECTS({"dup", by_dup, ask}, {"dup2", by_dup2, ask}, {"fcntl", by_fcntl, ask}, {"replaced", replaced, ask},
		 {"passed", passed, ask}, {"passed_to_self", passed_to_self, ask}, {"lines", lines, lines_client},
		 {"changed", changed, changed_client}, {"exhausted", exhausted, exhausted_client}, {"closes_all", closes_all, ask},
		 {"closes_range", closes_range, ask});

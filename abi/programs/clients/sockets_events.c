/* Event loops, with each kind of notification. */
#include "sockets.h"

/* The client sends a word whenever the server has requested one. So some waits of the server begin
 * before a word has arrived, and some after that. */
enum { WORDS = 200 };

static void send_words(struct context *context)
{
	int s = connected(context);
	for (int i = 0; i < WORDS; i++) {
		if (i % 3 == 0)
			usleep(300);
		char word[16];
		int length = snprintf(word, sizeof word, "%08d", i);
		write_all(s, word, (size_t)length);
		expect(s, 'n');
	}
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect_end(s);
	close(s);
}

/* Reads a word from a descriptor that is ready; returns false at the end of the stream. */
static bool take_word(int s, int expected)
{
	char word[9] = "";
	ssize_t got = recv(s, word, 8, 0);
	CHECK(got >= 0);
	if (got == 0)
		return false;
	while (got < 8) {
		ssize_t more = recv(s, word + got, (size_t)(8 - got), 0);
		CHECK(more > 0);
		got += more;
	}
	CHECK(atoi(word) == expected);
	send_byte(s, 'n');
	return true;
}

static void by_poll(struct context *context)
{
	int s = accepted(context);
	int words = 0;
	for (;;) {
		struct pollfd wait = {.fd = s, .events = POLLIN};
		CHECK(poll(&wait, 1, 60000) == 1);
		CHECK(wait.revents & POLLIN);
		if (!take_word(s, words))
			break;
		words++;
		CHECK(poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1, 60000) == 1);
	}
	show("words", words);
	close(s);
}

static void by_ppoll(struct context *context)
{
	int s = accepted(context);
	int words = 0;
	for (;;) {
		struct pollfd wait[2] = {{.fd = -1, .events = POLLIN}, {.fd = s, .events = POLLIN}};
		struct timespec limit = {.tv_sec = 60};
		CHECK(ppoll(wait, 2, &limit, NULL) == 1);
		if (!take_word(s, words))
			break;
		words++;
	}
	show("words", words);
	/* Only the end of the stream is left, and it has arrived. */
	struct pollfd wait = {.fd = s, .events = POLLIN | POLLRDHUP};
	CHECK(poll(&wait, 1, 60000) == 1);
	printf("%s %s %s\n", wait.revents & POLLIN ? "in" : "", wait.revents & POLLRDHUP ? "rdhup" : "",
		   wait.revents & POLLHUP ? "hup" : "");
	close(s);
}

static void by_select(struct context *context)
{
	int s = accepted(context);
	int words = 0;
	for (;;) {
		fd_set readable, writable;
		FD_ZERO(&readable);
		FD_ZERO(&writable);
		FD_SET(s, &readable);
		struct timeval limit = {.tv_sec = 60};
		CHECK(select(s + 1, &readable, NULL, NULL, &limit) == 1);
		CHECK(FD_ISSET(s, &readable));
		if (!take_word(s, words))
			break;
		words++;
		FD_SET(s, &writable);
		CHECK(select(s + 1, NULL, &writable, NULL, &limit) == 1);
	}
	show("words", words);
	close(s);
}

static void by_pselect(struct context *context)
{
	int s = accepted(context);
	int words = 0;
	for (;;) {
		fd_set readable;
		FD_ZERO(&readable);
		FD_SET(s, &readable);
		struct timespec limit = {.tv_sec = 60};
		CHECK(pselect(s + 1, &readable, NULL, NULL, &limit, NULL) == 1);
		if (!take_word(s, words))
			break;
		words++;
	}
	show("words", words);
	close(s);
}

/* Polls before accepting a connection, and with a time limit that expires. */
static void limits(struct context *context)
{
	int s = accepted(context);
	send_byte(s, 's');
	struct pollfd wait = {.fd = s, .events = POLLIN};
	show("poll of 0", poll(&wait, 1, 0));
	int64_t before = now_ms();
	show("poll of 50", poll(&wait, 1, 50));
	printf("%s\n", now_ms() - before >= 49 ? "waited" : "did not wait");
	fd_set readable;
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	struct timeval limit = {.tv_usec = 20000};
	show("select", select(s + 1, &readable, NULL, NULL, &limit));
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	show("epoll", epoll_wait(e, &event, 1, 20));
	send_byte(s, 'g');
	show("poll that is told", poll(&wait, 1, 60000));
	show("epoll that is told", epoll_wait(e, &event, 1, 60000));
	expect(s, 'x');
	close(s);
}

static void limits_client(struct context *context)
{
	int s = connected(context);
	expect(s, 's');
	expect(s, 'g');
	send_byte(s, 'x');
	expect_end(s);
}

enum mode { LEVEL, EDGE, ONE_SHOT, EDGE_ONE_SHOT };

static void by_epoll(struct context *context, enum mode mode)
{
	int s = accepted(context);
	int e = epoll_create1(EPOLL_CLOEXEC);
	CHECK(e >= 0);
	uint32_t flags = EPOLLIN | EPOLLRDHUP;
	flags |= mode == EDGE || mode == EDGE_ONE_SHOT ? EPOLLET : 0;
	flags |= mode == ONE_SHOT || mode == EDGE_ONE_SHOT ? EPOLLONESHOT : 0;
	struct epoll_event event = {.events = flags, .data.u64 = 0x1234567890abcdefull};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	set_blocking(s, false);
	int words = 0;
	char bytes[8 * WORDS];
	size_t have = 0;
	bool ended = false;
	while (!ended) {
		CHECK(epoll_wait(e, &event, 1, 60000) == 1);
		CHECK(event.data.u64 == 0x1234567890abcdefull);
		for (;;) {
			ssize_t got = read(s, bytes + have, sizeof bytes - have);
			if (got < 0) {
				CHECK(errno == EAGAIN);
				break;
			}
			if (got == 0) {
				ended = true;
				break;
			}
			have += (size_t)got;
			while (have / 8 > (size_t)words) {
				char word[9] = "";
				memcpy(word, bytes + 8 * words, 8);
				CHECK(atoi(word) == words);
				words++;
				send_byte(s, 'n');
			}
			if (mode == LEVEL)
				break;
			if (have == sizeof bytes) {
				/* Also checks for the end: it may have arrived together with the data, and then epoll does
				   not report it separately. */
				char byte;
				ssize_t end = read(s, &byte, 1);
				CHECK(end <= 0);
				ended = end == 0;
				break;
			}
		}
		if (flags & EPOLLONESHOT) {
			/* EPOLLONESHOT reports no event until the descriptor is armed again. */
			event = (struct epoll_event){.events = flags, .data.u64 = 0x1234567890abcdefull};
			CHECK(epoll_ctl(e, EPOLL_CTL_MOD, s, &event) == 0);
		}
		if (have == sizeof bytes && mode == LEVEL && !ended) {
			char byte;
			ssize_t end = read(s, &byte, 1);
			ended = end == 0;
		}
	}
	show("words", words);
	CHECK(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL) == 0);
	show("wait after removal", epoll_wait(e, &event, 1, 0));
	close(s);
}

static void level(struct context *context)
{
	by_epoll(context, LEVEL);
}

static void edge(struct context *context)
{
	by_epoll(context, EDGE);
}

static void one_shot(struct context *context)
{
	by_epoll(context, ONE_SHOT);
}

static void edge_one_shot(struct context *context)
{
	by_epoll(context, EDGE_ONE_SHOT);
}

/* Checks what epoll reports for a connection whose peer has shut down: without data, with data, and
   after both sides have shut down. */
static void rdhup(struct context *context)
{
	int s = accepted(context);
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLOUT | EPOLLET};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	uint32_t seen = 0;
	send_byte(s, 'g');
	while (!(seen & EPOLLRDHUP)) {
		CHECK(epoll_wait(e, &event, 1, 60000) == 1);
		seen |= event.events;
	}
	printf("%s%s%s%s\n", seen & EPOLLIN ? "in " : "", seen & EPOLLOUT ? "out " : "", seen & EPOLLRDHUP ? "rdhup " : "",
		   seen & EPOLLHUP ? "hup" : "");
	expect(s, 'x');
	expect_end(s);
	/* The connection must still be writable. */
	send_byte(s, 'y');
	CHECK(shutdown(s, SHUT_WR) == 0);
	while (!(seen & EPOLLHUP)) {
		int ready = epoll_wait(e, &event, 1, 60000);
		CHECK(ready == 1);
		seen |= event.events;
	}
	printf("hup\n");
	close(s);
}

static void rdhup_client(struct context *context)
{
	int s = connected(context);
	expect(s, 'g');
	send_byte(s, 'x');
	CHECK(shutdown(s, SHUT_WR) == 0);
	expect(s, 'y');
	expect_end(s);
	close(s);
}

/* An epoll descriptor inside another epoll. */
static void nested(struct context *context)
{
	int s = accepted(context);
	int inner = epoll_create1(0), outer = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.fd = s};
	CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, s, &event) == 0);
	event = (struct epoll_event){.events = EPOLLIN, .data.fd = inner};
	CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
	int words = 0;
	for (;;) {
		if (words % 2 == 0) {
			CHECK(epoll_wait(outer, &event, 1, 60000) == 1);
			CHECK(event.data.fd == inner);
		} else {
			/* An epoll descriptor can be polled like any other. */
			CHECK(poll(&(struct pollfd){.fd = inner, .events = POLLIN}, 1, 60000) == 1);
		}
		CHECK(epoll_wait(inner, &event, 1, 0) == 1);
		CHECK(event.data.fd == s);
		if (!take_word(s, words))
			break;
		words++;
	}
	show("words", words);
	close(s);
}

/* Two descriptors of one connection in one epoll; the first is closed. */
static void duplicated(struct context *context)
{
	int s = accepted(context);
	int twin = dup(s);
	CHECK(twin >= 0);
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLIN, .data.u32 = 1};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	event = (struct epoll_event){.events = EPOLLIN, .data.u32 = 2};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, twin, &event) == 0);
	show("same again", epoll_ctl(e, EPOLL_CTL_ADD, twin, &event));
	struct epoll_event both[4];
	CHECK(poll(&(struct pollfd){.fd = s, .events = POLLIN}, 1, 60000) == 1);
	show("both", epoll_wait(e, both, 4, 60000));
	CHECK(epoll_ctl(e, EPOLL_CTL_DEL, s, NULL) == 0);
	close(s);
	int words = 0;
	for (;;) {
		CHECK(epoll_wait(e, &event, 1, 60000) == 1);
		CHECK(event.data.u32 == 2);
		if (!take_word(twin, words))
			break;
		words++;
	}
	show("words", words);
	close(twin);
}

/* Writes until there is no room, then waits for room, with each kind of notification. The reader begins to read
 * after the writer has found no room, which the writer reports on a second connection. */
static void room(struct context *context)
{
	int s = accepted(context), reports = accepted_cold(context);
	set_blocking(s, false);
	int e = epoll_create1(0);
	struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
	CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
	uint64_t sent = 0, total = 24 << 20;
	static uint8_t part[40000];
	int waits = 0;
	while (sent < total) {
		size_t count = total - sent < sizeof part ? (size_t)(total - sent) : sizeof part;
		fill(part, count, sent);
		ssize_t wrote = send(s, part, count, 0);
		if (wrote > 0) {
			sent += (uint64_t)wrote;
			continue;
		}
		CHECK(wrote < 0 && errno == EAGAIN);
		if (waits == 0)
			send_byte(reports, 'f');
		if (waits++ % 2 == 0)
			CHECK(poll(&(struct pollfd){.fd = s, .events = POLLOUT}, 1, 60000) == 1);
		else
			CHECK(epoll_wait(e, &event, 1, 60000) == 1);
	}
	printf("%s\n", waits > 0 ? "had to wait" : "never had to wait");
	set_blocking(s, true);
	expect(s, 'o');
	close(reports);
	close(s);
}

static void room_client(struct context *context)
{
	int s = connected(context), reports = connected_cold(context);
	expect(reports, 'f');
	uint64_t got = 0, total = 24 << 20;
	static uint8_t part[60000];
	while (got < total) {
		size_t want = total - got < sizeof part ? (size_t)(total - got) : sizeof part;
		ssize_t count = read(s, part, want);
		CHECK(count > 0);
		verify(part, (size_t)count, got);
		got += (uint64_t)count;
	}
	send_byte(s, 'o');
	expect_end(reports);
	expect_end(s);
}

/* Answers on new connections. The client requests one answer immediately after connecting, and another
 * answer later. If poll reports a connection as readable, a non-blocking read must return data, and
 * FIONREAD must report the amount of this data. */
enum { NEW_CONNECTIONS = 40 };

static void answers(struct context *context)
{
	for (int i = 0; i < NEW_CONNECTIONS; i++) {
		int s = accepted_cold(context);
		char byte;
		while (read(s, &byte, 1) == 1)
			send_byte(s, byte);
		close(s);
	}
}

static int wait_readable(int way, int s, int e)
{
	struct pollfd wait = {.fd = s, .events = POLLIN};
	struct epoll_event event;
	struct timespec limit = {.tv_sec = 60};
	sigset_t none;
	fd_set readable;
	FD_ZERO(&readable);
	FD_SET(s, &readable);
	sigemptyset(&none);
	switch (way) {
	case 0:
		return poll(&wait, 1, 60000);
	case 1:
		return ppoll(&wait, 1, &limit, &none);
	case 2:
		return select(s + 1, &readable, NULL, NULL, &(struct timeval){.tv_sec = 60});
	case 3:
		return pselect(s + 1, &readable, NULL, NULL, &limit, &none);
	case 4:
		return epoll_pwait(e, &event, 1, 60000, &none);
	default:
		return epoll_wait(e, &event, 1, 60000);
	}
}

static void answers_client(struct context *context)
{
	int in_vain = 0, uncounted = 0;
	for (int i = 0; i < NEW_CONNECTIONS; i++) {
		int s = connected_cold(context), way = i % 8, e = epoll_create1(0);
		struct epoll_event event = {.events = EPOLLIN | (way == 6 ? EPOLLET : way == 7 ? EPOLLONESHOT : 0)};
		CHECK(epoll_ctl(e, EPOLL_CTL_ADD, s, &event) == 0);
		int64_t end = now_ms() + 20;
		for (int turn = 0; now_ms() < end; turn++) {
			char word = (char)('a' + turn % 26), got = 0;
			send_byte(s, word);
			for (;;) {
				CHECK(wait_readable(way, s, e) == 1);
				int counted = 0;
				CHECK(ioctl(s, FIONREAD, &counted) == 0);
				uncounted += counted != 1;
				if (way == 7)
					CHECK(epoll_ctl(e, EPOLL_CTL_MOD, s, &event) == 0);
				if (recv(s, &got, 1, MSG_DONTWAIT) == 1)
					break;
				CHECK(errno == EAGAIN);
				in_vain++;
			}
			CHECK(got == word);
			/* Before the answer to a request, poll must report no event. */
			in_vain += poll(&(struct pollfd){.fd = s, .events = POLLIN}, 1, turn % 2) != 0;
		}
		close(e);
		close(s);
	}
	show("in vain", in_vain);
	show("not counted", uncounted);
}

SUBJECTS({"poll", by_poll, send_words}, {"ppoll", by_ppoll, send_words}, {"select", by_select, send_words},
		 {"pselect", by_pselect, send_words}, {"limits", limits, limits_client}, {"level", level, send_words},
		 {"edge", edge, send_words}, {"one_shot", one_shot, send_words}, {"edge_one_shot", edge_one_shot, send_words},
		 {"rdhup", rdhup, rdhup_client}, {"nested", nested, send_words}, {"duplicated", duplicated, send_words},
		 {"room", room, room_client}, {"answers", answers, answers_client});

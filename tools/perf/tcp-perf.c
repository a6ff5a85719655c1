/*
 * tcp-perf: bandwidth and latency of a TCP connection, by the definitions of iwarp-perf.
 *
 * Bandwidth: the sender writes a window of W messages of S bytes. The receiver reads all of them
 * and answers with 1 byte; then the next window follows. Both ways: both ends do that at once, each
 * over its own connection, and the sum is reported. Latency: half the round-trip time of equal
 * messages.
 *
 * Both ends poll with non-blocking calls; with --events they wait in blocking calls.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROGRAM "tcp-perf"
#define MEASURED "a TCP connection"
#define EVENTS_HELP "waits in blocking calls instead of polling with calls that return at once"
#define PORT "7472"
#define MAGIC 0x74637066u

#include "runs.h"

enum {
	CONNECT_MS = 10000,
	/* Calls between two readings of the clock. */
	CALLS_PER_LOOK = 1024,
};

/* The first bytes of each connection; big-endian, like everything sent over the network. */
struct hello {
	uint32_t magic, version, test, events;
	uint64_t size_max, window_max;
	/* Equal in both connections of a client. */
	uint64_t token;
};

struct reply {
	uint32_t magic, version, refusal, reserved;
};

enum refusal { ACCEPTED, OTHER_VERSION, NO_MEMORY };

struct link {
	/* The first connection carries the client's data and its orders, the second the server's data. */
	int files[2];
	bool is_server;
	struct terms terms;
	unsigned char *target, *source;

	/* State of the current run. */
	struct run run;
	uint64_t wrong_bytes;

	/* When the last progress was made, the time limit without progress, and the number of calls since. */
	double quiet_since, patience_s;
	uint64_t calls;
};

static const struct terms *terms_of(const struct link *link)
{
	return &link->terms;
}

static uint64_t wrong_bytes(const struct link *link)
{
	return link->wrong_bytes;
}

/* ---- Bytes ---- */

/* Returns whether calls may block: only if there is just one connection to wait for. */
static bool is_blocking(const struct link *link)
{
	return link->terms.events && link->terms.test != BOTH_WAYS;
}

static bool give_up(const struct link *link)
{
	return failed("the peer has not answered for %.0f s; is its host reachable, and does it still run?", link->patience_s);
}

/* Moves some bytes. Returns false on failure; `count` is 0 if nothing can be moved now. */
static bool move_bytes(struct link *link, int file, bool is_out, void *bytes, uint64_t length, int flags, uint64_t *count)
{
	ssize_t moved = is_out ? send(file, bytes, length, flags | MSG_NOSIGNAL) : recv(file, bytes, length, flags);
	*count = moved > 0 ? (uint64_t)moved : 0;
	if (moved > 0)
		return true;
	if (is_interrupted)
		return failed("interrupted");
	if (moved == 0 || errno == ECONNRESET || errno == EPIPE)
		return failed("the peer has closed the connection before the end of the measurement; its own message says why");
	if (errno == EINTR)
		return true;
	if (errno == EAGAIN)
		return (flags & MSG_DONTWAIT) || give_up(link);
	return failed("%s: %s", is_out ? "send" : "receive", strerror(errno));
}

static void begin_to_wait(struct link *link, double patience_s)
{
	link->quiet_since = 0;
	link->calls = 0;
	link->patience_s = patience_s;
}

/* One turn of a waiting loop: sleeps if allowed, and from time to time checks whether to keep
   waiting. */
static bool turn(struct link *link, bool has_progress, bool may_sleep, short events)
{
	if (has_progress) {
		link->quiet_since = 0;
		return true;
	}
	if (may_sleep) {
		struct pollfd files[] = { { link->files[0], events, 0 }, { link->files[1], events, 0 } };
		if (poll(files, 2, 1000) < 0 && errno != EINTR)
			return failed("wait for bytes: %s", strerror(errno));
	} else if (++link->calls % CALLS_PER_LOOK != 0) {
		return true;
	}
	double now = now_s();
	if (link->quiet_since == 0)
		link->quiet_since = now;
	if (is_interrupted)
		return failed("interrupted");
	return now - link->quiet_since <= link->patience_s || give_up(link);
}

/* Moves all of some bytes that are not part of a run. */
static bool move_all(struct link *link, int file, bool is_out, void *bytes, uint64_t length, bool may_sleep)
{
	for (uint64_t done = 0; done < length;) {
		uint64_t count;
		if (!move_bytes(link, file, is_out, (unsigned char *)bytes + done, length - done, MSG_DONTWAIT, &count))
			return false;
		done += count;
		if (done < length && !turn(link, count > 0, may_sleep, is_out ? POLLOUT : POLLIN))
			return false;
	}
	return true;
}

static bool send_order(struct link *link, const struct order *order)
{
	struct order copy = *order;
	begin_to_wait(link, PATIENCE_S);
	return move_all(link, link->files[0], true, &copy, sizeof(copy), true);
}

static bool await_order(struct link *link, double patience_s, bool may_sleep, struct order *order)
{
	begin_to_wait(link, patience_s);
	if (!move_all(link, link->files[0], false, order, sizeof(*order), may_sleep))
		return false;
	return be32toh(order->magic) == MAGIC || failed("what has come is no order; is the peer another program?");
}

/* ---- Windows ---- */

/* One direction of a run, at one of its ends. */
struct stream {
	int file;
	bool is_out;
	uint64_t window; /* number of complete windows */
	uint64_t bytes; /* bytes of the next window that were moved */
	uint64_t end; /* number of windows of the run */
};

static void fill(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++) {
		unsigned char *bytes = link->source + place(&link->run, message);
		for (uint64_t offset = 0; offset < link->run.size; offset++)
			bytes[offset] = pattern(window, message, offset);
	}
}

static void compare(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++) {
		const unsigned char *bytes = link->target + place(&link->run, message);
		for (uint64_t offset = 0; offset < link->run.size; offset++)
			link->wrong_bytes += bytes[offset] != pattern(window, message, offset);
	}
}

static void begin_run(struct link *link, const struct run *run)
{
	link->run = *run;
	link->wrong_bytes = 0;
}

/* Moves bytes of the current window. The sender makes one call per message; the receiver reads as
   many bytes as are contiguous in memory. */
static bool move_window(struct link *link, struct stream *stream, bool *has_progress)
{
	const struct run *run = &link->run;
	uint64_t message = stream->bytes / run->size, offset = stream->bytes % run->size, count;
	bool is_together = !stream->is_out && places(run) == run->window;
	uint64_t length = is_together ? run->size * run->window - stream->bytes : run->size - offset;
	unsigned char *bytes = (stream->is_out ? link->source : link->target) + place(run, message) + offset;
	if (stream->is_out && run->check && stream->bytes == 0)
		fill(link, stream->window);
	int flags = is_blocking(link) ? 0 : MSG_DONTWAIT;
	if (!move_bytes(link, stream->file, stream->is_out, bytes, length, flags, &count))
		return false;
	stream->bytes += count;
	*has_progress |= count > 0;
	return true;
}

/* Moves the answer to a window that is complete. */
static bool move_answer(struct link *link, struct stream *stream, bool *has_progress)
{
	unsigned char answer = 'A';
	uint64_t count;
	int flags = is_blocking(link) ? 0 : MSG_DONTWAIT;
	if (!move_bytes(link, stream->file, !stream->is_out, &answer, 1, flags, &count))
		return false;
	if (count > 0) {
		if (!stream->is_out && link->run.check)
			compare(link, stream->window);
		stream->bytes = 0;
		stream->window++;
		*has_progress = true;
	}
	return true;
}

static bool step(struct link *link, struct stream *stream, bool *has_progress)
{
	if (stream->window == stream->end)
		return true;
	bool is_whole = stream->bytes == link->run.size * link->run.window;
	return is_whole ? move_answer(link, stream, has_progress) : move_window(link, stream, has_progress);
}

static bool run_windows(struct link *link)
{
	bool is_both = link->terms.test == BOTH_WAYS;
	bool sends = is_both || !link->is_server, receives = is_both || link->is_server;
	uint64_t windows = link->run.iterations;
	struct stream out = { link->files[link->is_server], true, 0, 0, sends ? windows : 0 };
	struct stream in = { link->files[!link->is_server], false, 0, 0, receives ? windows : 0 };
	begin_to_wait(link, PATIENCE_S);
	while (out.window < out.end || in.window < in.end) {
		bool has_progress = false;
		if (!step(link, &out, &has_progress) || !step(link, &in, &has_progress))
			return false;
		bool is_full = out.window < out.end && out.bytes < link->run.size * link->run.window;
		if (!turn(link, has_progress, link->terms.events && is_both, is_full ? POLLIN | POLLOUT : POLLIN))
			return false;
	}
	return true;
}

static bool move_message(struct link *link, bool is_out, uint64_t round)
{
	struct stream stream = { link->files[0], is_out, round, 0, round + 1 };
	begin_to_wait(link, PATIENCE_S);
	while (stream.bytes < link->run.size) {
		bool has_progress = false;
		if (!move_window(link, &stream, &has_progress) || !turn(link, has_progress, false, 0))
			return false;
	}
	if (!is_out && link->run.check)
		compare(link, round);
	return true;
}

static bool do_run(struct link *link)
{
	if (link->terms.test != LATENCY)
		return run_windows(link);
	for (uint64_t round = 0; round < link->run.iterations; round++)
		if (!move_message(link, !link->is_server, round) || !move_message(link, link->is_server, round))
			return false;
	return true;
}

/* ---- Connections ---- */

static bool set_up(struct link *link)
{
	uint64_t region = region_bytes(link->terms.size_max, link->terms.window_max);
	void *memory;
	if (posix_memalign(&memory, 4096, 2 * region))
		return failed("allocate %" PRIu64 " bytes: out of memory; use smaller --sizes", 2 * region);
	memset(memory, 0, 2 * region);
	link->target = memory;
	link->source = link->target + region;
	return true;
}

static void tear_down(struct link *link)
{
	for (int i = 0; i < 2; i++)
		if (link->files[i] >= 0)
			close(link->files[i]);
	free(link->target);
}

static bool set_options(int file)
{
	int yes = 1;
	struct timeval limit = { .tv_sec = PATIENCE_S };
	return (setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes)) == 0 &&
		setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
		setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0) ||
	       failed("set options of a connection: %s", strerror(errno));
}

static bool find_address(const char *address, const char *port, bool is_own, struct addrinfo **found)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
	hints.ai_flags = is_own ? AI_PASSIVE : 0;
	int error = getaddrinfo(address, port, &hints, found);
	return error == 0 || failed("find %s%s port %s: %s; give an address of %s", is_own ? "--bind " : "",
				    address ? address : "any address", port, gai_strerror(error), is_own ? "this host" : "the server");
}

/* Waits until a connection is established. */
static bool finish_connect(int file, const struct addrinfo *address)
{
	fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
	bool is_made = connect(file, address->ai_addr, address->ai_addrlen) == 0;
	struct pollfd wait = { file, POLLOUT, 0 };
	if (!is_made && errno == EINPROGRESS) {
		int ready = poll(&wait, 1, CONNECT_MS);
		int error = ready == 0 ? ETIMEDOUT : errno;
		socklen_t length = sizeof(error);
		if (ready == 1)
			getsockopt(file, SOL_SOCKET, SO_ERROR, &error, &length);
		errno = error;
		is_made = ready == 1 && error == 0;
	}
	int error = errno;
	fcntl(file, F_SETFL, fcntl(file, F_GETFL) & ~O_NONBLOCK);
	errno = error;
	return is_made;
}

static bool connect_to(struct link *link, int index, const struct options *options)
{
	struct addrinfo *found, *own = NULL;
	if (!find_address(options->address, options->port, false, &found))
		return false;
	if (options->bind && !find_address(options->bind, "0", true, &own)) {
		freeaddrinfo(found);
		return false;
	}
	int file = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	link->files[index] = file;
	bool is_good = file >= 0 || failed("make a socket: %s", strerror(errno));
	if (is_good && own && bind(file, own->ai_addr, own->ai_addrlen))
		is_good = failed("use --bind %s: %s; give an address of this host", options->bind, strerror(errno));
	if (is_good && !finish_connect(file, found))
		is_good = failed("connect to %s port %s: %s; does the server run there?", options->address, options->port,
				 strerror(errno));
	freeaddrinfo(found);
	if (own)
		freeaddrinfo(own);
	return is_good && set_options(file);
}

static bool greet(struct link *link, int index, const struct options *options, uint64_t token)
{
	const struct terms *terms = &link->terms;
	struct hello hello = { htobe32(MAGIC), htobe32(VERSION), htobe32(terms->test), htobe32(terms->events),
			       htobe64(terms->size_max), htobe64(terms->window_max), token };
	struct reply reply;
	if (!connect_to(link, index, options))
		return false;
	begin_to_wait(link, PATIENCE_S);
	if (!move_all(link, link->files[index], true, &hello, sizeof(hello), true) ||
	    !move_all(link, link->files[index], false, &reply, sizeof(reply), true))
		return failed("greet %s port %s: no answer; is it " PROGRAM ", and does it serve another client?",
			      options->address, options->port);
	if (be32toh(reply.magic) != MAGIC)
		return failed("%s port %s is not " PROGRAM ": its answer has another form", options->address, options->port);
	if (be32toh(reply.refusal) == OTHER_VERSION)
		return failed("connect to %s: the server has version %u of the protocol, this client version %d; use the same "
			      PROGRAM " at both ends",
			      options->address, be32toh(reply.version), VERSION);
	return be32toh(reply.refusal) == ACCEPTED ||
	       failed("connect to %s: the server cannot have the memory; use smaller --sizes or --window", options->address);
}

static bool ask(const struct options *options)
{
	struct link link = { .files = { -1, -1 }, .terms = terms_asked(options) };
	struct timespec time;
	clock_gettime(CLOCK_REALTIME, &time);
	uint64_t token = (uint64_t)time.tv_nsec << 32 | (uint64_t)getpid();
	bool is_good = set_up(&link) && greet(&link, 0, options, token) &&
		       (options->test != BOTH_WAYS || greet(&link, 1, options, token)) &&
		       measure(&link, options, "tcp", "TCP");
	tear_down(&link);
	return is_good;
}

/* ---- The server ---- */

/* Checks the request of a client. The client may be any program, so every field is validated. */
static enum refusal read_hello(const struct hello *hello, struct terms *terms)
{
	if (be32toh(hello->magic) != MAGIC || be32toh(hello->version) != VERSION) {
		failed("a client is not " PROGRAM " or has another version than %d; use the same " PROGRAM " at both ends", VERSION);
		return OTHER_VERSION;
	}
	*terms = (struct terms){ be32toh(hello->test), SEND, be32toh(hello->events), be64toh(hello->size_max),
				 be64toh(hello->window_max) };
	if (terms->test > LATENCY || terms->window_max == 0 || terms->window_max > WINDOW_MAX || terms->size_max == 0 ||
	    terms->size_max > SIZE_MAX_BYTES) {
		failed("a client asks for test %d, windows of %" PRIu64 " and %" PRIu64 " bytes, which no client of version %d does",
		       terms->test, terms->window_max, terms->size_max, VERSION);
		return OTHER_VERSION;
	}
	return ACCEPTED;
}

/* Waits for a connection for at most `limit_ms`, or without a limit if `limit_ms` is negative. */
static bool accept_connection(struct link *link, int listener, int index, int limit_ms, struct hello *hello)
{
	struct pollfd file = { listener, POLLIN, 0 };
	int ready = poll(&file, 1, limit_ms);
	if (is_interrupted)
		return false;
	if (ready <= 0)
		return failed("wait for a client: %s", ready == 0 ? "its second connection does not come" : strerror(errno));
	link->files[index] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	if (link->files[index] < 0)
		return failed("accept a client: %s", strerror(errno));
	begin_to_wait(link, PATIENCE_S);
	return set_options(link->files[index]) && move_all(link, link->files[index], false, hello, sizeof(*hello), true);
}

static bool answer_hello(struct link *link, int index, enum refusal refusal)
{
	struct reply reply = { htobe32(MAGIC), htobe32(VERSION), htobe32(refusal), 0 };
	return move_all(link, link->files[index], true, &reply, sizeof(reply), true) && refusal == ACCEPTED;
}

static bool serve_client(struct link *link, int listener)
{
	struct hello hello, second;
	if (!accept_connection(link, listener, 0, -1, &hello))
		return false;
	enum refusal refusal = read_hello(&hello, &link->terms);
	if (refusal == ACCEPTED && !set_up(link))
		refusal = NO_MEMORY;
	if (!answer_hello(link, 0, refusal))
		return false;
	if (link->terms.test == BOTH_WAYS) {
		if (!accept_connection(link, listener, 1, CONNECT_MS, &second))
			return false;
		if (second.token != hello.token)
			return failed("another client has connected before the second connection of the first; start one at a time");
		if (!answer_hello(link, 1, ACCEPTED))
			return false;
	}
	return serve_runs(link);
}

static bool serve(const struct options *options)
{
	struct addrinfo *own;
	if (!find_address(options->bind ? options->bind : "0.0.0.0", options->port, true, &own))
		return false;
	int yes = 1;
	int listener = socket(own->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	bool is_good = listener >= 0 && setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
		       bind(listener, own->ai_addr, own->ai_addrlen) == 0 && listen(listener, 4) == 0;
	freeaddrinfo(own);
	if (!is_good)
		return failed("listen on %s port %s: %s; use another --port, or another address for --bind",
			      options->bind ? options->bind : "0.0.0.0", options->port, strerror(errno));
	printf(PROGRAM ": listening on port %s\n", options->port);
	fflush(stdout);
	do {
		struct link link = { .files = { -1, -1 }, .is_server = true };
		is_good = serve_client(&link, listener);
		tear_down(&link);
	} while (options->keep && !is_interrupted);
	close(listener);
	return is_good;
}

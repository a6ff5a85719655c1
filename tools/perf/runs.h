/*
 * The common part of client and server of each program, for every carrier: orders before and after
 * each run, samples, and how they are printed.
 */
#ifndef RUNS_H
#define RUNS_H

#include <endian.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include "command-line.h"
#include "windows.h"

#ifndef VERSION
#define VERSION 1
#endif

/* A peer that makes no progress for this many seconds is abandoned. */
enum { PATIENCE_S = 20 };

/* Receives in addition to those of a window. */
enum { RECEIVES_BESIDE = 4 };

#ifndef HAS_RANKS
static volatile sig_atomic_t is_interrupted;
#endif

/* The parameters on which client and server agree. */
struct terms {
	enum test test;
	enum operation operation;
	bool events;
	uint64_t size_max, window_max;
};

/* A control message about runs. */
enum order_kind { RUN, READY, DONE, USED, END };

struct order {
	uint32_t magic, kind;
	uint64_t size, window, iterations, check, patience_s;
	uint64_t user_us, system_us, wrong_bytes;
};

static struct order order_of(enum order_kind kind)
{
	return (struct order){ .magic = htobe32(MAGIC), .kind = htobe32(kind) };
}


/* ---- What a program provides ---- */

struct link;

static const struct terms *terms_of(const struct link *link);

/* Prepares the memory so that nothing in it looks like a window of the next run. */
static void begin_run(struct link *link, const struct run *run);

static bool do_run(struct link *link);

/* Returns the number of bytes of the last run that differ from what was sent. */
static uint64_t wrong_bytes(const struct link *link);

static bool send_order(struct link *link, const struct order *order);

static bool await_order(struct link *link, double patience_s, bool may_sleep, struct order *order);

/* ---- Time ---- */

static double now_s(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

struct usage {
	double user_s, system_s;
};

static struct usage usage(void)
{
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	return (struct usage){ (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6,
			       (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6 };
}

/* ---- The server ---- */

static bool read_run(const struct terms *terms, const struct order *order, struct run *run)
{
	*run = (struct run){ be64toh(order->size), be64toh(order->window), be64toh(order->iterations), order->check != 0 };
	if (run->size == 0 || run->size > terms->size_max || run->window == 0 || run->window > terms->window_max ||
	    (terms->test == LATENCY && run->window != 1))
		return failed("the client asks for windows of %" PRIu64 " messages of %" PRIu64
			      " bytes, more than it has announced",
			      run->window, run->size);
	return true;
}

static bool serve_runs(struct link *link)
{
	const struct terms *terms = terms_of(link);
	for (;;) {
		struct order order, answer = order_of(READY);
		struct run run;
		if (!await_order(link, PATIENCE_S, true, &order))
			return false;
		if (be32toh(order.kind) == END)
			return true;
		if (be32toh(order.kind) != RUN)
			return failed("the client sent order %u where a run or the end was due", be32toh(order.kind));
		if (!read_run(terms, &order, &run))
			return false;
		double patience_s = (double)be64toh(order.patience_s);
		begin_run(link, &run);
		struct usage before = usage();
		if (!send_order(link, &answer) || !do_run(link))
			return false;
		/* The target of reads takes no part in the run. */
		bool is_passive = terms->operation == READ && terms->test != BOTH_WAYS;
		struct usage after = usage();
		if (!await_order(link, is_passive ? patience_s : PATIENCE_S, terms->events || is_passive, &order))
			return false;
		if (is_passive)
			after = usage();
		answer = order_of(USED);
		answer.user_us = htobe64((uint64_t)((after.user_s - before.user_s) * 1e6));
		answer.system_us = htobe64((uint64_t)((after.system_s - before.system_s) * 1e6));
		answer.wrong_bytes = htobe64(wrong_bytes(link));
		if (!send_order(link, &answer))
			return false;
	}
}

/* ---- The client ---- */

static struct terms terms_asked(const struct options *options)
{
	struct terms terms = { options->test, options->operation, options->events, 0, 0 };
	for (int i = 0; i < options->size_count; i++)
		terms.size_max = options->sizes[i] > terms.size_max ? options->sizes[i] : terms.size_max;
	for (int i = 0; i < options->window_count; i++)
		terms.window_max = options->windows[i] > terms.window_max ? options->windows[i] : terms.window_max;
	return terms;
}

struct sample {
	double seconds;
	uint64_t amount; /* bytes, or rounds */
	struct usage own, peer;
};

static bool await_kind(struct link *link, enum order_kind kind, struct order *order)
{
	if (!await_order(link, PATIENCE_S, terms_of(link)->events, order))
		return false;
	return be32toh(order->kind) == kind ||
	       failed("the peer sent order %u where order %u was due", be32toh(order->kind), kind);
}

static bool take_sample(struct link *link, const struct run *run, double patience_s, struct sample *sample)
{
	const struct terms *terms = terms_of(link);
	struct order order = order_of(RUN), ready, done = order_of(DONE), used;
	order.size = htobe64(run->size);
	order.window = htobe64(run->window);
	order.iterations = htobe64(run->iterations);
	order.check = htobe64(run->check);
	order.patience_s = htobe64((uint64_t)patience_s);
	begin_run(link, run);
	if (!send_order(link, &order) || !await_kind(link, READY, &ready))
		return false;
	struct usage before = usage();
	double start = now_s();
	if (!do_run(link))
		return false;
	double end = now_s();
	struct usage after = usage();
	if (!send_order(link, &done) || !await_kind(link, USED, &used))
		return false;
	/* The peer reports when its reads have completed. */
	if (terms->test == BOTH_WAYS && terms->operation == READ)
		end = now_s();
	uint64_t wrong = wrong_bytes(link) + be64toh(used.wrong_bytes);
	if (wrong > 0)
		return failed("%" PRIu64 " bytes of messages of %" PRIu64 " bytes are not what was sent: the device or its driver "
			      "is faulty",
			      wrong, run->size);
	uint64_t ways = terms->test == BOTH_WAYS ? 2 : 1;
	sample->seconds = end - start;
	sample->amount = terms->test == LATENCY ? run->iterations : ways * run->iterations * run->window * run->size;
	sample->own = (struct usage){ after.user_s - before.user_s, after.system_s - before.system_s };
	sample->peer = (struct usage){ (double)be64toh(used.user_us) / 1e6, (double)be64toh(used.system_us) / 1e6 };
	return true;
}

/* Finds the number of windows or rounds that fill the time; this also warms up. */
static bool calibrate(struct link *link, const struct options *options, struct run *run)
{
	struct sample sample;
	if (options->iterations) {
		run->iterations = options->iterations / 10 + 1;
		if (!take_sample(link, run, 600, &sample))
			return false;
		run->iterations = options->iterations;
		return true;
	}
	run->iterations = 1;
	/* A pause of the machine makes a short run look long, so a number of iterations must be confirmed
	   once. */
	for (int found = 0; found < 2;) {
		if (!take_sample(link, run, PATIENCE_S + 10 * options->seconds, &sample))
			return false;
		double factor = options->seconds / (sample.seconds > 1e-7 ? sample.seconds : 1e-7);
		found = factor < 2 ? found + 1 : 0;
		factor = factor < 8 ? factor : factor / 4 < 64 ? factor / 4 : 64;
		double next = (double)run->iterations * factor;
		run->iterations = next < 1 ? 1 : next > 1e12 ? (uint64_t)1e12 : (uint64_t)next;
	}
	return true;
}

/* Compares all bytes of three windows. The windows are so small that each message has its own place
   in memory. */
static bool check_bytes(struct link *link, const struct run *run)
{
	struct run checked = { run->size, run->window, 3, true };
	checked.window = places(&checked);
	struct sample sample;
	return take_sample(link, &checked, 600, &sample);
}

static void print_json_head(const struct options *options, const char *device, const char *transport)
{
	printf("{\n  \"program\": \"" PROGRAM "\",\n  \"version\": %d,\n  \"test\": \"%s\",\n  \"operation\": \"%s\",\n", VERSION,
	       TESTS[options->test], OPERATIONS[options->operation]);
	printf("  \"manner\": \"%s\",\n  \"checked\": %s,\n", options->events ? "events" : "polling",
	       options->check ? "true" : "false");
	printf("  \"device\": { \"name\": \"%s\", \"transport\": \"%s\" },\n  \"points\": [",
	       device, transport);
}

static void print_json_point(const struct options *options, const struct run *run, const struct sample *samples, bool is_first)
{
	printf("%s\n    { \"size\": %" PRIu64 ", \"window\": %" PRIu64 ", \"runs\": [", is_first ? "" : ",", run->size,
	       run->window);
	for (unsigned i = 0; i < options->runs; i++) {
		const struct sample *sample = &samples[i];
		printf("%s\n      { \"seconds\": %.9f, \"%s\": %" PRIu64 ", \"cpu_user_s\": %.6f, \"cpu_system_s\": %.6f, "
		       "\"peer_cpu_user_s\": %.6f, \"peer_cpu_system_s\": %.6f }",
		       i ? "," : "", sample->seconds, options->test == LATENCY ? "rounds" : "bytes", sample->amount,
		       sample->own.user_s, sample->own.system_s, sample->peer.user_s, sample->peer.system_s);
	}
	printf("\n    ] }");
}

/* Returns MB/s, or microseconds. */
static double value_of(const struct options *options, const struct sample *sample)
{
	double halves = options->operation == READ ? 1 : 2;
	if (options->test == LATENCY)
		return sample->seconds * 1e6 / (double)sample->amount / halves;
	return (double)sample->amount / sample->seconds / 1e6;
}

static int ascending(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

/* Prints the mean without the highest and the lowest run; those two are printed beside it. */
static void print_row(const struct options *options, const struct run *run, const struct sample *samples)
{
	double values[RUNS_MAX], seconds = 0, own = 0, peer = 0, sum = 0;
	for (unsigned i = 0; i < options->runs; i++) {
		values[i] = value_of(options, &samples[i]);
		seconds += samples[i].seconds;
		own += samples[i].own.user_s + samples[i].own.system_s;
		peer += samples[i].peer.user_s + samples[i].peer.system_s;
	}
	qsort(values, options->runs, sizeof(*values), ascending);
	unsigned left_out = options->runs >= 3 ? 1 : 0;
	for (unsigned i = left_out; i < options->runs - left_out; i++)
		sum += values[i];
	printf("%10" PRIu64 " %7" PRIu64 " %12.3f %12.3f %12.3f %7.0f %7.0f\n", run->size, run->window,
	       sum / (options->runs - 2 * left_out), values[0], values[options->runs - 1], 100 * own / seconds,
	       100 * peer / seconds);
	fflush(stdout);
}

static bool measure(struct link *link, const struct options *options, const char *device, const char *transport)
{
	static struct sample samples[RUNS_MAX];
	if (options->json)
		print_json_head(options, device, transport);
	else
		printf("%s by %s over %s, %s; %u runs\n%10s %7s %12s %12s %12s %7s %7s\n", TESTS[options->test],
		       OPERATIONS[options->operation], device,
		       options->events ? "events" : "polling", options->runs, "bytes", "window",
		       options->test == LATENCY ? "mean us" : "mean MB/s", "lowest", "highest", "CPU %", "peer %");
	fflush(stdout);
	for (int i = 0; i < options->size_count; i++) {
		for (int j = 0; j < options->window_count; j++) {
			struct run run = { options->sizes[i], options->windows[j], 0, false };
			if (options->check && !check_bytes(link, &run))
				return false;
			if (!calibrate(link, options, &run))
				return false;
			for (unsigned k = 0; k < options->runs; k++)
				if (!take_sample(link, &run, PATIENCE_S + 600, &samples[k]))
					return false;
			if (options->json)
				print_json_point(options, &run, samples, i == 0 && j == 0);
			else
				print_row(options, &run, samples);
		}
	}
	if (options->json)
		printf("\n  ]\n}\n");
	struct order end = order_of(END);
	return send_order(link, &end);
}

/* ---- The process ---- */

#ifndef HAS_RANKS
static bool ask(const struct options *options);
static bool serve(const struct options *options);

static void interrupt(int number)
{
	(void)number;
	is_interrupted = 1;
}

int main(int count, char **words)
{
	struct options options = { .port = PORT, .seconds = 0.5, .runs = 10 };
	struct sigaction action = { .sa_handler = interrupt };
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!read_options(count, words, &options))
		return 2;
	return (options.address ? ask(&options) : serve(&options)) ? EXIT_SUCCESS : EXIT_FAILURE;
}
#endif

#endif

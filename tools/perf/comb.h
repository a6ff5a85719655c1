/*
 * The method of COMB: the share of CPU time that a program keeps while messages flow both ways, and
 * the bandwidth during that time.
 *
 * Polling: 2 Q messages circulate between the worker and its peer, Q in each direction. The worker
 * works for an interval, tests, and answers each message that has arrived; the peer only answers.
 *
 * Post-work-wait: both sides post Q sends and Q receives; the worker works without calling the
 * library; then both wait for all messages.
 *
 * Availability is the time of the work alone divided by the time of the same work with messages.
 * Bandwidth is the number of bytes in both directions divided by the time with messages. The work
 * alone is timed before and after each point.
 */
#ifndef COMB_H
#define COMB_H

#include <endian.h>
#include <getopt.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "option-values.h"

#ifndef VERSION
#define VERSION 1
#endif

enum {
	SIZES_MAX = 32,
	INTERVALS_MAX = 64,
	QUEUE_MAX = 256,
	RUNS_MAX = 100,
	CPU_MAX = 1023,
	PATIENCE_S = 20,
	/* Polls between two readings of the clock. */
	POLLS_PER_LOOK = 4096,
	FIT_POINTS = 6,
	FIT_RUNS = 15,
	ATTEMPTS_MAX = 3,
};

#define SIZE_LIMIT (256ull << 20)
#define INTERVAL_LIMIT 10000000000ull

/* Largest relative difference of two times of the same work. If it is larger, the machine was
   disturbed. */
#define VARIATION_MAX 0.10

enum method { POLLING, POST_WORK_WAIT };
static const char *const METHODS[] = { "polling", "post-work-wait", NULL };

struct options {
	const char *address, *bind, *port, *client_only;
	enum method method;
	int over; /* an index of the program's `OVER` */
	uint64_t sizes[SIZES_MAX], intervals[INTERVALS_MAX];
	int size_count, interval_count;
	uint64_t queue, runs;
	double seconds;
	int cpu; /* -1: the CPU to which the process is bound, if there is one */
	bool check, json, keep, silent;
};

/* A control message of the worker about a run, or the peer's answer. The first byte of a message is
   its tag. */
enum order_kind { RUN = 1, READY, STOP, STOPPED, END };
enum { ORDER_TAG = 'O', DATA_TAG = 'D' };

struct order {
	uint8_t tag, reserved[3];
	uint32_t magic, kind, method;
	uint64_t size, rounds, check, patience_s, wrong_bytes, silent;
};

#define ORDER_MAGIC 0x636f6d62u

static struct order order_of(enum order_kind kind)
{
	return (struct order){ .tag = ORDER_TAG, .magic = htobe32(ORDER_MAGIC), .kind = htobe32(kind) };
}

/* The parameters of a run. */
struct run {
	enum method method;
	uint64_t size, queue, rounds;
	bool check, silent;
	double patience_s;
	uint64_t ahead; /* messages that have arrived before the worker waits for them */
};

/* ---- What a program provides ---- */

struct link;

/* Prepares the memory for a run: receives may be posted. */
static bool begin_run(struct link *link, const struct run *run);
/* Cancels what a run has left pending. */
static bool end_run(struct link *link);
/* Posts a receive for one more message of the run. */
static bool post_receive(struct link *link);
static bool post_send(struct link *link);
/* Makes progress; returns the number of messages that have arrived, or -1. */
static int test(struct link *link);
/* Returns whether all sends have completed. */
static bool are_sent(const struct link *link);
/* Returns whether an order of the peer has arrived. */
static bool has_order(const struct link *link);
static bool send_order(struct link *link, const struct order *order);
static bool take_order(struct link *link, struct order *order);
/* Returns whether the connection still exists; called from time to time. */
static bool is_connected(struct link *link);
/* Returns the number of bytes of the run that differ from what was sent, if they are compared. */
static uint64_t wrong_bytes(const struct link *link);

static volatile sig_atomic_t is_interrupted;

static double now_s(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static inline unsigned char pattern(uint64_t offset)
{
	return offset == 0 ? DATA_TAG : (unsigned char)(offset * 31 + (offset >> 8) * 17 + (offset >> 16) * 7 + 13);
}

static inline void fill(unsigned char *bytes, uint64_t size)
{
	for (uint64_t offset = 0; offset < size; offset++)
		bytes[offset] = pattern(offset);
}

static inline uint64_t compare(const unsigned char *bytes, uint64_t size)
{
	uint64_t wrong = 0;
	for (uint64_t offset = 0; offset < size; offset++)
		wrong += bytes[offset] != pattern(offset);
	return wrong;
}

/* ---- Waiting ---- */

struct patience {
	double limit_s, quiet_since;
	uint64_t polls;
};

/* Called after a poll without a result. Returns whether to keep waiting; otherwise prints the
   reason. */
static bool has_patience(struct link *link, struct patience *patience)
{
	if (++patience->polls % POLLS_PER_LOOK != 0)
		return true;
	double now = now_s();
	if (patience->quiet_since == 0)
		patience->quiet_since = now;
	if (is_interrupted)
		return failed("interrupted");
	if (now - patience->quiet_since > patience->limit_s)
		return failed("the peer has not answered for %.0f s; is its host reachable, and does it still run?",
			      patience->limit_s);
	return is_connected(link);
}

/* Waits for an order. Messages that the peer sends after it may arrive at the same time; they are
   counted in `ahead`. */
static bool await_order(struct link *link, double limit_s, struct order *order, uint64_t *ahead)
{
	struct patience patience = { .limit_s = limit_s };
	while (!has_order(link)) {
		int arrived = test(link);
		if (arrived < 0 || (arrived == 0 && !has_patience(link, &patience)))
			return false;
		*ahead += (uint64_t)arrived;
	}
	return take_order(link, order);
}

static bool await_kind(struct link *link, enum order_kind kind, struct order *order, uint64_t *ahead)
{
	return await_order(link, PATIENCE_S, order, ahead) &&
	       (be32toh(order->kind) == kind ||
		failed("the peer sent order %u where order %u was due", be32toh(order->kind), kind));
}

/*
 * Waits until `count` messages have arrived and all sends have completed. Messages of the next
 * round may arrive already; they are counted in `ahead`.
 */
static bool await_messages(struct link *link, uint64_t count, double limit_s, uint64_t *ahead)
{
	struct patience patience = { .limit_s = limit_s };
	uint64_t arrived = *ahead;
	while (arrived < count || !are_sent(link)) {
		int now = test(link);
		if (now < 0 || (now == 0 && !has_patience(link, &patience)))
			return false;
		arrived += (uint64_t)now;
		if (now > 0)
			patience = (struct patience){ .limit_s = limit_s };
	}
	*ahead = arrived - count;
	return true;
}

/* ---- The peer ---- */

static bool answer_messages(struct link *link, const struct run *run)
{
	struct patience patience = { .limit_s = run->patience_s };
	while (!has_order(link)) {
		int arrived = test(link);
		if (arrived < 0 || (arrived == 0 && !has_patience(link, &patience)))
			return false;
		if (arrived > 0)
			patience = (struct patience){ .limit_s = run->patience_s };
		for (int i = 0; i < arrived; i++)
			if (!post_receive(link) || !post_send(link))
				return false;
	}
	return true;
}

static bool do_rounds(struct link *link, const struct run *run)
{
	uint64_t ahead = 0;
	for (uint64_t round = 0; round < run->rounds && !run->silent; round++) {
		for (uint64_t i = 0; i < run->queue; i++)
			if (!post_receive(link) || !post_send(link))
				return false;
		if (!await_messages(link, run->queue, run->patience_s, &ahead))
			return false;
	}
	return true;
}

static bool serve_run(struct link *link, const struct order *order, uint64_t queue, uint64_t size_max)
{
	struct run run = { (enum method)be32toh(order->method), be64toh(order->size), queue, be64toh(order->rounds),
			   order->check != 0, order->silent != 0, (double)be64toh(order->patience_s), 0 };
	struct order ready = order_of(READY), stop, stopped = order_of(STOPPED);
	if (run.size == 0 || run.size > size_max || run.method > POST_WORK_WAIT)
		return failed("the client asks for method %d with messages of %" PRIu64 " bytes, more than it has announced",
			      (int)run.method, run.size);
	if (!begin_run(link, &run) || !send_order(link, &ready))
		return false;
	if (!(run.method == POLLING ? answer_messages(link, &run) : do_rounds(link, &run)))
		return false;
	if (!await_order(link, run.patience_s, &stop, &run.ahead))
		return false;
	stopped.wrong_bytes = htobe64(wrong_bytes(link));
	return end_run(link) && send_order(link, &stopped);
}

static bool serve_runs(struct link *link, uint64_t queue, uint64_t size_max)
{
	for (;;) {
		struct order order;
		uint64_t ahead = 0;
		/* The limit is long because the client may run its work alone for a while. */
		if (!await_order(link, 600, &order, &ahead))
			return false;
		if (be32toh(order.kind) == END)
			return true;
		if (be32toh(order.kind) != RUN)
			return failed("the client sent order %u where a run or the end was due", be32toh(order.kind));
		if (!serve_run(link, &order, queue, size_max))
			return false;
	}
}

/* ---- The work ---- */

/* Each iteration depends on the one before, so the compiler can neither remove nor shorten the
   chain. */
__attribute__((noinline)) static void work(uint64_t iterations)
{
	uint64_t value = iterations;
	for (uint64_t i = 0; i < iterations; i++) {
		value = value * 6364136223846793005u + 1442695040888963407u;
		__asm__ volatile("" : "+r"(value));
	}
}

struct fit {
	double seconds_per_iteration, error;
	uint64_t counts[FIT_POINTS];
	double seconds[FIT_POINTS];
};

static double thread_s(void)
{
	struct timespec time;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Returns the shortest measured time, in CPU time of this thread, which other processes do not
   affect. */
static double shortest_work(uint64_t iterations)
{
	double shortest = HUGE_VAL;
	for (int i = 0; i < FIT_RUNS; i++) {
		double start = thread_s();
		work(iterations);
		shortest = fmin(shortest, thread_s() - start);
	}
	return shortest;
}

/*
 * Times iteration counts that double, and fits one time per iteration to them. The error is the
 * largest relative deviation of a time from the fit.
 */
static struct fit fit_work(void)
{
	struct fit fit = { 0 };
	uint64_t count = 1 << 12;
	while (shortest_work(count) < 1e-4 && count < INTERVAL_LIMIT)
		count *= 2;
	double above = 0, below = 0;
	for (int i = 0; i < FIT_POINTS; i++, count *= 2) {
		fit.counts[i] = count;
		fit.seconds[i] = shortest_work(count);
		/* Weights relative deviations equally: least squares of seconds / (count * time) - 1. */
		double ratio = fit.seconds[i] / (double)count;
		above += ratio * ratio;
		below += ratio;
	}
	fit.seconds_per_iteration = above / below;
	for (int i = 0; i < FIT_POINTS; i++)
		fit.error = fmax(fit.error, fabs(fit.seconds[i] / ((double)fit.counts[i] * fit.seconds_per_iteration) - 1));
	return fit;
}

static void work_for_reps(uint64_t interval, uint64_t reps)
{
	for (uint64_t i = 0; i < reps; i++)
		work(interval);
}

/* Returns the time of one interval of work alone, in seconds. */
static double time_alone(const struct fit *fit, uint64_t interval, double seconds)
{
	double expected = fmax((double)interval * fit->seconds_per_iteration, 2e-9);
	uint64_t reps = (uint64_t)ceil(seconds / expected);
	double start = now_s();
	work_for_reps(interval, reps);
	return (now_s() - start) / (double)reps;
}

/* ---- The CPU of this host ---- */

enum cpu_time { USER, NICE, SYSTEM, IDLE, IOWAIT, IRQ, SOFTIRQ, STEAL, CPU_TIMES };
static const char *const CPU_TIME[] = { "user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal" };

struct cpu {
	double seconds[CPU_TIMES];
	double interrupts_elsewhere_s; /* irq and softirq of all other CPUs of the machine */
	double own_user_s, own_system_s;
};

/* Returns the CPU to which this process is bound; -1 if it may run on several. */
static int bound_to(void)
{
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof(set), &set) || CPU_COUNT(&set) != 1)
		return -1;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set))
			return cpu;
	return -1;
}

static bool bind_to(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) == 0 ||
	       failed("--cpu %d: %s; this host has CPUs 0 to %ld", cpu, strerror(errno), sysconf(_SC_NPROCESSORS_CONF) - 1);
}

/* Reads the kernel's counters for a CPU, for the other CPUs, and for this process. */
static struct cpu cpu_now(int cpu)
{
	struct cpu now = { 0 };
	char line[512];
	int number, length;
	double tick_s = 1.0 / (double)sysconf(_SC_CLK_TCK);
	FILE *file = cpu >= 0 ? fopen("/proc/stat", "r") : NULL;
	while (file && fgets(line, sizeof(line), file)) {
		/* Skips the line of all CPUs together, which has no number. */
		if (sscanf(line, "cpu%d %n", &number, &length) != 1)
			continue;
		char *rest = line + length;
		for (int i = 0; i < CPU_TIMES; i++) {
			double seconds = (double)strtoull(rest, &rest, 10) * tick_s;
			if (number == cpu)
				now.seconds[i] = seconds;
			else if (i == IRQ || i == SOFTIRQ)
				now.interrupts_elsewhere_s += seconds;
		}
	}
	if (file)
		fclose(file);
	struct rusage used;
	getrusage(RUSAGE_SELF, &used);
	now.own_user_s = (double)used.ru_utime.tv_sec + (double)used.ru_utime.tv_usec / 1e6;
	now.own_system_s = (double)used.ru_stime.tv_sec + (double)used.ru_stime.tv_usec / 1e6;
	return now;
}

static struct cpu cpu_between(const struct cpu *before, const struct cpu *after)
{
	struct cpu used;
	for (int i = 0; i < CPU_TIMES; i++)
		used.seconds[i] = after->seconds[i] - before->seconds[i];
	used.interrupts_elsewhere_s = after->interrupts_elsewhere_s - before->interrupts_elsewhere_s;
	used.own_user_s = after->own_user_s - before->own_user_s;
	used.own_system_s = after->own_system_s - before->own_system_s;
	return used;
}

/* ---- The worker ---- */

struct sample {
	uint64_t reps, bytes, attempts;
	double seconds, alone_before_s, alone_after_s;
	double post_s, work_s, wait_s; /* of all reps */
	struct cpu cpu;
};

static double alone_s(const struct sample *sample)
{
	return (sample->alone_before_s + sample->alone_after_s) / 2 * (double)sample->reps;
}

static double availability(const struct sample *sample)
{
	return alone_s(sample) / sample->seconds;
}

static double variation(const struct sample *sample)
{
	double low = fmin(sample->alone_before_s, sample->alone_after_s);
	return fmax(sample->alone_before_s, sample->alone_after_s) / fmax(low, 1e-12) - 1;
}

static bool start_run(struct link *link, struct run *run)
{
	struct order order = order_of(RUN), ready;
	order.method = htobe32(run->method);
	order.size = htobe64(run->size);
	order.rounds = htobe64(run->rounds);
	order.check = htobe64(run->check);
	order.silent = htobe64(run->silent);
	order.patience_s = htobe64((uint64_t)run->patience_s);
	run->ahead = 0;
	return begin_run(link, run) && send_order(link, &order) && await_kind(link, READY, &ready, &run->ahead);
}

static bool stop_run(struct link *link, const struct run *run)
{
	struct order stop = order_of(STOP), stopped;
	uint64_t wrong = wrong_bytes(link);
	if (!end_run(link) || !send_order(link, &stop) || !await_kind(link, STOPPED, &stopped, &(uint64_t){ 0 }))
		return false;
	wrong += be64toh(stopped.wrong_bytes);
	return wrong == 0 || failed("%" PRIu64 " bytes of messages of %" PRIu64 " bytes are not what was sent", wrong, run->size);
}

/* Works and tests until the time has passed. */
static bool poll_messages(struct link *link, const struct run *run, uint64_t interval, double interval_s, double seconds,
			  struct sample *sample)
{
	uint64_t arrived = 0, circulating = run->silent ? 0 : 2 * run->queue, reps = 0;
	/* The time of reading the clock does not count as work: it is read once per 100 microseconds. */
	uint64_t reps_per_look = (uint64_t)fmax(1, ceil(1e-4 / fmax(interval_s, 1e-7)));
	for (uint64_t i = 0; i < circulating; i++)
		if (!post_receive(link) || !post_send(link))
			return false;
	uint64_t arrived_at_look = 0;
	double start = now_s(), now = start, quiet_since = start;
	do {
		for (uint64_t i = 0; i < reps_per_look; i++) {
			work(interval);
			int count = run->silent ? 0 : test(link);
			if (count < 0)
				return false;
			for (int message = 0; message < count; message++)
				if (!post_receive(link) || !post_send(link))
					return false;
			arrived += (uint64_t)count;
		}
		reps += reps_per_look;
		now = now_s();
		if (arrived != arrived_at_look)
			quiet_since = now;
		arrived_at_look = arrived;
		if (is_interrupted)
			return failed("interrupted");
		if (!run->silent && now - quiet_since > run->patience_s)
			return failed("the peer has not answered for %.0f s; is its host reachable, and does it still run?",
				      run->patience_s);
	} while (now - start < seconds || reps < 3);
	sample->seconds = now - start;
	sample->reps = reps;
	sample->bytes = 2 * arrived * run->size;
	return await_messages(link, circulating, run->patience_s, &(uint64_t){ 0 });
}

static bool work_between(struct link *link, const struct run *run, uint64_t interval, struct sample *sample)
{
	uint64_t ahead = run->ahead;
	double start = now_s(), at = start;
	for (uint64_t round = 0; round < run->rounds; round++) {
		for (uint64_t i = 0; i < run->queue && !run->silent; i++)
			if (!post_receive(link) || !post_send(link))
				return false;
		double posted = now_s();
		work(interval);
		double worked = now_s();
		if (!run->silent && !await_messages(link, run->queue, run->patience_s, &ahead))
			return false;
		double waited = now_s();
		sample->post_s += posted - at;
		sample->work_s += worked - posted;
		sample->wait_s += waited - worked;
		at = waited;
		if (is_interrupted)
			return failed("interrupted");
	}
	sample->seconds = at - start;
	sample->reps = run->rounds;
	sample->bytes = run->silent ? 0 : 2 * run->rounds * run->queue * run->size;
	return true;
}

/* Finds the number of rounds that fill the time, starting with a run of three rounds. */
static bool find_rounds(struct link *link, struct run *run, uint64_t interval, double seconds)
{
	struct sample sample = { 0 };
	run->rounds = 3;
	if (!start_run(link, run) || !work_between(link, run, interval, &sample) || !stop_run(link, run))
		return false;
	double rounds = seconds / fmax(sample.seconds / 3, 1e-7);
	run->rounds = (uint64_t)fmin(fmax(rounds, 3), 1e8);
	return true;
}

static bool take_sample(struct link *link, const struct options *options, const struct fit *fit, struct run *run,
			uint64_t interval, int cpu, struct sample *sample)
{
	double interval_s = (double)interval * fit->seconds_per_iteration;
	double alone_s_wanted = fmin(fmax(0.02, options->seconds / 5), 1);
	run->patience_s = PATIENCE_S + 5 * interval_s + (run->silent ? 2 * options->seconds : 0);
	if (run->method == POST_WORK_WAIT && !find_rounds(link, run, interval, options->seconds))
		return false;
	*sample = (struct sample){ 0 };
	sample->alone_before_s = time_alone(fit, interval, alone_s_wanted);
	if (!start_run(link, run))
		return false;
	struct cpu before = cpu_now(cpu);
	if (!(run->method == POLLING ? poll_messages(link, run, interval, interval_s, options->seconds, sample) :
				       work_between(link, run, interval, sample)))
		return false;
	struct cpu after = cpu_now(cpu);
	sample->cpu = cpu_between(&before, &after);
	if (!stop_run(link, run))
		return false;
	sample->alone_after_s = time_alone(fit, interval, alone_s_wanted);
	return true;
}

/* Repeats a sample if its two runs of the work alone differ, because the machine was then
   disturbed. Keeps the best attempt. */
static bool take_steady_sample(struct link *link, const struct options *options, const struct fit *fit, struct run *run,
			       uint64_t interval, int cpu, struct sample *sample)
{
	struct sample best = { 0 };
	for (uint64_t attempt = 1; attempt <= ATTEMPTS_MAX; attempt++) {
		if (!take_sample(link, options, fit, run, interval, cpu, sample))
			return false;
		if (attempt == 1 || variation(sample) < variation(&best))
			best = *sample;
		best.attempts = attempt;
		if (variation(&best) <= VARIATION_MAX)
			break;
	}
	*sample = best;
	return true;
}

/* Compares all bytes of 3 rounds. */
static bool check_bytes(struct link *link, uint64_t size, uint64_t queue)
{
	struct run run = { POST_WORK_WAIT, size, queue, 3, true, false, PATIENCE_S, 0 };
	struct sample sample = { 0 };
	return start_run(link, &run) && work_between(link, &run, 1, &sample) && stop_run(link, &run);
}

/* ---- Printing ---- */

static void print_head(const struct options *options, const struct fit *fit, const char *over, const char *device, int cpu)
{
	if (!options->json) {
		printf("%s over %s (%s), %" PRIu64 " messages each way; %.4f ns an iteration of work, fitted with an error of %.2f %%\n",
		       METHODS[options->method], over, device, options->queue, fit->seconds_per_iteration * 1e9, 100 * fit->error);
		if (cpu < 0)
			printf("CPU times are not accounted: the process may run on several CPUs; --cpu N binds it\n");
		printf("%10s %12s %12s %12s %12s %10s %10s %10s %8s %9s %6s\n", "bytes", "iterations", "interval us", "available", "MB/s",
		       "post us", "work us", "wait us", "softirq", "accounted", "varies");
		return;
	}
	printf("{\n  \"program\": \"" PROGRAM "\",\n  \"version\": %d,\n  \"test\": \"availability\",\n  \"method\": \"%s\",\n"
	       "  \"over\": \"%s\",\n  \"queue\": %" PRIu64 ",\n  \"silent\": %s,\n  \"checked\": %s,\n",
	       VERSION, METHODS[options->method], over, options->queue, options->silent ? "true" : "false",
	       options->check ? "true" : "false");
	printf("  \"device\": { \"name\": \"%s\" },\n", device);
	if (cpu >= 0)
		printf("  \"cpu\": %d,\n", cpu);
	else
		printf("  \"cpu\": null,\n");
	printf("  \"work\": { \"ns_per_iteration\": %.6f, \"fit_error\": %.6f, \"times\": [", fit->seconds_per_iteration * 1e9,
	       fit->error);
	for (int i = 0; i < FIT_POINTS; i++)
		printf("%s{ \"iterations\": %" PRIu64 ", \"seconds\": %.9f }", i ? ", " : "", fit->counts[i], fit->seconds[i]);
	printf("] },\n  \"points\": [");
}

/* Returns the share of the time in which the CPU was not idle: availability, plus all other CPU
   time of this host. */
static double accounted(const struct sample *sample)
{
	double busy = 0;
	for (int i = 0; i < CPU_TIMES; i++)
		busy += i == IDLE || i == IOWAIT ? 0 : sample->cpu.seconds[i];
	return busy / sample->seconds;
}

static void print_json_run(const struct sample *sample, int cpu)
{
	double reps = (double)sample->reps;
	printf("\n      { \"availability\": %.6f, \"seconds\": %.9f, \"bytes\": %" PRIu64 ", \"reps\": %" PRIu64
	       ", \"alone_before_us\": %.4f, \"alone_after_us\": %.4f, \"alone_variation\": %.4f, \"attempts\": %" PRIu64
	       ",\n        \"post_us\": %.4f, \"work_us\": %.4f, \"wait_us\": %.4f, \"own_user_s\": %.6f, \"own_system_s\": %.6f",
	       availability(sample), sample->seconds, sample->bytes, sample->reps, 1e6 * sample->alone_before_s,
	       1e6 * sample->alone_after_s, variation(sample), sample->attempts, 1e6 * sample->post_s / reps,
	       1e6 * sample->work_s / reps, 1e6 * sample->wait_s / reps, sample->cpu.own_user_s, sample->cpu.own_system_s);
	for (int i = 0; i < CPU_TIMES && cpu >= 0; i++)
		printf(", \"cpu_%s_s\": %.2f", CPU_TIME[i], sample->cpu.seconds[i]);
	if (cpu >= 0)
		printf(", \"interrupts_elsewhere_s\": %.2f, \"accounted\": %.4f", sample->cpu.interrupts_elsewhere_s, accounted(sample));
	printf(" }");
}

static void print_row(const struct sample *samples, const struct run *run, uint64_t interval, uint64_t runs, int cpu)
{
	for (uint64_t i = 0; i < runs; i++) {
		const struct sample *sample = &samples[i];
		double reps = (double)sample->reps;
		printf("%10" PRIu64 " %12" PRIu64 " %12.3f %12.4f %12.1f %10.2f %10.2f %10.2f", run->size, interval,
		       1e6 * alone_s(sample) / reps, availability(sample), (double)sample->bytes / sample->seconds / 1e6,
		       1e6 * sample->post_s / reps, 1e6 * sample->work_s / reps, 1e6 * sample->wait_s / reps);
		if (cpu >= 0)
			printf(" %8.3f %9.3f", sample->cpu.seconds[SOFTIRQ] / sample->seconds, accounted(sample));
		else
			printf(" %8s %9s", "-", "-");
		printf(" %5.1f%%%s\n", 100 * variation(sample), variation(sample) > VARIATION_MAX ? " (busy machine)" : "");
	}
	fflush(stdout);
}

static bool measure(struct link *link, const struct options *options, const char *over, const char *device)
{
	struct fit fit = fit_work();
	int cpu = bound_to();
	bool is_first = true;
	struct order end = order_of(END);
	print_head(options, &fit, over, device, cpu);
	fflush(stdout);
	for (int s = 0; s < options->size_count; s++) {
		if (options->check && !check_bytes(link, options->sizes[s], options->queue))
			return false;
		for (int i = 0; i < options->interval_count; i++) {
			struct sample samples[RUNS_MAX];
			struct run run = { options->method, options->sizes[s], options->queue, 0, false, options->silent, PATIENCE_S, 0 };
			uint64_t interval = options->intervals[i];
			for (uint64_t k = 0; k < options->runs; k++)
				if (!take_steady_sample(link, options, &fit, &run, interval, cpu, &samples[k]))
					return false;
			if (options->json) {
				printf("%s\n    { \"size\": %" PRIu64 ", \"iterations\": %" PRIu64 ", \"interval_us\": %.4f, \"runs\": [",
				       is_first ? "" : ",", run.size, interval, 1e6 * (double)interval * fit.seconds_per_iteration);
				for (uint64_t k = 0; k < options->runs; k++) {
					printf("%s", k ? "," : "");
					print_json_run(&samples[k], cpu);
				}
				printf("\n    ] }");
			} else {
				print_row(samples, &run, interval, options->runs, cpu);
			}
			is_first = false;
			fflush(stdout);
		}
	}
	if (options->json)
		printf("\n  ]\n}\n");
	/* The order must be sent before the connection closes. */
	return send_order(link, &end) && await_messages(link, 0, PATIENCE_S, &(uint64_t){ 0 });
}

/* ---- The command line ---- */

static const char HELP[] =
	"Measures how much of its CPU a program keeps while messages flow both ways.\n"
	"\n" USAGE "\n"
	"  --method M       polling (work, test, answer) or post-work-wait [polling]\n"
	"  --sizes LIST     bytes of a message [1K,16K,64K,256K]\n"
	"  --queue Q        messages each way, up to 256 [4]\n"
	"  --intervals LIST iterations of work between two calls [100 to 100000000 in 13 steps]\n"
	"  --seconds S      how long a point takes [1]\n"
	"  --runs N         runs of each point, up to 100 [1]\n"
	"  --silent         sends nothing: the availability of this is 1\n"
	"  --check          compares all bytes, in a pass of its own before each size\n"
	"  --cpu N          binds the process to a CPU, whose times are then accounted\n"
	"  --json           prints a JSON document instead of a table\n"
	"  --help           prints this\n"
	"\n" EXAMPLE;

enum option_code { METHOD = 1, SIZES, QUEUE, INTERVALS, SECONDS, RUNS, SILENT, CHECK, CPU, JSON, HELP_TEXT, OVER_WHAT, PORT_NUMBER, BIND, KEEP };

static const struct option LONG_OPTIONS[] = {
	{ "method", required_argument, NULL, METHOD },
	{ "sizes", required_argument, NULL, SIZES },
	{ "queue", required_argument, NULL, QUEUE },
	{ "intervals", required_argument, NULL, INTERVALS },
	{ "seconds", required_argument, NULL, SECONDS },
	{ "runs", required_argument, NULL, RUNS },
	{ "silent", no_argument, NULL, SILENT },
	{ "check", no_argument, NULL, CHECK },
	{ "cpu", required_argument, NULL, CPU },
	{ "json", no_argument, NULL, JSON },
	{ "help", no_argument, NULL, HELP_TEXT },
#ifdef HAS_ADDRESSES
	{ "over", required_argument, NULL, OVER_WHAT },
	{ "port", required_argument, NULL, PORT_NUMBER },
	{ "bind", required_argument, NULL, BIND },
	{ "keep", no_argument, NULL, KEEP },
#endif
	{ NULL, 0, NULL, 0 },
};

static bool read_cpu(struct options *options)
{
	char *end;
	errno = 0;
	long cpu = strtol(optarg, &end, 10);
	options->cpu = (int)cpu;
	return (end != optarg && *end == '\0' && errno == 0 && cpu >= 0 && cpu <= CPU_MAX) ||
	       failed("--cpu %s: a whole number from 0 to %ld is needed", optarg, sysconf(_SC_NPROCESSORS_CONF) - 1);
}

static bool take_option(struct options *options, int code)
{
	int chosen = 0;
	uint64_t number;
	bool is_good = true;
	switch (code) {
	case METHOD:
		is_good = read_name("--method", optarg, METHODS, &chosen);
		options->method = (enum method)chosen;
		return is_good;
	case SIZES:
		return read_list("--sizes", optarg, SIZE_LIMIT, options->sizes, SIZES_MAX, &options->size_count);
	case QUEUE:
		return read_number("--queue", optarg, QUEUE_MAX, &options->queue);
	case INTERVALS:
		return read_list("--intervals", optarg, INTERVAL_LIMIT, options->intervals, INTERVALS_MAX, &options->interval_count);
	case SECONDS:
		return read_seconds(optarg, &options->seconds);
	case RUNS:
		return read_number("--runs", optarg, RUNS_MAX, &options->runs);
	case SILENT:
		return options->silent = true;
	case CHECK:
		return options->check = true;
	case CPU:
		return read_cpu(options);
	case JSON:
		return options->json = true;
	case HELP_TEXT:
		fputs(HELP, stdout);
		exit(fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS);
#ifdef HAS_ADDRESSES
	case OVER_WHAT:
		return read_name("--over", optarg, OVER, &options->over);
	case PORT_NUMBER:
		options->port = optarg;
		return read_number("--port", optarg, 65535, &number);
	case BIND:
		options->bind = optarg;
		return true;
	case KEEP:
		return options->keep = true;
#endif
	default:
		(void)number;
		return failed("see " PROGRAM " --help");
	}
}

static void set_defaults(struct options *options)
{
	static const uint64_t SIZES_OF_DEFAULT[] = { 1 << 10, 16 << 10, 64 << 10, 256 << 10 };
	*options = (struct options){ .port = PORT, .queue = 4, .runs = 1, .seconds = 1, .cpu = -1 };
	memcpy(options->sizes, SIZES_OF_DEFAULT, sizeof(SIZES_OF_DEFAULT));
	options->size_count = sizeof(SIZES_OF_DEFAULT) / sizeof(*SIZES_OF_DEFAULT);
	for (uint64_t power = 100; power <= 100000000; power *= 10) {
		options->intervals[options->interval_count++] = power;
		if (power < 100000000)
			options->intervals[options->interval_count++] = power * 3;
	}
}

static bool read_options(int count, char **words, struct options *options)
{
	int index = 0;
	set_defaults(options);
	for (int code; (code = getopt_long(count, words, "", LONG_OPTIONS, &index)) != -1;) {
		if (!take_option(options, code))
			return false;
		if (code <= JSON && code != CPU)
			options->client_only = LONG_OPTIONS[index].name;
	}
	if (options->cpu >= 0 && !bind_to(options->cpu))
		return false;
#ifdef HAS_ADDRESSES
	if (optind < count)
		options->address = words[optind++];
#endif
	if (optind < count)
		return failed("%s: no more arguments are needed; see " PROGRAM " --help", words[optind]);
#ifdef HAS_ADDRESSES
	if (!options->address && options->client_only)
		return failed("--%s is an option of the client: put the server's address before it", options->client_only);
	if (options->address && options->keep)
		return failed("--keep is an option of the server: leave out the address %s, or --keep", options->address);
#endif
	return true;
}

static void interrupt(int number)
{
	(void)number;
	is_interrupted = 1;
}

static void catch_signals(void)
{
	struct sigaction action = { .sa_handler = interrupt };
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
}

#endif

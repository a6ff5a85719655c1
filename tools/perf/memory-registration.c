/*
 * memory-registration: the cost of registering memory with an RDMA device, by the size of the
 * region.
 *
 * It times registering, deregistering, both together, and the honest sum: registering memory and
 * moving every byte of it once by an RDMA write. For comparison it also times the write alone, from
 * memory that is registered and was used before. A device that defers the cost of a registration
 * until the memory is used pays that cost in the sum.
 *
 * The writes use two queue pairs of this process, connected to each other by the connection
 * manager. Each thread has its own pair, completion queue and memory; all threads register at the
 * same time.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <ifaddrs.h>
#include <limits.h>
#include <math.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define PROGRAM "memory-registration"

#include "option-values.h"

enum {
	VERSION = 1,
	SIZES_MAX = 64,
	ALIVE_MAX = 16,
	ALIVE_LIMIT = 1000000,
	THREADS_MAX = 64,
	SAMPLES_MAX = 10000,
	SAMPLES_MIN = 5,
	CONNECT_MS = 5000,
	PATIENCE_S = 20,
	QUEUE = 32,
	PIECE_BYTES = 1 << 20,
	TARGET_BYTES = 16 << 20,
};

#define SIZE_LIMIT (64ull << 30)

enum memory { FRESH, TOUCHED, HUGE_PAGES, FILE_BACKED, SHARED, MEMORIES };
static const char *const MEMORY[] = { "fresh", "touched", "huge", "file", "shared", NULL };

/* What is timed, in microseconds. */
enum quantity { REGISTER, DEREGISTER, BOTH, MOVE, SUM, DEREGISTER_MOVED, QUANTITIES };
static const char *const QUANTITY[] = { "register", "deregister", "register_and_deregister", "move", "register_and_move",
					"deregister_after_move" };

struct options {
	const char *bind;
	uint64_t sizes[SIZES_MAX], alive[ALIVE_MAX], threads[THREADS_MAX];
	enum memory memory[MEMORIES];
	int size_count, alive_count, thread_count, memory_count;
	uint64_t iterations; /* 0: as many as fit into `seconds` */
	double seconds;
	bool check, json;
};

/* One thread with its connection to itself. */
struct lane {
	struct rdma_event_channel *active_channel, *passive_channel;
	struct rdma_cm_id *listener, *active, *passive;
	struct ibv_cq *cq;
	struct ibv_mr *target_region;
	unsigned char *target;
	struct shared *shared;
	pthread_t thread;
	bool has_thread, is_good;
	double *samples[QUANTITIES]; /* microseconds */
	uint64_t counts[QUANTITIES];
};

/* State shared by the threads of a point. */
struct shared {
	const struct options *options;
	struct ibv_pd *pd;
	const char *device;
	uint64_t size, alive;
	enum memory memory;
	uint64_t threads;
	atomic_uint_fast64_t ready;
};

static volatile sig_atomic_t is_interrupted;

static double now_us(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

/* ---- Memory ---- */

static uint64_t huge_page_bytes(void)
{
	char line[128];
	unsigned long long kilobytes = 0;
	FILE *file = fopen("/proc/meminfo", "r");
	while (file && !kilobytes && fgets(line, sizeof(line), file))
		sscanf(line, "Hugepagesize: %llu kB", &kilobytes);
	if (file)
		fclose(file);
	return kilobytes ? (uint64_t)kilobytes << 10 : 2 << 20;
}

static uint64_t mapped_bytes(enum memory memory, uint64_t size)
{
	uint64_t page = memory == HUGE_PAGES ? huge_page_bytes() : (uint64_t)sysconf(_SC_PAGESIZE);
	return (size + page - 1) / page * page;
}

/* Opens a file of that length without a name. Returns -1 and prints a message on failure. */
static int open_file(enum memory memory, uint64_t bytes)
{
	const char *folder = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
	char path[PATH_MAX];
	int file;
	if (memory == SHARED) {
		file = memfd_create(PROGRAM, MFD_CLOEXEC);
	} else {
		snprintf(path, sizeof(path), "%s/" PROGRAM ".XXXXXX", folder);
		file = mkstemp(path);
		if (file >= 0)
			unlink(path);
	}
	/* Allocates the blocks of the file now. Without this, a write to the mapping could kill the
	   process when the file system is full. */
	int error = file < 0 ? errno : posix_fallocate(file, 0, (off_t)bytes);
	if (!error)
		return file;
	if (file >= 0)
		close(file);
	failed("make a file of %" PRIu64 " bytes in %s: %s; use smaller --sizes, or set TMPDIR to a folder with room", bytes,
	       memory == SHARED ? "memory" : folder, strerror(error));
	return -1;
}

static unsigned char *map_memory(enum memory memory, uint64_t size)
{
	uint64_t bytes = mapped_bytes(memory, size);
	int flags = MAP_PRIVATE | MAP_ANONYMOUS, file = -1;
	if (memory == HUGE_PAGES)
		flags |= MAP_HUGETLB;
	if (memory == FILE_BACKED || memory == SHARED) {
		flags = MAP_SHARED;
		file = open_file(memory, bytes);
		if (file < 0)
			return NULL;
	}
	unsigned char *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
	int error = errno;
	if (file >= 0)
		close(file);
	if (mapped == MAP_FAILED && memory == HUGE_PAGES) {
		failed("--memory huge: %" PRIu64 " bytes in huge pages of %" PRIu64 " bytes: %s; have the kernel keep some: "
		       "sysctl vm.nr_hugepages=%" PRIu64,
		       size, huge_page_bytes(), strerror(error), 2 * bytes / huge_page_bytes());
		return NULL;
	}
	if (mapped == MAP_FAILED) {
		failed("allocate %" PRIu64 " bytes: %s; use smaller --sizes", size, strerror(error));
		return NULL;
	}
	return mapped;
}

static unsigned char pattern(uint64_t offset)
{
	return (unsigned char)(offset * 31 + (offset >> 8) * 17 + (offset >> 20) * 7 + 13);
}

static void fill(unsigned char *bytes, uint64_t size)
{
	for (uint64_t offset = 0; offset < size; offset++)
		bytes[offset] = pattern(offset);
}

static uint64_t available_bytes(void)
{
	char line[128];
	unsigned long long kilobytes = 0;
	FILE *file = fopen("/proc/meminfo", "r");
	while (file && !kilobytes && fgets(line, sizeof(line), file))
		sscanf(line, "MemAvailable: %llu kB", &kilobytes);
	if (file)
		fclose(file);
	return kilobytes ? (uint64_t)kilobytes << 10 : UINT64_MAX;
}

/* ---- Regions ---- */

static struct ibv_mr *register_memory(const struct shared *shared, void *memory, uint64_t size)
{
	struct ibv_mr *region = ibv_reg_mr(shared->pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	if (region)
		return region;
	int error = errno;
	struct rlimit limit;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY)
		failed("register %" PRIu64 " bytes with %s: %s; use smaller --sizes, or a smaller --alive", size, shared->device,
		       strerror(error));
	else
		failed("register %" PRIu64 " bytes with %s: %s; at most %llu bytes may be locked: raise the limit (ulimit -l), or use "
		       "smaller --sizes",
		       size, shared->device, strerror(error), (unsigned long long)limit.rlim_cur);
	return NULL;
}

static bool deregister(struct ibv_mr *region)
{
	uint64_t size = region->length;
	int error = ibv_dereg_mr(region);
	return !error || failed("deregister %" PRIu64 " bytes: %s", size, strerror(error));
}

/* ---- Moving ---- */

/* Waits until `count` writes have completed. */
static bool await_completions(struct lane *lane, uint64_t count)
{
	double end = now_us() + PATIENCE_S * 1e6;
	for (uint64_t polls = 1; count > 0; polls++) {
		struct ibv_wc entry;
		int taken = ibv_poll_cq(lane->cq, 1, &entry);
		if (taken < 0)
			return failed("poll the completion queue: %s", strerror(errno));
		if (taken > 0 && entry.status != IBV_WC_SUCCESS)
			return failed("a write has failed: %s (status %d)", ibv_wc_status_str(entry.status), entry.status);
		count -= (uint64_t)taken;
		if (taken == 0 && polls % 4096 == 0) {
			if (is_interrupted)
				return failed("interrupted");
			if (now_us() > end)
				return failed("a write has not completed for %d s; is the link up?", PATIENCE_S);
		}
	}
	return true;
}

/*
 * Writes every byte of the region once, in pieces that share the target memory. With `check`, each
 * piece is compared before the next is written.
 */
static bool move(struct lane *lane, const struct ibv_mr *region, bool check)
{
	uint64_t posted = 0, completed = 0, wrong = 0;
	unsigned char *source = region->addr;
	for (uint64_t at = 0; at < region->length; at += PIECE_BYTES) {
		uint64_t length = region->length - at < PIECE_BYTES ? region->length - at : PIECE_BYTES;
		unsigned char *target = lane->target + at % TARGET_BYTES;
		if (posted - completed == QUEUE && !await_completions(lane, 1))
			return false;
		completed += posted - completed == QUEUE;
		struct ibv_sge piece = { (uintptr_t)(source + at), (uint32_t)length, region->lkey };
		struct ibv_send_wr request = { .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE }, *bad;
		request.send_flags = IBV_SEND_SIGNALED;
		request.wr.rdma.remote_addr = (uintptr_t)target;
		request.wr.rdma.rkey = lane->target_region->rkey;
		int error = ibv_post_send(lane->active->qp, &request, &bad);
		if (error)
			return failed("post a write of %" PRIu64 " bytes: %s", length, strerror(error));
		posted++;
		if (!check)
			continue;
		if (!await_completions(lane, posted - completed))
			return false;
		completed = posted;
		for (uint64_t offset = 0; offset < length; offset++)
			wrong += target[offset] != pattern(at + offset);
	}
	if (wrong > 0)
		return failed("%" PRIu64 " of %zu bytes are not what was written: the device or its driver is faulty", wrong,
			      region->length);
	return await_completions(lane, posted - completed);
}

/* ---- One point ---- */

static void note(struct lane *lane, enum quantity quantity, double us)
{
	lane->samples[quantity][lane->counts[quantity]++] = us;
}

/* Returns memory of the point's kind in the state before its first use: a new mapping if the kind
   is FRESH, otherwise the same memory again. */
static unsigned char *next_memory(const struct shared *shared, unsigned char *memory)
{
	if (shared->memory != FRESH)
		return memory;
	munmap(memory, mapped_bytes(FRESH, shared->size));
	return map_memory(FRESH, shared->size);
}

static bool time_alone(struct lane *lane, unsigned char *memory)
{
	double start = now_us();
	struct ibv_mr *region = register_memory(lane->shared, memory, lane->shared->size);
	double middle = now_us();
	if (!region || !deregister(region))
		return false;
	double end = now_us();
	note(lane, REGISTER, middle - start);
	note(lane, DEREGISTER, end - middle);
	return true;
}

static bool time_both(struct lane *lane, unsigned char *memory)
{
	double start = now_us();
	struct ibv_mr *region = register_memory(lane->shared, memory, lane->shared->size);
	if (!region || !deregister(region))
		return false;
	note(lane, BOTH, now_us() - start);
	return true;
}

static bool time_move(struct lane *lane, const struct ibv_mr *region)
{
	double start = now_us();
	if (!move(lane, region, false))
		return false;
	note(lane, MOVE, now_us() - start);
	return true;
}

static bool time_sum(struct lane *lane, unsigned char *memory)
{
	double start = now_us();
	struct ibv_mr *region = register_memory(lane->shared, memory, lane->shared->size);
	if (!region)
		return false;
	bool is_moved = move(lane, region, false);
	double middle = now_us();
	if (!deregister(region) || !is_moved)
		return false;
	note(lane, SUM, middle - start);
	note(lane, DEREGISTER_MOVED, now_us() - middle);
	return true;
}

static bool check_bytes(struct lane *lane, unsigned char *memory)
{
	fill(memory, lane->shared->size);
	struct ibv_mr *region = register_memory(lane->shared, memory, lane->shared->size);
	if (!region)
		return false;
	bool is_right = move(lane, region, true);
	return deregister(region) && is_right;
}

static bool register_once(struct lane *lane, unsigned char **memory, const struct ibv_mr *in_use)
{
	(void)in_use;
	*memory = next_memory(lane->shared, *memory);
	if (!*memory || !time_alone(lane, *memory))
		return false;
	*memory = next_memory(lane->shared, *memory);
	return *memory && time_both(lane, *memory);
}

static bool move_once(struct lane *lane, unsigned char **memory, const struct ibv_mr *in_use)
{
	*memory = next_memory(lane->shared, *memory);
	return *memory && time_sum(lane, *memory) && time_move(lane, in_use);
}

/*
 * Takes rounds of samples. Quantities that are compared with each other alternate within a round.
 *
 * Registrations have rounds without moves, before the others. A move evicts the code and the tables
 * of the device from the caches if the region is large, but not if it is small. After a move,
 * registering would seem to take longer for a large region even if its time does not depend on the
 * size.
 */
static bool take_rounds(struct lane *lane, unsigned char **memory, const struct ibv_mr *in_use)
{
	const struct options *options = lane->shared->options;
	uint64_t least = options->iterations ? options->iterations : SAMPLES_MIN;
	uint64_t most = options->iterations ? options->iterations : SAMPLES_MAX;
	bool (*const rounds[])(struct lane *, unsigned char **, const struct ibv_mr *) = { register_once, move_once };
	for (int kind = 0; kind < 2; kind++) {
		double end = now_us() + options->seconds * 1e6 / 2;
		for (uint64_t round = 0; round < most && (round < least || now_us() < end); round++) {
			if (is_interrupted)
				return failed("interrupted");
			if (!rounds[kind](lane, memory, in_use))
				return false;
		}
	}
	return true;
}

/* Waits until all threads of the point are ready. */
static void wait_for_all(struct shared *shared)
{
	atomic_fetch_add(&shared->ready, 1);
	while (atomic_load(&shared->ready) < shared->threads)
		usleep(100);
}

static bool work(struct lane *lane)
{
	const struct shared *shared = lane->shared;
	uint64_t bytes = mapped_bytes(shared->memory, shared->size);
	unsigned char *memory = map_memory(shared->memory, shared->size);
	unsigned char *used = memory ? map_memory(shared->memory, shared->size) : NULL;
	struct ibv_mr *in_use = NULL;
	if (used) {
		fill(used, shared->size);
		if (shared->memory != FRESH)
			fill(memory, shared->size);
		in_use = register_memory(shared, used, shared->size);
	}
	bool is_good = in_use && move(lane, in_use, false);
	if (is_good && shared->options->check)
		is_good = check_bytes(lane, memory);
	/* A failed thread waits here too, because the others wait for it. */
	wait_for_all(lane->shared);
	is_good = is_good && take_rounds(lane, &memory, in_use);
	if (in_use && !deregister(in_use))
		is_good = false;
	if (memory)
		munmap(memory, bytes);
	if (used)
		munmap(used, bytes);
	return is_good;
}

static void *run_thread(void *argument)
{
	struct lane *lane = argument;
	lane->is_good = work(lane);
	return NULL;
}

/* Registered regions beside the measured one, of one page each. */
struct others {
	unsigned char *memory;
	struct ibv_mr **regions;
	uint64_t count, bytes;
};

static bool drop_others(struct others *others)
{
	bool is_good = true;
	for (uint64_t i = 0; i < others->count; i++)
		is_good = deregister(others->regions[i]) && is_good;
	if (others->memory)
		munmap(others->memory, others->bytes);
	free(others->regions);
	return is_good;
}

static bool keep_others(const struct shared *shared, struct others *others)
{
	uint64_t wanted = shared->alive - 1, page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct ibv_device_attr device;
	*others = (struct others){ 0 };
	if (wanted == 0)
		return true;
	if (ibv_query_device(shared->pd->context, &device))
		return failed("ask device %s what it has: %s", shared->device, strerror(errno));
	/* Regions of each thread beside `alive`: its target, its region in use, and the measured one. */
	uint64_t besides = 3ull * THREADS_MAX;
	if (device.max_mr > 0 && shared->alive + besides > (uint64_t)device.max_mr)
		return failed("--alive %" PRIu64 ": %s has at most %d regions; use a smaller --alive", shared->alive, shared->device,
			      device.max_mr);
	others->bytes = wanted * page;
	others->memory = map_memory(TOUCHED, others->bytes);
	others->regions = calloc(wanted, sizeof(*others->regions));
	if (!others->memory || !others->regions)
		return failed("--alive %" PRIu64 ": out of memory; use a smaller --alive", shared->alive);
	memset(others->memory, 1, others->bytes);
	while (others->count < wanted) {
		struct ibv_mr *region = register_memory(shared, others->memory + others->count * page, page);
		if (!region || is_interrupted)
			return failed("--alive %" PRIu64 ": %s after %" PRIu64 " regions", shared->alive,
				      region ? "interrupted" : "no more could be registered", others->count);
		others->regions[others->count++] = region;
	}
	return true;
}

static bool run_point(struct lane *lanes, struct shared *shared, uint64_t threads)
{
	struct others others;
	bool is_good = keep_others(shared, &others);
	shared->threads = threads;
	atomic_store(&shared->ready, 0);
	for (uint64_t i = 0; i < threads; i++)
		memset(lanes[i].counts, 0, sizeof(lanes[i].counts));
	uint64_t started = 0;
	if (is_good && threads == 1) {
		run_thread(&lanes[0]);
		is_good = lanes[0].is_good;
	} else if (is_good) {
		for (; started < threads; started++) {
			int error = pthread_create(&lanes[started].thread, NULL, run_thread, &lanes[started]);
			/* Threads that have started wait for this thread, so the process exits. */
			if (error) {
				failed("--threads %" PRIu64 ": start thread %" PRIu64 ": %s; use fewer threads", threads, started + 1,
				       strerror(error));
				exit(EXIT_FAILURE);
			}
		}
		for (uint64_t i = 0; i < started; i++) {
			pthread_join(lanes[i].thread, NULL);
			is_good = is_good && lanes[i].is_good;
		}
	}
	return drop_others(&others) && is_good;
}

/* ---- Figures ---- */

struct figures {
	double mean, deviation, p99, median;
	uint64_t count;
};

static int ascending(const void *one, const void *other)
{
	double a = *(const double *)one, b = *(const double *)other;
	return (a > b) - (a < b);
}

static struct figures figures_of(double *values, uint64_t count)
{
	struct figures figures = { .count = count };
	if (count == 0)
		return figures;
	qsort(values, count, sizeof(*values), ascending);
	for (uint64_t i = 0; i < count; i++)
		figures.mean += values[i] / (double)count;
	for (uint64_t i = 0; i < count; i++)
		figures.deviation += (values[i] - figures.mean) * (values[i] - figures.mean);
	figures.deviation = count > 1 ? sqrt(figures.deviation / (double)(count - 1)) : 0;
	uint64_t rank = (uint64_t)ceil(0.99 * (double)count);
	figures.p99 = values[rank - 1];
	figures.median = count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
	return figures;
}

/* Computes figures of the samples of all threads. With `over`, each sample is divided by the sample
   of `over` with the same index. */
static struct figures figures_of_all(const struct lane *lanes, uint64_t threads, enum quantity quantity,
				     const enum quantity *over, double *values)
{
	uint64_t count = 0;
	for (uint64_t i = 0; i < threads; i++)
		for (uint64_t j = 0; j < lanes[i].counts[quantity]; j++)
			values[count++] = lanes[i].samples[quantity][j] / (over ? fmax(lanes[i].samples[*over][j], 1e-3) : 1);
	return figures_of(values, count);
}

static void print_head(const struct options *options, const struct lane *lane, const char *device)
{
	int kind = lane->active->verbs->device->transport_type;
	const char *transport = kind == IBV_TRANSPORT_IB ? "InfiniBand" : kind == IBV_TRANSPORT_IWARP ? "iWARP" : "other";
	if (options->json)
		printf("{\n  \"program\": \"" PROGRAM "\",\n  \"version\": %d,\n  \"test\": \"registration\",\n  \"checked\": %s,\n"
		       "  \"device\": { \"name\": \"%s\", \"transport\": \"%s\" },\n  \"points\": [",
		       VERSION, options->check ? "true" : "false", device, transport);
	else
		printf("registration with %s; means in us; sum: register and move every byte once; ratio: sum / move\n"
		       "%10s %8s %7s %7s %11s %9s %9s %11s %11s %11s %11s %7s\n",
		       device, "bytes", "memory", "alive", "threads", "register", "deviation", "99 %", "deregister", "both", "move",
		       "sum", "ratio");
	fflush(stdout);
}

static void print_point(const struct options *options, const struct lane *lanes, const struct shared *shared,
			uint64_t threads, double *values, bool is_first)
{
	struct figures figures[QUANTITIES];
	for (int i = 0; i < QUANTITIES; i++)
		figures[i] = figures_of_all(lanes, threads, (enum quantity)i, NULL, values);
	struct figures ratio = figures_of_all(lanes, threads, SUM, &(enum quantity){ MOVE }, values);
	double lowest = values[0], highest = values[ratio.count - 1];
	if (!options->json) {
		printf("%10" PRIu64 " %8s %7" PRIu64 " %7" PRIu64 " %11.3f %9.3f %9.3f %11.3f %11.3f %11.3f %11.3f %7.3f\n",
		       shared->size, MEMORY[shared->memory], shared->alive, threads, figures[REGISTER].mean,
		       figures[REGISTER].deviation, figures[REGISTER].p99, figures[DEREGISTER].mean, figures[BOTH].mean,
		       figures[MOVE].mean, figures[SUM].mean, ratio.median);
		fflush(stdout);
		return;
	}
	printf("%s\n    { \"size\": %" PRIu64 ", \"memory\": \"%s\", \"alive\": %" PRIu64 ", \"threads\": %" PRIu64
	       ", \"samples\": %" PRIu64,
	       is_first ? "" : ",", shared->size, MEMORY[shared->memory], shared->alive, threads, ratio.count);
	for (int i = 0; i < QUANTITIES; i++)
		printf(",\n      \"%s\": { \"mean_us\": %.3f, \"deviation_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f }",
		       QUANTITY[i], figures[i].mean, figures[i].deviation, figures[i].median, figures[i].p99);
	printf(",\n      \"sum_to_move\": { \"median\": %.4f, \"lowest\": %.4f, \"highest\": %.4f } }", ratio.median, lowest, highest);
	fflush(stdout);
}

/* ---- The connection of this process to itself ---- */

static struct rdma_cm_event *await_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, const char *step)
{
	struct rdma_cm_event *event;
	struct pollfd file = { channel->fd, POLLIN, 0 };
	int ready = poll(&file, 1, CONNECT_MS);
	if (ready <= 0 || rdma_get_cm_event(channel, &event)) {
		failed("%s: %s; does the address belong to an RDMA interface that is up?", step,
		       ready == 0 ? "no answer within 5 s" : is_interrupted ? "interrupted" : strerror(errno));
		return NULL;
	}
	if (event->event == kind)
		return event;
	failed("%s: %s (status %d)", step, rdma_event_str(event->event), event->status);
	rdma_ack_cm_event(event);
	return NULL;
}

static bool pass_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind, const char *step)
{
	struct rdma_cm_event *event = await_event(channel, kind, step);
	if (event)
		rdma_ack_cm_event(event);
	return event != NULL;
}

static bool make_queue_pair(struct lane *lane, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attributes = { .send_cq = lane->cq, .recv_cq = lane->cq, .qp_type = IBV_QPT_RC };
	attributes.cap = (struct ibv_qp_cap){ .max_send_wr = QUEUE, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 };
	return rdma_create_qp(id, lane->shared->pd, &attributes) == 0 ||
	       failed("make a queue pair of %s: %s", lane->shared->device, strerror(errno));
}

static bool listen_and_resolve(struct lane *lane, struct sockaddr_in address)
{
	lane->active_channel = rdma_create_event_channel();
	lane->passive_channel = rdma_create_event_channel();
	if (!lane->active_channel || !lane->passive_channel ||
	    rdma_create_id(lane->active_channel, &lane->active, NULL, RDMA_PS_TCP) ||
	    rdma_create_id(lane->passive_channel, &lane->listener, NULL, RDMA_PS_TCP))
		return failed("use the connection manager: %s; is there an RDMA device? `ibv_devices` lists them", strerror(errno));
	address.sin_port = 0;
	if (rdma_bind_addr(lane->listener, (struct sockaddr *)&address) || rdma_listen(lane->listener, 1))
		return failed("listen on %s: %s; use --bind with an address of an RDMA interface", inet_ntoa(address.sin_addr),
			      strerror(errno));
	address.sin_port = rdma_get_src_port(lane->listener);
	if (rdma_resolve_addr(lane->active, NULL, (struct sockaddr *)&address, CONNECT_MS))
		return failed("find an RDMA device with %s: %s; use --bind with an address of an RDMA interface",
			      inet_ntoa(address.sin_addr), strerror(errno));
	if (!pass_event(lane->active_channel, RDMA_CM_EVENT_ADDR_RESOLVED, "resolve the address"))
		return false;
	if (rdma_resolve_route(lane->active, CONNECT_MS))
		return failed("find a route to this host: %s", strerror(errno));
	return pass_event(lane->active_channel, RDMA_CM_EVENT_ROUTE_RESOLVED, "find a route to this host");
}

static bool set_up_objects(struct lane *lane)
{
	struct shared *shared = lane->shared;
	shared->device = ibv_get_device_name(lane->active->verbs->device);
	if (!shared->pd)
		shared->pd = ibv_alloc_pd(lane->active->verbs);
	if (!shared->pd)
		return failed("allocate a protection domain of %s: %s", shared->device, strerror(errno));
	lane->cq = ibv_create_cq(lane->active->verbs, 2 * QUEUE, NULL, NULL, 0);
	if (!lane->cq)
		return failed("make a completion queue of %d entries on %s: %s", 2 * QUEUE, shared->device, strerror(errno));
	lane->target = map_memory(TOUCHED, TARGET_BYTES);
	if (!lane->target)
		return false;
	memset(lane->target, 0, TARGET_BYTES);
	lane->target_region = register_memory(shared, lane->target, TARGET_BYTES);
	for (int i = 0; i < QUANTITIES; i++)
		if (!(lane->samples[i] = calloc(SAMPLES_MAX, sizeof(double))))
			return failed("allocate %zu bytes for samples: out of memory", SAMPLES_MAX * sizeof(double));
	return lane->target_region != NULL;
}

static bool connect_to_itself(struct lane *lane, struct sockaddr_in address)
{
	if (!listen_and_resolve(lane, address) || !set_up_objects(lane) || !make_queue_pair(lane, lane->active))
		return false;
	struct rdma_conn_param parameters = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7 };
	if (rdma_connect(lane->active, &parameters))
		return failed("connect to this host: %s", strerror(errno));
	struct rdma_cm_event *request = await_event(lane->passive_channel, RDMA_CM_EVENT_CONNECT_REQUEST, "accept a connection");
	if (!request)
		return false;
	lane->passive = request->id;
	rdma_ack_cm_event(request);
	if (lane->passive->verbs != lane->shared->pd->context)
		return failed("the address belongs to two devices, %s and %s; use --bind with another one", lane->shared->device,
			      ibv_get_device_name(lane->passive->verbs->device));
	if (!make_queue_pair(lane, lane->passive))
		return false;
	if (rdma_accept(lane->passive, &parameters))
		return failed("accept the connection of this process: %s", strerror(errno));
	return pass_event(lane->active_channel, RDMA_CM_EVENT_ESTABLISHED, "connect to this host") &&
	       pass_event(lane->passive_channel, RDMA_CM_EVENT_ESTABLISHED, "accept a connection of this host");
}

static void tear_down(struct lane *lane)
{
	struct rdma_cm_id *ids[] = { lane->active, lane->passive, lane->listener };
	if (lane->active && lane->active->qp)
		rdma_disconnect(lane->active);
	if (lane->target_region)
		ibv_dereg_mr(lane->target_region);
	for (int i = 0; i < 3; i++) {
		if (ids[i] && ids[i]->qp)
			rdma_destroy_qp(ids[i]);
	}
	if (lane->cq)
		ibv_destroy_cq(lane->cq);
	for (int i = 0; i < 3; i++)
		if (ids[i])
			rdma_destroy_id(ids[i]);
	if (lane->active_channel)
		rdma_destroy_event_channel(lane->active_channel);
	if (lane->passive_channel)
		rdma_destroy_event_channel(lane->passive_channel);
	if (lane->target)
		munmap(lane->target, TARGET_BYTES);
	for (int i = 0; i < QUANTITIES; i++)
		free(lane->samples[i]);
}

/* Returns whether an RDMA device has this address. */
static bool has_device(const struct sockaddr *address)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id = NULL;
	bool has = channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0 &&
		   rdma_bind_addr(id, (struct sockaddr *)address) == 0 && id->verbs;
	if (id)
		rdma_destroy_id(id);
	if (channel)
		rdma_destroy_event_channel(channel);
	return has;
}

/* Chooses the address of `--bind`, or the first IPv4 address of an RDMA device; loopback comes
   last. */
static bool choose_address(const struct options *options, struct sockaddr_in *chosen)
{
	*chosen = (struct sockaddr_in){ .sin_family = AF_INET };
	if (options->bind)
		return inet_pton(AF_INET, options->bind, &chosen->sin_addr) == 1 ||
		       failed("--bind %s: an IPv4 address of this host is needed", options->bind);
	struct ifaddrs *all, *each;
	if (getifaddrs(&all))
		return failed("list the addresses of this host: %s", strerror(errno));
	bool is_found = false;
	for (int is_loopback = 0; is_loopback <= 1 && !is_found; is_loopback++) {
		for (each = all; each && !is_found; each = each->ifa_next) {
			if (!each->ifa_addr || each->ifa_addr->sa_family != AF_INET || !(each->ifa_flags & IFF_UP) ||
			    !!(each->ifa_flags & IFF_LOOPBACK) != is_loopback || !has_device(each->ifa_addr))
				continue;
			memcpy(chosen, each->ifa_addr, sizeof(*chosen));
			is_found = true;
		}
	}
	freeifaddrs(all);
	return is_found || failed("no address of this host belongs to an RDMA device; `ibv_devices` lists the devices, --bind "
				  "names an address");
}

/* ---- The command line ---- */

static const char HELP[] =
	"Measures what it costs to register memory with an RDMA device. Runs on one host alone.\n"
	"\n"
	"  " PROGRAM " [OPTION...]\n"
	"\n"
	"  --sizes LIST     bytes of a region [4K,16K,64K,256K,1M,4M,16M,64M,256M,1G]\n"
	"  --steps          every page up to 64 KiB instead\n"
	"  --memory LIST    fresh, touched, huge (pages), file, shared [touched]\n"
	"  --alive LIST     regions that are registered at a time [1]\n"
	"  --threads LIST   threads that register at once, up to 64 [1]\n"
	"  --iterations N   samples of a point, up to 10000\n"
	"  --seconds S      or how long a point takes; at least 5 samples are taken [0.5]\n"
	"  --check          compares all bytes that are moved, in a pass of its own before each point\n"
	"  --json           prints a JSON document instead of a table\n"
	"  --bind ADDRESS   address of the device [the first address that belongs to one]\n"
	"  --help           prints this\n"
	"\n"
	"Example: `" PROGRAM " --sizes 4K,1M,64M --memory fresh,touched`\n";

enum option_code { SIZES = 1, STEPS, MEMORY_KINDS, ALIVE, THREADS, ITERATIONS, SECONDS, CHECK, JSON, BIND, HELP_TEXT };

static const struct option LONG_OPTIONS[] = {
	{ "sizes", required_argument, NULL, SIZES },
	{ "steps", no_argument, NULL, STEPS },
	{ "memory", required_argument, NULL, MEMORY_KINDS },
	{ "alive", required_argument, NULL, ALIVE },
	{ "threads", required_argument, NULL, THREADS },
	{ "iterations", required_argument, NULL, ITERATIONS },
	{ "seconds", required_argument, NULL, SECONDS },
	{ "check", no_argument, NULL, CHECK },
	{ "json", no_argument, NULL, JSON },
	{ "bind", required_argument, NULL, BIND },
	{ "help", no_argument, NULL, HELP_TEXT },
	{ NULL, 0, NULL, 0 },
};

static bool read_memory(struct options *options, char *text)
{
	options->memory_count = 0;
	for (char *rest = text, *word; (word = strsep(&rest, ",")) != NULL;) {
		int kind;
		if (options->memory_count == MEMORIES)
			return failed("--memory: at most %d kinds are possible", MEMORIES);
		if (!read_name("--memory", word, MEMORY, &kind))
			return false;
		options->memory[options->memory_count++] = (enum memory)kind;
	}
	return true;
}

static void set_steps(struct options *options)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	options->size_count = 0;
	for (uint64_t size = page; size <= 64 << 10; size += page)
		options->sizes[options->size_count++] = size;
}

static bool take_option(struct options *options, int code)
{
	switch (code) {
	case SIZES:
		return read_list("--sizes", optarg, SIZE_LIMIT, options->sizes, SIZES_MAX, &options->size_count);
	case STEPS:
		set_steps(options);
		return true;
	case MEMORY_KINDS:
		return read_memory(options, optarg);
	case ALIVE:
		return read_list("--alive", optarg, ALIVE_LIMIT, options->alive, ALIVE_MAX, &options->alive_count);
	case THREADS:
		return read_list("--threads", optarg, THREADS_MAX, options->threads, THREADS_MAX, &options->thread_count);
	case ITERATIONS:
		return read_number("--iterations", optarg, SAMPLES_MAX, &options->iterations);
	case SECONDS:
		return read_seconds(optarg, &options->seconds);
	case CHECK:
		return options->check = true;
	case JSON:
		return options->json = true;
	case BIND:
		options->bind = optarg;
		return true;
	case HELP_TEXT:
		fputs(HELP, stdout);
		exit(fflush(stdout) ? EXIT_FAILURE : EXIT_SUCCESS);
	default:
		return failed("see " PROGRAM " --help");
	}
}

static uint64_t highest(const uint64_t *numbers, int count)
{
	uint64_t found = 0;
	for (int i = 0; i < count; i++)
		found = numbers[i] > found ? numbers[i] : found;
	return found;
}

static bool fits_memory(const struct options *options)
{
	uint64_t size = highest(options->sizes, options->size_count);
	uint64_t threads = highest(options->threads, options->thread_count);
	uint64_t others = highest(options->alive, options->alive_count) * (uint64_t)sysconf(_SC_PAGESIZE);
	uint64_t needed = threads * (2 * size + TARGET_BYTES) + others, available = available_bytes();
	return needed <= available || failed("--sizes %" PRIu64 " with %" PRIu64 " threads takes %" PRIu64
					     " bytes of memory, this host has %" PRIu64 " left; use smaller --sizes",
					     size, threads, needed, available);
}

static bool read_options(int count, char **words, struct options *options)
{
	static const uint64_t SIZES_OF_DEFAULT[] = { 4 << 10,  16 << 10, 64 << 10, 256 << 10, 1 << 20,
						     4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30 };
	memcpy(options->sizes, SIZES_OF_DEFAULT, sizeof(SIZES_OF_DEFAULT));
	options->size_count = sizeof(SIZES_OF_DEFAULT) / sizeof(*SIZES_OF_DEFAULT);
	options->memory[0] = TOUCHED;
	options->alive[0] = options->threads[0] = 1;
	options->memory_count = options->alive_count = options->thread_count = 1;
	for (int code; (code = getopt_long(count, words, "", LONG_OPTIONS, NULL)) != -1;)
		if (!take_option(options, code))
			return false;
	if (optind < count)
		return failed("%s: no argument is needed but options; see " PROGRAM " --help", words[optind]);
	return fits_memory(options);
}

/* ---- The process ---- */

static bool measure(const struct options *options, struct lane *lanes, struct shared *shared, uint64_t threads_max)
{
	double *values = calloc(threads_max * SAMPLES_MAX, sizeof(*values));
	bool is_good = values || failed("allocate memory for %" PRIu64 " samples: out of memory", threads_max * SAMPLES_MAX);
	bool is_first = true;
	if (is_good)
		print_head(options, &lanes[0], shared->device);
	for (int m = 0; m < options->memory_count; m++)
		for (int a = 0; a < options->alive_count; a++)
			for (int t = 0; t < options->thread_count; t++)
				for (int s = 0; s < options->size_count && is_good; s++) {
					shared->memory = options->memory[m];
					shared->alive = options->alive[a];
					shared->size = options->sizes[s];
					is_good = run_point(lanes, shared, options->threads[t]);
					if (is_good)
						print_point(options, lanes, shared, options->threads[t], values, is_first);
					is_first = false;
				}
	if (is_good && options->json)
		printf("\n  ]\n}\n");
	free(values);
	return is_good;
}

static void interrupt(int number)
{
	(void)number;
	is_interrupted = 1;
}

int main(int count, char **words)
{
	struct options options = { .seconds = 0.5 };
	struct sigaction action = { .sa_handler = interrupt };
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	struct sockaddr_in address;
	if (!read_options(count, words, &options))
		return 2;
	if (!choose_address(&options, &address))
		return EXIT_FAILURE;
	static struct lane lanes[THREADS_MAX];
	struct shared shared = { .options = &options };
	uint64_t threads = highest(options.threads, options.thread_count);
	bool is_good = true;
	for (uint64_t i = 0; i < threads && is_good; i++) {
		lanes[i].shared = &shared;
		is_good = connect_to_itself(&lanes[i], address);
	}
	is_good = is_good && measure(&options, lanes, &shared, threads);
	for (uint64_t i = 0; i < threads; i++)
		tear_down(&lanes[i]);
	if (shared.pd)
		ibv_dealloc_pd(shared.pd);
	return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}

// Results of MPI messages, collectives and one-sided operations. The results must not depend on the
// transport.
//
// Runs with any even number of ranks. Every rank checks the values that it can compute itself. For
// each rank, rank 0 prints a digest of the data that the rank has received. The digests depend only on
// the number of ranks.

#include <inttypes.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

// Size of the largest message, in bytes.
enum { LARGEST = 4 << 20 };

static void fail(const char *what)
{
	fprintf(stderr, "rank %d: %s\n", rank, what);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static uint64_t mix(uint64_t value)
{
	value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
	value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
	return value ^ (value >> 31);
}

// Fills memory with bytes derived from a number.
static void fill(unsigned char *bytes, size_t length, uint64_t seed)
{
	for (size_t at = 0; at < length; at++)
		bytes[at] = (unsigned char)(mix(seed + at / 8) >> (at % 8 * 8));
}

// Fails unless memory has the bytes derived from the number `seed`.
static void check(const unsigned char *bytes, size_t length, uint64_t seed, const char *what)
{
	for (size_t at = 0; at < length; at++)
		if (bytes[at] != (unsigned char)(mix(seed + at / 8) >> (at % 8 * 8)))
			fail(what);
}

// Returns the FNV-1a hash.
static uint64_t digest(const void *memory, size_t length)
{
	const unsigned char *bytes = memory;
	uint64_t sum = 0xcbf29ce484222325u;

	for (size_t at = 0; at < length; at++)
		sum = (sum ^ bytes[at]) * 0x100000001b3u;
	return sum;
}

// Rank 0 prints the digest of every rank.
static void report(const char *what, size_t size, const void *memory, size_t length)
{
	uint64_t own = digest(memory, length), *all = NULL;

	if (rank == 0)
		all = calloc((size_t)ranks, sizeof *all);
	MPI_Gather(&own, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	for (int of = 0; rank == 0 && of < ranks; of++)
		printf("%s %zu rank %d %016" PRIx64 "\n", what, size, of, all[of]);
	free(all);
}

// Exchanges messages of `size` bytes between pairs of ranks, one rank of each half. Both ranks receive
// into `back`.
static void ping_pong(unsigned char *out, unsigned char *back, int size)
{
	int peer = (rank + ranks / 2) % ranks, is_first = rank < ranks / 2;
	MPI_Status status;
	int came;

	for (int round = 0; round < 3; round++) {
		uint64_t own = (uint64_t)size * 1000 + (uint64_t)(round * 100 + rank);
		uint64_t theirs = (uint64_t)size * 1000 + (uint64_t)(round * 100 + peer);

		fill(out, (size_t)size, own);
		memset(back, 0x5a, (size_t)size + 1);
		if (is_first)
			MPI_Send(out, size, MPI_BYTE, peer, round, MPI_COMM_WORLD);
		MPI_Recv(back, size, MPI_BYTE, peer, round, MPI_COMM_WORLD, &status);
		if (!is_first)
			MPI_Send(out, size, MPI_BYTE, peer, round, MPI_COMM_WORLD);
		MPI_Get_count(&status, MPI_BYTE, &came);
		if (came != size)
			fail("a message of another length");
		check(back, (size_t)size, theirs, "a message of other bytes");
		if (back[size] != 0x5a)
			fail("bytes behind a message");
	}
	report("ping-pong", (size_t)size, back, (size_t)size);
}

static void ping_pongs(void)
{
	unsigned char *out = malloc(LARGEST + 1), *back = malloc(LARGEST + 1);

	ping_pong(out, back, 0);
	for (int size = 1; size <= LARGEST; size *= 2) {
		ping_pong(out, back, size);
		if (size > 2 && size < LARGEST) {
			ping_pong(out, back, size - 1);
			ping_pong(out, back, size + 1);
		}
	}
	free(out);
	free(back);
}

// Sends many messages at once and receives them in the opposite order.
static void windows(void)
{
	enum { COUNT = 64, SIZE = 3000 };
	unsigned char *out = malloc(COUNT * SIZE), *back = malloc(COUNT * SIZE);
	MPI_Request requests[2 * COUNT];
	MPI_Status statuses[2 * COUNT];
	int peer = (rank + ranks / 2) % ranks;

	fill(out, COUNT * SIZE, (uint64_t)rank);
	for (int at = 0; at < COUNT; at++) {
		int tag = COUNT - 1 - at;

		MPI_Isend(out + at * SIZE, SIZE, MPI_BYTE, peer, at, MPI_COMM_WORLD, &requests[at]);
		MPI_Irecv(back + tag * SIZE, SIZE, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[COUNT + at]);
	}
	MPI_Waitall(2 * COUNT, requests, statuses);
	check(back, COUNT * SIZE, (uint64_t)peer, "messages in a wrong order");
	report("window", SIZE, back, COUNT * SIZE);
	free(out);
	free(back);
}

static void all_to_all(int size)
{
	size_t length = (size_t)size * (size_t)ranks;
	unsigned char *out = malloc(length + 1), *in = malloc(length + 1);

	for (int to = 0; to < ranks; to++)
		fill(out + (size_t)to * (size_t)size, (size_t)size, (uint64_t)(rank * 1000 + to));
	MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
	for (int from = 0; from < ranks; from++)
		check(in + (size_t)from * (size_t)size, (size_t)size, (uint64_t)(from * 1000 + rank), "alltoall");
	report("alltoall", (size_t)size, in, length);
	free(out);
	free(in);
}

static void all_reduce(int count)
{
	int64_t *own = calloc((size_t)count, sizeof *own), *sum = calloc((size_t)count, sizeof *sum);
	double *numbers = calloc((size_t)count, sizeof *numbers), *most = calloc((size_t)count, sizeof *most);

	for (int at = 0; at < count; at++) {
		own[at] = (int64_t)mix((uint64_t)(rank * count + at)) >> 8;
		// Multiples of 1/8, so that sums are exact in any order.
		numbers[at] = (double)((rank + 1) * at) / 8;
	}
	MPI_Allreduce(own, sum, count, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	report("allreduce sum", (size_t)count, sum, (size_t)count * sizeof *sum);
	MPI_Allreduce(numbers, most, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	report("allreduce double", (size_t)count, most, (size_t)count * sizeof *most);
	free(own);
	free(sum);
	free(numbers);
	free(most);
}

static void broadcast(int size)
{
	unsigned char *bytes = malloc((size_t)size);

	for (int root = 0; root < ranks; root++) {
		fill(bytes, (size_t)size, (uint64_t)rank);
		MPI_Bcast(bytes, size, MPI_BYTE, root, MPI_COMM_WORLD);
		check(bytes, (size_t)size, (uint64_t)root, "broadcast");
		report("broadcast", (size_t)size, bytes, (size_t)size);
	}
	free(bytes);
}

// Rounds the length of a window up to whole pages. With shorter windows, MPICH 4.0.2 puts data of
// ranks on the same host at wrong addresses.
static MPI_Aint whole_pages(size_t length)
{
	return (MPI_Aint)((length + 4095) / 4096 * 4096);
}

// Performs puts, gets and accumulates of `count` numbers between fences.
static void one_sided_fences(int count)
{
	size_t length = (size_t)count * sizeof(int64_t);
	int64_t *window, *out = malloc(length), *got = malloc(length);
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	MPI_Win handle;

	// The window has three parts: for puts, for gets and for accumulates.
	MPI_Win_allocate(whole_pages(3 * length), sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &handle);
	fill((unsigned char *)window, 2 * length, (uint64_t)(rank + 7000));
	memset(window + 2 * count, 0, length);
	for (int at = 0; at < count; at++)
		out[at] = (int64_t)rank * 1000000 + at;
	// Waits until all ranks have set their numbers. The first fence need not wait for this, because no
	// operation precedes it. Without the barrier, ranks on one host would access the memory too early.
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_fence(0, handle);
	MPI_Put(out, count, MPI_INT64_T, next, 0, count, MPI_INT64_T, handle);
	MPI_Get(got, count, MPI_INT64_T, next, count, count, MPI_INT64_T, handle);
	for (int to = 0; to < ranks; to++)
		MPI_Accumulate(out, count, MPI_INT64_T, to, 2 * count, count, MPI_INT64_T, MPI_SUM, handle);
	MPI_Win_fence(0, handle);
	for (int at = 0; at < count; at++)
		if (window[at] != (int64_t)before * 1000000 + at)
			fail("what was put is not there");
	report("put get accumulate: window", (size_t)count, window, 3 * length);
	report("put get accumulate: got", (size_t)count, got, length);
	MPI_Win_free(&handle);
	free(out);
	free(got);
}

// All ranks increment the same numbers, once with locks and once with atomic operations.
static void one_sided_locks(void)
{
	enum { TIMES = 20, NUMBERS = 4 };
	int64_t *window, one = 1, got, before, swapped = 0;
	MPI_Win handle;

	MPI_Aint length = whole_pages(NUMBERS * sizeof *window);
	MPI_Win_allocate(length, sizeof *window, MPI_INFO_NULL, MPI_COMM_WORLD, &window, &handle);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, handle);
	memset(window, 0, NUMBERS * sizeof *window);
	MPI_Win_unlock(rank, handle);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int time = 0; time < TIMES; time++) {
		int to = (rank + time) % ranks;

		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, handle);
		MPI_Get(&got, 1, MPI_INT64_T, to, 0, 1, MPI_INT64_T, handle);
		MPI_Win_flush(to, handle);
		got++;
		MPI_Put(&got, 1, MPI_INT64_T, to, 0, 1, MPI_INT64_T, handle);
		MPI_Win_unlock(to, handle);

		MPI_Win_lock(MPI_LOCK_SHARED, to, 0, handle);
		MPI_Accumulate(&one, 1, MPI_INT64_T, to, 1, 1, MPI_INT64_T, MPI_SUM, handle);
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, to, 2, MPI_SUM, handle);
		MPI_Win_flush(to, handle);
		if (before < 0 || before >= (int64_t)ranks * TIMES)
			fail("a number nobody has counted to");
		MPI_Win_unlock(to, handle);
	}
	// Exactly one rank stores its number: the first that compares.
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, handle);
	int64_t own = rank + 1, none = 0;
	MPI_Compare_and_swap(&own, &none, &before, MPI_INT64_T, 0, 3, handle);
	MPI_Win_unlock(0, handle);
	swapped = before == 0;
	MPI_Barrier(MPI_COMM_WORLD);
	int64_t sum = 0;
	MPI_Allreduce(&swapped, &sum, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	if (sum != 1)
		fail("not one rank was the first");
	MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, handle);
	report("locks", TIMES, window, 3 * sizeof *window);
	MPI_Win_unlock(rank, handle);
	MPI_Win_free(&handle);
}

int main(int arguments, char **values)
{
	// Names of the parts to run; without an argument, all parts.
	const char *wanted = arguments > 1 ? values[1] : "all";
	int is_all = strcmp(wanted, "all") == 0;

	MPI_Init(&arguments, &values);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks % 2 != 0)
		fail("an odd number of ranks");
	if (is_all || strcmp(wanted, "ping-pong") == 0) {
		ping_pongs();
		windows();
	}
	if (is_all || strcmp(wanted, "collectives") == 0) {
		static const int sizes[] = {1, 64, 1000, 16384, 300000};

		for (size_t at = 0; at < sizeof sizes / sizeof *sizes; at++) {
			all_to_all(sizes[at]);
			all_reduce(sizes[at]);
			broadcast(sizes[at]);
		}
	}
	if (is_all || strcmp(wanted, "one-sided") == 0) {
		static const int counts[] = {1, 100, 2500, 100000};

		for (size_t at = 0; at < sizeof counts / sizeof *counts; at++)
			one_sided_fences(counts[at]);
		one_sided_locks();
	}
	if (rank == 0)
		printf("done by %d ranks\n", ranks);
	MPI_Finalize();
	return 0;
}

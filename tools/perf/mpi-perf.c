/*
 * mpi-perf: bandwidth and latency of MPI between two ranks, by the definitions of iwarp-perf.
 *
 * Bandwidth: MPI_Isend and MPI_Irecv of a window of W messages of S bytes, MPI_Waitall, and an
 * answer of 1 byte. Both ways: both ranks do that at once, and the sum is reported. Latency: half
 * the round-trip time of MPI_Send and MPI_Recv.
 *
 * Rank 0 decides what is measured. If a rank dies, MPI ends the other.
 */
#define _GNU_SOURCE
#include <mpi.h>

#define PROGRAM "mpi-perf"
#define MEASURED "MPI between two ranks"
#define PORT "0"
#define MAGIC 0x6d706970u
#define HAS_RANKS

#include "library-name.h"
#include "runs.h"

enum { DATA_MESSAGE = 1, ANSWER_MESSAGE = 2, ORDER_MESSAGE = 3 };

struct link {
	int peer;
	struct terms terms;
	struct run run;
	unsigned char *target, *source;
	MPI_Request *requests;
	MPI_Status *statuses;
	uint64_t wrong_bytes;
};

static const struct terms *terms_of(const struct link *link)
{
	return &link->terms;
}

static uint64_t wrong_bytes(const struct link *link)
{
	return link->wrong_bytes;
}

static void begin_run(struct link *link, const struct run *run)
{
	link->run = *run;
	link->wrong_bytes = 0;
	if (run->check)
		memset(link->target, 0, region_bytes(link->terms.size_max, link->terms.window_max));
}

static void fill(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++)
		for (uint64_t offset = 0; offset < link->run.size; offset++)
			link->source[place(&link->run, message) + offset] = pattern(window, message, offset);
}

static void compare(struct link *link, uint64_t window)
{
	for (uint64_t message = 0; message < link->run.window; message++)
		for (uint64_t offset = 0; offset < link->run.size; offset++)
			link->wrong_bytes +=
				link->target[place(&link->run, message) + offset] != pattern(window, message, offset);
}

static void run_windows(struct link *link, bool is_out, bool is_in)
{
	const struct run *run = &link->run;
	unsigned char answers[2] = { 0 };
	for (uint64_t window = 0; window < run->iterations; window++) {
		int count = 0;
		for (uint64_t i = 0; i < run->window && is_in; i++)
			MPI_Irecv(link->target + place(run, i), (int)run->size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD,
				  &link->requests[count++]);
		if (run->check && is_out)
			fill(link, window);
		for (uint64_t i = 0; i < run->window && is_out; i++)
			MPI_Isend(link->source + place(run, i), (int)run->size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD,
				  &link->requests[count++]);
		MPI_Waitall(count, link->requests, link->statuses);
		if (run->check && is_in)
			compare(link, window);
		if (is_in && is_out)
			MPI_Sendrecv(&answers[0], 1, MPI_BYTE, link->peer, ANSWER_MESSAGE, &answers[1], 1, MPI_BYTE, link->peer,
				     ANSWER_MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else if (is_in)
			MPI_Send(answers, 1, MPI_BYTE, link->peer, ANSWER_MESSAGE, MPI_COMM_WORLD);
		else
			MPI_Recv(answers, 1, MPI_BYTE, link->peer, ANSWER_MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

static void send_message(struct link *link, uint64_t round)
{
	if (link->run.check)
		fill(link, round);
	MPI_Send(link->source, (int)link->run.size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD);
}

static void receive_message(struct link *link, uint64_t round)
{
	MPI_Recv(link->target, (int)link->run.size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	if (link->run.check)
		compare(link, round);
}

static bool do_run(struct link *link)
{
	bool is_client = link->peer == 1, is_both = link->terms.test == BOTH_WAYS;
	if (link->terms.test != LATENCY) {
		run_windows(link, is_client || is_both, !is_client || is_both);
		return true;
	}
	for (uint64_t round = 0; round < link->run.iterations; round++) {
		if (is_client)
			send_message(link, round);
		receive_message(link, round);
		if (!is_client)
			send_message(link, round);
	}
	return true;
}

static bool send_order(struct link *link, const struct order *order)
{
	MPI_Send(order, sizeof(*order), MPI_BYTE, link->peer, ORDER_MESSAGE, MPI_COMM_WORLD);
	return true;
}

/* Waits for an order. MPI waits as long as the other rank lives, so the time limit is not used. */
static bool await_order(struct link *link, double patience_s, bool may_sleep, struct order *order)
{
	(void)patience_s;
	(void)may_sleep;
	MPI_Recv(order, sizeof(*order), MPI_BYTE, link->peer, ORDER_MESSAGE, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	return be32toh(order->magic) == MAGIC || failed("an order of the peer is garbled; do both ranks run " PROGRAM "?");
}

static bool set_up(struct link *link)
{
	uint64_t bytes = region_bytes(link->terms.size_max, link->terms.window_max);
	void *target = NULL, *source = NULL;
	link->requests = calloc(2 * link->terms.window_max, sizeof(MPI_Request));
	link->statuses = calloc(2 * link->terms.window_max, sizeof(MPI_Status));
	if (!link->requests || !link->statuses || posix_memalign(&target, 4096, bytes) || posix_memalign(&source, 4096, bytes))
		return failed("allocate twice %" PRIu64 " bytes: out of memory; use smaller --sizes or a smaller --window", bytes);
	link->target = target;
	link->source = source;
	memset(target, 0, bytes);
	memset(source, 0, bytes);
	return true;
}

int main(int count, char **words)
{
	struct options options = { .port = PORT, .seconds = 0.5, .runs = 10 };
	struct link link = { 0 };
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int rank, ranks;
	if (!read_options(count, words, &options))
		return 2;
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (ranks != 2) {
		if (rank == 0)
			failed("%d ranks: 2 are needed: mpirun -n 2 " PROGRAM, ranks);
		MPI_Finalize();
		return 2;
	}
	link.peer = 1 - rank;
	options.operation = SEND;
	link.terms = terms_asked(&options);
	name_library(library);
	bool is_good = set_up(&link) && (rank == 0 ? measure(&link, &options, library, "MPI") : serve_runs(&link));
	if (!is_good)
		MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
	MPI_Finalize();
	free(link.target);
	free(link.source);
	free(link.requests);
	free(link.statuses);
	return EXIT_SUCCESS;
}

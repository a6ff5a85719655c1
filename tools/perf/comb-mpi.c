/*
 * comb-mpi: the share of CPU time that a program keeps while messages flow both ways, over MPI.
 * There are two ranks; rank 0 is the worker.
 *
 * `comb.h` has the method. A message is an MPI_Isend into an MPI_Irecv, and testing is
 * MPI_Testsome.
 */
#define _GNU_SOURCE
#include <mpi.h>

#define PROGRAM "comb-mpi"
#define PORT "0"
#define USAGE "  mpirun -n 2 " PROGRAM " [OPTION...]    rank 0 measures, rank 1 answers\n"
#define EXAMPLE "Example: `mpirun -n 2 " PROGRAM " --sizes 256K --method post-work-wait`\n"

#include "comb.h"
#include "library-name.h"

enum { DATA_MESSAGE = 1, ORDER_MESSAGE = 2 };

struct link {
	int peer;
	uint64_t queue, size_max, slots;
	struct run run;
	unsigned char *memory; /* receive slots, then messages to send */
	uint64_t wrong, sends_posted;
	MPI_Request receives[2 * QUEUE_MAX], sends[4 * QUEUE_MAX];
	int indices[4 * QUEUE_MAX];
	MPI_Status statuses[4 * QUEUE_MAX];
	uint64_t sends_pending, receives_posted;
	struct order order_in, order_out;
	MPI_Request order_receive, order_send;
	bool has_order;
};

static unsigned char *receive_slot(const struct link *link, uint64_t slot)
{
	return link->memory + slot * link->size_max;
}

static unsigned char *send_slot(const struct link *link, uint64_t slot)
{
	return receive_slot(link, link->slots + slot % link->slots);
}

static bool set_up(struct link *link)
{
	link->slots = 2 * link->queue;
	uint64_t bytes = 2 * link->slots * link->size_max;
	void *memory;
	if (posix_memalign(&memory, 4096, bytes))
		return failed("allocate %" PRIu64 " bytes: out of memory; use smaller --sizes or a smaller --queue", bytes);
	link->memory = memory;
	memset(memory, 0, bytes);
	for (uint64_t slot = 0; slot < link->slots; slot++)
		fill(send_slot(link, slot), link->size_max);
	for (uint64_t i = 0; i < 2 * QUEUE_MAX; i++)
		link->receives[i] = MPI_REQUEST_NULL;
	for (uint64_t i = 0; i < 4 * QUEUE_MAX; i++)
		link->sends[i] = MPI_REQUEST_NULL;
	link->order_send = MPI_REQUEST_NULL;
	MPI_Irecv(&link->order_in, sizeof(link->order_in), MPI_BYTE, link->peer, ORDER_MESSAGE, MPI_COMM_WORLD,
		  &link->order_receive);
	return true;
}

static bool begin_run(struct link *link, const struct run *run)
{
	link->run = *run;
	link->wrong = link->receives_posted = link->sends_posted = 0;
	if (run->check)
		memset(link->memory, 0, link->slots * link->size_max);
	/* In polling runs rank 1 only answers: its receives must be posted before messages arrive. */
	for (uint64_t i = 0; i < link->slots && run->method == POLLING && link->peer == 0 && !run->silent; i++)
		if (!post_receive(link))
			return false;
	return true;
}

static bool end_run(struct link *link)
{
	for (uint64_t i = 0; i < link->slots; i++) {
		if (link->receives[i] == MPI_REQUEST_NULL)
			continue;
		MPI_Cancel(&link->receives[i]);
		MPI_Wait(&link->receives[i], MPI_STATUS_IGNORE);
	}
	link->run.check = false;
	return true;
}

static bool post_receive(struct link *link)
{
	uint64_t slot = 0;
	while (slot < link->slots && link->receives[slot] != MPI_REQUEST_NULL)
		slot++;
	if (slot == link->slots)
		return failed("more than %" PRIu64 " receives are posted", link->slots);
	MPI_Irecv(receive_slot(link, slot), (int)link->run.size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD,
		  &link->receives[slot]);
	return true;
}

static bool post_send(struct link *link)
{
	uint64_t count = 2 * link->slots, slot = 0;
	while (slot < count && link->sends[slot] != MPI_REQUEST_NULL)
		slot++;
	if (slot == count)
		return failed("more than %" PRIu64 " sends are pending", count);
	MPI_Isend(send_slot(link, link->sends_posted++), (int)link->run.size, MPI_BYTE, link->peer, DATA_MESSAGE, MPI_COMM_WORLD,
		  &link->sends[slot]);
	link->sends_pending++;
	return true;
}

static int test(struct link *link)
{
	int count = 0, is_there = 0;
	if (link->sends_pending > 0) {
		MPI_Testsome((int)(2 * link->slots), link->sends, &count, link->indices, link->statuses);
		link->sends_pending -= count == MPI_UNDEFINED ? 0 : (uint64_t)count;
	}
	if (!link->has_order && link->order_receive != MPI_REQUEST_NULL) {
		MPI_Test(&link->order_receive, &is_there, MPI_STATUS_IGNORE);
		link->has_order = is_there;
	}
	MPI_Testsome((int)link->slots, link->receives, &count, link->indices, link->statuses);
	if (count == MPI_UNDEFINED)
		return 0;
	for (int i = 0; i < count && link->run.check; i++)
		link->wrong += compare(receive_slot(link, (uint64_t)link->indices[i]), link->run.size);
	return count;
}

static bool are_sent(const struct link *link)
{
	return link->sends_pending == 0;
}

static bool has_order(const struct link *link)
{
	return link->has_order;
}

static bool take_order(struct link *link, struct order *order)
{
	*order = link->order_in;
	link->has_order = false;
	MPI_Irecv(&link->order_in, sizeof(link->order_in), MPI_BYTE, link->peer, ORDER_MESSAGE, MPI_COMM_WORLD,
		  &link->order_receive);
	return be32toh(order->magic) == ORDER_MAGIC || failed("an order of the peer is garbled; do both ranks run " PROGRAM "?");
}

static bool send_order(struct link *link, const struct order *order)
{
	MPI_Wait(&link->order_send, MPI_STATUS_IGNORE);
	link->order_out = *order;
	MPI_Isend(&link->order_out, sizeof(link->order_out), MPI_BYTE, link->peer, ORDER_MESSAGE, MPI_COMM_WORLD,
		  &link->order_send);
	return true;
}

/* If a rank dies, MPI ends the other. */
static bool is_connected(struct link *link)
{
	(void)link;
	return true;
}

static uint64_t wrong_bytes(const struct link *link)
{
	return link->wrong;
}

static void tear_down(struct link *link)
{
	MPI_Wait(&link->order_send, MPI_STATUS_IGNORE);
	if (link->order_receive != MPI_REQUEST_NULL) {
		MPI_Cancel(&link->order_receive);
		MPI_Wait(&link->order_receive, MPI_STATUS_IGNORE);
	}
	free(link->memory);
}

int main(int count, char **words)
{
	static struct link link;
	struct options options;
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int rank, ranks;
	/* Options are read before MPI starts, because MPI's threads inherit the CPU binding. */
	if (!read_options(count, words, &options))
		return 2;
	MPI_Init(&count, &words);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	catch_signals();
	if (ranks != 2) {
		if (rank == 0)
			failed("%d ranks: 2 are needed: mpirun -n 2 " PROGRAM, ranks);
		MPI_Finalize();
		return 2;
	}
	link.peer = 1 - rank;
	link.queue = options.queue;
	for (int i = 0; i < options.size_count; i++)
		link.size_max = options.sizes[i] > link.size_max ? options.sizes[i] : link.size_max;
	name_library(library);
	bool is_good = set_up(&link) &&
		       (rank == 0 ? measure(&link, &options, "mpi", library) : serve_runs(&link, link.queue, link.size_max));
	if (!is_good)
		MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
	tear_down(&link);
	MPI_Finalize();
	return EXIT_SUCCESS;
}

// Speed of MPI: a ping-pong between the first and the last rank, and Allreduce and Alltoall of all
// ranks.
//
// Rank 0 prints lines with a name, a value and a unit.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static int order(const void *left, const void *right)
{
	double a = *(const double *)left, b = *(const double *)right;

	return (a > b) - (a < b);
}

static double median(double *values, int count)
{
	qsort(values, (size_t)count, sizeof *values, order);
	return values[count / 2];
}

// Returns the median of half the round-trip time for messages of `size` bytes, in microseconds.
static double half_round_trip(int size, int turns)
{
	char *bytes = calloc((size_t)size, 1);
	double *took = calloc((size_t)turns, sizeof *took);
	int last = ranks - 1;

	MPI_Barrier(MPI_COMM_WORLD);
	// The turns with negative numbers are a warm-up, whose times do not count.
	for (int turn = -turns / 10; turn < turns; turn++) {
		double began = MPI_Wtime();

		if (rank == 0) {
			MPI_Send(bytes, size, MPI_BYTE, last, 0, MPI_COMM_WORLD);
			MPI_Recv(bytes, size, MPI_BYTE, last, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else if (rank == last) {
			MPI_Recv(bytes, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(bytes, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		}
		if (turn >= 0)
			took[turn] = (MPI_Wtime() - began) / 2 * 1e6;
	}
	double result = median(took, turns);
	free(took);
	free(bytes);
	return result;
}

static void reduce_to_all(void)
{
	double own = rank, sum;

	MPI_Allreduce(&own, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void exchange_among_all(void)
{
	enum { BYTES = 1024, RANKS = 64 };
	static char sent[RANKS * BYTES], received[RANKS * BYTES];

	if (ranks > RANKS)
		MPI_Abort(MPI_COMM_WORLD, 1);
	MPI_Alltoall(sent, BYTES, MPI_BYTE, received, BYTES, MPI_BYTE, MPI_COMM_WORLD);
}

// Returns the time of a collective operation in microseconds: the median of the averages of batches.
// The time of a single operation would vary too much, because a rank may wait for a processor.
static double collective(void (*operation)(void))
{
	enum { BATCHES = 20, TIMES = 50 };
	double took[BATCHES];

	for (int batch = -2; batch < BATCHES; batch++) {
		MPI_Barrier(MPI_COMM_WORLD);
		double began = MPI_Wtime();
		for (int time = 0; time < TIMES; time++)
			operation();
		if (batch >= 0)
			took[batch] = (MPI_Wtime() - began) / TIMES * 1e6;
	}
	return median(took, BATCHES);
}

int main(int arguments, char **values)
{
	// "pair", "collectives" or both.
	const char *wanted = arguments > 1 ? values[1] : "both";

	MPI_Init(&arguments, &values);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (strcmp(wanted, "collectives") != 0) {
		double latency = half_round_trip(1, 5000);
		double large = half_round_trip(1 << 20, 200);

		if (rank == 0)
			printf("latency_1 %.3f us\nthroughput_1048576 %.1f MiB/s\n", latency, 1e6 / large);
	}
	if (strcmp(wanted, "pair") != 0) {
		double reduced = collective(reduce_to_all);
		double exchanged = collective(exchange_among_all);

		if (rank == 0)
			printf("allreduce_8 %.3f us\nalltoall_1024 %.3f us\n", reduced, exchanged);
	}
	MPI_Finalize();
	return 0;
}

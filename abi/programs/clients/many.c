/* N processes with N queue pairs each. Every process is connected to every process, itself
 * included, and sends a message on each connection. Usage: many N */
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "pair.h"

struct shared {
	pthread_barrier_t barrier;
	struct name names[];
};

static void be_process(struct shared *shared, uint32_t self, uint32_t count)
{
	struct device device = open_device();
	struct ibv_cq *cq = ibv_create_cq(device.context, (int)count * 4, NULL, NULL, 0);
	CHECK(cq);
	uint32_t *memory = calloc(count * 2, sizeof *memory);
	struct ibv_mr *mr = ibv_reg_mr(device.domain, memory, count * 2 * sizeof *memory, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	struct ibv_qp **qp = calloc(count, sizeof *qp);
	for (uint32_t peer = 0; peer < count; peer++) {
		qp[peer] = make_queue_pair(&device, cq, 4);
		shared->names[self * count + peer] = name_of(&device, qp[peer], NULL);
	}
	pthread_barrier_wait(&shared->barrier);
	for (uint32_t peer = 0; peer < count; peer++) {
		uint32_t *outgoing = &memory[peer];
		*outgoing = self * 1000 + peer;
		connect_queue_pair(qp[peer], &shared->names[self * count + peer], &shared->names[peer * count + self]);
		CHECK(post_receive(qp[peer], mr, (count + peer) * 4, 4, count + peer) == 0);
		CHECK(post_send(qp[peer], mr, peer * 4, 4, peer) == 0);
	}
	for (uint32_t done = 0; done < count * 2; done++) {
		struct ibv_wc wc = next_completion(cq);
		if (wc.status != IBV_WC_SUCCESS)
			fprintf(stderr, "process %u, work %lu: status %d\n", self, wc.wr_id, wc.status);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
	for (uint32_t peer = 0; peer < count; peer++)
		CHECK(memory[count + peer] == peer * 1000 + self);
	pthread_barrier_wait(&shared->barrier);
	for (uint32_t peer = 0; peer < count; peer++)
		CHECK(ibv_destroy_qp(qp[peer]) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(device.domain) == 0);
	CHECK(ibv_close_device(device.context) == 0);
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	uint32_t count = (uint32_t)atoi(argv[1]);
	size_t bytes = sizeof(struct shared) + count * count * sizeof(struct name);
	struct shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(shared != MAP_FAILED);
	pthread_barrierattr_t attributes;
	CHECK(pthread_barrierattr_init(&attributes) == 0);
	CHECK(pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0);
	CHECK(pthread_barrier_init(&shared->barrier, &attributes, count) == 0);
	for (uint32_t self = 0; self < count; self++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (pid == 0) {
			be_process(shared, self, count);
			exit(0);
		}
	}
	int failed = 0, status;
	while (wait(&status) > 0) {
		if (status != 0) {
			failed++;
			/* One process failed. The other processes would wait for it at the barrier forever, so kill
			   them. */
			signal(SIGTERM, SIG_IGN);
			kill(0, SIGTERM);
		}
	}
	CHECK(failed == 0);
	printf("%u processes, %u queue pairs: all connected\n", count, count * count);
	return 0;
}
